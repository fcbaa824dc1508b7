"""The linearised cost of permutations, up to row and column terms: E(s) = -2 D_X P_s D_Y, with 1 / N at all (i, s(i)).

What changes from s to s' is a product over the points M whose match changes, O(N^2 |M|),

    E(s') - E(s) = -2 / N  D_X[:, M] (D_Y[s'(M)] - D_Y[s(M)]).

Between spaces that factors lead, D_X = L + R with L = F diag(s) F^T of small rank and little left in R, and likewise
D_Y = L' + R',

    D_X P D_Y = L P D_Y + R P L' + R P R',

of which all but the last term is cheap; and that one is small, so that float32 leaves 1e-11 to 1e-9 of the whole
(clouds in 3 to 200 dimensions; of hop counts factors leave half, and float32 4e-9).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.objective.exact import ExactGradient, Factors, assemble_factored_cost
from torchgw.objective.leading import ROWS

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

    def with_distances(self, D: Tensor, E: Tensor) -> ExactPermutations:
        """Those of the symmetric distances D, E (N, N), float64, that the factors stand for."""
        return ExactPermutations(self.left, self.right, self.a, self.b, D, E)


@dataclass(frozen=True)
class ExactPermutations(FactoredPermutations):
    """E of the distances that factors lead to.

    D, E : D_X, D_Y (N, N).
    """

    D: Tensor
    E: Tensor

    def cost_of(self, match: Tensor, out: Tensor | None = None) -> Tensor:
        D, E, (F, s), (G, t) = self.D, self.E, self.left, self.right
        unit, turned, matched = -2.0 / len(match), torch.empty_like(F), G[match]
        turned[match] = F
        found = torch.mm(unit * s * F, turned.T @ E, out=out)
        # Blocks share their memory, as fresh memory takes longer than what is done in it.
        room, narrow = torch.empty_like(D[:ROWS]), torch.empty_like(D[:ROWS], dtype=torch.float32)
        product, B = torch.empty_like(narrow), torch.empty_like(D, dtype=torch.float32)
        for where in blocks(len(D), ROWS):
            left = torch.index_select(E, 0, match[where], out=room[: where.stop - where.start])
            B[where] = left.addmm_(matched[where] * t, G.T, alpha=-1.0)
        for where in blocks(len(D), ROWS):
            rest, single, part = (each[: where.stop - where.start] for each in (room, narrow, product))
            torch.addmm(D[where], F[where] * s, F.T, alpha=-1.0, out=rest)
            found[where].addmm_((rest @ matched) * t, G.T, alpha=unit)
            found[where].add_(torch.mm(single.copy_(rest), B, out=part), alpha=unit)
        return found

    def update_cost(self, cost: Tensor, old: Tensor, new: Tensor) -> Tensor:
        moved = torch.nonzero(old != new)[:, 0]
        if len(moved) > FRESH * len(new):
            return self.cost_of(new, cost)
        return cost.addmm_(self.D[moved].T, self.E[new[moved]] - self.E[old[moved]], alpha=-2.0 / len(new))


def make_permutation_objective(gradient: ExactGradient) -> FactoredPermutations | None:
    """Those of a gradient in float64 between spaces with factors, leading ones or their own; None where there are
    none."""
    left, right = gradient.source.factors(), gradient.target.factors()
    return None if left is None or right is None else FactoredPermutations(left, right, gradient.a, gradient.b)
