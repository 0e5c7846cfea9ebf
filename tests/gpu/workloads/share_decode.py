"""A transformer that writes token by token. usage: share_decode.py eager|graph|serve|serve-graph|prefill

Twelve layers of width 768 with a cache of keys and values, one sequence, weights by chance. `eager` asks for some 150 small
kernels a token, from Python, and waits for the token; `graph` has them in one CUDA graph, and waits as well. `serve` writes
16 tokens each 250 ms, and tells what each answer took. `prefill` reads 8 × 1024 tokens at a time, which fills the GPU.
"""

import sys

import torch
from share_common import repeat, serve
from torch.nn import functional

LAYERS, WIDTH, HEADS, CONTEXT, WORDS = 12, 768, 12, 512, 32000
HALF = torch.bfloat16
ANSWER, PERIOD_NS = 16, 250_000_000


def drawn(*shape):
    return torch.randn(*shape, device="cuda", dtype=HALF) * 0.02


class Layer:
    def __init__(self):
        self.attend, self.project = drawn(3 * WIDTH, WIDTH), drawn(WIDTH, WIDTH)
        self.widen, self.narrow = drawn(4 * WIDTH, WIDTH), drawn(WIDTH, 4 * WIDTH)
        self.norms = [torch.ones(WIDTH, device="cuda", dtype=HALF) for _ in range(2)]
        self.shifts = [torch.zeros(WIDTH, device="cuda", dtype=HALF) for _ in range(2)]
        self.keys, self.values = (
            torch.zeros(1, HEADS, CONTEXT, WIDTH // HEADS, device="cuda", dtype=HALF) for _ in range(2)
        )

    def norm(self, which, x):
        return functional.layer_norm(x, (WIDTH,), self.norms[which], self.shifts[which])

    def heads(self, x):
        """Queries, keys and values of some tokens: sequences × heads × tokens × width of a head."""
        sequences, tokens, _ = x.shape
        parts = functional.linear(self.norm(0, x), self.attend).view(sequences, tokens, 3, HEADS, WIDTH // HEADS)
        return parts.permute(2, 0, 3, 1, 4).unbind(0)

    def rest(self, x, attended):
        sequences, tokens, _ = x.shape
        x = x + functional.linear(attended.transpose(1, 2).reshape(sequences, tokens, WIDTH), self.project)
        wide = functional.gelu(functional.linear(self.norm(1, x), self.widen))
        return x + functional.linear(wide, self.narrow)

    def one_token(self, x, position, seen):
        query, key, value = self.heads(x)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        return self.rest(x, functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen))

    def many_tokens(self, x):
        query, key, value = self.heads(x)
        return self.rest(x, functional.scaled_dot_product_attention(query, key, value, is_causal=True))


class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.words = drawn(WORDS, WIDTH)
        self.layers = [Layer() for _ in range(LAYERS)]
        self.places = torch.arange(CONTEXT, device="cuda")
        self.position = torch.zeros(1, device="cuda", dtype=torch.long)
        self.token = torch.ones(1, 1, device="cuda", dtype=torch.long)

    def step(self):
        """Writes the next token over the last one: the same tensors each time, so that it can be a graph."""
        seen = (self.places <= self.position).view(1, 1, 1, CONTEXT)
        x = functional.embedding(self.token, self.words)
        for layer in self.layers:
            x = layer.one_token(x, self.position, seen)
        self.token.copy_(functional.linear(x[:, -1], self.words).argmax(-1, keepdim=True))
        self.position.add_(1).remainder_(CONTEXT)


def nothing():
    """A mark for steps that wait by themselves."""
    return lambda: None


def stepper(as_graph):
    """What writes a token, and waits until it can be read."""
    decoder = Decoder()
    token = decoder.step
    if as_graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                decoder.step()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            decoder.step()
        token = captured.replay

    def write():
        token()
        return decoder.token.item()

    return write


def writing(as_graph):
    write = stepper(as_graph)
    for _ in range(20):
        write()
    return write, nothing, 1


def answering(as_graph):
    write = stepper(as_graph)

    def answer():
        for _ in range(ANSWER):
            write()

    return answer


def prefill():
    decoder = Decoder()
    tokens = torch.randint(0, WORDS, (8, 1024), device="cuda")

    def step():
        x = functional.embedding(tokens, decoder.words)
        for layer in decoder.layers:
            x = layer.many_tokens(x)
        return functional.linear(x[:, -1], decoder.words)

    def mark():
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

    return step, mark, 1


if __name__ == "__main__":
    mode = sys.argv[1]
    with torch.no_grad():
        if mode == "prefill":
            repeat(prefill)
        elif mode.startswith("serve"):
            serve(lambda: answering(mode == "serve-graph"), PERIOD_NS)
        else:
            repeat(lambda: writing(mode == "graph"), ahead=0)
