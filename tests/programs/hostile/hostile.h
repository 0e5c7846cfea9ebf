/* What the hostile programs share. Every call is checked: a wrong answer ends the program with the place. */
#ifndef RATION_HOSTILE_H
#define RATION_HOSTILE_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "nvml_abi.h"

static const char image[] = "ration-sim-image 1\nkernel k time=2us\nkernel slow time=30ms\n";

static CUcontext context __attribute__((unused));
static CUfunction kernel __attribute__((unused)), slow_kernel __attribute__((unused));

/* A context and kernels: cuInit, cuCtxCreate_v2, cuModuleLoadData and cuModuleGetFunction twice. */
__attribute__((unused)) static void begin(void) {
    CUmodule module;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "k"));
    OK(cuModuleGetFunction(&slow_kernel, module, "slow"));
}

/* Takes memory, launches, looks, and gives back, so often. */
__attribute__((unused)) static void work(int rounds) {
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr at;
        size_t free_bytes, total;
        OK(cuMemAlloc_v2(&at, 4096 + i));
        OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        OK(cuMemGetInfo_v2(&free_bytes, &total));
        OK(cuMemFree_v2(at));
    }
}

/* What a process did that the driver keeps no record of, for the test to know: `PID SYMBOL COUNT` lines in $HOSTILE_TALLY.
 * Only write(2), so that it can be used in a forked child of many threads. */
__attribute__((unused)) static void tally(const char *symbol, int count) {
    static const char *path;
    if (!path) path = getenv("HOSTILE_TALLY");
    if (!path) return;
    char line[200];
    int length = snprintf(line, sizeof line, "%d %s %d\n", (int)getpid(), symbol, count);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || write(file, line, length) != length) _exit(97);
    close(file);
}

/* A generator per thread; the seed is the test's. */
__attribute__((unused)) static unsigned roll(uint64_t *state, unsigned below) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (*state >> 20) % below;
}

#endif
