"""Operators, functions and indexing against NumPy, on tensors and on arrays alone."""

import unittest

import numpy as np

import tenon

rng = np.random.default_rng()


def draw(shape, dtype="float32", low=-3, high=3):
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(max(low, 0) if np.dtype(dtype).kind == "u" else low, high, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def same(got, want, rtol=1e-5, atol=1e-6):
    assert got.shape == want.shape, (got.shape, want.shape)
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=atol)


def erf(x):
    from math import erf as one
    return np.vectorize(one, otypes=[x.dtype])(x)


# name: (NumPy's function, lowest and highest operand)
UNARY = {
    "neg": (np.negative, -3, 3), "abs": (np.abs, -3, 3), "sign": (np.sign, -3, 3), "floor": (np.floor, -3, 3),
    "ceil": (np.ceil, -3, 3), "round": (np.round, -3, 3), "sqrt": (np.sqrt, 0.1, 9), "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "exp": (np.exp, -3, 3), "log": (np.log, 0.1, 9), "log1p": (np.log1p, -0.9, 4), "expm1": (np.expm1, -3, 3),
    "sin": (np.sin, -6, 6), "cos": (np.cos, -6, 6), "tan": (np.tan, -1.3, 1.3), "asin": (np.arcsin, -0.9, 0.9),
    "acos": (np.arccos, -0.9, 0.9), "atan": (np.arctan, -4, 4), "sinh": (np.sinh, -3, 3), "cosh": (np.cosh, -3, 3),
    "tanh": (np.tanh, -4, 4), "asinh": (np.arcsinh, -4, 4), "acosh": (np.arccosh, 1.1, 9), "atanh": (np.arctanh, -0.9, 0.9),
    "erf": (erf, -3, 3), "relu": (lambda x: np.maximum(x, 0), -3, 3), "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -6, 6),
    "erfc": (lambda x: 1 - erf(x), -1, 1), "exp2": (np.exp2, -3, 3), "log2": (np.log2, 0.1, 9), "trunc": (np.trunc, -3, 3),
    "softplus": (lambda x: np.log1p(np.exp(x)), -6, 6), "stop_gradient": (lambda x: x, -3, 3),
}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "mod": np.mod, "atan2": np.arctan2, "hypot": np.hypot,
          "straight_through": lambda x, y: np.broadcast_arrays(x, y)[1],
          "maximum": np.maximum, "minimum": np.minimum, "lt": np.less, "le": np.less_equal, "gt": np.greater,
          "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}


