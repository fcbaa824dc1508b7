"""What each strategy would cost, by size: memory and time; which of them a solve takes is `torchgw.request.limits`.

Memory is counted: a dense solve stores score and plan, the others a few hundred numbers for each point; on a GPU its
tensors are, where most points need most for their neighbour graph. Seconds are a
model of what two CPU cores measured from points to matching, see `benchmarks/results/scale.json`; on other devices no
time is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchgw import validate
from torchgw.entry import check_options
from torchgw.options import GWOptions
from torchgw.request.combinations import explain_implication, facts_of, imply_options, refuse
from torchgw.request.devices import pick_device
from torchgw.request.limits import (
    CURVED_PAIRS,
    UNRESOLVED,
    check_rank,
    choose_strategy,
    dense_bytes,
    ends_without_entropy,
    reason_against_dense,
)
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.surroundings import isolate
from torchgw.solvers.linear_oracle import has_vertex_solver
from torchgw.spaces.device_neighbours import build_bytes
from torchgw.types import AUTO, Epsilon

STREAMING_BYTES = 2200  # for each point: graph and landmark distances first, then factors, cost, score and orders
LOW_RANK_COPIES = 8
SPARSE_BYTES = 20_000  # for each node of degree ten
SPARSE_SECONDS = 5e-5  # for each node of degree ten
NEAREST_SECONDS = 8e-9  # for each pair
BASE_BYTES = 600 * 2**20
KEPT_BYTES = 60_000_000  # where graphs of thousands of points read and write
GPU_SEARCHES = 4 * 132  # of a neighbour graph, at once, on an H100
DENSE_SECONDS = 2.2e-7  # for each pair
SHARP_SECONDS = 1.2e-6  # the same without entropy, by linear programs
ASSIGNED_SECONDS = 1e-3, 2e-7  # for each point and each pair, where these are assignments
VERTEX_SECONDS = 1.5e-3  # for each point, where they stream without entropy: a few flows
POINT_SECONDS = 2.5e-6  # for each point and bit of log2 N: neighbours, landmarks, lift
PAIR_SECONDS = 4e-11  # for each pair: four reads of the fifth of the tiles that hold mass
LOW_RANK_SECONDS = 3e-5  # for each point and unit of rank
CELLS_SECONDS = 1.0


@hide_constructor
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Memory and time of one strategy.

    Attributes
    ----------
    strategy : "dense", "streaming", "low-rank", or "sparse" where it is asked for.
    memory : bytes, the library and its packages included; on a GPU those of tensors there.
    seconds : from points to matching on two CPU cores, for clouds along curves and surfaces; NaN on other devices.
    against : why it cannot or should not run here; empty for the one that would.
    """

    strategy: str
    memory: int
    seconds: float
    against: str

    def __str__(self) -> str:
        about = f"about {self.seconds:.2g} s" if self.seconds >= 1 else "about a second or less"
        time = "" if math.isnan(self.seconds) else f", {about} on two CPU cores"
        return f"{self.strategy}: {self.memory / 2**30:.2f} GiB{time}{'; ' + self.against if self.against else ''}"


