"""``torchgw score`` gives the numbers of `torchgw.metrics`, for points by rows and by names, and refuses tables that do
not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import ROLL, ROLL_ANGLE, SPIRAL_ANGLE
from torchgw import GWResult, cli, metrics
from torchgw.cli import score
from torchgw.cli.output import write_matching

TRUTH = np.abs(SPIRAL_ANGLE[:, None] - ROLL_ANGLE).argmin(1)
X, Y = (np.where(angle > 5, "far", "near") for angle in (SPIRAL_ANGLE, ROLL_ANGLE))
NAMES = [f"a{i}" for i in range(len(X))], [f"b{j}" for j in range(len(Y))]
LABELS = ["--labels-x", "x.csv", "--labels-y", "y.csv"]


def lines(path: str, *columns: Any, header: str = "") -> None:
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    Path(path).write_text("\n".join([*([header] if header else []), *rows]) + "\n")


@pytest.fixture
def folder(result: GWResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result and its matching, the true matches, and labels of both sides."""
    monkeypatch.chdir(tmp_path)
    result.save("out.npz")
    write_matching(result, Path("out.csv"))
    lines("truth.csv", range(len(X)), TRUTH, header="source,target")
    lines("x.csv", range(len(X)), X, header="point,label")
    lines("y.csv", range(len(Y)), Y, header="point,label")
    return tmp_path


