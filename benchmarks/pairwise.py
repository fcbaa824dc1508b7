"""All pairs of ten ragged spaces, against a plain loop of POT's ``gromov_wasserstein`` with its default arguments.

``python -m benchmarks pairwise`` takes about ten minutes on two cores. Both sides get the same distance matrices,
divided by the largest of all, and uniform masses; each side times its own call or loop in its own process, after a
small one that does not count, in rounds that alternate. POT's loop runs with as many threads as serve it better.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from benchmarks.common import paired, show, write
from benchmarks.peers.launch import environment, installed
from benchmarks.peers.solvers import SOLVERS
from torchgw.pairwise import gw_neighbours, gw_pairwise

Array: TypeAlias = NDArray[np.float64]
Row = dict[str, Any]

N_SPACES, SIZES, SEEDS, ROUNDS = 10, (50, 300), (0, 1), 3
REQUIRED = 5.0
POT = next(solver.python for solver in SOLVERS if solver.package == "POT")

# Runs in POT's environment: reads a file of matrices, writes seconds and values of all pairs.
LOOP = """
import json, sys, time, warnings
import numpy as np
import ot.gromov
warnings.simplefilter("ignore")
spaces = list(np.load(sys.argv[1]).values())
def value(A, B):
    p, q = (np.full(len(D), 1 / len(D)) for D in (A, B))
    return float(ot.gromov.gromov_wasserstein(A, B, p, q, "square_loss", log=True)[1]["gw_dist"])
value(spaces[0][:20, :20], spaces[1][:20, :20])
began = time.perf_counter()
values = [value(A, B) for i, A in enumerate(spaces) for B in spaces[i + 1:]]
print(json.dumps({"seconds": time.perf_counter() - began, "values": values}))
"""


def clouds(rng: np.random.Generator, n: int, dimension: int) -> Array:
    """Points in a few normal clusters."""
    centres = 2 * rng.normal(size=(rng.integers(1, 5), dimension))
    return centres[rng.integers(0, len(centres), n)] + rng.uniform(0.2, 1) * rng.normal(size=(n, dimension))


def curve(rng: np.random.Generator, n: int) -> Array:
    """A smooth random curve in the plane, with noise."""
    t, weights = np.sort(rng.uniform(size=n)), rng.normal(size=(4, 2))
    waves = [np.cos(k * np.pi * t + rng.uniform(0, 6))[:, None] * w / k for k, w in enumerate(weights, start=1)]
    return np.sum(waves, axis=0) + 0.01 * rng.normal(size=(n, 2))


def surface(rng: np.random.Generator, n: int, kind: int) -> Array:
    """A sphere, torus, Swiss roll, wavy sheet or cylinder."""
    u, v = rng.uniform(size=(2, n))
    a, b, r = 2 * np.pi * u, 2 * np.pi * v, rng.uniform(0.2, 0.5)
    if kind == 0:
        x = rng.normal(size=(n, 3))
        return np.asarray(x / np.linalg.norm(x, axis=1)[:, None])
    if kind == 1:
        return np.stack(((1 + r * np.cos(b)) * np.cos(a), (1 + r * np.cos(b)) * np.sin(a), r * np.sin(b)), 1)
    if kind == 2:
        t = 1.5 * np.pi * (1 + 2 * u)
        return np.stack((t * np.cos(t), 10 * v, t * np.sin(t)), 1) / 10
    if kind == 3:
        return np.stack((rng.uniform(0.5, 2) * u, v, 0.2 * np.sin(6 * u)), 1)
    return np.stack((np.cos(a), np.sin(a), 2 * v), 1)


def geodesics(x: Array, k: int = 8) -> Array:
    """Shortest paths on a neighbour graph; parts that are not connected are 1.5 diameters apart."""
    lengths, index = cKDTree(x).query(x, k + 1)
    n = len(x)
    graph = csr_array((lengths.ravel(), (np.repeat(np.arange(n), k + 1), index.ravel())), shape=(n, n))
    D = shortest_path(graph, directed=False)
    D[np.isinf(D)] = 1.5 * D[np.isfinite(D)].max()
    return np.asarray((D + D.T) / 2)


def hops(rng: np.random.Generator, n: int) -> Array:
    """Hop counts in a geometric graph, a graph of communities, or a tree with short cuts; of its largest part."""
    kind = rng.integers(0, 3)
    edges = np.zeros((n, n), dtype=bool)
    if kind == 0:
        x = rng.uniform(size=(n, 2))
        edges[np.arange(n)[:, None], cKDTree(x).query(x, 7)[1][:, 1:]] = True
    elif kind == 1:
        parts = rng.integers(2, 5)
        label = rng.integers(0, parts, n)
        edges = rng.uniform(size=(n, n)) < np.where(label[:, None] == label, 12 / n * parts, 1 / n)
    else:
        for i in range(1, n):
            edges[i, rng.integers(max(0, i - 20), i)] = True
        edges[tuple(rng.integers(0, n, (2, n // 10)))] = True
    edges = (edges | edges.T) & ~np.eye(n, dtype=bool)
    label = connected_components(edges)[1]
    kept = np.flatnonzero(label == np.bincount(label).argmax())
    return np.asarray(shortest_path(csr_array(edges[np.ix_(kept, kept)].astype(float)), unweighted=True))


FAMILIES = {
    "clouds in the plane": lambda rng, n, i: cdist(*[clouds(rng, n, 2)] * 2),
    "clouds in space": lambda rng, n, i: cdist(*[clouds(rng, n, 3)] * 2),
    "curves": lambda rng, n, i: cdist(*[curve(rng, n)] * 2),
    "surfaces, straight lines": lambda rng, n, i: cdist(*[surface(rng, n, i % 5)] * 2),
    "surfaces, geodesics": lambda rng, n, i: geodesics(surface(rng, n, i % 5)),
    "graphs, hop counts": lambda rng, n, i: hops(rng, n),
}


def problem(family: str, seed: int, count: int = N_SPACES, sizes: tuple[int, int] = SIZES) -> list[Array]:
    """Distance matrices over the largest distance of all."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    found = [FAMILIES[family](rng, int(n), i) for i, n in enumerate(rng.integers(*sizes, size=count, endpoint=True))]
    largest = max(D.max() for D in found)
    return [D / largest for D in found]


