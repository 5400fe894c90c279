"""Functions that are no row of the op table: making tensors, joining them, moving axes, reducing, random numbers.

Those that take arrays also work on arrays alone, outside of any graph: then they are computed at once."""

from __future__ import annotations

import builtins
import ctypes
import functools
from typing import Any, Callable, Optional, Sequence, TypeVar

import numpy as np

from . import _abi
from ._core import ArrayLike, Axes, Graph, Tensor, as_tensor, current_graph, dims_of, graph_of, ints, lib, together
from ._core import _shape as c_shape
from ._dims import Dim
from ._dtypes import DTypeLike, dtype, float32, int64, promote
from ._lib import ShapeError

F = TypeVar("F", bound=Callable[..., Any])


def on_arrays(fn: F) -> F:
    """The function also takes arrays alone: of its first argument, or of the list that it is."""

    @functools.wraps(fn)
    def wrapper(x: Any, *args: Any, **kwargs: Any) -> Any:
        if graph_of(x, *args, *kwargs.values()) is None:
            return _compute(fn, x, args, kwargs)
        return fn(x, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


_compiled: dict[Any, Any] = {}


def _compute(fn: Callable[..., Any], x: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """fn of arrays, compiled. Numbers among its further arguments (a slope, a bound) belong to the program."""
    from ._function import compile
    numbers = {i: a for i, a in enumerate(args) if isinstance(a, float)}
    named = {k: v for k, v in kwargs.items() if isinstance(v, float)}
    key = (fn, tuple(numbers.items()), tuple(named.items()))
    function = _compiled.get(key)
    if function is None:
        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            return fn(x, *(numbers.get(i, a) for i, a in enumerate(args)), **kwargs, **named)

        function = _compiled[key] = compile(call)
    return function(_arrays(x), *(None if i in numbers else _arrays(a) for i, a in enumerate(args)),
                    **{k: _arrays(v) for k, v in kwargs.items() if k not in named})


def _arrays(x: Any) -> Any:
    from ._function import is_array
    if is_array(x) or isinstance(x, (int, str, bool, type(None), type)):
        return x
    if isinstance(x, (list, tuple)) and builtins.any(is_array(v) and not isinstance(v, float) for v in x):
        return type(x)(_arrays(v) for v in x)
    return np.asarray(x) if isinstance(x, list) else x


def tensor(x: Any, *others: Any) -> Tensor:
    """x as a tensor of the graph that it, or one of the others, or `with graph:` names."""
    graph = graph_of(x, *others)
    if graph is None:
        raise TypeError("there is no graph: call this inside of a function that is compiled, or of `with graph:`")
    return as_tensor(x, graph)


def _graph() -> Graph:
    graph = current_graph()
    if graph is None:
        raise TypeError("there is no graph: call this inside of a function that is compiled, or of `with graph:`")
    return graph


# ---- making ---------------------------------------------------------------------------------------------------------------


def full(shape: Any, value: float, dtype: DTypeLike = float32) -> Tensor:
    """One value everywhere."""
    return _graph().full(shape, value, dtype)


def zeros(shape: Any, dtype: DTypeLike = float32) -> Tensor:
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: DTypeLike = float32) -> Tensor:
    return full(shape, 1, dtype)


def full_like(x: Tensor, value: float, dtype: Optional[DTypeLike] = None) -> Tensor:
    return x.graph.full(x.shape, value, dtype or x.dtype)


def zeros_like(x: Tensor, dtype: Optional[DTypeLike] = None) -> Tensor:
    return full_like(x, 0, dtype)


def ones_like(x: Tensor, dtype: Optional[DTypeLike] = None) -> Tensor:
    return full_like(x, 1, dtype)


def constant(value: Any, dtype: Optional[DTypeLike] = None) -> Tensor:
    """An array as a part of the graph that is being built."""
    return _graph().constant(value, dtype)


def arange(start: Any, stop: Any = None, step: int = 1, dtype: DTypeLike = int64) -> Tensor:
    """start, start + step, ... below stop; arange(n) is 0 to n - 1."""
    start, stop = (0, start) if stop is None else (start, stop)
    n: Any = stop - start if isinstance(stop, Dim) or isinstance(start, Dim) else len(range(start, stop, step))
    if isinstance(n, Dim) and step != 1:
        n = n.ceil_div(step)
    x = _graph().iota((n,), 0, dtype)
    return x if isinstance(start, int) and (start, step) == (0, 1) else x * step + start


def eye(n: int, m: Optional[int] = None, dtype: DTypeLike = float32) -> Tensor:
    m = n if m is None else m
    return (_graph().iota((n, m), 0) == _graph().iota((n, m), 1)).astype(dtype)


@on_arrays
def tril(x: ArrayLike, k: int = 0) -> Any:
    """The lower triangle of the last two axes, up to diagonal k; zeros above it."""
    x = tensor(x)
    return x.graph.wrap(lib.tn_tril(x._at(), k))


@on_arrays
def triu(x: ArrayLike, k: int = 0) -> Any:
    x = tensor(x)
    return x.graph.wrap(lib.tn_triu(x._at(), k))


def _code(t: DTypeLike) -> int:
    return dtype(t).code


@on_arrays
def one_hot(index: ArrayLike, n: int, dtype: DTypeLike = float32) -> Any:
    """1 where the last axis, of size n, is the index; all 0 for one out of range."""
    i = tensor(index)
    return i.graph.wrap(lib.tn_one_hot(i._at(), n, _code(dtype)))


# ---- elementwise compositions ---------------------------------------------------------------------------------------------


def _composition(name: str, builder: str, doc: str, floats: bool = False) -> Any:
    def fn(x: ArrayLike) -> Any:
        t = tensor(x)
        t = t.astype(float32) if floats and t.dtype.kind != "f" else t
        return t.graph.wrap(getattr(lib, builder)(t._at()))

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    return on_arrays(fn)


isnan = _composition("isnan", "tn_is_nan", "Where it is no number.")
isinf = _composition("isinf", "tn_is_inf", "Where it is infinite.")
isfinite = _composition("isfinite", "tn_is_finite", "Where it is neither infinite nor NaN.")
bitwise_not = invert = _composition("bitwise_not", "tn_bit_not", "All bits turned; logical for bool.")
bitwise_count = _composition("bitwise_count", "tn_popcount", "How many bits of an integer are set, in its dtype.")
count_leading_zeros = _composition("count_leading_zeros", "tn_clz", "Zeros above the highest bit that is set, in its dtype.")
log10 = _composition("log10", "tn_log10", "Logarithm to base 10.", True)
erfinv = _composition("erfinv", "tn_erfinv", "y with erf(y) = x.", True)
lgamma = _composition("lgamma", "tn_lgamma", "log(|gamma(x)|).", True)
digamma = _composition("digamma", "tn_digamma", "The derivative of lgamma.", True)


def _pair(name: str, builder: str, doc: str) -> Any:
    def fn(x: ArrayLike, y: ArrayLike) -> Any:
        graph = graph_of(x, y)
        assert graph is not None
        a, b = together(graph, x, y)
        graph.at()
        return graph.wrap(getattr(lib, builder)(a._t, b._t))

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    return on_arrays(fn)


floor_divide = _pair("floor_divide", "tn_floor_div", "Division rounded down; integers give 0 for a divisor of 0.")
fmod = _pair("fmod", "tn_fmod", "The rest of a division rounded towards 0: with the sign of x.")


# ---- joining and moving ---------------------------------------------------------------------------------------------------


def _list(graph: Graph, xs: Sequence[Any]) -> Any:
    made = [as_tensor(x, graph) for x in xs]
    if not made:
        raise ValueError("an empty list of arrays")
    common = functools.reduce(promote, [x.dtype for x in made])
    return (_abi.tn_tensor * len(made))(*[x.astype(common)._t for x in made])


def _joined(builder: Any, xs: Sequence[Any], *args: int) -> Tensor:
    graph = graph_of(list(xs))
    assert graph is not None
    given = _list(graph, xs)
    graph.at()
    return graph.wrap(builder(given, len(given), *args))


@on_arrays
def concatenate(xs: Sequence[ArrayLike], axis: int = 0) -> Any:
    """One after the other along an axis."""
    return _joined(lib.tn_concat, xs, axis)


concat = concatenate


@on_arrays
def stack(xs: Sequence[ArrayLike], axis: int = 0) -> Any:
    """Along a new axis."""
    return _joined(lib.tn_nn_stack, xs, axis)


@on_arrays
def vstack(xs: Sequence[ArrayLike]) -> Any:
    return _joined(lib.tn_nn_vstack, xs)


@on_arrays
def hstack(xs: Sequence[ArrayLike]) -> Any:
    return _joined(lib.tn_nn_hstack, xs)


@on_arrays
def split(x: ArrayLike, sizes: Any, axis: int = 0) -> Any:
    """Equal parts (a number), or parts of these sizes (a list)."""
    x = tensor(x)
    axis = axis + x.ndim if axis < 0 else axis
    if isinstance(sizes, int):
        if sizes < 1 or x.shape[axis] % sizes:
            raise ShapeError(f"axis {axis} of {x!r} has no {sizes} equal parts")
        sizes = [x.shape[axis] // sizes] * sizes
    given, out = ints(sizes), (_abi.tn_tensor * len(sizes))()
    lib.tn_nn_split(x._at(), axis, given, len(given), out)
    return [x.graph.wrap(_abi.tn_tensor(t.graph, t.id)) for t in out]


@on_arrays
def tile(x: ArrayLike, reps: Any) -> Any:
    """The whole of it, so many times along each axis."""
    x, reps = tensor(x), dims_of(reps)
    if len(reps) > x.ndim:
        x = x.reshape((1,) * (len(reps) - x.ndim) + x.shape)
    given = ints((1,) * (x.ndim - len(reps)) + reps)
    return x.graph.wrap(lib.tn_nn_tile(x._at(), given, len(given)))


@on_arrays
def repeat(x: ArrayLike, reps: int, axis: int) -> Any:
    """Each element so many times in a row."""
    x = tensor(x)
    return x.graph.wrap(lib.tn_nn_repeat(x._at(), reps, axis))


@on_arrays
def roll(x: ArrayLike, shift: int, axis: int) -> Any:
    x = tensor(x)
    return x.graph.wrap(lib.tn_nn_roll(x._at(), shift, axis))


@on_arrays
def pad(x: ArrayLike, width: Any, value: float = 0) -> Any:
    """A constant border: (before, after) for each axis, or for all."""
    return tensor(x).pad(width, value)


@on_arrays
def flip(x: ArrayLike, axis: Axes = None) -> Any:
    return tensor(x).flip(axis)


@on_arrays
def reshape(x: ArrayLike, shape: Any) -> Any:
    return tensor(x).reshape(shape)


@on_arrays
def transpose(x: ArrayLike, axes: Any = None) -> Any:
    return tensor(x).transpose(axes)


@on_arrays
def swapaxes(x: ArrayLike, a: int, b: int) -> Any:
    return tensor(x).swapaxes(a, b)


@on_arrays
def expand_dims(x: ArrayLike, axis: Any) -> Any:
    return tensor(x).expand_dims(axis)


@on_arrays
def squeeze(x: ArrayLike, axis: Axes = None) -> Any:
    return tensor(x).squeeze(axis)


@on_arrays
def broadcast_to(x: ArrayLike, shape: Any) -> Any:
    return tensor(x).broadcast_to(shape)


@on_arrays
def astype(x: ArrayLike, t: DTypeLike) -> Any:
    return tensor(x).astype(t)


@on_arrays
def clip(x: ArrayLike, low: Optional[ArrayLike] = None, high: Optional[ArrayLike] = None) -> Any:
    return tensor(x).clip(low, high)


@on_arrays
def take(x: ArrayLike, index: ArrayLike, axis: int = 0) -> Any:
    """Rows along an axis picked by integers."""
    return tensor(x, index).take(index, axis)


@on_arrays
def window(x: ArrayLike, axes: Sequence[int], size: Sequence[int], stride: Optional[Sequence[int]] = None,
           dilation: Optional[Sequence[int]] = None) -> Any:
    """Sliding windows over axes; their offsets are new last axes."""
    x, n = tensor(x), len(dims_of(axes))
    lists = [ints(dims_of(v)) if v is not None else None for v in (axes, size, stride, dilation)]
    return x.graph.wrap(lib.tn_window(x._at(), *lists, n))


_MODES = {"add": 0, "set": 1, "mul": 2, "max": 3, "min": 4}


def _combined(builder: Any, base: ArrayLike, index: ArrayLike, updates: ArrayLike, axis: int, mode: str) -> Tensor:
    if mode not in _MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(_MODES)}")
    graph = graph_of(base, index, updates)
    assert graph is not None
    b, u = together(graph, base, updates)
    i = as_tensor(index, graph)
    graph.at()
    return graph.wrap(builder(b._t, i._t, u._t, axis, _MODES[mode]))


@on_arrays
def scatter(base: ArrayLike, index: ArrayLike, updates: ArrayLike, axis: int = 0, mode: str = "set") -> Any:
    """base with updates at index along an axis: set, or combined with what is there (mode: set, add, mul, max, min), in index order.
    An index out of range is skipped."""
    return _combined(lib.tn_scatter, base, index, updates, axis, mode)


@on_arrays
def scatter_add(base: ArrayLike, index: ArrayLike, updates: ArrayLike, axis: int = 0) -> Any:
    """base with updates added at index along an axis, in index order; an index out of range is skipped."""
    return _combined(lib.tn_scatter, base, index, updates, axis, "add")


@on_arrays
def scatter_set(base: ArrayLike, index: ArrayLike, updates: ArrayLike, axis: int = 0) -> Any:
    """base with updates written at index along an axis, the last of several in one place; an index out of range is skipped."""
    return _combined(lib.tn_scatter, base, index, updates, axis, "set")


@on_arrays
def dot_general(a: ArrayLike, b: ArrayLike, contract: tuple[Sequence[int], Sequence[int]],
                batch: tuple[Sequence[int], Sequence[int]] = ((), ())) -> Any:
    """Contraction over any axes: (of a, of b); batch axes come first in the result, then the free ones of a, then of b."""
    graph = graph_of(a, b)
    assert graph is not None
    x, y = together(graph, a, b)
    ba, bb, ca, cb = ints(batch[0]), ints(batch[1]), ints(contract[0]), ints(contract[1])
    if len(ba) != len(bb) or len(ca) != len(cb):
        raise ShapeError("the lists of axes of a and b differ in length")
    graph.at()
    return graph.wrap(lib.tn_dot(x._t, y._t, ba, bb, len(ba), ca, cb, len(ca)))


@on_arrays
def einsum(spec: str, *xs: ArrayLike) -> Any:
    """Einstein summation: einsum("bij,bjk->bik", a, b). More than two operands are contracted in the order of least work."""
    graph = graph_of(*xs)
    assert graph is not None
    made = together(graph, *xs)
    graph.at()
    return graph.wrap(lib.tn_einsum(spec.encode(), (_abi.tn_tensor * len(made))(*[x._t for x in made]), len(made)))


# ---- reducing -------------------------------------------------------------------------------------------------------------


def _reduction(name: str) -> Any:
    def reduce(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Any:
        return getattr(tensor(x), name)(axis, keepdims)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = (getattr(Tensor, name).__doc__ or f"{name.capitalize()} over axes (None = all).")
    return on_arrays(reduce)


sum = _reduction("sum")
prod = _reduction("prod")
mean = _reduction("mean")
max = _reduction("max")
min = _reduction("min")
any = _reduction("any")
all = _reduction("all")
argmax = _reduction("argmax")
argmin = _reduction("argmin")
norm = _reduction("norm")


@on_arrays
def var(x: ArrayLike, axis: Axes = None, keepdims: bool = False, correction: int = 0) -> Any:
    return tensor(x).var(axis, keepdims, correction)


@on_arrays
def std(x: ArrayLike, axis: Axes = None, keepdims: bool = False, correction: int = 0) -> Any:
    return tensor(x).std(axis, keepdims, correction)


@on_arrays
def cumsum(x: ArrayLike, axis: int) -> Any:
    return tensor(x).cumsum(axis)


@on_arrays
def cumprod(x: ArrayLike, axis: int) -> Any:
    return tensor(x).cumprod(axis)


# ---- order and places -----------------------------------------------------------------------------------------------------


@on_arrays
def sort(x: ArrayLike, axis: int = -1, descending: bool = False) -> Any:
    """In order along an axis; equal values keep theirs, NaNs are the largest."""
    x = tensor(x)
    return x.graph.wrap(lib.tn_sort(x._at(), axis, descending))


@on_arrays
def argsort(x: ArrayLike, axis: int = -1, descending: bool = False) -> Any:
    """int64: where the values of sort stood."""
    x = tensor(x)
    return x.graph.wrap(lib.tn_argsort(x._at(), axis, descending))


@on_arrays
def top_k(x: ArrayLike, k: int, axis: int = -1, largest: bool = True) -> Any:
    """The k largest (or smallest) along an axis, in order, and where they stood."""
    x, index = tensor(x), _abi.tn_tensor()
    values = lib.tn_top_k(x._at(), k, axis, largest, ctypes.byref(index))
    return x.graph.wrap(values), x.graph.wrap(index)


@on_arrays
def take_along_axis(x: ArrayLike, index: ArrayLike, axis: int = -1) -> Any:
    """For each index, the element of its own row: x[index[i, j], j] for axis 0. Indices are clamped."""
    x = tensor(x, index)
    return x.graph.wrap(lib.tn_take_along(x._at(), as_tensor(index, x.graph)._t, axis))


@on_arrays
def put_along_axis(base: ArrayLike, index: ArrayLike, updates: ArrayLike, axis: int = -1, mode: str = "set") -> Any:
    """base with each update at its own index along an axis: base[index[i, j], j] for axis 0 is set to updates[i, j], or combined with
    it, as scatter does."""
    return _combined(lib.tn_put_along, base, index, updates, axis, mode)


@on_arrays
def searchsorted(sorted: ArrayLike, values: ArrayLike, side: str = "left") -> Any:
    """int64: how many of the sorted values (along the last axis) stand before each value."""
    graph = graph_of(sorted, values)
    assert graph is not None
    a, v = together(graph, sorted, values)
    graph.at()
    return graph.wrap(lib.tn_searchsorted(a._t, v._t, side == "right"))


@on_arrays
def unique(x: ArrayLike, size: int) -> Any:
    """The different values, rising: the first `size` of them, with zeros behind the last; and how many there are."""
    x, count = tensor(x), _abi.tn_tensor()
    values = lib.tn_unique(x._at(), size, ctypes.byref(count), None, None)
    return x.graph.wrap(values), x.graph.wrap(count)


@on_arrays
def nonzero(x: ArrayLike, size: int) -> Any:
    """int64[size, axes]: places of what is not 0, in the order of memory, with -1 behind the last; and how many there are."""
    x, count = tensor(x), _abi.tn_tensor()
    places = lib.tn_nonzero(x._at(), size, ctypes.byref(count))
    return x.graph.wrap(places), x.graph.wrap(count)


# ---- random numbers -------------------------------------------------------------------------------------------------------


def _counter(counter: Any) -> Tensor:
    c = tensor(counter)
    return c if c.dtype is int64 else c.astype(int64)


def random_uniform(counter: Any, shape: Any, stream: int = 0) -> Tensor:
    """Uniform f32 in [0, 1): element i depends on the counter (a number that changes from run to run), the stream and i alone."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_random_uniform(c._at(), stream, c_shape(dims_of(shape), c.graph)))


def random_normal(counter: Any, shape: Any, stream: int = 0) -> Tensor:
    """Standard normal f32."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_random_normal(c._at(), stream, c_shape(dims_of(shape), c.graph)))


def random_bernoulli(counter: Any, shape: Any, p: float, stream: int = 0) -> Tensor:
    """True with probability p."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_random_bernoulli(c._at(), stream, c_shape(dims_of(shape), c.graph), p))


def random_exponential(counter: Any, shape: Any, stream: int = 0) -> Tensor:
    """Of rate 1."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_nn_random_exponential(c._at(), stream, c_shape(dims_of(shape), c.graph)))


def random_truncated_normal(counter: Any, shape: Any, low: float = -2.0, high: float = 2.0, stream: int = 0) -> Tensor:
    """Standard normal within bounds."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_nn_random_truncated_normal(c._at(), stream, c_shape(dims_of(shape), c.graph), low, high))


def random_permutation(counter: Any, n: int, stream: int = 0) -> Tensor:
    """0 to n - 1 in some order."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_nn_random_permutation(c._at(), stream, n))


def random_categorical(counter: Any, logits: ArrayLike, n: int = 1, replace: bool = True, stream: int = 0) -> Tensor:
    """n draws from softmax(logits) over the last axis: [.., n]."""
    c = _counter(counter)
    x = as_tensor(logits, c.graph)
    c.graph.at()
    return c.graph.wrap(lib.tn_nn_random_categorical(x._t, n, int(replace), c._t, stream))


def random_gamma(counter: Any, a: ArrayLike, stream: int = 0) -> Tensor:
    """A sample for each shape a > 0, of scale 1."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_nn_random_gamma(as_tensor(a, c.graph).astype(float32)._at(), c._t, stream))


def random_beta(counter: Any, a: ArrayLike, b: ArrayLike, stream: int = 0) -> Tensor:
    c = _counter(counter)
    x, y = (as_tensor(v, c.graph).astype(float32) for v in (a, b))
    return c.graph.wrap(lib.tn_nn_random_beta(x._at(), y._t, c._t, stream))


def random_poisson(counter: Any, rate: ArrayLike, stream: int = 0) -> Tensor:
    """A whole number, as f32, for each rate >= 0."""
    c = _counter(counter)
    return c.graph.wrap(lib.tn_nn_random_poisson(as_tensor(rate, c.graph).astype(float32)._at(), c._t, stream))


__all__ = [name for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", None) == __name__ and
           not name.startswith("_") and name not in ("on_arrays", "tensor", "F", "reduce")]
