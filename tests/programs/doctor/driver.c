/*
 * A libcuda.so.1 in trouble. STUB_INIT says which: `hang`, `crash`, or the code that cuInit answers; without it, all goes well
 * and there is no GPU.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuInit(unsigned flags) {
    const char *trouble = getenv("STUB_INIT");
    if (!trouble) return (int)flags;
    if (!strcmp(trouble, "crash")) *(volatile int *)0 = 1;
    /* Drivers start programs; whoever ends this one ends those. */
    if (!strcmp(trouble, "hang") && fork() >= 0)
        for (;;) sleep(100);
    return atoi(trouble);
}

int cuDriverGetVersion(int *version) {
    *version = 12080;
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 0;
    return 0;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_OF_SOME_KIND";
    return 0;
}

/* What a program looks up, and does not come to. */
#define NEVER(name) \
    int name(void) { return 1; }
NEVER(cuDeviceGet)
NEVER(cuDeviceGetName)
NEVER(cuDeviceGetUuid)
NEVER(cuDeviceTotalMem_v2)
NEVER(cuCtxCreate_v2)
NEVER(cuCtxSynchronize)
NEVER(cuMemGetInfo_v2)
NEVER(cuMemAlloc_v2)
NEVER(cuMemFree_v2)
NEVER(cuMemsetD8Async)
NEVER(cuModuleLoadData)
NEVER(cuModuleGetFunction)
NEVER(cuLaunchKernel)
