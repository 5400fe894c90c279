"""cond, while_loop, scan: trees, captured tensors, gradients, sizes of a run, mistakes; beside NumPy."""

import unittest

import numpy as np

import tenon
from tenon import nn

rng = np.random.default_rng()


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


class Control(unittest.TestCase):
    def test_cond(self):
        f = tenon.compile(lambda p, x, y: tenon.cond(p, lambda a: {"r": a + y, "s": (a.sum(),)}, lambda a: {"r": a * y, "s": (0.0,)}, x))
        x, y = f32(5), f32(5)
        for p in (True, False):
            out = f(np.bool_(p), x, y)
            np.testing.assert_allclose(out["r"], x + y if p else x * y, rtol=1e-6)
            np.testing.assert_allclose(out["s"][0], x.sum() if p else 0, rtol=1e-4, atol=1e-5)
        d = tenon.grad(lambda x: tenon.cond(x.sum() > 0, lambda: (x * x).sum(), lambda: (x * 3).sum()))
        for a in (np.abs(x), -np.abs(x)):
            np.testing.assert_allclose(d(a), 2 * a if a.sum() > 0 else np.full(5, 3), rtol=1e-5)

    def test_while_loop(self):
        f = tenon.compile(lambda n, x, w: tenon.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] @ w), (n, x)))
        x, w = f32(2, 3), f32(3, 3)
        for n in (0, 1, 5):
            left, y = f(np.int64(n), x, w)
            np.testing.assert_allclose(y, x @ np.linalg.matrix_power(w, n), rtol=1e-3, atol=1e-3)
            self.assertEqual(left, 0)
        d = tenon.grad(lambda x: tenon.while_loop(lambda v: v.sum() < 100, lambda v: v * 2, x, most=50).sum())
        np.testing.assert_allclose(d(np.ones(3, np.float32)), [64, 64, 64])

    def test_scan(self):
        for mode in ("compiled", "graph", "immediate", "loop"):
            f = tenon.compile(lambda c, xs, w: tenon.scan(lambda c, x: ((c * w + x).tanh(), (c, x.sum())), c, xs), mode=mode)
            b = tenon.compile(lambda c, xs, w: tenon.scan(lambda c, x: ((c * w + x).tanh(), None), c, xs, reverse=True), mode=mode)
            for n in (1, 2, 7):
                c, xs, w = f32(3), f32(n, 3), f32(3)
                want, seen = c, []
                for x in xs:
                    seen.append(want)
                    want = np.tanh(want * w + x)
                last, (states, sums) = f(c, xs, w)
                np.testing.assert_allclose(last, want, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(states, seen, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(sums, xs.sum(1), rtol=1e-4, atol=1e-5)
                want = c
                for x in xs[::-1]:
                    want = np.tanh(want * w + x)
                last, nothing = b(c, xs, w)
                np.testing.assert_allclose(last, want, rtol=1e-4, atol=1e-5)
                self.assertIsNone(nothing)
        powers = tenon.compile(lambda x: tenon.scan(lambda c, _: (c * x, c), x, length=4))
        last, ys = powers(np.float32(2))
        self.assertEqual((last, ys.tolist()), (32, [2, 4, 8, 16]))

    def test_gradients_of_any_length(self):
        def loss(w, c, xs):
            return tenon.scan(lambda c, x: (c * w + x, None), c, xs)[0].sum()

        f = tenon.compile(tenon.value_and_grad(loss), dynamic={"xs": (tenon.dim("length", 1, 20),)})
        w, c = f32(4), f32(4)
        for n in (1, 3, 20):
            xs = f32(n, 4)
            want, d = c, np.zeros(4)
            for x in xs:
                d, want = d * w + want, want * w + x
            value, got = f(w, c, xs)
            np.testing.assert_allclose(value, want.sum(), rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(got, d, rtol=1e-3, atol=1e-3)
        self.assertEqual(len(f.programs), 1)

    def test_layers_in_a_loop(self):
        g = tenon.Graph()
        x = g.input("x", (5, 2, 3))
        last, _ = tenon.scan(lambda c, x: (nn.linear(tenon.concatenate([c, x], 1), 3, "cell").tanh(), None), g.full((2, 3), 0), x)
        g.output(last, "y")
        self.assertEqual([p.name for p in g.params], ["cell/w", "cell/b"])
        s, a = g.compile().session(), f32(5, 2, 3)
        want = np.zeros((2, 3), np.float32)
        for x in a:
            want = np.tanh(np.concatenate([want, x], 1) @ s["cell/w"] + s["cell/b"])
        np.testing.assert_allclose(s(x=a)["y"], want, rtol=1e-4, atol=1e-5)

    def test_recurrent_layers(self):
        g = tenon.Graph()
        batch, length = tenon.dim("batch", 1, 9), tenon.dim("length", 1, 12)
        x = g.input("x", (length, batch, 3))
        h, last = nn.rnn(x, 4, "rnn")
        y, (_, c) = nn.lstm(x, 5, "lstm")
        z, twice = nn.gru(x, 4, "gru", layers=2, bidirectional=True)
        for name, t in (("h", h), ("last", last), ("y", y), ("c", c), ("z", z), ("twice", twice)):
            g.output(t, name)
        s = g.compile().session()
        sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
        for n, b in ((1, 1), (2, 3), (7, 1), (12, 9)):
            a = f32(n, b, 3)
            out = s(x=a)
            self.assertEqual((out["z"].shape, out["twice"].shape), ((n, b, 8), (4, b, 4)))
            want, hs, cs = np.zeros((b, 4)), np.zeros((b, 5)), np.zeros((b, 5))
            for t in range(n):
                want = np.tanh(a[t] @ s["rnn/l0/w_x"] + s["rnn/l0/b"] + want @ s["rnn/l0/w_h"])
                np.testing.assert_allclose(out["h"][t], want, rtol=1e-4, atol=1e-5)
                i, f, u, o = np.split(a[t] @ s["lstm/l0/w_x"] + s["lstm/l0/b"] + hs @ s["lstm/l0/w_h"], 4, 1)
                cs = sigmoid(f) * cs + sigmoid(i) * np.tanh(u)
                hs = sigmoid(o) * np.tanh(cs)
                np.testing.assert_allclose(out["y"][t], hs, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(out["last"][0], want, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(out["c"][0], cs, rtol=1e-4, atol=1e-5)

    def test_mistakes(self):
        x = f32(3)

        def fails():
            raise KeyError("mine")

        for bad, error in ((lambda x: tenon.cond(x.sum() > 0, lambda: x, lambda: (x, x)), ValueError),
                           (lambda x: tenon.cond(x.sum() > 0, lambda: x, lambda: x[:2]), tenon.ShapeError),
                           (lambda x: tenon.cond(x.sum() > 0, lambda: x, fails), KeyError),
                           (lambda x: tenon.while_loop(lambda c: c, lambda c: c, x), tenon.DTypeError),
                           (lambda x: tenon.while_loop(lambda c: c.sum() > 0, lambda c: c[:2], x), tenon.ShapeError),
                           (lambda x: tenon.scan(lambda c, x: c, x, x), TypeError),
                           (lambda x: tenon.scan(lambda c, x: (c, x), x), ValueError)):
            with self.assertRaises(error):
                tenon.compile(bad)(x)


if __name__ == "__main__":
    unittest.main()
