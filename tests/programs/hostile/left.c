/*
 * Calls of the driver that a program leaves without returning from them, and what it can do afterwards.
 *   left cancel HOW     threads are cancelled in a call, `deferred` or `anywhere`: waiting, launching, taking and giving back memory
 *   left first HOW      processes, one after the other, each of which cancels one thread at some moment of its calls
 *   left held           a handler jumps out of launches that wait at a limit
 *   left jump WHERE     a handler jumps out of a wait; from then on memory is asked for in the same frame (`here`), in one far
 *                       below (`deep`), on a stack of its own (`aside`), or by a handler on such a stack (`handler`)
 *   left context        a handler goes to another stack (setcontext) and never comes back
 *   left often          a handler jumps out of whatever the program does, again and again
 *   left inside WHERE   no jump: a handler takes memory while a wait goes on, on the same stack (`here`) or on its own (`aside`)
 *   left end            a handler ends its thread (pthread_exit) in a wait. Needs a driver through which that can be done
 * Then it takes all the memory that it is given, a little at a time, and says `full` and how much it was told that it holds; when it
 * has read a line it gives all of that back, makes a context and lets it go, and says `empty` and how much it is told then.
 */
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include "hostile.h"

#define PIECE (16 * MIB)
#define MOST 4096

static CUdeviceptr pieces[MOST];
static int count;

static size_t told(void) {
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return total - free_bytes;
}

static void fill(void) {
    CUresult result = CUDA_SUCCESS;
    while (count < MOST && !(result = cuMemAlloc_v2(&pieces[count], PIECE))) count++;
    MUST(result == CUDA_ERROR_OUT_OF_MEMORY);
    printf("full %zu\n", told());
    fflush(stdout);
}

static void rest(void) {
    char line[16];
    CUcontext other;
    if (!fgets(line, sizeof line, stdin)) exit(3);
    while (count > 0) OK(cuMemFree_v2(pieces[--count]));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxSetCurrent(context));
    printf("empty %zu\n", told());
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(3);
}

