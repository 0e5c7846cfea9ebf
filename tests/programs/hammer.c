/*
 * Uses everything of the driver at random, from several threads, until its time is up or somebody kills it.
 *   hammer THREADS SECONDS SEED MAILBOX
 * MAILBOX is a file through which processes hand each other memory (IPC handles). Any answer that no correct driver would
 * give here ends the program with status 1.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

#define KEPT 24
#define MAIL 64

static const char image[] =
    "ration-sim-image 1\n"
    "global table 3000000\n"
    "kernel quick time=5us\n"
    "kernel slow time=300us\n"
    "kernel narrow time=100us width=20%\n"
    "kernel timed time=@0 param=8\n"
    "kernel deep time=20us local=4096\n";

static double end_time;
static CUcontext primary;
static CUipcMemHandle *mailbox;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Running out of memory and not being ready are answers like any other here. */
static int check(CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return 1;
    if (code == CUDA_ERROR_OUT_OF_MEMORY || code == CUDA_ERROR_NOT_READY) return 0;
    fprintf(stderr, "%s: error %d\n", what, (int)code);
    _exit(1);
}

typedef struct {
    uint64_t random;
    CUstream streams[4];
    CUevent events[4];
    CUmodule module;
    CUfunction functions[5];
    CUdeviceptr linear[KEPT], pooled[KEPT], managed[4];
    size_t linear_size[KEPT];
    void *host[4];
    CUarray arrays[4];
    CUmemGenericAllocationHandle handles[4];
    int exported[4];
    CUgraphExec graphs[3];
    CUcontext extra;
    volatile uint64_t host_calls;
} Thread;

static unsigned roll(Thread *t, unsigned below) {
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return (t->random >> 20) % below;
}

static void call_host(void *data) { ((Thread *)data)->host_calls++; }

static size_t some_size(Thread *t) {
    static const size_t sizes[] = {1, 100, 4096, 100000, 1 << 20, (2 << 20) + 1, 20 << 20, 300 << 20};
    return sizes[roll(t, 8)] + roll(t, 1000);
}

static void launch(Thread *t, CUstream stream) {
    uint64_t ns = 1000 + roll(t, 200000);
    void *params[] = {&ns};
    unsigned which = roll(t, 5);
    check(cuLaunchKernel(t->functions[which], 1 + roll(t, 100), 1, 1, 32, 1, 1, 0, stream, params, NULL), "cuLaunchKernel");
}

static void step_linear(Thread *t) {
    unsigned i = roll(t, KEPT);
    if (t->linear[i]) {
        size_t touch = t->linear_size[i] < 65536 ? t->linear_size[i] : 65536;
        unsigned char out[64] = {0}, byte = roll(t, 256);
        size_t some = touch < 64 ? touch : 64;
        check(cuMemsetD8_v2(t->linear[i], byte, touch), "cuMemsetD8");
        check(cuMemcpyDtoH_v2(out, t->linear[i], some), "cuMemcpyDtoH");
        for (size_t k = 0; k < some; k++)
            if (out[k] != byte) {
                fprintf(stderr, "memory holds %d where %d was set\n", out[k], byte);
                _exit(1);
            }
        check(cuMemFree_v2(t->linear[i]), "cuMemFree");
        t->linear[i] = 0;
    } else {
        t->linear_size[i] = some_size(t);
        if (!check(cuMemAlloc_v2(&t->linear[i], t->linear_size[i]), "cuMemAlloc")) t->linear[i] = 0;
    }
}

static void step_pool(Thread *t, CUstream stream) {
    unsigned i = roll(t, KEPT);
    if (t->pooled[i]) {
        check(cuMemFreeAsync(t->pooled[i], stream), "cuMemFreeAsync");
        t->pooled[i] = 0;
    } else if (!check(cuMemAllocAsync(&t->pooled[i], some_size(t), stream), "cuMemAllocAsync"))
        t->pooled[i] = 0;
}

