"""Memory of every kind, with data that makes a round trip."""

import ctypes

import numpy as np
from common import R, address, cuda, ok, refused
from support import MIB, own_record


def numbers(count, seed=1):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def there_and_back(pointer, data):
    """Copies data to a device address and returns what is read back from it."""
    back = np.zeros_like(data)
    ok(cuda.cuMemcpyHtoD(pointer, address(data), data.nbytes))
    ok(cuda.cuMemcpyDtoH(address(back), pointer, data.nbytes))
    return back


def held():
    """Bytes of the device that this process has, by the simulated driver's own record."""
    return own_record()["gpus"]["0"]["figure_bytes"]


def linear_memory():
    data, before = numbers(MIB), held()
    pointer = ok(cuda.cuMemAlloc(data.nbytes))
    assert held() - before == data.nbytes
    assert np.array_equal(there_and_back(pointer, data), data)
    assert ok(cuda.cuMemGetAddressRange(int(pointer) + 5))[1] == data.nbytes
    other = ok(cuda.cuMemAlloc(data.nbytes))
    ok(cuda.cuMemcpyDtoD(other, pointer, data.nbytes))
    ok(cuda.cuMemsetD32(pointer, 0xABCD, 1000))
    back = np.zeros(2000, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoH(address(back), pointer, back.nbytes))
    assert (back[:1000] == 0xABCD).all() and np.array_equal(back[1000:], data[1000:2000])
    ok(cuda.cuMemcpyDtoH(address(back), other, back.nbytes))
    assert np.array_equal(back, data[:2000])
    ok(cuda.cuMemFree(pointer))
    ok(cuda.cuMemFree(other))
    assert held() == before
    refused(cuda.cuMemFree(pointer), R.CUDA_ERROR_INVALID_VALUE)
    free, total = ok(cuda.cuMemGetInfo())
    refused(cuda.cuMemAlloc(total), R.CUDA_ERROR_OUT_OF_MEMORY)
    return f"4 MiB of random numbers, sets, device copies; {free // MIB} of {total // MIB} MiB free"


def pitched_memory():
    rows, columns = 100, 250
    data = numbers(rows * columns).reshape(rows, columns)
    pointer, pitch = ok(cuda.cuMemAllocPitch(columns * 4, rows, 4))
    assert pitch >= columns * 4 and pitch % 512 == 0
    to = cuda.CUDA_MEMCPY2D()
    to.srcMemoryType, to.srcHost, to.srcPitch = cuda.CUmemorytype.CU_MEMORYTYPE_HOST, address(data), columns * 4
    to.dstMemoryType, to.dstDevice, to.dstPitch = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE, pointer, pitch
    to.WidthInBytes, to.Height = columns * 4, rows
    ok(cuda.cuMemcpy2D(to))
    row = np.zeros(columns, dtype=np.uint32)
    ok(cuda.cuMemcpyDtoH(address(row), int(pointer) + 42 * pitch, row.nbytes))
    assert np.array_equal(row, data[42])
    ok(cuda.cuMemFree(pointer))
    return f"{rows} rows of {columns * 4} bytes at a pitch of {pitch}"


def arrays():
    data = numbers(64 * 32).reshape(32, 64)
    shape = cuda.CUDA_ARRAY3D_DESCRIPTOR()
    shape.Width, shape.Height, shape.NumChannels = 64, 32, 1
    shape.Format = cuda.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT32
    array = ok(cuda.cuArray3DCreate(shape))
    assert ok(cuda.cuArray3DGetDescriptor(array)).Height == 32
    host, kept = cuda.CUmemorytype.CU_MEMORYTYPE_HOST, cuda.CUmemorytype.CU_MEMORYTYPE_ARRAY
    back = np.zeros_like(data)
    for source, target in ((data, None), (None, back)):
        copy = cuda.CUDA_MEMCPY3D()
        copy.WidthInBytes, copy.Height, copy.Depth = 64 * 4, 32, 1
        if source is not None:
            copy.srcMemoryType, copy.srcHost, copy.srcPitch, copy.srcHeight = host, address(source), 64 * 4, 32
            copy.dstMemoryType, copy.dstArray = kept, array
        else:
            copy.srcMemoryType, copy.srcArray = kept, array
            copy.dstMemoryType, copy.dstHost, copy.dstPitch, copy.dstHeight = host, address(target), 64 * 4, 32
        ok(cuda.cuMemcpy3D(copy))
    assert np.array_equal(back, data)
    ok(cuda.cuArrayDestroy(array))
    return "an array of 64 x 32 words, there and back"


