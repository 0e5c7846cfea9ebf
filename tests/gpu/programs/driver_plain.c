/* A plain program of the driver API: every way to allocate, copy, fill and launch that one process on one GPU has, and
 * a checksum of what the GPU made of each. Built twice: with CUDA_API_PER_THREAD_DEFAULT_STREAM, cuda.h binds the calls
 * to their _ptsz and _ptds forms. */

#define _GNU_SOURCE
#include <dlfcn.h>

#include "gpu.h"

enum { N = 1 << 16, BYTES = N * 4, WIDTH = 640, HEIGHT = 48 };

static CUfunction step;
static CUstream stream;
static uint32_t host[N];

static void fill_host(uint32_t seed) {
    for (int i = 0; i < N; i++) host[i] = seed = seed * 1664525u + 1013904223u;
}

static void launch(CUstream where, CUdeviceptr data, uint32_t n, uint32_t add) {
    void *arguments[] = {&data, &n, &add};
    OK(cuLaunchKernel(step, (n + 255) / 256, 1, 1, 256, 1, 1, 0, where, arguments, NULL));
}

static void tell_device(const char *what, CUdeviceptr data) {
    memset(host, 0, sizeof host);
    OK(cuMemcpyDtoH(host, data, BYTES));
    tell(what, host, BYTES);
}

static void linear(void) {
    CUdeviceptr a, b;
    OK(cuMemAlloc(&a, BYTES));
    OK(cuMemAlloc(&b, BYTES));
    fill_host(1);
    OK(cuMemcpyHtoD(a, host, BYTES));
    for (uint32_t i = 0; i < 100; i++) launch(NULL, a, N, i);
    OK(cuMemcpyDtoD(b, a, BYTES));
    tell_device("linear", b);
    OK(cuMemsetD8(a, 0x5a, BYTES / 4));
    OK(cuMemsetD16(a + BYTES / 4, 0x1234, BYTES / 8));
    OK(cuMemsetD32(a + BYTES / 2, 0x89abcdef, BYTES / 8));
    OK(cuMemcpy(b, a, BYTES));
    tell_device("sets", b);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

static void streams(void) {
    CUdeviceptr a, b;
    CUevent event;
    CUstream other;
    uint32_t *pinned;
    OK(cuMemAlloc(&a, BYTES));
    OK(cuMemAlloc(&b, BYTES));
    OK(cuMemHostAlloc((void **)&pinned, BYTES, 0));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < N; i++) pinned[i] = i * 7u;
    OK(cuMemcpyHtoDAsync(a, pinned, BYTES, stream));
    OK(cuMemsetD32Async(b, 3, N, other));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    for (uint32_t i = 0; i < 50; i++) launch(other, i & 1 ? a : b, N, i);
    OK(cuMemcpyDtoDAsync(b, a, BYTES / 2, other));
    OK(cuMemcpyAsync(b + BYTES / 2, a, BYTES / 4, other));
    OK(cuMemcpyDtoHAsync(pinned, b, BYTES, other));
    OK(cuStreamSynchronize(other));
    tell("streams", pinned, BYTES);
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(other));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

static void launches(CUdevice device) {
    CUdeviceptr a;
    uint32_t n = 4096, add = 11;
    void *arguments[] = {&a, &n, &add};
    CUlaunchConfig config = {.gridDimX = 16,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 256,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    int cooperative = 0;
    OK(cuMemAlloc(&a, BYTES));
    OK(cuMemsetD32Async(a, 9, N, stream)); /* on the default stream it would race with this one, which does not wait */
    for (int i = 0; i < 20; i++) OK(cuLaunchKernelEx(&config, step, arguments, NULL));
    OK(cuDeviceGetAttribute(&cooperative, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, device));
    for (int i = 0; i < 10 && cooperative; i++)
        OK(cuLaunchCooperativeKernel(step, 16, 1, 1, 256, 1, 1, 0, stream, arguments));
    OK(cuStreamSynchronize(stream));
    tell_device("launches", a);
    OK(cuMemFree(a));
}

static void pitch(void) {
    CUdeviceptr a;
    size_t pitch;
    OK(cuMemAllocPitch(&a, &pitch, WIDTH, HEIGHT, 4));
    OK(cuMemsetD2D8(a, pitch, 7, WIDTH, HEIGHT));
    fill_host(2);
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = WIDTH,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = a,
                        .dstPitch = pitch,
                        .WidthInBytes = WIDTH / 2,
                        .Height = HEIGHT};
    OK(cuMemcpy2D(&in));
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = a,
                         .srcPitch = pitch,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = host,
                         .dstPitch = WIDTH,
                         .WidthInBytes = WIDTH,
                         .Height = HEIGHT};
    OK(cuMemcpy2DUnaligned(&out));
    OK(cuMemcpy2DAsync(&out, stream));
    OK(cuStreamSynchronize(stream));
    tell("pitch", host, WIDTH * HEIGHT);
    OK(cuMemFree(a));
}

static void pools(CUdevice device) {
    CUdeviceptr a, b;
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    OK(cuMemPoolCreate(&pool, &props));
    for (uint32_t round = 0; round < 8; round++) {
        OK(cuMemAllocAsync(&a, BYTES, stream));
        OK(cuMemAllocFromPoolAsync(&b, BYTES, pool, stream));
        OK(cuMemsetD32Async(a, round, N, stream));
        launch(stream, a, N, round);
        OK(cuMemcpyDtoDAsync(b, a, BYTES, stream));
        OK(cuMemcpyDtoHAsync(host, b, BYTES, stream));
        OK(cuMemFreeAsync(a, stream));
        OK(cuMemFreeAsync(b, stream));
    }
    OK(cuStreamSynchronize(stream));
    tell("pools", host, BYTES);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolDestroy(pool));
}

