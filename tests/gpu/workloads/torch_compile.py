"""torch.compile: Triton kernels made by Inductor, forward and backward, plain and behind CUDA graphs.

TORCHINDUCTOR_CACHE_DIR is set by the runner, so that what one run compiled and tuned is what the next one uses.
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from workload import digest, tell


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(256)
        self.up = torch.nn.Linear(256, 1024)
        self.down = torch.nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def train(mode: str) -> None:
    torch.manual_seed(1)
    torch._dynamo.reset()  # the modes share code, and should not share what was compiled of it
    model = torch.nn.Sequential(Block(), Block()).cuda()
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        inputs = torch.randn(64, 256).cuda()
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.softmax(compiled(inputs), dim=-1).square().sum()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            tell(f"{mode} loss {step}", loss.item())
    tell(f"{mode} weights", digest(*(p.detach().cpu().numpy() for p in model.parameters())))


def main() -> None:
    torch.use_deterministic_algorithms(True)
    train("default")
    train("reduce-overhead")


if __name__ == "__main__":
    main()
