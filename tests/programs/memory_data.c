/* Moves bytes in every way there is and compares them with what plain memory would hold. Prints what it checked. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static CUstream stream;
static uint64_t state = 88172645463325252ull;

static uint64_t number(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static unsigned char *noise(size_t len) {
    unsigned char *bytes = malloc(len);
    for (size_t i = 0; i < len; i++) bytes[i] = (unsigned char)number(256);
    return bytes;
}

static void linear(void) {
    size_t len = 3 * MIB + 17;
    unsigned char *from = noise(len), *to = calloc(1, len);
    CUdeviceptr a, b;
    OK(cuMemAlloc_v2(&a, len));
    OK(cuMemAlloc_v2(&b, len));
    OK(cuMemcpyHtoD_v2(a, from, len));
    OK(cuMemcpyDtoD_v2(b, a, len));
    OK(cuMemcpyDtoH_v2(to, b, len));
    MUST(!memcmp(from, to, len));
    for (int i = 0; i < 300; i++) { /* pieces at any place, some of them overlapping */
        size_t n = number(5000) + 1, x = number(len - n), y = number(len - n);
        switch (number(3)) {
        case 0:
            OK(cuMemcpyDtoDAsync_v2(a + x, a + y, n, stream));
            memmove(from + x, from + y, n);
            break;
        case 1:
            OK(cuMemcpyHtoDAsync_v2(a + x, to + y, n, stream));
            memcpy(from + x, to + y, n);
            break;
        default:
            OK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)(to + y), a + x, n, stream));
            MUST(!memcmp(to + y, from + x, n));
        }
    }
    OK(cuMemcpyDtoHAsync_v2(to, a, len, stream));
    OK(cuStreamSynchronize(stream));
    MUST(!memcmp(from, to, len));
    /* Pageable memory may be changed as soon as the call is over, pinned only when the copy is done. */
    unsigned char *pinned;
    OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
    memset(pinned, 1, 4096);
    memset(to, 1, 4096);
    OK(cuMemcpyHtoDAsync_v2(a, to, 4096, stream));
    memset(to, 2, 4096);
    OK(cuMemcpyDtoHAsync_v2(pinned + 1, a, 4095, stream));
    OK(cuStreamSynchronize(stream));
    MUST(pinned[1] == 1 && pinned[4095] == 1);
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(b));
    free(from);
    free(to);
    puts("linear copies");
}

static void boxes(void) {
    enum { PITCH = 256, ROWS = 40, DEPTH = 12, LEN = PITCH * ROWS * DEPTH };
    unsigned char *host[2] = {noise(LEN), noise(LEN)}, *model[4], *back = malloc(LEN);
    CUdeviceptr device[2];
    for (int i = 0; i < 4; i++) model[i] = noise(LEN);
    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc_v2(&device[i], LEN));
        OK(cuMemcpyHtoD_v2(device[i], model[i], LEN));
        memcpy(model[2 + i], host[i], LEN);
    }
    for (int i = 0; i < 400; i++) {
        int to = number(4), from = number(4);
        size_t w = number(PITCH / 2) + 1, h = number(ROWS / 2) + 1, d = number(DEPTH / 2) + 1;
        if (to == from) continue; /* overlapping boxes are nobody's promise */
        CUDA_MEMCPY3D c = {.srcXInBytes = number(PITCH - w + 1), .srcY = number(ROWS - h + 1), .srcZ = number(DEPTH - d + 1),
            .dstXInBytes = number(PITCH - w + 1), .dstY = number(ROWS - h + 1), .dstZ = number(DEPTH - d + 1),
            .srcPitch = PITCH, .srcHeight = ROWS, .dstPitch = PITCH, .dstHeight = ROWS, .WidthInBytes = w, .Height = h, .Depth = d};
        if (from < 2) c.srcMemoryType = CU_MEMORYTYPE_DEVICE, c.srcDevice = device[from];
        else c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host[from - 2];
        if (to < 2) c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = device[to];
        else c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = host[to - 2];
        if (number(2)) OK(cuMemcpy3D_v2(&c));
        else OK(cuMemcpy3DAsync_v2(&c, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuCtxSynchronize());
        for (size_t z = 0; z < d; z++)
            for (size_t y = 0; y < h; y++)
                memcpy(model[to] + ((c.dstZ + z) * ROWS + c.dstY + y) * PITCH + c.dstXInBytes,
                    model[from] + ((c.srcZ + z) * ROWS + c.srcY + y) * PITCH + c.srcXInBytes, w);
    }
    for (int i = 0; i < 2; i++) {
        OK(cuMemcpyDtoH_v2(back, device[i], LEN));
        MUST(!memcmp(back, model[i], LEN));
        MUST(!memcmp(host[i], model[2 + i], LEN));
        OK(cuMemFree_v2(device[i]));
    }
    puts("boxes");
}

