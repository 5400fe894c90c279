"""What Dynamo makes of a model as graphs of ATen ops: one forward, and one backward where gradients are asked for.

In:  a graph of PyTorch's functions, with fake tensors (shapes without memory) for its arguments, and symbols for sizes that change.
Out: graphs of the ops that the functions and PyTorch's autograd call, without mutation; or None where AOTAutograd must do it: a view
     that is written, results that share memory.
AOTAutograd runs a model twice, behind three layers of tensors; here it runs once, and every op that is called is noted.
"""

# What PyTorch says of the types of its graphs differs from version to version.
# mypy: ignore-errors

from __future__ import annotations

import logging
import math
import operator
from dataclasses import dataclass
from typing import Any, Optional, Sequence

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from . import _aten

aten = torch.ops.aten
log = logging.getLogger("tenon.torch_graphs")


class _Left(Exception):
    """What is left to AOTAutograd, with the reason."""


@dataclass
class Recorded:
    forward: GraphModule  # of the arguments; gives the results, the new values of what is written, and what the backward needs
    results: int  # how many
    written: list[int]  # arguments that get new values
    backward: Optional[GraphModule] = None  # of what is kept and of the gradients of some results
    kept: tuple = ()  # (True, i): argument i; (False, i): what the forward gives at place i
    sizes: tuple = ()  # arguments that are sizes, which the backward gets behind what is kept
    differentiable: tuple = ()  # which results have gradients
    wanted: tuple = ()  # which arguments the backward gives gradients of


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def _is_composite(func: Any) -> bool:
    return func not in _aten.OPS and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


