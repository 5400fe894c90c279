"""Layers, losses and statistics: tenon_nn.h in Python.

A layer with a name makes its parameters in the graph ("fc1/w", "fc1/b"); optimisers train them, sessions keep them. Images are
channels-last, [N, H, W, C]. Functions without parameters also work on arrays alone."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from . import _abi
from ._core import ArrayLike, Axes, Tensor, as_tensor, graph_of, int_axes, lib, together
from ._functions import on_arrays, tensor

Size = Union[int, Sequence[int]]


def _float(x: Any) -> Tensor:
    t = tensor(x)
    return t if t.dtype.kind == "f" else t.astype("f32")


def _three(size: Optional[Size], nothing: int = 0) -> Any:
    """A field of up to three numbers: -1 says 0 of a padding, where 0 would repeat the axis before."""
    values = [] if size is None else [size] if isinstance(size, int) else list(size)
    return (_abi.C.c_int64 * 3)(*[nothing if v == 0 else v for v in values])


# ---- layers with parameters -----------------------------------------------------------------------------------------------


def linear(x: Tensor, features: int, name: str, *, bias: bool = True) -> Tensor:
    """x w + b, over the last axis. Both start uniform in +-1/sqrt(in)."""
    builder = lib.tn_nn_linear if bias else lib.tn_nn_linear_no_bias
    return x.graph.wrap(builder(x._at(), features, name.encode()))


def _conv(builder: Any, x: Tensor, channels: int, kernel: Size, name: str, stride: Size, padding: Size, dilation: Size, groups: int,
          bias: bool, winograd: int) -> Tensor:
    opts = _abi.tn_nn_conv_opts(out_channels=channels, kernel=_three(kernel), stride=_three(stride), padding=_three(padding, -1),
                                dilation=_three(dilation), groups=groups, no_bias=int(not bias), winograd=winograd)
    return x.graph.wrap(builder(x._at(), opts, name.encode()))


def conv1d(x: Tensor, channels: int, kernel: Size, name: str, *, stride: Size = 1, padding: Size = 0, dilation: Size = 1,
           groups: int = 1, bias: bool = True) -> Tensor:
    """[N, W, C] to [N, positions, channels]."""
    return _conv(lib.tn_nn_conv1d, x, channels, kernel, name, stride, padding, dilation, groups, bias, 0)


def conv2d(x: Tensor, channels: int, kernel: Size, name: str, *, stride: Size = 1, padding: Size = 0, dilation: Size = 1,
           groups: int = 1, bias: bool = True, winograd: int = 0) -> Tensor:
    """[N, H, W, C] to [N, .., .., channels]. winograd 2 or 4: fewer multiplications for 3x3, which round otherwise."""
    return _conv(lib.tn_nn_conv2d, x, channels, kernel, name, stride, padding, dilation, groups, bias, winograd)


def conv3d(x: Tensor, channels: int, kernel: Size, name: str, *, stride: Size = 1, padding: Size = 0, dilation: Size = 1,
           groups: int = 1, bias: bool = True) -> Tensor:
    """[N, D, H, W, C] to [N, .., .., .., channels]."""
    return _conv(lib.tn_nn_conv3d, x, channels, kernel, name, stride, padding, dilation, groups, bias, 0)


def embedding(index: Tensor, rows: int, dim: int, name: str) -> Tensor:
    """Rows of a table [rows, dim], which starts standard normal."""
    return index.graph.wrap(lib.tn_nn_embedding(index._at(), rows, dim, name.encode()))


def layer_norm(x: Tensor, name: str, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last axis, scaled and shifted."""
    return x.graph.wrap(lib.tn_nn_layer_norm(x._at(), eps, name.encode()))


