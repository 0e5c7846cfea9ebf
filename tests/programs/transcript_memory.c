/*
 * The transcript of memory: what a driver answers to right and wrong uses of every kind of it, and what each takes.
 *   transcript_memory sim|ptx      which form of kernel image the driver takes
 */
#include <stdbool.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* not everything that transcripts share is used here */
#pragma GCC diagnostic ignored "-Wunused-variable"
#include "transcript.h"

static char plain[1 << 20] __attribute__((aligned(4096)));
static CUdeviceptr linear;
static void *pinned;

#define AT(pointer) ((CUdeviceptr)(uintptr_t)(pointer))
#define NOWHERE ((CUdeviceptr)0x1234000)

static long free_mib(void) {
    size_t free_bytes = 0, total;
    cuMemGetInfo_v2(&free_bytes, &total);
    return free_bytes / MIB;
}

static long before;
static void mark(void) { before = free_mib(); }
static void taken(const char *what) {
    long now = free_mib();
    printf("taken by %s: %ld MiB\n", what, before - now);
    before = now;
}

/* Attributes of a pointer one by one, but for those that differ from run to run. */
static void attributes(const char *what, CUdeviceptr p) {
    printf("attributes of %s:", what);
    for (int attribute = 1; attribute < 22; attribute++) {
        uint64_t value[8] = {0};
        int code = cuPointerGetAttribute(value, attribute, p);
        bool address = attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER || attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER;
        bool place = attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
        bool number = attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID || attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
        printf(" %d:", attribute);
        if (code) printf("error %d", code);
        else if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) printf(value[0] == (uintptr_t)primary ? "primary" : value[0] ? "other" : "none");
        else if (address) printf(value[0] == p ? "itself" : "other");
        else if (place) printf("%ld before", (long)(p - value[0]));
        else if (number || attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) printf(value[0] ? "some" : "none");
        else printf("%#lx", (unsigned long)value[0]);
    }
    printf("\n");
}

/* The same by the call for several at once, which does not fail on memory that the driver does not know. */
static void batch_attributes(const char *what, CUdeviceptr p) {
    printf("attributes of %s, in a batch:", what);
    for (int attribute = 1; attribute < 22; attribute++) {
        uint64_t value = 0x1111111111111111;
        void *to = &value;
        CUpointer_attribute which = attribute;
        int code = cuPointerGetAttributes(1, &which, &to, p);
        bool number = attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID || attribute == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID;
        if (code) printf(" %d:error %d", attribute, code);
        else if (value == p && p) printf(" %d:itself", attribute);
        else if (value == (uintptr_t)primary) printf(" %d:primary", attribute);
        else if (number) printf(" %d:%s", attribute, value ? "some" : "none");
        else printf(" %d:%#lx", attribute, (unsigned long)value);
    }
    printf("\n");
}