class ElementTypes(unittest.TestCase):
    def test_every_dtype_comes_and_goes(self):
        from tenon import _dtypes
        self.assertEqual(len(_dtypes.ALL), tenon._abi.TN_N_DTYPES)
        for t in _dtypes.ALL:
            self.assertIs(getattr(tenon, t.python_name), t)
            self.assertIs(tenon.dtype(t.name), t)
            bits = rng.integers(0, 2 if t is tenon.bool_ else 100, (3, 5)).astype(t.bits if t.numpy is None else f"u{t.itemsize}")
            a = bits if t.numpy is None else bits.view(t.numpy)
            g = tenon.Graph()
            x = g.input("x", a.shape, t)
            g.output(x[::-1], "y")
            g.output(x.astype("f64"), "wide")
            got = tenon.Session(g.compile())(x=a)
            want = (_dtypes.widened(a, t) if t.numpy is None else a).astype(np.float64)
            np.testing.assert_array_equal(got["wide"], want, err_msg=t.name)
            np.testing.assert_array_equal(got["y"].astype(np.float64), want[::-1], err_msg=t.name)
            if t.numpy is not None and t.numpy.isbuiltin == 1 and t is not tenon.bool_:
                self.assertIs(tenon._dlpack.view(a).dtype, t)  # NumPy says what it is

    def test_integers_wrap_around_as_numpys(self):
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
            info = np.iinfo(name)
            a, b = rng.integers(info.min, info.max, (4, 7), dtype=name, endpoint=True), draw(7, name, 1, 9)
            for form in (lambda x, y: x * x + y, lambda x, y: x - y, lambda x, y: x ^ y, lambda x, y: x < y, lambda x, y: x // y):
                got, want = tenon.compile(form)(a, b), form(a, b)
                self.assertEqual(got.dtype, want.dtype)
                np.testing.assert_array_equal(got, want, err_msg=name)

    def test_floats_of_8_bits(self):
        from tenon import _dtypes
        bits = np.arange(256, dtype=np.uint8)
        for t in (tenon.float8_e4m3fn, tenon.float8_e5m2):
            wide = None if t.numpy is None else tenon.compile(lambda x: x.astype("f32"))(bits.view(t.numpy))
            if wide is not None:
                np.testing.assert_array_equal(_dtypes.widened(bits, t), wide)
            self.assertEqual(_dtypes.widened(bits, t)[np.array([0, 0x38 if t is tenon.float8_e4m3fn else 0x3C, 1])].tolist(),
                             [0, 1, 2.0**-9 if t is tenon.float8_e4m3fn else 2.0**-16])
            self.assertTrue(np.isnan(_dtypes.widened(bits, t)[0x7F]))


class Elementwise(unittest.TestCase):
    def test_every_function_of_the_table(self):
        from tenon import _ops
        bits = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
                "shift_left": np.left_shift, "shift_right": np.right_shift}
        tested = set(UNARY) | set(BINARY) | set(bits) | {"logical_not"}
        # an op that is new in the table has a function of its name, which this list does not know yet: it must compile at least
        for name in set(_ops.__all__) - tested:
            fn = getattr(tenon, name)
            n = fn.__code__.co_argcount
            self.assertEqual(fn(*[draw(4, low=1, high=2) for _ in range(n)]).shape, (4,))
        for name, (want, low, high) in UNARY.items():
            for dtype, rtol in (("float32", 2e-6), ("float64", 1e-12)):
                x = draw((3, 5), dtype, low, high)
                same(getattr(tenon, name)(x), want(x), rtol, rtol)
                same(tenon.compile(lambda t: getattr(t, name)())(x), want(x), rtol, rtol)
        for name, want in BINARY.items():
            x, y = draw((3, 1, 5), low=1, high=4), draw((4, 1), low=1, high=4)
            got = getattr(tenon, name)(x, y)
            same(got, want(x, y))
            self.assertEqual(got.dtype, want(x, y).dtype)
        for name, want in bits.items():
            for dtype in ("int32", "uint8") if name.startswith("shift") else ("int32", "bool"):
                x, y = draw((3, 5), dtype), draw(5, dtype, low=0 if name.startswith("shift") else -3)
                np.testing.assert_array_equal(getattr(tenon, name)(x, y), want(x, y))
        x = draw(7, "bool")
        np.testing.assert_array_equal(tenon.logical_not(x), ~x)

    def test_functions_have_docs(self):
        self.assertIn("Gradient", tenon.exp.__doc__)
        self.assertIn("x but 0", tenon.relu.__doc__.replace(",", "").lower().replace("x  but", "x but"))

    def test_specials(self):
        x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
        np.testing.assert_array_equal(tenon.relu(x), np.array([np.nan, np.inf, 0, 0, 0], np.float32))
        np.testing.assert_array_equal(tenon.maximum(x, np.float32(1)), np.maximum(x, np.float32(1)))
        np.testing.assert_array_equal(tenon.compile(lambda t: t.sum())(x[:2]), np.float32(np.nan))
        empty = np.zeros((0, 3), np.float32)
        self.assertEqual(tenon.exp(empty).shape, (0, 3))
        np.testing.assert_array_equal(tenon.compile(lambda t: t.sum(0))(empty), np.zeros(3, np.float32))
        self.assertTrue(np.isnan(tenon.compile(lambda t: t.mean())(empty)))

    def test_operators_of_arrays_numbers_and_dtypes(self):
        forms = [
            lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a // b, lambda a, b: a % b,
            lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b, lambda a, b: a == b, lambda a, b: a != b,
            lambda a, b: a + 2, lambda a, b: 2 + a, lambda a, b: 3 - a, lambda a, b: a * 2.5, lambda a, b: 1 / b, lambda a, b: 7 // b,
            lambda a, b: 7 % b, lambda a, b: a**2, lambda a, b: a**3, lambda a, b: -a, lambda a, b: +a, lambda a, b: abs(a),
            lambda a, b: a**0, lambda a, b: a - True,
        ]
        for dtype in ("float32", "float64", "int32", "int64"):
            a, b = draw((4, 5), dtype, -9, 9), draw(5, dtype, 1, 6)
            for form in forms:
                want = form(a, b)
                got = tenon.compile(form)(a, b)
                same(got, want, 1e-6, 1e-5)
                self.assertEqual(got.dtype.kind, want.dtype.kind)

    def test_compositions(self):
        x = np.array([np.nan, np.inf, -np.inf, 0.0, 2.5], np.float32)
        for name in ("isnan", "isinf", "isfinite"):
            np.testing.assert_array_equal(getattr(tenon, name)(x), getattr(np, name)(x))
        a = rng.integers(-1 << 31, 1 << 31, 40).astype(np.int32)
        np.testing.assert_array_equal(tenon.bitwise_not(a), ~a)
        np.testing.assert_array_equal(tenon.bitwise_count(a), [bin(int(v) & 0xFFFFFFFF).count("1") for v in a])
        np.testing.assert_array_equal(tenon.count_leading_zeros(a), [32 - (int(v) & 0xFFFFFFFF).bit_length() for v in a])
        np.testing.assert_array_equal(tenon.compile(lambda t: (t << 3) ^ (t >> 2))(a), (a << 3) ^ (a >> 2))
        x, y = draw((4, 3), "float64", -9, 9), draw(3, "float64", 1, 4)
        same(tenon.fmod(x, y), np.fmod(x, y), 1e-12, 1e-12)
        same(tenon.floor_divide(x, y), np.floor_divide(x, y))
        same(tenon.log10(np.abs(x)), np.log10(np.abs(x)), 1e-12, 1e-12)
        same(erf(tenon.erfinv(x / 10)), x / 10, 1e-12, 1e-12)
        from math import lgamma
        same(tenon.lgamma(x), np.vectorize(lgamma)(x), 1e-11, 1e-11)
        same(tenon.digamma(x + 10) - tenon.digamma(x + 9), 1 / (x + 9), 1e-9, 1e-9)
        np.testing.assert_array_equal(tenon.tril(x, -1), np.tril(x, -1))
        np.testing.assert_array_equal(tenon.triu(x, 1), np.triu(x, 1))
        np.testing.assert_array_equal(tenon.one_hot(np.array([1, 0, 5]), 3), np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], np.float32))

    def test_integer_division_rounds_down(self):
        a = np.arange(-7, 8, dtype=np.int32)
        for d in (-3, -1, 2, 3):
            np.testing.assert_array_equal(tenon.compile(lambda x: x // d)(a), a // d)
            np.testing.assert_array_equal(tenon.compile(lambda x: x % d)(a), a % d)
        x = draw(20, "float32", -9, 9)
        np.testing.assert_array_equal(tenon.compile(lambda t: t // 2.0)(x), x // 2)

    def test_arrays_meet_tensors(self):
        a = draw((2, 3))
        c = draw(3)
        same(tenon.compile(lambda x: c + x)(a), c + a)
        same(tenon.compile(lambda x: c @ x.T)(a), c @ a.T)
        same(tenon.compile(lambda x: c[None] - x * c)(a), c[None] - a * c)

    def test_promotion(self):
        pairs = {("f32", "f64"): "f64", ("f16", "bf16"): "f32", ("i32", "f16"): "f16", ("bool", "u8"): "u8", ("i8", "u8"): "i32",
                 ("i32", "i64"): "i64", ("bool", "bool"): "bool", ("i16", "u8"): "i16", ("i16", "u16"): "i32", ("u8", "u16"): "u16",
                 ("u32", "i8"): "i64", ("u64", "i64"): "i64", ("u64", "bf16"): "bf16"}
        g = tenon.Graph()
        for i, ((s, t), want) in enumerate(pairs.items()):
            x, y = g.input(f"x{i}", 2, s), g.input(f"y{i}", 2, t)
            self.assertEqual(tenon.where(x == y, x, y).dtype, want)
            self.assertEqual(tenon.where(x == y, y, x).dtype, want)

    def test_logic(self):
        a, b = draw((3, 4), "bool"), draw(4, "bool")
        for form in (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x, lambda x, y: x == y,
                     lambda x, y: x != y, lambda x, y: x < y):
            np.testing.assert_array_equal(tenon.compile(form)(a, b), form(a, b))
        i = draw(9, "int32", -50, 50)
        np.testing.assert_array_equal(tenon.compile(lambda x: ~x & 12)(i), ~i & 12)
        np.testing.assert_array_equal(tenon.where(a, 1.0, np.float32(2)), np.where(a, np.float32(1), np.float32(2)))


class Reductions(unittest.TestCase):
    def test_axes(self):
        for dtype in ("float32", "float64", "int32", "int64", "uint8", "bool"):
            x = draw((3, 4, 5), dtype, -3, 4)
            for name in ("sum", "prod", "mean", "max", "min", "any", "all"):
                for axis in (None, 0, -1, (0, 2), (1,)):
                    for keep in (False, True):
                        want = getattr(x, name)(axis=axis, keepdims=keep)
                        got = tenon.compile(lambda t: getattr(t, name)(axis, keep))(x)
                        same(got, want, 1e-4, 1e-4)
                        self.assertEqual(got.dtype.kind if name != "mean" else "f", want.dtype.kind.replace("u", "i"), (name, dtype)) \
                            if not (name in ("max", "min") and dtype == "uint8") else None

    def test_others(self):
        x = draw((4, 6))
        same(tenon.var(x, 1), x.var(1), 1e-4)
        same(tenon.std(x, 0, correction=1), x.std(0, ddof=1), 1e-4)
        same(tenon.norm(x), np.linalg.norm(x), 1e-5)
        same(tenon.cumsum(x, 1), x.cumsum(1), 1e-4, 1e-5)
        np.testing.assert_array_equal(tenon.argmax(x, 1), x.argmax(1))
        np.testing.assert_array_equal(tenon.argmin(x), x.argmin())
        np.testing.assert_array_equal(tenon.argmax(x, 0, keepdims=True), x.argmax(0, keepdims=True))
        same(tenon.clip(x, -1, 1), x.clip(-1, 1))
        same(tenon.nn.sum(x, policy="compensated"), x.sum(), 1e-5, 1e-5)


class Shapes(unittest.TestCase):
    def test_order_and_places(self):
        x = np.random.default_rng().standard_normal((3, 8)).astype(np.float32)
        x[0, 2] = np.nan
        np.testing.assert_array_equal(tenon.sort(x), np.sort(x))
        np.testing.assert_array_equal(tenon.sort(x, 0, descending=True), np.sort(x, 0)[::-1])  # NaNs are the largest
        np.testing.assert_array_equal(tenon.argsort(x, axis=1), np.argsort(x, 1, kind="stable"))
        values, index = tenon.top_k(x[1:], 3)
        np.testing.assert_array_equal(values, np.sort(x[1:])[:, :-4:-1])
        np.testing.assert_array_equal(tenon.take_along_axis(x[1:], index, -1), values)
        np.testing.assert_array_equal(tenon.top_k(x[1:], 2, axis=0, largest=False)[0], np.sort(x[1:], 0)[:2])
        base, at, updates = np.ones((4, 3), np.float32), np.array([[0, 3, 1], [0, 2, 7]]), np.arange(6, dtype=np.float32).reshape(2, 3)
        want = base.copy()
        np.add.at(want, (at[:, :2], np.arange(2)), updates[:, :2]), np.add.at(want, (at[:1, 2], [2]), updates[:1, 2])
        np.testing.assert_array_equal(tenon.put_along_axis(base, at, updates, 0, mode="add"), want)
        np.testing.assert_array_equal(tenon.scatter(base, np.array([1, 3, 9]), updates[:, :1].repeat(3, 1)[[0, 1, 1]] * 2, mode="max"),
                                      np.where(np.arange(4)[:, None] == 3, 6, base))
        with self.assertRaises(ValueError):
            tenon.scatter(base, np.array([0]), base[:1], mode="mean")
        rising = np.array([0, 1, 1, 5], np.float32)
        for side in ("left", "right"):
            np.testing.assert_array_equal(tenon.searchsorted(rising, np.array([-1, 1, 6], np.float32), side),
                                          np.searchsorted(rising, [-1, 1, 6], side))
        few = np.array([[3, 1, 3], [0, 1, 7]], np.int32)
        values, count = tenon.unique(few, 6)
        self.assertEqual(count, 4)
        np.testing.assert_array_equal(values, [0, 1, 3, 7, 0, 0])
        places, count = tenon.nonzero(few, 6)
        self.assertEqual(count, 5)
        np.testing.assert_array_equal(places[:5], np.argwhere(few))
        np.testing.assert_array_equal(places[5], [-1, -1])

    def test_indexing(self):
        x = draw((4, 5, 6))
        idx = np.array([[0, -1], [2, 1]])
        forms = [
            lambda a: a[0], lambda a: a[-1, 2], lambda a: a[..., 3], lambda a: a[1:3], lambda a: a[:, ::2], lambda a: a[::-1],
            lambda a: a[3:0:-2, :, 1:], lambda a: a[:, None, 2], lambda a: a[None, ..., None], lambda a: a[1, 2, 3], lambda a: a[5:],
            lambda a: a[2:1], lambda a: a[:, -2:, :-1], lambda a: a[...], lambda a: a[idx], lambda a: a[:, idx], lambda a: a[1:, :, idx],
            lambda a: a[:, [0, 4, 4]], lambda a: a[-100:100], lambda a: a[np.int64(2)], lambda a: a[:, 1][None],
        ]
        for form in forms:
            np.testing.assert_array_equal(tenon.compile(form)(x), form(x))
        i = np.array([3, -4, 0])
        np.testing.assert_array_equal(tenon.compile(lambda a, j: a[j])(x, i), x[i])
        np.testing.assert_array_equal(tenon.compile(lambda a: sum(row for row in a))(x), sum(row for row in x))

    def test_wrong_indices(self):
        g = tenon.Graph()
        x = g.input("x", (3, 4))
        for bad, error in [(3, IndexError), ((0, 0, 0), IndexError), (-4, IndexError), ("a", AttributeError), (1.5, AttributeError),
                           ([0, 3], IndexError), (x > 0, NotImplementedError), (([0], [1]), NotImplementedError)]:
            with self.assertRaises(error):
                x[bad]

    def test_movement(self):
        x = draw((2, 3, 4))
        forms = [
            (lambda a: a.reshape(6, -1), lambda a: a.reshape(6, -1)), (lambda a: a.T, lambda a: a.T), (lambda a: a.mT, lambda a: a.swapaxes(-1, -2)),
            (lambda a: a.transpose(1, 0, 2), lambda a: a.transpose(1, 0, 2)), (lambda a: a.flatten(), lambda a: a.flatten()),
            (lambda a: a.expand_dims((0, -1)), lambda a: np.expand_dims(a, (0, -1))), (lambda a: a[:1].squeeze(), lambda a: a[:1].squeeze()),
            (lambda a: a.expand_dims(1).squeeze(1), lambda a: a), (lambda a: a.broadcast_to((5, 2, 3, 4)), lambda a: np.broadcast_to(a, (5, 2, 3, 4))),
            (lambda a: a.flip(1), lambda a: np.flip(a, 1)), (lambda a: a.pad(((0, 1), (2, 0), (1, 1)), 7), lambda a: np.pad(a, ((0, 1), (2, 0), (1, 1)), constant_values=7)),
            (lambda a: tenon.tril(a), np.tril), (lambda a: tenon.triu(a, 1), lambda a: np.triu(a, 1)),
            (lambda a: tenon.concatenate([a, a[:1]], 0), lambda a: np.concatenate([a, a[:1]], 0)),
            (lambda a: tenon.stack([a, a + 1], -1), lambda a: np.stack([a, a + 1], -1)), (lambda a: tenon.tile(a, (2, 1, 3)), lambda a: np.tile(a, (2, 1, 3))),
            (lambda a: tenon.repeat(a, 3, 1), lambda a: np.repeat(a, 3, 1)), (lambda a: tenon.roll(a, 2, -1), lambda a: np.roll(a, 2, -1)),
            (lambda a: tenon.split(a, 2, 2)[1], lambda a: np.split(a, 2, 2)[1]), (lambda a: tenon.split(a, [1, 2], 1)[1], lambda a: a[:, 1:]),
            (lambda a: a.astype("i32"), lambda a: a.astype(np.int32)),
        ]
        for ours, theirs in forms:
            np.testing.assert_array_equal(tenon.compile(ours)(x), theirs(x))

    def test_functions_on_arrays(self):
        x, y = draw((3, 4)), draw((2, 4))
        np.testing.assert_array_equal(tenon.concatenate([x, y]), np.concatenate([x, y]))
        np.testing.assert_array_equal(tenon.transpose(x), x.T)
        np.testing.assert_array_equal(tenon.reshape(x, (2, 6)), x.reshape(2, 6))
        np.testing.assert_array_equal(tenon.sum([[1, 2], [3, 4]], axis=0), [4, 6])
        np.testing.assert_array_equal(tenon.one_hot(np.array([0, 2, 5]), 3), [[1, 0, 0], [0, 0, 1], [0, 0, 0]])
        np.testing.assert_array_equal(tenon.take(x, np.array([2, 0])), x[[2, 0]])
        base = np.zeros((3, 4), np.float32)
        np.testing.assert_array_equal(tenon.scatter_add(base, np.array([0, 0]), y), np.stack([y[0] + y[1], base[0], base[0]]))
        np.testing.assert_array_equal(tenon.scatter_set(base, np.array([2, 2]), y), np.stack([base[0], base[0], y[1]]))

    def test_made_inside(self):
        f = tenon.compile(lambda x: (tenon.arange(3), tenon.arange(1, 9, 3), tenon.eye(2, 3), tenon.ones((2,)) + x, tenon.zeros((0, 2), "i8")))
        a, b, c, d, e = f(np.float32(1))
        np.testing.assert_array_equal(a, np.arange(3))
        np.testing.assert_array_equal(b, np.arange(1, 9, 3))
        np.testing.assert_array_equal(c, np.eye(2, 3))
        np.testing.assert_array_equal(d, [2, 2])
        self.assertEqual((e.shape, e.dtype), ((0, 2), np.int8))

    def test_matmul(self):
        for s, t in [((3, 4), (4, 5)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 2)), ((4,), (2, 4, 3)), ((0, 4), (4, 2)), ((3, 0), (0, 2))]:
            a, b = draw(s), draw(t)
            same(tenon.matmul(a, b), a @ b, 1e-4, 1e-5)
        a, b = draw((2, 3, 4)), draw((2, 4, 5))
        same(tenon.dot_general(a, b, ((2,), (1,)), ((0,), (0,))), a @ b, 1e-4, 1e-5)
        for spec in ("bij,bjk->bik", "bij,bjk", "bij,ajk->ik", "...j,bjk->k...", "b...,bjk->jk..."):
            same(tenon.einsum(spec, a, b), np.einsum(spec, a, b), 1e-4, 1e-5)

    def test_random(self):
        f = tenon.compile(lambda c: (tenon.random_uniform(c, (1000,)), tenon.random_normal(c, (1000,), 3), tenon.random_bernoulli(c, 1000, 0.25)))
        u, n, b = f(np.int64(5))
        for again, one in zip(f(np.int64(5)), (u, n, b)):
            np.testing.assert_array_equal(again, one)
        self.assertFalse(np.array_equal(f(np.int64(6))[0], u))
        self.assertTrue(0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.05 and abs(n.std() - 1) < 0.15 and abs(b.mean() - 0.25) < 0.08)


class Mistakes(unittest.TestCase):
    def test_exceptions_have_the_callers_line(self):
        def wrong(x):
            return x + np.ones(5, np.float32)
        line = wrong.__code__.co_firstlineno + 1
        with self.assertRaises(tenon.ShapeError) as e:
            tenon.compile(wrong)(np.ones(4, np.float32))
        self.assertIn(f"test_ops.py:{line}: tn_", str(e.exception))
        self.assertIn("broadcast", str(e.exception))
        self.assertIsInstance(e.exception, ValueError)

    def test_kinds(self):
        one = np.ones(3, np.float32)
        with self.assertRaises(TypeError):
            tenon.exp(np.array(["a"]))
        with self.assertRaises(TypeError):
            tenon.exp(one.astype(np.complex64))
        with self.assertRaises(TypeError):
            tenon.compile(lambda x: x if x.sum() > 0 else -x)(one)
        with self.assertRaises(tenon.DTypeError):
            tenon.compile(lambda x: x + 300)(one.astype(np.uint8))
        with self.assertRaises(TypeError):
            tenon.zeros(3)
        with self.assertRaises(tenon.ShapeError):
            tenon.reshape(one, (2, 2))
        with self.assertRaises(tenon.ParseError):
            tenon.Graph.parse("graph @x(")
        with self.assertRaises(TypeError):
            tenon.Graph().input("x", 3).numpy()

    def test_graphs_do_not_mix(self):
        g, h = tenon.Graph("g"), tenon.Graph("h")
        with self.assertRaises(tenon.InvalidError) as e:
            g.input("x", 2) + h.input("y", 2)
        self.assertIn("not of this graph", str(e.exception))


class Immediate(unittest.TestCase):
    def test_values_at_once(self):
        g = tenon.Graph(immediate=True)
        x = g.input("x", (2, 3))
        a = draw((2, 3))
        x.write(a)
        y = (x * 2).sum(1)
        same(y.numpy(), (a * 2).sum(1))
        same(np.asarray(y), (a * 2).sum(1))
        self.assertAlmostEqual(float(y.sum()), float((a * 2).sum()), places=4)
        self.assertEqual(bool((y == y).all()), True)
        (d,) = g.grad(y.sum(), [x])
        np.testing.assert_array_equal(d.numpy(), np.full((2, 3), 2, np.float32))


if __name__ == "__main__":
    unittest.main()
