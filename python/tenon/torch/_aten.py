"""Core ATen ops as Tenon's: a function for each, over tensors of a graph.

In:  a node of an ATen graph, with tensors, numbers and lists as its arguments.
Out: a tensor, or a tuple of them, of the same values; dtypes are those that PyTorch says the result has. Gradients of ops that
     PyTorch differentiates as a whole (convolution, attention) are Tenon's own of the same composition.
"""

# What PyTorch says of the types of its graphs differs from version to version.
# mypy: ignore-errors

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx import Node

from .. import _abi
from .. import _functions as F
from .. import nn
from .._core import Graph, Tensor, as_tensor, build as build_op, lib, where
from .._dims import Dim
from .._dtypes import DType, bfloat16, bool_, dtype, float16, float32, float64, int8, int32, int64, uint8
from ._sizes import ceil_div, largest, least

aten = torch.ops.aten

DTYPES = {torch.float32: float32, torch.float64: float64, torch.float16: float16, torch.bfloat16: bfloat16, torch.int8: int8,
          torch.int32: int32, torch.int64: int64, torch.uint8: uint8, torch.bool: bool_}


def dtype_of(t: torch.dtype) -> DType:
    return DTYPES[t]


@functools.lru_cache(maxsize=None)
def decompositions() -> dict:
    """PyTorch's own, into core ops. What Tenon has every form of is left whole: each op that a graph is taken apart into is traced by
    itself, which takes far longer than compiling it."""
    table = dict(core_aten_decompositions())
    table.update(get_decompositions([
        aten.native_layer_norm, aten.native_layer_norm_backward, aten.native_group_norm, aten.native_group_norm_backward,
        aten.native_batch_norm, aten.native_batch_norm_backward, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training,
        aten._native_batch_norm_legit_functional, aten.batch_norm_backward, aten._batch_norm_with_update,
        aten._batch_norm_with_update_functional, aten._batch_norm_no_update, aten._log_softmax_backward_data, aten._softmax_backward_data,
        aten.gelu_backward, aten.silu_backward, aten.hardswish_backward, aten.hardsigmoid_backward, aten.hardtanh_backward,
        aten.leaky_relu_backward, aten.elu_backward, aten.softplus_backward, aten.threshold_backward, aten.sigmoid_backward,
        aten.tanh_backward, aten.mish_backward, aten.nll_loss_forward, aten.nll_loss_backward, aten.mse_loss, aten.mse_loss_backward,
        aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.huber_loss, aten.huber_loss_backward, aten.binary_cross_entropy_with_logits,
        aten.native_dropout_backward, aten.embedding_dense_backward, aten.slice_backward, aten.select_backward,
        aten.addcmul, aten.addcdiv, aten.lerp, aten.rsub, aten.stack, aten.std, aten.std_mean, aten.logsumexp, aten.log_sigmoid_forward,
        aten.log_sigmoid_backward, aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.diagonal, aten.max_pool3d_with_indices, aten.t, aten.unsafe_chunk, aten.linalg_vector_norm,
        aten._fused_rms_norm, aten.rms_norm, aten.roll, aten.tril, aten.triu, aten.masked_fill, aten.baddbmm, aten.squeeze,
    ]))
    for op in [*KEPT, *(target for target in OPS if target not in FORMS)]:
        table.pop(op, None)
    return table


# ---- the table ------------------------------------------------------------------------------------------------------------

OPS: dict[Any, Callable[..., Any]] = {}


