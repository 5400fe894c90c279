#!/usr/bin/env python3
"""torch_backend.py [NAME...] [--threads N] [--seconds S] [--sizes N] [--json]: torch.compile(backend="tenon") beside backend="inductor" and eager mode:
microseconds of an inference and of a training step (forward and backward), and the seconds of the first call of each, which compile.
--sizes: with dynamic=True, of N batch sizes from 2 to 64 in turns; the first pass over all of them, a call of the others, and programs of Tenon.
Needs PyTorch and the package tenon (`pip install ./python`, or `python3 python/backend.py stage DIR build/release` and PYTHONPATH=DIR);
with torchvision there are its models, too. Every first result is compared with eager's (loss and all gradients). Inductor begins without its cache."""
import argparse
import json
import logging
import os
import random
import statistics
import tempfile
import time

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["TENON_CACHE_DIR"] = tempfile.mkdtemp()
import torch
from torch import nn
from torch.nn import functional as F

import tenon.torch  # noqa: F401: it registers the backend

fallbacks = []
log = logging.getLogger("tenon.torch")
log.setLevel(logging.DEBUG)
log.addFilter(lambda record: fallbacks.append(record.getMessage()))  # counted, not printed: a filter that is not true


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab=256, width=128, layers=4, length=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, index):
        return self.head(self.norm(self.blocks(self.tokens(index) + self.places(torch.arange(index.shape[1])))))


