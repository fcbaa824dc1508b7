"""Pieces of the sampled loop as one writes them first, which `sampled` takes where a switch is off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from torchgw import DijkstraDistances
from torchgw.kernels import LN2
from torchgw.objective.sampled import Anchors
from torchgw.spaces.scale import fill_unreachable
from torchgw.types import DistanceProvider


def host_rows(space: DistanceProvider, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Rows that are looked up on the host in float64 and sent over at each call."""

    def rows(index: Tensor) -> Tensor:
        return space.rows(index.cpu()).to(device, dtype)

    return rows


class TwoReads:
    """Both half-steps by `torch.logsumexp` in natural logarithms, each of which makes score plus potentials anew."""

    def __init__(self, score: Tensor) -> None:
        self.score = score * LN2

    def sweep(self, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The next f (N,), and the softmin over the rows under it (K,), in base 2."""
        assert weight == 1.0
        f = log_p - torch.logsumexp(self.score + g * LN2, 1) / LN2
        return f, torch.logsumexp(self.score + f[:, None] * LN2, 0) / LN2


def residual_of_plan(score: Tensor, f: Tensor, g: Tensor, p: Tensor, q: Tensor) -> float:
    """L1 error of both marginals of the plan, which is made for that."""
    plan = (score + f[:, None] + g).exp2()
    return float((plan.sum(1) - p).abs().sum() + (plan.sum(0) - q).abs().sum())


def host_draws(score: Tensor, f: Tensor, g: Tensor, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Pairs from the whole plan, brought to the host and drawn from as one long vector."""
    plan = (score + f[:, None] + g).exp2().cpu().to(torch.float64).numpy()
    flat = plan.ravel() / plan.sum()
    chosen = rng.choice(flat.size, size=count, p=flat)
    rows, columns = np.unravel_index(chosen, plan.shape)
    return torch.from_numpy(rows.copy()).to(score.device), torch.from_numpy(columns.copy()).to(score.device)


def through_tuples(rows: Tensor, columns: Tensor) -> Anchors:
    """The pairs as a list of tuples and back."""
    pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
    device = rows.device
    return Anchors(
        torch.tensor([i for i, _ in pairs], device=device), torch.tensor([j for _, j in pairs], device=device)
    )


class UncachedDijkstra(DijkstraDistances):
    """Every row searched anew at each call."""

    def rows(self, index: Tensor) -> Tensor:
        wanted, place = np.unique(index.cpu().numpy(), return_inverse=True)
        found = fill_unreachable(dijkstra(self._graph, indices=wanted), self.largest)[place]
        return torch.from_numpy(found).to(self._device, self._dtype) / self.scale


def all_pairs_one_by_one(graphs: list[object]) -> list[np.ndarray]:
    """All shortest paths of each graph in this process."""
    return [dijkstra(graph) for graph in graphs]
