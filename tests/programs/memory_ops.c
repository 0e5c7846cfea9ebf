/*
 * Allocates and frees as it is told on its input ("a BYTES" or "f INDEX", the index of a live allocation), and prints after
 * each what all live allocations take of the device, in bytes; "x" begins anew with everything freed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"

#define MOST 4096

static CUdeviceptr live[MOST];
static int count;
static size_t at_first;

static size_t free_bytes(void) {
    size_t left, total;
    if (cuMemGetInfo_v2(&left, &total)) exit(1);
    return left;
}

int main(void) {
    CUcontext context;
    char what;
    size_t number;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    at_first = free_bytes();
    while (scanf(" %c %zu", &what, &number) == 2) {
        if (what == 'a' && count < MOST) {
            if (cuMemAlloc_v2(&live[count++], number)) return 1;
        } else if (what == 'f' && number < (size_t)count) {
            if (cuMemFree_v2(live[number])) return 1;
            live[number] = live[--count];
        } else {
            while (count) {
                if (cuMemFree_v2(live[--count])) return 1;
            }
        }
        printf("%zu\n", at_first - free_bytes());
    }
    return 0;
}
