/*
 * Never touches CUDA. Says what is in the process that it did not ask for: libraries of the driver, threads, open files.
 * With -DLINKED it is linked to the driver, and still does not call it.
 */
#include <dirent.h>

#include "hostile.h"

static int entries(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    MUST(directory);
    for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
    closedir(directory);
    return count - (strstr(path, "fd") ? 1 : 0);
}

int main(void) {
#ifdef LINKED
    MUST(cuLaunchKernel);
#endif
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int driver = 0, shim = 0;
    MUST(maps);
    while (fgets(line, sizeof line, maps)) {
        driver |= strstr(line, "libcuda") || strstr(line, "libnvidia-ml");
        shim |= !!strstr(line, "libration.so");
    }
    fclose(maps);
    printf("driver %d, threads %d, descriptors %d\n", driver, entries("/proc/self/task"), entries("/proc/self/fd"));
    fprintf(stderr, "shim %d\n", shim);
    struct sigaction action;
    for (int number = 1; number < 32; number++)
        if (!sigaction(number, NULL, &action) && action.sa_handler != SIG_DFL) printf("signal %d is handled\n", number);
    /* A look-up by a program that is no client. */
    dlerror();
    MUST(dlsym(RTLD_DEFAULT, "printf"));
    MUST(!dlsym(RTLD_DEFAULT, "no such thing") && dlerror());
    void *math = dlopen("libm.so.6", RTLD_NOW);
    MUST(math && dlsym(math, "cos") && !dlvsym(math, "cos", "GLIBC_9.9") && dlerror());
    MUST(!dlclose(math));
    return 0;
}
