/*
 * The region: the file in which the processes of a container say how much of a GPU they hold; and the
 * public file beside it, in which the container tells everybody what it uses and wants of the GPU's
 * time. Version 2.0, for whoever wants to read them without being in there: a monitor, an exporter, a
 * debugger. docs/region.md explains them.
 *
 * A reader opens gpu-<uuid>.region read-only and maps RATION_SIZE bytes of it, MAP_SHARED; or
 * gpu-<uuid>.public, and RATION_PUBLIC_SIZE bytes. Then:
 *
 * - It checks magic, RATION_MAJOR_OF(version) and the file's size, and goes no further if they are
 *   not as here. Another minor version is fine: it gives a meaning to bytes that are reserved here.
 * - All numbers are little-endian words which other processes change at any time. Each is to be read
 *   once, as an atomic: __atomic_load_n(&slot->held, __ATOMIC_SEQ_CST).
 * - Nothing in it is to be trusted. Whoever can write to the file can write anything to it, and cut
 *   it short, after which reading it ends in SIGBUS.
 *
 * Writing to it is for crates/region alone: what may be written when, and in which order, is not
 * said here, and would be wrong tomorrow.
 *
 * C11 or C++11. tests/header.rs of crates/region holds this file against the layout.
 */
#ifndef RATION_H
#define RATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define RATION_STATIC_ASSERT(what) static_assert(what, #what)
#else
#define RATION_STATIC_ASSERT(what) _Static_assert(what, #what)
#endif

/* The first eight bytes: "rationRG". */
#define RATION_MAGIC UINT64_C(0x47526e6f69746172)

#define RATION_MAJOR 2
#define RATION_MINOR 0
#define RATION_MAJOR_OF(version) ((uint16_t)(version))
#define RATION_MINOR_OF(version) ((uint16_t)((uint32_t)(version) >> 16))

/* Bytes of a region, and what lies where in it. Slots never move. */
#define RATION_SIZE 331776
#define RATION_CONTAINERS 64
#define RATION_CONTAINERS_AT 4096
#define RATION_PROCESSES 1024
#define RATION_PROCESSES_AT 69632

/* -- The header, at 0 ------------------------------------------------------------------------- */

struct ration_header {
    uint64_t magic;
    /* Of the newest library that has had it open. */
    uint32_t version;
    uint32_t header_size;
    uint64_t size;
    uint32_t containers;
    uint32_t container_size;
    uint32_t processes;
    uint32_t process_size;
    /* The GPU, as bytes in the order in which they are written. */
    uint8_t uuid[16];
    /* The GPU's memory in bytes. */
    uint64_t total;
    /* /proc/sys/kernel/random/boot_id of the boot that it is from, its first half first; zeros: not
     * known. What is in a region of another boot is of no meaning. */
    uint64_t boot[2];
    uint8_t reserved[48];
    /* Who is changing which slots are in use: a robust futex. */
    uint32_t lock;
    uint32_t claim_from;
    uint8_t rest[3960];
};

/* -- A container ------------------------------------------------------------------------------ */

/* Values of ration_container.state. Whatever else is in a slot counts only where it is LIVE. */
#define RATION_CONTAINER_FREE 0
#define RATION_CONTAINER_LIVE 1

/* The longest name in bytes. */
#define RATION_LONGEST_NAME 253
/* The cap of a container that has none. */
#define RATION_NO_CAP UINT64_MAX

struct ration_container {
    uint32_t state;
    uint32_t name_length;
    /* How often the slot was given to a container. */
    uint32_t generation;
    uint32_t reserved;
    /* UTF-8, not ended by a zero. */
    uint8_t name[256];
    uint8_t reserved_too[48];
    /* The processes in it: bit I % 64 of word I / 64 stands for the process at index I, if that one says
     * so too: see ration_process.member. */
    uint64_t members[RATION_PROCESSES / 64];
    /* The bytes that they may hold together. */
    uint64_t cap;
    uint64_t tie;
    /* How often somebody was refused. */
    uint64_t refused;
    /* The bytes that were given back beyond what was held, by processes that have left. */
    uint64_t drift;
    /* How often memory passed from one process to another. */
    uint64_t passed;
    /* The most that they held together: for people alone. */
    uint64_t peak;
    uint8_t reserved_three[16];
    uint8_t compute[512];
};

/* The word by which a process says that it is in the container at INDEX, of GENERATION. */
#define RATION_MEMBERSHIP(index, generation) (((uint64_t)(generation) << 32) | ((uint64_t)(index) + 1))

/* -- A process -------------------------------------------------------------------------------- */

/* In ration_process.life: its process has died. The slot is counted until another process frees it. */
#define RATION_DIED 0x40000000

/* The bits of ration_process.pending that are bytes. */
#define RATION_PENDING_BITS 48

