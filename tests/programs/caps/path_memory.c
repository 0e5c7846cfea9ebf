/* Paths of memory that is asked for by its size: linear, pitched, managed, pooled, virtual, arrays, of graphs. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "path.h"

static CUresult take_linear(size_t bytes) {
    CUdeviceptr at;
    CUresult code = cuMemAlloc_v2(&at, bytes);
    if (!code) keep(at, 0, 0);
    return code;
}

static void give_linear(void) { OK(cuMemFree_v2(last().word[0])); }

/* The form of CUDA 2, whose addresses have 32 bits. */
static CUresult take_low(size_t bytes) {
    CUdeviceptr_v1 at;
    CUresult code = cuMemAlloc(&at, (unsigned)bytes);
    if (!code) keep(at, 0, 0);
    return code;
}

static void give_low(void) { OK(cuMemFree((CUdeviceptr_v1)last().word[0])); }

/* Rows of 1000 bytes, which the driver puts 1024 apart. */
static CUresult take_pitched(size_t bytes) {
    CUdeviceptr at;
    size_t pitch;
    CUresult code = cuMemAllocPitch_v2(&at, &pitch, 1000, bytes / 1000, 4);
    if (!code) keep(at, 0, 0);
    return code;
}

static CUresult take_managed(size_t bytes) {
    CUdeviceptr at;
    uint64_t places = bytes >> 16;
    void *arguments[] = {&at, &places};
    CUresult code = cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL);
    if (code) return code;
    keep(at, 0, 0);
    code = cuLaunchKernel(touch, (unsigned)(places + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
    return code ? code : cuStreamSynchronize(stream);
}

static CUresult take_host(size_t bytes) {
    void *at;
    CUresult code = cuMemAllocHost_v2(&at, bytes);
    if (!code) keep((uintptr_t)at, 0, 0);
    return code;
}

static void give_host(void) { OK(cuMemFreeHost((void *)(uintptr_t)last().word[0])); }

/* ------------------------------------------------------------------------------------------ the CUDA runtime */

static int (*runtime_malloc)(void **, size_t), (*runtime_free)(void *);

static CUresult take_runtime(size_t bytes) {
    void *at;
    int code = runtime_malloc(&at, bytes);
    if (!code) keep((uintptr_t)at, 0, 0);
    return (CUresult)code; /* running out of memory is 2 there, too */
}

static void give_runtime(void) { MUST(!runtime_free((void *)(uintptr_t)last().word[0])); }

/* From a library that is found while running, so that no toolkit is needed. */
static void prepare_runtime(void) {
    const char *path = getenv("CAPS_CUDART");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    if (!library) {
        say("skipped CAPS_CUDART names no CUDA runtime");
        exit(0);
    }
    runtime_malloc = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
    runtime_free = (int (*)(void *))dlsym(library, "cudaFree");
    MUST(runtime_malloc && runtime_free);
}

/* ------------------------------------------------------------------------------------------------------ pools */

static CUmemoryPool pool;

static CUresult take_async(size_t bytes) {
    CUdeviceptr at;
    CUresult code = cuMemAllocAsync(&at, bytes, stream);
    if (!code) keep(at, 0, 0);
    return code;
}

/* What was freed goes back to the GPU when somebody waits for the stream. */
static void give_async(void) {
    OK(cuMemFreeAsync(last().word[0], stream));
    OK(cuStreamSynchronize(stream));
}

static CUmemAllocationProp on_device(void) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static void make_pool(void) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    OK(cuMemPoolCreate(&pool, &props));
}

static CUresult take_from_pool(size_t bytes) {
    CUdeviceptr at;
    CUresult code = cuMemAllocFromPoolAsync(&at, bytes, pool, stream);
    if (!code) keep(at, 0, 0);
    return code;
}

static void trim_pool(void) { OK(cuMemPoolTrimTo(pool, 0)); }

/* The default pool has all that can be had, unused, and is told to keep it: who asks elsewhere gets it all the same. */
static void fill_pool_and_free(void) {
    uint64_t everything = UINT64_MAX;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything));
    for (size_t had = 0; had < cap && !take_async(32 * MIB);) had += 32 * MIB;
    while (kept()) OK(cuMemFreeAsync(last().word[0], stream));
    OK(cuStreamSynchronize(stream));
}

/* ----------------------------------------------------------------------------------------------------- virtual */