def pot_loop(file: Path, threads: int) -> tuple[float, Array]:
    """Seconds and values of POT's loop."""
    command = [str(POT), "-c", LOOP, str(file)]
    done = subprocess.run(command, env=environment(threads), capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    return report["seconds"], np.array(report["values"])


def ours(spaces: list[Array]) -> tuple[float, Array]:
    """Seconds and values of ours."""
    began = time.perf_counter()
    found = gw_pairwise(spaces, random_state=0)
    return time.perf_counter() - began, found.values


def against_pot(name: str, spaces: list[Array], folder: Path, threads: int, rounds: int = ROUNDS) -> Row:
    """Both sides in turns on one problem."""
    file = folder / "spaces.npz"
    np.savez(file, *spaces)
    ours(spaces[:2])
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        spent, theirs = pot_loop(file, threads)
        seconds[0].append(spent)
        spent, own = ours(spaces)
        seconds[1].append(spent)
    ratio, share = paired(*seconds), float(own.mean() / theirs.mean())
    return {
        "spaces": name,
        "points": f"{min(map(len, spaces))}-{max(map(len, spaces))}",
        "pairs": len(own),
        "POT seconds": statistics.median(seconds[0]),
        "seconds": statistics.median(seconds[1]),
        "times faster": ratio,
        "mean value": float(own.mean()),
        "over POT's": share,
        "pairs no worse": float((own <= theirs * (1 + 1e-9)).mean()),
        "met": bool(ratio >= REQUIRED and share <= 1.0),
    }


def summary(rows: list[Row]) -> Row:
    """All problems as one."""
    theirs, own = (sum(row[name] for row in rows) for name in ("POT seconds", "seconds"))
    return {
        "problems": len(rows),
        "pairs": sum(row["pairs"] for row in rows),
        "POT seconds": theirs,
        "seconds": own,
        "times faster": theirs / own,
        "least": min(row["times faster"] for row in rows),
        "over POT's": statistics.fmean(row["over POT's"] for row in rows),
        "highest": max(row["over POT's"] for row in rows),
    }


def neighbours(spaces: list[Array], k: int) -> Row:
    """What lower bounds save."""
    found = gw_neighbours(spaces, k, random_state=0)
    share = found.n_pruned / found.n_pairs
    return {"spaces": len(spaces), "k": k, "pairs": found.n_pairs, "solved": found.n_solved, "pruned": share}


def run(rounds: int = ROUNDS) -> None:
    """Measure, print, store."""
    warnings.simplefilter("ignore")
    if installed(POT, "POT") is None:
        raise SystemExit("POT is not there: run `make bench-env`")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "first.npz"
        np.savez(file, *problem("curves", 0, 4))
        threads = min((1, 2), key=lambda threads: pot_loop(file, threads)[0])
        rows = [
            against_pot(f"{family}, seed {seed}", problem(family, seed), folder, threads, rounds)
            for family in FAMILIES
            for seed in SEEDS
        ]
        small = [problem("clouds in the plane", 0, 30, sizes) for sizes in ((5, 16), (10, 40), (30, 80))]
        tiny = [against_pot("small clouds", spaces, folder, threads, rounds) for spaces in small]
        for row in tiny:
            del row["met"]  # where POT's loop is the better choice, and not a requirement
    mixed = [D for family in FAMILIES for D in problem(family, 2, 6, (40, 80))]
    searches = [neighbours(mixed, k) for k in (1, 5)]
    together = [summary(rows)]
    write("pairwise", rows, summary=together, small=tiny, neighbours=searches, POT_threads=threads)
    for part in (rows, together, tiny, searches):
        show(part)
