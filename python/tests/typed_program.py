"""What a type checker sees of the package: this file is checked by mypy, and runs."""

from typing import Any

import numpy as np

import tenon
from tenon import nn, optim

graph = tenon.Graph("typed")
x: tenon.Tensor = graph.input("x", (2, 3))
hidden: tenon.Tensor = nn.linear(x, 4, "fc").tanh()
loss: tenon.Tensor = (hidden * hidden).mean()
optim.adam(loss, 1e-2)
graph.output(loss, "loss")
session: tenon.Session = graph.compile(device="cpu").session()
value: float = float(session(x=np.ones((2, 3), np.float32))["loss"])
shape: tuple[int, ...] = hidden.shape
kind: tenon.DType = hidden.dtype
gradient: Any = tenon.grad(lambda t: (t.exp() * 2).sum())(np.ones(3, np.float32))
batch: tenon.Dim = tenon.dim("batch", 1, 8)
scaled: Any = tenon.compile(lambda t: t / t.shape[0], dynamic={"t": (batch, None)})(np.ones((2, 3), np.float32))
assert value >= 0 and shape == (2, 4) and kind == tenon.float32 and gradient.shape == (3,)
