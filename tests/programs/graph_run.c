/*
 * Runs graphs and says what they did and how long they took on the GPU. Only for the simulated driver, whose kernels take
 * exactly the time that their image says.
 *   graph_run            everything but the following two
 *   graph_run count      13 plain launches and 10 launches of a graph of 1000 kernels, for the driver's record
 *   graph_run cost       time on the host that one launch of a graph of 1000 kernels takes
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

static const char image[] =
    "ration-sim-image 1\n"
    "kernel nothing\n"
    "kernel lead time=50ms\n"
    "kernel tiny time=10us width=10%\n"
    "kernel half time=5ms width=50%\n"
    "kernel wide time=5ms\n"
    "kernel set5 time=1ms param=8 sets=0:5\n"
    "kernel set2 time=1ms param=8 sets=0:2\n"
    "kernel down time=1ms param=8 sets=0:-1\n";

static CUcontext context;
static CUmodule module;
static CUstream s, s2;
static CUevent before, after;
static CUdeviceptr d;
static unsigned char seen[64], *host;
static int calls, on_thread;
static pthread_t main_thread;

static void must_(CUresult code, const char *what) {
    if (code != CUDA_SUCCESS) {
        fprintf(stderr, "%s: error %d\n", what, (int)code);
        exit(1);
    }
}
#define must(call) must_(call, #call)

static void note(void *data) { seen[calls++] = host[(uintptr_t)data]; }
static void gone(void *data) {
    on_thread = !pthread_equal(pthread_self(), main_thread);
    __atomic_store_n((int *)data, 1, __ATOMIC_RELEASE);
}

static CUfunction function(const char *name) {
    CUfunction f;
    must(cuModuleGetFunction(&f, module, name));
    return f;
}
static CUgraph new_graph(void) {
    CUgraph graph;
    must(cuGraphCreate(&graph, 0));
    return graph;
}
static CUgraphNode add(CUgraph graph, const char *name, const CUgraphNode *after_them, size_t count, uint64_t arg) {
    void *args[] = {&arg};
    CUDA_KERNEL_NODE_PARAMS params = {.func = function(name), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                      .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = args};
    CUgraphNode node;
    must(cuGraphAddKernelNode_v2(&node, graph, after_them, count, &params));
    return node;
}
static CUgraphExec instance(CUgraph graph) {
    CUgraphExec exec;
    must(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}
static CUgraph chain(const char *name, int count) {
    CUgraph graph = new_graph();
    CUgraphNode last = NULL;
    for (int i = 0; i < count; i++) last = add(graph, name, &last, last ? 1 : 0, 0);
    return graph;
}
static void launch(const char *name, CUstream stream) {
    must(cuLaunchKernel(function(name), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

/* From here on is measured. The GPU is kept busy meanwhile, so that what follows is all there when it is its turn. */
static void measure(void) {
    launch("lead", s);
    must(cuEventRecord(before, s));
}
/* GPU time, in ms, that everything put into s since then takes. */
static float span(void) {
    float ms;
    must(cuEventRecord(after, s));
    must(cuStreamSynchronize(s));
    must(cuEventElapsedTime(&ms, before, after));
    return ms;
}
static float run(CUgraphExec exec) {
    measure();
    must(cuGraphLaunch(exec, s));
    return span();
}
static void join_s2(void) {
    CUevent there;
    must(cuEventCreate(&there, 0));
    must(cuEventRecord(there, s2));
    must(cuStreamWaitEvent(s, there, 0));
}

static void branches(const char *name) {
    CUgraph graph = new_graph();
    CUgraphNode two[2] = {add(graph, name, NULL, 0, 0), add(graph, name, NULL, 0, 0)};
    add(graph, name, two, 2, 0);
    printf("two branches and a join, %s: %.3f ms\n", name, run(instance(graph)));
}

static void children(void) {
    CUgraph graph = new_graph();
    CUgraphNode child[2], joined;
    must(cuGraphAddChildGraphNode(&child[0], graph, NULL, 0, chain("half", 2)));
    must(cuGraphAddChildGraphNode(&child[1], graph, NULL, 0, chain("half", 2)));
    must(cuGraphAddEmptyNode(&joined, graph, child, 2));
    add(graph, "half", &joined, 1, 0);
    printf("two children of two and one more: %.3f ms\n", run(instance(graph)));
}

