/* What a look-up answered, in words that are the same in every process: which library the pointer leads into, which of its
 * exports begins there (with "+" behind the name of one that only begins before), and how far into the library that is. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define UNTOUCHED ((void *)0x5eed) /* in a pointer that is to be answered through, before the call */

static inline const char *last_part(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path ? path : "";
}

static inline const char *answer(void *pointer, char *buffer, size_t size) {
    Dl_info info;
    if (!pointer) return "null";
    if (pointer == UNTOUCHED) return "untouched";
    if (!dladdr(pointer, &info)) return "nowhere";
    snprintf(buffer, size, "%s:%s%s:%lx", last_part(info.dli_fname), info.dli_sname ? info.dli_sname : "",
             info.dli_saddr == pointer ? "" : "+", (unsigned long)((char *)pointer - (char *)info.dli_fbase));
    return buffer;
}
