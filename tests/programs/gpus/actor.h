/*
 * What the files of `actor` share: the things that it has, by name, and its verbs.
 */
#ifndef RATION_GPUS_ACTOR_H
#define RATION_GPUS_ACTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"

#define DEVICES 16

/* One thing by a name of the test's choosing: an allocation, physical memory, a pool, a descriptor, or several of these. */
typedef struct Thing {
    char name[32];
    size_t bytes;
    int device;
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    int descriptor; /* -1: none */
} Thing;

/* A verb: its arguments are the words of the line, `count` of them with the verb itself. It returns the code that is said, and
 * may add to what is said with `also`. */
typedef struct Verb {
    const char *name;
    CUresult (*act)(char **word, int count);
} Verb;

extern const Verb memory_verbs[], sharing_verbs[], filling_verbs[]; /* each list ends in one without a name */

Thing *thing(const char *name); /* made when it is first named */
__attribute__((format(printf, 1, 2))) void also(const char *format, ...);

int device_count(void);
CUcontext context_of(int device); /* retained when it is first asked for */
CUstream stream_of(int device);   /* of that context */
CUresult use(int device);
CUdeviceptr mapped_at(CUmemGenericAllocationHandle handle, size_t bytes, int device, CUresult *code);

#endif