static void hosts(void) {
    SECTION("pinned memory");
    static const unsigned kinds[] = {0, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_WRITECOMBINED, 7, 8};
    void *p = NULL;
    unsigned flags;
    CUdeviceptr d;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        printf("with flags %u\n", kinds[i]);
        T(cuMemHostAlloc(&p, 100, kinds[i]));
        if (kinds[i] < 8) V(cuMemHostGetFlags(&flags, p), "%u", flags);
    }
    p = plain;
    V(cuMemHostAlloc(&p, 0, 0), "%d", p == NULL);
    T(cuMemAllocHost_v2(&pinned, 3 * MIB));
    V(cuMemHostGetFlags(&flags, (char *)pinned + 100), "%u", flags);
    T(cuMemHostGetFlags(&flags, plain));
    T(cuMemHostGetDevicePointer_v2(&d, pinned, 1));
    T(cuMemHostGetDevicePointer_v2(&d, plain, 0));
    V(cuMemHostGetDevicePointer_v2(&d, (char *)pinned + 4, 0), "%d", d == AT((char *)pinned + 4));
    T(cuMemFreeHost(NULL));
    T(cuMemFreeHost((char *)pinned + 512));
    T(cuMemFreeHost(plain));
    T(cuMemFreeHost((void *)(uintptr_t)linear));
    T(cuMemFree_v2(AT(pinned)));
    SECTION("registered memory");
    T(cuMemHostRegister_v2(plain, 65536, 0));
    V(cuMemHostGetFlags(&flags, plain), "%u", flags);
    T(cuMemHostRegister_v2(plain, 65536, 0));
    T(cuMemHostRegister_v2(plain + 4096, 65536, 0));
    T(cuMemHostRegister_v2(plain + 65536, 65536, CU_MEMHOSTREGISTER_PORTABLE));
    V(cuMemHostGetFlags(&flags, plain + 65536), "%u", flags);
    attributes("registered memory", AT(plain + 65536 + 8));
    T(cuMemHostUnregister(plain + 4096));
    T(cuMemHostUnregister(plain));
    T(cuMemHostUnregister(plain));
    T(cuMemHostUnregister(NULL));
    T(cuMemHostUnregister(pinned));
    T(cuMemHostRegister_v2(pinned, 4096, 0));
    T(cuMemHostRegister_v2(plain, 0, 0));
    T(cuMemHostRegister_v2(plain, 4096, 64));
    T(cuMemHostRegister_v2(NULL, 4096, 0));
    T(cuMemHostRegister_v2((void *)(uintptr_t)linear, 4096, 0));
    T(cuMemFreeHost(plain + 65536));
    T(cuMemHostUnregister(plain + 65536));
    T(cuMemHostRegister_v2(plain + 100, 1000, 0));
    attributes("memory registered at any place", AT(plain + 104));
    T(cuMemHostUnregister(plain + 100));
    attributes("pinned memory", AT(pinned));
    attributes("plain memory", AT(plain));
    attributes("device memory", linear + 16);
    batch_attributes("plain memory", AT(plain));
    batch_attributes("nothing", 0);
    batch_attributes("pinned memory", AT(pinned));
    batch_attributes("device memory", linear);
    unsigned on = 1;
    T(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, linear));
    attributes("device memory", linear);
    on = 0;
    T(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, linear));
    T(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, AT(pinned)));
    T(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, AT(plain)));
    T(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_CONTEXT, linear));
}

static void figures(CUmemoryPool pool) {
    printf("pool:");
    for (int attribute = CU_MEMPOOL_ATTR_RELEASE_THRESHOLD; attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; attribute++) {
        uint64_t value = 77;
        cuMemPoolGetAttribute(pool, attribute, &value);
        if (value % MIB == 0) printf(" %lu MiB", (unsigned long)(value / MIB));
        else printf(" %lu", (unsigned long)value);
    }
    printf("\n");
}

static CUdeviceptr asynchronous(size_t bytes, CUstream stream) {
    CUdeviceptr p = 0;
    int code = cuMemAllocAsync(&p, bytes, stream);
    if (code) printf("cuMemAllocAsync -> %d\n", code);
    return p;
}

