/*
 * Two processes and one memory. The first makes it and starts the second, which is this program too:
 *   memory_share ipc          by cuIpcGetMemHandle, with an event
 *   memory_share fd           by cuMemExportToShareableHandle
 *   memory_share pool         by an exported pool
 * Between steps it prints a line and waits for one.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void step(const char *name) {
    char answer[16];
    printf("%s\n", name);
    fflush(stdout);
    if (!fgets(answer, sizeof answer, stdin)) exit(2);
}

static void start_context(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static uint32_t word_at(CUdeviceptr p) {
    uint32_t word;
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    return word;
}

static char *hex(const void *data, size_t len) {
    char *text = malloc(2 * len + 1);
    for (size_t i = 0; i < len; i++) sprintf(text + 2 * i, "%02x", ((const unsigned char *)data)[i]);
    return text;
}

static void unhex(void *data, size_t len, const char *text) {
    for (size_t i = 0; i < len; i++) sscanf(text + 2 * i, "%2hhx", (unsigned char *)data + i);
}

/* Runs this program again, with its input and output, and waits for it. */
static void second(char *const *arguments) {
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", arguments);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void first_ipc(void) {
    CUdeviceptr small[3], large, opened;
    CUipcMemHandle handle, of_large, inside;
    CUipcEventHandle of_event;
    CUevent event;
    CUstream stream;
    start_context();
    for (int i = 0; i < 3; i++) {
        OK(cuMemAlloc_v2(&small[i], 5000));
        OK(cuMemsetD32_v2(small[i], 100 + i, 1250));
    }
    OK(cuMemAlloc_v2(&large, 5 * MIB));
    OK(cuMemsetD32_v2(large, 7, 5 * MIB / 4));
    step("made");
    OK(cuIpcGetMemHandle(&handle, small[1]));
    OK(cuIpcGetMemHandle(&inside, small[1] + 512));
    MUST(!memcmp(&handle, &inside, sizeof handle));
    OK(cuIpcGetMemHandle(&of_large, large));
    MUST(word_at(small[1]) == 101 && word_at(large + 5 * MIB - 4) == 7); /* nothing is lost by exporting */
    MUST(cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
    MUST(cuIpcCloseMemHandle(small[1]) == CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&of_event, event));
    OK(cuEventRecord(event, stream));
    step("exported");
    char *const arguments[] = {"memory_share", "ipc-second", hex(&handle, 64), hex(&of_large, 64), hex(&of_event, 64), NULL};
    second(arguments);
    MUST(word_at(small[1]) == 555 && word_at(small[0]) == 100 && word_at(small[2]) == 102);
    MUST(word_at(large + 4096) == 9);
    step("the second is gone");
    for (int i = 0; i < 3; i++) OK(cuMemFree_v2(small[i]));
    OK(cuMemFree_v2(large));
    step("freed");
}

static void second_ipc(char **arguments) {
    CUipcMemHandle handle, of_large;
    CUipcEventHandle of_event;
    CUdeviceptr small, again, large, base;
    CUevent event;
    size_t size;
    unhex(&handle, 64, arguments[2]);
    unhex(&of_large, 64, arguments[3]);
    unhex(&of_event, 64, arguments[4]);
    start_context();
    step("the second's context");
    CUipcMemHandle torn = of_large;
    memcpy(&torn, &handle, 16);
    MUST(cuIpcOpenMemHandle_v2(&small, torn, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcOpenMemHandle_v2(&small, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&large, of_large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    MUST(small == again);
    OK(cuMemGetAddressRange_v2(&base, &size, small + 10));
    MUST(base == small && size == 5000);
    MUST(word_at(small) == 101 && word_at(large + 5 * MIB - 4) == 7);
    MUST(cuMemsetD8_v2(small, 0, 5001) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree_v2(small) == CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcOpenEventHandle(&event, of_event));
    OK(cuStreamWaitEvent(NULL, event, 0));
    OK(cuEventSynchronize(event));
    OK(cuMemsetD32_v2(small, 555, 4));
    OK(cuMemsetD32_v2(large + 4096, 9, 1));
    OK(cuCtxSynchronize());
    step("opened");
    OK(cuIpcCloseMemHandle(small));
    MUST(word_at(again) == 555); /* opened twice */
    OK(cuIpcCloseMemHandle(again));
    MUST(cuIpcCloseMemHandle(again) == CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcCloseMemHandle(large));
    step("closed");
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t size) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, size, 0, 0, 0));
    OK(cuMemMap(at, size, 0, handle, 0));
    OK(cuMemSetAccess(at, size, &access, 1));
    return at;
}

