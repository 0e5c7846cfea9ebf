"""Results that can be compared, of work that goes on for a while. usage: long_results.py train|graphs|copies|managed [ROUNDS]

`train` trains a network with an optimizer; `graphs` replays a captured training step; `copies` sends data to the GPU and
back, in pieces, in two streams; `managed` computes in managed memory, on the GPU and on the host by turns (CuPy).
"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it

from workload import digest, tell

ROUNDS = {"train": 1500, "graphs": 6000, "copies": 1500, "managed": 600}
TOLD = 5  # lines of results


def deterministic():
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return torch


def trained(torch):
    nn = torch.nn
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 32)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, wanted = torch.randn(256, 512, device="cuda"), torch.randn(256, 32, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()

    return model, step


def weights(model):
    return digest(*(it.detach().cpu().numpy() for it in model.parameters()))


def train(rounds):
    torch = deterministic()
    model, step = trained(torch)
    for number in range(1, rounds + 1):
        step()
        if number % max(1, rounds // TOLD) == 0:
            tell("weights", number, weights(model))


def graphs(rounds):
    torch = deterministic()
    model, step = trained(torch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    for number in range(1, rounds + 1):
        captured.replay()
        if number % max(1, rounds // TOLD) == 0:
            tell("weights", number, weights(model))


def copies(rounds):
    torch = deterministic()
    out, back = torch.randn(1 << 20).pin_memory(), torch.empty(1 << 20).pin_memory()
    streams = [torch.cuda.Stream() for _ in range(2)]
    there = [torch.zeros(1 << 20, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for number in range(1, rounds + 1):
        which = number % 2
        with torch.cuda.stream(streams[which]):
            there[which].mul_(0.5).add_(out.cuda(non_blocking=True))
            back.copy_(there[which], non_blocking=True)
        streams[which].synchronize()
        out[: 1 << 10] = back[: 1 << 10] * 0.25
        if number % max(1, rounds // TOLD) == 0:
            tell("data", number, digest(back.numpy(), out.numpy()))


def managed(rounds):
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc)
    values = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024) / (1 << 20)
    total = cupy.zeros_like(values)
    for number in range(1, rounds + 1):
        total = cupy.tanh(values @ values.T / 1024 + total * 0.5)
        if number % 50 == 0:
            host = total.get()
            total = cupy.asarray(host + 1.0)
        if number % max(1, rounds // TOLD) == 0:
            tell("values", number, digest(total.get()))


if __name__ == "__main__":
    mode = sys.argv[1]
    work = {"train": train, "graphs": graphs, "copies": copies, "managed": managed}[mode]
    work(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS[mode])
