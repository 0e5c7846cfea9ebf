/* What the driver-API programs share: checking, two kernels, and a checksum of what came back from the GPU. */
#ifndef RATION_GPU_H
#define RATION_GPU_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        CUresult code_ = (call);                                                                   \
        if (code_) {                                                                               \
            const char *name_ = NULL;                                                              \
            cuGetErrorName(code_, &name_);                                                         \
            fprintf(stderr, "%s:%d: %s -> %d %s\n", __FILE__, __LINE__, #call, (int)code_, name_); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define MUST(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

/* empty(): nothing. step(data, n, add): data[i] = data[i] * 1664525 + add + i, for i < n, one element per thread. */
static const char kernels[] = ".version 7.0\n"
                              ".target sm_52\n"
                              ".address_size 64\n"
                              ".visible .entry empty() { ret; }\n"
                              ".visible .entry step(.param .u64 p_data, .param .u32 p_n, .param .u32 p_add)\n"
                              "{\n"
                              "    .reg .pred out;\n"
                              "    .reg .b32 i, block, width, n, add, x;\n"
                              "    .reg .b64 data, place;\n"
                              "    ld.param.u64 data, [p_data];\n"
                              "    ld.param.u32 n, [p_n];\n"
                              "    ld.param.u32 add, [p_add];\n"
                              "    mov.u32 block, %ctaid.x;\n"
                              "    mov.u32 width, %ntid.x;\n"
                              "    mov.u32 i, %tid.x;\n"
                              "    mad.lo.u32 i, block, width, i;\n"
                              "    setp.ge.u32 out, i, n;\n"
                              "    @out bra done;\n"
                              "    cvta.to.global.u64 data, data;\n"
                              "    mul.wide.u32 place, i, 4;\n"
                              "    add.u64 place, data, place;\n"
                              "    ld.global.u32 x, [place];\n"
                              "    mad.lo.u32 x, x, 1664525, add;\n"
                              "    add.u32 x, x, i;\n"
                              "    st.global.u32 [place], x;\n"
                              "done:\n"
                              "    ret;\n"
                              "}\n";

/* Loads the kernels above, or what GPU_TEST_IMAGE names: a driver that takes no PTX has an image of its own. */
static inline CUmodule load_kernels(void) {
    static char other[1 << 16];
    const char *image = kernels, *path = getenv("GPU_TEST_IMAGE");
    if (path && *path) {
        FILE *file = fopen(path, "rb");
        MUST(file);
        MUST(fread(other, 1, sizeof other - 1, file) > 0);
        fclose(file);
        image = other;
    }
    CUmodule module;
    OK(cuModuleLoadData(&module, image));
    return module;
}

/* The first device's primary context, made current. */
static inline CUdevice begin(void) {
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    return device;
}

static inline uint64_t digest(const void *data, size_t size) {
    uint64_t hash = 14695981039346656037ull;
    for (const unsigned char *byte = data, *end = byte + size; byte < end; byte++)
        hash = (hash ^ *byte) * 1099511628211ull;
    return hash;
}

static inline void tell(const char *what, const void *data, size_t size) {
    printf("%-12s %016llx\n", what, (unsigned long long)digest(data, size));
    fflush(stdout);
}

#endif
