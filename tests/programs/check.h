/* For programs that know what must come out: anything else ends them, with the place. */
#ifndef RATION_CHECK_H
#define RATION_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_abi.h"

#define MIB (1ul << 20)
#define OK(call)                                                                         \
    do {                                                                                 \
        CUresult code_ = (call);                                                         \
        if (code_) {                                                                     \
            fprintf(stderr, "%s:%d: %s -> %d\n", __FILE__, __LINE__, #call, (int)code_); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)
#define MUST(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

/* Seconds of the host's clock. */
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

#endif
