//! What functions and kernels say of themselves, and occupancy.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::current;
use crate::image::KernelImage;
use crate::module::{Function, KERNELS, Kernel, resolve};
use crate::process::process;

const SHARED_PER_SM: u32 = 233_472;
const SHARED_PER_BLOCK_OPTIN: u32 = 232_448;
/// Each resident block costs this much shared memory of the system's.
const SHARED_RESERVED: u32 = 1024;
const REGISTERS_PER_SM: u32 = 65_536;
const THREADS_PER_SM: u32 = 2048;
const BLOCKS_PER_SM: u32 = 32;

fn function_of(handle: CUfunction) -> Outcome<Arc<Function>> {
    if handle.is_null() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    resolve(handle, &*current()?)
}

fn kernel_of(handle: CUkernel) -> Outcome<Arc<Kernel>> {
    process()?;
    KERNELS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn attribute(function: &Function, attribute: u32) -> Outcome<i32> {
    let kernel = &function.kernel;
    Ok(match attribute {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => kernel.max_threads as i32,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.shared as i32,
        CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES => 0,
        CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => kernel.local as i32,
        CU_FUNC_ATTRIBUTE_NUM_REGS => kernel.registers as i32,
        CU_FUNC_ATTRIBUTE_PTX_VERSION | CU_FUNC_ATTRIBUTE_BINARY_VERSION => 90,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => function.max_dynamic_shared.load(Ordering::Relaxed) as i32,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => function.carveout.load(Ordering::Relaxed),
        other if other < CU_FUNC_ATTRIBUTE_MAX => 0,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

fn set_attribute(function: &Function, attribute: u32, value: i32) -> Outcome {
    match attribute {
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            let most = SHARED_PER_BLOCK_OPTIN.saturating_sub(function.kernel.shared);
            let value = u32::try_from(value).ok().filter(|v| *v <= most).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            function.max_dynamic_shared.store(value, Ordering::Relaxed);
            Ok(())
        }
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
            function.carveout.store(value, Ordering::Relaxed);
            Ok(())
        }
        // Cluster shapes change nothing that is modelled.
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH..CU_FUNC_ATTRIBUTE_MAX => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn param_info(kernel: &KernelImage, index: usize, offset: Out<usize>, size: Out<usize>) -> Outcome {
    let (at, bytes) = kernel.params.get(index).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    offset.set(*at)?;
    size.maybe(*bytes);
    Ok(())
}

/// Blocks of this shape that one multiprocessor holds.
pub(crate) fn blocks_per_sm(kernel: &KernelImage, threads: u32, dynamic_shared: u32) -> u32 {
    if threads == 0 || threads > kernel.max_threads {
        return 0;
    }
    let warps = threads.div_ceil(32) * 32;
    let by_threads = THREADS_PER_SM / warps;
    let by_registers = REGISTERS_PER_SM / (kernel.registers.max(1).next_multiple_of(8) * warps);
    let by_shared = SHARED_PER_SM / (kernel.shared + dynamic_shared + SHARED_RESERVED);
    by_threads.min(by_registers).min(by_shared).min(BLOCKS_PER_SM)
}

fn occupancy(out: Out<i32>, function: CUfunction, block: i32, shared: usize) -> Outcome {
    let function = function_of(function)?;
    let threads = u32::try_from(block).ok().filter(|b| *b > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    out.set(blocks_per_sm(&function.kernel, threads, u32::try_from(shared).unwrap_or(u32::MAX / 2)) as i32)
}

fn potential(
    grid: Out<i32>,
    block: Out<i32>,
    function: CUfunction,
    to_shared: CUoccupancyB2DSize,
    shared: usize,
    limit: i32,
) -> Outcome {
    let function = function_of(function)?;
    grid.required()?;
    block.required()?;
    let most = if limit > 0 { (limit as u32).min(function.kernel.max_threads) } else { function.kernel.max_threads };
    let shared_for = |threads: u32| match to_shared {
        // SAFETY: the client gave a pure function from block size to shared memory to be called like this.
        Some(f) => unsafe { f(threads as i32) },
        None => shared,
    };
    // The largest occupancy, and among equals the largest block, as the real driver answers.
    let candidates = (1..=most.div_ceil(32)).rev().map(|warps| (warps * 32).min(most));
    let best = candidates
        .map(|threads| (threads * blocks_per_sm(&function.kernel, threads, shared_for(threads) as u32), threads))
        .max_by_key(|(resident, threads)| (*resident, *threads))
        .unwrap_or((0, 32));
    block.set(best.1 as i32)?;
    grid.set((best.0 / best.1.max(1)) as i32 * current()?.device.settings.sms as i32)
}

api! {
    export fn cuFuncGetAttribute(value: Out<i32>, which: u32, function: CUfunction) {
        value.set(attribute(&*function_of(function)?, which)?)
    }
    export fn cuFuncSetAttribute(function: CUfunction, which: u32, value: i32) { set_attribute(&*function_of(function)?, which, value) }
    export fn cuFuncSetCacheConfig(function: CUfunction, _config: u32) { function_of(function).map(|_| ()) }
    export fn cuFuncSetSharedMemConfig(function: CUfunction, _config: u32) { function_of(function).map(|_| ()) }
    export fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction) {
        let found = function_of(function)?.module.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        module.set(found.handle as CUmodule)
    }
    export fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction) { name.set(function_of(function)?.kernel.name.as_ptr()) }
    export fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(&function_of(function)?.kernel, index, offset, size)
    }
    export fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, function: CUfunction) {
        let loaded = function_of(function)?.is_loaded();
        state.set(if loaded { CU_FUNCTION_LOADING_STATE_LOADED } else { CU_FUNCTION_LOADING_STATE_UNLOADED })
    }
    export fn cuFuncLoad(function: CUfunction) { function_of(function)?.ensure_loaded() }

    export fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel) {
        let found = kernel_of(kernel)?.function(&*current()?)?;
        found.ensure_loaded()?;
        function.set(found.handle as CUfunction)
    }
    export fn cuKernelGetLibrary(library: Out<CUlibrary>, kernel: CUkernel) {
        let found = kernel_of(kernel)?.library.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        library.set(found.handle as CUlibrary)
    }
    export fn cuKernelGetAttribute(value: Out<i32>, which: u32, kernel: CUkernel, dev: CUdevice) {
        let device = process()?.device(dev)?;
        let function = kernel_of(kernel)?.function(&crate::context::primary_object(device))?;
        value.set(attribute(&function, which)?)
    }
    export fn cuKernelSetAttribute(which: u32, value: i32, kernel: CUkernel, dev: CUdevice) {
        let device = process()?.device(dev)?;
        let function = kernel_of(kernel)?.function(&crate::context::primary_object(device))?;
        set_attribute(&function, which, value)
    }
    export fn cuKernelSetCacheConfig(kernel: CUkernel, _config: u32, dev: CUdevice) {
        process()?.device(dev)?;
        kernel_of(kernel).map(|_| ())
    }
    export fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel) { name.set(kernel_of(kernel)?.kernel.name.as_ptr()) }
    export fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(&kernel_of(kernel)?.kernel, index, offset, size)
    }

    export fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: CUfunction, block: i32, shared: usize) {
        occupancy(blocks, function, block, shared)
    }
    export fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<i32>, function: CUfunction, block: i32, shared: usize, _flags: u32) {
        occupancy(blocks, function, block, shared)
    }
    export fn cuOccupancyMaxPotentialBlockSize(grid: Out<i32>, block: Out<i32>, function: CUfunction, to_shared: CUoccupancyB2DSize, shared: usize, limit: i32) {
        potential(grid, block, function, to_shared, shared, limit)
    }
    export fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<i32>, block: Out<i32>, function: CUfunction, to_shared: CUoccupancyB2DSize, shared: usize, limit: i32, _flags: u32) {
        potential(grid, block, function, to_shared, shared, limit)
    }
    export fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: CUfunction, blocks: i32, _threads: i32) {
        let function = function_of(function)?;
        let blocks = u32::try_from(blocks).ok().filter(|b| *b > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let each = (SHARED_PER_SM / blocks).saturating_sub(SHARED_RESERVED + function.kernel.shared);
        bytes.set(each.min(SHARED_PER_BLOCK_OPTIN) as usize)
    }
    export fn cuOccupancyMaxPotentialClusterSize(size: Out<i32>, function: CUfunction, config: In<CUlaunchConfig>) {
        function_of(function)?;
        config.get()?;
        size.set(8)
    }
    export fn cuOccupancyMaxActiveClusters(clusters: Out<i32>, function: CUfunction, config: In<CUlaunchConfig>) {
        let function = function_of(function)?;
        let config = config.get()?;
        let threads = config.blockDimX * config.blockDimY * config.blockDimZ;
        let per_sm = blocks_per_sm(&function.kernel, threads, config.sharedMemBytes);
        clusters.set((per_sm * current()?.device.settings.sms as u32) as i32)
    }
}