/* A tenth of a second of work. */
static void keep_busy(void) {
    for (int i = 0; i < 3; i++) OK(cuLaunchKernel(slow_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void after(long microseconds, int again) {
    struct itimerval timer = {{0, again ? microseconds : 0}, {0, microseconds}};
    MUST(!setitimer(ITIMER_REAL, &timer, NULL));
}

static void handle(void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(!sigaction(SIGALRM, &action, NULL));
}

static void use_signal_stack(void) {
    size_t bytes = 256 << 10;
    stack_t stack = {.ss_sp = malloc(bytes), .ss_size = bytes};
    MUST(stack.ss_sp && !sigaltstack(&stack, NULL));
}

/* ------------------------------------------------------------------------------------------------------- cancel */

static int is_anywhere;
static volatile int begun;
enum { WAITS, LAUNCHES, ALLOCATES, KINDS };

static void *victim(void *kind) {
    int before;
    OK(cuCtxSetCurrent(context));
    if (is_anywhere) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    begun = 1;
    for (;;) {
        if ((long)kind == WAITS) {
            cuCtxSynchronize();
            pthread_testcancel();
        } else if ((long)kind == LAUNCHES) {
            cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
            pthread_testcancel();
        } else {
            CUdeviceptr at;
            /* Whoever is cancelled between the two keeps it, with us as without. */
            if (!cuMemAlloc_v2(&at, 4096)) cuMemFree_v2(at);
            pthread_testcancel();
        }
    }
    return NULL;
}

static void cancel(void) {
    for (int round = 0; round < 12; round++) {
        long kind = round % KINDS;
        pthread_t thread;
        void *how;
        if (kind == WAITS) keep_busy();
        begun = 0;
        MUST(!pthread_create(&thread, NULL, victim, (void *)kind));
        while (!begun) usleep(100);
        usleep(10000 + 1000 * round);
        MUST(!pthread_cancel(thread));
        MUST(!pthread_join(thread, &how));
        MUST(how == PTHREAD_CANCELED);
    }
    OK(cuCtxSynchronize());
}

static void first(void) {
    for (int round = 0; round < 24; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (!child) {
            pthread_t thread;
            void *how;
            begin();
            /* A slice's first launches may go straight to the driver, and the simulated one can bear to be cancelled anywhere no better
             * than another. */
            MUST(!pthread_create(&thread, NULL, victim, (void *)(long)(is_anywhere || round % 2 ? ALLOCATES : LAUNCHES)));
            while (!begun) usleep(100);
            usleep(1000 + 137 * round);
            MUST(!pthread_cancel(thread));
            MUST(!pthread_join(thread, &how));
            MUST(how == PTHREAD_CANCELED);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        MUST(status == 0);
    }
}

/* --------------------------------------------------------------------------------------------------------- jump */

static sigjmp_buf back;
static volatile int may_jump = 1;
static void jump_out(int unused) {
    (void)unused;
    if (may_jump) siglongjmp(back, 1);
}

static void jump(void) {
    handle(jump_out, 0);
    keep_busy();
    if (!sigsetjmp(back, 1)) {
        after(20000, 0);
        cuCtxSynchronize();
        MUST(!"it took too short");
    }
}

/* So far below that nothing of the call that was left is written over. */
static __attribute__((noinline)) void deep(void) {
    volatile char room[1 << 20];
    room[0] = 1;
    fill();
    room[1] = room[0];
}

static ucontext_t there, here;
static void make_context(void (*work)(void)) {
    size_t bytes = 1 << 20;
    MUST(!getcontext(&there));
    there.uc_stack.ss_sp = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    there.uc_stack.ss_size = bytes;
    there.uc_link = &here;
    MUST(there.uc_stack.ss_sp != MAP_FAILED);
    makecontext(&there, work, 0);
}

static void fill_in_handler(int unused) {
    (void)unused;
    fill();
}

static void go_there(int unused) {
    (void)unused;
    setcontext(&there);
}

static void aside(void) {
    fill();
    rest();
    exit(0);
}

static volatile unsigned jumps;
static void often(void) {
    static double end;
    may_jump = 0;
    handle(jump_out, 0);
    end = now() + 0.5;
    after(2000, 1);
    if (sigsetjmp(back, 1)) jumps++;
    /* A host on which the timer comes late gets more time for it. */
    while (now() < end || (jumps <= 10 && now() < end + 10)) {
        if (jumps % 6 == 0) OK(cuLaunchKernel(slow_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        /* Only where the driver waits: nowhere else can it bear that. */
        may_jump = 1;
        cuCtxSynchronize();
        may_jump = 0;
        CUdeviceptr at;
        OK(cuMemAlloc_v2(&at, 4096));
        OK(cuMemFree_v2(at));
    }
    may_jump = 0;
    after(0, 0);
    MUST(jumps > 10);
}

static void held(void) {
    static int round;
    handle(jump_out, 0);
    for (round = 0; round < 5; round++) {
        if (sigsetjmp(back, 1)) continue;
        after(100000, 0);
        for (;;) OK(cuLaunchKernel(slow_kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
}

/* ------------------------------------------------------------------------------------------------------- inside */

static volatile int taken;
static void take_inside(int unused) {
    (void)unused;
    OK(cuMemAlloc_v2(&pieces[0], 4096));
    OK(cuMemFree_v2(pieces[0]));
    taken++;
}

static void inside(int flags) {
    handle(take_inside, flags | SA_RESTART);
    keep_busy();
    after(20000, 0);
    OK(cuCtxSynchronize());
    MUST(taken == 1);
}

static void end_thread(int unused) {
    (void)unused;
    pthread_exit(&there);
}

static void *ends(void *unused) {
    OK(cuCtxSetCurrent(context));
    begun = 1;
    cuCtxSynchronize();
    return unused;
}

static void end(void) {
    handle(end_thread, 0);
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        void *how;
        begun = 0;
        MUST(!pthread_create(&thread, NULL, ends, NULL));
        while (!begun) usleep(100);
        usleep(20000);
        MUST(!pthread_kill(thread, SIGALRM));
        MUST(!pthread_join(thread, &how));
        MUST(how == &there);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
    is_anywhere = !strcmp(how, "anywhere");
    if (!strcmp(mode, "first")) first();
    begin();
    if (!strcmp(mode, "cancel")) {
        cancel();
    } else if (!strcmp(mode, "first")) {
    } else if (!strcmp(mode, "jump")) {
        if (!strcmp(how, "handler")) use_signal_stack();
        jump();
        if (!strcmp(how, "deep")) {
            deep();
            rest();
            return 0;
        } else if (!strcmp(how, "aside")) {
            make_context(aside);
            MUST(!setcontext(&there));
        } else if (!strcmp(how, "handler")) {
            handle(fill_in_handler, SA_ONSTACK);
            raise(SIGALRM);
            rest();
            return 0;
        }
    } else if (!strcmp(mode, "context")) {
        make_context(aside);
        handle(go_there, 0);
        keep_busy();
        after(20000, 0);
        cuCtxSynchronize();
        MUST(!"it took too short");
    } else if (!strcmp(mode, "often")) {
        often();
    } else if (!strcmp(mode, "held")) {
        held();
    } else if (!strcmp(mode, "inside")) {
        if (!strcmp(how, "aside")) use_signal_stack();
        inside(!strcmp(how, "aside") ? SA_ONSTACK : 0);
    } else if (!strcmp(mode, "end")) {
        end();
    } else {
        return 2;
    }
    fill();
    rest();
    return 0;
}