@hide_constructor
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Forecasts of all strategies, and the one that would run.

    Attributes
    ----------
    chosen : name of the strategy that would run; empty where `gw_align` would refuse.
    forecasts : one for each strategy.
    device : where.
    """

    chosen: str
    forecasts: tuple[Forecast, ...]
    device: str

    def __getitem__(self, strategy: str) -> Forecast:
        """The forecast of one strategy."""
        return next(forecast for forecast in self.forecasts if forecast.strategy == strategy)

    def __str__(self) -> str:
        lines = [f"{'*' if f.strategy == self.chosen else ' '} {f}" for f in self.forecasts]
        would = "* would run" if self.chosen else "none would run"
        return "\n".join([f"on {self.device}, {would}:", *lines])


@isolate
def estimate(
    N: int,
    K: int,
    *,
    epsilon: Epsilon = AUTO,
    options: GWOptions | None = None,
    device: str | torch.device | None = None,
) -> Estimate:
    """Memory and time of an alignment of N with K points, by strategy, and which of them `gw_align` would take.

    Seconds are those of clouds along curves and surfaces, with landmark distances. In more dimensions a streaming solve
    climbs to finer cells. Spaces without factors, stored matrices above all, stream where few factors carry them to 1
    %; otherwise the dense strategy takes over as far as its memory is there, and products of the matrices finish it.
    Either takes several times as long.

    What the points look like only the solve knows. With ``epsilon="auto"`` curves of different sizes keep an entropy
    from 250 000 pairs on, and take half a second to 2000 x 2500. And it looks before it streams: clouds in three
    dimensions and more are then solved dense, up to 1e8 pairs, 16 bytes each; of equal sizes and masses, up to 6300
    points, without entropy, 60 bytes a pair. Points on surfaces from 1000 on, and in the plane between 4000 and 6300,
    stream first and end dense, without entropy, from there: 60 bytes a pair as well. The forecast for ``epsilon=0`` is
    theirs.

    Parameters
    ----------
    N, K : numbers of points.
    epsilon : entropy, or "auto", for masses that are equal; without any only distances with factors stream.
    options : ``strategy``, ``gradient``, ``loss``, ``max_memory`` and the rank of ``low_rank`` count here.
    device : where it would run, on this machine or another; by default where `gw_align` would run it. On a GPU memory
        is that of a first solve: later ones also find there what the process keeps, at most a 64th of the GPU's.

    Raises
    ------
    ValueError, TypeError
        For arguments that `gw_align` would refuse as well.

    Examples
    --------
    >>> import torchgw
    >>> torchgw.estimate(100_000, 120_000, device="cpu").chosen
    'streaming'
    """
    shape = tuple(getattr(N, "shape", ()))
    if shape:
        raise TypeError(f"N must be a number of points, got an array of shape {shape}; pass len(X), len(Y)")
    n, k = validate.integer("N", N, least=2), validate.integer("K", K, least=2)
    validate.epsilon("epsilon", epsilon)
    options = check_options(options)
    refuse(facts := facts_of(options, epsilon))
    asked = epsilon
    if epsilon == AUTO:
        alike = torch.ones(n, dtype=torch.float64), torch.ones(k, dtype=torch.float64)
        epsilon = 0.0 if ends_without_entropy(facts, alike, None, options) else UNRESOLVED
        facts = facts_of(options, epsilon)
    check_rank(options, min(n, k))
    # The device need not be there: one may plan for another machine.
    where = pick_device(None, (), n * k) if device is None else validate.kind_of_device("device", device)
    decided = explain_implication("strategy", facts)
    if decided is None:
        decided = f"the {options.strategy} strategy is asked for"
    cheap = "the dense strategy is cheap here"
    if asked == AUTO and epsilon == 0:
        cheap += ", and epsilon='auto' ends without entropy"
        if n != k and n * k >= CURVED_PAIRS:
            cheap += ", but between points on curves"
    options = imply_options(options, facts)
    names = ("dense", "streaming", "low-rank", *(["sparse"] if options.strategy == "sparse" else []))
    against = {name: why_not(name, n, k, epsilon, options, where, decided, cheap) for name in names}
    chosen = choose_strategy(n, k, epsilon, options, where)
    if chosen == "dense" and against["dense"] is not None:
        chosen = ""
    forecasts = tuple(
        forecast(name, n, k, epsilon, options, where, "" if name == chosen else reason or "")
        for name, reason in against.items()
    )
    return Estimate(chosen=chosen, forecasts=forecasts, device=str(where))


def forecast(
    strategy: str, n: int, k: int, epsilon: float, options: GWOptions, where: torch.device, against: str = ""
) -> Forecast:
    """What a strategy would cost, with options that are settled."""
    taken = seconds(strategy, n, k, options, epsilon == 0) if where.type == "cpu" else math.nan
    memory = peak_memory(strategy, n, k, epsilon, options, where)
    return Forecast(strategy=strategy, memory=memory, seconds=taken, against=against)


def why_not(
    strategy: str, n: int, k: int, epsilon: float, options: GWOptions, device: torch.device, decided: str, cheap: str
) -> str | None:
    """What speaks against a strategy, or None; ``decided`` says why another one is no matter of choice, ``cheap`` why
    the dense one is taken where there is a choice."""
    if strategy == "sparse":
        return None
    if strategy == "low-rank":
        return None if options.strategy == strategy else "looks for a plan of small rank only: taken when asked for"
    if options.strategy not in ("auto", strategy):
        return decided
    dense = reason_against_dense(n, k, epsilon, options, device)
    if strategy == "dense":
        return dense
    if epsilon == 0 and not has_vertex_solver(n, k):
        return "OR-tools, which solves its linear programs without entropy, is not installed (pip install ortools)"
    return None if dense else cheap


def peak_memory(strategy: str, n: int, k: int, epsilon: float, options: GWOptions, where: torch.device) -> int:
    """Peak bytes of a strategy."""
    held = {"dense": dense_bytes(n, k, epsilon, where), "sparse": SPARSE_BYTES * (n + k)}
    held |= {"streaming": STREAMING_BYTES * (n + k)}
    held |= {"low-rank": held["streaming"] + 8 * LOW_RANK_COPIES * options.low_rank.rank * (n + k)}
    if where.type == "cuda":
        return KEPT_BYTES + max(held[strategy], build_bytes(max(n, k), 3, GPU_SEARCHES))
    return BASE_BYTES + held[strategy]


def seconds(strategy: str, n: int, k: int, options: GWOptions, sharp: bool = False) -> float:
    """Seconds from points to matching on two CPU cores."""
    prepare = POINT_SECONDS * (n * math.log2(n + 1) + k * math.log2(k + 1))
    if strategy == "dense" and sharp and n == k:  # as `estimate` has it, masses are equal
        point, pair = ASSIGNED_SECONDS
        return prepare + point * (n + k) + pair * n * k
    if strategy == "dense":
        return prepare + (SHARP_SECONDS if sharp else DENSE_SECONDS) * n * k
    if strategy == "streaming":
        vertices = VERTEX_SECONDS * (n + k) if sharp else 0.0
        return prepare + CELLS_SECONDS + PAIR_SECONDS * n * k + vertices
    if strategy == "sparse":
        return SPARSE_SECONDS * (n + k) + NEAREST_SECONDS * n * k
    return prepare + CELLS_SECONDS + LOW_RANK_SECONDS * options.low_rank.rank * (n + k)
