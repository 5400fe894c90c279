"""Optimisers: they add the gradients of a loss by the graph's parameters, and their updates, to the graph.

Every run of a program that is compiled afterwards is one training step. All reads in a run see the values from before it."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from . import _abi
from ._core import Tensor, lib

Rate = Union[float, Tensor]
ZERO = -0.0  # TN_NN_ZERO: the library takes 0 for "the default"


def _common(lr: Rate, params: Optional[Sequence[Tensor]], name: Optional[str]) -> dict[str, Any]:
    out: dict[str, Any] = {"rate": lr._t} if isinstance(lr, Tensor) else {"lr": lr or ZERO}
    if params is not None:
        given = (_abi.tn_tensor * len(params))(*[p._t for p in params])
        out.update(params=_abi.C.cast(given, _abi.C.c_void_p), n_params=len(params))
        out["_keep"] = given
    if name is not None:
        out["name"] = name.encode()
    return out


def _apply(builder: Any, loss: Tensor, opts_type: Any, common: dict[str, Any], **more: Any) -> None:
    keep = common.pop("_keep", None)
    opts = opts_type(**common, **more)
    loss.graph.at()
    builder(loss._t, opts)
    del keep
    loss.graph._done()


def sgd(loss: Tensor, lr: Rate = 0.01, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0,
        params: Optional[Sequence[Tensor]] = None, name: Optional[str] = None) -> None:
    """Gradient descent. lr may be a scalar tensor, such as a schedule. params None = every parameter of the graph."""
    _apply(lib.tn_nn_sgd, loss, _abi.tn_nn_optim_opts, _common(lr, params, name), momentum=momentum, nesterov=int(nesterov),
           weight_decay=weight_decay)


def adam(loss: Tensor, lr: Rate = 0.001, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
         decoupled: bool = False, params: Optional[Sequence[Tensor]] = None, name: Optional[str] = None) -> None:
    """Adam; with decoupled weight decay AdamW. Steps are counted in the state "<name>/step"."""
    _apply(lib.tn_nn_adam, loss, _abi.tn_nn_optim_opts, _common(lr, params, name), beta1=betas[0] or ZERO, beta2=betas[1] or ZERO, eps=eps or ZERO,
           weight_decay=weight_decay, decoupled=int(decoupled))


def adamw(loss: Tensor, lr: Rate = 0.001, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01,
          params: Optional[Sequence[Tensor]] = None, name: Optional[str] = None) -> None:
    """Adam with weight decay taken from the parameters themselves."""
    adam(loss, lr, betas=betas, eps=eps, weight_decay=weight_decay, decoupled=True, params=params, name=name)
