"""How the time of a call grows with its size: by default from points, between meshes, hop counts and matrices.

Spirals and Swiss rolls are timed beside POT's entropic solver, which is given their distances, and from 100 to a
million points in pairs of sizes a tenth apart, by which a cliff is seen wherever it lies. Peers alternate with us.
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks import problems
from benchmarks.common import interleaved, paired, rehearsed, run_groups
from benchmarks.quality import clouds, geodesics, row, timed
from torchgw import gw_align

Row = dict[str, Any]
Array = np.ndarray
RHO = 0.999
DEFAULT = {(400, 500): 0.2, (1000, 1200): 0.35, (2000, 2500): 0.8, (4000, 5000): 1.6}  # seconds at most
OF_POT, ROUNDS = 1 / 3, {400: 5, 1000: 3, 2000: 1}
HOPS, HOP_VALUES, NEIGHBOURS = {1000: 1.5, 2000: 5.0}, {1000: 0.00861, 2000: 0.00875}, 50
MESHES, MESH_SECONDS, MESH_OFF = (4990, 5000, 5010), 3.0, 0.03
MATRIX, MATRIX_SECONDS = (4000, 5000), 5.0
CURVE = (100, 200, 300, 400, 500, 700, 1000, 1400, 2000, 2200, 2800, 4000, 4500, 5600, 8000, 20_000, 45_000, 100_000)
MILLION, MILLION_SECONDS = 1_000_000, 100.0
RESOLVED = 400  # below, neighbours join turns of some rolls, whatever is made of them
APART, STEP, NOISE, QUICK_SIZE = 1.1, 1.5, 1.2, 300


def agreement(result: Any, x: Array, y: Array) -> float:
    """Signed rank correlation of the angles of matched points."""
    return float(spearmanr(x, y[np.asarray(result.argmax())])[0])


def of_default() -> list[Row]:
    """The default call from points, beside POT's entropic solver from distances."""
    return [_default(n, k, most) for (n, k), most in DEFAULT.items()]


def _default(n: int, k: int, most: float) -> Row:
    X, x, Y, y = clouds(n, k, 0)
    calls: dict[str, Any] = {"ours": lambda: gw_align(X, Y, random_state=0)}
    if n in ROUNDS:
        import ot

        p, q, (DX, DY) = np.full(n, 1 / n), np.full(k, 1 / k), geodesics(X, Y)
        solve = partial(ot.gromov.entropic_gromov_wasserstein, loss_fun="square_loss", epsilon=1e-3, max_iter=100)
        calls["POT"] = lambda: solve(DX, DY, p, q)
    calls["ours"]()
    times = interleaved(calls, ROUNDS.get(n, 5), warm=False)
    rho, ours = agreement(calls["ours"](), x, y), statistics.median(times["ours"])
    share = paired(times["ours"], times["POT"]) if "POT" in times else None
    said, required = f"{ours:.2g} s, rho {rho:.4f}", f"<= {most:g} s, rho >= {RHO}"
    if share is not None:
        said, required = f"{said}, {share:.2g}x POT's", f"{required}, <= 1/3 of POT entropic"
    met = ours <= most and rho >= RHO and (share is None or share <= OF_POT)
    return row(f"default call, {n} x {k} from points", required, said, met, times=times)


def of_hops() -> list[Row]:
    """Hop counts of clusters along a branching curve."""
    found = []
    for n, most in HOPS.items():
        views = problems.branching_views(n, 0)[:2]
        D, E = (problems.hop_distances(view, NEIGHBOURS) for view in views)
        result, seconds = timed(lambda D=D, E=E: gw_align(D, E, random_state=0))
        said, highest = f"{seconds:.2g} s, value {result.value:.4g}", HOP_VALUES[n]
        met = seconds <= most and result.value <= highest
        found.append(row(f"hop counts, {n} points", f"<= {most:g} s, value <= {highest:g}", said, met))
    return found


