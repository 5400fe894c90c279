"""Sizes that a run gives: tenon.dim in graphs, sessions and compiled functions, beside NumPy."""

import threading
import unittest

import numpy as np

import tenon
from tenon import nn, optim

rng = np.random.default_rng()
SIZES = (1, 2, 7, 16, 33, 64)


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


class Shapes(unittest.TestCase):
    def test_arithmetic_and_text(self):
        g = tenon.Graph()
        batch = tenon.dim("batch", 1, 64)
        x = g.input("x", (batch, 4))
        n = x.shape[0]
        self.assertEqual((x.shape, repr(n), x.shape[1]), ((batch, 4), "batch", 4))
        self.assertEqual([(d.lo, d.hi) for d in (n * 2, n + 3, n - 1, 65 - n, n // 2, n.ceil_div(3), n.min(9), n.max(9))],
                         [(2, 128), (4, 67), (0, 63), (1, 64), (0, 32), (1, 22), (1, 9), (9, 64)])
        self.assertEqual((n - n, n * 2 == n + n, n == n.max(1), n == 3), (0, True, True, False))
        self.assertTrue(n >= 1 and n < 65 and n and n + 1 > n)
        for bad in (lambda: int(n), lambda: n > 3, lambda: range(n), lambda: bool(n - 1), lambda: len(x), lambda: batch + 1):
            with self.assertRaises(TypeError):
                bad()
        with self.assertRaises(ValueError):
            tenon.Graph().input("y", (n,))
        with self.assertRaises(tenon.InvalidError):
            g.input("z", (tenon.dim("batch", 1, 63),))
        with self.assertRaises(tenon.InvalidError):
            tenon.Graph().input("z", (tenon.dim("eights", 1, 64, multiple_of=8),))

    def test_no_difference(self):
        g = tenon.Graph()
        n = g.input("x", (tenon.dim("n", 1, 9), 2)).shape[0]
        half = (n - 1) // 2
        self.assertEqual((n - n, half - half, half - (n - 1) // 2), (0, 0, 0))

    def test_builders(self):
        rows = tenon.dim("rows", 1, 64)
        g = tenon.Graph()
        x = g.input("x", (rows, 6))
        n = x.shape[0]
        with g:
            made = [x.reshape(n * 2, 3), x.reshape(-1), x.flatten(), x[1:], x[:5], x[-3:], x[::2], x[1::3], x[::-1], x[0], x[-1], x[:, 2], x[n - 1],
                    x.sum(0) / n, x.mean(0), tenon.arange(n), tenon.arange(1, n + 1), tenon.zeros((n, 2)) + n, x[None].broadcast_to((2, n, 6)),
                    x.expand_dims(1), x.max(1), tenon.concatenate([x, x]), x @ x.T, x[:n // 2], x[[0, -1]]]
        for i, y in enumerate(made):
            g.output(y, f"y{i}")
        s = g.compile().session()
        for r in SIZES:
            a = f32(r, 6)
            want = [a.reshape(r * 2, 3), a.reshape(-1), a.ravel(), a[1:], a[:5], a[-3:], a[::2], a[1::3], a[::-1], a[0], a[-1], a[:, 2], a[r - 1],
                    a.sum(0) / r, a.mean(0), np.arange(r), np.arange(1, r + 1), np.full((r, 2), r), np.broadcast_to(a, (2, r, 6)),
                    a[:, None], a.max(1), np.concatenate([a, a]), a @ a.T, a[:r // 2], a[[0, -1]]]
            out = s(x=a)
            for i, y in enumerate(want):
                self.assertEqual(out[f"y{i}"].shape, y.shape, (r, i))
                np.testing.assert_allclose(out[f"y{i}"], y, rtol=1e-4, atol=1e-4)


class Sessions(unittest.TestCase):
    def setUp(self):
        g = tenon.Graph()
        x, y = g.input("x", (tenon.dim("n", 2, 40, multiple_of=2), 3)), g.input("y", (tenon.dim("m", 1, 9),))
        g.output(x * 2, "a"), g.output(y + 1, "b"), g.output(x.sum(0) * y.sum(), "c")
        self.s = g.compile().session()

    def test_values_are_checked_before_a_run(self):
        for n, m, text in ((42, 1, "dim n is 42: expected 2 to 40, a multiple of 2"), (7, 1, "dim n is 7"), (2, 10, "dim m is 10"), (2, 0, "dim m is 0")):
            with self.assertRaises(tenon.InvalidError) as e:
                self.s(x=f32(n, 3), y=f32(m))
            self.assertIn(text, str(e.exception))
        for bad in (f32(2, 4), f32(2), f32(2, 3, 1)):
            with self.assertRaises(tenon.ShapeError):
                self.s(x=bad, y=f32(1))
        x, y = f32(40, 3), f32(9)
        out = self.s(x=x, y=y)
        np.testing.assert_array_equal(out["a"], x * 2)
        self.assertIn("input x f32[None, 3]", repr(self.s.program))

    def test_bound_arrays_are_of_one_run(self):
        x, y, a = f32(6, 3), f32(4), np.zeros((6, 3), np.float32)
        s = self.s.bind(x=x, y=y, a=a)
        s.run()
        np.testing.assert_array_equal(a, x * 2)
        s.bind(x=f32(8, 3))
        for run in (s.run, s, lambda: s(y=f32(2))):
            with self.assertRaises(tenon.ShapeError) as e:
                run()
            self.assertIn("given is [6, 3]", str(e.exception))
        a = np.zeros((8, 3), np.float32)
        s.bind(a=a).run()
        self.assertTrue(a.any())
        b = s(y=f32(1))["b"]  # another size for one call alone
        self.assertEqual(b.shape, (1,))
        a[:] = 0
        s.run()
        self.assertTrue(a.any())

    def test_rings_and_dims_of_no_array(self):
        x, y = f32(3, 4, 3), f32(3, 5)
        out = self.s.run_n(3, x=x, y=y, trace=["a"])
        np.testing.assert_array_equal(out["a"], x * 2)
        np.testing.assert_array_equal(out["b"], y[2] + 1)
        g = tenon.Graph()
        g.output(g.iota((tenon.dim("n", 0, 9),)), "y")
        s = g.compile().session()
        with self.assertRaises(tenon.InvalidError):
            s()
        for n in (0, 1, 9):
            np.testing.assert_array_equal(s.bind_dim("n", n)()["y"], np.arange(n))


class Functions(unittest.TestCase):
    def test_one_program(self):
        batch = tenon.dim("batch", 1, 64)
        for mode in ("compiled", "graph", "immediate", "loop"):
            f = tenon.compile(lambda x, w: nn.softmax(x @ w), dynamic={"x": (batch,)}, mode=mode)
            w = f32(5, 3)
            for n in SIZES:
                x = f32(n, 5)
                e = np.exp(x @ w)
                np.testing.assert_allclose(f(x, w), e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(f(x=x, w=w), f(x, w))
            self.assertEqual(len(f.programs), 2)  # one as arguments are given by place, one by name
        with self.assertRaises(tenon.InvalidError):
            f(f32(65, 5), w)
        step = f.bound(f32(3, 5), w)
        self.assertEqual(step().shape, (3, 3))
        with self.assertRaises(ValueError):
            tenon.compile(lambda x: x, dynamic={"y": (batch,)})
        with self.assertRaises(TypeError):
            tenon.compile(lambda x: x, dynamic={"x": (batch,)})("text")

    def test_trees_and_ints(self):
        batch, n = tenon.dim("batch", 1, 64), tenon.dim("n", 0, 9)
        f = tenon.compile(lambda p: {"sum": p["x"] + p["y"][0] * p["y"][1], "b": p["b"]}, dynamic={"p": {"x": (batch,), "y": ((batch, None), (batch,))}})
        g = tenon.compile(lambda xs: [x.sum(0) / x.shape[0] for x in xs], dynamic={"xs": (batch,)})  # of each array
        for r in SIZES:
            x, y, z = f32(r, 3), f32(r, 3), f32(r, 1)
            out = f({"x": x, "y": [y, z], "b": np.float32(2)})
            np.testing.assert_allclose(out["sum"], x + y * z, rtol=1e-5, atol=1e-6)
            for got, want in zip(g((x, z)), (x.mean(0), z.mean(0))):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        self.assertEqual((len(f.programs), len(g.programs)), (1, 1))
        ints = tenon.compile(lambda x, n, k: (x[:n].sum(), tenon.arange(n + k) * n, x * n), dynamic={"x": (tenon.dim("rows", 9, 20),), "n": n})
        for r, m in ((9, 0), (12, 9), (12, 3), (20, 3)):
            x = f32(r)
            for how in (lambda: ints(x, m, 2), lambda: ints(x, k=2, n=np.int64(m)), ints.bound(x, m, 2)):
                a, b, c = how()
                np.testing.assert_allclose(a, x[:m].sum(), rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(b, np.arange(m + 2) * m)
                np.testing.assert_allclose(c, x * m, rtol=1e-5)
        self.assertEqual(len(ints.programs), 2)  # as arguments are given by place, and by name
        unused = tenon.compile(lambda x, n: x + 1, dynamic={"n": n})
        self.assertEqual([unused(f32(2), m).shape for m in (1, 2)] + [len(unused.programs)], [(2,), (2,), 1])
        same = tenon.compile(lambda x, n: x.reshape(n, -1), dynamic={"x": (batch,), "n": batch})
        self.assertEqual(same(f32(4, 3), 4).shape, (4, 3))
        for bad, error in ((lambda: same(f32(4, 3), 5), tenon.ShapeError), (lambda: ints(f32(9), 10, 2), tenon.InvalidError),
                           (lambda: ints(f32(9), 1.5, 2), TypeError), (lambda: f({"x": f32(2), "y": f32(2), "b": 1}), TypeError),
                           (lambda: g({"x": "text"}), TypeError), (lambda: same(f32(), 1), tenon.ShapeError)):
            with self.assertRaises(error):
                bad()

    def test_gradients_and_threads(self):
        batch = tenon.dim("batch", 1, 64)
        f = tenon.compile(tenon.value_and_grad(lambda w, x: ((x @ w) ** 2).mean()), dynamic={"x": (batch, None)}, threads=1)
        w, errors = f32(4, 2), []

        def work(seed):
            r = np.random.default_rng(seed)
            for n in SIZES * 3:
                x = r.standard_normal((n, 4)).astype(np.float32)
                value, d = f(w, x)
                if not (np.allclose(value, ((x @ w) ** 2).mean(), rtol=1e-4) and np.allclose(d, x.T @ (x @ w) / n, rtol=1e-3, atol=1e-4)):
                    errors.append(n)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual((errors, len(f.programs)), ([], 1))

    def test_training(self):
        g = tenon.Graph()
        batch = tenon.dim("batch", 1, 64)
        x, t = g.input("x", (batch, 4)), g.input("t", (batch,), "i32")
        loss = g.output(nn.cross_entropy(nn.linear(x, 3, "fc"), t), "loss")
        optim.adam(loss, 0.05)
        s = g.compile().session()
        truth = f32(4, 3)
        losses = []
        for i in range(120):
            a = f32(SIZES[i % 6], 4)
            losses.append(float(s(x=a, t=(a @ truth).argmax(1).astype(np.int32))["loss"]))
        self.assertLess(np.mean(losses[-24:]), np.mean(losses[:24]))
        with self.assertRaises(tenon.ShapeError):
            s(x=f32(3, 4), t=np.zeros(4, np.int32))


if __name__ == "__main__":
    unittest.main()
