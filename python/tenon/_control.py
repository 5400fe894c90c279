"""Control flow in graphs: cond, while_loop, scan. Bodies are functions of trees of tensors, and may use tensors from outside."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Sequence

from . import _abi
from ._core import Graph, Tensor, as_tensor
from ._dims import handle
from ._dtypes import bool_
from ._function import flatten, unflatten
from ._functions import tensor
from ._lib import ShapeError, lib

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_abi.tn_tensor), ctypes.POINTER(_abi.tn_tensor))


class _Bodies:
    """Python functions as bodies of the C library. What one of them raises is raised again when the builder is back."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.kept: list[Any] = []  # callbacks live until the builder is back
        self.error: Optional[BaseException] = None

    def body(self, n_in: int, fn: Callable[[list[Tensor]], Sequence[Tensor]]) -> Any:
        def call(_: Any, __: Any, given: Any, out: Any) -> None:
            if self.error is not None:
                return
            try:
                with self.graph, self.graph.reuse():
                    results = fn([self.graph.wrap(_abi.tn_tensor(given[i].graph, given[i].id)) for i in range(n_in)])
                for i, x in enumerate(results):
                    out[i] = x._t
            except BaseException as e:  # it cannot cross C
                self.error = e

        self.kept.append(_BODY(call))
        return ctypes.cast(self.kept[-1], ctypes.c_void_p)

    def results(self, out: Any, n: int) -> list[Tensor]:
        if self.error is not None:
            raise self.error
        self.graph._done()
        return [self.graph.wrap(_abi.tn_tensor(out[i].graph, out[i].id)) for i in range(n)]


def _tensors(graph: Graph, leaves: Sequence[Any]) -> list[Tensor]:
    return [as_tensor(x, graph) for x in leaves]


def _checked(tree: Any, rest: Any, what: str) -> list[Any]:
    leaves: list = []
    if flatten(tree, leaves) != rest:
        raise ValueError(f"{what} has another form: the same tuples, lists and dicts are expected")
    return leaves


def _array(tensors: Sequence[Tensor]) -> Any:
    return (_abi.tn_tensor * max(len(tensors), 1))(*[t._t for t in tensors])


def cond(pred: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """then(*operands) where pred, a bool scalar, is true, else otherwise(*operands): one of them runs. Both return trees of the same
    form, shapes and dtypes, and may use tensors from outside. Gradients flow through the one that ran. (Each function is called
    once or twice while the graph is built: what counts is the tensors it returns.)"""
    p = tensor(pred, *operands)
    graph = p.graph
    p = p if p.dtype is bool_ else p != 0
    first: list = []
    with graph:
        rest = flatten(then(*operands), first)
    like = _tensors(graph, first)
    n = len(like)
    if not n:
        raise ValueError("cond: the functions return no tensor")

    def branch(fn: Callable[..., Any], what: str) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        return lambda _: [as_tensor(y, graph, t.dtype) for y, t in zip(_checked(fn(*operands), rest, what), like)]

    bodies, out = _Bodies(graph), (_abi.tn_tensor * n)()
    graph.at()
    lib.tn_if(p._t, bodies.body(0, branch(then, "cond: what the first function returns")),
              bodies.body(0, branch(otherwise, "cond: what the second function returns")), None, out, n)
    return unflatten(rest, iter(bodies.results(out, n)))


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], carried: Any, *, most: int = 0) -> Any:
    """carried = body(carried) as long as condition(carried), a bool scalar, is true; returns it. `carried` is a tensor or a tree of
    them, whose shapes and dtypes stay. most: the loop ends after so many iterations at the latest; gradients need it."""
    first: list = []
    rest = flatten(carried, first)
    if not first:
        raise ValueError("while_loop: nothing is carried")
    graph = tensor(first[0], *first[1:]).graph
    init = _tensors(graph, first)
    n = len(init)

    def test(xs: list[Tensor]) -> Sequence[Tensor]:
        return [as_tensor(condition(unflatten(rest, iter(xs))), graph, bool_)]

    def step(xs: list[Tensor]) -> Sequence[Tensor]:
        return [as_tensor(y, graph, t.dtype)
                for y, t in zip(_checked(body(unflatten(rest, iter(xs))), rest, "while_loop: what the body returns"), init)]

    bodies, out = _Bodies(graph), (_abi.tn_tensor * n)()
    lib.tn_while(graph.at(), _array(init), n, bodies.body(n, test), bodies.body(n, step), None, most, out)
    return unflatten(rest, iter(bodies.results(out, n)))


def scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Any = None, reverse: bool = False) -> tuple[Any, Any]:
    """carry, y = f(carry, x) for each slice x of xs along its first axis (xs None: `length` times); returns the last carry and the
    ys, stacked. carry, x and y are tensors, trees of them or None. reverse: from the last slice to the first. Gradients flow
    through it; f may use tensors from outside and make parameters of layers. (f is called twice while the graph is built.)"""
    carry_first: list = []
    stacks_first: list = []
    carry_rest, stacks_rest = flatten(init, carry_first), flatten(xs, stacks_first)
    if not stacks_first and length is None:
        raise ValueError("scan: without xs the length must be given")
    graph = tensor(None if not (carry_first or stacks_first) else [*carry_first, *stacks_first][0], *carry_first, *stacks_first).graph
    carry, stacks = _tensors(graph, carry_first), _tensors(graph, stacks_first)
    for x in stacks:
        if not x.ndim:
            raise ShapeError(f"scan: {x!r} has no axis to go along")
    ys_rest: Any = None

    def step(given: Sequence[Tensor]) -> list[Tensor]:
        nonlocal ys_rest
        leaves = iter(given)
        got = f(unflatten(carry_rest, leaves), unflatten(stacks_rest, leaves))
        if not (isinstance(got, tuple) and len(got) == 2):
            raise TypeError("scan: the function returns a pair: what is carried on, and a slice of the result (or None)")
        ys: list = []
        rest = flatten(got[1], ys)
        ys_rest = rest if ys_rest is None else ys_rest
        return [*[as_tensor(y, graph, t.dtype) for y, t in zip(_checked(got[0], carry_rest, "scan: what is carried on"), carry)],
                *_tensors(graph, ys)]

    with graph:  # once outside of the loop: how many results there are
        n = len(step([*carry, *[graph.full(x.shape[1:], 0, x.dtype) for x in stacks]]))
    if not n:
        raise ValueError("scan: the function returns no tensor")
    bodies, out = _Bodies(graph), (_abi.tn_tensor * n)()
    given_carry, given_stacks = _array(carry), _array(stacks)
    opts = _abi.tn_scan_opts(carry=ctypes.cast(given_carry, ctypes.c_void_p), n_carry=len(carry),
                             xs=ctypes.cast(given_stacks, ctypes.c_void_p), n_xs=len(stacks), n_ys=n - len(carry),
                             length=0 if length is None else handle(length, graph), reverse=int(reverse))
    lib.tn_scan(graph.at(), ctypes.byref(opts), bodies.body(len(carry) + len(stacks), step), None, out)
    results = iter(bodies.results(out, n))
    return unflatten(carry_rest, results), unflatten(ys_rest, results)
