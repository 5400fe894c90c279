"""Functions of arrays as programs: compile, grad, value_and_grad.

A function is called once for each signature with tensors in place of its arrays; the graph that its operators build is compiled
and kept. Arguments may be nested: tuples, lists and dicts of arrays. Arrays and floats are inputs of the program; ints, bools,
strings and None belong to the signature: the function sees them as they are, and a new value is a new program. What `dynamic` names is
of one program: sizes of arrays, and ints, which the function sees as Dims."""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
import weakref
from typing import Any, Callable, Hashable, Mapping, Optional, Sequence, Union

import numpy as np

from . import _dlpack
from ._core import Graph, Tensor, as_tensor, current_graph
from ._dims import Dim
from ._dtypes import DType, dtype, float32, without_numpy
from ._lib import Context, ShapeError, after_fork, default_context
from ._run import Buffer, Program, Session, _bindings, lib

Tree = Any  # arrays in tuples, lists and dicts


class _Leaf:
    """Where an array stood in a tree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "*"


LEAF = _Leaf()


def is_array(x: Any) -> bool:
    return isinstance(x, (Tensor, np.ndarray, np.generic, float)) or hasattr(x, "__dlpack__")


def flatten(tree: Tree, leaves: list) -> Hashable:
    """Appends the arrays of the tree to leaves; returns the rest of it, as something to look up."""
    if is_array(tree):
        leaves.append(tree)
        return LEAF
    if isinstance(tree, dict):
        return (dict, *((k, flatten(v, leaves)) for k, v in tree.items()))
    if isinstance(tree, (tuple, list)):
        return (type(tree), *(flatten(v, leaves) for v in tree))
    return (None, type(tree), tree)


def _is_shape(spec: Any) -> bool:
    return isinstance(spec, (tuple, list)) and all(d is None or isinstance(d, Dim) for d in spec)


def flatten_dynamic(name: str, tree: Tree, spec: Any, leaves: list, shapes: dict[int, Any], values: list[tuple[str, int]]) -> Hashable:
    """The same with what `dynamic` says of it: dims of the first axes of an array (of each array, where a tree is given), a Dim for an
    int, or such for each part of a tree. shapes: by the place of a leaf; values: names of dims, and what is given."""
    if spec is None or tree is None or isinstance(tree, Dim):
        return flatten(tree, leaves)
    if isinstance(spec, Dim):
        if not isinstance(tree, (int, np.integer)) or isinstance(tree, bool):
            raise TypeError(f"dynamic: {name!r} is a {type(tree).__name__}: {spec!r} alone stands for an int")
        values.append((spec.name, int(tree)))
        return (Dim, spec)
    if is_array(tree):
        if not _is_shape(spec):
            raise TypeError(f"dynamic: {name!r} is an array: its dims are a tuple")
        shapes[len(leaves)] = spec
        return flatten(tree, leaves)
    if not isinstance(tree, (dict, tuple, list)):
        raise TypeError(f"dynamic: {name!r} is no array")
    whole = _is_shape(spec)
    if not whole and isinstance(spec, dict) != isinstance(tree, dict) or not whole and not isinstance(spec, dict) and len(spec) != len(tree):
        raise TypeError(f"dynamic: {name!r} has another form than what is given")
    if isinstance(tree, dict):
        return (dict, *((k, flatten_dynamic(f"{name}[{k!r}]", v, spec if whole else spec.get(k), leaves, shapes, values)) for k, v in tree.items()))
    parts = [spec] * len(tree) if whole else spec
    return (type(tree), *(flatten_dynamic(f"{name}[{i}]", v, part, leaves, shapes, values) for i, (v, part) in enumerate(zip(tree, parts))))


def unflatten(rest: Any, leaves: Any, graph: Optional[Graph] = None) -> Tree:
    """The tree that flatten took apart, with the next of leaves at each place of an array, and sizes of the graph."""
    if rest is LEAF:
        return next(leaves)
    kind, *items = rest
    if kind is None:
        return items[1]
    if kind is Dim:
        return Dim._of(graph, items[0]._on(graph))
    if kind is dict:
        return {k: unflatten(v, leaves, graph) for k, v in items}
    values = [unflatten(v, leaves, graph) for v in items]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def tree_map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with fn(leaf, leaf of each other tree, ...) at each place of an array."""
    leaves: list = []
    rest = flatten(tree, leaves)
    rows = [leaves]
    for other in others:
        more: list = []
        if flatten(other, more) != rest:
            raise ValueError("the trees have different forms")
        rows.append(more)
    return unflatten(rest, iter([fn(*xs) for xs in zip(*rows)]))


