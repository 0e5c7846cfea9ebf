/*
 * The second part of the transcript: see transcript.c. What is rarer: several contexts, older entry points, graph nodes of
 * every kind, captures looked at from inside, sharing with oneself.
 *   transcript_more sim|ptx
 */
#include <sys/wait.h>
#include <unistd.h>

#include "transcript.h"

static void nothing(void *data) { (void)data; }

static void nothing_either(CUstream stream, CUresult code, void *data) { (void)stream, (void)code, (void)data; }

static void start(const char *image) {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&primary, 0);
    cuCtxSetCurrent(primary);
    cuModuleLoadData(&module, image);
    cuModuleGetFunction(&empty, module, "empty");
    cuModuleGetFunction(&two, module, "two");
    cuModuleGetFunction(&wait_kernel, module, "wait");
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
    cuEventCreate(&e, 0);
    cuEventCreate(&e2, 0);
}

static void several_contexts(void) {
    CUcontext other, current, of;
    CUstream theirs;
    CUevent their_event;
    CUdeviceptr p;
    CUdevice device;
    SECTION("several contexts");
    T(cuCtxCreate_v2(&other, 0, 0));
    T(cuStreamCreate(&theirs, 0));
    T(cuEventCreate(&their_event, 0));
    T(cuMemAlloc_v2(&p, 1000));
    T(launch(empty, theirs));
    T(launch(empty, NULL));
    T(launch(empty, s));
    V(cuStreamGetCtx(s, &of), "%d", of == primary);
    V(cuStreamGetCtx(NULL, &of), "%d", of == other);
    T(cuEventRecord(their_event, s));
    T(cuEventRecord(e, s));
    T(cuStreamWaitEvent(theirs, e, 0));
    T(cuEventRecord(e, theirs));
    T(cuStreamSynchronize(theirs));
    T(cuStreamSynchronize(s));
    T(cuCtxSetCurrent(primary));
    T(cuMemsetD8_v2(p, 1, 1000));
    T(cuMemFree_v2(p));
    T(cuCtxGetDevice_v2(&device, other));
    T(cuCtxSynchronize_v2(other));
    T(cuCtxDestroy_v2(other));
    V(cuCtxGetCurrent(&current), "%d", current == primary);
}

