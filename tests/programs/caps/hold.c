/*
 * Holds device memory as it is told to, line by line on standard input:
 *   take BYTES    says `had` or `refused CODE`
 *   wait BYTES    tries until it has them: says `refused CODE` once if it has to wait, then `had`
 *   give          gives all of it back: says `gave`
 *   reports       what cuMemGetInfo says: `info FREE TOTAL`
 */
#include <string.h>
#include <unistd.h>

#include "check.h"

static CUdeviceptr held[1024];
static size_t count;

int main(void) {
    char line[64];
    size_t bytes, left, total;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "take %zu", &bytes) == 1 || sscanf(line, "wait %zu", &bytes) == 1) {
            MUST(count < 1024);
            CUresult code = cuMemAlloc_v2(&held[count], bytes);
            if (code) {
                printf("refused %d\n", (int)code);
                fflush(stdout);
            }
            while (code && *line == 'w') {
                usleep(500);
                code = cuMemAlloc_v2(&held[count], bytes);
            }
            if (!code) {
                count++;
                puts("had");
            }
        } else if (!strcmp(line, "give\n")) {
            while (count) OK(cuMemFree_v2(held[--count]));
            puts("gave");
        } else if (!strcmp(line, "reports\n")) {
            OK(cuMemGetInfo_v2(&left, &total));
            printf("info %zu %zu\n", left, total);
        }
        fflush(stdout);
    }
    return 0;
}
