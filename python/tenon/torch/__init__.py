"""PyTorch programs on Tenon: `import tenon.torch; torch.compile(model, backend="tenon")`.

In:  the graphs of core ATen ops that AOTAutograd makes of a model, forward and backward.
Out: functions of tensors. What Tenon has an op for is compiled, in the largest pieces that need nothing else in between; every
     other op runs in PyTorch, with its name in the log "tenon.torch" (random numbers do, so they are PyTorch's own).
Tensors are read and written in place: parameters are shared, and nothing is copied that is contiguous. Sizes that change are dims of
one program, which is compiled again, with more room, when a size exceeds its range; what a dim cannot say makes that size a number, with
a program for each, and the log says what. Tensors are those of the CPU.
"""

# What PyTorch says of the types of its graphs differs from version to version.
# mypy: ignore-errors

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import operator
import threading
from typing import Any, Callable, Iterator, Optional, Sequence

import torch
from sympy import Expr
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from .._core import Graph, Tensor
from .._dims import Dim
from .._lib import TenonError, default_context, generation, lib
from .._run import Program, Session, _bindings
from . import _aten, _control
from ._record import Recorded, needed, record
from ._sizes import Dims, Sizes, expression

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
            node.op == "call_function" and (node.target in _aten.VIEWS or _aten.is_number(node)) and bool(node.all_input_nodes) and
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


compilations = 0  # programs that this module has made


