/*
 * What taking and giving back memory costs the program that does it.
 *   cost PAIRS...    how many pairs of calls of each kind, in the order of the table below; 0 leaves one out
 * Pairs are made in batches, by turns through the functions that the program is linked to, which a preloaded library may stand
 * in front of, and through the driver's own: in one process, on one context, so that the two differ in nothing else. Prints
 * two lines per kind, `alloc-4k.linked` and `alloc-4k.driver`, with the nanoseconds per pair of each batch.
 */
#include <dlfcn.h>
#include <string.h>

#include "check.h"

typedef struct Calls {
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*free)(CUdeviceptr);
    CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
    CUresult (*free_async)(CUdeviceptr, CUstream);
    CUresult (*info)(size_t *, size_t *);
} Calls;

static CUstream stream;

static void linear(const Calls *by, size_t bytes) {
    CUdeviceptr at;
    OK(by->alloc(&at, bytes));
    OK(by->free(at));
}

static void pooled(const Calls *by, size_t bytes) {
    CUdeviceptr at;
    OK(by->alloc_async(&at, bytes, stream));
    OK(by->free_async(at, stream));
}

static void info(const Calls *by, size_t bytes) {
    size_t left, total;
    (void)bytes;
    OK(by->info(&left, &total));
}

static const struct {
    const char *name;
    void (*pair)(const Calls *, size_t);
    size_t bytes;
    long batch;
} kinds[] = {
    {"alloc-4k", linear, 4096, 20},      {"alloc-2m", linear, 2 * MIB, 20}, {"alloc-64m", linear, 64 * MIB, 10},
    {"async-2m", pooled, 2 * MIB, 200}, {"info", info, 0, 20},
};

/* libc's own dlsym, asked for in libc, finds the driver's own functions. */
static void *of_driver(const char *name) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY), *libdl = dlopen("libdl.so.2", RTLD_LAZY);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
    if (!find) find = (void *(*)(void *, const char *))dlsym(libdl, "dlsym");
    void *found = find(driver, name);
    MUST(found);
    return found;
}

static double batch_of(int kind, const Calls *by) {
    double start = now();
    for (long i = 0; i < kinds[kind].batch; i++) kinds[kind].pair(by, kinds[kind].bytes);
    double took = now() - start;
    OK(cuStreamSynchronize(stream));
    return took * 1e9 / kinds[kind].batch;
}

static void measure(int kind, const Calls *const by[2], long pairs) {
    long batches = pairs / kinds[kind].batch / 2;
    double *took[2] = {malloc(batches * sizeof(double)), malloc(batches * sizeof(double))};
    for (int i = 0; i < 4; i++) batch_of(kind, by[i % 2]); /* to warm up */
    for (long i = 0; i < batches; i++)
        for (int turn = 0; turn < 2; turn++) {
            int who = (i + turn) % 2; /* neither is always the first of two */
            took[who][i] = batch_of(kind, by[who]);
        }
    for (int who = 0; who < 2; who++) {
        printf("%s.%s", kinds[kind].name, who ? "driver" : "linked");
        for (long i = 0; i < batches; i++) printf(" %.2f", took[who][i]);
        puts("");
        free(took[who]);
    }
}

int main(int argc, char **argv) {
    Calls linked = {cuMemAlloc_v2, cuMemFree_v2, cuMemAllocAsync, cuMemFreeAsync, cuMemGetInfo_v2};
    Calls driver = {of_driver("cuMemAlloc_v2"), of_driver("cuMemFree_v2"), of_driver("cuMemAllocAsync"),
                    of_driver("cuMemFreeAsync"), of_driver("cuMemGetInfo_v2")};
    const Calls *const by[2] = {&linked, &driver};
    CUcontext context;
    CUdeviceptr warm, block;
    CUmemoryPool pool;
    uint64_t everything = UINT64_MAX;
    printf("hooked %d\n", (void *)linked.alloc != (void *)driver.alloc);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    /* A pool that is warm, and a block that small pieces share, whoever asks for them. */
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything));
    OK(cuMemAllocAsync(&warm, 64 * MIB, stream));
    OK(cuMemFreeAsync(warm, stream));
    OK(cuMemAlloc_v2(&block, 4096));
    for (int kind = 0; kind + 1 < argc && kind < (int)(sizeof kinds / sizeof *kinds); kind++)
        if (atol(argv[kind + 1])) measure(kind, by, atol(argv[kind + 1]));
    return 0;
}
