"""Lower bounds of all plans: that they hold, how tight they are beside the value, and how often they prove it.

Ratios are bound over value, of a plain solve (Memoli's first two) and of `gw_certify` (his third, branch and bound
where centred distances have few directions, permutations where points are few).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from benchmarks import problems
from benchmarks.common import run_groups
from benchmarks.quality import clouds, geodesics, row, timed
from benchmarks.small import ring, tree
from torchgw import EuclideanDistances, gw_align, gw_certify

Row = dict[str, Any]
Array = np.ndarray
PROVEN, GAP, SECONDS, PLANE, SEEDS = 1e-6, 0.05, 60.0, 500, 5
TINY, RANDOM, OTHERS = 200, 500, 20


def tiny() -> list[Row]:
    """Two hundred problems of seven points."""
    gaps = []
    for seed in range(TINY):
        rng = np.random.default_rng(seed)
        DX, DY = (cdist(x := rng.normal(size=(7, 2 + seed % 3)), x) for _ in range(2))
        found = gw_certify(DX, DY, distances="precomputed", random_state=seed)
        gaps.append(found.certificate.gap_global)
    proven = sum(gap <= PROVEN for gap in gaps)
    said = f"{proven} of {TINY}"
    return [row(f"{TINY} problems of 7 points: proven optimal", "at least half", said, 2 * proven >= TINY, gaps=gaps)]


def random_pair(seed: int) -> tuple[Array, Array, Array, Array]:
    """Distances of two spaces of 5 to 30 points, plain or squared, of one shape or two, and masses."""
    rng = np.random.default_rng(seed)
    n, k = rng.integers(5, 31, size=2)
    d, e = rng.integers(1, 4, size=2)
    X = rng.normal(size=(n, d)) if seed % 3 else rng.exponential(size=(n, d))
    Y = X[rng.permutation(n)[: min(n, k)]] if seed % 4 == 0 else rng.normal(size=(k, e))
    Y = Y + 0.05 * rng.normal(size=Y.shape)
    DX, DY = (cdist(x, x, "sqeuclidean" if seed % 2 else "euclidean") for x in (X, Y))
    p, q = (rng.uniform(0.2, 1.0, len(D)) if seed % 5 == 0 else np.ones(len(D)) for D in (DX, DY))
    return DX / DX.max(), DY / DY.max(), p / p.sum(), q / q.sum()


def value(DX: Array, DY: Array, T: Array) -> float:
    """The objective of a plan, by its own marginals."""
    p, q = T.sum(1), T.sum(0)
    return float(p @ DX**2 @ p + q @ DY**2 @ q - 2 * ((DX @ T @ DY) * T).sum())


def below() -> list[Row]:
    """Five hundred random problems: no bound is above a value, of the solve or of other plans."""
    import ot

    above, ratios = 0, []
    for seed in range(RANDOM):
        DX, DY, p, q = random_pair(seed)
        given = {"p": p, "q": q, "distances": "precomputed"}
        found = gw_certify(DX, DY, **given, seconds=1.0, random_state=seed)
        lower, rng = found.certificate.lower_bound, np.random.default_rng(seed)
        plans = [np.asarray(ot.emd(p, q, rng.uniform(size=(len(p), len(q))))) for _ in range(OTHERS)]
        plans.append(np.asarray(ot.gromov.gromov_wasserstein(DX, DY, p, q, "square_loss")))
        lowest = min(value(DX, DY, plan) for plan in [*plans, np.asarray(found.plan)])
        above += lower > lowest + 1e-12
        ratios.append(lower / lowest if lowest > 1e-12 else 1.0)
    said = f"{RANDOM - above} of {RANDOM} (median {statistics.median(ratios):.2f} of the lowest)"
    return [row(f"{RANDOM} random problems: bound <= every value", "all", said, above == 0, ratios=ratios)]


def plane() -> list[Row]:
    """Clouds in the plane by squared distances."""
    found = []
    for name, made in (("independent", False), ("noisy copy", True)):
        runs = []
        for seed in range(SEEDS):
            rng = np.random.default_rng((seed, made))
            x = rng.normal(size=(PLANE, 2)) * (1.0, 0.7)
            y = x + 0.1 * rng.normal(size=x.shape) if made else rng.normal(size=x.shape) * (1.0, 0.7)
            X, Y = (EuclideanDistances(side, squared=True) for side in (x, y))
            result, seconds = timed(lambda X=X, Y=Y: gw_certify(X, Y, gap=GAP, seconds=SECONDS, random_state=0))
            runs.append({"gap": result.certificate.gap_global, "seconds": seconds})
        worst, slowest = (max(run[key] for run in runs) for key in ("gap", "seconds"))
        case = f"{name}, {PLANE} points in the plane, squared distances, {SEEDS} seeds"
        said = f"gap at most {worst:.3f}, {slowest:.2g} s"
        found.append(row(case, f"gap <= {GAP:g} within {SECONDS:g} s", said, worst <= GAP, runs=runs))
    return found


def kinds() -> dict[str, Callable[[np.random.Generator], tuple[Array, Array]]]:
    """Distances of two spaces of some three hundred points each."""

    def of_points(make: Callable[[np.random.Generator], tuple[Array, Array]]) -> Any:
        def made(rng: np.random.Generator) -> tuple[Array, Array]:
            x, y = make(rng)
            return cdist(x, x), cdist(y, y)

        return made

    def spiral(rng: np.random.Generator) -> tuple[Array, Array]:
        X, _, Y, _ = clouds(300, 340, int(rng.integers(1000)))
        return geodesics(X, Y)

    def noisy(d: int) -> Any:
        return of_points(lambda rng: ((x := rng.normal(size=(300, d))), x + 0.1 * rng.normal(size=x.shape)))

    def hops(rng: np.random.Generator) -> tuple[Array, Array]:
        one, other = problems.branching_views(300, int(rng.integers(1000)))[:2]
        return problems.hop_distances(one, 15), problems.hop_distances(other, 15)

    return {
        "spiral and roll": spiral,
        "noisy copies in R^3": noisy(3),
        "noisy copies in R^10": noisy(10),
        "independent clouds in R^3": of_points(lambda rng: (rng.normal(size=(300, 3)), rng.normal(size=(300, 3)))),
        "a cloud in R^3, one in R^2": of_points(lambda rng: (rng.normal(size=(300, 3)), rng.normal(size=(300, 2)))),
        "rings": lambda rng: (ring(300, rng), ring(300, rng)),
        "trees": lambda rng: (tree(300, rng), tree(300, rng)),
        "hops": hops,
    }


def tightness() -> list[Row]:
    """Bound over value on kinds of spaces."""
    found = []
    for name, make in kinds().items():
        runs = []
        for seed in range(3):
            DX, DY = make(np.random.default_rng(seed))
            result, seconds = timed(lambda DX=DX, DY=DY: gw_certify(DX, DY, distances="precomputed", random_state=0))
            plain = gw_align(DX, DY, distances="precomputed", epsilon=0, random_state=0)
            ratios = [each.certificate.lower_bound / each.value for each in (plain, result)]
            runs.append({"plain": ratios[0], "certified": ratios[1], "seconds": seconds})
        before, after = (statistics.median(run[key] for run in runs) for key in ("plain", "certified"))
        said = f"{before:.2f}, certified {after:.2f}"
        met = all(run["certified"] <= 1 for run in runs)
        found.append(row(f"{name}, about 300 points: bound over value", "<= 1", said, met, runs=runs))
    return found


GROUPS = {"tiny": tiny, "below": below, "plane": plane, "tightness": tightness}


def run(groups: list[str] | None = None) -> None:
    """Measure, print, store."""
    run_groups("bounds", GROUPS, groups)
