/*
 * Memory, on whichever device:
 *
 *   alloc NAME BYTES                cuMemAlloc, in the current context
 *   free NAME                       cuMemFree
 *   create NAME BYTES DEVICE        cuMemCreate of memory that can be exported, on that device
 *   map NAME DEVICE                 with access from that device
 *   unmap NAME, release NAME
 *   pool NAME DEVICE                cuMemPoolCreate of one that can be exported
 *   default-pool NAME DEVICE        the one that the device came with
 *   access POOL DEVICE              from that device
 *   current POOL                    cuDeviceSetMemPool
 *   from-pool NAME POOL BYTES DEVICE   in a stream of that device's
 *   async NAME BYTES DEVICE         cuMemAllocAsync in a stream of that device's, whichever context is current
 *   free-async NAME DEVICE          and waits for it
 *   trim POOL, destroy POOL
 *   managed NAME BYTES              in the current context
 *   prefetch NAME DEVICE            and waits for it
 *   prefer NAME DEVICE              cuMemAdvise: where it should be
 *   peer FROM TO                    the first device may reach the second's memory
 *   copy FROM TO BYTES              cuMemcpyPeer, from the one's device to the other's
 *   write NAME WORD, read NAME      its first four bytes
 *   graph NAME BYTES DEVICE         a graph that takes memory of that device's, launched in the current context
 */
#include <string.h>

#include "actor.h"

static size_t number(const char *word) { return strtoull(word, NULL, 10); }

static CUresult do_alloc(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    it->bytes = number(word[2]);
    CUdevice device = 0;
    OK(cuCtxGetDevice(&device));
    it->device = device;
    return cuMemAlloc_v2(&it->at, it->bytes);
}

static CUresult do_free(char **word, int count) {
    MUST(count == 2);
    return cuMemFree_v2(thing(word[1])->at);
}

static CUresult do_create(char **word, int count) {
    MUST(count == 4);
    Thing *it = thing(word[1]);
    it->bytes = number(word[2]);
    it->device = atoi(word[3]);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = it->device}};
    return cuMemCreate(&it->handle, it->bytes, &prop, 0);
}

CUdeviceptr mapped_at(CUmemGenericAllocationHandle handle, size_t bytes, int device, CUresult *code) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = 0;
    *code = cuMemAddressReserve(&at, bytes, 0, 0, 0);
    if (!*code) *code = cuMemMap(at, bytes, 0, handle, 0);
    if (!*code) *code = cuMemSetAccess(at, bytes, &access, 1);
    return at;
}

static CUresult do_map(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    CUresult code;
    it->at = mapped_at(it->handle, it->bytes, atoi(word[2]), &code);
    return code;
}

static CUresult do_unmap(char **word, int count) {
    MUST(count == 2);
    Thing *it = thing(word[1]);
    CUresult code = cuMemUnmap(it->at, it->bytes);
    return code ? code : cuMemAddressFree(it->at, it->bytes);
}

static CUresult do_release(char **word, int count) {
    MUST(count == 2);
    return cuMemRelease(thing(word[1])->handle);
}

static CUresult do_pool(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    it->device = atoi(word[2]);
    CUmemPoolProps form = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = it->device}};
    return cuMemPoolCreate(&it->pool, &form);
}

static CUresult do_default_pool(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    it->device = atoi(word[2]);
    return cuDeviceGetDefaultMemPool(&it->pool, it->device);
}

static CUresult do_access(char **word, int count) {
    MUST(count == 3);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = atoi(word[2])},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemPoolSetAccess(thing(word[1])->pool, &access, 1);
}

static CUresult do_current(char **word, int count) {
    MUST(count == 2);
    return cuDeviceSetMemPool(thing(word[1])->device, thing(word[1])->pool);
}

static CUresult do_from_pool(char **word, int count) {
    MUST(count == 5);
    Thing *it = thing(word[1]), *pool = thing(word[2]);
    it->bytes = number(word[3]);
    it->device = pool->device;
    CUresult code = cuMemAllocFromPoolAsync(&it->at, it->bytes, pool->pool, stream_of(atoi(word[4])));
    return code ? code : cuStreamSynchronize(stream_of(atoi(word[4])));
}

