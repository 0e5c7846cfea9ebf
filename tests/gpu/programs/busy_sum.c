/* Adds up what a witness wrote down (busy.h), by the rule of tests/gpu/compute/busy.py, where there are too many records
 * for Python. Reads lines and prints one for each window:
 *   file PATH                     records of the container (one file for each of its processes)
 *   reference PATH FROM UNTIL     records of the same program alone, and which of them
 *   window FROM UNTIL             -> "window GPU_NS RAW_NS BARE_NS COPIES_NS RECORDS KINDS"
 * in nanoseconds of CLOCK_MONOTONIC, or "broken WHY" once. GPU_NS is robust: for each kind of kernel, how many there were
 * times the lower quartile of their durations (in the window or, if that is less, in the reference), and the pauses between
 * them of up to 5 us. What ran side by side counts once: by how much of it did in the reference, if there is one, for two
 * kernels that are interrupted while one ends and the other begins are both long. RAW_NS is the union of all records with
 * such pauses, BARE_NS without them. */

#define _GNU_SOURCE
#include "busy.h"

enum { PAUSE = 5000, FEW = 4 };

struct item {
    int64_t start, end;
    uint64_t which;
    int is_copy;
};

struct items {
    struct item *all;
    size_t count, room;
};

/* How long the records of a kind took, and how many there were, by their parts in a window. */
struct kind {
    uint64_t which;
    double count, *took;
    size_t records, room;
};

struct kinds {
    struct kind *all;
    size_t count, room;
    uint32_t *table; /* number + 1, by hash */
    size_t size;
};

static void broken(const char *path, const char *why) {
    printf("broken %s %s\n", path, why);
    exit(0);
}

static void *grown(void *all, size_t size) {
    all = realloc(all, size);
    if (!all) exit(3);
    return all;
}

static void load(struct items *into, const char *path) {
    struct busy_head head;
    struct busy_record record;
    FILE *file = fopen(path, "rb");
    if (!file || fread(&head, sizeof head, 1, file) != 1) broken(path, "has no head");
    if (memcmp(head.magic, "busy   2", 8)) broken(path, "is no file of a witness");
    if (head.trouble == UINT32_MAX) broken(path, "was not closed");
    if (head.trouble) broken(path, head.trouble == 1 ? "lost records" : "is in trouble");
    uint64_t passed = head.last.gpu - head.first.gpu;
    double slope = head.last.gpu > head.first.gpu ? (double)(head.last.host - head.first.host) / passed : 1.0;
    if (!(slope > 0.99 && slope < 1.01)) broken(path, "has a clock that runs at another speed");
    setvbuf(file, NULL, _IOFBF, 1 << 20);
    for (uint64_t i = 0; i < head.count; i++) {
        if (fread(&record, sizeof record, 1, file) != 1) broken(path, "has fewer records than it should");
        if (record.end < record.start) broken(path, "has a record that ends before it begins");
        if (into->count == into->room) into->all = grown(into->all, (into->room += into->room / 2 + 4096) * sizeof *into->all);
        struct item *it = &into->all[into->count++];
        it->start = head.first.host + (int64_t)((double)(int64_t)(record.start - head.first.gpu) * slope);
        it->end = head.first.host + (int64_t)((double)(int64_t)(record.end - head.first.gpu) * slope);
        it->which = record.which * 8 + record.kind;
        it->is_copy = record.kind == BUSY_COPY;
    }
    fclose(file);
}

static int by_start(const void *a, const void *b) {
    const struct item *one = a, *other = b;
    return one->start != other->start ? (one->start > other->start) - (one->start < other->start)
                                      : (one->end > other->end) - (one->end < other->end);
}

