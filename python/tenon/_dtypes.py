"""Element types: the library's, and how they meet NumPy's and Python's."""

from __future__ import annotations

from typing import Any, Union

import numpy as np

from . import _abi

try:  # NumPy has no bfloat16 of its own
    from ml_dtypes import bfloat16 as _numpy_bfloat16
except ImportError:
    _numpy_bfloat16 = None  # type: ignore[assignment, misc]


class DType:
    """An element type: `x.dtype == tenon.float32`, also `== "f32"` or `== np.float32`."""

    __slots__ = ("name", "code", "itemsize", "numpy", "kind")

    def __init__(self, name: str, code: int, itemsize: int, numpy_dtype: Any, kind: str):
        self.name, self.code, self.itemsize, self.kind = name, code, itemsize, kind
        self.numpy = None if numpy_dtype is None else np.dtype(numpy_dtype)

    def __repr__(self) -> str:
        return f"tenon.{_PYTHON_NAMES[self.name]}"

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


float32 = DType("f32", _abi.TN_F32, 4, np.float32, "f")
float64 = DType("f64", _abi.TN_F64, 8, np.float64, "f")
float16 = DType("f16", _abi.TN_F16, 2, np.float16, "f")
bfloat16 = DType("bf16", _abi.TN_BF16, 2, _numpy_bfloat16, "f")
int8 = DType("i8", _abi.TN_I8, 1, np.int8, "i")
int32 = DType("i32", _abi.TN_I32, 4, np.int32, "i")
int64 = DType("i64", _abi.TN_I64, 8, np.int64, "i")
uint8 = DType("u8", _abi.TN_U8, 1, np.uint8, "i")
bool_ = DType("bool", _abi.TN_BOOL, 1, np.bool_, "b")

ALL = (float32, float64, float16, bfloat16, int8, int32, int64, uint8, bool_)
BY_CODE = {t.code: t for t in ALL}
_PYTHON_NAMES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "i32": "int32",
                 "i64": "int64", "u8": "uint8", "bool": "bool_"}
_BY_NAME = {t.name: t for t in ALL} | {n: t for t in ALL for n in [_PYTHON_NAMES[t.name]]}
_BY_NUMPY = {t.numpy: t for t in ALL if t.numpy is not None}
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

    f16 with bf16 is f32, and i8 with u8 is i32, for neither holds the other."""
    if a is b or b is bool_:
        return a
    if a is bool_:
        return b
    if a.kind != b.kind:
        return a if a.kind == "f" else b
    if a.itemsize != b.itemsize:
        return a if a.itemsize > b.itemsize else b
    return float32 if a.kind == "f" else int32
