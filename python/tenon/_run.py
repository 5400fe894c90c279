"""Programs and sessions: compiled graphs, and the arrays and states that they run on.

Arrays are row-major. What a call is given (`session(x=a)`) is converted and copied where it must be and used for that call
alone. What is bound (`session.bind(x=a)`) is used in place by every run, is kept alive as long as it is bound, and so must have
the slot's dtype and shape and be contiguous. Every run releases Python's lock; a session is used by one thread at a time, and a
second one waits.
"""

from __future__ import annotations

import ctypes
import html
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from . import _abi, _dlpack
from ._core import Graph
from ._dtypes import BY_CODE, DType, bfloat16, dtype, widened
from ._lib import (Context, DTypeError, Handle, ShapeError, UnsupportedError, after_fork, default_context, error, fields,
                   lib)

MODES = {"immediate": _abi.TN_MODE_IMMEDIATE, "graph": _abi.TN_MODE_GRAPH, "compiled": _abi.TN_MODE_COMPILED,
         "loop": _abi.TN_MODE_LOOP}


class Buffer:
    """Row-major memory of one dtype and shape: its address, and what keeps it alive. Without ml_dtypes, bf16 and
    floats of 8 bits are held as their bits."""

    __slots__ = ("pointer", "nbytes", "owner", "dtype", "source", "shape")

    def __init__(self, pointer: int, nbytes: int, owner: Any, t: DType, source: Any, shape: Any):
        self.pointer, self.nbytes, self.owner, self.dtype, self.source, self.shape = pointer, nbytes, owner, t, source, tuple(shape)

    @classmethod
    def empty(cls, shape: Sequence[int], t: DType) -> "Buffer":
        array = np.empty(shape, t.bits)
        return cls(array.ctypes.data, array.nbytes, array, t, array, array.shape)

    @classmethod
    def of(cls, value: Any, t: DType, shape: Sequence[int]) -> "Buffer":
        """The value's own memory where it fits, else a copy. Arrays must have the dtype; Python's numbers and lists take it."""
        if isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
            view = _dlpack.view(value)
            if view.dtype is t and _fits(view.shape, shape) and view.contiguous:
                return cls(view.pointer, _bytes(view.shape, t), view.owner, t, value, view.shape)
            array = _dlpack.to_numpy(value)
        else:
            array = np.asarray(value)
            if not isinstance(value, np.generic) and t.numpy is not None:
                array = _exactly(array, t)
        if t.numpy is None:
            array = _bits(array, t)
        elif dtype(array.dtype) is not t:
            raise DTypeError(f"the array is {dtype(array.dtype)}, must be {t}: convert it with astype")
        if not _fits(array.shape, shape):
            raise ShapeError(f"the array is {t}{list(array.shape)}, must be {t}{list(shape)}")
        array = np.ascontiguousarray(array, t.bits)
        return cls(array.ctypes.data, array.nbytes, array, t, value, array.shape)

    def array(self) -> np.ndarray:
        """The memory as an array of NumPy."""
        return widened(self.owner, self.dtype) if self.dtype.numpy is None else self.owner


def _fits(given: Sequence[int], wanted: Sequence[Any]) -> bool:
    """Sizes that a run gives (None) take any number; tn_bind_shape looks at it."""
    return len(given) == len(wanted) and all(w is None or g == w for g, w in zip(given, wanted))


def _bytes(shape: Sequence[int], t: DType) -> int:
    n = t.itemsize
    for d in shape:
        n *= d
    return n


def _exactly(array: np.ndarray, t: DType) -> np.ndarray:
    """What Python's numbers and lists give, in the slot's dtype: integers stay what they are, floats are rounded."""
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"{array.dtype} is no number, must be {t}")
    if array.dtype.kind == "f" and t.kind != "f":
        raise DTypeError(f"a number with a fraction is given, must be {t}")
    out = array.astype(t.numpy)
    if t.kind == "i" and not np.array_equal(out, array):
        raise DTypeError(f"a number is out of range for {t}")
    return out


