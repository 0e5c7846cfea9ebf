/*
 * A program in whose container somebody damages the region, and which may have a SIGBUS of its own.
 *
 *   lost DISPOSITION
 *
 * DISPOSITION is what it does about SIGBUS before it uses the GPU: default, ignore, plain, info, once, jump. Then it says
 * `init CODE` and `ready`, and does as it is told, line by line, saying the driver's code and what else there is to say:
 *
 *   start             the context, and a kernel
 *   fill STEP LIMIT   allocates STEP bytes at a time until it is refused, or has LIMIT more; how many it got
 *   empty             frees all of it
 *   kernel            a launch, and its end
 *   total             cuMemGetInfo's total
 *   busy MS           four threads allocate, launch and free for so long; how many rounds, and of those how many in the last
 *                     third; any answer but success and out of memory ends it
 *   fault             touches a page of its own file, which it has cut short; how often its handler was called in all, and how
 *                     often as it asked to be
 *   raise             sends itself a SIGBUS; the same
 *   handler           whether there is any handler of SIGBUS
 *   quit              it ends
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static const char image[] = "ration-sim-image 1\nkernel empty time=1us\n";

static CUcontext context;
static CUstream stream;
static CUfunction kernel;
static CUdeviceptr kept[4096];
static size_t count;

static char *page; /* of a file of its own */
static volatile sig_atomic_t called, as_asked;
static sigjmp_buf back;
static char stack[1 << 16];

/* Puts the page right, as a program would that knows what it does. */
static void put_right(void) {
    void *fresh = mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (fresh != page) _exit(9);
}

/* Whether the handler has the mask and the stack that it asked for. */
static bool is_as_asked(bool on_stack) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    char here, *at = &here;
    return sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGBUS) && (at >= stack && at < stack + sizeof stack) == on_stack;
}

static void plain(int signal) {
    called++;
    as_asked += signal == SIGBUS && is_as_asked(false);
    put_right();
}

static void info(int signal, siginfo_t *about, void *context_) {
    called++;
    as_asked += signal == SIGBUS && context_ && (about->si_code <= 0 || about->si_addr == page) && is_as_asked(true);
    put_right();
}

static void jump(int signal, siginfo_t *about, void *context_) {
    (void)about, (void)context_;
    called++;
    as_asked += signal == SIGBUS && is_as_asked(true);
    siglongjmp(back, 1);
}

static void dispose(const char *how) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    MUST(!sigaltstack(&other, NULL));
    sigaddset(&action.sa_mask, SIGUSR1);
    if (!strcmp(how, "default")) return;
    if (!strcmp(how, "ignore")) action.sa_handler = SIG_IGN;
    else if (!strcmp(how, "plain")) action.sa_handler = plain;
    else if (!strcmp(how, "once")) action.sa_handler = plain, action.sa_flags = SA_RESETHAND;
    else if (!strcmp(how, "info")) action.sa_sigaction = info, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    else if (!strcmp(how, "jump")) action.sa_sigaction = jump, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    else MUST(!"a disposition");
    MUST(!sigaction(SIGBUS, &action, NULL));
}

/* A mapped page of a file that has none any more. */
static void cut_page_short(void) {
    char name[] = "/tmp/ration-lost-XXXXXX";
    int file = mkstemp(name);
    MUST(file >= 0 && !unlink(name) && !ftruncate(file, 4096));
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(page != MAP_FAILED && !ftruncate(file, 0) && !close(file));
}

static void fault(void) {
    cut_page_short();
    if (!sigsetjmp(back, 1)) *(volatile char *)page = 1;
}

static CUresult start(void) {
    CUmodule module;
    CUresult code = cuDevicePrimaryCtxRetain(&context, 0);
    if (!code) code = cuCtxSetCurrent(context);
    if (!code) code = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (!code) code = cuModuleLoadData(&module, image);
    if (!code) code = cuModuleGetFunction(&kernel, module, "empty");
    return code;
}

static CUresult launch(void) {
    CUresult code = cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    return code ? code : cuStreamSynchronize(stream);
}

static CUresult fill(size_t step, size_t limit, size_t *got) {
    CUresult code = CUDA_SUCCESS;
    for (*got = 0; !code && *got < limit && count < 4096;) {
        code = cuMemAlloc_v2(&kept[count], step);
        if (!code) count++, *got += step;
    }
    return code;
}

static double begun, end;
static atomic_ulong rounds, late_rounds;

static void *busy(void *argument) {
    (void)argument;
    OK(cuCtxSetCurrent(context));
    for (double time = now(); time < end; time = now()) {
        CUdeviceptr at = 0;
        CUresult code = cuMemAlloc_v2(&at, 8 * MIB);
        MUST(code == CUDA_SUCCESS || code == CUDA_ERROR_OUT_OF_MEMORY);
        OK(launch());
        if (!code) OK(cuMemFree_v2(at));
        rounds++;
        late_rounds += time > begun + (end - begun) * 2 / 3;
    }
    return NULL;
}

int main(int args, char **arg) {
    char line[128], what[16];
    MUST(args == 2);
    dispose(arg[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("init %d\nready\n", (int)cuInit(0));
    while (fgets(line, sizeof line, stdin)) {
        unsigned long first = 0, second = 0;
        size_t got = 0, total = 0;
        CUresult code = CUDA_SUCCESS;
        MUST(sscanf(line, "%15s %lu %lu", what, &first, &second) >= 1);
        if (!strcmp(what, "quit")) break;
        if (!strcmp(what, "start")) printf("%d\n", (int)start());
        else if (!strcmp(what, "kernel")) printf("%d\n", (int)launch());
        else if (!strcmp(what, "fill")) code = fill(first, second, &got), printf("%d %zu\n", (int)code, got);
        else if (!strcmp(what, "total")) code = cuMemGetInfo_v2(&got, &total), printf("%d %zu\n", (int)code, total);
        else if (!strcmp(what, "empty")) {
            while (count && !code) code = cuMemFree_v2(kept[--count]);
            printf("%d\n", (int)code);
        } else if (!strcmp(what, "busy")) {
            pthread_t threads[4];
            rounds = late_rounds = 0;
            begun = now(), end = begun + first / 1e3;
            for (int i = 0; i < 4; i++) MUST(!pthread_create(&threads[i], NULL, busy, NULL));
            for (int i = 0; i < 4; i++) MUST(!pthread_join(threads[i], NULL));
            printf("0 %lu %lu\n", (unsigned long)rounds, (unsigned long)late_rounds);
        } else if (!strcmp(what, "fault")) fault(), printf("0 %d %d\n", (int)called, (int)as_asked);
        else if (!strcmp(what, "raise")) {
            cut_page_short();
            if (!sigsetjmp(back, 1)) raise(SIGBUS);
            printf("0 %d %d\n", (int)called, (int)as_asked);
        } else if (!strcmp(what, "handler")) {
            struct sigaction now_;
            MUST(!sigaction(SIGBUS, NULL, &now_));
            printf("0 %d\n", now_.sa_handler != SIG_DFL);
        } else MUST(!"an order");
    }
    return 0;
}
