/*
 * A program that does a bit of everything on a GPU, whatever fails: chaos MS [BYTES]
 *
 * For so long, two threads take and give back memory in every way, make contexts, streams, events, graphs and pools, launch and wait.
 * It asks for no more than BYTES at a time (64 MiB), uses what it was given, and gives it back. No answer of the driver's ends it.
 * Then it says `done`, how many calls succeeded and how many did not, waits for a line or the end of its input, and ends well.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "check.h"
#include "nvml_abi.h"

static const char image[] = "ration-sim-image 1\nkernel empty time=1us\nkernel work time=300us\n";
static atomic_long good, bad;
static size_t bytes = 64 * MIB;
static double end;

static int did(CUresult code) {
    atomic_fetch_add(code ? &bad : &good, 1);
    return !code;
}

/* Whether it went well, which is all that a program may rely on. */
#define DO(call) did(call)

static void memory(CUdevice device, CUstream stream) {
    CUdeviceptr p = 0, q = 0;
    size_t pitch = 0, size = 0, total = 0;
    if (DO(cuMemAlloc_v2(&p, bytes))) {
        DO(cuMemsetD8_v2(p, 1, bytes));
        DO(cuMemGetAddressRange_v2(&q, &size, p));
        DO(cuMemFree_v2(p));
    }
    if (DO(cuMemAllocPitch_v2(&p, &pitch, 1000, 1000, 4))) DO(cuMemFree_v2(p));
    if (DO(cuMemAllocManaged(&p, bytes / 4, CU_MEM_ATTACH_GLOBAL))) DO(cuMemFree_v2(p));
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 512, .Height = 512, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array = NULL;
    if (DO(cuArrayCreate_v2(&array, &shape))) DO(cuArrayDestroy(array));
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemGenericAllocationHandle handle = 0;
    if (DO(cuMemCreate(&handle, 4 * MIB, &prop, 0))) {
        if (DO(cuMemAddressReserve(&p, 4 * MIB, 0, 0, 0))) {
            if (DO(cuMemMap(p, 4 * MIB, 0, handle, 0))) DO(cuMemUnmap(p, 4 * MIB));
            DO(cuMemAddressFree(p, 4 * MIB));
        }
        DO(cuMemRelease(handle));
    }
    if (DO(cuMemAllocAsync(&p, 8 * MIB, stream))) DO(cuMemFreeAsync(p, stream));
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemoryPool pool = NULL;
    if (DO(cuMemPoolCreate(&pool, &props))) {
        if (DO(cuMemAllocFromPoolAsync(&p, 8 * MIB, pool, stream))) DO(cuMemFreeAsync(p, stream));
        DO(cuStreamSynchronize(stream));
        DO(cuMemPoolTrimTo(pool, 0));
        DO(cuMemPoolDestroy(pool));
    }
    DO(cuMemGetInfo_v2(&size, &total));
    char *host = NULL;
    if (DO(cuMemAllocHost_v2((void **)&host, MIB))) {
        if (DO(cuMemAlloc_v2(&p, MIB))) {
            DO(cuMemcpyHtoDAsync_v2(p, host, MIB, stream));
            DO(cuMemcpyDtoH_v2(host, p, MIB));
            DO(cuMemFree_v2(p));
        }
        DO(cuMemFreeHost(host));
    }
}

static void work(CUfunction empty, CUfunction kernel, CUstream stream) {
    CUevent event = NULL;
    DO(cuEventCreate(&event, CU_EVENT_DEFAULT));
    for (int i = 0; i < 40; i++) {
        if (empty) DO(cuLaunchKernel(empty, 1 + i % 3, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        if (i % 8 == 0 && kernel) DO(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        if (i % 10 == 9) DO(cuStreamSynchronize(stream));
        if (i % 13 == 0) DO(cuStreamQuery(stream));
    }
    if (event) {
        DO(cuEventRecord(event, stream));
        DO(cuEventQuery(event));
        DO(cuEventSynchronize(event));
        DO(cuEventDestroy_v2(event));
    }
    DO(cuCtxSynchronize());
}

static void graphs(CUfunction empty, CUstream stream) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    if (!DO(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) return;
    for (int i = 0; i < 4 && empty; i++) DO(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    if (!DO(cuStreamEndCapture(stream, &graph)) || !graph) return;
    if (DO(cuGraphInstantiateWithFlags(&exec, graph, 0)) && exec) {
        for (int i = 0; i < 5; i++) DO(cuGraphLaunch(exec, stream));
        DO(cuStreamSynchronize(stream));
        DO(cuGraphExecDestroy(exec));
    }
    DO(cuGraphDestroy(graph));
}

/* What a monitor in the process asks. */
static void watch(void) {
    static int (*init)(void), (*by_index)(unsigned, nvmlDevice_t *), (*info)(nvmlDevice_t, nvmlMemory_t *);
    static int looked_up;
    if (!looked_up++) {
        void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!nvml) return;
        init = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
        by_index = (int (*)(unsigned, nvmlDevice_t *))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
        info = (int (*)(nvmlDevice_t, nvmlMemory_t *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    }
    nvmlDevice_t device = NULL;
    nvmlMemory_t memory;
    if (init && by_index && info && !init() && !by_index(0, &device)) info(device, &memory);
}

static void *go_on(void *is_first) {
    CUdevice device = 0;
    CUcontext primary = NULL, own = NULL;
    CUstream stream = NULL;
    CUmodule module = NULL;
    CUfunction empty = NULL, kernel = NULL;
    while (now() < end) {
        /* Some start over each time, as programs do that try again. */
        DO(cuDeviceGet(&device, 0));
        int retained = DO(cuDevicePrimaryCtxRetain(&primary, device));
        if (retained) DO(cuCtxSetCurrent(primary));
        if (DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) && stream) {
            if (DO(cuModuleLoadData(&module, image)) && module) {
                DO(cuModuleGetFunction(&empty, module, "empty"));
                DO(cuModuleGetFunction(&kernel, module, "work"));
            }
            memory(device, stream);
            work(empty, kernel, stream);
            graphs(empty, stream);
            if (module) DO(cuModuleUnload(module));
            module = NULL, empty = kernel = NULL;
            DO(cuStreamDestroy_v2(stream));
            stream = NULL;
        }
        if (is_first) {
            watch();
            if (DO(cuCtxCreate_v2(&own, 0, device)) && own) DO(cuCtxDestroy_v2(own));
            own = NULL;
        }
        if (retained) DO(cuDevicePrimaryCtxRelease_v2(device));
    }
    return NULL;
}

int main(int argc, char **argv) {
    MUST(argc > 1);
    if (argc > 2) bytes = strtoul(argv[2], NULL, 10);
    end = now() + atoi(argv[1]) * 1e-3;
    /* Programs that do not look at what it answers go on. */
    DO(cuInit(0));
    pthread_t other;
    MUST(!pthread_create(&other, NULL, go_on, NULL));
    go_on(&other);
    pthread_join(other, NULL);
    printf("done %ld %ld\n", atomic_load(&good), atomic_load(&bad));
    fflush(stdout);
    getchar(); /* somebody may want to look at what it holds */
    return 0;
}
