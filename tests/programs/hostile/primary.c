/*
 * Eight threads that make a GPU's primary context and let it go, all the time.
 *   primary frees     each frees what it has allocated before it lets go
 *   primary leaves    each leaves that to the context's end
 *   primary resets    the same, and one thread resets the context again and again, whoever holds it
 * Then memory is taken, a little at a time, until there is no more; `full`, how much the program is told that it holds, and,
 * when it has read a line and given all of it back, `empty` and how much it is told then. Memory of other kinds, which outlives
 * contexts, is held all the while: `physical`, a handle of 64 MiB.
 */
#include "hostile.h"

#define PIECE (16 * MIB)
#define MOST 4096
enum { THREADS = 8, ROUNDS = 60 };

static int leaves, resets;
static volatile int working = 1;
static unsigned refused, given;

static void *works(void *number) {
    uint64_t state = 0x9e3779b97f4a7c15ull * ((long)number + 1);
    for (int round = 0; round < ROUNDS; round++) {
        CUcontext primary;
        CUresult made = cuDevicePrimaryCtxRetain(&primary, 0);
        /* What others were about to be given when it was reset is counted until they have been told that they are not. */
        for (int i = 0; resets && made == CUDA_ERROR_OUT_OF_MEMORY && i < 1000; i++) {
            usleep(1000);
            made = cuDevicePrimaryCtxRetain(&primary, 0);
        }
        MUST(!made);
        cuCtxSetCurrent(primary);
        CUdeviceptr at[4];
        for (int i = 0; i < 4; i++) {
            CUresult result = cuMemAlloc_v2(&at[i], (1 + roll(&state, 8)) * PIECE);
            if (result) at[i] = 0;
            if (result == CUDA_ERROR_OUT_OF_MEMORY) __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
            else if (!result) __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
            else MUST(resets);
        }
        usleep(roll(&state, 2000));
        for (int i = 0; i < 4; i++)
            if (at[i] && !leaves) OK(cuMemFree_v2(at[i]));
        cuCtxSetCurrent(NULL);
        MUST(!cuDevicePrimaryCtxRelease_v2(0));
    }
    return NULL;
}

static void *reset(void *unused) {
    while (working) {
        cuDevicePrimaryCtxReset_v2(0);
        usleep(700);
    }
    return unused;
}

static size_t told(void) {
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

int main(int argc, char **argv) {
    static CUdeviceptr pieces[MOST];
    const char *mode = argc > 1 ? argv[1] : "";
    leaves = strcmp(mode, "frees") != 0, resets = !strcmp(mode, "resets");
    OK(cuInit(0));
    CUmemAllocationProp of = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle physical;
    OK(cuMemCreate(&physical, 64 * MIB, &of, 0));
    pthread_t threads[THREADS], resetter;
    for (long i = 0; i < THREADS; i++) MUST(!pthread_create(&threads[i], NULL, works, (void *)i));
    if (resets) MUST(!pthread_create(&resetter, NULL, reset, NULL));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    working = 0;
    if (resets) pthread_join(resetter, NULL);
    fprintf(stderr, "%u given, %u refused\n", given, refused);
    CUcontext primary;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    CUresult result = CUDA_SUCCESS;
    int count = 0;
    while (count < MOST && !(result = cuMemAlloc_v2(&pieces[count], PIECE))) count++;
    MUST(result == CUDA_ERROR_OUT_OF_MEMORY);
    printf("full %zu\n", told());
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 3;
    while (count > 0) OK(cuMemFree_v2(pieces[--count]));
    printf("empty %zu\n", told());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 3;
    OK(cuMemRelease(physical));
    return 0;
}
