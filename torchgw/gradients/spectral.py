"""Traces of functions of a plan's Hessian, differentiable in the distances.

In the coordinates Z = W sqrt(epsilon w / T) the operator A of `torchgw.objective.curvature` is symmetric,

    A Z = Z - 2 alpha P [R o (D_X (R o Z) D_Y)],    R = sqrt(T / (epsilon w)),

P the projection on changes without sums, which belongs to the plan. The plan is held; of tr f(A) = E z^T f(A) z over
random z = P z the derivative goes through the distances by the adjoint of Lanczos (`torchgw.linalg.matrix_functions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.gradients.plan_moments import ConstantProduct, apply_function
from torchgw.linalg.lanczos import recurrence
from torchgw.linalg.matrix_functions import ScalarFunction, as_matrix, matrix_function
from torchgw.objective.curvature import Hessian

LEFT = 1e-3  # of the largest step of a recurrence: the adjoint loses digits by the square of smaller ones


def spectral_trace(
    hessian: Hessian,
    distances: tuple[Tensor, Tensor],
    f: ScalarFunction,
    coefficients: Sequence[Tensor],
    n_probes: int,
    n_steps: int,
    generator: torch.Generator,
) -> Tensor:
    """tr f(A) () of a stored plan with hard marginals, between scaled symmetric distances (N, N), (K, K)."""
    respond, model = hessian.respond, hessian.curvature.model
    assert isinstance(respond.plan, DenseCoupling)
    assert model.has_hard_marginals
    shape, root = respond.plan.shape, (respond.plan.plan / (model.epsilon * hessian.weight)).sqrt()
    weights = torch.where(root > 0, respond.plan.plan / root, 0.0)

    def project(X: Tensor, axis: int = 1) -> Tensor:
        """P X (m, N, K), symmetric: X less R o (a 1^T + 1 b^T)."""
        answers = [respond.solve((weights * x).sum(1), (weights * x).sum(0)) for x in X]
        return torch.stack([x - root * (a[:, None] + b) for x, (a, b, _) in zip(X, answers, strict=True)])

    def product(parameters: tuple[Tensor, ...], Z: Tensor) -> Tensor:
        D, E = parameters
        W = root * Z.T.reshape(-1, *shape)
        image = apply_function(ConstantProduct, project, root * (D @ W @ E), 1)
        return -2 * model.alpha * image.flatten(1).T

    z = torch.randn(n_probes, *shape, generator=generator, dtype=root.dtype, device=root.device)
    start = project(z * (root > 0)).flatten(1).T.contiguous()
    with torch.no_grad():
        held = tuple(side.detach() for side in distances)
        seen = recurrence(as_matrix(product, held, start), start, min(n_steps, len(start)), _should_stop)
    found = matrix_function(product, distances, start, _ShiftedFunction(f), seen.alphas.shape[1], coefficients)
    return (start * found).sum() / n_probes


@dataclass(frozen=True)
class _ShiftedFunction:
    """f(1 + x) as a function of x: next to one, the recurrence of A - 1 has digits that that of A loses.

    f : the function.
    """

    f: ScalarFunction

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        return self.f.value(1 + x, *coefficients)

    def divided_difference(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        return self.f.divided_difference(1 + x, 1 + y, *coefficients)


def _should_stop(alphas: Tensor, betas: Tensor) -> bool:
    """Whether a Krylov space has next to nothing left to grow by, which values no longer need."""
    return bool((betas[:, -1] < LEFT * betas.amax(1)).any())
