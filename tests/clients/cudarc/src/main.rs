//! cudarc on the simulated GPU: its safe layer (devices, streams, slices, events, modules, launches, captured graphs) and,
//! where that offers nothing, its `result` layer. Every check compares with what was put in or with what the image says.

use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{
    CUdevice_attribute, CUevent_flags, CUgraphInstantiate_flags, CUlimit, CUmemPool_attribute, CUresult,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, LaunchConfig, Profiler, PushKernelArg, result,
};
use cudarc::nvrtc::Ptx;

const IMAGE: &str = "ration-sim-image 1
global table 4096
kernel step time=2ms shared=1024 regs=32 param=8,8
kernel asked time=@0 param=8
kernel free
";
const STEP_MS: f32 = 2.0;
const MIB: usize = 1 << 20;
const ONE_BLOCK: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
const TIMED: Option<CUevent_flags> = Some(CUevent_flags::CU_EVENT_DEFAULT);

type Check = Result<String, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(IMAGE))?;
    let (step, asked) = (module.load_function("step")?, module.load_function("asked")?);

    say("device", device(&context)?);
    say("copies", copies(&context)?);
    say("pinned memory", pinned(&context)?);
    say("managed memory", managed(&context)?);
    say("pools", pools(&context)?);
    say("modules", modules(&context, &step)?);
    say("launches", launches(&context, &step, &asked)?);
    say("streams", streams(&context, &asked)?);
    say("captured graphs", graphs(&context, &step)?);
    say("host functions", host_functions(&context)?);
    say("threads", threads(&context, &step)?);
    say("a context of its own", own_context()?);
    say("errors", errors(&context)?);
    context.check_err()?; // what went wrong in a destructor
    Ok(())
}

fn say(what: &str, found: String) {
    println!("  {what}: {found}");
}

/// The milliseconds between two events, which should be `wanted`. They are never fewer. They are more when this process did
/// not get to send its work in time, so there are several tries.
fn timed(
    wanted: f32,
    mut measure: impl FnMut() -> Result<(CudaEvent, CudaEvent), Box<dyn Error>>,
) -> Result<f32, Box<dyn Error>> {
    let mut got = 0.0;
    for _ in 0..5 {
        let (start, end) = measure()?;
        got = start.elapsed_ms(&end)?;
        assert!(got >= wanted * 0.99, "{got} ms, of {wanted} that were asked for");
        if got <= wanted * 1.05 + 0.2 {
            return Ok(got);
        }
    }
    panic!("{got} ms for {wanted}, five times");
}

fn code<T>(outcome: Result<T, DriverError>) -> CUresult {
    outcome.err().map_or(CUresult::CUDA_SUCCESS, |error| error.0)
}

fn device(context: &Arc<CudaContext>) -> Check {
    assert_eq!(CudaContext::device_count()?, 1);
    let (name, capability) = (context.name()?, context.compute_capability()?);
    assert_eq!((name.as_str(), capability), ("NVIDIA H200", (9, 0)));
    assert_ne!(context.uuid()?.bytes, [0; 16]);
    assert_eq!(context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?, 132);
    let (free, total) = context.mem_get_info()?;
    assert_eq!(total, context.total_mem()?);
    assert!(free < total - 500 * MIB, "a context takes memory: {free} of {total} free");
    assert!(context.has_async_alloc());
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 1024);
    context.set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 2048)?;
    assert_eq!(context.get_limit(CUlimit::CU_LIMIT_STACK_SIZE)?, 2048);
    context.set_limit(CUlimit::CU_LIMIT_STACK_SIZE, 1024)?;
    Ok(format!("{name}, {} MiB, compute capability {}.{}", total / MIB, capability.0, capability.1))
}

fn copies(context: &Arc<CudaContext>) -> Check {
    let stream = context.default_stream();
    let numbers: Vec<u32> = (0..100_000).collect();
    let there = stream.clone_htod(&numbers)?;
    let again = stream.clone_dtod(&there)?;
    assert_eq!(stream.clone_dtoh(&again)?, numbers);
    assert_eq!(stream.clone_dtoh(&again.slice(10..20))?, numbers[10..20]);
    let mut zeros = stream.alloc_zeros::<u32>(100)?;
    stream.memcpy_htod(&[7u32; 50], &mut zeros.slice_mut(25..75))?;
    let back = stream.clone_dtoh(&zeros)?;
    assert_eq!((back[24], back[25], back[74], back[75]), (0, 7, 7, 0));
    stream.memset_zeros(&mut zeros)?;
    assert_eq!(stream.clone_dtoh(&zeros)?, [0; 100]);
    Ok(format!("{} bytes to the device, there and back", numbers.len() * 4))
}

