/*
 * A driver in plain C, compiled to a libcuda.so.1 of its own: it has a handful of functions, counts their calls, and its
 * cuCtxSynchronize waits for ever where a thread can be cancelled. What NVIDIA's driver would let pass, a cancelled thread
 * or a jump out of a call, passes here, while the simulated driver, being of Rust, ends the process.
 * When the process ends it appends `PID SYMBOL COUNT` lines to the file $HOSTILE_TALLY.
 */
#include "hostile.h"

static unsigned long calls[9];
static const char *const names[] = {"cuInit",         "cuCtxCreate_v2",   "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel",
                                    "cuCtxSynchronize", "cuMemAlloc_v2", "cuMemFree_v2",     "cuMemGetInfo_v2"};
#define COUNT(number) __atomic_fetch_add(&calls[number], 1, __ATOMIC_RELAXED)

CUresult cuInit(unsigned flags) {
    COUNT(0);
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
    (void)flags, (void)device;
    COUNT(1);
    *out = (CUcontext)calls;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *out, const void *data) {
    (void)data;
    COUNT(2);
    *out = (CUmodule)calls;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    (void)module, (void)name;
    COUNT(3);
    *out = (CUfunction)calls;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra) {
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra;
    COUNT(4);
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) {
    COUNT(5);
    for (;;) pause();
}
CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    static CUdeviceptr next = 1ul << 40;
    COUNT(6);
    *at = __atomic_fetch_add(&next, (bytes + (2 * MIB - 1)) & -(2 * MIB), __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr at) {
    (void)at;
    COUNT(7);
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    COUNT(8);
    *free_bytes = *total = 1;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext unused) {
    (void)unused;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *out) {
    *out = (CUcontext)calls;
    return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *version) {
    *version = 12000;
    return CUDA_SUCCESS;
}


/* What a slice wants to know of a GPU. */
CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0x42 + device, sizeof *uuid);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = (16ul << 30) + device;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy_v2(CUcontext unused) {
    (void)unused;
    return CUDA_SUCCESS;
}

__attribute__((destructor)) static void say(void) {
    for (int i = 0; i < 9; i++)
        if (calls[i]) tally(names[i], (int)calls[i]);
}
