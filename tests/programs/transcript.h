/* What the transcript programs share: how a call and its answer are written down, and something to launch. */
#ifndef RATION_TRANSCRIPT_H
#define RATION_TRANSCRIPT_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"

static const char sim_image[] =
    "ration-sim-image 1\n"
    "global table 4096\n"
    "kernel empty\n"
    "kernel two param=8,4\n"
    "kernel wait time=@0 param=8\n";

static const char ptx_image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .b8 table[4096];\n"
    ".visible .entry empty() { ret; }\n"
    ".visible .entry two(.param .u64 a, .param .u32 b) { ret; }\n"
    ".visible .entry wait(.param .u64 ns) { .reg .b64 s,e,d,n; .reg .pred p; ld.param.u64 n,[ns]; mov.u64 s,%globaltimer;\n"
    "L: mov.u64 e,%globaltimer; sub.u64 d,e,s; setp.lt.u64 p,d,n; @p bra L; ret; }\n";

#define MIB (1ul << 20)

static CUcontext primary;
static CUmodule module;
static CUfunction empty, two, wait_kernel;
static CUstream s, s2, blocking;
static CUevent e, e2;

/* A kernel that keeps its stream busy for so long. */
static CUresult busy(CUstream stream, uint64_t ms) {
    uint64_t ns = ms * 1000000;
    void *params[] = {&ns};
    return cuLaunchKernel(wait_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static CUresult launch(CUfunction f, CUstream stream) {
    uint64_t a = 0;
    uint32_t b = 0;
    void *params[] = {&a, &b};
    return cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

#endif