static void step_vmm(Thread *t) {
    unsigned i = roll(t, 4);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    size_t size = (size_t)(1 + roll(t, 20)) << 21;
    if (!t->handles[i]) {
        if (!check(cuMemCreate(&t->handles[i], size, &prop, 0), "cuMemCreate")) {
            t->handles[i] = 0;
            return;
        }
        CUdeviceptr at;
        CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        if (check(cuMemAddressReserve(&at, size, 0, 0, 0), "cuMemAddressReserve")) {
            check(cuMemMap(at, size, 0, t->handles[i], 0), "cuMemMap");
            check(cuMemSetAccess(at, size, &access, 1), "cuMemSetAccess");
            check(cuMemsetD8_v2(at, 1, 4096), "cuMemsetD8 of a mapping");
            check(cuMemUnmap(at, size), "cuMemUnmap");
            check(cuMemAddressFree(at, size), "cuMemAddressFree");
        }
        if (roll(t, 2)) check(cuMemExportToShareableHandle(&t->exported[i], t->handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
    } else {
        check(cuMemRelease(t->handles[i]), "cuMemRelease");
        t->handles[i] = 0;
        if (t->exported[i] >= 0) {
            CUmemGenericAllocationHandle again;
            if (check(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)t->exported[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "cuMemImportFromShareableHandle"))
                check(cuMemRelease(again), "cuMemRelease of an import");
            close(t->exported[i]);
            t->exported[i] = -1;
        }
    }
}

static void step_array(Thread *t) {
    unsigned i = roll(t, 4);
    if (t->arrays[i]) {
        check(cuArrayDestroy(t->arrays[i]), "cuArrayDestroy");
        t->arrays[i] = NULL;
    } else {
        CUDA_ARRAY_DESCRIPTOR shape = {1 + roll(t, 2000), roll(t, 2000), CU_AD_FORMAT_FLOAT, 1};
        if (!check(cuArrayCreate_v2(&t->arrays[i], &shape), "cuArrayCreate")) t->arrays[i] = NULL;
    }
}

static void step_host(Thread *t) {
    unsigned i = roll(t, 4);
    if (t->host[i]) {
        check(cuMemFreeHost(t->host[i]), "cuMemFreeHost");
        t->host[i] = NULL;
    } else if (check(cuMemHostAlloc(&t->host[i], 4096 + roll(t, 100000), 0), "cuMemHostAlloc"))
        memset(t->host[i], 1, 4096);
    if (t->managed[i]) {
        check(cuMemFree_v2(t->managed[i]), "cuMemFree of managed");
        t->managed[i] = 0;
    } else if (check(cuMemAllocManaged(&t->managed[i], 1 + roll(t, 3 << 20), CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged")) {
        *(volatile char *)t->managed[i] = 1;
        check(cuMemsetD8_v2(t->managed[i], 2, 1), "cuMemsetD8 of managed");
    } else
        t->managed[i] = 0;
}

static void step_graph(Thread *t, CUstream stream) {
    unsigned i = roll(t, 3);
    if (t->graphs[i]) {
        check(cuGraphLaunch(t->graphs[i], stream), "cuGraphLaunch");
        if (roll(t, 3)) return;
        check(cuGraphExecDestroy(t->graphs[i]), "cuGraphExecDestroy");
        t->graphs[i] = NULL;
        return;
    }
    CUgraph graph;
    CUstreamCaptureStatus status;
    check(cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
    check(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    for (unsigned k = roll(t, 10); k; k--) launch(t, stream);
    check(cuEventRecord(t->events[3], stream), "cuEventRecord in a capture");
    check(cuLaunchHostFunc(stream, call_host, t), "cuLaunchHostFunc in a capture");
    if (!check(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture")) return;
    if (!check(cuGraphInstantiateWithFlags(&t->graphs[i], graph, 0), "cuGraphInstantiate")) t->graphs[i] = NULL;
    check(cuGraphDestroy(graph), "cuGraphDestroy");
}

static void step_event(Thread *t, CUstream stream) {
    float ms;
    unsigned i = roll(t, 2);
    check(cuEventRecord(t->events[i], stream), "cuEventRecord");
    check(cuStreamWaitEvent(t->streams[roll(t, 4)], t->events[i], 0), "cuStreamWaitEvent");
    check(cuEventQuery(t->events[i]), "cuEventQuery");
    if (roll(t, 2)) {
        check(cuEventSynchronize(t->events[i]), "cuEventSynchronize");
        check(cuEventRecord(t->events[2], stream), "cuEventRecord");
        check(cuEventSynchronize(t->events[2]), "cuEventSynchronize");
        if (check(cuEventElapsedTime(&ms, t->events[i], t->events[2]), "cuEventElapsedTime") && ms < 0) {
            fprintf(stderr, "time went backwards: %f ms\n", ms);
            _exit(1);
        }
    }
}

static void step_context(Thread *t) {
    if (t->extra) {
        check(cuCtxDestroy_v2(t->extra), "cuCtxDestroy");
        t->extra = NULL;
    } else if (check(cuCtxCreate_v2(&t->extra, 0, 0), "cuCtxCreate")) {
        CUdeviceptr lost; /* goes with its context */
        check(cuMemAlloc_v2(&lost, 3 << 20), "cuMemAlloc in a context of its own");
        check(cuCtxPopCurrent_v2(NULL), "cuCtxPopCurrent");
    } else
        t->extra = NULL;
}

static void step_mail(Thread *t) {
    CUipcMemHandle *letter = &mailbox[roll(t, MAIL)];
    if (roll(t, 2)) {
        unsigned i = roll(t, KEPT);
        if (t->linear[i]) check(cuIpcGetMemHandle(letter, t->linear[i]), "cuIpcGetMemHandle");
        return;
    }
    /* Whatever lies there: a good handle, one of a dead process, a torn one, zeros. Only a crash would be wrong. */
    CUdeviceptr at;
    CUipcMemHandle copy = *letter;
    CUresult code = cuIpcOpenMemHandle_v2(&at, copy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (code == CUDA_SUCCESS) check(cuIpcCloseMemHandle(at), "cuIpcCloseMemHandle");
}

static void step_queries(Thread *t) {
    size_t free_bytes, total;
    check(cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
    if (free_bytes > total) {
        fprintf(stderr, "more free than there is\n");
        _exit(1);
    }
    CUdeviceptr at;
    check(cuModuleGetGlobal_v2(&at, &total, t->module, "table"), "cuModuleGetGlobal");
}

static void *run(void *data) {
    Thread *t = data;
    check(cuCtxSetCurrent(primary), "cuCtxSetCurrent");
    for (int i = 0; i < 4; i++) {
        check(cuStreamCreate(&t->streams[i], i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT), "cuStreamCreate");
        check(cuEventCreate(&t->events[i], 0), "cuEventCreate");
        t->exported[i] = -1;
    }
    while (!check(cuModuleLoadData(&t->module, image), "cuModuleLoadData"))
        if (now() > end_time) return NULL;
    static const char *const names[] = {"quick", "slow", "narrow", "timed", "deep"};
    for (int i = 0; i < 5; i++) check(cuModuleGetFunction(&t->functions[i], t->module, names[i]), "cuModuleGetFunction");
    while (now() < end_time) {
        CUstream stream = t->streams[roll(t, 4)];
        switch (roll(t, 16)) {
        case 0: case 1: step_linear(t); break;
        case 2: case 3: step_pool(t, stream); break;
        case 4: step_vmm(t); break;
        case 5: step_array(t); break;
        case 6: step_host(t); break;
        case 7: step_graph(t, t->streams[1 + 2 * roll(t, 2)]); break;
        case 8: step_event(t, stream); break;
        case 9: if (roll(t, 8) == 0) step_context(t); break;
        case 10: step_mail(t); break;
        case 11: step_queries(t); break;
        case 12: check(cuStreamSynchronize(stream), "cuStreamSynchronize"); break;
        case 13: check(cuLaunchHostFunc(stream, call_host, t), "cuLaunchHostFunc"); break;
        default: for (unsigned k = roll(t, 20); k; k--) launch(t, stream);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int threads = atoi(argv[1]);
    end_time = now() + atof(argv[2]);
    int file = open(argv[4], O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, MAIL * sizeof *mailbox)) return 2;
    mailbox = mmap(NULL, MAIL * sizeof *mailbox, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(cuInit(0), "cuInit");
    while (!check(cuDevicePrimaryCtxRetain(&primary, 0), "cuDevicePrimaryCtxRetain"))
        if (now() > end_time) return 0;
    Thread *all = calloc(threads, sizeof *all);
    pthread_t *ids = calloc(threads, sizeof *ids);
    for (int i = 0; i < threads; i++) {
        all[i].random = 88172645463325252ull ^ (strtoull(argv[3], NULL, 10) * 2654435761u + i * 40503u + 1);
        pthread_create(&ids[i], NULL, run, &all[i]);
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}
