"""PyTorch programs on Tenon: `import tenon.torch; torch.compile(model, backend="tenon")`.

In:  the graphs of core ATen ops that AOTAutograd makes of a model, forward and backward.
Out: functions of tensors. What Tenon has an op for is compiled, in the largest pieces that need nothing else in between; every
     other op runs in PyTorch, with its name in the log "tenon.torch" (random numbers do, so they are PyTorch's own).
Tensors are read and written in place: parameters are shared, and nothing is copied that is contiguous. With dynamic shapes a graph
is compiled once for each set of sizes that comes. Tensors are those of the CPU.
"""

# What PyTorch says of the types of its graphs differs from version to version.
# mypy: ignore-errors

from __future__ import annotations

import contextlib
import gc
import logging
import operator
import threading
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from .._core import Graph, Tensor
from .._lib import TenonError, default_context, generation, lib
from .._run import Program, Session, _bindings
from . import _aten
from ._record import Recorded, needed, record

log = logging.getLogger("tenon.torch")


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles, which takes a part of a second where PyTorch's modules are and finds little while a graph is
    made."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# ---- one graph that Tenon has every op of ---------------------------------------------------------------------------------


def _is_view_of_input(node: Any, memo: dict[Node, bool]) -> bool:
    """A chain of views on an argument: PyTorch makes it without touching memory."""
    if not isinstance(node, Node):
        return False
    if node not in memo:
        memo[node] = node.op == "placeholder" or (
            node.op == "call_function" and node.target in _aten.VIEWS and
            all(_is_view_of_input(a, memo) for a in node.all_input_nodes))
    return memo[node]


def _order(x: torch.Tensor) -> Any:
    """The axes of x by how far apart their elements lie; False where x has gaps or is not as it lies: it is copied. None: a
    contiguous tensor, or no tensor."""
    if not isinstance(x, torch.Tensor):
        return None
    if x.is_conj() or x.is_neg():
        return False
    if x.is_contiguous():
        return None
    order = tuple(sorted(range(x.dim()), key=lambda i: (-x.stride(i), i)))
    return x.permute(order).is_contiguous() and order


class _Specialised:
    """The program of one set of sizes and orders in memory, and sessions of it: each thread that comes at the same time has its
    own."""

    def __init__(self, program: Any, inputs: list[int], outputs: list[tuple], computed: list[Any]):
        self.program, self.inputs, self.outputs, self.computed = program, inputs, outputs, computed
        self.plain = bool(outputs) and all(c is _TENSOR for c in computed)  # no view of an argument, no number
        self.idle: list[tuple] = []

    def run(self, args: Sequence[Any], orders: Sequence[Any]) -> list[Any]:
        try:
            one = self.idle.pop()
        except IndexError:
            session = Session(self.program)
            table = _bindings([(s, 0) for s in self.program.inputs + self.program.outputs])
            one = session, table, list(table), session._handle.pointer
        session, table, rows, pointer = one
        held = []
        for row, at in zip(rows, self.inputs):
            x = args[at]
            if orders[at] is False:
                x = x.resolve_conj().resolve_neg().contiguous()
                held.append(x)
            row.data = x.data_ptr()
        out = [torch.empty(shape, dtype=dtype) for shape, dtype in self.outputs]
        for row, y in zip(rows[len(self.inputs):], out):
            row.data = y.data_ptr()
        status = lib.tn_run(pointer, table, len(rows))
        if status:
            session._check(status)
        self.idle.append(one)
        return out


