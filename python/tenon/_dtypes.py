"""Element types: the library's, and how they meet NumPy's and Python's."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from . import _abi
from ._lib import lib

try:  # NumPy has no bfloat16 of its own, and no floats of 8 bits
    import ml_dtypes as _more
except ImportError:
    _more = None  # type: ignore[assignment]


class DType:
    """An element type: `x.dtype == tenon.float32`, also `== "f32"` or `== np.float32`."""

    __slots__ = ("name", "python_name", "code", "itemsize", "numpy", "kind", "signed", "arithmetic", "dlpack")
    name: str
    python_name: str
    numpy: Any

    def __init__(self, code: int):
        info = _abi.tn_dtype_info.from_address(lib.tn_dtype_get_info(code))
        self.name, self.code, self.itemsize = info.name.decode(), code, info.bytes
        self.kind = "f" if info.kind == _abi.TN_KIND_FLOAT else "b" if info.kind == _abi.TN_KIND_BOOL else "i"
        self.signed = info.kind in (_abi.TN_KIND_FLOAT, _abi.TN_KIND_INT)
        self.arithmetic = bool(info.arithmetic)  # else it is stored, moved, chosen and converted only
        self.dlpack = (info.dlpack, 8 * info.bytes)
        native = np.dtype(info.numpy.decode()) if info.numpy else None
        self.python_name = _PYTHON_NAMES.get(self.name) or (native.name if native is not None else self.name)
        self.numpy = native or (np.dtype(getattr(_more, self.python_name)) if hasattr(_more, self.python_name) else None)

    @property
    def bits(self) -> np.dtype:
        """NumPy's dtype of what the memory of an element holds, where it has none for the element."""
        return self.numpy or np.dtype(f"u{self.itemsize}")

    def __repr__(self) -> str:
        return f"tenon.{self.python_name}"

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other
        try:
            return dtype(other) is self
        except TypeError:
            return False

    def __reduce__(self):
        return dtype, (self.name,)


# Those that NumPy has not are called as in ml_dtypes and PyTorch.
_PYTHON_NAMES = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "bool": "bool_"}

ALL = tuple(DType(code) for code in range(_abi.TN_N_DTYPES))
BY_CODE = {t.code: t for t in ALL}
BY_DLPACK = {t.dlpack: t for t in ALL}
_BY_NAME = {t.name: t for t in ALL} | {t.python_name: t for t in ALL}
_BY_NUMPY = {t.numpy: t for t in ALL if t.numpy is not None}
float32, float64, float16, bfloat16 = (_BY_NAME[n] for n in ("f32", "f64", "f16", "bf16"))
int8, int16, int32, int64 = (_BY_NAME[n] for n in ("i8", "i16", "i32", "i64"))
uint8, uint16, uint32, uint64 = (_BY_NAME[n] for n in ("u8", "u16", "u32", "u64"))
float8_e4m3fn, float8_e5m2, bool_ = (_BY_NAME[n] for n in ("f8e4m3", "f8e5m2", "bool"))
_BY_PYTHON = {float: float32, int: int64, bool: bool_}

DTypeLike = Union[DType, str, type, np.dtype]


def dtype(of: Any) -> DType:
    """The element type by its name ("f32", "float32"), NumPy's or Python's type. TypeError where Tenon has none like it."""
    if isinstance(of, DType):
        return of
    try:
        found = _BY_NAME.get(of) if isinstance(of, str) else _BY_PYTHON.get(of)
        if found is None:
            found = _BY_NUMPY.get(np.dtype(of).newbyteorder("="))
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"Tenon has no dtype {of!s}: there are {', '.join(t.name for t in ALL)}")
    return found


def promote(a: DType, b: DType) -> DType:
    """The type of an operation on both: bool gives way to integers, these to floats, small types to large ones.

    f16 with bf16 is f32, as is a float of 8 bits with another small one. Of integers with and without a sign the one with a sign
    is it where it is wider; else i32 or i64, whichever holds both (i32 for i8 with u8), i64 at the most."""
    if a is b or b is bool_:
        return a
    if a is bool_:
        return b
    if a.kind != b.kind:
        return a if a.kind == "f" else b
    if a.kind == "f":
        wider = a if a.itemsize > b.itemsize else b
        return wider if a.itemsize != b.itemsize and min(a.itemsize, b.itemsize) > 1 else float64 if wider is float64 else float32
    if a.signed == b.signed:
        return a if a.itemsize > b.itemsize else b
    signed, other = (a, b) if a.signed else (b, a)
    return signed if signed.itemsize > other.itemsize else int32 if other.itemsize < 4 else int64


def widened(array: np.ndarray, t: DType) -> np.ndarray:
    """Elements of t that are held as their bits (t.bits), as f32."""
    if t is bfloat16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    if t is float8_e5m2:  # the upper half of an f16
        return (array.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    magnitude = array.astype(np.uint16) & 0x7F
    f16 = ((array.astype(np.uint16) & 0x80) << 8 | magnitude << 7).view(np.float16)  # exponents are 8 lower, and NaN is no f16
    return np.where(magnitude == 0x7F, np.float32(np.nan), f16.astype(np.float32) * np.float32(256))


def without_numpy(t: DType) -> str:
    return f"NumPy has no {t.python_name}: install ml_dtypes"
