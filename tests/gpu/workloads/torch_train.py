"""PyTorch: a small network of convolutions and matrix products is trained, and cuFFT and cuSOLVER are called.

usage: torch_train.py [STEPS]
The allocator is PyTorch's own, or what PYTORCH_ALLOC_CONF says.
"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it

import torch
from workload import digest, tell

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 40


def deterministic() -> None:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def network() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16 * 16, 256),
        nn.GELU(),
        nn.Linear(256, 10),
    )


def batches(steps: int) -> torch.utils.data.DataLoader:
    """Made by worker processes, which are forked while CUDA is in use, and pinned by a thread."""
    inputs = torch.randn(steps * 64, 3, 32, 32)
    labels = torch.randint(0, 10, (steps * 64,))
    data = torch.utils.data.TensorDataset(inputs, labels)
    return torch.utils.data.DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)


def train() -> None:
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (inputs, labels) in enumerate(batches(STEPS)):
        inputs, labels = inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=step % 2 == 1):
            loss = torch.nn.functional.cross_entropy(model(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        if step % 5 == 0 or step == STEPS - 1:
            tell(f"loss {step}", loss.item())
    tell("weights", digest(*(weights.detach().cpu().numpy() for weights in model.state_dict().values())))


def libraries() -> None:
    """cuFFT looks the driver up by dlsym; cuSOLVER and cuSPARSE bring their own copies of the runtime."""
    values = torch.randn(8, 256, 256, device="cuda")
    spectrum = torch.fft.ifft2(torch.fft.fft2(values))
    tell("fft", digest(torch.view_as_real(spectrum).cpu().numpy()))
    product = values[0] @ values[0].T + 256 * torch.eye(256, device="cuda")
    tell("cholesky", digest(torch.linalg.cholesky(product).cpu().numpy()))


def streams_and_memory() -> None:
    side = torch.cuda.Stream()
    values = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        doubled = values * 2
        doubled.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)
    tell("streams", digest((doubled + values).cpu().numpy()))
    blocks = [torch.full((1 << 18,), float(i), device="cuda") for i in range(32)]
    tell("blocks", float(sum(block.sum().item() for block in blocks)))
    del blocks, values, doubled
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def main() -> None:
    deterministic()
    train()
    libraries()
    streams_and_memory()


if __name__ == "__main__":
    main()
