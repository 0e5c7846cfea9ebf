//! A library that is linked as the package is: the unwinder inside of it must work on any C library.

/// 42, from behind a panic that went through several frames.
#[unsafe(no_mangle)]
pub extern "C" fn catches_its_panic() -> i32 {
    let caught = std::panic::catch_unwind(|| deeper(std::hint::black_box(5)));
    caught.map_or_else(|payload| *payload.downcast::<i32>().unwrap_or_default(), |_| 0)
}

#[inline(never)]
fn deeper(levels: i32) -> i32 {
    if levels == 0 {
        std::panic::panic_any(42);
    }
    deeper(levels - 1) + std::hint::black_box(1)
}
