"""nvidia-ml-py, NVIDIA's own client of NVML, on the simulated GPU: it answers what the H200 answered.

usage: test_nvml.py      (needs nvidia-ml-py; see simulated.py for SIM and DEV)
"""

import ctypes
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import time

import pynvml as nvml
import tries
from simulated import MIB, checked, hold, keep_record, near, run, settle

CONTEXT = 518  # MiB, in a process's figure
OVERHEAD = 5.5625  # MiB besides, in the device's
BASELINE = 3.25
RESERVED = 615.0625
NO_INSTANCE = 0xFFFFFFFF


def fails(code, function, *args):
    """Whether a call ends with this code."""
    try:
        answer = function(*args)
    except nvml.NVMLError as error:
        assert error.value == code, f"{function.__name__}{args}: {error.value}, not {code}"
        return True
    raise AssertionError(f"{function.__name__}{args} answers {answer!r}, not with {code}")


def before_init():
    lib, text, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80), ctypes.c_uint()
    assert lib.nvmlDeviceGetCount_v2(ctypes.byref(count)) == nvml.NVML_ERROR_UNINITIALIZED
    assert lib.nvmlSystemGetDriverVersion(text, 80) == nvml.NVML_ERROR_UNINITIALIZED
    assert lib.nvmlShutdown() == nvml.NVML_ERROR_UNINITIALIZED
    assert lib.nvmlSystemGetNVMLVersion(text, 80) == 0 and text.value == b"13.580.159.04"
    checked("nothing but the library's version is told before nvmlInit")


def system():
    assert nvml.nvmlSystemGetDriverVersion() == "580.159.04"
    assert nvml.nvmlSystemGetCudaDriverVersion() == nvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert nvml.nvmlUnitGetCount() == 0 and nvml.nvmlSystemGetHicVersion() == []
    assert str(nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)) == "GPU is lost"
    assert nvml.nvmlSystemGetProcessName(os.getpid()) == read_argv0()
    assert fails(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlSystemGetProcessName, 0x7FFFFFFF)
    checked("versions, error texts, process names")


def read_argv0():
    with open("/proc/self/cmdline", encoding="utf-8") as line:
        return line.read().split("\0", maxsplit=1)[0]


