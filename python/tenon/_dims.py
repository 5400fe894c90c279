"""Sizes that a run gives: tenon.dim, and what tensor.shape has where a size is not a number.

A Dim is a name and a range until a graph uses it; in tensor.shape it is one of that graph's sizes, with arithmetic that the C
library does. Where Python needs a number (range, int, an undecided comparison) there is none: that is a TypeError."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import numpy as np

from ._lib import lib

_LEAST = -(2**63) + (1 << 16)  # the least literal size; below are handles of the C library


class Dim:
    """A size between lo and hi that every run gives anew."""

    __slots__ = ("name", "lo", "hi", "multiple_of", "_graph", "_handle", "__weakref__")
    __array_ufunc__ = None

    def __init__(self, name: str, lo: int, hi: int, multiple_of: int = 1):
        self.name, self.lo, self.hi, self.multiple_of = name, int(lo), int(hi), int(multiple_of)
        self._graph: Any = None
        self._handle = 0

    @classmethod
    def _of(cls, graph: Any, handle: int) -> Any:
        """A size of the graph: a number, or a Dim."""
        if handle >= _LEAST:
            return handle
        lo, hi = ctypes.c_int64(), ctypes.c_int64()
        if lib.tn_dim_range(graph.pointer, handle, ctypes.byref(lo), ctypes.byref(hi)):
            graph.raise_error()
        out = cls(graph._dims.get(handle, "?"), lo.value, hi.value)
        out._graph, out._handle = graph, handle
        return out

    def _on(self, graph: Any) -> int:
        """The handle that shapes of the graph take."""
        if self._graph is not None:
            if graph is not None and graph is not self._graph:
                raise ValueError(f"the size {self!r} belongs to another graph")
            return self._handle
        if graph is None:
            raise TypeError(f"{self!r} belongs to no graph yet: give it to an input, or take it from a tensor's shape")
        handle = lib.tn_dim(graph.at(), self.name.encode(), self.lo, self.hi, self.multiple_of)
        if lib.tn_graph_status(graph.pointer):
            graph.raise_error()
        graph._dims[handle] = self.name
        return handle

    def _calculate(self, builder: Any, sign: str, x: Any, y: Any) -> Any:
        operands = [int(v) if isinstance(v, np.integer) else v for v in (x, y)]
        if not all(isinstance(v, (int, Dim)) for v in operands):
            return NotImplemented
        graph: Any = self._graph or next((v._graph for v in operands if isinstance(v, Dim) and v._graph), None)
        a, b = [v._on(graph) if isinstance(v, Dim) else v for v in operands]
        handle = builder(graph.at(), a, b)
        if lib.tn_graph_status(graph.pointer):
            graph.raise_error()
        if handle < _LEAST and handle not in graph._dims:
            graph._dims[handle] = sign.format(*[_factor(v) for v in operands])
        return Dim._of(graph, handle)

    def __add__(self, other: Any) -> Any:
        return self._calculate(lib.tn_dim_add, "{}+{}", self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return self._calculate(lib.tn_dim_mul, "{}*{}", self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Dim) and (other is self or self._graph is not None and (other._graph, other._handle) == (self._graph, self._handle)):
            return 0
        return self + other * -1 if isinstance(other, (int, np.integer, Dim)) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other if isinstance(other, (int, np.integer)) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return self._calculate(lib.tn_dim_floor_div, "{}//{}", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._calculate(lib.tn_dim_floor_div, "{}//{}", other, self)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other if isinstance(other, (int, np.integer, Dim)) else NotImplemented

    def ceil_div(self, other: Union[int, "Dim"]) -> Any:
        """Division that rounds up."""
        return self._calculate(lib.tn_dim_ceil_div, "ceil({}/{})", self, other)

    def min(self, other: Union[int, "Dim"]) -> Any:
        """The smaller of the two."""
        return self._calculate(lib.tn_dim_min, "min({},{})", self, other)

    def max(self, other: Union[int, "Dim"]) -> Any:
        """The larger of the two."""
        return self._calculate(lib.tn_dim_max, "max({},{})", self, other)

    def value(self) -> Any:
        """What the run gives, as an i64 tensor of its graph."""
        self._on(None)
        return self._graph.wrap(lib.tn_dim_value(self._graph.at(), self._handle))

    # ---- comparisons: the same for all runs, or an error ----

    def __eq__(self, other: object) -> bool:
        """Whether both are the same in every run."""
        if isinstance(other, Dim):
            if self._graph is None or other._graph is None:
                return self.name == other.name and (self.lo, self.hi) == (other.lo, other.hi)
            return self._graph is other._graph and self._handle == other._handle
        return isinstance(other, (int, np.integer)) and self.lo == self.hi == int(other)

    def __hash__(self) -> int:
        return hash(self.lo) if self.lo == self.hi else hash((self.lo, self.hi))

    def _decide(self, other: Any, sign: str) -> bool:
        if not isinstance(other, (int, np.integer, Dim)):
            raise TypeError(f"{self!r} {sign} {other!r}")
        d = self - other if self._graph is not None or isinstance(other, Dim) and other._graph is not None else None
        if d is None:
            lo, hi = (other.lo, other.hi) if isinstance(other, Dim) else (int(other), int(other))
            lo, hi = self.lo - hi, self.hi - lo
        else:
            lo, hi = (d.lo, d.hi) if isinstance(d, Dim) else (d, d)
        least, most = {"<": (hi < 0, lo >= 0), "<=": (hi <= 0, lo > 0), ">": (lo > 0, hi <= 0), ">=": (lo >= 0, hi < 0)}[sign]
        if least or most:
            return least
        raise TypeError(f"{self!r} {sign} {other!r} depends on the run: choose with tenon.where on dim.value()")

    def __lt__(self, other: Any) -> bool:
        return self._decide(other, "<")

    def __le__(self, other: Any) -> bool:
        return self._decide(other, "<=")

    def __gt__(self, other: Any) -> bool:
        return self._decide(other, ">")

    def __ge__(self, other: Any) -> bool:
        return self._decide(other, ">=")

    def __bool__(self) -> bool:
        return self._decide(0, ">")

    def _number(self) -> int:
        if self.lo == self.hi:
            return self.lo
        raise TypeError(f"the size {self!r} ({self.lo} to {self.hi}) is given by each run: Python has no number for it")

    __index__ = __int__ = _number

    def __float__(self) -> float:
        return float(self._number())

    def __repr__(self) -> str:
        return self.name


def _factor(x: Any) -> str:
    text = str(x)
    return f"({text})" if isinstance(x, Dim) and any(c in text for c in "+-*/") and not text.endswith(")") else text


def dim(name: str, lo: int, hi: int, *, multiple_of: int = 1) -> Dim:
    """A size that every run gives, from lo to hi: it stands where an input's shape has a number, and one program serves all."""
    return Dim(name, lo, hi, multiple_of)


def handle(size: Any, graph: Optional[Any] = None) -> int:
    """What a shape of the C library takes."""
    return size._on(graph) if isinstance(size, Dim) else int(size)
