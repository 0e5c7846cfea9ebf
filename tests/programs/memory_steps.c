/*
 * Takes and gives back memory in every way there is, step by step. After each step it prints a line and waits for one, so
 * that a watcher can read what the step took: from the record of the simulated driver, or by NVML from a real one.
 *   memory_steps sim|ptx      which form of kernel image the driver takes
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static const char sim_image[] =
    "ration-sim-image 1\n"
    "global big 67108864\n"
    "kernel empty\n"
    "kernel deep local=16384\n"
    "kernel touches touch param=8\n";

static const char ptx_image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .b8 big[67108864];\n"
    ".visible .entry empty() { ret; }\n"
    ".visible .entry deep() { .local .align 4 .b8 buf[16384]; .reg .b64 at, z; .reg .b32 x, y; mov.u32 x, %clock;\n"
    "and.b32 x, x, 8188; mov.u64 at, buf; cvt.u64.u32 z, x; add.u64 at, at, z; st.local.u32 [at], x;\n"
    "ld.local.u32 y, [at+4096]; mov.u64 at, big; st.global.u32 [at], y; ret; }\n"
    ".visible .entry touches(.param .u64 from) { .reg .b64 at, end; .reg .pred p; ld.param.u64 at, [from];\n"
    "add.u64 end, at, 209715200; L: st.global.u32 [at], 1; add.u64 at, at, 65536; setp.lt.u64 p, at, end; @p bra L; ret; }\n";

static const char *image = sim_image;

static void step(const char *name) {
    char answer[16];
    printf("%s\n", name);
    fflush(stdout);
    if (!fgets(answer, sizeof answer, stdin)) exit(2); /* the watcher is gone */
}

static CUdeviceptr many[128];

static void alloc_many(int count, size_t bytes) {
    for (int i = 0; i < count; i++) OK(cuMemAlloc_v2(&many[i], bytes));
}

static void contexts(CUcontext *primary) {
    CUcontext second;
    OK(cuInit(0));
    step("cuInit");
    OK(cuDevicePrimaryCtxRetain(primary, 0));
    OK(cuCtxSetCurrent(*primary));
    step("primary context");
    OK(cuCtxCreate_v2(&second, 0, 0));
    step("a second context");
    OK(cuCtxDestroy_v2(second));
    step("destroyed");
    OK(cuCtxSetCurrent(*primary));
}

static void modules(CUfunction *empty, CUfunction *deep) {
    CUlibrary library;
    CUkernel kernel;
    CUmodule module;
    OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "empty"));
    step("library with a 64 MiB variable loaded");
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    step("its first kernel launched");
    OK(cuLibraryUnload(library));
    step("unloaded");
    OK(cuModuleLoadData(&module, image));
    step("module with a 64 MiB variable loaded");
    OK(cuModuleGetFunction(empty, module, "empty"));
    OK(cuModuleGetFunction(deep, module, "deep"));
}

static void linear(void) {
    CUdeviceptr small[90], pitched;
    size_t pitch;
    alloc_many(16, 4096);
    memcpy(small, many, sizeof(CUdeviceptr) * 16);
    step("16 x 4 KiB");
    alloc_many(64, 100000);
    memcpy(small + 16, many, sizeof(CUdeviceptr) * 64);
    step("64 x 100,000 B");
    alloc_many(10, MIB + 1);
    memcpy(small + 80, many, sizeof(CUdeviceptr) * 10);
    step("10 x (1 MiB + 1)");
    alloc_many(10, 2 * MIB + 1);
    step("10 x (2 MiB + 1)");
    for (int i = 0; i < 10; i++) OK(cuMemFree_v2(many[i]));
    step("those freed");
    alloc_many(10, 20 * MIB + 1);
    step("10 x (20 MiB + 1)");
    for (int i = 0; i < 10; i++) OK(cuMemFree_v2(many[i]));
    for (int i = 0; i < 90; i++) OK(cuMemFree_v2(small[i]));
    step("all freed");
    OK(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 5000, 4));
    step("5000 rows of 1000 B, pitched");
    OK(cuMemFree_v2(pitched));
    step("rows freed");
}

static void limits(CUfunction empty, CUfunction deep) {
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    step("stack limit 4096");
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
    step("stack limit 1024");
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MIB));
    step("heap limit 256 MiB set");
    OK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    step("a kernel without heap launched");
    OK(cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    step("a kernel with 16 KiB of local memory launched");
    OK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    step("one without launched after it");
}

static void pools(CUstream stream) {
    CUmemoryPool pool;
    CUdeviceptr first, large;
    uint64_t all = UINT64_MAX, none = 0;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&first, 1000, stream));
    step("cuMemAllocAsync 1000 B");
    OK(cuMemAllocAsync(&large, 100 * MIB, stream));
    step("cuMemAllocAsync 100 MiB");
    OK(cuMemFreeAsync(large, stream));
    step("freed, not synchronised");
    OK(cuStreamSynchronize(stream));
    step("synchronised");
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    OK(cuMemAllocAsync(&large, 100 * MIB, stream));
    OK(cuMemFreeAsync(large, stream));
    OK(cuStreamSynchronize(stream));
    step("again, with the threshold at its maximum");
    OK(cuMemPoolTrimTo(pool, 0));
    step("trimmed");
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
    OK(cuMemFreeAsync(first, stream));
    OK(cuStreamSynchronize(stream));
    step("the first freed");
    for (int i = 0; i < 3; i++) {
        static const size_t sizes[] = {33 * MIB, 64 * MIB, 64 * MIB + 1};
        static const char *names[] = {"33 MiB", "64 MiB", "64 MiB + 1"};
        OK(cuMemAllocAsync(&large, sizes[i], stream));
        OK(cuStreamSynchronize(stream));
        step(names[i]);
        OK(cuMemFreeAsync(large, stream));
        OK(cuCtxSynchronize());
        step("given back");
    }
    OK(cuMemAllocAsync(&large, 100, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree_v2(large));
    OK(cuCtxSynchronize());
    step("cuMemAllocAsync, then cuMemFree");
}

