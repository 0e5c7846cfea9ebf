//! The CUDA driver's functions, found at run time, as any CUDA program does.

/// Declares a table of functions, and reads it from a library.
macro_rules! functions {
    ($($field:ident = $symbol:literal($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> i32,)*
        }

        impl Functions {
            /// Otherwise the one that the library lacks.
            fn find(library: &libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($field: {
                        // SAFETY: the type is that of the CUDA driver API, which a library under its name has; whoever asks keeps
                        // the pointer beside the library, so it is not called after that is gone.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> i32>($symbol) };
                        *found.map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}

pub(crate) use functions;
