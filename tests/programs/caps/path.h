/*
 * What the files of `path` share. A path is one way of taking device memory, step by step, and of giving it back.
 */
#ifndef RATION_CAPS_PATH_H
#define RATION_CAPS_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"

#define BLOCK (2 * MIB) /* what the driver hands out at the least */

typedef struct Path {
    const char *name;
    size_t step;                  /* asked for at a time */
    size_t takes;                 /* what the GPU gives up for a step at most; 0: the same, in steps of 2 MiB */
    CUresult (*take)(size_t bytes);
    void (*give)(void);           /* gives the last step back; NULL where that cannot be */
    void (*prepare)(void);        /* before the first step; may set step_takes */
    void (*finish)(void);         /* after the last step was given back */
    CUresult (*fill)(const struct Path *path, size_t limit, size_t *got); /* instead of step by step */
    void (*run)(const struct Path *path, char **arguments);               /* instead of in one process */
} Path;

/* The paths, each list ends in one without a name. */
extern const Path memory_paths[], driver_paths[], process_paths[];

extern size_t cap;        /* $CAP, in bytes */
extern size_t step_takes; /* of the path that runs */
extern CUcontext primary;
extern CUstream stream;
extern CUfunction empty, touch;

/* What is held, the newest last. Up to three words each. */
typedef struct Item {
    uint64_t word[3];
} Item;
void keep(uint64_t a, uint64_t b, uint64_t c);
Item last(void); /* takes it off the list */
size_t kept(void);

/* Kernel images, in PTX. */
const char *base_image(void); /* `empty`, and `touch(pointer, count)`, which writes a word to every 64 KiB */
const char *heap_image(void); /* `heap`, which uses the device-side heap */
const char *big_image(void);  /* `empty`, and a variable of BIG bytes */
const char *deep_image(void); /* `deep2` … `deep64`, with so many KiB of local memory per thread */
#define BIG (64 * MIB)
#define DEEPEST 64

/* A context, a stream and kernels, all used once, so that what they take is taken. */
void begin(void);

/* One line. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
/* One line, then waits for one: whoever watches may look. */
void prompt(const char *name);

/* Takes steps until one is refused, whose code is returned, or limit is reached, which returns 0. */
CUresult fill(const Path *path, size_t limit, size_t *got);
void say_filled(size_t got, CUresult code);
/* What the driver and NVML tell the program now. */
void say_reports(void);
void say_left(void);
CUresult small_allocation(void), kernel_launch(void);
void say_then(const char *what, CUresult code);
void give_all(const Path *path);

static inline size_t rounded(size_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

#endif
