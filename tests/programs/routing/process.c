/* What libc has and the shim stands in front of: "look" looks up the look-up itself and asks that; "HOW used" and
 * "HOW unused" end the program, having used the driver or not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_owner(void *at) {
    Dl_info info;
    if (!at || !dladdr(at, &info) || info.dli_saddr != at) printf(" %s", at ? "?" : "-");
    else printf(" %s:%s", strrchr(info.dli_fname, '/') + 1, info.dli_sname);
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *libc = dlopen("libc.so.6", RTLD_NOW);
    if (!driver || !libc) return 2;
    if (strcmp(argv[1], "look") == 0) {
        static const char *const names[] = {"default", "next", "libc", "libcuda"};
        void *where[] = {RTLD_DEFAULT, RTLD_NEXT, libc, driver};
        for (int i = 0; i < 8; i++) {
            void *(*versioned)(void *, const char *, const char *) = dlsym(where[i / 2], "dlvsym");
            void *(*look)(void *, const char *) = dlsym(where[i / 2], "dlsym");
            if (i % 2) look = versioned(libc, "dlsym", "GLIBC_2.2.5");
            printf(i % 2 ? "libc by dlvsym of %s:" : "%s:", names[i / 2]);
            print_owner(look(driver, "cuMemAlloc_v2"));
            print_owner(look(driver, "cuMemHostAlloc"));
            puts("");
        }
        return 0;
    }
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    if (strcmp(argv[2], "used") == 0) init(0);
    printf("flushed");
    if (strcmp(argv[1], "_exit") == 0) _exit(43);
    if (strcmp(argv[1], "_Exit") == 0) _Exit(43);
    if (strncmp(argv[1], "dlsym ", 6) == 0) ((void (*)(int))dlsym(RTLD_DEFAULT, argv[1] + 6))(43);
    exit(43);
}
