"""Graphs and tensors: what a program computes, written with NumPy's operators.

A Tensor is a value of a graph, not an array: its numbers exist in a session, or at once in an immediate graph. Operands may also
be NumPy arrays, which become constants, and Python numbers, which take the tensor's dtype.
"""

from __future__ import annotations

import contextlib
import ctypes
import html
import threading
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Sequence, Union

import numpy as np

from . import _abi, _dlpack
from ._dims import Dim, handle
from ._dtypes import BY_CODE, DType, DTypeLike, bool_, dtype, float32, int32, int64, promote, without_numpy
from ._lib import Context, Handle, InternalError, ShapeError, UnsupportedError, default_context, here, lib

if TYPE_CHECKING:
    from ._run import Program, Tuning

ArrayLike = Union["Tensor", np.ndarray, int, float, bool, Sequence[Any]]
Axes = Union[None, int, Sequence[int]]

_tracing = threading.local()


def current_graph() -> Optional["Graph"]:
    """The graph of the innermost `with graph:`, or of the function that is being traced."""
    stack = getattr(_tracing, "stack", None)
    return stack[-1] if stack else None


def _shape(dims: Iterable[Any], graph: Optional["Graph"] = None) -> _abi.tn_shape:
    s = _abi.tn_shape()
    dims = tuple(dims)
    if len(dims) > _abi.TN_MAX_RANK:
        raise ShapeError(f"{len(dims)} axes; the largest rank is {_abi.TN_MAX_RANK}")
    s.rank = len(dims)
    for i, d in enumerate(dims):
        s.dim[i] = handle(d, graph)
    return s


def ints(values: Iterable[Any]) -> ctypes.Array:
    values = [handle(v) for v in values]
    return (ctypes.c_int64 * len(values))(*values)


def int_axes(axis: Axes) -> tuple[Any, int]:
    """(pointer, count) of a reduction's axes; None = all of them."""
    if axis is None:
        return None, -1
    axes = ints([axis] if isinstance(axis, (int, np.integer)) else axis)
    return axes, len(axes)


def dims_of(shape: Any) -> tuple[Any, ...]:
    """A shape given as one size, or a sequence of them: numbers, or Dims."""
    return tuple(d if isinstance(d, Dim) else int(d) for d in ((shape,) if isinstance(shape, (int, np.integer, Dim)) else shape))