def _signature(x: Any) -> tuple[tuple[int, ...], Any]:
    if isinstance(x, (np.ndarray, np.generic, Tensor)):
        return x.shape, x.dtype
    if isinstance(x, float):
        return (), float32
    v = _dlpack.view(x)
    return v.shape, v.dtype


_EMPTY = ctypes.c_char * 0


def _address(array: Any) -> int:
    """Of a contiguous array's memory; TypeError or ValueError for others. Read-only arrays take a longer way."""
    try:
        return ctypes.addressof(_EMPTY.from_buffer(array))
    except TypeError:
        if type(array) is np.ndarray and array.flags.c_contiguous:
            return array.__array_interface__["data"][0]
        raise


class _Entry:
    """The program of one signature, and sessions to run it in: each thread that comes at the same time has its own."""

    def __init__(self, program: Program, result: Hashable, keep: list[int]):
        self.program, self.result = program, result
        self.inputs, self.outputs = program.inputs, program.outputs
        self.keep = keep  # which of the leaves are inputs of the program, in its order
        self.idle: list[tuple] = []
        self.dynamic = any(None in s.shape for s in program.slots)
        self.plain = all(s.dtype.numpy is not None for s in self.outputs)
        self.made = [(s.shape, s.dtype.numpy) for s in self.outputs]
        self.sized: dict[Hashable, list] = {}  # the same, by the signature of a call
        self.dims = set(program.dims())
        first = self._new()
        self.stateful = bool(first[0].states)
        self.session = first[0]
        self.idle.append(first)

    def _new(self) -> tuple:
        session = Session(self.program)
        table = _bindings([(s, 0) for s in self.inputs + self.outputs])
        rows = list(table)
        n = len(self.inputs)
        return session, table, rows[:n], rows[n:], session._handle.pointer, len(rows), [None]  # the last: of which signature it is

    def fit(self, one: tuple, key: Hashable, shapes: Sequence[tuple[int, ...]], sizes: Sequence[tuple[str, int]]) -> None:
        """Gives a session the sizes of a call, where they are others than its last."""
        session, last = one[0], one[-1]
        last[0] = None
        given = [(name, value) for name, value in sizes if name in self.dims]
        for name, value in given:
            session.bind_dim(name, value)
        session._fit({slot.index: shape for slot, shape in zip(self.inputs, shapes)})
        for name, value in given:  # again: an array's axis has the last word
            session.bind_dim(name, value)
            for slot, shape in zip(self.inputs, shapes):
                if session._shape_of(slot) != shape:
                    raise ShapeError(f"{slot!r} is {list(session._shape_of(slot))} where {name} is {value}; given is {list(shape)}")
        last[0] = key
        if key not in self.sized:
            if len(self.sized) > 4096:
                self.sized.clear()
            self.sized[key] = [(session._shape_of(s), s.dtype.numpy) for s in self.outputs]

    def run_arrays(self, arrays: Sequence[np.ndarray], key: Hashable = None) -> list[np.ndarray]:
        """With arrays of just these dtypes and shapes, which are the key. TypeError or ValueError, before anything is done, where one is not
        contiguous."""
        try:
            one = self.idle.pop()
        except IndexError:
            one = self._new()
        try:
            session, table, inputs, outputs, pointer, n, last = one
            for row, at in zip(inputs, self.keep):
                row.data = _address(arrays[at])
            made = self.made
            if self.dynamic:
                key = key or tuple([arrays[at].shape for at in self.keep])
                if last[0] != key or key not in self.sized:
                    self.fit(one, key, [arrays[at].shape for at in self.keep], ())
                made = self.sized[key]
            out = []
            for row, (shape, t) in zip(outputs, made):
                y = np.empty(shape, t)
                row.data = _address(y)
                out.append(y)
            status = lib.tn_run(pointer, table, n)
            if status:
                session._check(status)
        finally:
            self.idle.append(one)
        return out

    def run(self, leaves: Sequence[Any], sizes: Sequence[tuple[str, int]] = ()) -> list[np.ndarray]:
        try:
            one = self.idle.pop()
        except IndexError:
            one = self._new()
        try:
            session, table, inputs, outputs, pointer, n, last = one
            held = [Buffer.of(leaves[at], slot.dtype, slot.shape) for slot, at in zip(self.inputs, self.keep)]
            shapes: list[tuple[int, ...]] = [s.shape for s in self.outputs]
            if self.dynamic or self.dims:
                key = (*sizes, *[b.shape for b in held])
                if last[0] != key or key not in self.sized:
                    self.fit(one, key, [b.shape for b in held], sizes)
                shapes = [shape for shape, _ in self.sized[key]]
            made = [Buffer.empty(shape, slot.dtype) for shape, slot in zip(shapes, self.outputs)]
            for row, b in zip(inputs + outputs, held + made):
                row.data = b.pointer
            status = lib.tn_run(pointer, table, n)
            if status:
                session._check(status)
        finally:
            self.idle.append(one)
        return [b.array() for b in made]


