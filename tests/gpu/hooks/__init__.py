"""The hooks: programs do the same as without the library, every call is counted, and a launch costs no more."""

from gpu.hooks import catalog, cost, preload, processes, profilers, witness

ABOUT = "programs do the same under the library, every call is counted, and a launch costs no more"

# Quick ones first: whoever runs out of time loses the frameworks, which take the longest.
CASES = [*witness.CASES, *cost.CASES, *processes.CASES, *preload.CASES, *profilers.CASES, *catalog.CASES]
