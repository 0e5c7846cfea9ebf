/*
 * Asks for more than the device has in every way there is, and says what it got: the device is meant to have 4 GiB. What is
 * refused must leave the context working and the accounts as they were.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

#define GIB (1ul << 30)

static const char image[] = "ration-sim-image 1\nglobal huge 6442450944\nkernel empty\n";
static const char deep_image[] = "ration-sim-image 1\nkernel deep local=65536\n";

static size_t left_now(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

static size_t before;

static void said(const char *what, CUresult code) {
    CUdeviceptr works;
    size_t left = left_now();
    OK(cuMemAlloc_v2(&works, 64 * MIB));
    OK(cuMemsetD8_v2(works, 1, 64 * MIB));
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(works));
    printf("%s -> %d, %s\n", what, (int)code, left == before ? "nothing taken" : "something taken");
}

int main(void) {
    CUcontext primary, more[16];
    CUstream stream;
    CUdeviceptr p, filler;
    CUmemoryPool pool;
    CUarray array;
    CUmipmappedArray mipmap;
    CUmemGenericAllocationHandle handle;
    CUmodule module;
    CUfunction deep;
    size_t pitch;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&module, deep_image));
    OK(cuModuleGetFunction(&deep, module, "deep"));
    before = left_now();
    said("cuMemAlloc", cuMemAlloc_v2(&p, 6 * GIB));
    said("cuMemAllocPitch", cuMemAllocPitch_v2(&p, &pitch, MIB, 6000, 4));
    said("cuMemAllocAsync", cuMemAllocAsync(&p, 6 * GIB, stream));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    said("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync(&p, 6 * GIB, pool, stream));
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    said("cuMemCreate", cuMemCreate(&handle, 6 * GIB, &prop, 0));
    CUDA_ARRAY3D_DESCRIPTOR form = {.Width = 8192, .Height = 8192, .Depth = 6, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    said("cuArray3DCreate", cuArray3DCreate_v2(&array, &form));
    form.Depth = 8;
    said("cuMipmappedArrayCreate", cuMipmappedArrayCreate(&mipmap, &form, 4));
    said("cuModuleLoadData", cuModuleLoadData(&module, image));
    said("cuLaunchKernel", cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    said("cuCtxSetLimit", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536));
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&p, 6 * GIB, stream));
    OK(cuMemFreeAsync(p, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    said("cuGraphLaunch", cuGraphLaunch(exec, stream));
    int made = 0;
    CUresult code;
    while ((code = cuCtxCreate_v2(&more[made], 0, 0)) == CUDA_SUCCESS && made < 15) made++;
    printf("contexts besides the first: %d\n", made);
    while (made) OK(cuCtxDestroy_v2(more[--made]));
    OK(cuCtxSetCurrent(primary));
    said("cuCtxCreate", code);
    /* To the last 2 MiB. */
    size_t whole = before / (2 * MIB) * (2 * MIB);
    OK(cuMemAlloc_v2(&filler, whole));
    printf("all of it at once -> left %zu\n", left_now() / (2 * MIB));
    printf("one byte more -> %d\n", (int)cuMemAlloc_v2(&p, 1));
    OK(cuMemFree_v2(filler));
    /* What lies unused in pools and graph memory makes room, once somebody has synchronised. */
    uint64_t all = UINT64_MAX, kept;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    OK(cuMemAllocAsync(&p, 1536 * MIB, stream));
    OK(cuMemFreeAsync(p, stream));
    code = cuMemAlloc_v2(&filler, 3 * GIB);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &kept));
    printf("3 GiB beside a pool's free memory -> %d, it keeps %lu MiB\n", (int)code, (unsigned long)(kept / MIB));
    OK(cuStreamSynchronize(stream));
    code = cuMemAlloc_v2(&filler, 3 * GIB);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &kept));
    printf("synchronised -> %d, it keeps %lu MiB\n", (int)code, (unsigned long)(kept / MIB));
    OK(cuMemFree_v2(filler));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&p, 1536 * MIB, stream));
    OK(cuMemFreeAsync(p, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    printf("3 GiB beside unused graph memory -> %d\n", (int)cuMemAlloc_v2(&filler, 3 * GIB));
    OK(cuMemFree_v2(filler));
    /* Managed memory makes room. */
    OK(cuMemAllocManaged(&p, 5 * GIB, CU_MEM_ATTACH_GLOBAL));
    printf("prefetching 5 GiB -> %d\n", (int)cuMemPrefetchAsync(p, 5 * GIB, 0, stream));
    OK(cuStreamSynchronize(stream));
    printf("and allocating 1 GiB beside it -> %d\n", (int)cuMemAlloc_v2(&filler, GIB));
    OK(cuMemFree_v2(filler));
    OK(cuMemFree_v2(p));
    said("in the end", CUDA_SUCCESS);
    return 0;
}
