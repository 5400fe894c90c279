"""Sizes that calls give a graph of ATen ops: PyTorch's symbols as tenon.dims.

In:  the arguments of a graph, whose fake values have symbols for sizes that change, and what PyTorch knows of each symbol: a range, and
     numbers that divide it.
Out: a function of a call's arguments that gives each symbol's value; the dims that stand for symbols in one graph of Tenon; and any
     expression of symbols as arithmetic of these dims.
A size that no argument has by itself is solved for (2 s + 3), or is a symbol of its own.
"""

# What PyTorch says of the types of its graphs differs from version to version.
# mypy: ignore-errors

from __future__ import annotations

import functools
import math
import operator
from fractions import Fraction
from typing import Any, Callable, Optional, Sequence

import numpy as np
import sympy
import torch

from .. import dim
from .._dims import Dim

LEAST_ROOM = 16  # of a size that PyTorch has no bound for


def room(n: int) -> int:
    """The bound of a size without one, of which a call has n: memory is for the largest, and growing compiles again."""
    most = LEAST_ROOM
    while 2 * most < 3 * n:
        most *= 2
    return most


def expression(x: Any) -> Any:
    """Of PyTorch's symbols; a number where the size is one."""
    return x.node.expr if isinstance(x, torch.SymInt) else sympy.Integer(x)


def _number(x: Any) -> Optional[int]:
    """A bound as a number; None: it is none (infinity, or the most that 64 bits hold)."""
    return int(x) if isinstance(x, sympy.Integer) and abs(int(x)) < 1 << 40 else None


class Sizes:
    """The symbols of a graph, in an order of their own. names: as PyTorch calls them."""

    def __init__(self, arguments: Sequence[Any]):  # fake tensors, symbols, and what has no sizes
        self.index: dict[Any, int] = {}  # symbols, and expressions that no symbol is known of
        self.bounds: list[tuple[int, Optional[int], int]] = []  # lo, hi, a number that divides it
        given: list[tuple[Any, str, Any]] = []
        for i, val in enumerate(arguments):
            if isinstance(val, torch.SymInt):
                given.append((val.node.expr, f"a[{i}]", val.node.shape_env))
            elif isinstance(val, torch.Tensor):
                given += [(d.node.expr, f"a[{i}].shape[{axis}]", d.node.shape_env) for axis, d in enumerate(val.shape) if isinstance(d, torch.SymInt)]
        lines = []
        for expr, code, env in sorted(given, key=lambda g: not g[0].is_Symbol):  # what is there by itself first
            unknown = [s for s in expr.free_symbols if s not in self.index]
            if not unknown or expr in self.index:
                continue
            solved = _solved(expr, code)
            symbol, code = solved or (expr, code)
            lines.append(f"    v{len(lines)} = {code}")
            self.index[symbol] = len(self.bounds)
            self.bounds.append(_bounds(symbol, env))
        self.names = [str(s) if s.is_Symbol else f"size{i}" for s, i in self.index.items()]
        values = "".join(f"v{i}, " for i in range(len(lines)))
        scope: dict[str, Any] = {}
        exec("\n".join(["def of(a):", *lines, f"    return ({values})"]), scope)
        self.of: Callable[[Sequence[Any]], tuple[int, ...]] = scope["of"]  # each symbol's value in a call with these arguments

    def number(self, expr: Any, values: tuple[int, ...]) -> int:
        """An expression's value."""
        return int(expr.xreplace({s: sympy.Integer(values[i]) for s, i in self.index.items()}))


def _solved(expr: Any, code: str) -> Optional[tuple[Any, str]]:
    """The symbol s of a s + b, and its value."""
    if expr.is_Symbol:
        return expr, code
    if len(expr.free_symbols) != 1:
        return None
    (s,) = expr.free_symbols
    if not expr.is_polynomial(s) or sympy.degree(expr, s) != 1:
        return None
    a, b = expr.coeff(s, 1), expr.coeff(s, 0)
    return (s, f"({code} - {b}) // {a}") if a.is_Integer and b.is_Integer and a > 0 and a * s + b == expr else None


def _bounds(expr: Any, env: Any) -> tuple[int, Optional[int], int]:
    known = env.bound_sympy(expr)
    lo, hi = _number(known.lower), _number(known.upper)
    divisors = [int(m.args[1]) for m in getattr(env, "divisible", ()) if m.args[0] == expr and m.args[1].is_Integer]
    if expr.is_Symbol:
        divisors.append(_divisor([g.expr for g in getattr(env, "guards", ()) if expr in g.expr.free_symbols], expr))
    return max(lo or 0, 0), hi, math.lcm(1, *divisors)


def _period(expr: Any) -> int:
    """After how many steps of its symbol an expression of sums and of parts, whole numbers each, has gone as far again."""
    return math.lcm(1, *(int(f.args[1]) * _period(f.args[0]) for f in expr.atoms(sympy.Function)))


def _divisor(guards: Sequence[Any], s: Any) -> int:
    """What divides s where 4 (s // 4) is s, as PyTorch knows of images that are made smaller and larger again, or cut into windows: such
    equations hold for some remainders alone."""
    period, held = 1, []
    for g in guards:
        parts = all(type(f).__name__ in ("FloorDiv", "Mod", "PythonMod") and f.args[1].is_Integer for f in g.atoms(sympy.Function))
        if type(g).__name__ == "Equality" and parts and 1 < math.lcm(period, _period(g)) <= 256:
            period = math.lcm(period, _period(g))
            held.append((g.lhs - g.rhs).xreplace({other: sympy.Integer(7) for other in g.free_symbols - {s}}))

    def zero(difference: Any, r: int) -> list[bool]:
        return [difference.xreplace({s: sympy.Integer(r + k * period)}) == 0 for k in (1, 2, 3)]

    held = [g for g in held if all(zero(g, 0))]  # others are of few sizes, whatever divides them
    return math.gcd(period, *(r for r in range(period) if all(any(zero(g, r)) for g in held)))


