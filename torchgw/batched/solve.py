"""A batch of pairs, solved from the product plan and a dozen guesses to sharp plans.

    cells                     first guesses and the product plan of every pair, annealed from the temperature at which
      |                       that loses its stability; the lowest distinct basins go on
      v
    more cells, all points    plans and potentials lifted when the temperature resolves what cells blur, annealed
      |                       further; the lowest basin is kept
      v
    polished                  see `torchgw.batched.polish`

Pairs of equal shapes run together, in chunks that fit a cache or a device. On a CPU with one thread the bits of a
pair's plan depend on nothing but its two spaces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.batched.annealing import LOWEST_EXPONENT, PairBatch, PlanBatch, anneal_pairs, choose_scaling
from torchgw.batched.polish import PairPlan, polish_batch, polish_product_plan
from torchgw.batched.space import MODES, Level, PreparedSpace
from torchgw.kernels import LOG2E
from torchgw.kernels.small_transport.reference import IterationCounts
from torchgw.runtime.transfer import to_device, to_host
from torchgw.search.initial_guesses import SHARPNESS, SIGNS, relative_cost
from torchgw.sinkhorn.loop import interpolate_epsilon
from torchgw.sinkhorn.scaling import scale_plans

CHUNK_ELEMENTS = {"cpu": 2**17, "cuda": 2**26}
SMALLEST_CRITICAL = 1e-14
SAME_PLAN = 0.4
ENTROPY_SHARE = 0.12
LEAST_VALUE = 2e-2
SPREAD_SHARE = 0.8
GUESS_EFFORT = IterationCounts(10)
SMALL, STEPS_AT_ONCE = 64**2, 4


class CoolingStage(NamedTuple):
    """How a stage cools.

    max_ratio : ratio of consecutive temperatures, at most.
    min_steps : steps at least.
    effort : iterations at each temperature.
    """

    max_ratio: float
    min_steps: int
    effort: IterationCounts


# Distances are over their critical ones here, so the product plan stops being stable at a temperature of 2.
HOT, PRODUCT_HOT, SEARCH_END, SEARCH_STEPS, SEARCH_EFFORT, MAX_BASINS = 1.0, 2.0, 0.2, 6, IterationCounts(4), 3
STAGES = (
    CoolingStage(1.4, 3, IterationCounts(4, 10)),
    CoolingStage(1.8, 0, IterationCounts(4, 8)),
    CoolingStage(1.8, 2, IterationCounts(4, 8)),
)

Sides = tuple[PreparedSpace, PreparedSpace]


@dataclass(frozen=True)
class PairBasin:
    """A local optimum of one pair between cells, or between all points.

    pair : its place in the batch.
    plan : T (n, k).
    f, g : base-2 potentials (n,), (k,) relative to the masses.
    epsilon : the temperature, over the product of both critical distances.
    energy : -2 <D_X T D_Y, T>, likewise.
    """

    pair: int
    plan: Tensor
    f: Tensor
    g: Tensor
    epsilon: float
    energy: float


def solve_batch(sides: Sequence[Sides], tol: float, device: torch.device) -> list[PairPlan]:
    """A plan for each pair of spaces, in their order; first spaces at least as large as the second ones."""
    with torch.inference_mode():
        found: dict[int, PairPlan] = {}
        work = [pair for pair, both in enumerate(sides) if not any(map(_has_no_extent, both))]
        basins: list[PairBasin] = []
        copies = _count_guesses(sides[0][0]) + 1
        shapes = [_level_shape(both, 0) for both in sides]
        for chunk in _make_chunks(
            work, lambda pair: shapes[pair], lambda pair: copies * math.prod(shapes[pair]), device
        ):
            basins += _find_coarse_basins([sides[pair] for pair in chunk], chunk, device)
        for number in range(1, len(STAGES)):
            basins = _select_lowest(_anneal_stage(basins, sides, number, device))
        for done in map(_select_finite, _anneal_stage(basins, sides, len(STAGES), device)):
            if not done:
                continue
            plans = torch.stack([basin.plan for basin in done]).to("cpu", torch.float64)
            both = [sides[basin.pair] for basin in done]
            units = [basin.epsilon / LOG2E * x.critical * y.critical for basin, (x, y) in zip(done, both, strict=True)]
            duals = (
                torch.stack([basin.g for basin in done]).to("cpu", torch.float64)
                * torch.tensor(units, dtype=torch.float64)[:, None]
            )
            polished = polish_batch(both, plans, duals, tol)
            found.update(zip([basin.pair for basin in done], polished, strict=True))
        # Nothing to anneal, or masses of a range that is beyond float32.
        return [found[pair] if pair in found else polish_product_plan(*both, tol) for pair, both in enumerate(sides)]


def _has_no_extent(space: PreparedSpace) -> bool:
    """Whether all points coincide, up to rounding."""
    return space.critical <= SMALLEST_CRITICAL * math.sqrt(space.mean_square)


def _level_shape(sides: Sides, number: int) -> tuple[int, int]:
    """Sizes of a level of both spaces, filled up."""
    x, y = (len(side.levels[number].mass) for side in sides)
    return x, y


def _make_chunks(
    items: Iterable[int], key: Callable[[int], object], elements: Callable[[int], int], device: torch.device
) -> Iterator[list[int]]:
    """Items of equal keys together, as many as fit."""
    groups: dict[object, list[int]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    for group in groups.values():
        many = max(CHUNK_ELEMENTS.get(device.type, 2**17) // elements(group[0]), 1)
        yield from (group[start : start + many] for start in range(0, len(group), many))


def _batch_levels(levels: Sequence[tuple[Level, Level]], device: torch.device) -> PairBatch:
    """The problems of several pairs as one."""
    DX, DY = (to_device(torch.stack([pair[side].distances for pair in levels]), device) for side in (0, 1))
    p, q = (to_device(torch.stack([pair[side].mass for pair in levels])[:, None], device) for side in (0, 1))
    return PairBatch(DX, DY, p, q)


def _count_guesses(space: PreparedSpace) -> int:
    """Guesses of a pair, without the product plan."""
    return len(space.features) - 1 + len(SIGNS)


def _make_guesses(pairs: PairBatch, sides: Sequence[Sides], device: torch.device) -> Tensor:
    """Plans (S B, n, k) between the coarsest cells of B pairs: B product plans, then those of each other kind."""
    scores = []
    product = pairs.p.mT * pairs.q
    for kind in range(len(sides[0][0].features)):
        x, y = (to_device(torch.stack([pair[side].features[kind] for pair in sides]), device) for side in (0, 1))
        signed = (
            [x * to_device(torch.tensor(signs, dtype=torch.float32), device) for signs in SIGNS]
            if kind == MODES
            else [x]
        )
        scores += [relative_cost(each, y, product).mul_(-SHARPNESS * LOG2E) for each in signed]
    kernel = torch.cat(scores).clamp_min_(LOWEST_EXPONENT).exp2_()
    p, q = (part.repeat(len(scores), 1, 1) for part in (pairs.p, pairs.q))
    u, v = choose_scaling(device, (kernel.shape[1], kernel.shape[2]))(kernel, p, q, GUESS_EFFORT)
    return torch.cat((product, scale_plans(kernel, u[:, 0], v[:, 0])))


def _find_coarse_basins(sides: list[Sides], names: list[int], device: torch.device) -> list[PairBasin]:
    """The lowest distinct basins of pairs between their coarsest cells."""
    one = _batch_levels([(x.levels[0], y.levels[0]) for x, y in sides], device)
    first = _make_guesses(one, sides, device)
    B, copies = len(sides), len(first) // len(sides)
    pairs = PairBatch(*(part.repeat(copies, 1, 1) for part in (one.DX, one.DY, one.p, one.q)))
    hot = [PRODUCT_HOT] * B + [HOT] * (len(first) - B)
    temperatures = _geometric_temperatures(hot, [SEARCH_END] * len(first), SEARCH_STEPS, device)
    start = PlanBatch(first, torch.zeros_like(pairs.p), torch.zeros_like(pairs.q), temperatures[0, :, None, None])
    plans = anneal_pairs(pairs, start, temperatures, SEARCH_EFFORT)
    energy = pairs.compute_energies(plans.T)
    ranks = _select_distinct(plans.T.view(copies, B, -1), energy.view(copies, B))
    energies, epsilons, *found = (each.flatten().tolist() for each in to_host(energy, plans.epsilon, *ranks))
    basins = []
    for rank in found:
        for column, guess in enumerate(rank):
            if guess >= 0:
                row = guess * B + column
                state = plans.T[row], plans.f[row, 0], plans.g[row, 0], epsilons[row]
                basins.append(PairBasin(names[column], *state, energies[row]))
    return basins


def _select_distinct(plans: Tensor, energy: Tensor) -> Iterator[Tensor]:
    """The guess of lowest energy (S, B) for each pair, (B,), and the next ones that differ by more than `SAME_PLAN` of
    their mass from those before; -1 where there is none. Plans (S, B, n k)."""
    left, pair = torch.nan_to_num(energy, nan=torch.inf), torch.arange(energy.shape[1], device=energy.device)
    for _ in range(MAX_BASINS):
        lowest, guess = left.min(0)
        yield torch.where(lowest < torch.inf, guess, -1)
        apart = (plans - plans[guess, pair]).abs_().sum(-1)
        left = left.masked_fill(apart <= SAME_PLAN, torch.inf)


def _geometric_temperatures(first: Sequence[float], last: Sequence[float], steps: int, device: torch.device) -> Tensor:
    """Geometric sequences from ``first`` (B,) to ``last`` (B,), (steps, B).

    One by one: torch's powers depend on the place in a tensor, see `torchgw.batched.annealing`.
    """
    rows = [
        [interpolate_epsilon(a, b, step / (steps - 1)) for a, b in zip(first, last, strict=True)]
        for step in range(steps)
    ]
    return to_device(torch.tensor(rows, dtype=torch.float32), device)


def _stage_schedule(basin: PairBasin, sides: Sides, number: int) -> tuple[float, int]:
    """The last temperature of a stage, and the steps to it.

    Cells serve down to where they blur the problem; all points down to where entropy is a small share of the value.
    Steps of small problems are rounded up: there it counts how many pairs go together.
    """
    x, y = sides
    stage, largest = STAGES[number - 1], math.log(max(min(x.size, y.size), 2))
    value = max((x.mean_square + y.mean_square) / (x.critical * y.critical) + basin.energy, LEAST_VALUE)
    end = ENTROPY_SHARE * value / (2 * largest)
    if number < len(STAGES):
        end = max(end, SPREAD_SHARE * sum(side.levels[number].spread for side in sides))
    end = min(end, basin.epsilon)
    steps = max(math.ceil(math.log(basin.epsilon / end) / math.log(stage.max_ratio) - 1e-6), stage.min_steps)
    if math.prod(_level_shape(sides, number)) <= SMALL:
        steps = -(-steps // STEPS_AT_ONCE) * STEPS_AT_ONCE
    return end, steps


def _anneal_stage(
    basins: list[PairBasin], sides: Sequence[Sides], number: int, device: torch.device
) -> Iterator[list[PairBasin]]:
    """Basins lifted to the resolution of a stage and annealed to its last temperature."""
    ends = [_stage_schedule(basin, sides[basin.pair], number) for basin in basins]
    keys = [(*_level_shape(sides[basin.pair], number), steps) for basin, (_, steps) in zip(basins, ends, strict=True)]
    for chunk in _make_chunks(range(len(basins)), lambda i: keys[i], lambda i: math.prod(keys[i][:2]), device):
        taken = [basins[i] for i in chunk]
        levels = [(sides[basin.pair][0].levels[number], sides[basin.pair][1].levels[number]) for basin in taken]
        pairs, plans = _batch_levels(levels, device), _lift_plans(taken, levels, device)
        last, steps = [ends[i][0] for i in chunk], keys[chunk[0]][2]
        if steps:
            temperatures = _geometric_temperatures([basin.epsilon for basin in taken], last, steps + 1, device)[1:]
            plans = anneal_pairs(pairs, plans, temperatures, STAGES[number - 1].effort)
        energy, epsilon = (each.flatten().tolist() for each in to_host(pairs.compute_energies(plans.T), plans.epsilon))
        states = zip(plans.T, plans.f[:, 0], plans.g[:, 0], epsilon, energy, strict=True)
        yield [PairBasin(basin.pair, *state) for basin, state in zip(taken, states, strict=True)]


def _lift_plans(basins: list[PairBasin], levels: Sequence[tuple[Level, Level]], device: torch.device) -> PlanBatch:
    """Plans and potentials of cells, spread over the cells within them."""
    rows, columns = (to_device(torch.stack([pair[side].parent for pair in levels]), device) for side in (0, 1))
    shares = [to_device(torch.stack([pair[side].share for pair in levels]), device) for side in (0, 1)]
    coarse = _pad_and_stack([basin.plan for basin in basins])
    plan = coarse.gather(1, rows[:, :, None].expand(-1, -1, coarse.shape[2]))
    plan = plan.gather(2, columns[:, None].expand(-1, plan.shape[1], -1))
    plan = plan.mul_(shares[0][:, :, None]).mul_(shares[1][:, None])
    f = _pad_and_stack([basin.f for basin in basins]).gather(1, rows)[:, None]
    g = _pad_and_stack([basin.g for basin in basins]).gather(1, columns)[:, None]
    epsilon = to_device(torch.tensor([basin.epsilon for basin in basins], dtype=torch.float32), device)
    return PlanBatch(plan, f, g, epsilon[:, None, None])


def _pad_and_stack(parts: list[Tensor]) -> Tensor:
    """Tensors of different sizes as one, filled up with zeros."""
    if len({part.shape for part in parts}) == 1:
        return torch.stack(parts)
    size = [max(lengths) for lengths in zip(*(part.shape for part in parts), strict=True)]
    found = parts[0].new_zeros(len(parts), *size)
    for row, part in zip(found, parts, strict=True):
        row[tuple(slice(0, length) for length in part.shape)] = part
    return found


def _select_finite(basins: list[PairBasin]) -> list[PairBasin]:
    return [basin for basin in basins if math.isfinite(basin.energy)]


def _select_lowest(basins: Iterator[list[PairBasin]]) -> list[PairBasin]:
    """The basin of lowest energy of each pair that has one."""
    best: dict[int, PairBasin] = {}
    for basin in itertools.chain.from_iterable(map(_select_finite, basins)):
        if basin.pair not in best or basin.energy < best[basin.pair].energy:
            best[basin.pair] = basin
    return [best[pair] for pair in sorted(best)]
