"""Evaluates the rows of tests/nn/kinks.def with PyTorch: values and gradients of activations, losses and clamps at their kinks.

Usage: kinks.py KINKS.def     exit code 0 = agree, 1 = not. Needs torch.
"""
import re
import sys

import torch
import torch.nn.functional as F  # noqa: F401  (the rows use it)

# F.hardsigmoid multiplies gradients by 1/6 in f32, whatever the dtype.
BOUND = 1e-7
ROW = re.compile(r'(KINK|TIE)\((\w+), .*"([^"]*)"(?: /\*.*?\*/)?,\s*(LIST\([^)]*\)|\S+),\s*(\S+),\s*(LIST\([^)]*\)|[^\s,)]+)')


def at(x, value):
    return torch.full_like(x, value)


def numbers(text):
    return [float(v) for v in re.sub(r"LIST\((.*)\)", r"\1", text).split(",")]


def close(got, want):
    return len(got) == len(want) and all(abs(g - w) <= BOUND * (1 + abs(w)) for g, w in zip(got, want))


def main(path):
    rows, without, failed = 0, 0, 0
    for line in open(path):
        if not line.startswith(("KINK(", "TIE(")):
            continue
        match = ROW.match(line)
        assert match, f"a row that this program cannot read: {line}"
        _, name, text, where, value, gradient = match.groups()
        if not text:
            without += 1
            continue
        x = torch.tensor(numbers(where), dtype=torch.float64, requires_grad=True)
        y = eval(text).reshape(-1)
        total = (y * torch.arange(1, len(y) + 1, dtype=y.dtype)).sum()
        (theirs,) = torch.autograd.grad(total, x)
        rows += 1
        if close([total.item()], numbers(value)) and close(theirs.tolist(), numbers(gradient)):
            continue
        failed += 1
        print(f"  {name} at {where}: the table has {value} and {gradient}, torch {total.item():.17g} and {theirs.tolist()}   FAILED")
    print(f"count: {rows} rows of {path.rsplit('/', 1)[-1]} compared with torch {torch.__version__}, {failed} failed, {without} have no counterpart")
    return 0 if rows > 40 and not failed else 1


sys.exit(main(sys.argv[1]))
