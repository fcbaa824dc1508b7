"""``torchgw align`` and ``torchgw resume``."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from torchgw import report
from torchgw.align import gw_align, is_solved_by_ranks, resume
from torchgw.cli.input import (
    DELIMITERS,
    WITHOUT_INDEX,
    Named,
    open_memory_map,
    parse_number,
    read_cell_names,
    read_space,
    read_table,
    read_with_names,
)
from torchgw.cli.output import as_cell, check_output, describe_result, write_matching, write_whole
from torchgw.cli.ranks import is_among_ranks, is_first
from torchgw.diagnostics.status import Status
from torchgw.diagnostics.verdict import Verdict
from torchgw.marginals import Balanced, Marginals, Partial, SemiRelaxed, Unbalanced
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions, LadderOptions, LowRankOptions, SamplingOptions, SpaceOptions, StoppingOptions
from torchgw.persist.checkpoint import has_content
from torchgw.progress import bar_on_terminal
from torchgw.request.combinations import EXCLUSIONS, fact_of_epsilon, kind_of_marginals
from torchgw.results.result import GWResult
from torchgw.runtime.caller import warn_caller
from torchgw.types import TorchGWWarning
from torchgw.validate import looks_like_distances

GIB = 2**30
Names: TypeAlias = "tuple[Sequence[str] | None, Sequence[str] | None]"
MODELS = {"semi_relaxed": "--semi-relaxed", "unbalanced": "--unbalanced", "partial": "--partial"}


class InterruptedSolve(Exception):  # noqa: N818 - it is how a command ends, not an error
    """The best so far was written; ``found`` describes it."""

    def __init__(self, message: str, found: dict[str, Any]) -> None:
        super().__init__(message)
        self.found = found


def run_align(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read, align, write."""
    cells = arguments.output.suffix == ".h5ad"
    check_output(arguments.output, ".npz", ".csv", ".h5ad")
    check_report(arguments.report)
    files = arguments.source, arguments.target
    _check_points(arguments, is_among_ranks())
    if cells and any(file.suffix != ".h5ad" for file in files):
        raise ValueError(f"output {arguments.output} is for two .h5ad files, got {files[0]} and {files[1]}")
    if not cells and (arguments.labels or arguments.use_rep or arguments.keep_plan):
        raise ValueError(f"--labels, --use-rep and --keep-plan need an .h5ad output, got {arguments.output}")
    if cells and (arguments.index_col is not None or arguments.edges):
        raise ValueError("--index-col and --edges are for tables; the names of cells are those of obs")
    check_tables(files, arguments.index_col, arguments.edges)
    if cells and arguments.checkpoint is not None:
        raise ValueError(
            "--checkpoint needs an .npz or .csv output: `torchgw resume` writes no .h5ad, so labels would go"
        )
    if arguments.checkpoint is not None and has_content(arguments.checkpoint):
        folder = shlex.quote(str(arguments.checkpoint))
        raise ValueError(
            f"--checkpoint must name a folder that is not there yet, got {folder}; `torchgw resume {folder} -o "
            f"{shlex.quote(str(arguments.output))}` goes on with what it holds, or remove it"
        )
    keywords = read_keywords(arguments)
    if cells:
        if is_among_ranks():
            raise ValueError("--nproc and torchrun need an .npz or .csv output: cells are aligned by one process")
        return _align_cells(arguments, keywords)
    limit = keywords["options"].max_memory
    (source, names_x), (target, names_y) = (
        load_space(name, file, limit, index, arguments.edges)
        for name, file, index in zip(("source", "target"), files, _index_columns(arguments), strict=True)
    )
    keywords |= {"names_x": names_x, "names_y": names_y, **read_side_files(arguments, limit, (names_x, names_y))}
    drawn = (source, target) if is_among_ranks() else (None, None)  # whose results have no points
    if arguments.report and not all(side is None or isinstance(side, np.ndarray) for side in drawn):
        raise ValueError("--report by several processes is for points, got a graph; leave out --report or --nproc")
    with _choose_solvers(arguments) as (solve, _):
        result = _solve_with_progress("align", files, partial(solve, source, target, **keywords))
    if not is_first():
        return {}
    return write_result(result, arguments.output, arguments.report, drawn, arguments.points)


