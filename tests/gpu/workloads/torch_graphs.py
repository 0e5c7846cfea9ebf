"""PyTorch with CUDA graphs: a matrix product, a whole training step, and a network behind make_graphed_callables."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from workload import digest, tell


def product() -> None:
    a = torch.randn(512, 512, device="cuda")
    out = torch.zeros(512, 512, device="cuda")
    torch.mm(a, a)  # cuBLAS allocates its workspace outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.add_(torch.mm(a, a))
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    tell("product", digest(out.cpu().numpy()))


def warm_up(work) -> None:
    """PyTorch asks for a few rounds on a side stream before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)


def training() -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs = torch.randn(128, 256, device="cuda")
    wanted = torch.randn(128, 64, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        return loss

    warm_up(step)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    for round_ in range(60):
        inputs.copy_(torch.randn(128, 256))
        graph.replay()
        if round_ % 10 == 0:
            tell(f"loss {round_}", loss.item())
    tell("weights", digest(*(p.detach().cpu().numpy() for p in model.parameters())))


def callables() -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)).cuda()
    sample = torch.randn(32, 128, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    total = torch.zeros((), device="cuda")
    for _ in range(20):
        values = torch.randn(32, 128).cuda().requires_grad_()
        out = graphed(values)
        out.square().mean().backward()
        total += values.grad.square().sum()
    tell("callables", total.item(), digest(*(p.grad.cpu().numpy() for p in model.parameters())))


def main() -> None:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    product()
    training()
    callables()


if __name__ == "__main__":
    main()
