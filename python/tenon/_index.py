"""x[...] of tensors: slices, integers, new axes, and one array of positions, as NumPy has them.

In: a tensor and what stands in the brackets. Out: tensors of slice, flip, reshape and gather. What depends on values (masks) is
refused, for it has no shape before a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._core import ArrayLike, Tensor, ints, where
from ._dims import Dim
from ._dtypes import bool_, int32, int64
from ._lib import ShapeError, UnsupportedError, here, lib


def take_rows(x: Tensor, index: ArrayLike, axis: int) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"{here().decode()}: axis {axis} is out of range for {x!r}")
    size = x.shape[axis]
    if not isinstance(index, Tensor):
        at = np.asarray(index)
        if at.dtype.kind not in "iu":
            raise TypeError(f"an index of dtype {at.dtype}: integers pick, and tenon.where chooses by a mask")
        most = size.hi if isinstance(size, Dim) else size
        if at.size and not (-most <= at.min() and at.max() < most):
            raise IndexError(f"{here().decode()}: index {at.min() if at.min() < -size else at.max()} is out of range for axis "
                             f"{axis} of size {size}")
        if isinstance(size, Dim):
            index = x.graph.constant(at.astype(np.int64))
            index = where(at < 0, index + size, index) if (at < 0).any() else index
        else:
            index = x.graph.constant(np.where(at < 0, at + size, at).astype(np.int64))
    elif index.dtype is bool_:
        raise UnsupportedError("a mask as an index: its result has no shape before the run; choose with tenon.where")
    else:
        index = index if index.dtype in (int32, int64) else index.astype(int64)
        index = where(index < 0, index + size, index)
    picked: Any = index
    x.graph.at()
    return x.graph.wrap(lib.tn_gather(x._t, picked._t, axis))


def _lower(x: Any, y: Any) -> Any:
    return x.min(y) if isinstance(x, Dim) else y.min(x) if isinstance(y, Dim) else min(x, y)


def _higher(x: Any, y: Any) -> Any:
    return x.max(y) if isinstance(x, Dim) else y.max(x) if isinstance(y, Dim) else max(x, y)


def _slice_of_run(s: slice, size: Any) -> tuple[Any, Any, int, bool]:
    """The same where a size of the run is the axis's, or where the slice begins or ends."""
    step = 1 if s.step is None else int(s.step)
    if step == -1 and s.start is None and s.stop is None:
        return 0, size, 1, True
    if step < 1:
        raise UnsupportedError("a slice that goes backwards along a size of the run: flip first")

    def place(v: Any) -> Any:
        return _higher(v + size, 0) if v < 0 else _lower(v, size)

    start = 0 if s.start is None else place(s.start)
    return start, size if s.stop is None else _higher(place(s.stop), start), step, False


def _slice_axis(s: slice, size: int) -> tuple[int, int, int, bool]:
    """start, stop, step of a forward slice, and whether it is reversed afterwards."""
    start, stop, step = s.indices(size)
    n = len(range(start, stop, step))
    if n == 0:
        return 0, 0, 1, False
    if step > 0:
        return start, start + (n - 1) * step + 1, step, False
    return start + (n - 1) * step, start + 1, -step, True


def _is_array_index(i: Any) -> bool:
    return isinstance(i, (Tensor, np.ndarray, list)) and not (isinstance(i, np.ndarray) and i.ndim == 0)


def _expand_ellipsis(x: Tensor, index: Any) -> list[Any]:
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(i is not None and i is not Ellipsis for i in items)
    if used > x.ndim:
        raise IndexError(f"{here().decode()}: {used} indices for {x!r}")
    holes = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(holes) > 1:
        raise IndexError("an index has one ellipsis at most")
    at = holes[0] if holes else len(items)
    return items[:at] + [slice(None)] * (x.ndim - used) + items[at + 1:]


def index_tensor(x: Tensor, index: Any) -> Tensor:
    """Slices first, then what is reversed, then one array of positions; integers drop their axis, None makes a new one."""
    items = _expand_ellipsis(x, index)
    start: list[Any] = []
    stop: list[Any] = []
    step: list[int] = []
    flips: list[int] = []
    shape: list[Any] = []
    picks: list[tuple[int, Any]] = []
    for item in items:
        axis = len(start)
        if item is None:
            shape.append(1)
            continue
        size = x.shape[axis]
        lo: Any
        hi: Any
        if isinstance(item, slice) and any(isinstance(v, Dim) for v in (size, item.start, item.stop)):
            lo, hi, by, back = _slice_of_run(item, size)
            flips += [axis] if back else []
            n = hi - lo
            shape.append(n if by == 1 else n.ceil_div(by) if isinstance(n, Dim) else -(-n // by))
        elif isinstance(item, slice):
            lo, hi, by, back = _slice_axis(item, size)
            flips += [axis] if back else []
            shape.append(len(range(lo, hi, by)))
        elif _is_array_index(item):
            lo, hi, by = 0, size, 1
            picks.append((len(shape), item))
            shape.append(size)
        elif isinstance(item, Dim) or isinstance(size, Dim):
            i = item if isinstance(item, Dim) else item.__index__()
            lo, by = i + size if i < 0 else i, 1
            hi = lo + 1
        else:
            i = item.__index__()
            if not -size <= i < size:
                raise IndexError(f"{here().decode()}: index {i} is out of range for axis {axis} of {x!r}")
            lo, hi, by = i % size, i % size + 1, 1
        start.append(lo)
        stop.append(hi)
        step.append(by)
    if len(picks) > 1:
        raise UnsupportedError("one axis at most is indexed by an array: index twice, or reshape and use take")
    y = x.graph.wrap(lib.tn_slice(x._at(), ints(start), ints(stop), ints(step), x.ndim)) if x.ndim else x
    y = (y.flip(flips) if flips else y).reshape(shape)
    return take_rows(y, picks[0][1], picks[0][0]) if picks else y
