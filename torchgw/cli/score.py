"""``torchgw score``: the metrics of `torchgw.metrics` for a result or a matching that was written.

Points are called by their names where the result has some, and else by their rows, counted from 0. Tables have a header
line or not: it is one if there is a line more than points, or if no point is called what its first line says.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchgw import metrics
from torchgw.cli.align import memory_limit
from torchgw.cli.input import read_space, read_table
from torchgw.persist import guards
from torchgw.results.result import GWResult
from torchgw.runtime.caller import warn_caller
from torchgw.types import Array, TorchGWWarning

HITS = (1, 5, 10)


@dataclass
class PointNames:
    """What the points of a side are called.

    place : row of each name.
    closed : whether these are all points; a matching does not have the targets that nobody is matched to.
    by_rows : whether names are the rows.
    """

    place: dict[str, int]
    closed: bool
    by_rows: bool

    @classmethod
    def of(cls, names: Any, closed: bool, by_rows: bool = False) -> PointNames:
        """Of names in the order of the rows."""
        place: dict[str, int] = {}
        for i, name in enumerate(map(str, names)):
            if place.setdefault(name, i) != i:
                raise ValueError(f"result must call each point differently, got {guards.one_line(name, 40)!r} twice")
        return cls(place, closed, by_rows)

    @property
    def count(self) -> int:
        """Rows that are known of."""
        return max(self.place.values(), default=-1) + 1

    def find_row(self, name: str) -> int | None:
        """The row of a point, None where there is none of that name."""
        if name in self.place:
            return self.place[name]
        if self.closed or (self.by_rows and not (name.isdecimal() and len(name) < 16)):
            return None
        return self.place.setdefault(name, int(name) if self.by_rows else self.count)


@dataclass(frozen=True)
class MatchingToScore:
    """What is scored.

    plan : a result, or a matching (N,), -1 where a point has none.
    sources, targets : its points.
    """

    plan: Any
    sources: PointNames
    targets: PointNames

    @property
    def is_result(self) -> bool:
        """Whether masses are known."""
        return isinstance(self.plan, GWResult)


def run_score(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """The scores as a table, or as JSON."""
    if (arguments.labels_x is None) != (arguments.labels_y is None):
        raise ValueError("--labels-x and --labels-y go together, got one of them; labels of both sides are compared")
    if arguments.truth is None and arguments.labels_x is None:
        raise ValueError("give --truth, or --labels-x and --labels-y: there is nothing to score against")
    for flag in ("points_y", "graph_y"):
        if getattr(arguments, flag) is not None and arguments.truth is None:
            raise ValueError(f"--{flag.replace('_', '-')} needs --truth, the true matches")
    limit = memory_limit(arguments)
    scored = read_matching(arguments.result, limit)
    found: dict[str, Any] = {"result": str(arguments.result), "points": scored.sources.count}
    if arguments.truth is not None:
        found |= score_by_truth(scored, arguments, limit)
    if arguments.labels_x is not None:
        x, headed = read_labels("--labels-x", arguments.labels_x, scored.sources, limit)
        y, _ = read_labels("--labels-y", arguments.labels_y, scored.targets, limit, headed)
        found["label_transfer_accuracy"] = metrics.label_transfer_accuracy(x, y, scored.plan)
    if arguments.json:
        return found
    numbers = {name: value for name, value in found.items() if isinstance(value, float)}
    width = max(map(len, numbers))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {value:.4f}" for name, value in numbers.items())


def score_by_truth(scored: MatchingToScore, arguments: argparse.Namespace, limit: int) -> dict[str, Any]:
    """Scores against the true matches."""
    truth = read_truth(arguments.truth, scored, limit)
    found: dict[str, Any] = {"known": int((truth >= 0).sum())}
    found["node_correctness"] = metrics.node_correctness(scored.plan, truth)
    if arguments.graph_y is not None:
        if not (scored.targets.closed or scored.targets.by_rows):
            raise ValueError("--graph-y needs a result (.npz), or a matching by rows, since its nodes have no names")
        graph = read_space("--graph-y", arguments.graph_y, limit)
        best = metrics.node_correctness(scored.plan, truth, automorphisms_of=graph)
        found["node_correctness_up_to_automorphisms"] = best
    if scored.is_result:
        for k in (k for k in HITS if k <= scored.plan.shape[1]):
            found[f"hits_at_{k}"] = metrics.hits_at_k(scored.plan, truth, k)
        found["mean_reciprocal_rank"] = metrics.mean_reciprocal_rank(scored.plan, truth)
    if arguments.points_y is not None:
        if not scored.is_result:
            raise ValueError(
                "--points-y needs a result (.npz), whose plan carries points; write one by align -o OUT.npz"
            )
        points = read_space("--points-y", arguments.points_y, limit)
        found["foscttm"] = metrics.foscttm(scored.plan.pull(points), points, truth)
    return found


def read_matching(path: Path, limit: int) -> MatchingToScore:
    """A result, or a matching by its first two columns, source and target, the latter empty for points without any."""
    if path.suffix == ".npz":
        result = GWResult.load(path)
        x, y = (
            PointNames.of(range(n) if names is None else names, closed=True, by_rows=names is None)
            for names, n in zip((result.names_x, result.names_y), result.shape, strict=True)
        )
        return MatchingToScore(result, x, y)
    _, rows = read_table("result", path, limit)
    rows = rows[1:] if rows[0][0] == "source" else rows
    if not rows or len(rows[0]) < 2:
        raise ValueError(f"result must be a matching, columns source and target, or an .npz file, got {path}")
    targets = PointNames({}, closed=False, by_rows=all(row[1].isdecimal() for row in rows if row[1]))
    matching = np.array([-1 if not row[1] else targets.find_row(row[1]) for row in rows])
    return MatchingToScore(matching, PointNames.of([row[0] for row in rows], closed=True), targets)


def read_truth(path: Path, scored: MatchingToScore, limit: int) -> Array:
    """The true target of each source point (N,), -1 where the table does not have it."""
    _, rows = read_table("--truth", path, limit)
    if len(rows[0]) == 1:
        listed = [row[0] for row in remove_header("--truth", path, rows, scored.sources)]
        named = list(zip(scored.sources.place, listed, strict=True))
    else:
        begin = scored.sources.find_row(rows[0][0]) is None and rows[0][1] not in scored.targets.place
        named = [(row[0], row[1]) for row in rows[begin:]]
        if not named:
            first = guards.one_line(",".join(rows[0]), 40)
            raise ValueError(f"--truth: {path} must hold pairs of points, got none below {first!r}, taken for a header")
    called = {target for _, target in named if target}
    if called and not scored.targets.by_rows and called.isdisjoint(scored.targets.place):
        warn_caller(
            f"no target of {path}, such as {guards.one_line(min(called), 40)!r}, is one of the matching; call "
            f"points as it does",
            TorchGWWarning,
        )
    found = np.full(scored.sources.count, -1)
    for source, target in named:
        if target:
            place = find_row("--truth", path, source, scored.sources)
            if found[place] >= 0:
                raise ValueError(
                    f"--truth: {path} must name each point once, got {guards.one_line(source, 40)!r} twice"
                )
            found[place] = find_row("--truth", path, target, scored.targets)
    return found


def read_labels(
    name: str, path: Path, points: PointNames, limit: int, headed: bool = False
) -> tuple[list[str | None], bool]:
    """The label of each point, None where it has none, and whether the table has a header; where its points are not all
    known, it has one if it is ``headed``."""
    _, rows = read_table(name, path, limit)
    if len(rows[0]) == 1:
        if points.closed:
            headed = len(rows) == points.count + 1
            rows = remove_header(name, path, rows, points)
        elif points.by_rows:
            rows = rows[headed:]
        else:
            raise ValueError(f"{name}: {path} must have two columns, point and label, since the matching has names")
        return [row[0] or None for row in rows], headed
    if points.closed or points.by_rows:
        headed = points.find_row(rows[0][0]) is None
    known = {find_row(name, path, row[0], points): row[1] or None for row in rows[headed:]}
    if len(known) < len(rows) - headed:
        raise ValueError(f"{name}: {path} must name each point once, got some twice")
    return [known.get(i) for i in range(points.count)], headed


def remove_header(name: str, path: Path, rows: list[list[str]], points: PointNames) -> list[list[str]]:
    """The lines of a table that has one for each point, in their order."""
    more = len(rows) - points.count
    if more not in (0, 1):
        raise ValueError(f"{name}: {path} must have a line for each of {points.count} points, got {len(rows)}")
    return rows[more:]


def find_row(name: str, path: Path, point: str, points: PointNames) -> int:
    """The row of a point that a table names."""
    found = points.find_row(point)
    if found is None:
        called = "rows, counted from 0" if points.by_rows else "the names that the result has"
        raise ValueError(
            f"{name}: {path} names {guards.one_line(point, 40)!r}, no such point; points are called by {called}"
        )
    return found
