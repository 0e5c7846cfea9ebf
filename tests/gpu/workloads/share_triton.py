"""A matrix product in Triton wants all of the GPU. TRITON_CACHE_DIR is set by the runner."""

import torch
from share_common import repeat
from triton_kernels import multiply

SIZE, TILE = 2048, 64


def mark():
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def setup():
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty(SIZE, SIZE, device="cuda", dtype=torch.float32)
    grid = (SIZE // TILE, SIZE // TILE)
    return lambda: multiply[grid](left, right, out, size=SIZE, TILE=TILE), mark, 25


if __name__ == "__main__":
    repeat(setup)