def run_resume(arguments: argparse.Namespace) -> dict[str, Any]:
    """Go on with a checkpoint, write."""
    check_output(arguments.output, ".npz", ".csv")
    check_report(arguments.report)
    if arguments.report and is_solved_by_ranks(arguments.checkpoint):
        raise ValueError(
            "--report needs the points, which results of several processes do not keep: leave it out, write an .npz, "
            "and draw it in Python, GWResult.load(FILE).report(page, X, Y)"
        )
    _check_points(arguments, is_among_ranks() or is_solved_by_ranks(arguments.checkpoint))
    with _choose_solvers(arguments) as (_, go_on):
        result = _solve_with_progress("resume", None, partial(go_on, arguments.checkpoint))
    if not is_first():
        return {}
    return write_result(result, arguments.output, arguments.report, points=arguments.points)


@contextmanager
def _choose_solvers(arguments: argparse.Namespace) -> Iterator[tuple[Callable[..., GWResult], Callable[..., GWResult]]]:
    """`gw_align` and `resume`, of this process or of the ranks that ``torchrun`` started."""
    shared = "source" not in arguments and is_solved_by_ranks(arguments.checkpoint)
    if not (is_among_ranks() or shared):
        yield gw_align, resume
        return
    from torchgw import distributed  # late: torch.distributed takes a third of a second

    with distributed.started(arguments.timeout, getattr(arguments, "device", None)):
        yield distributed.gw_align, distributed.resume


