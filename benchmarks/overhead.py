"""What a library call costs beyond its tensor code: `gw_align` against `benchmarks.baselines.flat` on the same problem.

Both give the same plan, value, certificate and iteration counts, which is checked at every size before anything is
timed. What the library does besides is validation, planning, the choice of kernels, and objects around the same
operations: a fixed cost of each call, and some microseconds of each iteration.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from benchmarks.baselines import flat
from benchmarks.common import interleaved, paired, show, write
from torchgw import EuclideanDistances, GWOptions, GWResult, SinkhornOptions, StoppingOptions, align, gw_align, validate
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.request import request

Row = dict[str, Any]
SIZES, QUICK_SIZES = (50, 100, 500, 1000, 5000), (50, 500)
BUDGET, QUICK_BUDGET = 45.0, 5.0  # seconds of rounds a row
LEAST, MOST, KNOWN_TO = 5, 101, 1.0  # rounds; percentage points to which an overhead is known well enough
DTYPES = (torch.float32, torch.float64)
EPSILON = 5e-3
MOST_PERCENT, FROM = 5.0, 500
SAME = 1e-12
LARGE, LARGE_ITERATIONS, LARGE_SINKHORN = 5000, 6, 20
EXPLAINED_SIZE, EXPLAINED_ROUNDS = 50, 60
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {  # functions of each part, by where they are looked up
    "validation": (
        (
            request,
            "check_alpha check_arguments check_cost check_distances check_init check_rank check_resolution "
            "check_spaces",
        ),
        (
            request,
            "facts_of pick_device refuse replace_attributes imply_options tensors_of tolerances_for with_factors",
        ),
        (validate, "choice instance integer masses memory real"),
    ),
    "planning": ((request, "check_memory choose_strategy allows_no_entropy"), (align, "forecast follow_solve")),
    "choice of kernels": ((request, "choose_kernels"),),
    "masses, model and generator": ((request, "make_generator make_model"),),
    "result object and warnings": ((align, "result_of"), (align, "warn")),
    "solve": ((align, "run_strategy"),),
}
ITERATIONS, WHOLE = "iterations", "all of it"


@dataclass(frozen=True)
class Case:
    """Two clouds, and both ways to align them from the points, at most ``max_iter`` outer iterations long."""

    X: NDArray[np.float64]
    Y: NDArray[np.float64]
    dtype: torch.dtype
    max_iter: int = 300
    most_inner: int = 100
    most_last: int = 2000

    @cached_property
    def options(self) -> GWOptions:
        """The library's own but for the search, which is left out, and the limits."""
        return GWOptions(
            coarse=None,
            gradient="exact",
            strategy="dense",
            mixed_precision=self.dtype == torch.float32,
            stopping=StoppingOptions(max_iter=self.max_iter),
            sinkhorn=SinkhornOptions(exact_max_iter=self.most_inner, final_max_iter=self.most_last),
        )

    def library(self) -> GWResult:
        """By one call."""
        spaces = EuclideanDistances(self.X, squared=True), EuclideanDistances(self.Y, squared=True)
        return gw_align(*spaces, epsilon=EPSILON, options=self.options, device="cpu", random_state=0)

    def flat(self) -> flat.Flat:
        """By flat tensor code."""
        limits = {"max_iter": self.max_iter, "exact_max_iter": self.most_inner, "final_max_iter": self.most_last}
        return flat.align(self.X, self.Y, EPSILON, self.dtype, **limits)


def case(n: int, k: int, dtype: torch.dtype) -> Case:
    """A spiral and a roll. The large ones stop early, so that a call takes seconds."""
    X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
    if max(n, k) < LARGE:
        return Case(X, Y, dtype)
    return Case(X, Y, dtype, LARGE_ITERATIONS, LARGE_SINKHORN, LARGE_SINKHORN)


def check_same(case: Case) -> flat.Flat:
    """Both give the same, else nothing is worth timing; an `AssertionError` says what differs and by how much.

    The plan is compared in the library's form, factors and potentials, and as a matrix.
    """
    result, expected = case.library(), case.flat()
    counts = (result.n_iter, result.n_iter_sinkhorn), (expected.n_iter, expected.n_iter_sinkhorn)
    assert counts[0] == counts[1], f"iterations (outer, inner) are {counts[0]} and {counts[1]}"
    certificate = result.certificate
    numbers = {
        "value": (result.value, expected.value),
        "lower bound": (certificate.lower_bound, expected.lower_bound),
        "stationarity": (certificate.stationarity, expected.stationarity),
        "gap": (certificate.gap, expected.gap),
        "marginal error": (result.marginal_error, expected.marginal_error),
        "marginal residual": (result.marginal_residual, expected.marginal_residual),
    }
    off = {name: abs(one - other) for name, (one, other) in numbers.items()}
    found: Any = result.coupling
    tensors = {name: (getattr(found, name), getattr(expected, name)) for name in "ABfgxy"}
    tensors["plan"] = found.to_dense(), expected.plan
    for name, (one, other) in tensors.items():
        off[name] = float((one - other).abs().max() / other.abs().max().clamp_min(torch.finfo(other.dtype).tiny))
    worst = max(off, key=lambda name: off[name])
    assert off[worst] <= SAME, f"{worst} differs by {off[worst]:.1e}"
    return expected


def timed(case: Case, budget: float) -> dict[str, list[float]]:
    """Seconds of both in every round; the order turns from one round to the next.

    Rounds go on while the seconds of the ``budget`` last and the median of their ratios is not known.
    """
    calls: dict[str, Callable[[], object]] = {"library": case.library, "flat": case.flat}
    found: dict[str, list[float]] = {name: [] for name in calls}
    while len(found["flat"]) < MOST:
        turn = len(found["flat"])
        order = dict(reversed(calls.items())) if turn % 2 else calls
        for name, seconds in interleaved(order, rounds=1, warm=turn == 0).items():
            found[name] += seconds
        low, high = interval(percents(found))
        known = high - low <= 2 * KNOWN_TO
        if turn + 1 >= LEAST and (known or sum(map(sum, found.values())) > budget):
            break
    return found


