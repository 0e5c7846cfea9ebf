/*
 * Makes children in every way there is.
 *   forks before N SEED     N children of a process that has not used CUDA; each may use it; the parent does afterwards
 *   forks after N SEED      N children of a process whose threads are inside CUDA calls; they may not use it, but may ask
 *   forks touched N         N children of a process that has called the driver, but not started it; each may use it
 *   forks first N           N processes, each of which forks while its threads make their first calls
 *   forks nested DEPTH      a child of a child of a child, each using CUDA after its fork
 *   forks loading N         N children of a process without CUDA whose threads are inside the loader; they only end
 *   forks use               uses CUDA: what the others exec
 */
#include <spawn.h>
#include <stdatomic.h>

#include "hostile.h"

extern char **environ;
static const char *self;

static void use(void) {
    begin();
    work(3);
    OK(cuCtxSynchronize());
}

static pid_t spawn_self(void) {
    pid_t pid;
    char *args[] = {(char *)self, "use", NULL};
    int rc = posix_spawn(&pid, self, NULL, NULL, args, environ);
    return rc ? -1 : pid;
}

/* A child that must end well; returns 0 when all is well. */
static int reap(pid_t pid) {
    int status;
    if (pid < 0) return 1;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return 1;
    if (!status) return 0;
    fprintf(stderr, "child %d ended with %x\n", (int)pid, status);
    return 1;
}

/* The ways that hold whatever the parent did before. `kind` is less than 5. */
static int other_ways(unsigned kind) {
    pid_t pid;
    switch (kind) {
    case 0:
        pid = fork();
        if (!pid) _exit(0);
        return reap(pid);
    case 1:
        pid = fork();
        if (!pid) {
            execl(self, self, "use", NULL);
            _exit(98);
        }
        return reap(pid);
    case 2:
        pid = vfork();
        if (!pid) {
            execl(self, self, "use", NULL);
            _exit(98);
        }
        return reap(pid);
    case 3:
        pid = vfork();
        if (!pid) _exit(0);
        return reap(pid);
    default:
        return reap(spawn_self());
    }
}

static int before(int children, uint64_t seed) {
    int wrong = 0;
    for (int i = 0; i < children; i++) {
        unsigned kind = roll(&seed, 8);
        if (kind < 5) {
            wrong += other_ways(kind);
        } else if (kind == 5) {
            char command[4096];
            snprintf(command, sizeof command, "'%s' use", self);
            wrong += system(command) != 0;
        } else {
            pid_t pid = fork();
            if (!pid) {
                use();
                if (kind == 6) _exit(0);
                exit(0);
            }
            wrong += reap(pid);
        }
    }
    use();
    return wrong;
}

static atomic_int stop, wrong_after;

static void *busy(void *unused) {
    (void)unused;
    OK(cuCtxSetCurrent(context));
    while (!stop) work(1);
    return NULL;
}

/* What a child may do whose parent used CUDA: ask, and be refused. */
static void ask(void) {
    int version = 0;
    CUresult code = cuInit(0);
    if (code != CUDA_ERROR_NOT_INITIALIZED) _exit(11);
    if (cuDriverGetVersion(&version) || version < 11000) _exit(12);
    size_t free_bytes, total;
    if (!cuMemGetInfo_v2(&free_bytes, &total)) _exit(13);
    tally("cuInit", 1);
    tally("cuMemGetInfo_v2", 1);
    tally("cuDriverGetVersion", 1);
}

typedef struct {
    int children;
    uint64_t seed;
} Forker;

static void *forker(void *data) {
    Forker *mine = data;
    for (int i = 0; i < mine->children; i++) {
        unsigned kind = roll(&mine->seed, 10);
        usleep(roll(&mine->seed, 500));
        if (kind < 5) {
            wrong_after += other_ways(kind);
            continue;
        }
        pid_t pid = fork();
        if (!pid) {
            ask();
            _exit(0);
        }
        wrong_after += reap(pid);
    }
    return NULL;
}