/* Only memory in it: kernels would take some of the device's for themselves when the graph is made executable. */
static CUgraphExec graph_with(size_t bytes, CUstream stream) {
    CUdeviceptr inside;
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&inside, bytes, stream));
    OK(cuMemFreeAsync(inside, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void graphs(CUstream stream) {
    CUgraphExec exec = graph_with(MIB, stream);
    step("graph with 1 MiB made");
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    step("launched");
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    step("launched again");
    OK(cuDeviceGraphMemTrim(0));
    step("graph memory trimmed");
    OK(cuGraphExecDestroy(exec));
    exec = graph_with(100 * MIB, stream);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    step("graph with 100 MiB launched");
    OK(cuGraphExecDestroy(exec));
    step("graph destroyed");
    OK(cuDeviceGraphMemTrim(0));
    step("trimmed again");
}

static CUarray array_of(size_t width, size_t height) {
    CUDA_ARRAY_DESCRIPTOR form = {.Width = width, .Height = height, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array;
    OK(cuArrayCreate_v2(&array, &form));
    return array;
}

static void arrays(void) {
    CUarray made[10], box;
    CUmipmappedArray mipmap;
    for (int i = 0; i < 10; i++) made[i] = array_of(1000, 1000);
    step("10 arrays of 1000 x 1000 floats");
    for (int i = 0; i < 10; i++) OK(cuArrayDestroy(made[i]));
    step("arrays destroyed");
    made[0] = array_of(16, 16);
    step("array of 16 x 16");
    made[1] = array_of(100, 0);
    step("array of 100");
    made[2] = array_of(1500, 700);
    step("array of 1500 x 700");
    CUDA_ARRAY3D_DESCRIPTOR form = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    OK(cuMipmappedArrayCreate(&mipmap, &form, 11));
    step("mipmap of 1024 x 1024 x 4 floats, 11 levels");
    form.Width = form.Height = form.Depth = 128;
    OK(cuArray3DCreate_v2(&box, &form));
    step("array of 128 x 128 x 128 x 4 floats");
    form.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&made[3], &form));
    step("the same without memory of its own");
    OK(cuArrayDestroy(made[3]));
    OK(cuArrayDestroy(box));
    OK(cuMipmappedArrayDestroy(mipmap));
    for (int i = 0; i < 3; i++) OK(cuArrayDestroy(made[i]));
    step("all arrays destroyed");
}

static void virtual_memory(void) {
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr at;
    int fd;
    OK(cuMemAddressReserve(&at, 64 * MIB, 0, 0, 0));
    step("64 MiB of addresses reserved");
    OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
    step("64 MiB created");
    OK(cuMemMap(at, 64 * MIB, 0, handle, 0));
    step("mapped");
    OK(cuMemRelease(handle));
    step("released while mapped");
    OK(cuMemUnmap(at, 64 * MIB));
    step("unmapped");
    OK(cuMemAddressFree(at, 64 * MIB));
    OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(handle));
    step("exported and released, descriptor open");
    OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    step("imported, descriptor closed");
    OK(cuMemRelease(imported));
    step("released");
}

static void host_side(CUfunction touches) {
    CUdeviceptr managed, again;
    void *pinned;
    OK(cuMemHostAlloc(&pinned, 64 * MIB, 0));
    step("64 MiB of pinned host memory");
    OK(cuMemAllocManaged(&managed, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    memset((void *)(uintptr_t)managed, 1, 200 * MIB);
    step("managed 200 MiB, untouched by the GPU");
    void *parameters[] = {&managed};
    OK(cuLaunchKernel(touches, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuCtxSynchronize());
    step("touched by the GPU");
    OK(cuMemPrefetchAsync(managed, 200 * MIB, CU_DEVICE_CPU, NULL));
    OK(cuCtxSynchronize());
    step("prefetched back to the host");
    OK(cuMemAllocManaged(&again, 20 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemsetD8_v2(again, 2, 20 * MIB));
    OK(cuCtxSynchronize());
    step("another 20 MiB, set by the GPU");
    OK(cuMemFree_v2(managed));
    step("the 200 MiB freed");
    OK(cuMemFree_v2(again));
    OK(cuMemFreeHost(pinned));
    step("the rest freed");
}

int main(int count, char **arguments) {
    CUcontext primary;
    CUfunction empty, deep, touches;
    CUmodule module;
    CUstream stream;
    if (count > 1 && !strcmp(arguments[1], "ptx")) image = ptx_image;
    contexts(&primary);
    modules(&empty, &deep);
    OK(cuFuncGetModule(&module, empty));
    OK(cuModuleGetFunction(&touches, module, "touches"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    linear();
    pools(stream);
    graphs(stream);
    arrays();
    virtual_memory();
    host_side(touches);
    limits(empty, deep);
    OK(cuDevicePrimaryCtxReset_v2(0));
    step("primary context reset");
    return 0;
}