class Graph:
    """A computation: named inputs, states (parameters among them), and outputs.

    immediate: every operation is computed as it is written; `device` is where. The first error of a graph stays: each further
    use raises it again. `with graph:` makes it the graph of functions that have no tensor to take it from (`tenon.zeros`).
    """

    def __init__(self, name: str = "graph", *, context: Optional[Context] = None, immediate: bool = False,
                 device: Optional[str] = None, _pointer: Optional[int] = None):
        self.context = context or default_context()
        if _pointer is None:
            if immediate:
                _pointer = lib.tn_graph_immediate_on(self.context.pointer, name.encode(), device.encode() if device else None)
            else:
                _pointer = lib.tn_graph_new(self.context.pointer, name.encode())
            if not _pointer:
                self.context.check(lib.tn_ctx_status(self.context.pointer) or _abi.TN_ERR_NOMEM)
        self.name, self.immediate = name, immediate
        self._dims: dict[int, str] = {}  # texts of sizes that a run gives
        self._handle = Handle(_pointer, lib.tn_graph_free, self.context._handle)
        self.pointer = _pointer

    @classmethod
    def parse(cls, text: str, *, file: str = "<text>", context: Optional[Context] = None) -> "Graph":
        """A graph from its text form (docs/ir.md)."""
        context = context or default_context()
        data = text.encode()
        pointer = lib.tn_graph_parse(context.pointer, data, len(data), file.encode())
        if not pointer:
            context.check(lib.tn_ctx_status(context.pointer) or _abi.TN_ERR_PARSE)
        return cls("parsed", context=context, _pointer=pointer)

    def __enter__(self) -> "Graph":
        if not hasattr(_tracing, "stack"):
            _tracing.stack = []
        _tracing.stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _tracing.stack.pop()

    # ---- building ----

    def at(self) -> int:
        """The C graph, told where the caller is."""
        pointer = self._handle.pointer
        lib.tn_graph_at(pointer, here())
        return pointer

    def wrap(self, t: _abi.tn_tensor) -> "Tensor":
        """The tensor of a builder's result; raises the graph's error where there is none."""
        if not t.id:
            self.raise_error()
        return Tensor(self, t)

    def raise_error(self) -> None:
        status = lib.tn_graph_status(self._handle.pointer)
        if status:
            lib.tn_graph_check(self._handle.pointer)  # brings the text of this graph back
            self.context.check(status)
        raise InternalError("a builder returned nothing")

    def check(self) -> None:
        """Raises the graph's error, with every mistake that was made."""
        self.context.check(lib.tn_graph_check(self._handle.pointer))

    def _done(self) -> None:
        if lib.tn_graph_status(self._handle.pointer):
            self.raise_error()

    def input(self, name: str, shape: Any = (), dtype: DTypeLike = float32) -> "Tensor":
        """An array that every run is given."""
        return self.wrap(lib.tn_input(self.at(), name.encode(), _code(dtype), _shape(dims_of(shape), self)))

    def _state(self, builder: Any, name: str, init: Any, shape: Any, dtype_: Optional[DTypeLike]) -> "Tensor":
        if init is None:
            return self.wrap(builder(self.at(), name.encode(), _code(dtype_ or float32), _shape(dims_of(shape)), None))
        array = host_array(init, dtype_)
        if shape is not None and tuple(dims_of(shape)) != array.shape:
            array = np.ascontiguousarray(np.broadcast_to(array, dims_of(shape)))
        return self.wrap(builder(self.at(), name.encode(), _code(array.dtype), _shape(array.shape), array.ctypes.data))

    def state(self, name: str, init: Any = None, *, shape: Any = None, dtype: Optional[DTypeLike] = None) -> "Tensor":
        """A value that sessions keep from run to run: zeros of a shape, or a copy of `init`."""
        return self._state(lib.tn_state, name, init, () if init is None and shape is None else shape, dtype)

    def param(self, name: str, init: Any = None, *, shape: Any = None, dtype: Optional[DTypeLike] = None) -> "Tensor":
        """A state that optimisers train."""
        return self._state(lib.tn_param, name, init, () if init is None and shape is None else shape, dtype)

    def constant(self, value: Any, dtype: Optional[DTypeLike] = None) -> "Tensor":
        """An array as a part of the graph (copied)."""
        array = host_array(value, dtype)
        return self.wrap(lib.tn_const(self.at(), _code(array.dtype), _shape(array.shape), array.ctypes.data))

    def full(self, shape: Any, value: float, dtype: DTypeLike = float32) -> "Tensor":
        """One value everywhere. It must be a value of the dtype: 0.5 is none of an integer."""
        if isinstance(value, int) and abs(value) > 2**53:  # a double does not hold it
            return self.constant(np.full(dims_of(shape), value, _dtype(dtype).numpy))
        return self.wrap(lib.tn_full(self.at(), _code(dtype), _shape(dims_of(shape), self), float(value)))

    def iota(self, shape: Any, axis: int = 0, dtype: DTypeLike = int64) -> "Tensor":
        """0, 1, 2, ... along an axis."""
        return self.wrap(lib.tn_iota(self.at(), _code(dtype), _shape(dims_of(shape), self), axis))

    def output(self, x: "Tensor", name: str) -> "Tensor":
        """Gives x out under a name. Returns x."""
        self.at()
        lib.tn_output(x._t, name.encode())
        self._done()
        return x

    def assign(self, state: "Tensor", value: ArrayLike) -> None:
        """At the end of every run the state takes this value; all reads in the graph see the old one."""
        value = as_tensor(value, self, state.dtype)
        self.at()
        lib.tn_assign(state._t, value._t)
        self._done()

    def set_seed(self, seed: int) -> None:
        """Of the initial values that layers give their parameters."""
        lib.tn_graph_set_seed(self._handle.pointer, seed)

    def counter(self, name: str = "counter") -> "Tensor":
        """An i64 state that counts runs: for random numbers, dropout and schedules."""
        return self.wrap(lib.tn_nn_counter(self.at(), name.encode()))

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator["Graph"]:
        """Names of states, parameters and labels begin with this one and a slash."""
        lib.tn_graph_push(self.at(), name.replace("%", "%%").encode())
        if lib.tn_graph_status(self._handle.pointer):
            self.raise_error()
        try:
            yield self
        finally:
            lib.tn_graph_pop(self._handle.pointer)

    @contextlib.contextmanager
    def reuse(self) -> Iterator["Graph"]:
        """Layers take the parameters of their names that are there already."""
        before = lib.tn_graph_reuse(self._handle.pointer, 1)
        try:
            yield self
        finally:
            lib.tn_graph_reuse(self._handle.pointer, before)

    def find(self, name: str) -> Optional["Tensor"]:
        """The input, state, output or labelled tensor of this name, or None."""
        t = lib.tn_graph_find(self._handle.pointer, name.encode())
        return self.wrap(t) if t.id else None

    @property
    def params(self) -> list["Tensor"]:
        p = self._handle.pointer
        return [self.wrap(lib.tn_graph_param(p, i)) for i in range(lib.tn_graph_n_params(p))]

    @property
    def states(self) -> list["Tensor"]:
        """All states, parameters among them, in the order they were made."""
        p = self._handle.pointer
        return [self.wrap(lib.tn_graph_state(p, i)) for i in range(lib.tn_graph_n_states(p))]

    def load_states(self, path: Any) -> None:
        """Every state takes its initial value from a safetensors file."""
        self.context.check(lib.tn_io_load_graph(self.context.pointer, self._handle.pointer, str(path).encode()))

    def grad(self, loss: "Tensor", xs: Sequence["Tensor"]) -> list["Tensor"]:
        """Gradients of a scalar by each of xs: new tensors of the same graph."""
        n = len(xs)
        given, out = (_abi.tn_tensor * n)(*[x._t for x in xs]), (_abi.tn_tensor * n)()
        self.at()
        if lib.tn_grad(loss._t, given, n, out):
            self.raise_error()
        return [self.wrap(_abi.tn_tensor(t.graph, t.id)) for t in out]

    # ---- text, programs ----

    def __str__(self) -> str:
        text = ctypes.c_void_p()
        self.context.check(lib.tn_graph_print(self._handle.pointer, ctypes.byref(text)))
        return self.context.text(text)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def compile(self, *, device: str = "cpu", mode: str = "compiled", fusion: int = -1, threads: int = 0,
                schedule: Optional[str] = None, check: bool = False) -> "Program":
        """The program of this graph as it is now.

        device: "cpu", "cuda", "opencl", or "auto". mode: "compiled", "loop", "graph" (one kernel an op) or "immediate".
        fusion: 0 to 3, -1 = the mode's own. threads: of the CPU, at most; 0 = as many as the process may use.
        schedule: how kernels run, as text (docs/schedules.md). check: verify every stage (slow)."""
        from ._run import Program
        return Program(self, device=device, mode=mode, fusion=fusion, threads=threads, schedule=schedule, check=check)

    def tune(self, seconds: float = 10.0, *, progress: Any = None, **options: Any) -> "Tuning":
        """Searches for faster schedules of the graph's kernels and keeps them for later programs (docs/tuning.md).

        progress: True = a bar on stderr (in a notebook: in its cell); or called with a share done and a kernel's name."""
        from ._run import Tuning
        return Tuning(self, seconds, progress, options)


