/* A program's own channels, seen as libcuda makes them and driven by the program itself: the executable's `ioctl` comes
 * before libc's, so that all that libcuda says to the kernel module goes by here. docs/design/compute.md has the words. */
#ifndef RATION_CHANNELS_H
#define RATION_CHANNELS_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct rm_control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_alloc { /* how both of its forms begin */
    uint32_t client, parent, object, class;
    uint32_t *params;
};
struct rm_free {
    uint32_t client, parent, object, status;
};
struct rm_switch { /* of control 0x2080110b */
    uint8_t off, pad[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, pad2[6];
    uint64_t event;
    uint32_t clients[64], channels[64];
};

enum { CLIENTS = 64, GROUPS = 64, CHANNELS = 512 };
static struct { uint32_t client; int fd; } rm_clients[CLIENTS];
static struct { uint32_t client, object, engine; } rm_groups[GROUPS];
static struct { uint32_t client, object, group; } rm_channels[CHANNELS];
static int rm_client_count, rm_group_count, rm_channel_count;
static uint32_t rm_subdevice_client, rm_subdevice;
static int rm_tracing;

static double rm_now(void) { /* ms */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

static int rm_fd(uint32_t client) {
    for (int i = 0; i < rm_client_count; i++)
        if (rm_clients[i].client == client) return rm_clients[i].fd;
    return -1;
}

static int rm_call(int fd, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size) {
    struct rm_control c = {client, object, command, 0, (uint64_t)params, size, 0};
    long result = syscall(SYS_ioctl, fd, 0xc020462aul, &c);
    return result ? -1 : (int)c.status;
}

static int rm_is_compute(uint32_t client, uint32_t group) {
    for (int i = 0; i < rm_group_count; i++)
        if (rm_groups[i].client == client && rm_groups[i].object == group) return rm_groups[i].engine <= 1;
    return 0;
}

static void rm_list(struct rm_switch *s) {
    for (int i = 0; i < rm_channel_count && s->count < 64; i++)
        if (rm_is_compute(rm_channels[i].client, rm_channels[i].group)) {
            s->clients[s->count] = rm_channels[i].client;
            s->channels[s->count++] = rm_channels[i].object;
        }
}

static int rm_only_scheduling;
static int rm_put(int off) {
    struct rm_switch s;
    memset(&s, 0, sizeof s);
    s.off = off, s.only_scheduling = rm_only_scheduling && off;
    rm_list(&s);
    return rm_call(rm_fd(rm_subdevice_client), rm_subdevice_client, rm_subdevice, 0x2080110b, &s, sizeof s);
}

static int rm_slice(uint64_t us) {
    int status = 0;
    for (int i = 0; i < rm_group_count; i++)
        if (rm_groups[i].engine <= 1)
            status |= rm_call(rm_fd(rm_groups[i].client), rm_groups[i].client, rm_groups[i].object, 0xa06c0103, &us, 8);
    return status;
}

int ioctl(int fd, unsigned long request, ...) {
    va_list v;
    va_start(v, request);
    void *p = va_arg(v, void *);
    va_end(v);
    int number = request & 255, ours = ((request >> 8) & 255) == 'F' && p;
    double begun = rm_tracing ? rm_now() : 0;
    long result = syscall(SYS_ioctl, fd, request, p);
    if (rm_tracing && ours && number == 0x2a) {
        struct rm_control *c = p;
        int group = (c->command >> 16) == 0xa06c || c->command == 0x2080110b;
        if (group || rm_tracing > 1)
            printf("  control %08x client %08x object %08x fd %d request %lx size %u status %x %.3f ms\n", c->command, c->client,
                   c->object, fd, request, c->params_size, c->status, rm_now() - begun);
    }
    if (ours && number == 0x2b && !result) {
        struct rm_alloc *a = p;
        if (rm_tracing && (a->class == 0x41 || a->class == 0x80 || a->class == 0x2080 || a->class == 0xa06c || (a->class & 0xff) == 0x6f))
            printf("  alloc class %04x client %08x parent %08x object %08x fd %d request %lx engine %d\n", a->class, a->client,
                   a->parent, a->object, fd, request, a->class == 0xa06c && a->params ? (int)a->params[3] : -1);
        if (a->class == 0x41 && rm_client_count < CLIENTS) {
            rm_clients[rm_client_count].client = a->object, rm_clients[rm_client_count++].fd = fd;
        } else if (a->class == 0xa06c && rm_group_count < GROUPS) {
            rm_groups[rm_group_count].client = a->client, rm_groups[rm_group_count].object = a->object;
            rm_groups[rm_group_count++].engine = a->params ? a->params[3] : 99;
        } else if ((a->class & 0xff) == 0x6f && rm_channel_count < CHANNELS) {
            rm_channels[rm_channel_count].client = a->client, rm_channels[rm_channel_count].object = a->object;
            rm_channels[rm_channel_count++].group = a->parent;
        } else if (a->class == 0x2080 && !rm_subdevice) {
            rm_subdevice_client = a->client, rm_subdevice = a->object;
        }
    }
    if (ours && number == 0x29 && !result) {
        struct rm_free *f = p;
        if (rm_tracing) {
            int known = 0;
            for (int i = 0; i < rm_group_count; i++) known |= rm_groups[i].object == f->object;
            for (int i = 0; i < rm_channel_count; i++) known |= 2 * (rm_channels[i].object == f->object);
            if (known || f->client == f->object) printf("  free client %08x parent %08x object %08x %s\n", f->client, f->parent, f->object, known == 1 ? "group" : known ? "channel" : "client");
        }
        for (int i = 0; i < rm_channel_count; i++)
            if (rm_channels[i].client == f->client && (rm_channels[i].object == f->object || rm_channels[i].group == f->object))
                rm_channels[i--] = rm_channels[--rm_channel_count];
        for (int i = 0; i < rm_group_count; i++)
            if (rm_groups[i].client == f->client && rm_groups[i].object == f->object) rm_groups[i--] = rm_groups[--rm_group_count];
    }
    return result;
}
#endif
