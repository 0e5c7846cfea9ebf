/*
 * Makes the same calls on one of the ways to the driver, and prints what came back.
 *   ways plt | handle | default | next | vsym | procaddress | linked | plugin PATH
 * As a program it is linked to the driver, NVML and (with -DWITH_VIA) libvia. As a library (-DVIA) it is libvia or a plugin:
 * its function `via` does the same from there.
 */
#include "hostile.h"

typedef struct {
    __typeof__(&cuInit) init;
    __typeof__(&cuCtxCreate_v2) create;
    __typeof__(&cuMemAlloc_v2) take;
    __typeof__(&cuMemFree_v2) give;
    __typeof__(&cuModuleLoadData) load;
    __typeof__(&cuModuleGetFunction) function;
    __typeof__(&cuLaunchKernel) launch;
    __typeof__(&cuCtxSynchronize) wait;
    __typeof__(&cuCtxDestroy_v2) destroy;
    __typeof__(&nvmlInit_v2) nvml_init;
    __typeof__(&nvmlDeviceGetHandleByIndex_v2) nvml_device;
    __typeof__(&nvmlDeviceGetMemoryInfo) nvml_memory;
    __typeof__(&nvmlShutdown) nvml_shutdown;
} Ways;

static const char *const names[] = {
    "cuInit", "cuCtxCreate_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel",
    "cuCtxSynchronize", "cuCtxDestroy_v2", "nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo",
    "nvmlShutdown",
};
enum { NAMES = sizeof names / sizeof *names };
_Static_assert(sizeof(Ways) == NAMES * sizeof(void *), "a name for each way");

static void make_calls(const Ways *w) {
    CUdeviceptr at[20];
    CUmodule module;
    CUfunction f;
    OK(w->init(0));
    OK(w->create(&context, 0, 0));
    OK(w->load(&module, image));
    OK(w->function(&f, module, "k"));
    for (int i = 0; i < 20; i++) OK(w->take(&at[i], 1000));
    for (int i = 0; i < 30; i++) OK(w->launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(w->wait());
    for (int i = 0; i < 20; i++) OK(w->give(at[i]));
    nvmlDevice_t gpu;
    nvmlMemory_t memory;
    MUST(!w->nvml_init() && !w->nvml_device(0, &gpu));
    for (int i = 0; i < 5; i++) MUST(!w->nvml_memory(gpu, &memory));
    printf("%llu bytes used\n", (unsigned long long)memory.used);
    MUST(!w->nvml_shutdown());
    OK(w->destroy(context));
}

static void by_name(const char *way, Ways *ways) {
    void **all = (void **)ways;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    MUST(driver && nvml);
    for (int i = 0; i < NAMES; i++) {
        void *handle = !strncmp(names[i], "nvml", 4) ? nvml : driver;
        if (!strcmp(way, "handle")) all[i] = dlsym(handle, names[i]);
        if (!strcmp(way, "default")) all[i] = dlsym(RTLD_DEFAULT, names[i]);
        if (!strcmp(way, "next")) all[i] = dlsym(RTLD_NEXT, names[i]);
        /* The driver's symbols have no versions; whether one is found by a version all the same is for glibc to decide. */
        if (!strcmp(way, "vsym")) {
            all[i] = dlvsym(handle, names[i], "GLIBC_2.2.5");
            printf("%s %s\n", names[i], all[i] ? "found" : "not found");
            if (!all[i]) all[i] = dlsym(handle, names[i]);
        }
        if (!strcmp(way, "procaddress")) {
            if (handle == nvml) {
                all[i] = dlsym(handle, names[i]);
            } else {
                char base[64];
                snprintf(base, sizeof base, "%s", names[i]);
                if (strlen(base) > 3 && !strcmp(base + strlen(base) - 3, "_v2")) base[strlen(base) - 3] = 0;
                OK(cuGetProcAddress_v2(base, &all[i], 11000, 0, NULL));
            }
        }
        if (!all[i]) fprintf(stderr, "%s: %s is not found\n", way, names[i]);
        MUST(all[i]);
    }
}

static void go(const char *way) {
    Ways ways = {cuInit,   cuCtxCreate_v2,   cuMemAlloc_v2,   cuMemFree_v2, cuModuleLoadData,              cuModuleGetFunction,
                 cuLaunchKernel, cuCtxSynchronize, cuCtxDestroy_v2, nvmlInit_v2,  nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetMemoryInfo,
                 nvmlShutdown};
    if (strcmp(way, "plt")) by_name(way, &ways);
    make_calls(&ways);
}

#ifdef VIA
void via(const char *way) { go(way); }
#else
#ifdef WITH_VIA
void via(const char *way);
#endif

int main(int argc, char **argv) {
    const char *from = argc > 1 ? argv[1] : "";
    const char *way = argc > 2 ? argv[2] : "";
    if (!strcmp(from, "main")) {
        go(way);
#ifdef WITH_VIA
    } else if (!strcmp(from, "linked")) {
        via(way);
#endif
    } else if (!strcmp(from, "plugin") && argc > 3) {
        void *plugin = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
        if (!plugin) fprintf(stderr, "%s\n", dlerror());
        MUST(plugin);
        ((void (*)(const char *))dlsym(plugin, "via"))(way);
        MUST(!dlclose(plugin));
    } else {
        fprintf(stderr, "usage: see the top of ways.c\n");
        return 2;
    }
    return 0;
}
#endif