static void arrays(void) {
    enum { W = 200, H = 30, D = 5 };
    CUDA_ARRAY3D_DESCRIPTOR form = {.Width = W / 4, .Height = H, .Depth = D, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray a, b, level;
    CUmipmappedArray mipmap;
    unsigned char *from = noise(W * H * D), *to = calloc(1, W * H * D);
    OK(cuArray3DCreate_v2(&a, &form));
    OK(cuArray3DCreate_v2(&b, &form));
    CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = W, .srcHeight = H,
        .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = a, .WidthInBytes = W, .Height = H, .Depth = D};
    OK(cuMemcpy3D_v2(&in));
    CUDA_MEMCPY3D across = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a, .srcY = 3, .srcXInBytes = 8,
        .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = b, .dstZ = 1, .dstXInBytes = 4, .WidthInBytes = 100, .Height = 20, .Depth = 4};
    OK(cuMemcpy3D_v2(&across));
    CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = b, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to,
        .dstPitch = W, .dstHeight = H, .WidthInBytes = W, .Height = H, .Depth = D};
    OK(cuMemcpy3D_v2(&out));
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                int inside = z >= 1 && y < 20 && x >= 4 && x < 104;
                MUST(to[(z * H + y) * W + x] == (inside ? from[((z - 1) * H + y + 3) * W + x + 4] : 0));
            }
    across.WidthInBytes = W;
    MUST(cuMemcpy3D_v2(&across) == CUDA_ERROR_INVALID_VALUE); /* beyond the row */
    CUDA_ARRAY_DESCRIPTOR line = {.Width = 1000, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUarray row;
    OK(cuArrayCreate_v2(&row, &line));
    OK(cuMemcpyHtoA_v2(row, 10, from, 500));
    OK(cuMemcpyAtoA_v2(row, 600, row, 10, 300));
    OK(cuMemcpyAtoH_v2(to, row, 600, 300));
    MUST(!memcmp(to, from, 300));
    MUST(cuMemcpyAtoH_v2(to, row, 900, 200) == CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(row));
    OK(cuMipmappedArrayCreate(&mipmap, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1}, 7));
    for (unsigned i = 0; i < 7; i++) { /* levels do not get in each other's way */
        CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from + i, .srcPitch = 256, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
            .WidthInBytes = 256 >> i, .Height = 64 >> i};
        OK(cuMipmappedArrayGetLevel(&level, mipmap, i));
        c.dstArray = level;
        OK(cuMemcpy2D_v2(&c));
    }
    for (unsigned i = 0; i < 7; i++) {
        CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to, .dstPitch = 256,
            .WidthInBytes = 256 >> i, .Height = 64 >> i};
        OK(cuMipmappedArrayGetLevel(&level, mipmap, i));
        c.srcArray = level;
        OK(cuMemcpy2D_v2(&c));
        for (unsigned y = 0; y < 64u >> i; y++) MUST(!memcmp(to + 256 * y, from + i + 256 * y, 256 >> i));
    }
    OK(cuMipmappedArrayDestroy(mipmap));
    OK(cuArrayDestroy(a));
    OK(cuArrayDestroy(b));
    puts("arrays");
}

