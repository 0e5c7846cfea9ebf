//! The CUDA driver as a worker uses it: found at run time, like any CUDA program does, and a dozen of its functions.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::ptr;
use std::time::Duration;

use libloading::Library;

use crate::functions::functions;

/// What programs load.
const LIBRARY: &str = "libcuda.so.1";
/// The kernel's name in the image.
const KERNEL: &CStr = c"step";

type Handle = *mut c_void;

functions! {
    init = "cuInit"(u32);
    device_get = "cuDeviceGet"(*mut i32, i32);
    context_create = "cuCtxCreate_v2"(*mut Handle, u32, i32);
    memory_alloc = "cuMemAlloc_v2"(*mut u64, usize);
    memory_free = "cuMemFree_v2"(u64);
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    launch_kernel = "cuLaunchKernel"(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut Handle, *mut Handle);
    event_create = "cuEventCreate"(*mut Handle, u32);
    event_record = "cuEventRecord"(Handle, Handle);
    event_wait = "cuEventSynchronize"(Handle);
    context_wait = "cuCtxSynchronize"();
    error_name = "cuGetErrorName"(i32, *mut *const c_char);
}

/// Why there is no GPU, or why it does not do what it was asked.
#[derive(Debug)]
pub enum DriverError {
    /// No such library, in the loader's words.
    NotFound(String),
    /// The library is there and has no such function.
    Lacks(&'static str),
    /// The driver refused.
    Refused {
        /// The function.
        call: &'static str,
        /// Its error.
        code: i32,
        /// The driver's name for it.
        name: String,
    },
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverError::NotFound(why) => write!(f, "{LIBRARY} cannot be loaded: {why}"),
            DriverError::Lacks(symbol) => write!(f, "{LIBRARY} has no {symbol}"),
            DriverError::Refused { call, code, name } => write!(f, "{call} answered {code}, {name}"),
        }
    }
}

impl DriverError {
    /// Whether the simulated driver is what is missing, rather than something that it refused.
    pub fn is_absence(&self) -> bool {
        match self {
            DriverError::NotFound(_) | DriverError::Lacks(_) => true,
            DriverError::Refused { call, .. } => ["cuInit", "cuModuleLoadData"].contains(call),
        }
    }
}

/// What `cuMemGetInfo` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes.
    pub free: u64,
    /// Bytes.
    pub total: u64,
}

/// A context on the first GPU, with one kernel loaded. It stays on the thread that made it, because its context is
/// current there; the pointers in it see to that.
pub struct Gpu {
    functions: Functions,
    kernel: Handle,
    events: Vec<Handle>,
    /// The functions are its.
    _library: Library,
}

