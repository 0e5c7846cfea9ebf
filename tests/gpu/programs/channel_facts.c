/* What the kernel module does when a process drives its own channels, one fact per mode:
 *   channel_facts calibrate                               prints ROUNDS, how many rounds of the loop take a microsecond
 *   channel_facts trace|calls|queries|exits|foreign|backlog|events|lock ROUNDS
 *   channel_facts costs PROCESSES ROUNDS
 * Prints plain lines for docs/design/compute.md. Build: gcc -O2 -rdynamic channel_facts.c -lcuda -lpthread */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "channels.h"
#include "gpu.h"
#include "spin.h"

enum { MAX = 16 };
/* What all processes of a run see. */
static struct shared {
    volatile int ready, go, stop;
    volatile long done[MAX];
    volatile int turn;
    volatile double from[MAX], until[MAX];
    volatile uint32_t client[MAX], channels[MAX][64], count[MAX];
    volatile double rounds_per_us;
} *all;

static CUfunction spin;
static CUdeviceptr out;
static CUstream stream;
static CUcontext context;
static CUdevice device;

static void start(void) {
    CUmodule module;
    device = begin();
    OK(cuCtxGetCurrent(&context));
    OK(cuModuleLoadData(&module, spin_image));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    OK(cuMemAlloc(&out, 4096));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void launch(double us) {
    uint64_t rounds = (uint64_t)(us * all->rounds_per_us) + 1;
    void *arguments[] = {&rounds, &out};
    OK(cuLaunchKernel(spin, 132 * 4, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

static void calibrate(void) {
    CUevent a, b;
    float ms;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    all->rounds_per_us = 100;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 20; k++) launch(1000);
        OK(cuEventRecord(a, stream));
        for (int k = 0; k < 10; k++) launch(1000);
        OK(cuEventRecord(b, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuEventElapsedTime(&ms, a, b));
        all->rounds_per_us *= 10.0 / ms;
    }
}

static void nap(double ms) { usleep((useconds_t)(ms * 1000)); }

/* Keeps the GPU busy with kernels of `us`, `depth` queued, until told to stop; counts them. */
static void fill(int self, double us, int depth) {
    CUevent marks[64];
    for (int i = 0; i < depth; i++) OK(cuEventCreate(&marks[i], CU_EVENT_DISABLE_TIMING));
    for (long n = 0; !all->stop; n++) {
        if (n >= depth) {
            OK(cuEventSynchronize(marks[n % depth]));
            all->done[self]++;
        }
        launch(us);
        OK(cuEventRecord(marks[n % depth], stream));
    }
    OK(cuCtxSynchronize());
}

static pid_t child(void (*body)(int), int self) {
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        body(self);
        fflush(stdout);
        exit(0);
    }
    return pid;
}

static void filler(int self) {
    start();
    __sync_fetch_and_add(&all->ready, 1);
    while (!all->go) nap(1);
    fill(self, 500, 16);
}

static int by_size(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : *(double *)a > *(double *)b; }
static void spread(const char *what, double *ms, int n) {
    qsort(ms, n, sizeof *ms, by_size);
    printf("%s: n %d p10 %.3f p50 %.3f p90 %.3f p99 %.3f max %.3f ms\n", what, n, ms[n / 10], ms[n / 2], ms[n * 9 / 10], ms[n * 99 / 100], ms[n - 1]);
}

/* ------------------------------------------------------------------------------------------------------ trace */
static void trace(void) {
    CUcontext second;
    CUstream more[40];
    setvbuf(stdout, NULL, _IOLBF, 0);
    rm_tracing = 1;
    puts("cuInit"), cuInit(0);
    puts("primary context"), start();
    puts("40 streams");
    for (int i = 0; i < 40; i++) OK(cuStreamCreate(&more[i], CU_STREAM_NON_BLOCKING));
    puts("launches in them");
    CUstream first = stream;
    for (int i = 0; i < 40; i++) stream = more[i], launch(1);
    stream = first;
    OK(cuCtxSynchronize());
    puts("second context");
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&second, NULL, 0, device));
#else
    OK(cuCtxCreate(&second, 0, device));
#endif
    printf("groups %d channels %d clients %d\n", rm_group_count, rm_channel_count, rm_client_count);
    puts("destroyed");
    OK(cuCtxDestroy(second));
    printf("groups %d channels %d\n", rm_group_count, rm_channel_count);
    OK(cuCtxSetCurrent(context));
    puts("reset");
    OK(cuDevicePrimaryCtxReset(device));
    printf("groups %d channels %d\n", rm_group_count, rm_channel_count);
    puts("exit");
}