def rms_norm(x: Tensor, name: str, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis, scaled."""
    return x.graph.wrap(lib.tn_nn_rms_norm(x._at(), eps, name.encode()))


def group_norm(x: Tensor, groups: int, name: str, eps: float = 1e-5) -> Tensor:
    """Layer norm over the image and channels / groups channels."""
    return x.graph.wrap(lib.tn_nn_group_norm(x._at(), groups, eps, name.encode()))


def batch_norm(x: Tensor, name: str, *, eps: float = 1e-5, momentum: float = 0.1, inference: bool = False) -> Tensor:
    """Over all axes but the last; the running statistics are states."""
    opts = _abi.tn_nn_batch_norm_opts(eps=eps, momentum=momentum, inference=int(inference))
    return x.graph.wrap(lib.tn_nn_batch_norm(x._at(), opts, name.encode()))


def dropout(x: Tensor, p: float, counter: Tensor, name: str) -> Tensor:
    """Zeroes each element with probability p and divides the others by 1 - p; the mask depends on counter, name, element."""
    return x.graph.wrap(lib.tn_nn_dropout(x._at(), p, counter._t, name.encode()))


def spatial_dropout(x: Tensor, p: float, counter: Tensor, name: str) -> Tensor:
    """Whole channels of a sample."""
    return x.graph.wrap(lib.tn_nn_spatial_dropout(x._at(), p, counter._t, name.encode()))


def drop_path(x: Tensor, p: float, counter: Tensor, name: str) -> Tensor:
    """Whole samples."""
    return x.graph.wrap(lib.tn_nn_drop_path(x._at(), p, counter._t, name.encode()))


def alpha_dropout(x: Tensor, p: float, counter: Tensor, name: str) -> Tensor:
    """For selu: keeps mean 0 and variance 1."""
    return x.graph.wrap(lib.tn_nn_alpha_dropout(x._at(), p, counter._t, name.encode()))


def instance_norm(x: Tensor, name: str, eps: float = 1e-5) -> Tensor:
    """group_norm of each channel apart."""
    return x.graph.wrap(lib.tn_nn_instance_norm(x._at(), eps, name.encode()))


def _recurrent(builder: Any, cell: bool, x: Tensor, hidden: int, name: str, layers: int, bidirectional: bool, batch_first: bool,
               lengths: Optional[Tensor], state: Any, more: dict[str, Any]) -> Any:
    h, c = _abi.tn_tensor(), _abi.tn_tensor()
    opts = _abi.tn_nn_rnn_opts(layers=layers, bidirectional=int(bidirectional), batch_first=int(batch_first),
                               out_h=_abi.C.cast(_abi.C.pointer(h), _abi.C.c_void_p), **more)
    if cell:
        opts.out_c = _abi.C.cast(_abi.C.pointer(c), _abi.C.c_void_p)
    if lengths is not None:
        opts.lengths = lengths._t
    if state is not None:
        opts.h = (state[0] if cell else state)._t
        if cell:
            opts.c = state[1]._t
    y = x.graph.wrap(builder(x._at(), hidden, name.encode(), opts))
    last = x.graph.wrap(h)
    return y, ((last, x.graph.wrap(c)) if cell else last)


def rnn(x: Tensor, hidden: int, name: str, *, layers: int = 1, bidirectional: bool = False, batch_first: bool = False,
        lengths: Optional[Tensor] = None, state: Optional[Tensor] = None, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """h = tanh(x w_x + b + h w_h) along the first axis of [T, B, I] (batch_first: of [B, T, I]): the states of the last layer in each
    step, and those that the layers end with, [layers, B, hidden] (bidirectional: twice as many). lengths [B]: of each sequence. state:
    what the layers begin with, else zeros. recompute: gradients compute again what a step computed. Sizes may be those of a run."""
    return _recurrent(lib.tn_nn_rnn, False, x, hidden, name, layers, bidirectional, batch_first, lengths, state,
                      {"recompute": int(recompute)})


def gru(x: Tensor, hidden: int, name: str, *, layers: int = 1, bidirectional: bool = False, batch_first: bool = False,
        lengths: Optional[Tensor] = None, state: Optional[Tensor] = None, recompute: bool = False) -> tuple[Tensor, Tensor]:
    """Gated recurrent units (Cho et al., 2014; the reset gate behind the product); arguments and results as of rnn."""
    return _recurrent(lib.tn_nn_gru, False, x, hidden, name, layers, bidirectional, batch_first, lengths, state,
                      {"recompute": int(recompute)})


def lstm(x: Tensor, hidden: int, name: str, *, layers: int = 1, bidirectional: bool = False, batch_first: bool = False,
         lengths: Optional[Tensor] = None, state: Optional[tuple[Tensor, Tensor]] = None, projection: int = 0, peepholes: bool = False,
         clip: float = 0.0, recompute: bool = False) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Long short-term memory (Hochreiter & Schmidhuber, 1997); arguments and results as of rnn, but a state is a pair (h, c).
    projection: h has so many units (0: hidden). peepholes: gates see c. clip: c stays in +-clip."""
    return _recurrent(lib.tn_nn_lstm, True, x, hidden, name, layers, bidirectional, batch_first, lengths, state,
                      {"projection": projection, "peepholes": int(peepholes), "clip": clip, "recompute": int(recompute)})


# ---- without parameters ---------------------------------------------------------------------------------------------------


def _pool(builder: Any, x: Any, kernel: Size, stride: Optional[Size], padding: Size, dilation: Size) -> Tensor:
    t = tensor(x)
    opts = _abi.tn_nn_pool_opts(kernel=_three(kernel), stride=_three(stride), padding=_three(padding, -1), dilation=_three(dilation))
    return t.graph.wrap(builder(t._at(), opts))


@on_arrays
def max_pool(x: ArrayLike, kernel: Size, *, stride: Optional[Size] = None, padding: Size = 0, dilation: Size = 1) -> Any:
    """Over the axes between the first and the last; stride None = the kernel's size. Padding never wins."""
    return _pool(lib.tn_nn_max_pool, x, kernel, stride, padding, dilation)


@on_arrays
def avg_pool(x: ArrayLike, kernel: Size, *, stride: Optional[Size] = None, padding: Size = 0, dilation: Size = 1) -> Any:
    """The mean of the whole window: padding counts as zeros."""
    return _pool(lib.tn_nn_avg_pool, x, kernel, stride, padding, dilation)


@on_arrays
def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, causal: bool = False) -> Any:
    """softmax(q k^T / sqrt(d)) v over the last two axes; leading axes broadcast."""
    graph = graph_of(q, k, v)
    assert graph is not None
    a, b, c = together(graph, q, k, v)
    graph.at()
    return graph.wrap(lib.tn_nn_attention(a._t, b._t, c._t, int(causal)))


