/* A driver of four functions, for C libraries that the simulated one is not built for. It counts its calls, and prints the
   counts in the form of a trace, so that the two can be compared as they are. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"

enum { INIT, ALLOC, FREE, RESOLVE, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"cuInit", "cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress_v2"};
static unsigned received[FUNCTIONS];
static int counted_for;

/* Refused calls as well: they arrived. */
static CUresult count(int function, CUresult answer) {
    if (counted_for != getpid()) memset(received, 0, sizeof received); /* a forked child */
    counted_for = getpid();
    __atomic_add_fetch(&received[function], 1, __ATOMIC_RELAXED);
    return answer;
}

CUresult cuInit(unsigned flags) { return count(INIT, flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS); }

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    *at = 0x7000000000 + bytes;
    return count(ALLOC, CUDA_SUCCESS);
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    return count(FREE, at < 0x7000000000 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    (void)version, (void)flags;
    *function = strcmp(symbol, "cuMemFree") ? NULL : (void *)(uintptr_t)cuMemFree_v2;
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return count(RESOLVE, *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

void driver_prints_what_it_received(void) {
    for (int i = 0; i < FUNCTIONS; i++)
        if (received[i]) printf("%d %s %u\n", getpid(), names[i], received[i]);
    fflush(stdout);
}
