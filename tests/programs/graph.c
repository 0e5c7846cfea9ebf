/*
 * Says what a driver answers about graphs, call by call. Run on a real GPU it writes down the facts; run on the simulated one
 * it must write the same.
 *   graph sim|ptx      which form of kernel image the driver takes
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answers.h"

static const char sim_image[] = "ration-sim-image 1\nkernel empty\nkernel empty2\nkernel two param=8,4\n";
static const char ptx_image[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n.visible .entry empty2() { ret; }\n"
    ".visible .entry two(.param .u64 a, .param .u32 b) { ret; }\n";

static CUcontext primary;
static CUfunction empty, empty2, two;
static CUstream s;
static CUevent e, e2;
static CUdeviceptr d;
static char bytes[4096];
static int host_calls;
static long host_sum;

static void host_function(void *data) { host_calls++, host_sum += (long)(intptr_t)data; }

static CUgraph new_graph(void) {
    CUgraph graph;
    cuGraphCreate(&graph, 0);
    return graph;
}

static CUDA_KERNEL_NODE_PARAMS kernel(CUfunction f) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
}
static CUgraphNode add(CUgraph graph, CUfunction f, CUgraphNode after) {
    CUDA_KERNEL_NODE_PARAMS params = kernel(f);
    CUgraphNode node = NULL;
    cuGraphAddKernelNode_v2(&node, graph, &after, after ? 1 : 0, &params);
    return node;
}
static CUDA_MEMSET_NODE_PARAMS fill(unsigned value, size_t width) {
    return (CUDA_MEMSET_NODE_PARAMS){.dst = d, .value = value, .elementSize = 1, .width = width, .height = 1};
}
static CUgraphNode add_fill(CUgraph graph, unsigned value, CUgraphNode after) {
    CUDA_MEMSET_NODE_PARAMS params = fill(value, 64);
    CUgraphNode node = NULL;
    cuGraphAddMemsetNode(&node, graph, &after, after ? 1 : 0, &params, primary);
    return node;
}
static CUgraphNode add_host(CUgraph graph, intptr_t value, CUgraphNode after) {
    CUDA_HOST_NODE_PARAMS params = {host_function, (void *)value};
    CUgraphNode node = NULL;
    cuGraphAddHostNode(&node, graph, &after, after ? 1 : 0, &params);
    return node;
}
static CUgraphExec instance(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec = NULL;
    cuGraphInstantiateWithFlags(&exec, graph, flags);
    return exec;
}
static CUresult instantiate(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec;
    return cuGraphInstantiateWithFlags(&exec, graph, flags);
}
static CUresult run(CUgraphExec exec) {
    CUresult code = cuGraphLaunch(exec, s);
    return code ? code : cuStreamSynchronize(s);
}
static int first_byte(void) {
    cuMemcpyDtoH_v2(bytes, d, 1);
    return (unsigned char)bytes[0];
}

static void shape(void) {
    CUgraph graph = new_graph(), other = new_graph();
    CUgraphNode n[4], from[8], to[8], got[8], stranger = add(other, empty, NULL), twice[2], made;
    CUgraphEdgeData early = {.from_port = 1, .type = 1}, edges[8];
    CUDA_KERNEL_NODE_PARAMS params = kernel(empty);
    size_t count = 0;
    SECTION("nodes and edges");
    for (int i = 0; i < 4; i++) n[i] = add(graph, empty, NULL);
    T(cuGraphAddDependencies(graph, &n[0], &n[1], 1));
    T(cuGraphAddDependencies(graph, &n[0], &n[1], 1));
    T(cuGraphAddDependencies(graph, &n[0], &n[0], 1));
    T(cuGraphAddDependencies(graph, &n[0], &stranger, 1));
    T(cuGraphAddDependencies(graph, &n[1], &n[2], 1));
    T(cuGraphAddDependencies(graph, &n[2], &n[0], 1));
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.result_out = (CUgraphInstantiateResult)77};
    CUgraphExec exec;
    V((int)cuGraphInstantiateWithParams(&exec, graph, &how) - 1, "result %d, node %d", (int)how.result_out, how.hErrNode_out == n[0]);
    T(cuGraphRemoveDependencies(graph, &n[3], &n[0], 1));
    T(cuGraphRemoveDependencies(graph, &n[2], &n[0], 1));
    T(instantiate(graph, 0));
    twice[0] = twice[1] = n[0];
    T(cuGraphAddKernelNode_v2(&made, graph, twice, 2, &params));
    T(cuGraphAddKernelNode_v2(&made, graph, &stranger, 1, &params));
    T(cuGraphAddKernelNode_v2(&made, graph, NULL, 1, &params));
    memset(got, 1, sizeof got), count = 2;
    V(cuGraphGetNodes(graph, got, &count), "%zu %d %d", count, got[0] == n[0] && got[1] == n[1], got[2] != NULL);
    count = 8;
    V(cuGraphGetNodes(graph, got, &count), "%zu %d %d", count, got[3] == n[3], got[4] != NULL);
    T(cuGraphGetNodes(graph, NULL, NULL));
    count = 8;
    V(cuGraphGetRootNodes(graph, got, &count), "%zu %d %d", count, got[0] == n[0], got[1] == n[3]);
    count = 8;
    V(cuGraphGetEdges(graph, from, to, &count), "%zu %d %d", count, from[0] == n[0] && to[0] == n[1], from[1] == n[1] && to[1] == n[2]);
    count = 8;
    V(cuGraphNodeGetDependencies(n[1], got, &count), "%zu %d", count, got[0] == n[0]);
    count = 8;
    V(cuGraphNodeGetDependentNodes(n[1], got, &count), "%zu %d", count, got[0] == n[2]);
    SECTION("edge data");
    CUgraphNode set = add_fill(graph, 0, NULL);
    T(cuGraphAddDependencies_v2(graph, &set, &n[3], &early, 1));
    T(cuGraphAddDependencies_v2(graph, &n[2], &n[3], &early, 1));
    count = 8;
    T(cuGraphGetEdges(graph, from, to, &count));
    count = 8;
    V(cuGraphGetEdges_v2(graph, from, to, edges, &count), "%zu: %d %d %d", count, edges[2].from_port, edges[2].to_port, edges[2].type);
    T(cuGraphRemoveDependencies(graph, &n[2], &n[3], 1));
    early.from_port = 5;
    T(cuGraphAddDependencies_v2(graph, &n[2], &n[3], &early, 1));
    early.from_port = 0;
    T(cuGraphAddDependencies_v2(graph, &n[2], &n[3], &early, 1));
    early.from_port = 2;
    T(cuGraphAddDependencies_v2(graph, &n[2], &n[3], &early, 1));
    SECTION("removal");
    T(cuGraphDestroyNode(n[1]));
    count = 0;
    V(cuGraphGetNodes(graph, NULL, &count), "%zu", count);
    V(cuGraphGetEdges(graph, NULL, NULL, &count), "%zu", count);
}

static void copies(void) {
    CUgraph graph = new_graph(), clone, parent = new_graph(), inside, moved = new_graph();
    CUgraphNode a = add(graph, empty, NULL), b = add(graph, empty, a), found, child;
    CUDA_KERNEL_NODE_PARAMS other = kernel(empty2);
    size_t count;
    SECTION("clones and children");
    T(cuGraphClone(&clone, graph));
    V(cuGraphNodeFindInClone(&found, a, clone), "%d", found != a);
    T(cuGraphNodeFindInClone(&found, a, parent));
    T(cuGraphDestroyNode(found));
    T(cuGraphNodeFindInClone(&found, a, clone));
    T(cuGraphAddChildGraphNode(&child, parent, NULL, 0, graph));
    V(cuGraphChildGraphNodeGetGraph(child, &inside), "%d", inside != graph);
    T(cuGraphChildGraphNodeGetGraph(a, &inside));
    cuGraphChildGraphNodeGetGraph(child, &inside);
    V(cuGraphGetNodes(inside, NULL, &count), "%zu", count);
    T(cuGraphDestroy(inside));
    T(cuGraphNodeFindInClone(&found, b, inside));
    CUgraphExec exec = instance(parent, 0);
    T(cuGraphExecKernelNodeSetParams_v2(exec, found, &other));
    T(cuGraphExecKernelNodeSetParams_v2(exec, b, &other));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {moved, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE}};
    T(cuGraphAddNode(&child, parent, NULL, 0, &params));
    V(cuGraphChildGraphNodeGetGraph(child, &inside), "%d", inside == moved);
    T(cuGraphDestroy(moved));
    T(cuGraphDestroy(parent));
}

static void params(void) {
    CUgraph graph = new_graph();
    CUgraphNode node, other;
    CUDA_KERNEL_NODE_PARAMS wanted = kernel(two), got;
    uint64_t a = 11;
    uint32_t b = 22;
    void *args[] = {&a, &b};
    SECTION("kernels");
    T(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &wanted));
    wanted.kernelParams = args;
    T(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &wanted));
    a = b = 0;
    V(cuGraphKernelNodeGetParams_v2(node, &got), "%d %d %d %d %d", got.func == two, got.kern != NULL, got.ctx == primary,
      (int)*(uint64_t *)got.kernelParams[0], (int)*(uint32_t *)got.kernelParams[1]);
    a = 12;
    T(cuGraphKernelNodeSetParams_v2(node, &wanted));
    V(cuGraphKernelNodeGetParams_v2(node, &got), "%d", (int)*(uint64_t *)got.kernelParams[0]);
    wanted.func = NULL;
    T(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &wanted));
    wanted.func = empty, wanted.gridDimX = 0;
    T(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &wanted));
    SECTION("attributes");
    CUlaunchAttributeValue value = {0};
    CUgraphNode k = add(graph, empty, NULL), k2 = add(graph, empty, NULL);
    for (int id = 0; id < 17; id++) printf("%d: %d\n", id, (int)cuGraphKernelNodeGetAttribute(k, (CUkernelNodeAttrID)id, &value));
    value.priority = -9;
    T(cuGraphKernelNodeSetAttribute(k, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    V(cuGraphKernelNodeGetAttribute(k, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value), "%d", value.priority);
    T(cuGraphKernelNodeSetAttribute(k, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    T(cuGraphKernelNodeSetAttribute(k, (CUkernelNodeAttrID)99, &value));
    T(cuGraphKernelNodeCopyAttributes(k2, k));
    V(cuGraphKernelNodeGetAttribute(k2, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value), "%d", value.priority);
    SECTION("fills and copies");
    CUDA_MEMSET_NODE_PARAMS set = fill(7, 64), told;
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = bytes, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = d,
                          .WidthInBytes = 64, .Height = 1, .Depth = 1}, copied;
    T(cuGraphAddMemsetNode(&other, graph, NULL, 0, &set, NULL));
    V(cuGraphMemsetNodeGetParams(other, &told), "%d %u %u %zu %zu %zu", told.dst == d, told.value, told.elementSize, told.width, told.height, told.pitch);
    T(cuGraphMemsetNodeGetParams(k, &told));
    T(cuGraphMemsetNodeSetParams(k, &set));
    set.elementSize = 3;
    T(cuGraphAddMemsetNode(&other, graph, NULL, 0, &set, primary));
    set.elementSize = 1, set.width = 0;
    T(cuGraphAddMemsetNode(&other, graph, NULL, 0, &set, primary));
    set.width = 4, set.dst = 0x1000;
    T(cuGraphAddMemsetNode(&other, graph, NULL, 0, &set, primary));
    T(cuGraphAddMemcpyNode(&other, graph, NULL, 0, &copy, primary));
    V(cuGraphMemcpyNodeGetParams(other, &copied), "%d %d %zu %zu %zu", (int)copied.srcMemoryType, (int)copied.dstMemoryType, copied.WidthInBytes, copied.Height, copied.Depth);
    copy.WidthInBytes = 0;
    T(cuGraphAddMemcpyNode(&other, graph, NULL, 0, &copy, primary));
    copy.WidthInBytes = 64, copy.dstDevice = 0x1000;
    T(cuGraphAddMemcpyNode(&other, graph, NULL, 0, &copy, primary));
    SECTION("other kinds");
    CUDA_HOST_NODE_PARAMS host = {NULL, NULL};
    CUevent event;
    T(cuGraphAddHostNode(&other, graph, NULL, 0, &host));
    T(cuGraphAddEventRecordNode(&other, graph, NULL, 0, NULL));
    T(cuGraphAddEventRecordNode(&other, graph, NULL, 0, e));
    V(cuGraphEventRecordNodeGetEvent(other, &event), "%d", event == e);
    T(cuGraphEventWaitNodeSetEvent(other, e));
    CUstreamBatchMemOpParams writes[2] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = d, .value = 5}},
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = d + 8, .value = 6}},
    };
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {NULL, 2, writes, 0}, batched;
    T(cuGraphAddBatchMemOpNode(&other, graph, NULL, 0, &batch));
    batch.ctx = primary;
    T(cuGraphAddBatchMemOpNode(&other, graph, NULL, 0, &batch));
    V(cuGraphBatchMemOpNodeGetParams(other, &batched), "%u %d %u", batched.count, batched.ctx == primary, batched.paramArray[1].writeValue.value);
    SECTION("one form for all kinds");
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {host_function, NULL}};
    T(cuGraphAddNode(&other, graph, NULL, 0, &any));
    any.reserved0[0] = 1;
    T(cuGraphAddNode(&other, graph, NULL, 0, &any));
    any.reserved0[0] = 0, any.reserved2 = 1;
    T(cuGraphAddNode(&other, graph, NULL, 0, &any));
    any.reserved2 = 0, any.reserved1[20] = 1;
    T(cuGraphAddNode(&other, graph, NULL, 0, &any));
    any.reserved1[20] = 0, any.type = CU_GRAPH_NODE_TYPE_EMPTY;
    T(cuGraphAddNode(&other, graph, NULL, 0, &any));
    any.type = (CUgraphNodeType)55;
    T(cuGraphAddNode(&other, graph, NULL, 0, &any));
    any.type = CU_GRAPH_NODE_TYPE_HOST;
    T(cuGraphNodeSetParams(k, &any));
}

static CUgraph chain(const char *kinds) {
    CUgraph graph = new_graph();
    CUgraphNode last = NULL;
    for (; *kinds; kinds++) {
        if (*kinds == 'k') last = add(graph, empty, last);
        if (*kinds == 'K') last = add(graph, empty2, last);
        if (*kinds == 'f') last = add(graph, empty, NULL);
        if (*kinds == 'h') last = add_host(graph, 1, last);
        if (*kinds == 's') last = add_fill(graph, 3, last);
        if (*kinds == 'e') cuGraphAddEmptyNode(&last, graph, &last, last ? 1 : 0);
    }
    return graph;
}

static void update(const char *old, const char *new) {
    CUgraphExec exec = instance(chain(old), 0);
    CUgraph graph = chain(new);
    CUgraphExecUpdateResultInfo info = {(CUgraphExecUpdateResult)99, NULL, NULL};
    CUgraphNode nodes[8];
    size_t count = 8;
    int blamed = -1, code = (int)cuGraphExecUpdate_v2(exec, graph, &info);
    cuGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; i < count; i++)
        if (nodes[i] == info.errorNode) blamed = (int)i;
    printf("%s -> %s: %d %d, node %d\n", old, new, code, (int)info.result, blamed);
}

static void executables(void) {
    CUgraph graph = new_graph(), bare = new_graph();
    CUgraphNode k = add(graph, empty, NULL), set = add_fill(graph, 3, k), host = add_host(graph, 1, set), stranger = add(bare, empty, NULL);
    unsigned on = 9;
    cuuint64_t flags = 9;
    SECTION("executable graphs");
    T(instantiate(graph, 64));
    T(instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
    T(instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
    CUgraphExec exec = instance(graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    V(cuGraphExecGetFlags(exec, &flags), "%d", (int)flags);
    V(cuGraphNodeGetEnabled(exec, k, &on), "%u", on);
    T(cuGraphNodeSetEnabled(exec, k, 0));
    V(cuGraphNodeGetEnabled(exec, k, &on), "%u", on);
    T(cuGraphNodeSetEnabled(exec, k, 2));
    V(cuGraphNodeGetEnabled(exec, k, &on), "%u", on);
    T(cuGraphNodeSetEnabled(exec, stranger, 0));
    T(cuGraphNodeSetEnabled(exec, host, 0));
    cuGraphNodeSetEnabled(exec, set, 0);
    V(run(exec), "%d %d", first_byte(), host_calls);
    cuGraphNodeSetEnabled(exec, set, 1);
    V(run(exec), "%d %d", first_byte(), host_calls);
    CUDA_KERNEL_NODE_PARAMS other = kernel(empty2), told;
    CUDA_MEMSET_NODE_PARAMS fill4 = fill(4, 32);
    CUDA_HOST_NODE_PARAMS ten = {host_function, (void *)10};
    T(cuGraphExecKernelNodeSetParams_v2(exec, k, &other));
    T(cuGraphExecKernelNodeSetParams_v2(exec, set, &other));
    T(cuGraphExecKernelNodeSetParams_v2(exec, stranger, &other));
    V(cuGraphKernelNodeGetParams_v2(k, &told), "%d", told.func == empty);
    T(cuGraphExecMemsetNodeSetParams(exec, set, &fill4, primary));
    fill4.height = 2, fill4.pitch = 128;
    T(cuGraphExecMemsetNodeSetParams(exec, set, &fill4, primary));
    T(cuGraphExecHostNodeSetParams(exec, host, &ten));
    T(cuGraphDestroy(graph));
    V(run(exec), "%d %d %ld", first_byte(), host_calls, host_sum);
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = bytes, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = d,
                          .WidthInBytes = 64, .Height = 1, .Depth = 1};
    CUgraphNode c;
    cuGraphAddMemcpyNode(&c, bare, NULL, 0, &copy, primary);
    CUgraphExec copying = instance(bare, 0);
    copy.WidthInBytes = 32;
    T(cuGraphExecMemcpyNodeSetParams(copying, c, &copy, primary));
    copy.Height = 2, copy.srcPitch = copy.dstPitch = 32;
    T(cuGraphExecMemcpyNodeSetParams(copying, c, &copy, primary));
    CUDA_MEMCPY3D back = {.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = bytes, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = d,
                          .WidthInBytes = 64, .Height = 1, .Depth = 1};
    T(cuGraphExecMemcpyNodeSetParams(copying, c, &back, primary));
    T(run(instance(new_graph(), 0)));
    T(cuGraphExecDestroy(exec));
    SECTION("updates");
    static const char *const pairs[][2] = {{"kk", "kk"}, {"kk", "kK"}, {"kk", "kkk"}, {"kkk", "kk"}, {"kk", "kh"}, {"ke", "kk"}, {"kk", "kf"},
                                           {"kf", "kk"}, {"kks", "ksk"}, {"", "k"}, {"k", ""}, {"kkkk", "kkfk"}, {"h", "h"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) update(pairs[i][0], pairs[i][1]);
    CUgraph cooperative = chain("k");
    CUlaunchAttributeValue value = {.cooperative = 1};
    CUgraphNode node;
    size_t one = 1;
    cuGraphGetNodes(cooperative, &node, &one);
    cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value);
    CUgraphExecUpdateResultInfo info;
    T(cuGraphExecUpdate_v2(instance(chain("k"), 0), cooperative, &info));
    printf("result %d\n", (int)info.result);
    CUgraph parent = new_graph();
    CUgraphNode child;
    cuGraphAddChildGraphNode(&child, parent, NULL, 0, chain("k"));
    CUgraphExec family = instance(parent, 0);
    T(cuGraphExecChildGraphNodeSetParams(family, child, chain("K")));
    T(cuGraphExecChildGraphNodeSetParams(family, child, chain("kk")));
}

static CUresult allocate(CUgraph graph, CUgraphNode *node, CUgraphNode after, size_t size, CUdeviceptr *at) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = size};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult code = cuGraphAddMemAllocNode(node, graph, &after, after ? 1 : 0, &params);
    *at = params.dptr;
    return code;
}

static void memory(void) {
    CUgraph graph = new_graph(), clone, parent = new_graph(), freeing = new_graph();
    CUgraphNode a, b, f;
    CUdeviceptr at, at2, told;
    SECTION("memory nodes");
    T(allocate(graph, &a, NULL, 0, &at));
    T(allocate(graph, &a, NULL, 1 << 20, &at));
    T(allocate(graph, &b, a, 3 << 20, &at2));
    T(cuGraphClone(&clone, graph));
    T(cuGraphAddChildGraphNode(&f, parent, NULL, 0, graph));
    T(cuGraphDestroyNode(b));
    T(cuGraphRemoveDependencies(graph, &a, &b, 1));
    T(cuMemsetD8_v2(at, 0, 16));
    CUgraphExec exec = instance(graph, 0);
    T(instantiate(graph, 0));
    T(run(exec));
    T(cuMemsetD8_v2(at, 0, 16));
    T(run(exec));
    T(cuMemFree_v2(at));
    T(run(exec));
    T(cuMemFreeAsync(at2, s));
    T(run(exec));
    T(cuGraphExecDestroy(exec));
    T(cuMemsetD8_v2(at, 0, 16));
    T(cuMemFree_v2(at));
    T(cuMemFree_v2(at2));
    T(instantiate(graph, 0));
    T(cuGraphDestroy(graph));
    SECTION("freed by itself");
    graph = new_graph(), allocate(graph, &a, NULL, 1 << 20, &at);
    exec = instance(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    T(run(exec));
    T(run(exec));
    T(cuMemFree_v2(at));
    T(cuMemFree_v2(at));
    SECTION("free nodes");
    graph = new_graph(), allocate(graph, &a, NULL, 1 << 20, &at);
    T(cuGraphAddMemFreeNode(&f, graph, NULL, 0, d));
    T(cuGraphAddMemFreeNode(&f, graph, &a, 1, at));
    T(cuGraphAddMemFreeNode(&b, graph, &a, 1, at));
    V(cuGraphMemFreeNodeGetParams(f, &told), "%d", told == at);
    exec = instance(graph, 0);
    T(run(exec));
    T(run(exec));
    T(cuMemsetD8_v2(at, 0, 16));
    T(cuGraphNodeSetEnabled(exec, a, 0));
    graph = new_graph(), allocate(graph, &a, NULL, 1 << 20, &at);
    T(cuGraphAddMemFreeNode(&f, freeing, NULL, 0, at));
    CUgraphExec first = instance(graph, 0), second = instance(freeing, 0);
    T(run(second));
    T(run(first));
    T(run(second));
    T(run(first));
    T(run(second));
}

static CUresult decide(CUgraph graph, CUgraphConditionalHandle handle, int type, unsigned size, CUgraphNode *node, CUgraph *bodies) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                .conditional = {handle, (CUgraphConditionalNodeType)type, size, NULL, primary}};
    CUresult code = cuGraphAddNode(node, graph, NULL, 0, &params);
    for (unsigned i = 0; !code && i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
    return code;
}

static void conditions(void) {
    CUgraph graph = new_graph(), body[4], inner[2], clone, parent = new_graph(), bare = new_graph();
    CUgraphConditionalHandle h, h2;
    CUgraphNode n, m;
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
    SECTION("conditional nodes");
    T(cuGraphConditionalHandleCreate(&h, graph, NULL, 0, 0));
    T(cuGraphConditionalHandleCreate(&h, graph, primary, 0, 2));
    T(cuGraphConditionalHandleCreate(&h, graph, primary, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    T(cuGraphInstantiateWithParams(&exec, graph, &how));
    printf("result %d\n", (int)how.result_out);
    T(decide(bare, h, CU_GRAPH_COND_TYPE_IF, 1, &n, body));
    T(decide(graph, h, CU_GRAPH_COND_TYPE_WHILE, 2, &n, body));
    T(decide(graph, h, CU_GRAPH_COND_TYPE_IF, 3, &n, body));
    T(decide(graph, h, CU_GRAPH_COND_TYPE_SWITCH, 0, &n, body));
    T(decide(graph, h, 5, 1, &n, body));
    T(decide(graph, h, CU_GRAPH_COND_TYPE_IF, 2, &n, body));
    T(decide(graph, h, CU_GRAPH_COND_TYPE_IF, 1, &n, body));
    add_fill(body[0], 9, NULL), add_fill(body[1], 8, NULL);
    T(cuGraphClone(&clone, graph));
    T(cuGraphAddChildGraphNode(&m, parent, NULL, 0, graph));
    T(cuGraphDestroy(body[0]));
    T(instantiate(body[0], 0));
    exec = instance(graph, 0);
    V(run(exec), "%d", first_byte());
    T(instantiate(graph, 0));
    T(cuGraphNodeSetEnabled(exec, n, 0));
    CUgraph other = new_graph();
    cuGraphConditionalHandleCreate(&h, other, primary, 0, CU_GRAPH_COND_ASSIGN_DEFAULT);
    decide(other, h, CU_GRAPH_COND_TYPE_IF, 2, &n, body), add_fill(body[0], 7, NULL), add_fill(body[1], 6, NULL);
    CUgraphExecUpdateResultInfo info;
    T(cuGraphExecUpdate_v2(exec, other, &info));
    V(run(exec), "%d", first_byte());
    other = new_graph();
    cuGraphConditionalHandleCreate(&h, other, primary, 2, CU_GRAPH_COND_ASSIGN_DEFAULT);
    decide(other, h, CU_GRAPH_COND_TYPE_SWITCH, 3, &n, body);
    for (int i = 0; i < 3; i++) add_fill(body[i], 20 + i, NULL);
    V(run(instance(other, 0)), "%d", first_byte());
    other = new_graph();
    cuGraphConditionalHandleCreate(&h, other, primary, 1, 0);
    decide(other, h, CU_GRAPH_COND_TYPE_WHILE, 1, &n, body), add_fill(body[0], 30, NULL);
    V(run(instance(other, 0)), "%d", first_byte());
    SECTION("bodies");
    other = new_graph();
    cuGraphConditionalHandleCreate(&h, other, primary, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    cuGraphConditionalHandleCreate(&h2, other, primary, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    decide(other, h, CU_GRAPH_COND_TYPE_IF, 1, &n, body);
    T(decide(body[0], h2, CU_GRAPH_COND_TYPE_IF, 1, &n, inner));
    add_fill(inner[0], 44, NULL);
    V(run(instance(other, 0)), "%d", first_byte());
    for (int kind = 0; kind < 3; kind++) {
        CUdeviceptr at;
        other = new_graph();
        cuGraphConditionalHandleCreate(&h, other, primary, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
        decide(other, h, CU_GRAPH_COND_TYPE_IF, 1, &n, body);
        if (kind == 0) m = add_host(body[0], 1, NULL);
        if (kind == 1) cuGraphAddEventRecordNode(&m, body[0], NULL, 0, e2);
        if (kind == 2) allocate(body[0], &m, NULL, 100, &at);
        int code = (int)cuGraphInstantiateWithParams(&exec, other, &how);
        printf("body of kind %d: %d, result %d, blamed %d\n", kind, code, (int)how.result_out, how.hErrNode_out == m);
    }
}

static void objects(void) {
    CUgraph graph = new_graph(), clone;
    CUuserObject o;
    SECTION("user objects");
    host_calls = 0;
    T(cuUserObjectCreate(&o, NULL, host_function, 1, 0));
    T(cuUserObjectCreate(&o, NULL, host_function, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    T(cuUserObjectCreate(&o, NULL, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    T(cuUserObjectCreate(&o, NULL, host_function, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    T(cuUserObjectRetain(o, 0));
    T(cuUserObjectRetain(o, 2));
    T(cuGraphRetainUserObject(graph, o, 0, 0));
    T(cuGraphRetainUserObject(graph, o, 1, 4));
    T(cuGraphRetainUserObject(graph, o, 1, 0));
    T(cuGraphRetainUserObject(graph, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    T(cuUserObjectRelease(o, 2));
    T(cuGraphReleaseUserObject(graph, o, 1));
    cuGraphClone(&clone, graph);
    CUgraphExec exec = instance(graph, 0);
    V(cuGraphDestroy(graph), "%d", host_calls);
    V(cuGraphDestroy(clone), "%d", host_calls);
    V(cuGraphExecDestroy(exec), "%d", host_calls);
}

int main(int argc, char **argv) {
    CUmodule module;
    if (argc != 2) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    cuInit(0);
    cuDevicePrimaryCtxRetain(&primary, 0);
    cuCtxSetCurrent(primary);
    cuModuleLoadData(&module, strcmp(argv[1], "ptx") ? sim_image : ptx_image);
    cuModuleGetFunction(&empty, module, "empty");
    cuModuleGetFunction(&empty2, module, "empty2");
    cuModuleGetFunction(&two, module, "two");
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&e, 0), cuEventCreate(&e2, 0);
    cuMemAlloc_v2(&d, 4096), cuMemsetD8_v2(d, 0, 4096);
    shape();
    copies();
    params();
    executables();
    memory();
    conditions();
    objects();
    return 0;
}