def _activation(name: str, doc: str) -> Any:
    def activation(x: ArrayLike) -> Any:
        t = _float(x)
        return t.graph.wrap(getattr(lib, "tn_nn_" + name)(t._at()))

    activation.__name__ = activation.__qualname__ = name
    activation.__doc__ = doc
    return on_arrays(activation)


gelu = _activation("gelu", "x/2 (1 + erf(x / sqrt 2)).")
gelu_tanh = _activation("gelu_tanh", "The tanh approximation of gelu.")
silu = _activation("silu", "x sigmoid(x).")
selu = _activation("selu", "Scaled elu (Klambauer et al., 2017).")
relu6 = _activation("relu6", "min(max(x, 0), 6).")
softplus = _activation("softplus", "log(1 + e^x), without overflow.")
log_sigmoid = _activation("log_sigmoid", "-softplus(-x).")
softsign = _activation("softsign", "x / (1 + |x|).")
mish = _activation("mish", "x tanh(softplus(x)).")
hard_tanh = _activation("hard_tanh", "x cut to [-1, 1].")
hard_sigmoid = _activation("hard_sigmoid", "x/6 + 1/2 cut to [0, 1].")
hard_swish = _activation("hard_swish", "x hard_sigmoid(x).")


@on_arrays
def relu(x: ArrayLike) -> Any:
    """x, but 0 where x < 0."""
    return tensor(x).relu()


@on_arrays
def elu(x: ArrayLike, alpha: float = 1.0) -> Any:
    """x, or alpha (e^x - 1) below 0."""
    t = _float(x)
    return t.graph.wrap(lib.tn_nn_elu(t._at(), alpha))


@on_arrays
def leaky_relu(x: ArrayLike, slope: float = 0.01) -> Any:
    """x, or slope x below 0."""
    t = _float(x)
    return t.graph.wrap(lib.tn_nn_leaky_relu(t._at(), slope))


@on_arrays
def softmax(x: ArrayLike, axis: int = -1) -> Any:
    t = _float(x)
    return t.graph.wrap(lib.tn_nn_softmax(t._at(), axis))


@on_arrays
def log_softmax(x: ArrayLike, axis: int = -1) -> Any:
    t = _float(x)
    return t.graph.wrap(lib.tn_nn_log_softmax(t._at(), axis))