def read_keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `gw_align` that the options stand for."""
    marginals = _make_marginals(arguments)
    _check_combination(arguments, marginals)
    options = GWOptions(
        spaces=SpaceOptions(k=arguments.k, n_landmarks=arguments.landmarks),
        sampling=SamplingOptions(n_anchors=arguments.anchors),
        stopping=StoppingOptions(max_iter=arguments.max_iter),
        strategy=arguments.strategy,
        ladder=LadderOptions(marginal_tol=arguments.marginal_tol),
        low_rank=LowRankOptions(rank=arguments.rank),
        mixed_precision=not arguments.double,
        max_memory=memory_limit(arguments),
    )
    return {
        "distances": arguments.distances,
        "epsilon": arguments.epsilon,
        "marginals": marginals,
        "options": options,
        "device": arguments.device,
        "backend": arguments.backend,
        "random_state": arguments.seed,
        "checkpoint": arguments.checkpoint,
        "alpha": arguments.alpha,
    }


def read_side_files(arguments: argparse.Namespace, limit: int, names: Names) -> dict[str, Any]:
    """The arguments of `gw_align` that other files hold, about points with these names."""
    pairs, features = arguments.pairs, arguments.features
    return {
        "supervision": None if pairs is None else load_pairs(pairs, limit, names),
        "cost": None if features is None else load_features(features, limit, names),
    }


def check_tables(files: Sequence[Path], index: str | list[str] | None, edges: bool) -> None:
    """Refuse options of tables where there is no table, and edges in tables of points."""
    tables = any(file.suffix in DELIMITERS for file in files)
    if edges and (index is not None or not tables):
        raise ValueError("--edges is for tables without --index-col, whose first two columns name the nodes")
    if index is not None and not tables:
        raise ValueError(f"--index-col is for tables ({', '.join(DELIMITERS)}), got {', '.join(map(str, files[:3]))}")


def _index_columns(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """The title of the column of names in each of both files; one title is for all tables."""
    titles, tables = arguments.index_col, [arguments.source.suffix in DELIMITERS, arguments.target.suffix in DELIMITERS]
    if titles is None:
        return None, None
    if len(titles) > 2 or (len(titles) == 2 and not all(tables)):
        wanted = "once for one or two tables, or twice, for the source's and the target's"
        raise ValueError(
            f"--index-col must be given {wanted} (.csv, .tsv), got it {len(titles)} times for {arguments.source} and "
            f"{arguments.target}"
        )
    return titles[0] if tables[0] else None, titles[-1] if tables[1] else None


def load_space(name: str, path: Path, limit: int, index: str | None = None, edges: bool = False) -> Named:
    """The points, distances or graph in a file, and names of the points; a table whose first column counts its rows is
    warned of."""
    if is_among_ranks() and path.suffix == ".npy":
        return open_memory_map(name, path), None
    found, names = read_with_names(name, path, limit, index=index, edges=edges)
    if path.suffix == ".h5ad":
        return found, read_cell_names(name, path, limit)
    if (
        path.suffix in DELIMITERS
        and isinstance(found, np.ndarray)
        and names is None
        and found.shape[1] > 1
        and len(found) > 2
        and not looks_like_distances(found)
    ):
        count = found[:, 0] - found[0, 0]
        if found[0, 0] in (0, 1) and (count == np.arange(len(found))).all():
            warn_caller(
                f"the first column of {path} counts its rows; if it is an index and no coordinate, leave it out "
                f"{WITHOUT_INDEX}",
                TorchGWWarning,
            )
    return found, names


def load_features(paths: Sequence[Path], limit: int, names: Names = (None, None)) -> tuple[Any, Any]:
    """Features of the source's points and of the target's; one for each point may come without the second dimension.
    Rows that have names go to the points that have them, where these do."""
    found = list[Any]()
    for path, points in zip(paths, names, strict=True):
        side, rows = read_with_names("--features", path, limit, column=True)
        if points is not None and rows is not None:
            place = {name: i for i, name in enumerate(rows)}
            others = sorted(set(points) ^ place.keys())
            if others:
                raise ValueError(
                    f"--features must have a row for each point, of the same name, got {path}: {others[0]!r} "
                    f"is in one of the two files"
                )
            side = side[[place[name] for name in points]]
        found.append(side)
    if not all(isinstance(side, np.ndarray) for side in found):
        raise ValueError(f"--features must be two tables, one row for each point, got {paths[0]} and {paths[1]}")
    return found[0], found[1]


def load_pairs(path: Path, limit: int, names: Names = (None, None)) -> Supervision:
    """Points of source and target that belong together, in the first two columns of a file: names of points that have
    some, rows of others, counted from 0."""
    if path.suffix in DELIMITERS:
        return _read_pairs_table(path, limit, names)
    table = read_space("--pairs", path, limit)
    if not isinstance(table, np.ndarray) or table.shape[1] < 2:
        raise ValueError(f"--pairs must be a table with two columns, rows of source and target, got {path}")
    pairs = table[:, :2].astype(np.float64)
    if not (np.isfinite(pairs).all() and (pairs == np.floor(pairs)).all() and np.abs(pairs).max() < 2**53):
        raise ValueError(f"--pairs must begin with two columns of row numbers, counted from 0, got {path}")
    return Supervision(pairs=pairs.astype(np.int64))


def _read_pairs_table(path: Path, limit: int, names: Names) -> Supervision:
    lines, rows = read_table("--pairs", path, limit)
    if len(rows[0]) < 2:
        raise ValueError(f"--pairs must be a table with two columns, points of source and target, got {path}")
    places = [_find_points(side, [cells[which] for cells in rows]) for which, side in enumerate(names)]
    header = all(side[0] is None for side in places)
    for which, side in enumerate(places):
        if None in side[header:]:
            at = side.index(None, header)
            wanted = "row numbers, counted from 0" if names[which] is None else "names of points, or rows from 0"
            raise ValueError(
                f"--pairs must hold {wanted}, of the {('source', 'target')[which]}, got {rows[at][which][:40]!r} on "
                f"line {lines[at]} of {path}"
            )
    if not rows[header:]:
        raise ValueError(f"--pairs must hold pairs of points, got none in {path}")
    return Supervision(pairs=np.array([side[header:] for side in places], dtype=np.int64).T)


def _find_points(names: Sequence[str] | None, cells: Sequence[str]) -> list[int | None]:
    """The point that each cell means: by its name, also as `write_matching` writes it, or by its row if no cell is a
    name; None of others."""
    place = {as_cell(name): i for i, name in enumerate(names or ())} | {name: i for i, name in enumerate(names or ())}
    found = [place.get(cell) for cell in cells]
    return found if any(i is not None for i in found) else [_row_number(cell) for cell in cells]


def _row_number(cell: str) -> int | None:
    """The number of a row, also written as a float; None of anything else."""
    found = parse_number(cell)
    return None if found is None or not found.is_integer() else int(found)


def memory_limit(arguments: argparse.Namespace) -> int:
    """Bytes that one dense object may take."""
    if not arguments.max_memory > 0:
        raise ValueError(f"--max-memory must be a number of GiB > 0, got {arguments.max_memory:g}")
    return int(arguments.max_memory * GIB)


def _check_points(arguments: argparse.Namespace, shared: bool) -> None:
    """Refuse, before the solve, an output that keeps no points."""
    if arguments.points and (arguments.output.suffix != ".npz" or shared):
        raise ValueError(f"--points needs an .npz output of one process, got {arguments.output}; leave out --points")


def check_report(page: Path | None) -> None:
    """Refuse, before the solve, a page that could not be written."""
    if page is not None:
        check_output(page, ".html", name="--report")
        report.plotly_script()


def write_result(
    result: GWResult, path: Path, page: Path | None, drawn: tuple[Any, Any] = (None, None), points: bool = False
) -> dict[str, Any]:
    """Write the result in the format of the path, with its ``points`` if asked, and describe it; raises where the solve
    was interrupted. Points to be ``drawn`` are for results that have none."""
    if path.suffix == ".npz":
        result.save(path)
        if points:  # where they cannot be kept the solve is not lost
            try:
                result.save(path, points=True)
            except ValueError as error:
                warn_caller(f"{path} has no points, so `torchgw apply` cannot read it: {error}", TorchGWWarning)
    else:
        write_whole(lambda aside: write_matching(result, aside), path)
    return report_result(result, path, page, drawn=drawn)


def report_result(
    result: GWResult, path: Path, page: Path | None, labels: Any = None, drawn: tuple[Any, Any] = (None, None)
) -> dict[str, Any]:
    """Describe a result that was written, on a page too if asked; raises where the solve was interrupted."""
    found = describe_result(result, path)
    if page is not None:
        result.report(page, *drawn, labels=labels)
        found["report"] = str(page)
    if result.status is Status.CANCELLED:
        raise InterruptedSolve(f"the best so far is in {path}", found)
    if sys.stderr.isatty():
        n, k = result.shape
        print(
            f"{n} x {k}: GW {result.value:.6g}, marginal error {result.marginal_error:.1e}, "
            f"{result.status.name.lower()} after {result.n_iter} iterations; written to {path}",
            file=sys.stderr,
        )
    if sys.stderr.isatty() or result.verdict is not Verdict.CONVINCING:
        print(f"torchgw: {result.verdict} {' '.join(result.reasons)}", file=sys.stderr)
    return found


def _check_combination(arguments: argparse.Namespace, marginals: Marginals) -> None:
    """Refuse, in the command's own words and before a file is read, what `torchgw.request.combinations` excludes."""
    flags = {
        "epsilon": "--epsilon 0",
        "options.strategy": f"--strategy {arguments.strategy}",
        "marginals": "".join(flag for name, flag in MODELS.items() if getattr(arguments, name) is not None),
        "supervision": "--pairs",
        "cost": "--features" if arguments.features else "distances alone, without --features",
        "alpha": "--features" if arguments.features else f"--alpha {arguments.alpha}",
    }
    alpha = 1.0 if arguments.alpha is None and arguments.features is None else arguments.alpha
    ends = {0.0: "zero", 1.0: "one"}
    kinds = {
        "epsilon": fact_of_epsilon(arguments.epsilon).kind,
        "options.strategy": arguments.strategy,
        "marginals": kind_of_marginals(marginals),
        "supervision": "none" if arguments.pairs is None else "rules",
        "cost": "none" if arguments.features is None else "features",
        "alpha": ends.get(alpha, "between"),
    }
    for row in EXCLUSIONS:
        if row.holds(kinds):
            beside = " and ".join(flags[name] for name in row.beside)
            raise ValueError(f"{flags[row.argument]} does not go with {beside}: {row.why}; {row.instead}")


