/* Two GPUs in one process: sizes, copies from one to the other, order across them, and neither slows the other. */
#include <stdint.h>
#include <string.h>

#include "check.h"

static const char image[] = "ration-sim-image 1\nkernel long time=40ms\nkernel short time=1ms\n";

typedef struct {
    CUcontext context;
    CUstream stream;
    CUfunction kernel_long, kernel_short;
    CUdeviceptr memory;
} Gpu;

static Gpu start(CUdevice device) {
    Gpu gpu;
    CUmodule module;
    OK(cuDevicePrimaryCtxRetain(&gpu.context, device));
    OK(cuCtxSetCurrent(gpu.context));
    OK(cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&gpu.kernel_long, module, "long"));
    OK(cuModuleGetFunction(&gpu.kernel_short, module, "short"));
    OK(cuMemAlloc_v2(&gpu.memory, 4096));
    return gpu;
}

static void launch(Gpu *gpu, CUfunction kernel) {
    OK(cuCtxSetCurrent(gpu->context));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, gpu->stream, NULL, NULL));
}

int main(void) {
    int count, can;
    size_t first_total, second_total;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    MUST(count == 2);
    OK(cuDeviceTotalMem_v2(&first_total, 0));
    OK(cuDeviceTotalMem_v2(&second_total, 1));
    MUST(first_total > 79ul << 30 && second_total < 24ul << 30);
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    MUST(can == 1);
    Gpu a = start(0), b = start(1);

    /* A cap of its own: what does not fit the small one fits the large one. */
    CUdeviceptr big;
    MUST(cuMemAlloc_v2(&big, 40ul << 30) == CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxSetCurrent(a.context));
    OK(cuMemAlloc_v2(&big, 40ul << 30));
    OK(cuMemFree_v2(big));

    /* Bytes from one to the other. */
    char sent[4096], got[4096] = {0};
    memset(sent, 42, sizeof sent);
    OK(cuMemcpyHtoD_v2(a.memory, sent, sizeof sent));
    OK(cuCtxEnablePeerAccess(b.context, 0));
    OK(cuMemcpyPeer(b.memory, b.context, a.memory, a.context, sizeof sent));
    OK(cuCtxSetCurrent(b.context));
    OK(cuMemcpyDtoH_v2(got, b.memory, sizeof got));
    MUST(!memcmp(sent, got, sizeof sent));

    /* A long kernel on one does not hold up the other... */
    CUevent long_done, before, after;
    float ms;
    OK(cuEventCreate(&before, 0));
    OK(cuEventCreate(&after, 0));
    OK(cuCtxSetCurrent(a.context));
    OK(cuEventCreate(&long_done, 0));
    launch(&a, a.kernel_long);
    OK(cuEventRecord(long_done, a.stream));
    OK(cuCtxSetCurrent(b.context));
    OK(cuEventRecord(before, b.stream));
    launch(&b, b.kernel_short);
    OK(cuEventRecord(after, b.stream));
    OK(cuEventSynchronize(after));
    OK(cuEventElapsedTime(&ms, before, after));
    MUST(ms > 0.99 && ms < 1.5);
    MUST(cuEventQuery(long_done) == CUDA_ERROR_NOT_READY);
    /* ... unless it is told to wait. */
    OK(cuStreamWaitEvent(b.stream, long_done, 0));
    launch(&b, b.kernel_short);
    OK(cuStreamSynchronize(b.stream));
    MUST(cuEventQuery(long_done) == CUDA_SUCCESS);
    printf("two GPUs\n");
    return 0;
}