fn pinned(context: &Arc<CudaContext>) -> Check {
    let stream = context.new_stream()?;
    // SAFETY: any bits are a `u64`, and all are written before they are read.
    let mut host = unsafe { context.alloc_pinned::<u64>(1 << 16)? };
    host.as_mut_slice()?.iter_mut().zip(0..).for_each(|(word, i)| *word = i * i);
    let there = stream.clone_htod(&host)?;
    host.as_mut_slice()?.fill(0);
    stream.memcpy_dtoh(&there, &mut host)?;
    assert!(host.as_slice()?.iter().zip(0..).all(|(word, i)| *word == i * i));
    Ok(format!("{} bytes, asynchronously both ways", host.num_bytes()))
}

fn managed(context: &Arc<CudaContext>) -> Check {
    // SAFETY: any bits are a `u8`, and all are written before they are read.
    let mut memory = unsafe { context.alloc_unified::<u8>(4 * MIB, true)? };
    memory.as_mut_slice()?.fill(42);
    memory.prefetch()?;
    context.synchronize()?;
    let stream = context.default_stream();
    assert!(stream.clone_dtoh(&memory)?.iter().all(|byte| *byte == 42));
    stream.memset_zeros(&mut memory)?;
    context.synchronize()?;
    assert!(memory.as_slice()?.iter().all(|byte| *byte == 0));
    Ok(format!("{} bytes, written by either side", memory.num_bytes()))
}

fn pools(context: &Arc<CudaContext>) -> Check {
    let stream = context.new_stream()?;
    // SAFETY: the pool belongs to the device and lives as long; the attributes asked for are of type u64.
    let used = || unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        let mut bytes = 0u64;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast())?;
        Ok::<u64, DriverError>(bytes)
    };
    let before = used()?;
    let memory = stream.alloc_zeros::<u8>(40 * MIB)?;
    stream.synchronize()?;
    assert_eq!(used()? - before, 40 * MIB as u64);
    drop(memory);
    stream.synchronize()?;
    assert_eq!(used()?, before);
    Ok("40 MiB taken from the device's default pool and given back".into())
}

fn modules(context: &Arc<CudaContext>, step: &CudaFunction) -> Check {
    assert_eq!((step.num_regs()?, step.shared_size_bytes()?, step.max_threads_per_block()?), (32, 1024, 1024));
    // 32 registers a thread let all 2048 threads of a multiprocessor be resident.
    assert_eq!(step.occupancy_max_active_blocks_per_multiprocessor(256, 0, None)?, 8);
    let (stream, file) = (context.default_stream(), std::env::temp_dir().join(format!("image-{}", std::process::id())));
    std::fs::write(&file, IMAGE)?;
    let module = context.load_module(Ptx::from_file(&file));
    std::fs::remove_file(&file)?;
    let module = module?;
    assert_eq!(code(module.load_function("missing")), CUresult::CUDA_ERROR_NOT_FOUND);
    let mut table = module.get_global("table", &stream)?;
    assert_eq!(table.len(), 4096);
    stream.memcpy_htod(&[9u8; 4096], &mut table)?;
    assert_eq!(stream.clone_dtoh(&table)?, [9; 4096]);
    Ok("from text and from a file; attributes, occupancy, a global variable".into())
}

fn launches(context: &Arc<CudaContext>, step: &CudaFunction, asked: &CudaFunction) -> Check {
    let stream = context.new_stream()?;
    let mut memory = stream.alloc_zeros::<f32>(1024)?;
    let count = 1024u64;
    let mut launch = stream.launch_builder(step);
    launch.record_kernel_launch(CUevent_flags::CU_EVENT_DEFAULT).arg(&mut memory).arg(&count);
    // SAFETY: the kernel of the image takes a pointer and a number of 8 bytes.
    let alone = timed(STEP_MS, || unsafe { launch.launch(ONE_BLOCK)? }.ok_or("no events".into()))?;
    // SAFETY: the same.
    timed(STEP_MS, || unsafe { launch.launch_cooperative(ONE_BLOCK)? }.ok_or("no events".into()))?;
    queue(&stream, asked, 100_000_000, 1)?;
    let end = stream.record_event(None)?;
    assert!(!end.is_complete(), "a kernel of 100 ms was only just launched");
    end.synchronize()?;
    assert!(end.is_complete());
    Ok(format!("a kernel of {STEP_MS} ms took {alone:.3}, plain and cooperative"))
}

/// Queues kernels of so many nanoseconds.
fn queue(stream: &CudaStream, asked: &CudaFunction, nanoseconds: u64, count: usize) -> Result<(), DriverError> {
    for _ in 0..count {
        // SAFETY: the kernel of the image takes one number of 8 bytes.
        unsafe { stream.launch_builder(asked).arg(&nanoseconds).launch(ONE_BLOCK)? };
    }
    Ok(())
}