def _dtype(t: DTypeLike) -> DType:
    return dtype(t)


def _code(t: DTypeLike) -> int:
    return dtype(t).code


def host_array(value: Any, as_dtype: Optional[DTypeLike] = None) -> np.ndarray:
    """A contiguous NumPy array of a dtype that Tenon has, copied only where it must be."""
    array = value if isinstance(value, np.ndarray) else _dlpack.to_numpy(value)
    if as_dtype is not None:
        wanted = dtype(as_dtype)
        if wanted.numpy is None:
            raise UnsupportedError(without_numpy(wanted) + ", or convert with astype in the graph")
        array = array.astype(wanted.numpy, copy=False)
    t = dtype(array.dtype)
    return np.ascontiguousarray(array, dtype=t.numpy).reshape(array.shape)


def as_tensor(value: Any, graph: Graph, like: Optional[DType] = None) -> "Tensor":
    """A tensor of the graph: itself, a constant from an array, or a scalar of dtype `like`."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Dim):
        return value.value().astype(like or int64)
    if isinstance(value, (bool, int, float)):
        t = like or dtype(type(value))
        if isinstance(value, float) and t.kind != "f":
            t = float32
        if isinstance(value, int) and not isinstance(value, bool) and t is bool_:
            t = int64
        return graph.full((), value, t)
    return graph.constant(value)


def graph_of(*values: Any) -> Optional[Graph]:
    """The graph of the first tensor among the values (lists are looked into), or the current one."""
    for v in values:
        if isinstance(v, Tensor):
            return v.graph
        if isinstance(v, (list, tuple)):
            for w in v:
                if isinstance(w, Tensor):
                    return w.graph
    return current_graph()


def together(graph: Graph, *values: Any) -> list["Tensor"]:
    """The values as tensors of one dtype: that of tensors and arrays, which Python numbers take."""
    made = [v if isinstance(v, (Tensor, bool, int, float, Dim)) else graph.constant(v) for v in values]
    common: Any = None
    for v in made:
        if isinstance(v, Tensor):
            common = v.dtype if common is None else promote(common, v.dtype)
    for v in made:
        if isinstance(v, Tensor):
            continue
        kind = int64 if isinstance(v, Dim) else dtype(type(v))
        if common is None or (kind.kind == "f" and common.kind != "f") or (kind.kind == "i" and common is bool_):
            common = kind if common is None else promote(common, kind)
    return [as_tensor(v, graph, common).astype(common) for v in made]


_op_names: dict[str, bytes] = {}


def build(graph: Graph, name: str, *operands: "Tensor") -> "Tensor":
    """An op of the table without attributes."""
    c_name = _op_names.get(name) or _op_names.setdefault(name, name.encode())
    n = len(operands)
    return graph.wrap(lib.tn_op(graph.at(), c_name, (_abi.tn_tensor * n)(*[x._t for x in operands]), n, None, 0))


def elementwise(name: str, *values: Any, floats: bool = False) -> Any:
    """An elementwise op of tensors, arrays and numbers; of arrays alone its result is an array, computed at once."""
    graph = graph_of(*values)
    if graph is None:
        from ._function import eager
        return eager(lambda *xs: elementwise(name, *xs, floats=floats), (name, floats), values)
    operands = together(graph, *values)
    if floats and operands[0].dtype.kind != "f":
        operands = [x.astype(float32) for x in operands]
    return build(graph, name, *operands)


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Any:
    """x where the condition holds, else y; the three broadcast."""
    graph = graph_of(condition, x, y)
    if graph is None:
        from ._function import eager
        return eager(where, "where", (condition, x, y))
    c = as_tensor(condition, graph)
    return build(graph, "select", c if c.dtype is bool_ else c != 0, *together(graph, x, y))


from ._ops import ElementwiseMethods  # noqa: E402  (it needs what stands above)


class Tensor(ElementwiseMethods):
    """A value of a graph, with NumPy's operators.

    dtypes: as with NumPy, bool gives way to integers and these to floats, but i64 with f32 is f32, and a Python number takes the
    tensor's dtype. `/` of integers gives f32; `//` and `%` are Python's. Comparisons give bool tensors; `tenon.where` chooses.
    Sums of bool and small integers are i64, as NumPy's."""

    __slots__ = ("graph", "_t", "shape", "dtype", "__weakref__")
    __array_ufunc__ = None  # array + tensor is the tensor's business
    __array_priority__ = 1000

    def __init__(self, graph: Graph, t: _abi.tn_tensor):
        self.graph, self._t = graph, t
        s = lib.tn_tensor_shape(t)
        self.shape: tuple[Any, ...] = tuple(d if d >= 0 else Dim._of(graph, d) for d in s.dim[: s.rank])
        self.dtype: DType = BY_CODE[lib.tn_tensor_dtype(t)]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        n: Any = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def name(self) -> Optional[str]:
        """Of an input or state; the label of another tensor."""
        name = lib.tn_tensor_name(self._t)
        return name.decode() if name else None

    def label(self, name: str) -> "Tensor":
        """Names the tensor in listings and error texts. Returns it."""
        self.graph.at()
        lib.tn_label(self._t, name.encode())
        return self

    def __repr__(self) -> str:
        name = self.name
        return f"<Tensor {name + ' ' if name else ''}{self.dtype}{list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no len")
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__

    # ---- values of immediate graphs ----

    def numpy(self) -> np.ndarray:
        """The value, where it is there: in immediate graphs, and the initial value of a state there."""
        from ._run import Buffer
        if not self.graph.immediate:
            raise TypeError(f"{self!r} is a part of a graph and has no value yet: make it an output, compile and run")
        out = Buffer.empty(self.shape, self.dtype)
        self.graph.context.check(lib.tn_tensor_read(self._t, out.pointer, out.nbytes))
        return out.array()

    def write(self, value: Any) -> None:
        """Immediate graphs: the value of an input or a state. Other graphs: the initial value of a state."""
        from ._run import Buffer
        data = Buffer.of(value, self.dtype, self.shape)
        self.graph.context.check(lib.tn_tensor_write(self._t, data.pointer, data.nbytes))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def item(self) -> Union[int, float, bool]:
        return self.numpy().item()

    def _scalar(self, kind: type) -> Any:
        if not self.graph.immediate:
            raise TypeError(f"{self!r} has no value while its graph is built: choose with tenon.where, or give {kind.__name__}s "
                            "that the graph depends on as arguments of the function")
        return kind(self.item())

    def __bool__(self) -> bool:
        return self._scalar(bool)

    def __int__(self) -> int:
        return self._scalar(int)

    def __float__(self) -> float:
        return self._scalar(float)

    # ---- operators ----

    def __add__(self, other: ArrayLike) -> "Tensor":
        return elementwise("add", self, other)

    def __radd__(self, other: ArrayLike) -> "Tensor":
        return elementwise("add", other, self)

    def __sub__(self, other: ArrayLike) -> "Tensor":
        return elementwise("sub", self, other)

    def __rsub__(self, other: ArrayLike) -> "Tensor":
        return elementwise("sub", other, self)

    def __mul__(self, other: ArrayLike) -> "Tensor":
        return elementwise("mul", self, other)

    def __rmul__(self, other: ArrayLike) -> "Tensor":
        return elementwise("mul", other, self)

    def __truediv__(self, other: ArrayLike) -> "Tensor":
        return elementwise("div", self, other, floats=True)

    def __rtruediv__(self, other: ArrayLike) -> "Tensor":
        return elementwise("div", other, self, floats=True)

    def __floordiv__(self, other: ArrayLike) -> "Tensor":
        return _floor_divide(self.graph, self, other)

    def __rfloordiv__(self, other: ArrayLike) -> "Tensor":
        return _floor_divide(self.graph, other, self)

    def __mod__(self, other: ArrayLike) -> "Tensor":
        return elementwise("mod", self, other)

    def __lshift__(self, other: ArrayLike) -> "Tensor":
        return elementwise("shift_left", self, other)

    def __rlshift__(self, other: ArrayLike) -> "Tensor":
        return elementwise("shift_left", other, self)

    def __rshift__(self, other: ArrayLike) -> "Tensor":
        return elementwise("shift_right", self, other)

    def __rrshift__(self, other: ArrayLike) -> "Tensor":
        return elementwise("shift_right", other, self)

    def __rmod__(self, other: ArrayLike) -> "Tensor":
        return elementwise("mod", other, self)

    def __pow__(self, other: ArrayLike) -> "Tensor":
        if isinstance(other, int) and not isinstance(other, bool) and 0 <= other <= 16:
            return _power(self, other)
        if isinstance(other, float) and other == 0.5:
            return elementwise("sqrt", self, floats=True)
        return elementwise("pow", self, other, floats=True)

    def __rpow__(self, other: ArrayLike) -> "Tensor":
        return elementwise("pow", other, self, floats=True)

    def __matmul__(self, other: ArrayLike) -> "Tensor":
        return matmul(self, other)

    def __rmatmul__(self, other: ArrayLike) -> "Tensor":
        return matmul(other, self)

    def __neg__(self) -> "Tensor":
        return elementwise("neg", self)

    def __pos__(self) -> "Tensor":
        return self

    def __abs__(self) -> "Tensor":
        return elementwise("abs", self)

    def __invert__(self) -> "Tensor":
        return elementwise("not", self) if self.dtype is bool_ else elementwise("xor", self, -1)

    def __and__(self, other: ArrayLike) -> "Tensor":
        return elementwise("and", self, other)

    def __rand__(self, other: ArrayLike) -> "Tensor":
        return elementwise("and", other, self)

    def __or__(self, other: ArrayLike) -> "Tensor":
        return elementwise("or", self, other)

    def __ror__(self, other: ArrayLike) -> "Tensor":
        return elementwise("or", other, self)

    def __xor__(self, other: ArrayLike) -> "Tensor":
        return elementwise("xor", self, other)

    def __rxor__(self, other: ArrayLike) -> "Tensor":
        return elementwise("xor", other, self)

    def __lt__(self, other: ArrayLike) -> "Tensor":
        return _compare("lt", self, other)

    def __le__(self, other: ArrayLike) -> "Tensor":
        return _compare("le", self, other)

    def __gt__(self, other: ArrayLike) -> "Tensor":
        return _compare("gt", self, other)

    def __ge__(self, other: ArrayLike) -> "Tensor":
        return _compare("ge", self, other)

    def __eq__(self, other: ArrayLike) -> "Tensor":  # type: ignore[override]
        return _compare("eq", self, other)

    def __ne__(self, other: ArrayLike) -> "Tensor":  # type: ignore[override]
        return _compare("ne", self, other)

    # ---- shape ----

    def astype(self, t: DTypeLike) -> "Tensor":
        """Conversion; floats to integers truncate and saturate, NaN gives 0."""
        wanted = dtype(t)
        return self if wanted is self.dtype else self.graph.wrap(lib.tn_cast(self._at(), wanted.code))

    def _at(self) -> _abi.tn_tensor:
        self.graph.at()
        return self._t

    def reshape(self, *shape: Any) -> "Tensor":
        """The same elements in row-major order; one dim may be -1."""
        dims = dims_of(shape[0] if len(shape) == 1 else shape)
        return self.graph.wrap(lib.tn_reshape(self._at(), _shape(dims, self.graph)))

    def transpose(self, *axes: Any) -> "Tensor":
        """Axes in another order; none given: reversed."""
        order = dims_of(axes[0] if len(axes) == 1 else axes) if axes and axes[0] is not None else range(self.ndim)[::-1]
        return self.graph.wrap(lib.tn_permute(self._at(), ints(order), len(order)))

    permute = transpose

    @property
    def T(self) -> "Tensor":
        return self.transpose()

    @property
    def mT(self) -> "Tensor":
        return self.swapaxes(-1, -2)

    def swapaxes(self, a: int, b: int) -> "Tensor":
        return self.graph.wrap(lib.tn_transpose(self._at(), a, b))

    def expand_dims(self, axis: Union[int, Sequence[int]]) -> "Tensor":
        """New axes of size 1, at these places of the result."""
        places = dims_of(axis)
        rank = self.ndim + len(places)
        at = {p + rank if p < 0 else p for p in places}
        if len(at) != len(places) or not all(0 <= p < rank for p in at):
            raise ShapeError(f"{here().decode()}: axes {list(places)} are not places of rank {rank}")
        old = iter(self.shape)
        return self.reshape([1 if i in at else next(old) for i in range(rank)])

    def squeeze(self, axis: Axes = None) -> "Tensor":
        """Without axes of size 1: all of them, or those given."""
        axes = range(self.ndim) if axis is None else [a + self.ndim if a < 0 else a for a in dims_of(axis)]
        for a in axes:
            if not 0 <= a < self.ndim or (axis is not None and self.shape[a] != 1):
                raise ShapeError(f"{here().decode()}: axis {a} of {self!r} has not size 1")
        drop = {a for a in axes if self.shape[a] == 1}
        return self.reshape([d for i, d in enumerate(self.shape) if i not in drop])

    def flatten(self) -> "Tensor":
        return self.reshape((self.size,))

    ravel = flatten

    def broadcast_to(self, shape: Any) -> "Tensor":
        return self.graph.wrap(lib.tn_expand(self._at(), _shape(dims_of(shape), self.graph)))

    def flip(self, axis: Axes = None) -> "Tensor":
        """Axes reversed; None = all."""
        axes = ints(range(self.ndim) if axis is None else dims_of(axis))
        return self.graph.wrap(lib.tn_flip(self._at(), axes, len(axes)))

    def pad(self, width: Any, value: float = 0) -> "Tensor":
        """A constant border: one (before, after) for each axis, or one for all."""
        pairs = np.broadcast_to(np.asarray(width, dtype=np.int64), (self.ndim, 2))
        return self.graph.wrap(lib.tn_pad(self._at(), ints(pairs[:, 0]), ints(pairs[:, 1]), self.ndim, float(value)))

    def __getitem__(self, index: Any) -> "Tensor":
        from ._index import index_tensor
        return index_tensor(self, index)

    def take(self, index: ArrayLike, axis: int = 0) -> "Tensor":
        """Rows along an axis picked by integers; negative ones count from the end, others out of range are clamped."""
        from ._index import take_rows
        return take_rows(self, index, axis)

    # ---- reductions ----

    def _reduce(self, builder: Any, axis: Axes, keepdims: bool) -> "Tensor":
        axes, n = int_axes(axis)
        return self.graph.wrap(builder(self._at(), axes, n, int(keepdims)))

    def _wide(self) -> "Tensor":
        return self.astype(int64) if self.dtype.kind != "f" else self

    def _float(self) -> "Tensor":
        return self if self.dtype.kind == "f" else self.astype(float32)

    def sum(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """f16 and bf16 accumulate in f32."""
        return self._wide()._reduce(lib.tn_sum, axis, keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        return self._wide()._reduce(lib.tn_prod, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        return self._float()._reduce(lib.tn_mean, axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """The largest; NaN if any is."""
        return self._unbool(lambda x: x._reduce(lib.tn_reduce_max, axis, keepdims))

    def min(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """The smallest; NaN if any is."""
        return self._unbool(lambda x: x._reduce(lib.tn_reduce_min, axis, keepdims))

    def _unbool(self, reduce: Any) -> "Tensor":
        return reduce(self) if self.dtype is not bool_ else reduce(self.astype(int32)).astype(bool_)

    def any(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        return (self if self.dtype is bool_ else self != 0).max(axis, keepdims)

    def all(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        return (self if self.dtype is bool_ else self != 0).min(axis, keepdims)

    def argmax(self, axis: Optional[int] = None, keepdims: bool = False) -> "Tensor":
        """i64 position of the first largest along an axis, or of all elements; the first NaN wins."""
        return self._arg(lib.tn_argmax, axis, keepdims)

    def argmin(self, axis: Optional[int] = None, keepdims: bool = False) -> "Tensor":
        return self._arg(lib.tn_argmin, axis, keepdims)

    def _arg(self, builder: Any, axis: Optional[int], keepdims: bool) -> "Tensor":
        x = self.astype(int32) if self.dtype is bool_ else self
        if axis is None:
            flat = x.graph.wrap(builder(x.flatten()._at(), 0, 0))
            return flat.reshape([1] * self.ndim) if keepdims else flat
        return x.graph.wrap(builder(x._at(), axis, int(keepdims)))

    def var(self, axis: Axes = None, keepdims: bool = False, correction: int = 0) -> "Tensor":
        """Mean squared distance from the mean, with n - correction for n."""
        axes, n = int_axes(axis)
        x = self._float()
        return x.graph.wrap(lib.tn_nn_var(x._at(), axes, n, correction, int(keepdims)))

    def std(self, axis: Axes = None, keepdims: bool = False, correction: int = 0) -> "Tensor":
        axes, n = int_axes(axis)
        x = self._float()
        return x.graph.wrap(lib.tn_nn_std(x._at(), axes, n, correction, int(keepdims)))

    def norm(self, axis: Axes = None, keepdims: bool = False) -> "Tensor":
        """The root of the sum of squares."""
        axes, n = int_axes(axis)
        x = self._float()
        return x.graph.wrap(lib.tn_nn_norm(x._at(), axes, n, int(keepdims)))

    def cumsum(self, axis: int) -> "Tensor":
        x = self._wide()
        return x.graph.wrap(lib.tn_nn_cumsum(x._at(), axis))

    def cumprod(self, axis: int) -> "Tensor":
        x = self._wide()
        return x.graph.wrap(lib.tn_nn_cumprod(x._at(), axis))

    def clip(self, low: Optional[ArrayLike] = None, high: Optional[ArrayLike] = None) -> "Tensor":
        x = self if low is None else elementwise("max", self, low)
        return x if high is None else elementwise("min", x, high)


def _compare(name: str, x: Any, y: Any) -> Tensor:
    """Comparisons of bool go through i32: the op table orders numbers."""
    a, b = together(x.graph, x, y)
    if a.dtype is bool_:
        a, b = a.astype(int32), b.astype(int32)
    return build(x.graph, name, a, b)


def _floor_divide(graph: Graph, x: Any, y: Any) -> Tensor:
    a, b = together(graph, x, y)
    graph.at()
    return graph.wrap(lib.tn_floor_div(a._t, b._t))


def _power(x: Tensor, n: int) -> Tensor:
    """x to the power of a small whole number, by squaring."""
    if n == 0:
        return x * 0 + 1 if x.dtype.kind != "f" else x.graph.full((), 1, x.dtype).broadcast_to(x.shape)
    out: Any = None
    square = x
    while True:
        if n & 1:
            out = square if out is None else out * square
        n >>= 1
        if not n:
            return out
        square = square * square


def matmul(x: ArrayLike, y: ArrayLike) -> Any:
    """NumPy's matmul; leading axes broadcast. Sums of f16 and bf16 are f32 inside."""
    graph = graph_of(x, y)
    if graph is None:
        from ._function import eager
        return eager(matmul, "matmul", (x, y))
    a, b = together(graph, x, y)
    graph.at()
    return graph.wrap(lib.tn_matmul(a._t, b._t))
