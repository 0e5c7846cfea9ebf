"""Graphs: made node by node, and captured from streams."""

import ctypes

import numpy as np
from common import STEP_MS, R, address, cuda, function, ok, refused, step, stopwatch
from support import MIB, timed
from work import HOST_FUNCTION, NON_BLOCKING

KIND = cuda.CUgraphNodeType
MODE = cuda.CUstreamCaptureMode


def kernel_node(kernel, arguments=None):
    node = cuda.CUDA_KERNEL_NODE_PARAMS()
    node.func = kernel
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1
    node.blockDimX = 128
    if arguments is not None:
        node.kernelParams = arguments
    return node


def number(value):
    """The argument of a kernel that takes one number of 8 bytes."""
    return ((value,), (ctypes.c_uint64,))


def launch_of(executable, stream):
    """Something that launches it and returns the milliseconds it took."""
    return stopwatch(lambda: ok(cuda.cuGraphLaunch(executable, stream)), stream)


def kinds_in(graph):
    """What kinds of nodes a graph has, sorted by name."""
    _, count = ok(cuda.cuGraphGetNodes(graph))
    nodes, _ = ok(cuda.cuGraphGetNodes(graph, count))
    return sorted(ok(cuda.cuGraphNodeGetType(node)).name.removeprefix("CU_GRAPH_NODE_TYPE_") for node in nodes)


def explicit_graph():
    asked, stream = function("asked"), ok(cuda.cuStreamCreate(NON_BLOCKING))
    context = ok(cuda.cuCtxGetCurrent())
    source, target = ok(cuda.cuMemAlloc(MIB)), ok(cuda.cuMemAlloc(MIB))
    ok(cuda.cuMemsetD8(target, 0, MIB))
    graph, called = ok(cuda.cuGraphCreate(0)), []
    callback = HOST_FUNCTION(lambda _: called.append(1))

    first = ok(cuda.cuGraphAddKernelNode(graph, None, 0, kernel_node(asked, number(2_000_000))))
    fill = cuda.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = source, 0x5A, 1, MIB, 1
    filled = ok(cuda.cuGraphAddMemsetNode(graph, [first], 1, fill, context))
    copy = cuda.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = source, target
    copy.WidthInBytes, copy.Height, copy.Depth = MIB, 1, 1
    copied = ok(cuda.cuGraphAddMemcpyNode(graph, [filled], 1, copy, context))
    call = cuda.CUDA_HOST_NODE_PARAMS()
    call.fn = ctypes.cast(callback, ctypes.c_void_p).value
    ok(cuda.cuGraphAddHostNode(graph, [copied], 1, call))

    assert kinds_in(graph) == sorted(("KERNEL", "MEMSET", "MEMCPY", "HOST")), kinds_in(graph)
    assert ok(cuda.cuGraphGetEdges(graph))[-1] == 3
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    for _ in range(3):
        ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert len(called) == 3, called
    back = np.zeros(MIB, dtype=np.uint8)
    ok(cuda.cuMemcpyDtoH(address(back), target, MIB))
    assert (back == 0x5A).all()

    ok(cuda.cuGraphExecKernelNodeSetParams(executable, first, kernel_node(asked, number(5_000_000))))
    # The host function in it is called when this machine gets round to it: the least of several counts.
    longer = min(launch_of(executable, stream)() for _ in range(5))
    assert longer >= 5 * 0.99, longer
    ok(cuda.cuGraphKernelNodeSetParams(first, kernel_node(asked, number(1_000_000))))
    updated = ok(cuda.cuGraphExecUpdate(executable, graph))
    assert updated.result == cuda.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_SUCCESS
    shorter = min(launch_of(executable, stream)() for _ in range(5))
    assert 0.99 <= shorter < longer, (shorter, longer)
    ok(cuda.cuGraphAddEmptyNode(graph, None, 0))
    refused(cuda.cuGraphExecUpdate(executable, graph), R.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuGraphDestroy(graph))
    return f"kernel, set, copy, host function; updated from {longer:.2f} to {shorter:.2f} ms"


def branches_and_children():
    half, stream = function("half"), ok(cuda.cuStreamCreate(NON_BLOCKING))
    diamond = ok(cuda.cuGraphCreate(0))
    root = ok(cuda.cuGraphAddEmptyNode(diamond, None, 0))
    sides = [ok(cuda.cuGraphAddKernelNode(diamond, [root], 1, kernel_node(half))) for _ in range(2)]
    ok(cuda.cuGraphAddKernelNode(diamond, sides, 2, kernel_node(half)))
    took = timed(launch_of(ok(cuda.cuGraphInstantiate(diamond, 0)), stream), 2 * STEP_MS)
    parent = ok(cuda.cuGraphCreate(0))
    child = ok(cuda.cuGraphAddChildGraphNode(parent, None, 0, diamond))
    ok(cuda.cuGraphAddChildGraphNode(parent, [child], 1, diamond))
    twice = timed(launch_of(ok(cuda.cuGraphInstantiate(parent, 0)), stream), 4 * STEP_MS)
    return f"two kernels side by side and one after them {took:.2f} ms; twice that as children {twice:.2f}"


