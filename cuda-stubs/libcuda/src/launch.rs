//! Kernel launches, by every entry point that there is.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sim_world::channel::Kind;

use crate::abi::*;
use crate::api::{self, DefaultStream, In, Outcome};
use crate::context::{Context, current};
use crate::function::blocks_per_sm;
use crate::image::Time;
use crate::lane::Piece;
use crate::module::{Function, resolve};
use crate::process::{BLOCKING, LAUNCH_COST};
use crate::stream::{self, Stream};
use crate::work::Work;
use crate::{capture, memory};

/// The keys of the packed form of parameters (`extra`), which the headers have as pointers.
const BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
const BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);

/// A kernel with everything that a launch of it needs.
#[derive(Clone)]
pub(crate) struct KernelLaunch {
    pub function: Arc<Function>,
    /// What the client called it: a function's or a library kernel's handle.
    pub named: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub cooperative: bool,
    /// Only kept where somebody will look at them.
    pub params: Option<Arc<Packed>>,
    /// A launch attribute may override the stream's.
    pub priority: Option<i32>,
}

/// A launch's parameters, and pointers to each as the C API has them.
pub(crate) struct Packed {
    bytes: Box<[u8]>,
    /// Addresses inside `bytes`, which never moves.
    each: Box<[usize]>,
}

/// Where the parameters are.
#[derive(Clone, Copy)]
pub(crate) struct Params {
    pub each: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

impl Params {
    /// Copies the parameters out, for launches that somebody reads later.
    fn pack(self, function: &Function) -> Outcome<Arc<Packed>> {
        let kernel = &function.kernel;
        let mut bytes = vec![0u8; kernel.param_bytes()].into_boxed_slice();
        if !self.each.is_null() {
            for (index, (offset, size)) in kernel.params.iter().enumerate() {
                // SAFETY: the C API's contract is one pointer per parameter, each to a value of the parameter's size.
                unsafe {
                    let from = *self.each.add(index);
                    if from.is_null() {
                        return Err(CUDA_ERROR_INVALID_VALUE);
                    }
                    std::ptr::copy_nonoverlapping(from.cast::<u8>(), bytes.as_mut_ptr().add(*offset), *size);
                }
            }
        } else if let Some((buffer, len)) = self.buffer() {
            let len = len.min(bytes.len());
            // SAFETY: the C API's contract is that the buffer given in `extra` has the size given there.
            unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), len) };
        }
        let start = bytes.as_ptr() as usize;
        let each = kernel.params.iter().map(|(offset, _)| start + offset).collect();
        Ok(Arc::new(Packed { bytes, each }))
    }

    /// The packed form: a list of (1: pointer, 2: pointer to the size) that ends in 0.
    fn buffer(self) -> Option<(*const u8, usize)> {
        let (mut pointer, mut size) = (None, None);
        let mut at = self.extra;
        // SAFETY: the C API's contract is a list of pairs that ends in CU_LAUNCH_PARAM_END.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                match *at {
                    BUFFER_POINTER => pointer = Some((*at.add(1)).cast::<u8>().cast_const()),
                    BUFFER_SIZE => size = Some(*(*at.add(1)).cast::<usize>()),
                    _ => return None,
                }
                at = at.add(2);
            }
        }
        Some((pointer?, size?))
    }

    fn missing(self, function: &Function) -> bool {
        !function.kernel.params.is_empty() && self.each.is_null() && self.extra.is_null()
    }
}

/// The shape of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub cooperative: bool,
    pub priority: Option<i32>,
}

impl Shape {
    fn plain(grid: [u32; 3], block: [u32; 3], shared: u32) -> Shape {
        Shape { grid, block, shared, cooperative: false, priority: None }
    }

