//! The CUDA driver as the doctor asks it, from a process that may be lost over it.
//!
//! Each call is announced first ([`Said::At`]), so that the one that does not come back has a name.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

use libloading::Library;

use super::said::{Said, say};
use crate::functions::functions;

/// What programs load.
const LIBRARY: &str = "libcuda.so.1";
/// Room for a GPU's name.
const NAME: usize = 256;
/// Fills of this many bytes are work, too, where no kernel can be loaded.
const FILL: usize = 32 << 20;

type Handle = *mut c_void;

/// A kernel that keeps a GPU busy for some tenths of a millisecond: it reads the clock so often, which no compiler takes for nothing. What
/// the simulated GPU is to take for it stands in a comment, which is how that one is told.
const KERNEL: &str = "\
.version 6.0
.target sm_50
.address_size 64
//ration-sim
//ration-sim busy time=250us
.visible .entry busy()
{
    .reg .u64 %rd<3>;
    .reg .u32 %r<2>;
    .reg .pred %p<2>;
    mov.u32 %r1, 0;
again:
    mov.u64 %rd1, %clock64;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 10000;
    @%p1 bra again;
    ret;
}
";

functions! {
    init = "cuInit"(u32);
    version = "cuDriverGetVersion"(*mut i32);
    count = "cuDeviceGetCount"(*mut i32);
    device_get = "cuDeviceGet"(*mut i32, i32);
    device_name = "cuDeviceGetName"(*mut c_char, i32, i32);
    device_uuid = "cuDeviceGetUuid"(*mut [u8; 16], i32);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, i32);
    context_create = "cuCtxCreate_v2"(*mut Handle, u32, i32);
    context_wait = "cuCtxSynchronize"();
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_alloc = "cuMemAlloc_v2"(*mut u64, usize);
    memory_free = "cuMemFree_v2"(u64);
    memory_fill = "cuMemsetD8Async"(u64, u8, usize, Handle);
    module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    launch_kernel = "cuLaunchKernel"(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut Handle, *mut Handle);
    error_name = "cuGetErrorName"(i32, *mut *const c_char);
}

/// The driver, begun.
pub struct Cuda {
    functions: Functions,
    /// The functions are its.
    _library: Library,
}

/// Work that can be asked for again and again, in a context that is current on this thread.
pub enum Work {
    Kernel(Handle),
    /// This memory is filled.
    Fill(u64),
}

fn at(what: &str) {
    say(&Said::At(what.into()));
}

