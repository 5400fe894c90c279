"""Functions of arrays as programs: compile, grad, value_and_grad.

A function is called once for each signature with tensors in place of its arrays; the graph that its operators build is compiled
and kept. Arguments may be nested: tuples, lists and dicts of arrays. Arrays and floats are inputs of the program; ints, bools,
strings and None belong to the signature: the function sees them as they are, and a new value is a new program."""

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


def unflatten(rest: Any, leaves: Any) -> Tree:
    """The tree that flatten took apart, with the next of leaves at each place of an array."""
    if rest is LEAF:
        return next(leaves)
    kind, *items = rest
    if kind is None:
        return items[1]
    if kind is dict:
        return {k: unflatten(v, leaves) for k, v in items}
    values = [unflatten(v, leaves) for v in items]
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
    if isinstance(x, (np.ndarray, np.generic)):
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
        self.plain = not self.dynamic and all(s.dtype.numpy is not None for s in self.outputs)
        self.made = [(s.shape, s.dtype.numpy) for s in self.outputs]
        first = self._new()
        self.stateful = bool(first[0].states)
        self.session = first[0]
        self.idle.append(first)

    def _new(self) -> tuple:
        session = Session(self.program)
        table = _bindings([(s, 0) for s in self.inputs + self.outputs])
        rows = list(table)
        n = len(self.inputs)
        return session, table, rows[:n], rows[n:], session._handle.pointer, len(rows)

    def run_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """With arrays of just these dtypes and shapes. TypeError or ValueError, before anything is done, where one is not
        contiguous."""
        try:
            one = self.idle.pop()
        except IndexError:
            one = self._new()
        try:
            session, table, inputs, outputs, pointer, n = one
            for row, at in zip(inputs, self.keep):
                row.data = _address(arrays[at])
            out = []
            for row, (shape, t) in zip(outputs, self.made):
                y = np.empty(shape, t)
                row.data = _address(y)
                out.append(y)
            status = lib.tn_run(pointer, table, n)
            if status:
                session._check(status)
        finally:
            self.idle.append(one)
        return out

    def run(self, leaves: Sequence[Any]) -> list[np.ndarray]:
        try:
            one = self.idle.pop()
        except IndexError:
            one = self._new()
        try:
            session, table, inputs, outputs, pointer, n = one
            held = [Buffer.of(leaves[at], slot.dtype, slot.shape) for slot, at in zip(self.inputs, self.keep)]
            if self.dynamic:
                session._fit({slot.index: b.shape for slot, b in zip(self.inputs, held)})
            made = [Buffer.empty(session._shape_of(slot), slot.dtype) for slot in self.outputs]
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


