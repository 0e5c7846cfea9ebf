/*
 * Programs that a pace may not survive, or that may not survive a pace. Made for the simulated GPU.
 *
 *   faults serve KERNEL_US     kernels, queued deep, until it is told on standard input, a word each line, to
 *     kill       kill itself
 *     stop       stop itself, as SIGSTOP does
 *     hang MS    launch a kernel of so many milliseconds, and go on
 *     fork       have a child that lives on, and go on
 *     orphan     have a child that lives on, and kill itself
 *     spawn      have a child that becomes another `serve`, which ends with it, and go on
 *     become     become a program that uses no GPU
 *     quit       end
 *   It does so right behind a launch, so in its turn; prints `now` before it does, and `quit` when all is done.
 *
 *   faults pause KERNEL_US     one kernel, a pause, and then kernels, queued deep, without an end
 *
 *   faults exit HOW            one thread is held up in a launch, and another ends the process after it has printed `now`:
 *     by `exit`, `_exit` or `return`; or it waits to be killed, for `wait`
 *
 *   faults SHAPE               a fixed amount of work, in an order that somebody who holds it up may make a deadlock of
 *   It prints `done`. Any wrong answer ends it with status 1.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "check.h"

static CUcontext context;
static CUfunction kernel;
static const char *self;

/* A kernel that takes so many microseconds. */
static void launch_for(CUstream stream, double us) {
    unsigned long ns = us * 1000;
    void *parameters[] = {&ns};
    OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

static void launch(CUstream stream) { launch_for(stream, 200); }

static CUstream new_stream(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUevent new_event(void) {
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static CUdeviceptr new_memory(size_t size) {
    CUdeviceptr memory;
    OK(cuMemAlloc_v2(&memory, size));
    return memory;
}

static void say(const char *line) {
    puts(line);
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------------------------- faults */

static char told[64];
static int is_told;

static void *listen(void *unused) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        while (__atomic_load_n(&is_told, __ATOMIC_ACQUIRE)) usleep(100);
        line[strcspn(line, "\n")] = 0;
        strcpy(told, line);
        __atomic_store_n(&is_told, 1, __ATOMIC_RELEASE);
    }
    return unused;
}

static void serve(double us, const char *us_text) {
    CUstream stream = new_stream();
    pthread_t listener;
    MUST(!pthread_create(&listener, NULL, listen, NULL));
    say("ready");
    for (;;) {
        launch_for(stream, us);
        if (!__atomic_load_n(&is_told, __ATOMIC_ACQUIRE)) continue;
        int is_quit = !strcmp(told, "quit");
        if (!is_quit) say("now");
        if (is_quit) {
            break;
        } else if (!strcmp(told, "kill")) {
            kill(getpid(), SIGKILL);
        } else if (!strcmp(told, "stop")) {
            kill(getpid(), SIGSTOP);
        } else if (!strncmp(told, "hang ", 5)) {
            launch_for(stream, atof(told + 5) * 1000);
        } else if (!strcmp(told, "fork") || !strcmp(told, "orphan")) {
            if (!fork()) {
                sleep(4);
                _exit(0);
            }
            if (told[0] == 'o') kill(getpid(), SIGKILL);
        } else if (!strcmp(told, "spawn")) {
            if (!fork()) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                execl(self, self, "serve", us_text, (char *)NULL);
                _exit(127);
            }
        } else if (!strcmp(told, "become")) {
            execl("/bin/sleep", "sleep", "4", (char *)NULL);
            _exit(127);
        } else {
            fprintf(stderr, "faults: told to %s\n", told);
            exit(2);
        }
        __atomic_store_n(&is_told, 0, __ATOMIC_RELEASE);
    }
    OK(cuCtxSynchronize());
    say("quit");
}

/* Who looks after it in the pause knows nothing yet of how long the kernel takes. */
static void pause_and_go_on(double us) {
    CUstream stream = new_stream();
    launch_for(stream, us);
    usleep(2000);
    say("ready");
    for (;;) launch_for(stream, us);
}

static void *launch_for_ever(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (;;) launch_for(stream, 5000);
    return unused;
}

static int end_by(const char *how) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) MUST(!pthread_create(&threads[i], NULL, launch_for_ever, NULL));
    usleep(250000);
    say("now");
    if (!strcmp(how, "exit")) exit(0);
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "wait")) pause();
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- orders */

