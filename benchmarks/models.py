"""Do the models of marginals and costs reach the right optimum? Against POT, and where a part of one space is missing.

``python -m benchmarks models`` runs everything (about 20 minutes on two cores), stores the table, and draws
``docs/missing.png``. POT gets the distances that the library works on: each space's divided by its own largest.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from benchmarks.common import run_groups
from benchmarks.quality import timed
from torchgw import GWOptions, GWResult, SinkhornOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.marginals import Balanced, Marginals, Partial, SemiRelaxed, Unbalanced

Array: TypeAlias = NDArray[np.float64]
Row = dict[str, Any]
FIGURE = Path(__file__).parent.parent / "docs" / "missing.png"
TIGHT = GWOptions(mixed_precision=False, sinkhorn=SinkhornOptions(tol=1e-12, exact_max_iter=5000, final_max_iter=50000))
PROBLEMS = range(20)
SAME = 1 + 1e-6
FEW, SHAPES = 3, ((400, 480), (1000, 1200))
EXCHANGES = 1_000_000  # POT's limit, that of its linear problems too
SPIRAL, ROLL, SHARE = 571, 500, 0.7
PARTS = {"inner 30 %": (0.0, 2.7), "middle 30 %": (3.15, 5.85)}  # the angles that are missing, of 0 to 9
MODELS: dict[str, tuple[float, Marginals]] = {
    "balanced": (1.0, Balanced()),
    "partial": (SHARE, Partial(SHARE)),
    "unbalanced": (SHARE, Unbalanced(rho_x=0.1, rho_y=3e-3)),  # what is left has a place, the roll may keep its mass
}


class Problem(NamedTuple):
    """Scaled distances of a cloud in space and one in the plane, a cost between them, and uniform masses."""

    D: Array
    E: Array
    M: Array
    p: Array
    q: Array


class Pair(NamedTuple):
    """What the library and POT reach on one problem, and the time of the one over that of the other."""

    ours: float
    peer: float
    converged: bool
    time: float


def row(case: str, required: str, measured: str, met: bool, **detail: Any) -> Row:
    """One line of the table."""
    return {"case": case, "required": required, "measured": measured, "met": bool(met), "detail": detail}


def quadratic(D: Array, E: Array, T: Array) -> float:
    """sum (D_ik - E_jl)^2 T_ij T_kl, by the plan's own marginals, apart from the library."""
    p, q = T.sum(1), T.sum(0)
    return float(p @ D**2 @ p + q @ E**2 @ q - 2 * ((D @ T @ E) * T).sum())


