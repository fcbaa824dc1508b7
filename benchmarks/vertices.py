"""Plans without entropy of many points: time, value and proof, against POT's conditional gradient where that ends.

Each of the large sizes is solved by default from points on a spiral and a roll; the value is compared with that of an
entropic solve at 1e-4, and potentials with all pairs of points, by the gap that they leave.
"""

from __future__ import annotations

import resource
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import interleaved, paired, run_groups
from benchmarks.quality import clouds, geodesics, objective, row, timed
from benchmarks.sizes import agreement
from torchgw import gw_align
from torchgw.solvers.linear_oracle import MOST_MASSES

Row = dict[str, Any]
SEEDS, STORED_SECONDS, RHO = 5, 5.0, 0.999
MARGINALS, GAP, FLOWS_GAP = 1e-12, 2e-5, 1e-2  # where linear problems are flows, the best of their entries alone
FROM_DISTANCES = (4000, 5000, 12.0)
FROM_POINTS = {"4000": (4000, 5000, 6.0), "20000": (20_000, 25_000, 90.0), "100000": (100_000, 120_000, 1200.0)}
LARGEST, LARGEST_GIB = 1_000_000, 12.0
ENTROPIC = 1e-4


def of_distances() -> list[Row]:
    """Stored matrices: 2000 x 2500 beside POT's conditional gradient, and 4000 x 5000."""
    import ot

    found = []
    for seed in range(SEEDS):
        X, x, Y, y = clouds(2000, 2500, seed)
        DX, DY = geodesics(X, Y)
        ours = partial(gw_align, DX, DY, epsilon=0.0, random_state=0)
        theirs = partial(ot.gromov.gromov_wasserstein, DX, DY, loss_fun="square_loss")
        ours()
        times = interleaved({"ours": ours, "POT": theirs}, 1, warm=False)
        result, plan = ours(), np.asarray(theirs())
        seconds, ratio = times["ours"][0], paired(times["ours"], times["POT"])
        above = result.value / objective(DX, DY, plan)
        found.append({"seconds": seconds, "ratio": ratio, "value": above, "rho": agreement(result, x, y)})
    slowest, highest = (max(run[name] for run in found) for name in ("seconds", "value"))
    said = f"at most {slowest:.2g} s, {max(run['ratio'] for run in found):.2g}x POT's, value at most {highest:.4f}x"
    met = slowest <= STORED_SECONDS and highest <= 1 + 1e-6
    required = f"<= {STORED_SECONDS:g} s, value <= POT's"
    rows = [row(f"2000 x 2500 from distances, {SEEDS} seeds", required, said, met, runs=found)]
    n, k, most = FROM_DISTANCES
    X, x, Y, y = clouds(n, k, 0)
    spaces = geodesics(X, Y)
    result, seconds = timed(lambda: gw_align(*spaces, epsilon=0.0, random_state=0))
    rho = agreement(result, x, y)
    said, required = f"{seconds:.3g} s, rho {rho:.4f}, value {result.value:.6f}", f"<= {most:g} s, rho >= {RHO}"
    return [*rows, row(f"{n} x {k} from distances", required, said, seconds <= most and rho >= RHO)]


def of_points(n: int, k: int, most: float) -> list[Row]:
    """One size from points."""
    X, x, Y, y = clouds(n, k, 0)
    result, seconds = timed(lambda: gw_align(X, Y, epsilon=0.0, random_state=0))
    blurred = gw_align(X, Y, epsilon=ENTROPIC, random_state=0)
    required = f"<= {most:g} s, marginals <= {MARGINALS:g}, rho >= {RHO}, value below that at epsilon {ENTROPIC:g}"
    return [_judged(f"{n} x {k} from points", required, result, seconds, most, blurred.value, agreement(result, x, y))]


def of_million() -> list[Row]:
    """The largest size, and its memory."""
    X, x, Y, y = clouds(LARGEST, LARGEST, 0)
    result, seconds = timed(lambda: gw_align(X, Y, epsilon=0.0, random_state=0))
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = _judged(
        "a million points", f"<= {LARGEST_GIB:g} GiB", result, seconds, np.inf, None, agreement(result, x, y)
    )
    return [found | {"measured": f"{found['measured']}, {gib:.1f} GiB", "met": found["met"] and gib <= LARGEST_GIB}]


def _judged(
    case: str, required: str, result: Any, seconds: float, most: float, blurred: float | None, rho: float
) -> Row:
    """A line; ``blurred`` is the value of the entropic solve, None where there was none."""
    entries = result.plan_sparse.nnz
    gap = result.certificate.stationarity / result.value
    beside = (
        "no entropic solve at this size" if blurred is None else f"{result.value / blurred:.3f} of the entropic one"
    )
    marginals = f"{result.marginal_error:.1e}" if result.marginal_error else "exact"
    said = (
        f"{seconds:.3g} s, value {result.value:.6f} ({beside}), rho {rho:.5f}, "
        f"{entries} entries, marginals {marginals}, gap {gap:.1e} of the value over all pairs"
    )
    proven = gap <= (FLOWS_GAP if sum(result.shape) > MOST_MASSES else GAP) and result.marginal_error <= MARGINALS
    proven = proven and result.certificate.stationarity_exact
    return row(
        case, required, said, seconds <= most and rho >= RHO and (blurred is None or result.value < blurred) and proven
    )


GROUPS = {
    "distances": of_distances,
    **{name: partial(of_points, *size) for name, size in FROM_POINTS.items()},
    "million": of_million,
}


def run(groups: list[str] | None = None) -> None:
    """Measure, print, store."""
    run_groups("vertices", GROUPS, groups)