/* So many kernels of 200 us are a shape's work. */
enum { KERNELS = 160, SIZE = 1 << 16 };
static int is_over;

static int over(void) { return __atomic_load_n(&is_over, __ATOMIC_ACQUIRE); }

/* Runs `work` beside `beside`, which goes on until the first is done. */
static void both(void *(*work)(void *), void *(*beside)(void *), int how_many_beside) {
    pthread_t first, others[8];
    MUST(!pthread_create(&first, NULL, work, NULL));
    for (int i = 0; i < how_many_beside; i++) MUST(!pthread_create(&others[i], NULL, beside, NULL));
    pthread_join(first, NULL);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < how_many_beside; i++) pthread_join(others[i], NULL);
}

static void *launches(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (int i = 0; i < KERNELS; i++) launch(stream);
    OK(cuStreamSynchronize(stream));
    return unused;
}

static void *synchronises(void *unused) {
    OK(cuCtxSetCurrent(context));
    while (!over()) {
        OK(cuCtxSynchronize());
        usleep(500);
    }
    return unused;
}

/* A copy through the legacy stream waits for all blocking streams, and they for it. */
static void *copies(void *unused) {
    static __thread char out[SIZE], back[SIZE];
    OK(cuCtxSetCurrent(context));
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    CUdeviceptr memory = new_memory(SIZE);
    for (int i = 0; i < 20; i++) {
        memset(out, i + 1, sizeof out);
        launch(stream);
        OK(cuMemcpyHtoD_v2(memory, out, sizeof out));
        launch(NULL);
        launch(stream);
        OK(cuMemcpyDtoH_v2(back, memory, sizeof back));
        MUST(!memcmp(out, back, sizeof out));
    }
    return unused;
}

static void *launches_until_over(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (int i = 0; !over(); i++) {
        launch(stream);
        if (i % 16 == 0) OK(cuStreamSynchronize(stream));
    }
    OK(cuStreamSynchronize(stream));
    return unused;
}

/* Data goes from stream to stream, each of which waits for an event of the one before. */
static void events(void) {
    enum { STREAMS = 4 };
    static char out[SIZE], back[SIZE];
    CUstream streams[STREAMS];
    CUevent ends[STREAMS];
    CUdeviceptr memories[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = new_stream();
        ends[i] = new_event();
        memories[i] = new_memory(SIZE);
    }
    for (int round = 0; round < KERNELS / STREAMS / 2; round++) {
        memset(out, round + 1, sizeof out);
        OK(cuMemcpyHtoDAsync_v2(memories[0], out, sizeof out, streams[0]));
        for (int i = 0; i < STREAMS; i++) {
            if (i > 0) {
                OK(cuStreamWaitEvent(streams[i], ends[i - 1], 0));
                OK(cuMemcpyDtoDAsync_v2(memories[i], memories[i - 1], SIZE, streams[i]));
            }
            launch(streams[i]);
            launch(streams[i]);
            OK(cuEventRecord(ends[i], streams[i]));
        }
        OK(cuMemcpyDtoHAsync_v2(back, memories[STREAMS - 1], sizeof back, streams[STREAMS - 1]));
        OK(cuStreamSynchronize(streams[STREAMS - 1]));
        MUST(!memcmp(out, back, sizeof out));
    }
}

/* Work that waits for what is launched after it: who holds up the second until the first is done waits for ever. */
static void later(void) {
    CUstream first = new_stream(), second = new_stream();
    CUdeviceptr flag = new_memory(4096);
    OK(cuMemsetD32_v2(flag, 0, 1));
    for (unsigned round = 1; round <= 3; round++) {
        OK(cuStreamWaitValue32_v2(first, flag, round, CU_STREAM_WAIT_VALUE_EQ));
        for (int i = 0; i < 10; i++) launch_for(first, 2000);
        for (int i = 0; i < 10; i++) launch_for(second, 2000);
        OK(cuStreamWriteValue32_v2(second, flag, round, 0));
        OK(cuCtxSynchronize());
    }
}

/* The same, where a function on the host waits for another thread's launches. */
static int host_may_go;

static void wait_on_the_host(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&host_may_go, __ATOMIC_ACQUIRE)) usleep(200);
}