static void captured(void) {
    CUgraph graph;
    CUevent fork, join;
    must(cuEventCreate(&fork, 0));
    must(cuEventCreate(&join, 0));
    must(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    must(cuEventRecord(fork, s));
    must(cuStreamWaitEvent(s2, fork, 0));
    launch("half", s), launch("half", s2);
    must(cuEventRecord(join, s2));
    must(cuStreamWaitEvent(s, join, 0));
    must(cuStreamEndCapture(s, &graph));
    printf("captured fork of two halves: %.3f ms\n", run(instance(graph)));
}

static void two_streams(void) {
    CUgraphExec exec = instance(chain("half", 1)), other = instance(chain("half", 1));
    measure();
    must(cuStreamWaitEvent(s2, before, 0));
    must(cuGraphLaunch(exec, s));
    must(cuGraphLaunch(exec, s2));
    join_s2();
    printf("one executable graph in two streams: %.3f ms\n", span());
    measure();
    must(cuStreamWaitEvent(s2, before, 0));
    must(cuGraphLaunch(exec, s));
    must(cuGraphLaunch(other, s2));
    join_s2();
    printf("two executable graphs in two streams: %.3f ms\n", span());
}

static void data(void) {
    CUgraph graph = new_graph();
    CUgraphNode last = NULL;
    for (unsigned i = 1; i <= 3; i++) {
        CUDA_MEMSET_NODE_PARAMS fill = {.dst = d, .value = 10 * i, .elementSize = 1, .width = 64, .height = 1};
        CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = d, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = host,
                              .WidthInBytes = 64, .Height = 1, .Depth = 1};
        CUDA_HOST_NODE_PARAMS look = {note, (void *)(uintptr_t)i};
        must(cuGraphAddMemsetNode(&last, graph, &last, last ? 1 : 0, &fill, context));
        must(cuGraphAddMemcpyNode(&last, graph, &last, 1, &copy, context));
        must(cuGraphAddHostNode(&last, graph, &last, 1, &look));
        last = add(graph, "tiny", &last, 1, 0);
    }
    CUgraphExec exec = instance(graph);
    run(exec), run(exec);
    printf("host nodes saw:");
    for (int i = 0; i < calls; i++) printf(" %d", seen[i]);
    printf("\n");
}

static void memory(void) {
    CUgraph graph;
    CUdeviceptr at;
    must(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    must(cuMemAllocAsync(&at, 1 << 20, s));
    must(cuMemsetD8Async(at, 77, 1 << 20, s));
    must(cuMemcpyDtoHAsync_v2(host, at + 4096, 64, s));
    must(cuMemFreeAsync(at, s));
    must(cuStreamEndCapture(s, &graph));
    CUgraphExec exec = instance(graph);
    for (int i = 0; i < 3; i++) {
        host[0] = 0;
        run(exec);
        printf("from memory of the graph: %d\n", host[0]);
    }
}

static void external_event(void) {
    CUgraph graph = new_graph();
    CUgraphNode node, first = add(graph, "half", NULL, 0, 0);
    CUevent inside;
    must(cuEventCreate(&inside, 0));
    must(cuGraphAddEventRecordNode(&node, graph, &first, 1, inside));
    add(graph, "half", &node, 1, 0);
    float ms;
    float all = run(instance(graph));
    must(cuEventElapsedTime(&ms, before, inside));
    printf("an event inside, after %.3f of %.3f ms\n", ms, all);
}

static CUgraph decide(CUgraph graph, uint64_t handle, CUgraphConditionalNodeType type, unsigned size, CUgraphNode *after_it, CUgraph *bodies) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL, .conditional = {handle, type, size, NULL, context}};
    CUgraphNode node;
    must(cuGraphAddNode(&node, graph, after_it, after_it ? 1 : 0, &params));
    for (unsigned i = 0; i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
    return graph;
}