def _bits(array: np.ndarray, t: DType) -> np.ndarray:
    """What memory holds of a dtype that NumPy has not: bits as they are; f32 rounded to bf16 (nearest even)."""
    if array.dtype == t.bits:
        return array
    if array.dtype != np.float32 or t is not bfloat16:
        also = "float32, or " if t is bfloat16 else ""
        raise DTypeError(f"the array is {array.dtype}, must be {t}: give {also}its bits as {t.bits}")
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


class Slot:
    """A named input or output of a program. None in its shape: the size is given by each run."""

    __slots__ = ("index", "kind", "name", "dtype", "shape")

    def __init__(self, index: int, kind: str, name: str, t: DType, shape: tuple[Any, ...]):
        self.index, self.kind, self.name, self.dtype, self.shape = index, kind, name, t, shape

    def __repr__(self) -> str:
        return f"{'input' if self.kind == 'i' else 'output'} {self.name} {self.dtype}{list(self.shape)}"


def compile_options(device: str, mode: str, fusion: int, threads: int, schedule: Optional[str],
                    check: bool = False) -> _abi.tn_compile_opts:
    if mode not in MODES:
        raise ValueError(f"there is no mode {mode!r}: {', '.join(MODES)}")
    return _abi.tn_compile_opts(struct_size=ctypes.sizeof(_abi.tn_compile_opts), mode=MODES[mode], fusion=fusion, threads=threads,
                                check=int(check), device=device.encode(), schedule=schedule.encode() if schedule else None)


