/* Processes that are not as processes should be. usage: odd_process HOW ANSWER
 *
 * What came out is written to the file ANSWER, in one go: some of these have no standard output by then. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"

enum { N = 4096, LAUNCHES = 100, THREADS = 8 };

static char answer[4096];
static const char *answer_path;

static void say(const char *format, ...) {
    size_t used = strlen(answer);
    va_list list;
    va_start(list, format);
    vsnprintf(answer + used, sizeof answer - used, format, list);
    va_end(list);
}

static void write_answer(void) {
    int file = open(answer_path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0 || write(file, answer, strlen(answer)) < 0) _exit(3);
    close(file);
    answer[0] = 0;
}

/* Open descriptors, but for the one that counts them. */
static int descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = -3; /* "." and "..", and the directory's own */
    MUST(directory);
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

/* An allocation, copies and LAUNCHES kernels on the current context. */
static void work(const char *who) {
    static __thread uint32_t host[N];
    CUfunction step;
    CUstream stream;
    CUdeviceptr data;
    uint32_t n = N, add = 5;
    OK(cuModuleGetFunction(&step, load_kernels(), "step"));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&data, sizeof host));
    OK(cuMemsetD32Async(data, 1, N, stream));
    void *arguments[] = {&data, &n, &add};
    for (int i = 0; i < LAUNCHES; i++) OK(cuLaunchKernel(step, N / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
    OK(cuMemcpyDtoHAsync(host, data, sizeof host, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(data));
    OK(cuStreamDestroy(stream));
    if (who) say("%s %016llx\n", who, (unsigned long long)digest(host, sizeof host));
}

static void close_first(void) {
    for (int file = 0; file < 1024; file++) close(file);
    begin();
    work("no descriptors");
}

/* A daemon that tidies up behind itself: what it had before CUDA is closed while CUDA is in use. */
static void close_later(void) {
    char had[1024];
    int before = descriptors();
    for (int file = 0; file < 1024; file++) had[file] = fcntl(file, F_GETFD) != -1;
    begin();
    work("before");
    say("descriptors %d, then %d\n", before, descriptors());
    for (int file = 0; file < 1024; file++)
        if (had[file]) close(file);
    work("after");
}

static void fork_first(void) {
    int status = -1;
    pid_t child = fork();
    begin();
    work(child ? "parent" : "child");
    if (!child) {
        write_answer();
        exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    say("child's status %d\n", status);
}

/* CUDA does not work in a child of a process that uses it. It must say the same with and without the library. */
static void fork_later(void) {
    int status = -1;
    begin();
    work("before");
    write_answer();
    pid_t child = fork();
    if (!child) {
        CUdeviceptr data = 0;
        int count = -1;
        CUresult got = cuMemAlloc(&data, 4096);
        say("child: alloc %d, ", (int)got);
        got = cuDeviceGetCount(&count);
        say("count %d, init %d\n", (int)got, (int)cuInit(0));
        write_answer();
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    say("child's status %d\n", status);
    work("parent");
}

static void *thread(void *context) {
    OK(cuCtxSetCurrent(context));
    work(NULL);
    return NULL;
}

static void threads(void) {
    pthread_t ids[THREADS];
    CUcontext context;
    begin();
    OK(cuCtxGetCurrent(&context));
    for (int i = 0; i < THREADS; i++) MUST(!pthread_create(&ids[i], NULL, thread, context));
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
    say("%d threads\n", THREADS);
}

int main(int argc, char **argv) {
    MUST(argc == 3);
    const char *how = argv[1];
    answer_path = argv[2];
    if (!strcmp(how, "close-first")) close_first();
    else if (!strcmp(how, "close-later")) close_later();
    else if (!strcmp(how, "fork-first")) fork_first();
    else if (!strcmp(how, "fork-later")) fork_later();
    else if (!strcmp(how, "threads")) threads();
    else {
        begin();
        work("ends");
    }
    write_answer();
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "quick_exit")) quick_exit(0);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "terminated")) raise(SIGTERM);
    return 0;
}
