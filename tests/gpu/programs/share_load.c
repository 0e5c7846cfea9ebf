/* Work for the GPU, of a fixed amount, and its own witness.
 *   share_load calibrate                        prints how many rounds of the loop take a microsecond
 *   share_load deep KERNEL_US ROUNDS_PER_US     kernels queued deep in one stream
 *   share_load sync KERNEL_US ROUNDS_PER_US     each kernel waited for
 *   share_load streams KERNEL_US ROUNDS_PER_US  deep in four streams, with kernels of a quarter of the GPU each
 *   share_load request KERNEL_US ROUNDS_PER_US KERNELS PERIOD_US
 *                                               KERNELS at a time, waited for, every PERIOD_US; prints what each took
 *   share_load empty 1 ROUNDS_PER_US            kernels that do nothing, as many as can be launched
 *
 * A kernel is a loop of fixed length: one that watched a clock would do less where it is held up, and nobody would see
 * it. Its first block notes the GPU's nanosecond clock when it begins and when it ends, and the notes of all kernels go
 * into BUSY_DIR/PID.own.busy (busy.h). All of a process's kernels are of one kind. One that does nothing would no longer do
 * nothing if it noted the clock: there, kernels that do that stand before and behind each batch, and a note is of a batch.
 *
 * It talks with who started it: prints "loaded", and does nothing with the GPU before it gets a line; prints "ready",
 * and gets "run FROM UNTIL", in nanoseconds of CLOCK_MONOTONIC; prints "done UNITS BEGAN ENDED", and before that, where
 * nobody else knows it, "marks TIME:UNITS ..." (what was done by when). Then it may be told to run again; "quit", or the
 * end of its input, ends it. */

#define _GNU_SOURCE
#include <stddef.h>

#include "busy.h"
#include "gpu.h"

/* A real GPU's image and the simulated one's in a single text: `work` fills the GPU, `quarter` a quarter of it; `now`
 * reads the clock. p_ns is how long the simulated GPU takes; a real one counts p_rounds. */
#define WORK(name)                                                                                                    \
    ".visible .entry " name "(.param .u64 p_rounds, .param .u64 p_slot, .param .u64 p_ns)\n"                          \
    "{\n"                                                                                                             \
    "    .reg .pred first, more;\n"                                                                                   \
    "    .reg .b32 x, y;\n"                                                                                           \
    "    .reg .b64 rounds, slot, time, wide;\n"                                                                       \
    "    mov.u64 time, %globaltimer;\n"                                                                               \
    "    ld.param.u64 rounds, [p_rounds];\n"                                                                          \
    "    ld.param.u64 slot, [p_slot];\n"                                                                              \
    "    cvta.to.global.u64 slot, slot;\n"                                                                            \
    "    mov.u32 x, %tid.x;\n"                                                                                        \
    "    mov.u32 y, %ctaid.x;\n"                                                                                      \
    "    or.b32 y, x, y;\n"                                                                                           \
    "    setp.eq.u32 first, y, 0;\n"                                                                                  \
    "    @first st.volatile.global.u64 [slot], time;\n"                                                               \
    "again:\n"                                                                                                        \
    "    mad.lo.u32 x, x, 1664525, 1013904223;\n"                                                                     \
    "    mad.lo.u32 x, x, 1664525, 1013904223;\n"                                                                     \
    "    mad.lo.u32 x, x, 1664525, 1013904223;\n"                                                                     \
    "    mad.lo.u32 x, x, 1664525, 1013904223;\n"                                                                     \
    "    sub.u64 rounds, rounds, 1;\n"                                                                                \
    "    setp.ne.u64 more, rounds, 0;\n"                                                                              \
    "    @more bra again;\n"                                                                                          \
    "    @!first bra done;\n"                                                                                         \
    "    cvt.u64.u32 wide, x;\n"                                                                                      \
    "    st.volatile.global.u64 [slot+16], wide;\n"                                                                   \
    "    mov.u64 time, %globaltimer;\n"                                                                               \
    "    st.volatile.global.u64 [slot+8], time;\n"                                                                    \
    "done:\n"                                                                                                         \
    "    ret;\n"                                                                                                      \
    "}\n"
static const char image[] = ".version 7.0\n"
                            ".target sm_52\n"
                            ".address_size 64\n"
                            "//ration-sim work time=@2\n"
                            "//ration-sim quarter time=@2 width=25%\n" WORK("work") WORK("quarter")
                            ".visible .entry now(.param .u64 p_slot)\n"
                            "{\n"
                            "    .reg .b64 slot, time;\n"
                            "    ld.param.u64 slot, [p_slot];\n"
                            "    cvta.to.global.u64 slot, slot;\n"
                            "    mov.u64 time, %globaltimer;\n"
                            "    st.volatile.global.u64 [slot], time;\n"
                            "    ret;\n"
                            "}\n"
                            ".visible .entry nothing() { ret; }\n";