def identity(gpu):
    assert nvml.nvmlDeviceGetCount() == 1
    assert fails(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceGetHandleByIndex, 1)
    uuid = nvml.nvmlDeviceGetUUID(gpu)
    assert uuid.startswith("GPU-") and len(uuid) == 40
    serial = nvml.nvmlDeviceGetSerial(gpu)
    assert len(serial) == 13 and serial.isdigit()
    same = [nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.nvmlDeviceGetHandleByUUID(uuid[4:])]
    same += [nvml.nvmlDeviceGetHandleBySerial(serial)]
    same += [nvml.nvmlDeviceGetHandleByPciBusId(a) for a in ("00000000:00:06.0", "0000:00:06.0", "0:0:6")]
    assert all(nvml.nvmlDeviceGetIndex(handle) == 0 for handle in same)
    assert fails(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetHandleByUUID, uuid.upper())
    assert fails(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetHandleByPciBusId, "0000:00:07.0")
    assert fails(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceGetHandleByPciBusId, "junk")
    assert fails(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceGetName, None)
    pci = nvml.nvmlDeviceGetPciInfo(gpu)
    assert (pci.busId, pci.busIdLegacy) == ("00000000:00:06.0", "0000:00:06.0")
    assert (pci.pciDeviceId, pci.pciSubSystemId) == (0x233510DE, 0x18BF10DE)
    checked("one GPU, found by index, UUID, serial number and PCI address")

    facts = {
        "Name": "NVIDIA H200",
        "VbiosVersion": "96.00.A5.00.1A",
        "InforomImageVersion": "G520.0282.02.02",
        "Brand": nvml.NVML_BRAND_NVIDIA,
        "Architecture": nvml.NVML_DEVICE_ARCH_HOPPER,
        "CudaComputeCapability": (9, 0),
        "NumGpuCores": 132 * 128,
        "MemoryBusWidth": 6016,
        "MinorNumber": 0,
        "MultiGpuBoard": 0,
        "PersistenceMode": nvml.NVML_FEATURE_ENABLED,
        "ComputeMode": nvml.NVML_COMPUTEMODE_DEFAULT,
        "DisplayActive": nvml.NVML_FEATURE_DISABLED,
        "VirtualizationMode": nvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH,
        "AccountingMode": nvml.NVML_FEATURE_DISABLED,
        "MigMode": [0, 0],
        "MaxMigDeviceCount": 0,
        "PerformanceState": 0,
        "EccMode": [1, 1],
        "CurrPcieLinkGeneration": 5,
        "CurrPcieLinkWidth": 16,
        "PcieSpeed": 32000,
        "NumFans": 0,
        "PowerManagementLimit": 700000,
        "EnforcedPowerLimit": 700000,
        "PowerManagementLimitConstraints": [200000, 700000],
        "SupportedClocksThrottleReasons": 0x1FF,
        "SupportedMemoryClocks": [3201, 2201],
        "RemappedRows": (0, 0, 0, 0),
        "GspFirmwareMode": [1, 1],
    }
    for name, wanted in facts.items():
        answer = getattr(nvml, f"nvmlDeviceGet{name}")(gpu)
        assert answer == wanted, f"nvmlDeviceGet{name}: {answer!r}, not {wanted!r}"
    graphics = nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, 3201)
    assert (len(graphics), graphics[0], graphics[-1]) == (110, 1980, 345)
    assert [nvml.nvmlDeviceGetTemperatureThreshold(gpu, which) for which in range(4)] == [95, 89, 95, 87]
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, 1, nvml.NVML_MEMORY_LOCATION_DRAM) == 0
    checked(f"{len(facts) + 3} facts about it are the H200's")

    for name in ("FanSpeed", "Attributes_v2", "NumaNodeId", "BridgeChipInfo", "HostVgpuMode", "DriverModel"):
        assert fails(nvml.NVML_ERROR_NOT_SUPPORTED, getattr(nvml, f"nvmlDeviceGet{name}"), gpu)
    for link in range(18):
        assert fails(nvml.NVML_ERROR_NOT_SUPPORTED, nvml.nvmlDeviceGetNvLinkState, gpu, link)
    assert fails(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0)
    assert fails(nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.nvmlDeviceGetGpuInstanceId, gpu)
    checked("what that GPU does not have is refused as there: fans, NVLink, MIG, vGPUs")


def memory(gpu):
    def now():
        first, second = nvml.nvmlDeviceGetMemoryInfo(gpu), nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)
        assert first.used == second.used + second.reserved and first.free == second.free
        assert first.total == second.total == first.used + first.free
        return [value / MIB for value in (second.total, second.reserved, second.used, second.free)]

    assert now() == [143771, RESERVED, BASELINE, 143152.6875], now()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    checked("idle: 143771 MiB, of which 618.3125 used in the first form, 3.25 + 615.0625 reserved in the second")

    with hold(mib=1000) as one, hold(mib=24) as other:
        used = BASELINE + 2 * (CONTEXT + OVERHEAD) + 1024
        assert now() == [143771, RESERVED, used, 143771 - RESERVED - used], now()
        for suffix in ("", "_v2", "_v3"):
            listed = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses" + suffix)(gpu)
            found = {process.pid: process.usedGpuMemory / MIB for process in listed}
            assert found == {one.pid: CONTEXT + 1000, other.pid: CONTEXT + 24}, found
        assert {process.gpuInstanceId for process in listed} == {NO_INSTANCE}
        details = nvml.nvmlDeviceGetRunningProcessDetailList(gpu, nvml.nvmlProcessDetailList_v1, 0)
        assert sorted(process.pid for process in details) == sorted(found)
        assert nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu) == []
        assert nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu) == []
        assert nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total == 262144 * MIB
        sizes(gpu)
        checked("two clients: in all lists with their figures, in the device's with 5.5625 MiB each besides")
        one.send_signal(signal.SIGKILL)
        one.wait()
        assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)] == [other.pid]
        assert now()[2] == BASELINE + CONTEXT + OVERHEAD + 24
        checked("one was killed: it is gone, and its memory is back")
    assert now() == [143771, RESERVED, BASELINE, 143152.6875], now()


