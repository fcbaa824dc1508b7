"""The joint graph of several spaces: their affinities W_i as edges within them, transport plans T_ij as edges between.

Each W_i is divided by its sum, so that graphs of any number of points weigh the same. The normalised Laplacian, with
the degrees D 1 = W_i 1 + sum_j T_ij 1 on space i, is the operator

    V  ->  V - D^-1/2 (W + T) D^-1/2 V,

which never stores a plan. Source: J. Ham, D. Lee, L. Saul, "Semisupervised alignment of manifolds", 2005.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw.spaces.edges import components
from torchgw.types import Array, Coupling

READ = 1e-6
TINY = float(np.finfo(float).tiny)


class Plan(NamedTuple):
    """A coupling between spaces i and j times ``scale``, which makes its mass mu; its masses (N_i,), (N_j,)."""

    i: int
    j: int
    coupling: Coupling
    scale: float
    masses: tuple[Array, Array]
    like: Tensor

    def apply(self, V: Array, axis: int) -> Array:
        """The scaled T V for axis 1, T^T V for axis 0."""
        moved = self.coupling.apply(torch.from_numpy(np.ascontiguousarray(V)).to(self.like), axis)
        found: Array = self.scale * moved.detach().cpu().to(torch.float64).numpy()
        return found


def plan_between(i: int, j: int, coupling: Coupling, mass: float, name: str) -> Plan:
    """A coupling between spaces i and j, scaled to ``mass``; checked to have one."""
    sides = [coupling.marginal(axis).detach() for axis in (1, 0)]
    rows, columns = (side.cpu().to(torch.float64).numpy() for side in sides)
    total = float(rows.sum())
    if not (np.isfinite(rows).all() and np.isfinite(columns).all() and total > 0):
        raise ValueError(f"{name} must have finite masses with a positive sum, got a sum of {total}")
    scale = mass / total
    return Plan(i, j, coupling, scale, (scale * rows, scale * columns), sides[0])


class JointGraph:
    """The joint graph, and its normalised Laplacian on the points ``kept`` that are joined with the anchor."""

    def __init__(self, weights: list[Any], plans: list[Plan], anchor: int) -> None:
        self.plans = plans
        self.offsets = np.concatenate(([0], np.cumsum([W.shape[0] for W in weights])))
        masses = [np.zeros(W.shape[0]) for W in weights]
        for plan in plans:
            masses[plan.i] += plan.masses[0]
            masses[plan.j] += plan.masses[1]
        self.kept = self._joined([components(W) for W in weights], np.concatenate(masses), anchor)
        self.weights = [W / max(W[kept].sum(), TINY) for W, kept in zip(weights, self.parts(self.kept), strict=True)]
        degrees = [np.asarray(W.sum(1)).ravel() + mass for W, mass in zip(self.weights, masses, strict=True)]
        self.root = np.sqrt(np.concatenate(degrees)[self.kept])
        self.null = self.root / np.linalg.norm(self.root)

    def parts(self, values: Array) -> list[Array]:
        """Values on all points, space by space."""
        return np.split(values, self.offsets[1:-1])

    def carried(self, V: Array) -> list[Array]:
        """All plans applied to V (sum N_i, b), in both directions."""
        parts = self.parts(V)
        found = [np.zeros_like(part) for part in parts]
        for plan in self.plans:
            found[plan.i] += plan.apply(parts[plan.j], 1)
            found[plan.j] += plan.apply(parts[plan.i], 0)
        return found

    def laplacian(self, V: Array) -> Array:
        """V - D^-1/2 W D^-1/2 V on the kept points, W being the graphs and the plans."""
        root = self.root[:, None]
        smooth = self._everywhere(V / root, 0.0)
        found = self.carried(smooth)
        for W, part, out in zip(self.weights, self.parts(smooth), found, strict=True):
            out += W @ part
        moved: Array = np.concatenate(found)[self.kept] / root
        return V - moved

    def coordinates(self, vectors: Array) -> Array:
        """Unit eigenvectors as functions on all points, of variance 1; NaN on those not kept."""
        return self._everywhere(vectors / self.null[:, None], np.nan)

    def _everywhere(self, values: Array, elsewhere: float) -> Array:
        found = np.full((len(self.kept), values.shape[1]), elsewhere)
        found[self.kept] = values
        return found

    def _joined(self, parts: list[tuple[int, Array]], mass: Array, anchor: int) -> Array:
        """Which points edges and plans join with the part of the anchor's graph that has most mass, (sum N_i,) bool.

        A part of a graph is joined where more than `READ` of its mass, the precision to which plans are read, goes to
        what is joined already. O(cost of applying the plans) for each step away from the anchor, where a graph has
        several parts.
        """
        counts, labels = zip(*parts, strict=True)
        if max(counts) == 1:
            return np.ones(len(mass), dtype=bool)
        before = np.concatenate(([0], np.cumsum(counts)))
        part = np.concatenate([label + first for label, first in zip(labels, before, strict=False)])
        own = before[anchor] + np.arange(counts[anchor])
        joined = np.zeros(before[-1], dtype=bool)
        held = np.bincount(part, mass)
        new = np.zeros_like(joined)
        new[own[held[own].argmax()]] = True
        while (new & ~joined).any():
            joined |= new
            received = np.concatenate(self.carried(joined[part, None].astype(np.float64)))[:, 0]
            new = np.bincount(part, received) > READ * held
        kept: Array = joined[part]
        return kept
