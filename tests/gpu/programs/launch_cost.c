/* What a call costs the program that makes it. usage: launch_cost KERNELS GRAPHS COPIES
 *
 * Every kind of call is made in batches, by turns through the function that the program is linked to, which a preloaded
 * library may stand in front of, and through the driver's own. Both in one process, on one core, with one context, so that
 * the two differ in nothing else. Prints two lines per kind, "kernel.linked" and "kernel.driver", with the nanoseconds per
 * call of each batch. The clock stops before the batch is waited for, and a batch is shorter than the GPU's queue, so this
 * is the host's side alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

#include "gpu.h"

static CUfunction empty;
static CUstream stream;
static CUgraphExec exec;
static CUdeviceptr memory;

/* The functions to call in a batch. */
struct calls {
    CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                              void **, void **);
    CUresult (*launch_graph)(CUgraphExec, CUstream);
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
};

static void launch_kernel(const struct calls *by) {
    OK(by->launch_kernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}
static void launch_graph(const struct calls *by) { OK(by->launch_graph(exec, stream)); }
static void copy(const struct calls *by) { OK(by->copy(memory, memory + 4096, 4096, stream)); }

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

static double nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double batch_of(void (*call)(const struct calls *), const struct calls *by, long batch) {
    double start = nanoseconds();
    for (long i = 0; i < batch; i++) call(by);
    double took = nanoseconds() - start;
    OK(cuStreamSynchronize(stream));
    return took / batch;
}

static void measure(const char *kind, void (*call)(const struct calls *), const struct calls *linked,
                    const struct calls *driver, long count, long batch) {
    long batches = count / batch / 2;
    double *took[2] = {malloc(batches * sizeof(double)), malloc(batches * sizeof(double))};
    const struct calls *by[2] = {linked, driver};
    for (int i = 0; i < 4; i++) batch_of(call, by[i % 2], batch); /* to warm up */
    for (long i = 0; i < batches; i++)
        for (int turn = 0; turn < 2; turn++) {
            int who = (i + turn) % 2; /* neither is always the first of a pair */
            took[who][i] = batch_of(call, by[who], batch);
        }
    for (int who = 0; who < 2; who++) {
        printf("%s.%s", kind, who ? "driver" : "linked");
        for (long i = 0; i < batches; i++) printf(" %.2f", took[who][i]);
        puts("");
    }
}

int main(int argc, char **argv) {
    CUgraph graph;
    MUST(argc == 4);
    struct calls linked = {cuLaunchKernel, cuGraphLaunch, cuMemcpyDtoDAsync};
    struct calls driver = {of_driver("cuLaunchKernel"), of_driver("cuGraphLaunch"), of_driver("cuMemcpyDtoDAsync_v2")};
    printf("hooked %d\n", (void *)linked.launch_kernel != (void *)driver.launch_kernel);
    begin();
    OK(cuModuleGetFunction(&empty, load_kernels(), "empty"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&memory, 8192));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 20; i++) launch_kernel(&linked);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    measure("kernel", launch_kernel, &linked, &driver, atol(argv[1]), 500);
    measure("graph", launch_graph, &linked, &driver, atol(argv[2]), 25); /* 20 kernels each: a longer batch would wait */
    measure("copy", copy, &linked, &driver, atol(argv[3]), 250);
    return 0;
}
