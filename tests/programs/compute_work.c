/*
 * Work for a GPU, as much of it as it will take, in one of many shapes. Made for the simulated GPU.
 *   work SHAPE KERNEL_US SECONDS
 *     queue      kernels, queued deep
 *     visit      a kernel of 2 us and a copy of 8 bytes, waited for, twenty times; nothing for
 *                1.2 s; then kernels, 160 of them queued
 *     call       the same, with only three of the short ones
 *     sync       one kernel at a time, waited for
 *     streams    four streams, queued deep
 *     quarters   the same, where each kernel fills a quarter of the GPU
 *     threads    four threads, each with its own stream
 *     rush       the same with sixteen, which begin at the same moment
 *     graph      graphs of eight kernels
 *     copies     a kernel and two copies of a MiB, queued deep
 *     capture    as `queue`, and every now and then a graph is captured and launched
 *     batches    five hundred kernels, waited for
 *     twenty     twenty kernels, waited for
 *     unlike     four kernels, waited for; no two of them are alike
 *     serve      ten kernels, waited for; then nothing for 20 ms
 *     bursts     twenty kernels, waited for; then nothing for 150 ms
 *     ahead      twenty-five kernels and an event of its own, and so on; of these, no more than three are not waited for. A
 *                launch takes 15 us of the host's time
 *     poll       one kernel at a time, asked for until it is done
 *     slow       kernels that are launched more slowly than the GPU does them: 30 us of the host's time between two
 *     products   the same, sixteen at a time, with an event of its own behind 512, of which no more than three are not waited for;
 *                every 8 ms, about, there is something else to do for 3 to 7
 *     steps      as a network is trained: sixty kernels of a fortieth of the time, which take the host longer to launch than
 *                the GPU to do, and then twenty that do not; queued deep
 *     eager      as Python trains one, with kernels of sixty kinds: 200 for which the host takes longer than the GPU, 320 for
 *                which it takes a third as long; an event of its own behind these, and so on, of which no more than three are
 *                not waited for
 *     drowsy     the same on a slower host, which takes nine tenths as long for a step as the GPU
 *     shapes     sixteen kernels, waited for, which take the host 30 us each; no two of them are alike
 *     request    twenty kernels every 20 ms, waited for; prints `took MICROSECONDS` for each twenty
 * Prints `ready` before the work, and `done LAUNCHES` after it. Any wrong answer ends it with status 1.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static CUcontext context;
static CUfunction kernel, brief;
static double end;
static unsigned long launches;

static void launch(CUstream stream) {
    OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
    __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
}

static CUstream new_stream(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUgraphExec capture(CUstream stream, int kernels) {
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < kernels; i++)
        OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

/* `together`: begins when all others have come as far. */
static void *one_thread(void *together) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    if (together) pthread_barrier_wait(together);
    while (now() < end) launch(stream);
    OK(cuStreamSynchronize(stream));
    return NULL;
}

/* The host has something else to do for so many seconds; for most of a longer time, something that needs no processor. */
static void be_busy(double seconds) {
    double until = now() + seconds;
    if (seconds > 200e-6) usleep((seconds - 100e-6) * 1e6);
    while (now() < until) {}
}

/* So many launches and an event of its own, again and again; of these, no more than three are not waited for. So many are
 * launched at a time, and each takes so many seconds of the host's time; `pauses`: now and then it has something else to do for
 * some milliseconds. */
static void in_batches(CUstream stream, int launches_each, int at_a_time, double each, int pauses) {
    CUevent marks[3];
    for (int i = 0; i < 3; i++) OK(cuEventCreate(&marks[i], CU_EVENT_DISABLE_TIMING));
    for (unsigned long batch = 0; now() < end; batch++) {
        if (batch >= 3) OK(cuEventSynchronize(marks[batch % 3]));
        for (int i = 0; i < launches_each; i++) {
            if (i % at_a_time == 0) be_busy(at_a_time * each);
            if (pauses && i % 64 == 0 && rand() % 4 == 0) usleep(3000 + rand() % 4000);
            launch(stream);
        }
        OK(cuEventRecord(marks[batch % 3], stream));
    }
}

