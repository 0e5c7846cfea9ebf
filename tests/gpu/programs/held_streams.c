/* What short kernels beside long ones cost, as they are launched and held back: speeds in per cent of those alone, for
 * docs/design/compute.md. Build: gcc -O2 -rdynamic held_streams.c -lcuda -lpthread
 *
 * A stream is held by a wait for a word of the host's, which a thread writes so often, or the program when it waits. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "channels.h"
#include "gpu.h"
#include "spin.h"

enum { PAGE = 4096, DEPTH = 16, MOST_HELD = 512, WIDE = 132 * 4, NARROW = 100 };
enum { NOT_HELD = 0, UNTIL_IT_WAITS = -1 }; /* otherwise microseconds */
enum kind { FILLS, WAITS_FOR_EACH, LAUNCHES_ON, WAITS_FOR_MANY };

static const struct program {
    const char *name;
    enum kind kind;
    double kernel_us, apart_us;
    int launches;
} programs[] = {
    {"kernels of 0.5 ms", FILLS, 500, 0, 0},
    {"kernels of 0.56 ms, waited for", WAITS_FOR_EACH, 560, 60, 0},
    {"a launch each 15.5 us", LAUNCHES_ON, 3, 15.5, 0},
    {"a launch each 22 us", LAUNCHES_ON, 2.8, 22, 0},
    {"150 launches, waited for", WAITS_FOR_MANY, 3.5, 25, 150},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* What all processes of a run see; the settings change from one measurement to the next. */
static struct shared {
    volatile int ready, stop, number;
    volatile long done[PROGRAMS];
    volatile double rounds_per_us;
    volatile int active[PROGRAMS], slice_us[PROGRAMS], hold[PROGRAMS];
} *all;

static CUfunction spin;
static CUdeviceptr out;
static CUstream stream;

static double now_us(void) { return rm_now() * 1e3; }
static void busy_until(double when) {
    while (now_us() < when) {}
}

static void start(void) {
    CUmodule module;
    begin();
    OK(cuModuleLoadData(&module, spin_image));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    OK(cuMemAlloc(&out, PAGE));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void launch(double us, int blocks) {
    uint64_t rounds = (uint64_t)(us * all->rounds_per_us) + 1;
    void *arguments[] = {&rounds, &out};
    OK(cuLaunchKernel(spin, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

static void calibrate(void) {
    CUevent a, b;
    float ms;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    all->rounds_per_us = 100;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 20; k++) launch(1000, WIDE);
        OK(cuEventRecord(a, stream));
        for (int k = 0; k < 10; k++) launch(1000, WIDE);
        OK(cuEventRecord(b, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuEventElapsedTime(&ms, a, b));
        all->rounds_per_us *= 10.0 / ms;
    }
}

/* ------------------------------------------------------------------------------------------------------ the word */
static volatile uint32_t *word;
static CUdeviceptr address;
static volatile uint32_t closed;
static volatile int is_closed, period_us;

static void make_word(void) {
    word = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    OK(cuMemHostRegister((void *)word, PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address, (void *)word, 0));
}
static void hold(void) {
    closed++;
    is_closed = 1;
    OK(cuStreamWaitValue32(stream, address, closed, CU_STREAM_WAIT_VALUE_GEQ));
}
static void let_go(void) {
    is_closed = 0;
    *word = closed;
}
static void *lets_go_now_and_then(void *unused) {
    while (!all->stop) {
        double period = period_us > 0 ? period_us : 1000, next = ((long)(now_us() / period) + 1) * period;
        struct timespec when = {(long)(next / 1e6), (long)next % 1000000 * 1000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
        if (period_us > 0 && is_closed) let_go();
    }
    return unused;
}

/* -------------------------------------------------------------------------------------------------- the programs */
static void step(int self, const struct program *it) {
    static CUevent marks[DEPTH];
    static long launched, held;
    int how = all->hold[self];
    switch (it->kind) {
    case FILLS:
        if (launched < DEPTH) OK(cuEventCreate(&marks[launched], CU_EVENT_DISABLE_TIMING));
        else OK(cuEventSynchronize(marks[launched % DEPTH]));
        launch(it->kernel_us, WIDE);
        OK(cuEventRecord(marks[launched++ % DEPTH], stream));
        break;
    case WAITS_FOR_EACH:
        launch(it->kernel_us, WIDE);
        OK(cuStreamSynchronize(stream));
        busy_until(now_us() + it->apart_us);
        break;
    case LAUNCHES_ON: {
        double began = now_us();
        if (how != NOT_HELD && !is_closed) hold(), held = 0;
        launch(it->kernel_us, NARROW);
        if (++held >= MOST_HELD && is_closed) let_go();
        busy_until(began + it->apart_us);
        break;
    }
    case WAITS_FOR_MANY:
        if (how != NOT_HELD) hold();
        for (int i = 0; i < it->launches; i++) {
            double began = now_us();
            launch(it->kernel_us, NARROW);
            busy_until(began + it->apart_us);
        }
        let_go();
        OK(cuStreamSynchronize(stream));
        break;
    }
    all->done[self]++;
}

static void run(int self) {
    pthread_t thread;
    cpu_set_t core;
    start();
    make_word();
    pthread_create(&thread, NULL, lets_go_now_and_then, NULL);
    CPU_ZERO(&core);
    CPU_SET(1 + self, &core);
    sched_setaffinity(0, sizeof core, &core); /* fewer cores: wherever there is one */
    __sync_fetch_and_add(&all->ready, 1);
    for (int number = 0; !all->stop;) {
        if (number != all->number) {
            number = all->number;
            let_go();
            OK(cuCtxSynchronize());
            rm_slice(all->slice_us[self]);
            period_us = all->hold[self] > 0 ? all->hold[self] : 0;
        }
        if (all->active[self]) step(self, &programs[self]);
        else usleep(500);
    }
    let_go();
    OK(cuCtxSynchronize());
}

/* Kernels that never run, behind a word that nobody writes. */
static void is_parked(int self) {
    (void)self;
    start();
    make_word();
    hold();
    for (int i = 0; i < 400; i++) launch(3, NARROW);
    __sync_fetch_and_add(&all->ready, 1);
    for (;;) pause();
}

static pid_t child(void (*body)(int), int self) {
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        body(self);
        exit(0);
    }
    return pid;
}

static double alone[PROGRAMS];
static void none(void) {
    for (int i = 0; i < PROGRAMS; i++) all->active[i] = 0, all->slice_us[i] = 2048, all->hold[i] = NOT_HELD;
}
static void with(int which, int slice_us, int how) {
    all->active[which] = 1, all->slice_us[which] = slice_us, all->hold[which] = how;
}
static void measure(const char *what) {
    long before[PROGRAMS];
    all->number++;
    usleep(250000);
    double began = now_us();
    for (int i = 0; i < PROGRAMS; i++) before[i] = all->done[i];
    usleep(800000);
    double seconds = (now_us() - began) / 1e6;
    printf("  %-24s", what);
    for (int i = 0; i < PROGRAMS; i++) {
        if (!all->active[i]) continue;
        double rate = (all->done[i] - before[i]) / seconds;
        if (!alone[i]) alone[i] = rate;
        printf("  %s: %.1f%%", programs[i].name, 100 * rate / alone[i]);
    }
    puts("");
    fflush(stdout);
}

static void beside(int long_one, const int *slices, int count, const char *how, int light, int other, int held) {
    char what[64];
    for (int i = 0; i < count; i++) {
        none();
        with(long_one, slices[i], NOT_HELD);
        with(light, 8192, held);
        if (other >= 0) with(other, 8192, held);
        snprintf(what, sizeof what, "slice %d us, %s", slices[i], how);
        measure(what);
    }
}

int main(void) {
    const int slices[] = {500, 1000, 2048, 4096}, long_slice[] = {30000};
    pid_t pids[PROGRAMS], parked[3];
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t first = fork();
    if (!first) {
        start();
        calibrate();
        exit(0);
    }
    waitpid(first, NULL, 0);
    none();
    for (int i = 0; i < PROGRAMS; i++) pids[i] = child(run, i);
    while (all->ready < PROGRAMS) usleep(1000);
    puts("alone:");
    for (int i = 0; i < PROGRAMS; i++) {
        none();
        with(i, 2048, NOT_HELD);
        measure(programs[i].name);
    }
    puts("beside kernels of 0.5 ms:");
    beside(0, slices, 4, "as they come", 2, -1, NOT_HELD);
    beside(0, slices, 4, "held for 4 ms", 2, -1, 4000);
    beside(0, slices, 4, "held for 8 ms", 2, -1, 8000);
    beside(0, slices, 4, "as they come", 4, -1, NOT_HELD);
    beside(0, slices, 4, "held until it waits", 4, -1, UNTIL_IT_WAITS);
    puts("beside kernels of 0.56 ms, each waited for:");
    beside(1, long_slice, 1, "as they come", 2, -1, NOT_HELD);
    beside(1, long_slice, 1, "held for 8 ms", 2, -1, 8000);
    beside(1, long_slice, 1, "as they come", 2, 3, NOT_HELD);
    beside(1, long_slice, 1, "held for 8 ms", 2, 3, 8000);
    beside(1, long_slice, 1, "as they come", 4, -1, NOT_HELD);
    beside(1, long_slice, 1, "held until it waits", 4, -1, UNTIL_IT_WAITS);
    puts("beside three whose streams wait:");
    all->ready = 0;
    for (int i = 0; i < 3; i++) parked[i] = child(is_parked, i);
    while (all->ready < 3) usleep(1000);
    for (int i = 0; i < 4; i++) {
        char what[64];
        none();
        with(0, slices[i], NOT_HELD);
        snprintf(what, sizeof what, "slice %d us", slices[i]);
        measure(what);
    }
    all->stop = 1;
    for (int i = 0; i < 3; i++) kill(parked[i], SIGKILL);
    for (int i = 0; i < PROGRAMS; i++) waitpid(pids[i], NULL, 0);
    return 0;
}
