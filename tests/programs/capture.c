/*
 * Says what becomes of a capture when something else is called meanwhile. Run on a real GPU it writes down the facts; run on
 * the simulated one it must write the same.
 *   capture sim|ptx      which form of kernel image the driver takes
 *
 * Tables: for each call, per mode of the capture (global, thread-local, relaxed), the call's result, then the status of the
 * capture (1 active, 2 broken), then what ending it returned.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

static const char sim_image[] = "ration-sim-image 1\nglobal table 64\nkernel empty\n";
static const char ptx_image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 table[64];\n.visible .entry empty() { ret; }\n";

static const char *image;
static CUcontext primary;
static CUmodule module;
static CUfunction empty;
static CUstream s, s2, blocking, blocking2;
static CUevent e, e2;
static CUdeviceptr d, other;
static CUmemoryPool pool;
static CUgraph graph;
static CUgraphExec exec;
static char bytes[4096], registered[16384];

static void host_function(void *data) { (void)data; }
static void callback(CUstream stream, CUresult status, void *data) { (void)stream, (void)status, (void)data; }

static CUresult launch(CUstream stream) { return cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }
static CUresult begin(CUstream stream, int mode) { return cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)mode); }

static CUstreamCaptureMode exchange(int mode) {
    CUstreamCaptureMode held = (CUstreamCaptureMode)mode;
    cuThreadExchangeStreamCaptureMode(&held);
    return held;
}

static int status(CUstream stream) {
    CUstreamCaptureStatus found = (CUstreamCaptureStatus)-1;
    CUresult code = cuStreamIsCapturing(stream, &found);
    return code ? -(int)code : (int)found;
}

/* Ends a capture; the kinds of the graph's nodes go into `kinds`. */
static CUresult end_with(CUstream stream, char *kinds) {
    CUgraph got = NULL;
    CUgraphNode nodes[32];
    size_t count = 32;
    CUresult code = cuStreamEndCapture(stream, &got);
    if (kinds) *kinds = 0;
    if (!got) return code;
    if (kinds && !cuGraphGetNodes(got, nodes, &count))
        for (size_t i = 0; i < count; i++) {
            CUgraphNodeType type;
            cuGraphNodeGetType(nodes[i], &type);
            kinds += sprintf(kinds, " %d", (int)type);
        }
    cuGraphDestroy(got);
    return code;
}
static int end(CUstream stream) { return (int)end_with(stream, NULL); }

static void settle(void) {
    CUstreamCaptureMode held = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    cuCtxSynchronize();
    exchange(held);
}

/* What cannot be had while capturing is got in between. */
static CUdeviceptr pool_memory(void) {
    CUstreamCaptureMode held = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUdeviceptr got = 0;
    cuMemAllocAsync(&got, 100, s2);
    exchange(held);
    return got;
}
static void *host_memory(void) {
    CUstreamCaptureMode held = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    void *got = NULL;
    cuMemHostAlloc(&got, 4096, 0);
    exchange(held);
    return got;
}
static CUevent new_event(void) {
    CUevent got;
    cuEventCreate(&got, 0);
    return got;
}
static CUstream new_stream(void) {
    CUstream got;
    cuStreamCreate(&got, CU_STREAM_NON_BLOCKING);
    return got;
}
static CUgraph new_graph(void) {
    CUgraph got;
    cuGraphCreate(&got, 0);
    return got;
}
static CUmodule new_module(void) {
    CUmodule got;
    cuModuleLoadData(&got, image);
    return got;
}

static CUarray array;
static CUmodule loaded;
static CUlibrary library;
static CUdeviceptr pointer;
static CUmemGenericAllocationHandle generic;
static CUgraphExec made;
static CUstream made_stream;
static CUevent made_event;
static CUmemoryPool made_pool;
static size_t size, size2;
static unsigned number;
static unsigned long long number64;
static float ms;
static int value;
static void *host;
static CUcontext context;
static const CUDA_ARRAY_DESCRIPTOR small_array = {64, 64, CU_AD_FORMAT_FLOAT, 1};
static const CUmemAllocationProp pinned = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemPoolProps pool_props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUipcMemHandle shared;

