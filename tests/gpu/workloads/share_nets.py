"""PyTorch trains networks that do not fill the GPU: Python asks for their kernels more slowly than it does them.
usage: share_nets.py mlp|conv|lstm

`mlp` is small, with an Adam that goes from parameter to parameter; `conv` computes in half precision with a scaled loss
(which waits for the GPU once a step), and copies each batch from pinned memory; `lstm` goes step by step through a sequence.
"""

import sys

import torch
from share_common import repeat
from torch import nn


def mark():
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def mlp():
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=False)
    inputs, labels = torch.randn(128, 256, device="cuda"), torch.randint(0, 10, (128,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step, mark, 2


def conv():
    blocks = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for _ in range(7):
        blocks += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    batches = [
        (torch.randn(32, 3, 48, 48).pin_memory(), torch.randint(0, 10, (32,)).pin_memory()) for _ in range(4)
    ]
    state = {"number": 0}

    def step():
        images, labels = (part.to("cuda", non_blocking=True) for part in batches[state["number"] % len(batches)])
        state["number"] += 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, mark, 1


def lstm():
    cell, head = nn.LSTMCell(256, 256).cuda(), nn.Linear(256, 10).cuda()
    parameters = [*cell.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    sequence = torch.randn(32, 64, 256, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        hidden = torch.zeros(64, 256, device="cuda")
        memory = torch.zeros(64, 256, device="cuda")
        for inputs in sequence:
            hidden, memory = cell(inputs, (hidden, memory))
        nn.functional.cross_entropy(head(hidden), labels).backward()
        optimizer.step()

    return step, mark, 1


def seeded(setup):
    def begin():
        torch.manual_seed(0)
        return setup()

    return begin


if __name__ == "__main__":
    repeat(seeded({"mlp": mlp, "conv": conv, "lstm": lstm}[sys.argv[1]]))
