"""Runner of POT, see runner.py. Its gradient has a factor 2, so its epsilon is twice ours for the same entropy."""

from typing import Any

import ot.gromov
from runner import factors, main, uniform


def entropic(DX: Any, DY: Any, **settings: Any) -> Any:
    """Projected gradient (solver="PGD") or proximal point (solver="PPA") with Sinkhorn projections."""
    return ot.gromov.entropic_gromov_wasserstein(DX, DY, *uniform(DX, DY), "square_loss", **settings)


def conditional_gradient(DX: Any, DY: Any, **settings: Any) -> Any:
    """Frank-Wolfe with exact linear transport."""
    return ot.gromov.gromov_wasserstein(DX, DY, *uniform(DX, DY), "square_loss", **settings)


def bapg(DX: Any, DY: Any, **settings: Any) -> Any:
    """Bregman alternated projected gradient, whose plans meet the marginals only nearly."""
    return ot.gromov.BAPG_gromov_wasserstein(DX, DY, *uniform(DX, DY), "square_loss", **settings)


def low_rank(DX: Any, DY: Any, cost_rank: int, **settings: Any) -> Any:
    """Mirror descent on low-rank factors; the distances are given as factors too, of rank ``cost_rank``.

    The function wants points beside the factors, of which it reads the number alone, in ``cost_rank`` - 2 dimensions.
    """
    costs = [factors(D, cost_rank) for D in (DX, DY)]
    points = [A[:, 2:] for A, _ in costs]
    return ot.gromov.lowrank_gromov_wasserstein_samples(
        *points, cost_factorized_Xs=costs[0], cost_factorized_Xt=costs[1], **settings
    )


def sampled(DX: Any, DY: Any, **settings: Any) -> Any:
    """Stochastic Frank-Wolfe on sampled rows."""
    return ot.gromov.sampled_gromov_wasserstein(DX, DY, *uniform(DX, DY), lambda x, y: (x - y) ** 2, **settings)


main(entropic, conditional_gradient, bapg, low_rank, sampled)