class Program:
    """A compiled graph. It never changes, may be used by many threads, and is run in sessions."""

    def __init__(self, graph: Graph, *, device: str = "cpu", mode: str = "compiled", fusion: int = -1, threads: int = 0,
                 schedule: Optional[str] = None, check: bool = False):
        options = compile_options(device, mode, fusion, threads, schedule, check)
        self.context, self.device, self.mode = graph.context, device, mode
        out = ctypes.c_void_p()
        with self.context.lock:
            self.context.check(lib.tn_compile(graph._handle.pointer, ctypes.byref(options), ctypes.byref(out)))
        self._take(out)

    def _take(self, out: ctypes.c_void_p) -> None:
        self._handle = Handle(out.value, lib.tn_program_free, self.context._handle)
        self.slots = [self._slot(i) for i in range(lib.tn_program_n_slots(out))]
        self.inputs = [s for s in self.slots if s.kind == "i"]
        self.outputs = [s for s in self.slots if s.kind == "o"]

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"], *, context: Optional[Context] = None) -> "Program":
        """The program of a file that `save` wrote, without compiling: for the same build of Tenon, processor and number of threads. It
        runs as the one that was saved; `text` and `explain` have nothing to say of it. Its code is run: trust the file as a program."""
        context, out = context or default_context(), ctypes.c_void_p()
        with context.lock:
            context.check(lib.tn_program_load(context.pointer, os.fsencode(path), ctypes.byref(out)))
        return cls._of(out, context)

    @classmethod
    def _of(cls, out: ctypes.c_void_p, context: Context) -> "Program":
        p = cls.__new__(cls)
        p.context, p.device, p.mode = context, "cpu", "loaded"
        p._take(out)
        return p

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the program to a file: machine code, constants, initial values. Of the device cpu, in any mode but immediate."""
        with self.context.lock:
            self.context.check(lib.tn_program_save(self._handle.pointer, os.fsencode(path)))

    @classmethod
    def find(cls, key: str, *, context: Optional[Context] = None) -> Optional["Program"]:
        """The program that `keep` has put into the kernel cache under this key, or None: there is none, or a file that it was made of
        has changed, or the build of Tenon, the processor, the number of threads or the tuning database is another one."""
        context, out = context or default_context(), ctypes.c_void_p()
        with context.lock:
            context.check(lib.tn_program_find(context.pointer, key.encode(), ctypes.byref(out)))
        return cls._of(out, context) if out.value else None

    def keep(self, key: str, files: Sequence[Union[str, "os.PathLike[str]"]] = ()) -> None:
        """Puts the program into the kernel cache's folder for later processes. The key says of what it was compiled, and how; files are
        those that it was made of. UnsupportedError where it is not kept, as after a change of one of them since the context was made."""
        paths = (ctypes.c_char_p * len(files))(*[os.fsencode(os.path.realpath(f)) for f in files])
        with self.context.lock:
            self.context.check(lib.tn_program_keep(self._handle.pointer, key.encode(), paths, len(files)))

    def _slot(self, i: int) -> Slot:
        kind, name, t, shape = ctypes.c_char(), ctypes.c_char_p(), ctypes.c_int(), _abi.tn_shape()
        self.context.check(lib.tn_program_slot(self._handle.pointer, i, ctypes.byref(kind), ctypes.byref(name), ctypes.byref(t),
                                               ctypes.byref(shape)))
        return Slot(i, kind.value.decode(), (name.value or b"").decode(), BY_CODE[t.value],
                    tuple(d if d >= 0 else None for d in shape.dim[: shape.rank]))

    def dims(self) -> list[str]:
        """Names of the sizes that a run gives (tenon.dim)."""
        names, name = [], ctypes.c_char_p()
        for i in range(lib.tn_program_n_dims(self._handle.pointer)):
            self.context.check(lib.tn_program_dim(self._handle.pointer, i, ctypes.byref(name), None, None, None))
            names.append((name.value or b"").decode())
        return names

    def session(self) -> "Session":
        """A new session: its states start at their initial values."""
        return Session(self)

    def stats(self) -> dict:
        """Kernels, bytes, flops, compile time: the fields of tn_program_stats."""
        out = _abi.tn_program_stats()
        lib.tn_program_get_stats(self._handle.pointer, ctypes.byref(out))
        return fields(out)

    def text(self, stage: str) -> str:
        """A stage as text: "graph", "plan", "schedule", "kernels", "x86", "c", "cuda", "standalone", "explain", "explain.json" ..."""
        out = ctypes.c_void_p()
        with self.context.lock:
            self.context.check(lib.tn_program_text(self._handle.pointer, stage.encode(), ctypes.byref(out)))
            return self.context.text(out)

    def explain(self) -> str:
        """What was fused and why, what was not and why not, and how many bytes move."""
        return self.text("explain")

    def __repr__(self) -> str:
        s = self.stats()
        return f"<Program {self.mode} on {self.device}: {s['kernels']} kernels; {', '.join(map(repr, self.slots))}>"

    def _repr_html_(self) -> str:
        s = self.stats()
        rows = "".join(f"<tr><td>{'input' if p.kind == 'i' else 'output'}</td><td>{html.escape(p.name)}</td>"
                       f"<td>{p.dtype}{list(p.shape)}</td></tr>" for p in self.slots)
        figures = (f"{s['kernels']} kernels, {s['flops']:,} flops, {s['bytes_read'] + s['bytes_written']:,} bytes a run, "
                   f"{s['arena_bytes']:,} bytes of temporaries, compiled in {s['compile_seconds'] * 1e3:.2f} ms")
        head = f"<p><b>{html.escape(self.mode)}</b> on {html.escape(self.device)}: {figures}</p><table>{rows}</table>"
        return head if self.mode == "loaded" else (
            head + f"<details><summary>explain</summary><pre>{html.escape(self.explain())}</pre></details>")


def _run_forked(_: Any) -> int:
    raise RuntimeError("this session was made before the process was forked: make one in the child")


def _run_misfit(kind: Callable[[str], BaseException], text: str) -> Callable[[Any], int]:
    def run(_: Any) -> int:
        raise kind(text)
    return run


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _forget_sessions() -> None:
    for s in _sessions:
        s._lock = threading.Lock()
        s._entry = (_run_forked, None, s._lock)


after_fork(_forget_sessions)


class Session:
    """Runs a program, and keeps its states from run to run."""

    def __init__(self, program: Program):
        self.program = program
        out = ctypes.c_void_p()
        with program.context.lock:
            program.context.check(lib.tn_session_new(program._handle.pointer, ctypes.byref(out)))
        self._handle = Handle(out.value, lib.tn_session_free, (program._handle, program.context._handle))
        self._by_name = {s.name: s for s in program.slots}
        self._bound: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._dynamic = [s for s in program.slots if None in s.shape]
        self._states = {name: (t, shape) for name, t, shape in self._list_states()}
        self._entry: tuple[Any, Any, Any] = (lib.tn_session_run, ctypes.c_void_p(out.value), self._lock)
        self._run_bound = self._entry
        _sessions.add(self)

    def _check(self, status: int) -> None:
        if status:
            raise error(status, lib.tn_session_error(self._handle.pointer).decode(errors="replace"))

    def _slot(self, name: str) -> Slot:
        try:
            return self._by_name[name]
        except KeyError:
            raise ValueError(f"there is no input or output {name!r}: {', '.join(map(repr, self.program.slots))}") from None

    # ---- sizes that a run gives ----

    def bind_dim(self, name: str, value: int) -> "Session":
        """Gives a tenon.dim its value: one that follows from no array. Returns the session."""
        with self._lock:
            self._check(lib.tn_bind_dim(self._handle.pointer, name.encode(), value))
            self._fit_bound()
        return self

    def _shape_of(self, s: Slot) -> tuple[int, ...]:
        """A slot's shape in the next run."""
        if None not in s.shape:
            return s.shape
        shape = _abi.tn_shape()
        self._check(lib.tn_session_shape(self._handle.pointer, s.index, ctypes.byref(shape)))
        return tuple(shape.dim[: shape.rank])

    def _fit(self, given: Mapping[int, tuple[int, ...]]) -> None:
        """Sizes follow from these arrays and those that are bound; an error where they are not of one run."""
        if not self._dynamic:
            return
        shapes = {s.index: (s, given[s.index] if s.index in given else self._bound[s.index].shape) for s in self._dynamic
                  if s.index in given or s.index in self._bound}
        for s, dims in shapes.values():
            if s.kind == "i":
                shape = _abi.tn_shape(rank=len(dims))
                shape.dim[: len(dims)] = dims
                self._check(lib.tn_bind_shape(self._handle.pointer, s.name.encode(), shape))
        for s, dims in shapes.values():
            if self._shape_of(s) != dims:
                raise ShapeError(f"{s!r} is {list(self._shape_of(s))} for the sizes of the other arrays; given is {list(dims)}")

    def _fit_bound(self) -> None:
        """What is bound may be of other sizes than an array that came later: then run() is an error."""
        if not self._dynamic:
            return
        self._entry = self._run_bound
        try:
            self._fit({})
        except (ValueError, NotImplementedError) as e:
            self._entry = (_run_misfit(type(e), str(e)), None, self._lock)

    # ---- runs ----

    def __call__(self, inputs: Optional[Mapping[str, Any]] = None, **more: Any) -> dict[str, np.ndarray]:
        """Runs once on these inputs (and what is bound), and returns every output that is not bound, by name."""
        given = {**(inputs or {}), **more}
        buffers = [(s, _in_slot(s, value)) for s, value in ((self._slot(k), v) for k, v in given.items())]
        for s in self.program.inputs:
            if s.name not in given and s.index not in self._bound:
                raise ValueError(f"{s!r} is not given")
        with self._lock:
            self._fit({s.index: b.shape for s, b in buffers})
            outputs = [(s, Buffer.empty(self._shape_of(s), s.dtype)) for s in self.program.outputs if s.index not in self._bound]
            bindings = _bindings([(s, b.pointer) for s, b in buffers + outputs])
            try:
                self._check(lib.tn_run(self._handle.pointer, bindings, len(bindings)))
            finally:
                self._fit_bound()
        return {s.name: b.array() for s, b in outputs}

    def bind(self, arrays: Optional[Mapping[str, Any]] = None, **more: Any) -> "Session":
        """Has every run read and write these arrays, in place. None unbinds. Returns the session."""
        for name, value in {**(arrays or {}), **more}.items():
            s = self._slot(name)
            buffer = None if value is None else bound_buffer(s, value)
            with self._lock:
                self._check(lib.tn_session_bind(self._handle.pointer, s.index, buffer.pointer if buffer else None))
                if buffer:
                    self._bound[s.index] = buffer
                else:
                    self._bound.pop(s.index, None)
        with self._lock:
            self._fit_bound()
        return self

    def run(self) -> None:
        """Runs once on what is bound."""
        run, pointer, lock = self._entry
        with lock:
            status = run(pointer)
        if status:
            self._check(status)

    def run_n(self, steps: int, rings: Optional[Mapping[str, Any]] = None, *, trace: Sequence[str] = (),
              first: int = 0, **more: Any) -> dict[str, np.ndarray]:
        """Runs `steps` steps in one call: step i reads entry (first + i) % n of each ring, an array of n inputs one after the
        other.

        Returns the last step's outputs, but for those that are bound; of those that `trace` names, every step's, one after the
        other."""
        given = {**(rings or {}), **more}
        entries: list[tuple[Slot, Buffer]] = []
        n_ring = None
        for name, value in given.items():
            s = self._slot(name)
            n = len(value)
            if n_ring not in (None, n):
                raise ShapeError(f"the rings have {n_ring} and {n} entries")
            n_ring = n
            entries.append((s, Buffer.of(value, s.dtype, (n, *s.shape))))
        if n_ring == 0:
            raise ShapeError("the rings have no entries")
        if steps < 0 or any(self._slot(name).kind != "o" for name in trace):
            raise ValueError(f"{steps} steps, or an input that is traced")
        bindings = _bindings([(s, b.pointer) for s, b in entries])
        with self._lock:
            self._fit({s.index: b.shape[1:] for s, b in entries})
            outputs = [(s, Buffer.empty((steps, *self._shape_of(s)) if s.name in trace else self._shape_of(s), s.dtype))
                       for s in self.program.outputs if s.index not in self._bound or s.name in trace]
            pointer = self._handle.pointer
            for s, b in outputs:
                if s.name in trace:
                    self._check(lib.tn_session_bind_trace(pointer, s.index, b.pointer, steps))
                else:
                    self._check(lib.tn_session_bind(pointer, s.index, b.pointer))
            try:
                self._check(lib.tn_run_n_from(pointer, steps, bindings, len(bindings), n_ring or 1, first))
            finally:
                for s, _ in outputs:
                    bound = self._bound.get(s.index)
                    self._check(lib.tn_session_bind(pointer, s.index, bound.pointer if bound else None))
                self._fit_bound()
        return {s.name: b.array() for s, b in outputs}

    def profile(self, seconds: float = 0.2, inputs: Optional[Mapping[str, Any]] = None, **more: Any) -> "Profile":
        """Where the time of a run goes, kernel by kernel. States move on with every round."""
        given = {**(inputs or {}), **more}
        before = {name: self._bound.get(self._slot(name).index) for name in given}
        held = {name: np.ascontiguousarray(_in_slot(self._slot(name), value).array()) for name, value in given.items()}
        self.bind(held)
        out = ctypes.c_void_p()
        try:
            with self._lock:
                self._fit({})
                self._check(lib.tn_session_profile(self._handle.pointer, seconds, ctypes.byref(out)))
            return Profile(out)
        finally:
            lib.tn_profile_free(out)
            self.bind({name: buffer and buffer.source for name, buffer in before.items()})

    # ---- states ----

    def _list_states(self) -> Iterator[tuple[str, DType, tuple[int, ...]]]:
        pointer = self._handle.pointer
        for i in range(lib.tn_session_n_states(pointer)):
            name, t, shape = ctypes.c_char_p(), ctypes.c_int(), _abi.tn_shape()
            self._check(lib.tn_session_state(pointer, i, ctypes.byref(name), ctypes.byref(t), ctypes.byref(shape)))
            yield (name.value or b"").decode(), BY_CODE[t.value], tuple(shape.dim[: shape.rank])

    @property
    def states(self) -> list[str]:
        """Names of parameters, moments, counters."""
        return list(self._states)

    def _state(self, name: str) -> tuple[DType, tuple[int, ...]]:
        try:
            return self._states[name]
        except KeyError:
            raise KeyError(f"there is no state {name!r}: {', '.join(self._states)}") from None

    def __getitem__(self, state: str) -> np.ndarray:
        """A copy of a state."""
        t, shape = self._state(state)
        out = Buffer.empty(shape, t)
        with self._lock:
            self._check(lib.tn_session_get(self._handle.pointer, state.encode(), out.pointer, out.nbytes))
        return out.array()

    def __setitem__(self, state: str, value: Any) -> None:
        t, shape = self._state(state)
        data = Buffer.of(value, t, shape)
        with self._lock:
            self._check(lib.tn_session_set(self._handle.pointer, state.encode(), data.pointer, data.nbytes))

    def copy_states(self, source: "Session") -> int:
        """Takes every state of the other session that has the same name, dtype and shape; returns how many."""
        n = ctypes.c_int()
        self._check(lib.tn_session_copy_state(self._handle.pointer, source._handle.pointer, ctypes.byref(n)))
        return n.value

    def save(self, path: Any) -> None:
        """All states as safetensors; a crash leaves the old file or the new one."""
        ctx = self.program.context
        with ctx.lock, self._lock:
            ctx.check(lib.tn_io_save_state(ctx.pointer, self._handle.pointer, str(path).encode()))

    def load(self, path: Any) -> None:
        """All states from a safetensors file, which may have more; nothing is set unless everything fits."""
        ctx = self.program.context
        with ctx.lock, self._lock:
            ctx.check(lib.tn_io_load_state(ctx.pointer, self._handle.pointer, str(path).encode()))

    def stats(self) -> dict:
        """As Program.stats; in immediate mode those of the last run."""
        out = _abi.tn_program_stats()
        lib.tn_session_get_stats(self._handle.pointer, ctypes.byref(out))
        return fields(out)

    def __repr__(self) -> str:
        return f"<Session of {self.program!r}, {len(self._states)} states>"


