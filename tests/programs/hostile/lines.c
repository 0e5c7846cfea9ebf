/* Eight threads make calls of many shapes, as fast as they can. */
#include "hostile.h"

static void *thread(void *unused) {
    (void)unused;
    CUstream stream;
    CUdeviceptr at;
    char bytes[64] = {0};
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 20; i++) {
        OK(cuMemAllocAsync(&at, 1 << 20, stream));
        OK(cuMemsetD8Async(at, i, 64, stream));
        OK(cuMemcpyDtoHAsync_v2(bytes, at, 64, stream));
        OK(cuLaunchKernel(kernel, 1, 2, 3, 4, 5, 6, 7, stream, NULL, NULL));
        OK(cuMemFreeAsync(at, stream));
        OK(cuStreamSynchronize(stream));
    }
    return NULL;
}

int main(void) {
    pthread_t threads[8];
    begin();
    for (int i = 0; i < 8; i++) MUST(!pthread_create(&threads[i], NULL, thread, NULL));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return 0;
}