def op(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        for t in targets:
            OPS[t] = fn
        return fn
    return add


def result_dtype(node: Node) -> Any:
    """Tenon's dtype of what a node gives; None for what it has no dtype for."""
    val = node.meta.get("val")
    return DTYPES.get(val.dtype) if isinstance(val, torch.Tensor) else None


def unknown_dtype(node: Node) -> bool:
    vals = node.meta.get("val")
    vals = vals if isinstance(vals, (tuple, list)) else [vals]
    return any(isinstance(v, torch.Tensor) and (v.dtype not in DTYPES or v.device.type != "cpu") for v in vals)


def why_not(node: Node) -> str:
    if node.target not in OPS and not is_number(node):
        return "Tenon has no such op"
    if unknown_dtype(node) or any(unknown_dtype(n) for n in node.all_input_nodes):
        return "a dtype or device that Tenon has not"
    return "a form of it that Tenon has not"


def is_number(node: Node) -> bool:
    """Arithmetic of sizes."""
    val = node.meta.get("val")
    return node.target is not operator.getitem and isinstance(val, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


FORMS: dict[Any, Callable[[Node], bool]] = {}  # which forms of an op are built, where not all are


def supported(node: Node) -> bool:
    if unknown_dtype(node) or any(unknown_dtype(n) for n in node.all_input_nodes):
        return False
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and supported(node.args[0])
    if is_number(node):
        return True
    return node.target in OPS and (node.target not in FORMS or FORMS[node.target](node))


def build(node: Node, graph: Graph, args: tuple, kwargs: dict) -> Any:
    """What a node computes. Numbers of the graph's sizes are computed at once: those that a run gives are Dims, and tensors where they have
    a fraction."""
    if node.target is operator.getitem:
        return args[0][args[1]]
    if node.target is aten.sym_size.int:
        return args[0].shape[args[1]]
    if node.target is aten.sym_numel.default:
        return args[0].size
    if is_number(node):
        if node.target in (math.trunc, math.floor, math.ceil) and any(isinstance(a, Tensor) for a in args):  # of a fraction: a size
            return graph.symbols.of(node.meta["val"], graph)
        of_run = any(isinstance(a, (Dim, Tensor)) for a in args)
        return (NUMBERS.get(node.target, node.target) if of_run else node.target)(*args, **kwargs)
    return OPS[node.target](node, graph, *args, **kwargs)


def _fraction(x: Any) -> Any:
    return x.value().astype(float64) if isinstance(x, Dim) else x


NUMBERS = {torch.sym_max: largest, torch.sym_min: least, torch.sym_float: _fraction, operator.truediv: lambda x, y: _fraction(x) / _fraction(y),
           torch._sym_sqrt: lambda x: _fraction(x).sqrt(), operator.pow: lambda x, n: math.prod([x] * n) if isinstance(n, int) and n > 0 else _fraction(x) ** _fraction(n)}


# ---- elementwise ----------------------------------------------------------------------------------------------------------


def _compute_dtype(node: Node, *operands: Any) -> DType:
    """The dtype that operands are brought to: PyTorch's promotion."""
    known = [n.meta["val"] for n in node.args if isinstance(n, Node) and isinstance(n.meta.get("val"), torch.Tensor)]
    rest = [a for a in node.args if isinstance(a, (int, float, bool))]
    kind = _promoted(known + rest)
    return DTYPES[kind]


def _promoted(values: Sequence[Any]) -> torch.dtype:
    if len(values) == 1:
        v = values[0]
        return v.dtype if isinstance(v, torch.Tensor) else torch.result_type(v, v)
    first = values[0]
    kind = torch.result_type(first, values[1])
    for v in values[2:]:
        kind = torch.promote_types(kind, v.dtype if isinstance(v, torch.Tensor) else torch.result_type(v, v))
    return kind


def _as(graph: Graph, x: Any, t: DType) -> Tensor:
    if isinstance(x, Tensor):
        return x.astype(t)
    if isinstance(x, float) and t.kind != "f":
        return as_tensor(int(x), graph, t)
    return as_tensor(x, graph, t)


def _unary(name: str) -> Callable[..., Tensor]:
    def fn(node: Node, graph: Graph, x: Tensor) -> Tensor:
        return build_op(graph, name, x.astype(result_dtype(node)))
    return fn


for _target, _name in {
    aten.neg: "neg", aten.abs: "abs", aten.sign: "sign", aten.floor: "floor", aten.ceil: "ceil", aten.round: "round", aten.sqrt: "sqrt",
    aten.rsqrt: "rsqrt", aten.exp: "exp", aten.log: "log", aten.log1p: "log1p", aten.expm1: "expm1", aten.sin: "sin", aten.cos: "cos",
    aten.tan: "tan", aten.asin: "asin", aten.acos: "acos", aten.atan: "atan", aten.sinh: "sinh", aten.cosh: "cosh", aten.tanh: "tanh",
    aten.asinh: "asinh", aten.acosh: "acosh", aten.atanh: "atanh", aten.erf: "erf", aten.erfc: "erfc", aten.exp2: "exp2",
    aten.log2: "log2", aten.trunc: "trunc", aten.relu: "relu", aten.sigmoid: "sigmoid",
}.items():
    OPS[_target.default] = _unary(_name)
for _target in (aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default):
    FORMS[_target] = lambda node: result_dtype(node).kind == "f"


def _binary(name: str, keep: bool = True) -> Callable[..., Tensor]:
    """keep: the result has the dtype that the operands are brought to; else it is bool."""
    def fn(node: Node, graph: Graph, x: Any, y: Any) -> Tensor:
        t = _compute_dtype(node) if not keep else result_dtype(node)
        if t is bool_ and name not in ("and", "or", "xor"):
            t = int32
        return build_op(graph, name, _as(graph, x, t), _as(graph, y, t))
    return fn


def _scaled(name: str) -> Callable[..., Tensor]:
    def fn(node: Node, graph: Graph, x: Any, y: Any, alpha: float = 1) -> Tensor:
        t = result_dtype(node)
        y = _as(graph, y, t)
        return build_op(graph, name, _as(graph, x, t), y if alpha == 1 else y * alpha)
    return fn


for _overload in ("Tensor", "Scalar"):
    for _target, _name in {aten.add: "add", aten.sub: "sub"}.items():
        OPS[getattr(_target, _overload)] = _scaled(_name)
    for _target, _name in {aten.mul: "mul", aten.remainder: "mod", aten.bitwise_and: "and", aten.bitwise_or: "or",
                           aten.bitwise_xor: "xor"}.items():
        OPS[getattr(_target, _overload)] = _binary(_name)
    for _target, _name in {aten.lt: "lt", aten.le: "le", aten.gt: "gt", aten.ge: "ge", aten.eq: "eq", aten.ne: "ne"}.items():
        OPS[getattr(_target, _overload)] = _binary(_name, keep=False)
OPS[aten.maximum.default], OPS[aten.minimum.default] = _binary("max"), _binary("min")
OPS[aten.atan2.default], OPS[aten.hypot.default] = _binary("atan2"), _binary("hypot")


def _shift(name: str) -> Callable[..., Tensor]:
    """By less than nothing: PyTorch leaves it open."""
    return lambda node, graph, x, y: build_op(graph, name, _as(graph, x, result_dtype(node)), _as(graph, y, result_dtype(node)))


for _target, _name in {"bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right"}.items():
    OPS[getattr(aten, _target).Tensor] = OPS[getattr(aten, _target).Tensor_Scalar] = _shift(_name)
OPS[aten.__lshift__.Tensor] = OPS[aten.__lshift__.Scalar] = _shift("shift_left")
OPS[aten.__rshift__.Tensor] = OPS[aten.__rshift__.Scalar] = _shift("shift_right")
FORMS[aten.mul.Tensor] = FORMS[aten.mul.Scalar] = lambda node: result_dtype(node) is not bool_


def _logical(name: str) -> Callable[..., Tensor]:
    def fn(node: Node, graph: Graph, *xs: Tensor) -> Tensor:
        return build_op(graph, name, *[x if x.dtype is bool_ else x != 0 for x in xs])
    return fn


OPS[aten.logical_and.default], OPS[aten.logical_or.default] = _logical("and"), _logical("or")
OPS[aten.logical_xor.default], OPS[aten.logical_not.default] = _logical("xor"), _logical("not")


@op(aten.bitwise_not.default)
def _bitwise_not(node: Node, graph: Graph, x: Tensor) -> Tensor:
    return ~x


@op(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def _div(node: Node, graph: Graph, x: Any, y: Any) -> Tensor:
    t = result_dtype(node)
    return build_op(graph, "div", _as(graph, x, t), _as(graph, y, t))


@op(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(node: Node, graph: Graph, x: Any, y: Any, rounding_mode: Optional[str] = None) -> Tensor:
    t = result_dtype(node)
    a, b = _as(graph, x, t), _as(graph, y, t)
    if rounding_mode == "floor":
        return a // b
    q = build_op(graph, "div", a, b)
    return q if rounding_mode is None or t.kind != "f" else q.trunc()


@op(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(node: Node, graph: Graph, x: Any, y: Any) -> Tensor:
    t = result_dtype(node)
    return graph.wrap(lib.tn_fmod(_as(graph, x, t)._at(), _as(graph, y, t)._t))


@op(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(node: Node, graph: Graph, x: Any, y: Any) -> Tensor:
    t = result_dtype(node)
    if isinstance(y, (int, float)) and float(y).is_integer() and 0 <= y <= 16:
        return _as(graph, x, t) ** int(y)
    if isinstance(y, float) and y == 0.5:
        return _as(graph, x, t).sqrt()
    return build_op(graph, "pow", _as(graph, x, t), _as(graph, y, t))


FORMS[aten.pow.Tensor_Tensor] = FORMS[aten.pow.Scalar] = lambda node: result_dtype(node).kind == "f"
FORMS[aten.pow.Tensor_Scalar] = lambda node: result_dtype(node).kind == "f" or (isinstance(node.args[1], int) and 0 <= node.args[1] <= 16)


def _composed(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A composition in floats: halves are computed in f32 and rounded once, as PyTorch does."""
    def run(node: Node, graph: Graph, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        t = result_dtype(node)
        wide = float32 if t in (float16, bfloat16) else t
        return fn(x.astype(wide), *args, **kwargs).astype(t)
    return run


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return nn.gelu(x) if approximate == "none" else nn.gelu_tanh(x)


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return where(x * beta > threshold, x, (x * beta).softplus() / beta)


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return where(x > 0, x * scale, ((x * input_scale).expm1()) * (alpha * scale))


for _target, _fn in {
    aten.reciprocal: lambda x: 1 / x, aten.log10: F.log10, aten.square: lambda x: x * x, aten.erfinv: F.erfinv, aten.lgamma: F.lgamma,
    aten.digamma: F.digamma, aten.gelu: _gelu, aten.silu: nn.silu, aten.mish: nn.mish, aten.softplus: _softplus, aten.elu: _elu,
    aten.leaky_relu: lambda x, slope=0.01: where(x > 0, x, x * slope), aten.hardtanh: lambda x, lo=-1.0, hi=1.0: x.clip(lo, hi),
    aten.hardswish: nn.hard_swish, aten.hardsigmoid: nn.hard_sigmoid, aten._softmax: lambda x, dim, half: nn.softmax(x, dim),
    aten._log_softmax: lambda x, dim, half: nn.log_softmax(x, dim),
}.items():
    OPS[_target.default] = _composed(_fn)
for _target in (aten._softmax.default, aten._log_softmax.default):
    FORMS[_target] = lambda node: node.args[0].meta["val"].dim() > 0


@op(aten.isnan.default)
def _isnan(node: Node, graph: Graph, x: Tensor) -> Tensor:
    return F.isnan(x)


@op(aten.isinf.default)
def _isinf(node: Node, graph: Graph, x: Tensor) -> Tensor:
    return F.isinf(x)


@op(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(node: Node, graph: Graph, c: Tensor, x: Any, y: Any) -> Tensor:
    t = result_dtype(node)
    return build_op(graph, "select", c if c.dtype is bool_ else c != 0, _as(graph, x, t), _as(graph, y, t))


@op(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(node: Node, graph: Graph, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return build_op(graph, "select", mask, _as(graph, value, x.dtype), x)


@op(aten.clamp.default, aten.clamp.Tensor)
def _clamp(node: Node, graph: Graph, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    t = result_dtype(node)
    x = x.astype(t)
    x = x if low is None else build_op(graph, "max", x, _as(graph, low, t))
    return x if high is None else build_op(graph, "min", x, _as(graph, high, t))


@op(aten.clamp_min.default)
def _clamp_min(node: Node, graph: Graph, x: Tensor, low: Any) -> Tensor:
    return _clamp(node, graph, x, low)


@op(aten.clamp_max.default)
def _clamp_max(node: Node, graph: Graph, x: Tensor, high: Any) -> Tensor:
    return _clamp(node, graph, x, None, high)


# ---- copies and views -----------------------------------------------------------------------------------------------------


@op(aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default, aten.lift_fresh_copy.default,
    aten.lift_fresh.default)
def _same(node: Node, graph: Graph, x: Tensor, **_: Any) -> Tensor:
    return x


@op(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def _to_copy(node: Node, graph: Graph, x: Tensor, *_: Any, **__: Any) -> Tensor:
    t = result_dtype(node)
    return x != 0 if t is bool_ and x.dtype is not bool_ else x.astype(t)


@op(aten.copy.default)
def _copy(node: Node, graph: Graph, x: Tensor, source: Tensor, *_: Any) -> Tensor:
    return source.astype(x.dtype).broadcast_to(x.shape)


@op(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _view(node: Node, graph: Graph, x: Tensor, shape: Sequence[int]) -> Tensor:
    shape = list(shape)
    if -1 in shape and x.size == 0:
        shape = [0 if d == -1 else d for d in shape]
    return x.reshape(shape)


@op(aten.permute.default)
def _permute(node: Node, graph: Graph, x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.transpose(list(dims)) if dims else x


@op(aten.transpose.int)
def _transpose(node: Node, graph: Graph, x: Tensor, a: int, b: int) -> Tensor:
    return x.swapaxes(a, b) if x.ndim else x


@op(aten.t.default)
def _t(node: Node, graph: Graph, x: Tensor) -> Tensor:
    return x.T


@op(aten.unsqueeze.default)
def _unsqueeze(node: Node, graph: Graph, x: Tensor, dim: int) -> Tensor:
    return x.expand_dims(dim)


@op(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, torch.ops.prims.squeeze.default)
def _squeeze(node: Node, graph: Graph, x: Tensor, dims: Any = None) -> Tensor:
    if dims is None:
        return x.squeeze()
    axes = {d % x.ndim for d in ([dims] if isinstance(dims, int) else dims)} if x.ndim else set()
    return x.reshape([d for i, d in enumerate(x.shape) if not (i in axes and d == 1)])


@op(aten.expand.default)
def _expand(node: Node, graph: Graph, x: Tensor, shape: Sequence[int], **_: Any) -> Tensor:
    extra = len(shape) - x.ndim
    return x.broadcast_to([x.shape[i - extra] if d == -1 else d for i, d in enumerate(shape)])


def sizes_of(x: torch.Tensor, graph: Graph) -> list[Any]:
    """The shape of a fake tensor."""
    return [graph.symbols.of(d, graph) for d in x.shape]


def _negative(v: Any, of: Any) -> bool:
    """Whether a place counts from the end; PyTorch has a guard for it."""
    if isinstance(v, Dim) and v.lo < 0 <= v.hi and isinstance(of, Node):
        return of.meta["val"].node.hint < 0
    return (v.hi if isinstance(v, Dim) else v) < 0


@op(aten.slice.Tensor)
def _slice(node: Node, graph: Graph, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    dim = dim % x.ndim
    n, start, end = x.shape[dim], 0 if start is None else start, None if isinstance(end, int) and end >= 1 << 62 else end
    if not any(isinstance(v, Dim) for v in (n, start, end)):
        return x[(slice(None),) * dim + (slice(start, end, step),)]
    ends = [v + n if v is not None and _negative(v, of) else v for v, of in ((start, node.args[2] if len(node.args) > 2 else 0),
                                                                            (end, node.args[3] if len(node.args) > 3 else None))]
    if isinstance(ends[0], Dim) and ends[0].lo < 0 or isinstance(ends[1], Dim) and ends[1].lo < 0:
        ends = [largest(v, 0) if isinstance(v, Dim) else v for v in ends]
    return _part(graph, x, dim, ends[0], ends[1], step, sizes_of(node.meta["val"], graph)[dim])


def _part(graph: Graph, x: Tensor, dim: int, start: Any, end: Any, step: int, size: Any) -> Tensor:
    """A slice that PyTorch knows the size of, where a run gives sizes. Rows are picked where it is not proved that a slice has it."""
    y = x[(slice(None),) * dim + (slice(start, end, step),)]
    return y if y.shape[dim] == size else graph.wrap(lib.tn_gather(x._at(), (graph.iota((size,)) * step + start)._t, dim))


@op(aten.select.int)
def _select(node: Node, graph: Graph, x: Tensor, dim: int, index: int) -> Tensor:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


@op(aten.as_strided.default)
def _as_strided(node: Node, graph: Graph, x: Tensor, size: Sequence[int], stride: Sequence[int], offset: Any = None) -> Tensor:
    """Elements by their places in memory, where x lies there row by row."""
    size = tuple(size)
    contiguous: list[int] = []
    step = 1
    for d in reversed(size):
        contiguous.insert(0, step)
        step *= d
    if step == x.size and not offset and all(d == 1 or s == c for d, s, c in zip(size, stride, contiguous)):
        return x.reshape(size)
    at = graph.full(size, offset or 0, int64)
    for axis, s in enumerate(stride):
        at = at + graph.iota(size, axis) * s
    return graph.wrap(lib.tn_gather(x.flatten()._at(), at._t, 0))


FORMS[aten.as_strided.default] = lambda node: node.args[0].meta["val"].is_contiguous() and node.args[0].meta["val"].storage_offset() == 0

VIEWS = {aten.permute.default, aten.transpose.int, aten.t.default, aten.view.default, aten.unsqueeze.default, aten.squeeze.dim,
         aten.squeeze.dims, aten.expand.default, aten.alias.default, aten.detach.default, aten.slice.Tensor, aten.select.int}


@op(aten.cat.default)
def _cat(node: Node, graph: Graph, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    t = result_dtype(node)
    kept = [x for x in xs if x.shape != (0,)] or list(xs[:1])
    return F.concatenate([x.astype(t) for x in kept], dim)


@op(aten.stack.default)
def _stack(node: Node, graph: Graph, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    return F.stack(list(xs), dim)


@op(aten.split_with_sizes.default)
def _split_with_sizes(node: Node, graph: Graph, x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    return F.split(x, list(sizes), dim)


@op(aten.split.Tensor)
def _split(node: Node, graph: Graph, x: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    n = x.shape[dim]
    if isinstance(n, Dim) or isinstance(size, Dim):  # PyTorch knows how many
        sizes = [sizes_of(y, graph)[dim] for y in node.meta["val"]]
        return [_part(graph, x, dim % x.ndim, size * i, size * i + d, 1, d) for i, d in enumerate(sizes)]
    return F.split(x, [size] * (n // size) + ([n % size] if n % size else []), dim) if n else [x]


@op(aten.unbind.int)
def _unbind(node: Node, graph: Graph, x: Tensor, dim: int = 0) -> list[Tensor]:
    return [_select(node, graph, x, dim, i) for i in range(x.shape[dim])]


@op(aten.unfold.default)
def _unfold(node: Node, graph: Graph, x: Tensor, axis: int, size: int, step: int) -> Tensor:
    return F.window(x, [axis % x.ndim], [size], [step])


@op(aten.unfold_backward.default)
def _unfold_backward(node: Node, graph: Graph, g: Tensor, sizes: Sequence[Any], axis: int, size: int, step: int) -> Tensor:
    x = graph.full(tuple(sizes), 0, g.dtype)
    return _pull_back(graph, lambda t: F.window(t, [axis % x.ndim], [size], [step]), (x,), g, [True])[0]


FORMS[aten.unfold.default] = lambda node: node.args[0].meta["val"].dim() > 0


@op(aten.flip.default)
def _flip(node: Node, graph: Graph, x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.flip(list(dims)) if dims else x


@op(aten.roll.default)
def _roll(node: Node, graph: Graph, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return F.roll(x.flatten(), shifts[0], 0).reshape(x.shape)
    for s, d in zip(shifts, dims):
        x = F.roll(x, s, d)
    return x


@op(aten.repeat.default)
def _repeat(node: Node, graph: Graph, x: Tensor, reps: Sequence[int]) -> Tensor:
    return F.tile(x, list(reps))


@op(aten.constant_pad_nd.default)
def _pad(node: Node, graph: Graph, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    cut = tuple(slice(-min(a, 0), d + min(b, 0)) for d, (a, b) in zip(x.shape, pairs))
    return x[cut].pad([(max(a, 0), max(b, 0)) for a, b in pairs], value)


@op(aten.slice_scatter.default)
def _slice_scatter(node: Node, graph: Graph, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None,
                   step: int = 1) -> Tensor:
    n, dim = x.shape[dim], dim % x.ndim
    if isinstance(n, Dim) or isinstance(start, Dim) or isinstance(end, Dim):
        ends = [(0, 0) if start is None else (start, node.args[3]), (n, 0) if end is None else (end, node.args[4])]
        lo, hi = [least(largest(v + n, 0) if _negative(v, of) else v, n) for v, of in ends]
        by = step
    else:
        lo, hi, by = slice(start, end, step).indices(n)
    at = graph.iota((n,), 0)
    inside = (at >= lo) & (at < hi) & ((at - lo) % by == 0)
    rows = (at - lo) // by
    spread = source.take(where(inside, rows, 0), dim) if source.shape[dim] != 0 else x
    return build_op(graph, "select", inside.reshape([n if i == dim else 1 for i in range(x.ndim)]), spread.astype(x.dtype), x)


@op(aten.select_scatter.default)
def _select_scatter(node: Node, graph: Graph, x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    dim = dim % x.ndim
    at = graph.iota((x.shape[dim],), 0).reshape([d if i == dim else 1 for i, d in enumerate(x.shape)])
    return build_op(graph, "select", at == (index if index >= 0 else index + x.shape[dim]), source.astype(x.dtype).expand_dims(dim), x)


@op(aten.tril.default)
def _tril(node: Node, graph: Graph, x: Tensor, k: int = 0) -> Tensor:
    return F.tril(x, k)


@op(aten.triu.default)
def _triu(node: Node, graph: Graph, x: Tensor, k: int = 0) -> Tensor:
    return F.triu(x, k)


# ---- making ---------------------------------------------------------------------------------------------------------------


@op(aten.full.default)
def _full(node: Node, graph: Graph, shape: Sequence[int], value: Any, **_: Any) -> Tensor:
    return _filled(graph, shape, value, result_dtype(node))


def _filled(graph: Graph, shape: Sequence[int], value: Any, t: DType) -> Tensor:
    if isinstance(value, (Tensor, Dim)):
        return as_tensor(value, graph).astype(t).broadcast_to(shape)
    return graph.full(tuple(shape), value if t.kind == "f" else bool(value) if t is bool_ else int(value), t)


@op(aten.full_like.default)
def _full_like(node: Node, graph: Graph, x: Tensor, value: Any, **_: Any) -> Tensor:
    return _filled(graph, x.shape, value, result_dtype(node))


@op(aten.zeros.default, aten.empty.memory_format, aten.ones.default)
def _zeros(node: Node, graph: Graph, shape: Sequence[int], **_: Any) -> Tensor:
    return _filled(graph, shape, int(node.target is aten.ones.default), result_dtype(node))


@op(aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default)
def _zeros_like(node: Node, graph: Graph, x: Tensor, **_: Any) -> Tensor:
    return _filled(graph, x.shape, int(node.target is aten.ones_like.default), result_dtype(node))


@op(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default)
def _new_zeros(node: Node, graph: Graph, x: Tensor, shape: Sequence[int], **_: Any) -> Tensor:
    return _filled(graph, shape, int(node.target is aten.new_ones.default), result_dtype(node))


@op(aten.new_empty_strided.default, aten.empty_strided.default)
def _empty_strided(node: Node, graph: Graph, *args: Any, **_: Any) -> Tensor:
    return _filled(graph, args[-2], 0, result_dtype(node))


@op(aten.new_full.default)
def _new_full(node: Node, graph: Graph, x: Tensor, shape: Sequence[int], value: Any, **_: Any) -> Tensor:
    return _filled(graph, shape, value, result_dtype(node))


@op(aten.scalar_tensor.default)
def _scalar_tensor(node: Node, graph: Graph, value: Any, **_: Any) -> Tensor:
    return _filled(graph, (), value, result_dtype(node))


@op(aten.arange.start_step)
def _arange(node: Node, graph: Graph, start: Any, stop: Any, step: Any = 1, **_: Any) -> Tensor:
    t = result_dtype(node)
    if any(isinstance(v, Dim) for v in (start, stop, step)):
        return graph.iota((ceil_div(stop - start, step),), 0, t) * step + start
    return graph.constant(np.arange(start, stop, step).astype(t.numpy))


@op(torch.ops.prims.iota.default)
def _iota(node: Node, graph: Graph, length: int, *, start: int, step: int, **_: Any) -> Tensor:
    t = result_dtype(node)
    return graph.iota((length,), 0, t) * step + start


# ---- reductions -----------------------------------------------------------------------------------------------------------


def _dims(x: Tensor, dims: Any) -> Any:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return None
    return dims if x.ndim else None


@op(aten.sum.dim_IntList, aten.sum.default)
def _sum(node: Node, graph: Graph, x: Tensor, dims: Any = None, keep: bool = False, **_: Any) -> Tensor:
    t = result_dtype(node)
    return x.astype(t)._reduce(lib.tn_sum, _dims(x, dims), keep)


@op(aten.mean.dim, aten.mean.default)
def _mean(node: Node, graph: Graph, x: Tensor, dims: Any = None, keep: bool = False, **_: Any) -> Tensor:
    return x.astype(result_dtype(node)).mean(_dims(x, dims), keep)


@op(aten.amax.default)
def _amax(node: Node, graph: Graph, x: Tensor, dims: Any = (), keep: bool = False) -> Tensor:
    return x.max(_dims(x, dims), keep)


@op(aten.amin.default)
def _amin(node: Node, graph: Graph, x: Tensor, dims: Any = (), keep: bool = False) -> Tensor:
    return x.min(_dims(x, dims), keep)


@op(aten.max.default, aten.min.default)
def _max_all(node: Node, graph: Graph, x: Tensor) -> Tensor:
    return x.max() if node.target is aten.max.default else x.min()


@op(aten.max.dim, aten.min.dim)
def _max_dim(node: Node, graph: Graph, x: Tensor, dim: int, keep: bool = False) -> tuple[Tensor, Tensor]:
    largest = node.target is aten.max.dim
    return (x.max(dim, keep), x.argmax(dim, keep)) if largest else (x.min(dim, keep), x.argmin(dim, keep))


@op(aten.argmax.default, aten.argmin.default)
def _argmax(node: Node, graph: Graph, x: Tensor, dim: Any = None, keep: bool = False) -> Tensor:
    return x.argmax(dim, keep) if node.target is aten.argmax.default else x.argmin(dim, keep)


for _target in (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default):
    FORMS[_target] = lambda node: node.args[0].meta["val"].dim() > 0


@op(aten.any.default, aten.any.dim, aten.any.dims)
def _any(node: Node, graph: Graph, x: Tensor, dims: Any = None, keep: bool = False) -> Tensor:
    return x.any(_dims(x, dims), keep)


@op(aten.all.default, aten.all.dim, aten.all.dims)
def _all(node: Node, graph: Graph, x: Tensor, dims: Any = None, keep: bool = False) -> Tensor:
    return x.all(_dims(x, dims), keep)


@op(aten.prod.default, aten.prod.dim_int)
def _prod(node: Node, graph: Graph, x: Tensor, dim: Any = None, keep: bool = False, **_: Any) -> Tensor:
    return x.astype(result_dtype(node))._reduce(lib.tn_prod, dim, keep)


@op(aten.var.correction)
def _var(node: Node, graph: Graph, x: Tensor, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    return x.var(_dims(x, dims), keepdim, int(1 if correction is None else correction))


@op(aten.var_mean.correction)
def _var_mean(node: Node, graph: Graph, x: Tensor, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> tuple:
    return _var(node, graph, x, dims, correction=correction, keepdim=keepdim), x.mean(_dims(x, dims), keepdim)


@op(aten.cumsum.default)
def _cumsum(node: Node, graph: Graph, x: Tensor, dim: int, **_: Any) -> Tensor:
    return x.astype(result_dtype(node)).cumsum(dim) if x.ndim else x.astype(result_dtype(node))


# ---- contractions ---------------------------------------------------------------------------------------------------------


@op(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def _mm(node: Node, graph: Graph, a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@op(aten.addmm.default, aten.baddbmm.default, aten.addmv.default)
def _addmm(node: Node, graph: Graph, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = a @ b
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (c if beta == 1 else c * beta)


def _pair(v: Sequence[int], n: int) -> list[int]:
    return list(v) * n if len(v) == 1 else list(v)


def _by_phases(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], more: Sequence[int], groups: int, size: Sequence[Any]) -> Tensor:
    """A transposed convolution x[N,C,..], w[C,O/groups,..] -> [N,O,..] without the zeros between: results at distances of the
    stride are a convolution of x with each stride-th weight, so all of them are one with as many channels for each as there are
    such phases, whose results are put between each other. size: of the result, in PyTorch's words where runs give it."""
    n = x.ndim - 2
    taps = [-(-k // s) for k, s in zip(w.shape[2:], stride)]  # of a phase
    c, each, kernel = w.shape[0], w.shape[1], w.shape[2:]
    w = w.pad([(0, 0), (0, 0)] + [(0, t * s - k) for t, s, k in zip(taps, stride, w.shape[2:])])
    w = w.reshape((groups, c // groups, each) + tuple(d for pair in zip(taps, stride) for d in pair))
    w = w.transpose([0, 2, *[4 + 2 * i for i in range(n)], 1, *[3 + 2 * i for i in range(n)]])  # [G,O/G,phases,C/G,taps]
    w = w.reshape((groups * each * math.prod(stride), c // groups) + tuple(taps)).flip(list(range(2, 2 + n)))
    y = _convolve(x, w, [1] * n, [t - 1 for t in taps], [1] * n, False, [0] * n, groups, size)
    y = y.reshape((y.shape[0], groups * each) + tuple(stride) + y.shape[2:])
    y = y.transpose([0, 1, *[d for i in range(n) for d in (2 + n + i, 2 + i)]])
    y = y.reshape(y.shape[:2] + tuple(y.shape[2 + 2 * i] * y.shape[3 + 2 * i] for i in range(n)))
    lack = [max(k + m - p - t * s, 0) for k, m, p, t, s in zip(kernel, more, padding, taps, stride)]  # whatever the image's size
    y = y.pad([(0, 0), (0, 0)] + [(0, d) for d in lack]) if any(lack) else y
    return y[(slice(None), slice(None), *[slice(p, p + d) for p, d in zip(padding, size)])]


FEW_POSITIONS = 16  # of an image: a vector has more elements


def _fewer(n: Any, most: int) -> bool:
    """In all runs."""
    return (n.hi if isinstance(n, Dim) else n) < most


def _convolve(x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
              output_padding: Sequence[int], groups: int, size: Sequence[Any], beside: bool = False) -> Tensor:
    """x[N,C,..], w[O,C/groups,..] -> [N,O,..]: windows of x, contracted with w. Transposed: x is spread out by zeros, and w is
    turned round. beside: all positions of small images are computed beside each other (which the gradient is no faster with)."""
    n = x.ndim - 2
    stride, padding, dilation = _pair(stride, n), _pair(padding, n), _pair(dilation, n)
    space = list(range(2, n + 2))
    if transposed and max(stride) > 1 and max(dilation) == 1:
        return _by_phases(x, w, stride, padding, _pair(output_padding, n), groups, size)
    if transposed:
        kernel = w.shape[2:]
        for a, s in zip(space, stride):
            if s > 1:
                size = x.shape[a]
                x = x.expand_dims(a + 1).pad([(0, 0)] * (a + 1) + [(0, s - 1)] + [(0, 0)] * (x.ndim - a - 1))
                x = x.reshape(x.shape[:a] + (size * s,) + x.shape[a + 2:])
                x = x[(slice(None),) * a + (slice(0, size * s - s + 1),)]
        reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
        border = [(r - p, r - p + o) for r, p, o in zip(reach, padding, _pair(output_padding, n))]
        cut = tuple(slice(-min(a, 0), d + min(b, 0)) for d, (a, b) in zip(x.shape[2:], border))
        x = x[(slice(None), slice(None), *cut)].pad([(0, 0), (0, 0)] + [(max(a, 0), max(b, 0)) for a, b in border])
        per_group = w.shape[1]
        w = w.flip(space).reshape((groups, w.shape[0] // groups, per_group) + kernel).swapaxes(1, 2)
        w = w.reshape((groups * per_group,) + w.shape[2:])
        stride = [1] * n
    elif any(padding):
        x = x.pad([(0, 0), (0, 0)] + [(p, p) for p in padding])
    v = F.window(x, space, list(w.shape[2:]), stride, dilation)  # [N,C,positions,kernel]
    g = int(groups > 1)
    if g:
        v = v.reshape((v.shape[0], groups, v.shape[1] // groups) + v.shape[2:])
        w = w.reshape((groups, w.shape[0] // groups) + w.shape[1:])
    of_v, of_w = [1 + g, *range(2 + n + g, 2 + 2 * n + g)], list(range(1 + g, 2 + n + g))
    batch_v, batch_w = [1] * g, [0] * g
    if beside and not g and max(stride) == 1 < max(w.shape[2:]) and _fewer(math.prod(v.shape[2:2 + n]), FEW_POSITIONS):
        y = F.dot_general(w, v, (of_w, of_v), (batch_w, batch_v))  # [G,O/G,N,positions]
        y = y.transpose([1 + g, *range(1 + g), *range(2 + g, 2 + n + g)])
    else:
        y = F.dot_general(v, w, (of_v, of_w), (batch_v, batch_w))  # [G,N,positions,O/G]
        y = y.transpose([g, *range(g), 1 + n + g, *range(1 + g, 1 + n + g)])
    return y.reshape((y.shape[0], y.shape[1] * y.shape[2]) + y.shape[3:]) if g else y


@op(aten.convolution.default)
def _convolution(node: Node, graph: Graph, x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                 output_padding: Any, groups: int) -> Tensor:
    size = sizes_of(node.meta["val"], graph)[2:]
    y = _convolve(x, w, stride, padding, dilation, transposed, output_padding, groups, size, True)
    return y if bias is None else y + bias.reshape((-1,) + (1,) * (y.ndim - 2))


FORMS[aten.convolution.default] = lambda node: node.args[0].meta["val"].dim() == node.args[1].meta["val"].dim()


def _pull_back(graph: Graph, fn: Callable[..., Tensor], xs: Sequence[Tensor], g: Tensor, wanted: Sequence[bool]) -> list[Any]:
    """Gradients of fn(*xs), which come in as g, by those of xs that are wanted."""
    own = [build_op(graph, "stop_gradient", x) for x in xs]
    loss = (fn(*own) * g).sum()
    asked = [x for x, want in zip(own, wanted) if want]
    grads = iter(graph.grad(loss, asked) if asked else [])
    return [next(grads) if want else None for want in wanted]


@op(aten.convolution_backward.default)
def _convolution_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, w: Tensor, bias_sizes: Any, stride: Any, padding: Any,
                          dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool]) -> tuple:
    dx, dw = _pull_back(graph, lambda x, w: _convolve(x, w, stride, padding, dilation, transposed, output_padding, groups, g.shape[2:]), (x, w), g,
                        mask[:2])
    return dx, dw, g.sum([0, *range(2, g.ndim)]) if mask[2] else None


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], causal: bool, scale: Optional[float]) -> tuple[Tensor, Tensor]:
    scores = (q @ k.mT).astype(float64 if q.dtype is float64 else float32) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        t, s = scores.shape[-2:]
        keep = q.graph.iota((t, s), 1, int32) <= q.graph.iota((t, s), 0, int32)
        scores = where(keep, scores, -math.inf)
    if mask is not None:
        scores = where(mask, scores, -math.inf) if mask.dtype is bool_ else scores + mask
    return nn.softmax(scores, -1).astype(q.dtype) @ v, scores


_FLASH, _FLASH_BACK = aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward


@op(_FLASH.default)
def _flash(node: Node, graph: Graph, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0, causal: bool = False, *,
           attn_mask: Any = None, scale: Any = None) -> tuple:
    out, scores = _attend(q, k, v, attn_mask, causal, scale)
    return out, nn.logsumexp(scores, -1)


@op(_FLASH_BACK.default)
def _flash_backward(node: Node, graph: Graph, g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, dropout: float,
                    causal: bool, *, attn_mask: Any = None, scale: Any = None) -> tuple:
    return tuple(_pull_back(graph, lambda q, k, v: _attend(q, k, v, attn_mask, causal, scale)[0], (q, k, v), g, [True] * 3))


FORMS[_FLASH.default] = lambda node: len(node.args) < 4 or node.args[3] == 0
FORMS[_FLASH_BACK.default] = lambda node: node.args[6] == 0
KEPT = [_FLASH.default, aten.native_dropout.default, aten._softmax.default, aten._log_softmax.default, aten.gelu.default, aten.silu.default, aten.mish.default,
        aten.hardswish.default, aten.hardsigmoid.default, aten.leaky_relu.default, aten.hardtanh.default, aten.elu.default,
        aten.addmm.default, aten.softplus.default, aten.embedding_dense_backward.default]

# ---- norms ----------------------------------------------------------------------------------------------------------------


def _wide(*xs: Any) -> list[Any]:
    """Halves are computed in f32."""
    return [x.astype(float32) if isinstance(x, Tensor) and x.dtype in (float16, bfloat16) else x for x in xs]


def _as_results(node: Node, *ys: Any) -> tuple:
    """Of the dtypes that PyTorch says; None where nobody asks for one."""
    return tuple(None if y is None else y.astype(DTYPES[val.dtype]) for y, val in zip(ys, node.meta["val"]))


def _channels(x: Any, ndim: int) -> Any:
    """[C] as [C,1,..], beside [N,C,..]."""
    return x.reshape((-1,) + (1,) * (ndim - 2)) if isinstance(x, Tensor) else x


def _normed(x: Tensor, n: int, w: Any, b: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Over the last n axes; the mean, and one by the deviation."""
    x, w, b = _wide(x, w, b)
    inner = list(range(x.ndim - n, x.ndim))
    mean, scale = x.mean(inner, True), (x.var(inner, True, 0) + eps).rsqrt()
    y = (x - mean) * scale
    y = y if w is None else y * w
    return y if b is None else y + b, mean, scale


@op(aten.native_layer_norm.default)
def _layer_norm(node: Node, graph: Graph, x: Tensor, shape: Sequence[int], w: Any, b: Any, eps: float) -> tuple:
    return _as_results(node, *_normed(x, len(shape), w, b, eps))


@op(aten.native_layer_norm_backward.default)
def _layer_norm_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, scale: Tensor, w: Any, b: Any,
                         mask: Sequence[bool]) -> tuple:
    g, x, mean, scale, w = _wide(g, x, mean, scale, w)
    outer = list(range(x.ndim - len(shape)))
    inner = list(range(len(outer), x.ndim))
    n = math.prod(shape)
    y = (x - mean) * scale
    dy = g if w is None else g * w
    dx = (scale / n) * (dy * n - dy.sum(inner, True) - y * (dy * y).sum(inner, True)) if mask[0] else None
    dw = None if not mask[1] or w is None else (g * y).sum(outer) if outer else g * y
    return _as_results(node, dx, dw, None if not mask[2] else g.sum(outer) if outer else g)


@op(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(node: Node, graph: Graph, dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, axis: int) -> tuple:
    dw, v, g, norms = _wide(dw, v, g, norms)
    others = [a for a in range(v.ndim) if a != axis % v.ndim]
    along = (dw * v).sum(others, True)
    n = norms.reshape(along.shape)
    return _as_results(node, g.reshape(along.shape) / n * (dw - v * (along / (n * n))), (along / n).reshape(g.shape))


# What PyTorch has whole layers of attention for, in inference.
_MASKS: dict[Any, Callable[[Tensor], Tensor]] = {0: lambda m: m.reshape((1, 1) + m.shape), 1: lambda m: m.reshape((m.shape[0], 1, 1, m.shape[1])),
                                                 2: lambda m: m, None: lambda m: m}


def _heads(graph: Graph, xs: Sequence[Tensor], heads: int, in_w: Tensor, in_b: Tensor, out_w: Tensor, out_b: Tensor, mask: Any, kind: Any) -> tuple:
    """Attention [N,T,D] of xs (query, key, value; one: all three), and its weights [N,H,T,S]. mask: true, or not 0, is left out."""
    d = in_w.shape[1]
    if len(xs) == 1:
        rows = xs[0] @ in_w.T + in_b
        parts = [rows[..., i * d:(i + 1) * d] for i in range(3)]
    else:
        parts = [x @ in_w[i * d:(i + 1) * d].T + in_b[i * d:(i + 1) * d] for i, x in enumerate(xs)]
    q, k, v = [p.reshape(p.shape[:2] + (heads, d // heads)).transpose([0, 2, 1, 3]) for p in parts]
    if mask is not None:
        mask = _MASKS[kind]((mask == 0).astype(bool_))
    y, scores = _attend(q, k, v, mask, False, None)
    y = y.transpose([0, 2, 1, 3]).reshape((q.shape[0], q.shape[2], d))
    return y @ out_w.T + out_b, scores


@op(aten._native_multi_head_attention.default)
def _whole_attention(node: Node, graph: Graph, q: Tensor, k: Tensor, v: Tensor, width: int, heads: int, in_w: Tensor, in_b: Tensor, out_w: Tensor,
                     out_b: Tensor, mask: Any = None, need_weights: bool = True, average: bool = True, kind: Any = None) -> tuple:
    y, scores = _heads(graph, (q,) if node.args[0] is node.args[1] is node.args[2] else (q, k, v), heads, in_w, in_b, out_w, out_b, mask, kind)
    if not need_weights:
        return y, None
    weights = nn.softmax(scores, -1).astype(q.dtype)
    return y, weights.mean([1]) if average else weights


@op(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(node: Node, graph: Graph, x: Tensor, width: int, heads: int, in_w: Tensor, in_b: Tensor, out_w: Tensor, out_b: Tensor, gelu: bool,
                   first: bool, eps: float, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, up_w: Tensor, up_b: Tensor, down_w: Tensor, down_b: Tensor,
                   mask: Any = None, kind: Any = None) -> Tensor:
    def attended(x: Tensor) -> Tensor:
        return _heads(graph, (x,), heads, in_w, in_b, out_w, out_b, mask, kind)[0]

    def fed(x: Tensor) -> Tensor:
        y = x @ up_w.T + up_b
        return (_gelu(y) if gelu else y.maximum(0)) @ down_w.T + down_b

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return _normed(x, 1, w, b, eps)[0].astype(x.dtype)

    if first:
        x = x + attended(norm(x, w1, b1))
        return x + fed(norm(x, w2, b2))
    x = norm(x + attended(x), w1, b1)
    return norm(x + fed(x), w2, b2)


@op(aten._native_batch_norm_legit_functional.default)
def _batch_norm(node: Node, graph: Graph, x: Tensor, w: Any, b: Any, running_mean: Tensor, running_var: Tensor, training: bool,
                momentum: float, eps: float) -> tuple:
    x, w, b, mean, var = _wide(x, w, b, running_mean, running_var)
    if training:
        axes = [0, *range(2, x.ndim)]
        n = math.prod(x.shape[a] for a in axes)
        mean, var = x.mean(axes), x.var(axes, False, 0)
        running_mean = mean * momentum + running_mean * (1 - momentum)
        if isinstance(n, Dim):
            many = n.value().astype(var.dtype)
            unbiased = var * (many / (many - 1) * momentum)
        else:
            unbiased = var * (n / (n - 1) * momentum if n > 1 else math.nan)
        running_var = unbiased + running_var * (1 - momentum)
    scale = (var + eps).rsqrt()
    y = (x - _channels(mean, x.ndim)) * _channels(scale, x.ndim)
    y = y if w is None else y * _channels(w, x.ndim)
    y = y if b is None else y + _channels(b, x.ndim)
    kept = (mean, scale) if training else (graph.full((0,), 0, x.dtype),) * 2
    return _as_results(node, y, *kept, running_mean, running_var)


@op(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(node: Node, graph: Graph, x: Tensor, w: Any, b: Any, mean: Tensor, var: Tensor, momentum: float,
                          eps: float) -> tuple:
    return _batch_norm(node, graph, x, w, b, mean, var, False, momentum, eps)  # the first three results


@op(aten.native_batch_norm_backward.default)
def _batch_norm_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, w: Any, running_mean: Any, running_var: Any, mean: Any, scale: Any,
                         training: bool, eps: float, mask: Sequence[bool]) -> tuple:
    g, x, w, mean, scale = _wide(g, x, w, *((mean, scale) if training else (running_mean, (_wide(running_var)[0] + eps).rsqrt())))
    axes = [0, *range(2, x.ndim)]
    n = math.prod(x.shape[a] for a in axes)
    total = g.sum(axes)
    away = x - _channels(mean, x.ndim)
    product = (g * away).sum(axes)
    by = _channels(scale if w is None else scale * w, x.ndim)
    dx = g
    if training:
        dx = g - away * _channels(product * scale * scale / n, x.ndim) - _channels(total / n, x.ndim)
    return _as_results(node, dx * by if mask[0] else None, product * scale if mask[1] else None, total if mask[2] else None)


# ---- gradients of activations ---------------------------------------------------------------------------------------------


def _gelu_backward(g: Tensor, x: Tensor, approximate: str) -> Tensor:
    if approximate == "none":
        return g * (((x * math.sqrt(0.5)).erf() + 1) * 0.5 + x * (x * x * -0.5).exp() * math.sqrt(0.5 / math.pi))
    b, k = math.sqrt(2 / math.pi), 0.044715
    t = ((x + x * x * x * k) * b).tanh()
    return g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * ((x * x * (3 * k) + 1) * b))


def _silu_backward(g: Tensor, x: Tensor) -> Tensor:
    s = x.sigmoid()
    return g * s * (x * (1 - s) + 1)


def _gradient(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(node: Node, graph: Graph, g: Tensor, x: Tensor, *args: Any, approximate: str = "") -> Tensor:
        g, x = _wide(g, x)
        return fn(g, x, *args, *([approximate] if approximate else [])).astype(result_dtype(node))
    return run


OPS[aten.gelu_backward.default] = _gradient(lambda g, x, approximate="none": _gelu_backward(g, x, approximate))
OPS[aten.silu_backward.default] = _gradient(_silu_backward)
OPS[aten.threshold_backward.default] = _gradient(lambda g, x, at: where(x <= at, 0, g))
OPS[aten.hardtanh_backward.default] = _gradient(lambda g, x, lo, hi: where((x <= lo) | (x >= hi), 0, g))


# ---- pooling --------------------------------------------------------------------------------------------------------------


def _windows(x: Tensor, kernel: list, stride: Any, padding: Any, dilation: Any, ceil: bool, fill: float) -> tuple[Tensor, list, list, list]:
    """x[..,spatial] -> [..,positions,kernel], and kernel, stride and padding as lists. ceil: windows may hang over the end."""
    n = len(kernel)
    padding, dilation = _pair(padding, n), _pair(dilation, n)
    stride = _pair(stride, n) if stride else kernel
    first = x.ndim - n
    border = []
    for d, k, s, p, e in zip(x.shape[first:], kernel, stride, padding, dilation):
        reach, more = e * (k - 1) + 1, 0
        if ceil:
            out = -(-(d + 2 * p - reach) // s) + 1
            if (out - 1) * s >= d + p:
                out -= 1
            more = max((out - 1) * s + reach - (d + 2 * p), 0)
        border.append((p, p + more))
    if any(a or b for a, b in border):
        x = x.pad([(0, 0)] * first + border, fill)
    return F.window(x, list(range(first, x.ndim)), kernel, stride, dilation), kernel, stride, padding


@op(aten.max_pool2d_with_indices.default)
def _max_pool(node: Node, graph: Graph, x: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
              ceil: bool = False) -> tuple:
    v, kernel, stride, padding = _windows(x, _pair(kernel, 2), stride, padding, dilation, ceil, -math.inf)
    dilation = _pair(dilation, 2)
    flat = v.reshape(v.shape[:-2] + (kernel[0] * kernel[1],))
    at = flat.argmax(-1)
    rows = graph.iota(at.shape, at.ndim - 2) * stride[0] - padding[0]
    columns = graph.iota(at.shape, at.ndim - 1) * stride[1] - padding[1]
    index = rows * x.shape[-1] + columns + at * dilation[1]
    for row in range(1, kernel[0]):  # the row of the window that `at` lies in: a division of 64 bits takes longer than the pool
        below, down, back = (at >= row * kernel[1]).astype(at.dtype), dilation[0] * x.shape[-1], kernel[1] * dilation[1]
        index = index + (below * down - below * back if isinstance(down, Dim) else below * (down - back))  # images may be narrower
    return flat.max(-1), index


FORMS[aten.max_pool2d_with_indices.default] = lambda node: result_dtype_of(node, 0).kind == "f"


def result_dtype_of(node: Node, i: int) -> DType:
    return DTYPES[node.meta["val"][i].dtype]


@op(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
                       indices: Tensor) -> Tensor:
    plane = x.shape[-2] * x.shape[-1]
    planes = math.prod(x.shape[:-2])
    at = indices.reshape((planes, -1)) + graph.iota((planes, 1), 0) * plane
    zeros = graph.full((x.size,), 0, x.dtype)
    return F.scatter_add(zeros, at.flatten(), g.flatten(), 0).reshape(x.shape)


def _average(x: Tensor, n: int, kernel: Any, stride: Any = (), padding: Any = (0,), ceil: bool = False, count_padding: bool = True,
             divisor: Optional[int] = None) -> Tensor:
    """Over the last n axes."""
    axes = tuple(range(-n, 0))

    def total(t: Tensor) -> Tensor:
        v, *_ = _windows(t, kernel, stride, padding, (1,), ceil, 0)
        return v.sum(axes)
    kernel = _pair(kernel, n)
    if divisor is not None:
        return total(x) / divisor
    if count_padding and not ceil:
        return total(x) / math.prod(kernel)
    ones = x.graph.full(x.shape[-n:], 1, x.dtype)
    if count_padding:
        ones = x.graph.full(tuple(d + 2 * p for d, p in zip(x.shape[-n:], _pair(padding, n))), 1, x.dtype)
        v, *_ = _windows(ones, kernel, stride, (0,), (1,), ceil, 0)
        return total(x) / v.sum(axes)
    return total(x) / total(ones)


def _axes_of_pool(node: Node) -> int:
    return 3 if "3d" in str(node.target) else 2


@op(aten.avg_pool2d.default, aten.avg_pool3d.default)
def _avg_pool(node: Node, graph: Graph, x: Tensor, *args: Any) -> Tensor:
    return _average(x, _axes_of_pool(node), *args)


@op(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def _avg_pool_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _pull_back(graph, lambda t: _average(t, _axes_of_pool(node), *args), (x,), g, [True])[0]


def _adaptive(x: Tensor, size: Sequence[int]) -> Tensor:
    """Means of windows from floor(i d / n) to ceil((i + 1) d / n): a contraction with their weights along each axis."""
    for axis, n in zip(range(x.ndim - len(size), x.ndim), size):
        d = x.shape[axis]
        weights = np.zeros((d, n), x.dtype.numpy or np.float32)
        for i in range(n):
            lo, hi = i * d // n, -(-(i + 1) * d // n)
            weights[lo:hi, i] = 1 / (hi - lo)
        x = F.dot_general(x, x.graph.constant(weights).astype(x.dtype), ([axis], [0]))  # the new axis is the last
        x = x.transpose([*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)])
    return x


@op(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(node: Node, graph: Graph, x: Tensor, size: Sequence[int]) -> Tensor:
    return _adaptive(x, size)


@op(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool_backward(node: Node, graph: Graph, g: Tensor, x: Tensor) -> Tensor:
    return _pull_back(graph, lambda t: _adaptive(t, g.shape[-_axes_of_pool(node):]), (x,), g, [True])[0]


# ---- gathering ------------------------------------------------------------------------------------------------------------


@op(aten.embedding.default)
def _embedding(node: Node, graph: Graph, w: Tensor, index: Tensor, *_: Any) -> Tensor:
    return graph.wrap(lib.tn_gather(w._at(), index._t, 0))


@op(aten.embedding_dense_backward.default)
def _embedding_backward(node: Node, graph: Graph, g: Tensor, index: Tensor, rows: int, padding: int, by_frequency: bool) -> Tensor:
    if padding >= 0:
        g = where((index == padding).expand_dims(-1), 0, g)
    zeros = graph.full((rows, g.shape[-1]), 0, g.dtype)
    return F.scatter_add(zeros, index.flatten(), g.reshape((index.size, g.shape[-1])), 0)


FORMS[aten.embedding_dense_backward.default] = lambda node: not node.args[4]


@op(aten.index_select.default)
def _index_select(node: Node, graph: Graph, x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.take(index, dim)


def _flat_index(graph: Graph, shape: Sequence[int], dims: Sequence[int], indices: Sequence[Tensor]) -> Tensor:
    """Positions in the axes `dims` of a shape, as one number."""
    flat = None
    for d, i in zip(dims, indices):
        i = i.astype(int64)
        i = where(i < 0, i + shape[d], i)
        flat = i if flat is None else flat * shape[d] + i
    assert flat is not None
    return flat


def _places_along(graph: Graph, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Places in x, as one axis, of the elements that an index along an axis means."""
    at = [index if a == dim % x.ndim else graph.iota(index.shape, a) for a in range(x.ndim)]
    return _flat_index(graph, x.shape, range(x.ndim), at).flatten()


@op(aten.gather.default)
def _gather(node: Node, graph: Graph, x: Tensor, dim: int, index: Tensor, **_: Any) -> Tensor:
    if not x.ndim:
        return x.broadcast_to(index.shape)
    return x.flatten().take(_places_along(graph, x, dim, index)).reshape(index.shape)


@op(aten.scatter_add.default)
def _scatter_add(node: Node, graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    source = source[tuple(slice(0, d) for d in index.shape)]
    return F.scatter_add(x.flatten(), _places_along(graph, x, dim, index), source.flatten(), 0).reshape(x.shape)


@op(aten.scatter.src)
def _scatter_source(node: Node, graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    source = source[tuple(slice(0, d) for d in index.shape)].astype(x.dtype)
    return F.scatter_set(x.flatten(), _places_along(graph, x, dim, index), source.flatten(), 0).reshape(x.shape)


FORMS[aten.scatter.src] = lambda node: node.args[0].meta["val"].ndim > 0
_REDUCTIONS = {"sum": ("add", 0), "prod": ("mul", 1), "amax": ("max", None), "amin": ("min", None), "mean": ("add", 0)}


@op(aten.scatter_reduce.two)
def _scatter_reduce(node: Node, graph: Graph, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
                    include_self: bool = True) -> Tensor:
    """Where nothing is written x stays; else what is written there is reduced, with x if include_self."""
    mode, first = _REDUCTIONS[reduce]
    source = source[tuple(slice(0, d) for d in index.shape)].flatten()
    at, base = _places_along(graph, x, dim, index), x.flatten()
    count = F.scatter_add(graph.full(base.shape, 0, int32), at, graph.full(at.shape, 1, int32), 0)
    if not include_self:
        lowest = -math.inf if reduce == "amax" else math.inf
        base = where(count > 0, lowest if first is None else first, base).astype(x.dtype)
    y = F.scatter(base, at, source, 0, mode)
    if reduce == "mean":
        n = count + 1 if include_self else where(count > 0, count, 1)
        y = y / n.astype(x.dtype)
    return y.reshape(x.shape)


FORMS[aten.scatter_reduce.two] = lambda node: (node.args[0].meta["val"].ndim > 0 and result_dtype(node).kind == "f" and
                                               node.args[0].meta["val"].dtype == node.args[3].meta["val"].dtype)


@op(aten.scatter.value)
def _scatter_value(node: Node, graph: Graph, x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """x with one value at the positions: those that are hit at least once have it."""
    flat = _places_along(graph, x, dim, index)
    hits = F.scatter_add(graph.full((x.size,), 0, int32), flat, graph.full(flat.shape, 1, int32), 0).reshape(x.shape)
    return build_op(graph, "select", hits > 0, _filled(graph, x.shape, value, x.dtype), x)


def _index_form(node: Node) -> bool:
    """Integers at neighbouring axes."""
    given = [(i, n) for i, n in enumerate(node.args[1]) if n is not None]
    dims = [i for i, _ in given]
    return bool(dims) and dims == list(range(dims[0], dims[0] + len(dims))) and all(
        isinstance(n, Node) and n.meta["val"].dtype in (torch.int32, torch.int64) for _, n in given)


def _broadcast(shapes: Sequence[tuple]) -> tuple:
    """The shape of what has all of these."""
    rank = max(map(len, shapes))
    rows = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((d for d in column if d != 1), 1) for column in zip(*rows))


def _index_places(graph: Graph, x: Tensor, indices: Sequence[Optional[Tensor]]) -> tuple[Tensor, Tensor, list[int], tuple[int, ...]]:
    """x with the indexed axes as one, the places in it, the axes, and the shape of the indices."""
    dims = [i for i, t in enumerate(indices) if t is not None]
    given = [t for t in indices if t is not None]
    shape = _broadcast([t.shape for t in given])
    flat = _flat_index(graph, x.shape, dims, [t.broadcast_to(shape) for t in given])
    rows = math.prod(x.shape[d] for d in dims)
    return x.reshape(x.shape[: dims[0]] + (rows,) + x.shape[dims[-1] + 1:]), flat, dims, shape


@op(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(node: Node, graph: Graph, x: Tensor, indices: Sequence[Optional[Tensor]]) -> Tensor:
    rows, flat, dims, _ = _index_places(graph, x, indices)
    return graph.wrap(lib.tn_gather(rows._at(), flat._t, dims[0]))


@op(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(node: Node, graph: Graph, x: Tensor, indices: Sequence[Optional[Tensor]], values: Tensor, accumulate: bool = False) -> Tensor:
    rows, flat, dims, shape = _index_places(graph, x, indices)
    wanted = x.shape[: dims[0]] + tuple(shape) + x.shape[dims[-1] + 1:]
    values = values.astype(x.dtype).broadcast_to(wanted)
    return F.scatter(rows, flat, values, dims[0], "add" if accumulate else "set").reshape(x.shape)


@op(aten.masked_scatter.default)
def _masked_scatter(node: Node, graph: Graph, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The n-th place of the mask gets the n-th element of source."""
    mask = mask.broadcast_to(x.shape).flatten()
    at = mask.astype(int64).cumsum(0) - 1
    return where(mask, source.flatten().take(at), x.flatten()).reshape(x.shape)


FORMS[aten.masked_scatter.default] = lambda node: node.args[2].meta["val"].numel() != 0


@op(aten.topk.default)
def _topk(node: Node, graph: Graph, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple:
    return F.top_k(x, k, dim, largest)


@op(aten.sort.default, aten.sort.stable)
def _sort(node: Node, graph: Graph, x: Tensor, dim: int = -1, descending: bool = False, *, stable: Any = None) -> tuple:
    index = F.argsort(x, dim, descending)
    return F.take_along_axis(x, index, dim), index


FORMS[aten.topk.default] = FORMS[aten.sort.default] = FORMS[aten.sort.stable] = lambda node: node.args[0].meta["val"].ndim > 0


@op(aten._cdist_forward.default)
def _cdist(node: Node, graph: Graph, a: Tensor, b: Tensor, p: float, *_: Any) -> Tensor:
    """Distances of rows: the p-norm of a[..,i,:] - b[..,j,:]."""
    d = (a.expand_dims(-2) - b.expand_dims(-3)).abs()
    if p == math.inf:
        return d.max(-1)
    return (d * d).sum(-1).sqrt() if p == 2 else d.sum(-1) if p == 1 else (d ** p).sum(-1) ** (1 / p)


@op(aten._cdist_backward.default)
def _cdist_backward(node: Node, graph: Graph, g: Tensor, a: Tensor, b: Tensor, p: float, distance: Tensor) -> Tensor:
    """Of a; no direction where the distance is 0."""
    d, g, distance = a.expand_dims(-2) - b.expand_dims(-3), g.expand_dims(-1), distance.expand_dims(-1)
    there = where(distance == 0, 1, distance)
    if p == math.inf:
        each = where(d.abs() == distance, d.sign(), 0)
    elif p in (1, 2):
        each = d.sign() if p == 1 else d / there
    else:
        each = d.sign() * (d.abs() / there) ** (p - 1)
    return where(distance == 0, 0, g * each).sum(-2)


@op(aten._trilinear.default)
def _trilinear(node: Node, graph: Graph, a: Tensor, b: Tensor, c: Tensor, expand1: Sequence[int], expand2: Sequence[int],
               expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1) -> Tensor:
    for axes, at in ((expand1, 0), (expand2, 1), (expand3, 2)):
        for axis in sorted(axes):
            a, b, c = [t.expand_dims(axis) if i == at else t for i, t in enumerate((a, b, c))]
    return (a * b * c).sum(tuple(sumdim))


@op(aten.diagonal_scatter.default)
def _diagonal_scatter(node: Node, graph: Graph, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    at = np.arange(x.size).reshape(x.shape).diagonal(offset, dim1, dim2)
    return F.scatter_set(x.flatten(), graph.constant(at.flatten()), source.astype(x.dtype).flatten(), 0).reshape(x.shape)


FORMS[aten.diagonal_scatter.default] = lambda node: all(isinstance(d, int) for d in node.args[0].meta["val"].shape)


@op(aten.masked_scatter_backward.default)
def _masked_scatter_backward(node: Node, graph: Graph, g: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    mask = mask.broadcast_to(g.shape).flatten()
    at = where(mask, mask.astype(int64).cumsum(0) - 1, -1)  # which is skipped
    return F.scatter_add(graph.full((math.prod(sizes),), 0, g.dtype), at, g.flatten(), 0).reshape(tuple(sizes))


_SAMPLING = (2, 0, 3)  # linear, nearest, cubic


def _sampled(x: Tensor, grid: Tensor, mode: int, border: int, corners: bool) -> Tensor:
    """Images are [N,C,H,W]; modes and borders as PyTorch numbers them."""
    options = _abi.tn_nn_grid_opts(mode=_SAMPLING[mode], padding=border, align_corners=corners)
    y = lib.tn_nn_grid_sample(x.transpose([0, 2, 3, 1])._at(), grid._t, options)
    return x.graph.wrap(y).transpose([0, 3, 1, 2])


@op(aten.grid_sampler_2d.default)
def _grid_sample(node: Node, graph: Graph, x: Tensor, grid: Tensor, mode: int, border: int, corners: bool) -> Tensor:
    return _sampled(x, grid, mode, border, corners)


@op(aten.grid_sampler_2d_backward.default)
def _grid_sample_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, grid: Tensor, mode: int, border: int, corners: bool,
                          wanted: Sequence[bool]) -> tuple:
    return tuple(_pull_back(graph, lambda x, grid: _sampled(x, grid, mode, border, corners), (x, grid), g, wanted))


def _edges(x: Tensor, border: Sequence[int]) -> Tensor:
    for i in range(len(border) // 2):
        x = x.graph.wrap(lib.tn_nn_pad(x._at(), -1 - i, border[2 * i], border[2 * i + 1], 0))
    return x


@op(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def _replication_pad(node: Node, graph: Graph, x: Tensor, border: Sequence[int]) -> Tensor:
    return _edges(x, border)


@op(aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default)
def _replication_pad_backward(node: Node, graph: Graph, g: Tensor, x: Tensor, border: Sequence[int]) -> Tensor:
    return _pull_back(graph, lambda t: _edges(t, border), (x,), g, [True])[0]


def _edges_form(at: int) -> Callable[[Node], bool]:
    return lambda node: min(node.args[at]) >= 0


for _pad in (aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d):
    FORMS[_pad.default] = _edges_form(1)
for _pad in (aten.replication_pad1d_backward, aten.replication_pad2d_backward, aten.replication_pad3d_backward):
    FORMS[_pad.default] = _edges_form(2)
FORMS[aten._cdist_forward.default] = lambda node: node.args[2] >= 1 and node.args[0].meta["val"].shape[-1] > 0
FORMS[aten._cdist_backward.default] = lambda node: node.args[3] >= 1 and node.args[1].meta["val"].shape[-1] > 0
FORMS[aten.index.Tensor] = FORMS[aten._unsafe_index.Tensor] = _index_form
FORMS[aten.index_put.default] = FORMS[aten._unsafe_index_put.default] = _index_form
