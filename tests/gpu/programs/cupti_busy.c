/* The witness of GPU time: writes down when each kernel, copy, fill and graph ran, by CUPTI's activity records.
 *
 * CUDA_INJECTION64_PATH names this library, and the driver loads it during cuInit. What ran when goes into
 * BUSY_DIR/PID.cupti.busy (busy.h) as CUPTI hands its buffers over; the rest at the process's exit. A graph is one
 * record, from the beginning of its first node to the end of its last: a record for each node would slow it down. With
 * each record goes what tells it from others: a kernel's name, grid and block, a graph's number, how much is copied. */

#define _GNU_SOURCE
#include <pthread.h>

#include <cupti.h>

#include "busy.h"

enum { BUFFER = 2 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct busy_file file;
static uint32_t trouble;
static pid_t owner;

static struct busy_moment moment(void) {
    struct busy_moment best = {0, 0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
        struct timespec a, b;
        uint64_t gpu = 0;
        clock_gettime(CLOCK_MONOTONIC, &a);
        cuptiGetTimestamp(&gpu);
        clock_gettime(CLOCK_MONOTONIC, &b);
        uint64_t before = a.tv_sec * 1000000000ull + a.tv_nsec, after = b.tv_sec * 1000000000ull + b.tv_nsec;
        if (after - before < least) {
            least = after - before;
            best = (struct busy_moment){gpu, before + least / 2};
        }
    }
    return best;
}

static void CUPTIAPI on_request(uint8_t **buffer, size_t *size, size_t *records) {
    *buffer = aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *records = 0; /* as many as fit */
}

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

/* Of a name, eight bytes at a time: names of templates are long, and there are a hundred thousand of them a second. */
static uint64_t hash_of(const char *name) {
    uint64_t hash = 0, word;
    size_t left = name ? strlen(name) : 0;
    for (; left >= sizeof word; left -= sizeof word, name += sizeof word) {
        memcpy(&word, name, sizeof word);
        hash = mix(hash, word);
    }
    word = 0;
    if (left) memcpy(&word, name, left);
    return mix(hash, word);
}

/* Kernels of the same name, grid and block do the same, as far as anybody outside can tell. */
static uint64_t which_kernel(const CUpti_ActivityKernel4 *it) {
    uint64_t hash = hash_of(it->name);
    hash = mix(hash, (uint64_t)(uint32_t)it->gridX << 32 | (uint32_t)it->gridY);
    hash = mix(hash, (uint64_t)(uint32_t)it->gridZ << 32 | (uint32_t)it->blockX);
    return mix(hash, (uint64_t)(uint32_t)it->blockY << 32 | (uint32_t)it->blockZ);
}

/* Later versions of these records are longer, with the same beginning. */
static void note(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel4 *kernel = (const void *)record;
        busy_add(&file, kernel->start, kernel->end, BUSY_KERNEL, which_kernel(kernel));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy *copy = (const void *)record;
        busy_add(&file, copy->start, copy->end, BUSY_COPY, mix(copy->copyKind, copy->bytes));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset *set = (const void *)record;
        busy_add(&file, set->start, set->end, BUSY_SET, set->bytes);
        break;
    }
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: {
        const CUpti_ActivityGraphTrace *graph = (const void *)record;
        busy_add(&file, graph->start, graph->end, BUSY_GRAPH, graph->graphId);
        break;
    }
    default:
        break;
    }
}

static void CUPTIAPI on_complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    (void)size;
    pthread_mutex_lock(&lock);
    while (valid && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) note(record);
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped) trouble = 1;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void at_exit(void) {
    if (getpid() != owner) return; /* a forked child has the handler, and nothing to write */
    CUptiResult result = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    pthread_mutex_lock(&lock);
    busy_close(&file, moment(), result != CUPTI_SUCCESS ? 2 : trouble);
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) int InitializeInjection(void);

int InitializeInjection(void) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_GRAPH_TRACE};
    if (owner) return 1;
    owner = getpid();
    file = busy_open("cupti", moment());
    if (!file.file) return 0;
    CUptiResult result = cuptiActivityRegisterCallbacks(on_request, on_complete);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && result == CUPTI_SUCCESS; i++)
        result = cuptiActivityEnable(kinds[i]);
    if (result != CUPTI_SUCCESS) {
        fprintf(stderr, "cupti_busy: CUPTI does not watch: result %d\n", (int)result);
        trouble = (uint32_t)result;
    }
    atexit(at_exit);
    return 1;
}
