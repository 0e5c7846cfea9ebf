"""numba-cuda's own tests of its driver layer, unchanged, on the simulated GPU.

Tests that call for a compiler cannot pass here: there is none, and what it makes would be refused. They are told from
the others by what they fail of. All others must pass.
"""

import unittest
import warnings
from collections import Counter

SUITE = "numba.cuda.tests.cudadrv"
# The last one captures a stream, and leaves it so where there is no compiler.
MODULES = (
    "array_attr context_stack cuda_array_slicing cuda_auto_context cuda_devicerecord cuda_memory cuda_ndarray"
    " deallocations detect emm_plugins events host_alloc init is_fp16 managed_alloc pinned profiler reset_device"
    " runtime select_device cuda_driver"
).split()
# What a test ends with that wants code compiled: no libnvvm and no libnvrtc, or PTX of its own, which is refused.
WANTS_A_COMPILER = ("libnvvm.so", "libnvrtc.so", "in cuda.core._module._lazy_load_module_once")
PASSING = 169  # in numba-cuda 0.30.4; a suite of which parts did not start has fewer


def main():
    warnings.simplefilter("ignore")
    counts, wrong = Counter(), []
    for module in MODULES:
        tests = unittest.defaultTestLoader.loadTestsFromName(f"{SUITE}.test_{module}")
        result = unittest.TestResult()
        tests.run(result)
        told = dict(result.errors + result.failures)
        for test, trace in told.items():
            if any(word in trace for word in WANTS_A_COMPILER):
                counts["want a compiler"] += 1
            elif "Skipped: " in trace:  # pytest's way, which unittest takes for an error
                counts["skip themselves"] += 1
            else:
                counts["failed"] += 1
                wrong.append(f"{test.id()}\n{trace}")
        counts["skip themselves"] += len(result.skipped)
        counts["passed"] += result.testsRun - len(told) - len(result.skipped)
    print("  " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    assert not wrong, "\n".join(wrong)
    assert counts["passed"] == PASSING, counts


if __name__ == "__main__":
    main()