static void threshold(CUmemoryPool pool, uint64_t bytes) {
    T(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static void pools(void) {
    CUmemoryPool pool, own;
    CUdeviceptr p = 1, q, r;
    CUevent event;
    SECTION("pools");
    T(cuDeviceGetDefaultMemPool(&pool, 0));
    V(cuMemAllocAsync(&p, 0, s), "%d", p == 0);
    T(cuMemFreeAsync(0, s));
    T(cuMemFreeAsync(NOWHERE, s));
    p = asynchronous(4096, s);
    attributes("pool memory", p);
    T(cuMemFreeAsync(p + 512, s));
    T(cuMemFreeAsync(p, s));
    T(cuMemFreeAsync(p, s));
    T(cuStreamSynchronize(s));
    T(cuMemAllocAsync(&p, 1ul << 40, s));
    mark();
    T(cuMemAlloc_v2(&p, 8 * MIB));
    T(cuMemFreeAsync(p, s));
    T(cuStreamSynchronize(s));
    taken("linear memory freed in a stream");
    figures(pool);
    printf("-- what gives memory back\n");
    p = asynchronous(100 * MIB, s);
    figures(pool);
    T(cuMemFreeAsync(p, s));
    T(cuMemcpyDtoH_v2(plain, linear, 64));
    figures(pool);
    T(cuStreamQuery(s));
    figures(pool);
    T(cuEventCreate(&event, 0));
    T(cuEventRecord(event, s));
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) continue;
    figures(pool);
    T(cuMemAlloc_v2(&q, 4096));
    T(cuMemFree_v2(q));
    figures(pool);
    T(cuEventSynchronize(event));
    figures(pool);
    printf("-- thresholds\n");
    threshold(pool, 40 * MIB);
    p = asynchronous(100 * MIB, s);
    T(cuMemFreeAsync(p, s));
    T(cuCtxSynchronize());
    figures(pool);
    p = asynchronous(MIB, s);
    q = asynchronous(200 * MIB, s);
    T(cuMemFreeAsync(q, s));
    T(cuCtxSynchronize());
    figures(pool);
    T(cuMemFreeAsync(p, s));
    T(cuCtxSynchronize());
    figures(pool);
    T(cuMemPoolTrimTo(pool, 20 * MIB));
    figures(pool);
    T(cuMemPoolTrimTo(pool, 0));
    figures(pool);
    threshold(pool, UINT64_MAX);
    p = asynchronous(300 * MIB, s);
    T(cuMemFreeAsync(p, s));
    T(cuCtxSynchronize());
    for (int keep = 100; keep >= 0; keep -= 33) {
        T(cuMemPoolTrimTo(pool, keep * MIB));
        figures(pool);
    }
    T(cuMemPoolTrimTo(pool, 0));
    threshold(pool, 0);
    for (int attribute = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT; attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; attribute++) {
        uint64_t none = 0, one = 1;
        T(cuMemPoolSetAttribute(pool, attribute, &none));
        T(cuMemPoolSetAttribute(pool, attribute, &one));
    }
    figures(pool);
    printf("-- using memory again\n");
    p = asynchronous(64 * MIB, s);
    T(busy(s, 100));
    T(cuMemFreeAsync(p, s));
    q = asynchronous(64 * MIB, s);
    printf("the same place in the same stream: %d\n", p == q);
    figures(pool);
    T(cuMemFreeAsync(q, s));
    r = asynchronous(64 * MIB, s2);
    printf("the same place in another: %d, %ld MiB further\n", p == r, (long)((r - p) / MIB));
    figures(pool);
    T(cuCtxSynchronize());
    T(cuMemFreeAsync(r, s2));
    T(cuCtxSynchronize());
    figures(pool);
    p = asynchronous(20 * MIB, s);
    q = asynchronous(20 * MIB, s);
    T(cuMemFreeAsync(p, s));
    r = asynchronous(30 * MIB, s);
    printf("places: %ld %ld\n", (long)((q - p) / MIB), (long)((r - p) / MIB));
    figures(pool);
    T(cuMemFreeAsync(q, s));
    T(cuCtxSynchronize());
    figures(pool);
    T(cuMemFreeAsync(r, s));
    T(cuCtxSynchronize());
    figures(pool);
    printf("-- pools of one's own\n");
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    T(cuMemPoolCreate(&own, &props));
    mark();
    T(cuMemAllocFromPoolAsync(&p, 1000, own, s));
    taken("1000 bytes");
    T(cuMemPoolDestroy(own));
    taken("the pool, destroyed");
    T(cuMemFreeAsync(p, s));
    taken("its memory, freed");
    T(cuCtxSynchronize());
    taken("it, synchronised");
    props.maxSize = 50 * MIB;
    T(cuMemPoolCreate(&own, &props));
    T(cuMemAllocFromPoolAsync(&p, 60 * MIB, own, s));
    T(cuMemAllocFromPoolAsync(&q, 40 * MIB, own, s));
    figures(own);
    T(cuMemFreeAsync(p, s));
    T(cuCtxSynchronize());
    T(cuMemPoolDestroy(own));
    props.location.id = 7;
    T(cuMemPoolCreate(&own, &props));
    props.location.id = 0;
    props.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    T(cuMemPoolCreate(&own, &props));
}

static void virtual_memory(void) {
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle a, b, again;
    CUdeviceptr p, base;
    size_t size;
    unsigned long long flags;
    int fd = -1;
    SECTION("virtual memory");
    T(cuMemAddressReserve(&p, 0, 0, 0, 0));
    T(cuMemAddressReserve(&p, MIB, 0, 0, 0));
    T(cuMemAddressReserve(&p, 2 * MIB, 3, 0, 0));
    T(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 1));
    V(cuMemAddressReserve(&p, 2 * MIB, 1ul << 30, 0, 0), "%d", p % (1ul << 30) == 0);
    T(cuMemAddressFree(p, 2 * MIB));
    T(cuMemAddressReserve(&p, 32 * MIB, 0, 0, 0));
    T(cuMemCreate(&a, 4 * MIB, &prop, 0));
    T(cuMemCreate(&b, 4 * MIB, &prop, 0));
    T(cuMemMap(p, MIB, 0, a, 0));
    T(cuMemMap(p, 8 * MIB, 0, a, 0));
    T(cuMemMap(p, 2 * MIB, 2 * MIB, a, 0));
    T(cuMemMap(p, 2 * MIB, 0, a, 0));
    T(cuMemMap(p, 4 * MIB, 0, a, 0));
    T(cuMemMap(p, 4 * MIB, 0, b, 0));
    T(cuMemMap(p + 4 * MIB, 4 * MIB, 0, b, 0));
    T(cuMemMap(p + 8 * MIB, 4 * MIB, 0, a, 0));
    T(cuMemMap(0x700000000000, 4 * MIB, 0, a, 0));
    V(cuMemGetAccess(&flags, &prop.location, p), "%llu", flags);
    T(cuMemSetAccess(p, 2 * MIB, &access, 1));
    T(cuMemSetAccess(p, 16 * MIB, &access, 1));
    T(cuMemSetAccess(p, 8 * MIB, &access, 1));
    V(cuMemGetAccess(&flags, &prop.location, p), "%llu", flags);
    T(cuMemsetD8_v2(p + 4 * MIB - 100, 5, 200));
    T(cuMemsetD8_v2(p + 4 * MIB, 5, 5 * MIB));
    T(cuMemcpyHtoD_v2(p + 4 * MIB - 100, plain, 200));
    V(cuMemGetAddressRange_v2(&base, &size, p + 5 * MIB), "%ld %zu", (long)((base - p) / MIB), size / MIB);
    attributes("mapped memory", p + 64);
    V(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)p), "%d", again == a);
    T(cuMemRelease(again));
    T(cuMemUnmap(p, 2 * MIB));
    T(cuMemUnmap(p, 8 * MIB));
    T(cuMemUnmap(p + 8 * MIB, 4 * MIB));
    T(cuMemUnmap(p, 2 * MIB));
    T(cuMemAddressFree(p, 2 * MIB));
    T(cuMemAddressFree(p, 32 * MIB));
    T(cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    T(cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    mark();
    V(cuMemImportFromShareableHandle(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "%d", again == a);
    taken("importing one's own");
    T(cuMemRelease(again));
    taken("letting go of that");
    T(cuMemRelease(a));
    taken("releasing what is exported");
    close(fd);
    taken("closing the descriptor");
    T(cuMemRelease(b));
    taken("releasing the other");
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    T(cuMemCreate(&a, 4 * MIB, &prop, 0));
    T(cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    T(cuMemRelease(a));
    T(cuMemCreate(&a, 0, &prop, 0));
    T(cuMemCreate(&a, 1ul << 40, &prop, 0));
    prop.location.id = 7;
    T(cuMemCreate(&a, 2 * MIB, &prop, 0));
    prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
    V(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "%zu", size);
    mark();
    T(cuMemCreate(&a, 2 * MIB, &prop, 0));
    taken("physical memory of the host's");
    T(cuMemRelease(a));
}

static void processes(void) {
    CUipcMemHandle handle;
    CUipcEventHandle of_event;
    CUdeviceptr p;
    CUevent event, plain_event;
    SECTION("handles for other processes");
    T(cuIpcGetMemHandle(&handle, linear));
    T(cuIpcGetMemHandle(&handle, linear + 512));
    T(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    T(cuIpcGetMemHandle(&handle, NOWHERE));
    T(cuIpcGetMemHandle(&handle, AT(pinned)));
    p = asynchronous(1000, s);
    T(cuIpcGetMemHandle(&handle, p));
    T(cuMemFreeAsync(p, s));
    T(cuCtxSynchronize());
    T(cuIpcCloseMemHandle(linear));
    T(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    T(cuEventCreate(&plain_event, CU_EVENT_DISABLE_TIMING));
    T(cuIpcGetEventHandle(&of_event, plain_event));
    T(cuIpcGetEventHandle(&of_event, event));
    T(cuIpcOpenEventHandle(&plain_event, of_event));
}

static void ranges(CUdeviceptr p, size_t len) {
    printf("range attributes:");
    for (int attribute = 1; attribute <= 8; attribute++) {
        int values[3] = {9, 9, 9};
        bool list = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
        int code = cuMemRangeGetAttribute(values, list ? 12 : 4, attribute, p, len);
        if (code) printf(" error %d", code);
        else if (list) printf(" [%d %d %d]", values[0], values[1], values[2]);
        else printf(" %d", values[0]);
    }
    printf("\n");
}

static CUdeviceptr set_managed(size_t bytes) {
    CUdeviceptr p = 0;
    T(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    cuMemsetD8_v2(p, 1, bytes);
    cuCtxSynchronize();
    return p;
}

static void managed(void) {
    CUdeviceptr p, q, r, t;
    int value[2];
    SECTION("managed memory");
    T(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
    T(cuMemAllocManaged(&p, 100, 3));
    T(cuMemAllocManaged(&p, 100, 0));
    mark();
    T(cuMemAllocManaged(&p, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    taken("200 MiB, untouched");
    ranges(p, MIB);
    ranges(linear, 4096);
    T(cuMemRangeGetAttribute(value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4096));
    T(cuMemAdvise(linear, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    T(cuMemAdvise(p, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    T(cuMemAdvise(p, 200 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    T(cuMemAdvise(p, MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, 0));
    T(cuMemAdvise(p, MIB, (CUmem_advise)9, 0));
    T(cuMemAdvise(p, MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 7));
    ranges(p, MIB);
    ranges(p, 200 * MIB);
    T(cuMemPrefetchAsync(p, 200 * MIB, 0, s));
    T(cuCtxSynchronize());
    taken("200 MiB, prefetched");
    ranges(p, 4096);
    T(cuMemPrefetchAsync(p, 200 * MIB, CU_DEVICE_CPU, s));
    T(cuCtxSynchronize());
    taken("them, prefetched back");
    ranges(p, 4096);
    T(cuMemPrefetchAsync(linear, 4096, 0, s));
    T(cuMemPrefetchAsync(p, 201 * MIB, 0, s));
    T(cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_GLOBAL));
    T(cuStreamAttachMemAsync(s, linear, 0, CU_MEM_ATTACH_GLOBAL));
    T(cuMemFree_v2(p));
    taken("them, freed");
    p = set_managed(200 * MIB);
    taken("200 MiB, set");
    T(cuMemFree_v2(p));
    taken("them, freed");
    printf("-- in small steps\n");
    p = set_managed(MIB);
    taken("1 MiB");
    q = set_managed(100 * MIB);
    taken("100 MiB");
    r = set_managed(20 * MIB);
    taken("20 MiB");
    t = set_managed(20 * MIB);
    taken("20 MiB more");
    T(cuMemFree_v2(q));
    taken("the 100 MiB, freed");
    q = set_managed(100 * MIB);
    taken("100 MiB again");
    T(cuMemFree_v2(p));
    taken("the 1 MiB, freed");
    T(cuMemFree_v2(q));
    T(cuMemFree_v2(r));
    T(cuMemFree_v2(t));
    taken("all, freed");
    p = set_managed(20 * MIB);
    taken("20 MiB again");
    T(cuMemFree_v2(p));
    taken("it, freed");
}

static CUresult rows(size_t width, size_t height, size_t from_pitch, size_t to_pitch, size_t x) {
    CUDA_MEMCPY2D form = {.srcXInBytes = x, .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = plain, .srcPitch = from_pitch,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = linear, .dstPitch = to_pitch, .WidthInBytes = width, .Height = height};
    return cuMemcpy2D_v2(&form);
}

static void copies(void) {
    CUdeviceptr other;
    SECTION("copies");
    T(cuMemAlloc_v2(&other, MIB));
    T(rows(100, 10, 128, 512, 0));
    T(rows(100, 10, 64, 512, 0));
    T(rows(100, 10, 128, 64, 0));
    T(rows(100, 1, 0, 0, 0));
    T(rows(100, 2, 0, 0, 0));
    T(rows(0, 2, 100, 100, 0));
    T(rows(10, 0, 100, 100, 0));
    T(rows(100, 2, 128, 512, 64));
    T(rows(256, 4097, 256, 256, 0));
    T(cuMemcpyDtoH_v2(NULL, linear, 4));
    T(cuMemcpyHtoD_v2(linear, NULL, 4));
    T(cuMemcpyHtoD_v2(linear, (void *)(uintptr_t)other, 4));
    T(cuMemcpyDtoH_v2((void *)(uintptr_t)other, linear, 4));
    T(cuMemcpyDtoD_v2(linear, AT(pinned), 4));
    T(cuMemcpyDtoD_v2(linear, AT(plain), 4));
    T(cuMemcpyDtoD_v2(AT(plain), linear, 4));
    T(cuMemcpy(AT(plain), AT(plain + 64), 4));
    T(cuMemcpy(linear, AT(plain), 4));
    T(cuMemcpyDtoD_v2(linear, NOWHERE, 4));
    T(cuMemcpyDtoD_v2(NOWHERE, NOWHERE, 0));
    T(cuMemcpyDtoD_v2(linear + 16, linear, 64));
    T(cuMemcpyHtoD_v2(linear, plain, MIB + 1));
    SECTION("fills");
    T(cuMemsetD32_v2(linear + 2, 1, 4));
    T(cuMemsetD16_v2(linear + 1, 1, 4));
    T(cuMemsetD2D8_v2(linear, 10, 1, 20, 2));
    T(cuMemsetD2D8_v2(linear, 10, 1, 20, 1));
    T(cuMemsetD2D32_v2(linear, 18, 1, 4, 2));
    T(cuMemsetD2D8_v2(linear, 10, 1, 0, 2));
    T(cuMemsetD8_v2(NOWHERE, 0, 0));
    T(cuMemsetD8_v2(AT(plain), 0, 4));
    T(cuMemsetD8_v2(AT(pinned), 0, 4));
    SECTION("values");
    T(cuStreamWaitValue32_v2(s, linear + 2, 0, 0));
    T(cuStreamWaitValue32_v2(s, AT(plain), 0, 0));
    T(cuStreamWriteValue64_v2(s, linear + 4, 0, 0));
    T(cuStreamWaitValue32_v2(s, linear, 0, 9));
    T(cuStreamWriteValue32_v2(s, linear, 0, 2));
    T(cuStreamWriteValue32_v2(s, linear, 7, 0));
    T(cuStreamWriteValue32_v2(s, AT(pinned), 7, 0));
    T(cuCtxSynchronize());
}

static CUarray array;

static CUresult flat(size_t width, size_t height, unsigned format, unsigned channels) {
    CUDA_ARRAY_DESCRIPTOR form = {.Width = width, .Height = height, .Format = format, .NumChannels = channels};
    return cuArrayCreate_v2(&array, &form);
}

static CUresult deep(size_t width, size_t height, size_t depth, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR form = {.Width = width, .Height = height, .Depth = depth, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = flags};
    return cuArray3DCreate_v2(&array, &form);
}

static void arrays(void) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    CUDA_ARRAY3D_DESCRIPTOR form = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1}, back;
    CUmipmappedArray mipmap;
    CUarray level, again;
    SECTION("arrays");
    T(flat(16, 16, CU_AD_FORMAT_FLOAT, 3));
    T(flat(0, 16, CU_AD_FORMAT_FLOAT, 1));
    T(flat(16, 16, 5, 1));
    T(flat(131073, 0, CU_AD_FORMAT_FLOAT, 1));
    T(flat(16, 65537, CU_AD_FORMAT_FLOAT, 1));
    T(cuArrayDestroy(NULL));
    mark();
    T(flat(131072, 0, CU_AD_FORMAT_FLOAT, 1));
    taken("a long line");
    T(cuArrayDestroy(array));
    taken("it, destroyed");
    static const size_t sides[][2] = {{4096, 4096}, {1000, 1000}, {1500, 700}, {2000, 300}, {513, 1025}, {3000, 257}, {300, 3000}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        flat(sides[i][0], sides[i][1], CU_AD_FORMAT_FLOAT, 1);
        printf("%zu x %zu: ", sides[i][0], sides[i][1]);
        taken("an array");
        cuArrayDestroy(array);
        mark();
    }
    T(deep(1000, 1000, 0, CUDA_ARRAY3D_DEFERRED_MAPPING));
    taken("an array to be mapped");
    V(cuArrayGetMemoryRequirements(&needs, array, 0), "%zu %zu", needs.size, needs.alignment);
    T(cuArrayDestroy(array));
    T(deep(16, 16, 0, CUDA_ARRAY3D_DEFERRED_MAPPING));
    V(cuArrayGetMemoryRequirements(&needs, array, 0), "%zu %zu", needs.size, needs.alignment);
    T(cuArrayDestroy(array));
    T(deep(1024, 1024, 0, CUDA_ARRAY3D_SPARSE));
    taken("a sparse array");
    T(cuArrayGetMemoryRequirements(&needs, array, 0));
    T(cuArrayDestroy(array));
    T(deep(16, 16, 0, CUDA_ARRAY3D_LAYERED));
    T(deep(16, 16, 4, CUDA_ARRAY3D_LAYERED));
    T(cuArrayDestroy(array));
    T(deep(16, 16, 5, CUDA_ARRAY3D_CUBEMAP));
    T(deep(16, 16, 6, CUDA_ARRAY3D_CUBEMAP));
    T(cuArrayDestroy(array));
    T(deep(16, 16, 0, 512));
    T(cuMipmappedArrayCreate(&mipmap, &form, 0));
    T(cuMipmappedArrayDestroy(mipmap));
    T(cuMipmappedArrayCreate(&mipmap, &form, 99));
    T(cuMipmappedArrayGetLevel(&level, mipmap, 0));
    V(cuMipmappedArrayGetLevel(&again, mipmap, 0), "%d", level == again);
    T(cuMipmappedArrayGetLevel(&level, mipmap, 6));
    V(cuArray3DGetDescriptor_v2(&back, level), "%zu %zu %zu", back.Width, back.Height, back.Depth);
    T(cuMipmappedArrayGetLevel(&level, mipmap, 7));
    T(cuMipmappedArrayDestroy(mipmap));
}

int main(int count, char **arguments) {
    const char *image = count > 1 && !strcmp(arguments[1], "ptx") ? ptx_image : sim_image;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&primary, 0);
    cuCtxSetCurrent(primary);
    cuModuleLoadData(&module, image);
    cuModuleGetFunction(&wait_kernel, module, "wait");
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&s2, CU_STREAM_NON_BLOCKING);
    busy(s, 1);
    cuCtxSynchronize();
    if (cuMemAlloc_v2(&linear, MIB)) return 1;
    hosts();
    pools();
    virtual_memory();
    processes();
    managed();
    copies();
    arrays();
    return 0;
}