static int after(int children, uint64_t seed) {
    enum { BUSY = 3, FORKERS = 3 };
    pthread_t threads[BUSY + FORKERS];
    Forker forkers[FORKERS];
    begin();
    for (int i = 0; i < BUSY; i++) MUST(!pthread_create(&threads[i], NULL, busy, NULL));
    for (int i = 0; i < FORKERS; i++) {
        forkers[i] = (Forker){children / FORKERS, seed + 77 * i};
        MUST(!pthread_create(&threads[BUSY + i], NULL, forker, &forkers[i]));
    }
    for (int i = 0; i < FORKERS; i++) pthread_join(threads[BUSY + i], NULL);
    stop = 1;
    for (int i = 0; i < BUSY; i++) pthread_join(threads[i], NULL);
    OK(cuCtxSynchronize());
    return wrong_after;
}

static int touched(int children) {
    int wrong = 0;
    size_t bytes;
    MUST(cuInit(1) == CUDA_ERROR_INVALID_VALUE); /* reaches the driver and does not start it */
    MUST(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_ERROR_NOT_INITIALIZED);
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        if (!pid) {
            use();
            exit(0);
        }
        wrong += reap(pid);
    }
    use();
    return wrong;
}

static pthread_barrier_t barrier;

/* Each thread's calls are its own, so that each is a first one. None of them needs the driver started. */
static void *first_calls(void *which) {
    size_t bytes;
    CUdeviceptr at;
    void *host = &bytes;
    pthread_barrier_wait(&barrier);
    switch ((int)(intptr_t)which) {
    case 0:
        cuMemAlloc_v2(&at, 1);
        cuMemFree_v2(0);
        cuMemcpyDtoH_v2(host, 0, 0);
        cuMemcpyHtoD_v2(0, host, 0);
        break;
    case 1:
        cuMemGetInfo_v2(&bytes, &bytes);
        cuMemsetD8_v2(0, 0, 0);
        cuMemsetD32_v2(0, 0, 0);
        cuStreamSynchronize(0);
        break;
    default:
        cuCtxSynchronize();
        cuDeviceTotalMem_v2(&bytes, 0);
        cuMemcpyDtoD_v2(0, 0, 0);
        cuMemAllocManaged(&at, 1, 1);
    }
    return NULL;
}

static int first_round(void) {
    pthread_t threads[3];
    MUST(!pthread_barrier_init(&barrier, NULL, 4));
    for (int i = 0; i < 3; i++) MUST(!pthread_create(&threads[i], NULL, first_calls, (void *)(intptr_t)i));
    pthread_barrier_wait(&barrier);
    int wrong = 0;
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();
        if (!pid) {
            use(); /* the parent has not started the driver: the child may */
            _exit(0);
        }
        wrong += reap(pid);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    use();
    return wrong;
}

static int first(int processes) {
    int wrong = 0;
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (!pid) exit(first_round());
        wrong += reap(pid);
    }
    return wrong;
}

static int nested(int depth) {
    if (!depth) {
        use();
        return 0;
    }
    pid_t pid = fork();
    if (!pid) exit(nested(depth - 1));
    int wrong = reap(pid);
    use();
    return wrong;
}

static void *loads(void *unused) {
    (void)unused;
    while (!stop) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (library) dlclose(library);
    }
    return NULL;
}

/* Apart from its caller's variables, which a vforked child might change. */
static pid_t ends_at_once(int number) {
    pid_t pid = number % 3 ? fork() : vfork();
    if (!pid && number % 3 == 1) _Exit(0);
    if (!pid) _exit(0);
    return pid;
}

static int loading(int children) {
    pthread_t threads[2];
    int wrong = 0;
    for (int i = 0; i < 2; i++) MUST(!pthread_create(&threads[i], NULL, loads, NULL));
    for (int i = 0; i < children; i++) wrong += reap(ends_at_once(i));
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return wrong;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    self = argv[0];
    int wrong = 2;
    if (!strcmp(mode, "use")) use(), wrong = 0;
    else if (!strcmp(mode, "before")) wrong = before(number, seed);
    else if (!strcmp(mode, "after")) wrong = after(number, seed);
    else if (!strcmp(mode, "touched")) wrong = touched(number);
    else if (!strcmp(mode, "first")) wrong = first(number);
    else if (!strcmp(mode, "loading")) wrong = loading(number);
    else if (!strcmp(mode, "nested")) wrong = nested(number);
    if (strcmp(mode, "use")) printf("%s: %d wrong\n", mode, wrong);
    return wrong ? 1 : 0;
}
