// What tests/programs/caps/path_images.c has in PTX, compiled ahead: a variable of 64 MiB, and a kernel that needs it.
__device__ unsigned char big[64u << 20];

extern "C" __global__ void empty() { big[threadIdx.x] = 1; }
