"""PyTorch, eager (torch) and compiled (torch_compile): inference mode, channels last, oneDNN as built in; compiled with frozen
weights. TENON_RIVAL_DEVICE=cuda: on the GPU, in full f32 (TENON_RIVAL_TF32=1: products of 19 bits); times are of work that
has ended."""
import os
import shutil
import tempfile
import types

import numpy as np
import torch
import torch.nn.functional as F

from run import Never

compiled = False
device = os.environ.get("TENON_RIVAL_DEVICE", "cpu")


def start(name, threads):
    global compiled
    compiled = name == "torch_compile"
    torch.set_num_threads(threads)
    if device != "cpu":
        exact = os.environ.get("TENON_RIVAL_TF32") != "1"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not exact
        torch.zeros(1, device=device)
        return f"{torch.__version__}, {torch.cuda.get_device_name()}"
    if compiled:
        if not (shutil.which("g++") or shutil.which("clang++")):
            raise RuntimeError("torch.compile needs a C++ compiler")
        import torch._inductor.config as config

        config.freezing = True
        config.cpp.threads = threads
        config.compile_threads = 1
    return torch.__version__


class Model(torch.nn.Module):
    """A function with its constants as parameters, which is what freezing looks at."""

    def __init__(self, f, constants):
        super().__init__()
        self.f = f
        self.constants = torch.nn.ParameterList([torch.nn.Parameter(c, requires_grad=False) for c in constants])

    def forward(self, *operands):
        return self.f(*operands, *self.constants)


def fresh_model(f, constants):
    """The compiler keeps its results with the code of forward: each model gets a copy of its own."""
    forward = types.FunctionType(Model.forward.__code__.replace(co_name="forward"), globals())
    return type("Model", (Model,), {"forward": forward})(f, constants)


def tensor(a):
    return torch.from_numpy(np.ascontiguousarray(a)).to(device)


def wait():
    if device != "cpu":
        torch.cuda.synchronize()


def images(a):
    return tensor(a).permute(0, 3, 1, 2)  # channels first in shape, last in memory


def forward(work):
    """(function, operands, constants, how to bring results into the order of the reference)"""
    same = lambda y: {"y": y.cpu().numpy()}
    if work.kind == "gemm":
        f = lambda x, w, b: torch.relu(torch.addmm(b, x, w))
        linear = lambda x, w, b: torch.relu(F.linear(x, w, b))  # the layout a Linear layer keeps
        if work.constant:
            return linear, [tensor(work.x)], [tensor(work.w.T), tensor(work.b)], same
        return f, [tensor(work.x), tensor(work.w), tensor(work.b)], [], same
    if work.kind == "conv":
        w = tensor(work.weights.transpose(3, 2, 0, 1)).contiguous(memory_format=torch.channels_last)
        if work.backward:
            pad, stride = [work.pad] * 2, [work.stride] * 2

            def backward(x, w, dy):
                return torch.ops.aten.convolution_backward(dy, x, w, None, stride, pad, [1, 1], False, [0, 0], work.groups, [True, True, False])[:2]

            give = lambda g: {"dx": g[0].permute(0, 2, 3, 1).cpu().numpy(), "dw": g[1].permute(2, 3, 1, 0).cpu().numpy()}
            return backward, [images(work.x), w, images(work.dy)], [], give
        f = lambda x, w, b: F.conv2d(x, w, b, stride=work.stride, padding=work.pad, groups=work.groups)
        return f, [images(work.x)], [w, tensor(work.b)], lambda y: {"y": y.permute(0, 2, 3, 1).cpu().numpy()}
    if work.kind == "rows":
        def chain(x):
            a = torch.abs(1.25 * x + 0.5)
            return -torch.clamp(0.75 * torch.clamp(a * x - x, min=-0.25) + a, max=2)

        f = {"softmax": lambda x: torch.softmax(x, -1), "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "chain_of_10": chain,
             "transpose": lambda x: x.t().contiguous(), "copy": torch.clone}[work.what]
        return f, [tensor(work.x)], [], same
    if work.kind == "mlp":
        def network(x, *c):
            i = 0
            for layer in work.layers:
                if layer == "L":
                    x, i = F.linear(x, c[2 * i], c[2 * i + 1]), i + 1
                else:
                    x = torch.relu(x)
            return torch.softmax(x, -1)

        return network, [tensor(work.x)], [tensor(a) for w, b in zip(work.w, work.b) for a in (w.T, b)], same
    if work.kind == "lstm":
        model = lstm(work)
        return lambda x: model(x)[0], [tensor(work.x)], [], same
    if work.kind == "order":
        f = {"top_k": lambda x: torch.topk(x, work.k, 1)[0], "sort": lambda x: torch.sort(x, 1)[0], "cumsum": lambda x: torch.cumsum(x, 1)}[work.what]
        return f, [tensor(work.x)], [], same
    if work.kind == "concat":
        give = lambda g: {f"d{i}": d.cpu().numpy() for i, d in enumerate(g)}
        if work.what == "select":
            if work.gradient:
                return lambda w, dy: (torch.where(w, dy, 0), torch.where(w, 0, dy)), [tensor(work.which), tensor(work.dy)], [], give
            return torch.where, [tensor(work.which), *map(tensor, work.x)], [], same
        if work.gradient:  # autograd gives views of dy; here arrays of their own, as what follows would often need
            step = work.wide if work.axis else work.rows
            return lambda dy: [d.clone(memory_format=torch.contiguous_format) for d in torch.split(dy, step, work.axis)], [tensor(work.dy)], [], give
        scales = work.scales
        f = (lambda *x: torch.cat([a * s for a, s in zip(x, scales)], work.axis)) if work.what == "computed" else lambda *x: torch.cat(x, work.axis)
        return f, [tensor(x) for x in work.x], [], same
    if work.kind == "sparse":
        if work.what == "dense":
            return torch.mm, [tensor(work.w), tensor(work.x)], [], same
        if work.what != "csr" or compiled:
            raise Never(work.what)
        w = torch.sparse_csr_tensor(tensor(work.offset), tensor(work.column), tensor(work.values), (work.n, work.n), check_invariants=False)
        return torch.mm, [w, tensor(work.x)], [], same
    raise Never(work.kind)


