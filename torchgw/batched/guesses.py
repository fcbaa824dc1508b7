"""First guesses for a batch of pairs: the product plan, and matchings by what single cells of both spaces look like.

Features are made once for each space: distributions of distances and their means, leading modes of the centred
distances with every combination of signs (symmetric shapes differ by these), and distances to a few random cells.

Source: F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torchgw.batched.annealing import LOWEST_EXPONENT, Effort, Pairs, scalings
from torchgw.batched.space import MODES, N_MODES, Space
from torchgw.kernels import LOG2E

SHARPNESS = 8.0
EFFORT = Effort(10)


def n_guesses(space: Space) -> int:
    """Guesses of a pair, without the product plan."""
    return len(space.features) - 1 + (1 << N_MODES)


def guesses(pairs: Pairs, sides: Sequence[tuple[Space, Space]], device: torch.device) -> Tensor:
    """Plans (S B, n, k) between the coarsest cells of B pairs: B product plans, then those of each other kind."""
    scores = []
    product = pairs.p.mT * pairs.q
    for kind in range(len(sides[0][0].features)):
        x, y = (torch.stack([pair[side].features[kind] for pair in sides]).to(device) for side in (0, 1))
        signs = itertools.product((1.0, -1.0), repeat=N_MODES) if kind == MODES else [(1.0,) * x.shape[2]]
        for sign in signs:
            moved = x * torch.tensor(sign, device=device)
            cost = torch.cdist(moved, y, compute_mode="donot_use_mm_for_euclid_dist").square_()
            mean = (cost * product).sum((1, 2), keepdim=True).clamp_min_(torch.finfo(cost.dtype).tiny)
            scores.append(cost.mul_(-SHARPNESS * LOG2E / mean))
    kernel = torch.cat(scores).clamp_min_(LOWEST_EXPONENT).exp2_()
    p, q = (part.repeat(len(scores), 1, 1) for part in (pairs.p, pairs.q))
    u, v = scalings(kernel, kernel.mT.contiguous(), p, q, EFFORT)
    return torch.cat((product, kernel.mul_(u.mT).mul_(v)))