static void conditions(void) {
    CUgraphConditionalHandle h;
    CUgraph graph = new_graph(), body[4];
    must(cuGraphConditionalHandleCreate(&h, graph, context, 0, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNode first = add(graph, "set5", NULL, 0, h);
    decide(graph, h, CU_GRAPH_COND_TYPE_WHILE, 1, &first, body);
    add(body[0], "down", NULL, 0, h);
    CUgraphExec exec = instance(graph);
    printf("set to 5, then a loop that counts down: %.3f ms", run(exec));
    printf(", again %.3f ms\n", run(exec));
    graph = new_graph();
    must(cuGraphConditionalHandleCreate(&h, graph, context, 7, CU_GRAPH_COND_ASSIGN_DEFAULT));
    first = add(graph, "set2", NULL, 0, h);
    decide(graph, h, CU_GRAPH_COND_TYPE_SWITCH, 4, &first, body);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k <= i; k++) add(body[i], "wide", NULL, 0, 0);
    printf("set to 2, then the third of four: %.3f ms\n", run(instance(graph)));
    graph = new_graph();
    must(cuGraphConditionalHandleCreate(&h, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    decide(graph, h, CU_GRAPH_COND_TYPE_WHILE, 1, NULL, body);
    add(body[0], "tiny", NULL, 0, 0);
    printf("a loop without end: error %d\n", (int)cuGraphLaunch(instance(graph), s));
}

static void update(void) {
    CUgraphExec exec = instance(chain("wide", 3));
    CUgraphExecUpdateResultInfo info;
    float first = run(exec);
    must(cuGraphExecUpdate_v2(exec, chain("tiny", 3), &info));
    float second = run(exec);
    printf("three wide kernels, made tiny ones: %.3f, %.3f ms\n", first, second);
    CUgraph graph = chain("wide", 1);
    CUgraphNode node;
    size_t one = 1;
    must(cuGraphGetNodes(graph, &node, &one));
    exec = instance(graph);
    must(cuGraphNodeSetEnabled(exec, node, 0));
    printf("switched off: %.3f ms\n", run(exec));
}

static void object(void) {
    static int destroyed;
    CUuserObject o;
    CUgraph graph = chain("wide", 10);
    must(cuUserObjectCreate(&o, &destroyed, gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    must(cuGraphRetainUserObject(graph, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CUgraphExec exec = instance(graph);
    must(cuGraphLaunch(exec, s));
    must(cuGraphDestroy(graph));
    must(cuGraphExecDestroy(exec));
    int early = destroyed;
    must(cuStreamSynchronize(s));
    for (int i = 0; i < 2000 && !__atomic_load_n(&destroyed, __ATOMIC_ACQUIRE); i++) usleep(1000);
    printf("a user object of a graph in flight: gone %d, then %d, by another thread %d\n", early, destroyed, on_thread);
}

static void picture(void) {
    char path[4096], line[4096];
    int nodes = 0, edges = 0;
    snprintf(path, sizeof path, "%s/graph-%d.dot", getenv("RATION_SIM_DIR"), (int)getpid());
    must(cuGraphDebugDotPrint(chain("tiny", 3), path, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) nodes += strstr(line, "label=\"") && strstr(line, "_node_"), edges += strstr(line, "->") != NULL;
    printf("a picture of %d nodes and %d edges\n", nodes, edges);
    unlink(path);
}

static void *begin_and_go(void *data) {
    must(cuCtxSetCurrent(context));
    must(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return data;
}

static void left_behind(void) {
    pthread_t id;
    CUdeviceptr got;
    pthread_create(&id, NULL, begin_and_go, NULL);
    pthread_join(id, NULL);
    printf("after a thread left with a capture in its own stream: %d", (int)cuMemAlloc_v2(&got, 100));
    printf(" %d\n", (int)cuLaunchKernel(function("nothing"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    main_thread = pthread_self();
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoadData(&module, image));
    must(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    must(cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING));
    must(cuEventCreate(&before, 0));
    must(cuEventCreate(&after, 0));
    must(cuMemAlloc_v2(&d, 4096));
    must(cuMemHostAlloc((void **)&host, 4096, 0));
    if (!strcmp(what, "count")) {
        CUgraphExec exec = instance(chain("tiny", 1000));
        for (int i = 0; i < 13; i++) launch("nothing", s);
        for (int i = 0; i < 10; i++) must(cuGraphLaunch(exec, s));
        must(cuStreamSynchronize(s));
        return 0;
    }
    if (!strcmp(what, "cost")) {
        CUgraphExec exec = instance(chain("nothing", 1000));
        double least = 1;
        for (int i = 0; i < 2000; i++) {
            double start = now();
            must(cuGraphLaunch(exec, s));
            double took = now() - start;
            if (took < least) least = took;
        }
        must(cuStreamSynchronize(s));
        printf("%.0f\n", least * 1e9);
        return 0;
    }
    branches("half"), branches("wide");
    children();
    captured();
    two_streams();
    data();
    memory();
    external_event();
    conditions();
    update();
    object();
    picture();
    left_behind();
    return 0;
}
