"""run.py NAME THREADS - one rival: reads works on stdin, makes them ready, runs and times them; answers on stdout.

    case ID WORK KEY=VALUE ...   ->  "ok ERROR" (largest error over its bound), or "no REASON" ("no -": never does such work)
    run ID TIMES                 ->  "t SECONDS" for all of them, after one untimed run where a run is short
    free ID                      ->  "ok"

Every work is defined here once, with its operands and its result in double precision (numpy); rival_NAME.py says how the rival
does it. A result that is not right is a "no". Threads are limited by the CPUs that the process may use.
"""
import importlib
import os
import sys
import time

import numpy as np


class Work:
    """Operands (float32 arrays) by name, and reference() -> {name: float64 array}."""

    tolerance = 1e-5  # of the largest element of each array

    def __init__(self, kind, given):
        self.kind = kind
        self.__dict__.update(given)
        self.random = np.random.default_rng(1)
        getattr(self, "make_" + kind)()

    def uniform(self, *shape, scale=1.0):
        return self.random.uniform(-scale, scale, shape).astype(np.float32)

    def reference(self):
        return getattr(self, "want_" + self.kind)()

    # relu(x w + b)
    def make_gemm(self):
        self.x = self.uniform(self.m, self.k, scale=1.7)
        self.w = self.uniform(self.k, self.n, scale=(3 / self.k) ** 0.5)
        self.b = self.uniform(self.n, scale=0.1)

    def want_gemm(self):
        return {"y": np.maximum(self.x.astype(float) @ self.w.astype(float) + self.b, 0)}

    # convolution, channels last, weights [kernel, kernel, in / groups, out], padding kernel / 2
    def make_conv(self):
        self.pad = self.kernel // 2
        self.oh = (self.h + 2 * self.pad - self.kernel) // self.stride + 1
        self.ow = (self.w + 2 * self.pad - self.kernel) // self.stride + 1
        self.inner = self.__dict__["in"] // self.groups
        self.x = self.uniform(self.n, self.h, self.w, self.__dict__["in"])
        self.weights = self.uniform(self.kernel, self.kernel, self.inner, self.out, scale=(self.kernel**2 * self.inner) ** -0.5)
        self.b = self.uniform(self.out, scale=0.1)
        self.dy = self.uniform(self.n, self.oh, self.ow, self.out)

    def want_conv(self):
        return conv_backward(self) if self.backward else {"y": conv(self.x, self.weights, self.b, self)}

    # an ONNX model: the file, and a folder with inputs and the first output, which Tenon made op by op
    def make_model(self):
        with open(self.file, "rb") as f:
            self.tolerance = 0.1 if b"QuantizeLinear" in f.read() else 1e-3  # a value that rounds the other way is a step apart
        with open(f"{self.dir}/inputs.txt") as f:
            self.inputs = {name.rstrip("\n"): np.load(f"{self.dir}/in_{i}.npy") for i, name in enumerate(f)}
        self.output = np.load(f"{self.dir}/out.npy")

    def want_model(self):
        return {"y": self.output.astype(float)}

    # row works on x[m, n]
    def make_rows(self):
        self.x = self.uniform(self.m, self.n, scale=2)

    def want_rows(self):
        x = self.x.astype(float)
        if self.what == "softmax":
            return {"y": softmax(x)}
        if self.what == "layer_norm":
            return {"y": (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)}
        if self.what == "chain_of_10":
            a = np.abs(1.25 * x + 0.5)
            return {"y": -np.minimum(0.75 * np.maximum(a * x - x, -0.25) + a, 2)}
        return {"y": x.T if self.what == "transpose" else x}

    # L: x w + b, R: relu, then softmax
    def make_mlp(self):
        self.tolerance = 1e-4
        self.x = self.random.standard_normal((self.batch, self.size)).astype(np.float32)
        self.w, self.b, before = [], [], "L"
        for i, layer in enumerate(self.layers):
            if layer == "L":
                gain = 2 if i and before == "R" else 1
                self.w.append(self.uniform(self.size, self.size, scale=(3 * gain / self.size) ** 0.5))
                self.b.append(self.uniform(self.size, scale=0.1))
            before = layer

    def want_mlp(self):
        x, i = self.x.astype(float), 0
        for layer in self.layers:
            if layer == "L":
                x, i = x @ self.w[i].astype(float) + self.b[i], i + 1
            else:
                x = np.maximum(x, 0)
        return {"y": softmax(x)}

    # one training step: cross-entropy, gradients, SGD (mlp) or Adam (digits). Checked by the losses of two steps.
    def make_train(self):
        self.tolerance = 1e-4
        self.labels = self.random.integers(0, 10, self.batch).astype(np.int32)
        if self.what == "mlp":
            shapes = [(784, 512), (512,), (512, 512), (512,), (512, 10), (10,)]
            self.x = np.abs(self.uniform(self.batch, 784))
        else:
            shapes = [(3, 3, 1, 16), (16,), (3, 3, 16, 32), (32,), (512, 64), (64,), (64, 10), (10,)]
            self.x = np.abs(self.uniform(self.batch, 8, 8, 1))
        fan = [int(np.prod(s[:-1])) for s in shapes]
        self.params = [self.uniform(*s, scale=fan[i // 2 * 2] ** -0.5) for i, s in enumerate(shapes)]
        self.rate = 0.01 if self.what == "mlp" else 1e-3

    def want_train(self):
        p = [a.astype(float) for a in self.params]
        step = mlp_step if self.what == "mlp" else digits_step
        first, grads = step(p, self.x.astype(float), self.labels)
        if self.what == "mlp":
            p = [a - self.rate * g for a, g in zip(p, grads)]
        else:  # Adam's first step: the moments' corrections cancel
            p = [a - self.rate * g / (np.abs(g) + 1e-8) for a, g in zip(p, grads)]
        second, _ = step(p, self.x.astype(float), self.labels)
        return {"loss1": np.array(first), "loss2": np.array(second)}

    # an LSTM over x[steps, batch, units], gates i f g o; train: loss, gradients, SGD, checked by the losses of two steps
    def make_lstm(self):
        self.tolerance = 1e-4
        self.x = self.uniform(self.steps, self.batch, self.units)
        self.target = self.uniform(self.steps, self.batch, self.units)
        scale, wide, self.rate = self.units**-0.5, 4 * self.units, 0.01
        self.params = [[self.uniform(self.units, wide, scale=scale), self.uniform(self.units, wide, scale=scale), self.uniform(wide, scale=scale)]
                       for _ in range(self.layers)]

    def want_lstm(self):
        p, x = [[a.astype(float) for a in l] for l in self.params], self.x.astype(float)
        if not self.train:
            return {"y": lstm_forward(p, x)[0]}
        first, grads = lstm_step(p, x, self.target)
        p = [[a - self.rate * g for a, g in zip(*l)] for l in zip(p, grads)]
        return {"loss1": np.array(first), "loss2": np.array(lstm_step(p, x, self.target)[0])}

    # the k largest of each row, sorted rows, running sums of rows
    def make_order(self):
        self.x = self.uniform(self.rows, self.n)
        self.tolerance = 1e-3 if self.what == "cumsum" else 1e-5  # who adds one after the other is off by as much

    def want_order(self):
        x = self.x.astype(float)
        if self.what == "top_k":
            return {"y": -np.sort(-x, 1)[:, : self.k]}
        return {"y": np.sort(x, 1) if self.what == "sort" else np.cumsum(x, 1)}

    # parts[rows, wide] side by side, or x0 where which, else x1; gradient: of sum(y dy), as arrays of their own
    def make_concat(self):
        self.scales = [2, -0.5, 4, -8] if self.what == "computed" else [1] * self.parts
        select = self.what == "select"
        self.x = [self.uniform(self.rows, self.wide * (self.parts if select else 1)) for _ in range(2 if select else self.parts)]
        self.which = self.random.integers(0, 2, (self.rows, self.parts * self.wide)).astype(bool)
        self.dy = self.uniform(*([self.rows, self.parts * self.wide] if self.axis else [self.rows * self.parts, self.wide]))

    def want_concat(self):
        dy = self.dy.astype(float)
        if self.what == "select":
            return {"d0": np.where(self.which, dy, 0), "d1": np.where(self.which, 0, dy)} if self.gradient else {"y": np.where(self.which, *self.x)}
        if self.gradient:
            return {f"d{i}": d for i, d in enumerate(np.split(dy, self.parts, self.axis))}
        return {"y": np.concatenate([x * s for x, s in zip(self.x, self.scales)], self.axis)}

    # w[n, n] with so many entries times x[n, columns]; gradient: of sum(y dy) by the entries, row by row, and by x
    def make_sparse(self):
        self.place = np.sort(self.random.choice(self.n * self.n, self.entries, replace=False))
        self.row, self.column = self.place // self.n, self.place % self.n
        self.offset = np.searchsorted(self.row, np.arange(self.n + 1))
        self.values = self.uniform(self.entries)
        self.x, self.dy = self.uniform(self.n, self.columns), self.uniform(self.n, self.columns)
        self.w = np.zeros((self.n, self.n), np.float32)
        self.w[self.row, self.column] = self.values

    def want_sparse(self):
        w, x, dy = self.w.astype(float), self.x.astype(float), self.dy.astype(float)
        if self.what == "gradient":
            return {"dv": (x[self.column] * dy[self.row]).sum(1), "dx": w.T @ dy}
        return {"y": w @ x}

    # what a rival must build; as one of the works above
    def make_compile(self):
        if self.what == "kernel":
            self.inner_work = Work("gemm", dict(m=64, n=64, k=64, constant=1))
        elif self.what == "course":
            order = ["L"] * 35 + ["R"] * 27
            self.random.shuffle(order)
            self.inner_work = Work("mlp", dict(size=64, batch=64, layers="L" + "".join(order)))
        else:
            self.inner_work = Work("train", dict(what="digits", batch=32))

    def want_compile(self):
        return self.inner_work.reference()


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def taps(s):
    """Each tap of the kernel with the part of the padded image that it meets."""
    for p in range(s.kernel):
        for q in range(s.kernel):
            yield p, q, (slice(None), slice(p, p + s.stride * (s.oh - 1) + 1, s.stride), slice(q, q + s.stride * (s.ow - 1) + 1, s.stride))


def grouped(x, w, groups):
    """[.., in] times [in / groups, out] for each group."""
    if groups == 1:
        return x @ w
    parts = x.reshape(*x.shape[:-1], groups, -1)
    return np.einsum("...gi,igo->...go", parts, w.reshape(w.shape[0], groups, -1)).reshape(*x.shape[:-1], -1)


def conv(x, weights, b, s):
    padded = np.pad(x.astype(float), ((0, 0), (s.pad, s.pad), (s.pad, s.pad), (0, 0)))
    y = np.zeros((x.shape[0], s.oh, s.ow, weights.shape[-1])) + b
    for p, q, at in taps(s):
        y += grouped(padded[at], weights[p, q].astype(float), s.groups)
    return y


def conv_backward(s):
    """Gradients of sum(y * dy) by input and weights; groups == 1."""
    pads = ((0, 0), (s.pad, s.pad), (s.pad, s.pad), (0, 0))
    padded, dy = np.pad(s.x.astype(float), pads), s.dy.astype(float)
    dx, dw = np.zeros_like(padded), np.zeros(s.weights.shape)
    for p, q, at in taps(s):
        dx[at] += dy @ s.weights[p, q].astype(float).T
        dw[p, q] = np.einsum("nhwi,nhwo->io", padded[at], dy, optimize=True)
    return {"dx": dx[:, s.pad : s.pad + s.h, s.pad : s.pad + s.w], "dw": dw}


def cross_entropy(scores, labels):
    """Loss, and its gradient by the scores."""
    p, rows = softmax(scores), np.arange(len(labels))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    return loss, p / len(labels)


def mlp_step(p, x, labels):
    a = np.maximum(x @ p[0] + p[1], 0)
    b = np.maximum(a @ p[2] + p[3], 0)
    loss, d = cross_entropy(b @ p[4] + p[5], labels)
    e = (d @ p[4].T) * (b > 0)
    f = (e @ p[2].T) * (a > 0)
    return loss, [x.T @ f, f.sum(0), a.T @ e, e.sum(0), b.T @ d, d.sum(0)]


class Same:  # the geometry of the digits network's convolutions
    kernel, stride, pad, groups, h, w, oh, ow = 3, 1, 1, 1, 8, 8, 8, 8

    def __init__(self, x, weights, dy):
        self.x, self.weights, self.dy = x, weights, dy


def digits_step(p, x, labels):
    n = len(labels)
    a = np.maximum(conv(x, p[0], p[1], Same), 0)
    b = np.maximum(conv(a, p[2], p[3], Same), 0)
    windows = b.reshape(n, 4, 2, 4, 2, 32).transpose(0, 1, 3, 5, 2, 4).reshape(n, 4, 4, 32, 4)
    pooled = windows.max(-1)
    flat = pooled.reshape(n, 512)
    c = np.maximum(flat @ p[4] + p[5], 0)
    loss, d = cross_entropy(c @ p[6] + p[7], labels)
    e = (d @ p[6].T) * (c > 0)
    chosen = windows == pooled[..., None]
    share = chosen / chosen.sum(-1, keepdims=True)
    f = (share * (e @ p[4].T).reshape(n, 4, 4, 32)[..., None]).reshape(n, 4, 4, 32, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(b.shape) * (b > 0)
    back = conv_backward(Same(a, p[2], f))
    g = back["dx"] * (a > 0)
    first = conv_backward(Same(x, p[0], g))
    return loss, [first["dw"], g.sum((0, 1, 2)), back["dw"], f.sum((0, 1, 2)), flat.T @ e, e.sum(0), c.T @ d, d.sum(0)]


def lstm_forward(p, x):
    """The last layer's states, and of each layer its input, gates, c and h."""
    kept = []
    for w_x, w_h, b in p:
        pre, h, c, all_ = x @ w_x + b, np.zeros(x.shape[1:]), np.zeros(x.shape[1:]), []
        for u in pre:
            i, f, g, o = np.split(u + h @ w_h, 4, -1)
            i, f, o = (1 / (1 + np.exp(-a)) for a in (i, f, o))
            g, before = np.tanh(g), (c, h)
            c = f * c + i * g
            h = o * np.tanh(c)
            all_.append((i, f, g, o, *before, c, h))
        kept.append((x, all_))
        x = np.stack([a[-1] for a in all_])
    return x, kept


def lstm_step(p, x, target):
    y, kept = lstm_forward(p, x)
    d, grads = 2 * (y - target) / y.size, []
    for (w_x, w_h, b), (x, all_) in zip(reversed(p), reversed(kept)):
        d_wx, d_wh, d_b, d_x = np.zeros_like(w_x), np.zeros_like(w_h), np.zeros_like(b), np.zeros(x.shape)
        d_h, d_c = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
        for t in reversed(range(len(all_))):
            i, f, g, o, c0, h0, c, _ = all_[t]
            d_h, a = d_h + d[t], np.tanh(c)
            d_c = d_c + d_h * o * (1 - a * a)
            u = np.concatenate([d_c * g * i * (1 - i), d_c * c0 * f * (1 - f), d_c * i * (1 - g * g), d_h * a * o * (1 - o)], -1)
            d_wx, d_wh, d_b = d_wx + x[t].T @ u, d_wh + h0.T @ u, d_b + u.sum(0)
            d_x[t], d_h, d_c = u @ w_x.T, u @ w_h.T, d_c * f
        d = d_x
        grads.insert(0, [d_wx, d_wh, d_b])
    return ((y - target) ** 2).mean(), grads


def error(got, want, tolerance):
    """Largest error over its bound; above 1 is wrong."""
    worst = 0.0
    for name, w in want.items():
        g = np.asarray(got[name], dtype=float).reshape(w.shape)
        bound = tolerance * max(np.abs(w).max(), 1e-30)
        e = np.abs(g - w).max() / bound
        worst = max(worst, e if np.isfinite(e) else np.inf)
    return worst


class Never(Exception):
    """The rival does not do this kind of work at all."""


def timed(job, times):
    start = time.perf_counter()
    job.run(times)
    return time.perf_counter() - start


def prepare(rival, fields, jobs):
    given = dict(f.split("=", 1) for f in fields[3:])
    given = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in given.items()}
    work = Work(fields[2], given)
    if work.kind == "compile":
        job = rival.Compile(work.inner_work)
        work.tolerance = work.inner_work.tolerance
    else:
        job = rival.make(work)
    worst = error(job.result(), work.reference(), work.tolerance)
    if not worst <= 1:
        return f"no wrong result: {worst:.3g} times the error that is allowed"
    job.short = work.kind != "compile"
    jobs[fields[1]] = job
    return f"ok {worst:.3g}"


def serve(rival, out):
    jobs = {}
    for line in sys.stdin:
        fields = line.split()
        if not fields:
            continue
        try:
            if fields[0] == "case":
                answer = prepare(rival, fields, jobs)
            elif fields[0] == "run":
                job = jobs[fields[1]]
                if job.short and getattr(job, "last", 0) < 0.02:
                    job.run(1)
                spent = timed(job, int(fields[2]))
                job.last = spent / int(fields[2])
                answer = f"t {spent:.9f}"
            else:
                jobs.pop(fields[1], None)
                answer = "ok"
        except Never as e:
            answer = f"no - {e}"
        except Exception as e:  # whatever the rival throws is its answer
            answer = "no " + " ".join(f"{type(e).__name__}: {e}".split())[:300]
        print(answer, file=out, flush=True)


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the rival itself prints is not an answer
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        rival = importlib.import_module("rival_" + name.split("_")[0])
        version = rival.start(name, threads)
    except Exception as e:
        print("absent", " ".join(f"{type(e).__name__}: {e}".split())[:200], file=out, flush=True)
        return
    print("ready", version, file=out, flush=True)
    serve(rival, out)


if __name__ == "__main__":
    sys.modules["run"] = sys.modules["__main__"]
    main()
