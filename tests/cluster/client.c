/*
 * What runs in the containers of tests/cluster: says what it is and what it sees, then asks for memory until it is refused.
 *   client SECONDS
 * Prints `pid`, `uid`, `root` (whether the root file system can be written to), `preload` (whether the library is loaded),
 * `total` as the driver tells it, `held MIB code N`, and holds it for so long.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"

#define STEP (64ul << 20)

static int wrong(const char *what, CUresult code) {
    printf("%s: %d\n", what, (int)code);
    return 1;
}

static int is_mapped(const char *name) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, name) != NULL;
    return found;
}

/* What comes of making a file; it is not left there. */
static const char *write_to(const char *path) {
    int file = open(path, O_CREAT | O_WRONLY, 0600);
    if (file < 0) return errno == EROFS ? "read-only" : strerror(errno);
    close(file);
    unlink(path);
    return "writable";
}

int main(int argc, char **argv) {
    CUcontext context;
    CUdeviceptr pointer;
    CUresult code;
    size_t left, total;
    int held = 0;
    printf("pid %d\nuid %d\nroot %s\npreload %s\n", (int)getpid(), (int)getuid(), write_to("/probe"),
           is_mapped("libration.so") ? "yes" : "no");
    printf("pods %s\nown %s\n", write_to("/run/ration/probe"), write_to("/run/ration-own/probe"));
    fflush(stdout);
    if ((code = cuInit(0))) return wrong("cuInit", code);
    if ((code = cuDevicePrimaryCtxRetain(&context, 0))) return wrong("cuDevicePrimaryCtxRetain", code);
    if ((code = cuCtxSetCurrent(context))) return wrong("cuCtxSetCurrent", code);
    if ((code = cuMemGetInfo_v2(&left, &total))) return wrong("cuMemGetInfo", code);
    while (held < 4096 && !(code = cuMemAlloc_v2(&pointer, STEP))) held += STEP >> 20;
    printf("total %lu\nheld %d code %d\n", total >> 20, held, (int)code);
    fflush(stdout);
    if (argc > 1) sleep((unsigned)atoi(argv[1]));
    return 0;
}