static void *launches_and_lets_go(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (int i = 0; i < 20; i++) launch_for(stream, 1000);
    __atomic_store_n(&host_may_go, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    return unused;
}

static void host_function(void) {
    CUstream stream = new_stream();
    pthread_t other;
    launch(stream);
    OK(cuLaunchHostFunc(stream, wait_on_the_host, NULL));
    for (int i = 0; i < 10; i++) launch_for(stream, 1000);
    MUST(!pthread_create(&other, NULL, launches_and_lets_go, NULL));
    for (int i = 0; i < 10; i++) launch_for(stream, 1000);
    OK(cuCtxSynchronize());
    pthread_join(other, NULL);
}

/* Per-thread default streams, by the handle and by the functions that are made for them. */
extern CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                                    void **, void **);
extern CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void *, size_t);
extern CUresult cuMemcpyDtoH_v2_ptds(void *, CUdeviceptr, size_t);
extern CUresult cuStreamSynchronize_ptsz(CUstream);

static void *per_thread(void *unused) {
    static __thread char out[SIZE], back[SIZE];
    unsigned long ns = 200000;
    void *parameters[] = {&ns};
    OK(cuCtxSetCurrent(context));
    CUdeviceptr memory = new_memory(SIZE);
    for (int i = 0; i < KERNELS / 8; i++) {
        memset(out, i + 1, sizeof out);
        launch(CU_STREAM_PER_THREAD);
        OK(cuLaunchKernel_ptsz(kernel, 132, 1, 1, 1024, 1, 1, 0, NULL, parameters, NULL));
        if (i % 5 == 0) {
            OK(cuMemcpyHtoD_v2_ptds(memory, out, sizeof out));
            OK(cuMemcpyDtoH_v2_ptds(back, memory, sizeof back));
            MUST(!memcmp(out, back, sizeof out));
        }
    }
    OK(cuStreamSynchronize_ptsz(NULL));
    return unused;
}

/* Graphs are captured in the mode that forbids the most, while other threads are held up in launches. */
static void *captures(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream(), side = new_stream();
    CUevent fork = new_event(), join = new_event();
    for (int round = 0; round < 12; round++) {
        CUgraph graph;
        CUgraphExec exec;
        size_t nodes = 0;
        launch(stream);
        OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuEventRecord(fork, stream));
        OK(cuStreamWaitEvent(side, fork, 0));
        for (int i = 0; i < 3; i++) {
            launch(stream);
            usleep(500);
            launch(side);
        }
        OK(cuEventRecord(join, side));
        OK(cuStreamWaitEvent(stream, join, 0));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphGetNodes(graph, NULL, &nodes));
        MUST(nodes == 6);
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, stream));
        OK(cuGraphLaunch(exec, side));
        OK(cuGraphDestroy(graph));
        OK(cuGraphExecDestroy(exec));
    }
    OK(cuStreamSynchronize(stream));
    OK(cuStreamSynchronize(side));
    return unused;
}

static void *only_launches_until_over(void *unused) {
    OK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    while (!over()) launch(stream);
    OK(cuStreamSynchronize(stream));
    return unused;
}

int main(int argc, char **argv) {
    CUmodule module;
    if (argc < 2) return 2;
    const char *shape = argv[1];
    self = argv[0];
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, "ration-sim-image 1\nkernel k time=@0 param=8\n"));
    OK(cuModuleGetFunction(&kernel, module, "k"));
    if (!strcmp(shape, "serve") && argc == 3) {
        serve(atof(argv[2]), argv[2]);
        return 0;
    }
    if (!strcmp(shape, "pause") && argc == 3) pause_and_go_on(atof(argv[2]));
    if (!strcmp(shape, "exit") && argc == 3) return end_by(argv[2]);
    if (!strcmp(shape, "synchronise")) {
        both(launches, synchronises, 2);
    } else if (!strcmp(shape, "copy")) {
        both(copies, launches_until_over, 2);
    } else if (!strcmp(shape, "events")) {
        events();
    } else if (!strcmp(shape, "later")) {
        later();
    } else if (!strcmp(shape, "host")) {
        host_function();
    } else if (!strcmp(shape, "threads")) {
        both(launches, launches_until_over, 6);
    } else if (!strcmp(shape, "per-thread")) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) MUST(!pthread_create(&threads[i], NULL, per_thread, NULL));
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(shape, "capture")) {
        both(captures, only_launches_until_over, 3);
    } else {
        fprintf(stderr, "faults: %s is no shape\n", shape);
        return 2;
    }
    OK(cuCtxSynchronize());
    say("done");
    return 0;
}