def tubes(n: int, bend: float) -> Array:
    """n vertices on a tube with four limbs, bent; the same vertex is in the same row whatever the bend."""
    parts = (
        ((0, 0, 0), (4, 0, 0), 0.4),
        ((1, 0, 0), (1, 1.8, 0), 0.2),
        ((1, 0, 0), (1, -1.5, 0.4), 0.2),
        ((3, 0, 0), (3.2, 1.3, 0.2), 0.25),
        ((3, 0, 0), (3.1, -2.2, 0), 0.2),
    )
    areas = np.array([np.linalg.norm(np.subtract(end, start)) * radius for start, end, radius in parts])
    counts = np.floor(areas / areas.sum() * n).astype(int)
    counts[0] += n - counts.sum()
    found = []
    for (start, end, radius), count in zip(parts, counts, strict=True):
        axis = np.subtract(end, start).astype(float)
        side = np.cross(axis, (0.1, 0.2, 1.0))
        side /= np.linalg.norm(side)
        other = np.cross(axis / np.linalg.norm(axis), side)
        place = np.arange(count) + 0.5
        turn = 2 * np.pi * place * 0.618034
        ring = np.outer(np.cos(turn), side) + np.outer(np.sin(turn), other)
        found.append(np.asarray(start) + np.outer(place / count, axis) + radius * ring)
    x, y, z = np.concatenate(found).T
    angle = bend * x
    return np.stack((x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle), z), 1)


def of_meshes() -> list[Row]:
    """Vertices of two bent tubes with limbs, just below a limit and above it."""
    found = []
    for n in MESHES:
        order = np.random.default_rng(0).permutation(n)
        X, Y = tubes(n, 0.0), tubes(n, 0.25)[order]
        result, seconds = timed(lambda X=X, Y=Y: gw_align(X, Y, random_state=0))
        off = np.linalg.norm(Y[np.asarray(result.argmax())] - Y[np.argsort(order)], axis=1).mean() / np.ptp(Y)
        said = f"{seconds:.2g} s, matched {off:.1%} of the diameter off"
        met, required = seconds <= MESH_SECONDS and off <= MESH_OFF, f"<= {MESH_SECONDS:g} s, <= {MESH_OFF:.0%} off"
        found.append(row(f"meshes, {n} vertices", required, said, met))
    return found


def of_matrices() -> list[Row]:
    """Stored distances along curves."""
    n, k = (QUICK_SIZE, QUICK_SIZE) if rehearsed() else MATRIX
    X, x, Y, y = clouds(n, k, 0)
    DX, DY = geodesics(X, Y)
    result, seconds = timed(lambda: gw_align(DX, DY, random_state=0))
    rho = agreement(result, x, y)
    met, required = seconds <= MATRIX_SECONDS and rho >= RHO, f"<= {MATRIX_SECONDS:g} s, rho >= {RHO}"
    return [row(f"matrices, {n} x {k}", required, f"{seconds:.2g} s, rho {rho:.4f}", met)]


def of_curve() -> list[Row]:
    """Seconds of the default call over its size; each size, and one that is a tenth larger; and the largest."""
    runs = [point(size) for n in CURVE for size in (n, round(APART * n))]
    steps = {early["N"]: late["seconds"] / early["seconds"] for early, late in itertools.pairwise(runs)}
    near = {n: steps[n] for n in CURVE}
    steepest, falls = max(near, key=near.__getitem__), [n for n, step in steps.items() if step < 1 / NOISE]
    worst = min(run["rho"] for run in runs if run["N"] >= RESOLVED)
    steep, agreed = f"steepest step {near[steepest]:.2g}x (from {steepest})", f"rho >= {worst:.4f} from {RESOLVED} on"
    said = f"{steep}, falls after {falls or 'none'}, {agreed}"
    met = near[steepest] <= STEP and not falls and worst >= RHO
    required = f"no step above {STEP:g}x between sizes a tenth apart, no fall of time by more than {NOISE - 1:.0%}"
    largest = point(MILLION)
    told = f"{largest['seconds']:.3g} s, rho {largest['rho']:.5f}"
    last = row("a million points", f"<= {MILLION_SECONDS:g} s", told, largest["seconds"] <= MILLION_SECONDS)
    title = f"time over size, {CURVE[0]} to {CURVE[-1]} points"
    return [row(title, required, said, met, runs=[*runs, largest]), last]


def point(n: int) -> Row:
    """The fastest of a few calls."""
    X, x, Y, y = clouds(n, n if n == MILLION else n * 5 // 4, 0)
    rounds = 5 if n <= 5000 else 3 if n <= 20_000 else 1
    runs = [timed(lambda: gw_align(X, Y, random_state=0)) for _ in range(1 + (rounds > 1) * rounds)]
    seconds = min(taken for _, taken in runs)
    return {"N": n, "seconds": seconds, "rho": agreement(runs[-1][0], x, y), "value": runs[-1][0].value}


GROUPS = {"default": of_default, "hops": of_hops, "meshes": of_meshes, "matrices": of_matrices, "curve": of_curve}


def run(groups: list[str] | None = None) -> None:
    """Measure, print, store."""
    run_groups("sizes", GROUPS, groups)
