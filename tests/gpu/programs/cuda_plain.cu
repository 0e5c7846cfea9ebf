// A plain program of the CUDA runtime: what people write after reading the first chapters of the manual, and a checksum
// of what the GPU made of each part. Built twice, the second time with --default-stream per-thread.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define OK(call)                                                                                            \
    do {                                                                                                    \
        cudaError_t code_ = (call);                                                                         \
        if (code_ != cudaSuccess) {                                                                         \
            fprintf(stderr, "%s:%d: %s -> %d %s\n", __FILE__, __LINE__, #call, code_, cudaGetErrorName(code_)); \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

constexpr int N = 1 << 16;
constexpr size_t BYTES = N * sizeof(uint32_t);

__device__ uint32_t table[256];

__global__ void step(uint32_t *data, int n, uint32_t add) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * 1664525u + add + i;
}

__global__ void through_table(uint32_t *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += table[i & 255];
}

__device__ uint32_t arrived;

// Waits until every thread of the grid has come here, which needs all blocks to be on the GPU at once.
__device__ void meet(uint32_t times) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1);
        while (atomicAdd(&arrived, 0) < times * gridDim.x) {
        }
        __threadfence();
    }
    __syncthreads();
}

__global__ void neighbours(uint32_t *data, uint32_t *other, int n) {
    int stride = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int round = 0; round < 4; round++) {
        for (int i = first; i < n; i += stride) other[i] = data[i] + data[(i + 1) % n];
        meet(2 * round + 1);
        for (int i = first; i < n; i += stride) data[i] = other[i] ^ other[(i + 7) % n];
        meet(2 * round + 2);
    }
}

static void tell(const char *what, const void *data, size_t size) {
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211ull;
    printf("%-12s %016llx\n", what, (unsigned long long)hash);
    fflush(stdout);
}

static std::vector<uint32_t> some(uint32_t seed) {
    std::vector<uint32_t> values(N);
    for (auto &value : values) value = seed = seed * 1664525u + 1013904223u;
    return values;
}

static void tell_device(const char *what, const uint32_t *data) {
    std::vector<uint32_t> host(N);
    OK(cudaMemcpy(host.data(), data, BYTES, cudaMemcpyDeviceToHost));
    tell(what, host.data(), BYTES);
}

static void linear() {
    auto host = some(1);
    uint32_t *a, *b;
    OK(cudaMalloc(&a, BYTES));
    OK(cudaMalloc(&b, BYTES));
    OK(cudaMemcpyToSymbol(table, host.data(), sizeof table));
    OK(cudaMemcpy(a, host.data(), BYTES, cudaMemcpyHostToDevice));
    for (int i = 0; i < 100; i++) step<<<N / 256, 256>>>(a, N, i);
    through_table<<<N / 256, 256>>>(a, N);
    OK(cudaGetLastError());
    OK(cudaMemcpy(b, a, BYTES, cudaMemcpyDeviceToDevice));
    tell_device("linear", b);
    OK(cudaMemset(a, 0x5a, BYTES / 2));
    OK(cudaMemcpy(b, a, BYTES, cudaMemcpyDefault));
    tell_device("sets", b);
    OK(cudaFree(a));
    OK(cudaFree(b));
}

static void streams() {
    cudaStream_t one, two;
    cudaEvent_t event;
    uint32_t *pinned, *a, *b;
    OK(cudaStreamCreate(&one));
    OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    OK(cudaEventCreate(&event));
    OK(cudaMallocHost(&pinned, BYTES));
    auto values = some(2);
    memcpy(pinned, values.data(), BYTES);
    for (int round = 0; round < 8; round++) {
        OK(cudaMallocAsync(&a, BYTES, one));
        OK(cudaMallocAsync(&b, BYTES, one));
        OK(cudaMemcpyAsync(a, pinned, BYTES, cudaMemcpyHostToDevice, one));
        OK(cudaMemsetAsync(b, round, BYTES, one));
        OK(cudaEventRecord(event, one));
        OK(cudaStreamWaitEvent(two, event));
        for (int i = 0; i < 10; i++) step<<<N / 256, 256, 0, two>>>(i & 1 ? a : b, N, i);
        OK(cudaMemcpyAsync(a, b, BYTES / 2, cudaMemcpyDeviceToDevice, two));
        OK(cudaMemcpyAsync(pinned, a, BYTES, cudaMemcpyDeviceToHost, two));
        OK(cudaFreeAsync(a, two));
        OK(cudaFreeAsync(b, two));
        OK(cudaStreamSynchronize(two));
    }
    tell("streams", pinned, BYTES);
    OK(cudaFreeHost(pinned));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
}

