"""compile, grad, value_and_grad: signatures, nested arguments, states, threads."""

import threading
import unittest

import numpy as np

import tenon
from tenon import nn, optim

rng = np.random.default_rng()


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


class Compile(unittest.TestCase):
    def test_the_first_line_of_the_readme(self):
        a, w = f32(8, 16), f32(16, 4)
        y = tenon.compile(lambda x, w: (x @ w).relu())(a, w)
        np.testing.assert_allclose(y, np.maximum(a @ w, 0), rtol=1e-4, atol=1e-5)

    def test_one_program_a_signature(self):
        traced = []

        @tenon.compile(threads=1)
        def f(x, scale=1.0, *, times=1, name="a"):
            """Doc."""
            traced.append(x.shape)
            return x * scale * times

        x = f32(3)
        np.testing.assert_allclose(f(x), x)
        np.testing.assert_allclose(f(x + 1), x + 1)
        np.testing.assert_allclose(f(x, 2.0), x * 2, rtol=1e-6)
        np.testing.assert_allclose(f(x, 3.5), x * 3.5, rtol=1e-6)  # a float is an input
        np.testing.assert_allclose(f(x, times=3), x * 3, rtol=1e-6)  # an int is not
        f(x.astype(np.float64)), f(f32(4)), f(x, name="b")
        self.assertEqual(len(traced), 6)
        self.assertEqual((f.__name__, f.__doc__), ("f", "Doc."))

    def test_trees(self):
        @tenon.compile
        def f(params, xs):
            return {"sum": params["w"] + xs[0], "all": (xs[1], [params["w"], 5]), "none": None}

        w, a, b = f32(2), f32(2), f32(3)
        out = f({"w": w}, (a, b))
        np.testing.assert_array_equal(out["sum"], w + a)
        np.testing.assert_array_equal(out["all"][0], b)
        np.testing.assert_array_equal(out["all"][1][0], w)
        self.assertEqual((out["all"][1][1], out["none"]), (5, None))
        doubled = tenon.tree_map(lambda x, y: x + y, {"a": a, "b": (b,)}, {"a": a, "b": (b,)})
        np.testing.assert_array_equal(doubled["b"][0], b + b)
        with self.assertRaises(ValueError):
            tenon.tree_map(lambda x, y: x, {"a": a}, {"b": a})

    def test_inputs_of_every_kind(self):
        f = tenon.compile(lambda x: x + x)
        x = f32(6, 8)
        for view in (x[::2], x[:, ::-1], x.T, x[1:5, 2:3], np.asfortranarray(x), x[:0], x.astype(">f4"), x[0, 0], np.float32(3)):
            np.testing.assert_array_equal(f(view), np.asarray(view + view, np.float32))
        x.flags.writeable = False
        np.testing.assert_array_equal(f(x), x + x)
        for dtype in (np.float64, np.float16, np.int8, np.int32, np.int64, np.uint8):
            a = np.arange(5).astype(dtype)
            self.assertEqual(f(a).dtype, dtype)
            np.testing.assert_array_equal(f(a), a + a)

    def test_outputs_are_the_callers(self):
        f = tenon.compile(lambda x: x * 2)
        a = f(f32(4))
        kept = a.copy()
        f(f32(4))
        np.testing.assert_array_equal(a, kept)

    def test_functions_within_functions(self):
        inner = tenon.compile(lambda x: x.exp())
        x = f32(5)
        f = tenon.compile(lambda t: inner(t) * 2)
        np.testing.assert_allclose(f(x), np.exp(x) * 2, rtol=1e-5)
        self.assertEqual(f.program(x).stats()["kernels"], 1)

    def test_modes_and_options(self):
        x, w = f32(9, 33), f32(33, 7)
        for mode in ("immediate", "graph", "compiled", "loop"):
            y = tenon.compile(lambda a, b: (a @ b).tanh(), mode=mode)(x, w)
            np.testing.assert_allclose(y, np.tanh(x @ w), rtol=1e-4, atol=1e-5)
        with self.assertRaises(ValueError):
            tenon.compile(lambda a: a, mode="fast")(x)
        with self.assertRaises(tenon.TenonError):
            tenon.compile(lambda a: a, device="abacus")(x)

    def test_states_are_one_set(self):
        def step(x, t):
            loss = nn.cross_entropy(nn.linear(x, 3, "fc"), t)
            optim.sgd(loss, 0.5)
            return loss

        f = tenon.compile(step)
        x, t = f32(30, 4), rng.integers(0, 3, 30)
        first = f(x, t)
        for _ in range(20):
            f(x[:10], t[:10]), f(x[10:], t[10:])
        self.assertLess(f(x, t), first)
        self.assertEqual(f.session(x, t).states, ["fc/w", "fc/b"])

    def test_threads(self):
        f = tenon.compile(lambda x, w: (x @ w).relu().sum(0), threads=1)
        w, errors = f32(40, 40), []

        def work(seed):
            r = np.random.default_rng(seed)
            for n in [3, 17, 3, 64] * 10:
                x = r.standard_normal((n, 40)).astype(np.float32)
                if not np.allclose(f(x, w), np.maximum(x @ w, 0).sum(0), rtol=1e-3, atol=1e-3):
                    errors.append(n)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(errors, [])

    def test_an_error_leaves_the_function_usable(self):
        f = tenon.compile(lambda x, y: x + y)
        with self.assertRaises(tenon.ShapeError):
            f(f32(3), f32(4))
        a = f32(3)
        np.testing.assert_array_equal(f(a, a), a + a)

    def test_explain(self):
        f = tenon.compile(lambda x: x.exp().sum())
        self.assertIn("kernel", f.explain(f32(5)))
        html = f.program(f32(5))._repr_html_()
        self.assertIn("<details>", html)
        self.assertNotIn("<-", html)
        self.assertIn("graph @", str(f.graph(f32(5))))


