/*
 * A program that does not care what it is told: it tries whatever takes memory or sends work, and goes on.
 *
 *   strict
 *
 * It says `cuInit CODE` and `ready`, and does as it is told, line by line; the last line of each answer is `done`:
 *
 *   hold        what the rest needs: a context, memory of all kinds, a module, a graph. Nothing is launched
 *   prepare     the same; and kernels, so that it is known to steering
 *   copy        copies and fills, and nothing else: `NAME CODE` each
 *   try         each of the calls that take something, with arguments that the driver would accept: `NAME CODE` each
 *   row NAME    one by its name, if the driver has it, with no arguments to speak of: `NAME CODE`
 *   busy MS     four threads allocate, fill, launch, copy and free for so long: `busy CALLS REFUSED MORE`, where MORE counts the calls
 *               that a thread was not refused after one that it was
 *   give        gives all of it back, waits and asks: `NAME CODE` each
 *   quit        it ends
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define SAY(name, ...) printf("%s %d\n", #name, (int)name(__VA_ARGS__))
/* Of a call whose answer is of no interest. */
#define DO(call) (void)(call)

/* The same functions for per-thread streams. */
__typeof__(cuMemAllocAsync) cuMemAllocAsync_ptsz;
__typeof__(cuLaunchKernel) cuLaunchKernel_ptsz;
__typeof__(cuGraphLaunch) cuGraphLaunch_ptsz;
__typeof__(cuMemcpyAsync) cuMemcpyAsync_ptsz;
__typeof__(cuMemsetD8Async) cuMemsetD8Async_ptsz;
__typeof__(cuMemcpyHtoD_v2) cuMemcpyHtoD_v2_ptds;

static const char image[] = "ration-sim-image 1\nkernel work time=2ms\n";
static char text[MIB];

static CUcontext context;
static CUstream stream;
static CUmodule module;
static CUfunction kernel;
static CUlibrary library;
static CUkernel library_kernel;
static CUdeviceptr linear, other, managed, asynchronous;
static CUarray array;
static CUmipmappedArray mipmap;
static CUmemGenericAllocationHandle handle;
static CUmemoryPool pool;
static CUgraph graph, allocating;
static CUgraphNode node;
static CUgraphExec exec;
static int file = -1, pool_file = -1;

static const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
static const CUmemAllocationProp physical = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};
static const CUmemPoolProps pooled = {
    .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
    .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};
static const CUDA_ARRAY_DESCRIPTOR_v1 flat_1 = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
static const CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
static const CUDA_ARRAY3D_DESCRIPTOR deep = {
    .Width = 256, .Height = 256, .Depth = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};

static CUDA_KERNEL_NODE_PARAMS of_kernel(void) {
    return (CUDA_KERNEL_NODE_PARAMS){
        .func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
}

static CUresult launch(void) { return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL); }

