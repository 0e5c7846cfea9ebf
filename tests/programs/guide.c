/*
 * What the Python programs of docs/guide.md do, on the simulated GPU.
 *   guide look.py     says how much memory there is
 *   guide train.py    holds 3 GiB and keeps the GPU busy for GUIDE_SECONDS
 *   guide serve.py    holds 1 GiB and answers a request 20 ms after the last one, for two seconds more
 */
#include <string.h>
#include <unistd.h>

#include "check.h"

static CUfunction kernel;

static void launch(int count) {
    while (count--) OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, NULL, NULL, NULL));
    OK(cuStreamSynchronize(NULL));
}

static double end(void) {
    const char *seconds = getenv("GUIDE_SECONDS");
    return now() + (seconds ? atof(seconds) : 20);
}

int main(int argc, char **argv) {
    const char *program = argc > 1 ? argv[1] : "";
    char name[100];
    size_t left, total;
    CUcontext context;
    CUmodule module;
    CUdeviceptr data;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, "ration-sim-image 1\nkernel k time=500us\n"));
    OK(cuModuleGetFunction(&kernel, module, "k"));
    if (!strcmp(program, "look.py")) {
        OK(cuDeviceGetName(name, sizeof name, 0));
        OK(cuMemGetInfo_v2(&left, &total));
        printf("%s: %.1f of %.1f GiB free\n", name, left / 0x1p30, total / 0x1p30);
    } else if (!strcmp(program, "train.py")) {
        OK(cuMemAlloc_v2(&data, 3072 * MIB));
        for (double until = end(); now() < until;) launch(20);
    } else if (!strcmp(program, "serve.py")) {
        OK(cuMemAlloc_v2(&data, 1024 * MIB));
        for (double until = end() + 2; now() < until; usleep(20000)) launch(10);
    } else {
        fprintf(stderr, "usage: see the top of guide.c\n");
        return 2;
    }
    return 0;
}