def problem(seed: int, shape: tuple[int, int] | None = None) -> Problem:
    """Two gamma clouds, of 20 to 40 points or of this ``shape``, and squared distances of gamma features."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(20, 41, 2)
    n, k = drawn if shape is None else shape
    D, E = (cdist(x, x) for x in (rng.gamma(2.0, size=(n, 3)), rng.gamma(2.0, size=(k, 2))))
    M = cdist(rng.gamma(2.0, size=(n, 2)), rng.gamma(2.0, size=(k, 2)), "sqeuclidean")
    return Problem(D / D.max(), E / E.max(), M / M.max(), np.full(n, 1 / n), np.full(k, 1 / k))


def linear_error(seed: int, epsilon: float, rho: float | None) -> float:
    """Largest difference to POT's plan without a quadratic part; unequal masses, or equal ones where rho is None.

    The regulariser is POT's ``reg_type="kl"``, KL(T | a b^T). Its translation-invariant iteration is used, as the
    stabilised one diverges at small epsilon.
    """
    import ot  # type: ignore[import-untyped]

    given, rng = problem(seed), np.random.default_rng(1000 + seed)
    a, b = (rng.gamma(2.0, size=side.shape) for side in (given.p, given.q))
    a, b = a / a.sum(), b / b.sum() * (1.0 if rho is None else (1.7, 0.4, 1.0)[seed % 3])
    model: Marginals = Balanced() if rho is None else Unbalanced(rho, rho)
    asked: dict[str, Any] = {"marginals": model, "epsilon": epsilon, "options": TIGHT}
    ours = gw_align(None, None, cost=given.M, alpha=0, p=a, q=b, **asked).plan
    most: dict[str, Any] = {"numItermax": 200_000, "stopThr": 1e-14}
    if rho is None:
        peer = ot.sinkhorn(a, b, given.M, epsilon, **most)
    else:
        most |= {"method": "sinkhorn_translation_invariant", "reg_type": "kl"}
        peer = ot.unbalanced.sinkhorn_unbalanced(a, b, given.M, epsilon, rho, **most)
    return float(np.abs(ours - np.asarray(peer)).max())


class Asked(NamedTuple):
    """A model without entropy.

    given : arguments of `gw_align`.
    peer : POT's plan.
    alpha : weight of the quadratic part.
    """

    given: dict[str, Any]
    peer: Callable[[], Any]
    alpha: float = 1.0


def partial_model(of: Problem, mass: float) -> Asked:
    """A plan of this mass."""
    import ot

    asked = {"m": mass, "numItermax": EXCHANGES}
    peer = functools.partial(ot.gromov.partial_gromov_wasserstein, of.D, of.E, of.p, of.q, **asked)
    return Asked({"marginals": Partial(mass)}, peer)


def semirelaxed_model(of: Problem) -> Asked:
    """Plans whose second marginal is free."""
    import ot

    peer = functools.partial(ot.gromov.semirelaxed_gromov_wasserstein, of.D, of.E, of.p, "square_loss")
    return Asked({"marginals": SemiRelaxed(0.0, "y")}, peer)


def fused_model(of: Problem, alpha: float) -> Asked:
    """alpha quadratic + (1 - alpha) <M, T> of balanced plans."""
    import ot

    peer = functools.partial(ot.gromov.fused_gromov_wasserstein, of.M, of.D, of.E, of.p, of.q, alpha=alpha)
    return Asked({"cost": of.M, "alpha": alpha}, peer, alpha)


ASKED: dict[str, Callable[[Problem], Asked]] = {
    "partial, mass 0.5": functools.partial(partial_model, mass=0.5),
    "partial, mass 0.8": functools.partial(partial_model, mass=0.8),
    "semi-relaxed, rho 0": semirelaxed_model,
    "fused, alpha 0.3": functools.partial(fused_model, alpha=0.3),
    "fused, alpha 0.5": functools.partial(fused_model, alpha=0.5),
    "fused, alpha 0.8": functools.partial(fused_model, alpha=0.8),
}


def valued(of: Problem, alpha: float, T: Array) -> float:
    """The objective of a plan, apart from the library."""
    return alpha * quadratic(of.D, of.E, T) + (1 - alpha) * float((of.M * T).sum())


def pair(name: str, seed: int, shape: tuple[int, int] | None = None) -> Pair:
    """What both reach on one problem, and how long they take, one after the other."""
    of = problem(seed, shape)
    asked = ASKED[name](of)
    ours = functools.partial(gw_align, of.D, of.E, p=of.p, q=of.q, epsilon=0.0, random_state=0, **asked.given)
    result, taken = timed(ours)
    plan, theirs = timed(asked.peer)
    values = (valued(of, asked.alpha, np.asarray(T)) for T in (result.plan, plan))
    return Pair(*values, result.converged, taken / theirs)


def judged(case: str, required: str, pairs: Sequence[Pair], most: float = math.inf) -> Row:
    """The line for values that must not lie above POT's on any problem, and for times over POT's up to a ``most``."""
    ratios, times = [each.ours / each.peer for each in pairs], [each.time for each in pairs]
    good, lower = sum(ratio <= SAME for ratio in ratios), sum(ratio < 1 / SAME for ratio in ratios)
    measured = (
        f"{good} of {len(pairs)} ({lower} lower; ratio {statistics.median(ratios):.3f}, worst {max(ratios):.4f}); "
        f"{statistics.median(times):.2g}x POT's time"
    )
    met = good == len(pairs) and statistics.median(times) <= most
    return row(case, required, measured, met, pairs=[each._asdict() for each in pairs])


def linear() -> list[Row]:
    """Linear transport, unbalanced and balanced, to POT's plan."""
    found = []
    for epsilon, rho in itertools.product((5e-2, 5e-3), (0.01, 0.1, 1.0, None)):
        errors = [linear_error(seed, epsilon, rho) for seed in range(6)]
        name = "balanced" if rho is None else f"unbalanced, rho {rho:g}"
        case = f"alpha=0, {name}, epsilon {epsilon:g}: plan against POT's"
        found.append(row(case, "<= 1e-6", f"{max(errors):.1e}", max(errors) <= 1e-6, errors=errors))
    return found


def sharp() -> list[Row]:
    """Each model without entropy, on few points."""
    return [
        judged(f"{name}, epsilon 0, 20 to 40 points", "value <= POT's on all", [pair(name, seed) for seed in PROBLEMS])
        for name in ASKED
    ]


def larger() -> list[Row]:
    """The same on more points, where it is to be faster too."""
    return [
        judged(
            f"{name}, epsilon 0, {n} x {k}",
            "value <= POT's on all, faster",
            [pair(name, seed, (n, k)) for seed in range(FEW)],
            1.0,
        )
        for n, k in SHAPES
        for name in ASKED
    ]