class Compiled:
    """A graph of ATen ops as a function of tensors. Programs are made for the sizes that it is called with."""

    def __init__(self, module: GraphModule, options: dict):
        self.module, self.options = module, options
        nodes = list(module.graph.nodes)
        self.arguments = [n for n in nodes if n.op == "placeholder"]
        result = next(n for n in nodes if n.op == "output").args[0]
        self.single = not isinstance(result, (tuple, list))
        self.results = [result] if self.single else list(result)
        memo: dict[Node, bool] = {}
        self.views = [_is_view_of_input(r, memo) for r in self.results]
        values = [n.meta.get("val") for n in self.arguments]  # tensors whose sizes and dtypes, which are no complex ones, are known
        self.fixed = all(isinstance(v, torch.Tensor) and v.dtype in _aten.DTYPES and all(isinstance(d, int) for d in v.shape) for v in values)
        self.programs: dict[Any, Any] = {}  # a _Specialised, or _NOTHING
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if self.fixed:
            orders = [None if a.is_contiguous() and not a.is_neg() else _order(a) for a in args]
            key = (generation(), *orders)
        else:
            orders = [_order(a) for a in args]
            key = (generation(), *orders, *[tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args])
        special = self.programs.get(key)
        if special is None:
            special = self.first(key, args, orders)
        if special is _NOTHING:
            return self.module(*args)
        if special.plain:
            out = special.run(args, orders)
            return out[0] if self.single else tuple(out)
        tensors = iter(special.run(args, orders) if special.outputs else ())
        memo: dict[Node, Any] = dict(zip(self.arguments, args))
        out = [view_of(r, memo) if is_view else next(tensors) if computed is _TENSOR else computed
               for r, is_view, computed in zip(self.results, self.views, special.computed)]
        return out[0] if self.single else tuple(out)

    def first(self, key: Any, args: Sequence[Any], orders: Sequence[Any]) -> Any:
        """The program for new sizes; where Tenon refuses it, PyTorch runs the graph, and the log says why."""
        with self.lock:
            if key not in self.programs:
                try:
                    with _no_collection():
                        self.programs[key] = self.specialise(args, orders)
                except (TenonError, NotImplementedError, IndexError, ValueError, TypeError) as e:
                    log.warning("a graph of %d nodes runs in PyTorch: %s", len(self.module.graph.nodes), e)
                    self.programs[key] = _NOTHING
            return self.programs[key]

    def specialise(self, args: Sequence[Any], orders: Sequence[Any]) -> _Specialised:
        with default_context().lock:
            graph = Graph("aten")
            values: dict[Node, Any] = {}
            inputs = []
            in_use = needed([r for r, is_view in zip(self.results, self.views) if not is_view])
            for i, (node, a) in enumerate(zip(self.arguments, args)):
                values[node] = a
                if isinstance(a, torch.Tensor) and node in in_use:
                    values[node] = self.input(graph, f"a{i}", a, orders[i])
                    inputs.append(i)
            computed: list[Any] = []
            outputs: list[tuple] = []
            with graph:
                for node in self.module.graph.nodes:
                    if node in in_use and node.op not in ("placeholder", "output"):
                        values[node] = self.evaluate(graph, node, values)
                for r, is_view in zip(self.results, self.views):
                    y = values.get(r) if isinstance(r, Node) else r
                    computed.append(_TENSOR if isinstance(y, Tensor) and not is_view else y)
                    if isinstance(y, Tensor) and not is_view:
                        y = y.astype(_aten.dtype_of(r.meta["val"].dtype))
                        graph.output(y, f"y{len(outputs)}")
                        outputs.append((y.shape, r.meta["val"].dtype))
            return _Specialised(graph.compile(**self.options) if outputs else None, inputs, outputs, computed)

    @staticmethod
    def input(graph: Graph, name: str, a: torch.Tensor, order: Optional[tuple[int, ...]]) -> Tensor:
        """A tensor whose axes lie in another order is read as it lies: transposed parameters are not copied."""
        t = _aten.dtype_of(a.dtype)
        if not order:
            return graph.input(name, tuple(a.shape), t)
        back = [order.index(i) for i in range(len(order))]
        return graph.input(name, [a.shape[i] for i in order], t).transpose(back)

    def evaluate(self, graph: Graph, node: Node, values: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return graph.constant(getattr(self.module, node.target).detach().contiguous())
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        try:
            return _aten.build(node, graph, args, kwargs)
        except TenonError as e:
            raise type(e)(f"{node.target} of {node.format_node()}: {e}") from e


_NOTHING = object()  # stands for a program that cannot be
_TENSOR = object()  # stands for a result that a program computes


def view_of(node: Any, memo: dict[Node, Any]) -> Any:
    if not isinstance(node, Node):
        return node
    if node not in memo:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: view_of(n, memo))
        memo[node] = node.target(*args, **kwargs)
    return memo[node]