static void hold(void) {
    CUDA_KERNEL_NODE_PARAMS params = of_kernel();
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DO(cuModuleLoadData(&module, image));
    DO(cuModuleGetFunction(&kernel, module, "work"));
    DO(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    DO(cuLibraryGetKernel(&library_kernel, library, "work"));
    DO(cuMemAlloc_v2(&linear, 16 * MIB));
    DO(cuMemAlloc_v2(&other, 16 * MIB));
    DO(cuMemAllocManaged(&managed, 16 * MIB, CU_MEM_ATTACH_GLOBAL));
    DO(cuArrayCreate_v2(&array, &flat));
    DO(cuMipmappedArrayCreate(&mipmap, &deep, 3));
    DO(cuMemCreate(&handle, 16 * MIB, &physical, 0));
    DO(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    DO(cuMemPoolCreate(&pool, &pooled));
    DO(cuMemPoolExportToShareableHandle(&pool_file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    DO(cuMemAllocFromPoolAsync(&asynchronous, 16 * MIB, pool, stream));
    params.func = kernel;
    DO(cuGraphCreate(&graph, 0));
    DO(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
    DO(cuGraphInstantiateWithFlags(&exec, graph, 0));
    DO(cuGraphCreate(&allocating, 0));
}

static void prepare(void) {
    hold();
    for (int i = 0; i < 3; i++) DO(launch());
    DO(cuStreamSynchronize(stream));
}

static void copy(void) {
    SAY(cuMemcpyDtoD_v2, other, linear, MIB);
    SAY(cuMemcpyHtoDAsync_v2, linear, text, MIB, stream);
    SAY(cuMemsetD8Async, linear, 1, MIB, stream);
}

static void try_memory(void) {
    CUdeviceptr at;
    CUdeviceptr_v1 low;
    size_t pitch;
    unsigned low_pitch;
    CUarray made;
    CUmipmappedArray levels;
    CUmemGenericAllocationHandle further;
    CUmemoryPool another;
    SAY(cuMemAlloc_v2, &at, 64 * MIB);
    SAY(cuMemAlloc, &low, 16 * MIB);
    SAY(cuMemAllocPitch_v2, &at, &pitch, 1000, 4000, 4);
    SAY(cuMemAllocPitch, &low, &low_pitch, 1000, 4000, 4);
    SAY(cuMemAllocManaged, &at, 64 * MIB, CU_MEM_ATTACH_GLOBAL);
    SAY(cuArrayCreate, &made, &flat_1);
    SAY(cuArrayCreate_v2, &made, &flat);
    SAY(cuArray3DCreate_v2, &made, &deep);
    SAY(cuMipmappedArrayCreate, &levels, &deep, 3);
    SAY(cuMemCreate, &further, 64 * MIB, &physical, 0);
    SAY(cuMemAllocAsync, &at, 64 * MIB, stream);
    SAY(cuMemAllocAsync_ptsz, &at, 64 * MIB, stream);
    SAY(cuMemAllocFromPoolAsync, &at, 64 * MIB, pool, stream);
    SAY(cuMemPoolCreate, &another, &pooled);
    SAY(cuMemImportFromShareableHandle, &further, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    SAY(cuMemPoolImportFromShareableHandle, &another, (void *)(intptr_t)pool_file,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    SAY(cuMemPrefetchAsync, managed, 16 * MIB, 0, stream);
    SAY(cuMemPrefetchAsync_v2, managed, 16 * MIB, here, 0, stream);
    SAY(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, 16 << 10);
}

static void try_code(void) {
    CUDA_KERNEL_NODE_PARAMS params = of_kernel();
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = pooled, .bytesize = 64 * MIB};
    memory.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
    CUmodule loaded;
    CUlibrary made;
    CUfunction function;
    CUgraphNode added;
    CUgraphExec graph_exec;
    SAY(cuModuleLoadData, &loaded, image);
    SAY(cuModuleLoadDataEx, &loaded, image, 0, NULL, NULL);
    SAY(cuModuleGetFunction, &function, module, "work");
    SAY(cuLibraryLoadData, &made, image, NULL, NULL, 0, NULL, NULL, 0);
    SAY(cuLibraryGetModule, &loaded, library);
    SAY(cuKernelGetFunction, &function, library_kernel);
    SAY(cuFuncLoad, kernel);
    SAY(cuGraphAddKernelNode_v2, &added, graph, NULL, 0, &params);
    SAY(cuGraphAddMemAllocNode, &added, allocating, NULL, 0, &memory);
    SAY(cuGraphKernelNodeSetParams_v2, node, &params);
    SAY(cuGraphExecKernelNodeSetParams_v2, exec, node, &params);
    SAY(cuGraphInstantiate_v2, &graph_exec, graph, NULL, NULL, 0);
    SAY(cuGraphInstantiateWithFlags, &graph_exec, graph, 0);
    SAY(cuGraphInstantiateWithParams, &graph_exec, graph, &how);
    SAY(cuGraphInstantiateWithFlags, &graph_exec, allocating, 0);
    SAY(cuGraphUpload, exec, stream);
}

static void try_work(void) {
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    CUDA_MEMCPY2D flat_copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = linear, .srcPitch = 1024,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = other, .dstPitch = 1024, .WidthInBytes = 1024, .Height = 1024};
    CUDA_MEMCPY3D deep_copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = linear, .srcPitch = 1024, .srcHeight = 64,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = other, .dstPitch = 1024, .dstHeight = 64, .WidthInBytes = 1024,
        .Height = 64, .Depth = 16};
    config.hStream = stream;
    SAY(cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    SAY(cuLaunchKernel_ptsz, kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    SAY(cuLaunchKernelEx, &config, kernel, NULL, NULL);
    SAY(cuLaunchCooperativeKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
    SAY(cuLaunchGrid, kernel, 1, 1);
    SAY(cuLaunchGridAsync, kernel, 1, 1, stream);
    SAY(cuGraphLaunch, exec, stream);
    SAY(cuGraphLaunch_ptsz, exec, stream);
    SAY(cuMemcpy, other, linear, 16 * MIB);
    SAY(cuMemcpyAsync, other, linear, 16 * MIB, stream);
    SAY(cuMemcpyAsync_ptsz, other, linear, 16 * MIB, stream);
    SAY(cuMemcpyDtoD_v2, other, linear, 16 * MIB);
    SAY(cuMemcpyDtoDAsync_v2, other, linear, 16 * MIB, stream);
    SAY(cuMemcpyDtoH_v2, text, linear, sizeof text);
    SAY(cuMemcpyDtoHAsync_v2, text, linear, sizeof text, stream);
    SAY(cuMemcpyHtoD_v2, linear, text, sizeof text);
    SAY(cuMemcpyHtoD_v2_ptds, linear, text, sizeof text);
    SAY(cuMemcpyHtoDAsync_v2, linear, text, sizeof text, stream);
    SAY(cuMemcpyHtoA_v2, array, 0, text, 4096);
    SAY(cuMemcpyDtoA_v2, array, 0, linear, 4096);
    SAY(cuMemcpyAtoH_v2, text, array, 0, 4096);
    SAY(cuMemcpyPeer, other, context, linear, context, 16 * MIB);
    SAY(cuMemcpyPeerAsync, other, context, linear, context, 16 * MIB, stream);
    SAY(cuMemcpy2D_v2, &flat_copy);
    SAY(cuMemcpy2DUnaligned_v2, &flat_copy);
    SAY(cuMemcpy2DAsync_v2, &flat_copy, stream);
    SAY(cuMemcpy3D_v2, &deep_copy);
    SAY(cuMemcpy3DAsync_v2, &deep_copy, stream);
    SAY(cuMemsetD8_v2, linear, 1, 16 * MIB);
    SAY(cuMemsetD16_v2, linear, 1, 8 * MIB);
    SAY(cuMemsetD32_v2, linear, 1, 4 * MIB);
    SAY(cuMemsetD8Async, linear, 1, 16 * MIB, stream);
    SAY(cuMemsetD8Async_ptsz, linear, 1, 16 * MIB, stream);
    SAY(cuMemsetD32Async, linear, 1, 4 * MIB, stream);
    SAY(cuMemsetD2D8_v2, linear, 1024, 1, 1024, 1024);
    SAY(cuMemsetD2D32Async, linear, 1024, 1, 256, 1024, stream);
}

static void try_contexts(void) {
    CUcontext another;
    SAY(cuDevicePrimaryCtxRetain, &another, 0);
    SAY(cuCtxCreate_v2, &another, 0, 0);
    SAY(cuCtxCreate_v4, &another, NULL, 0, 0);
}

static void give(void) {
    size_t unused, total;
    SAY(cuMemGetInfo_v2, &unused, &total);
    SAY(cuStreamQuery, stream);
    SAY(cuMemFree_v2, linear);
    SAY(cuMemFree_v2, other);
    SAY(cuMemFree_v2, managed);
    SAY(cuMemFreeAsync, asynchronous, stream);
    SAY(cuStreamSynchronize, stream);
    SAY(cuArrayDestroy, array);
    SAY(cuMipmappedArrayDestroy, mipmap);
    SAY(cuMemRelease, handle);
    close(file), close(pool_file); /* they keep it, too */
    SAY(cuMemPoolTrimTo, pool, 0);
    SAY(cuMemPoolDestroy, pool);
    SAY(cuGraphExecDestroy, exec);
    SAY(cuGraphDestroy, graph);
    SAY(cuGraphDestroy, allocating);
    SAY(cuModuleUnload, module);
    SAY(cuLibraryUnload, library);
    SAY(cuCtxSynchronize);
    SAY(cuStreamDestroy_v2, stream);
    SAY(cuDevicePrimaryCtxRelease_v2, 0);
}

/* ----------------------------------------------------------------------------------------------------- threads */

static double end;
static atomic_ulong calls, refused, more;

static void *busy(void *argument) {
    (void)argument;
    int was_refused = 0;
    DO(cuCtxSetCurrent(context));
    while (now() < end) {
        CUdeviceptr at = 0;
        CUresult codes[] = {cuMemAlloc_v2(&at, 2 * MIB), cuMemsetD8Async(linear, 1, 4096, stream), launch(),
            cuMemcpyDtoDAsync_v2(other, linear, 4096, stream)};
        int freed = !codes[0] && cuMemFree_v2(at);
        MUST(!freed && cuStreamSynchronize(stream) != CUDA_ERROR_NOT_PERMITTED);
        for (int i = 0; i < 4; i++) {
            calls++;
            int is_refused = codes[i] == CUDA_ERROR_NOT_PERMITTED;
            refused += is_refused;
            more += was_refused && !is_refused;
            was_refused |= is_refused;
        }
    }
    return NULL;
}

static void keep_busy(double seconds) {
    pthread_t threads[4];
    calls = refused = more = 0;
    end = now() + seconds;
    for (int i = 0; i < 4; i++) MUST(!pthread_create(&threads[i], NULL, busy, NULL));
    for (int i = 0; i < 4; i++) MUST(!pthread_join(threads[i], NULL));
    printf("busy %lu %lu %lu\n", (unsigned long)calls, (unsigned long)refused, (unsigned long)more);
}

/* ------------------------------------------------------------------------------------------------------ by name */

typedef CUresult (*Any)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long);

static void row(const char *name) {
    Any function = (Any)dlsym(RTLD_DEFAULT, name);
    if (!function) return; /* the driver is older than that */
    printf("%s %d\n", name, (int)function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

int main(void) {
    char line[128], what[16], name[96];
    setvbuf(stdout, NULL, _IOLBF, 0);
    SAY(cuInit, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        *name = 0;
        MUST(sscanf(line, "%15s %95s", what, name) >= 1);
        if (!strcmp(what, "quit")) break;
        if (!strcmp(what, "hold")) hold();
        else if (!strcmp(what, "prepare")) prepare();
        else if (!strcmp(what, "copy")) copy();
        else if (!strcmp(what, "try")) try_memory(), try_code(), try_work(), try_contexts();
        else if (!strcmp(what, "row")) row(name);
        else if (!strcmp(what, "busy")) keep_busy(atof(name) / 1e3);
        else if (!strcmp(what, "give")) give();
        else MUST(!"an order");
        puts("done");
    }
    return 0;
}
