//! Modules and libraries: loaded images, what they take, and the kernels in them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::{Context, current};
use crate::handles::{Registry, Tag};
use crate::image::{Image, KernelImage};
use crate::memory;
use crate::process::{context, process};

pub(crate) static MODULES: Registry<Module> = Registry::new(Tag::Module);
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new(Tag::Function);
pub(crate) static LIBRARIES: Registry<Library> = Registry::new(Tag::Library);
pub(crate) static KERNELS: Registry<Kernel> = Registry::new(Tag::Kernel);

/// An image in a context.
pub(crate) struct Module {
    pub handle: usize,
    pub context: usize,
    pub image: Arc<Image>,
    /// Where the globals are; None until they are loaded.
    globals: Mutex<Option<Vec<u64>>>,
    functions: Mutex<HashMap<usize, Arc<Function>>>,
}

/// A kernel in a context.
pub(crate) struct Function {
    pub handle: usize,
    pub module: Weak<Module>,
    pub context: usize,
    pub kernel: Arc<KernelImage>,
    /// Dynamic shared memory it may use, as opted in.
    pub max_dynamic_shared: AtomicU32,
    pub carveout: AtomicI32,
    /// Whether globals and code are on the device: what a launch checks first.
    loaded: std::sync::atomic::AtomicBool,
    /// State of the launch functions of CUDA 2.
    pub legacy: Mutex<crate::launch::LegacyState>,
}

/// An image that is loaded into contexts as they come to use it.
pub(crate) struct Library {
    pub handle: usize,
    pub image: Arc<Image>,
    modules: Mutex<HashMap<usize, Arc<Module>>>,
    kernels: Mutex<HashMap<usize, Arc<Kernel>>>,
}

/// A kernel of a library, in whichever context it is launched.
pub(crate) struct Kernel {
    pub handle: usize,
    pub library: Weak<Library>,
    pub index: usize,
    pub kernel: Arc<KernelImage>,
    functions: RwLock<Vec<(usize, Arc<Function>)>>,
}

impl Module {
    fn register(context: &Context, image: &Arc<Image>) -> Arc<Module> {
        MODULES.insert_with(|handle| Module {
            handle,
            context: context.handle,
            image: Arc::clone(image),
            globals: Mutex::new(None),
            functions: Mutex::default(),
        })
    }

    /// Puts the globals on the device, if they are not there.
    pub(crate) fn load(&self) -> Outcome {
        let mut globals = self.globals.lock();
        if globals.is_some() {
            return Ok(());
        }
        let total: u64 = self.image.globals.iter().map(|(_, bytes)| bytes.next_multiple_of(512)).sum();
        let mut at = Vec::new();
        if total != 0 {
            let mut next = memory::module::allocate(&*context(self.context as CUcontext)?, self.handle, total)?;
            for (_, bytes) in &self.image.globals {
                at.push(next);
                next += bytes.next_multiple_of(512);
            }
        }
        if self.image.kernels.iter().any(|kernel| kernel.heap)
            && let Err(code) = context(self.context as CUcontext).and_then(|context| context.ensure_heap_code())
        {
            if total != 0 {
                memory::module::free(self.handle);
            }
            return Err(code);
        }
        *globals = Some(at);
        Ok(())
    }

    fn unload(&self) {
        if self.globals.lock().take().is_some_and(|at| !at.is_empty()) {
            memory::module::free(self.handle);
        }
        for function in self.functions.lock().drain() {
            FUNCTIONS.remove(function.1.handle);
        }
    }

    fn global(&self, name: &CStr) -> Outcome<(u64, u64)> {
        let index =
            self.image.globals.iter().position(|(n, _)| n.as_bytes() == name.to_bytes()).ok_or(CUDA_ERROR_NOT_FOUND)?;
        self.load()?;
        let at = self.globals.lock().as_ref().map(|all| all[index]).ok_or(CUDA_ERROR_NOT_FOUND)?;
        Ok((at, self.image.globals[index].1))
    }

    pub(crate) fn function(self: &Arc<Self>, index: usize) -> Arc<Function> {
        let mut functions = self.functions.lock();
        let make = || {
            FUNCTIONS.insert_with(|handle| Function {
                handle,
                module: Arc::downgrade(self),
                context: self.context,
                kernel: Arc::clone(&self.image.kernels[index]),
                max_dynamic_shared: AtomicU32::new(49_152u32.saturating_sub(self.image.kernels[index].shared)),
                carveout: AtomicI32::new(-1),
                loaded: std::sync::atomic::AtomicBool::new(false),
                legacy: Mutex::default(),
            })
        };
        Arc::clone(functions.entry(index).or_insert_with(make))
    }
}