def percents(seconds: Mapping[str, Sequence[float]]) -> list[float]:
    """By how much the library takes longer in each round."""
    return [100 * (ours / flat - 1) for ours, flat in zip(seconds["library"], seconds["flat"], strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with a confidence of 95 % at least, by order statistics; from five values, their range."""
    ranked, n = sorted(values), len(values)
    outside = max(int(binom.ppf(0.025, n, 0.5)) - 1, 0)
    return ranked[outside], ranked[n - 1 - outside]


def row(case: Case, budget: float, once: float) -> Row:
    """Check, time and judge one size; ``once`` is what `explained` finds outside the iterations, in seconds."""
    same = check_same(case)
    seconds = timed(case, budget)
    ours, theirs = seconds["library"], seconds["flat"]
    n, percent = len(case.X), 100 * (paired(ours, theirs) - 1)
    low, high = interval(percents(seconds))
    extra = statistics.median(a - b for a, b in zip(ours, theirs, strict=True))
    return {
        "N": n,
        "dtype": str(case.dtype).removeprefix("torch."),
        "iterations": same.n_iter,
        "inner iterations": same.n_iter_sinkhorn,
        "rounds": len(ours),
        "library_ms": 1e3 * statistics.median(ours),
        "flat_ms": 1e3 * statistics.median(theirs),
        "overhead_percent": percent,
        "interval": f"{low:.1f} to {high:.1f}",
        "difference_ms": 1e3 * extra,
        "where": where(low, high, extra, once, same.n_iter),
        "required": f"< {MOST_PERCENT:g} %" if n >= FROM else "-",
        "met": judged(low, high) if n >= FROM else "-",
    }


def judged(low: float, high: float) -> bool | str:
    """Whether the overhead is small enough, where the interval that holds it lies on one side of the limit."""
    return True if high < MOST_PERCENT else False if low >= MOST_PERCENT else "not known"


def where(low: float, high: float, extra: float, once: float, n_iter: int) -> str:
    """Where a difference of ``extra`` seconds goes, of which ``once`` are those of any call; or that there is none."""
    if low <= 0 <= high:
        return "no difference beyond the noise"
    if high < 0:
        return "the library is faster"
    each = max(extra - once, 0.0) / n_iter
    return f"{1e3 * once:.1f} ms once, {1e6 * each:.0f} us an outer iteration"


def explained(rounds: int) -> list[Row]:
    """The fixed cost of a call at the smallest size by part: the medians of what each takes beyond the flat code."""
    small = case(EXPLAINED_SIZE, EXPLAINED_SIZE, DTYPES[0])
    small.library(), small.flat()
    collected: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for part, seconds in _parts(small).items():
            collected[part].append(seconds)
    return [{"what": part, "ms": 1e3 * statistics.median(seconds)} for part, seconds in collected.items()]


def _parts(case: Case) -> dict[str, float]:
    """Seconds of each part of one call, less those of the flat code where that has the part too."""
    with _stopwatches() as spent:
        began = time.perf_counter()
        timings = case.library().timings
        whole = time.perf_counter() - began
    same = case.flat().seconds
    inside = sum(timings[name] for name in ("search", "solve", "finish"))
    parts = {name: spent[name] for name in PARTS if name != "solve"}
    ending = timings["finish"] + spent["solve"] - inside
    parts |= {
        "distance providers": spent["providers"] - same["points"],
        "gradient and start": timings["search"] - same["search"],
        ITERATIONS: timings["solve"] - same["solve"],
        "value, certificate and outcome": ending - same["finish"],
        "gw_align itself": whole - sum(spent.values()),
    }
    return parts | {WHOLE: whole - sum(same.values())}


@contextmanager
def _stopwatches() -> Iterator[dict[str, float]]:
    """Seconds spent in the parts of `gw_align`, each in the outermost of its functions."""
    spent: dict[str, float] = defaultdict(float)
    running: list[str] = []

    def watched(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*given: Any, **named: Any) -> Any:
            if running:
                return function(*given, **named)
            running.append(part)
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                spent[part] += time.perf_counter() - began
                running.pop()

        return run

    places = [(part, owner, name) for part, held in PARTS.items() for owner, names in held for name in names.split()]
    with ExitStack() as stack:
        for part, owner, name in places:
            stack.enter_context(patch.object(owner, name, watched(part, getattr(owner, name))))
        made = watched("providers", EuclideanDistances)
        stack.enter_context(patch.dict(globals(), EuclideanDistances=made))
        yield spent


def measure(sizes: Sequence[int], budget: float, once: float) -> list[Row]:
    """A row for each size and dtype, printed as they come."""
    rows = []
    for n, dtype in ((n, dtype) for n in sizes for dtype in DTYPES):
        rows.append(row(case(n, n, dtype), budget, once))
        show(rows[-1:])
    return rows


def run(quick: bool = False) -> None:
    """Measure, print, store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = explained(EXPLAINED_ROUNDS // 3 if quick else EXPLAINED_ROUNDS)
        once = sum(part["ms"] for part in parts if part["what"] not in (ITERATIONS, WHOLE)) / 1e3
        rows = measure(QUICK_SIZES, QUICK_BUDGET, once) if quick else measure(SIZES, BUDGET, once)
    write("overhead", rows, quick=quick, explained=parts)
    print()
    show(rows)
    print()
    show(parts)