_ARITHMETIC = {"Add": operator.add, "Mul": operator.mul, "Pow": operator.pow, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
               "Mod": operator.mod, "PythonMod": operator.mod, "Max": torch.sym_max, "Min": torch.sym_min,
               "ToFloat": torch.sym_float, "IntTrueDiv": operator.truediv, "FloatTrueDiv": operator.truediv, "FloatPow": operator.pow,
               "OpaqueUnaryFn_sqrt": torch._sym_sqrt, "TruncToInt": math.trunc, "FloorToInt": math.floor, "CeilToInt": math.ceil}


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.tape, self.table = Graph(), _aten.decompositions()
        self.nodes: dict[int, Node] = {}  # by the identity of a tensor
        self.alive: list[torch.Tensor] = []  # so that no identity comes twice
        self.sharing: dict[int, int] = {}  # how many tensors look into a memory
        self.arguments: dict[int, int] = {}  # places by the identity of a tensor
        self.given: set[int] = set()  # memory of arguments
        self.written: dict[int, Node] = {}  # new values of arguments
        self.sizes: dict[Any, tuple[Any, Any]] = {}  # by PyTorch's expression: a node, and PyTorch's number

    def note(self, x: torch.Tensor, node: Node) -> None:
        node.meta["val"] = x
        if id(x) not in self.nodes:
            self.alive.append(x)
            self.sharing[_memory(x)] = self.sharing.get(_memory(x), 0) + 1
        self.nodes[id(x)] = node

    def argument(self, x: torch.Tensor, name: str) -> Node:
        node = self.tape.placeholder(name)
        self.arguments[id(x)] = len(self.arguments)
        self.note(x, node)
        self.given.add(_memory(x))
        return node

    def size(self, x: torch.SymInt, name: str) -> None:
        """An argument that is a number."""
        node = self.tape.placeholder(name)
        node.meta["val"] = x
        self.arguments[id(x)] = len(self.arguments)
        self.alive.append(x)
        self.sizes[x.node.expr] = node, x

    def node_of(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in self.nodes:
                raise _Left("a tensor from elsewhere")
            return self.nodes[id(x)]
        if isinstance(x, (torch.SymInt, torch.SymFloat)):
            return self.size_of(x.node.expr)[0]
        if isinstance(x, torch.SymBool):
            raise _Left("a comparison of sizes")
        return x

    def size_of(self, expr: Any) -> tuple[Any, Any]:
        """An expression of arguments that are sizes, as nodes; and its value, a number of PyTorch's."""
        if expr.is_Integer or expr.is_Float:
            value = int(expr) if expr.is_Integer else float(expr)
            return value, value
        if expr not in self.sizes:
            function = _ARITHMETIC.get(type(expr).__name__)
            if function is None:
                raise _Left(f"the size {expr}")
            node, value = self.size_of(expr.args[0])
            rest = [(other,) for other in map(self.size_of, expr.args[1:])]
            for more in rest or [()]:
                node, value = self.tape.call_function(function, (node, *[n for n, _ in more])), function(value, *[v for _, v in more])
                node.meta["val"] = value
            self.sizes[expr] = node, value
        return self.sizes[expr]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # which device a tensor is on
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self.mutate(func, args, kwargs)
        if func in self.table or _is_composite(func):
            with self:
                out = self.table[func](*args, **kwargs) if func in self.table else func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return self.record(func, args, kwargs)

    def record(self, func: Any, args: Any, kwargs: dict) -> Any:
        out = func(*args, **kwargs)
        if func is aten.native_batch_norm_backward.default and args[7]:
            args = (*args[:3], None, None, *args[5:])  # in training it does not look at the running means
        if isinstance(out, torch.Tensor):
            self.note(out, self.tape.call_function(func, *map_aggregate((args, kwargs), self.node_of)))
        elif isinstance(out, (tuple, list)) and any(isinstance(y, torch.Tensor) for y in out):
            node = self.tape.call_function(func, *map_aggregate((args, kwargs), self.node_of))
            node.meta["val"] = out
            for i, y in enumerate(out):
                if isinstance(y, torch.Tensor):
                    self.note(y, self.tape.call_function(operator.getitem, (node, i)))
        return out

    def mutate(self, func: Any, args: Any, kwargs: dict) -> Any:
        """An op that writes: what it wrote is from now on what the op without the writing gives."""
        if func is aten._native_batch_norm_legit.default:
            with self:
                out = aten._native_batch_norm_legit_functional(*args, **kwargs)
            self.replace(args[3], out[3])
            self.replace(args[4], out[4])
            return out[:3]
        written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
        name = func._schema.name.removeprefix("aten::")
        pure = getattr(getattr(aten, name[:-1], None), func._overloadname, None) if name.endswith("_") else None
        if pure is None or not written[0] or any(written[1:]):
            raise _Left(f"{func} writes what it is given")
        with self:
            y = pure(*args, **kwargs)
        self.replace(args[0], y)
        return args[0]

    def replace(self, x: torch.Tensor, y: torch.Tensor) -> None:
        if id(x) not in self.nodes or self.sharing[_memory(x)] > 1 or (y.shape, y.dtype) != (x.shape, x.dtype):
            raise _Left("a view is written")
        if _memory(x) in self.given:
            if id(x) not in self.arguments or x.requires_grad:
                raise _Left("an argument with a gradient is written")
            self.written[self.arguments[id(x)]] = self.nodes[id(y)]
        self.nodes[id(x)] = self.nodes[id(y)]


# ---- running the model ----------------------------------------------------------------------------------------------------


_SETTINGS = ("_set_", "_enter_", "_exit_", "_push_", "_pop_", "_vmap_", "_saved_tensors_")


def _walk(module: GraphModule, recorder: _Recorder, mode: Any, example_inputs: Sequence[torch.Tensor]) -> Any:
    """Runs the module on fake tensors. Gives its results."""
    values: dict[Node, Any] = {}
    given = iter(example_inputs)
    for node in module.graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: values[n])
        if node.op == "placeholder":
            x, real = node.meta["example_value"], next(given)
            if isinstance(x, torch.SymInt):
                values[node] = x
                recorder.size(x, node.name)
                continue
            values[node] = x = x.detach().requires_grad_(torch.is_grad_enabled() and real.requires_grad)
            recorder.argument(x, node.name)
        elif node.op == "get_attr":
            x = getattr(module, node.target, None)
            if not isinstance(x, torch.Tensor) or x.requires_grad:
                raise _Left("a graph or a parameter within the graph")
            values[node] = x = mode.from_tensor(x)
            recorder.note(x, recorder.tape.get_attr(node.target))
            recorder.given.add(_memory(x))
        elif node.op == "call_function":
            if isinstance(node.target, torch._ops.HigherOrderOperator) or node.target.__name__.startswith(_SETTINGS):
                raise _Left(f"{node.target} is not a function of tensors")
            with recorder:
                values[node] = node.target(*args, **kwargs)
        elif node.op == "call_method":
            with recorder:
                values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        elif node.op == "output":
            return args[0]
        else:
            raise _Left("a module within the graph")


def record(module: GraphModule, example_inputs: Sequence[Any]) -> Optional[Recorded]:
    given = [n.meta.get("example_value") for n in module.graph.nodes if n.op == "placeholder"]
    fake = [x for x in given if isinstance(x, FakeTensor)]
    if not fake or not all(isinstance(x, (FakeTensor, torch.SymInt)) for x in given):
        return None
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    grads = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    recorder = _Recorder()
    try:
        with fake[0].fake_mode, torch.set_grad_enabled(grads), enable_python_dispatcher():
            if torch.is_autocast_enabled("cpu"):  # what falls back to PyTorch must not be cast again
                raise _Left("autocast")
            results = _walk(module, recorder, fake[0].fake_mode, example_inputs)
            _check(recorder, results, example_inputs, grads)
            return _split(module, recorder, results)
    except Exception as e:  # PyTorch says that a value is needed, that a form is unknown, ... in many ways
        log.debug("a graph of %d nodes goes through AOTAutograd: %s", len(module.graph.nodes), e)
        return None