def _bindings(pairs: Sequence[tuple[Slot, int]]) -> Any:
    out = (_abi.tn_binding * len(pairs))()
    for b, (s, pointer) in zip(out, pairs):
        b.name, b.data = s.name.encode(), pointer
    return out


def _in_slot(s: Slot, value: Any) -> Buffer:
    try:
        return Buffer.of(value, s.dtype, s.shape)
    except (ShapeError, DTypeError, UnsupportedError) as e:
        raise type(e)(f"{s!r}: {e}") from None


def bound_buffer(s: Slot, value: Any) -> Buffer:
    """The value's own memory. An error where runs could not use it in place."""
    buffer = _in_slot(s, value)
    if isinstance(value, np.ndarray):
        own = buffer.pointer == value.ctypes.data or not value.size
        if s.kind == "o" and not value.flags.writeable:
            raise ValueError(f"{s!r}: the array is read-only")
    else:
        own = buffer.source is value and hasattr(value, "__dlpack__") and not isinstance(buffer.owner, np.ndarray)
    if not own:
        raise ValueError(f"{s!r}: only a contiguous array of this dtype can be bound in place, and this one would have to be copied")
    buffer.source = value
    return buffer


class Profile:
    """The time of each kernel of a run: `kernels` has the fields of tn_profiled_kernel, `summary` those of tn_profile_summary."""

    def __init__(self, pointer: ctypes.c_void_p):
        summary = _abi.tn_profile_summary()
        lib.tn_profile_get_summary(pointer, ctypes.byref(summary))
        self.summary = fields(summary)
        self.kernels = []
        for i in range(summary.kernels):
            kernel = _abi.tn_profiled_kernel()
            if lib.tn_profile_kernel(pointer, i, ctypes.byref(kernel)) == 0:
                self.kernels.append({**fields(kernel), "level_bytes": list(kernel.level_bytes)})

    def __repr__(self) -> str:
        total = self.summary["kernels_us"] or 1
        lines = [f"{k['median_us']:10.2f} us {k['median_us'] / total:6.1%}  {k['name']}" for k in self.kernels]
        return "\n".join([f"a run {self.summary['run_us']:.2f} us, its kernels {total:.2f} us:", *lines])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(k['name'])}</td><td>{k['median_us']:.2f}</td><td>{k['predicted_us']:.2f}</td>"
                       f"<td>{html.escape(k['predicted_bound'] or '')}</td></tr>" for k in self.kernels)
        return (f"<p>a run {self.summary['run_us']:.2f} us</p><table><tr><th>kernel</th><th>us</th><th>predicted</th><th>bound by</th></tr>"
                f"{rows}</table>")


