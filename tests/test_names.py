"""Names of points: where they come from, which are refused, and that they come back from wherever a result was kept."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import torchgw
from torchgw import GWOptions, GWResult, LowRankOptions, cli, epsilon_path, gw_align, gw_loss, gw_pairwise, resume
from torchgw.cli.input import read_cell_names, read_with_names
from torchgw.distributed import save
from torchgw.estimator import GromovWasserstein
from torchgw.request.names import check_names

anndata = pytest.importorskip("anndata")
pytestmark = pytest.mark.filterwarnings("ignore::torchgw.types.TorchGWWarning")

N = 9
POINTS = np.random.default_rng(0).normal(size=(N, 2))
LETTERS = list("abcdefghi")
GRID = nx.grid_2d_graph(3, 3)
DAYS = pd.date_range("2026-01-01", periods=N)


def framed(index: Any) -> pd.DataFrame:
    return pd.DataFrame(POINTS, index=index)


# What is given as X, as names, and the names of its points.
GIVEN: dict[str, tuple[Any, Any, list[Any] | None]] = {
    "array": (POINTS, None, None),
    "tensor": (torch.from_numpy(POINTS), None, None),
    "plain frame": (framed(None), None, None),
    "frame of texts": (framed(LETTERS), None, LETTERS),
    "frame that counts from 5": (framed(range(5, 5 + N)), None, list(range(5, 5 + N))),
    "rows of a frame": (pd.DataFrame(np.repeat(POINTS, 2, 0)).iloc[::2], None, list(range(0, 2 * N, 2))),
    "frame that counts by integers": (framed(np.arange(N)), None, None),
    "frame of days": (framed(DAYS), None, list(DAYS)),
    "frame of pairs": (framed(pd.MultiIndex.from_tuples(list(GRID))), None, list(GRID)),
    "frame that repeats": (framed(["a"] * N), None, None),
    "frame with a gap": (framed([*LETTERS[:-1], None]), None, None),
    "frame of integers with a gap": (framed(pd.Index([None, *range(1, N)], dtype="Int64")), None, None),
    "frame of integers of pandas": (framed(pd.Index(range(2, N + 2), dtype="Int64")), None, list(range(2, N + 2))),
    "frame of categories": (framed(pd.CategoricalIndex(LETTERS, categories=[*LETTERS, "z"])), None, LETTERS),
    "nodes": (GRID, None, list(GRID)),
    "nodes that count": (nx.path_graph(N), None, None),
    "names of an array": (POINTS, LETTERS, LETTERS),
    "names that count": (POINTS, range(N), list(range(N))),
    "names before an index": (framed(DAYS), LETTERS, LETTERS),
    "names in NumPy": (POINTS, np.array(LETTERS), LETTERS),
    "numbers in NumPy": (POINTS, np.arange(N) * 2.5, [2.5 * i for i in range(N)]),
    "tensor of names": (POINTS, torch.arange(N) + 3, list(range(3, N + 3))),
    "bytes in NumPy": (POINTS, np.array(LETTERS, dtype="S1"), [letter.encode() for letter in LETTERS]),
    "column of names": (POINTS, pd.Series(LETTERS), LETTERS),
    "tuples": (POINTS, [(i, "x") for i in range(N)], [(i, "x") for i in range(N)]),
}


@pytest.mark.parametrize("case", GIVEN)
def test_names_are_those_given_or_those_that_points_bring(case: str) -> None:
    points, given, expected = GIVEN[case]
    found = check_names("X", given, points, N)
    assert (None if found is None else list(found)) == expected
    if found is not None:
        assert found.shape == (N,)
        assert found.dtype == object


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        (LETTERS[:8], ValueError, "names_x must have one name for each of the 9 points of X, got 8;"),
        ([*LETTERS[:8], "c"], ValueError, "got 'c' for points 2 and 8; add to it what tells them apart"),
        ([*LETTERS[:8], None], ValueError, r"got none \(None\) for point 8; fill it in, or leave out the point"),
        ([*LETTERS[:8], ""], ValueError, r"got none \(''\) for point 8"),
        ([float("nan"), *range(8)], ValueError, r"got none \(nan\) for point 0"),
        ([pd.NaT, *range(8)], ValueError, "got none .* for point 0"),
        ([pd.NA, *range(8)], ValueError, "got none .* for point 0"),
        ([Path("a"), "a", *range(7)], ValueError, "got 'a' for points 0 and 1"),  # which are one in a file
        ("abcdefghi", TypeError, "names_x must be a list or array of names in the order of the points, got str"),
        (set(LETTERS), TypeError, "in the order of the points, got set"),
        (pd.DataFrame(index=LETTERS), TypeError, "in the order of the points, got DataFrame"),
        (7, TypeError, "in the order of the points, got int"),
        (POINTS, TypeError, "names_x must hold texts, numbers or tuples of these, got a ndarray"),
        (np.array(7), TypeError, "in the order of the points, got ndarray"),
        ([{}, *LETTERS[1:]], TypeError, "names_x must hold texts, numbers or tuples of these, got a dict, '{}'"),
        (np.ma.array(range(9), mask=[1] + [0] * 8), ValueError, r"got none \(None\) for point 0"),
    ],
)
def test_names_that_are_none_are_refused(names: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_names("X", names, POINTS, N)


def solved(X: Any, Y: Any, **given: Any) -> GWResult:
    return gw_align(X, Y, **{"distances": "euclidean", "epsilon": 1e-2, "random_state": 0} | given)


def named(result: GWResult) -> tuple[Any, Any]:
    x, y = (None if names is None else list(names) for names in (result.names_x, result.names_y))
    return x, y


LOW_RANK = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=3))
WHOLE = {"names_y": [(i, 0.5 * i, str(i)) for i in range(N)]}
EXPECTED = (LETTERS, WHOLE["names_y"])
CALLS: dict[str, Callable[[], GWResult]] = {
    "dense": lambda: solved(framed(LETTERS), POINTS, **WHOLE),
    "streaming": lambda: solved(framed(LETTERS), POINTS, options=GWOptions(strategy="streaming"), **WHOLE),
    "low rank": lambda: gw_align(framed(LETTERS), POINTS, epsilon=0.1, options=LOW_RANK, **WHOLE),
    "without mass": lambda: solved(framed(LETTERS), POINTS, p=np.arange(N) / 36, **WHOLE),
    "cost alone": lambda: solved(None, None, cost=np.eye(N), alpha=0, distances="auto", names_x=LETTERS, **WHOLE),
    "loss": lambda: gw_loss(framed(LETTERS), POINTS, epsilon=0.1, return_result=True, **WHOLE)[1],
    "distributed": lambda: torchgw.distributed.gw_align(framed(LETTERS), POINTS, epsilon=0.1, **WHOLE),
    "path": lambda: epsilon_path(framed(LETTERS), POINTS, epsilons=[0.1, 0.05], random_state=0, **WHOLE).results[-1],
}


@pytest.mark.parametrize("call", CALLS)
def test_results_have_names_whatever_is_called(call: str) -> None:
    assert named(CALLS[call]()) == EXPECTED


def test_the_estimator_keeps_the_names_of_frames() -> None:
    found = GromovWasserstein(epsilon=0.1, random_state=0).fit(framed(LETTERS).add_prefix("x"), POINTS)
    assert named(found.result_) == (LETTERS, None)


def test_names_change_nothing_of_a_solve() -> None:
    one, other = solved(POINTS, POINTS), solved(framed(LETTERS), POINTS, **WHOLE)
    assert np.array_equal(one.plan, other.plan)


def test_names_come_back_from_files(tmp_path: Path) -> None:
    result = solved(framed(LETTERS), POINTS, **WHOLE, checkpoint=tmp_path / "kept")
    result.save(tmp_path / "r.npz")
    save(result, tmp_path / "parts")
    for found in (GWResult.load(tmp_path / "r.npz"), GWResult.load(tmp_path / "parts"), resume(tmp_path / "kept")):
        assert named(found) == EXPECTED


def test_files_keep_the_text_of_other_names(tmp_path: Path) -> None:
    result = solved(framed(DAYS), GRID, distances=("euclidean", "adjacency"), checkpoint=tmp_path / "kept")
    assert named(result) == (list(DAYS), list(GRID))
    result.save(tmp_path / "r.npz")
    for found in (GWResult.load(tmp_path / "r.npz"), resume(tmp_path / "kept")):
        assert named(found) == (list(map(str, DAYS)), list(GRID))


@pytest.mark.parametrize("names", [LETTERS[:8], [*LETTERS[:8], {"a": 1}], [*LETTERS[:8], None], {"a": 1}, "abcdefghi"])
def test_files_with_names_that_are_none_are_refused(names: Any, tmp_path: Path) -> None:
    solved(POINTS, POINTS).save(tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz") as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    np.savez(tmp_path / "r.npz", **arrays | {"meta": np.array(json.dumps(meta | {"names_x": names}))})
    with pytest.raises(ValueError, match="its names_x must"):
        GWResult.load(tmp_path / "r.npz")


ROWS = [f"{x:.4f},{y:.4f}" for x, y in POINTS]
NAMED = [f"{name},{row}" for name, row in zip(LETTERS, ROWS, strict=True)]
COUNTED = [f"{2 * i},{row}" for i, row in enumerate(ROWS)]
MIDDLE = [f"{x:.4f},{name},{y:.4f}" for name, (x, y) in zip(LETTERS, POINTS, strict=True)]
EVEN = [str(2 * i) for i in range(N)]

# Lines of a table, the title in --index-col, and the names of its points.
TABLES: dict[str, tuple[list[str], str | None, list[str] | None]] = {
    "no names": (["x,y", *ROWS], None, None),
    "no header": (ROWS, None, None),
    "names below a title": (["gene,x,y", *NAMED], None, LETTERS),
    "names below id": (["id,x,y", *NAMED], None, LETTERS),
    "names below nothing": ([",x,y", *NAMED], None, LETTERS),
    "names without a header": (NAMED, None, LETTERS),
    "as pandas writes an array with an index": ([",0,1", *NAMED], None, LETTERS),
    "as R writes row names": (["x,y", *NAMED], None, LETTERS),
    "spaces around names": (["gene,x,y", *(f" {line}" for line in NAMED)], None, LETTERS),
    "numbers that are named": (["id,x,y", *COUNTED], "id", EVEN),
    "numbers below nothing": ([",x,y", *COUNTED], "", EVEN),
    "numbers that R writes as row names": (["x,y", *COUNTED], "", EVEN),
    "a column in between": (["x,gene,y", *MIDDLE], "gene", LETTERS),
    "one column of numbers": (["id", *EVEN], None, None),
}


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("case", TABLES)
def test_tables_name_points_by_a_column_of_texts_or_the_one_that_is_said(case: str, tmp_path: Path) -> None:
    lines, index, expected = TABLES[case]
    points, names = read_with_names("X", written(tmp_path / "x.csv", lines), index=index)
    assert names == expected
    wanted = np.array(EVEN, dtype=float)[:, None] if case == "one column of numbers" else POINTS.round(4)
    np.testing.assert_array_equal(points, wanted)
    assert (
        read_with_names("X", written(tmp_path / "x.tsv", [s.replace(",", "\t") for s in lines]), index=index)[1]
        == names
    )


BOTH_WAYS = r"--index-col {}` takes it for names of the points; leave it out .*, or rename it"


@pytest.mark.parametrize(
    ("lines", "index", "message"),
    [
        (["id,x,y", *COUNTED], None, "column 1 is called id and holds numbers, .*" + BOTH_WAYS.format("id")),
        (["Index,x,y", *COUNTED], None, "column 1 is called Index and .*" + BOTH_WAYS.format("Index")),
        ([",x,y", *COUNTED], None, "column 1 has no name and holds numbers, .*" + BOTH_WAYS.format("''")),
        (["x,ID,y", *(f"{x},{i},{x}" for i, x in enumerate(POINTS[:, 0]))], None, "column 2 is called ID .*"),
        (["gene,x,y", *NAMED, NAMED[0]], None, "column 1 must hold a name of its own .*'a' for points 0 and 9"),
        (["gene,x,y", *NAMED, ",1,2"], None, r"column 1 must hold a name of its own .*none \(''\) for point 9"),
        (["x,y", "NA,2", "3,4"], None, "column 1 holds '3' on line 3, which is no name, and 'NA' before; fill in"),
        (["x,y", "1,2", "NA,4"], None, "line 3 holds 'NA', not a number in column 1; .* --index-col"),
        (["gene,x,kind", "a,1,T", "b,2,B"], None, "line 2 holds 'T', not a number in column 3"),
        (["gene_id,x,y", *COUNTED], None, "column 1 is called gene_id and .*" + BOTH_WAYS.format("gene_id")),
        (
            ["x,gene", "1,a", "2,b"],
            None,
            "line 2 holds 'a', not a number in column 2; if these are names .*; leave out",
        ),
        (["gene,x,kind", "a,1,T"], "gene", "line 2 holds 'T', not a number in column 3; leave out columns"),
        (["gene,x", "a,1", "b,NA"], None, "line 3 holds 'NA', not a number in column 2; fill in values"),
        (["gene,x", 'a,"1,5"'], None, "line 2 holds '1,5', not a number in column 2; write decimals with points"),
        (["x,y", *COUNTED], None, "column 1 has no name and holds numbers, .*" + BOTH_WAYS.format("''")),  # as R does
        (["x,y", "1,2,", "3,4,"], "y", "a title for each column, got 2 titles and 3 columns"),
        (["x,y,z,u", "1,2"], "x", "a title for each column, got 4 titles and 2 columns"),
        (["gene,x", '"a', 'b",1'], None, "line 2 is no line of cells: .*; quotes end in the line where they begin"),
        (["gene,x,y", *NAMED], "id", "one column called 'id', .* got a header with 'gene', 'x', 'y'"),
        (["id,id,y", *COUNTED], "id", "one column called 'id', .* got a header with 'id', 'id', 'y'"),
        (COUNTED, "id", "one column called 'id', .* got no header line"),
    ],
)
def test_tables_that_may_be_misread_are_refused(
    lines: list[str], index: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read_with_names("X", written(tmp_path / "x.csv", lines), index=index)


INDICES = ("", "id", "ID", " Index ", "Unnamed: 0", "gene_id", "cell-id", "Patient ID", "cellId", "donorID")
COORDINATES = ("x", "width", "grid", "centroid", "VOID", "body mass index", "idle", "index_of_refraction")


@pytest.mark.parametrize("header", ["source,target,length", "source,target,weight,kind", "Source,Target,share"])
def test_edges_with_other_columns_are_no_points(header: str, tmp_path: Path) -> None:
    row = ",".join("123456"[: header.count(",") + 1])
    path = written(tmp_path / "x.csv", [header, row, row])
    with pytest.raises(ValueError, match=r"must have the columns source, target and perhaps weight, got '[Ss]ource', "):
        read_with_names("X", path)


@pytest.mark.parametrize("title", [*INDICES, *COORDINATES])
def test_titles_make_the_same_columns_indices_in_files_and_in_frames(title: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(POINTS).set_axis([title, "y"], axis=1)
    path = tmp_path / "x.csv"
    frame.to_csv(path, index=False)
    if title in COORDINATES:
        np.testing.assert_allclose(read_with_names("X", path)[0], POINTS)
        assert gw_align(frame, POINTS, distances="euclidean", epsilon=0).value < 1e-9
        return
    with pytest.raises(ValueError, match=r"--index-col .* takes it for names of the points; leave it out"):
        read_with_names("X", path)
    with pytest.raises(
        ValueError, match=r"X .* like an index: set_index\(.*\) takes it for names of the points; leave"
    ):
        gw_align(frame, POINTS, distances="euclidean")
    with pytest.raises(ValueError, match=r"like an index: set_index"):
        gw_pairwise([frame, frame])
    named = frame.set_index(title)
    assert gw_align(named, named, distances="euclidean").names_x.tolist() == POINTS[:, 0].tolist()


def command(folder: Path, *more: str, code: int = 0) -> list[list[str]]:
    """The lines of the matching that the command writes for the files in a folder."""
    files = [str(next(folder.glob(f"{name}.*"))) for name in ("x", "y")]
    out = folder / "matching.csv"
    assert cli.main(["align", *files, "-o", str(out), "--distances", "euclidean", "--epsilon", "0", *more]) == code
    return [line.split(",") for line in out.read_text().splitlines()] if code == 0 else []


TURNED = np.random.default_rng(1).permutation(N)


def test_the_command_matches_names_with_names(tmp_path: Path) -> None:
    written(tmp_path / "x.csv", ["gene,x,y", *NAMED])
    written(tmp_path / "y.csv", ["id,x,y", *(COUNTED[i] for i in TURNED)])
    header, *lines = command(tmp_path, "--index-col", "gene", "--index-col", "id", "--checkpoint", str(tmp_path / "c"))
    assert header == ["source", "target", "share"]
    assert [line[:2] for line in lines] == [list(pair) for pair in zip(LETTERS, EVEN, strict=True)]
    assert cli.main(["resume", str(tmp_path / "c"), "-o", str(tmp_path / "again.csv")]) == 0
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "matching.csv").read_text()


def test_sides_without_names_keep_their_row_numbers(tmp_path: Path) -> None:
    written(tmp_path / "x.csv", NAMED)
    np.save(tmp_path / "y.npy", POINTS[TURNED])
    lines = command(tmp_path)[1:]
    assert [(line[0], int(line[1])) for line in lines] == list(zip(LETTERS, np.argsort(TURNED), strict=True))


def test_names_that_spreadsheets_would_run_are_written_as_texts(tmp_path: Path) -> None:
    written(tmp_path / "x.csv", [f"={line}" for line in NAMED])
    written(tmp_path / "y.csv", ROWS)
    assert [line[0] for line in command(tmp_path)[1:]] == [f"'={name}" for name in LETTERS]
    written(tmp_path / "pairs.csv", ["'=a,0", "=b,1"])
    command(tmp_path, "--pairs", str(tmp_path / "pairs.csv"))


@pytest.mark.parametrize("pairs", [["source,target,share", "b,1,0.5"], ["b,1"], ["1,1"], ["source,target", "1.0,1e0"]])
def test_known_pairs_are_names_or_rows(pairs: list[str], tmp_path: Path) -> None:
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0], [0.0, 2.0]])
    rows = [f"{x},{y}" for x, y in square]
    written(tmp_path / "x.csv", [f"{name},{row}" for name, row in zip("abcd", rows, strict=True)])
    written(tmp_path / "y.csv", rows[2:] + rows[:2])
    written(tmp_path / "pairs.csv", pairs)
    assert command(tmp_path, "--pairs", str(tmp_path / "pairs.csv"))[2][:2] == ["b", "1"]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["b,1", "z,2"], "of the source, got 'z' on line 2"),
        (["b,one", "c,2"], "row numbers, counted from 0, of the target, got 'one' on line 1"),
        (["source,target"], "must hold pairs of points, got none"),
        (["b"], "a table with two columns"),
    ],
)
def test_pairs_of_no_points_are_refused(
    pairs: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "x.csv", NAMED)
    written(tmp_path / "y.csv", ROWS)
    command(tmp_path, "--pairs", str(written(tmp_path / "pairs.csv", pairs)), code=2)
    assert message in capsys.readouterr().err


def test_features_go_to_the_points_of_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "xy":
        written(tmp_path / f"{name}.csv", NAMED)
    written(tmp_path / "f.csv", [f"{name},{i}" for i, name in enumerate(LETTERS)])
    written(tmp_path / "g.csv", [f"{name},{i}" for i, name in enumerate(LETTERS)][::-1])
    features = ["--features", str(tmp_path / "f.csv"), str(tmp_path / "g.csv"), "--alpha", "0"]
    assert all(source == target for source, target, _ in command(tmp_path, *features)[1:])
    written(tmp_path / "g.csv", [f"{name},{i}" for i, name in enumerate("bcdefghij")])
    command(tmp_path, *features, code=2)
    assert "--features must have a row for each point" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (pd.Index(LETTERS), LETTERS),
        (pd.Index(EVEN, name="barcode"), EVEN),
        (pd.Index([str(i) for i in range(N)]), [str(i) for i in range(N)]),
    ],
)
def test_the_command_names_cells_by_their_files(index: Any, names: list[str], tmp_path: Path) -> None:
    """In tables, results and known pairs; whatever column of obs the names are in."""
    anndata.AnnData(POINTS, obs=pd.DataFrame({"kind": LETTERS}, index=index)).write_h5ad(tmp_path / "x.h5ad")
    anndata.AnnData(POINTS, obs=pd.DataFrame(index=LETTERS)).write_h5ad(tmp_path / "y.h5ad")
    written(tmp_path / "pairs.csv", [f"{names[3]},d"])
    lines = command(tmp_path, "--pairs", str(tmp_path / "pairs.csv"))[1:]
    assert [line[:2] for line in lines] == [list(pair) for pair in zip(names, LETTERS, strict=True)]
    files = [str(tmp_path / f"{name}.h5ad") for name in "xy"]
    assert cli.main(["align", *files, "-o", str(tmp_path / "out.npz"), "--epsilon", "0.01", "--points"]) == 0
    assert list(GWResult.load(tmp_path / "out.npz").names_y) == LETTERS  # type: ignore[arg-type]
    assert cli.main(["apply", str(tmp_path / "out.npz"), files[0], "-o", str(tmp_path / "new.csv")]) == 0
    assert [line.split(",")[0] for line in (tmp_path / "new.csv").read_text().splitlines()[1:]] == names


def test_cells_that_share_a_name_are_matched_without_names(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file.update({"X": POINTS, "obs/_index": ["twice"] * N})
    anndata.AnnData(POINTS, obs=pd.DataFrame(index=LETTERS)).write_h5ad(tmp_path / "y.h5ad")
    with pytest.warns(torchgw.types.TorchGWWarning, match="without names, which are not unique: 'twice' for points 0"):
        assert read_cell_names("source", tmp_path / "x.h5ad", 2**20) is None
    assert [line[:2] for line in command(tmp_path)[1:]] == [[str(i), letter] for i, letter in enumerate(LETTERS)]


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ({"_index": np.arange(N)}, "obs_names must hold text, got int64"),
        ({"kind": LETTERS}, "obs_names must hold text, got nothing"),
        ({"_index": h5py.SoftLink("/X")}, "link to another place"),
        ({"_index": LETTERS * 1000}, "over the limit"),
        ({"_index": ["x" * 10**5] * N}, "over the limit"),
    ],
)
def test_names_of_cells_are_not_believed(obs: Any, message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file.update({"X": POINTS} | {f"obs/{name}": found for name, found in obs.items()})
    with pytest.raises(ValueError, match=message):
        read_cell_names("source", tmp_path / "x.h5ad", 2**14)


@pytest.mark.parametrize("side", ["source", "target"])
def test_new_points_and_known_ones_keep_their_names(side: str, tmp_path: Path) -> None:
    """Also those that a loaded result maps; without an index the new ones have none."""
    result = gw_align(POINTS, POINTS[TURNED], epsilon=1e-2, distances="euclidean", names_x=LETTERS, names_y=EVEN)
    result.save(tmp_path / "out.npz", points=True)
    new, known = framed(DAYS).iloc[2:5], EVEN if side == "source" else LETTERS
    for given in (result, GWResult.load(tmp_path / "out.npz")):
        unseen = given.transform(new, side)
        table, other = unseen.table(), {"source": "target", "target": "source"}[side]
        assert {*table[side]} <= {*DAYS[2:5]}
        assert {*table[other]} <= {*known}
        names = (unseen.names_x, unseen.names_y)[:: 1 if side == "source" else -1]
        assert (list(names[0]), list(names[1])) == (list(DAYS[2:5]), known)
        assert given.transform(new.to_numpy(), side).table().shape == table.shape


@pytest.mark.parametrize(
    ("files", "titles", "message"),
    [
        (("x.npy", "y.npy"), ["id"], "--index-col is for tables (.csv, .tsv), got "),
        (("x.csv", "y.npy"), ["id", "id"], "got it 2 times"),
        (("x.csv", "y.csv"), ["id", "id", "id"], "got it 3 times"),
    ],
)
def test_titles_are_of_tables(
    files: tuple[str, str], titles: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in files:
        written(tmp_path / file, ["id,x,y", *COUNTED])
    command(tmp_path, *(word for title in titles for word in ("--index-col", title)), code=2)
    assert message in capsys.readouterr().err


# Lines of a list of edges, whether it is said to be one, the names of its nodes, and its edges with weights.
EDGES: dict[str, tuple[list[str], bool, list[str] | None, list[tuple[int, int, float]]]] = {
    "a header without weights": (["source,target", "a,b", "b,c"], False, ["a", "b", "c"], [(0, 1, 1), (1, 2, 1)]),
    "a header with weights": (
        ["Source,Target,weight", "a,b,0.5", "c,b,2"],
        False,
        list("abc"),
        [(0, 1, 0.5), (1, 2, 2)],
    ),
    "no header": (["a,b", "b,c"], True, ["a", "b", "c"], [(0, 1, 1), (1, 2, 1)]),
    "another header": (["u,v", "a,b", "b,c"], True, ["a", "b", "c"], [(0, 1, 1), (1, 2, 1)]),
    "a header of one's own": (["gene,partner,score", "a,b,3"], True, ["a", "b"], [(0, 1, 3)]),
    "both directions": (["source,target", "a,b", "b,a"], False, ["a", "b"], [(0, 1, 1)]),
    "a loop": (["a,b,1", "b,b,2"], True, ["a", "b"], [(0, 1, 1), (1, 1, 2)]),
    "numbers from 0": (["2,1", "0,2"], True, None, [(1, 2, 1), (0, 2, 1)]),
    "numbers from 1": (["10,2", "1,10"], True, ["1", "2", "10"], [(1, 2, 1), (0, 2, 1)]),
}


@pytest.mark.parametrize("case", EDGES)
def test_lists_of_edges_are_graphs_with_named_nodes(case: str, tmp_path: Path) -> None:
    lines, said, nodes, edges = EDGES[case]
    graph, names = read_with_names("X", written(tmp_path / "x.csv", lines), edges=said)
    expected = np.zeros(graph.shape)
    for i, j, weight in edges:
        expected[i, j] = expected[j, i] = weight
    np.testing.assert_array_equal(graph.toarray(), expected)
    assert names == nodes


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b,1", "b,a,2"], "one weight for each edge, which goes both ways, got 1 and 2 between 'b' and 'a'"),
        (["a,b,1", "b,c,x"], "line 2 holds 'x', not a finite number as the weight"),
        (["a,b,1", "b,c,inf"], "line 2 holds 'inf', not a finite number"),
        (["a,b", "b,"], "line 2 must name both nodes"),
        (["a,b,1,2"], "line 1 must hold an edge, .* got 4 cells"),
        (["source,target"], "it holds no edges"),
        (["a,b,", "b,c,1"], "line 1 holds '', not a finite number as the weight"),
    ],
)
def test_lists_that_are_no_edges_are_refused(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_with_names("X", written(tmp_path / "x.csv", lines), edges=True)


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        (["gene,partner", "a,b", "b,c"], True),
        (["source,target", "a,b", "c,d"], False),
        (["a,b", "b,c"], False),
        (["1,2", "3,4"], False),
        (["a,b"], False),
    ],
)
def test_a_first_line_that_may_be_a_header_of_edges_is_warned_of(
    lines: list[str], warned: bool, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        read_with_names("X", written(tmp_path / "x.csv", lines), edges=True)
    assert [str(each.message)[:44] for each in given] == ["no other edge has a node of line 1, 'gene, p"] * warned


def test_files_in_another_encoding_say_so(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("gene,x\né,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"it must be text in UTF-8, .*; save it as UTF-8"):
        read_with_names("X", tmp_path / "x.csv")


def test_the_command_matches_the_nodes_of_two_lists_of_edges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = ["a,b", "b,c", "c,d", "d,e", "c,f"]  # with the edge to i, legs of three, two and one nodes
    written(tmp_path / "x.csv", ["source,target", *tree, "a,i"])
    written(tmp_path / "y.tsv", [line.upper().replace(",", "\t") for line in [*tree[::-1], "I,A"]])
    for distances in ("auto", "adjacency"):
        lines = command(tmp_path, "--edges", "--distances", distances)[1:]
        assert sorted((source.upper(), target) for source, target, _ in lines) == [(name, name) for name in "ABCDEFI"]
    np.save(tmp_path / "x.npy", POINTS)
    assert cli.main(["align", *[str(tmp_path / "x.npy")] * 2, "-o", str(tmp_path / "o.npz"), "--edges"]) == 2
    assert "--edges is for tables" in capsys.readouterr().err
