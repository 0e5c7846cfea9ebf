/*
 * A load for the simulated GPU.
 *   load saturate KERNEL_US SECONDS      as many kernels as fit, queued deep
 *   load synceach KERNEL_US SECONDS      one kernel at a time, waited for
 *   load request KERNELS KERNEL_US PERIOD_MS COUNT
 *                                        COUNT requests, one every PERIOD_MS; prints each one's milliseconds, from its first launch
 *                                        until the program knows that it is done
 *   load launchbound ROUNDS              small kernels, sent slower than the GPU does them; prints the seconds it took
 */
#include <string.h>
#include <unistd.h>

#include "check.h"

static CUfunction kernel;
static CUstream stream;

static void start(double kernel_us) {
    char image[200];
    CUcontext context;
    CUmodule module;
    snprintf(image, sizeof image, "ration-sim-image 1\nkernel k time=%.0fns\n", kernel_us * 1000);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "k"));
}

static void launch(void) {
    OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
}

static void sync_stream(void) { OK(cuStreamSynchronize(stream)); }

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "saturate") && argc == 4) {
        start(atof(argv[2]));
        double end = now() + atof(argv[3]);
        while (now() < end)
            for (int i = 0; i < 32; i++) launch();
    } else if (!strcmp(mode, "synceach") && argc == 4) {
        start(atof(argv[2]));
        double end = now() + atof(argv[3]);
        while (now() < end) {
            launch();
            sync_stream();
        }
    } else if (!strcmp(mode, "request") && argc == 6) {
        int kernels = atoi(argv[2]), count = atoi(argv[5]);
        double period = atof(argv[4]) / 1000;
        start(atof(argv[3]));
        srand(1);
        for (int i = 0; i < count; i++) {
            /* Not in step with anything: a period that wanders by a fifth. */
            double begin = now(), next = begin + period * (0.9 + 0.2 * rand() / RAND_MAX);
            for (int k = 0; k < kernels; k++) launch();
            sync_stream();
            printf("%.4f\n", (now() - begin) * 1000);
            double left = next - now();
            if (left > 0) usleep(left * 1e6);
        }
    } else if (!strcmp(mode, "launchbound") && argc == 3) {
        start(5);
        double begin = now();
        for (int round = 0; round < atoi(argv[2]); round++) {
            double next = now() + 0.5e-3;
            for (int i = 0; i < 20; i++) launch();
            if (round % 20 == 19) sync_stream();
            double left = next - now();
            if (left > 0) usleep(left * 1e6);
        }
        sync_stream();
        printf("%.4f\n", now() - begin);
    } else {
        fprintf(stderr, "usage: see the top of load.c\n");
        return 2;
    }
    return 0;
}