def _make_marginals(arguments: argparse.Namespace) -> Marginals:
    if arguments.semi_relaxed is not None:
        return SemiRelaxed(arguments.semi_relaxed, "y")
    if arguments.unbalanced is not None:
        return Unbalanced(arguments.unbalanced, arguments.unbalanced)
    return Balanced() if arguments.partial is None else Partial(arguments.partial)


def _align_cells(arguments: argparse.Namespace, keywords: dict[str, Any]) -> dict[str, Any]:
    """Align two files of cells; what is carried is written with the source's."""
    from torchgw import anndata

    source, target = (
        anndata.read(name, file, keywords["options"].max_memory, backed=True)
        for name, file in (("source", arguments.source), ("target", arguments.target))
    )
    more = {"use_rep": arguments.use_rep, "labels": arguments.labels, "plan": arguments.keep_plan}
    try:
        names = source.obs_names.tolist(), target.obs_names.tolist()
        told = read_side_files(arguments, keywords["options"].max_memory, names)
        solve = partial(anndata.align, source, target, **more, **keywords, **told)
        result = _solve_with_progress("align", (arguments.source, arguments.target), solve)
        write_whole(lambda aside: anndata.write(source, aside), arguments.output)
    finally:
        source.file.close()
        target.file.close()
    carried = source.obs[f"torchgw_{arguments.labels[0]}"] if arguments.labels else None
    return report_result(result, arguments.output, arguments.report, carried)


def _solve_with_progress(label: str, files: tuple[Path, Path] | None, solve: Callable[..., GWResult]) -> GWResult:
    """Solve under a progress bar; warnings come after it, also before an error, and errors name the files."""
    given: list[warnings.WarningMessage] = []
    try:
        bar_of = bar_on_terminal(label) if is_first() else nullcontext()
        with bar_of as bar, warnings.catch_warnings(record=True) as given:
            return solve(callback=bar)
    except (ValueError, TypeError) as error:
        named = f" (X is {files[0]}, Y is {files[1]})" if files else ""
        raise ValueError(f"{error}{named}") from error
    finally:
        for warning in given:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
