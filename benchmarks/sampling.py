"""Error of the sampled gradient at a fixed plan, and what an iteration's score costs, by how the anchors are used.

The error is that of D_X T D_Y, centred by rows and columns (which is all that a balanced plan feels), relative in
Frobenius norm; medians of 20 draws. "compressed" cuts U V^T to its rank-30 part by QR and SVD; "control variates" take
the exact gradient of the landmarks' factored distances and sample only what those miss.
"""

from __future__ import annotations

import statistics
import warnings
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import seconds, show, write
from torchgw import PrecomputedDistances, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels.sampling import draw
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.low_rank import nystrom_factors

N, K, LANDMARKS, RANK, DRAWS = 1000, 1200, 60, 30, 20


def centred(G: Tensor) -> Tensor:
    """Without row and column means."""
    return G - G.mean(1, keepdim=True) - G.mean(0) + G.mean()


def compressed(U: Tensor, V: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best U V^T of this rank."""
    Qu, Ru = torch.linalg.qr(U)
    Qv, Rv = torch.linalg.qr(V)
    left, values, right = torch.linalg.svd(Ru @ Rv.T)
    return Qu @ (left[:, :rank] * values[:rank]), Qv @ right[:rank].T


def run() -> None:
    """Measure, print, store."""
    warnings.simplefilter("ignore")
    X, Y = make_spiral(N)[0], make_swiss_roll(K, random_state=1)[0]
    spaces = PrecomputedDistances.from_graphs([neighbour_graph(x) for x in (X, Y)])
    DX, DY = (space.matrix for space in spaces)
    T = gw_align(*spaces, epsilon=5e-3, random_state=0).coupling.to_dense()
    truth = centred(DX @ T @ DY)
    generator = torch.Generator().manual_seed(0)
    p, q = T.sum(1), T.sum(0)
    (F, s), (G, t) = (
        nystrom_factors(space, mass, LANDMARKS, generator) for space, mass in zip(spaces, (p, q), strict=True)
    )
    core = s[:, None] * (F.T @ T @ G) * t

    def anchors(m: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        i = draw(p, m, generator)
        j = draw(T[i], 1, generator)[:, 0]
        return DX[:, i] / m**0.5, DY[:, j] / m**0.5, i, j

    def plain(m: int) -> tuple[Tensor, Tensor]:
        return anchors(m)[:2]

    def cut(m: int) -> tuple[Tensor, Tensor]:
        return compressed(*anchors(m)[:2], RANK)

    def controlled(m: int) -> tuple[Tensor, Tensor]:
        U, V, i, j = anchors(m)
        rest = core - s[:, None] * (F[i].T @ G[j]) * t / m
        return torch.cat((F @ rest, U), 1), torch.cat((G, V), 1)

    rows: list[dict[str, Any]] = []
    for name, make in (("plain", plain), ("compressed", cut), ("control variates", controlled)):
        for m in (80, 400, 1600):
            errors = []
            for _ in range(DRAWS):
                U, V = make(m)
                errors.append(float((centred(U @ V.T) - truth).norm() / truth.norm()))
            U, V = (side.float() for side in make(m))
            rows.append(
                {
                    "anchors used as": name,
                    "M": m,
                    "rank": U.shape[1],
                    "relative error": statistics.median(errors),
                    "anchors to score ms": 1e3 * seconds(lambda m=m, make=make: torch.mm(*_score(make(m)))),  # type: ignore[misc]
                }
            )
    factored = float((centred(F @ core @ G.T) - truth).norm() / truth.norm())
    rows.append(
        {
            "anchors used as": "none: landmark factors alone",
            "M": 0,
            "rank": core.shape[0],
            "relative error": factored,
            "anchors to score ms": 0.0,
        }
    )
    write("sampling", rows)
    show(rows)


def _score(sides: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return sides[0].float(), sides[1].float().T
