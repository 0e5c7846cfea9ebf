/*
 * Threads that come, make one call and go: churn THREADS AT-ONCE. Prints on standard error by how many KiB the process grew.
 * With "keys" as a third argument, all keys for thread-specific data are taken before the first call.
 */
#include <limits.h>

#include "hostile.h"

static void *thread(void *unused) {
    (void)unused;
    OK(cuInit(0));
    return NULL;
}

static long resident(void) {
    long size, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
    fclose(file);
    return pages * 4;
}

static void run(int threads, int at_once) {
    pthread_t all[64];
    for (int i = 0; i < threads; i += at_once) {
        for (int k = 0; k < at_once; k++) MUST(!pthread_create(&all[k], NULL, thread, NULL));
        for (int k = 0; k < at_once; k++) pthread_join(all[k], NULL);
    }
}

int main(int argc, char **argv) {
    MUST(argc > 2);
    int threads = atoi(argv[1]), at_once = atoi(argv[2]);
    pthread_key_t key;
    if (argc > 3) {
        OK(cuInit(0)); /* the simulated driver wants keys of its own */
        while (!pthread_key_create(&key, NULL)) continue;
    }
    run(at_once, at_once);
    long before = resident();
    run(threads, at_once);
    fprintf(stderr, "grew %ld\n", resident() - before);
    return 0;
}