def _check(recorder: _Recorder, results: Any, example_inputs: Sequence[torch.Tensor], grads: bool) -> None:
    if not isinstance(results, (tuple, list)):
        raise _Left("a result that is not a tuple")
    seen: set[int] = set()
    for r in results:
        if isinstance(r, torch.Tensor):
            given = _memory(r) in recorder.given
            if _memory(r) in seen or given and (grads or not _is_view(recorder.node_of(r))):
                raise _Left("results that share memory")
            if not given:
                seen.add(_memory(r))
    memory = [_memory(x) if isinstance(x, torch.Tensor) else None for x in example_inputs]
    if any(memory.count(memory[i]) > 1 for i in recorder.written):
        raise _Left("an argument that shares memory is written")


def _is_view(node: Node) -> bool:
    return node.op == "placeholder" or (node.target in _aten.VIEWS or _aten.is_number(node)) and all(_is_view(a) for a in node.all_input_nodes)


# ---- two graphs -----------------------------------------------------------------------------------------------------------


def _split(module: GraphModule, recorder: _Recorder, results: Sequence[Any]) -> Recorded:
    tape = recorder.tape
    arguments = [n for n in tape.nodes if n.op == "placeholder"]
    before = list(tape.nodes)
    ends = [recorder.node_of(r) for r in results]
    news = list(recorder.written.values())
    differentiable = [i for i, r in enumerate(results) if isinstance(r, torch.Tensor) and r.requires_grad]
    leaves = [(i, x) for i, x in enumerate(n.meta["val"] for n in arguments) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not differentiable:
        return Recorded(_graph(module, before, arguments, [*ends, *news]), len(ends), list(recorder.written))
    tangents = [torch.empty(results[i].shape, dtype=results[i].dtype) for i in differentiable]
    placeholders = [recorder.argument(t, f"tangent_{i}") for i, t in enumerate(tangents)]
    with recorder:
        grads = torch.autograd.grad([results[i] for i in differentiable], [x for _, x in leaves], tangents, allow_unused=True)
    wanted = [(i, recorder.node_of(g)) for (i, _), g in zip(leaves, grads) if g is not None]
    kept = _kept(set(before), [g for _, g in wanted])
    sizes = [n for n in kept if not isinstance(n.meta["val"], torch.Tensor)]
    kept = [n for n in kept if n not in sizes]
    if any(i in recorder.written for i, n in enumerate(arguments) if n in kept):
        raise _Left("the backward needs an argument that is written")
    given = [*ends, *news]
    given += [n for n in kept if n not in arguments and n not in given]
    return Recorded(_graph(module, before, arguments, given), len(ends), list(recorder.written),
                    _graph(module, tape.nodes, [*kept, *sizes, *placeholders], [g for _, g in wanted]),
                    tuple((True, arguments.index(n)) if n in arguments else (False, given.index(n)) for n in kept),
                    tuple(arguments.index(n) for n in sizes),
                    tuple(differentiable), tuple(i for i, _ in wanted))


_LOOKS = {*_aten.VIEWS, aten._unsafe_view.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, operator.getitem}
_PARTS = {aten.slice.Tensor, aten.select.int}


def _made_again(node: Node) -> bool:
    """Views, and what is made of nothing: the backward has them without keeping them. A small part of a tensor is kept itself."""
    if node.op != "call_function":
        return node.op == "get_attr"
    if _aten.is_number(node):
        return True
    if not node.all_input_nodes:
        return torch.Tag.nondeterministic_seeded not in node.target.tags
    if node.target is operator.getitem:
        return node.args[0].target in _LOOKS
    return node.target in _LOOKS and (node.target not in _PARTS or _is_view(node))


def _kept(before: set[Node], ends: Sequence[Node]) -> list[Node]:
    """What a backward needs of the forward, in order of its use."""
    kept: dict[Node, None] = {}
    seen: set[Node] = set()
    todo = [e for e in ends if isinstance(e, Node)]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in before and not _made_again(node):
            kept[node] = None
        else:
            todo += node.all_input_nodes
    return list(kept)


def needed(results: Sequence[Any], given: Sequence[Node] = ()) -> set[Node]:
    """What the results are computed from, themselves among it, and what is given, but not what that is computed from."""
    out = set(given)
    todo = [r for r in results if isinstance(r, Node)]
    while todo:
        node = todo.pop()
        if node not in out:
            out.add(node)
            todo += node.all_input_nodes
    return out


def _graph(module: GraphModule, tape: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Any]) -> GraphModule:
    """What the outputs need of a tape, as a graph of its own."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for n in inputs:
        copies[n] = graph.placeholder(n.name)
        copies[n].meta = dict(n.meta)
    wanted = needed(outputs, inputs)
    for node in tape:
        if node in wanted and node not in copies:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] if isinstance(n, Node) else n for n in outputs))
    return GraphModule(module, graph)
