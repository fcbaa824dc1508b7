"""How far does it go? Spiral to Swiss roll from 20000 to a million points, tile skipping, low rank, unseen points.

``python -m benchmarks scale`` runs everything (about half an hour on two cores, the million last);
``python -m benchmarks scale 45000 tiles`` only those groups, and keeps the other rows that are stored.
Every size runs in a process of its own, whose peak memory is that of this process plus the largest of its helpers.
``TORCHGW_PROTOTYPE`` may name a script that solves N x K points with all pairs at every step, for the comparison.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, kept, show, write

Row = dict[str, Any]
RHO, MARGINALS = 0.999, 1e-6
# name: N, K, marginal tolerance, seconds, GiB; no limit where None
SIZES: dict[str, list[tuple[int, int, float, float | None, float | None]]] = {
    "20000": [(20_000, 25_000, 5e-2, 10, None), (20_000, 25_000, 5e-3, 30, None)],
    "45000": [(45_000, 45_000, 5e-2, 20, 1.5), (45_000, 45_000, 5e-3, 120, 1.5)],
    "100000": [(100_000, 120_000, 5e-2, 90, 3.0)],
    "published": [
        (n, k, 5e-2, None, None)
        for n, k in ((4000, 5000), (10_000, 12_000), (30_000, 35_000), (35_000, 40_000), (40_000, 50_000))
    ],
    "million": [(1_000_000, 1_000_000, 5e-2, None, 8.0)],
}
EXPONENT, SMALLEST = 1.2, 20_000

ALIGN = """
import json, resource, sys, time, warnings
import numpy as np
from scipy.stats import spearmanr
import torchgw
n, k, tol = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
X, x = torchgw.datasets.make_spiral(n)
Y, y = torchgw.datasets.make_swiss_roll(k, random_state=1)
began = time.perf_counter()
options = torchgw.GWOptions(ladder=torchgw.LadderOptions(marginal_tol=tol))
result = torchgw.gw_align(X, Y, options=options, random_state=0)
match = result.argmax()
seconds = time.perf_counter() - began
usage = [peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20]
forecast = torchgw.estimate(n, k)["streaming"]
print(json.dumps({
    "seconds": seconds, "gib": sum(usage), "rho": float(spearmanr(x, y[match])[0]), "value": result.value,
    "residual": result.marginal_residual, "marginals": result.marginal_error, "omitted": result.omitted_mass,
    "evaluated": result.evaluated, "timings": result.timings, "strategy": result.strategy, "status": result.status.name,
    "rungs": [[*rung.cells, rung.residual, rung.residual_error, rung.seconds] for rung in result.ladder],
    "forecast": [forecast.seconds, forecast.memory / 2**30],
}))
"""

TILES = """
import json, time
import numpy as np
import torchgw
from torchgw.spaces.graph import neighbour_graph
n = 45_000
spaces = [
    torchgw.LandmarkDistances(neighbour_graph(points))
    for points in (torchgw.datasets.make_spiral(n)[0], torchgw.datasets.make_swiss_roll(n, random_state=1)[0])
]
found = {}
for omitted in (1e-5, 0.0):
    options = torchgw.GWOptions(ladder=torchgw.LadderOptions(omitted_mass=omitted))
    began = time.perf_counter()
    result = torchgw.gw_align(*spaces, epsilon=1e-4, options=options, random_state=0)
    found[omitted] = result, time.perf_counter() - began
