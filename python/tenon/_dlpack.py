"""Arrays of other libraries by DLPack, without copies: their memory, shape and element type.

A capsule is looked into but not consumed: it stays alive with the array that was made from it, and frees what it owns when it
goes. Only memory that the CPU can reach is taken."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from ._dtypes import BY_DLPACK, DType, without_numpy
from ._lib import UnsupportedError


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_HOST = {1: "CPU", 3: "CUDA host"}
_DEVICES = {2: "a CUDA device", 4: "an OpenCL device", 8: "a Metal device", 10: "a ROCm device"}

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class View(NamedTuple):
    """Memory of another library: valid as long as `owner` is."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: DType
    owner: Any

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size == 0:
                return True
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def _dtype_of(t: _DLTensor) -> DType:
    found = BY_DLPACK.get((t.code, t.bits)) if t.lanes == 1 else None
    if found is None:
        raise TypeError(f"a DLPack type of code {t.code} and {t.bits} bits with {t.lanes} lanes")
    return found


def view(x: Any) -> View:
    """What `x.__dlpack__()` shows. TypeError for element types that Tenon has not, UnsupportedError for other memory."""
    capsule = x.__dlpack__()
    t = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    if t.device_type not in _HOST:
        raise UnsupportedError(f"the array is in memory of {_DEVICES.get(t.device_type, f'device type {t.device_type}')}: "
                               "move it to the CPU first")
    shape = tuple(t.shape[: t.ndim])
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    if t.strides:
        strides = list(t.strides[: t.ndim])
    return View((t.data or 0) + t.byte_offset, shape, tuple(strides), _dtype_of(t), capsule)


def to_numpy(x: Any) -> np.ndarray:
    """x as a NumPy array: the same memory where x shows it, else a copy."""
    if not hasattr(x, "__dlpack__") or isinstance(x, np.generic):
        return np.asarray(x)
    v = view(x)
    if v.dtype.numpy is None:
        raise UnsupportedError(without_numpy(v.dtype) + ", or convert the array to float32")
    size, foreign = v.dtype.itemsize, v.dtype.numpy.isbuiltin != 1  # of ml_dtypes
    interface = _Interface(v, {"version": 3, "shape": v.shape, "strides": tuple(s * size for s in v.strides), "data": (v.pointer, False),
                               "typestr": f"|V{size}" if foreign else v.dtype.numpy.str})
    array = np.asarray(interface)
    return array.view(v.dtype.numpy) if foreign else array


class _Interface:
    """NumPy keeps this, and with it the memory's owner, as long as it has the array."""

    def __init__(self, owner: View, interface: dict):
        self.owner, self.__array_interface__ = owner, interface
