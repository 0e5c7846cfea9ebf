/* For programs that write down what a driver answers, call by call. */
#ifndef RATION_ANSWERS_H
#define RATION_ANSWERS_H

#include <stdio.h>

#include "cuda_abi.h"

#define SECTION(name) printf("\n[%s]\n", name)
/* A call and its code. */
#define T(call) printf("%s -> %d\n", #call, (int)(call))
/* The same with values, if it went well. */
#define V(call, format, ...)                         \
    do {                                             \
        int code_ = (int)(call);                     \
        printf("%s -> %d", #call, code_);            \
        if (!code_) printf(" " format, __VA_ARGS__); \
        printf("\n");                                \
    } while (0)

#endif
