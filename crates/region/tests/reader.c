/*
 * Reads a region without being in it, by include/ration.h alone, and prints what it says: a line for
 * each container, and one for each process in it.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ration.h"

#define READ(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)

static int is_in(const struct ration_region *region, unsigned container, unsigned process)
{
    const struct ration_container *it = &region->containers[container];
    uint64_t membership = RATION_MEMBERSHIP(container, READ(it->generation));
    return (READ(it->members[process / 64]) >> process % 64 & 1) != 0 &&
           READ(region->processes[process].member) == membership;
}

static void print_container(const struct ration_region *region, unsigned container)
{
    const struct ration_container *it = &region->containers[container];
    uint32_t length = READ(it->name_length);
    uint64_t used = 0;
    for (unsigned i = 0; i < RATION_PROCESSES; i++)
        if (is_in(region, container, i))
            used += READ(region->processes[i].held);
    printf("container %.*s cap %" PRIu64 " used %" PRIu64 " refused %" PRIu64 "\n",
           (int)(length > RATION_LONGEST_NAME ? RATION_LONGEST_NAME : length), (const char *)it->name,
           READ(it->cap), used, READ(it->refused));
    for (unsigned i = 0; i < RATION_PROCESSES; i++) {
        const struct ration_process *process = &region->processes[i];
        if (is_in(region, container, i))
            printf("process %" PRIu32 " driver %" PRIu32 " namespace %" PRIu64 " held %" PRIu64 " drift %" PRIu64
                   " pending %" PRIu64 " %s\n",
                   READ(process->pid), READ(process->driver_pid), READ(process->pid_namespace), READ(process->held),
                   READ(process->drift), READ(process->pending) & ((UINT64_C(1) << RATION_PENDING_BITS) - 1),
                   READ(process->life) & RATION_DIED ? "dead" : "alive");
    }
}

int main(int argc, char **argv)
{
    struct stat about;
    int file = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &about) != 0 || about.st_size < RATION_SIZE)
        return fprintf(stderr, "no region\n"), 1;
    const struct ration_region *region = mmap(NULL, RATION_SIZE, PROT_READ, MAP_SHARED, file, 0);
    if (region == MAP_FAILED)
        return perror("mmap"), 1;
    uint32_t version = READ(region->header.version);
    if (READ(region->header.magic) != RATION_MAGIC || RATION_MAJOR_OF(version) != RATION_MAJOR)
        return fprintf(stderr, "not a region of this version\n"), 1;
    printf("region %u.%u uuid ", RATION_MAJOR_OF(version), RATION_MINOR_OF(version));
    for (unsigned i = 0; i < sizeof region->header.uuid; i++)
        printf("%02x", READ(region->header.uuid[i]));
    printf(" total %" PRIu64 "\n", READ(region->header.total));
    for (unsigned i = 0; i < RATION_CONTAINERS; i++)
        if (READ(region->containers[i].state) == RATION_CONTAINER_LIVE)
            print_container(region, i);
    return 0;
}