static CUresult do_async(char **word, int count) {
    MUST(count == 4);
    Thing *it = thing(word[1]);
    it->bytes = number(word[2]);
    it->device = atoi(word[3]);
    return cuMemAllocAsync(&it->at, it->bytes, stream_of(it->device));
}

static CUresult do_free_async(char **word, int count) {
    MUST(count == 3);
    CUresult code = cuMemFreeAsync(thing(word[1])->at, stream_of(atoi(word[2])));
    return code ? code : cuStreamSynchronize(stream_of(atoi(word[2])));
}

static CUresult do_trim(char **word, int count) {
    MUST(count == 2);
    return cuMemPoolTrimTo(thing(word[1])->pool, 0);
}

static CUresult do_destroy(char **word, int count) {
    MUST(count == 2);
    return cuMemPoolDestroy(thing(word[1])->pool);
}

static CUresult do_managed(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    it->bytes = number(word[2]);
    return cuMemAllocManaged(&it->at, it->bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult do_prefetch(char **word, int count) {
    MUST(count == 3);
    Thing *it = thing(word[1]);
    CUstream stream = stream_of(atoi(word[2]));
    CUresult code = cuMemPrefetchAsync(it->at, it->bytes, atoi(word[2]), stream);
    return code ? code : cuStreamSynchronize(stream);
}

static CUresult do_prefer(char **word, int count) {
    MUST(count == 3);
    return cuMemAdvise(thing(word[1])->at, thing(word[1])->bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, atoi(word[2]));
}

static CUresult do_peer(char **word, int count) {
    MUST(count == 3);
    CUresult code = use(atoi(word[1]));
    return code ? code : cuCtxEnablePeerAccess(context_of(atoi(word[2])), 0);
}

static CUresult do_copy(char **word, int count) {
    MUST(count == 4);
    Thing *from = thing(word[1]), *to = thing(word[2]);
    return cuMemcpyPeer(to->at, context_of(to->device), from->at, context_of(from->device), number(word[3]));
}

static CUresult do_write(char **word, int count) {
    MUST(count == 3);
    CUresult code = cuMemsetD32_v2(thing(word[1])->at, (unsigned)number(word[2]), 1);
    return code ? code : cuCtxSynchronize(); /* a set is not waited for, and another process cannot */
}

static CUresult do_read(char **word, int count) {
    unsigned value = 0;
    MUST(count == 2);
    CUresult code = cuMemcpyDtoH_v2(&value, thing(word[1])->at, sizeof value);
    also("%u", value);
    return code;
}

static CUresult do_graph(char **word, int count) {
    MUST(count == 4);
    Thing *it = thing(word[1]);
    it->bytes = number(word[2]);
    it->device = atoi(word[3]);
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = it->device}},
        .bytesize = it->bytes,
    };
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUdevice here = 0;
    OK(cuCtxGetDevice(&here));
    CUresult code = cuGraphCreate(&graph, 0);
    if (!code) code = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
    it->at = params.dptr;
    if (!code) code = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (!code) code = cuGraphLaunch(exec, stream_of(here));
    return code ? code : cuStreamSynchronize(stream_of(here));
}

const Verb memory_verbs[] = {
    {"alloc", do_alloc},       {"free", do_free},         {"create", do_create},
    {"map", do_map},           {"unmap", do_unmap},       {"release", do_release},
    {"pool", do_pool},         {"default-pool", do_default_pool}, {"access", do_access},
    {"current", do_current},   {"from-pool", do_from_pool}, {"async", do_async},
    {"free-async", do_free_async}, {"trim", do_trim},     {"destroy", do_destroy},
    {"managed", do_managed},   {"prefetch", do_prefetch}, {"prefer", do_prefer},
    {"peer", do_peer},         {"copy", do_copy},         {"write", do_write},
    {"read", do_read},         {"graph", do_graph},       {0},
};