static void arrays(void) {
    CUarray flat, deep;
    CUDA_ARRAY_DESCRIPTOR flat_shape = {
        .Width = N / 64, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR deep_shape = {
        .Width = 32, .Height = 16, .Depth = 8, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    size_t flat_bytes = N / 64 * 4, deep_bytes = 32 * 16 * 8 * 4;
    OK(cuArrayCreate(&flat, &flat_shape));
    OK(cuArray3DCreate(&deep, &deep_shape));
    fill_host(3);
    OK(cuMemcpyHtoA(flat, 0, host, flat_bytes));
    CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = 32 * 4,
                        .srcHeight = 16,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = deep,
                        .WidthInBytes = 32 * 4,
                        .Height = 16,
                        .Depth = 8};
    OK(cuMemcpy3D(&in));
    OK(cuCtxSynchronize()); /* the copy may still be on its way from the driver's buffers */
    CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                         .srcArray = deep,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = (char *)host + flat_bytes,
                         .dstPitch = 32 * 4,
                         .dstHeight = 16,
                         .WidthInBytes = 32 * 4,
                         .Height = 16,
                         .Depth = 8};
    OK(cuMemcpy3DAsync(&out, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyAtoH(host, flat, 0, flat_bytes));
    tell("arrays", host, flat_bytes + deep_bytes);
    OK(cuArrayDestroy(flat));
    OK(cuArrayDestroy(deep));
}

static void managed(void) {
    CUdeviceptr a;
    OK(cuMemAllocManaged(&a, BYTES, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemsetD32(a, 5, N));
    launch(NULL, a, N, 77);
    OK(cuCtxSynchronize());
    tell_device("managed", a);
    OK(cuMemFree(a));
}

static void virtual_memory(CUdevice device) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t size;
    OK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    while (size < BYTES) size *= 2;
    OK(cuMemCreate(&handle, size, &prop, 0));
    OK(cuMemAddressReserve(&at, size, 0, 0, 0));
    OK(cuMemMap(at, size, 0, handle, 0));
    OK(cuMemSetAccess(at, size, &access, 1));
    OK(cuMemsetD32(at, 21, N));
    launch(NULL, at, N, 22);
    tell_device("virtual", at);
    OK(cuMemUnmap(at, size));
    OK(cuMemAddressFree(at, size));
    OK(cuMemRelease(handle));
}

static void graphs(void) {
    CUgraph graph;
    CUgraphNode nodes[3];
    CUgraphExec exec;
    CUcontext context;
    CUdeviceptr a, b;
    uint32_t n = N, add = 31;
    OK(cuCtxGetCurrent(&context));
    OK(cuMemAlloc(&a, BYTES));
    OK(cuMemAlloc(&b, BYTES));
    void *arguments[] = {&a, &n, &add};
    CUDA_MEMSET_NODE_PARAMS set = {.dst = a, .value = 17, .elementSize = 4, .width = N, .height = 1};
    CUDA_KERNEL_NODE_PARAMS run = {.func = step,
                                   .gridDimX = N / 256,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 256,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = arguments};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .srcPitch = BYTES,
                          .srcHeight = 1,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b,
                          .dstPitch = BYTES,
                          .dstHeight = 1,
                          .WidthInBytes = BYTES,
                          .Height = 1,
                          .Depth = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemsetNode(&nodes[0], graph, NULL, 0, &set, context));
    OK(cuGraphAddKernelNode(&nodes[1], graph, &nodes[0], 1, &run));
    OK(cuGraphAddMemcpyNode(&nodes[2], graph, &nodes[1], 1, &copy, context));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 10; i++) OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    tell_device("graph", b);
    add = 32;
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[1], &run));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    tell_device("graph-edit", b);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));

    OK(cuMemsetD32Async(a, 0, N, stream));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (uint32_t i = 0; i < 5; i++) launch(stream, a, N, i);
    OK(cuMemcpyDtoDAsync(b, a, BYTES, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphUpload(exec, stream));
    for (int i = 0; i < 10; i++) OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    tell_device("captured", b);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
}

/* The same function found in the other ways that programs have. All of them must be counted. */
static void look_ups(void) {
    typedef CUresult (*Alloc)(CUdeviceptr *, size_t);
    typedef CUresult (*Free)(CUdeviceptr);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(driver);
    Alloc ways[3] = {(Alloc)dlsym(driver, "cuMemAlloc_v2"), (Alloc)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), NULL};
    Free away = NULL;
    CUdriverProcAddressQueryResult found;
    OK(cuGetProcAddress("cuMemAlloc", (void **)&ways[2], 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    OK(cuGetProcAddress("cuMemFree", (void **)&away, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
    uint32_t results[6];
    for (int i = 0; i < 3; i++) {
        CUdeviceptr a = 0;
        MUST(ways[i] && away);
        results[2 * i] = ways[i](&a, 1000);
        results[2 * i + 1] = away(a);
    }
    tell("look-ups", results, sizeof results);
}

int main(void) {
    CUdevice device = begin();
    CUmodule module = load_kernels();
    OK(cuModuleGetFunction(&step, module, "step"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    linear();
    streams();
    launches(device);
    pitch();
    pools(device);
    arrays();
    managed();
    virtual_memory(device);
    graphs();
    look_ups();
    OK(cuStreamDestroy(stream));
    OK(cuModuleUnload(module));
    OK(cuDevicePrimaryCtxRelease(device));
    puts("done");
    return 0;
}
