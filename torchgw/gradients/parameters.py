"""The parameters of a problem as differentiable expressions of what the user gave.

Gradients reach what was given by one node (`torchgw.runtime.autograd.reattach`): they are first derivatives, and a
second differentiation, which would take the plan for a constant, is refused there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.gradients.lagrangian import Parameters
from torchgw.marginals import Marginals, mass_scales
from torchgw.objective.features import FeatureCost, features_of
from torchgw.options import SpaceOptions
from torchgw.runtime.autograd import own_copies, reattach
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.spaces.traced import make_differentiable
from torchgw.types import DistanceProvider, is_provider

REFUSED = (
    "second derivatives of Gromov-Wasserstein losses and plans are not available with Envelope or Implicit gradients, "
    "whose graph takes the plan for a constant; take finite differences of gradients"
)


@dataclass(frozen=True)
class DifferentiableInputs:
    """The arguments that gradients flow to, and the validated numbers made of them.

    X, Y : spaces as given.
    p, q : masses (N,), (K,), or None.
    cost : linear cost, or None.
    alpha : weight of the quadratic part, a number or a tensor ().
    masses : validated p (N,) and q (K,), float64, uniform where none were given.
    marginals : the marginal model.
    spaces : the options of distances, whose scale has a derivative.
    """

    X: Any
    Y: Any
    p: Any
    q: Any
    cost: Any
    alpha: Any
    masses: tuple[Tensor, Tensor]
    marginals: Marginals
    spaces: SpaceOptions

    def leaves(self) -> list[Tensor]:
        """The tensors among them that require gradients."""
        costs = features_of(self.cost) or (self.cost,)
        found = [_leaf(self.X), _leaf(self.Y), self.p, self.q, *costs, self.alpha]
        return [given for given in found if isinstance(given, Tensor) and given.requires_grad]

    def dtype(self) -> torch.dtype:
        """The precision of gradients: that of the widest tensor they are for, float32 at least; float64 for none."""
        found = self.leaves()
        if not found:
            return torch.float64
        dtype = torch.float32
        for leaf in found:
            dtype = torch.promote_types(dtype, leaf.dtype)
        return dtype


def _leaf(space: Any) -> Any:
    """The tensor that a provider was made from, where it keeps it; other spaces as they are."""
    return getattr(space, "leaf", None) if is_provider(space) else space


def substitute_copies(given: Any, taken: dict[int, Tensor]) -> Any:
    """The argument, with the copies ``taken`` of tensors, by their ids, in their places."""
    if isinstance(given, FeatureCost):
        return FeatureCost(
            substitute_copies(given.X, taken), substitute_copies(given.Y, taken), given.metric, given.scale
        )
    if isinstance(given, tuple):
        return tuple(substitute_copies(side, taken) for side in given)
    return taken.get(id(given), given)


def parameters(
    given: DifferentiableInputs,
    made: tuple[DistanceProvider, DistanceProvider],
    dtype: torch.dtype,
    device: torch.device,
) -> Parameters:
    """theta of a problem with these providers, as a user gave them."""
    leaves = given.leaves()
    own = own_copies(leaves)
    taken = {id(leaf): copy for leaf, copy in zip(leaves, own, strict=True)}
    points = substitute_copies(_leaf(given.X), taken), substitute_copies(_leaf(given.Y), taken)
    x, y = make_differentiable(made, points, given.spaces, dtype, device)
    p, q = (
        (substitute_copies(side, taken) if isinstance(side, Tensor) else checked).to(device, dtype)
        for side, checked in zip((given.p, given.q), given.masses, strict=True)
    )
    scale, ends = mass_scales(given.marginals, p.sum(), q.sum())
    alpha = torch.as_tensor(substitute_copies(given.alpha, taken), dtype=dtype, device=device)
    cost = None if given.cost is None else _cost(substitute_copies(given.cost, taken), dtype, device)
    theta = Parameters(x, y, cost, p / ends[0], q / ends[1], alpha, scale)
    return theta.with_tensors(reattach(theta.tensors(), own, leaves, REFUSED))


def _cost(given: Any, dtype: torch.dtype, device: torch.device) -> FactoredCost:
    """The linear cost of a matrix, a pair of feature arrays or a `FeatureCost`."""

    def numbers(held: Any) -> Tensor:
        """A tensor with its derivatives, or what validation read from other arrays."""
        if isinstance(held, Tensor):
            return held.resolve_neg().to(device, dtype)
        read = validate.read("cost", held).astype(np.float64, copy=False)
        return validate.as_tensor(read).to(device, dtype)

    if isinstance(given, tuple):
        given = FeatureCost(*given)
    if isinstance(given, FeatureCost):
        return given.between(numbers(given.X), numbers(given.Y))[0]
    return FactoredCost.from_matrix(numbers(given))
