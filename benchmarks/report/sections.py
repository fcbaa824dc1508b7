"""The sections of the page: for each suite what it asks, its pictures and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.report import peers, plots, plots_peers
from benchmarks.report.results import Result, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Result]
LONG = 30


@dataclass(frozen=True)
class Plot:
    """A picture: the name of its file, what it shows, and how it is drawn."""

    name: str
    caption: str
    draw: Callable[[], Figure | None]


@dataclass(frozen=True)
class Table:
    """Rows under a title; long tables open on a click."""

    title: str
    rows: list[Row]

    @property
    def folded(self) -> bool:
        """Whether only the title shows at first."""
        return len(self.rows) > LONG


@dataclass(frozen=True)
class Section:
    """A part of the page; ``missing`` is the command that makes its results where there are none."""

    name: str
    title: str
    about: str
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    missing: str | None = None


def of_peers(results: Results) -> tuple[list[Plot], list[Table]]:
    """Pictures over sizes and of time against value; the summary first."""
    result, scale = results["peers"], results.get("scale")
    rows = peers.with_excess(peers.labelled(result.rows))
    solved = [row for row in rows if row.get("status") == "ok"]
    names = [*dict.fromkeys(row["label"] for row in rows), peers.SCALE]
    unsolved = [row for row in rows if row.get("status") in ("time limit", "failed")]
    over = partial(plots_peers.over_sizes, names=names)
    times = peers.lines(rows, "seconds") + peers.scale_line(scale, "seconds")
    memory = peers.lines(rows, "peak_mib") + peers.scale_line(scale, "gib", 1024)
    pictures = [
        Plot(
            "peers_time",
            "Seconds against points, with fitted powers.",
            partial(over, times, label="seconds", unsolved=unsolved),
        ),
        Plot("peers_memory", "Peak memory against points.", partial(over, memory, label="peak memory (MiB)")),
        Plot("peers_value", "Value above the lowest at the same size.", partial(plots_peers.excess, rows, names)),
        Plot(
            "peers_marginals",
            "L1 errors of both marginals of the plan, summed.",
            partial(over, peers.lines(rows, "marginal_error"), label="marginal error", text=None),
        ),
        Plot(
            "peers_pareto", "Time against value: down and left is better.", partial(plots_peers.pareto, solved, names)
        ),
    ]
    tables = [
        Table("Summary", result.part("summary")),
        Table("All runs", result.rows),
        Table("Preparation of the inputs", result.part("preparation")),
    ]
    return pictures, tables


def of_phases(results: Results) -> tuple[list[Plot], list[Table]]:
    """Ratios of single phases and their sum."""
    result = results["phases"]
    steps = result.part("cumulative")
    pictures = [
        Plot(
            "phases",
            "What each phase buys by itself; hollow where quality is worse.",
            partial(plots.ratios, result.rows),
        ),
        Plot("phases_cumulative", "The phases one after the other.", partial(plots.cumulative, steps)),
    ]
    return pictures, [Table("One after the other", steps), Table("One at a time", result.rows)]


def of_overhead(results: Results) -> tuple[list[Plot], list[Table]]:
    """Percent against size."""
    result = results["overhead"]
    pictures = [Plot("overhead", "Overhead against points.", partial(plots.overhead, result.rows))]
    return pictures, [Table("", result.rows), Table("Where a call's fixed cost goes", result.part("explained"))]


def of_beside(results: Results) -> tuple[list[Plot], list[Table]]:
    """Times alone and beside busy programs."""
    return [], [Table("", results["beside"].rows)]


def of_scale(results: Results) -> tuple[list[Plot], list[Table]]:
    """Requirements, and growth."""
    result = results["scale"]
    draw = partial(plots.growth, result.part("details"))
    return [Plot("scale", "Time and memory against points.", draw)], [Table("", result.rows)]


def of_sizes(results: Results) -> tuple[list[Plot], list[Table]]:
    """Requirements, and time over size."""
    result = results["sizes"]
    runs = [run for lines in result.more["groups"].get("curve", []) for run in lines["detail"].get("runs", [])]
    draw = partial(plots.sizes, runs)
    return [Plot("sizes", "Time of the default call against points.", draw)], [Table("", result.rows)]


def of_kernels(results: Results) -> tuple[list[Plot], list[Table]]:
    """Times over the floor."""
    result = results["kernels"]
    draw = partial(plots.kernels, result.part("milliseconds"))
    return [Plot("kernels", "Time of each implementation over its floor.", draw)], [Table("", result.rows)]


def of_gradients(results: Results) -> tuple[list[Plot], list[Table]]:
    """Stored; direct against iterative; streamed."""
    result = results["gradients"]
    tables = [
        Table("Stored plans", result.rows),
        Table("Seconds of direct and iterative solves of the adjoint system", result.part("factored")),
        Table("Streamed, without the plan", result.part("streamed")),
    ]
    return [Plot("gradients", "Time and memory of one gradient.", partial(plots.gradients, result.rows))], tables


def of_lanczos(results: Results) -> tuple[list[Plot], list[Table]]:
    """Adjoint against back-propagation."""
    rows = results["lanczos"].rows
    return [Plot("lanczos", "Time and memory against Lanczos steps.", partial(plots.lanczos, rows))], [Table("", rows)]


def of_rows(results: Results, name: str) -> tuple[list[Plot], list[Table]]:
    """The rows alone."""
    return [], [Table("", results[name].rows)]


def of_pairwise(results: Results) -> tuple[list[Plot], list[Table]]:
    """Against POT's loop, and searches."""
    result = results["pairwise"]
    return [], [
        Table("All 45 pairs of ten spaces", result.rows),
        Table("All together", result.part("summary")),
        Table("435 pairs of thirty smaller spaces", result.part("small")),
        Table("Nearest neighbours: pairs that bounds rule out", result.part("neighbours")),
    ]


