/*
 * Takes device memory by one path until it is refused, or until three times $CAP bytes were had. Made for the simulated GPU
 * and for real ones.
 *   CAP=BYTES [CAPS_ROUNDS=N] path NAME
 * It prints
 *   ready                    before the first step
 *   step BYTES               what one step takes of the GPU at most
 *   got BYTES                what was asked for and given; several lines add up
 *   refused CODE             or `refused never`
 *   info FREE TOTAL          cuMemGetInfo; and `total`, `nvml`, `nvml-v2`, `nvml-processes`, see say_reports
 *   full                     all of it is held
 *   then small CODE          one step was given back where that can be, and a few bytes asked for
 *   then kernel CODE         a launch, and its end
 *   left FREE TOTAL          everything was given back: cuMemGetInfo once more, where there still is a context
 *   freed
 *   again BYTES CODE         the same once more, in further rounds
 * and waits for a line on standard input after `ready`, `full` and `freed`, so that somebody outside can look at what the
 * driver says. `skipped REASON` is the only line where a path is not to be had. Any wrong answer ends it with status 1.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>

#include "nvml_abi.h"
#include "path.h"

size_t cap, step_takes;
CUcontext primary;
CUstream stream;
CUfunction empty, touch;

static Item *items;
static size_t count, room;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

void keep(uint64_t a, uint64_t b, uint64_t c) {
    pthread_mutex_lock(&keeping);
    if (count == room) {
        room = room ? 2 * room : 1024;
        items = realloc(items, room * sizeof *items);
        MUST(items);
    }
    items[count++] = (Item){{a, b, c}};
    pthread_mutex_unlock(&keeping);
}

Item last(void) {
    MUST(count);
    return items[--count];
}

size_t kept(void) { return count; }

void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

void prompt(const char *name) {
    char answer[16];
    say("%s", name);
    if (!fgets(answer, sizeof answer, stdin)) exit(2); /* whoever watched is gone */
}

void begin(void) {
    CUmodule module;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&module, base_image()));
    OK(cuModuleGetFunction(&empty, module, "empty"));
    OK(cuModuleGetFunction(&touch, module, "touch"));
    OK(small_allocation());
    OK(kernel_launch());
}

CUresult small_allocation(void) {
    CUdeviceptr at;
    CUresult code = cuMemAlloc_v2(&at, 4096);
    if (code) return code;
    OK(cuMemsetD8_v2(at, 1, 4096));
    return cuMemFree_v2(at);
}

CUresult kernel_launch(void) {
    CUresult code = cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    return code ? code : cuStreamSynchronize(stream);
}

CUresult fill(const Path *path, size_t limit, size_t *got) {
    if (path->fill) return path->fill(path, limit, got);
    while (*got < limit) {
        CUresult code = path->take(path->step);
        if (code) return code;
        *got += path->step;
    }
    return CUDA_SUCCESS;
}

void say_filled(size_t got, CUresult code) {
    say("got %zu", got);
    if (code) say("refused %d", (int)code);
    else say("refused never");
}

void say_then(const char *what, CUresult code) { say("then %s %d", what, (int)code); }

/* As NVML wants it: NVML counts devices in an order of its own. */
static void uuid_of_device(char *text) {
    CUuuid uuid;
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    text += sprintf(text, "GPU");
    for (int i = 0; i < 16; i++)
        text += sprintf(text, "%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
}

/* NVML as the program sees it: `nvml TOTAL FREE USED` by the first form of the function, `nvml-v2 TOTAL FREE USED RESERVED`
 * by the second, `nvml-processes COUNT BYTES` the list of processes. Nothing where there is no NVML. */
static void say_nvml(void) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml) return;
    nvmlReturn_t (*init)(void) = (nvmlReturn_t(*)(void))dlsym(nvml, "nvmlInit_v2");
    nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *) =
        (nvmlReturn_t(*)(const char *, nvmlDevice_t *))dlsym(nvml, "nvmlDeviceGetHandleByUUID");
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *) =
        (nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    nvmlReturn_t (*memory_v2)(nvmlDevice_t, nvmlMemory_v2_t *) =
        (nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_v2_t *))dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2");
    nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) =
        (nvmlReturn_t(*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
    nvmlDevice_t device;
    nvmlMemory_t plain;
    nvmlMemory_v2_t more = {.version = nvmlMemory_v2};
    nvmlProcessInfo_t list[256];
    unsigned listed = 256;
    unsigned long long sum = 0;
    char name[64];
    uuid_of_device(name);
    MUST(init && by_uuid && !init() && !by_uuid(name, &device));
    MUST(memory && !memory(device, &plain));
    say("nvml %llu %llu %llu", plain.total, plain.free, plain.used);
    if (memory_v2 && !memory_v2(device, &more))
        say("nvml-v2 %llu %llu %llu %llu", more.total, more.free, more.used, more.reserved);
    if (processes && !processes(device, &listed, list)) {
        for (unsigned i = 0; i < listed; i++) sum += list[i].usedGpuMemory;
        say("nvml-processes %u %llu", listed, sum);
    }
}

void say_reports(void) {
    size_t left, total, device_total;
    OK(cuMemGetInfo_v2(&left, &total));
    say("info %zu %zu", left, total);
    OK(cuDeviceTotalMem_v2(&device_total, 0));
    say("total %zu", device_total);
    say_nvml();
}

void give_all(const Path *path) {
    while (path->give && kept()) path->give();
    if (path->finish) path->finish();
}

void say_left(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    say("left %zu %zu", left, total);
}

static void run_here(const Path *path) {
    const char *wanted = getenv("CAPS_ROUNDS");
    int rounds = wanted ? atoi(wanted) : 1;
    begin();
    prompt("ready");
    step_takes = path->takes ? path->takes : rounded(path->step);
    if (path->prepare) path->prepare();
    say("step %zu", step_takes);
    for (int round = 0; round < (path->give ? rounds : 1); round++) {
        size_t got = 0;
        CUresult code = fill(path, 3 * cap, &got);
        if (round) {
            say("again %zu %d", got, (int)code);
        } else {
            say_filled(got, code);
            say_reports();
            prompt("full");
            if (path->give && kept()) path->give();
            say_then("small", small_allocation());
            say_then("kernel", kernel_launch());
        }
        give_all(path);
        if (round) continue;
        if (path->give) say_left();
        prompt("freed");
    }
}

int main(int argc, char **argv) {
    static const Path *const lists[] = {memory_paths, driver_paths, process_paths};
    const char *given = getenv("CAP");
    cap = given ? strtoull(given, NULL, 10) : 0;
    for (int i = 0; i < 3; i++)
        for (const Path *path = lists[i]; path->name; path++) {
            if (argc < 2) {
                puts(path->name);
            } else if (!strcmp(path->name, argv[1])) {
                MUST(cap);
                if (path->run) path->run(path, argv);
                else run_here(path);
                return 0;
            }
        }
    return argc < 2 ? 0 : 2;
}