static void fills(void) {
    size_t len = 9 * MIB;
    unsigned char *model = calloc(1, len), *back = malloc(len);
    CUdeviceptr a;
    OK(cuMemAlloc_v2(&a, len));
    OK(cuMemcpyDtoH_v2(back, a, len));
    MUST(!memcmp(back, model, len));
    for (int i = 0; i < 120; i++) {
        int element = 1 << number(3);
        uint32_t value = number(3) ? (uint32_t)number(1ull << 32) : 0; /* zero is a case of its own */
        size_t width = number(60) ? number(3000) + 1 : number(MIB) + 1, height = number(20) + 1;
        size_t pitch = (width + number(100)) * element, extent = pitch * (height - 1) + width * element;
        if (extent > len) continue;
        size_t at = number((len - extent) / element + 1) * element;
        if (element == 1) OK(cuMemsetD2D8Async(a + at, pitch, value, width, height, stream));
        if (element == 2) OK(cuMemsetD2D16Async(a + at, pitch, value, width, height, stream));
        if (element == 4) OK(cuMemsetD2D32Async(a + at, pitch, value, width, height, stream));
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width * element; x++) model[at + y * pitch + x] = (unsigned char)(value >> (8 * (x % element)));
    }
    OK(cuMemcpyDtoHAsync_v2(back, a, len, stream));
    MUST(!memcmp(back, model, len));
    OK(cuMemFree_v2(a));
    free(model);
    free(back);
    puts("fills");
}

static void stitched(void) { /* copies across mappings that lie side by side */
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handles[3];
    CUdeviceptr at, elsewhere;
    size_t part = 2 * MIB, len = 3 * part;
    unsigned char *from = noise(len), *to = malloc(len);
    OK(cuMemAddressReserve(&at, len + part, 0, 0, 0));
    OK(cuMemAddressReserve(&elsewhere, part, 0, 0, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemCreate(&handles[i], part, &prop, 0));
        OK(cuMemMap(at + i * part, part, 0, handles[i], 0));
    }
    MUST(cuMemcpyHtoD_v2(at, from, 16) == CUDA_ERROR_INVALID_VALUE); /* no access yet */
    OK(cuMemSetAccess(at, len, &access, 1));
    OK(cuMemcpyHtoD_v2(at + 100, from, len - 100));
    OK(cuMemcpyDtoH_v2(to, at + 100, len - 100));
    MUST(!memcmp(from, to, len - 100));
    MUST(cuMemcpyHtoD_v2(at + 100, from, len) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD16_v2(at + part - 10, 0x1234, 10));
    OK(cuMemcpyDtoH_v2(to, at + part - 10, 20));
    for (int i = 0; i < 20; i++) MUST(to[i] == (i % 2 ? 0x12 : 0x34));
    /* The same memory at two places. */
    OK(cuMemMap(elsewhere, part, 0, handles[1], 0));
    OK(cuMemSetAccess(elsewhere, part, &access, 1));
    OK(cuMemsetD8_v2(elsewhere + 50, 99, 1));
    OK(cuMemcpyDtoH_v2(to, at + part + 50, 1));
    MUST(to[0] == 99);
    OK(cuMemUnmap(elsewhere, part));
    OK(cuMemUnmap(at, len));
    for (int i = 0; i < 3; i++) OK(cuMemRelease(handles[i]));
    OK(cuMemAddressFree(at, len + part));
    OK(cuMemAddressFree(elsewhere, part));
    free(from);
    free(to);
    puts("stitched mappings");
}

