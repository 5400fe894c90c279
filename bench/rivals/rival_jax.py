"""JAX on the CPU: one jitted function a work, called once before it is timed, operands on the device; training keeps its state there
(donated) and runs many steps in one call where that is faster."""
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from run import Never


def start(name, threads):
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a hand-over to another thread costs more than small works
    return jax.__version__


def forward(work):
    """(function, operands) with constants inside the function, as a model's weights are."""
    if work.kind == "gemm":
        f = lambda x, w, b: jnp.maximum(x @ w + b, 0)
        if work.constant:
            w, b = jnp.asarray(work.w), jnp.asarray(work.b)
            return lambda x: f(x, w, b), [work.x]
        return f, [work.x, work.w, work.b]
    if work.kind == "conv":
        w, b = jnp.asarray(work.weights), jnp.asarray(work.b)

        def conv(x, w):
            return lax.conv_general_dilated(x, w, (work.stride,) * 2, [(work.pad,) * 2] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                            feature_group_count=work.groups)

        if work.backward:
            return lambda x, w, dy: jax.vjp(conv, x, w)[1](dy), [work.x, work.weights, work.dy]
        return lambda x: conv(x, w) + b, [work.x]
    if work.kind == "rows":
        return rows(work.what), [work.x]
    if work.kind == "mlp":
        w, b = [jnp.asarray(a) for a in work.w], [jnp.asarray(a) for a in work.b]

        def network(x):
            i = 0
            for layer in work.layers:
                if layer == "L":
                    x, i = x @ w[i] + b[i], i + 1
                else:
                    x = jnp.maximum(x, 0)
            return jax.nn.softmax(x)

        return network, [work.x]
    raise Never(work.kind)


def rows(what):
    def norm(x):
        d = x - x.mean(-1, keepdims=True)
        return d * lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5)

    def chain(x):
        a = jnp.abs(1.25 * x + 0.5)
        return -jnp.minimum(0.75 * jnp.maximum(a * x - x, -0.25) + a, 2)

    return {"softmax": jax.nn.softmax, "layer_norm": norm, "chain_of_10": chain, "transpose": lambda x: x.T, "copy": jnp.copy}[what]


class Forward:
    def __init__(self, work):
        f, operands = forward(work)
        self.operands = [jax.device_put(v) for v in operands]
        self.call = jax.jit(f)  # its call path is faster than that of an ahead-of-time executable
        self.names = ["dx", "dw"] if work.kind == "conv" and work.backward else ["y"]

    def run(self, times):
        call, operands = self.call, self.operands
        for _ in range(times):
            jax.block_until_ready(call(*operands))

    def result(self):
        out = self.call(*self.operands)
        return dict(zip(self.names, out if isinstance(out, (tuple, list)) else [out]))


def scores_mlp(p, x):
    x = jnp.maximum(x @ p[0] + p[1], 0)
    x = jnp.maximum(x @ p[2] + p[3], 0)
    return x @ p[4] + p[5]


def scores_digits(p, x):
    conv = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jnp.maximum(conv(x, p[0]) + p[1], 0)
    x = jnp.maximum(conv(x, p[2]) + p[3], 0)
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").reshape(x.shape[0], -1)
    x = jnp.maximum(x @ p[4] + p[5], 0)
    return x @ p[6] + p[7]


def step_of(work):
    scores = scores_mlp if work.what == "mlp" else scores_digits

    def loss(p, x, labels):
        return -jnp.take_along_axis(jax.nn.log_softmax(scores(p, x)), labels[:, None], 1).mean()

    def step(state, x, labels):
        p, m, v, t = state
        value, g = jax.value_and_grad(loss)(p, x, labels)
        if work.what == "mlp":
            return (jax.tree.map(lambda a, d: a - work.rate * d, p, g), m, v, t), value
        t = t + 1
        m = jax.tree.map(lambda a, d: 0.9 * a + 0.1 * d, m, g)
        v = jax.tree.map(lambda a, d: 0.999 * a + 0.001 * d * d, v, g)
        c, d = 1 - 0.9**t, 1 - 0.999**t
        p = jax.tree.map(lambda a, m, v: a - work.rate * (m / c) / (jnp.sqrt(v / d) + 1e-8), p, m, v)
        return (p, m, v, t), value

    return step


class Train:
    def __init__(self, work):
        p = [jax.device_put(a) for a in work.params]
        moments = [jnp.zeros_like(a) for a in p] if work.what != "mlp" else []
        self.state = (p, moments, [jnp.zeros_like(a) for a in moments], jnp.float32(0))
        self.data = jax.device_put(work.x), jax.device_put(work.labels)
        step = step_of(work)

        def many(state, n, x, labels):
            return lax.fori_loop(0, n, lambda i, s: step(s, x, labels)[0], state)

        self.one = jax.jit(step, donate_argnums=0)
        self.many = jax.jit(many, donate_argnums=0)
        self.losses = []
        for _ in range(2):
            self.state, value = self.one(self.state, *self.data)
            self.losses.append(float(value))
        spent = []
        for self.loop in (False, True):
            self.run(3)
            start = time.perf_counter()
            self.run(20)
            spent.append(time.perf_counter() - start)
        self.loop = spent[1] < spent[0]

    def run(self, times):
        if self.loop:
            self.state = self.many(self.state, times, *self.data)
        else:
            for _ in range(times):
                self.state, _ = self.one(self.state, *self.data)
        jax.block_until_ready(self.state)

    def result(self):
        return {"loss1": self.losses[0], "loss2": self.losses[1]}


def make(work):
    return Train(work) if work.kind == "train" else Forward(work)


class Compile:
    """Tracing, lowering and compiling."""

    def __init__(self, work):
        self.work = work

    def run(self, times):
        for _ in range(times):
            jax.clear_caches()
            if self.work.kind == "train":
                p = self.work.params
                moments = [np.zeros_like(a) for a in p]
                state = (p, moments, moments, np.float32(0))
                jax.jit(step_of(self.work), donate_argnums=0).lower(state, self.work.x, self.work.labels).compile()
            else:
                f, operands = forward(self.work)
                jax.jit(f).lower(*operands).compile()

    def result(self):
        return make(self.work).result()