class Gradients(unittest.TestCase):
    def test_against_differences(self):
        def f(x, w):
            return ((x @ w).tanh() * w.sum(0)).mean()

        x, w = rng.standard_normal((4, 3)), rng.standard_normal((3, 5))
        value, (dx, dw) = tenon.value_and_grad(f, (0, 1))(x, w)
        run = tenon.compile(f)
        self.assertAlmostEqual(float(value), float(run(x, w)))
        for a, d in ((x, dx), (w, dw)):
            for i in np.ndindex(a.shape):
                old, h = a[i], 1e-6
                a[i] = old + h
                up = float(run(x, w))
                a[i] = old - h
                down = float(run(x, w))
                a[i] = old
                self.assertAlmostEqual((up - down) / 2 / h, d[i], places=6)

    def test_trees_aux_and_second_order(self):
        params = {"w": f32(3), "b": f32(3)}
        x = f32(3)
        loss = lambda p, x: (((p["w"] * x + p["b"]) ** 2).sum(), p["w"] * x)  # noqa: E731
        grads, aux = tenon.grad(loss, has_aux=True)(params, x)
        np.testing.assert_allclose(grads["b"], 2 * (params["w"] * x + params["b"]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(aux, params["w"] * x, rtol=1e-6)
        cube = lambda t: (t * t * t).sum()  # noqa: E731
        second = tenon.grad(lambda t: tenon.grad(cube)(t).sum())
        np.testing.assert_allclose(second(x), 6 * x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(tenon.compile(lambda t: t - 0.1 * tenon.grad(cube)(t))(x), x - 0.3 * x * x, rtol=1e-4, atol=1e-5)

    def test_mistakes(self):
        with self.assertRaises(tenon.ShapeError):
            tenon.grad(lambda x: x * 2)(f32(3))
        with self.assertRaises(ValueError):
            tenon.grad(lambda x: x.sum(), 1)(f32(3))
        with self.assertRaises(TypeError):
            tenon.grad(lambda x: 1.0)(f32(3))
        with self.assertRaises(tenon.DTypeError):
            tenon.grad(lambda x: x.sum())(np.arange(3))


class Training(unittest.TestCase):
    def test_a_loop_with_functions_alone(self):
        x = f32(64, 5)
        truth = f32(5, 2)
        y = x @ truth
        step = tenon.compile(lambda w, x, y: (lambda v, g: (v, w - 0.1 * g))(*tenon.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)))
        w = np.zeros((5, 2), np.float32)
        for _ in range(300):
            loss, w = step(w, x, y)
        self.assertLess(float(loss), 1e-4)

    def test_layers_and_adam(self):
        g = tenon.Graph("net")
        g.set_seed(3)
        x, t = g.input("x", (32, 8, 8, 1)), g.input("t", (32,), "i32")
        h = nn.conv2d(x, 4, 3, "conv", padding=1).relu()
        h = nn.max_pool(h, 2).reshape(32, -1)
        loss = nn.cross_entropy(nn.linear(nn.layer_norm(h, "ln"), 2, "fc"), t)
        rate = g.state("rate", 0.01)
        optim.adamw(loss, rate)
        g.output(loss, "loss")
        s = g.compile().session()
        a = f32(32, 8, 8, 1)
        labels = (a.mean((1, 2, 3)) > 0).astype(np.int32)
        losses = [float(s(x=a, t=labels)["loss"]) for _ in range(60)]
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertIn("adam/step", s.states)
        self.assertEqual(int(s["adam/step"]), 60)
        s["rate"] = 0.0
        before = s["fc/w"]
        s(x=a, t=labels)
        np.testing.assert_allclose(s["fc/w"], before, atol=1e-6)


class Layers(unittest.TestCase):
    def test_against_numpy(self):
        x = f32(4, 6)
        e = np.exp(x - x.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        np.testing.assert_allclose(nn.softmax(x), p, rtol=1e-5)
        np.testing.assert_allclose(nn.log_softmax(x), np.log(p), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(nn.logsumexp(x), np.log(np.exp(x).sum(-1)), rtol=1e-5)
        labels = np.array([0, 5, 2, 3])
        np.testing.assert_allclose(nn.cross_entropy(x, labels), -np.log(p[np.arange(4), labels]).mean(), rtol=1e-4)
        y = f32(4, 6)
        np.testing.assert_allclose(nn.mse(x, y), ((x - y) ** 2).mean(), rtol=1e-5)
        np.testing.assert_allclose(nn.l1(x, y), np.abs(x - y).mean(), rtol=1e-5)
        np.testing.assert_allclose(nn.silu(x), x / (1 + np.exp(-x)), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(nn.leaky_relu(x, 0.2), np.where(x > 0, x, 0.2 * x), rtol=1e-6)
        q, k, v = f32(2, 5, 4), f32(2, 7, 4), f32(2, 7, 3)
        s = q @ k.swapaxes(-1, -2) / 2
        s = np.exp(s - s.max(-1, keepdims=True))
        np.testing.assert_allclose(nn.attention(q, k, v), s / s.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)
        image = f32(1, 4, 4, 2)
        np.testing.assert_allclose(nn.avg_pool(image, 2), image.reshape(1, 2, 2, 2, 2, 2).mean((2, 4)), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(nn.max_pool(image, 2), image.reshape(1, 2, 2, 2, 2, 2).max((2, 4)))

    def test_losses_against_numpy(self):
        x, t = f32(6, 5), np.array([0, 4, 2, -100, 1, 1])
        p = x - np.log(np.exp(x).sum(1, keepdims=True))
        rows = t >= 0
        want = -(0.9 * p[rows, t[rows]] + 0.1 * p[rows].mean(1)).mean()
        np.testing.assert_allclose(nn.cross_entropy(x, t, smoothing=0.1, ignore_index=-100), want, rtol=1e-5)
        w = np.array([1, 2, 0.5, 1, 3], np.float32)
        want = -(w[t[rows]] * p[rows, t[rows]]).sum() / w[t[rows]].sum()
        np.testing.assert_allclose(nn.cross_entropy(x, t, ignore_index=-100, weights=w), want, rtol=1e-5)
        q, y = 1 / (1 + np.exp(-x)), np.abs(f32(6, 5)) % 1
        want = -(y * np.log(q) + (1 - y) * np.log(1 - q)).mean()
        np.testing.assert_allclose(nn.bce(q, y), want, rtol=1e-5)
        np.testing.assert_allclose(nn.focal(x, y, -1.0, 0.0), want, rtol=1e-5)
        a, b = f32(4, 3), f32(4, 3)
        want = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        np.testing.assert_allclose(nn.cosine_similarity(a, b), want, rtol=1e-4, atol=1e-6)
        path = np.log(np.array([[[0.5, 0.5]], [[0.25, 0.75]]], np.float32))
        want = -np.log(0.5 * 0.75 + 0.5 * 0.25 + 0.5 * 0.75)
        got = nn.ctc(path, np.array([[1]]), np.array([2]), np.array([1]))
        np.testing.assert_allclose(got, want, rtol=1e-5)

    def test_distributions(self):
        def draw(counter):
            a = tenon.full((4096,), 2.5)
            return (tenon.random_exponential(counter, 4096), tenon.random_gamma(counter, a), tenon.random_beta(counter, a, a),
                    tenon.random_poisson(counter, a), tenon.random_truncated_normal(counter, 4096),
                    tenon.random_categorical(counter, tenon.zeros((4096, 4)))[:, 0], tenon.random_permutation(counter, 4096))
        samples = tenon.compile(draw)(np.int64(3))
        for x, mean in zip(samples, (1, 2.5, 0.5, 2.5, 0, 1.5, 2047.5)):
            self.assertLess(abs(x.mean() - mean), 0.15)
        np.testing.assert_array_equal(np.sort(samples[-1]), np.arange(4096))

    def test_scopes_and_reuse(self):
        g = tenon.Graph()
        x = g.input("x", (2, 3))
        for i in range(2):
            with g.scope(f"layer{i}"):
                x = nn.linear(x, 3, "fc")
        with g.scope("layer0"), g.reuse():
            nn.linear(x, 3, "fc")
        self.assertEqual([p.name for p in g.params], ["layer0/fc/w", "layer0/fc/b", "layer1/fc/w", "layer1/fc/b"])
        self.assertEqual(g.find("layer1/fc/w").shape, (3, 3))
        self.assertIsNone(g.find("layer2/fc/w"))

    def test_every_layer_builds(self):
        g = tenon.Graph()
        x, i = g.input("x", (2, 8, 8, 4)), g.input("i", (2, 3), "i64")
        c = g.counter()
        for y, shape in [
            (nn.conv2d(x, 6, 3, "a", stride=2, padding=1, groups=2), (2, 4, 4, 6)), (nn.conv1d(x[:, 0], 5, 3, "b"), (2, 6, 5)),
            (nn.conv3d(x[:, None], 3, (1, 3, 3), "c", bias=False), (2, 1, 6, 6, 3)), (nn.group_norm(x, 2, "d"), x.shape), (nn.instance_norm(x, "d2"), x.shape), (nn.drop_path(x, 0.5, c, "g2"), x.shape),
            (nn.spatial_dropout(x, 0.5, c, "g3"), x.shape), (nn.alpha_dropout(x, 0.5, c, "g4"), x.shape),
            (nn.batch_norm(x, "e"), x.shape), (nn.rms_norm(x, "f"), x.shape), (nn.dropout(x, 0.5, c, "g"), x.shape),
            (nn.embedding(i, 10, 7, "h"), (2, 3, 7)), (nn.linear(x, 3, "j", bias=False), (2, 8, 8, 3)),
            (nn.conv2d(x, 4, (3, 1), "k", padding=(1, 0)), x.shape), (nn.huber(x, x * 2), ()), (nn.elu(x), x.shape),
        ] + [(getattr(nn, n)(x), x.shape) for n in ("gelu", "gelu_tanh", "selu", "relu6", "softplus", "log_sigmoid", "softsign", "mish",
                                                   "hard_tanh", "hard_sigmoid", "hard_swish", "relu")]:
            self.assertEqual(y.shape, shape)
        names = [p.name for p in g.params]
        self.assertIn("a/w", names)
        self.assertNotIn("j/b", names)


if __name__ == "__main__":
    unittest.main()