enum { STREAMS = 4, SLOTS = 1 << 20, THREADS = 128, QUEUE = 1024 };
/* So much work may be queued before the program waits for the oldest of it; a driver queues about QUEUE launches. */
static const double QUEUED_US = 80e3;

struct slot {
    uint64_t start, end, product;
};

static CUfunction work, quarter, clock_kernel, nothing;
static CUstream streams[STREAMS];
static CUdeviceptr slots;
static long launched;
static uint64_t rounds, kernel_ns;
static unsigned width, shared;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void sleep_until(uint64_t when) {
    struct timespec t = {when / 1000000000ull, when % 1000000000ull};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
}

/* All of a multiprocessor's shared memory for one block: kernels do not run beside each other on it. */
static void prepare(void) {
    CUmodule module;
    CUdevice device = begin();
    int count, most;
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&work, module, "work"));
    OK(cuModuleGetFunction(&quarter, module, "quarter"));
    OK(cuModuleGetFunction(&clock_kernel, module, "now"));
    OK(cuModuleGetFunction(&nothing, module, "nothing"));
    OK(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    OK(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
    OK(cuFuncSetAttribute(work, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most));
    OK(cuFuncSetAttribute(quarter, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most));
    width = count, shared = most;
    for (int i = 0; i < STREAMS; i++) OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&slots, SLOTS * sizeof(struct slot)));
    OK(cuMemsetD8(slots, 0, SLOTS * sizeof(struct slot)));
    OK(cuCtxSynchronize());
}

static void launch(CUfunction kernel, unsigned blocks, CUstream stream) {
    MUST(launched < SLOTS);
    CUdeviceptr slot = slots + launched++ * sizeof(struct slot);
    void *arguments[] = {&rounds, &slot, &kernel_ns};
    OK(cuLaunchKernel(kernel, blocks, 1, 1, THREADS, 1, 1, shared, stream, arguments, NULL));
}

/* The GPU notes its clock at that place when it gets there. */
static void note_clock(CUdeviceptr place) {
    void *arguments[] = {&place};
    OK(cuLaunchKernel(clock_kernel, 1, 1, 1, 1, 1, 1, 0, streams[0], arguments, NULL));
}

/* What the two clocks say at the same moment: of some tries, the one in which the host waited the least. */
static struct busy_moment moment(void) {
    struct busy_moment best = {0, 0};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint64_t gpu = 0, before = now();
        note_clock(slots);
        OK(cuStreamSynchronize(streams[0]));
        uint64_t after = now();
        OK(cuMemcpyDtoH(&gpu, slots, sizeof gpu));
        if (after - before < least) {
            least = after - before;
            best = (struct busy_moment){gpu, before + least / 2};
        }
    }
    return best;
}

/* How many rounds take a microsecond: by two lengths, so that what each kernel takes besides falls out. */
static void calibrate(void) {
    struct slot took[2][8];
    uint64_t length[2] = {100000, 300000}, best[2] = {UINT64_MAX, UINT64_MAX};
    for (int i = 0; i < 200; i++) { /* until the GPU has come to its full speed */
        rounds = length[0], kernel_ns = 1000000;
        launched = 0;
        launch(work, width, streams[0]);
    }
    OK(cuCtxSynchronize());
    for (int which = 0; which < 2; which++) {
        launched = 0;
        for (int i = 0; i < 8; i++) {
            rounds = length[which], kernel_ns = 10 * length[which];
            launch(work, width, streams[0]);
        }
        OK(cuCtxSynchronize());
        OK(cuMemcpyDtoH(took[which], slots, sizeof took[which]));
        for (int i = 0; i < 8; i++) {
            uint64_t time = took[which][i].end - took[which][i].start;
            if (time < best[which]) best[which] = time;
        }
    }
    double spent = ((double)best[1] - (double)best[0]) / 1000;
    printf("rounds_per_us %.6f\n", spent > 0 ? (length[1] - length[0]) / spent : 100.0); /* simulated: no matter */
}

/* Lets the program be only so far ahead of the GPU. Short kernels are held up by the driver's own queue. */
struct ahead {
    CUevent marks[QUEUE];
    long most, count;
};

static void begin_ahead(struct ahead *ahead, double kernel_us) {
    ahead->most = (long)(QUEUED_US / kernel_us);
    if (ahead->most < STREAMS) ahead->most = STREAMS;
    ahead->count = 0;
    for (long i = 0; i < ahead->most && ahead->most < QUEUE; i++)
        if (!ahead->marks[i]) OK(cuEventCreate(&ahead->marks[i], CU_EVENT_DISABLE_TIMING));
}

static void mark(struct ahead *ahead, CUstream stream) {
    if (ahead->most >= QUEUE) return;
    CUevent event = ahead->marks[ahead->count++ % ahead->most];
    if (ahead->count > ahead->most) OK(cuEventSynchronize(event));
    OK(cuEventRecord(event, stream));
}

static long run_queued(uint64_t until, double kernel_us, int count) {
    static struct ahead ahead;
    long units = 0;
    begin_ahead(&ahead, kernel_us);
    while (now() < until) {
        CUstream stream = streams[units++ % count];
        launch(count > 1 ? quarter : work, count > 1 ? width / STREAMS : width, stream);
        mark(&ahead, stream);
    }
    return units;
}