/* ------------------------------------------------------------------------------------------------------ costs */
static int switching = 1;
static void *switcher(void *arg) {
    int self = (int)(long)arg, n = 0;
    static double on[4000], off[4000], slice[4000];
    while (!all->stop && n < 4000) {
        double t = rm_now();
        MUST(rm_put(1) == 0);
        off[n] = rm_now() - t;
        nap(3);
        t = rm_now();
        MUST(rm_put(0) == 0);
        on[n] = rm_now() - t;
        nap(3);
        t = rm_now();
        MUST(rm_slice(2000 + n % 2) == 0);
        slice[n++] = rm_now() - t;
        nap(3);
    }
    if (self == 0) spread("  off", off, n), spread("  on", on, n), spread("  slice", slice, n);
    return NULL;
}
static double kernel_us = 500;
static void switched(int self) {
    pthread_t thread;
    start();
    __sync_fetch_and_add(&all->ready, 1);
    while (!all->go) nap(1);
    if (switching) pthread_create(&thread, NULL, switcher, (void *)(long)self);
    if (kernel_us > 0) fill(self, kernel_us, 16);
    else
        while (!all->stop) nap(1);
    if (switching) pthread_join(thread, NULL);
}
static void wait_ready(int n) {
    while (all->ready < n) nap(1);
    all->go = 1;
}
static void everybody_stops(int n) {
    all->stop = 1;
    while (n--) wait(NULL);
    all->stop = all->go = all->ready = 0;
    for (int i = 0; i < MAX; i++) all->done[i] = 0;
}
static void costs(int n) {
    for (int only = 0; only < 2; only++)
        for (int idle = 0; idle < 2; idle++) {
            rm_only_scheduling = only, kernel_us = idle ? 0 : 500;
            printf("%d processes that %s, %s\n", n, idle ? "idle" : "fill the GPU", only ? "only scheduling" : "preempting");
            for (int i = 0; i < n; i++) child(switched, i);
            wait_ready(n);
            nap(1200);
            everybody_stops(n);
        }
}