def loops():
    counts, stream = function("counts"), ok(cuda.cuStreamCreate(NON_BLOCKING))
    context, graph = ok(cuda.cuCtxGetCurrent()), ok(cuda.cuGraphCreate(0))
    handle = ok(cuda.cuGraphConditionalHandleCreate(graph, context, 4, cuda.CU_GRAPH_COND_ASSIGN_DEFAULT))
    node = cuda.CUgraphNodeParams()
    node.type = KIND.CU_GRAPH_NODE_TYPE_CONDITIONAL
    node.conditional.handle = handle
    node.conditional.type = cuda.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    node.conditional.size = 1
    node.conditional.ctx = context
    ok(cuda.cuGraphAddNode(graph, None, None, 0, node))
    body = node.conditional.phGraph_out[0]
    ok(cuda.cuGraphAddKernelNode(body, None, 0, kernel_node(counts, number(int(handle)))))
    executable = ok(cuda.cuGraphInstantiate(graph, 0))
    took = timed(launch_of(executable, stream), 4 * 1.0)
    return f"a kernel of 1 ms that counts down from 4 took {took:.2f} ms"


def memory_in_graphs():
    graph, stream = ok(cuda.cuGraphCreate(0)), ok(cuda.cuStreamCreate(NON_BLOCKING))
    wanted = cuda.CUDA_MEM_ALLOC_NODE_PARAMS()
    wanted.poolProps.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.poolProps.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.bytesize = 100 * MIB
    taken = ok(cuda.cuGraphAddMemAllocNode(graph, None, 0, wanted))
    assert int(wanted.dptr) != 0
    ok(cuda.cuGraphAddMemFreeNode(graph, [taken], 1, wanted.dptr))
    executable, free = ok(cuda.cuGraphInstantiate(graph, 0)), ok(cuda.cuMemGetInfo())[0]
    ok(cuda.cuGraphLaunch(executable, stream))
    ok(cuda.cuStreamSynchronize(stream))
    held = free - ok(cuda.cuMemGetInfo())[0]
    assert held == 128 * MIB, held
    ok(cuda.cuGraphExecDestroy(executable))
    ok(cuda.cuDeviceGraphMemTrim(0))
    assert ok(cuda.cuMemGetInfo())[0] == free
    return "100 MiB by a node: 128 held after the launch, none after a trim"


def capture():
    kernel, target = function("step"), ok(cuda.cuMemAlloc(MIB))
    main, side = ok(cuda.cuStreamCreate(NON_BLOCKING)), ok(cuda.cuStreamCreate(NON_BLOCKING))
    forked, joined = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
    ok(cuda.cuMemsetD8(target, 0, MIB))
    ok(cuda.cuCtxSynchronize())
    ok(cuda.cuStreamBeginCapture(main, MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    step(kernel, main)
    ok(cuda.cuEventRecord(forked, main))
    ok(cuda.cuStreamWaitEvent(side, forked, 0))
    ok(cuda.cuMemsetD8Async(target, 3, MIB, side))
    step(kernel, main)
    status, _id, graph, tail, *_ = ok(cuda.cuStreamGetCaptureInfo(side))
    assert status == cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE and len(tail) == 1
    refused(cuda.cuEventQuery(forked), R.CUDA_ERROR_CAPTURED_EVENT)
    refused(cuda.cuStreamEndCapture(main), R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)

    ok(cuda.cuStreamBeginCapture(main, MODE.CU_STREAM_CAPTURE_MODE_RELAXED))
    step(kernel, main)
    ok(cuda.cuEventRecord(forked, main))
    ok(cuda.cuStreamWaitEvent(side, forked, 0))
    ok(cuda.cuMemsetD8Async(target, 3, MIB, side))
    step(kernel, main)
    ok(cuda.cuEventRecord(joined, side))
    ok(cuda.cuStreamWaitEvent(main, joined, 0))
    step(kernel, main)
    graph = ok(cuda.cuStreamEndCapture(main))
    assert kinds_in(graph) == ["KERNEL"] * 3 + ["MEMSET"], kinds_in(graph)
    assert ok(cuda.cuGraphGetEdges(graph))[-1] == 4
    byte = np.zeros(1, dtype=np.uint8)
    ok(cuda.cuMemcpyDtoH(address(byte), target, 1))
    assert byte[0] == 0, "what is captured is not done"
    took = timed(launch_of(ok(cuda.cuGraphInstantiate(graph, 0)), main), 3 * STEP_MS)
    ok(cuda.cuMemcpyDtoH(address(byte), target, 1))
    assert byte[0] == 3
    return f"a fork and a join over two streams: {took:.2f} ms"


def what_breaks_a_capture():
    kernel, stream = function("step"), ok(cuda.cuStreamCreate(NON_BLOCKING))

    def during(mode, call):
        ok(cuda.cuStreamBeginCapture(stream, mode))
        step(kernel, stream)
        code = call()[0]
        return code, cuda.cuStreamEndCapture(stream)[0]

    unsupported, broken = R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    strict, lax = MODE.CU_STREAM_CAPTURE_MODE_GLOBAL, MODE.CU_STREAM_CAPTURE_MODE_RELAXED
    fine = (R.CUDA_SUCCESS, R.CUDA_SUCCESS)
    for mode in (strict, lax):
        assert during(mode, lambda: cuda.cuStreamSynchronize(stream)) == (unsupported, broken)
        assert during(mode, cuda.cuMemGetInfo) == fine
        assert during(mode, lambda: cuda.cuMemAllocAsync(MIB, stream)) == fine
    assert during(strict, lambda: cuda.cuMemAlloc(MIB)) == (unsupported, broken)
    assert during(lax, lambda: cuda.cuMemAlloc(MIB)) == fine
    refused(cuda.cuStreamEndCapture(stream), R.CUDA_ERROR_ILLEGAL_STATE)
    refused(cuda.cuStreamBeginCapture(0, strict), unsupported)
    return "a synchronisation always, an allocation unless relaxed, as the real driver has it"