impl Gpu {
    /// Starts the driver and loads a kernel that takes `kernel` of GPU time. `events` can be recorded.
    pub fn open(kernel: Duration, events: usize) -> Result<Gpu, DriverError> {
        // SAFETY: loading runs the library's initialisers. It is the driver that the user put on the library path, and
        // every CUDA program of theirs loads it in the same way.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
            let loader = std::error::Error::source(&error).map(ToString::to_string);
            DriverError::NotFound(loader.unwrap_or_else(|| error.to_string()))
        })?;
        let functions = Functions::find(&library).map_err(DriverError::Lacks)?;
        let mut gpu = Gpu { functions, kernel: ptr::null_mut(), events: Vec::new(), _library: library };
        gpu.start(kernel, events)?;
        Ok(gpu)
    }

    fn start(&mut self, kernel: Duration, events: usize) -> Result<(), DriverError> {
        let image = CString::new(format!("ration-sim-image 1\nkernel step time={}ns\n", kernel.as_nanos()));
        let image = image.map_err(|_| DriverError::Lacks("kernel images with zeros"))?;
        let (mut device, mut context, mut module) = (0, ptr::null_mut(), ptr::null_mut());
        let f = &self.functions;
        // SAFETY: each call gets what the driver API asks for: out-pointers to locals of the right type, a
        // zero-terminated image and name that outlive the call, and handles that the calls before made. The context
        // that is created becomes current on this thread and is never destroyed.
        unsafe {
            self.check("cuInit", (f.init)(0))?;
            self.check("cuDeviceGet", (f.device_get)(&raw mut device, 0))?;
            self.check("cuCtxCreate", (f.context_create)(&raw mut context, 0, device))?;
            // Before anything is taken: a driver that is not the simulated one refuses the image.
            self.check("cuModuleLoadData", (f.module_load)(&raw mut module, image.as_ptr().cast()))?;
            let mut kernel = ptr::null_mut();
            self.check("cuModuleGetFunction", (f.module_function)(&raw mut kernel, module, KERNEL.as_ptr()))?;
            self.kernel = kernel;
        }
        for _ in 0..events {
            let mut event = ptr::null_mut();
            // SAFETY: an out-pointer to a local; 2 is CU_EVENT_DISABLE_TIMING.
            let code = unsafe { (self.functions.event_create)(&raw mut event, 2) };
            self.check("cuEventCreate", code)?;
            self.events.push(event);
        }
        Ok(())
    }

    /// Takes so many bytes of device memory: its address.
    pub fn take(&self, bytes: u64) -> Result<u64, DriverError> {
        let mut address = 0;
        // SAFETY: an out-pointer to a local; a context is current on this thread.
        let code = unsafe { (self.functions.memory_alloc)(&raw mut address, bytes as usize) };
        self.check("cuMemAlloc", code).map(|()| address)
    }

    /// Gives back what was taken at an address.
    pub fn give(&self, address: u64) -> Result<(), DriverError> {
        // SAFETY: the driver checks addresses, and kernels of ours touch no memory that could be missed.
        let code = unsafe { (self.functions.memory_free)(address) };
        self.check("cuMemFree", code)
    }

    /// What the driver says there is, and what of it is free.
    pub fn memory(&self) -> Result<MemoryInfo, DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-pointers to locals; a context is current on this thread.
        let code = unsafe { (self.functions.memory_info)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo", code).map(|()| MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Puts one kernel into the default stream.
    pub fn launch(&self) -> Result<(), DriverError> {
        let nothing = ptr::null_mut();
        let parameters = ptr::null_mut();
        // SAFETY: the kernel is one of the context that is current on this thread (see `Gpu`) and takes no parameters;
        // a null stream is the default one.
        let code = unsafe {
            (self.functions.launch_kernel)(self.kernel, 132, 1, 1, 256, 1, 1, 0, nothing, parameters, parameters)
        };
        self.check("cuLaunchKernel", code)
    }

    /// Notes the place in the default stream that has been reached, in the event of this number.
    pub fn record(&self, event: usize) -> Result<(), DriverError> {
        // SAFETY: `start` made the event, it is never destroyed, and a null stream is the default one.
        let code = unsafe { (self.functions.event_record)(self.events[event], ptr::null_mut()) };
        self.check("cuEventRecord", code)
    }

    /// Waits until the place that the event noted last has been passed.
    pub fn wait_for(&self, event: usize) -> Result<(), DriverError> {
        // SAFETY: `start` made the event, and it is never destroyed.
        let code = unsafe { (self.functions.event_wait)(self.events[event]) };
        self.check("cuEventSynchronize", code)
    }

    /// Waits until everything is done.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: a context is current on this thread.
        let code = unsafe { (self.functions.context_wait)() };
        self.check("cuCtxSynchronize", code)
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = ptr::null();
        // SAFETY: an out-pointer to a local.
        let known = unsafe { (self.functions.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        let name = if known {
            // SAFETY: the driver gave a zero-terminated text that it keeps for as long as it is loaded.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "an error without a name".to_owned()
        };
        Err(DriverError::Refused { call, code, name })
    }
}