_functions: "weakref.WeakSet[Any]" = weakref.WeakSet()  # what forgets its programs in a forked child


def _forget_programs() -> None:
    for f in _functions:
        f._forget()


after_fork(_forget_programs)


class _Call:
    """Arguments taken apart: arrays, their shapes (with dims) and dtypes, the rest, and values of dims that ints give."""

    __slots__ = ("rest", "leaves", "signatures", "sizes")

    def __init__(self, rest: Hashable, leaves: list, signatures: list[tuple[tuple, Any]], sizes: list[tuple[str, int]]):
        self.rest, self.leaves, self.signatures, self.sizes = rest, leaves, signatures, sizes


class Function:
    """A function of arrays that is compiled for each signature it is called with. Made by tenon.compile."""

    def __init__(self, fn: Callable[..., Any], context: Optional[Context], options: dict,
                 dynamic: Optional[Mapping[str, Any]] = None):
        functools.update_wrapper(self, fn, updated=())
        self._dynamic = dict(dynamic or {})
        self._names = list(inspect.signature(fn).parameters) if self._dynamic else []
        for name in self._dynamic:
            if name not in self._names:
                raise ValueError(f"dynamic: {name!r} is no parameter of the function: {', '.join(self._names)}")
        self._fn, self._context, self._options = fn, context, options
        self._forget()
        _functions.add(self)

    def _forget(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._of_arrays: dict[Hashable, _Entry] = {}  # signatures of arrays alone, which are found faster
        self._last: Optional[_Entry] = None
        self._state_lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                key = tuple([(a.shape, a.dtype) for a in args])
                entry = self._of_arrays[key]
                out = entry.run_arrays(args, key)
                return out[0] if entry.result is LEAF else unflatten(entry.result, iter(out))
            except (AttributeError, KeyError, TypeError, ValueError):
                pass  # not arrays, not seen yet, or not contiguous
        return self._call(args, kwargs)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        call = self._flatten(args, kwargs)
        for x in call.leaves:
            if isinstance(x, Tensor):  # a part of another graph that is being built
                return self._fn(*args, **kwargs)
        entry = self._entry(call)
        if not entry.stateful and entry.plain and not kwargs and all(type(a) is np.ndarray for a in args):
            if len(self._of_arrays) > 4096:
                self._of_arrays.clear()
            self._of_arrays[tuple([(a.shape, a.dtype) for a in args])] = entry
        if entry.stateful:
            with self._state_lock:  # states are one set, whatever the signature
                if self._last is not None and self._last is not entry:
                    entry.session.copy_states(self._last.session)
                self._last = entry
                out = entry.run(call.leaves, call.sizes)
        else:
            out = entry.run(call.leaves, call.sizes)
        return unflatten(entry.result, iter(out))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _flatten(self, args: tuple, kwargs: dict[str, Any]) -> "_Call":
        leaves: list = []
        shapes: dict[int, Any] = {}
        sizes: list[tuple[str, int]] = []
        if not self._dynamic:
            return _Call(flatten((args, kwargs), leaves), leaves, [_signature(x) for x in leaves], sizes)
        specs = [(n, self._dynamic.get(n)) for n in self._names[: len(args)]] + [("", None)] * (len(args) - len(self._names))
        rest = (tuple, (tuple, *[flatten_dynamic(n, a, spec, leaves, shapes, sizes) for a, (n, spec) in zip(args, specs)]),
                (dict, *((k, flatten_dynamic(k, v, self._dynamic.get(k), leaves, shapes, sizes)) for k, v in kwargs.items())))
        signatures = [_signature(x) for x in leaves]
        for i, dims in shapes.items():
            shape, t = signatures[i]
            if len(dims) > len(shape):
                raise ShapeError(f"dynamic: {len(dims)} dims are given for an array of shape {list(shape)}")
            signatures[i] = tuple([n if d is None else d for n, d in zip(shape, (*dims, *[None] * len(shape)))]), t
        return _Call(rest, leaves, signatures, sizes)

    def _entry(self, call: "_Call") -> _Entry:
        key = (call.rest, tuple(call.signatures))
        entry = self._entries.get(key)
        if entry is None:
            context = self._context or default_context()
            with context.lock:
                graph, result = self.trace(call.rest, call.signatures)
                entry = _Entry(graph.compile(**self._options), result, list(range(len(call.leaves))))
            self._entries[key] = entry
        return entry

    @property
    def programs(self) -> list[Program]:
        """What was compiled so far: a program for each signature."""
        return [entry.program for entry in self._entries.values()]

    def trace(self, rest: Hashable, signatures: Sequence[tuple[tuple, Any]]) -> tuple[Graph, Hashable]:
        graph = Graph(getattr(self._fn, "__name__", "fn").strip("<>") or "fn", context=self._context)
        inputs = []
        for i, (shape, t) in enumerate(signatures):
            inputs.append(graph.input(f"in{i}", shape, t))
        args, kwargs = unflatten(rest, iter(inputs), graph)
        with graph:
            out: list = []
            result = flatten(self._fn(*args, **kwargs), out)
            for i, y in enumerate(out):
                graph.output(as_tensor(y, graph), f"out{i}")
        return graph, result

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a signature, as the function builds it."""
        call = self._flatten(args, kwargs)
        with (self._context or default_context()).lock:
            return self.trace(call.rest, call.signatures)[0]

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program of a signature (compiled now, if it was not yet)."""
        return self._entry(self._flatten(args, kwargs)).program

    def session(self, *args: Any, **kwargs: Any) -> Session:
        """The session that holds the function's states for a signature."""
        return self._entry(self._flatten(args, kwargs)).session

    def bound(self, *args: Any, **kwargs: Any) -> "Bound":
        """A run on these very arrays, again and again, for the least overhead: `step = f.bound(a, b); step(); step.outputs`."""
        call = self._flatten(args, kwargs)
        return Bound(self._entry(call), call.leaves, call.sizes)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What was fused and why, for a signature."""
        return self.program(*args, **kwargs).explain()


class Bound:
    """A program bound to arrays: calling it reads the inputs as they are then and writes `outputs` in place."""

    def __init__(self, entry: _Entry, leaves: Sequence[Any], sizes: Sequence[tuple[str, int]] = ()):
        self.session = Session(entry.program)
        for name, value in sizes:
            if name in entry.dims:
                self.session.bind_dim(name, value)
        self.session.bind({s.name: leaves[at] for s, at in zip(entry.inputs, entry.keep)})
        arrays = []
        for s in entry.outputs:
            if s.dtype.numpy is None:
                raise TypeError(f"{s!r}: {without_numpy(s.dtype)}")
            arrays.append(np.empty(self.session._shape_of(s), s.dtype.numpy))
        self.session.bind({s.name: a for s, a in zip(entry.outputs, arrays)})
        self.outputs: Tree = unflatten(entry.result, iter(arrays))
        self.run = self.session.run

    def __call__(self) -> Tree:
        self.run()
        return self.outputs


def compile(fn: Optional[Callable[..., Any]] = None, *, device: str = "cpu", mode: str = "compiled", fusion: int = -1, threads: int = 0,
            schedule: Optional[str] = None, context: Optional[Context] = None,
            dynamic: Optional[Mapping[str, Any]] = None) -> Any:
    """A function that runs as compiled code: `f = tenon.compile(lambda x, w: (x @ w).relu()); y = f(a, b)`.

    It takes and returns NumPy arrays (and takes anything with `__dlpack__` on the CPU). Each signature (shapes, dtypes, and the
    arguments that are no arrays) is traced and compiled once. dynamic: sizes that every call gives anew, by parameter: dims of the first
    axes (None: a number as usual), `dynamic={"x": (tenon.dim("batch", 1, 64),)}`, of each array where the argument is a tree; a dim alone for
    an int; a tuple, list or dict of these for the parts of a tree. One program serves all of them. Called on tensors, it becomes a part of
    their graph. Options are those of Graph.compile. Also a decorator."""
    options = {"device": device, "mode": mode, "fusion": fusion, "threads": threads, "schedule": schedule}
    if fn is None:
        return lambda f: Function(f, context, options, dynamic)
    return Function(fn, context, options, dynamic)


# ---- gradients ------------------------------------------------------------------------------------------------------------


def _differentiate(fn: Callable[..., Any], argnums: Union[int, Sequence[int]], has_aux: bool) -> Callable[..., Any]:
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(fn)
    def both(*args: Any, **kwargs: Any) -> Any:
        xs: list = []
        rests = []
        for i in wanted:
            if not -len(args) <= i < len(args):
                raise ValueError(f"argument {i} is not one of {len(args)}")
            rests.append(flatten(args[i], xs))
        graph = next((x.graph for x in xs if isinstance(x, Tensor)), current_graph())
        if graph is None:
            return both_compiled(*args, **kwargs)
        value = fn(*args, **kwargs)
        loss = value[0] if has_aux else value
        if not isinstance(loss, Tensor):
            raise TypeError(f"the function returns {type(loss).__name__}, must return a scalar tensor to be differentiated")
        made = [as_tensor(x, graph) for x in xs]
        grads = iter(graph.grad(loss, made))
        trees = tuple(unflatten(rest, grads) for rest in rests)
        return value, (trees[0] if isinstance(argnums, int) else trees)

    both_compiled = compile(both)
    return both


def value_and_grad(fn: Callable[..., Any], argnums: Union[int, Sequence[int]] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns fn's value (a scalar; with has_aux a pair of it and more) and its gradients by these arguments.

    On arrays it is compiled; inside of a function that is being traced it becomes a part of it. It can be differentiated again."""
    both = _differentiate(fn, argnums, has_aux)
    return both


def grad(fn: Callable[..., Any], argnums: Union[int, Sequence[int]] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradients of fn's value (with has_aux: a pair of them and what fn returned beside it)."""
    both = _differentiate(fn, argnums, has_aux)

    @functools.wraps(fn)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


# ---- ops of arrays --------------------------------------------------------------------------------------------------------

_eager: dict[Hashable, Function] = {}


def eager(fn: Callable[..., Any], key: Hashable, values: Sequence[Any], **static: Any) -> Any:
    """A function of the package called on arrays alone: compiled once for each signature. Python's numbers take the dtype of the
    arrays beside them."""
    of: Optional[DType] = None
    for v in values:
        if not isinstance(v, (bool, int, float)):
            v = v if is_array(v) else np.asarray(v)
            of = dtype(_signature(v)[1])
            break
    made = []
    for v in values:
        if isinstance(v, (bool, int, float)):
            t = dtype(type(v))
            v = np.asarray(v, (of if of is not None and (of.kind == t.kind or of.kind == "f") else t).numpy)
        made.append(v if is_array(v) else np.asarray(v))
    function = _eager.get(key)
    if function is None:
        function = _eager[key] = compile(fn)
    return function(*made, **static)
