/* Launches a free kernel many times and prints the time one launch takes on the host. usage: launches COUNT */

#include "check.h"

static const char image[] = "ration-sim-image 1\nkernel nothing\n";

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000000;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "nothing"));
    double start = now();
    for (long i = 0; i < count; i++)
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    double seconds = now() - start;
    printf("%ld launches in %.3f s: %.0f ns each\n", count, seconds, seconds / count * 1e9);
    return 0;
}