static long run_sync(uint64_t until) {
    long units = 0;
    for (; now() < until; units++) {
        launch(work, width, streams[0]);
        OK(cuStreamSynchronize(streams[0]));
    }
    return units;
}

/* Not in step with anything: a period that wanders by a fifth. */
static long run_requests(uint64_t until, int kernels, double period_us) {
    long units = 0;
    srand(1);
    fputs("took_us", stdout);
    for (uint64_t next = now(); next < until; units++) {
        sleep_until(next);
        uint64_t start = now();
        for (int k = 0; k < kernels; k++) launch(work, width, streams[0]);
        OK(cuStreamSynchronize(streams[0]));
        printf(" %llu:%.1f", (unsigned long long)start, (now() - start) / 1000.0);
        next = start + (uint64_t)(period_us * 1000 * (0.9 + 0.2 * rand() / RAND_MAX));
    }
    puts("");
    return units;
}

/* As fast as they can be launched; now and then the oldest are waited for, and that moment is noted. */
static long run_empty(uint64_t until) {
    enum { BATCH = 400, UNDER_WAY = 2, NOTES = 4096 };
    static uint64_t times[NOTES];
    static long done[NOTES];
    static CUevent events[UNDER_WAY];
    long units = 0, batches = 0, notes = 0;
    for (int i = 0; i < UNDER_WAY; i++)
        if (!events[i]) OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    while (now() < until) {
        CUevent event = events[batches % UNDER_WAY];
        if (batches >= UNDER_WAY) {
            OK(cuEventSynchronize(event));
            uint64_t time = now();
            if (notes < NOTES && (!notes || time - times[notes - 1] > 10000000)) {
                times[notes] = time;
                done[notes++] = units - (UNDER_WAY - 1) * BATCH;
            }
        }
        MUST(launched < SLOTS);
        CUdeviceptr slot = slots + launched++ * sizeof(struct slot);
        note_clock(slot + offsetof(struct slot, start));
        for (int i = 0; i < BATCH; i++) OK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, streams[0], NULL, NULL));
        note_clock(slot + offsetof(struct slot, end));
        OK(cuEventRecord(event, streams[0]));
        units += BATCH, batches++;
    }
    fputs("marks", stdout);
    for (long i = 0; i < notes; i++) printf(" %llu:%ld", (unsigned long long)times[i], done[i]);
    puts("");
    return units;
}

/* What the kernels of a run have noted; their slots are free again. */
static void write_notes(struct busy_file *file) {
    struct slot *all = malloc(launched * sizeof *all + 1);
    MUST(all);
    if (launched) OK(cuMemcpyDtoH(all, slots, launched * sizeof *all));
    for (long i = 0; file->file && i < launched; i++)
        if (all[i].end) busy_add(file, all[i].start, all[i].end, BUSY_KERNEL, 1);
    free(all);
    launched = 0;
}

static void wait_for_line(char *line, int size) {
    fflush(stdout);
    if (!fgets(line, size, stdin)) exit(1); /* nobody is there any more */
}

static int is_told_to_run(char *line, int size, unsigned long long *from, unsigned long long *until) {
    fflush(stdout);
    return fgets(line, size, stdin) && sscanf(line, "run %llu %llu", from, until) == 2;
}

static long run(const char *mode, uint64_t until, double kernel_us, int argc, char **argv) {
    if (!strcmp(mode, "deep")) return run_queued(until, kernel_us, 1);
    if (!strcmp(mode, "streams")) return run_queued(until, kernel_us, STREAMS);
    if (!strcmp(mode, "sync")) return run_sync(until);
    if (!strcmp(mode, "empty")) return run_empty(until);
    if (!strcmp(mode, "request") && argc == 6) return run_requests(until, atoi(argv[4]), atof(argv[5]));
    return 0;
}

int main(int argc, char **argv) {
    char line[200];
    unsigned long long from, until;
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "calibrate")) {
        prepare();
        calibrate();
        return 0;
    }
    MUST(argc >= 4);
    double kernel_us = atof(argv[2]);
    rounds = (uint64_t)(kernel_us * atof(argv[3]));
    kernel_ns = (uint64_t)(kernel_us * 1000);
    MUST(rounds > 0);
    puts("loaded");
    wait_for_line(line, sizeof line);
    prepare();
    struct busy_moment first = moment();
    struct busy_file file = busy_open("own", first);
    puts("ready");
    while (is_told_to_run(line, sizeof line, &from, &until)) {
        sleep_until(from);
        uint64_t began = now();
        long units = run(mode, until, kernel_us, argc, argv);
        MUST(units > 0);
        OK(cuCtxSynchronize());
        uint64_t ended = now();
        write_notes(&file);
        printf("done %ld %llu %llu\n", units, (unsigned long long)began, (unsigned long long)ended);
    }
    busy_close(&file, moment(), 0);
    return 0;
}