def host_memory():
    data = numbers(MIB // 4)
    pinned = ok(cuda.cuMemHostAlloc(MIB, cuda.CU_MEMHOSTALLOC_DEVICEMAP))
    words = np.ctypeslib.as_array((ctypes.c_uint32 * (MIB // 4)).from_address(int(pinned)))
    words[:] = data
    mapped = ok(cuda.cuMemHostGetDevicePointer(pinned, 0))
    pointer = ok(cuda.cuMemAlloc(MIB))
    ok(cuda.cuMemcpyDtoD(pointer, mapped, MIB))
    words[:] = 0
    ok(cuda.cuMemcpyDtoHAsync(pinned, pointer, MIB, 0))
    ok(cuda.cuCtxSynchronize())
    assert np.array_equal(words, data)
    ok(cuda.cuMemsetD8(mapped, 9, MIB))
    assert (words == 0x09090909).all(), "a set that the host can see is waited for"
    ok(cuda.cuMemFreeHost(pinned))
    ordinary = numbers(MIB, seed=2)
    ok(cuda.cuMemHostRegister(address(ordinary), ordinary.nbytes, 0))
    again = cuda.cuMemHostRegister(address(ordinary), ordinary.nbytes, 0)
    refused(again, R.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
    kind = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert ok(cuda.cuPointerGetAttribute(kind, address(ordinary))) == cuda.CUmemorytype.CU_MEMORYTYPE_HOST
    ok(cuda.cuMemHostUnregister(address(ordinary)))
    refused(cuda.cuPointerGetAttribute(kind, address(ordinary)), R.CUDA_ERROR_INVALID_VALUE)
    ok(cuda.cuMemFree(pointer))
    return "allocated, mapped, registered"


def managed_memory():
    size = 64 * MIB
    pointer = ok(cuda.cuMemAllocManaged(size, cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL))
    words = np.ctypeslib.as_array((ctypes.c_uint32 * (size // 4)).from_address(int(pointer)))
    words[:1000] = 7
    place = cuda.CUmemLocation()
    place.type, place.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    ok(cuda.cuMemAdvise(pointer, size, cuda.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place))
    ok(cuda.cuMemPrefetchAsync(pointer, size, place, 0, 0))
    ok(cuda.cuCtxSynchronize())
    where = cuda.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
    assert ok(cuda.cuMemRangeGetAttribute(4, where, pointer, size)) == 0, "it is on device 0 now"
    ok(cuda.cuMemsetD32(int(pointer) + 2000, 9, 500))
    ok(cuda.cuCtxSynchronize())
    assert (words[:500] == 7).all() and (words[500:1000] == 9).all()
    managed = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    assert ok(cuda.cuPointerGetAttribute(managed, pointer))
    ok(cuda.cuMemFree(pointer))
    return "64 MiB, written by either side, moved to the device"


def pools():
    stream = ok(cuda.cuStreamCreate(0))
    pool = ok(cuda.cuDeviceGetDefaultMemPool(0))
    reserved = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
    used = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT

    def state():
        return tuple(int(ok(cuda.cuMemPoolGetAttribute(pool, which))) // MIB for which in (reserved, used))

    assert state() == (0, 0)
    data = numbers(40 * MIB // 4)
    pointer = ok(cuda.cuMemAllocAsync(data.nbytes, stream))
    assert state() == (64, 40), "it grows by 32 MiB"
    ok(cuda.cuMemcpyHtoDAsync(pointer, address(data), data.nbytes, stream))
    back = np.zeros_like(data)
    ok(cuda.cuMemcpyDtoHAsync(address(back), pointer, data.nbytes, stream))
    ok(cuda.cuMemFreeAsync(pointer, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert np.array_equal(back, data)
    assert state() == (0, 0), "what is free goes back at a synchronisation"

    properties = cuda.CUmemPoolProps()
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type, properties.location.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    pool = ok(cuda.cuMemPoolCreate(properties))
    threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(1 << 40)))
    pointer = ok(cuda.cuMemAllocFromPoolAsync(MIB, pool, stream))
    ok(cuda.cuMemFreeAsync(pointer, stream))
    ok(cuda.cuStreamSynchronize(stream))
    assert state() == (32, 0), "below its threshold a pool keeps what it has"
    ok(cuda.cuMemPoolTrimTo(pool, 0))
    assert state() == (0, 0)
    ok(cuda.cuMemPoolDestroy(pool))
    ok(cuda.cuStreamDestroy(stream))
    return "the default one and one of our own; growth, threshold, trim"


def virtual_memory():
    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type, properties.location.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    minimum = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    grain = ok(cuda.cuMemGetAllocationGranularity(properties, minimum))
    assert grain == 2 * MIB
    refused(cuda.cuMemCreate(grain + 1, properties, 0), R.CUDA_ERROR_INVALID_VALUE)
    before = held()
    handle = ok(cuda.cuMemCreate(4 * grain, properties, 0))
    assert held() - before == 4 * grain
    start = ok(cuda.cuMemAddressReserve(8 * grain, 0, 0, 0))
    ok(cuda.cuMemMap(start, 4 * grain, 0, handle, 0))
    data = numbers(4 * grain // 4)
    refused(cuda.cuMemcpyHtoD(start, address(data), data.nbytes), R.CUDA_ERROR_INVALID_VALUE)
    access = cuda.CUmemAccessDesc()
    access.location, access.flags = properties.location, cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cuda.cuMemSetAccess(start, 4 * grain, [access], 1))
    assert np.array_equal(there_and_back(start, data), data)
    ok(cuda.cuMemRelease(handle))
    assert held() - before == 4 * grain, "the mapping keeps it"
    ok(cuda.cuMemUnmap(start, 4 * grain))
    assert held() == before
    ok(cuda.cuMemAddressFree(start, 8 * grain))
    return f"made of {grain // MIB} MiB grains, mapped, given access, kept by its mapping alone"
