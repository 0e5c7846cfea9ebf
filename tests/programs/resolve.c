/* Reads "NAME VERSION FLAGS" lines and says what cuGetProcAddress_v2 makes of each: "CODE STATUS SYMBOL". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "cuda_abi.h"

int main(void) {
    char name[200];
    int version;
    unsigned long long flags;
    while (scanf("%199s %d %llu", name, &version, &flags) == 3) {
        void *at = NULL;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        int code = (int)cuGetProcAddress_v2(name, &at, version, flags, &status);
        Dl_info info = {0};
        if (at) dladdr(at, &info);
        printf("%d %d %s\n", code, (int)status, info.dli_sname ? info.dli_sname : "-");
    }
    return 0;
}