class _Specialised:
    """The program of one range of sizes and of orders in memory, and sessions of it: each thread that comes at the same time has its
    own."""

    def __init__(self, program: Any, inputs: list[int], outputs: list[torch.dtype], computed: list[Any], dims: Dims):
        self.program, self.inputs, self.outputs, self.computed, self.dims = program, inputs, outputs, computed, dims
        self.plain = bool(outputs) and all(c is _TENSOR for c in computed)  # no view of an argument, no number
        self.made: dict[tuple, Any] = {}  # by the values of sizes: shapes and dtypes of what is computed, and numbers among the results
        places = [(name, dims.sizes.names.index(name)) for name in program.dims()] if program else []
        self.named = [(name.encode(), i, dims.by[i]) for name, i in places]
        self.idle: list[tuple] = []

    def open(self) -> None:
        """Its first session: there may be no memory for it."""
        if self.program:
            self.idle.append(self.new())

    def takes(self, values: tuple[int, ...]) -> bool:
        return values in self.made or self.dims.takes(values)

    def new(self) -> tuple:
        session = Session(self.program)
        table = _bindings([(s, 0) for s in self.program.inputs + self.program.outputs])
        return session, table, list(table), session._handle.pointer, [None]

    def sized(self, session: Any, values: tuple[int, ...]) -> Any:
        """What the results are for these values, of which the session knows."""
        shapes = [session._shape_of(s) for s in self.program.outputs] if self.program else []
        numbers = [self.dims.sizes.number(c, values) if isinstance(c, Expr) else c for c in self.computed]
        if len(self.made) > 4096:
            self.made.clear()
        made = self.made[values] = list(zip(shapes, self.outputs)), numbers
        return made

    def run(self, args: Sequence[Any], orders: Sequence[Any], values: tuple[int, ...]) -> Any:
        """Tensors, and which of the results they are (_TENSOR), beside numbers."""
        if self.program is None:
            return (), (self.made.get(values) or self.sized(None, values))[1]
        try:
            one = self.idle.pop()
        except IndexError:
            one = self.new()
        session, table, rows, pointer, last = one
        if last[0] != values:
            for name, i, by in self.named:
                status = lib.tn_bind_dim(pointer, name, values[i] // by)
                if status:
                    session._check(status)
            last[0] = values
        made = self.made.get(values) or self.sized(session, values)
        held = []
        for row, at in zip(rows, self.inputs):
            x = args[at]
            if orders[at] is False:
                x = x.resolve_conj().resolve_neg().contiguous()
                held.append(x)
            row.data = x.data_ptr()
        out = [torch.empty(shape, dtype=dtype) for shape, dtype in made[0]]
        for row, y in zip(rows[len(self.inputs):], out):
            row.data = y.data_ptr()
        status = lib.tn_run(pointer, table, len(rows))
        if status:
            session._check(status)
        self.idle.append(one)
        return out, made[1]


_REFUSALS = (TenonError, NotImplementedError, IndexError, ValueError, TypeError)
MUCH = 1 << 28  # bytes of a program's temporaries: it then gets no room above the sizes that come


class Compiled:
    """A graph of ATen ops as a function of tensors and sizes. Its program is made when it is called."""

    def __init__(self, module: GraphModule, options: dict):
        self.module, self.options = module, options
        nodes = list(module.graph.nodes)
        self.arguments = [n for n in nodes if n.op == "placeholder"]
        result = next(n for n in nodes if n.op == "output").args[0]
        self.single = not isinstance(result, (tuple, list))
        self.results = [result] if self.single else list(result)
        memo: dict[Node, bool] = {}
        self.views = [_is_view_of_input(r, memo) for r in self.results]
        values = [n.meta.get("val") for n in self.arguments]
        self.sizes = Sizes(values)
        self.fixed = not self.sizes.names and all(isinstance(v, torch.Tensor) and v.dtype in _aten.DTYPES for v in values)
        self.others = [i for i, v in enumerate(values) if not isinstance(v, (torch.Tensor, torch.SymInt))]  # a program is for their values
        self.real = [isinstance(v, torch.SymInt) or isinstance(v, torch.Tensor) and v.dtype in _aten.DTYPES for v in values]  # not complex
        self.literal: tuple[int, ...] = ()  # symbols that are numbers to a program
        self.most = [0] * len(self.sizes.names)
        self.programs: dict[Any, Any] = {}  # a _Specialised, or _NOTHING
        self.lock = threading.Lock()

    def key(self, args: Sequence[Any], orders: Sequence[Any], values: tuple[int, ...]) -> Any:
        return (generation(), *orders, *[values[i] for i in self.literal],
                *[tuple(args[i].shape) if isinstance(args[i], torch.Tensor) else args[i] for i in self.others])

    def __call__(self, *args: Any) -> Any:
        if self.fixed:
            values: tuple[int, ...] = ()
            orders = [None if a.is_contiguous() and not a.is_neg() else _order(a) for a in args]
            special = self.programs.get((generation(), *orders))
        else:
            values = self.sizes.of(args)
            orders = [None if known and (type(a) is int or a.is_contiguous() and not a.is_neg()) else _order(a) for known, a in zip(self.real, args)]
            special = self.programs.get(self.key(args, orders, values))
        if special is None or special is not _NOTHING and not special.takes(values):
            special = self.first(args, orders, values)
        if special is _NOTHING:
            return self.module(*args)
        out, computed = special.run(args, orders, values)
        if special.plain:
            return out[0] if self.single else tuple(out)
        tensors = iter(out)
        memo: dict[Node, Any] = dict(zip(self.arguments, args))
        out = [view_of(r, memo) if is_view else next(tensors) if c is _TENSOR else c
               for r, is_view, c in zip(self.results, self.views, computed)]
        return out[0] if self.single else tuple(out)

    def first(self, args: Sequence[Any], orders: Sequence[Any], values: tuple[int, ...]) -> Any:
        """The program for new sizes. What Tenon refuses of sizes that change, it is given as numbers; what it refuses of these, PyTorch
        runs. The log says why."""
        with self.lock:
            key = self.key(args, orders, values)
            special = self.programs.get(key)
            if special is not None and (special is _NOTHING or special.takes(values)):
                return special
            reason: Any = None
            for literal in self.choices():
                try:
                    with _no_collection():
                        special = self.roomy(args, orders, values, literal)
                except _REFUSALS as e:
                    reason = reason or e
                    continue
                if literal != self.literal:
                    log.warning("a graph of %d nodes has a program for each %s: %s", len(self.module.graph.nodes),
                                ", ".join(self.sizes.names[i] for i in literal if i not in self.literal), reason)
                    self.literal = literal
                    self.programs.clear()
                break
            else:
                log.warning("a graph of %d nodes runs in PyTorch: %s", len(self.module.graph.nodes), reason)
                self.literal, special = tuple(range(len(values))), _NOTHING
            self.programs[self.key(args, orders, values)] = special
            return special

    def choices(self) -> Iterator[tuple[int, ...]]:
        """Which symbols may be numbers to a program: as few as there must."""
        free = [i for i in range(len(self.most)) if i not in self.literal]
        for n in range(len(free) + 1):
            if n in (0, 1, len(free)) or len(free) < 5:
                for more in itertools.combinations(free, n):
                    yield tuple(sorted(self.literal + more))

    def roomy(self, args: Sequence[Any], orders: Sequence[Any], values: tuple[int, ...], literal: tuple[int, ...]) -> _Specialised:
        dims = Dims(self.sizes, values, literal, self.most, False)
        special = self.specialise(args, orders, values, dims)
        if special.program and len(literal) < len(values) and special.program.stats()["arena_bytes"] > MUCH:
            dims = Dims(self.sizes, values, literal, self.most, True)
            special = self.specialise(args, orders, values, dims)
        self.most = [max(m, v) for m, v in zip(self.most, values)]
        special.open()
        return special

    def specialise(self, args: Sequence[Any], orders: Sequence[Any], values: tuple[int, ...], dims: Dims) -> _Specialised:
        global compilations
        with default_context().lock:
            graph = Graph("aten")
            graph.symbols = dims
            known: dict[Node, Any] = {}
            inputs = []
            in_use = needed([r for r, is_view in zip(self.results, self.views) if not is_view])
            for i, (node, a) in enumerate(zip(self.arguments, args)):
                known[node], val = a, node.meta.get("val")
                if node not in in_use:
                    continue
                if isinstance(a, torch.Tensor):
                    shape = [dims.of(d, graph) for d in val.shape] if isinstance(val, torch.Tensor) else list(a.shape)
                    known[node] = self.input(graph, f"a{i}", a, shape, orders[i])
                    inputs.append(i)
                elif isinstance(val, torch.SymInt):
                    known[node] = dims.of(val, graph)
            computed: list[Any] = []
            outputs: list[torch.dtype] = []
            with graph:
                for node in self.module.graph.nodes:
                    if node in in_use and node.op not in ("placeholder", "output"):
                        known[node] = self.evaluate(graph, node, known, dims)
                for r, is_view in zip(self.results, self.views):
                    y = known.get(r) if isinstance(r, Node) else r
                    if isinstance(y, Tensor) and not is_view:
                        dtype = r.meta["val"].dtype
                        graph.output(y.astype(_aten.dtype_of(dtype)), f"y{len(outputs)}")
                        computed.append(_TENSOR)
                        outputs.append(dtype)
                    else:
                        computed.append(_number_of(y, r) if isinstance(r, Node) and not is_view else y)
            compilations += bool(outputs)
            return _Specialised(graph.compile(**self.options) if outputs else None, inputs, outputs, computed, dims)

    @staticmethod
    def input(graph: Graph, name: str, a: torch.Tensor, shape: list[Any], order: Optional[tuple[int, ...]]) -> Tensor:
        """A tensor whose axes lie in another order is read as it lies: transposed parameters are not copied."""
        t = _aten.dtype_of(a.dtype)
        if not order:
            return graph.input(name, shape, t)
        back = [order.index(i) for i in range(len(order))]
        return graph.input(name, [shape[i] for i in order], t).transpose(back)

    def evaluate(self, graph: Graph, node: Node, known: dict[Node, Any], dims: Dims) -> Any:
        if node.op == "get_attr":
            x = _control.attribute(self.module, node.target)
            return graph.constant(x.detach().contiguous()) if isinstance(x, torch.Tensor) else x
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
        try:
            return _aten.build(node, graph, args, kwargs)
        except _REFUSALS as e:
            if isinstance(e, TenonError):
                raise type(e)(f"{node.target} of {node.format_node()}: {e}") from e
            raise TypeError(f"{node.target}: {e}") from e


def _number_of(y: Any, r: Node) -> Any:
    """A result that is no tensor."""
    if isinstance(y, Tensor):
        raise TypeError(f"{r.target}: a number that is computed")
    return expression(r.meta["val"]) if isinstance(y, Dim) else y


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
            ctx.sizes = [args[i] for i in recorded.sizes]
            if others:
                ctx.mark_non_differentiable(*[out[i] for i in others if isinstance(out[i], torch.Tensor)])
            return out[:n]

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Any) -> tuple:
            given = [grads[i] for i in recorded.differentiable]
            out = backward(*ctx.saved_tensors, *ctx.sizes, *(given if whole else [g.contiguous() for g in given]))
            result = [None] * len(ctx.needs_input_grad)
            for i, g in zip(recorded.wanted, out):
                result[i] = g
            return tuple(result)

    return Step.apply