static void shapes() {
    constexpr size_t WIDTH = 600, HEIGHT = 40;
    auto host = some(3);
    char *flat;
    size_t pitch;
    OK(cudaMallocPitch(&flat, &pitch, WIDTH, HEIGHT));
    OK(cudaMemset2D(flat, pitch, 3, WIDTH, HEIGHT));
    OK(cudaMemcpy2D(flat, pitch, host.data(), WIDTH, WIDTH / 2, HEIGHT, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(host.data(), WIDTH, flat, pitch, WIDTH, HEIGHT, cudaMemcpyDeviceToHost));
    tell("pitch", host.data(), WIDTH * HEIGHT);
    OK(cudaFree(flat));

    cudaArray_t array, deep;
    auto format = cudaCreateChannelDesc<uint32_t>();
    OK(cudaMallocArray(&array, &format, 64, 32));
    OK(cudaMemcpy2DToArray(array, 0, 0, host.data(), 256, 256, 32, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(host.data() + 4096, 256, array, 0, 0, 256, 32, cudaMemcpyDeviceToHost));
    OK(cudaMalloc3DArray(&deep, &format, make_cudaExtent(16, 16, 16)));
    cudaMemcpy3DParms in = {};
    in.srcPtr = make_cudaPitchedPtr(host.data(), 64, 16, 16);
    in.dstArray = deep;
    in.extent = make_cudaExtent(16, 16, 16);
    in.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&in));
    cudaMemcpy3DParms out = {};
    out.srcArray = deep;
    out.dstPtr = make_cudaPitchedPtr(host.data() + 8192, 64, 16, 16);
    out.extent = in.extent;
    out.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&out));
    tell("arrays", host.data(), BYTES);
    OK(cudaFreeArray(array));
    OK(cudaFreeArray(deep));
}

static void managed() {
    uint32_t *data;
    OK(cudaMallocManaged(&data, BYTES));
    for (int i = 0; i < N; i++) data[i] = i;
    step<<<N / 256, 256>>>(data, N, 5);
    OK(cudaDeviceSynchronize());
    tell("managed", data, BYTES);
    OK(cudaFree(data));
}

static void cooperative() {
    int device = 0, possible = 0, blocks = 0, processors = 0, n = N;
    OK(cudaDeviceGetAttribute(&possible, cudaDevAttrCooperativeLaunch, device));
    OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, neighbours, 256, 0));
    uint32_t *a, *b;
    auto host = some(4);
    OK(cudaMalloc(&a, BYTES));
    OK(cudaMalloc(&b, BYTES));
    OK(cudaMemcpy(a, host.data(), BYTES, cudaMemcpyHostToDevice));
    void *arguments[] = {&a, &b, &n};
    for (int i = 0; i < 5 && possible && blocks > 0; i++) {
        uint32_t none = 0;
        OK(cudaMemcpyToSymbol(arrived, &none, sizeof none));
        OK(cudaLaunchCooperativeKernel((void *)neighbours, dim3(processors), dim3(256), arguments, 0, 0));
    }
    OK(cudaDeviceSynchronize());
    tell_device("cooperative", a);
    OK(cudaFree(a));
    OK(cudaFree(b));
}

static void graphs() {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint32_t *a;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&a, BYTES));
    OK(cudaMemsetAsync(a, 1, BYTES, stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 5; i++) step<<<N / 256, 256, 0, stream>>>(a, N, i);
    uint32_t *scratch;
    OK(cudaMallocAsync(&scratch, BYTES, stream));
    OK(cudaMemcpyAsync(scratch, a, BYTES, cudaMemcpyDeviceToDevice, stream));
    through_table<<<N / 256, 256, 0, stream>>>(scratch, N);
    OK(cudaMemcpyAsync(a, scratch, BYTES / 2, cudaMemcpyDeviceToDevice, stream));
    OK(cudaFreeAsync(scratch, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    tell_device("captured", a);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));

    cudaGraphNode_t set, run;
    int n = N;
    uint32_t add = 9;
    void *arguments[] = {&a, &n, &add};
    cudaMemsetParams fill = {};
    fill.dst = a;
    fill.value = 6;
    fill.elementSize = 4;
    fill.width = N;
    fill.height = 1;
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)step;
    kernel.gridDim = dim3(N / 256);
    kernel.blockDim = dim3(256);
    kernel.kernelParams = arguments;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &fill));
    OK(cudaGraphAddKernelNode(&run, graph, &set, 1, &kernel));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    tell_device("explicit", a);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(a));
    OK(cudaStreamDestroy(stream));
}

int main() {
    size_t available, total;
    OK(cudaMemGetInfo(&available, &total));
    linear();
    streams();
    shapes();
    managed();
    cooperative();
    graphs();
    OK(cudaDeviceSynchronize());
    puts("done");
    return 0;
}
