"""torch.compile(model, backend="tenon", dynamic=True): one program for a range of sizes, forward and backward, beside eager PyTorch; what
has a program for each size; how many programs there are."""

import logging
import threading
import unittest

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    torch.compile
except (ImportError, AttributeError):
    raise unittest.SkipTest("no PyTorch here")

import tenon.torch
from test_torch import MODULES, Block, Gpt, Residual, fallbacks, left


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6 * 16, 5)

    def forward(self, x):
        return self.last(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Patches(nn.Module):
    """Images of any size, whose patches are a sequence."""

    def __init__(self):
        super().__init__()
        self.patch, self.block, self.last = nn.Conv2d(3, 32, 2, 2), Block(), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(self.block(self.patch(F.max_pool2d(x, 2)).flatten(2).mT).mean(1))


class UNet(nn.Module):
    """Images that are made smaller twice and larger again, beside what they were: PyTorch asks that 4 divides their sizes."""

    def __init__(self, up):
        super().__init__()
        self.first, self.small, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 2, 3, padding=1)
        self.norm, self.deep = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2) if up else nn.Upsample(scale_factor=2.0)
        self.over = nn.ConvTranspose2d(16, 4, 2, 2) if up else nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(16, 4, 3, padding=1))

    def forward(self, x):
        a = F.silu(self.first(x))
        b = F.silu(self.norm(self.small(a)))
        c = F.silu(self.deep(F.max_pool2d(b, 2)))
        return self.last(torch.cat([self.over(torch.cat([self.up(c), b], 1)), a], 1))


class Attention(nn.Module):
    """With a mask of lengths, and keys of another length than the queries."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, y, lengths):
        hidden = torch.arange(y.shape[1]) >= lengths[:, None]
        return self.layer(x, y, y, key_padding_mask=hidden, need_weights=False)[0]


class Cell(nn.Module):
    """A recurrent cell over a fixed number of steps, of any batch."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(6, 10)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 10)
        out = []
        for t in range(4):
            h, c = self.cell(x[:, t], (h, c))
            out.append(h)
        return torch.stack(out, 1)


def sizes_in_use(x, n):
    b, t, c = x.shape
    y = x.reshape(b * t, c)[: b * t - 2] * (b + n) / t
    z = torch.cat([y, x.flatten(0, 1)[2:]], 1).view(-1, 2, c)
    w = torch.arange(t, dtype=x.dtype)[None, :, None].expand(b, t, c) + x.new_full((b, t, 1), t ** 0.5)
    return z.sum(1), w * x.mean(1, keepdim=True), x.numel(), x.new_zeros(t, b).t(), F.pad(x, (1, 2))[:, 1:], x.chunk(2, 0)[0], x[:, -2:]


