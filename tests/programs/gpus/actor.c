/*
 * A program that does as it is told, line by line on standard input, and says what the driver answered: `CODE`, and after it
 * what else there is to say. Tests play with several of them, on the simulated GPU; it runs on real ones as well, with
 * CAPS_IMAGES=ptx. It is told
 *
 *   use DEVICE                      its primary context becomes current; those of the others stay
 *   count                           how many devices there are
 *   uuid DEVICE                     as NVML writes it
 *   info, total DEVICE              cuMemGetInfo, cuDeviceTotalMem
 *   nvml-by-uuid UUID, nvml-by-index N   NVML's total, free and used, without touching CUDA
 *   kernel DEVICE                   a launch, and its end
 *   reset DEVICE                    cuDevicePrimaryCtxReset
 *   fork                            a child that does nothing until this process is gone
 *   exec                            this program anew, in its place
 *   quit                            it ends
 *
 * and what is listed in actor_memory.c, actor_sharing.c and actor_filling.c.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor.h"
#include "nvml_abi.h"

/* In the form that the driver takes: the simulated one's own, or PTX with CAPS_IMAGES=ptx. */
static const char sim_image[] = "ration-sim-image 1\nkernel empty time=1us\nkernel touch param=8 touch time=1us\n";
static const char ptx_image[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry empty() { ret; }\n"
    ".visible .entry touch(.param .u64 at) { .reg .u64 %a; ld.param.u64 %a, [at]; st.global.u32 [%a], 1; ret; }\n";

static Thing things[256];
static char beside[8192];
static CUcontext contexts[DEVICES];
static CUstream streams[DEVICES];
static CUfunction kernels[DEVICES][2];

Thing *thing(const char *name) {
    size_t at = 0;
    while (at < 256 && things[at].name[0] && strcmp(things[at].name, name)) at++;
    MUST(at < 256 && strlen(name) < sizeof things[at].name);
    if (!things[at].name[0]) {
        things[at].descriptor = -1;
        strcpy(things[at].name, name);
    }
    return &things[at];
}

void also(const char *format, ...) {
    va_list list;
    size_t length = strlen(beside);
    beside[length++] = ' ';
    va_start(list, format);
    vsnprintf(beside + length, sizeof beside - length, format, list);
    va_end(list);
}

int device_count(void) {
    int count = 0;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    return count;
}

CUresult use(int device) {
    MUST(device >= 0 && device < DEVICES);
    if (contexts[device]) return cuCtxSetCurrent(contexts[device]);
    CUmodule module;
    const char *images = getenv("CAPS_IMAGES"), *image = images && !strcmp(images, "ptx") ? ptx_image : sim_image;
    CUresult code = cuInit(0);
    if (!code) code = cuDevicePrimaryCtxRetain(&contexts[device], device);
    if (!code) code = cuCtxSetCurrent(contexts[device]);
    if (!code) code = cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING);
    if (!code) code = cuModuleLoadData(&module, image);
    if (!code) code = cuModuleGetFunction(&kernels[device][0], module, "empty");
    if (!code) code = cuModuleGetFunction(&kernels[device][1], module, "touch");
    return code;
}

CUcontext context_of(int device) {
    if (!contexts[device]) {
        CUcontext before;
        OK(cuInit(0));
        OK(cuCtxGetCurrent(&before));
        OK(use(device));
        OK(cuCtxSetCurrent(before));
    }
    return contexts[device];
}

CUstream stream_of(int device) {
    context_of(device);
    return streams[device];
}

static CUresult do_use(char **word, int count) {
    MUST(count == 2);
    return use(atoi(word[1]));
}

static CUresult do_count(char **word, int count) {
    (void)word, (void)count;
    also("%d", device_count());
    return CUDA_SUCCESS;
}

