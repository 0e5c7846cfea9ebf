/*
 * Memory that other processes reach:
 *
 *   export NAME                     cuMemExportToShareableHandle: NAME gets a descriptor
 *   import NAME BYTES               from the descriptor that it was sent
 *   dma-buf NAME                    NAME gets a descriptor of the other kind
 *   export-pool POOL, import-pool POOL
 *   export-pointer NAME             says what to import it by
 *   import-pointer NAME POOL HEX
 *   ipc NAME                        says its handle
 *   open NAME HEX, shut NAME        cuIpcOpenMemHandle, cuIpcCloseMemHandle
 *   listen WHERE                    descriptors may be sent to it there
 *   send NAME WHERE                 its descriptor goes there; it is still open here
 *   receive NAME                    the next one that was sent
 *   close NAME                      its descriptor
 *   park WAY BYTES TIMES DEVICE     takes memory, gets a descriptor of it and gives the memory back, so often or until it is
 *                                   refused; the descriptors stay open. WAY: `plain`, `map` (mapped for a moment), `dma-buf`.
 *                                   Says how much was had
 *   unpark                          closes them all
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "actor.h"

#define KIND CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static int mailbox = -1;

static void also_hex(const void *data, size_t length) {
    char text[2 * length + 1];
    for (size_t i = 0; i < length; i++) sprintf(text + 2 * i, "%02x", ((const unsigned char *)data)[i]);
    also("%s", text);
}

static void unhex(void *data, size_t length, const char *text) {
    MUST(strlen(text) == 2 * length);
    for (size_t i = 0; i < length; i++) sscanf(text + 2 * i, "%2hhx", (unsigned char *)data + i);
}

static CUresult do_export(char **word, int count) {
    MUST(count == 2);
    Thing *it = thing(word[1]);
    return cuMemExportToShareableHandle(&it->descriptor, it->handle, KIND, 0);
}

static CUresult do_import(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    it->bytes = strtoull(word[2], NULL, 10);
    return cuMemImportFromShareableHandle(&it->handle, (void *)(uintptr_t)it->descriptor, KIND);
}

static CUresult do_dma_buf(char **word, int count) {
    MUST(count == 2);
    Thing *it = thing(word[1]);
    return cuMemGetHandleForAddressRange(&it->descriptor, it->at, it->bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

static CUresult do_export_pool(char **word, int count) {
    MUST(count == 2);
    Thing *it = thing(word[1]);
    return cuMemPoolExportToShareableHandle(&it->descriptor, it->pool, KIND, 0);
}

static CUresult do_import_pool(char **word, int count) {
    MUST(count == 2);
    Thing *it = thing(word[1]);
    return cuMemPoolImportFromShareableHandle(&it->pool, (void *)(uintptr_t)it->descriptor, KIND, 0);
}

static CUresult do_export_pointer(char **word, int count) {
    CUmemPoolPtrExportData data = {0};
    MUST(count == 2);
    CUresult code = cuMemPoolExportPointer(&data, thing(word[1])->at);
    also_hex(&data, sizeof data);
    return code;
}

static CUresult do_import_pointer(char **word, int count) {
    CUmemPoolPtrExportData data;
    MUST(count == 4);
    unhex(&data, sizeof data, word[3]);
    return cuMemPoolImportPointer(&thing(word[1])->at, thing(word[2])->pool, &data);
}

static CUresult do_ipc(char **word, int count) {
    CUipcMemHandle handle = {0};
    MUST(count == 2);
    CUresult code = cuIpcGetMemHandle(&handle, thing(word[1])->at);
    also_hex(&handle, sizeof handle);
    return code;
}

static CUresult do_open(char **word, int count) {
    CUipcMemHandle handle;
    MUST(count == 3);
    unhex(&handle, sizeof handle, word[2]);
    return cuIpcOpenMemHandle_v2(&thing(word[1])->at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult do_shut(char **word, int count) {
    MUST(count == 2);
    return cuIpcCloseMemHandle(thing(word[1])->at);
}

static struct sockaddr_un address(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    MUST(strlen(path) < sizeof at.sun_path);
    strcpy(at.sun_path, path);
    return at;
}

static CUresult do_listen(char **word, int count) {
    MUST(count == 2);
    struct sockaddr_un at = address(word[1]);
    mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    MUST(mailbox >= 0 && !bind(mailbox, (struct sockaddr *)&at, sizeof at));
    return CUDA_SUCCESS;
}

static CUresult do_send(char **word, int count) {
    MUST(count == 3);
    struct sockaddr_un at = address(word[2]);
    char space[CMSG_SPACE(sizeof(int))] = {0}, letter = 'd';
    struct iovec part = {&letter, 1};
    struct msghdr message = {.msg_name = &at, .msg_namelen = sizeof at, .msg_iov = &part, .msg_iovlen = 1,
                             .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    *with = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(with), &thing(word[1])->descriptor, sizeof(int));
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    MUST(from >= 0 && sendmsg(from, &message, 0) == 1);
    close(from);
    return CUDA_SUCCESS;
}

static CUresult do_receive(char **word, int count) {
    MUST(count == 2 && mailbox >= 0);
    char space[CMSG_SPACE(sizeof(int))] = {0}, letter;
    struct iovec part = {&letter, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    MUST(recvmsg(mailbox, &message, MSG_CMSG_CLOEXEC) == 1);
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    MUST(with && with->cmsg_type == SCM_RIGHTS);
    memcpy(&thing(word[1])->descriptor, CMSG_DATA(with), sizeof(int));
    return CUDA_SUCCESS;
}

static CUresult do_close(char **word, int count) {
    MUST(count == 2);
    Thing *it = thing(word[1]);
    MUST(!close(it->descriptor));
    it->descriptor = -1;
    return CUDA_SUCCESS;
}

static int parked[1024];
static size_t parked_count;

static CUresult park_handle(size_t bytes, int device, bool map, int *descriptor) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = KIND,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemGenericAllocationHandle handle;
    CUresult code = cuMemCreate(&handle, bytes, &prop, 0);
    if (code) return code;
    OK(cuMemExportToShareableHandle(descriptor, handle, KIND, 0));
    if (map) {
        CUdeviceptr at = mapped_at(handle, bytes, device, &code);
        OK(code);
        OK(cuMemUnmap(at, bytes));
        OK(cuMemAddressFree(at, bytes));
    }
    return cuMemRelease(handle);
}

static CUresult park_dma_buf(size_t bytes, int device, int *descriptor) {
    CUdeviceptr at;
    CUresult code = use(device);
    if (!code) code = cuMemAlloc_v2(&at, bytes);
    if (code) return code;
    OK(cuMemGetHandleForAddressRange(descriptor, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    return cuMemFree_v2(at);
}

static CUresult do_park(char **word, int count) {
    MUST(count == 5);
    size_t bytes = strtoull(word[2], NULL, 10), had = 0;
    int device = atoi(word[4]);
    CUresult code = CUDA_SUCCESS;
    for (int times = atoi(word[3]); times && !code; times--) {
        MUST(parked_count < sizeof parked / sizeof *parked);
        int *descriptor = &parked[parked_count];
        if (!strcmp(word[1], "dma-buf")) code = park_dma_buf(bytes, device, descriptor);
        else code = park_handle(bytes, device, !strcmp(word[1], "map"), descriptor);
        if (code) break;
        parked_count++;
        had += bytes;
    }
    also("%zu", had);
    return code;
}

static CUresult do_unpark(char **word, int count) {
    (void)word, (void)count;
    while (parked_count) MUST(!close(parked[--parked_count]));
    return CUDA_SUCCESS;
}

const Verb sharing_verbs[] = {
    {"export", do_export},           {"import", do_import},
    {"dma-buf", do_dma_buf},         {"export-pool", do_export_pool},
    {"import-pool", do_import_pool}, {"export-pointer", do_export_pointer},
    {"import-pointer", do_import_pointer}, {"ipc", do_ipc},
    {"open", do_open},               {"shut", do_shut},
    {"listen", do_listen},           {"send", do_send},
    {"receive", do_receive},         {"close", do_close},
    {"park", do_park},               {"unpark", do_unpark},
    {0},
};
