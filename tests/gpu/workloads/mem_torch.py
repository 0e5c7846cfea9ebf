"""PyTorch in a cap. usage: mem_torch.py fill|ninety

`fill` takes blocks until there are no more; `ninety` takes 90% of what is said to be free in one piece, as inference
servers do for their caches, and then too much. Both free, compute, and take as much again. The allocator is PyTorch's
own, or what PYTORCH_CUDA_ALLOC_CONF says.
"""

import sys

import torch
from mem_common import STEP, fill, full, say

OutOfMemory = torch.cuda.OutOfMemoryError


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def computes() -> str:
    """A product of small integers is exact, wherever it is computed."""
    left = torch.randint(-4, 5, (256, 256), generator=torch.Generator().manual_seed(1)).float()
    there = (left.cuda() @ left.cuda()).cpu()
    return "right" if torch.equal(there, left @ left) else "wrong"


def free_all() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def take_blocks() -> None:
    had, error = fill(block, lambda e: isinstance(e, OutOfMemory))
    say("had", len(had) * STEP)
    say("oom", error)
    say("said-free", torch.cuda.mem_get_info()[0])
    full()
    del had[len(had) // 2 :]
    free_all()
    say("after", computes())
    more, _ = fill(block, lambda e: isinstance(e, OutOfMemory))
    say("again", (len(had) + len(more)) * STEP)
    if torch.cuda.get_allocator_backend() == "native":
        say("summary", len(torch.cuda.memory_summary().splitlines()))
    del had, more
    free_all()
    say("left", torch.cuda.mem_get_info()[0])


def take_ninety() -> None:
    free, _ = torch.cuda.mem_get_info()
    cache = block(int(free * 0.9))
    cache.fill_(1)
    say("had", cache.numel())
    full()
    try:
        block(free)
    except OutOfMemory as error:
        say("oom", type(error).__name__)
    say("after", computes())
    del cache
    free_all()
    again, _ = torch.cuda.mem_get_info()
    cache = block(int(again * 0.9))
    say("again", cache.numel())


def main() -> None:
    say("before", computes())  # brings in what products need, and its workspace
    say("total", torch.cuda.mem_get_info()[1])
    say("properties", torch.cuda.get_device_properties(0).total_memory)
    {"fill": take_blocks, "ninety": take_ninety}[sys.argv[1]]()


if __name__ == "__main__":
    main()
