/*
 * work MIB PER-MILLE: holds so much of the first GPU besides a context, keeps it busy for a part of the time, says `ready`,
 * and goes when its standard input ends.
 */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"

static const char image[] = "ration-sim-image 1\n"
                            "kernel work time=10ms\n";

int main(int argc, char **argv) {
    MUST(argc == 3);
    size_t bytes = strtoul(argv[1], NULL, 10) * MIB;
    int busy = atoi(argv[2]) / 100;
    CUcontext context;
    CUmodule module;
    CUfunction work;
    CUdeviceptr memory;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&work, module, "work"));
    if (bytes) OK(cuMemAlloc_v2(&memory, bytes));
    puts("ready");
    fflush(stdout);
    double next = now();
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, busy ? 1 : 1000) == 0) {
        if (!busy || now() < next) continue;
        next = now() + 0.1;
        for (int i = 0; i < busy; i++) OK(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
    return 0;
}
