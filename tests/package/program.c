/* Runs on a C library that may be very old or very new, with the package preloaded. What it is to do is its argument:
     idle            nothing; it does not touch the GPU
     calls           the driver's functions, by every way that leads to them, from a thread and from a child as well
     panic LIBRARY   a library linked as the package is catches a panic of its own
   With -DLINKED the driver is linked, otherwise it is opened. Prints what the driver (driver.c) received. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

#define CHECK(condition)                                                                                 \
    do {                                                                                                 \
        if (!(condition)) {                                                                              \
            fprintf(stderr, "program.c:%d: not so: %s (%s)\n", __LINE__, #condition, dlerror());         \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

static CUresult (*init)(unsigned);
static CUresult (*allocate)(CUdeviceptr *, size_t);
static CUresult (*resolve)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static void (*print)(void);

#ifdef LINKED
extern void driver_prints_what_it_received(void);
static void find(void) {
    init = cuInit;
    allocate = cuMemAlloc_v2;
    resolve = cuGetProcAddress_v2;
    print = driver_prints_what_it_received;
}
#else
static void find(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver);
    CHECK((init = (CUresult(*)(unsigned))dlsym(driver, "cuInit")));
    CHECK((allocate = (CUresult(*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2")));
    CHECK((resolve = (CUresult(*)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *))dlsym(
               driver, "cuGetProcAddress_v2")));
    CHECK((print = (void (*)(void))dlsym(driver, "driver_prints_what_it_received")));
    CHECK(!dlsym(driver, "cuMemCreate")); /* what a driver lacks, it still lacks */
    CHECK(dlerror());
}
#endif

/* The library that a function is in. */
static const char *home(void *function) {
    Dl_info info;
    CHECK(dladdr(function, &info) && info.dli_fname);
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void *take(void *times) {
    CUdeviceptr at = 0;
    for (intptr_t i = 0; i < (intptr_t)times; i++) CHECK(!allocate(&at, 4096) && at == 0x7000001000);
    return NULL;
}

static void calls(void) {
    pthread_t thread;
    void *release = NULL;
    find();
    CHECK(!init(0));
    take((void *)3);
    CHECK(!pthread_create(&thread, NULL, take, (void *)5) && !pthread_join(thread, NULL));
    CHECK(!resolve("cuMemFree", &release, 12000, 0, NULL) && release);
    CHECK(!((CUresult(*)(CUdeviceptr))release)(0x7000001000));
    CHECK(((CUresult(*)(CUdeviceptr))release)(1) == CUDA_ERROR_INVALID_VALUE);
    printf("cuInit in %s, cuMemFree in %s\n", home((void *)init), home(release));
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        take((void *)2);
        print();
        _exit(0); /* without destructors */
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    print();
}

static void panic(const char *library) {
    void *opened = dlopen(library, RTLD_NOW);
    CHECK(opened);
    int (*catches)(void) = (int (*)(void))dlsym(opened, "catches_its_panic");
    CHECK(catches && catches() == 42);
    puts("panic caught");
}

int main(int count, char **arguments) {
    printf("glibc %s\n", gnu_get_libc_version());
    if (count == 2 && !strcmp(arguments[1], "calls")) calls();
    if (count == 3 && !strcmp(arguments[1], "panic")) panic(arguments[2]);
    return 0;
}
