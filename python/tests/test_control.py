"""cond, while_loop, scan: trees, captured tensors, gradients, sizes of a run, mistakes; beside NumPy."""

import unittest

import numpy as np

import tenon
from tenon import nn

rng = np.random.default_rng()


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


RECURRENT = [("rnn", {}), ("rnn", {"layers": 2, "bidirectional": True, "given": True, "ragged": True}), ("gru", {}), ("gru", {"given": True, "batch_first": True}),
             ("gru", {"layers": 2, "bidirectional": True, "ragged": True}), ("lstm", {"batch_first": True}), ("lstm", {"given": True, "ragged": True}),
             ("lstm", {"projection": 2, "layers": 2, "given": True}), ("lstm", {"peepholes": True, "clip": 0.4, "ragged": True}),
             ("lstm", {"projection": 3, "peepholes": True, "bidirectional": True, "layers": 2, "given": True, "ragged": True, "batch_first": True})]


def recurrent(kind, arrays, states, layers, sides, hidden, wide, more):
    """What a recurrent layer gives, step by step."""
    x, n, b = arrays["x"].astype(np.float64), *arrays["x"].shape[:2]
    lengths = arrays["lengths"] if "ragged" in more else np.full(b, n)
    hs, cs = (arrays[k].astype(np.float64) if "given" in more else np.zeros(arrays[k].shape) for k in ("h", "c"))
    last_h, last_c = [], []
    for layer in range(layers):
        sides_y = []
        for side in range(sides):
            p = {k: states[f"r/l{layer}{'/back' if side else ''}/{k}"] for k in ("w_x", "w_h", "b", *{"gru": ["b_n"]}.get(kind, ()),
                                                                                *(["w_r"] if more.get("projection") else ()), *(["w_c"] if more.get("peepholes") else ()))}
            h, c, y = hs[layer * sides + side], cs[layer * sides + side], np.zeros((n, b, wide))
            for t in range(n)[::-1 if side else 1]:
                a, u, c_new = x[t] @ p["w_x"] + p["b"], h @ p["w_h"], c
                if kind == "rnn":
                    h_new = np.tanh(a + u)
                elif kind == "gru":
                    (ar, az, an), (ur, uz, un) = np.split(a, 3, 1), np.split(u, 3, 1)
                    z, fresh = sigmoid(az + uz), np.tanh(an + sigmoid(ar + ur) * (un + p["b_n"]))
                    h_new = (1 - z) * fresh + z * h
                else:
                    i, f, fresh, o = np.split(a + u, 4, 1)
                    w = p.get("w_c", np.zeros((3, hidden)))
                    c_new = sigmoid(f + c * w[1]) * c + sigmoid(i + c * w[0]) * np.tanh(fresh)
                    c_new = np.clip(c_new, -more["clip"], more["clip"]) if "clip" in more else c_new
                    h_new = sigmoid(o + c_new * w[2]) * np.tanh(c_new)
                    h_new = h_new @ p["w_r"] if "w_r" in p else h_new
                on = (t < lengths)[:, None]
                h, c, y[t] = np.where(on, h_new, h), np.where(on, c_new, c), np.where(on, h_new, 0)
            last_h.append(h), last_c.append(c), sides_y.append(y)
        x = np.concatenate(sides_y, 2)
    return {"y": x, "h_last": np.stack(last_h), "c_last": np.stack(last_c)}


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
        batch, length = tenon.dim("batch", 1, 9), tenon.dim("length", 1, 12)
        runs = 0
        for kind, more in RECURRENT:
            for mode in ("compiled", "graph", "loop"):
                with self.subTest(kind=kind, mode=mode, **more):
                    layers, sides, first = more.get("layers", 1), 1 + more.get("bidirectional", False), more.get("batch_first", False)
                    hidden, wide = 5, more.get("projection") or 5
                    options = {k: v for k, v in more.items() if k not in ("given", "ragged")}
                    g = tenon.Graph()
                    x = g.input("x", (batch, length, 3) if first else (length, batch, 3))
                    given = {"lengths": g.input("lengths", (batch,), "i64")} if "ragged" in more else {}
                    if "given" in more:
                        h = g.input("h", (layers * sides, batch, wide))
                        given["state"] = (h, g.input("c", (layers * sides, batch, hidden))) if kind == "lstm" else h
                    y, last = getattr(nn, kind)(x, hidden, "r", **options, **given)
                    results = {"y": y, **(dict(zip(("h_last", "c_last"), last)) if kind == "lstm" else {"h_last": last})}
                    for name, t in results.items():
                        g.output(t, name)
                    s = g.compile(mode=mode).session()
                    for name in s.states:
                        s[name] = f32(*s[name].shape) * 0.7
                    for n, b in ((1, 1), (2, 3), (7, 1), (12, 9)):
                        arrays = {"x": f32(n, b, 3), "lengths": rng.integers(0, n + 1, b), "h": f32(layers * sides, b, wide),
                                  "c": f32(layers * sides, b, hidden)}
                        want = recurrent(kind, arrays, s, layers, sides, hidden, wide, more)
                        used = {p.name: arrays[p.name] for p in s.program.inputs}
                        if first:
                            used["x"], want["y"] = used["x"].swapaxes(0, 1), want["y"].swapaxes(0, 1)
                        out = s(used)
                        for name in results:
                            self.assertEqual(out[name].shape, want[name].shape)
                            np.testing.assert_allclose(out[name], want[name], rtol=1e-4, atol=2e-5, err_msg=name)
                        runs += 1
        self.assertEqual(runs, len(RECURRENT) * 12)

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