/* ------------------------------------------------------------------------------------------------------ calls while off */
static void *puts_on_later(void *ms) {
    nap((double)(long)ms);
    MUST(rm_put(0) == 0);
    return NULL;
}
#define WHILE_OFF(call)                                                             \
    do {                                                                            \
        pthread_t t_;                                                               \
        MUST(rm_put(1) == 0);                                                       \
        pthread_create(&t_, NULL, puts_on_later, (void *)150L);                     \
        double t0_ = rm_now();                                                      \
        int code_ = (int)(call);                                                    \
        double took_ = rm_now() - t0_;                                              \
        pthread_join(t_, NULL);                                                     \
        printf("  %-45s -> %d, %8.3f ms%s\n", #call, code_, took_, took_ > 100 ? "  (waits until on)" : ""); \
        OK(cuCtxSynchronize());                                                     \
    } while (0)
static void calls(void) {
    static char host[1 << 22];
    void *pinned;
    CUdeviceptr a, b, managed;
    CUevent event;
    CUmodule module;
    CUstream another;
    CUcontext second;
    start();
    OK(cuMemAlloc(&a, 64 << 20));
    OK(cuMemAlloc(&b, 64 << 20));
    OK(cuMemAllocHost(&pinned, 4 << 20));
    OK(cuEventCreate(&event, 0));
    launch(10);
    OK(cuCtxSynchronize());
    puts("no work queued:");
    WHILE_OFF(cuMemAlloc(&managed, 4 << 20));
    WHILE_OFF(cuMemFree(managed));
    WHILE_OFF(cuMemcpyHtoD(a, host, sizeof host));
    WHILE_OFF(cuMemcpyHtoDAsync(a, pinned, 4 << 20, stream));
    WHILE_OFF(cuMemcpyDtoD(a, b, 64 << 20));
    WHILE_OFF(cuMemsetD8(a, 1, 64 << 20));
    WHILE_OFF(cuMemsetD8Async(a, 1, 64 << 20, stream));
    WHILE_OFF(cuStreamSynchronize(stream));
    WHILE_OFF(cuCtxSynchronize());
    WHILE_OFF(cuEventRecord(event, stream));
    WHILE_OFF((cuEventRecord(event, stream), cuEventQuery(event)));
    WHILE_OFF(cuModuleLoadData(&module, spin_image));
    WHILE_OFF(cuModuleUnload(module));
    WHILE_OFF(cuStreamCreate(&another, 0));
    WHILE_OFF(cuStreamDestroy(another));
    WHILE_OFF(cuMemAllocManaged(&managed, 4 << 20, CU_MEM_ATTACH_GLOBAL));
    WHILE_OFF((memset((void *)managed, 1, 4 << 20), 0));
    WHILE_OFF(cuMemFree(managed));
    WHILE_OFF(cuMemGetInfo(&(size_t){0}, &(size_t){0}));
#if CUDA_VERSION >= 13000
    WHILE_OFF(cuCtxCreate(&second, NULL, 0, device));
#else
    WHILE_OFF(cuCtxCreate(&second, 0, device));
#endif
    WHILE_OFF(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(context));
    puts("a 1 ms kernel queued:");
    WHILE_OFF((launch(1000), 0));
    WHILE_OFF((launch(1000), cuMemAlloc(&managed, 4 << 20)));
    WHILE_OFF((launch(1000), cuMemFree(managed)));
    WHILE_OFF((launch(1000), cuStreamSynchronize(stream)));
    WHILE_OFF((launch(1000), cuMemcpyHtoD(a, host, sizeof host)));
    puts("how many launches fit while off:");
    {
        pthread_t t;
        MUST(rm_put(1) == 0);
        pthread_create(&t, NULL, puts_on_later, (void *)300L);
        double t0 = rm_now(), worst = 0;
        int n = 0;
        while (rm_now() - t0 < 250 && worst < 20) {
            double t1 = rm_now();
            launch(1);
            if (rm_now() - t1 > worst) worst = rm_now() - t1;
            n++;
        }
        printf("  %d launches, then one took %.1f ms\n", n, worst);
        pthread_join(t, NULL);
        OK(cuCtxSynchronize());
    }
}

/* What one thread may ask while another one waits in a call, off, with work queued. */
static CUdeviceptr freed;
static void *frees(void *unused) {
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(freed));
    return unused;
}
static void queries(void) {
    pthread_t other;
    CUevent event;
    start();
    OK(cuEventCreate(&event, 0));
    OK(cuMemAlloc(&freed, 64 << 20));
    for (int i = 0; i < 16; i++) launch(500);
    OK(cuEventRecord(event, stream));
    MUST(rm_put(1) == 0);
    pthread_create(&other, NULL, frees, NULL);
    nap(50);
    puts("while another thread waits in cuMemFree:");
    WHILE_OFF(cuEventQuery(event));
    pthread_join(other, NULL);
}

