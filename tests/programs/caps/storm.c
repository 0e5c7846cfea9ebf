/*
 * Takes and gives back device memory by every path at random, from several threads, until it is told to end or somebody
 * kills it. For the simulated GPU.
 *   storm THREADS SEED MAILBOX
 * MAILBOX is a file through which processes hand each other memory (IPC handles). Orders come on standard input:
 *   quiet    all threads stop where nothing is under way; answered by `quiet BYTES`, the managed memory that is allocated
 *   go       they go on
 *   end      the process ends with all that it holds
 * Being out of memory is an answer like any other. One that no correct driver would give ends the program with status 1.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define KEPT 8
#define MAIL 64
#define PTX ".version 8.0\n.target sm_80\n.address_size 64\n//ration-sim\n"

static const char image[] =
    PTX "//ration-sim quick time=5us\n"
        ".visible .entry quick() { ret; }\n"
        "//ration-sim deep time=5us\n"
        ".visible .entry deep() { .local .align 4 .b8 room[2048]; ret; }\n"
        "//ration-sim touch touch\n"
        ".visible .entry touch(.param .u64 at) { ret; }\n";
static const char big_image[] =
    PTX "//ration-sim quick time=5us\n"
        ".visible .global .align 4 .b8 big[9000000];\n"
        ".visible .entry quick() { ret; }\n";

typedef struct Thread {
    uint64_t random;
    CUstream stream;
    CUfunction quick, deep, touch;
    CUmemoryPool pool;
    CUdeviceptr linear[KEPT], pooled[KEPT], managed[2], mapped[2];
    size_t managed_size[2], mapped_size[2];
    CUmemGenericAllocationHandle handles[2];
    int exported[2];
    CUarray arrays[2];
    CUmipmappedArray mipmap;
    CUgraphExec exec;
    CUmodule module;
    CUlibrary library;
    CUcontext extra;
    void *host;
} Thread;

static CUipcMemHandle *mailbox;
static _Atomic size_t managed_bytes;
static _Atomic(CUcontext) primary;

/* ------------------------------------------------------------------------------------------------------ stopping */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Atomic int quiet, ending;
static int parked;

/* Whether to go on. Stands still while all are to be quiet. */
static int go_on(const Thread *t) {
    if (atomic_load(&quiet)) {
        if (t->stream) OK(cuStreamSynchronize(t->stream));
        pthread_mutex_lock(&lock);
        parked++;
        pthread_cond_broadcast(&changed);
        while (atomic_load(&quiet)) pthread_cond_wait(&changed, &lock);
        parked--;
        pthread_mutex_unlock(&lock);
    }
    return !atomic_load(&ending);
}

/* ------------------------------------------------------------------------------------------------------- the steps */

static unsigned roll(Thread *t, unsigned below) {
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return (unsigned)(t->random >> 20) % below;
}

static int check(CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return 1;
    if (code == CUDA_ERROR_OUT_OF_MEMORY) return 0;
    fprintf(stderr, "%s: error %d\n", what, (int)code);
    _exit(1);
}
#define CHECK(call) check((call), #call)

static size_t some_size(Thread *t) {
    static const size_t sizes[] = {1, 4096, 100000, MIB, 2 * MIB + 1, 20 * MIB, 64 * MIB};
    return sizes[roll(t, 7)] + roll(t, 1000);
}

static void step_linear(Thread *t) {
    CUdeviceptr *at = &t->linear[roll(t, KEPT)];
    size_t pitch;
    if (*at) {
        CHECK(cuMemFree_v2(*at));
        *at = 0;
    } else if (!(roll(t, 4) ? CHECK(cuMemAlloc_v2(at, some_size(t)))
                            : CHECK(cuMemAllocPitch_v2(at, &pitch, 1000, 1 + roll(t, 10000), 4))))
        *at = 0;
}

static void step_pool(Thread *t) {
    CUdeviceptr *at = &t->pooled[roll(t, KEPT)];
    if (*at) {
        if (roll(t, 4)) CHECK(cuMemFreeAsync(*at, t->stream));
        else CHECK(cuMemFree_v2(*at));
        *at = 0;
    } else if (!(roll(t, 2) ? CHECK(cuMemAllocAsync(at, some_size(t), t->stream))
                            : CHECK(cuMemAllocFromPoolAsync(at, some_size(t), t->pool, t->stream))))
        *at = 0;
    if (roll(t, 8) == 0) CHECK(cuMemPoolTrimTo(t->pool, 0));
}

