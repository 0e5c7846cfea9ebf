/*
 * Meets a driver that has less than it was linked to.
 *   lacking look     finds what there is by every look-up, and nothing for what there is not
 *   lacking call     calls what there is not: only a library in between can answer that
 */
#include "hostile.h"

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "call")) {
        CUdeviceptr at;
        OK(cuInit(0));
        printf("cuMemAllocManaged %d\n", (int)cuMemAllocManaged(&at, 1, 1));
        return 0;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(driver);
    static const char *const all[] = {"cuInit", "cuLaunchKernel", "cuMemAllocManaged", "cuMemcpy", "cuDriverGetVersion", "cuCtxPushCurrent"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        dlerror();
        void *at = dlsym(driver, all[i]);
        char *error = dlerror();
        printf("%s %s, %s\n", all[i], at ? "found" : "not found", error ? "an error" : "no error");
        at = dlsym(RTLD_DEFAULT, all[i]);
        error = dlerror();
        printf("%s %s by default, %s\n", all[i], at ? "found" : "not found", error ? "an error" : "no error");
    }
    return 0;
}