/* ------------------------------------------------------------------------------------------------------ exits */
static void exit_while_off(int how) {
    start();
    for (int i = 0; i < 8; i++) launch(1000);
    MUST(rm_put(1) == 0);
    for (int i = 0; i < 8; i++) launch(1000);
    if (how == 1) exit(0);
    if (how == 2) OK(cuCtxDestroy(context));
    if (how == 3) OK(cuDevicePrimaryCtxReset(device));
    if (how == 4) _exit(0);
    if (how == 5) raise(SIGKILL);
    exit(0);
}
static void exits(void) {
    const char *names[] = {"", "exit", "cuCtxDestroy", "cuDevicePrimaryCtxReset", "_exit", "SIGKILL"};
    pid_t neighbour = child(filler, 0);
    wait_ready(1);
    nap(300);
    for (int how = 1; how <= 5; how++) {
        long before = all->done[0];
        double t = rm_now();
        pid_t pid = child(exit_while_off, how);
        int status = 0, ended = 0;
        while (rm_now() - t < 8000 && !(ended = waitpid(pid, &status, WNOHANG) == pid)) nap(1);
        double took = rm_now() - t;
        printf("  %-24s while off: %s after %.0f ms of life, status %x; neighbour's kernels meanwhile %.0f/s\n", names[how], ended ? "ended" : "HANGS", took, status, (all->done[0] - before) / took * 1000);
        if (!ended) {
            kill(pid, SIGKILL);
            t = rm_now();
            waitpid(pid, &status, 0);
            printf("    killed: gone after %.0f ms\n", rm_now() - t);
        }
        before = all->done[0];
        nap(500);
        printf("    neighbour afterwards %.0f/s\n", (all->done[0] - before) * 2.0);
    }
    (void)neighbour;
    everybody_stops(1);
}

/* ------------------------------------------------------------------------------------------------------ foreign */
static void gives_names(int self) {
    start();
    struct rm_switch s;
    memset(&s, 0, sizeof s);
    rm_list(&s);
    all->client[self] = rm_subdevice_client, all->count[self] = s.count;
    for (unsigned i = 0; i < s.count; i++) all->channels[self][i] = s.channels[i];
    __sync_fetch_and_add(&all->ready, 1);
    while (!all->go) nap(1);
    fill(self, 500, 16);
}
static void foreign(void) {
    child(gives_names, 0);
    wait_ready(1);
    start();
    nap(300);
    struct rm_switch s;
    memset(&s, 0, sizeof s);
    s.off = 1, s.count = all->count[0];
    for (unsigned i = 0; i < s.count; i++) s.clients[i] = all->client[0], s.channels[i] = all->channels[0][i];
    int status = rm_call(rm_fd(rm_subdevice_client), rm_subdevice_client, rm_subdevice, 0x2080110b, &s, sizeof s);
    long before = all->done[0];
    nap(500);
    printf("  another's channels (%u) taken off by name: status %x, its kernels then %.0f/s\n", s.count, status, (all->done[0] - before) * 2.0);
    s.off = 0;
    status = rm_call(rm_fd(rm_subdevice_client), rm_subdevice_client, rm_subdevice, 0x2080110b, &s, sizeof s);
    before = all->done[0];
    nap(500);
    printf("  put on again by name: status %x, %.0f/s\n", status, (all->done[0] - before) * 2.0);
    uint64_t us = 1;
    status = rm_call(rm_fd(rm_subdevice_client), all->client[0], all->channels[0][0], 0xa06c0103, &us, 8);
    printf("  a control with another's client on our descriptor: status %x\n", status);
    int fd = dup(rm_fd(rm_subdevice_client));
    us = 2000;
    struct rm_control c = {rm_groups[0].client, rm_groups[0].object, 0xa06c0103, 0, (uint64_t)&us, 8, 0};
    long result = syscall(SYS_ioctl, fd, 0xc020462aul, &c);
    printf("  our own, on a duplicate of the descriptor: result %ld status %x\n", result, c.status);
    all->stop = 1;
    wait(NULL);
}

