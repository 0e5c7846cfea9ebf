/* What others on a node notice: how long the driver takes for memory and for contexts. usage: node_probe SECONDS
 * Prints "alloc_us COUNT P50 P99 MOST", of taking and giving back 2 MiB, and "context_us COUNT P50 P99 MOST", of making
 * and ending a context, each measured for SECONDS. */

#define _GNU_SOURCE
#include <time.h>

#include "gpu.h"

enum { MOST = 1 << 20 };
static double took[MOST];

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static void tell_times(const char *what, int count) {
    qsort(took, count, sizeof *took, by_size);
    printf("%s %d %.1f %.1f %.1f\n", what, count, took[count / 2], took[(int)(count * 0.99)], took[count - 1]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    double length = (argc > 1 ? atof(argv[1]) : 2.0) * 1e6, until;
    CUdevice device = begin();
    CUcontext context;
    CUdeviceptr memory;
    int count = 0;
    for (until = now_us() + length; now_us() < until && count < MOST; count++) {
        double start = now_us();
        OK(cuMemAlloc(&memory, 2 << 20));
        OK(cuMemFree(memory));
        took[count] = now_us() - start;
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
    tell_times("alloc_us", count);
    OK(cuDevicePrimaryCtxRelease(device));
    count = 0;
    for (until = now_us() + length; now_us() < until && count < MOST; count++) {
        double start = now_us();
        OK(cuDevicePrimaryCtxRetain(&context, device));
        OK(cuDevicePrimaryCtxRelease(device));
        took[count] = now_us() - start;
    }
    tell_times("context_us", count);
    return 0;
}