class Match(NamedTuple):
    """A spiral without a part, a roll, their angles, and a result; scores over the spiral's points."""

    angle: Array
    Y: Array
    roll_angle: Array
    result: GWResult

    @property
    def matched(self) -> Array:
        """The angle of each spiral point's heaviest match."""
        found: Array = self.roll_angle[np.asarray(self.result.argmax())]
        return found

    @property
    def rho(self) -> float:
        return float(spearmanr(self.angle, self.matched)[0])

    @property
    def error(self) -> float:
        """Mean absolute error of the angle: a stretched match is monotone, but not right."""
        return float(np.abs(self.angle - self.matched).mean())


def match(model: str, part: str, seed: int) -> Match:
    """Euclidean distances, which an absent part does not change; the largest is between points that are present."""
    X, angle = make_spiral(SPIRAL, random_state=seed)
    Y, roll_angle = make_swiss_roll(ROLL, random_state=1000 + seed)
    lowest, highest = PARTS[part]
    keep = (angle < lowest) | (angle >= highest)
    total, marginals = MODELS[model]
    p, q = np.full(keep.sum(), total / keep.sum()), np.full(ROLL, 1 / ROLL)
    result = gw_align(X[keep], Y, distances="euclidean", p=p, q=q, marginals=marginals, random_state=seed)
    return Match(angle[keep], Y, roll_angle, result)


def missing(seeds: Iterable[int] = range(10)) -> list[Row]:
    """A spiral of which 30 % are missing in a whole roll: what is left keeps its place, unless all mass must move."""
    found, seeds = [], list(seeds)
    for part, model in itertools.product(PARTS, MODELS):
        runs = [match(model, part, seed) for seed in seeds]
        rhos, errors = [run.rho for run in runs], [run.error for run in runs]
        kept = model != "balanced"
        met = min(rhos) >= 0.99 and max(errors) <= 0.25 if kept else max(rhos) < 0.99
        measured = f"rho {min(rhos):.4f} to {max(rhos):.4f}, mean angle error {min(errors):.2f} to {max(errors):.2f}"
        required = "signed rho >= 0.99, error <= 0.25" if kept else "cannot: rho < 0.99"
        case = f"spiral without its {part}, {model}, {len(seeds)} seeds"
        found.append(row(case, required, measured, met, rhos=rhos, errors=errors))
    return found


def draw(path: Path = FIGURE, part: str = "middle 30 %", seed: int = 0) -> None:
    """Where each model puts the points of a spiral without its middle, and what it does to the roll."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10.5, 6.8), dpi=140, layout="constrained")
        axes = figure.subplots(2, 3)
        for column, model in enumerate(MODELS):
            shown = match(model, part, seed)
            _draw_roll(axes[0, column], shown, model)
            _draw_angles(axes[1, column], shown, part)
        figure.colorbar(axes[0, 2].collections[-1], ax=axes[0, :], label="angle on the spiral (radians)", shrink=0.85)
        axes[1, 0].set_ylabel("angle of the match on the roll (radians)")
        figure.suptitle(f"A spiral without its {part}, matched with a whole Swiss roll", x=0.01, ha="left", fontsize=12)
        figure.savefig(path)


def _draw_roll(axes: Any, shown: Match, model: str) -> None:
    plan = shown.result.plan
    mass = plan.sum(0)
    idle = mass < 0.1 / ROLL
    x, z = shown.Y[:, 0], shown.Y[:, 2]
    colour = shown.angle @ plan / np.maximum(mass, 1e-300)
    axes.scatter(x[idle], z[idle], c="0.8", s=9, linewidths=0)
    axes.scatter(x[~idle], z[~idle], c=colour[~idle], cmap="viridis", vmin=0, vmax=9, s=11, linewidths=0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(f"{model}: the roll from above;\n{idle.mean():.0%} get nothing (grey)", loc="left", fontsize=10)


def _draw_angles(axes: Any, shown: Match, part: str) -> None:
    axes.axvspan(*PARTS[part], color="0.93", zorder=0)
    axes.plot((0, 9), (0, 9), color="0.6", linewidth=1, linestyle=(0, (4, 2)), label="right")
    axes.scatter(shown.angle, shown.matched, s=7, color="#0072B2", linewidths=0)
    axes.text(sum(PARTS[part]) / 2, 0.15, "missing", ha="center", color="0.4")
    axes.set(xlim=(0, 9), ylim=(-0.1, 9.1), xlabel="angle on the spiral (radians)")
    axes.set_title(f"signed Spearman {shown.rho:+.3f}, mean error {shown.error:.2f}", loc="left", fontsize=10)


GROUPS = {group.__name__: group for group in (linear, sharp, larger, missing)}


def run(groups: list[str] | None = None) -> None:
    """Measure, store the tables with what each line rests on, and draw the figure of what is missing."""
    run_groups("models", GROUPS, groups)
    if groups is None or "missing" in groups:
        draw()