def sizes(gpu):
    """Lists that do not fit, and structs of another version, as a C program sees them."""
    lib = ctypes.CDLL("libnvidia-ml.so.1")
    entries = (ctypes.c_ulonglong * 32)()
    too_small = nvml.NVML_ERROR_INSUFFICIENT_SIZE
    for room, wanted in ((0, too_small), (1, too_small), (2, 0), (9, 0)):
        count = ctypes.c_uint(room)
        code = lib.nvmlDeviceGetComputeRunningProcesses_v3(gpu, ctypes.byref(count), entries if room else None)
        assert (code, count.value) == (wanted, 2), (room, code, count.value)
    text = ctypes.create_string_buffer(96)
    assert lib.nvmlDeviceGetName(gpu, text, 11) == too_small
    assert lib.nvmlDeviceGetName(gpu, text, 12) == 0 and text.value == b"NVIDIA H200"
    assert lib.nvmlDeviceGetName(gpu, None, 12) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert lib.nvmlDeviceGetMemoryInfo_v2(gpu, entries) == nvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert lib.nvmlDeviceGetPdi(gpu, entries) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    # Callers of the oldest form have room for 32 bytes only, those of the second for 52.
    for name, filled in (("nvmlDeviceGetPciInfo", 32), ("nvmlDeviceGetPciInfo_v2", 36)):
        raw = (ctypes.c_ubyte * 96)(*[0xAA] * 96)
        assert getattr(lib, name)(gpu, raw) == 0 and bytes(raw)[filled:] == b"\xaa" * (96 - filled)


def utilization(gpu):
    settle()
    idle = {"power": nvml.nvmlDeviceGetPowerUsage(gpu), "temperature": nvml.nvmlDeviceGetTemperature(gpu, 0)}
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 345 and near(idle["power"], 75000, 2000)
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) == nvml.nvmlClocksThrottleReasonGpuIdle
    assert fails(nvml.NVML_ERROR_NOT_FOUND, nvml.nvmlDeviceGetProcessUtilization, gpu, 0)
    checked("idle: 0 %, 345 MHz, 75 W")

    def what_is_wrong():
        try:
            two_busy_clients(gpu, idle)
        except AssertionError as wrong:
            return str(wrong) or repr(wrong)

    try:
        tries.until_good(what_is_wrong, lambda wrong: wrong is None)
    except tries.NotJudged as why:
        checked(f"NOT JUDGED: two clients at 30 and 50 %: {why}")


def two_busy_clients(gpu, idle):
    energy, began = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu), time.time()
    with hold(per_mille=300) as one, hold(per_mille=500) as other:
        settle()
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        assert near(rates.gpu, 78, 12) and 0 < rates.memory < rates.gpu, (rates.gpu, rates.memory)
        assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 1980
        assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) == 0
        assert nvml.nvmlDeviceGetPowerUsage(gpu) > idle["power"] + 200000
        assert nvml.nvmlDeviceGetTemperature(gpu, 0) > idle["temperature"] + 10
        shares = {sample.pid: sample for sample in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)}
        assert set(shares) == {one.pid, other.pid}
        parts = [shares[client.pid].smUtil for client in (one, other)]
        assert near(parts[0], 29, 8) and near(parts[1], 48, 10), parts
        newest = shares[one.pid].timeStamp
        assert near(newest / 1e6, time.time(), 1)
        settle(0.5)
        later = nvml.nvmlDeviceGetProcessUtilization(gpu, newest)
        assert all(sample.timeStamp > newest for sample in later)
        info = nvml.nvmlDeviceGetProcessesUtilizationInfo(gpu, 0)
        assert sorted(sample.pid for sample in info) == sorted(shares)
        kind, samples = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        values = [sample.sampleValue.uiVal for sample in samples]
        assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT and len(values) >= 10 and max(values) <= 100
        assert near(sum(values[-5:]) / 5, 78, 15), values
        assert nvml.nvmlDeviceGetEncoderUtilization(gpu) == [0, 100000]
        spent, elapsed = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - energy, time.time() - began
        assert 75 * elapsed < spent / 1000 < 625 * elapsed, (spent, elapsed)
        checked(f"two clients at 30 and 50 %: {rates.gpu} % in all, {parts[0]} and {parts[1]} % each, 1980 MHz")


