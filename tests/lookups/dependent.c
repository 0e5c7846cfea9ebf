/* A library that is linked to the driver and to NVML, as many a framework is: both come with it, and it sees them where
 * the program that loaded it for itself alone does not. It asks for symbols from its own place. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void *dependent_asks_default(const char *name) {
    void *volatile found = dlsym(RTLD_DEFAULT, name); /* volatile: a call, not a jump, so that this library is the caller */
    return found;
}

void *dependent_asks_next(const char *name) {
    void *volatile found = dlsym(RTLD_NEXT, name);
    return found;
}
