"""Draws from discrete distributions on the device, with an explicit generator and no host synchronisation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.kernels.sums import cumulative_sum

MULTINOMIAL_LIMIT = 2**24


def draw(weights: Tensor, count: int, generator: torch.Generator | Tensor) -> Tensor:
    """``count`` indices for each row of ``weights`` (..., n), drawn with replacement in proportion to them.

    Rows without any positive mass (all zero, or NaN) are drawn from uniformly. Returns int64 (..., count). What
    `prepare_draws` returns does for a generator.
    """
    weights = torch.nan_to_num(weights, nan=0.0, posinf=0.0).clamp_min(0.0)
    largest = weights.amax(-1, keepdim=True)
    weights = torch.where(largest > 0, weights / largest, torch.ones_like(weights))
    if isinstance(generator, Tensor):
        return pick_indices(weights, generator)
    one_row_there = weights.is_cuda and weights.numel() == weights.shape[-1] and count > 1  # scanned in any order
    if weights.shape[-1] <= MULTINOMIAL_LIMIT and not one_row_there:
        return torch.multinomial(weights, count, replacement=True, generator=generator)
    return pick_indices(weights, _uniform(weights, count, generator))


def prepare_draws(weights: Tensor, count: int, generator: torch.Generator) -> torch.Generator | Tensor:
    """What `draw` takes for a row of weights (n,) where a graph may be captured, as no graph draws by a generator:
    uniform numbers (count,) on a GPU."""
    return _uniform(weights, count, generator) if weights.is_cuda else generator


def _uniform(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    shape = *weights.shape[:-1], count
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=weights.device)


def pick_indices(weights: Tensor, uniform: Tensor) -> Tensor:
    """The indices (..., m) that ``uniform`` numbers in [0, 1) stand for, in proportion to ``weights`` (..., n) >= 0 of
    which some are positive."""
    cumulative = cumulative_sum(weights.to(torch.float64), -1)
    found = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True)
    return found.clamp_max(weights.shape[-1] - 1)


def sample_evenly(mass: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Points with mass (N,), and weights of sum one: all where they are at most ``count``, else one for each
    1 / ``count`` of the mass."""
    if len(mass) <= count:
        index = mass.nonzero()[:, 0]
        return index, mass[index] / mass.sum()
    levels = (torch.arange(count, dtype=mass.dtype, device=mass.device) + 0.5) / count * mass.sum()
    index = torch.searchsorted(cumulative_sum(mass, 0), levels).clamp_max(len(mass) - 1)
    return index, torch.full_like(levels, 1 / count)


def make_generator(random_state: object, device: torch.device) -> torch.Generator:
    """A generator on ``device``; no global random state is read or changed.

    An int seeds it; a generator of the user's gives one draw as its seed; None takes fresh entropy.
    """
    validate.random_state("random_state", random_state)
    if random_state is None:
        seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 1
    elif isinstance(random_state, torch.Generator):
        seed = int(torch.randint(2**62, (1,), generator=random_state, device=random_state.device))
    elif isinstance(random_state, np.random.Generator):
        seed = int(random_state.integers(2**62))
    else:
        seed = int(random_state)  # type: ignore[call-overload]
    return torch.Generator(device).manual_seed(seed)