static void step_managed(Thread *t) {
    unsigned i = roll(t, 2);
    if (t->managed[i]) {
        CHECK(cuMemFree_v2(t->managed[i]));
        atomic_fetch_sub(&managed_bytes, t->managed_size[i]);
        t->managed[i] = 0;
        return;
    }
    t->managed_size[i] = (1 + roll(t, 8)) * 2 * MIB;
    if (!CHECK(cuMemAllocManaged(&t->managed[i], t->managed_size[i], CU_MEM_ATTACH_GLOBAL))) {
        t->managed[i] = 0;
        return;
    }
    atomic_fetch_add(&managed_bytes, t->managed_size[i]);
    void *arguments[] = {&t->managed[i]};
    CHECK(cuLaunchKernel(t->touch, 1, 1, 1, 1, 1, 1, 0, t->stream, arguments, NULL));
}

/* A handle, or a mapping whose handle was released; sometimes with a descriptor that another handle comes from. */
static void step_virtual(Thread *t) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    unsigned i = roll(t, 2);
    size_t size = (1 + roll(t, 16)) * 2 * MIB;
    if (t->mapped[i]) {
        CHECK(cuMemUnmap(t->mapped[i], t->mapped_size[i]));
        CHECK(cuMemAddressFree(t->mapped[i], t->mapped_size[i]));
        t->mapped[i] = 0;
    } else if (t->handles[i]) {
        CHECK(cuMemRelease(t->handles[i]));
        t->handles[i] = 0;
        if (t->exported[i] >= 0) {
            void *from = (void *)(intptr_t)t->exported[i];
            CUmemGenericAllocationHandle again;
            if (CHECK(cuMemImportFromShareableHandle(&again, from, by_descriptor))) CHECK(cuMemRelease(again));
            close(t->exported[i]);
            t->exported[i] = -1;
        }
    } else if (!CHECK(cuMemCreate(&t->handles[i], size, &prop, 0))) {
        t->handles[i] = 0;
    } else if (roll(t, 2)) {
        CHECK(cuMemAddressReserve(&t->mapped[i], size, 0, 0, 0));
        CHECK(cuMemMap(t->mapped[i], size, 0, t->handles[i], 0));
        CHECK(cuMemRelease(t->handles[i]));
        t->handles[i] = 0;
        t->mapped_size[i] = size;
    } else if (roll(t, 2)) {
        CHECK(cuMemExportToShareableHandle(&t->exported[i], t->handles[i], by_descriptor, 0));
    }
}

static void step_array(Thread *t) {
    CUarray *array = &t->arrays[roll(t, 2)];
    CUDA_ARRAY3D_DESCRIPTOR form = {
        .Width = 64 + roll(t, 1000), .Height = 64 + roll(t, 1000), .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    if (*array) {
        CHECK(cuArrayDestroy(*array));
        *array = NULL;
    } else if (!CHECK(cuArray3DCreate_v2(array, &form)))
        *array = NULL;
    if (roll(t, 2)) return;
    if (t->mipmap) {
        CHECK(cuMipmappedArrayDestroy(t->mipmap));
        t->mipmap = NULL;
    } else if (!CHECK(cuMipmappedArrayCreate(&t->mipmap, &form, 5)))
        t->mipmap = NULL;
}

/* A graph that takes memory and gives it back, launched now and then; the memory stays with the process between launches. */
static void step_graph(Thread *t) {
    CUgraph graph = NULL;
    CUdeviceptr inside;
    if (t->exec) {
        CHECK(cuGraphLaunch(t->exec, t->stream));
        if (roll(t, 3)) return;
        CHECK(cuStreamSynchronize(t->stream));
        CHECK(cuGraphExecDestroy(t->exec));
        t->exec = NULL;
        if (roll(t, 2)) CHECK(cuDeviceGraphMemTrim(0));
        return;
    }
    CHECK(cuStreamBeginCapture_v2(t->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (CHECK(cuMemAllocAsync(&inside, some_size(t), t->stream))) CHECK(cuMemFreeAsync(inside, t->stream));
    if (!CHECK(cuStreamEndCapture(t->stream, &graph))) return;
    if (!CHECK(cuGraphInstantiateWithFlags(&t->exec, graph, 0))) t->exec = NULL;
    CHECK(cuGraphDestroy(graph));
}

static void step_module(Thread *t) {
    if (t->module) {
        CHECK(cuModuleUnload(t->module));
        t->module = NULL;
    } else if (!CHECK(cuModuleLoadData(&t->module, big_image)))
        t->module = NULL;
    if (t->library) {
        CHECK(cuStreamSynchronize(t->stream));
        CHECK(cuLibraryUnload(t->library));
        t->library = NULL;
        return;
    }
    CUkernel kernel;
    CHECK(cuLibraryLoadData(&t->library, big_image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel(&kernel, t->library, "quick"));
    CHECK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, t->stream, NULL, NULL));
}

/* With memory of its own, which goes with it. */
static void step_context(Thread *t) {
    CUdeviceptr lost;
    if (t->extra) {
        CHECK(cuCtxDestroy_v2(t->extra));
        t->extra = NULL;
    } else if (CHECK(cuCtxCreate_v2(&t->extra, 0, 0))) {
        CHECK(cuMemAlloc_v2(&lost, some_size(t)));
        CHECK(cuCtxPopCurrent_v2(NULL));
    } else
        t->extra = NULL;
}

static void step_driver(Thread *t) {
    CHECK(cuLaunchKernel(roll(t, 20) ? t->quick : t->deep, 1, 1, 1, 32, 1, 1, 0, t->stream, NULL, NULL));
    if (roll(t, 20) == 0) CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 + 512 * roll(t, 3)));
    if (t->host) {
        CHECK(cuMemFreeHost(t->host));
        t->host = NULL;
    } else if (!CHECK(cuMemAllocHost_v2(&t->host, 100000)))
        t->host = NULL;
}