static void older_forms(void) {
    CUdeviceptr p, p2;
    int value = 0;
    SECTION("older forms of launching");
    T(cuLaunch(two));
    T(cuFuncSetBlockShape(two, 0, 1, 1));
    T(cuFuncSetBlockShape(two, 8, 1, 1));
    T(cuFuncSetSharedSize(two, 16));
    T(cuParamSetSize(two, 12));
    T(cuParamSeti(two, 8, 3));
    T(cuParamSetv(two, 0, &p, 8));
    T(cuLaunchGrid(two, 2, 2));
    T(cuLaunchGridAsync(two, 2, 2, s));
    T(cuStreamSynchronize(s));
    SECTION("launching with a configuration");
    CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value = {.priority = -1}}, {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value = {.cooperative = 1}}};
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, attributes, 2};
    config.hStream = s;
    T(cuLaunchKernelEx(&config, empty, NULL, NULL));
    T(cuLaunchKernelEx(NULL, empty, NULL, NULL));
    config.gridDimX = 5000000;
    T(cuLaunchKernelEx(&config, empty, NULL, NULL));
    config.gridDimX = 1;
    config.numAttrs = 0;
    config.blockDimX = 0;
    T(cuLaunchKernelEx(&config, empty, NULL, NULL));
    V(cuOccupancyMaxPotentialBlockSize(&value, &value, empty, NULL, 0, 0), "%d", value > 0);
    size_t dynamic;
    T(cuOccupancyAvailableDynamicSMemPerBlock(&dynamic, empty, 0, 128));
    SECTION("copies of more shapes");
    char bytes[1024] = {0};
    T(cuMemAlloc_v2(&p, 1000));
    T(cuMemAlloc_v2(&p2, 1000));
    T(cuMemcpyPeer(p, primary, p2, primary, 1000));
    T(cuMemcpyPeer(p, primary, p2, primary, 1001));
    T(cuMemcpyDtoD_v2(p, p2, 1001));
    CUDA_MEMCPY3D three = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = bytes, .srcPitch = 10, .srcHeight = 10, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = 10, .dstHeight = 10, .WidthInBytes = 10, .Height = 10, .Depth = 10};
    T(cuMemcpy3D_v2(&three));
    three.Depth = 11;
    T(cuMemcpy3D_v2(&three));
    three.Depth = 0;
    T(cuMemcpy3D_v2(&three));
    three.Depth = 1;
    three.dstMemoryType = (CUmemorytype)9;
    T(cuMemcpy3D_v2(&three));
    T(cuMemcpyAsync(p, p2, 100, s));
    T(cuMemcpyAsync(p, p2, 5000, s));
    T(cuMemcpyHtoDAsync_v2(p, bytes, 100, s));
    T(cuMemcpyDtoHAsync_v2(bytes, p, 100, s));
    T(cuStreamSynchronize(s));
    CUarray array, level;
    CUmipmappedArray mipmaps;
    CUDA_ARRAY3D_DESCRIPTOR shape = {16, 16, 4, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0}, back;
    T(cuArray3DCreate_v2(&array, &shape));
    V(cuArray3DGetDescriptor_v2(&back, array), "%zu %zu %zu", back.Width, back.Height, back.Depth);
    T(cuMemcpyAtoH_v2(bytes, array, 0, 64));
    T(cuArrayDestroy(array));
    shape.Flags = 0x4000000;
    T(cuArray3DCreate_v2(&array, &shape));
    shape.Flags = 0;
    T(cuMipmappedArrayCreate(&mipmaps, &shape, 0));
    T(cuMipmappedArrayCreate(&mipmaps, &shape, 3));
    T(cuMipmappedArrayGetLevel(&level, mipmaps, 2));
    V(cuArray3DGetDescriptor_v2(&back, level), "%zu %zu %zu", back.Width, back.Height, back.Depth);
    T(cuMipmappedArrayGetLevel(&level, mipmaps, 7));
    T(cuMipmappedArrayDestroy(mipmaps));
    T(cuMemFree_v2(p));
    T(cuMemFree_v2(p2));
    SECTION("sharing with oneself");
    CUipcMemHandle handle;
    T(cuMemAlloc_v2(&p, 1000));
    T(cuIpcGetMemHandle(&handle, p));
    T(cuIpcGetMemHandle(&handle, p + 8));
    T(cuIpcGetMemHandle(&handle, 0x123456000));
    T(cuIpcOpenMemHandle_v2(&p2, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    T(cuIpcCloseMemHandle(p));
    T(cuMemFree_v2(p));
    CUipcEventHandle event_handle;
    T(cuIpcGetEventHandle(&event_handle, e));
}

static void per_thread(void) {
    CUstreamCaptureStatus status;
    unsigned flags;
    SECTION("default streams by number");
    T(cuStreamQuery(CU_STREAM_PER_THREAD));
    T(launch(empty, CU_STREAM_PER_THREAD));
    T(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    V(cuStreamGetFlags(CU_STREAM_PER_THREAD, &flags), "%u", flags);
    V(cuStreamGetFlags(CU_STREAM_LEGACY, &flags), "%u", flags);
    V(cuStreamIsCapturing(CU_STREAM_PER_THREAD, &status), "%d", (int)status);
    T(cuStreamDestroy_v2(CU_STREAM_PER_THREAD));
    T(cuStreamDestroy_v2(CU_STREAM_LEGACY));
    T(busy(blocking, 60));
    T(launch(empty, CU_STREAM_PER_THREAD));
    usleep(20000); /* time for an empty kernel that waits for nobody, too little for the one that is busy */
    T(cuStreamQuery(CU_STREAM_PER_THREAD));
    T(cuStreamQuery(blocking));
    T(launch(empty, CU_STREAM_LEGACY));
    T(cuStreamQuery(CU_STREAM_LEGACY));
    T(cuStreamSynchronize(CU_STREAM_LEGACY));
    T(cuStreamQuery(blocking));
}

static void looking_into_captures(void) {
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUgraph graph, given;
    const CUgraphNode *after;
    const CUgraphEdgeData *edges;
    size_t count = 9;
    CUgraphNode node;
    SECTION("looking into captures");
    V(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, &after, &count), "%d", (int)status);
    T(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    V(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, &after, &count), "%d %d %zu", (int)status, id != 0, count);
    T(launch(empty, s));
    T(launch(empty, s));
    V(cuStreamGetCaptureInfo_v3(s, &status, &id, &graph, &after, &edges, &count), "%d %zu", (int)status, count);
    V(cuStreamGetCaptureInfo(s, &status, &id), "%d", (int)status);
    V(cuGraphGetNodes(graph, NULL, &count), "%zu", count);
    T(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    T(cuStreamUpdateCaptureDependencies(s, &node, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    V(cuStreamGetCaptureInfo_v2(s, NULL, &id, &graph, &after, &count), "%zu", count);
    V(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, &after, &count), "%d %zu", (int)status, count);
    T(cuStreamUpdateCaptureDependencies(s, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    V(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, &after, &count), "%d %zu", (int)status, count);
    T(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
    T(cuEventQuery(e));
    T(cuStreamWaitEvent(s, e, CU_EVENT_WAIT_EXTERNAL));
    T(cuLaunchHostFunc(s, nothing, NULL));
    T(cuStreamAddCallback(s, nothing_either, NULL, 0));
    T(cuStreamEndCapture(s, &given));
    printf("no graph: %d\n", given == NULL);
    T(cuStreamUpdateCaptureDependencies(s, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    T(cuGraphCreate(&given, 0));
    T(cuGraphAddEmptyNode(&node, given, NULL, 0));
    T(cuStreamBeginCaptureToGraph(s, given, &node, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(launch(empty, s));
    T(cuStreamEndCapture(s, &graph));
    printf("the one given: %d\n", graph == given);
    V(cuGraphGetNodes(given, NULL, &count), "%zu", count);
    V(cuGraphGetEdges(given, NULL, NULL, &count), "%zu", count);
    T(cuGraphDestroy(given));
    T(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamDestroy_v2(s));
    T(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
}

static void nodes_of_every_kind(void) {
    CUgraph graph, of_child;
    CUgraphExec exec;
    CUgraphNode copy, set, host, record, waiting, kernel, child, node;
    CUgraphNodeType type;
    CUdeviceptr p, p2;
    size_t count;
    unsigned enabled;
    SECTION("nodes of every kind");
    T(cuMemAlloc_v2(&p, 1000));
    T(cuMemAlloc_v2(&p2, 1000));
    T(cuGraphCreate(&graph, 0));
    CUDA_MEMCPY3D shape = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p2, .WidthInBytes = 100, .Height = 1, .Depth = 1}, shape_back;
    T(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &shape, primary));
    V(cuGraphMemcpyNodeGetParams(copy, &shape_back), "%zu %d", shape_back.WidthInBytes, shape_back.dstDevice == p2);
    shape.WidthInBytes = 5000;
    T(cuGraphMemcpyNodeSetParams(copy, &shape));
    shape.WidthInBytes = 200;
    T(cuGraphMemcpyNodeSetParams(copy, &shape));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = p, .elementSize = 4, .value = 7, .width = 10, .height = 1}, fill_back;
    T(cuGraphAddMemsetNode(&set, graph, &copy, 1, &fill, primary));
    V(cuGraphMemsetNodeGetParams(set, &fill_back), "%u %zu", fill_back.elementSize, fill_back.width);
    fill.elementSize = 3;
    T(cuGraphMemsetNodeSetParams(set, &fill));
    CUDA_HOST_NODE_PARAMS call = {.fn = nothing}, call_back;
    T(cuGraphAddHostNode(&host, graph, &set, 1, &call));
    V(cuGraphHostNodeGetParams(host, &call_back), "%d", call_back.fn == call.fn);
    T(cuGraphAddEventRecordNode(&record, graph, &host, 1, e));
    T(cuGraphAddEventWaitNode(&waiting, graph, &record, 1, e));
    CUevent of;
    V(cuGraphEventRecordNodeGetEvent(record, &of), "%d", of == e);
    T(cuGraphEventRecordNodeGetEvent(waiting, &of));
    CUDA_KERNEL_NODE_PARAMS launching = {.func = empty, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    T(cuGraphAddKernelNode_v2(&kernel, graph, &waiting, 1, &launching));
    CUgraph inner;
    T(cuGraphCreate(&inner, 0));
    T(cuGraphAddKernelNode_v2(&node, inner, NULL, 0, &launching));
    T(cuGraphAddChildGraphNode(&child, graph, &kernel, 1, inner));
    T(cuGraphChildGraphNodeGetGraph(child, &of_child));
    printf("a copy: %d\n", of_child != inner);
    CUgraphNode all[] = {copy, set, host, record, waiting, kernel, child};
    for (int i = 0; i < 7; i++) V(cuGraphNodeGetType(all[i], &type), "%d", (int)type);
    V(cuGraphNodeGetDependencies(child, NULL, &count), "%zu", count);
    V(cuGraphNodeGetDependentNodes(child, NULL, &count), "%zu", count);
    CUgraphNode from[8], to[8];
    count = 8;
    V(cuGraphGetEdges(graph, from, to, &count), "%zu %d", count, from[0] == copy && to[0] == set);
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    T(cuGraphAddNode_v2(&node, graph, &child, NULL, 1, &any));
    any.type = (CUgraphNodeType)99;
    T(cuGraphAddNode_v2(&node, graph, &child, NULL, 1, &any));
    T(cuGraphInstantiateWithFlags(&exec, graph, 1ul << 40));
    T(cuGraphInstantiateWithFlags(&exec, graph, 0));
    V(cuGraphNodeGetEnabled(exec, kernel, &enabled), "%u", enabled);
    T(cuGraphNodeSetEnabled(exec, kernel, 0));
    V(cuGraphNodeGetEnabled(exec, kernel, &enabled), "%u", enabled);
    T(cuGraphNodeSetEnabled(exec, host, 0));
    launching.blockDimX = 64;
    T(cuGraphExecKernelNodeSetParams_v2(exec, kernel, &launching));
    T(cuGraphExecKernelNodeSetParams_v2(exec, set, &launching));
    launching.func = two;
    uint64_t a = 0;
    uint32_t b = 0;
    void *params[] = {&a, &b};
    launching.kernelParams = params;
    T(cuGraphExecKernelNodeSetParams_v2(exec, kernel, &launching));
    T(cuGraphExecMemcpyNodeSetParams(exec, copy, &shape, primary));
    fill.elementSize = 4;
    T(cuGraphExecMemsetNodeSetParams(exec, set, &fill, primary));
    T(cuGraphExecHostNodeSetParams(exec, host, &call));
    T(cuGraphExecEventRecordNodeSetEvent(exec, record, e2));
    T(cuGraphUpload(exec, s));
    T(cuGraphLaunch(exec, s));
    T(cuStreamSynchronize(s));
    T(cuGraphDestroy(graph));
    T(cuGraphLaunch(exec, s));
    T(cuStreamSynchronize(s));
    T(cuGraphExecDestroy(exec));
    T(cuGraphDestroy(inner));
    SECTION("conditional nodes");
    CUgraphConditionalHandle condition;
    T(cuGraphCreate(&graph, 0));
    T(cuGraphConditionalHandleCreate(&condition, graph, primary, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    T(cuGraphConditionalHandleCreate(&condition, graph, primary, 1, 7));
    CUgraphNodeParams deciding = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {.handle = condition, .type = CU_GRAPH_COND_TYPE_IF, .size = 1, .ctx = primary}};
    T(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &deciding));
    printf("a body: %d\n", deciding.conditional.phGraph_out != NULL && deciding.conditional.phGraph_out[0] != NULL);
    V(cuGraphNodeGetType(node, &type), "%d", (int)type);
    launching.func = empty;
    launching.kernelParams = NULL;
    launching.blockDimX = 1;
    T(cuGraphAddKernelNode_v2(&kernel, deciding.conditional.phGraph_out[0], NULL, 0, &launching));
    T(cuGraphAddHostNode(&host, deciding.conditional.phGraph_out[0], NULL, 0, &call));
    T(cuGraphInstantiateWithFlags(&exec, graph, 0));
    T(cuGraphDestroy(graph));
    T(cuMemFree_v2(p));
    T(cuMemFree_v2(p2));
    SECTION("user objects");
    CUuserObject object;
    T(cuGraphCreate(&graph, 0));
    T(cuUserObjectCreate(&object, NULL, nothing, 1, 0));
    T(cuUserObjectCreate(&object, NULL, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    T(cuUserObjectRetain(object, 2));
    T(cuGraphRetainUserObject(graph, object, 1, 0));
    T(cuUserObjectRelease(object, 3));
    T(cuGraphReleaseUserObject(graph, object, 2));
    T(cuGraphReleaseUserObject(graph, object, 1));
    T(cuGraphDestroy(graph));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    void (*const sections[])(void) = {several_contexts, older_forms, per_thread, looking_into_captures, nodes_of_every_kind};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        /* Each in a process of its own: what breaks one driver must not hide the rest. */
        pid_t child = fork();
        if (child == 0) {
            start(!strcmp(argv[1], "ptx") ? ptx_image : sim_image);
            sections[i]();
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) printf("(crashed)\n");
    }
    return 0;
}