fn streams(context: &Arc<CudaContext>, asked: &CudaFunction) -> Check {
    let (first, second) = (context.new_stream()?, context.new_stream_with_priority(-1)?);
    let chained = timed(5.0, || {
        let start = first.record_event(TIMED)?;
        queue(&first, asked, 1_000_000, 3)?;
        second.wait(&first.record_event(None)?)?;
        queue(&second, asked, 1_000_000, 2)?;
        Ok((start, second.record_event(TIMED)?))
    })?;
    let fork = first.fork()?;
    timed(2.0, || {
        let start = fork.record_event(TIMED)?;
        queue(&fork, asked, 2_000_000, 1)?;
        first.join(&fork)?;
        Ok((start, first.record_event(TIMED)?))
    })?;
    Ok(format!("one waits for another: 3 + 2 ms took {chained:.3}; fork and join"))
}

fn graphs(context: &Arc<CudaContext>, step: &CudaFunction) -> Check {
    let stream = context.new_stream()?;
    let source = stream.clone_htod(&[5u32; 1000])?;
    let mut target = stream.alloc_zeros::<u32>(1000)?;
    stream.synchronize()?;
    // SAFETY: all of this is in one stream from here on, and no slice is freed before the stream was waited for.
    unsafe { context.disable_event_tracking() };
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    assert_eq!(stream.capture_status()?, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    let (pointer, count) = (0u64, 0u64);
    for _ in 0..3 {
        // SAFETY: the kernel of the image takes two numbers of 8 bytes.
        unsafe { stream.launch_builder(step).arg(&pointer).arg(&count).launch(ONE_BLOCK)? };
    }
    stream.memcpy_dtod(&source, &mut target)?;
    let graph = stream.end_capture(CUgraphInstantiate_flags(0))?.ok_or("nothing was captured")?;
    assert_eq!(stream.clone_dtoh(&target)?, [0; 1000], "what is captured is not done");
    graph.upload()?;
    let took = timed(6.0 * STEP_MS, || {
        let start = stream.record_event(TIMED)?;
        graph.launch()?;
        graph.launch()?;
        Ok((start, stream.record_event(TIMED)?))
    })?;
    assert_eq!(stream.clone_dtoh(&target)?, [5; 1000]);
    stream.synchronize()?;
    // SAFETY: tracking is cudarc's default.
    unsafe { context.enable_event_tracking() };
    Ok(format!("three kernels and a copy, launched twice: {took:.3} ms"))
}

fn host_functions(context: &Arc<CudaContext>) -> Check {
    unsafe extern "C" fn note(data: *mut c_void) {
        // SAFETY: the argument given with the function below is the static counter.
        unsafe { &*data.cast::<AtomicU64>() }.fetch_add(1, Ordering::SeqCst);
    }
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let stream = context.new_stream()?;
    for _ in 0..10 {
        let counter = (&raw const CALLED).cast_mut().cast();
        // SAFETY: the function takes the counter, which is static.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), note, counter)? };
    }
    stream.synchronize()?;
    assert_eq!(CALLED.load(Ordering::SeqCst), 10);
    Ok("10 called before the stream was through".into())
}

fn threads(context: &Arc<CudaContext>, step: &CudaFunction) -> Check {
    let _profiler = Profiler::new()?;
    let work = |number: u32| -> Result<(), DriverError> {
        let stream = context.new_stream()?;
        let mut memory = stream.clone_htod(&vec![number; 10_000])?;
        let count = 10_000u64;
        for _ in 0..5 {
            // SAFETY: the kernel of the image takes a pointer and a number of 8 bytes.
            unsafe { stream.launch_builder(step).arg(&mut memory).arg(&count).launch(ONE_BLOCK)? };
        }
        assert_eq!(stream.clone_dtoh(&memory)?, vec![number; 10_000]);
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..4).map(|number| scope.spawn(move || work(number))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("no check in a thread failed"))
    })?;
    Ok("4 of them, each with its stream and its data".into())
}

fn own_context() -> Check {
    let context = CudaContext::new_non_primary(0, 0)?;
    assert!(!context.is_primary());
    let stream = context.new_stream()?;
    let there = stream.clone_htod(&[1u16, 2, 3])?;
    assert_eq!(stream.clone_dtoh(&there)?, [1, 2, 3]);
    Ok("made, used, destroyed".into())
}

fn errors(context: &Arc<CudaContext>) -> Check {
    assert_eq!(code(CudaContext::new(99)), CUresult::CUDA_ERROR_INVALID_DEVICE);
    let stream = context.default_stream();
    // SAFETY: it is never read.
    let over = code(unsafe { stream.alloc::<u8>(context.total_mem()?) });
    assert_eq!(over, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(DriverError(over).error_name()?.to_str()?, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(DriverError(over).error_string()?.to_str()?, "out of memory");
    let real = context.load_module(Ptx::from_src(".version 8.0\n.target sm_90\n.address_size 64\n"));
    assert_eq!(code(real), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    Ok("no such device, out of memory, PTX refused".into())
}
