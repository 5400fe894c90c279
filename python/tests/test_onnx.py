"""tenon.onnx: models written by the onnx package, and the cases of libonnx-testdata, against what they say and ONNX Runtime."""

import tempfile
import unittest
from pathlib import Path

import numpy as np

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    raise unittest.SkipTest("no onnx package here")

import tenon

rng = np.random.default_rng()


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def write(path, nodes, inputs, outputs, weights=()):
    def info(name, t, shape):
        return helper.make_tensor_value_info(name, t, shape)
    graph = helper.make_graph(nodes, "g", [info(*i) for i in inputs], [info(*o) for o in outputs],
                              [numpy_helper.from_array(w, n) for n, w in weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Models(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "m.onnx"

    def tearDown(self):
        self.folder.cleanup()

    def test_contractions_of_16_bits(self):
        w, c = f32(12, 3), f32(4, 3, 3, 3)
        write(self.path, [helper.make_node("Conv", ["x", "c"], ["h"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["h"], ["r"]),
                          helper.make_node("GlobalAveragePool", ["r"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]),
                          helper.make_node("Concat", ["f", "f", "f"], ["l"], axis=1), helper.make_node("MatMul", ["l", "w"], ["y"])],
              [("x", TensorProto.FLOAT, [2, 3, 6, 6])], [("y", TensorProto.FLOAT, [2, 3])], [("w", w), ("c", c)])
        x = f32(2, 3, 6, 6)
        want = tenon.onnx.load(self.path)(x)
        for t, near in (("bf16", 2e-2), (tenon.float16, 3e-3)):
            got = tenon.onnx.load(self.path, dtype=t)(x)
            self.assertEqual(got.dtype, np.float32)
            self.assertFalse(np.array_equal(got, want))
            np.testing.assert_allclose(got, want, atol=near * np.abs(want).max() * 4)
        with self.assertRaisesRegex(tenon.DTypeError, "bf16 or f16"):
            tenon.onnx.load(self.path, dtype="i8")(x)

    def test_open_dims(self):
        """One program, one session, for all sizes of a range; others are errors."""
        w, b = f32(6, 3), f32(3)
        write(self.path, [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])],
              [("x", TensorProto.FLOAT, ["batch", 6])], [("y", TensorProto.FLOAT, ["batch", 3])], [("w", w), ("b", b)])
        fixed = tenon.onnx.load(self.path, threads=1)
        for dims in ({"batch": (1, 64)}, {"x[0]": [1, 64, 1]}):
            m = tenon.onnx.load(self.path, dims=dims, threads=1)
            for n in (1, 7, 64, 7):
                x = f32(n, 6)
                np.testing.assert_allclose(m(x), fixed(x), rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(m(x=x), fixed(x), rtol=1e-5, atol=1e-6)
            self.assertEqual(len(m._sessions), 1)
            self.assertEqual(m.session(f32(3, 6)).program.inputs[0].shape, (None, 6))
            with self.assertRaisesRegex(tenon.InvalidError, "expected 1 to 64"):
                m(f32(65, 6))
        even = tenon.onnx.load(self.path, dims={"batch": (2, 8, 2)}, threads=1)
        self.assertEqual(even(f32(4, 6)).shape, (4, 3))
        with self.assertRaisesRegex(tenon.InvalidError, "a multiple of 2"):
            even(f32(3, 6))
        with self.assertRaisesRegex(tenon.InvalidError, "no input has a dim 'length'"):
            tenon.onnx.load(self.path, dims={"batch": 3, "length": (1, 4)}).graph()
        with self.assertRaisesRegex(ValueError, "lo, hi"):
            tenon.onnx.load(self.path, dims={"batch": (1,)})

    def test_sums_of_open_dims(self):
        """An axis of "past + 1" is one of the run, too: no program for each of its sizes."""
        write(self.path, [helper.make_node("Concat", ["cache", "new"], ["all"], axis=0), helper.make_node("MatMul", ["mask", "all"], ["y"])],
              [("cache", TensorProto.FLOAT, ["past", 4]), ("new", TensorProto.FLOAT, [1, 4]), ("mask", TensorProto.FLOAT, [2, "past + 1"])],
              [("y", TensorProto.FLOAT, [2, 4])], [])
        m = tenon.onnx.load(self.path, dims={"past": (0, 16)}, threads=1)
        for n in (1, 7, 16, 0):
            cache, new, mask = f32(n, 4), f32(1, 4), f32(2, n + 1)
            np.testing.assert_allclose(m(cache, new, mask), mask @ np.concatenate([cache, new]), rtol=1e-4, atol=1e-5)
        self.assertEqual(len(m._sessions), 1)

    def test_a_batch_of_any_size(self):
        w, b = f32(6, 3), f32(3)
        write(self.path, [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])],
              [("x", TensorProto.FLOAT, ["batch", 6])], [("y", TensorProto.FLOAT, ["batch", 3])], [("w", w), ("b", b)])
        m = tenon.onnx.load(self.path, threads=1)
        self.assertEqual((m.inputs[0].name, m.inputs[0].shape, m.inputs[0].dtype), ("x", ("batch", 6), tenon.float32))
        for n in (1, 5, 1, 5, 0):
            x = f32(n, 6)
            e = np.exp(x @ w + b)
            for got in (m(x), m(x=x), m(x), m(np.asfortranarray(x))):
                np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)
        with self.assertRaises(TypeError):
            m(f32(1, 6), f32(1, 6))
        with self.assertRaises(TypeError):
            m(z=f32(1, 6))
        with self.assertRaises(tenon.TenonError):
            m(f32(2, 7))

    def test_parameters(self):
        w = f32(4, 2)
        write(self.path, [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", TensorProto.FLOAT, ["n", 4])],
              [("y", TensorProto.FLOAT, ["n", 2])], [("w", w)])
        m = tenon.onnx.load(self.path, dims={"n": 3}, parameters=True)
        g = m.graph()
        self.assertEqual([p.name for p in g.params], ["w"])
        s = g.compile().session()
        s["w"] = w * 2
        x = f32(3, 4)
        np.testing.assert_allclose(s(x=x)["y"], x @ w * 2, rtol=1e-4, atol=1e-5)

    def test_plain_convolutions(self):
        w, x = f32(64, 64, 3, 3), f32(1, 64, 8, 8)
        write(self.path, [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], [("x", TensorProto.FLOAT, [1, 64, 8, 8])],
              [("y", TensorProto.FLOAT, [1, 64, 8, 8])], [("w", w)])
        models = [tenon.onnx.load(self.path, plain_convolutions=plain) for plain in (False, True)]
        texts = [str(m.graph()) for m in models]
        self.assertGreater(texts[0].count("\n"), texts[1].count("\n"))  # transforms beside the products
        np.testing.assert_allclose(models[0](x), models[1](x), rtol=1e-3, atol=1e-3)

    def test_a_size_that_an_input_gives(self):
        write(self.path, [helper.make_node("Reshape", ["x", "s"], ["y"])], [("x", TensorProto.FLOAT, [6]), ("s", TensorProto.INT64, [2])],
              [("y", TensorProto.FLOAT, [None, None])])
        m, x = tenon.onnx.load(self.path), f32(6)
        for s in ([2, 3], [3, 2], [6, 1], [2, 3]):
            np.testing.assert_array_equal(m(x, np.array(s)), x.reshape(s))

    def test_what_is_refused(self):
        write(self.path, [helper.make_node("NoSuchOp", ["x"], ["y"])], [("x", TensorProto.FLOAT, [2])], [("y", TensorProto.FLOAT, [2])])
        with self.assertRaises(tenon.UnsupportedError) as e:
            tenon.onnx.load(self.path)(f32(2))
        self.assertIn("NoSuchOp", str(e.exception))
        self.path.write_bytes(b"\x08\xff nonsense")
        with self.assertRaises(tenon.TenonError):
            tenon.onnx.load(self.path)

    def test_saved_and_loaded(self):
        f, x, w = tenon.compile(lambda x, w: (x @ w).tanh().sum(1)), f32(3, 4), f32(4, 5)
        tenon.onnx.save(f.graph(x, w), self.path)
        onnx.checker.check_model(onnx.load(self.path))
        np.testing.assert_allclose(tenon.onnx.load(self.path)(x, w), f(x, w), rtol=1e-5)
        try:
            import onnxruntime
        except ImportError:
            return
        other = onnxruntime.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(other.run(None, {"in0": x, "in1": w})[0], f(x, w), rtol=1e-4, atol=1e-5)

    def test_several_outputs(self):
        write(self.path, [helper.make_node("Split", ["x"], ["a", "b"], axis=0), helper.make_node("Add", ["a", "b"], ["c"])],
              [("x", TensorProto.FLOAT, [4])], [("c", TensorProto.FLOAT, [2]), ("a", TensorProto.FLOAT, [2])])
        m, x = tenon.onnx.load(self.path), f32(4)
        for _ in range(2):
            c, a = m(x)
            np.testing.assert_array_equal(c, x[:2] + x[2:])
            np.testing.assert_array_equal(a, x[:2])


if __name__ == "__main__":
    unittest.main()
