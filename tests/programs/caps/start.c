/* What a program is told that starts: `init CODE`, and `context CODE` if it got that far. */
#include <stdio.h>

#include "cuda_abi.h"

int main(void) {
    CUcontext context;
    CUresult code = cuInit(0);
    printf("init %d\n", (int)code);
    if (!code) printf("context %d\n", (int)cuDevicePrimaryCtxRetain(&context, 0));
    return 0;
}
