"""Arrays in files: safetensors. Files are untrusted, and checked as a whole before anything is taken from them; writing is atomic."""

from __future__ import annotations

import ctypes
from typing import Any, Mapping

import numpy as np

from . import _abi
from ._core import _shape, host_array
from ._dtypes import BY_CODE, dtype
from ._lib import default_context, lib
from ._run import Buffer


def save(path: Any, arrays: Mapping[str, Any]) -> None:
    """Writes named arrays; a crash leaves the old file or the new one."""
    ctx = default_context()
    kept = {name: host_array(value) for name, value in arrays.items()}
    table = (_abi.tn_io_tensor * len(kept))()
    for row, (name, array) in zip(table, kept.items()):
        row.name, row.dtype, row.shape, row.data = name.encode(), dtype(array.dtype).code, _shape(array.shape), array.ctypes.data
    with ctx.lock:
        ctx.check(lib.tn_io_safetensors_save(ctx.pointer, str(path).encode(), table, len(kept)))


def load(path: Any) -> dict[str, np.ndarray]:
    """Every array of a file, by name. bf16 and floats of 8 bits come as those of ml_dtypes where that is
    installed, else as f32."""
    ctx, out = default_context(), ctypes.c_void_p()
    with ctx.lock:
        ctx.check(lib.tn_io_safetensors_load(ctx.pointer, str(path).encode(), ctypes.byref(out)))
        try:
            arrays = {}
            for i in range(lib.tn_io_tensors_count(out)):
                t = _abi.tn_io_tensor.from_address(lib.tn_io_tensors_get(out, i))
                b = Buffer.empty(tuple(t.shape.dim[: t.shape.rank]), BY_CODE[t.dtype])
                ctypes.memmove(b.pointer, t.data, b.nbytes) if b.nbytes else None
                arrays[t.name.decode()] = b.array()
            return arrays
        finally:
            lib.tn_io_tensors_free(out)