static CUresult take_physical(size_t bytes) {
    CUmemAllocationProp prop = on_device();
    CUmemGenericAllocationHandle handle;
    CUresult code = cuMemCreate(&handle, bytes, &prop, 0);
    if (!code) keep(handle, 0, 0);
    return code;
}

static void give_physical(void) { OK(cuMemRelease(last().word[0])); }

/* The handle is released at once; the mapping keeps the memory. */
static CUresult take_mapped(size_t bytes) {
    CUmemAllocationProp prop = on_device();
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    CUresult code = cuMemCreate(&handle, bytes, &prop, 0);
    if (code) return code;
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    OK(cuMemMap(at, bytes, 0, handle, 0));
    OK(cuMemSetAccess(at, bytes, &access, 1));
    OK(cuMemRelease(handle));
    OK(cuMemsetD8_v2(at, 1, 4096));
    keep(at, bytes, 0);
    return CUDA_SUCCESS;
}

static void give_mapped(void) {
    Item item = last();
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(item.word[0], item.word[1]));
    OK(cuMemAddressFree(item.word[0], item.word[1]));
}

/* ------------------------------------------------------------------------------------------------------ arrays */

static CUresult take_array(size_t bytes) {
    CUDA_ARRAY_DESCRIPTOR form = {.Width = 1024, .Height = bytes / 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array;
    CUresult code = cuArrayCreate_v2(&array, &form);
    if (!code) keep((uintptr_t)array, 0, 0);
    return code;
}

static CUresult take_array3d(size_t bytes) {
    CUDA_ARRAY3D_DESCRIPTOR form = {
        .Width = 128, .Height = 128, .Depth = bytes >> 18, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUarray array;
    CUresult code = cuArray3DCreate_v2(&array, &form);
    if (!code) keep((uintptr_t)array, 0, 0);
    return code;
}

static void give_array(void) { OK(cuArrayDestroy((CUarray)(uintptr_t)last().word[0])); }

/* 1024 x 1024 elements of 16 bytes with all their levels: a third more than the first. */
static CUresult take_mipmap(size_t bytes) {
    CUDA_ARRAY3D_DESCRIPTOR form = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUmipmappedArray mipmap;
    CUresult code = cuMipmappedArrayCreate(&mipmap, &form, 11);
    (void)bytes;
    if (!code) keep((uintptr_t)mipmap, 0, 0);
    return code;
}

static void give_mipmap(void) { OK(cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)last().word[0])); }

/* ------------------------------------------------------------------------------------------------------ graphs */

/* Makes a graph executable and launches it; the memory that it brings stays when it has run. */
static CUresult launch_graph(CUgraph graph, CUdeviceptr at) {
    CUgraphExec exec = NULL;
    CUresult code = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (!code) code = cuGraphLaunch(exec, stream);
    if (!code) code = cuStreamSynchronize(stream);
    if (!code) {
        keep(at, (uintptr_t)exec, (uintptr_t)graph);
        return CUDA_SUCCESS;
    }
    if (exec) OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    return code;
}

static CUresult take_graph(size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
    CUgraph graph;
    CUgraphNode node;
    OK(cuGraphCreate(&graph, 0));
    CUresult code = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
    if (!code) return launch_graph(graph, params.dptr);
    OK(cuGraphDestroy(graph));
    return code;
}

static CUresult take_captured(size_t bytes) {
    CUdeviceptr at = 0;
    CUgraph graph = NULL;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult code = cuMemAllocAsync(&at, bytes, stream);
    CUresult ended = cuStreamEndCapture(stream, &graph);
    if (!code && !ended) return launch_graph(graph, at);
    if (graph) OK(cuGraphDestroy(graph));
    return code ? code : ended;
}

