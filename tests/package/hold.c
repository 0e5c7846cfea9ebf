// What a program has of the simulated GPU, on one line: how much memory it is told that there is, and what asking for less and
// for more than 1 GiB answers. With an argument it then computes a little, until a signal ends it.
#include <stdio.h>
#include <unistd.h>

#include "cuda_abi.h"

static const char image[] = "ration-sim-image 1\nkernel k time=1000000ns\n";

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr memory;
    size_t total = 0;
    (void)argv;
    int begun = cuInit(0) | cuDeviceGet(&device, 0) | cuCtxCreate_v2(&context, 0, device) |
                cuDeviceTotalMem_v2(&total, device) | cuModuleLoadData(&module, image) | cuModuleGetFunction(&kernel, module, "k");
    int less = cuMemAlloc_v2(&memory, (size_t)256 << 20);
    int more = cuMemAlloc_v2(&memory, (size_t)2 << 30);
    printf("begun %d, %zu MiB, less %d, more %d\n", begun, total >> 20, less, more);
    fflush(stdout);
    while (argc > 1) {
        cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, NULL, NULL, NULL);
        cuCtxSynchronize();
        usleep(5000);
    }
    return 0;
}