static void step_mail(Thread *t) {
    CUipcMemHandle *letter = &mailbox[roll(t, MAIL)], copy = *letter;
    CUdeviceptr at = t->linear[roll(t, KEPT)];
    if (roll(t, 2)) {
        if (at) CHECK(cuIpcGetMemHandle(letter, at));
    } else if (cuIpcOpenMemHandle_v2(&at, copy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS) {
        CHECK(cuIpcCloseMemHandle(at)); /* whatever lies there may be of a dead process, torn, or zeros */
    }
}

static void step_questions(void) {
    size_t left, total;
    CHECK(cuMemGetInfo_v2(&left, &total));
    MUST(left <= total);
}

static void one_step(Thread *t) {
    switch (roll(t, 20)) {
    case 0: case 1: case 2: case 3: step_linear(t); break;
    case 4: case 5: case 6: step_pool(t); break;
    case 7: step_managed(t); break;
    case 8: case 9: step_virtual(t); break;
    case 10: step_array(t); break;
    case 11: case 12: step_graph(t); break;
    case 13: step_module(t); break;
    case 14: if (roll(t, 10) == 0) step_context(t); break;
    case 15: step_driver(t); break;
    case 16: step_mail(t); break;
    case 17: step_questions(); break;
    default: CHECK(cuStreamSynchronize(t->stream));
    }
}

/* What must be there before the first step. There may be no room for it yet. */
static int set_up(Thread *t) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUcontext context;
    CUmodule module;
    t->exported[0] = t->exported[1] = -1;
    while (!CHECK(cuDevicePrimaryCtxRetain(&context, 0))) {
        if (!go_on(t)) return 0;
        usleep(2000);
    }
    CHECK(cuCtxSetCurrent(context));
    atomic_store(&primary, context);
    while (!CHECK(cuModuleLoadData(&module, image))) {
        if (!go_on(t)) return 0;
        usleep(2000);
    }
    CHECK(cuModuleGetFunction(&t->quick, module, "quick"));
    CHECK(cuModuleGetFunction(&t->deep, module, "deep"));
    CHECK(cuModuleGetFunction(&t->touch, module, "touch"));
    CHECK(cuMemPoolCreate(&t->pool, &props));
    CHECK(cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING));
    return 1;
}

static void *run(void *data) {
    Thread *t = data;
    if (set_up(t))
        while (go_on(t)) one_step(t);
    return NULL;
}

int main(int argc, char **argv) {
    char order[16];
    MUST(argc == 4);
    int threads = atoi(argv[1]), file = open(argv[3], O_RDWR | O_CREAT, 0666);
    MUST(file >= 0 && !ftruncate(file, MAIL * sizeof *mailbox));
    mailbox = mmap(NULL, MAIL * sizeof *mailbox, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(mailbox != MAP_FAILED);
    OK(cuInit(0));
    Thread *all = calloc((size_t)threads, sizeof *all);
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    for (int i = 0; i < threads; i++) {
        all[i].random = 88172645463325252ull ^ (strtoull(argv[2], NULL, 10) * 2654435761u + (unsigned)i * 40503u + 1);
        MUST(!pthread_create(&ids[i], NULL, run, &all[i]));
    }
    while (fgets(order, sizeof order, stdin) && strcmp(order, "end\n")) {
        pthread_mutex_lock(&lock);
        atomic_store(&quiet, !strcmp(order, "quiet\n"));
        pthread_cond_broadcast(&changed);
        while (atomic_load(&quiet) && parked < threads) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        if (!atomic_load(&quiet)) continue;
        if (atomic_load(&primary)) {
            size_t left, total;
            OK(cuCtxSetCurrent(atomic_load(&primary)));
            OK(cuCtxSynchronize());               /* pools give back what was freed when somebody waits, */
            OK(cuMemGetInfo_v2(&left, &total));   /* and who asks is told what is true */
        }
        printf("quiet %zu\n", atomic_load(&managed_bytes));
        fflush(stdout);
    }
    pthread_mutex_lock(&lock);
    atomic_store(&ending, 1);
    atomic_store(&quiet, 0);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}