class Dims:
    """What stands for the symbols in one graph of Tenon: dims, and numbers for those that are literal. most: bounds of earlier programs;
    tight: no room above these values. A symbol that a number divides is so many times a dim, and sizes are sums and products of that: of
    n = 4 m, n // 2 is 2 m, whose double is n."""

    def __init__(self, sizes: Sizes, values: tuple[int, ...], literal: Sequence[int], most: Sequence[int], tight: bool):
        self.sizes = sizes
        self.at: dict[Any, Any] = {s: values[i] for s, i in sizes.index.items()}
        self.parts: dict[Any, Any] = {}  # symbols as multiples
        self.by = [1] * len(values)  # of what a run binds
        self.ranges: list[Any] = [None] * len(values)
        for (symbol, i), (lo, hi, by) in zip(sizes.index.items(), sizes.bounds):
            if i not in literal:
                by = by if values[i] % by == 0 else 1
                top = room(max(values[i], most[i])) if hi is None else max(hi, values[i])
                top = -(-values[i] // by) * by if tight else top // by * by
                low = -(-min(lo, values[i]) // by) * by
                self.ranges[i] = low, top, by
                if low == top:  # what is computed of it is a number, too
                    continue
                if by > 1:
                    self.by[i], part = by, sympy.Symbol(f"{sizes.names[i]}_{by}", integer=True, positive=True)
                    self.parts[symbol], symbol = by * part, part
                self.at[symbol] = dim(sizes.names[i], low // by, top // by)

    def takes(self, values: tuple[int, ...]) -> bool:
        return all(r is None or r[0] <= v <= r[1] and v % r[2] == 0 for r, v in zip(self.ranges, values))

    def of(self, size: Any, graph: Any) -> Any:
        """A size of PyTorch as one of the graph."""
        return self._build(expression(size).xreplace(self.parts), graph)

    def _build(self, expr: Any, graph: Any) -> Any:
        if expr in self.at:
            d = self.at[expr]
            return Dim._of(graph, d._on(graph)) if isinstance(d, Dim) else d
        if expr.is_Integer:
            return int(expr)
        name = type(expr).__name__
        if name in _WHOLE:
            return self._rounded(expr, _WHOLE[name], graph)
        if name == "Pow" and expr.args[1].is_Integer and expr.args[1] > 0:
            return functools.reduce(operator.mul, [self._build(expr.args[0], graph)] * int(expr.args[1]))
        if name not in _FUNCTIONS:
            raise TypeError(f"the size {expr} is none that tenon.dim can say")
        return functools.reduce(_FUNCTIONS[name], [self._build(a, graph) for a in expr.args])


    def _rounded(self, expr: Any, rounded: Callable[[Any], Any], graph: Any) -> Any:
        """A size times a number, as upsampling has it, in whole numbers: x p / q, where that is PyTorch's product in double precision for
        all that x may be."""
        factors = expr.args[0].args if type(expr.args[0]).__name__ == "Mul" else (expr.args[0],)
        inner = [f.args[0] for f in factors if type(f).__name__ == "ToFloat"]
        scales = [f for f in factors if f.is_Float or f.is_Rational]
        if len(inner) != 1 or len(scales) + 1 != len(factors):
            raise TypeError(f"the size {expr} is none that tenon.dim can say")
        x, scale = self._build(inner[0], graph), math.prod(float(s) for s in scales)
        if not isinstance(x, Dim):
            return int(rounded(scale * float(x)))
        if 0 <= x.lo and x.hi - x.lo < 1 << 20 and scale > 0:
            values = np.arange(x.lo, x.hi + 1)
            want = rounded(scale * values.astype(np.float64)).astype(np.int64)
            for denominator in (64, 1 << 16):
                p, q = Fraction(scale).limit_denominator(denominator).as_integer_ratio()
                got = -(-values * p // q) if rounded is np.ceil else values * p // q
                if p < 1 << 20 and np.array_equal(got, want):
                    return (x * p).ceil_div(q) if rounded is np.ceil else x * p // q
        raise TypeError(f"the size {expr} of {x.lo} to {x.hi} is no fraction of it that is rounded alike")


def least(x: Any, y: Any) -> Any:
    return x.min(y) if isinstance(x, Dim) else y.min(x) if isinstance(y, Dim) else min(x, y)


def largest(x: Any, y: Any) -> Any:
    return x.max(y) if isinstance(x, Dim) else y.max(x) if isinstance(y, Dim) else max(x, y)


def ceil_div(x: Any, y: Any) -> Any:
    return x.ceil_div(y) if isinstance(x, Dim) else -(-x // y)


_WHOLE = {"TruncToInt": np.floor, "FloorToInt": np.floor, "CeilToInt": np.ceil}  # of what is not negative
_FUNCTIONS = {"Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "Mod": operator.mod,
              "PythonMod": operator.mod, "CeilDiv": ceil_div, "Max": largest, "Min": least}