def fields(gpu):
    wanted = [nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, nvml.NVML_FI_DEV_MEMORY_TEMP]
    wanted += [nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, (nvml.NVML_FI_DEV_POWER_AVERAGE, 1)]
    answers = nvml.nvmlDeviceGetFieldValues(gpu, wanted)
    codes = [answer.nvmlReturn for answer in answers]
    assert codes == [0, 0, 0, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_SUPPORTED], codes
    assert 70000 < answers[0].value.uiVal <= 700000 and answers[1].value.ullVal > 0
    checked("fields, each with an answer of its own")


def events(gpu):
    events_of_gpu = nvml.nvmlDeviceGetSupportedEventTypes(gpu)
    assert events_of_gpu & nvml.nvmlEventTypeXidCriticalError
    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, event_set)
    began = time.time()
    assert fails(nvml.NVML_ERROR_TIMEOUT, nvml.nvmlEventSetWait_v2, event_set, 200)
    assert near(time.time() - began, 0.2, 0.15)
    nvml.nvmlEventSetFree(event_set)
    checked("waiting for events ends when it was told to")


# As on the H200, the only GPU of a machine gets an error for an answer when it is asked for its neighbours.
QUESTIONS = """
import pynvml as n
n.nvmlInit()
print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(), n.nvmlSystemGetCudaDriverVersion())
for d in [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]:
    neighbours = len(n.nvmlDeviceGetTopologyNearestGpus(d, 30)) if n.nvmlDeviceGetCount() > 1 else 0
    mib = n.nvmlDeviceGetMemoryInfo(d).total >> 20
    print(n.nvmlDeviceGetName(d), mib, n.nvmlDeviceGetNumGpuCores(d), n.nvmlDeviceGetPciInfo(d).busId, neighbours)
"""


def another_world(expect, **settings):
    """Asks under other settings, in a process and a world of its own."""
    env = os.environ | {f"RATION_SIM_{name}": value for name, value in settings.items()}
    with tempfile.TemporaryDirectory(prefix="ration-sim-") as world:
        env["RATION_SIM_DIR"] = world
        done = subprocess.run([sys.executable, "-c", QUESTIONS], env=env, check=True, capture_output=True, text=True)
        keep_record(env)
    assert done.stdout.splitlines() == expect, done.stdout


def other_settings():
    another_world(["550.54.14 12.550.54.14 12040", "NVIDIA H200 143771 16896 00000000:00:06.0 0"], DRIVER="12.4")
    expect = ["580.159.04 13.580.159.04 13000"]
    expect += ["big 81920 16896 00000000:00:06.0 2"]
    expect += [f"small 24576 1024 00000000:00:0{device}.0 2" for device in (7, 8)]
    another_world(expect, GPUS="3", MEMORY="80GiB,24GiB", NAME="big,small", SMS="132,8")
    checked("other drivers and other GPUs, by RATION_SIM_*")


def main():
    before_init()
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    system()
    identity(gpu)
    memory(gpu)
    utilization(gpu)
    fields(gpu)
    events(gpu)
    nvml.nvmlShutdown()
    assert fails(nvml.NVML_ERROR_UNINITIALIZED, nvml.nvmlDeviceGetCount)
    other_settings()
    version = importlib.metadata.version("nvidia-ml-py")
    print(f"nvidia-ml-py {version} found the simulated GPU as it should be")


run(main)