def of_gpu(results: Results) -> tuple[list[Plot], list[Table]]:
    """Every table of what ran on a GPU."""
    tables = []
    for name in GPU:
        if name in results:
            found = results[name]
            tables.append(Table(name, found.rows))
            tables += [Table(f"{name}: {part}", found.part(part)) for part in found.more]
    return [], tables


GPU = ("gpu", "kernels_gpu")
SECTIONS: dict[str, tuple[str, str, Callable[[Results], tuple[list[Plot], list[Table]]]]] = {
    "peers": (
        "Other libraries",
        "The same problem for every solver, each in its own environment. The value is that of the returned plan; it "
        f"counts as the lowest where the plan's marginals hold to {peers.MARGINALS:g}, and what is within 0.01 % of "
        "the lowest is drawn as the lowest. The line to a million points comes from the scale suite, which counts the "
        "memory of its main process, packages included; the others count what the solve took.",
        of_peers,
    ),
    "phases": (
        "Phases",
        "What each optimisation buys, one at a time and one after the other; a verdict says where quality differs.",
        of_phases,
    ),
    "overhead": ("Overhead", "The library's call against the same tensor code written flat.", of_overhead),
    "beside": ("Beside another program", "How much longer a solve takes beside busy programs on its cores.", of_beside),
    "scale": ("Scale", "Sizes up to a million points, tile skipping, low rank and unseen points.", of_scale),
    "quality": (
        "Quality",
        "The right optimum on every kind of problem, against POT, SCOT's recipe and the published solver.",
        partial(of_rows, name="quality"),
    ),
    "kinds": (
        "Kinds of spaces",
        "The right optimum by default on graphs by adjacency, clouds, cosines, splits, hops and large matrices.",
        partial(of_rows, name="kinds"),
    ),
    "small": (
        "Small problems",
        "30 to 2000 points without entropy, from matrices: time and value beside POT's conditional gradient, from one "
        "start and from sixteen.",
        partial(of_rows, name="small"),
    ),
    "net": (
        "Net",
        "About 300 problems of all kinds: value, share right, seconds, gradient evaluations, inner iterations, and "
        "where the best plan began.",
        partial(of_rows, name="net"),
    ),
    "ablation": (
        "Mechanisms",
        "What is lost without each mechanism of the search, the strategies and the solvers, one at a time.",
        partial(of_rows, name="ablation"),
    ),
    "vertices": (
        "Many points without entropy",
        "Plans of few entries: time, value beside POT's or an entropic one, and the gap over all pairs, to a million.",
        partial(of_rows, name="vertices"),
    ),
    "bounds": (
        "Lower bounds",
        "What no plan can be below: whether it holds, how near it is to the value, and how often it proves it.",
        partial(of_rows, name="bounds"),
    ),
    "curvature": (
        "Curvature",
        "What a product with the Hessian costs beside automatic differentiation, and which plans can slide.",
        partial(of_rows, name="curvature"),
    ),
    "sizes": (
        "Sizes",
        "The default call from a hundred to a million points, beside POT where it ends, and where a limit could be a "
        "cliff.",
        of_sizes,
    ),
    "models": (
        "Marginal models and fused costs",
        "Partial, semi-relaxed, unbalanced and fused problems against POT, and a space of which a part is missing.",
        partial(of_rows, name="models"),
    ),
    "pairwise": (
        "All pairs",
        "Distances between all pairs of ragged spaces, against a plain loop of POT's gromov_wasserstein.",
        of_pairwise,
    ),
    "kernels": (
        "Kernels",
        "Each implementation against plain torch and against its floor, which comes from rates of memory, products and "
        "exponentials measured in the same run. What stays in the cache can be below its floor.",
        of_kernels,
    ),
    "verdict": (
        "Verdicts",
        "What a result says of its matching, beside the share of it that is right, on 800 problems of ten kinds.",
        partial(of_rows, name="verdict"),
    ),
    "launches": (
        "Launches and waits",
        "What a solve asks of a GPU, counted on a simulated one; the last column is a forecast.",
        partial(of_rows, name="launches"),
    ),
    "ranks": (
        "Several processes",
        "One solve by ranks against one process: the same result, bytes against a model, weak scaling, memory.",
        partial(of_rows, name="ranks"),
    ),
    "gradients": ("Gradients", "Implicit differentiation.", of_gradients),
    "lanczos": (
        "Gradients of matrix functions",
        "The Lanczos adjoint against back-propagation through the iteration, stacked and vector by vector.",
        of_lanczos,
    ),
    "relaxation": (
        "Over-relaxation",
        "Iterations of the last solve with and without it.",
        partial(of_rows, name="relaxation"),
    ),
    "sampling": (
        "Sampled gradients",
        "Error of the sampled gradient by how its anchors are used.",
        partial(of_rows, name="sampling"),
    ),
    "gpu": ("On a GPU", "Whole solves by stage, and kernels against their floors.", of_gpu),
}
QUICK = ("peers", "phases", "overhead")


def sections(results: Results, quick: bool = False) -> list[Section]:
    """All sections; of a quick run those that it can have."""
    return [section(name, results, quick) for name in SECTIONS if not quick or name in QUICK or name in results]


def section(name: str, results: Results, quick: bool) -> Section:
    """One section; where its results are missing, the command that makes them."""
    title, about, parts = SECTIONS[name]
    if name not in results and not (name == "gpu" and any(other in results for other in GPU)):
        return Section(name, title, about, missing=f"python -m benchmarks {name}{' --quick' if quick else ''}")
    pictures, tables = parts(results)
    return Section(name, title, about, pictures, [table for table in tables if table.rows])
