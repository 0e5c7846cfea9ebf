/*
 * Says how captures spread over streams, end, and break. Run on a real GPU it writes down the facts; run on the simulated one
 * it must write the same.
 *   capture_cases sim|ptx      which form of kernel image the driver takes
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"

static const char sim_image[] = "ration-sim-image 1\nkernel empty\n";
static const char ptx_image[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n";

static CUcontext primary;
static CUfunction empty;
static CUstream s, s2, s3, blocking;
static CUevent e, e2;
static CUdeviceptr d;

static CUresult launch(CUstream stream) { return cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }
static CUresult begin(CUstream stream) { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }
static CUresult begin_relaxed(CUstream stream) { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }

static int status(CUstream stream) {
    CUstreamCaptureStatus found = (CUstreamCaptureStatus)-1;
    CUresult code = cuStreamIsCapturing(stream, &found);
    return code ? -(int)code : (int)found;
}

/* Ends a capture and says what is in the graph: nodes in their order, each with the numbers of those it comes after. */
static void end_at(CUstream stream, const char *name) {
    CUgraph graph = (CUgraph)1;
    CUgraphNode nodes[32], before[32];
    size_t count = 32;
    printf("end(%s) -> %d", name, (int)cuStreamEndCapture(stream, &graph));
    if (!graph || graph == (CUgraph)1) {
        printf(graph ? " untouched\n" : " no graph\n");
        return;
    }
    cuGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        size_t many = 32;
        cuGraphNodeGetType(nodes[i], &type);
        cuGraphNodeGetDependencies(nodes[i], before, &many);
        printf(" %d(", (int)type);
        for (size_t k = 0; k < many; k++)
            for (size_t n = 0; n < count; n++)
                if (nodes[n] == before[k]) printf(k ? ",%zu" : "%zu", n);
        printf(")");
    }
    printf("\n");
    cuGraphDestroy(graph);
}
#define END(stream) end_at(stream, #stream)

static CUresult memory_breaks(void) {
    CUdeviceptr got;
    return cuMemAlloc_v2(&got, 100);
}

/* What the driver says about a capture: status, whether there is a graph, and how many nodes come before the next. */
static void info(CUstream stream, const char *name) {
    CUstreamCaptureStatus found = (CUstreamCaptureStatus)-1;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    size_t count = 99;
    CUresult code = cuStreamGetCaptureInfo_v2(stream, &found, &id, &graph, &nodes, &count);
    printf("info(%s) -> %d, status %d, id %d, graph %d, nodes %d, %zu\n", name, (int)code, (int)found, id != 0, graph != NULL, !count || nodes != NULL, count);
}
#define INFO(stream) info(stream, #stream)

static CUgraph graph_of(CUstream stream) {
    CUstreamCaptureStatus found;
    cuuint64_t id;
    CUgraph graph = NULL;
    cuStreamGetCaptureInfo_v2(stream, &found, &id, &graph, NULL, NULL);
    return graph;
}

static void *end_elsewhere(void *stream) {
    CUgraph graph = NULL;
    cuCtxSetCurrent(primary);
    return (void *)(uintptr_t)cuStreamEndCapture(stream, &graph);
}
static int end_in_thread(CUstream stream) {
    pthread_t id;
    void *code;
    pthread_create(&id, NULL, end_elsewhere, stream);
    pthread_join(id, &code);
    return (int)(uintptr_t)code;
}

