/*
 * Loads and unloads the driver and NVML over and over, and calls through the pointers of each generation.
 *   reload THREADS ROUNDS local|global [DIRECTORY]
 * With DIRECTORY, by absolute path. Not linked to either library.
 */
#include "hostile.h"

static int rounds, flags;
static const char *directory;

static void *load(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", directory ? directory : "", directory ? "/" : "", name);
    void *handle = dlopen(path, RTLD_NOW | flags);
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    MUST(handle);
    return handle;
}

static void *find(void *handle, const char *name) {
    void *at = dlsym(handle, name);
    MUST(at);
    return at;
}

static void *generations(void *which) {
    int number = (int)(intptr_t)which;
    __typeof__(&cuMemGetInfo_v2) earlier = NULL;
    for (int i = 0; i < rounds; i++) {
        void *driver = load("libcuda.so.1");
        __typeof__(&cuInit) init = find(driver, "cuInit");
        OK(init(0));
        __typeof__(&cuDevicePrimaryCtxRetain) retain = find(driver, "cuDevicePrimaryCtxRetain");
        __typeof__(&cuDevicePrimaryCtxRelease_v2) release = find(driver, "cuDevicePrimaryCtxRelease_v2");
        __typeof__(&cuMemGetInfo_v2) info = find(driver, "cuMemGetInfo_v2");
        __typeof__(&cuCtxSetCurrent) set_current = find(driver, "cuCtxSetCurrent");
        MUST(!dlsym(driver, "cuNoSuchThing"));
        MUST(dlerror());
        CUcontext primary;
        size_t free_bytes, total;
        if (i % 16 == number % 16) {
            OK(retain(&primary, 0));
            OK(set_current(primary));
            OK(info(&free_bytes, &total));
            OK(set_current(NULL));
            OK(release(0));
        }
        /* A pointer of an earlier generation is as good as this one's: the real driver does not leave either. */
        MUST((earlier ? earlier : info)(&free_bytes, &total) == CUDA_ERROR_INVALID_CONTEXT);
        earlier = info;

        void *nvml = load("libnvidia-ml.so.1");
        __typeof__(&nvmlInit_v2) start = find(nvml, "nvmlInit_v2");
        __typeof__(&nvmlShutdown) finish = find(nvml, "nvmlShutdown");
        __typeof__(&nvmlDeviceGetHandleByIndex_v2) device = find(nvml, "nvmlDeviceGetHandleByIndex_v2");
        __typeof__(&nvmlDeviceGetMemoryInfo) memory = find(nvml, "nvmlDeviceGetMemoryInfo");
        nvmlDevice_t gpu;
        nvmlMemory_t held;
        MUST(!start());
        MUST(!device(0, &gpu));
        MUST(!memory(gpu, &held));
        MUST(!finish());
        MUST(!dlclose(nvml));
        MUST(!dlclose(driver));
    }
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    rounds = argc > 2 ? atoi(argv[2]) : 10;
    flags = argc > 3 && !strcmp(argv[3], "global") ? RTLD_GLOBAL : RTLD_LOCAL;
    directory = argc > 4 ? argv[4] : NULL;
    pthread_t all[64];
    for (int i = 0; i < threads; i++) MUST(!pthread_create(&all[i], NULL, generations, (void *)(intptr_t)i));
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    /* What the program's own scope has now: nothing after RTLD_LOCAL. */
    printf("%d in scope\n", !!dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2"));
    return 0;
}
