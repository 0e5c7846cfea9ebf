/* Launches a free kernel many times and prints the time one launch takes on the host. usage: launches COUNT */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_abi.h"

static const char image[] = "ration-sim-image 1\nkernel nothing\n";

static void must(CUresult code, const char *what) {
    if (code != CUDA_SUCCESS) {
        fprintf(stderr, "%s: error %d\n", what, (int)code);
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000000;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    must(cuInit(0), "cuInit");
    must(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    must(cuModuleLoadData(&module, image), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
    double start = now();
    for (long i = 0; i < count; i++)
        must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    double seconds = now() - start;
    printf("%ld launches in %.3f s: %.0f ns each\n", count, seconds, seconds / count * 1e9);
    return 0;
}