/* A step as Python makes it. One kernel in four, and then one in three, is long. */
static void eager_step(CUstream stream, double slower) {
    for (int i = 0; i < 520; i++) {
        int is_forward = i < 200, every = is_forward ? 4 : 3, kind = i % (is_forward ? 24 : 36);
        be_busy(slower * (is_forward ? 60e-6 : 20e-6));
        OK(cuLaunchKernel(i % every ? brief : kernel, 132 + kind, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
    }
    __atomic_fetch_add(&launches, 520, __ATOMIC_RELAXED);
}

int main(int argc, char **argv) {
    char image[200];
    CUmodule module;
    if (argc != 4) {
        fprintf(stderr, "usage: work SHAPE KERNEL_US SECONDS\n");
        return 2;
    }
    const char *shape = argv[1];
    double us = atof(argv[2]);
    int is_call = !strcmp(shape, "call"), is_visit = is_call || !strcmp(shape, "visit");
    double brief_ns = is_visit ? 2000 : us * 25;
    int is_in_quarters = !strcmp(shape, "quarters");
    const char *kernels = "ration-sim-image 1\nkernel k time=%.0fns width=%d%%\nkernel b time=%.0fns\n";
    snprintf(image, sizeof image, kernels, us * 1000, is_in_quarters ? 25 : 100, brief_ns);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "k"));
    OK(cuModuleGetFunction(&brief, module, "b"));
    CUstream stream = new_stream();
    puts("ready");
    fflush(stdout);
    end = now() + atof(argv[3]);
    if (!strcmp(shape, "queue")) {
        while (now() < end) launch(stream);
    } else if (is_visit) {
        CUdeviceptr place;
        OK(cuMemAlloc_v2(&place, 8));
        for (int i = 0; i < (is_call ? 3 : 20); i++) {
            char bytes[8];
            OK(cuLaunchKernel(brief, 132, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
            OK(cuStreamSynchronize(stream));
            OK(cuMemcpyDtoH_v2(bytes, place, sizeof bytes));
        }
        usleep(1200000);
        CUevent marks[160];
        for (int i = 0; i < 160; i++) OK(cuEventCreate(&marks[i], CU_EVENT_DISABLE_TIMING));
        for (unsigned long i = 0; now() < end; i++) {
            if (i >= 160) OK(cuEventSynchronize(marks[i % 160]));
            launch(stream);
            OK(cuEventRecord(marks[i % 160], stream));
        }
    } else if (!strcmp(shape, "sync")) {
        while (now() < end) {
            launch(stream);
            OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "batches")) {
        while (now() < end) {
            for (int i = 0; i < 500; i++) launch(stream);
            OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "twenty")) {
        while (now() < end) {
            for (int i = 0; i < 20; i++) launch(stream);
            OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "unlike")) {
        for (unsigned threads = 1; now() < end; launches += 4) {
            for (int i = 0; i < 4; i++)
                OK(cuLaunchKernel(kernel, 132, 1, 1, threads++ % 1024 + 1, 1, 1, 0, stream, NULL, NULL));
            OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "serve")) {
        for (; now() < end; usleep(20000)) {
            for (int i = 0; i < 10; i++) launch(stream);
            OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "bursts")) {
        for (; now() < end; usleep(150000)) {
            for (int i = 0; i < 20; i++) launch(stream);
            OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "ahead")) {
        in_batches(stream, 25, 1, 15e-6, 0);
    } else if (!strcmp(shape, "products")) {
        in_batches(stream, 512, 16, 30e-6, 1);
    } else if (!strcmp(shape, "poll")) {
        while (now() < end) {
            CUresult code;
            launch(stream);
            while ((code = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) usleep(20);
            OK(code);
        }
    } else if (!strcmp(shape, "slow")) {
        for (double next = now(); now() < end; launch(stream)) {
            while (now() < next) {}
            next = now() + 30e-6;
        }
    } else if (!strcmp(shape, "steps")) {
        while (now() < end) {
            for (int i = 0; i < 60; i++) {
                for (double next = now() + 30e-6; now() < next;) {}
                OK(cuLaunchKernel(brief, 132, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
            }
            for (int i = 0; i < 20; i++) launch(stream);
            launches += 60;
        }
    } else if (!strcmp(shape, "shapes")) {
        for (unsigned blocks = 1; now() < end; launches++) {
            be_busy(30e-6);
            OK(cuLaunchKernel(kernel, blocks++, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
            if (blocks % 16 == 0) OK(cuStreamSynchronize(stream));
        }
    } else if (!strcmp(shape, "eager") || !strcmp(shape, "drowsy")) {
        double slower = strcmp(shape, "eager") ? 1.35 : 1;
        CUevent marks[3];
        for (int i = 0; i < 3; i++) OK(cuEventCreate(&marks[i], CU_EVENT_DISABLE_TIMING));
        for (unsigned long step = 0; now() < end; step++) {
            if (step >= 3) OK(cuEventSynchronize(marks[step % 3]));
            eager_step(stream, slower);
            OK(cuEventRecord(marks[step % 3], stream));
        }
    } else if (!strcmp(shape, "request")) {
        for (double next = now(); now() < end; next += 0.02) {
            if (now() < next) usleep((next - now()) * 1e6);
            double began = now();
            for (int i = 0; i < 20; i++) launch(stream);
            OK(cuStreamSynchronize(stream));
            printf("took %.0f\n", (now() - began) * 1e6);
            fflush(stdout);
        }
    } else if (!strcmp(shape, "streams") || is_in_quarters) {
        CUstream streams[4];
        for (int i = 0; i < 4; i++) streams[i] = new_stream();
        for (int i = 0; now() < end; i++) launch(streams[i % 4]);
    } else if (!strcmp(shape, "threads")) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) MUST(!pthread_create(&threads[i], NULL, one_thread, NULL));
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(shape, "rush")) {
        pthread_t threads[16];
        pthread_barrier_t together;
        MUST(!pthread_barrier_init(&together, NULL, 16));
        for (int i = 0; i < 16; i++) MUST(!pthread_create(&threads[i], NULL, one_thread, &together));
        for (int i = 0; i < 16; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(shape, "graph")) {
        CUgraphExec exec = capture(stream, 8);
        while (now() < end) {
            OK(cuGraphLaunch(exec, stream));
            launches += 8;
        }
    } else if (!strcmp(shape, "copies")) {
        static char host[1 << 20];
        CUdeviceptr device;
        OK(cuMemAlloc_v2(&device, sizeof host));
        while (now() < end) {
            OK(cuMemcpyHtoDAsync_v2(device, host, sizeof host, stream));
            launch(stream);
            OK(cuMemcpyDtoHAsync_v2(host, device, sizeof host, stream));
        }
    } else if (!strcmp(shape, "capture")) {
        for (int i = 1; now() < end; i++) {
            launch(stream);
            if (i % 50 == 0) {
                CUgraphExec exec = capture(stream, 4);
                OK(cuGraphLaunch(exec, stream));
                OK(cuGraphExecDestroy(exec));
                launches += 4;
            }
        }
    } else {
        fprintf(stderr, "work: %s is no shape\n", shape);
        return 2;
    }
    OK(cuCtxSynchronize());
    printf("done %lu\n", launches);
    return 0;
}
