"""Sessions: binding in place, lifetimes, DLPack, wrong arrays, states and files, threads, forks."""

import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
import unittest
import weakref
from pathlib import Path

import numpy as np

import tenon

rng = np.random.default_rng()


def f32(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def doubler(n=4, dtype="f32"):
    g = tenon.Graph()
    g.output(g.input("x", n, dtype) * 2, "y")
    return g.compile().session()


class Foreign:
    """An array of another library: NumPy's, seen through DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Binding(unittest.TestCase):
    def test_in_place(self):
        s, x, y = doubler(), f32(4), np.empty(4, np.float32)
        s.bind(x=x, y=y)
        s.run()
        np.testing.assert_array_equal(y, x * 2)
        x += 1
        s.run()
        np.testing.assert_array_equal(y, x * 2)
        self.assertEqual(s(), {})  # y is bound
        s.bind(y=None)
        np.testing.assert_array_equal(s()["y"], x * 2)
        s.bind(x=None)
        with self.assertRaises(ValueError):
            s()
        with self.assertRaises(tenon.InvalidError):
            s.run()

    def test_bound_functions(self):
        a, w = f32(3, 4), f32(4, 2)
        step = tenon.compile(lambda x, w: {"y": x @ w}).bound(a, w)
        np.testing.assert_allclose(step()["y"], a @ w, rtol=1e-4, atol=1e-5)
        a *= 2
        step.run()
        np.testing.assert_allclose(step.outputs["y"], a @ w, rtol=1e-4, atol=1e-5)

    def test_bound_arrays_stay_alive(self):
        s = doubler(100000)
        x = np.ones(100000, np.float32)
        gone = weakref.ref(x)
        s.bind(x=x, y=np.zeros(100000, np.float32))
        del x
        gc.collect()
        junk = [np.full(100000, 7, np.float32) for _ in range(5)]
        self.assertIsNotNone(gone())
        s.run()
        s.bind(y=None)
        np.testing.assert_array_equal(s()["y"], 2)
        s.bind(x=None)
        gc.collect()
        self.assertIsNone(gone())
        del junk

    def test_what_cannot_be_bound(self):
        s = doubler(4)
        for bad, error in [(f32(8)[::2], ValueError), (f32(5), tenon.ShapeError), (f32(4).astype(np.float64), tenon.DTypeError),
                           ([1, 2, 3, 4], ValueError), (f32(4).astype(">f4"), ValueError), ("text", TypeError)]:
            with self.assertRaises(error):
                s.bind(x=bad)
        y = np.empty(4, np.float32)
        y.flags.writeable = False
        with self.assertRaises(ValueError):
            s.bind(y=y)
        with self.assertRaises(ValueError):
            s.bind(z=f32(4))
        x = f32(5)
        with self.assertRaises(tenon.InvalidError) as e:  # an output over its input
            s.bind(x=x[:4], y=x[1:]).run()
        self.assertIn("overlap", str(e.exception))

    def test_wrong_arrays_of_a_call(self):
        s = doubler(4)
        for bad, error in [(f32(3), tenon.ShapeError), (f32(4).astype(np.int32), tenon.DTypeError), (np.array(["a"] * 4), TypeError)]:
            with self.assertRaises(error) as e:
                s(x=bad)
        for bad in ({}, {"q": f32(4)}):
            with self.assertRaises(ValueError) as e:
                s(bad)
        self.assertIn("input x f32[4]", str(e.exception))
        np.testing.assert_array_equal(s(x=[1, 2, 3, 4.5])["y"], [2, 4, 6, 9])
        i = doubler(2, "i8")
        np.testing.assert_array_equal(i(x=[1, -2])["y"], [2, -4])
        for bad in ([1, 300], [1, 1.5]):
            with self.assertRaises(tenon.DTypeError):
                i(x=bad)

    def test_zero_sizes_and_scalars(self):
        s = doubler(0)
        self.assertEqual(s(x=np.zeros(0, np.float32))["y"].shape, (0,))
        s.bind(x=np.zeros(0, np.float32), y=np.zeros(0, np.float32)).run()
        s = doubler(())
        self.assertEqual(s(x=1.5)["y"], 3)

    def test_overhead_is_small(self):
        """Not a timing test of the machine: a hundred thousand runs that each took more than 20 us would be a defect."""
        s = doubler(4).bind(x=f32(4), y=np.empty(4, np.float32))
        begin = time.perf_counter()
        for _ in range(20000):
            s.run()
        self.assertLess((time.perf_counter() - begin) / 20000, 2e-5 * 10)


class DLPack(unittest.TestCase):
    def test_without_copies(self):
        a = f32(3, 4)
        v = tenon._dlpack.view(Foreign(a))
        self.assertEqual((v.pointer, v.shape, v.dtype, v.contiguous), (a.ctypes.data, a.shape, tenon.float32, True))
        self.assertFalse(tenon._dlpack.view(Foreign(a.T)).contiguous)
        s = doubler((3, 4))
        y = np.empty((3, 4), np.float32)
        s.bind(x=Foreign(a), y=Foreign(y)).run()
        np.testing.assert_array_equal(y, a * 2)
        a += 1
        s.run()
        np.testing.assert_array_equal(y, a * 2)
        with self.assertRaises(ValueError):
            s.bind(x=Foreign(f32(4, 3).T))

    def test_as_arguments(self):
        f = tenon.compile(lambda x: x + 1)
        a = f32(4, 6)
        for view in (a, a.T, a[:, ::2], a[:0], a.astype(np.float64), a.astype(np.int64), a > 0):
            try:
                view.__dlpack__()
            except BufferError:  # NumPy before 1.25 has none for bool
                continue
            np.testing.assert_array_equal(f(Foreign(view)), (view + 1) if view.dtype != bool else view + np.int64(1))
        np.testing.assert_array_equal(np.from_dlpack(f(a)), a + 1)
        with self.assertRaises(TypeError):
            f(Foreign(a.astype(np.complex64)))

    def test_lifetime(self):
        a = np.ones(100000, np.float32)
        gone = weakref.ref(a)
        s = doubler(100000).bind(x=Foreign(a))
        del a
        gc.collect()
        self.assertIsNotNone(gone())
        np.testing.assert_array_equal(s()["y"], 2)
        del s
        gc.collect()
        self.assertIsNone(gone())


class States(unittest.TestCase):
    def counter(self):
        g = tenon.Graph()
        n = g.state("n", np.float32(5))
        g.assign(n, n + g.input("d"))
        g.output(n, "before")
        return g.compile(mode="loop")

    def test_values(self):
        p = self.counter()
        s = p.session()
        self.assertEqual(s(d=2.0)["before"], 5)
        self.assertEqual(s["n"], 7)
        s["n"] = 1
        self.assertEqual(s(d=1.0)["before"], 1)
        t = p.session()
        self.assertEqual(t["n"], 5)
        self.assertEqual(t.copy_states(s), 1)
        self.assertEqual(t["n"], 2)
        with self.assertRaises(KeyError):
            s["m"]
        with self.assertRaises(tenon.ShapeError):
            s["n"] = [1, 2]

    def test_many_steps(self):
        s = self.counter().session()
        out = s.run_n(6, d=np.array([1, 10, 100], np.float32))
        self.assertEqual((out["before"], s["n"]), (5 + 111 + 11, 5 + 222))
        out = s.run_n(4, trace=["before"], d=np.array([1, 2], np.float32))
        np.testing.assert_array_equal(out["before"], 5 + 222 + np.array([0, 1, 3, 4]))
        kept = np.empty((), np.float32)
        s.bind(before=kept).run_n(2, trace=["before"], d=np.array([1], np.float32))
        s(d=0.0)
        self.assertEqual(kept, 5 + 222 + 6 + 2)
        for bad in (dict(steps=-1), dict(steps=1, trace=["d"]), dict(steps=1, d=np.zeros(0, np.float32))):
            with self.assertRaises(ValueError):
                s.run_n(**{"d": np.zeros(1, np.float32), **bad})

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.safetensors"
            s = self.counter().session()
            s(d=4.0)
            s.save(path)
            self.assertEqual(list(tenon.load(path)), ["n"])
            t = self.counter().session()
            t.load(path)
            self.assertEqual(t["n"], 9)
            arrays = {"a": f32(3, 2), "b": np.arange(4), "c": np.array(True), "d": np.zeros((0, 2), np.float16), "t": f32(4, 2).T}
            tenon.save(path, arrays)
            back = tenon.load(path)
            self.assertEqual(set(back), set(arrays))
            for k, v in arrays.items():
                np.testing.assert_array_equal(back[k], v)
                self.assertEqual(back[k].dtype, v.dtype)
            with self.assertRaises(tenon.TenonError):
                t.load(path)
            path.write_bytes(b"nonsense")
            with self.assertRaises(tenon.ParseError):
                tenon.load(path)
            with self.assertRaises(OSError):
                tenon.load(Path(folder) / "none")


class Processes(unittest.TestCase):
    def test_programs_as_files(self):
        g = tenon.Graph()
        x, t = g.input("x", (4, 3)), g.input("t", (4,), "i32")
        loss = g.output(tenon.nn.cross_entropy(tenon.nn.linear(x, 2, "fc"), t), "loss")
        tenon.optim.adam(loss, 0.1)
        p = g.compile(threads=1)
        xs, ts = f32(4, 3), np.array([0, 1, 0, 1], np.int32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program"
            try:
                p.save(path)
            except tenon.UnsupportedError:
                self.skipTest("no machine code here")
            q = tenon.Program.load(path)
            self.assertEqual([repr(s) for s in q.slots], [repr(s) for s in p.slots])
            a, b = p.session(), q.session()
            for _ in range(3):
                self.assertEqual(a(x=xs, t=ts)["loss"], b(x=xs, t=ts)["loss"])
            np.testing.assert_array_equal(a["fc/w"], b["fc/w"])
            self.assertIn("loaded", repr(q))
            self.assertIn("kernels", q._repr_html_())
            with self.assertRaises(tenon.UnsupportedError):
                q.explain()
            cut = Path(folder) / "cut"
            cut.write_bytes(path.read_bytes()[:100])
            with self.assertRaises(tenon.ParseError):
                tenon.Program.load(cut)
        with self.assertRaises(OSError):
            tenon.Program.load("/nowhere/at/all")
        with self.assertRaises(tenon.UnsupportedError):
            g.compile(mode="immediate").save(path)

    def test_kept_programs(self):
        x = f32(3, 4)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.onnx"

            def written(factor):
                g = tenon.Graph()
                g.output(g.input("x", (3, 4)) * factor, "y")
                tenon.onnx.save(g, path)
                time.sleep(0.05)  # a file that has just been written may still change

            def fresh(**options):
                context = tenon.Context(cache_dir=str(Path(folder) / "cache"))
                m = tenon.onnx.load(path, keep=True, context=context, threads=1, **options)
                return m.session(x).program.mode, m(x)

            written(2)
            for mode in "compiled", "loaded", "loaded":
                got, y = fresh()
                np.testing.assert_array_equal(y, x * 2)
                if got != mode and os.environ.get("TENON_CPU", "").startswith("c"):
                    self.skipTest("no machine code here")
                self.assertEqual(got, mode)
            self.assertEqual(fresh(fusion=0)[0], "compiled")
            written(3)
            mode, y = fresh()
            self.assertEqual(mode, "compiled")
            np.testing.assert_array_equal(y, x * 3)
            self.assertEqual(fresh()[0], "loaded")
            self.assertIsNone(tenon.Program.find("never kept"))

    def test_the_lock_is_released(self):
        g = tenon.Graph()
        x = g.input("x", (700, 700))
        y = x
        for _ in range(8):
            y = y @ x
        g.output(y, "y")
        s = g.compile(threads=1).session().bind(x=f32(700, 700) * 0.03, y=np.empty((700, 700), np.float32))
        s.run()
        count, stop = [0], threading.Event()

        def spin():
            while not stop.is_set():
                count[0] += 1
                time.sleep(0.0005)

        t = threading.Thread(target=spin)
        t.start()
        time.sleep(0.01)
        before, begin = count[0], time.perf_counter()
        while time.perf_counter() - begin < 0.3:
            s.run()
        stop.set()
        t.join()
        self.assertGreater(count[0] - before, 3)

    def test_one_session_from_two_threads(self):
        s, errors = doubler(1000), []

        def work(value):
            for _ in range(200):
                x = np.full(1000, value, np.float32)
                if not (s(x=x)["y"] == 2 * value).all():
                    errors.append(value)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(errors, [])

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_fork(self):
        f = tenon.compile(lambda x: (x @ x).sum(0))
        x = f32(200, 200)
        want = f(x)
        s = doubler(4).bind(x=f32(4), y=np.empty(4, np.float32))
        s.run()
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            text = b"fork: "
            try:
                text += b"same " if np.allclose(f(x), want, rtol=1e-4, atol=1e-4) else b"other "
                try:
                    s.run()
                    text += b"ran"
                except RuntimeError as e:
                    text += str(e).encode()
                del s, f
                gc.collect()
            except BaseException as e:
                text += repr(e).encode()
            os.write(write, text)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            text = pipe.read().decode()
        os.waitpid(child, 0)
        self.assertIn("same", text)
        self.assertIn("forked", text)
        s.run()
        np.testing.assert_allclose(f(x), want, rtol=1e-4, atol=1e-4)

    def test_freed_in_any_order(self):
        ctx = tenon.Context(cache_dir="")
        g = tenon.Graph(context=ctx)
        y = g.output(g.input("x", 3) + 1, "y")
        p = g.compile()
        s = p.session()
        del ctx, g, p, y
        gc.collect()
        np.testing.assert_array_equal(s(x=[1, 2, 3])["y"], [2, 3, 4])
        loop = [s]
        loop.append(loop)
        del s, loop
        gc.collect()

    def test_log_and_stats(self):
        texts = []
        ctx = tenon.Context(cache_dir="", log=lambda level, text: texts.append((level, text)))
        self.assertEqual(ctx.cache_stats()["files"], 0)
        self.assertIn("cpu", tenon.devices())
        self.assertRegex(tenon.version(), r"^\d+\.\d+\.\d+$")

    def test_profile(self):
        g = tenon.Graph()
        g.output((g.input("x", (30, 40)) @ g.input("w", (40, 50))).sum(1), "y")
        s = g.compile(threads=1).session()
        kept = f32(40, 50)
        p = s.bind(w=kept, y=np.empty(30, np.float32)).profile(0.01, x=f32(30, 40))
        self.assertEqual(len(p.kernels), s.stats()["kernels"])
        self.assertIn("us", repr(p))
        self.assertIn("<table>", p._repr_html_())
        with self.assertRaises(tenon.InvalidError):
            s.run()  # x was bound for the profile alone

    def test_tuning(self):
        seen = []
        g = tenon.Graph(context=tenon.Context(cache_dir=""))
        g.output(g.input("x", (40, 50)) @ g.input("w", (50, 60)), "y")
        t = g.tune(0.05, progress=lambda done, kernel: seen.append(done), threads=1)
        self.assertEqual(len(t.kernels), t.summary["kernels"])
        self.assertIn("<table>", t._repr_html_())
        self.assertTrue(seen)


class Interface(unittest.TestCase):
    def test_structs_have_the_compilers_layout(self):
        """Sizes and offsets of every struct by the C compiler, where there is one and the headers are."""
        import shutil
        import subprocess

        from tenon import _abi
        include, generated = os.environ.get("TENON_INCLUDE"), os.environ.get("TENON_GENERATED_INCLUDE")
        if not include or not shutil.which("cc"):
            self.skipTest("no compiler, or no headers")
        structs = [v for k, v in vars(_abi).items() if isinstance(v, type) and issubclass(v, ctypes.Structure)]
        self.assertGreater(len(structs), 20)
        lines = [f'printf("%zu\\n", sizeof({s.__name__}));' + "".join(
            f'printf("%zu\\n", offsetof({s.__name__}, {f[0]}));' for f in s._fields_) for s in structs]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "x.c"
            source.write_text("#include <stdio.h>\n#include <stddef.h>\n" + "".join(
                f"#include <tenon/{h.name}>\n" for h in sorted(Path(include, "tenon").glob("tenon_*.h"))) + "int main(void) {" + "\n".join(lines) + "}")
            subprocess.run(["cc", f"-I{include}", f"-I{generated}", source, "-o", Path(folder) / "x"], check=True)
            got = [int(n) for n in subprocess.run([Path(folder) / "x"], stdout=subprocess.PIPE, check=True).stdout.split()]
        want = []
        for s in structs:
            want += [ctypes.sizeof(s)] + [getattr(s, f[0]).offset for f in s._fields_]
        self.assertEqual(got, want)

    def test_every_function_is_there(self):
        from tenon import _abi
        from tenon._lib import lib
        for name in _abi.FUNCTIONS:
            self.assertTrue(callable(getattr(lib, name)))


if __name__ == "__main__":
    unittest.main()
