"""First guesses for small problems: what single points of both spaces look like, matched.

- the distributions of distances seen from each point (Memoli's third lower bound), and their means alone;
- leading modes with every combination of signs: symmetric shapes differ by these;
- distances to a few random points;
- where a marginal may give way, random plans.

A guess is a linear cost, of squared differences between features. The batched solver draws the random points of each
space once; the search of one problem draws as many pairs of points as there are starts left, and has all others twice,
for the two temperatures that neighbours in the batch are annealed from. Plans that no cost gives, the product plan and
random ones, are added by the caller.

The modes are those of the centred distances D in the batched solver, and of -D^2 / 2, classical scaling's coordinates,
in the search of one problem. Measured on a dozen kinds of spaces: scaling in place of modes costs the batch 0.9 % of
the value in the mean (a cloud in R^10 11 %); modes in place of scaling cost single problems 3.8 % on block graphs at
epsilon 5e-3, and are 0.1 % better without entropy.

Sources: F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011; W. Torgerson,
"Multidimensional scaling", 1952.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from torchgw.kernels.sampling import pick_indices
from torchgw.linalg.centring import SMALLEST_EIGENVALUE, centred_modes
from torchgw.objective.bounds import quantiles
from torchgw.runtime.transfer import to_host

SHARPNESS = 8.0  # of a guess: mean cost over the temperature of its plan
N_QUANTILES = 16
N_MODES = 3
SIGNS = tuple(itertools.product((1.0, -1.0), repeat=N_MODES))
ANCHORS = (2, 3, 4)


def draw_ahead(count: int, generator: torch.Generator) -> list[Tensor]:
    """The uniform numbers that ``count`` start costs usually need, of a generator of a GPU, for which nothing is to
    wait; none of one of the CPU, which draws them when it knows how many."""
    return (
        [_draw_uniform(_anchor_counts(2 * (2 + len(SIGNS)), count), generator)]
        if generator.device.type == "cuda"
        else []
    )


def make_start_costs(
    DX: Tensor, DY: Tensor, p: Tensor, q: Tensor, count: int, generator: torch.Generator, ahead: Tensor | None = None
) -> Tensor:
    """``count`` costs (count, L, L') for distances DX (L, L), DY (L', L') and masses p, q, all on the host; each has
    mean 1 under the product plan. ``ahead`` are numbers of `draw_ahead`."""
    product = p[:, None] * q
    pairs = list(zip(compute_profiles(DX, p), compute_profiles(DY, q), strict=True))
    x, y = (leading_modes(D.square() / -2, mass, definite=True)[1] for D, mass in ((DX, p), (DY, q)))
    pairs += [(x * signs, y) for signs in sign_combinations(x, y)]
    costs = [cost for cost in relative_costs(pairs, product) for _ in range(2)]
    if sizes := _anchor_counts(len(costs), count):
        if ahead is None or len(ahead) != 2 * sum(sizes):
            (ahead,) = to_host(_draw_uniform(sizes, generator))
        parts = torch.split(ahead, [size for size in sizes for _ in range(2)])
        i, j = (torch.split(pick_indices(mass, torch.cat(parts[side::2])), sizes) for side, mass in ((0, p), (1, q)))
        costs += relative_costs([(DX[:, a], DY[:, b]) for a, b in zip(i, j, strict=True)], product)
    return torch.stack(costs[:count])


def draw_random_plans(product: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` plans (count, N, K): the product plan with each entry times an exponentially distributed number. Where
    a marginal gives way, features of points do not say which of them get mass at all."""
    factors = torch.empty(count, *product.shape, dtype=torch.float32, device=product.device)
    return factors.exponential_(generator=generator) * product


def _anchor_counts(first: int, count: int) -> list[int]:
    """How many pairs of points the starts from the ``first`` on are drawn by."""
    return [ANCHORS[start % len(ANCHORS)] for start in range(first, count)]


def _draw_uniform(sizes: list[int], generator: torch.Generator) -> Tensor:
    """Uniform numbers for so many pairs of points."""
    return torch.rand(2 * sum(sizes), generator=generator, dtype=torch.float64, device=generator.device)


def compute_profiles(D: Tensor, mass: Tensor) -> list[Tensor]:
    """Features (n, .) of points by the distributions of their distances D (n, n), and by their means alone."""
    return [quantiles(D, mass, N_QUANTILES), (D @ mass)[:, None]]


def leading_modes(S: Tensor, mass: Tensor, definite: bool = False) -> tuple[Tensor, Tensor]:
    """The eigenvalues v (3,) of a symmetric matrix S (n, n), centred under masses of sum one, that are largest in
    absolute value, in that order, and features u sqrt|v| (n, 3); zero where fewer matter.

    The ``definite`` ones are without the negative eigenvalues: those of S = -D^2 / 2 are classical scaling's.
    """
    values, vectors = centred_modes(S, mass)
    values = values.clamp_min(0.0) if definite else values
    values = torch.where(values.abs() > SMALLEST_EIGENVALUE * values.abs().max(), values, 0.0)
    order = values.abs().argsort(descending=True)[:N_MODES]
    largest, features = values.new_zeros(N_MODES), vectors.new_zeros(len(vectors), N_MODES)
    largest[: len(order)] = values[order]
    features[:, : len(order)] = vectors[:, order] * values[order].abs().sqrt()
    return largest, features.to(S.dtype)


def sign_combinations(x: Tensor, y: Tensor) -> list[Tensor]:
    """Every combination of signs (3,) of the modes x (N, 3), y (K, 3) that both have."""
    shared = int((x.any(0) & y.any(0)).sum())
    return [x.new_tensor(signs) for signs in SIGNS if min(signs[shared:], default=1.0) > 0]


def relative_costs(pairs: Sequence[tuple[Tensor, Tensor]], product: Tensor) -> list[Tensor]:
    """`relative_cost` of pairs of features (N, d), (K, d), those of equal d at once."""
    found: dict[int, Tensor] = {}
    for width in dict.fromkeys(x.shape[1] for x, _ in pairs):
        at = [place for place, (x, _) in enumerate(pairs) if x.shape[1] == width]
        x, y = (torch.stack([pairs[place][side] for place in at]) for side in (0, 1))
        found |= dict(zip(at, relative_cost(x, y, product), strict=True))
    return [found[place] for place in range(len(pairs))]


def relative_cost(x: Tensor, y: Tensor, product: Tensor) -> Tensor:
    """|x_i - y_j|^2 (..., N, K) of features (..., N, d) and (..., K, d), over their mean under the product plan."""
    # Not from factors, as `FactoredCost.squared_distance`: it is stored anyway, and no digits cancel.
    cost = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()
    mean = (cost * product).sum((-2, -1), keepdim=True)
    return cost.div_(mean.clamp_min_(torch.finfo(cost.dtype).tiny))