class Sizes(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        torch.manual_seed(1)
        fallbacks.clear(), left.clear()

    def tearDown(self):
        self.assertEqual([m for m in left if not any(t in m for t in ("is written", "share memory", "_local_scalar_dense"))], [])

    def each(self, model, draws, compiled=None, train=True, tolerance=2e-4, programs=None):
        """Results, gradients and buffers for each draw of arguments beside eager; how many programs were made."""
        compiled = torch.compile(model, backend="tenon", dynamic=True) if compiled is None else compiled
        params = list(model.parameters()) if isinstance(model, nn.Module) else []
        before = tenon.torch.compilations
        for args in draws:
            both = []
            state = {k: v.clone() for k, v in model.state_dict().items()} if isinstance(model, nn.Module) else {}
            for f in (model, compiled):
                if state:
                    model.load_state_dict(state)
                given = [a.detach().clone().requires_grad_(train and a.is_floating_point()) if isinstance(a, torch.Tensor) else a for a in args]
                with torch.set_grad_enabled(train):
                    out = f(*given)
                out = list(out) if isinstance(out, (tuple, list)) else [out]
                wanted = [g for g in given if isinstance(g, torch.Tensor) and g.requires_grad] + params
                roots = [y for y in out if isinstance(y, torch.Tensor) and y.requires_grad]
                grads = torch.autograd.grad([(y * y).sum() for y in roots], wanted, allow_unused=True) if roots and train else ()
                both.append([*out, *grads, *(b.clone() for b in (model.buffers() if state else ()))])
            self.assertEqual(len(both[0]), len(both[1]))
            for want, got in zip(*both):
                if isinstance(want, torch.Tensor):
                    self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype))
                    scale = max(float(want.detach().abs().max()), 1) if want.numel() and want.is_floating_point() else 1
                    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * scale)
                else:
                    self.assertEqual(got, want)
        made = tenon.torch.compilations - before
        if programs is not None:
            self.assertEqual(made, programs, fallbacks)
        return compiled

    def test_mlp(self):
        model = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 7), nn.LayerNorm(7))
        draws = [(torch.randn(n, 12),) for n in (4, 2, 7, 3, 16, 10)]
        f = self.each(model, draws, train=False, programs=1)
        self.each(model, draws, f, programs=2)  # forward and backward
        self.each(model, [(torch.randn(n, 12),) for n in (17, 24, 33, 40, 5)], f, programs=4)  # more room, twice
        self.assertEqual(fallbacks, [])

    def test_automatic(self):
        model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 7))
        f = torch.compile(model, backend="tenon")
        self.each(model, [(torch.randn(4, 12),)], f, train=False, programs=1)  # of this size
        self.each(model, [(torch.randn(n, 12),) for n in (5, 9, 2, 4, 16)], f, train=False, programs=1)
        self.each(model, [(torch.randn(1, 12),)], f, train=False, programs=1)  # PyTorch's guards have 1 by itself

    def test_images(self):
        model = Images()
        self.each(model, [(torch.randn(n, 3, 8, 8),) for n in (4, 2, 9, 12)], torch.compile(model, backend="tenon"), programs=4)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 6, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
        self.each(model, [(torch.randn(n, 3, h, w),) for n, h, w in ((2, 8, 9), (3, 12, 7), (5, 15, 16))], programs=2)
        torch._dynamo.reset()
        draws = [(torch.randn(n, 3, h, w),) for n, h, w in ((2, 8, 12), (3, 14, 9), (5, 16, 16))]
        self.each(Patches(), draws, programs=2)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(2), nn.Softmax(-1))
        self.each(model, draws, programs=2)
        torch._dynamo.reset()
        model = Residual(4)
        self.each(model, [(torch.randn(n, 4, h, w),) for n, h, w in ((2, 5, 6), (3, 6, 5), (5, 8, 9))], programs=2)
        self.assertEqual(fallbacks, [])

    def test_transposed_convolutions(self):
        draws = [(torch.randn(n, 3, h, w),) for n, h, w in ((4, 8, 12), (5, 10, 9), (2, 12, 16))]
        for model in (nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1)),
                      nn.ConvTranspose2d(3, 3, 3, 2, 1, output_padding=1), nn.ConvTranspose2d(3, 4, 3, 1, 1), nn.ConvTranspose2d(3, 4, 2, 2)):
            with self.subTest(model):
                torch._dynamo.reset()
                self.each(model, draws, programs=2)
        self.assertEqual(fallbacks, [])

    def test_images_there_and_back(self):
        for up in (True, False):
            with self.subTest(up):
                torch._dynamo.reset()
                self.each(UNet(up), [(torch.randn(n, 3, h, h),) for n, h in ((4, 16), (2, 24), (5, 8), (3, 12))], programs=2)
        torch._dynamo.reset()
        model = UNet(False)
        compiled = torch.compile(model, backend="tenon", dynamic=True)
        self.each(model, [(torch.randn(2, 3, h, w),) for h, w in ((16, 24), (12, 20), (28, 8))], compiled, programs=2)
        x = torch.randn(2, 3, 18, 16)  # another graph, which PyTorch refuses
        self.assertRaises(RuntimeError, model, x), self.assertRaises(Exception, compiled, x)
        self.assertEqual(fallbacks, [])

    def test_images_as_windows_and_pools(self):
        """Windows that are parts of an image, of as many as fit; a pool that is wider than the image may be; a sequence in frames."""
        def windows(x):
            n, c, h, w = x.shape
            y = x.reshape(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c).softmax(1)
            count = y.shape[0] // (n * (h // 4))
            return y.view(n, h // 4, count, 4, 4, c).sum((3, 4)), x.flatten(2).unfold(2, 6, 2).amax(-1)

        draws = [(torch.randn(n, 2, h, h),) for n, h in ((4, 16), (3, 8), (5, 24))]
        self.each(windows, draws)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Conv2d(2, 4, 3, 4, 1), nn.MaxPool2d(5, 1, 2))
        self.each(model, draws, programs=2)
        torch._dynamo.reset()
        model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), nn.ReLU())
        self.each(model, [(torch.randn(n, 3, t),) for n, t in ((4, 16), (2, 9), (5, 30))], programs=2)
        self.assertEqual(fallbacks, [])

    def test_no_room(self):
        """Where the largest sizes would take much memory, a batch that came once is a number, in all that is computed of it."""
        model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Flatten(2), nn.MultiheadAttention(16, 4))
        f = lambda x: model[2](*[y := model[:2](x).permute(2, 0, 1)[:50]] * 3, need_weights=False)[0] + 0 * y.sum()  # noqa: E731
        much, tenon.torch.MUCH = tenon.torch.MUCH, 1
        try:
            self.each(f, [(torch.randn(n, 3, h, 12),) for n, h in ((2, 30), (3, 30), (2, 40))])
        finally:
            tenon.torch.MUCH = much
        self.assertEqual(fallbacks, [])

    def test_upsampling(self):
        """Sizes times a number with a fraction, rounded as PyTorch rounds its product."""
        draws = [(torch.randn(n, 2, h, w),) for n, h, w in ((4, 8, 10), (3, 9, 13), (5, 10, 7), (4, 15, 16), (2, 11, 5))]
        for options in ({"scale_factor": 1.5}, {"scale_factor": 0.7}, {"scale_factor": (1.3, 1.7)}, {"scale_factor": 1.5, "mode": "bilinear"},
                        {"scale_factor": 0.7, "mode": "bilinear"}, {"scale_factor": 1.1, "mode": "bicubic"},
                        {"scale_factor": 2.0, "mode": "bicubic", "align_corners": True}):
            with self.subTest(options):
                torch._dynamo.reset()
                model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Upsample(**options), nn.ReLU())
                self.each(model, draws, programs=2)
        self.assertEqual(fallbacks, [])

    def test_transformer(self):
        draws = [(torch.randn(b, t, 32),) for b, t in ((2, 5), (3, 7), (4, 16), (6, 2), (2, 3))]
        self.each(Block(), draws, programs=2)
        torch._dynamo.reset()
        self.each(nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True), draws, programs=2)
        torch._dynamo.reset()
        model = Gpt()
        self.each(model, [(torch.randint(0, 50, (b, t)),) for b, t in ((2, 5), (3, 12), (7, 3), (16, 9))], programs=2)
        self.assertEqual(fallbacks, [])

    def test_lengths(self):
        draws = [(torch.randn(b, t, 16), torch.randn(b, u, 16), torch.randint(1, u + 1, (b,))) for b, t, u in ((2, 5, 6), (3, 7, 4), (4, 6, 11))]
        self.each(Attention(), draws, programs=2)
        self.assertEqual(fallbacks, [])

    def test_cells(self):
        self.each(Cell(), [(torch.randn(n, 4, 6),) for n in (2, 5, 3, 16)], programs=2)
        self.assertEqual(fallbacks, [])

    def test_sizes_as_numbers(self):
        draws = [(torch.randn(b, t, 6), n) for b, t, n in ((4, 5, 2), (5, 4, 4), (6, 7, 3), (8, 6, 2))]
        self.each(sizes_in_use, draws, programs=2)
        self.assertEqual(fallbacks, [])

    def test_modules(self):
        for name in ("einsum", "slices", "cosine", "instance norm", "losses", "gather", "unfold", "distances", "bilinear", "transposed, grouped"):
            with self.subTest(name):
                torch._dynamo.reset()
                make, draw = MODULES[name]
                x = draw()
                self.each(make(), [(torch.cat([x] * n) + torch.randn(n * x.shape[0], *x.shape[1:]) * 0.1,) for n in (1, 2, 3)])

    def test_statistics(self):
        f = lambda x: (x.std(-1), x.var(), x.roll(2, 1), torch.cat([x, x], 1).roll(-1, 1), x[:1].repeat(x.shape[1], 2), *x.split([1, x.shape[1] - 1], 1))  # noqa: E731
        self.each(f, [(torch.randn(b, t),) for b, t in ((3, 6), (6, 5), (5, 7))], programs=2)
        self.assertEqual(fallbacks, [])

    def test_training(self):
        losses = []
        for compiles in (False, True):
            torch.manual_seed(2)
            model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))

            def loss_of(x, t):
                return F.cross_entropy(model(x), t)

            step = torch.compile(loss_of, backend="tenon") if compiles else loss_of
            optimiser = torch.optim.SGD(model.parameters(), 0.05)
            before = tenon.torch.compilations
            for i in range(20):
                x = torch.randn((12, 5, 9, 14, 3)[i % 5], 1, 8, 8)
                optimiser.zero_grad()
                loss = step(x, (x.mean((1, 2, 3)) > 0).long())
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
        torch.testing.assert_close(torch.stack(losses[20:]), torch.stack(losses[:20]), rtol=1e-2, atol=1e-2)
        self.assertEqual(tenon.torch.compilations - before, 4)  # the first batch, then any other
        self.assertEqual(fallbacks, [])

    def test_bounds_are_pytorchs(self):
        model = nn.Linear(4, 3)
        f, x = torch.compile(model, backend="tenon"), torch.randn(6, 4)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
        before = tenon.torch.compilations
        with torch.no_grad():
            torch.testing.assert_close(f(x), model(x))
            for n in (100, 2, 37):
                x = torch.randn(n, 4)
                torch.testing.assert_close(f(x), model(x), rtol=1e-4, atol=1e-4)
        self.assertEqual(tenon.torch.compilations - before, 1)

    def test_what_a_dim_cannot_say(self):
        draws = [(torch.randn(b, 2, h, 7),) for b, h in ((4, 8), (3, 8), (5, 8), (4, 11), (6, 11))]
        self.each(nn.AdaptiveAvgPool2d((3, 2)), draws, train=False, programs=2)  # one for each height
        self.assertEqual(len(fallbacks), 1, fallbacks)
        self.assertIn("_adaptive_avg_pool2d", fallbacks[0])
        torch._dynamo.reset()
        fallbacks.clear()
        draws = [(torch.randn(b, t, 6), n) for b, t, n in ((2, 5, 2), (4, 3, 4), (6, 7, 2), (8, 4, 4))]
        self.each(lambda x, n: x.flatten(0, 1)[: x.shape[0] * x.shape[1] - n] * 2, draws, programs=4)  # one for each n, and its gradient
        self.assertTrue(all("slice" in f or "tn_input" in f for f in fallbacks), fallbacks)

    def test_ops_of_pytorch_between(self):
        f = lambda x: torch.special.bessel_j0((x @ x.T).exp()).reshape(-1)[: x.shape[0]] + x.sum(1)  # noqa: E731
        self.each(f, [(torch.randn(n, 4) * 0.1,) for n in (3, 5, 9)], train=False, programs=2)

    def test_threads(self):
        model, errors = Block(), []
        compiled = torch.compile(model, backend=tenon.torch.backend, options={"threads": 1}, dynamic=True)
        with torch.no_grad():
            draws = [torch.randn(b, t, 32) for b, t in ((2, 5), (3, 7), (4, 16), (6, 2))]
            want = [model(x) for x in draws]
            compiled(draws[0])

        def work():
            with torch.no_grad():
                for _ in range(10):
                    for x, y in zip(draws, want):
                        if not torch.allclose(compiled(x), y, atol=1e-4):
                            errors.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.assertEqual(errors, [])


if __name__ == "__main__":
    logging.basicConfig()
    unittest.main()
