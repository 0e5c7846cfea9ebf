/* The witness: counts every call that reaches the driver, from inside it, through CUPTI's callback API.
 *
 * CUDA_INJECTION64_PATH names this library, and the driver loads it during cuInit. The counts of a process are a file
 * PID.counts in the directory CUPTI_COUNT_DIR, mapped and shared: they are complete however the process ends, and there
 * is nothing that would have to be written in time. Calls before and in cuInit are not seen, nor any that come after
 * CUPTI itself has been unloaded, which is at the very end of a process. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cupti.h>

enum { SLOTS = 2048 };

/* tests/gpu/counts.py reads this: 32 bytes, then 72 for each function that CUPTI may name, by its callback id. */
struct page {
    char magic[8];
    uint32_t pid;
    uint32_t slots;
    uint32_t known;  /* functions that this CUPTI has a name for */
    uint32_t result; /* of subscribing: 0 when it counts */
    uint32_t version;
    uint32_t unused;
    struct {
        uint64_t count;
        char name[64];
    } slot[SLOTS];
};
_Static_assert(sizeof(struct page) == 32 + 72 * SLOTS, "the reader knows the layout");

static struct page *page;

static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
    const CUpti_CallbackData *call = data;
    struct page *counts = page;
    (void)user;
    if (counts && domain == CUPTI_CB_DOMAIN_DRIVER_API && id < SLOTS && call->callbackSite == CUPTI_API_ENTER)
        __atomic_fetch_add(&counts->slot[id].count, 1, __ATOMIC_RELAXED);
}

/* A forked child has no CUDA, but it has the mapping: its failing calls are not the parent's. */
static void in_the_child(void) { page = NULL; }

static struct page *map_page(void) {
    const char *directory = getenv("CUPTI_COUNT_DIR");
    char path[4096];
    if (!directory || !*directory) return NULL;
    snprintf(path, sizeof path, "%s/%ld.counts", directory, (long)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, sizeof(struct page))) {
        perror(path);
        if (file >= 0) close(file);
        return NULL;
    }
    void *memory = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

__attribute__((visibility("default"))) int InitializeInjection(void);

int InitializeInjection(void) {
    static CUpti_SubscriberHandle subscriber;
    if (page) return 1;
    struct page *counts = map_page();
    if (!counts) return 0;
    memcpy(counts->magic, "cupti  1", 8);
    counts->pid = (uint32_t)getpid();
    counts->slots = SLOTS;
    cuptiGetVersion(&counts->version);
    for (uint32_t id = 1; id < SLOTS; id++) {
        const char *name = NULL;
        if (cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) != CUPTI_SUCCESS || !name) continue;
        snprintf(counts->slot[id].name, sizeof counts->slot[id].name, "%s", name);
        counts->known++;
    }
    page = counts;
    pthread_atfork(NULL, NULL, in_the_child);
    CUptiResult result = cuptiSubscribe(&subscriber, on_call, NULL);
    if (result == CUPTI_SUCCESS) result = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
    counts->result = (uint32_t)result;
    if (result != CUPTI_SUCCESS) fprintf(stderr, "cupti_count: CUPTI does not count: result %d\n", (int)result);
    return 1;
}
