/*
 * Writes down every look-up of a driver or NVML function that a program makes, and what it was answered. Preloaded
 * before all else, so that the answers are those of everything behind it:
 *
 *   LD_PRELOAD="recorder.so libration.so" LOOKUPS=FILE program
 *
 * A line each, tab separated; an ANSWER is as answer.h writes it:
 *
 *   dlsym LIBRARY NAME ANSWER                              LIBRARY is the handle's, or "default" or "next"
 *   get1  NAME VERSION FLAGS RESULT - ANSWER               by cuGetProcAddress
 *   get2  NAME VERSION FLAGS RESULT STATUS ANSWER          by cuGetProcAddress_v2; STATUS is "-" if nobody asked for it
 */
#define _GNU_SOURCE
#include "answer.h"
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

typedef void *(*finder)(void *, const char *);
typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);

static get_v1 next_v1;
static get_v2 next_v2;

static void note(const char *line, int length) {
    static int file = -1;
    const char *path = getenv("LOOKUPS");
    if (file < 0) file = open(path ? path : "/dev/stderr", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (write(file, line, (size_t)length) != length) abort(); /* a look-up that is missing would not be missed */
}

#define NOTE(...)                                                 \
    do {                                                          \
        char line[1024];                                          \
        note(line, snprintf(line, sizeof line, __VA_ARGS__));     \
    } while (0)

static void *ours(void *found);

static int noted_v1(const char *name, void **function, int version, uint64_t flags) {
    char text[512];
    int result = next_v1(name, function, version, flags);
    const char *given = result ? "-" : answer(*function, text, sizeof text);
    NOTE("get1\t%s\t%d\t%d\t%d\t-\t%s\n", name, version, (int)flags, result, given);
    if (!result) *function = ours(*function);
    return result;
}

static int noted_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    char text[512], said[16] = "-";
    int result = next_v2(name, function, version, flags, status);
    if (status) snprintf(said, sizeof said, "%d", *status);
    const char *given = result ? "-" : answer(*function, text, sizeof text);
    NOTE("get2\t%s\t%d\t%d\t%d\t%s\t%s\n", name, version, (int)flags, result, said, given);
    if (!result) *function = ours(*function);
    return result;
}

/* What the program gets: the answer, unless that is a function by which it will look up others. */
static void *ours(void *found) {
    Dl_info info;
    if (!found || !dladdr(found, &info) || !info.dli_sname || info.dli_saddr != found) return found;
    if (!strcmp(info.dli_sname, "cuGetProcAddress")) {
        next_v1 = (get_v1)found;
        return (void *)noted_v1;
    }
    if (!strcmp(info.dli_sname, "cuGetProcAddress_v2")) {
        next_v2 = (get_v2)found;
        return (void *)noted_v2;
    }
    return found;
}

/* The dlsym behind this one. A library without symbol versions is passed over by dlvsym, so the C library's own is only
 * asked where the next is. */
static finder next_dlsym(void) {
    static finder next;
    if (!next) {
        finder any = (finder)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (!any) any = (finder)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        next = any ? (finder)any(RTLD_NEXT, "dlsym") : NULL;
        if (!next) abort();
    }
    return next;
}

static const char *library_of(void *handle) {
    struct link_map *map;
    if (handle == RTLD_DEFAULT) return "default";
    if (handle == RTLD_NEXT) return "next";
    return dlinfo(handle, RTLD_DI_LINKMAP, &map) ? "?" : last_part(map->l_name);
}

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    char text[512];
    int driver = !strncmp(name, "cu", 2) && name[2] >= 'A' && name[2] <= 'Z';
    if (!driver && strncmp(name, "nvml", 4)) return next_dlsym()(handle, name);
    void *found = next_dlsym()(handle, name);
    NOTE("dlsym\t%s\t%s\t%s\n", library_of(handle), name, answer(found, text, sizeof text));
    return ours(found);
}
