"""Gromov-Wasserstein as a loss: one differentiable number."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch import Tensor

from torchgw import validate
from torchgw.align import Cost, gw_align
from torchgw.diagnostics.status import Status
from torchgw.entry import entry
from torchgw.gradients.modes import Envelope, GradientMode
from torchgw.marginals import Marginals
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.persist.checkpoint import Checkpoint
from torchgw.results.result import GWResult
from torchgw.types import Array, Callback, RandomState

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on


class Arguments(TypedDict, total=False):
    """What `gw_align` takes by name."""

    distances: str | tuple[str, str]
    p: Array | Tensor | None
    q: Array | Tensor | None
    cost: Cost | None
    alpha: float | Tensor | None
    supervision: Supervision | None
    init: Array | Tensor | GWResult | None
    epsilon: float
    marginals: Marginals
    options: GWOptions
    device: str | torch.device | None
    backend: str
    random_state: RandomState
    callback: Callback | None
    checkpoint: str | PathLike[str] | Checkpoint | None


@overload
def gw_loss(
    X: Any,
    Y: Any,
    *,
    gradient_mode: GradientMode = ...,
    return_result: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> Tensor: ...
@overload
def gw_loss(
    X: Any,
    Y: Any,
    *,
    gradient_mode: GradientMode = ...,
    return_result: Literal[True],
    **arguments: Unpack[Arguments],
) -> tuple[Tensor, GWResult]: ...
@entry(passes_to=gw_align)
def gw_loss(
    X: Any,
    Y: Any,
    *,
    gradient_mode: GradientMode = Envelope(),  # noqa: B008 - frozen, so one instance serves every call
    return_result: bool = False,
    **arguments: Unpack[Arguments],
) -> Tensor | tuple[Tensor, GWResult]:
    """The entropic Gromov-Wasserstein objective of two spaces, differentiable in all that it is made of.

    Parameters
    ----------
    X, Y : points, distance matrices or distance providers as in `gw_align`. Those given as tensors that require
        gradients get them, and so do ``p``, ``q``, ``alpha`` (a tensor ()), and ``cost``: a matrix, features, or a
        `FeatureCost`.
    gradient_mode : `Envelope`, exact for the solved plan, unless iterations are to be recorded (`Unrolled`).
    return_result : also return the `GWResult`, from which the next step of a training loop begins: ``init=result``.
    arguments : all others of `gw_align`, by name.

    Returns
    -------
    The regularised objective (), in the precision of the widest tensor that requires a gradient, float64 for none: the
    value with its entropy, in units of the squared scaled distances. Each space is divided by its own largest distance
    unless ``SpaceOptions(scale=)`` says otherwise, and the derivative of that is part of the gradient; a fixed number
    makes sizes count. With ``return_result`` the pair (objective, result); ``result.loss`` is the same number.

    Raises
    ------
    As `gw_align`; ValueError for ``epsilon=0``, sampled gradients and couplings of low rank. A second differentiation
    raises RuntimeError but with `Unrolled`.

    Notes
    -----
    At a stationary plan the gradient of the objective is its partial derivative with plan and dual potentials held
    fixed, so it costs one product of the plan with distances. What the solve leaves counts: the relative error is
    about twice the marginal residual, 1e-9 where the plan is stored and a few 1e-3 where it streams, unless
    ``Envelope(tol=)`` asks for less. Without ``init=`` most of the time goes into the search for the optimum, so let
    each step of a training loop begin at the result of the last one.

    Examples
    --------
    >>> import torch, torchgw
    >>> X = torch.rand(30, 3, dtype=torch.float64, requires_grad=True)
    >>> Y = torch.rand(40, 2, dtype=torch.float64)
    >>> torchgw.gw_loss(X, Y, distances="euclidean", epsilon=1e-2, random_state=0).backward()
    >>> X.grad.shape
    torch.Size([30, 3])
    >>> result = None
    >>> for _ in range(3):
    ...     loss, result = torchgw.gw_loss(X, Y, init=result, return_result=True, distances="euclidean", epsilon=1e-2)
    """
    if gradient_mode is None:
        raise TypeError("gradient_mode must be Envelope(), Implicit() or Unrolled(), got None; in gw_align it may be")
    validate.flag("return_result", return_result)
    result = gw_align(X, Y, gradient_mode=gradient_mode, **arguments)
    if return_result:
        return result.loss, result
    if result.status is Status.CANCELLED and arguments.get("callback") is None:
        raise KeyboardInterrupt  # nobody sees the status of a loss
    return result.loss
