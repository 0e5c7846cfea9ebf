/* The kernels of the paths, in PTX. The simulated driver reads it too; what it cannot tell from it stands in comments. */
#include <string.h>

#include "path.h"

#define PTX ".version 8.0\n.target sm_80\n.address_size 64\n//ration-sim\n"

const char *base_image(void) {
    return PTX ".visible .entry empty() { ret; }\n"
               "//ration-sim touch touch\n"
               ".visible .entry touch(.param .u64 from, .param .u64 count) {\n"
               "    .reg .pred out;\n"
               "    .reg .b32 block, width, thread;\n"
               "    .reg .b64 i, n, at;\n"
               "    ld.param.u64 at, [from];\n"
               "    ld.param.u64 n, [count];\n"
               "    mov.u32 block, %ctaid.x;\n"
               "    mov.u32 width, %ntid.x;\n"
               "    mov.u32 thread, %tid.x;\n"
               "    mad.lo.u32 thread, block, width, thread;\n"
               "    cvt.u64.u32 i, thread;\n"
               "    setp.ge.u64 out, i, n;\n"
               "    @out bra done;\n"
               "    shl.b64 i, i, 16;\n"
               "    add.u64 at, at, i;\n"
               "    cvta.to.global.u64 at, at;\n"
               "    st.global.u32 [at], 1;\n"
               "done:\n"
               "    ret;\n"
               "}\n";
}

const char *heap_image(void) {
    return PTX ".extern .func (.param .b64 out) malloc(.param .b64 in);\n"
               ".visible .global .align 8 .u64 kept;\n"
               ".visible .entry heap() {\n"
               "    .reg .b64 at, bytes;\n"
               "    mov.u64 bytes, 64;\n"
               "    {\n"
               "        .param .b64 asked;\n"
               "        .param .b64 given;\n"
               "        st.param.b64 [asked], bytes;\n"
               "        call.uni (given), malloc, (asked);\n"
               "        ld.param.b64 at, [given];\n"
               "    }\n"
               "    st.global.u64 [kept], at;\n"
               "    ret;\n"
               "}\n";
}

/* Somebody else may have compiled it. */
static const char *file_image(const char *name) {
    static char *bytes;
    if (bytes) return bytes;
    FILE *file = fopen(name, "rb");
    MUST(file && !fseek(file, 0, SEEK_END));
    long size = ftell(file);
    rewind(file);
    bytes = calloc(1, (size_t)size + 1);
    MUST(bytes && fread(bytes, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    return bytes;
}

const char *big_image(void) {
    static char text[1024];
    const char *file = getenv("CAPS_BIG_IMAGE");
    if (file) return file_image(file);
    snprintf(text, sizeof text,
             PTX ".visible .global .align 4 .b8 big[%lu];\n"
                 ".visible .entry empty() { .reg .b64 at; mov.u64 at, big; st.global.u32 [at], 1; ret; }\n",
             BIG);
    return text;
}

/* A place in the array that depends on the clock, so that no compiler can do without the array. */
#define DEEP                                                                                                     \
    ".visible .entry deep%d() {\n"                                                                               \
    "    .local .align 4 .b8 room[%d];\n"                                                                        \
    "    .reg .b64 at, offset;\n"                                                                                \
    "    .reg .b32 x, y;\n"                                                                                      \
    "    mov.u32 x, %%clock;\n"                                                                                  \
    "    and.b32 x, x, 1020;\n"                                                                                  \
    "    mov.u64 at, room;\n"                                                                                    \
    "    cvt.u64.u32 offset, x;\n"                                                                               \
    "    add.u64 at, at, offset;\n"                                                                              \
    "    st.local.u32 [at], x;\n"                                                                                \
    "    ld.local.u32 y, [at+%d];\n"                                                                             \
    "    st.global.u32 [seen], y;\n"                                                                             \
    "    ret;\n"                                                                                                 \
    "}\n"

const char *deep_image(void) {
    static char text[DEEPEST * 512];
    size_t used = 0;
    if (*text) return text;
#define ADD(...) used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__)
    ADD(PTX ".visible .global .align 4 .u32 seen;\n");
    for (int i = 2; i <= DEEPEST; i++) ADD(DEEP, i, i * 1024, (i - 1) * 1024);
#undef ADD
    MUST(used < sizeof text);
    return text;
}
