/*
 * CUDA in places with little room.
 *   signals timer SECONDS    a 1 kHz timer whose handler calls the driver while main and two threads work
 *   signals altstack BYTES   the process's first call is in a handler on a stack of so many bytes
 *   signals smallstack       threads with the smallest stack there is, their first calls
 *   signals cancel           a thread that waits in cuCtxSynchronize is cancelled
 *   signals jump             a handler jumps out of cuCtxSynchronize
 */
#include <limits.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "hostile.h"

static volatile unsigned long ticks;

/* cuInit once the driver runs, and with a bad argument at any time, is what takes no lock in it. */
static void tick(int unused) {
    (void)unused;
    int before = errno;
    if (cuInit(0) || cuInit(1) != CUDA_ERROR_INVALID_VALUE) _exit(41);
    CUcontext now_current;
    int version;
    if (cuCtxGetCurrent(&now_current) || cuDriverGetVersion(&version)) _exit(42);
    ticks++;
    errno = before;
}

static double end_time;

/* For as long as that is, and on a machine that stands still until there were enough interruptions. */
static void *worker(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    while (now() < end_time || (ticks <= 50 && now() < end_time + 20)) work(5);
    return NULL;
}

static void timer(double seconds) {
    begin();
    end_time = now() + seconds;
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    MUST(!sigaction(SIGALRM, &action, NULL));
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) MUST(!pthread_create(&threads[i], NULL, worker, NULL));
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    MUST(!setitimer(ITIMER_REAL, &often, NULL));
    worker(NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    MUST(!setitimer(ITIMER_REAL, &never, NULL));
    MUST(ticks > 50);
    printf("ticked\n");
}

static volatile int answered = -1;
static void first_in_handler(int unused) {
    (void)unused;
    answered = cuInit(1);
}

static void altstack(size_t bytes) {
    /* Below it is what cannot be touched, so that whoever goes too deep dies of it. */
    size_t below = 1 << 20;
    char *room = mmap(NULL, below + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(room != MAP_FAILED);
    MUST(!mprotect(room, below, PROT_NONE));
    room += below;
    memset(room, 0x5a, bytes);
    stack_t stack = {.ss_sp = room, .ss_size = bytes};
    MUST(!sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = first_in_handler, .sa_flags = SA_ONSTACK};
    MUST(!sigaction(SIGUSR1, &action, NULL));
    raise(SIGUSR1);
    MUST(answered == CUDA_ERROR_INVALID_VALUE);
    size_t untouched = 0;
    while (untouched < bytes && room[untouched] == 0x5a) untouched++;
    fprintf(stderr, "depth %zu\n", bytes - untouched);
    begin();
    printf("answered\n");
}

static void *small(void *unused) {
    (void)unused;
    size_t bytes;
    MUST(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_ERROR_NOT_INITIALIZED);
    return NULL;
}

static void smallstack(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    MUST(!pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        MUST(!pthread_create(&thread, &attributes, small, NULL));
        pthread_join(thread, NULL);
    }
    begin();
    printf("small stacks did\n");
}

static volatile int waiting;
static void *waits(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    waiting = 1;
    cuCtxSynchronize();
    return NULL;
}

static void cancel(void) {
    pthread_t thread;
    void *how;
    begin();
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 20; k++) cuLaunchKernel(slow_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        waiting = 0;
        MUST(!pthread_create(&thread, NULL, waits, NULL));
        while (!waiting) usleep(100);
        usleep(20000);
        MUST(!pthread_cancel(thread));
        MUST(!pthread_join(thread, &how));
        printf("%s\n", how == PTHREAD_CANCELED ? "cancelled" : "returned");
        fflush(stdout);
    }
    work(3);
}

static sigjmp_buf back;
static void jump_out(int unused) {
    (void)unused;
    siglongjmp(back, 1);
}

static void jump(void) {
    begin();
    struct sigaction action = {.sa_handler = jump_out};
    MUST(!sigaction(SIGALRM, &action, NULL));
    for (int i = 0; i < 5; i++) {
        struct itimerval soon = {{0, 0}, {0, 20000}};
        if (!sigsetjmp(back, 1)) {
            MUST(!setitimer(ITIMER_REAL, &soon, NULL));
            cuCtxSynchronize(); /* that of blocked.c never comes back */
            MUST(!"woken");
        }
        printf("jumped\n");
    }
    work(3);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "timer") && argc > 2) timer(atof(argv[2]));
    else if (!strcmp(mode, "altstack") && argc > 2) altstack(atol(argv[2]));
    else if (!strcmp(mode, "smallstack")) smallstack();
    else if (!strcmp(mode, "cancel")) cancel();
    else if (!strcmp(mode, "jump")) jump();
    else return 2;
    return 0;
}
