__device__ char big[64 << 20];
extern "C" __global__ void touch(unsigned from) { big[threadIdx.x + from] = 1; }
extern "C" __global__ void other(unsigned from) { big[threadIdx.x + from] = 2; }
extern "C" __global__ void unrelated(unsigned *to) { *to = 2; }