struct ration_process {
    /* 0: the slot is free. With RATION_DIED: its process is dead. Otherwise it is alive. */
    uint32_t life;
    /* The minor version that it speaks. */
    uint32_t minor;
    /* How often the slot was freed. */
    uint64_t generation;
    /* Its number in its own PID namespace, as the driver has it (0: not known), and the namespace's inode. */
    uint32_t pid;
    uint32_t driver_pid;
    uint64_t pid_namespace;
    /* Of the bytes that it holds, those that are in no figure of the driver's for it. */
    uint64_t beside;
    uint8_t reserved[24];
    /* The container that it is in; 0: none. See RATION_MEMBERSHIP. */
    uint64_t member;
    /* The bytes that it holds. The sum over a container's processes of this, found and lent is what the container
     * uses. */
    uint64_t held;
    /* The bytes that it is asking for right now, in the low bits; above, how often it got something. */
    uint64_t pending;
    /* The bytes that it gave back beyond what it held. */
    uint64_t drift;
    /* The bytes that others found it to hold besides: shared memory that became its own. */
    uint64_t found;
    /* The bytes that it made and let go of, and that descriptors keep. */
    uint64_t lent;
    /* The file that those are descriptors of, by device and inode; zeros: it never exported anything. */
    uint64_t node[2];
    uint8_t compute[64];
    uint8_t reserved_three[64];
};

/* -- A public file ---------------------------------------------------------------------------- */

/* Its first eight bytes: "rationPG". */
#define RATION_PUBLIC_MAGIC UINT64_C(0x47506e6f69746172)
#define RATION_PUBLIC_SIZE 36864
#define RATION_PAGES_AT 4096

struct ration_public_header {
    uint64_t magic;
    /* As a region's, as are the GPU and the boot. */
    uint32_t version;
    uint32_t header_size;
    uint64_t size;
    /* A page for each container of the region, at the same index. */
    uint32_t pages;
    uint32_t page_size;
    uint8_t uuid[16];
    uint64_t boot[2];
    uint8_t reserved[64];
    /* When each container last said something, by its own monotonic clock, in nanoseconds; 0: it does not
     * use the GPU. One that has said nothing for a second is not there. */
    uint64_t said[RATION_CONTAINERS];
    /* How many leases there had been, above 30 bits, and to whom the last of them went. */
    uint64_t lease[RATION_CONTAINERS];
    uint8_t rest[2944];
};

/* Bits of ration_page.flags. */
#define RATION_WANTS 1
#define RATION_FILLS 2
#define RATION_IS_ON 4
#define RATION_URGENT 16
#define RATION_BATCHES 32

struct ration_page {
    /* That of the container; a page with another one is nobody's. */
    uint64_t generation;
    uint64_t name_length;
    /* UTF-8, not ended by a zero. */
    uint8_t name[256];
    /* In millionths of the GPU's time: what it weighs among others, what it asked for (0: nothing), what it
     * may have at most. */
    uint64_t weight;
    uint64_t request;
    uint64_t limit;
    /* 0: normal, 1: latency, 2: batch. */
    uint64_t priority;
    uint64_t flags;
    /* What it uses of the GPU's time, and what it would use if it had the GPU for itself, in millionths. */
    uint64_t usage;
    uint64_t demand;
    /* How long its answers take, in nanoseconds; 0: not known. */
    uint64_t burst;
    /* When it last had something under way, by its own clock. */
    uint64_t worked;
    uint64_t virtual_time;
    /* How many of its processes use the GPU. */
    uint64_t processes;
    uint8_t reserved[152];
};

struct ration_public {
    struct ration_public_header header;
    struct ration_page pages[RATION_CONTAINERS];
};

RATION_STATIC_ASSERT(sizeof(struct ration_public_header) == RATION_PAGES_AT);
RATION_STATIC_ASSERT(sizeof(struct ration_page) == 512);
RATION_STATIC_ASSERT(sizeof(struct ration_public) == RATION_PUBLIC_SIZE);

/* -- All of a region -------------------------------------------------------------------------- */

struct ration_region {
    struct ration_header header;
    struct ration_container containers[RATION_CONTAINERS];
    struct ration_process processes[RATION_PROCESSES];
};

RATION_STATIC_ASSERT(sizeof(struct ration_header) == 4096);
RATION_STATIC_ASSERT(offsetof(struct ration_header, size) == 16);
RATION_STATIC_ASSERT(offsetof(struct ration_header, uuid) == 40);
RATION_STATIC_ASSERT(offsetof(struct ration_header, total) == 56);
RATION_STATIC_ASSERT(offsetof(struct ration_header, lock) == 128);

RATION_STATIC_ASSERT(sizeof(struct ration_container) == 1024);
RATION_STATIC_ASSERT(offsetof(struct ration_container, name) == 16);
RATION_STATIC_ASSERT(offsetof(struct ration_container, members) == 320);
RATION_STATIC_ASSERT(offsetof(struct ration_container, cap) == 448);
RATION_STATIC_ASSERT(offsetof(struct ration_container, drift) == 472);
RATION_STATIC_ASSERT(offsetof(struct ration_container, peak) == 488);
RATION_STATIC_ASSERT(offsetof(struct ration_container, compute) == 512);

RATION_STATIC_ASSERT(sizeof(struct ration_process) == 256);
RATION_STATIC_ASSERT(offsetof(struct ration_process, pid) == 16);
RATION_STATIC_ASSERT(offsetof(struct ration_process, member) == 64);
RATION_STATIC_ASSERT(offsetof(struct ration_process, held) == 72);
RATION_STATIC_ASSERT(offsetof(struct ration_process, pending) == 80);
RATION_STATIC_ASSERT(offsetof(struct ration_process, compute) == 128);

RATION_STATIC_ASSERT(offsetof(struct ration_region, containers) == RATION_CONTAINERS_AT);
RATION_STATIC_ASSERT(offsetof(struct ration_region, processes) == RATION_PROCESSES_AT);
RATION_STATIC_ASSERT(sizeof(struct ration_region) == RATION_SIZE);

#ifdef __cplusplus
}
#endif

#endif