(skipped, fast), (whole, slow) = found[1e-5], found[0.0]
print(json.dumps({
    "evaluated": skipped.evaluated, "omitted": skipped.omitted_mass,
    "same": float(np.mean(skipped.argmax() == whole.argmax())),
    "finish": [skipped.timings["finish"], whole.timings["finish"]], "seconds": [fast, slow],
}))
"""

LOW_RANK = """
import json, resource, time
import numpy as np
import torchgw
n, r = 20_000, 20
rng = np.random.default_rng(0)
centres = rng.normal(size=(r, 3)) * [1, 2, 3]
label = np.arange(n) % r
turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
X = centres[label] + 0.01 * rng.normal(size=(n, 3))
Y = (centres + 0.2 * rng.normal(size=(r, 3)))[label] @ turn + 0.01 * rng.normal(size=(n, 3))
spaces = [torchgw.EuclideanDistances(points, squared=True) for points in (X, Y)]
options = torchgw.GWOptions(strategy="low-rank", low_rank=torchgw.LowRankOptions(rank=r))
began = time.perf_counter()
low = torchgw.gw_align(*spaces, epsilon=1e-5, options=options, random_state=0)
seconds = time.perf_counter() - began
gib = peak()
streamed = torchgw.gw_align(*spaces, epsilon=1e-4, options=torchgw.GWOptions(strategy="streaming"), random_state=0)
print(json.dumps({
    "seconds": seconds, "gib": gib, "value": low.value, "streaming": streamed.value, "marginals": low.marginal_error,
    "right": float(np.mean(label[low.argmax()] == label)), "status": low.status.name, "n_iter": low.n_iter,
    "streaming_residual": streamed.marginal_residual,
}))
"""

UNSEEN = """
import json
import numpy as np
from scipy.stats import spearmanr
import torchgw
found = {}
for n in (2000, 20_000):
    X, x = torchgw.datasets.make_spiral(n)
    Y, y = torchgw.datasets.make_swiss_roll(n * 5 // 4, random_state=1)
    order = np.random.default_rng(0).permutation(n)
    seen, new = np.sort(order[n // 5 :]), order[: n // 5]
    result = torchgw.gw_align(X[seen], Y, random_state=0)
    found[n] = float(spearmanr(x[new], y[result.transform(X[new]).argmax()])[0])
print(json.dumps(found))
"""


# The kernel's own count for this process image: what a fork left behind does not count.
PEAK = """
import re
from pathlib import Path
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**20
"""


def isolated(script: str, *arguments: object, limit: float | None = None) -> Row:
    """What the last line of a script says, run by itself; `subprocess.TimeoutExpired` after ``limit`` seconds."""
    command = [sys.executable, "-W", "ignore", "-c", PEAK + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def row(case: str, required: str, measured: str, met: bool, **detail: Any) -> Row:
    """One line of the table."""
    return {"case": case, "required": required, "measured": measured, "met": met, "detail": detail}


def sizes(name: str) -> list[Row]:
    """Points to matching at one size, for each tolerance."""
    rows = []
    for n, k, tol, seconds, gib in SIZES[name]:
        found = isolated(ALIGN, n, k, tol)
        limits = [f"rho >= {RHO}", f"residual <= {tol:g}"]
        limits += [f"<= {limit:g} {unit}" for limit, unit in ((seconds, "s"), (gib, "GiB")) if limit is not None]
        met = found["rho"] >= RHO and found["residual"] <= tol and found["marginals"] <= MARGINALS
        met = met and found["seconds"] <= (seconds or math.inf) and found["gib"] <= (gib or math.inf)
        text = (
            f"{found['seconds']:.1f} s, {found['gib']:.2f} GiB, rho {found['rho']:.4f}, "
            f"residual {found['residual']:.1e}, marginals {found['marginals']:.0e}"
        )
        rows.append(row(f"{n} x {k}, residual {tol:g}", ", ".join(limits), text, met, n=n, k=k, tol=tol, **found))
    return rows


def growth(rows: list[Row]) -> list[Row]:
    """The exponent of time by size over all sizes at the loose tolerance."""
    found = [row["detail"] for row in rows if row["detail"].get("tol") == 5e-2 and row["detail"]["n"] >= SMALLEST]
    if len(found) < 3:
        return []
    found.sort(key=lambda entry: entry["n"])
    size, seconds = ([math.log(entry[name]) for entry in found] for name in ("n", "seconds"))
    exponent = float(np.polyfit(size, seconds, 1)[0])
    ends = (seconds[-1] - seconds[0]) / (size[-1] - size[0])
    text = f"{exponent:.2f} fitted, {ends:.2f} from the first to the last"
    met = max(exponent, ends) <= EXPONENT
    case = f"time from {found[0]['n']} to {found[-1]['n']} points"
    return [row(case, f"exponent <= {EXPONENT}", text, met, exponent=exponent, ends=ends)]


def prototype() -> list[Row]:
    """The reference script against the library, in turns, at 20000 x 25000."""
    path = os.environ.get("TORCHGW_PROTOTYPE")
    if path is None:
        print("TORCHGW_PROTOTYPE is not set: the comparison with it keeps its stored row", flush=True)
        return []
    ours, theirs = [], []
    for _ in range(2):
        ours.append(isolated(ALIGN, 20_000, 25_000, 5e-3))
        began = time.perf_counter()
        said = subprocess.run([sys.executable, path, "20000", "25000"], capture_output=True, text=True, check=True)
        wall = time.perf_counter() - began
        total = float(re.findall(r"total ([\d.]+) s", said.stdout)[0])
        error = float(re.findall(r"marginal error ([\d.e+-]+)", said.stdout)[-1])
        rho = float(re.findall(r"signed Spearman ([\d.]+)", said.stdout)[0])
        theirs.append({"seconds": total, "wall": wall, "residual": error, "rho": rho})
    mine, other = min(o["seconds"] for o in ours), min(t["seconds"] for t in theirs)
    better = max(o["residual"] for o in ours) <= max(t["residual"] for t in theirs)
    text = (
        f"{other / mine:.1f}x ({other:.1f} s against {mine:.1f} s), residual {theirs[0]['residual']:.1e} "
        f"against {ours[0]['residual']:.1e}, rho {theirs[0]['rho']:.4f} against {ours[0]['rho']:.4f}"
    )
    case = "20000 x 25000 against coarse-to-fine with all pairs at every step"
    return [row(case, ">= 3x at equal quality", text, other >= 3 * mine and better, ours=ours, theirs=theirs)]


def tiles() -> list[Row]:
    """Tile skipping at 45000 x 45000, epsilon 1e-4, against evaluating all pairs."""
    found = isolated(TILES)
    fewer = 1 / found["evaluated"]
    text = (
        f"{fewer:.1f}x fewer, omitted <= {found['omitted']:.1e}, same matching {found['same']:.2%}, "
        f"passes {found['finish'][0]:.1f} s against {found['finish'][1]:.1f} s"
    )
    met = fewer >= 3 and found["omitted"] <= 1e-4 and found["same"] >= 0.999
    required = ">= 3x fewer pairs, omitted mass <= 1e-4, same matching >= 99.9 %"
    return [row("tiles left out, 45000 x 45000, epsilon 1e-4", required, text, met, **found)]


def lowrank() -> list[Row]:
    """Rank 20 on two views of twenty clusters, 20000 points each."""
    found = isolated(LOW_RANK)
    apart = abs(found["value"] / found["streaming"] - 1)
    text = (
        f"{found['gib']:.2f} GiB, marginals {found['marginals']:.0e}, value {found['value']:.5f} against "
        f"{found['streaming']:.5f}, {found['seconds']:.1f} s"
    )
    met = found["gib"] <= 1 and found["marginals"] <= MARGINALS and apart <= 0.1
    required = "<= 1 GiB, marginals <= 1e-6, value within 10 % of streaming"
    return [row("low rank, 20000 x 20000, 20 clusters, rank 20", required, text, met, **found)]


def unseen() -> list[Row]:
    """A fifth of the spiral's points left out and mapped afterwards."""
    found = isolated(UNSEEN)
    text = ", ".join(f"{rho:.4f} at {n}" for n, rho in found.items())
    return [row("20 % unseen points of the spiral", "rho >= 0.998", text, min(found.values()) >= 0.998, **found)]


def table(rows: list[Row]) -> list[Row]:
    """The columns that documents show."""
    return [{name: entry[name] for name in ("case", "required", "measured", "met")} for entry in rows]


GROUPS = {
    "20000": lambda: sizes("20000"),
    "prototype": prototype,
    "45000": lambda: sizes("45000"),
    "100000": lambda: sizes("100000"),
    "published": lambda: sizes("published"),
    "tiles": tiles,
    "lowrank": lowrank,
    "unseen": unseen,
    "million": lambda: sizes("million"),
}


def run(groups: list[str] | None = None) -> None:
    """Run the groups, keep the stored rows of the others, and write ``results/scale.json``."""
    path = RESULTS / "scale.json"
    unknown = set(groups or ()) - set(GROUPS)
    if unknown:
        raise SystemExit(f"groups must be among {', '.join(GROUPS)}, got {', '.join(sorted(unknown))}")
    before = kept(path, groups)
    rows = before.get("details", [])
    held = {name: [old for old in rows if old["group"] == name] for name in GROUPS}
    left = set(GROUPS)
    for name in GROUPS if groups is None else groups:
        if measured := [{"group": name} | found for found in GROUPS[name]()]:
            held[name] = measured
            left.discard(name)
        rows = [entry for group in GROUPS for entry in held[group]]
        rows += [{"group": "growth"} | found for found in growth(rows)]
        # After every group, so that nothing is lost.
        write("scale", table(rows), partial=bool(before) and bool(left), details=rows)
    show(table(rows))
