/* Paths of several processes of one container: at once, one after the other, and with memory that they share. */
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "path.h"

static CUresult take_linear(size_t bytes) {
    CUdeviceptr at;
    CUresult code = cuMemAlloc_v2(&at, bytes);
    if (!code) keep(at, 0, 0);
    return code;
}

static void give_linear(void) { OK(cuMemFree_v2(last().word[0])); }

static const Path linear = {.name = "", .step = 8 * MIB, .take = take_linear, .give = give_linear};

/* ------------------------------------------------------------------------------------------- talking to children */

typedef struct Child {
    pid_t pid;
    int socket;
} Child;

typedef struct Order {
    char what;
    size_t limit;
    CUipcMemHandle handle;
} Order;

typedef struct Answer {
    size_t got;
    CUresult code, small, kernel;
} Answer;

/* Forks a process that does as it is told, until it is told to end. Before anything of CUDA is used. */
static Child start_child(void (*obey)(const Order *, Answer *, int descriptor)) {
    int pair[2];
    MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    fflush(stdout);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid) {
        close(pair[1]);
        return (Child){pid, pair[0]};
    }
    close(pair[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* not without the one who tells it to end */
    for (;;) {
        Order order;
        Answer answer = {0};
        char space[CMSG_SPACE(sizeof(int))];
        struct iovec part = {&order, sizeof order};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
        int descriptor = -1;
        MUST(recvmsg(pair[1], &message, 0) == sizeof order);
        if (order.what == 'e') exit(0);
        struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
        if (beside && beside->cmsg_type == SCM_RIGHTS) memcpy(&descriptor, CMSG_DATA(beside), sizeof descriptor);
        obey(&order, &answer, descriptor);
        MUST(send(pair[1], &answer, sizeof answer, 0) == sizeof answer);
    }
}

/* A descriptor may go with it, or -1. */
static void tell(const Child *child, Order order, int descriptor) {
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&order, sizeof order};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (descriptor >= 0) {
        message.msg_control = space;
        message.msg_controllen = sizeof space;
        struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
        *beside = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(beside), &descriptor, sizeof descriptor);
    }
    MUST(sendmsg(child->socket, &message, 0) == sizeof order);
}

static Answer hear(const Child *child) {
    Answer answer;
    MUST(recv(child->socket, &answer, sizeof answer, 0) == sizeof answer);
    return answer;
}

static void end_child(const Child *child) {
    int status;
    tell(child, (Order){.what = 'e'}, -1);
    MUST(waitpid(child->pid, &status, 0) == child->pid);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ------------------------------------------------------------------------------------------------- eight at once */

#define PROCESSES 8

/* With a pause after each step, so that the others get theirs. */
static CUresult fill_by_turns(const Path *path, size_t limit, size_t *got) {
    CUresult code = CUDA_SUCCESS;
    while (*got < limit && !(code = path->take(path->step))) {
        *got += path->step;
        sched_yield();
    }
    return code;
}

static void obey_filling(const Order *order, Answer *answer, int descriptor) {
    (void)descriptor;
    switch (order->what) {
    case 'b': begin(); break;
    case 'f': answer->code = fill_by_turns(&linear, order->limit, &answer->got); break;
    case 'i': say_reports(); break;
    case 'l': say_left(); break;
    case 'w':
        if (kept()) give_linear();
        answer->small = small_allocation();
        answer->kernel = kernel_launch();
        break;
    default: give_all(&linear);
    }
}

/* Tells all at once, then hears them all: the sum, and a code that is not success if there was one. */
static Answer tell_all(const Child *children, char what, size_t limit) {
    Answer all = {0};
    for (int i = 0; i < PROCESSES; i++) tell(&children[i], (Order){.what = what, .limit = limit}, -1);
    for (int i = 0; i < PROCESSES; i++) {
        Answer one = hear(&children[i]);
        all.got += one.got;
        if (!all.small) all.small = one.small;
        if (!all.kernel) all.kernel = one.kernel;
        if (!one.code) continue;
        MUST(!all.code || all.code == one.code);
        all.code = one.code;
    }
    return all;
}

static void run_processes(const Path *path, char **arguments) {
    Child children[PROCESSES];
    (void)path, (void)arguments;
    for (int i = 0; i < PROCESSES; i++) children[i] = start_child(obey_filling);
    tell_all(children, 'b', 0);
    prompt("ready");
    say("step %zu", linear.step);
    Answer filled = tell_all(children, 'f', 3 * cap / PROCESSES);
    say_filled(filled.got, filled.code);
    tell(&children[0], (Order){.what = 'i'}, -1);
    hear(&children[0]);
    prompt("full");
    Answer worked = tell_all(children, 'w', 0);
    say_then("small", worked.small);
    say_then("kernel", worked.kernel);
    tell_all(children, 'r', 0);
    tell(&children[0], (Order){.what = 'l'}, -1);
    hear(&children[0]);
    prompt("freed");
    for (int i = 0; i < PROCESSES; i++) end_child(&children[i]);
}

/* -------------------------------------------------------------------------------------------- fork and exec, again */

#define GENERATIONS 4

static void exec_again(int generation) {
    char number[16];
    snprintf(number, sizeof number, "%d", generation);
    execl("/proc/self/exe", "path", "exec-chain", number, (char *)NULL);
    _exit(127);
}

/* The first image takes half of the cap and is replaced with it in hand. Then each generation takes an eighth, and starts the
 * next; the last takes what is left. They end in the order of a stack. */
static void run_chain(const Path *path, char **arguments) {
    int generation = arguments[2] ? atoi(arguments[2]) : 0, status;
    size_t got = 0, taken = generation == 0 ? cap / 2 : cap / 8;
    begin();
    if (generation == GENERATIONS) {
        prompt("ready");
        say("step %zu", linear.step);
        CUresult code = fill(&linear, 3 * cap, &got);
        say_filled(got, code);
        say_reports();
        prompt("full");
        if (kept()) give_linear();
        say_then("small", small_allocation());
        say_then("kernel", kernel_launch());
        give_all(&linear);
        say_left();
        prompt("freed");
        return;
    }
    CUresult code = fill(&linear, taken, &got);
    if (generation == 0) {
        OK(code);
        exec_again(1);
    }
    say("got %zu", got);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) exec_again(generation + 1);
    MUST(waitpid(pid, &status, 0) == pid);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    give_all(&linear);
    (void)path;
}