# ---- graphs with other ops ------------------------------------------------------------------------------------------------


class _Supported(OperatorSupportBase):
    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node.op == "call_function" and _aten.supported(node)


_told: set[str] = set()


def _report(node: Node) -> None:
    name = str(node.target)
    log.log(logging.DEBUG if name in _told else logging.WARNING, "%s runs in PyTorch: %s", name, _aten.why_not(node))
    _told.add(name)


def compile_graph(module: GraphModule, example_inputs: Sequence[Any], options: Optional[dict] = None) -> Callable[..., Any]:
    """A function of tensors for a graph of ATen ops. Ops that Tenon has not run in PyTorch between its programs."""
    if any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in example_inputs):
        log.warning("a graph with tensors of another device than the CPU runs in PyTorch")
        return module.forward
    others = [n for n in module.graph.nodes if n.op == "call_function" and not _aten.supported(n)]
    others = [n for n in others if n.target is not operator.getitem] or others
    if not others and not any(_aten.unknown_dtype(n) for n in module.graph.nodes):
        return Compiled(module, options or {})
    for n in others:
        _report(n)
    module = CapabilityBasedPartitioner(module, _Supported(), allows_single_node_partition=True).partition_and_fuse()
    for name, child in list(module.named_children()):
        if name.startswith("fused_"):
            setattr(module, name, _Module(Compiled(child, options or {})))
    module.recompile()
    return module.forward


class _Module(torch.nn.Module):
    def __init__(self, compiled: Compiled):
        super().__init__()
        self.compiled = compiled

    def forward(self, *args: Any) -> Any:
        return self.compiled(*args)


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd gives the arguments as a list, which is emptied so that they can be freed early."""
    def call(args: list) -> Any:
        given = list(args)
        args.clear()
        out = function(*given)
        return list(out) if isinstance(out, tuple) else out

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _runner(recorded: Recorded, options: Optional[dict]) -> Callable[..., Any]:
    """Recorded graphs as a function of tensors that autograd knows the gradient of."""
    def compiled(graph: GraphModule) -> Callable[..., Any]:
        return compile_graph(graph, [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"], options)

    forward, n, written = compiled(recorded.forward), recorded.results, recorded.written

    def run(args: Sequence[Any]) -> tuple:
        out = forward(*args)
        for at, new in zip(written, out[n:]):
            args[at].copy_(new)
        return out

    if recorded.backward is None:
        return (lambda *args: run(args)[:n]) if written else forward
    backward = compiled(recorded.backward)
    whole = isinstance(backward, Compiled)
    others = [i for i in range(n) if i not in recorded.differentiable]

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple:
            out = run(args)
            ctx.save_for_backward(*[args[i] if is_argument else out[i] for is_argument, i in recorded.kept])
            if others:
                ctx.mark_non_differentiable(*[out[i] for i in others if isinstance(out[i], torch.Tensor)])
            return out[:n]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Any) -> tuple:
            given = [grads[i] for i in recorded.differentiable]
            out = backward(*ctx.saved_tensors, *(given if whole else [g.contiguous() for g in given]))
            result = [None] * len(ctx.needs_input_grad)
            for i, g in zip(recorded.wanted, out):
                result[i] = g
            return tuple(result)

    return Step.apply


def backend(module: GraphModule, example_inputs: Sequence[Any], *, options: Optional[dict] = None) -> Callable[..., Any]:
    """The backend itself, for `torch.compile(model, backend=tenon.torch.backend, options={"threads": 1})`: options are those of
    Graph.compile."""
    def compiler(graph_module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(compile_graph(graph_module, inputs, options))

    with _no_collection():
        recorded = record(module, example_inputs)
        if recorded is not None:
            return _runner(recorded, options)
        return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler,
                            decompositions=_aten.decompositions())(module, example_inputs)


register_backend(backend, name="tenon")
