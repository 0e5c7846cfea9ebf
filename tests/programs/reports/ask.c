/*
 * ask [join]: what NVML says about the first GPU, a line per answer. With `join` it makes a context first, and is one of those
 * who use the GPU.
 *
 *   list FUNCTION CODE COUNT PID:BYTES…         with room for 64
 *   room FUNCTION ROOM [null] CODE COUNT WRITTEN
 *   busy FUNCTION CODE COUNT PID:PER-CENT…      since a second ago
 *   rates GPU MEMORY, pstates GPU MEMORY, samples COUNT GPU (the average)
 *   memory TOTAL FREE USED, memory_v2 TOTAL FREE USED
 *   limits CODE SOFT HARD
 */
#include <string.h>
#include <sys/time.h>

#include "../check.h"
#include "nvml_abi.h"

#define ROOM 64
#define FRESH 0xaaaaaaaau

static nvmlDevice_t gpu;

/* A list whose entries begin with a number of a process and have its bytes next. */
typedef nvmlReturn_t (*list_t)(nvmlDevice_t, unsigned *, void *);

static const struct {
    const char *name;
    list_t ask;
    size_t size;
} lists[] = {
#define LIST(kind, version, entry) \
    {#kind #version, (list_t)nvmlDeviceGet##kind##RunningProcesses##version, sizeof(entry)}
    LIST(Compute, , nvmlProcessInfo_v1_t),     LIST(Compute, _v2, nvmlProcessInfo_v2_t),
    LIST(Compute, _v3, nvmlProcessInfo_v2_t),  LIST(Graphics, , nvmlProcessInfo_v1_t),
    LIST(Graphics, _v2, nvmlProcessInfo_v2_t), LIST(Graphics, _v3, nvmlProcessInfo_v2_t),
    LIST(MPSCompute, , nvmlProcessInfo_v1_t),  LIST(MPSCompute, _v2, nvmlProcessInfo_v2_t),
    LIST(MPSCompute, _v3, nvmlProcessInfo_v2_t)};

static nvmlReturn_t details(nvmlDevice_t device, unsigned *count, void *entries) {
    nvmlProcessDetailList_t list = {nvmlProcessDetailList_v1, 0, *count, entries};
    nvmlReturn_t code = nvmlDeviceGetRunningProcessDetailList(device, &list);
    *count = list.numProcArrayEntries;
    return code;
}

static void list(const char *name, list_t ask, size_t size) {
    char entries[ROOM * sizeof(nvmlProcessDetail_v1_t)];
    unsigned count = ROOM;
    nvmlReturn_t code = ask(gpu, &count, entries);
    printf("list %s %d %u", name, code, count);
    for (unsigned i = 0; !code && i < count; i++) {
        nvmlProcessInfo_v1_t *entry = (void *)(entries + i * size);
        printf(" %u:%llu", entry->pid, entry->usedGpuMemory);
    }
    puts("");
}

/* How much is written, and that nothing is beyond it. */
static void rooms(const char *name, list_t ask, size_t size) {
    for (unsigned room = 0; room <= 4; room++) {
        for (int null = 0; null <= 1; null++) {
            char entries[ROOM * sizeof(nvmlProcessDetail_v1_t)];
            memset(entries, 0xaa, sizeof entries);
            unsigned count = room, written = 0;
            nvmlReturn_t code = ask(gpu, &count, null ? NULL : entries);
            while (written < ROOM && *(unsigned *)(entries + written * size) != FRESH) written++;
            printf("room %s %u%s %d %u %u\n", name, room, null ? " null" : "", code, count, written);
        }
    }
}

static void wrong(void) {
    nvmlProcessDetailList_t list = {nvmlProcessDetailList_v1 + 1, 0, 0, NULL};
    nvmlProcessesUtilizationInfo_t info = {nvmlProcessesUtilizationInfo_v1 + 1, 0, 0, NULL};
    nvmlProcessInfo_v2_t one;
    unsigned room = 1;
    printf("wrong %d %d %d %d %d %d %d\n", nvmlDeviceGetComputeRunningProcesses_v3(gpu, NULL, NULL),
           nvmlDeviceGetComputeRunningProcesses_v3(NULL, &room, &one), nvmlDeviceGetRunningProcessDetailList(gpu, &list),
           nvmlDeviceGetRunningProcessDetailList(gpu, NULL), nvmlDeviceGetProcessesUtilizationInfo(gpu, &info),
           nvmlDeviceGetProcessesUtilizationInfo(gpu, NULL), nvmlDeviceGetUtilizationRates(gpu, NULL));
}

static void busy(void) {
    struct timeval time;
    gettimeofday(&time, NULL);
    unsigned long long since = time.tv_sec * 1000000ull + time.tv_usec - 1000000;
    static nvmlProcessUtilizationSample_t samples[256];
    unsigned count = 256;
    nvmlReturn_t code = nvmlDeviceGetProcessUtilization(gpu, samples, &count, since);
    printf("busy samples %d %u", code, count);
    for (unsigned i = 0; !code && i < count; i++) printf(" %u:%u", samples[i].pid, samples[i].smUtil);
    static nvmlProcessUtilizationInfo_v1_t infos[256];
    nvmlProcessesUtilizationInfo_t info = {nvmlProcessesUtilizationInfo_v1, 256, since, infos};
    code = nvmlDeviceGetProcessesUtilizationInfo(gpu, &info);
    printf("\nbusy info %d %u", code, info.processSamplesCount);
    for (unsigned i = 0; !code && i < info.processSamplesCount; i++) printf(" %u:%u", infos[i].pid, infos[i].smUtil);
    nvmlUtilization_t rates = {0, 0};
    MUST(!nvmlDeviceGetUtilizationRates(gpu, &rates));
    nvmlGpuDynamicPstatesInfo_t states;
    MUST(!nvmlDeviceGetDynamicPstatesInfo(gpu, &states));
    printf("\nrates %u %u\npstates %u %u\n", rates.gpu, rates.memory, states.utilization[0].percentage,
           states.utilization[1].percentage);
    nvmlSample_t values[128];
    nvmlValueType_t type;
    unsigned sum = 0;
    count = 128;
    code = nvmlDeviceGetSamples(gpu, NVML_GPU_UTILIZATION_SAMPLES, since, &type, &count, values);
    for (unsigned i = 0; !code && i < count; i++) sum += values[i].sampleValue.uiVal;
    printf("samples %u %u\n", code ? 0 : count, code ? 0 : sum / count);
}

static void memory(void) {
    nvmlMemory_t first;
    nvmlMemory_v2_t second = {.version = nvmlMemory_v2};
    MUST(!nvmlDeviceGetMemoryInfo(gpu, &first) && !nvmlDeviceGetMemoryInfo_v2(gpu, &second));
    printf("memory %llu %llu %llu\n", first.total, first.free, first.used);
    printf("memory_v2 %llu %llu %llu\n", second.total, second.free, second.used);
    nvmlGetMemoryLimits_v1_t limits = {.nameSpace = "/sys/fs/cgroup"};
    nvmlReturn_t code = nvmlDeviceGetMemoryLimits_v1(gpu, &limits);
    printf("limits %d %llu %llu\n", code, limits.softLimit, limits.hardLimit);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "join")) {
        CUcontext context;
        OK(cuInit(0));
        OK(cuDevicePrimaryCtxRetain(&context, 0));
    }
    MUST(!nvmlInit_v2() && !nvmlDeviceGetHandleByIndex_v2(0, &gpu));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) list(lists[i].name, lists[i].ask, lists[i].size);
    list("details", details, sizeof(nvmlProcessDetail_v1_t));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) rooms(lists[i].name, lists[i].ask, lists[i].size);
    rooms("details", details, sizeof(nvmlProcessDetail_v1_t));
    wrong();
    busy();
    memory();
    return 0;
}
