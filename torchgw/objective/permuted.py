"""The linearised cost of permutations, up to row and column terms: E(s) = -2 D_X P_s D_Y, with 1 / N at all (i, s(i)).

What changes from s to s' is a product over the points M whose match changes, O(N^2 |M|),

    E(s') - E(s) = -2 / N  D_X[:, M] (D_Y[s'(M)] - D_Y[s(M)]).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.objective.exact import ExactGradient, Factors, assemble_factored_cost

FRESH = 0.5  # share of the points, from which all products take less than those that change


@dataclass(frozen=True)
class FactoredPermutations:
    """E of spaces with factors, in float64.

    left, right : F (N, r), G (N, r') with their signs.
    a, b : row and column terms (N,) of C.
    """

    left: Factors
    right: Factors
    a: Tensor
    b: Tensor

    @property
    def constant(self) -> float:
        """What row and column terms add to the value of every permutation."""
        return float(self.a.mean() + self.b.mean())

    def cost_of(self, match: Tensor, out: Tensor | None = None) -> Tensor:
        """E (N, N) of a permutation (N,)."""
        product = self.left[0].T @ self.right[0][match] / len(match)
        cost = assemble_factored_cost(self.left, self.right, product, self.a, self.b)
        return torch.mm(cost.U * -2.0, cost.V.T, out=out)

    def value(self, match: Tensor, cost: Tensor | None = None) -> float:
        """The objective of a permutation (N,), from its E (N, N) where that is at hand."""
        found = self.cost_of(match) if cost is None else cost
        return self.constant + float(found.gather(1, match[:, None]).mean())

    def update_cost(self, cost: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """E of another permutation, in the memory of that of the ``old`` one."""
        return self.cost_of(new, cost)


def make_permutation_objective(gradient: ExactGradient) -> FactoredPermutations | None:
    """Those of a gradient in float64 between spaces with factors; None where there are none."""
    left, right = gradient.source.factors(), gradient.target.factors()
    return None if left is None or right is None else FactoredPermutations(left, right, gradient.a, gradient.b)
