/*
 * Uses CUDA and ends in one of the ways to end.
 *   ends return | exit | _exit | _Exit | quick_exit | abort | segv | term | int | kill | trap | pthread_exit | exec PROGRAM |
 *        exit-in-handler | raise-in-thread | syscall        by itself
 *   ends racing exit | _exit | return | quick_exit | abort | term      while other threads launch, from one of them
 */
#include <sys/syscall.h>

#include "hostile.h"

static void touch(void) {
    size_t bytes;
    OK(cuDeviceTotalMem_v2(&bytes, 0));
}

static void at_quick(void) {
    touch();
    write(1, "at_quick_exit\n", 14);
}

static void on_term(int signal) {
    (void)signal;
    exit(5);
}

static void *late(void *unused) {
    (void)unused;
    usleep(20000);
    OK(cuCtxSetCurrent(context));
    work(20);
    exit(4); /* a driver has threads of its own, so that the process would not end with this one */
}

static void *raises(void *unused) {
    (void)unused;
    work(0);
    raise(SIGABRT);
    return NULL;
}

static int *volatile nowhere;

static void end(const char *how, char **more) {
    if (!strcmp(how, "exit")) exit(3);
    if (!strcmp(how, "_exit")) _exit(3);
    if (!strcmp(how, "_Exit")) _Exit(3);
    if (!strcmp(how, "syscall")) syscall(SYS_exit_group, 3);
    if (!strcmp(how, "quick_exit")) {
        at_quick_exit(at_quick);
        quick_exit(3);
    }
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "segv")) *nowhere = 1;
    if (!strcmp(how, "trap")) __builtin_trap();
    if (!strcmp(how, "term")) kill(getpid(), SIGTERM), pause();
    if (!strcmp(how, "int")) raise(SIGINT);
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "raise-in-thread")) {
        pthread_t other;
        MUST(!pthread_create(&other, NULL, raises, NULL));
        pthread_join(other, NULL);
    }
    if (!strcmp(how, "exit-in-handler")) {
        signal(SIGTERM, on_term);
        raise(SIGTERM);
    }
    if (!strcmp(how, "pthread_exit")) {
        pthread_t other;
        MUST(!pthread_create(&other, NULL, late, NULL));
        pthread_exit(NULL);
    }
    if (!strcmp(how, "exec")) execv(more[0], more);
}

static volatile int launching;

static void *launcher(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    for (;;) {
        cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        launching = 1;
    }
    return NULL;
}

static void *ender(void *how) {
    while (!launching) usleep(100);
    usleep(5000);
    end(how, NULL);
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    begin();
    work(10);
    if (!strcmp(how, "racing") && argc > 2) {
        pthread_t other;
        for (int i = 0; i < 3; i++) MUST(!pthread_create(&other, NULL, launcher, NULL));
        if (!strcmp(argv[2], "return")) {
            ender("");
            return 3;
        }
        MUST(!pthread_create(&other, NULL, ender, argv[2]));
        pthread_join(other, NULL);
        return 98;
    }
    end(how, argv + 2);
    return strcmp(how, "return") ? 99 : 3;
}