static CUresult do_uuid(char **word, int count) {
    CUuuid uuid;
    char text[64] = "GPU", *end = text + 3;
    MUST(count == 2);
    OK(cuInit(0));
    CUresult code = cuDeviceGetUuid_v2(&uuid, atoi(word[1]));
    for (int i = 0; i < 16; i++)
        end += sprintf(end, "%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
    also("%s", text);
    return code;
}

static CUresult do_info(char **word, int count) {
    size_t left = 0, total = 0;
    (void)word, (void)count;
    CUresult code = cuMemGetInfo_v2(&left, &total);
    also("%zu %zu", left, total);
    return code;
}

static CUresult do_total(char **word, int count) {
    size_t total = 0;
    MUST(count == 2);
    OK(cuInit(0));
    CUresult code = cuDeviceTotalMem_v2(&total, atoi(word[1]));
    also("%zu", total);
    return code;
}

/* NVML's codes instead of CUDA's. */
static CUresult do_nvml(char **word, int count) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    MUST(nvml && count == 2);
    nvmlReturn_t (*init)(void) = (nvmlReturn_t(*)(void))dlsym(nvml, "nvmlInit_v2");
    nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *) =
        (nvmlReturn_t(*)(const char *, nvmlDevice_t *))dlsym(nvml, "nvmlDeviceGetHandleByUUID");
    nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) =
        (nvmlReturn_t(*)(unsigned, nvmlDevice_t *))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *) =
        (nvmlReturn_t(*)(nvmlDevice_t, nvmlMemory_t *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    nvmlDevice_t device = NULL;
    nvmlMemory_t told = {0};
    nvmlReturn_t code = init();
    if (!code) code = !strcmp(word[0], "nvml-by-uuid") ? by_uuid(word[1], &device) : by_index(atoi(word[1]), &device);
    if (!code) code = memory(device, &told);
    also("%llu %llu %llu", (unsigned long long)told.total, (unsigned long long)told.free, (unsigned long long)told.used);
    return (CUresult)code;
}

static CUresult launch(int device, CUfunction kernel, void **arguments) {
    CUresult code = use(device);
    if (!code) code = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, streams[device], arguments, NULL);
    return code ? code : cuStreamSynchronize(streams[device]);
}

static CUresult do_kernel(char **word, int count) {
    MUST(count == 2);
    return launch(atoi(word[1]), kernels[atoi(word[1])][0], NULL);
}

/* touch NAME DEVICE: a kernel on that device touches managed memory */
static CUresult do_touch(char **word, int count) {
    MUST(count == 3);
    void *arguments[] = {&thing(word[1])->at};
    context_of(atoi(word[2]));
    return launch(atoi(word[2]), kernels[atoi(word[2])][1], arguments);
}

static CUresult do_reset(char **word, int count) {
    MUST(count == 2);
    contexts[atoi(word[1])] = NULL;
    return cuDevicePrimaryCtxReset_v2(atoi(word[1]));
}

static CUresult do_fork(char **word, int count) {
    (void)word, (void)count;
    pid_t parent = getpid(), child = fork();
    MUST(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) usleep(1000);
        _exit(0);
    }
    also("%d", (int)child);
    return CUDA_SUCCESS;
}

static char **own_arguments;

static CUresult do_exec(char **word, int count) {
    (void)word, (void)count;
    execv("/proc/self/exe", own_arguments);
    return CUDA_ERROR_UNKNOWN;
}

static const Verb own_verbs[] = {
    {"use", do_use},     {"count", do_count},   {"uuid", do_uuid},   {"info", do_info},
    {"total", do_total}, {"nvml-by-uuid", do_nvml}, {"nvml-by-index", do_nvml}, {"kernel", do_kernel},
    {"reset", do_reset}, {"touch", do_touch}, {"fork", do_fork},     {"exec", do_exec},   {0},
};

int main(int count, char **arguments) {
    const Verb *lists[] = {own_verbs, memory_verbs, sharing_verbs, filling_verbs};
    char line[8192];
    (void)count;
    own_arguments = arguments;
    /* Unbuffered, so that no line that is meant for what comes after an exec is read before. */
    setvbuf(stdin, NULL, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        char *word[40];
        int words = 0;
        const Verb *verb = NULL;
        for (char *next = strtok(line, " \n"); next && words < 40; next = strtok(NULL, " \n")) word[words++] = next;
        if (!words) continue;
        if (!strcmp(word[0], "quit")) break;
        for (int i = 0; i < 4 && !verb; i++)
            for (const Verb *one = lists[i]; one->name && !verb; one++)
                if (!strcmp(one->name, word[0])) verb = one;
        if (!verb) {
            fprintf(stderr, "no such verb: %s\n", word[0]);
            return 1;
        }
        beside[0] = 0;
        CUresult code = verb->act(word, words);
        printf("%d%s\n", (int)code, beside);
        fflush(stdout);
    }
    return 0;
}
