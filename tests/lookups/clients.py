"""Programs whose look-ups are recorded: they do what makes them look functions up, however that ends.

usage: clients.py cudart LIBCUDART      NVIDIA's runtime: at its first call it finds all of the driver that it will use
       clients.py cuda-bindings         the driver API and NVML, as Python has them: likewise

Without a GPU the driver cannot be initialised, and they stop there; that is the same with the shim and without.
"""

import ctypes
import sys


def cudart(library):
    runtime = ctypes.CDLL(library)
    count = ctypes.c_int(-1)
    said = [runtime.cudaGetDeviceCount(ctypes.byref(count)), runtime.cudaFree(None), runtime.cudaDeviceSynchronize()]
    version = ctypes.c_int(-1)
    said.append(runtime.cudaDriverGetVersion(ctypes.byref(version)))
    print("cudart", said, count.value, version.value)


def cuda_bindings():
    from cuda.bindings import driver, nvml

    for call in (
        lambda: driver.cuDriverGetVersion(),
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGetCount(),
        lambda: nvml.init_v2(),
        lambda: nvml.device_get_count_v2(),
    ):
        try:
            print("cuda-bindings", call())
        except Exception as error:  # a driver that is too old, NVML without a GPU
            print("cuda-bindings", type(error).__name__, error)


if __name__ == "__main__":
    if sys.argv[1:] == ["cuda-bindings"]:
        cuda_bindings()
    elif sys.argv[1:2] == ["cudart"] and len(sys.argv) == 3:
        cudart(sys.argv[2])
    else:
        sys.exit(__doc__)