def scored(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert cli.main(["score", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_result_gets_the_scores_of_the_library(
    folder: Path, result: GWResult, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("roll.npy", ROLL)
    found = scored(["out.npz", "--truth", "truth.csv", *LABELS, "--points-y", "roll.npy"], capsys)
    assert found["points"] == found["known"] == len(X)
    expected = {
        "node_correctness": metrics.node_correctness(result, TRUTH),
        **{f"hits_at_{k}": metrics.hits_at_k(result, TRUTH, k) for k in (1, 5, 10)},
        "mean_reciprocal_rank": metrics.mean_reciprocal_rank(result, TRUTH),
        "foscttm": metrics.foscttm(result.pull(ROLL), ROLL, TRUTH),
        "label_transfer_accuracy": metrics.label_transfer_accuracy(X, Y, result),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert cli.main(["score", "out.npz", "--truth", "truth.csv"]) == 0
    said = capsys.readouterr().out
    assert f"node correctness      {expected['node_correctness']:.4f}\n" in said


@pytest.mark.parametrize("headed", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_tables_say_the_same_with_and_without_header_and_first_column(
    headed: bool, listed: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--truth", "truth.csv", *LABELS]
    before = [scored([out, *arguments], capsys) for out in ("out.npz", "out.csv")]
    for path, column in (("truth.csv", TRUTH), ("x.csv", X), ("y.csv", Y)):
        first = () if listed else (range(len(column)),)
        lines(path, *first, column, header=("" if listed else "row,") + "value" if headed else "")
    assert [scored([out, *arguments], capsys) for out in ("out.npz", "out.csv")] == before


def test_a_matching_by_names_scores_as_one_by_rows(
    folder: Path, result: GWResult, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["out.csv", "--truth", "truth.csv", *LABELS]
    before = scored(arguments, capsys)
    assert before["node_correctness"] == pytest.approx((result.argmax() == TRUTH).mean())
    x, y = NAMES
    lines("out.csv", x, [y[j] for j in result.argmax()], header="source,target")
    order = np.random.default_rng(0).permutation(len(X))  # of lines: names say which point is meant
    lines("truth.csv", np.array(x)[order], np.array(y)[TRUTH[order]], header="cell,other")
    lines("x.csv", x, X, header="cell,type")
    lines("y.csv", y[::-1], Y[::-1], header="cell,type")
    assert scored(arguments, capsys) == before


def test_a_result_with_names_is_scored_by_them(
    folder: Path, result: GWResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = scored(["out.npz", "--truth", "truth.csv"], capsys)
    x, y = NAMES
    named = replace(result, names_x=np.array(x, dtype=object), names_y=np.array(y, dtype=object))
    monkeypatch.setattr(score.GWResult, "load", lambda path: named)
    lines("truth.csv", x, [y[j] for j in TRUTH])
    assert scored(["out.npz", "--truth", "truth.csv"], capsys) == before


def test_points_without_a_match_or_a_truth_are_empty_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines("m.csv", [0, 1, 2, 3], [1, 0, "", 2], header="source,target")
    lines("t.csv", [0, 1, 2, 3], [1, 5, 3, ""], header="source,target")
    found = scored(["m.csv", "--truth", "t.csv"], capsys)
    assert (found["known"], found["node_correctness"]) == (3, pytest.approx(1 / 3))
    lines("x.csv", ["a", "b", "b", '""'])  # as pandas writes a missing one
    lines("y.csv", ["b", "a", "a", "a", "b"])
    assert scored(["m.csv", "--labels-x", "x.csv", "--labels-y", "y.csv"], capsys)[
        "label_transfer_accuracy"
    ] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("targets", "warned"), [([0, 1], True), (["t1", "t0"], False), (["t1", "other"], False)])
def test_true_targets_that_are_called_otherwise_are_warned_of(
    targets: list[Any],
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    lines("m.csv", ["a", "b"], ["t0", "t1"], header="source,target")
    lines("t.csv", ["a", "b"], targets)
    assert cli.main(["score", "m.csv", "--truth", "t.csv"]) == 0
    assert ("no target of t.csv, such as '0', is one of the matching" in capsys.readouterr().err) == warned


def test_nodes_count_up_to_the_automorphisms_of_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savetxt("path.csv", np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0))), delimiter=",")
    lines("m.csv", range(4), [3, 2, 1, 0], header="source,target")
    lines("t.csv", range(4))
    found = scored(["m.csv", "--truth", "t.csv", "--graph-y", "path.csv"], capsys)
    assert found["node_correctness"] == 0.0
    assert found["node_correctness_up_to_automorphisms"] == 1.0


REFUSED = {
    "give --truth, or --labels-x and --labels-y": (["out.npz"], ()),
    "--labels-x and --labels-y go together": (["out.npz", "--labels-x", "x.csv"], ()),
    "--points-y needs --truth": (["out.npz", *LABELS, "--points-y", "y.csv"], ()),
    "--points-y needs a result (.npz)": (["out.csv", "--truth", "truth.csv", "--points-y", "y.csv"], ()),
    "--truth: bad.csv names '4000', no such point": (["out.npz", "--truth", "bad.csv"], ([0, 1], [1, 4000])),
    "--truth: bad.csv names '-1', no such point": (["out.csv", "--truth", "bad.csv"], ([0, 1], [1, -1])),
    "names 'who', no such point; points are called by rows": (["out.npz", "--truth", "bad.csv"], ([0, "who"], [1, 2])),
    "must name each point once, got '0' twice": (["out.npz", "--truth", "bad.csv"], ([0, 0], [1, 2])),
    "must have a line for each of 90 points, got 3": (["out.npz", "--truth", "bad.csv"], ([0, 1, 2],)),
    "--labels-x: bad.csv must name each point once": (
        ["out.npz", "--labels-x", "bad.csv", "--labels-y", "y.csv"],
        ([3, 3], ["near", "far"]),
    ),
    "names 'nobody', no such point": (["out.npz", "--truth", "bad.csv"], (["nobody", 1], [0, 2])),  # no header
    "must hold pairs of points, got none below 'from,to'": (["out.npz", "--truth", "bad.csv"], (["from"], ["to"])),
    "truth must be known of at least one point": (["out.npz", "--truth", "bad.csv"], ([0], [""])),
    "must be a .csv, .tsv file, got nothing.txt": (["out.npz", "--truth", "nothing.txt"], ()),
    "nothing.csv is not there": (["out.npz", "--truth", "nothing.csv"], ()),
    "result must be a matching, columns source and target": (["bad.csv", "--truth", "truth.csv"], ([0, 1],)),
    "result must call each point differently, got '1' twice": (["bad.csv", *LABELS], ([1, 1], [2, 3])),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_does_not_fit_is_refused_in_a_line(said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, table = REFUSED[said]
    if table:
        lines("bad.csv", *table)
    assert cli.main(["score", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