static void first_fd(void) {
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemGenericAllocationHandle handle;
    int fd;
    char number[16];
    start_context();
    OK(cuMemCreate(&handle, 8 * MIB, &prop, 0));
    CUdeviceptr at = mapped(handle, 8 * MIB);
    OK(cuMemsetD32_v2(at, 77, 2 * MIB));
    OK(cuCtxSynchronize()); /* a fill is not waited for, and another process cannot */
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    step("exported");
    snprintf(number, sizeof number, "%d", fcntl(fd, F_DUPFD, 100)); /* without close-on-exec */
    close(fd);
    char *const arguments[] = {"memory_share", "fd-second", number, NULL};
    second(arguments);
    close(atoi(number));
    MUST(word_at(at + 4 * MIB) == 78);
    step("the second is gone");
    OK(cuMemUnmap(at, 8 * MIB));
    OK(cuMemAddressFree(at, 8 * MIB));
    OK(cuMemRelease(handle));
    step("released");
}

static void second_fd(char **arguments) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    start_context();
    step("the second's context");
    int fd = atoi(arguments[2]);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    MUST(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == 0);
    CUdeviceptr at = mapped(handle, 8 * MIB);
    MUST(word_at(at) == 77 && word_at(at + 8 * MIB - 4) == 77);
    OK(cuMemsetD32_v2(at + 4 * MIB, 78, 1));
    OK(cuCtxSynchronize());
    step("imported");
}

static void first_pool(void) {
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemoryPool pool;
    CUmemPoolPtrExportData data;
    CUdeviceptr unshared, at;
    int fd;
    char number[16];
    start_context();
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&unshared, 5000, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&at, 3 * MIB, pool, NULL));
    OK(cuMemsetD32_v2(at, 31, 3 * MIB / 4));
    OK(cuCtxSynchronize());
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&data, at));
    MUST(word_at(at + 2 * MIB) == 31);
    step("exported");
    snprintf(number, sizeof number, "%d", fcntl(fd, F_DUPFD, 100));
    close(fd);
    char *const arguments[] = {"memory_share", "pool-second", number, hex(&data, 64), NULL};
    second(arguments);
    close(atoi(number));
    MUST(word_at(at + MIB) == 32);
    OK(cuMemFreeAsync(at, NULL));
    OK(cuMemFreeAsync(unshared, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(pool));
    step("freed");
}

static void second_pool(char **arguments) {
    CUmemoryPool pool;
    CUmemPoolPtrExportData data;
    CUdeviceptr at, more;
    start_context();
    unhex(&data, 64, arguments[3]);
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)atoi(arguments[2]), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolImportPointer(&at, pool, &data));
    MUST(word_at(at) == 31 && word_at(at + 3 * MIB - 4) == 31);
    MUST(cuMemAllocFromPoolAsync(&more, 100, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD32_v2(at + MIB, 32, 1));
    OK(cuCtxSynchronize());
    step("imported");
    OK(cuMemFreeAsync(at, NULL));
    OK(cuCtxSynchronize());
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*first)(void);
        void (*second)(char **);
    } parts[] = {
        {"ipc", first_ipc, NULL},         {"ipc-second", NULL, second_ipc}, {"fd", first_fd, NULL},
        {"fd-second", NULL, second_fd},   {"pool", first_pool, NULL},       {"pool-second", NULL, second_pool},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (count < 2 || strcmp(parts[i].name, arguments[1])) continue;
        if (parts[i].first) parts[i].first();
        else parts[i].second(arguments);
        return 0;
    }
    return 2;
}