def lstm(work):
    """One bias of the two is zero and stays so."""
    model = torch.nn.LSTM(work.units, work.units, work.layers, device=device)
    with torch.no_grad():
        for i, (w_x, w_h, b) in enumerate(work.params):
            for name, value in (("weight_ih", w_x.T), ("weight_hh", w_h.T), ("bias_ih", b), ("bias_hh", 0 * b)):
                getattr(model, f"{name}_l{i}").copy_(tensor(value))
            getattr(model, f"bias_hh_l{i}").requires_grad_(False)
    return model


class Forward:
    def __init__(self, work):
        f, self.operands, constants, self.give = forward(work)
        self.model = fresh_model(f, constants).eval()
        if compiled:
            self.model = torch.compile(self.model, dynamic=False, fullgraph=True)

    @torch.inference_mode()
    def run(self, times):
        model, operands = self.model, self.operands
        for _ in range(times):
            model(*operands)
        wait()

    def result(self):
        with torch.inference_mode():
            y = self.model(*self.operands)
            return self.give(y)


class Train:
    def __init__(self, work):
        self.x = tensor(work.x) if work.what == "mlp" else images(work.x)
        self.labels = tensor(work.labels).long()
        p = [tensor(a.transpose(3, 2, 0, 1)) if a.ndim == 4 else tensor(a) for a in work.params]
        if work.what != "mlp":  # the image is flattened channels last: so are the rows of the first Linear layer
            p[4] = p[4].reshape(16, 32, 64).transpose(0, 1).reshape(512, 64).contiguous()
            p = [a.contiguous(memory_format=torch.channels_last) if a.ndim == 4 else a for a in p]
        self.p = [torch.nn.Parameter(a.clone()) for a in p]  # the arrays stay as they are
        kind = torch.optim.SGD if work.what == "mlp" else torch.optim.Adam
        self.optimiser = kind(self.p, lr=work.rate, **({} if compiled else dict(fused=True)))
        scores = self.mlp if work.what == "mlp" else self.digits
        loss = lambda: F.cross_entropy(scores(self.x), self.labels)
        self.loss = torch.compile(loss, dynamic=False) if compiled else loss
        update = self.optimiser.step
        self.update = torch.compile(update, dynamic=False) if compiled else update
        self.losses = [self.step(), self.step()]

    def mlp(self, x):
        p = self.p
        x = torch.relu(torch.addmm(p[1], x, p[0]))
        x = torch.relu(torch.addmm(p[3], x, p[2]))
        return torch.addmm(p[5], x, p[4])

    def digits(self, x):
        p = self.p
        x = torch.relu(F.conv2d(x, p[0], p[1], padding=1))
        x = torch.relu(F.conv2d(x, p[2], p[3], padding=1))
        x = F.max_pool2d(x, 2).flatten(1)
        x = torch.relu(torch.addmm(p[5], x, p[4]))
        return torch.addmm(p[7], x, p[6])

    def step(self):
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.update()
        return loss.detach()

    def run(self, times):
        for _ in range(times):
            self.step()
        wait()

    def result(self):
        return {"loss1": self.losses[0].cpu(), "loss2": self.losses[1].cpu()}


class TrainLstm(Train):
    def __init__(self, work):
        x, target, model = tensor(work.x), tensor(work.target), lstm(work)
        self.optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=work.rate)
        loss = lambda: F.mse_loss(model(x)[0], target)
        self.loss = torch.compile(loss, dynamic=False) if compiled else loss
        self.update = torch.compile(self.optimiser.step, dynamic=False) if compiled else self.optimiser.step
        self.losses = [self.step(), self.step()]


class SparseGradients:
    """Autograd's, through entries by row and column."""

    def __init__(self, work):
        if compiled:
            raise Never(work.what)
        self.at, self.dy, self.shape = tensor(np.stack([work.row, work.column])), tensor(work.dy), (work.n, work.n)
        self.values, self.x = tensor(work.values).requires_grad_(), tensor(work.x).requires_grad_()

    def step(self):
        y = torch.sparse.mm(torch.sparse_coo_tensor(self.at, self.values, self.shape, is_coalesced=True), self.x)
        return torch.autograd.grad(y, [self.values, self.x], self.dy)

    def run(self, times):
        for _ in range(times):
            self.step()
        wait()

    def result(self):
        dv, dx = self.step()
        return {"dv": dv.cpu().numpy(), "dx": dx.cpu().numpy()}


def make(work):
    if work.kind == "sparse" and work.what == "gradient":
        return SparseGradients(work)
    if work.kind == "lstm" and work.train:
        return TrainLstm(work)
    return Train(work) if work.kind == "train" else Forward(work)


class Compile:
    """torch.compile to the first result, nothing kept from before."""

    def __init__(self, work):
        if not compiled:
            raise Never("does not compile")
        self.work = work

    def run(self, times):
        import torch._inductor.config as config

        config.force_disable_caches = True
        for _ in range(times):
            torch._dynamo.reset()
            with tempfile.TemporaryDirectory() as empty:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
                make(self.work).result()

    def result(self):
        return make(self.work).result()
