//! Functions of the driver and NVML that the shim calls for its own ends, typed by `include/`.
//!
//! Each is looked up in the library's own symbol table at its first use. One that the installed driver lacks answers as the
//! driver answers for what it does not support.

#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{DRIVER, NVML, Real};
use crate::abi::cuda::*;
use crate::abi::nvml::{
    self, NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDevice_t, nvmlGetMemoryLimits_v1_t, nvmlMemory_t, nvmlProcessDetailList_t,
    nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t,
};
use crate::left;
use crate::resolve::elf;
use crate::thread::Thread;

/// A function by its name in a library.
struct Function {
    library: &'static Real,
    name: &'static CStr,
    address: AtomicPtr<()>,
}

/// What a function's word holds when the library does not have it.
const MISSING: *mut () = std::ptr::dangling_mut();

impl Function {
    fn find(&self) -> Option<*const ()> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            if !self.library.look() {
                return None;
            }
            let object = elf::loaded_as(self.library.soname);
            address = object.and_then(|object| object.function(self.name)).map_or(MISSING, <*const ()>::cast_mut);
            self.address.store(address, Ordering::Release);
        }
        (address != MISSING).then_some(address.cast_const())
    }
}

macro_rules! functions {
    ($library:ident, $abi:ident, $missing:expr, $way:path; $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => { $(
        /// The library's own function of this name.
        ///
        /// # Safety
        /// As the driver's documentation says of its arguments.
        pub unsafe fn $name($($argument: $kind),*) -> c_uint {
            static FUNCTION: Function = Function {
                library: &$library,
                // A name written in this file has no NUL inside.
                name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                address: AtomicPtr::new(null_mut()),
            };
            // It has the type that include/ declares.
            const _: unsafe extern "C" fn($($kind),*) -> c_uint = $abi::$name;
            match FUNCTION.find() {
                // SAFETY: the function of this name in this library has this type; the arguments are the caller's word.
                Some(address) => $way(|| unsafe {
                    transmute::<*const (), unsafe extern "C-unwind" fn($($kind),*) -> c_uint>(address)($($argument),*)
                }),
                None => $missing,
            }
        }
    )* };
}

use crate::abi::cuda;

/// What every launch asks, and the driver answers out of its own memory: nobody can be cancelled there, and being ready for a handler
/// that ends its thread takes twice as long as the answer.
#[inline(always)]
fn at_once<T>(ask: impl FnOnce() -> T) -> T {
    ask()
}

functions! { DRIVER, cuda, CUDA_ERROR_NOT_SUPPORTED, at_once;
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
}

functions! { DRIVER, cuda, CUDA_ERROR_NOT_SUPPORTED, left::away;
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attribute: CUgraphMem_attribute, value: *mut c_void);
    fn cuDeviceGraphMemTrim(device: CUdevice);
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cuArrayGetMemoryRequirements(needs: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice);
    fn cuMipmappedArrayGetMemoryRequirements(
        needs: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUmipmappedArray, device: CUdevice,
    );
    fn cuKernelGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, kernel: CUkernel, device: CUdevice);
    fn cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary);
    fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode);
    fn cuModuleUnload(module: CUmodule);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);
    fn cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: cuuint32_t, flags: c_uint);
    fn cuMemsetD32Async(address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    fn cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, memory: *mut c_void, flags: c_uint);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
    fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS_v1);
    fn cuGraphKernelNodeGetParams_v2(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS);
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
}

functions! { NVML, nvml, NVML_ERROR_FUNCTION_NOT_FOUND, left::away;
    fn nvmlInit_v2();
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t);
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint);
    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_v1_t,
    );
    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_t,
    );
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_t,
    );
    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_v1_t,
    );
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_t,
    );
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_t,
    );
    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_v1_t,
    );
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_t,
    );
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: *mut c_uint, processes: *mut nvmlProcessInfo_t,
    );
    fn nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, list: *mut nvmlProcessDetailList_t);
    fn nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, since: u64,
    );
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t);
    fn nvmlDeviceGetMemoryLimits_v1(device: nvmlDevice_t, limits: *mut nvmlGetMemoryLimits_v1_t);
}

/// Runs something that would break a capture of this thread's, or of any thread's in global mode, in the mode in which it
/// does not.
pub fn without_breaking_captures<T>(ask: impl FnOnce() -> T) -> T {
    let before = set_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    let own = Thread::attached().map(|thread| &thread.under_way.capture_mode);
    let outer = own.map_or(0, |own| own.replace(before + 1));
    let answer = ask();
    set_capture_mode(before);
    own.inspect(|own| own.set(outer));
    answer
}

/// Sets this thread's mode; says which it was in.
pub fn set_capture_mode(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let mut mode = mode;
    // SAFETY: exchanges this thread's mode for the one given.
    unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    mode
}

/// The same for all that this thread will ever ask.
pub fn never_break_captures() {
    set_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
}

/// Loads NVML, if the machine has it: the one library that the shim loads without the program's doing.
pub fn load_nvml() -> bool {
    NVML.load()
}