impl Cuda {
    /// Loads it and begins it.
    pub fn open() -> Result<Cuda, Said> {
        at("loading libcuda.so.1");
        // SAFETY: loading runs the library's initialisers. It is the driver that programs started from here load in the same way.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
            let loader = std::error::Error::source(&error).map(ToString::to_string);
            Said::Missing(format!("{LIBRARY} cannot be loaded: {}", loader.unwrap_or_else(|| error.to_string())))
        })?;
        let cuda = Cuda {
            functions: Functions::find(&library)
                .map_err(|symbol| Said::Missing(format!("{LIBRARY} has no {symbol}")))?,
            _library: library,
        };
        // SAFETY: takes a number, which is to be zero.
        cuda.call("cuInit", || unsafe { (cuda.functions.init)(0) })?;
        Ok(cuda)
    }

    /// Announces a call, makes it, and turns its error into words.
    fn call(&self, name: &str, call: impl FnOnce() -> i32) -> Result<(), Said> {
        at(name);
        match call() {
            0 => Ok(()),
            code => Err(self.refused(name, code)),
        }
    }

    fn refused(&self, call: &str, code: i32) -> Said {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: a place to write to.
        let is_known = unsafe { (self.functions.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        let name = match is_known {
            // SAFETY: the driver gave a zero-terminated text that it keeps for as long as it is loaded.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            false => "an error without a name".into(),
        };
        Said::Refused { call: call.into(), code, name }
    }

    /// CUDA's version.
    pub fn version(&self) -> Result<i32, Said> {
        let mut version = 0;
        // SAFETY: a place to write to.
        self.call("cuDriverGetVersion", || unsafe { (self.functions.version)(&raw mut version) })?;
        Ok(version)
    }

    /// How many GPUs there are.
    pub fn count(&self) -> Result<i32, Said> {
        let mut count = 0;
        // SAFETY: a place to write to.
        self.call("cuDeviceGetCount", || unsafe { (self.functions.count)(&raw mut count) })?;
        Ok(count)
    }

    fn device_handle(&self, index: i32) -> Result<i32, Said> {
        let mut device = 0;
        // SAFETY: a place to write to.
        self.call("cuDeviceGet", || unsafe { (self.functions.device_get)(&raw mut device, index) })?;
        Ok(device)
    }

    /// What one of them is.
    pub fn device(&self, index: i32) -> Result<Said, Said> {
        let device = self.device_handle(index)?;
        let (mut name, mut uuid, mut bytes) = ([0u8; NAME], [0; 16], 0);
        let f = &self.functions;
        // SAFETY: the driver's own number for the device, and a place to write to with its length.
        self.call("cuDeviceGetName", || unsafe { (f.device_name)(name.as_mut_ptr().cast(), NAME as i32, device) })?;
        // SAFETY: a place for the sixteen bytes of a UUID.
        self.call("cuDeviceGetUuid", || unsafe { (f.device_uuid)(&raw mut uuid, device) })?;
        // SAFETY: a place to write to.
        self.call("cuDeviceTotalMem", || unsafe { (f.device_memory)(&raw mut bytes, device) })?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        Ok(Said::Device { index, name, uuid: ration_contract::print_uuid(&uuid), bytes: bytes as u64 })
    }

    /// Makes a context, which is current on this thread from then on, and ends with the process.
    pub fn enter(&self, index: i32) -> Result<(), Said> {
        let device = self.device_handle(index)?;
        let mut context = null_mut();
        // SAFETY: a place to write to, no flags, and the driver's own number for the device.
        self.call("cuCtxCreate", || unsafe { (self.functions.context_create)(&raw mut context, 0, device) })
    }

    /// The memory that there is.
    pub fn memory(&self) -> Result<u64, Said> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places to write to; a context is current (see `enter`).
        self.call("cuMemGetInfo", || unsafe { (self.functions.memory_info)(&raw mut free, &raw mut total) })?;
        Ok(total as u64)
    }

    /// What the driver answers to being asked for so many bytes, which are given back at once.
    pub fn tried(&self, bytes: u64) -> i32 {
        at("cuMemAlloc");
        let mut address = 0;
        // SAFETY: a place to write to; a context is current (see `enter`).
        let code = unsafe { (self.functions.memory_alloc)(&raw mut address, bytes as usize) };
        if code == 0 {
            // SAFETY: memory of the driver's that nobody uses.
            unsafe { (self.functions.memory_free)(address) };
        }
        code
    }

    /// Something for the GPU to do: a kernel, or where none can be loaded, fills.
    pub fn work(&self) -> Result<Work, Said> {
        let (mut module, mut kernel) = (null_mut(), null_mut());
        let f = &self.functions;
        let image = CString::new(KERNEL).unwrap_or_default();
        let mut load = || {
            // SAFETY: a place to write to, and a zero-terminated text that outlives the call; a context is current (see `enter`).
            self.call("cuModuleLoadData", || unsafe { (f.module_load)(&raw mut module, image.as_ptr().cast()) })?;
            // SAFETY: a place to write to, a module that was just loaded, and a zero-terminated name.
            self.call("cuModuleGetFunction", || unsafe {
                (f.module_function)(&raw mut kernel, module, c"busy".as_ptr())
            })
        };
        if load().is_ok() {
            return Ok(Work::Kernel(kernel));
        }
        let mut address = 0;
        // SAFETY: a place to write to; a context is current.
        self.call("cuMemAlloc", || unsafe { (f.memory_alloc)(&raw mut address, FILL) })?;
        Ok(Work::Fill(address))
    }

    /// Has the GPU do so much of it, and waits.
    pub fn repeat(&self, work: &Work, times: u32) -> Result<(), Said> {
        let (f, none) = (&self.functions, null_mut());
        for _ in 0..times {
            let code = match work {
                // SAFETY: a kernel of a module that stays loaded, which takes no parameters; the stream is the default one.
                Work::Kernel(kernel) => unsafe {
                    (f.launch_kernel)(*kernel, 1, 1, 1, 32, 1, 1, 0, none, null_mut(), null_mut())
                },
                // SAFETY: memory of that size that nobody else uses, and that is never given back.
                Work::Fill(address) => unsafe { (f.memory_fill)(*address, 0, FILL, none) },
            };
            if code != 0 {
                return Err(self.refused("a launch", code));
            }
        }
        // SAFETY: a context is current (see `enter`).
        match unsafe { (f.context_wait)() } {
            0 => Ok(()),
            code => Err(self.refused("cuCtxSynchronize", code)),
        }
    }
}
