/*
 * 64 threads make a process's very first calls at one moment, each on its own way to the driver. Not linked to it at all
 * (the driver comes with the first dlopen), or linked with -DLINKED.
 */
#include "hostile.h"

enum { THREADS = 64 };
static pthread_barrier_t barrier;

static void *load(const char *name) {
    void *handle = dlopen(name, RTLD_NOW);
    MUST(handle);
    return handle;
}

static void *racer(void *which) {
    int way = (int)(intptr_t)which % 4;
    pthread_barrier_wait(&barrier);
    __typeof__(&cuInit) init = NULL;
#ifdef LINKED
    if (way == 0) init = cuInit;
    if (way == 1) init = dlsym(RTLD_DEFAULT, "cuInit");
#else
    if (way < 2) init = dlsym(load("libcuda.so.1"), "cuInit");
#endif
    if (way == 2) {
        __typeof__(&cuGetProcAddress_v2) look = dlsym(load("libcuda.so.1"), "cuGetProcAddress_v2");
        MUST(look);
        OK(look("cuInit", (void **)&init, 12000, 0, NULL));
    }
    if (way == 3) {
        void *nvml = load("libnvidia-ml.so.1");
        __typeof__(&nvmlInit_v2) start = dlsym(nvml, "nvmlInit_v2");
        __typeof__(&nvmlDeviceGetHandleByIndex_v2) device = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
        __typeof__(&nvmlDeviceGetUtilizationRates) rates = dlsym(nvml, "nvmlDeviceGetUtilizationRates");
        nvmlDevice_t gpu;
        nvmlUtilization_t use;
        MUST(start && device && rates);
        MUST(!start() && !device(0, &gpu) && !rates(gpu, &use));
        init = dlsym(load("libcuda.so.1"), "cuInit");
    }
    MUST(init);
    OK(init(0));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    MUST(!pthread_barrier_init(&barrier, NULL, THREADS));
    for (int i = 0; i < THREADS; i++) MUST(!pthread_create(&threads[i], NULL, racer, (void *)(intptr_t)i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("%d\n", THREADS);
    return 0;
}
