"""Epsilon annealing: a geometric descent to the target, and potentials carried across it."""

from __future__ import annotations

from torch import Tensor

from torchgw.options import AnnealingOptions


def epsilon_at(iteration: int, target: float, options: AnnealingOptions) -> float:
    """Epsilon of an outer iteration, counted from 0."""
    if iteration >= options.n_iter:
        return target
    return float(target * options.factor ** (1.0 - iteration / options.n_iter))


def annealed(iteration: int, target: float, start: float | None, options: AnnealingOptions) -> float:
    """`epsilon_at` where the start belongs to no epsilon, else the start's own, halved at each iteration."""
    if start is None:
        return epsilon_at(iteration, target, options)
    return max(target, start * 0.5**iteration)


def rescale(potential: Tensor, log_mass: Tensor, old: float, new: float) -> Tensor:
    """A potential at epsilon ``new`` from one at ``old``: its distance from the log mass is a cost over epsilon."""
    if old == new:
        return potential
    return (log_mass + (potential - log_mass) * (old / new)).where(~log_mass.isneginf(), log_mass)
