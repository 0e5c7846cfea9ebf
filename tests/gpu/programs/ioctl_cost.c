/* What an ioctl costs a program with a context that is not for the driver. usage: ioctl_cost CALLS
 *
 * As launch_cost.c: in batches, by turns through the function that the program is linked to, which a preloaded library may
 * stand in front of, and through libc's own. The call is as short as can be: how much there is to read in a pipe. Prints
 * "hooked 0" or "hooked 1", then "ioctl.linked" and "ioctl.driver" (libc's own) with the nanoseconds per call of each batch. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"

enum { BATCH = 2000 };

typedef int (*call)(int, unsigned long, ...);

/* libc's own dlsym, asked for in libc, finds libc's own function. */
static call of_libc(const char *name) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY), *libdl = dlopen("libdl.so.2", RTLD_LAZY);
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
    if (!find) find = (void *(*)(void *, const char *))dlsym(libdl, "dlsym");
    call found = (call)find(libc, name);
    MUST(found);
    return found;
}

static double batch_of(call by, int descriptor) {
    struct timespec a, b;
    int there = 0, failed = 0;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < BATCH; i++) failed |= by(descriptor, FIONREAD, &there);
    clock_gettime(CLOCK_MONOTONIC, &b);
    MUST(!failed && there == 3);
    return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / BATCH;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    call by[2] = {ioctl, of_libc("ioctl")};
    long batches = atol(argv[1]) / BATCH / 2;
    double *took[2] = {malloc(batches * sizeof(double)), malloc(batches * sizeof(double))};
    int ends[2];
    MUST(batches > 0 && took[0] && took[1]);
    begin();
    MUST(!pipe(ends) && write(ends[1], "abc", 3) == 3);
    printf("hooked %d\n", by[0] != by[1]);
    for (int i = 0; i < 20; i++) batch_of(by[i % 2], ends[0]); /* to warm up */
    for (long i = 0; i < batches; i++)
        for (int turn = 0; turn < 2; turn++) {
            int who = (i + turn) % 2; /* neither is always the first of a pair */
            took[who][i] = batch_of(by[who], ends[0]);
        }
    for (int who = 0; who < 2; who++) {
        printf("ioctl.%s", who ? "driver" : "linked");
        for (long i = 0; i < batches; i++) printf(" %.2f", took[who][i]);
        puts("");
    }
    return 0;
}
