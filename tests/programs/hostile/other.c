/*
 * Somebody else's preload library, in these variants:
 *   -DBY_NEXT      finds what it wraps by dlsym(RTLD_NEXT)
 *   -DBY_HANDLE    by dlopen("libcuda.so.1") and dlsym(handle), in every call
 *   -DBY_DLSYM     wraps dlsym itself, and hands out wrappers for what it wraps; finds the originals by RTLD_NEXT
 * With -DTWICE it allocates once more for itself in each allocation that it passes on, and frees that again.
 * Without more it refers to its own functions by names that another library may take over, as most do; -DBOUND binds them.
 * It says at exit what it saw: `NAME SYMBOL COUNT` lines, appended to the file $OTHER_SAYS.
 */
#include "hostile.h"

#ifndef NAME
#define NAME "other"
#endif

static unsigned long seen[5];

#ifdef BY_DLSYM
static void *(*real_dlsym)(void *, const char *);
static void *lookup(void *handle, const char *name) {
    if (!real_dlsym) real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return real_dlsym(handle, name);
}
#else
#define lookup dlsym
#endif

static void *original(const char *library, const char *name) {
#ifdef BY_HANDLE
    void *handle = dlopen(library, RTLD_LAZY);
    void *at = lookup(handle, name);
#else
    (void)library;
    void *at = lookup(RTLD_NEXT, name);
    if (!at) { /* a driver that was dlopened is in nobody's scope */
        void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) at = lookup(handle, name);
    }
#endif
    if (!at) {
        fprintf(stderr, NAME ": no original of %s\n", name);
        abort();
    }
    return at;
}

#define DRIVER "libcuda.so.1"
#define NVML "libnvidia-ml.so.1"

CUresult cuInit(unsigned flags) {
    __atomic_fetch_add(&seen[0], 1, __ATOMIC_RELAXED);
    return ((__typeof__(&cuInit))original(DRIVER, "cuInit"))(flags);
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    __atomic_fetch_add(&seen[1], 1, __ATOMIC_RELAXED);
    __typeof__(&cuMemAlloc_v2) take = original(DRIVER, "cuMemAlloc_v2");
#ifdef TWICE
    CUdeviceptr mine;
    __typeof__(&cuMemFree_v2) give = original(DRIVER, "cuMemFree_v2");
    CUresult code = take(&mine, 100);
    if (code || (code = give(mine))) return code;
#endif
    return take(at, bytes);
}

CUresult cuCtxSynchronize(void) {
    __atomic_fetch_add(&seen[4], 1, __ATOMIC_RELAXED);
    return ((__typeof__(&cuCtxSynchronize))original(DRIVER, "cuCtxSynchronize"))();
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra) {
    __atomic_fetch_add(&seen[2], 1, __ATOMIC_RELAXED);
    __typeof__(&cuLaunchKernel) launch = original(DRIVER, "cuLaunchKernel");
    return launch(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    __atomic_fetch_add(&seen[3], 1, __ATOMIC_RELAXED);
    return ((__typeof__(&nvmlDeviceGetMemoryInfo))original(NVML, "nvmlDeviceGetMemoryInfo"))(device, memory);
}

#ifdef BOUND
#define OWN(name) extern __typeof__(name) own_##name __attribute__((alias(#name), visibility("hidden")));
#else
#define OWN(name) static __typeof__(name) *const own_##name = name;
#endif

#ifdef BY_DLSYM
OWN(cuInit)
OWN(cuMemAlloc_v2)
OWN(cuLaunchKernel)
OWN(nvmlDeviceGetMemoryInfo)
OWN(cuCtxSynchronize)

void *dlsym(void *handle, const char *name) {
    if (!strcmp(name, "cuInit")) return (void *)own_cuInit;
    if (!strcmp(name, "cuMemAlloc_v2")) return (void *)own_cuMemAlloc_v2;
    if (!strcmp(name, "cuLaunchKernel")) return (void *)own_cuLaunchKernel;
    if (!strcmp(name, "nvmlDeviceGetMemoryInfo")) return (void *)own_nvmlDeviceGetMemoryInfo;
    if (!strcmp(name, "cuCtxSynchronize")) return (void *)own_cuCtxSynchronize;
    return lookup(handle, name);
}
#endif

__attribute__((destructor)) static void say(void) {
    static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "nvmlDeviceGetMemoryInfo",
                                        "cuCtxSynchronize"};
    const char *path = getenv("OTHER_SAYS");
    if (!path) return;
    FILE *file = fopen(path, "a");
    for (int i = 0; i < 5; i++) fprintf(file, NAME " %s %lu\n", names[i], seen[i]);
    fclose(file);
}
