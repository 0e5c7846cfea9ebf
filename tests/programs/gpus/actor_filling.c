/*
 * Asking for more than there is:
 *
 *   fill WAY STEP LIMIT DEVICE OTHER    by one way, STEP bytes at a time, of DEVICE's memory with OTHER's context current, until
 *                                   LIMIT was had or one is refused. Says how much it got. Ways: `alloc` (for which both are
 *                                   the same), `create`, `pool` (made for it), `default-pool`, `async`, `managed` (prefetched
 *                                   to DEVICE)
 *   spread STEP LIMIT…              all devices by turns, from one thread; a LIMIT for each. Says what each got, and its code
 *   at-once STEP LIMIT…             the same, a thread for each
 *   empty                           gives all of that back
 */
#include <pthread.h>
#include <string.h>

#include "actor.h"

typedef struct Taken {
    enum { LINEAR, PHYSICAL, STREAMED } kind;
    uint64_t what;
    int device;
} Taken;

static Taken taken[1 << 16];
static size_t count_taken;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static void keep(int kind, uint64_t what, int device) {
    pthread_mutex_lock(&keeping);
    MUST(count_taken < sizeof taken / sizeof *taken);
    taken[count_taken++] = (Taken){kind, what, device};
    pthread_mutex_unlock(&keeping);
}

static CUresult take_alloc(size_t bytes, int device) {
    CUdeviceptr at;
    CUresult code = cuMemAlloc_v2(&at, bytes);
    if (!code) keep(LINEAR, at, device);
    return code;
}

static CUresult take_create(size_t bytes, int device) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemGenericAllocationHandle handle;
    CUresult code = cuMemCreate(&handle, bytes, &prop, 0);
    if (!code) keep(PHYSICAL, handle, device);
    return code;
}

static CUresult take_from(CUmemoryPool pool, size_t bytes, int device, int other) {
    CUdeviceptr at;
    CUresult code = cuMemAllocFromPoolAsync(&at, bytes, pool, stream_of(other));
    if (!code) keep(STREAMED, at, device);
    return code;
}

static CUresult take_async(size_t bytes, int device) {
    CUdeviceptr at;
    CUresult code = cuMemAllocAsync(&at, bytes, stream_of(device));
    if (!code) keep(STREAMED, at, device);
    return code;
}

static CUresult take_managed(size_t bytes, int device) {
    CUdeviceptr at;
    CUresult code = cuMemAllocManaged(&at, bytes, CU_MEM_ATTACH_GLOBAL);
    if (code) return code;
    keep(LINEAR, at, device);
    code = cuMemPrefetchAsync(at, bytes, device, stream_of(device));
    return code ? code : cuStreamSynchronize(stream_of(device));
}

static CUresult do_fill(char **word, int count) {
    MUST(count == 6);
    size_t step = strtoull(word[2], NULL, 10), limit = strtoull(word[3], NULL, 10), got = 0;
    int device = atoi(word[4]), other = atoi(word[5]);
    CUmemoryPool pool = NULL;
    CUresult code = use(other);
    context_of(device);
    if (!strcmp(word[1], "pool")) {
        CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
        OK(cuMemPoolCreate(&pool, &form));
    }
    if (!strcmp(word[1], "default-pool")) OK(cuDeviceGetDefaultMemPool(&pool, device));
    while (!code && got < limit) {
        if (!strcmp(word[1], "alloc")) code = take_alloc(step, device);
        else if (!strcmp(word[1], "create")) code = take_create(step, device);
        else if (!strcmp(word[1], "async")) code = take_async(step, device);
        else if (!strcmp(word[1], "managed")) code = take_managed(step, device);
        else code = take_from(pool, step, device, other);
        if (!code) got += step;
    }
    also("%zu", got);
    return code;
}

static CUresult do_spread(char **word, int count) {
    size_t step = strtoull(word[1], NULL, 10), got[DEVICES] = {0};
    CUresult codes[DEVICES] = {0};
    int devices = count - 2;
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < devices; i++) {
            if (codes[i] || got[i] >= strtoull(word[2 + i], NULL, 10)) continue;
            more = true;
            codes[i] = use(i);
            if (!codes[i]) codes[i] = take_alloc(step, i);
            if (!codes[i]) got[i] += step;
        }
    }
    for (int i = 0; i < devices; i++) also("%zu %d", got[i], (int)codes[i]);
    return CUDA_SUCCESS;
}

typedef struct Filler {
    int device;
    size_t step, limit, got;
    CUresult code;
} Filler;

static void *fill_one(void *argument) {
    Filler *filler = argument;
    filler->code = cuCtxSetCurrent(context_of(filler->device));
    while (!filler->code && filler->got < filler->limit) {
        filler->code = take_alloc(filler->step, filler->device);
        if (!filler->code) filler->got += filler->step;
    }
    return NULL;
}

static CUresult do_at_once(char **word, int count) {
    Filler fillers[DEVICES] = {0};
    pthread_t threads[DEVICES];
    int devices = count - 2;
    for (int i = 0; i < devices; i++) {
        context_of(i); /* the threads find it there */
        fillers[i] = (Filler){.device = i, .step = strtoull(word[1], NULL, 10), .limit = strtoull(word[2 + i], NULL, 10)};
    }
    for (int i = 0; i < devices; i++) MUST(!pthread_create(&threads[i], NULL, fill_one, &fillers[i]));
    for (int i = 0; i < devices; i++) MUST(!pthread_join(threads[i], NULL));
    for (int i = 0; i < devices; i++) also("%zu %d", fillers[i].got, (int)fillers[i].code);
    return CUDA_SUCCESS;
}

static CUresult do_empty(char **word, int count) {
    CUresult code = CUDA_SUCCESS;
    bool used[DEVICES] = {0};
    (void)word, (void)count;
    while (count_taken && !code) {
        Taken one = taken[--count_taken];
        used[one.device] = true;
        code = use(one.device);
        if (code) break;
        if (one.kind == LINEAR) code = cuMemFree_v2(one.what);
        else if (one.kind == PHYSICAL) code = cuMemRelease(one.what);
        else code = cuMemFreeAsync(one.what, stream_of(one.device));
    }
    for (int i = 0; i < DEVICES && !code; i++) {
        if (!used[i]) continue;
        code = use(i);
        if (!code) code = cuCtxSynchronize();
    }
    return code;
}

const Verb filling_verbs[] = {
    {"fill", do_fill}, {"spread", do_spread}, {"at-once", do_at_once}, {"empty", do_empty}, {0},
};