/* ------------------------------------------------------------------------------------------------- shared memory */

static CUdeviceptr opened;
static CUmemGenericAllocationHandle imported;

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t size) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;
    OK(cuMemAddressReserve(&at, size, 0, 0, 0));
    OK(cuMemMap(at, size, 0, handle, 0));
    OK(cuMemSetAccess(at, size, &access, 1));
    return at;
}

static void unmap(CUdeviceptr at, size_t size) {
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(at, size));
    OK(cuMemAddressFree(at, size));
}

/* Opens what another process made, uses it, and lets go of it. */
static void obey_sharing(const Order *order, Answer *answer, int descriptor) {
    CUmemAllocationHandleType kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    (void)answer;
    switch (order->what) {
    case 'b': begin(); break;
    case 'o':
        OK(cuIpcOpenMemHandle_v2(&opened, order->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        OK(cuMemsetD8_v2(opened, 7, 4096));
        break;
    case 'c': OK(cuIpcCloseMemHandle(opened)); break;
    case 'i':
        OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)descriptor, kind));
        close(descriptor);
        opened = mapped(imported, order->limit);
        OK(cuMemsetD8_v2(opened, 7, 4096));
        break;
    default:
        unmap(opened, order->limit);
        OK(cuMemRelease(imported));
    }
    if (opened) OK(cuCtxSynchronize());
}

static void order(const Child *child, Order order, int descriptor) {
    tell(child, order, descriptor);
    hear(child);
}

/* With shared memory in place: what is left of the cap can be had, all of it and no more. `let_go` makes the other process
 * close the shared memory, which is still this one's, so nothing comes back. */
static void fill_beside(const Child *other, Order let_go) {
    size_t got = 0;
    prompt("ready");
    say("step %zu", linear.step);
    CUresult code = fill(&linear, 3 * cap, &got);
    say_filled(got, code);
    say_reports();
    prompt("full");
    order(other, let_go, -1);
    code = take_linear(linear.step);
    say_then("closed", code);
    if (kept()) give_linear();
    say_then("small", small_allocation());
    say_then("kernel", kernel_launch());
    give_all(&linear);
    say_left();
    prompt("freed");
}

static void run_ipc(const Path *path, char **arguments) {
    Child other = start_child(obey_sharing);
    CUdeviceptr at;
    Order open = {.what = 'o'};
    size_t size = rounded(cap / 4);
    (void)path, (void)arguments;
    begin();
    order(&other, (Order){.what = 'b'}, -1);
    OK(cuMemAlloc_v2(&at, size));
    OK(cuIpcGetMemHandle(&open.handle, at));
    say("got %zu", size);
    order(&other, open, -1);
    fill_beside(&other, (Order){.what = 'c'});
    OK(cuMemFree_v2(at));
    end_child(&other);
}

static void run_descriptor(const Path *path, char **arguments) {
    Child other = start_child(obey_sharing);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    size_t size = rounded(cap / 4);
    int descriptor;
    (void)path, (void)arguments;
    begin();
    order(&other, (Order){.what = 'b'}, -1);
    OK(cuMemCreate(&handle, size, &prop, 0));
    CUdeviceptr at = mapped(handle, size);
    OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    say("got %zu", size);
    order(&other, (Order){.what = 'i', .limit = size}, descriptor);
    close(descriptor);
    fill_beside(&other, (Order){.what = 'x', .limit = size});
    unmap(at, size);
    OK(cuMemRelease(handle));
    end_child(&other);
}

const Path process_paths[] = {
    {.name = "processes", .run = run_processes},
    {.name = "exec-chain", .run = run_chain},
    {.name = "ipc", .run = run_ipc},
    {.name = "ipc-descriptor", .run = run_descriptor},
    {0},
};