/* Calls made while the non-blocking stream s captures. */
#define WHILE_CAPTURING(X)                                     \
    X(launch(s))                                               \
    X(launch(s2))                                              \
    X(launch(NULL))                                            \
    X(cuLaunchKernel(empty, 1, 1, 1, 4096, 1, 1, 0, s, NULL, NULL)) \
    X(begin(s, 0))                                             \
    X(cuEventRecord(e, s))                                     \
    X(cuEventRecord(e, NULL))                                  \
    X(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL))  \
    X(cuStreamWaitEvent(s, e2, 0))                             \
    X(cuStreamWaitEvent(s, new_event(), 0))                    \
    X(cuStreamWaitEvent(s, e2, CU_EVENT_WAIT_EXTERNAL))        \
    X(cuEventQuery(e2))                                        \
    X(cuEventSynchronize(e2))                                  \
    X(cuEventElapsedTime(&ms, e2, e2))                         \
    X(cuEventCreate(&made_event, 0))                           \
    X(cuEventDestroy_v2(new_event()))                          \
    X(cuStreamQuery(s))                                        \
    X(cuStreamQuery(s2))                                       \
    X(cuStreamQuery(NULL))                                     \
    X(cuStreamSynchronize(s))                                  \
    X(cuStreamSynchronize(s2))                                 \
    X(cuStreamSynchronize(NULL))                               \
    X(cuCtxSynchronize())                                      \
    X(cuStreamCreate(&made_stream, 0))                         \
    X(cuStreamDestroy_v2(new_stream()))                        \
    X(cuStreamGetFlags(s, &number))                            \
    X(cuStreamGetId(s, &number64))                             \
    X(cuStreamGetPriority(s, &value))                          \
    X(cuStreamGetCtx(s, &context))                             \
    X(cuStreamAddCallback(s, callback, NULL, 0))               \
    X(cuStreamAddCallback(s2, callback, NULL, 0))              \
    X(cuLaunchHostFunc(s, host_function, NULL))                \
    X(cuMemAlloc_v2(&pointer, 100))                            \
    X(cuMemAllocPitch_v2(&pointer, &size, 100, 10, 4))         \
    X(cuMemAllocManaged(&pointer, 100, CU_MEM_ATTACH_GLOBAL))  \
    X(cuMemFree_v2(0))                                         \
    X(cuMemHostAlloc(&host, 4096, 0))                          \
    X(cuMemFreeHost(host_memory()))                            \
    X(cuMemHostRegister_v2(registered, 8192, 0))               \
    X(cuMemHostUnregister(registered))                         \
    X(cuMemGetInfo_v2(&size, &size2))                          \
    X(cuMemGetAddressRange_v2(&pointer, &size, d))             \
    X(cuPointerGetAttribute(&number64, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d)) \
    X(cuIpcGetMemHandle(&shared, d))                           \
    X(cuMemcpyHtoD_v2(d, bytes, 16))                           \
    X(cuMemcpyDtoH_v2(bytes, d, 16))                           \
    X(cuMemcpyDtoD_v2(d, d + 64, 16))                          \
    X(cuMemsetD8_v2(d, 0, 16))                                 \
    X(cuMemcpyHtoDAsync_v2(d, bytes, 16, s))                   \
    X(cuMemcpyHtoDAsync_v2(d, bytes, 0, s))                    \
    X(cuMemcpyHtoDAsync_v2(0x1000, bytes, 16, s))              \
    X(cuMemcpyHtoDAsync_v2(d, bytes, 16, NULL))                \
    X(cuMemsetD8Async(d, 0, 16, s))                            \
    X(cuStreamWriteValue32_v2(s, d, 7, 0))                     \
    X(cuStreamWaitValue32_v2(s, d, 7, 0))                      \
    X(cuMemPrefetchAsync(d, 64, 0, s))                         \
    X(cuMemAllocAsync(&other, 100, s))                         \
    X(cuMemAllocAsync(&other, 100, s2))                        \
    X(cuMemFreeAsync(pool_memory(), s))                        \
    X(cuMemFreeAsync(pool_memory(), s2))                       \
    X(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &number64)) \
    X(cuMemPoolTrimTo(pool, 0))                                \
    X(cuMemPoolCreate(&made_pool, &pool_props))                \
    X(cuDeviceGetDefaultMemPool(&pool, 0))                     \
    X(cuDeviceGraphMemTrim(0))                                 \
    X(cuMemCreate(&generic, 2 << 20, &pinned, 0))              \
    X(cuMemAddressReserve(&pointer, 2 << 20, 0, 0, 0))         \
    X(cuArrayCreate_v2(&array, &small_array))                  \
    X(cuModuleLoadData(&loaded, image))                        \
    X(cuModuleUnload(new_module()))                            \
    X(cuModuleGetGlobal_v2(&pointer, &size, module, "table"))  \
    X(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0)) \
    X(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, empty)) \
    X(cuCtxGetLimit(&size, CU_LIMIT_PRINTF_FIFO_SIZE))         \
    X(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 23))       \
    X(cuGraphInstantiateWithFlags(&made, graph, 0))            \
    X(cuGraphLaunch(exec, s))                                  \
    X(cuGraphLaunch(exec, s2))                                 \
    X(cuGraphUpload(exec, s))                                  \
    X(cuGraphDestroy(new_graph()))

