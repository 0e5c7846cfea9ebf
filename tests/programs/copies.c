/* What copies and fills of 64 MiB take on the GPU's clock, in ms: to the device, from it, inside it, a fill. */
#include "check.h"

#define SIZE (64 * MIB)

int main(void) {
    CUcontext context;
    CUstream stream;
    CUevent before, after;
    CUdeviceptr a, b;
    void *host;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&before, 0));
    OK(cuEventCreate(&after, 0));
    OK(cuMemAlloc_v2(&a, SIZE));
    OK(cuMemAlloc_v2(&b, SIZE));
    OK(cuMemHostAlloc(&host, SIZE, 0));
    for (int which = 0; which < 4; which++) {
        float ms;
        OK(cuEventRecord(before, stream));
        switch (which) {
        case 0: OK(cuMemcpyHtoDAsync_v2(a, host, SIZE, stream)); break;
        case 1: OK(cuMemcpyDtoHAsync_v2(host, a, SIZE, stream)); break;
        case 2: OK(cuMemcpyDtoDAsync_v2(b, a, SIZE, stream)); break;
        default: OK(cuMemsetD8Async(a, 1, SIZE, stream));
        }
        OK(cuEventRecord(after, stream));
        OK(cuEventSynchronize(after));
        OK(cuEventElapsedTime(&ms, before, after));
        printf("%.4f\n", ms);
    }
    return 0;
}
