"""ONNX models: `m = tenon.onnx.load("model.onnx"); y = m(x)`.

A model is imported and compiled for the shapes that it is called with, once each; dims that have a range (`dims={"batch": (1, 64)}`)
stay open: one program for all their sizes. What an import cannot do is refused, op by op,
in the exception's text."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Mapping, Optional, Union

import numpy as np

from . import _abi, _dtypes
from ._core import Graph, _shape
from ._dtypes import BY_CODE, DType, dtype
from ._function import LEAF, _Entry, _functions, _signature, is_array
from ._lib import Context, FileError, Handle, UnsupportedError, default_context, lib
from ._run import Buffer, Program, Session


class Port:
    """An input or output of a model: shape entries are numbers, names ("batch"), or None where the model says nothing."""

    def __init__(self, p: _abi.tn_onnx_port):
        self.name = p.name.decode()
        self.type = p.type.decode() if p.type else "?"
        self.dtype: Optional[DType] = BY_CODE.get(p.dtype)
        self.shape: Optional[tuple[Any, ...]] = None
        if p.rank >= 0:
            names = [p.symbol[i].decode() if p.symbol[i] else None for i in range(p.rank)]
            self.shape = tuple(d if d >= 0 else s for d, s in zip(p.dim[: p.rank], names))

    def __repr__(self) -> str:
        return f"{self.name} {self.dtype or self.type}{list(self.shape) if self.shape is not None else ''}"


class Model:
    """A model in memory. Call it with arrays, in the order of `inputs` or by name; it returns its outputs (one: itself)."""

    def __init__(self, path: Any, *, dims: Optional[Mapping[str, Union[int, tuple[int, ...], list[int]]]] = None, parameters: bool = False,
                 plain_convolutions: bool = False, dtype: Any = "f32", keep: bool = False, context: Optional[Context] = None,
                 **options: Any):
        self._keep = keep
        self.context, self._options = context or default_context(), options
        given = {k: tuple(int(n) for n in v) if isinstance(v, (tuple, list)) else int(v) for k, v in (dims or {}).items()}
        self._dims = {k: v for k, v in given.items() if isinstance(v, int)}
        self._ranges = {k: (v + (1,))[:3] for k, v in given.items() if isinstance(v, tuple)}
        for name, v in given.items():
            if isinstance(v, tuple) and len(v) not in (2, 3):
                raise ValueError(f"dims[{name!r}] is {v}: expected a size, (lo, hi) or (lo, hi, multiple_of)")
        self._dtype = _dtypes.dtype(dtype)
        self._parameters, self._plain_convolutions = parameters, plain_convolutions or self._dtype != _dtypes.float32
        out = ctypes.c_void_p()
        with self.context.lock:
            self.context.check(lib.tn_onnx_open(self.context.pointer, str(path).encode(), ctypes.byref(out)))
        self._handle = Handle(out.value, lib.tn_onnx_model_free, self.context._handle)
        self.path = str(path)
        self.inputs = [self._port(lib.tn_onnx_input, i) for i in range(lib.tn_onnx_n_inputs(out))]
        self.outputs = [self._port(lib.tn_onnx_output, i) for i in range(lib.tn_onnx_n_outputs(out))]
        self._open = {p.name: {i for i, d in enumerate(p.shape or ()) if isinstance(d, str) and self._is_open(d)} for p in self.inputs}
        self._forget()
        _functions.add(self)

    def _is_open(self, dim: str) -> bool:
        """Whether runs give it: a name with a range, or a sum of such, of sizes and of numbers ("past + 1")."""
        terms = [t.strip(" ") for t in dim.split("+")]
        known = all(t in self._ranges or t in self._dims or (t.isascii() and t.isdigit() and len(t) < 10) for t in terms)
        return known and any(t in self._ranges for t in terms)

    def _port(self, get: Any, i: int) -> Port:
        port = _abi.tn_onnx_port()
        self.context.check(get(self._handle.pointer, i, ctypes.byref(port)))
        return Port(port)

    def graph(self, **values: Any) -> Graph:
        """The graph of the model: for inputs of these shapes, where the model does not say them (values or arrays of any content).
        Where a size depends on the value of an input, that input becomes a constant. Dims that have a range stay open."""
        ranges = (_abi.tn_onnx_range * len(self._ranges))(*[_abi.tn_onnx_range(k.encode(), *v) for k, v in self._ranges.items()])
        dims = (_abi.tn_onnx_dim * len(self._dims))(*[_abi.tn_onnx_dim(k.encode(), v) for k, v in self._dims.items()])
        table, keep = (_abi.tn_onnx_value * len(values))(), []
        for row, (name, value) in zip(table, values.items()):
            port = next((p for p in self.inputs if p.name == name), None)
            array = value if is_array(value) else np.asarray(value, port.dtype.numpy if port and port.dtype else None)
            shape, t = _signature(array)
            b = Buffer.of(array, dtype(t), shape)
            keep.append(b)
            row.name, row.dtype, row.shape, row.data = name.encode(), b.dtype.code, _shape(shape), b.pointer
        opts = _abi.tn_onnx_opts(struct_size=ctypes.sizeof(_abi.tn_onnx_opts), dims=ctypes.cast(dims, ctypes.c_void_p),
                                 n_dims=len(dims), values=ctypes.cast(table, ctypes.c_void_p) if len(table) else None,
                                 n_values=len(table), parameters=int(self._parameters),
                                 plain_convolutions=int(self._plain_convolutions), ranges=ctypes.cast(ranges, ctypes.c_void_p),
                                 n_ranges=len(ranges))
        out = ctypes.c_void_p()
        with self.context.lock:
            self.context.check(lib.tn_onnx_import(self._handle.pointer, ctypes.byref(opts), ctypes.byref(out)))
        graph = Graph("model", context=self.context, _pointer=out.value)
        if self._dtype != _dtypes.float32:
            with self.context.lock:
                self.context.check(lib.tn_graph_contract_in(graph.pointer, self._dtype.code))
        return graph

    def _named(self, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.inputs):
            raise TypeError(f"{len(args)} arrays for {len(self.inputs)} inputs: {self.inputs}")
        given = {p.name: a for p, a in zip(self.inputs, args)}
        for name, value in kwargs.items():
            if name in given or all(p.name != name for p in self.inputs):
                raise TypeError(f"{name!r} is given twice, or is no input: {self.inputs}")
            given[name] = value
        return {name: v if is_array(v) else np.asarray(v) for name, v in given.items()}

    def _signature(self, name: str, value: Any) -> tuple[Any, Any]:
        """What a program is for: the shape and type of an array, without the sizes of open dims."""
        shape, t = _signature(value)
        open_axes = self._open.get(name, set())
        open_axes = {i for i in range(len(shape)) if i in open_axes or f"{name}[{i}]" in self._ranges}
        return tuple(None if i in open_axes else d for i, d in enumerate(shape)), t

    def _program(self, given: Mapping[str, Any]) -> Program:
        """Compiled for inputs like these; with `keep`, as a process before left it in the cache."""
        if not self._keep:
            return self.graph(**given).compile(**self._options)
        path = os.path.realpath(self.path)
        key = repr((path, sorted(self._dims.items()), sorted(self._ranges.items()), self._parameters, self._plain_convolutions, self._dtype.name,
                    sorted(self._options.items()), sorted((n, str(self._signature(n, v))) for n, v in given.items())))
        p = Program.find(key, context=self.context)
        if p is None:
            p = self.graph(**given).compile(**self._options)
            if set(given) <= {s.name for s in p.inputs}:  # else values are constants of it
                files, i = [path], 0
                while (external := lib.tn_onnx_external(self._handle.pointer, i)) is not None:
                    files.append(os.path.join(os.path.dirname(path), external.decode()))
                    i += 1
                try:
                    p.keep(key, files)
                except (UnsupportedError, FileError):
                    pass  # another device, no cache, a file that has just been written
        return p

    def session(self, *args: Any, **kwargs: Any) -> Session:
        """The session for inputs like these (compiled now, if it was not yet)."""
        return self._session(self._named(args, kwargs))[0]

    def _session(self, given: Mapping[str, Any]) -> tuple[Session, dict[str, np.ndarray]]:
        """A session, and the inputs that are constants of its program because sizes depend on them."""
        key = tuple((n, self._signature(n, v)) for n, v in given.items())
        with self._lock:
            found = self._sessions.get(key)
            if found is None or any(not np.array_equal(v, given[n]) for n, v in found[1].items()):
                session = self._program(given).session()
                found = self._sessions[key] = session, {n: np.array(v) for n, v in given.items() if n not in session._by_name}
            return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            try:
                entry = self._of_arrays[tuple([(a.shape, a.dtype) for a in args])]
                out = entry.run_arrays(args)
                return out[0] if entry.result is LEAF else tuple(out)
            except (AttributeError, KeyError, TypeError, ValueError):
                pass  # not arrays, not seen yet, or not contiguous
        given = self._named(args, kwargs)
        session, constants = self._session(given)
        result = session({n: v for n, v in given.items() if n in session._by_name})
        if not (kwargs or constants):
            self._remember(session, args)
        values = [result[p.name] for p in self.outputs if p.name in result]
        return values[0] if len(values) == 1 else tuple(values)

    def _remember(self, session: Session, args: tuple) -> None:
        """Has calls with arrays like these, all of them inputs of the program, go straight to it."""
        names, ports = [p.name for p in self.inputs], session.program.outputs
        if session.states or not all(type(a) is np.ndarray for a in args):
            return
        entry = _Entry(session.program, LEAF if len(ports) == 1 else None, [names.index(s.name) for s in session.program.inputs])
        if entry.plain and [s.name for s in ports] == [p.name for p in self.outputs]:
            self._of_arrays[tuple([(a.shape, a.dtype) for a in args])] = entry

    def _forget(self) -> None:
        self._sessions: dict[Any, tuple[Session, dict[str, np.ndarray]]] = {}
        self._of_arrays: dict[Any, _Entry] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<Model {self.path}: {self.inputs} -> {self.outputs}>"


def load(path: Any, *, dims: Optional[Mapping[str, Union[int, tuple[int, ...], list[int]]]] = None, parameters: bool = False,
         plain_convolutions: bool = False, dtype: Any = "f32", keep: bool = False, context: Optional[Context] = None,
         **options: Any) -> Model:
    """Opens a model. dims: sizes of named dims ("batch"), for `graph`, or (lo, hi) and (lo, hi, multiple_of): such a dim stays open,
    and one program serves calls of all these sizes. parameters: floating-point initializers become parameters,
    which can be trained and set in sessions. plain_convolutions: 3x3 layers of many channels are sums of products, too, rather than
    computed by Winograd's way. dtype: "bf16" or "f16" is what products and convolutions read and give (docs/models.md); inputs and
    outputs stay as they are. keep: what is compiled for the cpu goes to the kernel cache's folder, for later processes, which then start
    without compiling (docs/models.md); writing it takes a moment. Options are those of Graph.compile."""
    return Model(path, dims=dims, parameters=parameters, plain_convolutions=plain_convolutions, dtype=dtype, keep=keep,
                 context=context, **options)


def save(graph: Graph, path: Any, *, training: bool = False, external: bool = False) -> None:
    """Writes a graph as a model. training: states that the graph assigns are inputs with defaults, and their next values outputs.
    external: large arrays in "<path>.data"."""
    opts = _abi.tn_onnx_save_opts(struct_size=ctypes.sizeof(_abi.tn_onnx_save_opts), training=int(training), external=int(external))
    with graph.context.lock:
        graph.context.check(lib.tn_onnx_save(graph._handle.pointer, str(path).encode(), ctypes.byref(opts)))
