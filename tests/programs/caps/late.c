/*
 * A context goes while another thread is in the middle of something that takes memory, so that nobody can tell just then what the
 * driver holds: late MS, where each call of the driver takes so long. It does so over and over, each time a little later in that call;
 * after each it says `held`, and does nothing more until it is told to go on.
 */
#include <pthread.h>
#include <unistd.h>

#include "check.h"

static CUcontext kept;

static void *allocates(void *memory) {
    OK(cuCtxSetCurrent(kept));
    OK(cuMemAlloc_v2(memory, MIB));
    return NULL;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&kept, 0, 0));
    for (int quarter = 0; quarter < 24; quarter++) {
        CUcontext gone;
        CUdeviceptr memory;
        pthread_t thread;
        OK(cuCtxCreate_v2(&gone, 0, 0));
        OK(cuCtxSetCurrent(kept));
        MUST(!pthread_create(&thread, NULL, allocates, &memory));
        usleep(quarter * 250 * atoi(argv[1]));
        OK(cuCtxDestroy_v2(gone));
        MUST(!pthread_join(thread, NULL));
        puts("held");
        fflush(stdout);
        if (getchar() == EOF) return 1;
    }
    return 0;
}
