"""PyTorch's control flow as Tenon's: torch.cond, while_loop, scan and map, whose bodies are graphs of ATen ops of their own.

In:  a node of such an op, whose bodies are modules beside its graph, with the values of its operands.
Out: the op's results: tenon.cond, while_loop or scan of functions that build the bodies. Operands that all iterations share are used as
     they are. Gradients are PyTorch's: its bodies for the backward pass are graphs like these.
"""

# What PyTorch says of the types of its graphs differs from version to version.
# mypy: ignore-errors

from __future__ import annotations

import operator
from typing import Any, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from .. import _control
from .._core import Graph, Tensor
from . import _aten

_OPS = torch.ops.higher_order


def attribute(module: GraphModule, name: str) -> Any:
    return operator.attrgetter(name)(module)


def built(module: GraphModule, graph: Graph, given: Sequence[Any]) -> list[Tensor]:
    """What the graph of a body gives for these values."""
    known: dict[Node, Any] = {}
    values = iter(given)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(values)
        elif node.op == "get_attr":
            x = attribute(module, node.target)
            known[node] = graph.constant(x.detach().contiguous()) if isinstance(x, torch.Tensor) else x
        elif node.op == "output":
            return [known[r].astype(_aten.dtype_of(r.meta["val"].dtype)) for r in _results(node)]
        else:
            args, kwargs = map_arg((node.args, node.kwargs), lambda n: known[n])
            known[node] = _aten.build(node, graph, args, kwargs)
    raise TypeError("a graph without an output")


def _results(output: Node) -> Sequence[Any]:
    return output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Node) and isinstance(x.meta.get("val"), torch.Tensor)


def _has_body(node: Any) -> bool:
    """Whether Tenon has all ops of the body that a node stands for; its results are tensors."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return False
    nodes = attribute(node.graph.owning_module, node.target).graph.nodes
    return all(_aten.supported(n) if n.op == "call_function" else
               n.op != "output" or all(_is_tensor(r) and r.meta["val"].dtype in _aten.DTYPES for r in _results(n)) for n in nodes)


def _of_tensors(*lists: Sequence[Any]) -> bool:
    return all(_is_tensor(x) for xs in lists for x in xs)


@_aten.op(_OPS.cond)
def _cond(node: Node, graph: Graph, pred: Tensor, then: GraphModule, otherwise: GraphModule, operands: Sequence[Any] = ()) -> tuple:
    return tuple(_control.cond(pred.reshape(()), lambda: built(then, graph, operands), lambda: built(otherwise, graph, operands)))


_aten.FORMS[_OPS.cond] = lambda node: _is_tensor(node.args[0]) and _has_body(node.args[1]) and _has_body(node.args[2])


@_aten.op(_OPS.while_loop)
def _while_loop(node: Node, graph: Graph, condition: GraphModule, body: GraphModule, carried: Sequence[Any], shared: Sequence[Any] = ()) -> tuple:
    return tuple(_control.while_loop(lambda xs: built(condition, graph, [*xs, *shared])[0].reshape(()),
                                     lambda xs: built(body, graph, [*xs, *shared]), list(carried)))


_aten.FORMS[_OPS.while_loop] = lambda node: _has_body(node.args[0]) and _has_body(node.args[1]) and _of_tensors(node.args[2])


@_aten.op(_OPS.scan)
def _scan(node: Node, graph: Graph, combine: GraphModule, init: Sequence[Tensor], xs: Sequence[Tensor], shared: Sequence[Any] = ()) -> tuple:
    def step(carried: Sequence[Tensor], x: Sequence[Tensor]) -> tuple:
        out = built(combine, graph, [*carried, *x, *shared])
        return out[:len(carried)], out[len(carried):]

    last, ys = _control.scan(step, list(init), list(xs))
    return (*last, *ys)


_aten.FORMS[_OPS.scan] = lambda node: _has_body(node.args[0]) and bool(node.args[2]) and _of_tensors(node.args[1], node.args[2])


@_aten.op(_OPS.map_impl)
def _map(node: Node, graph: Graph, f: GraphModule, xs: Sequence[Tensor], shared: Sequence[Any] = ()) -> tuple:
    return tuple(_control.scan(lambda _, x: (None, built(f, graph, [*x, *shared])), None, list(xs))[1])


_aten.FORMS[_OPS.map_impl] = lambda node: _has_body(node.args[0]) and bool(node.args[1]) and _of_tensors(node.args[1])


for _target in list(_aten.OPS):  # bodies that are functionalized have copies where others have views
    _copy = getattr(_aten.aten, getattr(_target, "_opname", "") + "_copy", None) if isinstance(_target, torch._ops.OpOverload) else None
    if _target in _aten.VIEWS and _copy is not None and _target._overloadname in _copy.overloads():
        _aten.OPS.setdefault(getattr(_copy, _target._overloadname), _aten.OPS[_target])