/* ------------------------------------------------------------------------------------------------------ backlog */
static double backlog_once(double us, int count, double off_ms, long slice) {
    static CUevent a, b;
    float ms = 0;
    if (!a) {
        OK(cuEventCreate(&a, 0));
        OK(cuEventCreate(&b, 0));
    }
    OK(cuCtxSynchronize());
    MUST(rm_put(1) == 0);
    if (slice) rm_slice(slice);
    OK(cuEventRecord(a, stream));
    for (int i = 0; i < count; i++) launch(us);
    OK(cuEventRecord(b, stream));
    nap(off_ms);
    MUST(rm_put(0) == 0);
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    if (slice) rm_slice(2048);
    return ms;
}
static int neighbours;
static void backlogs(int unused) {
    double ms[60];
    double sizes[] = {2, 5, 20, 100};
    (void)unused;
    start();
    nap(200);
    for (int slice = 2048; slice <= 200000; slice = slice == 2048 ? 200000 : 400000)
        for (int k = 0; k < 4; k++) {
            int count = (int)(3000 / sizes[k]);
            if (count > 400) count = 400;
            for (int i = 0; i < 40; i++) ms[i] = backlog_once(sizes[k], count, 1, slice);
            char what[100];
            snprintf(what, sizeof what, "  %d neighbours, slice %6d, %3d x %3.0f us (%.2f ms)", neighbours, slice, count,
                     sizes[k], count * sizes[k] / 1000);
            spread(what, ms, 40);
        }
}
static void backlog(void) {
    for (neighbours = 0; neighbours < 3; neighbours++) {
        for (int i = 0; i < neighbours; i++) child(filler, i);
        if (neighbours) wait_ready(neighbours);
        waitpid(child(backlogs, 0), NULL, 0);
        if (neighbours) everybody_stops(neighbours);
    }
}

/* ------------------------------------------------------------------------------------------------------ events */
/* Two events around a kernel that is launched after a copy that was waited for; `how`: what comes before the first. */
static double events_once(double us, int how) {
    static CUevent a, b;
    static CUdeviceptr address;
    static volatile uint32_t *word;
    static uint32_t closed;
    float ms = 0;
    if (!a) {
        OK(cuEventCreate(&a, 0));
        OK(cuEventCreate(&b, 0));
        OK(cuMemHostAlloc((void **)&word, 64, CU_MEMHOSTALLOC_DEVICEMAP));
        OK(cuMemHostGetDevicePointer(&address, (void *)word, 0));
        word[0] = 0;
    }
    if (how) OK(cuMemcpyDtoHAsync((void *)(word + 8), out, 4, stream));
    else launch(1);
    OK(cuStreamSynchronize(stream));
    for (double t = rm_now(); rm_now() < t + 0.06;) {}
    if (how >= 2) OK(cuStreamWaitValue32(stream, address, ++closed, CU_STREAM_WAIT_VALUE_GEQ));
    if (how == 3) OK(cuMemsetD32Async(address + 16, 0, 1, stream));
    OK(cuEventRecord(a, stream));
    launch(us);
    OK(cuEventRecord(b, stream));
    word[0] = closed;
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    return ms;
}
static void all_events(int unused) {
    static const char *what[] = {"a kernel", "a copy", "a copy, held", "a copy, held, a fill"};
    double ms[200];
    (void)unused;
    start();
    for (int us = 10; us <= 300; us += 290)
        for (int how = 0; how < 4; how++) {
            char line[100];
            for (int i = 0; i < 200; i++) ms[i] = events_once(us, how);
            snprintf(line, sizeof line, "  %d neighbours, kernel of %3d us behind %s", neighbours, us, what[how]);
            spread(line, ms, 200);
        }
}
static void events(void) {
    for (neighbours = 0; neighbours < 2; neighbours++) {
        if (neighbours) child(filler, 0), wait_ready(1);
        waitpid(child(all_events, 0), NULL, 0);
        if (neighbours) everybody_stops(1);
    }
}

