"""PyTorch wants all of the GPU. usage: share_torch.py gemm|graph|train|layers"""

import sys

import torch
from share_common import repeat

HALF = torch.bfloat16


def mark():
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def gemm():
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=HALF) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out), mark, 50


def graph():
    """Ten layers: a product and an elementwise kernel each."""
    weights = torch.randn(2048, 2048, device="cuda", dtype=HALF) / 45
    values = torch.randn(2048, 2048, device="cuda", dtype=HALF)

    def layers():
        x = values
        for _ in range(10):
            x = torch.relu(x @ weights)
        return x

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layers()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        layers()
    return captured.replay, mark, 25


def train():
    nn = torch.nn
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(4096, 4096), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(4096, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(8192, 4096, device="cuda")
    labels = torch.randint(0, 64, (8192,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=HALF):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    return step, mark, 2


def layers():
    """Many small kernels: what the GPU takes for a step is no more than twice what Python takes to ask for it."""
    nn = torch.nn
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(64, 256, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=HALF):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()

    return step, mark, 1


if __name__ == "__main__":
    repeat({"gemm": gemm, "graph": graph, "train": train, "layers": layers}[sys.argv[1]])