/* Calls made while a blocking stream captures: the legacy stream would have to wait for it. */
#define WHILE_BLOCKING(X)                              \
    X(launch(NULL))                                    \
    X(launch(blocking2))                               \
    X(launch(CU_STREAM_PER_THREAD))                    \
    X(begin(NULL, 0))                                  \
    X(cuEventRecord(e, NULL))                          \
    X(cuStreamWaitEvent(NULL, e2, 0))                  \
    X(cuStreamQuery(NULL))                             \
    X(cuStreamSynchronize(NULL))                       \
    X(status(NULL))                                    \
    X(cuStreamGetFlags(NULL, &number))                 \
    X(cuStreamGetId(NULL, &number64))                  \
    X(cuMemcpyHtoD_v2(d, bytes, 16))                   \
    X(cuMemcpyDtoH_v2(bytes, d, 16))                   \
    X(cuMemsetD8_v2(d, 0, 16))                         \
    X(cuMemcpyHtoDAsync_v2(d, bytes, 16, NULL))        \
    X(cuLaunchHostFunc(NULL, host_function, NULL))     \
    X(cuMemAllocAsync(&other, 100, NULL))              \
    X(cuMemGetInfo_v2(&size, &size2))

/* Calls made by another thread while s captures. */
#define ELSEWHERE(X)             \
    X(launch(s))                 \
    X(launch(s2))                \
    X(cuEventQuery(e2))          \
    X(cuEventSynchronize(e2))    \
    X(cuStreamQuery(s))          \
    X(cuStreamQuery(s2))         \
    X(cuStreamSynchronize(s2))   \
    X(cuCtxSynchronize())        \
    X(cuMemAlloc_v2(&pointer, 100)) \
    X(end(s))

#define ONE(call)              \
    if (index-- == 0) {        \
        *name = #call;         \
        return (int)(call);    \
    }
#define LIST(list, all)                                  \
    static int list(int index, const char **name) {      \
        all(ONE);                                        \
        *name = NULL;                                    \
        return 0;                                        \
    }
LIST(while_capturing, WHILE_CAPTURING)
LIST(while_blocking, WHILE_BLOCKING)
LIST(elsewhere, ELSEWHERE)

static const char *const modes[] = {"global", "local", "relaxed"};

static void table(int (*call)(int, const char **), CUstream stream) {
    for (int index = 0;; index++) {
        const char *name = NULL;
        char line[512] = "", kinds[256];
        for (int mode = 0; mode < 3; mode++) {
            begin(stream, mode);
            int code = call(index, &name);
            int found = status(stream);
            int last = (int)end_with(stream, kinds);
            sprintf(line + strlen(line), " | %s %d %d %d%s", modes[mode], code, found, last, kinds);
            settle();
        }
        if (!name) return;
        printf("%s%s\n", name, line);
    }
}

struct there {
    int index, mode, code;
    const char *name;
};
static void *there(void *data) {
    struct there *at = data;
    cuCtxSetCurrent(primary);
    exchange(at->mode);
    at->code = elsewhere(at->index, &at->name);
    return NULL;
}

static void table_elsewhere(void) {
    for (int index = 0;; index++) {
        struct there at = {index, 0, 0, NULL};
        char line[512] = "";
        for (int mode = 0; mode < 3; mode++) {
            sprintf(line + strlen(line), " | %s", modes[mode]);
            for (at.mode = 0; at.mode < 3; at.mode++) {
                pthread_t id;
                begin(s, mode);
                pthread_create(&id, NULL, there, &at);
                pthread_join(id, NULL);
                int found = status(s);
                sprintf(line + strlen(line), " %d-%d-%d", at.code, found, end(s));
                settle();
            }
        }
        if (!at.name) return;
        printf("%s%s\n", at.name, line);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    image = strcmp(argv[1], "ptx") ? sim_image : ptx_image;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cuInit(0);
    cuDevicePrimaryCtxRetain(&primary, 0);
    cuCtxSetCurrent(primary);
    cuModuleLoadData(&module, image);
    cuModuleGetFunction(&empty, module, "empty");
    s = new_stream();
    s2 = new_stream();
    cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
    cuStreamCreate(&blocking2, CU_STREAM_DEFAULT);
    e = new_event();
    e2 = new_event();
    cuMemAlloc_v2(&d, 4096);
    cuDeviceGetDefaultMemPool(&pool, 0);
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = empty, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUgraphNode node;
    graph = new_graph();
    cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel);
    cuGraphInstantiateWithFlags(&exec, graph, 0);
    cuGraphLaunch(exec, s2);
    launch(NULL);
    cuEventRecord(e2, s2);
    cuCtxSynchronize();
    printf("[while a non-blocking stream captures]\n");
    table(while_capturing, s);
    printf("\n[while a blocking stream captures]\n");
    table(while_blocking, blocking);
    printf("\n[by another thread, whose own mode is global, local, relaxed]\n");
    table_elsewhere();
    return 0;
}