@on_arrays
def logsumexp(x: ArrayLike, axis: int = -1, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) along an axis, without overflow."""
    t = _float(x)
    return t.graph.wrap(lib.tn_nn_logsumexp(t._at(), axis, int(keepdims)))


SUMS = {"plain": 0, "f64": 1, "pairwise": 2, "compensated": 3}


@on_arrays
def sum(x: ArrayLike, axis: Axes = None, keepdims: bool = False, policy: str = "plain") -> Any:
    """A sum that is rounded "plain", in "f64", "pairwise" or "compensated"."""
    t, (axes, n) = tensor(x), int_axes(axis)
    if n < 0:
        axes, n = int_axes(range(t.ndim))
    return t.graph.wrap(lib.tn_nn_sum(t._at(), axes, n, int(keepdims), SUMS[policy]))


# ---- losses: scalars, means over all rows or elements ---------------------------------------------------------------------


@on_arrays
def cross_entropy(logits: ArrayLike, labels: ArrayLike, *, smoothing: float = 0.0, ignore_index: Optional[int] = None,
                  weights: Optional[ArrayLike] = None) -> Any:
    """Mean of -log softmax(logits)[label]; labels are integers, one axis less. smoothing is spread over all classes, rows with the
    label ignore_index do not count, weights [C] say how much rows of each class do."""
    graph = graph_of(logits, labels, weights)
    assert graph is not None
    x, t = as_tensor(logits, graph), as_tensor(labels, graph)
    opts = _abi.tn_nn_cross_entropy_opts(smoothing=smoothing, ignores=int(ignore_index is not None), ignored=ignore_index or 0)
    if weights is not None:
        opts.weights = as_tensor(weights, graph).astype(x.dtype)._t
    graph.at()
    plain = not smoothing and ignore_index is None and weights is None
    return graph.wrap(lib.tn_nn_cross_entropy(x._t, t._t) if plain else lib.tn_nn_cross_entropy_with(x._t, t._t, opts))


@on_arrays
def nll(log_p: ArrayLike, labels: ArrayLike) -> Any:
    """Mean of -log_p[label]."""
    graph = graph_of(log_p, labels)
    assert graph is not None
    x, t = as_tensor(log_p, graph), as_tensor(labels, graph)
    graph.at()
    return graph.wrap(lib.tn_nn_nll(x._t, t._t))


def _loss(name: str, doc: str, *more: Any) -> Any:
    def loss(x: ArrayLike, target: ArrayLike) -> Any:
        graph = graph_of(x, target)
        assert graph is not None
        a, b = together(graph, x, target)
        graph.at()
        return graph.wrap(getattr(lib, "tn_nn_" + name)(a._t, b._t, *more))

    loss.__name__ = loss.__qualname__ = name
    loss.__doc__ = doc
    return on_arrays(loss)


mse = _loss("mse", "Mean squared difference.")
l1 = _loss("l1", "Mean absolute difference.")
kl_div = _loss("kl_div", "kl_div(log_q, p): sum over the last axis of p (log p - log_q), mean over the rest.")
bce = _loss("bce", "Mean of -t log p - (1 - t) log(1 - p); a logarithm counts -100 at the least.")
bce_with_logits = _loss("bce_with_logits", "Mean of -t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)).")


@on_arrays
def huber(x: ArrayLike, target: ArrayLike, delta: float = 1.0) -> Any:
    """d^2/2, or delta (|d| - delta/2) for |d| > delta."""
    graph = graph_of(x, target)
    assert graph is not None
    a, b = together(graph, x, target)
    graph.at()
    return graph.wrap(lib.tn_nn_huber(a._t, b._t, delta))


@on_arrays
def smooth_l1(x: ArrayLike, target: ArrayLike, beta: float = 1.0) -> Any:
    """huber / beta; l1 for beta 0."""
    graph = graph_of(x, target)
    assert graph is not None
    a, b = together(graph, x, target)
    graph.at()
    return graph.wrap(lib.tn_nn_smooth_l1(a._t, b._t, beta))


@on_arrays
def focal(x: ArrayLike, target: ArrayLike, alpha: float = 0.25, gamma: float = 2.0) -> Any:
    """bce_with_logits times (1 - p_t)^gamma, and alpha or 1 - alpha (neither for alpha < 0)."""
    graph = graph_of(x, target)
    assert graph is not None
    a, b = together(graph, x, target)
    graph.at()
    return graph.wrap(lib.tn_nn_focal(a._t, b._t, alpha, gamma))


@on_arrays
def dice(p: ArrayLike, target: ArrayLike, smooth: float = 1.0) -> Any:
    """1 - (2 sum(p t) + smooth) / (sum(p) + sum(t) + smooth) of each sample, their mean."""
    graph = graph_of(p, target)
    assert graph is not None
    a, b = together(graph, p, target)
    graph.at()
    return graph.wrap(lib.tn_nn_dice(a._t, b._t, smooth))


@on_arrays
def cosine_similarity(x: ArrayLike, y: ArrayLike, axis: int = -1) -> Any:
    """x y / (|x| |y|) along an axis."""
    graph = graph_of(x, y)
    assert graph is not None
    a, b = together(graph, x, y)
    graph.at()
    return graph.wrap(lib.tn_nn_cosine_similarity(a._t, b._t, axis))


@on_arrays
def triplet(anchor: ArrayLike, near: ArrayLike, far: ArrayLike, margin: float = 1.0) -> Any:
    """|anchor - near| - |anchor - far| + margin where that is positive."""
    graph = graph_of(anchor, near, far)
    assert graph is not None
    a, b, c = together(graph, anchor, near, far)
    graph.at()
    return graph.wrap(lib.tn_nn_triplet(a._t, b._t, c._t, margin))


@on_arrays
def ctc(log_p: ArrayLike, labels: ArrayLike, steps: ArrayLike, sizes: ArrayLike, blank: int = 0) -> Any:
    """Of log probabilities [T, B, C], labels [B, S], the length of each sequence [B] and of its labels [B]."""
    graph = graph_of(log_p, labels, steps, sizes)
    assert graph is not None
    x, *rest = [as_tensor(v, graph) for v in (log_p, labels, steps, sizes)]
    graph.at()
    return graph.wrap(lib.tn_nn_ctc(x._t, *[t._t for t in rest], blank))
