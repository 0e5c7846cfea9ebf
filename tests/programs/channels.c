/*
 * Drives its own channels, as a library that looks on could: it has an `ioctl` of its own, before the one of the simulated kernel
 * module, and remembers what libcuda allocates.
 *   channels KERNEL_US       fills the GPU with kernels of this length, and obeys lines on standard input:
 *     slice US               sets its compute groups' time slice
 *     off, on                takes its compute channels off, puts them on
 *     some                   takes one of its channels off
 *     elsewhere              tries "off" on another descriptor than the client's
 *     again                  destroys the context and makes another
 *     seen                   what was seen, and nothing else
 *     quit
 * Each is answered by a line: the status, the milliseconds it took, then how many compute groups, channels in them, copy groups, and
 * channels in groups that were not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

struct control { uint32_t client, object, command, flags; uint64_t params; uint32_t params_size, status; };
struct alloc { uint32_t client, parent, object, class; uint64_t params, rights; uint32_t params_size, flags, status, pad; };
struct release { uint32_t client, parent, object, status; };
struct disable {
    uint8_t disable, pad[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, pad2[6];
    uint64_t event;
    uint32_t clients[64], channels[64];
};

#define REQUEST(number, type) (3ul << 30 | sizeof(type) << 16 | 'F' << 8 | (number))
#define SIZE 256

static struct { uint32_t client, parent, object, class, engine; } seen[SIZE];
static int count, node = -1;

int ioctl(int fd, unsigned long request, ...) {
    static int (*behind)(int, unsigned long, ...);
    va_list list;
    va_start(list, request);
    void *at = va_arg(list, void *);
    va_end(list);
    if (!behind) behind = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
    int result = behind(fd, request, at);
    if (result) return result;
    if (request == REQUEST(0x2b, struct alloc)) {
        struct alloc *a = at;
        if (a->status || count == SIZE) return result;
        MUST(a->class != 0x41 || a->object >> 16 == 0xc1d0);
        node = fd;
        seen[count].client = a->client;
        seen[count].parent = a->parent;
        seen[count].object = a->object;
        seen[count].class = a->class;
        seen[count++].engine = a->class == 0xa06c ? ((uint32_t *)(uintptr_t)a->params)[3] : 0;
    } else if (request == REQUEST(0x29, struct release)) {
        struct release *r = at;
        int kept = 0;
        for (int i = 0; i < count; i++)
            if (seen[i].object != r->object && seen[i].parent != r->object) seen[kept++] = seen[i];
        count = kept;
    }
    return result;
}

static int find(uint32_t object) {
    for (int i = 0; i < count; i++)
        if (seen[i].object == object) return i;
    return -1;
}

static int is_compute(int channel) {
    if ((seen[channel].class & 0xff) != 0x6f) return 0;
    int group = find(seen[channel].parent);
    return group < 0 || seen[group].engine == 1;
}

static unsigned ask(int fd, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size) {
    struct control c = {client, object, command, 0, (uintptr_t)params, size, 0};
    MUST(ioctl(fd, REQUEST(0x2a, struct control), &c) == 0);
    return c.status;
}

static unsigned put(int fd, int off, uint32_t most) {
    struct disable d;
    memset(&d, 0, sizeof d);
    d.disable = off;
    for (int i = 0; i < count && d.count < most; i++)
        if (is_compute(i)) d.clients[d.count] = seen[i].client, d.channels[d.count++] = seen[i].object;
    for (int i = 0; i < count; i++)
        if (seen[i].class == 0x2080) return ask(fd, seen[i].client, seen[i].object, 0x2080110b, &d, sizeof d);
    return ~0u;
}

static unsigned slice(uint64_t us) {
    unsigned status = 0;
    for (int i = 0; i < count; i++)
        if (seen[i].class == 0xa06c && seen[i].engine == 1)
            status |= ask(node, seen[i].client, seen[i].object, 0xa06c0103, &us, sizeof us);
    return status;
}

static CUcontext context;
static CUfunction kernel;
static char image[200];
static atomic_int stop;

static void make(void) {
    CUmodule module;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&kernel, module, "k"));
}

static void *work(void *unused) {
    OK(cuCtxSetCurrent(context));
    while (!stop) OK(cuLaunchKernel(kernel, 132, 1, 1, 1024, 1, 1, 0, NULL, NULL, NULL));
    return unused;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    snprintf(image, sizeof image, "ration-sim-image 1\nkernel k time=%sus\n", argv[1]);
    OK(cuInit(0));
    make();
    pthread_t worker;
    pthread_create(&worker, NULL, work, NULL);
    char line[80];
    unsigned long us;
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
        unsigned status = 0;
        double begin = now();
        if (sscanf(line, "slice %lu", &us) == 1) status = slice(us);
        else if (!strcmp(line, "off\n")) status = put(node, 1, 64);
        else if (!strcmp(line, "some\n")) status = put(node, 1, 1);
        else if (!strcmp(line, "on\n")) status = put(node, 0, 64);
        else if (!strcmp(line, "elsewhere\n")) status = put(memfd_create("nvidiactl", 0), 1, 64);
        else if (!strcmp(line, "again\n")) {
            stop = 1;
            pthread_join(worker, NULL);
            OK(cuCtxDestroy_v2(context));
            make();
            stop = 0;
            pthread_create(&worker, NULL, work, NULL);
        } else MUST(!strcmp(line, "seen\n"));
        double took = (now() - begin) * 1000;
        int groups = 0, channels = 0, copies = 0, foreign = 0;
        for (int i = 0; i < count; i++) {
            groups += seen[i].class == 0xa06c && seen[i].engine == 1;
            copies += seen[i].class == 0xa06c && seen[i].engine != 1;
            if ((seen[i].class & 0xff) == 0x6f) {
                int group = find(seen[i].parent);
                if (group < 0) foreign++;
                else channels += seen[group].engine == 1;
            }
        }
        printf("%x %.3f %d %d %d %d\n", status, took, groups, channels, copies, foreign);
        fflush(stdout);
    }
    _exit(0);
}
