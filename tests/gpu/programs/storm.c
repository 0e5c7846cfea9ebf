/*
 * Takes and gives back device memory at random, and fills the GPU meanwhile, until somebody kills it.
 *   storm SEED
 * It prints `storms` when it has begun. Running out of memory is an answer like any other; any other error ends it with
 * status 1.
 */
#include <unistd.h>

#include "gpu.h"
#include "spin.h"

enum { KEPT = 24, ROUNDS = 100000, BLOCKS = 132 };

static unsigned long long state;

static unsigned roll(unsigned sides) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % sides;
}

static int had(CUresult code, const char *what) {
    if (code && code != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "%s says %d\n", what, (int)code);
        _exit(1);
    }
    return !code;
}

int main(int argc, char **argv) {
    CUdeviceptr kept[KEPT] = {0}, out;
    int is_pooled[KEPT] = {0};
    CUmodule module;
    CUfunction spin;
    CUstream stream;
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    /* Others of its container have all the memory, now and then. */
    while (!had(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain")) usleep(1000);
    OK(cuCtxSetCurrent(context));
    state = strtoull(argc > 1 ? argv[1] : "1", NULL, 10) * 2654435761u + 1;
    while (!had(cuModuleLoadData(&module, spin_image), "cuModuleLoadData")) usleep(1000);
    OK(cuModuleGetFunction(&spin, module, "spin"));
    while (!had(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate")) usleep(1000);
    while (!had(cuMemAlloc(&out, 4), "cuMemAlloc")) usleep(1000);
    puts("storms");
    fflush(stdout);
    for (;;) {
        int which = roll(KEPT);
        unsigned what = roll(100);
        if (what < 55 && !kept[which]) {
            size_t size = (size_t)1 << (12 + roll(18));
            is_pooled[which] = roll(4) == 0;
            int is_had = is_pooled[which] ? had(cuMemAllocAsync(&kept[which], size, stream), "cuMemAllocAsync")
                                          : had(cuMemAlloc(&kept[which], size), "cuMemAlloc");
            if (!is_had) kept[which] = 0;
        } else if (what < 55) {
            if (is_pooled[which]) OK(cuMemFreeAsync(kept[which], stream));
            else OK(cuMemFree(kept[which]));
            kept[which] = 0;
        } else if (what < 95) {
            unsigned long long rounds = ROUNDS / 8 * (1 + roll(8));
            void *values[] = {&rounds, &out};
            had(cuLaunchKernel(spin, BLOCKS, 1, 1, 256, 1, 1, 0, stream, values, NULL), "cuLaunchKernel");
        } else if (what < 98) {
            OK(cuStreamSynchronize(stream));
        } else {
            CUcontext more;
#if CUDA_VERSION >= 13000
            int is_had = had(cuCtxCreate(&more, NULL, 0, device), "cuCtxCreate");
#else
            int is_had = had(cuCtxCreate(&more, 0, device), "cuCtxCreate");
#endif
            if (is_had) OK(cuCtxDestroy(more)); /* the primary one is current again */
        }
    }
}
