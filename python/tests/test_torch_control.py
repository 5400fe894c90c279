"""torch.cond, while_loop, scan and map under torch.compile(backend="tenon"): against eager, forward and backward, and no op in PyTorch."""

import logging
import unittest

try:
    import torch
    from torch._higher_order_ops.map import map as torch_map
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop
except ImportError:
    raise unittest.SkipTest("no PyTorch with control flow here")

import tenon.torch

told = []


class _Told(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())


logging.getLogger("tenon.torch").addHandler(_Told())
logging.getLogger("tenon.torch").setLevel(logging.DEBUG)
logging.getLogger("tenon.torch").propagate = False
torch.manual_seed(0)
layer = torch.nn.Linear(4, 4)


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: layer(x).relu(), lambda x: x - 1, (x,))


def rounds(x):
    return while_loop(lambda i, x: (i < 5) & (x.sum() < 1e6), lambda i, x: (i + 1, layer(x)), (torch.tensor(0), x))


def recurrent(x):
    return scan(lambda c, x: (torch.tanh(layer(c) + x), c * 2), x[0] * 0, x, dim=0)


def backwards(x):
    return scan(lambda c, x: (c * 0.5 + x, torch.sin(c)), x[:, 0] * 0, x, dim=1, reverse=True)


def rows(x):
    return torch_map(lambda r, w: torch.sin(r) * w, x, torch.full((4,), 2.0))


def nested(x):
    return scan(lambda c, x: torch.cond(x.sum() > 0, lambda c, x: (c + x, c * x), lambda c, x: (c - x, c * 2), (c, x)), x[0] * 0, x, dim=0)


def between(x):  # an op that Tenon has not, between two that it has
    y = torch.special.i1(recurrent(x)[1])
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (y,))


def leaves(y):
    return [y] if isinstance(y, torch.Tensor) else [t for z in y for t in leaves(z)]


class TestControl(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        told.clear()

    def inference(self, fn, dynamic):
        compiled = torch.compile(fn, backend="tenon", dynamic=dynamic)
        with torch.no_grad():
            for n in (3, 5, 7, 3):
                for sign in (1, -1):
                    x = sign * torch.rand(n, 4)
                    for got, want in zip(leaves(compiled(x)), leaves(fn(x))):
                        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
                        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)

    def test_inference(self):
        for fn in (branch, rounds, recurrent, backwards, rows, nested):
            for dynamic in (False, True) if fn in (branch, recurrent) else (True,):
                with self.subTest(fn.__name__, dynamic=dynamic):
                    torch._dynamo.reset()
                    before = tenon.torch.compilations
                    self.inference(fn, dynamic)
                    self.assertEqual(tenon.torch.compilations - before, 1 if dynamic else 3)
        self.assertEqual(told, [])

    def test_training(self):
        for fn in (branch, recurrent, backwards, rows, nested):
            for dynamic in (False, True) if fn is nested else (True,):
                with self.subTest(fn.__name__, dynamic=dynamic):
                    torch._dynamo.reset()
                    before = tenon.torch.compilations
                    compiled = torch.compile(fn, backend="tenon", dynamic=dynamic)
                    for n in (3, 5, 7):
                        given, grads = torch.randn(n, 4), []
                        for function in (fn, compiled):
                            x = given.clone().requires_grad_()
                            layer.zero_grad()
                            sum((y * y).sum() for y in leaves(function(x))).backward()
                            grads.append([x.grad, *[p.grad for p in layer.parameters()]])
                        for got, want in zip(grads[1], grads[0]):
                            if want is not None:
                                torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
                    self.assertEqual(tenon.torch.compilations - before, 2 if dynamic else 6)
        self.assertEqual(told, [])

    def test_beside_other_ops(self):
        self.inference(between, False)
        self.assertTrue(any("special_i1" in t for t in told), told)
        self.assertFalse(any("higher_order" in t or "scan" in t or "cond" in t for t in told), told)

    def test_a_body_with_another_op(self):
        """It runs in PyTorch, and the log says so."""
        def fn(x):
            return torch.cond(x.sum() > 0, lambda x: torch.special.i1(x), lambda x: x * 2, (x + 1,)) * 3

        self.inference(fn, False)
        self.assertTrue(any("cond" in t and "PyTorch" in t for t in told), told)


if __name__ == "__main__":
    unittest.main()
