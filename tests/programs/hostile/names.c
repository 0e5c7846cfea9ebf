/*
 * Programs that only look like clients.
 *   names weak       weak references to the driver, which it is not linked to; what a call answers, if there is one
 *   names default    looks the driver's symbols up where there is no driver
 */
#include "hostile.h"

#pragma weak cuInit
#pragma weak cuMemAlloc_v2
#pragma weak nvmlDeviceGetMemoryInfo
#pragma weak cuDriverGetVersion

static void weak(void) {
    CUdeviceptr at;
    nvmlMemory_t memory;
    /* To standard error, because the shim may well change it. The answers must be errors that programs know. */
    fprintf(stderr, "cuInit %s", cuInit ? "there" : "absent");
    fprintf(stderr, cuInit ? " %d\n" : "\n", cuInit ? (int)cuInit(0) : 0);
    fprintf(stderr, "cuMemAlloc_v2 %s", cuMemAlloc_v2 ? "there" : "absent");
    fprintf(stderr, cuMemAlloc_v2 ? " %d\n" : "\n", cuMemAlloc_v2 ? (int)cuMemAlloc_v2(&at, 1) : 0);
    fprintf(stderr, "nvmlDeviceGetMemoryInfo %s", nvmlDeviceGetMemoryInfo ? "there" : "absent");
    fprintf(stderr, nvmlDeviceGetMemoryInfo ? " %d\n" : "\n", nvmlDeviceGetMemoryInfo ? (int)nvmlDeviceGetMemoryInfo(NULL, &memory) : 0);
    fprintf(stderr, "cuDriverGetVersion %s\n", cuDriverGetVersion ? "there" : "absent");
}

static void by_default(void) {
    static const char *const all[] = {"cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "nvmlDeviceGetMemoryInfo", "cuNoSuchThing"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        dlerror();
        void *at = dlsym(RTLD_DEFAULT, all[i]), *next = NULL;
        char *error = dlerror();
        printf("%s: %s, %s", all[i], at ? "found" : "not found", error ? "an error" : "no error");
        next = dlsym(RTLD_NEXT, all[i]);
        error = dlerror();
        printf("; next %s, %s\n", next ? "found" : "not found", error ? "an error" : "no error");
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "weak")) weak();
    else if (!strcmp(mode, "default")) by_default();
    else return 2;
    return 0;
}