class Function:
    """A function of arrays that is compiled for each signature it is called with. Made by tenon.compile."""

    def __init__(self, fn: Callable[..., Any], context: Optional[Context], options: dict,
                 dynamic: Optional[Mapping[str, Sequence[Optional[Dim]]]] = None):
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
                entry = self._of_arrays[tuple([(a.shape, a.dtype) for a in args])]
                out = entry.run_arrays(args)
                return out[0] if entry.result is LEAF else unflatten(entry.result, iter(out))
            except (AttributeError, KeyError, TypeError, ValueError):
                pass  # not arrays, not seen yet, or not contiguous
        return self._call(args, kwargs)

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        leaves: list = []
        rest = flatten((args, kwargs), leaves)
        for x in leaves:
            if isinstance(x, Tensor):  # a part of another graph that is being built
                return self._fn(*args, **kwargs)
        entry = self._entry(rest, leaves, args, kwargs)
        if not entry.stateful and entry.plain and not kwargs and all(type(a) is np.ndarray for a in args):
            self._of_arrays[tuple([(a.shape, a.dtype) for a in args])] = entry
        if entry.stateful:
            with self._state_lock:  # states are one set, whatever the signature
                if self._last is not None and self._last is not entry:
                    entry.session.copy_states(self._last.session)
                self._last = entry
                out = entry.run(leaves)
        else:
            out = entry.run(leaves)
        return unflatten(entry.result, iter(out))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _dims(self, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> list[tuple[tuple, Any]]:
        """Shapes and dtypes of the arrays, with dims where `dynamic` has them."""
        signatures: list[tuple[tuple, Any]] = [_signature(x) for x in leaves]
        for name, dims in self._dynamic.items():
            at = self._names.index(name)
            value = args[at] if at < len(args) else kwargs.get(name)
            if value is None:
                continue
            found = [i for i, x in enumerate(leaves) if x is value]
            if not found:
                raise TypeError(f"dynamic: {name!r} is no array")
            shape = signatures[found[0]][0]
            if len(dims) > len(shape):
                raise ShapeError(f"dynamic: {name!r} has {len(dims)} dims, the array is {list(shape)}")
            new = tuple([n if d is None else d for n, d in zip(shape, (*dims, *[None] * len(shape)))])
            for i in found:
                signatures[i] = new, signatures[i][1]
        return signatures

    def _entry(self, rest: Hashable, leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any]) -> _Entry:
        signatures = self._dims(leaves, args, kwargs)
        key = (rest, tuple(signatures))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._compile(rest, leaves, signatures)
        return entry

    @property
    def programs(self) -> list[Program]:
        """What was compiled so far: a program for each signature."""
        return [entry.program for entry in self._entries.values()]

    def _compile(self, rest: Hashable, leaves: Sequence[Any], signatures: Sequence[tuple[tuple, Any]]) -> _Entry:
        context = self._context or default_context()
        with context.lock:
            graph, result = self.trace(rest, signatures)
            return _Entry(graph.compile(**self._options), result, list(range(len(leaves))))

    def trace(self, rest: Hashable, signatures: Sequence[tuple[tuple, Any]]) -> tuple[Graph, Hashable]:
        graph = Graph(getattr(self._fn, "__name__", "fn").strip("<>") or "fn", context=self._context)
        inputs = []
        for i, (shape, t) in enumerate(signatures):
            inputs.append(graph.input(f"in{i}", shape, t))
        args, kwargs = unflatten(rest, iter(inputs))
        with graph:
            out: list = []
            result = flatten(self._fn(*args, **kwargs), out)
            for i, y in enumerate(out):
                graph.output(as_tensor(y, graph), f"out{i}")
        return graph, result

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a signature, as the function builds it."""
        leaves: list = []
        rest = flatten((args, kwargs), leaves)
        context = self._context or default_context()
        with context.lock:
            return self.trace(rest, self._dims(leaves, args, kwargs))[0]

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program of a signature (compiled now, if it was not yet)."""
        leaves: list = []
        rest = flatten((args, kwargs), leaves)
        return self._entry(rest, leaves, args, kwargs).program

    def session(self, *args: Any, **kwargs: Any) -> Session:
        """The session that holds the function's states for a signature."""
        leaves: list = []
        rest = flatten((args, kwargs), leaves)
        return self._entry(rest, leaves, args, kwargs).session

    def bound(self, *args: Any, **kwargs: Any) -> "Bound":
        """A run on these very arrays, again and again, for the least overhead: `step = f.bound(a, b); step(); step.outputs`."""
        leaves: list = []
        rest = flatten((args, kwargs), leaves)
        return Bound(self._entry(rest, leaves, args, kwargs), leaves)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What was fused and why, for a signature."""
        return self.program(*args, **kwargs).explain()


class Bound:
    """A program bound to arrays: calling it reads the inputs as they are then and writes `outputs` in place."""

    def __init__(self, entry: _Entry, leaves: Sequence[Any]):
        self.session = Session(entry.program)
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
            dynamic: Optional[Mapping[str, Sequence[Optional[Dim]]]] = None) -> Any:
    """A function that runs as compiled code: `f = tenon.compile(lambda x, w: (x @ w).relu()); y = f(a, b)`.

    It takes and returns NumPy arrays (and takes anything with `__dlpack__` on the CPU). Each signature (shapes, dtypes, and the
    arguments that are no arrays) is traced and compiled once. dynamic: sizes that every call gives anew, by parameter, of its first
    axes (None: a number as usual): `dynamic={"x": (tenon.dim("batch", 1, 64),)}` is one program for all of them. Called on tensors, it becomes a part of their graph. Options are
    those of Graph.compile. Also a decorator."""
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
