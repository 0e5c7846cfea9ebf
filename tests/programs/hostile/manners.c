/*
 * What a call leaves behind besides its answer, on the driver of blocked.c, which leaves nothing.
 *   manners errno      errno is as it was before, from the first call on
 *   manners dlerror    the error of the program's last failed look-up is still there after a call, and none comes with a
 *                      look-up that succeeds
 *   manners pointers   a function has one address, whichever way it is looked up
 *   manners mask       signals that the program blocked or not are as before
 */
#include "hostile.h"

static void *driver;

static void keeps_errno(void) {
    size_t free_bytes, total;
    CUdeviceptr at;
    for (int i = 0; i < 3; i++) {
        errno = 1234;
        OK(cuInit(0));
        MUST(errno == 1234);
        OK(cuMemAlloc_v2(&at, 7));
        MUST(errno == 1234);
        __typeof__(&cuMemGetInfo_v2) info = dlsym(driver, "cuMemGetInfo_v2");
        errno = 1234;
        OK(info(&free_bytes, &total));
        MUST(errno == 1234);
    }
}

static void keeps_dlerror(void) {
    CUdeviceptr at;
    dlerror();
    OK(cuInit(0));
    char *error = dlerror();
    if (error) fprintf(stderr, "after a call: %s\n", error);
    MUST(!error);
    MUST(!dlsym(driver, "no such thing"));
    OK(cuMemAlloc_v2(&at, 7)); /* the first of this function */
    error = dlerror();
    MUST(error && strstr(error, "no such thing"));
    static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchKernel", "cuDriverGetVersion"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        void *const handles[] = {driver, RTLD_DEFAULT, RTLD_NEXT};
        for (unsigned k = 0; k < 3; k++) {
            MUST(!dlsym(driver, "no such thing"));
            MUST(dlerror());
            MUST(dlsym(handles[k], names[i]));
            error = dlerror();
            if (error) fprintf(stderr, "%s found, and yet: %s\n", names[i], error);
            MUST(!error);
        }
        /* A failed look-up says which symbol and where. */
        MUST(!dlsym(driver, "cuMemAllocManaged"));
        error = dlerror();
        MUST(error && strstr(error, "cuMemAllocManaged") && strstr(error, "libcuda"));
    }
}

static void has_one_address(void) {
    static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "cuDriverGetVersion"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        void *at = dlsym(driver, names[i]);
        printf("%s: again %d, default %d, next %d\n", names[i], at == dlsym(driver, names[i]), at == dlsym(RTLD_DEFAULT, names[i]),
               at == dlsym(RTLD_NEXT, names[i]));
    }
}

static void keeps_mask(void) {
    sigset_t blocked, after;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    MUST(!sigprocmask(SIG_SETMASK, &blocked, NULL));
    OK(cuInit(0));
    MUST(!sigprocmask(SIG_SETMASK, NULL, &after));
    for (int number = 1; number < 32; number++) MUST(sigismember(&after, number) == (number == SIGUSR2));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(driver);
    if (!strcmp(mode, "errno")) keeps_errno();
    else if (!strcmp(mode, "dlerror")) keeps_dlerror();
    else if (!strcmp(mode, "pointers")) has_one_address();
    else if (!strcmp(mode, "mask")) keeps_mask();
    else return 2;
    return 0;
}
