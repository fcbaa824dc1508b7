"""Steps between plans that are shortened where they begin to go to and fro.

Solving each linearisation to its end is a descent where the quadratic part is concave between plans, as squared losses
of distances are under hard marginals; otherwise two plans can be each other's answer. Then the next cost is taken at
T + s (S - T) instead of S, with s halved whenever two consecutive steps point in opposite directions: the fixed points
are the same.
"""

from __future__ import annotations

from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.kernels.sums import inner

SMALLEST_STEP = 1 / 64


class Mixture:
    """The plan T between the solutions S of successive linearisations; stores two matrices."""

    def __init__(self) -> None:
        self.step = 1.0
        self._plan: Tensor | None = None
        self._direction: Tensor | None = None

    def __call__(self, solution: Tensor) -> DenseCoupling:
        """The next T, for a new S (N, K) that is not kept."""
        if self._plan is None:
            self._plan = solution.clone()
            return DenseCoupling(self._plan)
        direction = solution - self._plan
        if self._direction is not None and float(inner(direction, self._direction)) < 0:
            self.step = max(self.step / 2, SMALLEST_STEP)
        self._plan.add_(direction, alpha=self.step)
        self._direction = direction
        return DenseCoupling(self._plan)