static void spreading(void) {
    SECTION("fork and join");
    begin(s), launch(s);
    T(cuEventRecord(e, s));
    T(status(s2));
    T(cuStreamWaitEvent(s2, e, 0));
    T(status(s2));
    launch(s2), launch(s);
    T(cuEventRecord(e2, s2));
    T(cuStreamWaitEvent(s, e2, 0));
    INFO(s);
    launch(s);
    END(s);
    T(status(s2));
    SECTION("three streams");
    begin(s), launch(s), cuEventRecord(e, s);
    cuStreamWaitEvent(s2, e, 0), launch(s2), cuEventRecord(e2, s2);
    cuStreamWaitEvent(s3, e2, 0), cuStreamWaitEvent(s3, e, 0), launch(s3), cuEventRecord(e, s3);
    cuStreamWaitEvent(s, e, 0);
    END(s);
    SECTION("nothing before the fork");
    begin(s), cuEventRecord(e, s), cuStreamWaitEvent(s2, e, 0), launch(s2), cuEventRecord(e2, s2), cuStreamWaitEvent(s, e2, 0);
    END(s);
    SECTION("joined without work of its own");
    begin(s), launch(s), cuEventRecord(e, s), cuStreamWaitEvent(s2, e, 0);
    END(s);
    T(status(s2));
    SECTION("not joined again");
    begin(s), cuEventRecord(e, s), cuStreamWaitEvent(s2, e, 0), launch(s2);
    END(s);
    T(status(s));
    T(status(s2));
    T(launch(s2));
    SECTION("ended where it did not begin");
    begin(s), cuEventRecord(e, s), cuStreamWaitEvent(s2, e, 0);
    END(s2);
    T(status(s));
    END(s);
    T(status(s2));
    SECTION("begun where another one is");
    begin(s), launch(s), cuEventRecord(e, s), cuStreamWaitEvent(s2, e, 0);
    T(begin(s2));
    END(s);
    SECTION("two captures meet");
    begin(s), begin(s2), cuEventRecord(e, s);
    T(cuStreamWaitEvent(s2, e, 0));
    END(s);
    END(s2);
    SECTION("the legacy stream waits for a captured event");
    begin(s), launch(s), cuEventRecord(e, s);
    T(cuStreamWaitEvent(NULL, e, 0));
    END(s);
    SECTION("a blocking stream joins");
    begin(s), launch(s), cuEventRecord(e, s);
    T(cuStreamWaitEvent(blocking, e, 0));
    T(launch(NULL));
    T(launch(NULL));
    END(s);
    T(launch(NULL));
    SECTION("streams and events that go");
    CUstream gone;
    CUevent event;
    cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING), begin(gone);
    T(cuStreamDestroy_v2(gone));
    T(memory_breaks());
    cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING);
    begin(s), cuEventRecord(e, s), cuStreamWaitEvent(gone, e, 0), launch(gone);
    T(cuStreamDestroy_v2(gone));
    T(status(s));
    END(s);
    cuEventCreate(&event, 0), begin(s), launch(s), cuEventRecord(event, s);
    T(cuEventDestroy_v2(event));
    END(s);
}