impl Function {
    /// Makes sure that it can run: its module's globals are on the device.
    #[inline]
    pub(crate) fn ensure_loaded(&self) -> Outcome {
        if !self.loaded.load(Ordering::Acquire) {
            self.module.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?.load()?;
            self.loaded.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }
}

impl Library {
    /// Its module in a context.
    pub(crate) fn module(&self, context: &Context) -> Arc<Module> {
        let mut modules = self.modules.lock();
        Arc::clone(modules.entry(context.handle).or_insert_with(|| Module::register(context, &self.image)))
    }

    fn kernel(self: &Arc<Self>, index: usize) -> Arc<Kernel> {
        let mut kernels = self.kernels.lock();
        let make = || {
            KERNELS.insert_with(|handle| Kernel {
                handle,
                library: Arc::downgrade(self),
                index,
                kernel: Arc::clone(&self.image.kernels[index]),
                functions: RwLock::default(),
            })
        };
        Arc::clone(kernels.entry(index).or_insert_with(make))
    }
}

impl Kernel {
    /// The function that it is in a context.
    pub(crate) fn function(&self, context: &Context) -> Outcome<Arc<Function>> {
        if let Some((_, function)) = self.functions.read().iter().find(|(handle, _)| *handle == context.handle) {
            return Ok(Arc::clone(function));
        }
        let library = self.library.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let function = library.module(context).function(self.index);
        self.functions.write().push((context.handle, Arc::clone(&function)));
        Ok(function)
    }
}

/// What a launch was given: a function, or a library's kernel, which the driver takes as well.
#[inline]
pub(crate) fn resolve(handle: CUfunction, context: &Context) -> Outcome<Arc<Function>> {
    if let Some(function) = FUNCTIONS.get(handle as usize) {
        return Ok(function);
    }
    KERNELS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?.function(context)
}

/// A context is gone: so are its modules, and what libraries have in it.
pub(crate) fn forget_context(context: &Context) {
    for library in LIBRARIES.all() {
        library.modules.lock().remove(&context.handle);
        for kernel in library.kernels.lock().values() {
            kernel.functions.write().retain(|(handle, _)| *handle != context.handle);
        }
    }
    for module in MODULES.remove_all(|module| module.context == context.handle) {
        module.unload();
    }
}

fn load_module(out: Out<CUmodule>, image: Image) -> Outcome {
    let context = current()?;
    out.required()?;
    let module = Module::register(&context, &Arc::new(image));
    if let Err(code) = module.load() {
        MODULES.remove(module.handle);
        return Err(code);
    }
    out.set(module.handle as CUmodule)
}

/// For the private table through which CUDA 11's runtime loads modules.
pub(crate) fn load_from_pointer(out: Out<CUmodule>, image: *const c_void) -> Outcome {
    current()?;
    load_module(out, Image::from_pointer(image)?)
}

fn load_library(out: Out<CUlibrary>, image: Image) -> Outcome {
    process()?;
    out.required()?;
    let library = LIBRARIES.insert_with(|handle| Library {
        handle,
        image: Arc::new(image),
        modules: Mutex::default(),
        kernels: Mutex::default(),
    });
    if loading_mode() == CU_MODULE_EAGER_LOADING
        && let Ok(context) = current()
    {
        library.module(&context).load()?;
    }
    out.set(library.handle as CUlibrary)
}

fn from_file(name: In<c_char>) -> Outcome<Image> {
    let path = name.text()?.to_string_lossy().into_owned();
    let text = std::fs::read(&path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    let text = [text.as_slice(), b"\0"].concat();
    Image::from_pointer(text.as_ptr().cast())
}

pub(crate) fn loading_mode() -> u32 {
    match std::env::var("CUDA_MODULE_LOADING").as_deref() {
        Ok("EAGER") => CU_MODULE_EAGER_LOADING,
        _ => CU_MODULE_LAZY_LOADING,
    }
}

fn module_of(handle: CUmodule) -> Outcome<Arc<Module>> {
    process()?;
    MODULES.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn library_of(handle: CUlibrary) -> Outcome<Arc<Library>> {
    process()?;
    LIBRARIES.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn set_global(at: (u64, u64), pointer: Out<CUdeviceptr>, bytes: Out<usize>) -> Outcome {
    pointer.maybe(at.0);
    bytes.maybe(at.1 as usize);
    Ok(())
}

api! {
    export fn cuModuleLoadData(module: Out<CUmodule>, image: *const c_void) { current()?; load_module(module, Image::from_pointer(image)?) }
    export fn cuModuleLoadDataEx(module: Out<CUmodule>, image: *const c_void, _count: u32, _options: In<CUjit_option>, _values: In<*mut c_void>) {
        current()?;
        load_module(module, Image::from_pointer(image)?)
    }
    export fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: *const c_void) { current()?; load_module(module, Image::from_pointer(image)?) }
    export fn cuModuleLoad(module: Out<CUmodule>, name: In<c_char>) { current()?; load_module(module, from_file(name)?) }
    export fn cuModuleUnload(module: CUmodule) {
        current()?;
        crate::capture::forbid_unsafe()?;
        let module = MODULES.remove(module as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        module.unload();
        Ok(())
    }
    export fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) { mode.set(loading_mode()) }
    export fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: In<c_char>) {
        let module = module_of(module)?;
        let index = module.image.kernel_index(name.text()?).ok_or(CUDA_ERROR_NOT_FOUND)?;
        function.set(module.function(index).handle as CUfunction)
    }
    export fn cuModuleGetFunctionCount(count: Out<u32>, module: CUmodule) { count.set(module_of(module)?.image.kernels.len() as u32) }
    export fn cuModuleEnumerateFunctions(functions: Out<CUfunction>, count: u32, module: CUmodule) {
        let module = module_of(module)?;
        functions.required()?;
        for index in 0..module.image.kernels.len().min(count as usize) {
            functions.set_at(index, module.function(index).handle as CUfunction);
        }
        Ok(())
    }
    export fn cuModuleGetGlobal_v2(pointer: Out<CUdeviceptr>, bytes: Out<usize>, module: CUmodule, name: In<c_char>) {
        set_global(module_of(module)?.global(name.text()?)?, pointer, bytes)
    }
    export fn cuModuleGetTexRef(_texref: Out<CUtexref>, module: CUmodule, _name: In<c_char>) { module_of(module)?; Err(CUDA_ERROR_NOT_FOUND) }
    export fn cuModuleGetSurfRef(_surfref: Out<CUsurfref>, module: CUmodule, _name: In<c_char>) { module_of(module)?; Err(CUDA_ERROR_NOT_FOUND) }

    export fn cuLibraryLoadData(library: Out<CUlibrary>, code: *const c_void, _jit: In<CUjit_option>, _jit_values: In<*mut c_void>, _jit_count: u32,
        _options: In<CUlibraryOption>, _values: In<*mut c_void>, _count: u32) {
        process()?;
        load_library(library, Image::from_pointer(code)?)
    }
    export fn cuLibraryLoadFromFile(library: Out<CUlibrary>, name: In<c_char>, _jit: In<CUjit_option>, _jit_values: In<*mut c_void>, _jit_count: u32,
        _options: In<CUlibraryOption>, _values: In<*mut c_void>, _count: u32) {
        process()?;
        load_library(library, from_file(name)?)
    }
    export fn cuLibraryUnload(library: CUlibrary) {
        process()?;
        let library = LIBRARIES.remove(library as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        for (_, module) in library.modules.lock().drain() {
            if MODULES.remove(module.handle).is_some() {
                module.unload();
            }
        }
        for (_, kernel) in library.kernels.lock().drain() {
            KERNELS.remove(kernel.handle);
        }
        Ok(())
    }
    export fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, name: In<c_char>) {
        let library = library_of(library)?;
        let index = library.image.kernel_index(name.text()?).ok_or(CUDA_ERROR_NOT_FOUND)?;
        kernel.set(library.kernel(index).handle as CUkernel)
    }
    export fn cuLibraryGetKernelCount(count: Out<u32>, library: CUlibrary) { count.set(library_of(library)?.image.kernels.len() as u32) }
    export fn cuLibraryEnumerateKernels(kernels: Out<CUkernel>, count: u32, library: CUlibrary) {
        let library = library_of(library)?;
        kernels.required()?;
        for index in 0..library.image.kernels.len().min(count as usize) {
            kernels.set_at(index, library.kernel(index).handle as CUkernel);
        }
        Ok(())
    }
    export fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) {
        let loaded = library_of(library)?.module(&*current()?);
        loaded.load()?;
        module.set(loaded.handle as CUmodule)
    }
    export fn cuLibraryGetGlobal(pointer: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: In<c_char>) {
        let library = library_of(library)?;
        set_global(library.module(&*current()?).global(name.text()?)?, pointer, bytes)
    }
    export fn cuLibraryGetManaged(_pointer: Out<CUdeviceptr>, _bytes: Out<usize>, library: CUlibrary, _name: In<c_char>) {
        library_of(library)?;
        Err(CUDA_ERROR_NOT_FOUND) // images have no managed variables
    }
    export fn cuLibraryGetUnifiedFunction(_function: Out<*mut c_void>, library: CUlibrary, _name: In<c_char>) {
        library_of(library)?;
        Err(CUDA_ERROR_NOT_FOUND) // nor unified functions
    }
}
