"""The loaded library: its functions by name, its statuses as exceptions, and pointers that are freed once.

The library is the file beside this one (a wheel carries its own), called through ctypes: every call releases Python's global
lock, and no binary of this package depends on the version of Python.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Callable, Optional

from . import _abi

LIBRARY = Path(__file__).parent / "_native" / "lib" / "libtenon.so.0"


class TenonError(Exception):
    """What the library refused. The text is the library's: operands, shapes, what is wrong, and the caller's file and line."""

    status = "TN_ERR_INTERNAL"


class InvalidError(TenonError, ValueError):
    status = "TN_ERR_INVAL"


class ShapeError(TenonError, ValueError):
    status = "TN_ERR_SHAPE"


class DTypeError(TenonError, TypeError):
    status = "TN_ERR_DTYPE"


class UnsupportedError(TenonError, NotImplementedError):
    status = "TN_ERR_UNSUPPORTED"


class ParseError(TenonError, ValueError):
    status = "TN_ERR_PARSE"


class FileError(TenonError, OSError):
    status = "TN_ERR_IO"


class OutOfMemory(TenonError, MemoryError):
    status = "TN_ERR_NOMEM"


class DeviceError(TenonError, RuntimeError):
    status = "TN_ERR_DEVICE"


class BuildError(TenonError, RuntimeError):
    status = "TN_ERR_BUILD"


class VerifyError(TenonError, RuntimeError):
    status = "TN_ERR_VERIFY"


class InternalError(TenonError, RuntimeError):
    status = "TN_ERR_INTERNAL"


for _name, _class in list(globals().items()):
    if isinstance(_class, type) and issubclass(_class, TenonError):
        _class.__module__ = "tenon"
_CLASSES = {
    getattr(_abi, c.status): c
    for c in (InvalidError, ShapeError, DTypeError, UnsupportedError, ParseError, FileError, OutOfMemory, DeviceError, BuildError,
              VerifyError, InternalError)
}


def error(status: int, text: str) -> TenonError:
    """The exception of a status."""
    return _CLASSES.get(status, InternalError)(text)


class _Library:
    """Functions of the C interface as attributes, typed when they are first looked at."""

    def __init__(self, path: os.PathLike):
        self._dll = ctypes.CDLL(os.fspath(path))

    def __getattr__(self, name: str) -> Any:
        try:
            result, params = _abi.FUNCTIONS[name]
        except KeyError:
            raise AttributeError(name) from None
        function = getattr(self._dll, name)
        function.restype, function.argtypes = result, params
        setattr(self, name, function)
        return function


lib = _Library(LIBRARY)


# ---- pointers -------------------------------------------------------------------------------------------------------------

_generation = 0  # of this process: how often it is a fork of the one that imported the package
_after_fork: list[Callable[[], None]] = []


def generation() -> int:
    return _generation


def after_fork(forget: Callable[[], None]) -> None:
    """Has `forget` called in forked children, whose libraries have lost their threads."""
    _after_fork.append(forget)


def _forked() -> None:
    global _generation
    _generation += 1
    for forget in _after_fork:
        forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _free(function: Callable[[int], None], pointer: int, made: int, keep: Any) -> None:
    if made == _generation:  # memory of the parent process stays its own: freeing it would wait for threads that are not here
        function(pointer)


class Handle:
    """A pointer of the library. It is freed when nothing refers to this object, and before what `keep` refers to."""

    __slots__ = ("_pointer", "_made", "__weakref__")

    def __init__(self, pointer: Optional[int], free: Callable[[int], None], keep: Any = None):
        pointer = pointer or 0
        self._pointer, self._made = pointer, _generation
        weakref.finalize(self, _free, free, pointer, _generation, keep).atexit = False

    @property
    def pointer(self) -> int:
        if self._made != _generation:
            raise RuntimeError("made before this process was forked: make it again in the child")
        return self._pointer


# ---- contexts -------------------------------------------------------------------------------------------------------------

_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_LEVELS = ("error", "warn", "info", "debug")


class Context:
    """Memory, threads, devices and the kernel cache. Most programs use the one that is there from the start.

    cache_dir: folder of the kernel cache on disk; "" = none. Without one, TENON_CACHE_DIR or ~/.cache/tenon.
    cpu: instruction set of generated code ("avx2", "sse2", "c", ...), else TENON_CPU or the processor's best.
    log: called with a level ("error", "warn", "info", "debug") and a text, from any thread.
    """

    def __init__(self, *, cache_dir: Optional[str] = None, cpu: Optional[str] = None, compiler: Optional[str] = None,
                 name_code: bool = False, log: Optional[Callable[[str, str], None]] = None):
        config = _abi.tn_config(struct_size=ctypes.sizeof(_abi.tn_config))
        lib.tn_config_from_env(ctypes.byref(config))
        if cache_dir is not None:
            config.cache_dir, config.cache_subdir = (cache_dir.encode() or None), None
        if cpu is not None:
            config.cpu = cpu.encode()
        if compiler is not None:
            config.compiler = compiler.encode()
        config.name_code = config.name_code or name_code
        callback = None
        if log is not None:
            callback = _LOG(lambda ud, level, text: log(_LEVELS[level], text.decode(errors="replace")))
            config.log = ctypes.cast(callback, ctypes.c_void_p).value
        pointer = lib.tn_ctx_new(ctypes.byref(config))
        if not pointer:
            raise OutOfMemory("no memory for a context")
        self._handle = Handle(pointer, lib.tn_ctx_free, callback)
        self.lock = threading.RLock()  # of building and compiling: one thread at a time

    @property
    def pointer(self) -> int:
        return self._handle.pointer

    def check(self, status: int) -> None:
        """Raises the exception of a status that is not TN_OK."""
        if status:
            raise error(status, lib.tn_ctx_error(self.pointer).decode(errors="replace"))

    def text(self, pointer: ctypes.c_void_p) -> str:
        """Takes a string of the library over."""
        try:
            return ctypes.string_at(pointer.value or 0).decode(errors="replace")
        finally:
            lib.tn_string_free(self.pointer, pointer)

    def cache_stats(self) -> dict:
        """Figures of the kernel cache, by the names of tn_cache_stats."""
        stats = _abi.tn_cache_stats()
        self.check(lib.tn_cache_get_stats(self.pointer, ctypes.byref(stats)))
        return fields(stats)


def fields(struct: ctypes.Structure) -> dict:
    """A C struct as a dict; texts are decoded."""
    out = {}
    for field in struct._fields_:
        name = field[0]
        value = getattr(struct, name)
        out[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return out


_default: Optional[Context] = None
_default_lock = threading.Lock()


def default_context() -> Context:
    """The context of everything that is made without one."""
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = Context()
    return _default


def _forget_default() -> None:
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


after_fork(_forget_default)

# ---- where the caller is --------------------------------------------------------------------------------------------------

_places: dict[tuple, bytes] = {}  # texts live as long as the package: graphs point to them


def here() -> bytes:
    """File and line of the nearest caller outside of this package, as graphs keep it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "tenon":
        frame = frame.f_back
    key = (frame.f_code.co_filename, frame.f_lineno)
    place = _places.get(key)
    if place is None:
        place = _places[key] = f"{key[0]}:{key[1]}".encode()
    return place


def version() -> str:
    """Version of the library."""
    return lib.tn_version().decode()


def devices() -> dict[str, dict]:
    """The devices that Tenon knows, by name: what it found of each, or what is missing ("error")."""
    ctx, out = default_context(), {}
    for i in range(lib.tn_device_count()):
        info = _abi.tn_device_info()
        with ctx.lock:
            status = lib.tn_device_get_info(ctx.pointer, i, ctypes.byref(info))
            name = lib.tn_device_name(i).decode()
            out[name] = {"error": lib.tn_ctx_error(ctx.pointer).decode()} if status else fields(info)
    return out
