__device__ char plain[4 << 20];
__managed__ char shared_with_host[6 << 20];
__managed__ int set = 5;
__device__ int table[100] = {1, 2, 3};
__constant__ float weights[250];
extern "C" __global__ void touch(unsigned from) {
    __shared__ int block[256];
    block[threadIdx.x] = set;
    __syncthreads();
    plain[from] = shared_with_host[from] + table[from] + block[from] + (int)weights[from];
}
extern "C" __global__ void grow(int **kept, unsigned count) { *kept = (int *)malloc(count); }
