/*
 * Programs that end, fork or close what is not theirs while their channels are off. Made for the simulated GPU.
 *
 *   channels_faults fill              kernels of 0.5 ms, queued deep, without an end; prints `ready`
 *   channels_faults little            the same with 20 under way at most; SIGUSR2 stops it, right behind a launch
 *   channels_faults end HOW           that for 0.4 s; then it prints `now`, does this, and prints `done`:
 *     exit, return, _exit    ends
 *     destroy                destroys its context
 *     reset                  resets the primary context
 *   channels_faults fork              as `fill`, while child after child is forked and exits
 *   channels_faults close             closes every descriptor but the first three before its first launch, opens others in
 *                                     their places, and goes on as `fill`
 *   channels_faults ioctls            uses ioctl for its own ends, before and after it uses the GPU, and prints the answers
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static CUcontext context;
static CUfunction kernel;
static CUstream stream;

static void say(const char *line) {
    puts(line);
    fflush(stdout);
}

static void begin(int is_primary) {
    CUmodule module;
    OK(cuInit(0));
    if (is_primary) {
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
    } else {
        OK(cuCtxCreate_v2(&context, 0, 0));
    }
    OK(cuModuleLoadData(&module, "ration-sim-image 1\nkernel k time=500us\n"));
    OK(cuModuleGetFunction(&kernel, module, "k"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void launch(void) { OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL)); }

static void *fill(void *unused) {
    OK(cuCtxSetCurrent(context));
    for (;;) launch();
    return unused;
}

/* No more than 20 launches are under way, and none of them is waited for: this goes on while the channels are off. */
static volatile sig_atomic_t is_to_stop;

static void on_stop(int unused) {
    (void)unused;
    is_to_stop = 1;
}

static void fill_a_little(double until) {
    signal(SIGUSR2, on_stop);
    CUevent marks[20];
    for (int i = 0; i < 20; i++) OK(cuEventCreate(&marks[i], CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; now() < until; i++) {
        while (now() < until && i >= 20 && cuEventQuery(marks[i % 20]) == CUDA_ERROR_NOT_READY) usleep(100);
        launch();
        OK(cuEventRecord(marks[i % 20], stream));
        if (is_to_stop) kill(getpid(), SIGSTOP);
        is_to_stop = 0;
    }
}

static int end_by(const char *how) {
    say("ready");
    fill_a_little(now() + 0.4);
    say("now");
    if (!strcmp(how, "exit")) exit(0);
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "return")) return 0;
    OK(strcmp(how, "destroy") ? cuDevicePrimaryCtxReset_v2(0) : cuCtxDestroy_v2(context));
    say("done");
    return 0;
}

static void fork_and_fill(void) {
    pthread_t filler;
    MUST(!pthread_create(&filler, NULL, fill, NULL));
    say("ready");
    for (;;) {
        pid_t child = fork();
        MUST(child >= 0);
        if (!child) exit(0);
        int status;
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
        usleep(5000);
    }
}

static void close_all(void) {
    for (int i = 3; i < 1024; i++) close(i);
    for (int i = 0; i < 64; i++) MUST(open("/dev/null", O_RDWR) >= 0);
}

/* ------------------------------------------------------------------------------------------------------- ioctls */

static int ends[2];

static void answer(const char *when, const char *what, unsigned long request, void *argument) {
    errno = 77;
    int result = ioctl(ends[0], request, argument);
    printf("%s: %s: %d, errno %d\n", when, what, result, errno);
    fflush(stdout);
}

static void answers(const char *when) {
    int waiting = -1;
    struct winsize size;
    char words[64] = {0};
    answer(when, "FIONREAD", FIONREAD, &waiting);
    printf("%s: %d bytes\n", when, waiting);
    answer(when, "TIOCGWINSZ", TIOCGWINSZ, &size);
    answer(when, "FIOCLEX", FIOCLEX, NULL);
    /* The driver's requests on what is not the driver's. */
    answer(when, "allocate", _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2b, 48), words);
    answer(when, "free", _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x29, 16), words);
    answer(when, "control", _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2a, 32), words);
    answer(when, "free of nowhere", _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x29, 16), (void *)8);
    answer(when, "allocate nowhere", _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2b, 48), (void *)8);
    answer(when, "control without an argument", _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2a, 32), NULL);
    errno = 77;
    int result = ioctl(-1, FIONREAD, &waiting);
    printf("%s: no descriptor: %d, errno %d\n", when, result, errno);
    fflush(stdout);
}

static void on_signal(int unused) {
    (void)unused;
    answers("in a signal handler");
}

static void *in_a_thread(void *when) {
    answers(when);
    return NULL;
}

static void everywhere(char *when) {
    pthread_t thread;
    answers(when);
    raise(SIGUSR1);
    pid_t child = fork();
    if (!child) {
        answers("in a child");
        raise(SIGUSR1);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0) == child);
    MUST(!pthread_create(&thread, NULL, in_a_thread, "in a thread"));
    pthread_join(thread, NULL);
}

static void ioctls(void) {
    MUST(!pipe(ends) && write(ends[1], "bytes", 5) == 5);
    signal(SIGUSR1, on_signal);
    everywhere("at first");
    begin(1);
    for (int i = 0; i < 200; i++) launch();
    everywhere("with work under way");
    OK(cuCtxSynchronize());
    everywhere("at last");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "ioctls")) {
        ioctls();
        return 0;
    }
    begin(argc < 3 || strcmp(argv[2], "destroy"));
    if (!strcmp(what, "end") && argc == 3) return end_by(argv[2]);
    if (!strcmp(what, "fork")) fork_and_fill();
    if (!strcmp(what, "close")) close_all();
    say("ready");
    if (!strcmp(what, "little")) {
        fill_a_little(now() + 60);
        return 0;
    }
    fill(NULL);
    return 0;
}