static int by_size(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static struct kind *kind_of(struct kinds *in, uint64_t which, int make) {
    if (in->count * 2 >= in->size) {
        in->size = in->size ? in->size * 2 : 1024;
        in->table = grown(in->table, in->size * sizeof *in->table);
        memset(in->table, 0, in->size * sizeof *in->table);
        for (size_t i = 0; i < in->count; i++) {
            size_t at = in->all[i].which * 0x9e3779b97f4a7c15ull >> 20 & (in->size - 1);
            while (in->table[at]) at = (at + 1) & (in->size - 1);
            in->table[at] = i + 1;
        }
    }
    size_t at = which * 0x9e3779b97f4a7c15ull >> 20 & (in->size - 1);
    for (; in->table[at]; at = (at + 1) & (in->size - 1))
        if (in->all[in->table[at] - 1].which == which) return &in->all[in->table[at] - 1];
    if (!make) return NULL;
    if (in->count == in->room) in->all = grown(in->all, (in->room += in->room / 2 + 256) * sizeof *in->all);
    in->all[in->count] = (struct kind){.which = which};
    in->table[at] = ++in->count;
    return &in->all[in->count - 1];
}

static void forget(struct kinds *in) {
    for (size_t i = 0; i < in->count; i++) free(in->all[i].took);
    free(in->all);
    free(in->table);
    memset(in, 0, sizeof *in);
}

/* The kinds of what touches a window. */
static void sort_out(struct kinds *into, const struct items *from, int64_t start, int64_t end) {
    for (size_t i = 0; i < from->count; i++) {
        const struct item *it = &from->all[i];
        if (it->is_copy || it->start >= end || it->end <= start) continue;
        struct kind *kind = kind_of(into, it->which, 1);
        int64_t first = it->start > start ? it->start : start, last = it->end < end ? it->end : end;
        kind->count += it->end > it->start ? (double)(last - first) / (it->end - it->start) : 1.0;
        if (kind->records == kind->room)
            kind->took = grown(kind->took, (kind->room += kind->room + 16) * sizeof *kind->took);
        kind->took[kind->records++] = it->end - it->start;
    }
    for (size_t i = 0; i < into->count; i++) qsort(into->all[i].took, into->all[i].records, sizeof(double), by_size);
}

static double usual(const struct kind *kind) {
    size_t n = kind->records;
    if (n >= FEW) return kind->took[(n - 1) / 4];
    return n % 2 ? kind->took[n / 2] : (kind->took[n / 2 - 1] + kind->took[n / 2]) / 2;
}

/* Of records in order, in a window: their union with pauses up to `pause`, and their sum. */
static double together(const struct items *in, int64_t start, int64_t end, int64_t pause, int copies, double *sum) {
    double total = 0;
    int64_t from = 0, to = 0;
    int any = 0;
    if (sum) *sum = 0;
    for (size_t i = 0; i <= in->count; i++) {
        const struct item *it = i < in->count ? &in->all[i] : NULL;
        if (it && (it->is_copy ? !(copies & 2) : !(copies & 1))) continue;
        if (it && sum) {
            int64_t first = it->start > start ? it->start : start, last = it->end < end ? it->end : end;
            if (last > first) *sum += last - first;
        }
        if (it && any && it->start - to <= pause) {
            if (it->end > to) to = it->end;
            continue;
        }
        if (any) {
            int64_t first = from > start ? from : start, last = to < end ? to : end;
            if (last > first) total += last - first;
        }
        if (it) from = it->start, to = it->end, any = 1;
    }
    return total;
}

int main(void) {
    static char line[8192], path[4096];
    struct items own = {0}, other;
    struct kinds reference = {0}, kinds = {0};
    int is_sorted = 0;
    double apart = 0; /* of the reference: its kernels' union, as part of their sum */
    long long from, until;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "reference %4095s %lld %lld", path, &from, &until) == 3) {
            other = (struct items){0};
            load(&other, path);
            sort_out(&reference, &other, from, until);
            qsort(other.all, other.count, sizeof *other.all, by_start);
            double all, once = together(&other, from, until, 0, 1, &all);
            if (all > 0) apart = once / all;
            free(other.all);
        } else if (sscanf(line, "file %4095s", path) == 1) {
            load(&own, path);
        } else if (sscanf(line, "window %lld %lld", &from, &until) == 2) {
            if (!is_sorted) qsort(own.all, own.count, sizeof *own.all, by_start);
            is_sorted = 1;
            /* Only what touches the window: of millions of records, a process has many windows. Records are short. */
            struct items here = {0};
            for (size_t i = 0; i < own.count; i++) {
                if (own.all[i].end <= from || own.all[i].start >= until) continue;
                if (here.count == here.room) here.all = grown(here.all, (here.room += here.room / 2 + 4096) * sizeof *here.all);
                here.all[here.count++] = own.all[i];
            }
            sort_out(&kinds, &here, from, until);
            double robust = 0, sum, bare, ended = 0;
            for (size_t i = 0; i < kinds.count; i++) {
                double took = usual(&kinds.all[i]);
                const struct kind *alone = reference.count ? kind_of(&reference, kinds.all[i].which, 0) : NULL;
                if (alone && alone->records >= FEW && usual(alone) < took) took = usual(alone);
                robust += kinds.all[i].count * took;
            }
            bare = together(&here, from, until, 0, 1, &sum);
            double pauses = together(&here, from, until, PAUSE, 1, NULL) - bare;
            if (sum > 0) robust *= apart > 0 ? apart : bare / sum; /* what ran side by side counts once */
            for (size_t i = 0; i < here.count; i++) ended += here.all[i].end > from && here.all[i].end <= until;
            printf("window %.0f %.0f %.0f %.0f %.0f %zu\n", robust + pauses, together(&here, from, until, PAUSE, 3, NULL),
                   together(&here, from, until, 0, 3, NULL), together(&here, from, until, 0, 2, NULL), ended, kinds.count);
            forget(&kinds);
            free(here.all);
        }
    }
    return 0;
}
