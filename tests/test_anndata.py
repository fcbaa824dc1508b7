"""Cells in AnnData objects: what is carried over, and where it is written."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from tests.cells import QUICK, TYPES, accuracy, assert_equal, carried, reopened, tissue, tissues
from tests.test_examples import run_blocks
from torchgw import GWOptions, GWResult, SpaceOptions, Supervision, __version__, metrics
from torchgw import anndata as cells

anndata = pytest.importorskip("anndata")


@pytest.fixture(scope="module")
def given() -> tuple[Any, Any]:
    """A source and a reference; not to be written to."""
    return tissues()


@pytest.fixture(scope="module")
def aligned(given: tuple[Any, Any]) -> tuple[Any, Any, GWResult]:
    return carried(given)


def check_acceptance(n: int, k: int, folder: Path) -> None:
    a, b = tissue(n, 2, 200, 50), tissue(k, 3, 300, 30)
    result = cells.align(a, b, labels="cell_type", random_state=0)
    assert result.converged
    assert accuracy(a) >= 0.95
    sure = a.obs["torchgw_cell_type_confidence"] > 0.9
    assert accuracy(a[sure]) > max(accuracy(a), 0.98)
    back = reopened(a, folder)
    pd.testing.assert_frame_equal(back.obs, a.obs)
    assert_equal(back.obsm["X_torchgw"], a.obsm["X_torchgw"])
    assert_equal(dict(back.uns["torchgw"]), a.uns["torchgw"])


def test_cell_types_are_found_across_modalities(tmp_path: Path) -> None:
    check_acceptance(200, 250, tmp_path)


@pytest.mark.slow
def test_cell_types_are_found_across_modalities_at_full_size(tmp_path: Path) -> None:
    check_acceptance(2000, 2500, tmp_path)


def test_everything_written_survives_a_file(aligned: tuple[Any, Any, GWResult], tmp_path: Path) -> None:
    a = aligned[0]
    back = reopened(a, tmp_path)
    pd.testing.assert_frame_equal(back.obs, a.obs)
    for key in ("X_torchgw", "torchgw_plan"):
        assert_equal(back.obsm[key], a.obsm[key])
    assert_equal(dict(back.uns), dict(a.uns))


def test_what_is_written_is_what_the_plan_carries(aligned: tuple[Any, Any, GWResult]) -> None:
    a, b, result = aligned
    share = result.plan / result.plan.sum(1, keepdims=True)
    np.testing.assert_allclose(a.obsm["X_torchgw"], share @ b.obsm["X_pca"], rtol=1e-6)
    assert list(a.obs["torchgw_match"]) == list(b.obs_names[result.argmax()])
    assert list(result.names_x) == list(a.obs_names)
    assert list(result.names_y) == list(b.obs_names)
    np.testing.assert_allclose(a.obs["torchgw_count"], share @ np.arange(70), rtol=1e-9)
    for name in ("cell_type", "batch", "alive"):
        labels = a.obs[f"torchgw_{name}"]
        each = np.stack([share[:, b.obs[name] == kind].sum(1) for kind in labels.cat.categories], axis=1)
        assert list(labels) == list(labels.cat.categories[each.argmax(1)])
        np.testing.assert_allclose(a.obs[f"torchgw_{name}_confidence"], each.max(1), rtol=1e-9)
        assert a.obs[f"torchgw_{name}_confidence"].between(0, 1).all()
    assert_equal(a.obsm["torchgw_plan"], result.sparsify(0.9))


def test_missing_labels_and_numbers_take_no_part(aligned: tuple[Any, Any, GWResult]) -> None:
    a, b, result = aligned
    share = result.plan / result.plan.sum(1, keepdims=True)
    known = b.obs["dose"].notna().to_numpy()
    mean = share[:, known] @ b.obs["dose"][known] / share[:, known].sum(1)
    np.testing.assert_allclose(a.obs["torchgw_dose"], mean, rtol=1e-9)
    lymphoid = share[:, b.obs["cell_type"] == "lymphoid"].sum(1)
    assert lymphoid.max() > 0.9
    assert (a.obs["torchgw_part_confidence"] <= 1 - lymphoid + 1e-9).all()
    assert list(a.obs["torchgw_part"].cat.categories) == [*TYPES, "unseen"]
    assert not (a.obs["torchgw_part"] == "lymphoid").any()


def test_labels_keep_categories_order_and_colors(given: tuple[Any, Any], aligned: tuple[Any, Any, GWResult]) -> None:
    a, b, _ = aligned
    assert a.obs["torchgw_cell_type"].dtype == b.obs["cell_type"].dtype
    assert a.uns["torchgw_cell_type_colors"] == b.uns["cell_type_colors"]
    assert "torchgw_batch_colors" not in a.uns
    assert "torchgw_count_confidence" not in a.obs
    again, plain = a.copy(), b.copy()
    plain.obs["cell_type"] = plain.obs["cell_type"].cat.as_ordered()
    del plain.uns["cell_type_colors"]
    cells.align(again, plain, labels=("cell_type",), **QUICK)
    assert again.obs["torchgw_cell_type"].cat.ordered
    assert "torchgw_cell_type_colors" not in again.uns  # those of the earlier call would be wrong
    assert set(given[1].obs) == set(b.obs)


def test_the_record_says_what_was_asked_and_how_it_ended(aligned: tuple[Any, Any, GWResult]) -> None:
    a, _, result = aligned
    record = a.uns["torchgw"]
    assert record["value"] == result.value
    assert record["status"] == str(result.status)
    assert record["converged"] == result.converged
    assert record["ambiguous"] == result.ambiguous
    assert (record["verdict"], record["chance"]) == (result.verdict.name.lower(), result.chance)
    assert list(record["reasons"]) == list(result.reasons)
    assert list(record["warnings"]) == [str(warning) for warning in result.warnings]
    assert list(record["basins"]) == [basin.energy for basin in result.basins]
    assert record["versions"]["torchgw"] == __version__
    params = record["params"]
    assert params["use_rep"] == ["X_pca", "X_pca"]
    assert params["labels"] == ["cell_type", "batch", "alive", "count", "dose", "part"]
    assert (params["epsilon"], params["random_state"], params["alpha"]) == (5e-3, 0, 1.0)
    assert '"max_memory": 4294967296' in params["options"]


def test_the_two_sides_in_the_wrong_order_are_recognised(given: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="'batch', which a has and b has not; the cells that get labels come first"):
        cells.align(given[1].copy(), given[0], labels="batch", **QUICK)


def test_cells_without_mass_are_left_without_labels(given: tuple[Any, Any], tmp_path: Path) -> None:
    a, b = given[0].copy(), given[1]
    mass = np.full(60, 1 / 59)
    mass[7] = 0.0
    cells.align(a, b, labels=["cell_type", "count"], p=mass, q=np.full(70, 1 / 70), **QUICK)
    lost = a.obs.iloc[7]
    assert a.obs[["torchgw_cell_type", "torchgw_match", "torchgw_count"]].isna().sum().tolist() == [1, 1, 1]
    assert lost[["torchgw_cell_type", "torchgw_match", "torchgw_count"]].isna().all()
    assert lost["torchgw_cell_type_confidence"] == 0
    assert np.isnan(a.obsm["X_torchgw"][7]).all()
    pd.testing.assert_frame_equal(reopened(a, tmp_path).obs, a.obs)


def test_without_labels_only_places_and_matches_are_written(given: tuple[Any, Any], tmp_path: Path) -> None:
    a = given[0].copy()
    cells.align(a, given[1], key_added="gw", **QUICK)
    assert set(a.obs) - set(given[0].obs) == {"gw_match"}
    assert set(a.obsm) - set(given[0].obsm) == {"X_gw"}
    assert set(a.uns) == {"gw"}
    assert_equal(dict(reopened(a, tmp_path).uns), dict(a.uns))


@pytest.mark.parametrize(
    ("use_rep", "source", "target"),
    [
        (None, "X_pca", "X_pca"),
        ("wide", "wide", "wide"),
        (("wide", "X_pca"), "wide", "X_pca"),
        (["X_pca", "X"], "X_pca", "X"),
    ],
)
def test_representations_are_taken_by_name(
    use_rep: Any, source: str, target: str, given: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Taken(Exception): ...  # noqa: N818 - it is no error

    def take(X: Any, Y: Any, **_: Any) -> None:
        for cell, name, points in zip(given, (source, target), (X, Y), strict=True):
            np.testing.assert_array_equal(points, cell.X.toarray() if name == "X" else cell.obsm[name])
        raise Taken

    monkeypatch.setattr("torchgw.anndata.cells.gw_align", take)
    with pytest.raises(Taken):
        cells.align(*given, use_rep=use_rep)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csc_matrix, sparse.csr_matrix, pd.DataFrame])
def test_coordinates_are_read_from_any_storage(
    storage: Callable[[Any], Any], given: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (cell.copy() for cell in given)
    points = a.obsm["X_pca"].astype(np.float64)
    a.obsm["X_other"] = storage(pd.DataFrame(points, index=a.obs_names) if storage is pd.DataFrame else points)
    seen = []
    monkeypatch.setattr("torchgw.anndata.cells.gw_align", lambda X, Y, **_: seen.append(X) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cells.align(a, b, use_rep=("X_other", "X_pca"))
    np.testing.assert_array_equal(seen[0], points)


def test_what_is_taken_by_default_is_logged(given: tuple[Any, Any], caplog: pytest.LogCaptureFixture) -> None:
    a, b = (cell.copy() for cell in given)
    del b.obsm["X_pca"]
    with caplog.at_level(logging.INFO, logger="torchgw"), pytest.raises(ValueError, match="k must be smaller"):
        cells.align(a, b, options=GWOptions(spaces=SpaceOptions(k=99)))
    assert "cells are aligned by X of both sides" in caplog.text


def change(side: str, how: Callable[[Any], Any]) -> Callable[[Any, Any], dict[str, Any]]:
    def apply(a: Any, b: Any) -> dict[str, Any]:
        how(a if side == "a" else b)
        return {}

    return apply


def put(place: str, key: str, value: Any) -> Callable[[Any], None]:
    def apply(cell: Any) -> None:
        getattr(cell, place)[key] = value(cell) if callable(value) else value

    return apply


REFUSED: dict[str, tuple[Callable[[Any, Any], dict[str, Any]], type[Exception], str]] = {
    "absent key": (
        lambda a, b: {"use_rep": "X_umap"},
        ValueError,
        "'X' or a key of a.obsm, got 'X_umap' and keys 'X_pca', 'wide'",
    ),
    "three keys": (lambda a, b: {"use_rep": ["X", "X", "X"]}, TypeError, "use_rep must be a key of obsm, 'X', or"),
    "number as key": (lambda a, b: {"use_rep": (1, 2)}, TypeError, "use_rep must be a key"),
    "absent label": (lambda a, b: {"labels": "leiden"}, ValueError, "got 'leiden' and columns 'cell_type', 'time'"),
    "number as label": (lambda a, b: {"labels": [3]}, TypeError, "labels must be a name or names of columns"),
    "column as label": (
        lambda a, b: {"labels": b.obs["cell_type"]},
        TypeError,
        "labels must name columns of b.obs, like 'cell_type' or a list, got a Series",
    ),
    "one number as label": (lambda a, b: {"labels": 3}, TypeError, "labels must name columns .*, got a int"),
    "word for labels": (lambda a, b: {"groupby": "x"}, TypeError, "align has no argument 'groupby'; .* is labels"),
    "empty key": (lambda a, b: {"key_added": ""}, ValueError, "key_added must be a text"),
    "too large a plan": (lambda a, b: {"plan": 1.5}, ValueError, "plan must be a finite number > 0 and <= 1"),
    "true as plan": (lambda a, b: {"plan": True}, TypeError, "plan must be a number"),
    "unknown keyword": (lambda a, b: {"epsilom": 1}, TypeError, "epsilom"),
    "epsilon": (lambda a, b: {"epsilon": -1}, ValueError, "epsilon must be"),
    "same names": (
        change("b", lambda b: setattr(b, "obs_names", ["x"] * 70)),
        ValueError,
        "b.obs_names must be unique, got 'x' twice; call b.obs_names_make_unique",
    ),
    "not a number": (
        change("a", put("obsm", "X_pca", np.full((60, 3), np.nan))),
        ValueError,
        r"a.obsm\['X_pca'\] must be finite, got 180 NaN",
    ),
    "words as points": (
        change("a", put("obsm", "X_pca", lambda a: pd.DataFrame({"x": ["u"] * 60}, index=a.obs_names))),
        TypeError,
        r"a.obsm\['X_pca'\] must be an array of real numbers",
    ),
    "cube": (change("b", put("obsm", "X_pca", np.ones((70, 3, 3)))), ValueError, r"must have shape \(N, D\)"),
    "infinite numbers": (
        lambda a, b: (put("obs", "n", np.inf)(b), {"labels": "n"})[1],
        ValueError,
        "'n'] must hold finite numbers",
    ),
    "complex numbers": (
        lambda a, b: (put("obs", "n", 1j)(b), {"labels": "n"})[1],
        ValueError,
        "'n'] must hold finite numbers",
    ),
    "dates": (
        lambda a, b: (put("obs", "n", pd.Timestamp("2024-01-01"))(b), {"labels": "n"})[1],
        TypeError,
        "'n'] must hold categories, texts or numbers, got dtype datetime64",
    ),
    "objects": (
        lambda a, b: (put("obs", "n", pd.Series([(1, 2)] * 70, index=b.obs_names))(b), {"labels": "n"})[1],
        TypeError,
        "must hold categories, texts or numbers, got dtype object",
    ),
    "nothing known": (
        lambda a, b: (put("obs", "n", np.nan)(b), {"labels": "n"})[1],
        ValueError,
        "must hold some labels, got none",
    ),
    "sparse X": (
        lambda a, b: {"use_rep": "X", "options": GWOptions(max_memory=19_000)},
        MemoryError,
        r"a.X as a dense array \(60, 40\) would take .* use_rep='X_pca'",
    ),
    "names as labels": (
        lambda a, b: (
            put("obs", "n", lambda b: b.obs_names)(b),
            {"labels": "n", "options": GWOptions(max_memory=39_000)},
        )[1],
        MemoryError,
        "70 categories would take .* leave out columns that name single cells",
    ),
    "many labels": (
        lambda a, b: {"labels": ["cell_type", "time"], "options": GWOptions(max_memory=7_000)},
        MemoryError,
        "what b tells of all cells would take .* fewer labels",
    ),
}


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_aligned_is_refused_and_nothing_written(case: str, given: tuple[Any, Any]) -> None:
    a, b = (cell.copy() for cell in given)
    keywords, kind, message = REFUSED[case][0](a, b), *REFUSED[case][1:]
    before = {place: set(getattr(a, place)) for place in ("obs", "obsm", "uns")}
    with pytest.raises(kind, match=message):
        cells.align(a, b, **keywords)
    assert before == {place: set(getattr(a, place)) for place in before}


def test_other_things_than_cells_are_refused(given: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = given
    with pytest.raises(TypeError, match="a must be an AnnData, got ndarray"):
        cells.align(a.obsm["X_pca"], b)
    with pytest.raises(TypeError, match="b must be an AnnData, got NoneType"):
        cells.align(a, None)
    with pytest.raises(
        TypeError, match=r"a must be an AnnData; torchgw.anndata.read\('a', path\) loads a file, got str"
    ):
        cells.align("a.h5ad", b)
    with pytest.raises(ValueError, match=r"^a: no\.h5ad is not there$"):
        cells.read("a", "no.h5ad")
    with pytest.raises(ValueError, match=r"a has no X; name a key of a.obsm as use_rep, got keys none"):
        cells.align(anndata.AnnData(obs=a.obs), b)
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(ImportError, match="pip install anndata"):
        cells.align(a, b)


def test_keywords_reach_the_solve(given: tuple[Any, Any]) -> None:
    a, b = given[0].copy(), given[1]
    options = GWOptions(mixed_precision=False)
    result = cells.align(a, b, options=options, distances="euclidean", device="cpu", **QUICK)
    assert result.options == options
    assert result.providers == ("EuclideanDistances", "EuclideanDistances")
    assert a.uns["torchgw"]["params"]["distances"] == ["euclidean", "euclidean"]

    times = a.obs["time"].to_numpy()[:, None], b.obs["time"].to_numpy()[:, None]
    fused = cells.align(a, b, cost=times, alpha=0.25, **QUICK)
    assert fused.alpha == a.uns["torchgw"]["params"]["alpha"] == 0.25
    assert fused.value_linear > 0

    pairs = [(int(np.argmin(times[0])), int(np.argmax(times[1])))]
    known = cells.align(a, b, supervision=Supervision(pairs=pairs), **QUICK)
    assert known.argmax()[pairs[0][0]] == pairs[0][1]


def test_a_second_call_replaces_the_first(aligned: tuple[Any, Any, GWResult]) -> None:
    a, b, first = aligned
    again = a.copy()
    second = cells.align(again, b, labels="cell_type", epsilon=5e-2, random_state=0)
    assert again.uns["torchgw"]["value"] == second.value != first.value
    assert list(again.obs) == list(a.obs)
    assert "torchgw_plan" not in again.obsm
    assert (again.obs["torchgw_cell_type_confidence"] != a.obs["torchgw_cell_type_confidence"]).any()


def test_a_plan_that_cannot_be_kept_loses_nothing_else(given: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def sparsify(*_: object) -> None:
        raise ValueError("mass must be at most 0.98")

    a = given[0].copy()
    monkeypatch.setattr(GWResult, "sparsify", sparsify)
    with pytest.raises(ValueError, match=r"at most 0.98; all but the plan was written to a"):
        cells.align(a, given[1], labels="cell_type", plan=0.99, **QUICK)
    assert {"torchgw_match", "torchgw_cell_type"} <= set(a.obs)


def test_a_view_becomes_cells_of_its_own(given: tuple[Any, Any], tmp_path: Path) -> None:
    whole, reference = given[0].copy(), given[1][:65]
    a = whole[10:50]
    with pytest.warns(anndata.ImplicitModificationWarning):
        result = cells.align(a, reference, labels="cell_type", **QUICK)
    assert result.shape == (40, 65)
    assert not a.is_view
    assert reference.is_view
    assert set(whole.obs) == set(given[0].obs)
    assert reopened(a, tmp_path).obs["torchgw_cell_type"].notna().all()


def test_joint_cells_have_the_plan_as_their_graph(aligned: tuple[Any, Any, GWResult], tmp_path: Path) -> None:
    a, b, result = aligned
    both = reopened(cells.joint(a, b, result, mass=0.9), tmp_path)
    assert both.shape == (130, 0)
    assert list(both.obs["torchgw_side"]) == ["a"] * 60 + ["b"] * 70
    assert both.obs_names.is_unique
    assert (both.obs_names[0], both.obs_names[60]) == ("cell0-a", "cell0-b")
    assert {"cell_type", "time"} <= set(both.obs)
    assert set(both.obs["cell_type"].cat.categories) == set(TYPES)
    assert list(both.obs["cell_type"][:60]) == list(a.obs["cell_type"])
    assert set(a.obs) | set(b.obs) < set(both.obs)
    assert list(both.obs["alive"][60:]) == list(b.obs["alive"])  # truth values, which only one side has
    assert both.obs["alive"][:60].isna().all()
    for name in a.uns["torchgw"]["params"]["labels"]:
        carried, told = both.obs[f"torchgw_{name}"][:60], both.obs[f"torchgw_{name}"][60:]
        assert list(carried.dropna()) == list(a.obs[f"torchgw_{name}"].dropna())
        assert list(told.dropna()) == list(b.obs[name].dropna())
    assert list(both.uns["torchgw_cell_type_colors"]) == list(b.uns["cell_type_colors"])
    graph = both.obsp["torchgw"]
    assert graph.shape == (130, 130)
    assert (graph != graph.T).nnz == graph[:60, :60].nnz == graph[60:, 60:].nnz == 0
    assert_equal(graph[:60, 60:], result.sparsify(0.9))
    np.testing.assert_array_equal(both.obsm["X_torchgw"][60:], b.obsm["X_pca"])
    distance = np.linalg.norm(both.obsm["X_torchgw"][:60, None] - both.obsm["X_torchgw"][None, 60:], axis=-1)
    assert (distance.argmin(1) == result.argmax()).mean() > 0.2  # both lie in one space
    assert np.median(distance.min(1)) < 0.2 * np.median(distance)


def test_joint_cells_need_an_alignment_of_these_cells(
    given: tuple[Any, Any], aligned: tuple[Any, Any, GWResult]
) -> None:
    a, b, result = aligned
    with pytest.raises(ValueError, match=r"call torchgw.anndata.align\(a, b\) first"):
        cells.joint(given[0], b, result)
    with pytest.raises(ValueError, match=r"result must be of \(a, b\) with \(60, 60\) cells, got \(60, 70\)"):
        cells.joint(a, a, result)
    with pytest.raises(TypeError, match="result must be a GWResult"):
        cells.joint(a, b, result.plan)
    with pytest.raises(ValueError, match="mass must be"):
        cells.joint(a, b, result, mass=0.0)


def test_the_page_about_cells_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    left = run_blocks(Path(__file__).parent.parent / "docs" / "anndata.md")
    assert accuracy(left["atac"]) > 0.9
    one, other = left["one"], left["other"]
    assert metrics.foscttm(one.obsm["X_torchgw"], other.X, left["truth"]) < 0.03


def test_labels_that_would_share_a_column_are_refused(given: tuple[Any, Any]) -> None:
    a, b = (cell.copy() for cell in given)
    b.obs["match"] = b.obs["cell_type"]
    b.obs["time_confidence"] = b.obs["cell_type_confidence"] = b.obs["time"]
    pairs = [
        (["match"], r"got 'match' and the match of each cell, both of which would be a.obs\['torchgw_match'\]"),
        (["cell_type", "cell_type_confidence"], "'cell_type_confidence' and the confidence of 'cell_type'"),
        (["cell_type_confidence", "cell_type"], "'cell_type' and label 'cell_type_confidence'"),
    ]
    for labels, message in pairs:
        with pytest.raises(ValueError, match=message):
            cells.align(a, b, labels=labels)
    assert set(a.obs) == set(given[0].obs)
    with pytest.raises(ValueError, match="k must be smaller"):  # numbers have no confidence
        cells.align(a, b, labels=["time", "time_confidence"], options=GWOptions(spaces=SpaceOptions(k=99)))