class Vit(nn.Module):
    def __init__(self, width=128, layers=4):
        super().__init__()
        self.patch, self.places = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.blocks, self.head = nn.Sequential(*(Block(width, 4, False) for _ in range(layers))), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2) + self.places).mean(1))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b, self.n, self.m = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.m(self.b(F.relu(self.n(self.a(x))))))


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, c, grow=4):
        super().__init__()
        g = c * grow
        self.layers = nn.Sequential(nn.Conv2d(c, g, 1, bias=False), nn.BatchNorm2d(g), nn.ReLU6(), nn.Conv2d(g, g, 3, padding=1, groups=g, bias=False),
                                    nn.BatchNorm2d(g), nn.ReLU6(), nn.Conv2d(g, c, 1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x):
        return x + self.layers(x)


class Gated(nn.Module):
    """A block of Llama without its attention."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up, self.gate, self.down = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Mixer(nn.Module):
    def __init__(self, places, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.along = mlp(places, 2 * places, places), mlp(width, 2 * width, width)

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


class Unet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(2 * c, c, 2, 2), nn.Conv2d(2 * c, 3, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.a(x))
        y = F.relu(self.up(F.relu(self.c(F.relu(self.b(x))))))
        return self.out(torch.cat([x, y], 1))


def mlp(*widths):
    layers = [m for a, b in zip(widths, widths[1:]) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def digits():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def autoencoder():
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
                         nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1))


def images(n, size, c=3):
    return lambda: torch.randn(n, c, size, size)


MODELS = {
    "mlp 4x256, batch 64": (lambda: mlp(256, 256, 256, 256, 256), lambda: torch.randn(64, 256)),
    "mlp 784-512-10, batch 128": (lambda: mlp(784, 512, 512, 10), lambda: torch.randn(128, 784)),
    "digits, batch 64": (digits, images(64, 8, 1)),
    "autoencoder 32, batch 8": (autoencoder, images(8, 32)),
    "residual 4x32, batch 8": (lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(Residual(32) for _ in range(4))), images(8, 32)),
    "gpt 4x128, 12 x 64": (Gpt, lambda: torch.randint(0, 256, (12, 64))),
    "vit 4x128, batch 8": (Vit, images(8, 32)),
    "encoder 2x256, 4 x 64": (lambda: nn.Sequential(*(Block(256, 4, False) for _ in range(2))), lambda: torch.randn(4, 64, 256)),
    "inverted 4x16, batch 8": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *(Inverted(16) for _ in range(4))), images(8, 32)),
    "gated 4x256, 4 x 64": (lambda: nn.Sequential(*(Gated(256) for _ in range(4))), lambda: torch.randn(4, 64, 256)),
    "mixer 4x128, 8 x 64": (lambda: nn.Sequential(*(Mixer(64, 128) for _ in range(4))), lambda: torch.randn(8, 64, 128)),
    "unet 16, batch 4": (Unet, images(4, 32)),
}
try:
    import torchvision.models as vision
    for name in ("resnet18", "mobilenet_v2", "squeezenet1_1", "shufflenet_v2_x1_0"):
        MODELS[name + " 64, batch 4"] = (lambda name=name: getattr(vision, name)(weights=None), images(4, 64))
except ImportError:
    pass


def median_us(call, seconds):
    call()
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        t = time.perf_counter()
        call()
        times.append(time.perf_counter() - t)
    return 1e6 * statistics.median(times)


def step_of(module, xs):
    def step():
        total = 0
        for x in xs:
            module.zero_grad(set_to_none=True)
            loss = module(x).square().mean()
            loss.backward()
            total = total + loss.detach()
        return total
    return step


def batches(x, n):
    """x with n other sizes of its batch."""
    r = random.Random(n)
    return [torch.cat([x] * -(-b // len(x)))[:b].clone() for b in r.sample(range(2, 65), n)] if n else [x]


def close(a, b, what):
    """As a whole: where a value is zero but for rounding, a ReLU lets a gradient through in one program and not in another (eager's own
    gradients of ResNet-18 are up to 4 % of the largest element from those in double precision)."""
    apart = ((a - b).norm() / b.norm().clamp_min(1e-30)).item()
    if not apart < 0.05:
        raise SystemExit(f"{what}: {apart:.1e} from eager's")


def measure(name, make, sample, backends, threads, seconds, sizes):
    row = {"model": name}
    for training in (False, True):
        torch.manual_seed(1)
        given, want, calls = sample(), None, {}
        for b in backends:
            torch.manual_seed(2)
            torch._dynamo.reset()
            module = make().train(training)
            for part in module.modules():  # inductor draws other numbers than eager
                if isinstance(part, nn.Dropout):
                    part.p = 0.0
            options = {"options": {"threads": threads}} if b == "tenon" else {}
            options.update({"dynamic": True} if sizes else {})
            xs, programs = batches(given, sizes), tenon.torch.compilations
            compiled = module if b == "eager" else torch.compile(module, backend=b, **options)
            begin, n = time.perf_counter(), len(fallbacks)
            if training:
                calls[b] = step_of(compiled, xs)
                got = torch.cat([calls[b]().detach().reshape(1)] + [p.grad.reshape(-1) for p in module.parameters()])
            else:
                def call(compiled=compiled, xs=xs):
                    with torch.no_grad():
                        return torch.cat([compiled(x).reshape(-1) for x in xs]) if sizes else compiled(xs[0])
                calls[b] = call
                got = call()
            what = "training" if training else "inference"
            row[f"{what} {b} first_s"] = time.perf_counter() - begin
            if b == "tenon":
                row[f"{what} fallbacks"], row[f"{what} programs"] = len(fallbacks) - n, tenon.torch.compilations - programs
            want = got if want is None else want
            close(got, want, f"{name}, {what}, {b}")
        for _ in range(3):  # in turns
            for b in backends:
                us = median_us(calls[b], seconds / 3) / max(sizes, 1)
                key = f"{what} {b} us"
                row[key] = min(us, row.get(key, us))
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("names", nargs="*", help="models whose name has one of these words in it (default: all)")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seconds", type=float, default=1.0, help="for each row and backend")
    p.add_argument("--sizes", type=int, default=0)
    p.add_argument("--json", action="store_true")
    p.add_argument("--backends", default="eager,inductor,tenon")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    backends, rows = args.backends.split(","), []
    for name, (make, sample) in MODELS.items():
        if args.names and not any(word in name for word in args.names):
            continue
        rows.append(measure(name, make, sample, backends, args.threads, args.seconds, args.sizes))
        if not args.json:
            r = rows[-1]
            for what in ("inference", "training"):
                print(f"{name:28} {what:10}" + "".join(f" {b} {r[f'{what} {b} us']:9.1f} us, first {r[f'{what} {b} first_s']:6.2f} s;" for b in backends)
                      + f" fallbacks {r.get(f'{what} fallbacks', '-')}, programs {r.get(f'{what} programs', '-')}", flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "threads": args.threads, "rows": rows}))


main()
