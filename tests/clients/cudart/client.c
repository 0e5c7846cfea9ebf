/*
 * NVIDIA's CUDA runtime on the simulated GPU: loads a libcudart, calls it, and writes down what it asks the driver for.
 *
 * usage: client LIBCUDART
 *
 * The runtime finds the driver by dlopen and dlsym. This program exports a dlsym of its own, which the runtime's calls
 * reach first: what it is given are the driver's functions, but for cuGetProcAddress and cuGetExportTable, which go
 * through us and are noted. A line each:
 *
 *   symbol  NAME found|missing                              looked up by dlsym in the driver
 *   lookup  NAME VERSION FLAGS RESULT STATUS EXPORT         by cuGetProcAddress; STATUS and EXPORT may be "-"
 *   table   UUID RESULT                                     by cuGetExportTable
 *   call    FUNCTION RESULT NAME [VALUE]                    of the runtime, made by us
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);
typedef int (*get_table)(const void **, const unsigned char[16]);

static get_v1 real_v1;
static get_v2 real_v2;
static get_table real_table;

static void *ours(void *real);

static const char *export_of(void *function) {
    Dl_info info;
    return function && dladdr(function, &info) && info.dli_sname ? info.dli_sname : "-";
}

static int traced_v1(const char *name, void **function, int version, uint64_t flags) {
    int result = real_v1(name, function, version, flags);
    printf("lookup\t%s\t%d\t%d\t%d\t-\t%s\n", name, version, (int)flags, result, result ? "-" : export_of(*function));
    if (!result) *function = ours(*function);
    return result;
}

static int traced_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    int found = -1;
    int result = real_v2(name, function, version, flags, &found);
    if (status) *status = found;
    printf("lookup\t%s\t%d\t%d\t%d\t%d\t%s\n", name, version, (int)flags, result, found, result ? "-" : export_of(*function));
    if (!result) *function = ours(*function);
    return result;
}

static int traced_table(const void **table, const unsigned char uuid[16]) {
    int result = real_table(table, uuid);
    printf("table\t");
    for (int i = 0; i < 16; i++) printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    printf("\t%d\n", result);
    return result;
}

/* What the runtime gets in place of a function of the driver: that one, or ours that calls it. */
static void *ours(void *real) {
    const char *export = export_of(real);
    if (!strcmp(export, "cuGetProcAddress")) {
        real_v1 = (get_v1)real;
        return (void *)traced_v1;
    }
    if (!strcmp(export, "cuGetProcAddress_v2")) {
        real_v2 = (get_v2)real;
        return (void *)traced_v2;
    }
    if (!strcmp(export, "cuGetExportTable")) {
        real_table = (get_table)real;
        return (void *)traced_table;
    }
    return real;
}

typedef void *(*finder)(void *, const char *);

/* The dlsym behind ours: a preloaded library's, if there is one. dlvsym passes over those, which have no symbol
 * versions, so what it finds is only asked where the next one is. */
static void *real_dlsym(void *handle, const char *name) {
    static finder function;
    if (!function) {
        finder any = (finder)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (!any) any = (finder)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
        function = (finder)any(RTLD_NEXT, "dlsym");
    }
    return function(handle, name);
}

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    void *found = real_dlsym(handle, name);
    if (name[0] != 'c' || name[1] != 'u' || !strncmp(name, "cuda", 4)) return found;
    printf("symbol\t%s\t%s\n", name, found ? "found" : "missing");
    return ours(found);
}

static void *runtime;

static void *function_of_runtime(const char *name) {
    void *found = real_dlsym(runtime, name);
    if (!found) {
        fprintf(stderr, "the runtime has no %s\n", name);
        exit(2);
    }
    return found;
}

static void said(const char *function, int result) {
    const char *(*name)(int) = (const char *(*)(int))function_of_runtime("cudaGetErrorName");
    printf("call\t%s\t%d\t%s", function, result, name(result));
}

static void asks_for_a_number(const char *function) {
    int value = -1;
    int result = ((int (*)(int *))function_of_runtime(function))(&value);
    said(function, result);
    printf("\t%d\n", value);
}

int main(int argc, char **argv) {
    void *pointer = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: client LIBCUDART\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* so that a crash loses nothing */
    runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!runtime) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    asks_for_a_number("cudaRuntimeGetVersion");
    asks_for_a_number("cudaDriverGetVersion");
    asks_for_a_number("cudaGetDeviceCount");
    asks_for_a_number("cudaGetDeviceCount");
    said("cudaFree", ((int (*)(void *))function_of_runtime("cudaFree"))(NULL));
    putchar('\n');
    said("cudaMalloc", ((int (*)(void **, size_t))function_of_runtime("cudaMalloc"))(&pointer, 1 << 20));
    putchar('\n');
    said("cudaStreamCreate", ((int (*)(void **))function_of_runtime("cudaStreamCreate"))(&pointer));
    putchar('\n');
    said("cudaDeviceSynchronize", ((int (*)(void))function_of_runtime("cudaDeviceSynchronize"))());
    putchar('\n');
    said("cudaGetLastError", ((int (*)(void))function_of_runtime("cudaGetLastError"))());
    putchar('\n');
    asks_for_a_number("cudaDriverGetVersion");
    return 0; /* and let the runtime clean up after itself */
}