def _start_again(module: GraphModule) -> None:
    """Floats that PyTorch made arguments with dynamic=True, but took as numbers while it read the program, and those of its own layers (the
    eps of a norm) become a part of the graph: PyTorch reads it again. AOTAutograd does the same, once it has run the model twice."""
    try:
        from torch._dynamo.exc import TensorifyScalarRestartAnalysis
        from torch._dynamo.symbolic_convert import TensorifyState
        names = []
        for n in module.graph.nodes:
            memo = getattr(n.meta.get("example_value"), "item_memo", None) if n.op == "placeholder" else None
            if isinstance(memo, torch.SymFloat) and memo.node._expr.is_Symbol:
                of_layer = "UnspecializedBuiltinNNModuleSource" in repr(getattr(n.meta.get("grapharg"), "source", None))
                if of_layer or memo.node.expr.is_Float:
                    names.append(str(memo.node._expr))
        names = [n for n in names if not TensorifyState.should_specialize(n)]
    except (ImportError, AttributeError):  # of another version
        return
    if names:
        for n in names:
            TensorifyState.specialize(n)
        raise TensorifyScalarRestartAnalysis


def backend(module: GraphModule, example_inputs: Sequence[Any], *, options: Optional[dict] = None) -> Callable[..., Any]:
    """The backend itself, for `torch.compile(model, backend=tenon.torch.backend, options={"threads": 1})`: options are those of
    Graph.compile."""
    def compiler(graph_module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(compile_graph(graph_module, inputs, options))

    _start_again(module)
    with _no_collection():
        recorded = record(module, example_inputs)
        if recorded is not None:
            return _runner(recorded, options)
        return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler,
                            decompositions=_aten.decompositions())(module, example_inputs)


register_backend(backend, name="tenon")