static void give_graph(void) {
    Item item = last();
    OK(cuMemFreeAsync(item.word[0], stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy((CUgraphExec)(uintptr_t)item.word[1]));
    OK(cuGraphDestroy((CUgraph)(uintptr_t)item.word[2]));
    OK(cuDeviceGraphMemTrim(0));
}

/* Graphs have run, and their memory waits for the next launch: who asks elsewhere gets it all the same. */
static void fill_graphs_and_free(void) {
    for (size_t had = 0; had < cap && !take_graph(32 * MIB);) had += 32 * MIB;
    while (kept()) {
        Item item = last();
        OK(cuMemFreeAsync(item.word[0], stream));
        OK(cuStreamSynchronize(stream));
        OK(cuGraphExecDestroy((CUgraphExec)(uintptr_t)item.word[1]));
        OK(cuGraphDestroy((CUgraph)(uintptr_t)item.word[2]));
    }
}

static void trim_graphs(void) { OK(cuDeviceGraphMemTrim(0)); }

/* ----------------------------------------------------------------------------------------------------- threads */

#define THREADS 16

static _Atomic size_t had_by_threads;

typedef struct Share {
    const Path *path;
    size_t limit;
    CUresult code;
} Share;

static void *take_share(void *data) {
    Share *share = data;
    OK(cuCtxSetCurrent(primary));
    while (!share->code && atomic_load(&had_by_threads) < share->limit) {
        share->code = take_linear(share->path->step);
        if (!share->code) atomic_fetch_add(&had_by_threads, share->path->step);
    }
    return NULL;
}

/* All at once. The code is the others' too, or the program ends. */
static CUresult fill_by_threads(const Path *path, size_t limit, size_t *got) {
    pthread_t ids[THREADS];
    Share shares[THREADS];
    CUresult code = CUDA_SUCCESS;
    atomic_store(&had_by_threads, 0);
    for (int i = 0; i < THREADS; i++) {
        shares[i] = (Share){path, limit, CUDA_SUCCESS};
        MUST(!pthread_create(&ids[i], NULL, take_share, &shares[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        if (!shares[i].code) continue;
        MUST(!code || code == shares[i].code);
        code = shares[i].code;
    }
    *got = atomic_load(&had_by_threads);
    return code;
}

const Path memory_paths[] = {
    {.name = "linear-4k", .step = 4096, .take = take_linear, .give = give_linear},
    {.name = "linear-1m1", .step = MIB + 1, .take = take_linear, .give = give_linear},
    {.name = "linear-2m", .step = 2 * MIB, .take = take_linear, .give = give_linear},
    {.name = "linear-20m1", .step = 20 * MIB + 1, .take = take_linear, .give = give_linear},
    {.name = "linear-64m", .step = 64 * MIB, .take = take_linear, .give = give_linear},
    {.name = "linear-32bit", .step = 16 * MIB, .take = take_low, .give = give_low},
    {.name = "runtime", .step = 16 * MIB, .take = take_runtime, .give = give_runtime, .prepare = prepare_runtime},
    {.name = "pitch", .step = 16000000, .takes = 16 * MIB, .take = take_pitched, .give = give_linear},
    /* The driver takes 128 MiB at a time for managed memory. */
    {.name = "managed", .step = 16 * MIB, .takes = 128 * MIB, .take = take_managed, .give = give_linear},
    /* Pools and graph memory grow by 32 MiB. */
    {.name = "async", .step = 20 * MIB, .takes = 32 * MIB, .take = take_async, .give = give_async},
    {.name = "from-pool", .step = 20 * MIB, .takes = 32 * MIB, .take = take_from_pool, .give = give_async,
     .prepare = make_pool, .finish = trim_pool},
    {.name = "pool-kept", .step = 16 * MIB, .takes = 32 * MIB, .take = take_linear, .give = give_linear,
     .prepare = fill_pool_and_free, .finish = trim_pool},
    {.name = "vmm", .step = 16 * MIB, .take = take_physical, .give = give_physical},
    {.name = "vmm-mapping", .step = 16 * MIB, .take = take_mapped, .give = give_mapped},
    {.name = "array", .step = 16 * MIB, .take = take_array, .give = give_array},
    {.name = "array3d", .step = 32 * MIB, .take = take_array3d, .give = give_array},
    {.name = "mipmap", .step = 22 * MIB, .take = take_mipmap, .give = give_mipmap},
    {.name = "graph-node", .step = 20 * MIB, .takes = 32 * MIB, .take = take_graph, .give = give_graph},
    {.name = "graph-captured", .step = 20 * MIB, .takes = 32 * MIB, .take = take_captured, .give = give_graph},
    {.name = "graph-kept", .step = 16 * MIB, .takes = 32 * MIB, .take = take_linear, .give = give_linear,
     .prepare = fill_graphs_and_free, .finish = trim_graphs},
    {.name = "threads", .step = 4 * MIB, .take = take_linear, .give = give_linear, .fill = fill_by_threads},
    {.name = "host", .step = 64 * MIB, .take = take_host, .give = give_host},
    {0},
};
