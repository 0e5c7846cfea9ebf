/* Looks a driver's functions up by version: DRIVER_1 is what they have. */
#include "hostile.h"

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(driver);
    __typeof__(&cuInit) init = dlvsym(driver, "cuInit", "DRIVER_1");
    __typeof__(&cuMemGetInfo_v2) info = dlvsym(driver, "cuMemGetInfo_v2", "DRIVER_1");
    MUST(init && info);
    dlerror();
    printf("of another version: %s", dlvsym(driver, "cuInit", "DRIVER_2") ? "found" : "not found");
    printf(", %s\n", dlerror() ? "an error" : "no error");
    size_t free_bytes, total;
    for (int i = 0; i < 7; i++) OK(init(0));
    for (int i = 0; i < 9; i++) OK(info(&free_bytes, &total));
    return 0;
}
