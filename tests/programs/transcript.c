/*
 * Says what a driver answers, call by call: codes, and values that do not depend on the machine. Run on a real GPU it writes
 * down the facts; run on the simulated one it must write the same.
 *   transcript sim|ptx      which form of kernel image the driver takes
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

static const char sim_image[] =
    "ration-sim-image 1\n"
    "global table 4096\n"
    "kernel empty\n"
    "kernel two param=8,4\n"
    "kernel wait time=@0 param=8\n";

static const char ptx_image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .b8 table[4096];\n"
    ".visible .entry empty() { ret; }\n"
    ".visible .entry two(.param .u64 a, .param .u32 b) { ret; }\n"
    ".visible .entry wait(.param .u64 ns) { .reg .b64 s,e,d,n; .reg .pred p; ld.param.u64 n,[ns]; mov.u64 s,%globaltimer;\n"
    "L: mov.u64 e,%globaltimer; sub.u64 d,e,s; setp.lt.u64 p,d,n; @p bra L; ret; }\n";

#define T(call) printf("%s -> %d\n", #call, (int)(call))
#define V(call, format, ...)                     \
    do {                                         \
        int code_ = (int)(call);                 \
        printf("%s -> %d", #call, code_);        \
        if (!code_) printf(" " format, __VA_ARGS__); \
        printf("\n");                            \
    } while (0)
#define SECTION(name) printf("\n[%s]\n", name)
#define MIB (1ul << 20)

static CUcontext primary;
static CUmodule module;
static CUfunction empty, two, wait_kernel;
static CUstream s, s2, blocking;
static CUevent e, e2;

/* A kernel that keeps its stream busy for so long. */
static CUresult busy(CUstream stream, uint64_t ms) {
    uint64_t ns = ms * 1000000;
    void *params[] = {&ns};
    return cuLaunchKernel(wait_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static CUresult launch(CUfunction f, CUstream stream) {
    uint64_t a = 0;
    uint32_t b = 0;
    void *params[] = {&a, &b};
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static long free_mib(void) {
    size_t free_bytes = 0, total;
    cuMemGetInfo_v2(&free_bytes, &total);
    return free_bytes / MIB;
}

static long before;
static void mark(void) { before = free_mib(); }
static void taken(const char *what) { printf("taken by %s: %ld MiB\n", what, before - free_mib()); }

static void devices(const char *image) {
    CUdevice d;
    int value;
    CUcontext c;
    SECTION("before cuInit");
    T(cuDeviceGet(&d, 0));
    T(cuCtxGetCurrent(&c));
    T(cuInit(1));
    T(cuInit(0));
    T(cuInit(0));
    SECTION("devices");
    T(cuDeviceGet(&d, 99));
    T(cuDeviceGet(&d, -1));
    T(cuDeviceGet(NULL, 0));
    T(cuDeviceGetAttribute(&value, 0, 0));
    T(cuDeviceGetAttribute(&value, 9999, 0));
    V(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0), "%d", value);
    T(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 7));
    const char *text;
    V(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), "%s", text);
    V(cuGetErrorString(CUDA_ERROR_INVALID_HANDLE, &text), "%s", text);
    T(cuGetErrorName((CUresult)123456, &text));
    SECTION("contexts");
    CUcontext a, b;
    unsigned flags, version;
    int active;
    size_t limit;
    T(cuCtxGetDevice(&d));
    T(cuCtxSynchronize());
    V(cuCtxGetCurrent(&c), "%d", c != NULL);
    T(cuCtxPopCurrent_v2(&c));
    T(cuDevicePrimaryCtxRelease_v2(0));
    V(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
    T(cuDevicePrimaryCtxRetain(&primary, 0));
    T(cuDevicePrimaryCtxRetain(&a, 0));
    printf("the same again: %d\n", a == primary);
    V(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
    T(cuDevicePrimaryCtxRelease_v2(0));
    T(cuCtxDestroy_v2(primary));
    T(cuCtxCreate_v2(&a, 0, 0));
    V(cuCtxGetCurrent(&c), "%d", c == a);
    T(cuCtxCreate_v2(&b, 0, 99));
    T(cuCtxCreate_v2(&b, 0x4000, 0));
    T(cuCtxCreate_v2(&b, CU_CTX_SCHED_YIELD, 0));
    V(cuCtxGetFlags(&flags), "%#x", flags);
    V(cuCtxPopCurrent_v2(&c), "%d", c == b);
    V(cuCtxGetCurrent(&c), "%d", c == a);
    T(cuCtxPushCurrent_v2(b));
    T(cuCtxDestroy_v2(b));
    V(cuCtxGetCurrent(&c), "%d", c == a);
    T(cuCtxDestroy_v2(a));
    V(cuCtxGetCurrent(&c), "%d", c != NULL);
    T(cuCtxPushCurrent_v2(NULL));
    T(cuCtxSetCurrent(NULL));
    T(cuCtxSetCurrent(primary));
    V(cuCtxGetApiVersion(primary, &version), "%u", version);
    T(cuCtxGetLimit(&limit, (CUlimit)77));
    V(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), "%zu", limit);
    T(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2000));
    V(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), "%zu", limit);
    T(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    T(cuCtxSetLimit((CUlimit)77, 1));
    T(cuCtxEnablePeerAccess(primary, 0));
    SECTION("modules");
    CUfunction f;
    CUdeviceptr p;
    size_t size;
    T(cuModuleLoadData(&module, NULL));
    T(cuModuleLoadData(&module, image));
    T(cuModuleGetFunction(&f, module, "nowhere"));
    T(cuModuleGetFunction(&f, module, NULL));
    T(cuModuleGetFunction(&empty, module, "empty"));
    T(cuModuleGetFunction(&two, module, "two"));
    T(cuModuleGetFunction(&wait_kernel, module, "wait"));
    V(cuModuleGetGlobal_v2(&p, &size, module, "table"), "%zu", size);
    T(cuModuleGetGlobal_v2(&p, &size, module, "nowhere"));
    T(cuModuleGetGlobal_v2(NULL, &size, module, "table"));
    unsigned count;
    V(cuModuleGetFunctionCount(&count, module), "%u", count);
    size_t offset;
    V(cuFuncGetParamInfo(two, 1, &offset, &size), "%zu %zu", offset, size);
    T(cuFuncGetParamInfo(two, 2, &offset, &size));
    T(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, NULL));
    V(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, empty), "%d", value);
    T(cuFuncSetAttribute(empty, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000));
    T(cuFuncSetAttribute(empty, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200000));
    V(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, empty, 1024, 100000), "%d", value);
    V(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, empty, 64, 0), "%d", value);
    T(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, empty, 0, 0));
    V(cuFuncGetName(&text, empty), "%s", text);
    CUlibrary library;
    CUkernel kernel;
    CUmodule of_library;
    T(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    T(cuLibraryGetKernel(&kernel, library, "nowhere"));
    T(cuLibraryGetKernel(&kernel, library, "empty"));
    V(cuLibraryGetKernelCount(&count, library), "%u", count);
    T(cuKernelGetFunction(&f, kernel));
    T(cuLibraryGetModule(&of_library, library));
    T(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    T(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    T(cuCtxSynchronize());
    T(cuLibraryUnload(library));
    SECTION("launches");
    T(cuLaunchKernel(empty, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL));
    T(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 65, 0, NULL, NULL, NULL));
    T(cuLaunchKernel(empty, 1, 65536, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    T(cuLaunchKernel(empty, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    T(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 201000, NULL, NULL, NULL));
    T(cuLaunchKernel(two, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    T(cuLaunchCooperativeKernel(empty, 1000000, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    T(cuLaunchCooperativeKernel(empty, 1, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    T(launch(two, NULL));
    T(cuCtxSynchronize());
}

static void memory(void) {
    CUdeviceptr p, q, base;
    size_t size, pitch;
    void *host, *other;
    char bytes[256] = {0};
    unsigned flags;
    SECTION("linear memory");
    T(cuMemAlloc_v2(&p, 0));
    T(cuMemAlloc_v2(NULL, 4));
    T(cuMemAlloc_v2(&p, 1ul << 45));
    T(cuMemAlloc_v2(&p, 1000));
    V(cuMemGetAddressRange_v2(&base, &size, p + 10), "%d %zu", base == p, size);
    T(cuMemGetAddressRange_v2(&base, &size, p + 1000));
    T(cuMemGetAddressRange_v2(&base, &size, 0x1000));
    T(cuMemFree_v2(p + 4));
    T(cuMemFree_v2(0));
    T(cuMemFree_v2(0x123456000));
    T(cuMemsetD8_v2(p, 1, 1000));
    T(cuMemsetD32_v2(p + 2, 1, 1));
    T(cuMemsetD16_v2(p + 1, 1, 1));
    T(cuMemsetD8_v2(p, 1, 4 * MIB));
    T(cuMemsetD2D8_v2(p, 10, 1, 20, 2));
    T(cuMemcpyHtoD_v2(p, bytes, 256));
    T(cuMemcpyHtoD_v2(p, NULL, 256));
    T(cuMemcpyDtoD_v2(p, 0x123456000, 16));
    T(cuMemcpyHtoD_v2(p, bytes, 0));
    T(cuMemcpy(p, (CUdeviceptr)(uintptr_t)bytes, 64));
    CUDA_MEMCPY2D two_d = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = bytes, .srcPitch = 8, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = 16, .WidthInBytes = 16, .Height = 4};
    T(cuMemcpy2D_v2(&two_d));
    two_d.srcPitch = 16;
    T(cuMemcpy2D_v2(&two_d));
    T(cuMemFree_v2(p));
    T(cuMemFree_v2(p));
    V(cuMemAllocPitch_v2(&p, &pitch, 300, 7, 4), "%zu", pitch);
    T(cuMemFree_v2(p));
    T(cuMemAllocPitch_v2(&p, &pitch, 300, 7, 5));
    mark();
    T(cuMemAlloc_v2(&p, 100 * MIB));
    taken("100 MiB");
    T(cuMemFree_v2(p));
    taken("it, freed");
    SECTION("host memory");
    T(cuMemHostAlloc(&host, 4096, 0));
    T(cuMemHostAlloc(&other, 0, 0));
    T(cuMemHostAlloc(&other, 4096, 0x80));
    V(cuMemHostGetFlags(&flags, host), "%#x", flags);
    V(cuMemHostGetDevicePointer_v2(&p, host, 0), "%d", p == (CUdeviceptr)(uintptr_t)host);
    T(cuMemHostGetDevicePointer_v2(&p, bytes, 0));
    T(cuMemFreeHost((char *)host + 8));
    T(cuMemFreeHost(host));
    T(cuMemFreeHost(bytes));
    host = aligned_alloc(4096, 8192);
    T(cuMemHostRegister_v2(host, 8192, 0));
    T(cuMemHostRegister_v2(host, 8192, 0));
    T(cuMemHostUnregister(host));
    T(cuMemHostUnregister(host));
    SECTION("pointers");
    int value;
    CUmemorytype type;
    CUcontext owner;
    T(cuMemAlloc_v2(&p, 100));
    V(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), "%d", (int)type);
    V(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p), "%d", owner == primary);
    V(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p), "%d", value);
    T(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)bytes));
    T(cuPointerGetAttribute(&type, (CUpointer_attribute)99, p));
    T(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned managed = 7;
    void *values[] = {&type, &managed};
    V(cuPointerGetAttributes(2, wanted, values, (CUdeviceptr)(uintptr_t)bytes), "%d %u", (int)type, managed);
    T(cuMemFree_v2(p));
    SECTION("managed memory");
    T(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
    T(cuMemAllocManaged(&p, 4096, 0));
    T(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    V(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, p), "%d", value & 0xff);
    T(cuMemFree_v2(p));
    SECTION("pools");
    CUmemoryPool pool, own;
    uint64_t number = 0;
    T(cuDeviceGetDefaultMemPool(&pool, 0));
    T(cuDeviceGetMemPool(&own, 0));
    printf("the default one: %d\n", own == pool);
    T(cuMemAllocAsync(&p, 0, s));
    mark();
    T(cuMemAllocAsync(&p, 5000, s));
    taken("an asynchronous allocation");
    T(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &number));
    printf("used %lu\n", (unsigned long)number);
    T(cuMemFreeAsync(p, s));
    T(cuMemFreeAsync(0x123456000, s));
    T(cuStreamSynchronize(s));
    taken("it, freed and synchronised");
    T(cuMemPoolGetAttribute(pool, (CUmemPool_attribute)99, &number));
    T(cuMemPoolTrimTo(pool, 0));
    T(cuMemPoolDestroy(pool));
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = CU_MEM_HANDLE_TYPE_NONE, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    T(cuMemPoolCreate(&own, &props));
    T(cuMemAllocFromPoolAsync(&p, 3 * MIB, own, s));
    T(cuStreamSynchronize(s));
    number = UINT64_MAX;
    T(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number));
    T(cuMemFree_v2(p));
    taken("a pool that keeps");
    T(cuMemPoolTrimTo(own, 0));
    taken("it, trimmed");
    T(cuMemPoolDestroy(own));
    SECTION("virtual memory management");
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle, again;
    V(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "%zu", size);
    T(cuMemCreate(&handle, 4 * MIB, &prop, 1));
    T(cuMemCreate(&handle, 5, &prop, 0));
    T(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    T(cuMemAddressReserve(&p, 5, 0, 0, 0));
    T(cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0));
    T(cuMemMap(p, 2 * MIB, 0, handle, 0));
    T(cuMemMap(p + 2 * MIB, 4 * MIB, 2 * MIB, handle, 0));
    T(cuMemMap(p + 2 * MIB, 2 * MIB, 2 * MIB, handle, 0));
    T(cuMemMap(p, 4 * MIB, 0, handle, 0));
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    T(cuMemsetD8_v2(p, 0, 16));
    T(cuMemSetAccess(p, 8 * MIB, &access, 1));
    T(cuMemSetAccess(p, 4 * MIB, &access, 1));
    T(cuMemsetD8_v2(p, 0, 16));
    T(cuMemFree_v2(p));
    T(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)p));
    T(cuMemRelease(again));
    T(cuMemRelease(handle));
    T(cuMemRelease(handle));
    T(cuMemAddressFree(p, 8 * MIB));
    T(cuMemUnmap(p, MIB));
    T(cuMemUnmap(p, 4 * MIB));
    T(cuMemUnmap(p, 4 * MIB));
    T(cuMemAddressFree(p, 4 * MIB));
    T(cuMemAddressFree(p, 8 * MIB));
    SECTION("arrays");
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {0, 0, CU_AD_FORMAT_FLOAT, 1}, back;
    T(cuArrayCreate_v2(&array, &shape));
    shape.Width = 64;
    shape.NumChannels = 3;
    T(cuArrayCreate_v2(&array, &shape));
    shape.NumChannels = 2;
    T(cuArrayCreate_v2(&array, &shape));
    V(cuArrayGetDescriptor_v2(&back, array), "%zu %zu %d %u", back.Width, back.Height, (int)back.Format, back.NumChannels);
    T(cuMemcpyHtoA_v2(array, 0, bytes, 256));
    T(cuMemcpyHtoA_v2(array, 400, bytes, 256));
    T(cuArrayDestroy(array));
    T(cuArrayDestroy(NULL));
    q = p;
    (void)q;
}

static void streams(void) {
    CUstream t;
    int priority;
    unsigned flags;
    CUevent made;
    float ms;
    SECTION("streams and events");
    T(cuStreamCreate(&t, 2));
    T(cuStreamCreate(NULL, 0));
    T(cuStreamCreateWithPriority(&t, CU_STREAM_NON_BLOCKING, -100));
    V(cuStreamGetPriority(t, &priority), "%d", priority);
    V(cuStreamGetFlags(t, &flags), "%u", flags);
    T(cuStreamDestroy_v2(t));
    T(cuStreamCreateWithPriority(&t, 0, 7));
    V(cuStreamGetPriority(t, &priority), "%d", priority);
    T(cuStreamDestroy_v2(t));
    T(cuStreamDestroy_v2(NULL));
    T(cuStreamQuery(NULL));
    T(busy(s, 60));
    T(cuStreamQuery(s));
    T(cuStreamQuery(s2));
    T(cuStreamQuery(NULL));
    T(cuEventRecord(e, s));
    T(cuEventQuery(e));
    T(cuStreamWaitEvent(s2, e, 0));
    T(launch(empty, s2));
    T(cuStreamQuery(s2));
    T(cuStreamSynchronize(s2));
    T(cuEventQuery(e));
    T(cuStreamQuery(s));
    T(busy(blocking, 60));
    T(launch(empty, NULL));
    T(cuStreamQuery(NULL));
    T(launch(empty, s));
    T(cuStreamSynchronize(s));
    T(cuStreamQuery(blocking));
    T(cuCtxSynchronize());
    T(cuEventCreate(&made, 0x20));
    T(cuEventCreate(&made, CU_EVENT_INTERPROCESS));
    T(cuEventCreate(&made, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    T(cuEventDestroy_v2(made));
    T(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    T(cuEventRecord(made, s));
    T(cuEventSynchronize(made));
    T(cuEventElapsedTime(&ms, made, e));
    T(cuEventElapsedTime(&ms, e, e2));
    T(cuEventRecord(e2, s));
    T(cuEventSynchronize(e2));
    T(cuEventElapsedTime(&ms, e, e2));
    T(cuEventElapsedTime(NULL, e, e2));
    T(cuEventDestroy_v2(made));
    T(cuEventDestroy_v2(NULL));
    T(cuStreamWaitEvent(s, e, 5));
    T(cuStreamWaitEvent(s, NULL, 0));
    T(cuEventRecord(NULL, s));
    CUdeviceptr p;
    uint32_t word = 0;
    T(cuMemAlloc_v2(&p, 64));
    T(cuStreamWriteValue32_v2(s, p, 77, 0));
    T(cuStreamWaitValue32_v2(s, p, 70, CU_STREAM_WAIT_VALUE_GEQ));
    T(cuMemcpyDtoHAsync_v2(&word, p, 4, s));
    T(cuStreamSynchronize(s));
    printf("written %u\n", word);
    T(cuStreamWriteValue32_v2(s, p + 1, 77, 0));
    T(cuMemFree_v2(p));
    T(cuLaunchHostFunc(s, NULL, NULL));
}

static CUresult begin(CUstream stream, CUstreamCaptureMode mode) { return cuStreamBeginCapture_v2(stream, mode); }

static CUresult end(CUstream stream, size_t *nodes) {
    CUgraph graph = NULL;
    CUresult code = cuStreamEndCapture(stream, &graph);
    *nodes = 0;
    if (graph) {
        cuGraphGetNodes(graph, NULL, nodes);
        cuGraphDestroy(graph);
    }
    return code;
}

static void *query_elsewhere(void *data) {
    (void)data;
    cuCtxSetCurrent(primary);
    return (void *)(uintptr_t)cuEventQuery(e);
}

static void *end_elsewhere(void *data) {
    size_t nodes;
    cuCtxSetCurrent(primary);
    return (void *)(uintptr_t)end(data, &nodes);
}

static int in_thread(void *(*f)(void *), void *data) {
    pthread_t id;
    void *result;
    pthread_create(&id, NULL, f, data);
    pthread_join(id, &result);
    return (int)(uintptr_t)result;
}

static void captures(void) {
    size_t nodes;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr p;
    T(cuEventRecord(e, s));
    T(cuStreamSynchronize(s));
    SECTION("capture");
    T(begin(s, 9));
    T(begin(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(begin(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(launch(empty, s));
    V(cuStreamIsCapturing(s, &status), "%d", (int)status);
    V(cuStreamIsCapturing(s2, &status), "%d", (int)status);
    V(end(s, &nodes), "%zu", nodes);
    T(end(s, &nodes));
    printf("-- another thread\n");
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(in_thread(query_elsewhere, NULL));
    T(end(s, &nodes));
    T(begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    T(in_thread(query_elsewhere, NULL));
    T(end(s, &nodes));
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(in_thread(end_elsewhere, s));
    T(end(s, &nodes));
    T(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(in_thread(end_elsewhere, s));
    printf("-- a relaxed moment\n");
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    V(cuThreadExchangeStreamCaptureMode(&mode), "%d", (int)mode);
    T(cuEventQuery(e));
    T(cuMemAlloc_v2(&p, 100));
    T(cuMemFree_v2(p));
    V(cuThreadExchangeStreamCaptureMode(&mode), "%d", (int)mode);
    T(end(s, &nodes));
    printf("-- forks and joins\n");
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(launch(empty, s));
    T(cuEventRecord(e2, s));
    T(cuStreamWaitEvent(s2, e2, 0));
    V(cuStreamIsCapturing(s2, &status), "%d", (int)status);
    T(launch(empty, s2));
    T(end(s2, &nodes));
    V(cuStreamIsCapturing(s, &status), "%d", (int)status);
    T(end(s, &nodes));
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(cuEventRecord(e2, s));
    T(cuStreamWaitEvent(s2, e2, 0));
    T(launch(empty, s2));
    T(end(s, &nodes));
    V(cuStreamIsCapturing(s2, &status), "%d", (int)status);
    T(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(begin(s2, CU_STREAM_CAPTURE_MODE_GLOBAL));
    T(cuEventRecord(e2, s));
    T(cuStreamWaitEvent(s2, e2, 0));
    T(end(s, &nodes));
    T(end(s2, &nodes));
    T(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuEventRecord(e2, s));
    T(cuEventQuery(e2));
    T(end(s, &nodes));
    T(cuEventQuery(e2));
    printf("-- a blocking stream and the legacy one\n");
    T(begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(launch(empty, NULL));
    V(cuStreamIsCapturing(blocking, &status), "%d", (int)status);
    T(end(blocking, &nodes));
    T(begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuMemsetD8_v2(0x123456000, 0, 1));
    T(end(blocking, &nodes));
    T(begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamIsCapturing(NULL, &status));
    T(end(blocking, &nodes));
    T(begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    T(cuStreamQuery(NULL));
    T(end(blocking, &nodes));
    T(cuCtxSynchronize());
}

static void graphs(void) {
    CUgraph graph, clone, child;
    CUgraphExec exec;
    CUgraphNode a, b, c, found;
    size_t count;
    SECTION("graphs");
    T(cuGraphCreate(&graph, 1));
    T(cuGraphCreate(NULL, 0));
    T(cuGraphCreate(&graph, 0));
    T(cuGraphAddEmptyNode(&a, graph, NULL, 0));
    T(cuGraphAddEmptyNode(&b, graph, &a, 1));
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = empty, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1}, got;
    T(cuGraphAddKernelNode_v2(&c, graph, &b, 1, &kernel));
    kernel.blockDimX = 5000;
    T(cuGraphAddKernelNode_v2(&found, graph, &b, 1, &kernel));
    T(cuGraphKernelNodeSetParams_v2(c, &kernel));
    kernel.blockDimX = 32;
    T(cuGraphKernelNodeSetParams_v2(c, &kernel));
    V(cuGraphKernelNodeGetParams_v2(c, &got), "%u %d", got.blockDimX, got.func == empty);
    T(cuGraphKernelNodeGetParams_v2(a, &got));
    V(cuGraphGetNodes(graph, NULL, &count), "%zu", count);
    V(cuGraphGetRootNodes(graph, NULL, &count), "%zu", count);
    V(cuGraphGetEdges(graph, NULL, NULL, &count), "%zu", count);
    T(cuGraphAddDependencies(graph, &a, &c, 1));
    T(cuGraphAddDependencies(graph, &a, &c, 1));
    T(cuGraphAddDependencies(graph, &c, &a, 1));
    T(cuGraphInstantiateWithFlags(&exec, graph, 0));
    T(cuGraphRemoveDependencies(graph, &c, &a, 1));
    T(cuGraphRemoveDependencies(graph, &c, &a, 1));
    T(cuGraphInstantiateWithFlags(&exec, graph, 0));
    T(cuGraphLaunch(exec, s));
    T(cuStreamSynchronize(s));
    T(cuGraphLaunch(NULL, s));
    T(cuGraphClone(&clone, graph));
    T(cuGraphNodeFindInClone(&found, c, clone));
    T(cuGraphNodeFindInClone(&found, c, graph));
    T(cuGraphCreate(&child, 0));
    T(cuGraphAddEmptyNode(&found, child, NULL, 0));
    T(cuGraphAddChildGraphNode(&b, graph, NULL, 0, child));
    T(cuGraphDestroy(child));
    CUgraphExecUpdateResultInfo info;
    int code = cuGraphExecUpdate_v2(exec, graph, &info);
    printf("cuGraphExecUpdate_v2 with another node -> %d %d\n", code, (int)info.result);
    code = cuGraphExecUpdate_v2(exec, clone, &info);
    printf("cuGraphExecUpdate_v2 with the clone -> %d %d\n", code, (int)info.result);
    T(cuGraphDestroyNode(b));
    T(cuGraphDestroyNode(a));
    V(cuGraphGetNodes(graph, NULL, &count), "%zu", count);
    T(cuGraphExecDestroy(exec));
    T(cuGraphExecDestroy(NULL));
    T(cuGraphDestroy(clone));
    T(cuGraphDestroy(graph));
    SECTION("graph memory");
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}, .bytesize = 40 * MIB};
    T(cuGraphCreate(&graph, 0));
    T(cuGraphAddMemAllocNode(&a, graph, NULL, 0, &alloc));
    printf("an address at once: %d\n", alloc.dptr != 0);
    T(cuGraphInstantiateWithFlags(&exec, graph, 0));
    mark();
    T(cuGraphLaunch(exec, s));
    T(cuStreamSynchronize(s));
    taken("40 MiB in a graph");
    T(cuGraphLaunch(exec, s));
    T(cuMemFree_v2(alloc.dptr));
    T(cuGraphLaunch(exec, s));
    T(cuMemFreeAsync(alloc.dptr, s));
    T(cuStreamSynchronize(s));
    T(cuGraphExecDestroy(exec));
    taken("it, freed, not trimmed");
    T(cuDeviceGraphMemTrim(0));
    taken("it, trimmed");
    T(cuGraphClone(&clone, graph));
    T(cuGraphDestroy(graph));
}

static void resolver(void) {
    void *f;
    CUdriverProcAddressQueryResult status;
    SECTION("cuGetProcAddress");
    f = (void *)1;
    T(cuGetProcAddress("cuMemAlloc", &f, 12000, 0));
    printf("the 64-bit one: %d\n", f == (void *)cuMemAlloc_v2);
    T(cuGetProcAddress("cuMemAlloc", &f, 2000, 0));
    printf("the 32-bit one: %d\n", f == (void *)cuMemAlloc);
    f = (void *)1;
    T(cuGetProcAddress("cuNothing", &f, 12000, 0));
    printf("null: %d\n", f == NULL);
    V(cuGetProcAddress_v2("cuNothing", &f, 12000, 0, &status), "%d", (int)status);
    V(cuGetProcAddress_v2("cuGraphAddNode", &f, 11000, 0, &status), "%d", (int)status);
    V(cuGetProcAddress_v2("cuCtxSynchronize", &f, 13000, 0, &status), "%d %d", (int)status, f == (void *)cuCtxSynchronize_v2);
    V(cuGetProcAddress_v2("cuCtxSynchronize", &f, 12080, 0, &status), "%d %d", (int)status, f == (void *)cuCtxSynchronize);
    V(cuGetProcAddress_v2("cuInit", &f, 13000, 0, NULL), "%d", f == (void *)cuInit);
    T(cuGetProcAddress_v2("cuInit", &f, 13090, 0, &status));
    T(cuGetProcAddress_v2("cuInit", &f, 14000, 0, &status));
    T(cuGetProcAddress_v2("cuInit", &f, -1, 0, &status));
    T(cuGetProcAddress_v2("cuInit", &f, 12000, 3, &status));
    T(cuGetProcAddress_v2("cuInit", &f, 12000, 4, &status));
}

static void endings(void) {
    CUcontext c;
    CUdeviceptr p;
    unsigned version, flags;
    int active;
    CUstream t;
    SECTION("endings");
    T(cuCtxCreate_v2(&c, 0, 0));
    T(cuMemAlloc_v2(&p, 100));
    T(cuStreamCreate(&t, 0));
    T(cuCtxDestroy_v2(c));
    T(cuCtxSetCurrent(primary));
    T(cuMemFree_v2(p));
    T(cuModuleUnload(module));
    T(cuMemAlloc_v2(&p, 100));
    T(cuDevicePrimaryCtxReset_v2(0));
    V(cuDevicePrimaryCtxGetState(0, &flags, &active), "%u %d", flags, active);
    T(cuCtxGetApiVersion(primary, &version));
    T(cuMemFree_v2(p));
    T(cuDevicePrimaryCtxRelease_v2(0));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    devices(!strcmp(argv[1], "ptx") ? ptx_image : sim_image);
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
    cuEventCreate(&e, 0);
    cuEventCreate(&e2, 0);
    memory();
    streams();
    captures();
    graphs();
    resolver();
    endings();
    return 0;
}
