"""The cost that an outer iteration solves for: half the derivative of the whole objective; see
`torchgw.objective.model`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling
from torchgw.objective.model import Model, mean_cost
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Coupling


class Gradient(Protocol):
    """The seam between the loop and the way its cost is found."""

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        """Linearised cost of ``coupling`` with row marginal ``p``; ``q`` is its column marginal where the two are not
        those that were asked for."""


def gradient_of(model: Model, quadratic: Gradient) -> Gradient:
    """The cost Chat of couplings, from that of the quadratic part."""
    return quadratic if model.plain else ModelGradient(quadratic, model)


def relative_entropy(coupling: Coupling, p: Tensor, q: Tensor) -> Tensor:
    """<T, log(T / p q^T)>, in blocks of rows."""
    assert isinstance(coupling, BlockCoupling)
    total = p.new_zeros(())
    log_q = q.clamp_min(torch.finfo(q.dtype).tiny).log()
    for where, block in coupling.blocks():
        block = block.to(p)
        log_p = p[where].clamp_min(torch.finfo(p.dtype).tiny).log()
        total += torch.special.xlogy(block, block).sum() - block.sum(1) @ log_p - block.sum(0) @ log_q
    return total


class ModelGradient:
    """The cost of the whole objective, from the gradient of its quadratic part."""

    def __init__(self, quadratic: Gradient, model: Model) -> None:
        self.quadratic, self.model = quadratic, model
        self._linear: dict[torch.dtype, FactoredCost | None] = {}

    def linear(self, dtype: torch.dtype) -> FactoredCost | None:
        """beta M + P."""
        if dtype not in self._linear:
            self._linear[dtype] = self.model.linear(dtype)
        return self._linear[dtype]

    def __call__(self, coupling: Coupling, p: Tensor, q: Tensor | None = None) -> FactoredCost:
        rows, columns = (side.to(p.dtype) for side in self.model.marginals_of(coupling))
        return self.of(self.raw(coupling, rows, columns), coupling, rows, columns)

    def evaluated(self, coupling: Coupling, p: Tensor) -> tuple[FactoredCost, Tensor]:
        """The cost, and F of the coupling without its entropy."""
        model = self.model
        rows, columns = (side.to(p.dtype) for side in model.marginals_of(coupling))
        raw = self.raw(coupling, rows, columns)
        energy = model.alpha * mean_cost(raw, coupling, rows, columns) + model.divergences(rows, columns, compared=True)
        linear = self.linear(p.dtype)
        if linear is not None:
            energy = energy + mean_cost(linear, coupling, rows, columns)
        return self.of(raw, coupling, rows, columns), energy

    def raw(self, coupling: Coupling, rows: Tensor, columns: Tensor) -> FactoredCost:
        """C(T), the linearised quadratic part, for a coupling with these marginals."""
        return self.quadratic(coupling, rows, None if self.model.fixed else columns)

    def of(self, raw: FactoredCost, coupling: Coupling, rows: Tensor, columns: Tensor) -> FactoredCost:
        """Chat from C(T)."""
        if not self.model.marginals.free_mass:
            return self.model.combined(raw, self.linear(raw.U.dtype))
        scale, constant = self.settled(raw, coupling, rows, columns)
        scaled = FactoredCost.weighted_sum([raw], [scale])
        return self.model.combined(scaled, self.linear(raw.U.dtype), scale * rows.sum(), constant)

    def settled(self, cost: FactoredCost, coupling: Coupling, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The factor c at which F(c T) is lowest, and the constant k of c T."""
        model, m = self.model, rows.sum()
        linear = self.linear(rows.dtype)
        value = 0.0 if linear is None else mean_cost(linear, coupling, rows, columns)
        entropy = relative_entropy(coupling, *(mass.to(rows) for mass in model.masses)) - m * model.logarithm
        base = model.slopes(rows, columns) + model.epsilon * entropy
        return model.lowest(mean_cost(cost, coupling, rows, columns), value, base, m)
