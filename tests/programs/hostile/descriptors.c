/*
 * Closes descriptors that are not its own, and opens files of its own under the same numbers.
 *   descriptors before|after FILE COUNT     closes all of them before or after its first CUDA call, then opens FILE.0 … up
 *                                           to COUNT, writes its own line into each, works on, and closes them at the end
 *   descriptors closed                      is started without any, and opens none
 *   descriptors limit                       may open no more than it has
 *   descriptors room BYTES                  has no more address space than so much above what it has now
 *   descriptors elsewhere DIRECTORY         goes to another directory after it started
 *   descriptors jail DIRECTORY              the same, and sees nothing else any more
 *   descriptors retitle                     writes over its arguments and environment after its first CUDA call
 *   descriptors scrub                       empties its environment before its first CUDA call, but for the simulated machine
 */
#include <sys/resource.h>

#include "hostile.h"

static int lines;

static void own_files(const char *name, int count) {
    char path[4096];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s.%d", name, i);
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
        if (file < 0) _exit(51);
        if (write(file, "mine\n", 5) != 5) _exit(52);
        lines++;
    }
}

static void before_or_after(int after, const char *name, int count) {
    if (after) {
        begin();
        work(3);
    }
    /* As daemons do, from 0. */
    if (close_range(0, ~0u, 0)) _exit(53);
    own_files(name, count);
    if (!after) begin();
    work(20);
    if (!lines) _exit(54);
}

static void limit_files(void) {
    struct rlimit most;
    MUST(!getrlimit(RLIMIT_NOFILE, &most));
    begin(); /* the simulated driver itself opens its world */
    most.rlim_cur = 3;
    MUST(!setrlimit(RLIMIT_NOFILE, &most));
    work(20);
}

static size_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * 4096;
}

static void limit_room(size_t more) {
    begin();
    struct rlimit most = {address_space() + more, address_space() + more};
    MUST(!setrlimit(RLIMIT_AS, &most));
    work(20);
    size_t bytes;
    /* First calls of functions that were not called yet. */
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    OK(cuCtxSynchronize());
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "before") && argc > 3) {
        before_or_after(0, argv[2], atoi(argv[3]));
    } else if (!strcmp(mode, "after") && argc > 3) {
        before_or_after(1, argv[2], atoi(argv[3]));
    } else if (!strcmp(mode, "closed")) {
        begin();
        work(20);
    } else if (!strcmp(mode, "limit")) {
        limit_files();
    } else if (!strcmp(mode, "room") && argc > 2) {
        limit_room(atol(argv[2]));
    } else if (!strcmp(mode, "elsewhere") && argc > 2) {
        MUST(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
        MUST(!chdir(argv[2]));
        begin();
        work(20);
    } else if (!strcmp(mode, "jail") && argc > 2) {
        begin();
        MUST(!chdir(argv[2]));
        if (chroot(".")) return 77;
        work(20);
    } else if (!strcmp(mode, "scrub")) {
        static char kept[4096];
        snprintf(kept, sizeof kept, "RATION_SIM_DIR=%s", getenv("RATION_SIM_DIR"));
        clearenv();
        MUST(!putenv(kept));
        begin();
        work(20);
    } else if (!strcmp(mode, "retitle")) {
        extern char **environ;
        begin();
        char *first = argv[0], *last = argv[0];
        for (char **word = environ; *word; word++) last = *word + strlen(*word);
        memset(first, 'x', last - first);
        environ = NULL;
        work(20);
    } else {
        return 2;
    }
    return 0;
}
