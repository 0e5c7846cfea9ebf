/* Paths by which the driver takes memory for itself, with no allocation call: contexts, modules, limits, local memory. */
#include "path.h"

static CUresult take_context(size_t bytes) {
    CUcontext context;
    CUresult code = cuCtxCreate_v2(&context, 0, 0);
    (void)bytes;
    if (code) return code;
    keep((uintptr_t)context, 0, 0);
    return cuCtxSetCurrent(primary);
}

static void give_context(void) {
    OK(cuCtxDestroy_v2((CUcontext)(uintptr_t)last().word[0]));
    OK(cuCtxSetCurrent(primary));
}

static CUresult take_module(size_t bytes) {
    CUmodule module;
    CUresult code = cuModuleLoadData(&module, big_image());
    (void)bytes;
    if (!code) keep((uintptr_t)module, 0, 0);
    return code;
}

static void give_module(void) { OK(cuModuleUnload((CUmodule)(uintptr_t)last().word[0])); }

/* Loaded lazily: its memory comes with the first launch. */
static CUresult take_library(size_t bytes) {
    CUlibrary library;
    CUkernel kernel;
    CUresult code = cuLibraryLoadData(&library, big_image(), NULL, NULL, 0, NULL, NULL, 0);
    (void)bytes;
    if (code) return code;
    OK(cuLibraryGetKernel(&kernel, library, "empty"));
    code = cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    if (!code) code = cuStreamSynchronize(stream);
    if (code) OK(cuLibraryUnload(library));
    else keep((uintptr_t)library, 0, 0);
    return code;
}

/* The same, by asking for the function that a kernel is in this context. */
static CUresult take_function(size_t bytes) {
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUresult code = cuLibraryLoadData(&library, big_image(), NULL, NULL, 0, NULL, NULL, 0);
    (void)bytes;
    if (code) return code;
    OK(cuLibraryGetKernel(&kernel, library, "empty"));
    code = cuKernelGetFunction(&function, kernel);
    if (code) OK(cuLibraryUnload(library));
    else keep((uintptr_t)library, 0, 0);
    return code;
}

/* The same, by a node of a graph. */
static CUresult take_node(size_t bytes) {
    CUlibrary library;
    CUgraph graph;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS params = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUresult code = cuLibraryLoadData(&library, big_image(), NULL, NULL, 0, NULL, NULL, 0);
    (void)bytes;
    if (code) return code;
    OK(cuLibraryGetKernel(&params.kern, library, "empty"));
    OK(cuGraphCreate(&graph, 0));
    code = cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params);
    OK(cuGraphDestroy(graph));
    if (code) OK(cuLibraryUnload(library));
    else keep((uintptr_t)library, 0, 0);
    return code;
}

static void give_library(void) { OK(cuLibraryUnload((CUlibrary)(uintptr_t)last().word[0])); }

/* What the device sets aside for a KiB more of local memory in each thread that it can hold. */
static void measure_threads(void) {
    int processors, threads;
    OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    OK(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
    step_takes = rounded((size_t)processors * threads * 1024);
}

/* A kernel with another KiB of local memory per thread than the one before. There is one KiB in every context. */
static CUresult fill_local(const Path *path, size_t limit, size_t *got) {
    CUmodule module;
    CUfunction deep;
    char name[16];
    (void)path;
    OK(cuModuleLoadData(&module, deep_image()));
    for (int i = 2; i <= DEEPEST && *got < limit; i++) {
        snprintf(name, sizeof name, "deep%d", i);
        OK(cuModuleGetFunction(&deep, module, name));
        CUresult code = cuLaunchKernel(deep, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        if (!code) code = cuStreamSynchronize(stream);
        if (code) return code;
        *got += step_takes;
    }
    return CUDA_SUCCESS;
}

/* The same by kernels in graphs. */
static CUresult fill_graph_local(const Path *path, size_t limit, size_t *got) {
    CUmodule module;
    char name[16];
    (void)path;
    OK(cuModuleLoadData(&module, deep_image()));
    for (int i = 2; i <= DEEPEST && *got < limit; i++) {
        CUgraph graph;
        CUgraphNode node;
        CUgraphExec exec = NULL;
        CUDA_KERNEL_NODE_PARAMS_v1 params = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
        snprintf(name, sizeof name, "deep%d", i);
        OK(cuModuleGetFunction(&params.func, module, name));
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
        CUresult code = cuGraphInstantiateWithFlags(&exec, graph, 0);
        if (!code) code = cuGraphLaunch(exec, stream);
        if (!code) code = cuStreamSynchronize(stream);
        if (exec) OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        if (code) return code;
        *got += step_takes;
    }
    return CUDA_SUCCESS;
}

/* The same by the limit on stacks, which takes it at once. */
static CUresult take_stack(size_t bytes) {
    CUresult code = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 * (kept() + 2));
    (void)bytes;
    if (!code) keep(0, 0, 0);
    return code;
}

static void give_stack(void) {
    last();
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 * (kept() + 1)));
}

static CUresult fill_stack(const Path *path, size_t limit, size_t *got) {
    while (*got < limit) {
        CUresult code = take_stack(path->step);
        if (code) return code;
        *got += step_takes;
    }
    return CUDA_SUCCESS;
}

/* What a context has besides memory goes with it. */
static void reset_context(void) { OK(cuDevicePrimaryCtxReset_v2(0)); }

/* A kernel that uses the heap, with the limit as it is. */
static CUresult use_heap(void) {
    CUmodule module;
    CUfunction heap;
    CUresult code = cuModuleLoadData(&module, heap_image());
    if (code) return code;
    OK(cuModuleGetFunction(&heap, module, "heap"));
    code = cuLaunchKernel(heap, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    if (!code) code = cuStreamSynchronize(stream);
    if (code) OK(cuModuleUnload(module));
    return code;
}

/* Once there is a heap, it stays as it is: so from above, until one fits. The code is that of the last that did not. */
static CUresult fill_heap(const Path *path, size_t limit, size_t *got) {
    CUresult refused = CUDA_SUCCESS;
    for (size_t heap = limit; heap >= path->step; heap -= path->step) {
        CUresult code = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap);
        if (code == CUDA_ERROR_INVALID_VALUE && refused) {
            /* A context may have its heap from when the code was loaded that was not allowed to run. */
            reset_context();
            begin();
            code = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap);
        }
        if (!code) code = use_heap();
        if (!code) {
            *got = heap;
            break;
        }
        MUST(!refused || code == refused);
        refused = code;
    }
    return refused;
}

const Path driver_paths[] = {
    {.name = "contexts", .step = 518 * MIB, .take = take_context, .give = give_context},
    {.name = "module", .step = BIG, .take = take_module, .give = give_module},
    {.name = "library-lazy", .step = BIG, .take = take_library, .give = give_library},
    {.name = "library-function", .step = BIG, .take = take_function, .give = give_library},
    {.name = "library-node", .step = BIG, .take = take_node, .give = give_library},
    {.name = "local", .prepare = measure_threads, .finish = reset_context, .fill = fill_local},
    {.name = "graph-local", .prepare = measure_threads, .finish = reset_context, .fill = fill_graph_local},
    {.name = "stack-limit", .take = take_stack, .give = give_stack, .prepare = measure_threads, .fill = fill_stack},
    {.name = "heap-limit", .step = 128 * MIB, .finish = reset_context, .fill = fill_heap},
    {0},
};
