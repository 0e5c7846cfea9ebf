/* The file of a witness: when the GPU worked for a process, a record for each kernel, copy, fill or graph.
 *
 * BUSY_DIR/PID.WITNESS.busy, which tests/gpu/compute/busy.py reads: the head, then a record after the other, in
 * nanoseconds of the clock that the witness reads. Two moments say what the host's CLOCK_MONOTONIC was, early and late,
 * so that the reader can place the records of several processes on one line. Without BUSY_DIR nothing is written. */
#ifndef RATION_BUSY_H
#define RATION_BUSY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUSY_KERNEL = 1, BUSY_COPY = 2, BUSY_SET = 3, BUSY_GRAPH = 4 };

struct busy_moment {
    uint64_t gpu, host;
};

struct busy_head {
    char magic[8];
    uint32_t pid;
    uint32_t trouble; /* 0: whole; else a code of the witness's own, and nothing here is to be trusted */
    struct busy_moment first, last;
    uint64_t count;
    uint64_t unused;
};

/* `which` tells kinds of kernels apart within a kind: records that have it in common are of the same work. */
struct busy_record {
    uint64_t start, end, kind, which;
};

_Static_assert(sizeof(struct busy_head) == 64 && sizeof(struct busy_record) == 32, "the reader knows the layout");

struct busy_file {
    FILE *file;
    struct busy_head head;
};

static inline struct busy_file busy_open(const char *witness, struct busy_moment first) {
    struct busy_file it = {NULL, {.pid = (uint32_t)getpid(), .trouble = UINT32_MAX, .first = first}};
    const char *directory = getenv("BUSY_DIR");
    char path[4096];
    if (!directory || !*directory) return it;
    memcpy(it.head.magic, "busy   2", 8);
    snprintf(path, sizeof path, "%s/%ld.%s.busy", directory, (long)getpid(), witness);
    it.file = fopen(path, "wb");
    if (!it.file) perror(path);
    /* As long as it is not closed it says that it is not whole. */
    if (it.file) fwrite(&it.head, sizeof it.head, 1, it.file);
    return it;
}

static inline void busy_add(struct busy_file *it, uint64_t start, uint64_t end, uint64_t kind, uint64_t which) {
    struct busy_record record = {start, end, kind, which};
    if (it->file) it->head.count += fwrite(&record, sizeof record, 1, it->file);
}

static inline void busy_close(struct busy_file *it, struct busy_moment last, uint32_t trouble) {
    if (!it->file) return;
    it->head.last = last;
    it->head.trouble = trouble;
    rewind(it->file);
    fwrite(&it->head, sizeof it->head, 1, it->file);
    if (fclose(it->file)) perror("a .busy file");
    it->file = NULL;
}

#endif
