"""Gromov-Wasserstein as a loss: one differentiable number."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchgw.gradients.modes import Envelope, GradientMode
from torchgw.gw.align import gw_align
from torchgw.status import Status


def gw_loss(
    X: Any,
    Y: Any,
    *,
    gradient_mode: GradientMode = Envelope(),  # noqa: B008 - frozen, so one instance serves every call
    **arguments: Any,
) -> Tensor:
    """The entropic Gromov-Wasserstein objective of two spaces, differentiable in all that it is made of.

    Parameters
    ----------
    X, Y : points, distance matrices or distance providers as in `gw_align`. Those given as tensors that require
        gradients get them, and so do ``p``, ``q``, ``alpha`` (a tensor ()), and ``cost``: a matrix, features, or a
        `FeatureCost`.
    gradient_mode : `Envelope`, exact for the solved plan, unless iterations are to be recorded (`Unrolled`).
    arguments : all others of `gw_align`, by name.

    Returns
    -------
    The regularised objective (), in the precision of the widest tensor that requires a gradient, float64 for none: the
    value with its entropy, in units of the squared scaled distances. Each space is divided by its own largest distance
    unless ``SpaceOptions(scale=)`` says otherwise, and the derivative of that is part of the gradient; a fixed number
    makes sizes count.

    Raises
    ------
    As `gw_align`; ValueError for ``epsilon=0``, sampled gradients and couplings of low rank. A second differentiation
    raises RuntimeError but with `Unrolled`.

    Notes
    -----
    At a stationary plan the gradient of the objective is its partial derivative with plan and dual potentials held
    fixed, so it costs one product of the plan with distances. What the solve leaves counts: the relative error is
    about twice the marginal residual, 1e-9 where the plan is stored and a few 1e-3 where it streams, unless
    ``Envelope(tol=)`` asks for less. Start from the plan of the last step of a training loop with ``init=``;
    `gw_align` gives that plan and the loss together, as ``result.plan`` and ``result.loss``.

    Examples
    --------
    >>> import torch, torchgw
    >>> X = torch.rand(30, 3, dtype=torch.float64, requires_grad=True)
    >>> Y = torch.rand(40, 2, dtype=torch.float64)
    >>> torchgw.gw_loss(X, Y, distances="euclidean", epsilon=1e-2, random_state=0).backward()
    >>> X.grad.shape
    torch.Size([30, 3])
    """
    if gradient_mode is None:
        raise TypeError("gradient_mode must be Envelope(), Implicit() or Unrolled(), got None; in gw_align it may be")
    result = gw_align(X, Y, gradient_mode=gradient_mode, **arguments)
    if result.status is Status.CANCELLED and arguments.get("callback") is None:
        raise KeyboardInterrupt  # nobody sees the status of a loss
    return result.loss
