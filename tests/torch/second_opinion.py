"""Compares what digits_dump wrote with PyTorch: gradients of the digits network, the loss curve and parameters of its training.

Usage: second_opinion.py FILE.safetensors     exit code 0 = agree, 1 = not. Needs numpy and torch; reads the file by itself.
"""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F

# Largest differences allowed: of gradients and parameters in units of the largest element, of losses relative, at every step.
# In f32 training a ReLU or a maximum meets a near tie now and then; rounding then decides which way the gradient goes, and torch
# differs from itself as much when the images of a batch change places. Ties as near do not occur in f64, so it is held to more.
BOUNDS = {
    np.dtype(np.float32): {"loss": 1e-5, "gradient": 1e-4, "curve": 1e-2, "final": None},
    np.dtype(np.float64): {"loss": 1e-12, "gradient": 1e-11, "curve": 1e-9, "final": 1e-7},
}


def load(path):
    """safetensors: u64 length, JSON header with dtype, shape and byte range of each array, bytes."""
    with open(path, "rb") as f:
        raw = f.read()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    types = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + a:8 + n + b], types[t["dtype"]]).reshape(t["shape"])
    return out


def to_torch(name, a):
    """HWIO -> OIHW for convolutions, [in,out] -> [out,in] for linear layers; vectors stay."""
    order = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}[a.ndim]
    return torch.from_numpy(a.transpose(order).copy())


def network(p, x):
    x = x.permute(0, 3, 1, 2)  # NHWC -> NCHW
    x = F.relu(F.conv2d(x, p["conv1/w"], p["conv1/b"], padding=1))
    x = F.relu(F.conv2d(x, p["conv2/w"], p["conv2/b"], padding=1))
    x = F.max_pool2d(x, 2).permute(0, 2, 3, 1).reshape(x.shape[0], -1)  # flattened as height, width, channels
    return F.linear(F.relu(F.linear(x, p["fc1/w"], p["fc1/b"])), p["fc2/w"], p["fc2/b"])


def worst(name, mine, theirs, bound, scale):
    """Prints and judges the largest |mine - theirs| / scale. A NaN anywhere is a failure."""
    gap = float((np.abs(np.asarray(mine, np.float64) - np.asarray(theirs, np.float64)) / scale).max())
    ok = gap <= bound
    print(f"  {name:16} {gap:9.2e}  (allowed {bound:.0e}){'' if ok else '   FAILED'}")
    return ok


def main(path):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load(path)
    bounds = BOUNDS[data["images"].dtype]
    names = sorted(k[5:] for k in data if k.startswith("init/"))
    assert len(names) == 8 and len(data) == 3 * 8 + 4, sorted(data)
    images = torch.from_numpy(data["images"].copy())
    labels = torch.from_numpy(data["labels"].astype(np.int64))
    p = {k: to_torch(k, data["init/" + k]).requires_grad_() for k in names}
    results = []

    print("gradients, differences in units of the largest element:")
    loss = F.cross_entropy(network(p, images[0]), labels[0])
    loss.backward()
    results.append(worst("loss", data["grad_loss"], loss.item(), bounds["loss"], abs(loss.item())))
    for k in names:
        theirs = p[k].grad.numpy()
        assert np.abs(theirs).max() > 0, f"gradient of {k} is zero: the test says nothing"
        results.append(worst(k, to_torch(k, data["grad/" + k]).numpy(), theirs, bounds["gradient"], np.abs(theirs).max()))

    steps = len(data["loss"])
    optimiser = torch.optim.Adam(list(p.values()), lr=2e-3)
    curve = []
    for i in range(steps):
        optimiser.zero_grad()
        loss = F.cross_entropy(network(p, images[i % len(images)]), labels[i % len(images)])
        loss.backward()
        optimiser.step()
        curve.append(loss.item())
    curve = np.array(curve)
    print(f"{steps} steps of Adam, loss {curve[0]:.4f} -> {curve[-1]:.4f}:")
    assert curve[-1] < 0.9 * curve[0], "the network learns nothing: the test says nothing"
    results.append(worst("loss curve", data["loss"], curve, bounds["curve"], np.abs(curve)))
    for k in names if bounds["final"] else []:
        theirs = p[k].detach().numpy()
        results.append(worst(k, to_torch(k, data["final/" + k]).numpy(), theirs, bounds["final"], np.abs(theirs).max()))
    print(f"count: {len(results)} comparisons with torch {torch.__version__}, {results.count(False)} failed")
    return 0 if all(results) else 1


sys.exit(main(sys.argv[1]))
