"""Triton by hand: a vector addition and a tiled matrix product. TRITON_CACHE_DIR is set by the runner."""

import torch
import triton
import triton.language as tl
from workload import digest, tell


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def multiply(a, b, c, size: tl.constexpr, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for k in range(0, size, TILE):
        left = tl.load(a + rows[:, None] * size + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * size + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * size + columns[None, :], total)


def main() -> None:
    torch.manual_seed(0)
    n = 1000003
    x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
    out = torch.empty_like(x)
    for _ in range(20):
        add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        x, out = out, x
    tell("add", digest(x.cpu().numpy()))
    size = 512
    a = torch.randn(size, size, device="cuda", dtype=torch.float16)
    b = torch.randn(size, size, device="cuda", dtype=torch.float16)
    c = torch.empty(size, size, device="cuda", dtype=torch.float32)
    for _ in range(10):
        multiply[(size // 64, size // 64)](a, b, c, size=size, TILE=64)
    tell("multiply", digest(c.cpu().numpy()))
    tell("near", bool(torch.allclose(c, a.float() @ b.float(), rtol=1e-2, atol=1e-1)))


if __name__ == "__main__":
    main()