static void host_visible(void) {
    CUdeviceptr managed, device, pinned_device;
    unsigned char *pinned;
    static unsigned char registered[10000];
    OK(cuMemAllocManaged(&managed, 5000, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAlloc_v2(&device, 5000));
    OK(cuMemHostAlloc((void **)&pinned, 5000, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostRegister_v2(registered, sizeof registered, 0));
    memset((void *)(uintptr_t)managed, 5, 5000);
    OK(cuMemcpyDtoD_v2(device, managed, 5000));
    OK(cuMemHostGetDevicePointer_v2(&pinned_device, pinned, 0));
    OK(cuMemcpyDtoDAsync_v2(pinned_device, device, 5000, stream));
    OK(cuStreamSynchronize(stream));
    MUST(pinned[0] == 5 && pinned[4999] == 5);
    OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)registered, 6, 10000, stream));
    OK(cuMemcpyAsync(managed, (CUdeviceptr)(uintptr_t)registered, 5000, stream));
    OK(cuStreamSynchronize(stream));
    MUST(registered[9999] == 6 && *(unsigned char *)(uintptr_t)managed == 6);
    OK(cuMemHostUnregister(registered));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(managed));
    OK(cuMemFree_v2(device));
    puts("memory that the host sees");
}

static void values(void) {
    CUdeviceptr device;
    volatile uint32_t *word;
    uint32_t back[2] = {0};
    CUstream other;
    OK(cuMemHostAlloc((void **)&word, 64, 0));
    OK(cuMemAlloc_v2(&device, 64));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)word;
    word[0] = 0;
    OK(cuStreamWaitValue32_v2(stream, at, 5, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD32Async(device, 11, 1, stream));
    OK(cuStreamWriteValue32_v2(stream, at + 8, 1, 0));
    usleep(20000);
    MUST(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && word[2] == 0);
    word[0] = 6;
    OK(cuStreamSynchronize(stream));
    MUST(word[2] == 1);
    /* One stream opens what another waits at, in device memory. */
    CUstreamBatchMemOpParams ops[2] = {
        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64, .address = device + 16, .value64 = 1ull << 40, .flags = CU_STREAM_WAIT_VALUE_EQ}},
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = device + 4, .value = 22}},
    };
    OK(cuStreamBatchMemOp_v2(stream, 2, ops, 0));
    OK(cuStreamWriteValue64_v2(other, device + 16, 1ull << 40, 0));
    OK(cuMemcpyDtoHAsync_v2(back, device, 8, stream));
    MUST(back[0] == 11 && back[1] == 22);
    OK(cuStreamDestroy_v2(other));
    OK(cuMemFree_v2(device));
    OK(cuMemFreeHost((void *)word));
    puts("values");
}

static void pooled(void) {
    unsigned char *from = noise(100000), *to = malloc(100000);
    CUdeviceptr pieces[40];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 40; i++) {
            OK(cuMemAllocAsync(&pieces[i], 1000 + 2000 * i, stream));
            OK(cuMemcpyHtoDAsync_v2(pieces[i], from + i, 1000 + 2000 * i, stream));
        }
        for (int i = 0; i < 40; i++) {
            OK(cuMemcpyDtoHAsync_v2(to, pieces[i], 1000 + 2000 * i, stream));
            MUST(!memcmp(to, from + i, 1000 + 2000 * i));
            OK(cuMemFreeAsync(pieces[i], stream));
        }
        if (round % 5 == 4) OK(cuStreamSynchronize(stream));
    }
    free(from);
    free(to);
    puts("pools");
}

static void batches(void) {
    CUdeviceptr a, to[8], from[8];
    size_t sizes[8], first = 0;
    CUmemcpyAttributes how = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    unsigned char *bytes = noise(8 * 5000), *back = malloc(8 * 5000);
    OK(cuMemAlloc_v2(&a, 8 * 5000));
    for (int i = 0; i < 8; i++) {
        to[i] = a + 5000 * i;
        from[i] = (CUdeviceptr)(uintptr_t)(bytes + 5000 * (7 - i));
        sizes[i] = 5000;
    }
    OK(cuMemcpyBatchAsync_v2(to, from, sizes, 8, &how, &first, 1, stream));
    OK(cuMemcpyDtoHAsync_v2(back, a, 8 * 5000, stream));
    for (int i = 0; i < 8; i++) MUST(!memcmp(back + 5000 * i, bytes + 5000 * (7 - i), 5000));
    OK(cuMemFree_v2(a));
    puts("batches");
}

int main(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    linear();
    boxes();
    arrays();
    fills();
    stitched();
    host_visible();
    values();
    pooled();
    batches();
    return 0;
}