    fn check(&self, function: &Function, context: &Context) -> Outcome {
        let threads = self.block.iter().try_fold(1u32, |product, n| product.checked_mul(*n)).unwrap_or(u32::MAX);
        let blocks: u64 = self.grid.iter().map(|n| u64::from(*n)).product();
        let bad = threads == 0
            || blocks == 0
            || threads > function.kernel.max_threads
            || self.block[2] > 64
            || self.grid[0] > i32::MAX as u32
            || self.grid[1] > 65_535
            || self.grid[2] > 65_535
            || self.shared > function.max_dynamic_shared.load(Ordering::Relaxed);
        if bad {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.cooperative {
            let most = u64::from(blocks_per_sm(&function.kernel, threads, self.shared)) * context.device.settings.sms;
            if blocks > most {
                return Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        Ok(())
    }
}

impl KernelLaunch {
    /// Checks and describes a launch. `keep`: the parameters will be wanted later, as a graph's are.
    pub(crate) fn new(
        handle: CUfunction,
        context: &Context,
        shape: &Shape,
        params: Params,
        keep: bool,
    ) -> Outcome<KernelLaunch> {
        if handle.is_null() {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let function = resolve(handle, context)?;
        if function.context != context.handle {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        shape.check(&function, context)?;
        if params.missing(&function) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let params = if keep || function.kernel.reads_params() { Some(params.pack(&function)?) } else { None };
        Ok(KernelLaunch {
            function,
            named: handle as usize,
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            cooperative: shape.cooperative,
            params,
            priority: shape.priority,
        })
    }

    /// From a graph node's description. `context`: where the node's own says nothing.
    pub(crate) fn from_node_params(params: &CUDA_KERNEL_NODE_PARAMS, context: &Arc<Context>) -> Outcome<KernelLaunch> {
        let context = if params.ctx.is_null() { Arc::clone(context) } else { crate::process::context(params.ctx)? };
        let handle = if params.func.is_null() { params.kern as CUfunction } else { params.func };
        let shape = Shape::plain(
            [params.gridDimX, params.gridDimY, params.gridDimZ],
            [params.blockDimX, params.blockDimY, params.blockDimZ],
            params.sharedMemBytes,
        );
        KernelLaunch::new(handle, &context, &shape, Params { each: params.kernelParams, extra: params.extra }, true)
    }

    /// As a graph node's description. Its pointers hold for as long as this launch, or a clone of it, does.
    pub(crate) fn node_params(&self) -> CUDA_KERNEL_NODE_PARAMS {
        let is_kernel = crate::module::KERNELS.get(self.named).is_some();
        let each = self.params.as_ref().filter(|p| !p.each.is_empty());
        CUDA_KERNEL_NODE_PARAMS {
            func: if is_kernel { std::ptr::null_mut() } else { self.named as CUfunction },
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            kernelParams: each.map_or(std::ptr::null_mut(), |p| p.each.as_ptr().cast_mut().cast()),
            extra: std::ptr::null_mut(),
            kern: if is_kernel { self.named as CUkernel } else { std::ptr::null_mut() },
            ctx: self.function.context as CUcontext,
        }
    }

    /// An 8-byte parameter's value.
    fn word(&self, index: usize) -> u64 {
        let Some((offset, 8)) = self.function.kernel.params.get(index).copied() else { return 0 };
        let bytes = self.params.as_deref().and_then(|p| p.bytes.get(offset..offset + 8));
        bytes.and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    }

    /// GPU time it takes.
    pub(crate) fn duration_ns(&self) -> u64 {
        match self.function.kernel.time {
            Time::Fixed(ns) => ns,
            Time::Parameter(index) => self.word(index),
        }
    }

    /// Part of the GPU it fills, in thousandths.
    pub(crate) fn width(&self) -> u16 {
        self.function.kernel.width
    }

    /// Conditional handles that it sets, and to what; -1 counts down.
    pub(crate) fn conditional_sets(&self) -> Vec<(u64, i64)> {
        self.function.kernel.sets.iter().map(|(index, value)| (self.word(*index), *value)).collect()
    }

    /// What the driver does when a graph with the kernel is instantiated: load its module, grow local memory.
    pub(crate) fn make_room(&self, context: &Context) -> Outcome {
        let kernel = &self.function.kernel;
        self.function.ensure_loaded()?;
        if kernel.local != 0 {
            context.ensure_local(kernel.local)?;
        }
        Ok(())
    }

    /// What it does before the kernel goes onto the device: that, and the heap.
    pub(crate) fn prepare(&self, context: &Context) -> Outcome {
        let kernel = &self.function.kernel;
        self.make_room(context)?;
        if kernel.heap {
            context.ensure_heap()?;
        }
        if kernel.touch {
            for index in 0..kernel.params.len() {
                memory::managed::touch(context.device.gpu, self.word(index));
            }
        }
        Ok(())
    }

    pub(crate) fn execute(&self, stream: &Stream) -> Outcome {
        let context = stream.context()?;
        self.prepare(&context)?;
        let rank = self.priority.map_or_else(|| stream.rank(), |p| (-p).clamp(0, 255) as u8);
        let piece =
            Piece { kind: Kind::Kernel, duration: self.duration_ns(), width: self.width(), priority: rank, kernels: 1 };
        context.lane()?.submit(stream.queue, stream.order, piece, &[]);
        Ok(())
    }
}

/// What every launch function comes to.
fn launch(handle: CUfunction, shape: &Shape, stream: CUstream, params: Params, default: DefaultStream) -> Outcome {
    let cost = LAUNCH_COST.load(Ordering::Relaxed);
    if cost != 0 {
        api::spend(cost);
    }
    let stream = stream::resolve(stream, default)?;
    let context = stream.context()?;
    let capturing = capture::is_capturing(&stream)?;
    let launch = KernelLaunch::new(handle, &context, shape, params, capturing).inspect_err(|_| {
        if capturing {
            capture::break_capture(&stream);
        }
    })?;
    if capturing {
        return capture::add(&stream, Work::Kernel(launch));
    }
    launch.execute(&stream)?;
    if BLOCKING.load(Ordering::Relaxed) { stream.synchronize() } else { Ok(()) }
}

fn launch_ex(config: In<CUlaunchConfig>, handle: CUfunction, params: Params, default: DefaultStream) -> Outcome {
    let config = config.get()?;
    let mut shape = Shape::plain(
        [config.gridDimX, config.gridDimY, config.gridDimZ],
        [config.blockDimX, config.blockDimY, config.blockDimZ],
        config.sharedMemBytes,
    );
    for index in 0..config.numAttrs as usize {
        if config.attrs.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the C API's contract is an array of `numAttrs` attributes; each union member is read as its id says.
        unsafe {
            let attribute = &*config.attrs.add(index);
            match attribute.id {
                CU_LAUNCH_ATTRIBUTE_COOPERATIVE => shape.cooperative = attribute.value.cooperative != 0,
                CU_LAUNCH_ATTRIBUTE_PRIORITY => shape.priority = Some(attribute.value.priority),
                // The others steer what is not modelled: clusters, cache policy, early starts.
                _ => {}
            }
        }
    }
    launch(handle, &shape, config.hStream, params, default)
}

/// What the launch functions of CUDA 2 keep between calls.
pub(crate) struct LegacyState {
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
}

impl Default for LegacyState {
    fn default() -> LegacyState {
        LegacyState { block: [1, 1, 1], shared: 0, params: Vec::new() }
    }
}

fn legacy<T>(handle: CUfunction, f: impl FnOnce(&mut LegacyState) -> T) -> Outcome<T> {
    let function = resolve(handle, &*current()?)?;
    let mut state = function.legacy.lock();
    Ok(f(&mut state))
}

fn legacy_params(handle: CUfunction, offset: i32, bytes: &[u8]) -> Outcome {
    let offset = usize::try_from(offset).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    legacy(handle, |state| {
        let end = offset + bytes.len();
        if state.params.len() < end {
            state.params.resize(end, 0);
        }
        state.params[offset..end].copy_from_slice(bytes);
    })
}

fn legacy_launch(handle: CUfunction, width: i32, height: i32, stream: CUstream) -> Outcome {
    let (Ok(width), Ok(height)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    let (block, shared, mut params) = legacy(handle, |s| (s.block, s.shared, s.params.clone()))?;
    let mut size = params.len();
    let mut extra =
        [BUFFER_POINTER, params.as_mut_ptr().cast(), BUFFER_SIZE, (&raw mut size).cast(), std::ptr::null_mut()];
    let params = Params { each: std::ptr::null_mut(), extra: extra.as_mut_ptr() };
    launch(handle, &Shape::plain([width, height, 1], block, shared), stream, params, DefaultStream::Legacy)
}

api! {
    export fn cuLaunchKernel | cuLaunchKernel_ptsz(default; function: CUfunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
        shared: u32, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void) {
        let params = Params { each: params, extra };
        launch(function, &Shape::plain([gx, gy, gz], [bx, by, bz], shared), stream, params, default)
    }
    export fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz(default; config: In<CUlaunchConfig>, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) {
        launch_ex(config, function, Params { each: params, extra }, default)
    }
    export fn cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz(default; function: CUfunction, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
        shared: u32, stream: CUstream, params: *mut *mut c_void) {
        let shape = Shape { cooperative: true, ..Shape::plain([gx, gy, gz], [bx, by, bz], shared) };
        launch(function, &shape, stream, Params { each: params, extra: std::ptr::null_mut() }, default)
    }
    export fn cuLaunchCooperativeKernelMultiDevice(list: In<CUDA_LAUNCH_PARAMS>, count: u32, _flags: u32) {
        let all = list.array(count as usize)?;
        if all.is_empty() || all.iter().any(|p| (p.hStream as usize) < 3) {
            return Err(CUDA_ERROR_INVALID_VALUE); // it takes streams of the devices, no default ones
        }
        for p in all {
            let shape = Shape {
                cooperative: true,
                ..Shape::plain([p.gridDimX, p.gridDimY, p.gridDimZ], [p.blockDimX, p.blockDimY, p.blockDimZ], p.sharedMemBytes)
            };
            launch(p.function, &shape, p.hStream, Params { each: p.kernelParams, extra: std::ptr::null_mut() }, DefaultStream::Legacy)?;
        }
        Ok(())
    }
    export fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) {
        if x <= 0 || y <= 0 || z <= 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        legacy(function, |s| s.block = [x as u32, y as u32, z as u32])
    }
    export fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) { legacy(function, |s| s.shared = bytes) }
    export fn cuParamSetSize(function: CUfunction, bytes: u32) { legacy(function, |s| s.params.resize(bytes as usize, 0)) }
    export fn cuParamSeti(function: CUfunction, offset: i32, value: u32) { legacy_params(function, offset, &value.to_le_bytes()) }
    export fn cuParamSetf(function: CUfunction, offset: i32, value: f32) { legacy_params(function, offset, &value.to_le_bytes()) }
    export fn cuParamSetv(function: CUfunction, offset: i32, data: In<u8>, bytes: u32) {
        legacy_params(function, offset, &data.array(bytes as usize)?)
    }
    export fn cuLaunch(function: CUfunction) { legacy_launch(function, 1, 1, std::ptr::null_mut()) }
    export fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) { legacy_launch(function, width, height, std::ptr::null_mut()) }
    export fn cuLaunchGridAsync(function: CUfunction, width: i32, height: i32, stream: CUstream) { legacy_launch(function, width, height, stream) }
}