class Tuning:
    """What a search for faster schedules found (docs/tuning.md). They are kept, and later programs use them."""

    def __init__(self, graph: Graph, seconds: float, progress: Any, options: Mapping[str, Any]):
        compile_opts = compile_options(**{"device": "cpu", "mode": "compiled", "fusion": -1, "threads": 0, "schedule": None, **options})
        show = _bar if progress is True else progress
        callback = _PROGRESS(_reporter(show)) if show else None
        opts = _abi.tn_tune_opts(struct_size=ctypes.sizeof(_abi.tn_tune_opts), seconds=seconds,
                                 progress=ctypes.cast(callback, ctypes.c_void_p).value if callback else None)
        out, ctx = ctypes.c_void_p(), graph.context
        with ctx.lock:
            ctx.check(lib.tn_tune(graph._handle.pointer, ctypes.byref(compile_opts), ctypes.byref(opts), ctypes.byref(out)))
        if progress is True:
            sys.stderr.write("\n")
        try:
            summary = _abi.tn_tuning_summary()
            lib.tn_tuning_get_summary(out, ctypes.byref(summary))
            self.summary = fields(summary)
            self.kernels = []
            for i in range(summary.kernels):
                kernel = _abi.tn_tuned_kernel()
                ctx.check(lib.tn_tuning_kernel(out, i, ctypes.byref(kernel)))
                self.kernels.append(fields(kernel))
        finally:
            lib.tn_tuning_free(out)

    def __repr__(self) -> str:
        s = self.summary
        return (f"<Tuning of {s['kernels']} kernels in {s['seconds']:.1f} s: {s['changed']} faster, "
                f"{s['before_us']:.1f} -> {s['after_us']:.1f} us a run>")

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(k['name'])}</td><td>{k['before_us']:.2f}</td><td>{k['after_us']:.2f}</td>"
                       f"<td>{html.escape(k['schedule'] or '')}</td></tr>" for k in self.kernels)
        return (f"<p>{html.escape(repr(self)[1:-1])}</p><table><tr><th>kernel</th><th>before, us</th><th>after, us</th><th>schedule"
                f"</th></tr>{rows}</table>")


_PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_double, ctypes.c_char_p)


def _reporter(show: Callable[[float, str], Any]) -> Callable[[Any, float, bytes], int]:
    def report(_: Any, done: float, kernel: bytes) -> int:
        try:
            return int(show(done, kernel.decode() if kernel else "") is False)
        except BaseException:  # an exception cannot cross C: the search ends, and keeps what it has
            return 1
    return report


def _bar(done: float, kernel: str) -> None:
    width = 30
    full = int(done * width)
    sys.stderr.write(f"\r[{'#' * full}{'.' * (width - full)}] {done:4.0%} {kernel[:40]:<40}")
    sys.stderr.flush()