/* ------------------------------------------------------------------------------------------------------ lock */
static double lease_ms;
static int lease_count;
static void *leases(void *arg) {
    int self = (int)(long)arg, on = 1;
    while (!all->stop) {
        if (all->turn == self) {
            if (!on) MUST(rm_put(0) == 0);
            on = 1;
            nap(lease_ms);
            all->turn = (self + 1) % lease_count;
            nap(0.06);
        } else {
            if (on) MUST(rm_put(1) == 0);
            on = 0;
            nap(0.05);
        }
    }
    if (!on) MUST(rm_put(0) == 0);
    return NULL;
}
static void leased(int self) {
    pthread_t thread;
    start();
    __sync_fetch_and_add(&all->ready, 1);
    while (!all->go) nap(1);
    if (lease_ms > 0) pthread_create(&thread, NULL, leases, (void *)(long)self);
    fill(self, 500, 16);
    if (lease_ms > 0) pthread_join(thread, NULL);
}
static void lock(void) {
    static double ms[100000];
    double lengths[] = {-1, 0, 10, 20};
    for (int k = 0; k < 4; k++) {
        int n = lengths[k] < 0 ? 0 : 8;
        lease_ms = lengths[k], lease_count = n, all->turn = 0;
        for (int i = 0; i < n; i++) child(leased, i);
        if (n) wait_ready(n);
        nap(300);
        pid_t pid = fork();
        if (!pid) {
            double t = rm_now();
            start();
            double first = rm_now() - t;
            int count = 0;
            t = rm_now();
            while (rm_now() - t < 1500 && count < 100000) {
                CUdeviceptr p;
                double a = rm_now();
                OK(cuMemAlloc(&p, 2 << 20));
                OK(cuMemFree(p));
                ms[count++] = rm_now() - a;
            }
            printf("%s %.0f ms: first context %.0f ms\n", n == 0 ? "alone" : lease_ms == 0 ? "8 plain" : "8 leased", lease_ms, first);
            spread("  alloc+free", ms, count);
            double smi[5];
            for (int i = 0; i < 5; i++) {
                t = rm_now();
                if (system("nvidia-smi > /dev/null")) puts("nvidia-smi failed");
                smi[i] = rm_now() - t;
            }
            spread("  nvidia-smi", smi, 5);
            double creations[5];
            for (int i = 0; i < 5; i++) {
                CUcontext c;
                t = rm_now();
#if CUDA_VERSION >= 13000
                OK(cuCtxCreate(&c, NULL, 0, device));
#else
                OK(cuCtxCreate(&c, 0, device));
#endif
                creations[i] = rm_now() - t;
                OK(cuCtxDestroy(c));
            }
            spread("  cuCtxCreate", creations, 5);
            fflush(stdout);
            _exit(0);
        }
        long before = 0, after = 0;
        for (int i = 0; i < n; i++) before += all->done[i];
        double t = rm_now();
        waitpid(pid, NULL, 0);
        for (int i = 0; i < n; i++) after += all->done[i];
        if (n) printf("  in sum %.1f%% of the GPU\n", (after - before) * 0.5 / (rm_now() - t) * 100);
        if (n) everybody_stops(n);
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    all = mmap(0, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    all->rounds_per_us = argc > 2 && strcmp(mode, "costs") ? atof(argv[2]) : 100;
    if (argc > 3) all->rounds_per_us = atof(argv[3]);
    if (!strcmp(mode, "calibrate")) start(), calibrate(), printf("%f\n", all->rounds_per_us);
    if (!strcmp(mode, "trace")) trace();
    if (!strcmp(mode, "costs")) costs(atoi(argv[2]));
    if (!strcmp(mode, "calls")) calls();
    if (!strcmp(mode, "queries")) queries();
    if (!strcmp(mode, "exits")) exits();
    if (!strcmp(mode, "foreign")) foreign();
    if (!strcmp(mode, "backlog")) backlog();
    if (!strcmp(mode, "events")) events();
    if (!strcmp(mode, "lock")) lock();
    return 0;
}