static void events(void) {
    float ms;
    SECTION("a captured event is asked for");
    begin_relaxed(s), cuEventRecord(e, s);
    T(cuEventElapsedTime(&ms, e, e));
    T(status(s));
    T(cuEventQuery(e));
    T(status(s));
    T(cuEventQuery(e));
    T(cuStreamWaitEvent(s2, e, 0));
    END(s);
    T(cuEventQuery(e));
    T(cuEventSynchronize(e));
    T(cuStreamWaitEvent(s2, e, 0));
    T(cuEventElapsedTime(&ms, e, e));
    T(cuEventRecord(e, s));
    T(cuEventSynchronize(e));
    SECTION("an event of an earlier capture");
    begin(s), launch(s), cuEventRecord(e, s);
    END(s);
    begin(s);
    T(cuStreamWaitEvent(s, e, 0));
    END(s);
    SECTION("an event recorded anew elsewhere");
    begin(s), launch(s), cuEventRecord(e, s);
    T(cuEventRecord(e, s2));
    T(status(s));
    T(cuStreamWaitEvent(s, e, 0));
    END(s);
    SECTION("external events");
    cuEventRecord(e, s2), cuEventRecord(e2, s2), cuCtxSynchronize();
    T(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
    T(cuStreamWaitEvent(s, e, CU_EVENT_WAIT_EXTERNAL));
    T(cuEventRecordWithFlags(e, s, 2));
    T(cuStreamWaitEvent(s, e, 2));
    begin_relaxed(s);
    T(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
    T(cuEventQuery(e));
    T(cuStreamWaitEvent(s, e2, CU_EVENT_WAIT_EXTERNAL));
    END(s);
}

static void endings(void) {
    SECTION("after it broke");
    begin(s);
    T(memory_breaks());
    T(memory_breaks());
    T(launch(s));
    T(cuEventRecord(e, s));
    T(cuStreamWaitEvent(s, e2, 0));
    T(begin(s));
    T(cuMemsetD8Async(d, 0, 16, s));
    T(cuStreamQuery(s));
    INFO(s);
    END(s);
    END(s);
    INFO(s);
    T(launch(s));
    T(memory_breaks());
    SECTION("one of two is broken already");
    begin(s), begin(s2), cuStreamQuery(s);
    T(memory_breaks());
    END(s);
    END(s2);
    SECTION("ended by another thread");
    begin(s);
    T(end_in_thread(s));
    T(status(s));
    END(s);
    begin_relaxed(s), launch(s);
    T(end_in_thread(s));
    T(status(s));
    SECTION("modes");
    T(cuStreamBeginCapture_v2(s, (CUstreamCaptureMode)9));
    T(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    END(CU_STREAM_PER_THREAD);
    T(cuStreamIsCapturing(s, NULL));
    begin(s);
    T(cuStreamEndCapture(s, NULL));
    T(status(s));
}

static void dependencies(void) {
    CUgraphNode nodes[16], new_node;
    CUgraphEdgeData early = {.from_port = 1, .type = 1};
    size_t count = 16;
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = empty, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    SECTION("dependencies");
    begin_relaxed(s);
    INFO(s);
    launch(s), launch(s);
    INFO(s);
    cuGraphGetNodes(graph_of(s), nodes, &count);
    T(cuStreamUpdateCaptureDependencies(s, nodes, 1, 7));
    T(cuStreamUpdateCaptureDependencies(s, nodes, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    T(cuStreamUpdateCaptureDependencies(s, nodes, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    INFO(s);
    T(cuStreamUpdateCaptureDependencies(s, nodes, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    INFO(s);
    launch(s);
    END(s);
    T(cuStreamUpdateCaptureDependencies(s, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    begin_relaxed(s), launch(s);
    T(cuGraphAddKernelNode_v2(&new_node, graph_of(s), NULL, 0, &kernel));
    T(cuStreamUpdateCaptureDependencies(s, &new_node, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    launch(s);
    END(s);
    begin_relaxed(s), launch(s);
    T(cuGraphAddKernelNode_v2(&new_node, graph_of(s), NULL, 0, &kernel));
    END(s);
    begin_relaxed(s), launch(s);
    T(cuGraphDestroy(graph_of(s)));
    END(s);
    SECTION("into a graph");
    CUgraph graph, foreign;
    CUgraphNode first, stranger;
    cuGraphCreate(&graph, 0), cuGraphCreate(&foreign, 0);
    cuGraphAddKernelNode_v2(&first, graph, NULL, 0, &kernel);
    cuGraphAddKernelNode_v2(&stranger, foreign, NULL, 0, &kernel);
    T(cuStreamBeginCaptureToGraph(s, NULL, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamBeginCaptureToGraph(s, graph, &stranger, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamBeginCaptureToGraph(s, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamBeginCaptureToGraph(s2, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(graph_of(s) == graph);
    launch(s);
    END(s);
    cuGraphCreate(&graph, 0), cuGraphAddKernelNode_v2(&first, graph, NULL, 0, &kernel);
    T(cuStreamBeginCaptureToGraph(s, graph, &first, &early, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUstreamCaptureStatus found;
    const CUgraphNode *at;
    const CUgraphEdgeData *edges;
    T(cuStreamGetCaptureInfo_v2(s, &found, NULL, NULL, &at, &count));
    T(cuStreamGetCaptureInfo_v3(s, &found, NULL, NULL, &at, &edges, &count));
    printf("%zu edge, from port %d, type %d\n", count, edges[0].from_port, edges[0].type);
    cuStreamQuery(s);
    END(s);
    T(cuGraphGetNodes(graph, NULL, &count));
}

int main(int argc, char **argv) {
    CUmodule module;
    if (argc != 2) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cuInit(0);
    cuDevicePrimaryCtxRetain(&primary, 0);
    cuCtxSetCurrent(primary);
    cuModuleLoadData(&module, strcmp(argv[1], "ptx") ? sim_image : ptx_image);
    cuModuleGetFunction(&empty, module, "empty");
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&s3, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
    cuEventCreate(&e, 0), cuEventCreate(&e2, 0);
    cuMemAlloc_v2(&d, 4096);
    launch(s), cuEventRecord(e2, s), cuCtxSynchronize();
    spreading();
    cuEventRecord(e2, s2), cuCtxSynchronize();
    events();
    endings();
    dependencies();
    return 0;
}
