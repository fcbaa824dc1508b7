"""The scikit-learn transformer: its conventions, the plan behind it, and rows that the fit has not seen."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.test_examples import DOCS, run_blocks
from torchgw import (
    Balanced,
    CoarseOptions,
    GWOptions,
    LadderOptions,
    LowRankOptions,
    ProgressBar,
    SamplingOptions,
    Supervision,
    Unbalanced,
    gw_align,
)
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.status import Status
from torchgw.estimator import GromovWasserstein

QUICK = GWOptions(coarse=None)
FEW_STARTS = GWOptions(coarse=CoarseOptions(n_starts=4))
STREAMING = GWOptions(
    strategy="streaming",
    coarse=None,
    sampling=SamplingOptions(n_anchors=50),
    ladder=LadderOptions(n_cells=16, marginal_tol=0.2),
)
SPIRAL, ANGLE = make_spiral(120, noise=0.01)
ROLL, ROLL_ANGLE = make_swiss_roll(100, noise=0.01, random_state=1)
NEW = np.arange(3, 110, 5)
OLD = np.setdiff1d(np.arange(120), NEW)
X = SPIRAL[OLD]  # (98, 2)


def made(**settings: Any) -> GromovWasserstein:
    return GromovWasserstein(**{"epsilon": 2e-3, "random_state": 0} | settings)


@pytest.fixture(scope="module")
def fitted() -> GromovWasserstein:
    return made().fit(X, ROLL)


@pytest.fixture(scope="module")
def small() -> GromovWasserstein:
    """A quick fit for tests that only read it."""
    return made(options=QUICK, distances="euclidean", epsilon=2e-2).fit(X[:30], ROLL[:35])


# Their data have few points and many symmetries, of which the library rightly warns.
@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
@parametrize_with_checks([GromovWasserstein(options=QUICK)])
def test_every_check_of_scikit_learn_passes(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
@parametrize_with_checks([GromovWasserstein()])
def test_every_check_of_scikit_learn_passes_by_default(estimator: Any, check: Any) -> None:
    check(estimator)


def test_parameters_are_those_of_gw_align_with_its_defaults() -> None:
    theirs = inspect.signature(gw_align).parameters
    ours = GromovWasserstein().get_params()
    assert {name: theirs[name].default for name in ours} == ours | {"marginals": Balanced()}


def test_scikit_learn_is_told_that_y_is_required() -> None:
    assert GromovWasserstein().__sklearn_tags__().target_tags.required


def test_parameters_and_data_reach_the_solver() -> None:
    rng = np.random.default_rng(0)
    settings = {
        "distances": ("euclidean", "landmark"),
        "alpha": 0.8,
        "epsilon": 2e-2,
        "marginals": Unbalanced(0.05, 0.1),
        "options": QUICK,
        "device": "cpu",
        "backend": "eager",
        "random_state": 3,
    }
    data = {
        "p": rng.uniform(0.5, 1.0, 30),
        "q": rng.uniform(0.5, 1.0, 35),
        "cost": (ANGLE[:30, None], ROLL_ANGLE[:35, None]),
        "supervision": Supervision(pairs=[(0, 0)], strength=1.0),
    }
    seen: list[Any] = []
    done = GromovWasserstein(**settings, callback=seen.append).fit(X[:30], ROLL[:35], **data)
    wanted = gw_align(X[:30], ROLL[:35], **settings, **data)
    assert done.value_ == wanted.value
    assert np.array_equal(done.result_.plan, wanted.plan)
    assert done.coupling_ is done.result_.coupling
    assert (done.n_iter_, done.converged_) == (wanted.n_iter, wanted.converged)
    assert seen
    for name, changed in settings.items():
        assert getattr(done, name) is changed


def test_fitted_rows_get_the_projection_by_the_plan(fitted: GromovWasserstein) -> None:
    plan = fitted.result_.plan
    np.testing.assert_allclose(fitted.transform(X), plan @ ROLL / plan.sum(1, keepdims=True), rtol=1e-10)
    np.testing.assert_allclose(fitted.inverse_transform(ROLL), plan.T @ X / plan.sum(0)[:, None], rtol=1e-10)
    np.testing.assert_array_equal(made().fit_transform(X, ROLL), fitted.transform(X))


def test_rows_in_any_order_and_company_get_what_they_get_alone(fitted: GromovWasserstein) -> None:
    order = np.random.default_rng(0).permutation(len(SPIRAL))
    mixed = fitted.transform(SPIRAL[order])
    apart = np.empty_like(mixed)
    apart[OLD], apart[NEW] = fitted.result_.pull(ROLL), fitted.result_.transform(SPIRAL[NEW]).pull(ROLL)
    np.testing.assert_allclose(mixed, apart[order], rtol=1e-9)
    back, lines = fitted.inverse_transform(np.vstack((ROLL[::2], ROLL[1::2] + 1e-3))), fitted.result_
    np.testing.assert_array_equal(back[:50], lines.push(X)[::2])
    np.testing.assert_allclose(back[50:], lines.transform(ROLL[1::2] + 1e-3, side="target").push(X), rtol=1e-9)


@pytest.mark.parametrize("epsilon", [0, 2e-2])
def test_rows_of_the_fit_are_recognised_after_rounding(epsilon: float) -> None:
    done = made(options=QUICK, distances="euclidean", epsilon=epsilon).fit(X[:30], ROLL[:35])
    rounded = X[29:0:-1].astype(np.float32)
    np.testing.assert_array_equal(done.transform(rounded), done.result_.pull(ROLL[:35])[29:0:-1])
    if epsilon > 0:
        assert np.abs(done.transform(X[:30] + 1e-3) - done.transform(X[:30])).max(1).min() > 1e-6


def test_many_new_rows_are_mapped_in_parts(fitted: GromovWasserstein, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted.transform(SPIRAL)
    monkeypatch.setattr("torchgw.estimator.BATCH_ROWS", 7)
    monkeypatch.setattr("torchgw.estimator.BATCH_ELEMENTS", 1)
    np.testing.assert_allclose(fitted.transform(SPIRAL), whole, rtol=1e-9)


def test_new_rows_go_where_they_belong(fitted: GromovWasserstein) -> None:
    partner = fitted.transform_labels(np.arange(100), SPIRAL[NEW])
    assert spearmanr(ANGLE[NEW], ROLL_ANGLE[partner])[0] > 0.995
    assert r2_score(ROLL[np.searchsorted(ROLL_ANGLE, ANGLE[NEW])][:, ::2], fitted.transform(SPIRAL[NEW])[:, ::2]) > 0.9


def test_equal_rows_share_their_mean_by_mass() -> None:
    twice = np.vstack((X[:20], X[:3]))
    twice[0], twice[20] = [0.0, 0.25], [-0.0, 0.25]
    mass = np.random.default_rng(0).uniform(0.2, 1.0, 23)
    labels = {"pairs": [(0, 1), (20, 30)]}  # sends the two copies of row 0 apart
    done = made(options=QUICK, distances="euclidean", epsilon=2e-2)
    done.fit(twice, ROLL[:35], p=mass, q=np.full(35, mass.sum() / 35), supervision=Supervision(**labels, strength=1.0))
    alone, found = done.result_.pull(ROLL[:35]), done.transform(twice)
    assert np.abs(alone[0] - alone[20]).max() > 0.1
    np.testing.assert_allclose(found[0], (mass[0] * alone[0] + mass[20] * alone[20]) / (mass[0] + mass[20]), rtol=1e-6)
    np.testing.assert_array_equal(found[[0, 1, 2]], found[[20, 21, 22]])
    np.testing.assert_allclose(found[3:20], alone[3:20], rtol=1e-12)


def test_a_row_without_mass_is_nan_and_its_copy_is_not() -> None:
    twice = np.vstack((X[:20], X[:1]))
    mass = np.ones(21)
    mass[[0, 5]] = 0
    done = made(options=QUICK, distances="euclidean").fit(twice, ROLL[:35], p=mass / 19)
    found = done.transform(twice)
    assert np.flatnonzero(np.isnan(found).any(1)).tolist() == [5]
    np.testing.assert_allclose(found[0], done.result_.pull(ROLL[:35])[20])
    labels, share = done.transform_labels(np.array(["b", "a"])[np.arange(35) % 2], return_confidence=True)
    assert (labels[5], share[5]) == ("a", 0)
    assert np.delete(share, 5).min() > 0.49


@pytest.mark.parametrize("kind", [str, int, float, object])
def test_labels_follow_most_of_the_mass(fitted: GromovWasserstein, kind: type) -> None:
    place, plan = (ROLL_ANGLE // 3).clip(max=2).astype(int), fitted.result_.plan
    labels = np.array(["left", "mid", "right"], dtype=object)[place] if kind is object else place.astype(kind)
    shares = plan @ np.eye(3)[place] / plan.sum(1, keepdims=True)
    found, confidence = fitted.transform_labels(labels, return_confidence=True)
    assert found.dtype == labels.dtype
    np.testing.assert_array_equal(found, np.unique(labels)[shares.argmax(1)])
    np.testing.assert_allclose(confidence, shares.max(1))
    assert confidence.max() <= 1
    assert np.mean(found == np.unique(labels)[(ANGLE[OLD] // 3).clip(max=2).astype(int)]) > 0.9
    np.testing.assert_array_equal(fitted.transform_labels(labels, SPIRAL)[OLD], found)


def test_labels_go_the_other_way_too(fitted: GromovWasserstein) -> None:
    labels = np.where(ANGLE[OLD] < 4.5, "in", "out")
    found = fitted.transform_labels(labels, side="source")
    assert found.shape == (100,)
    assert np.mean(found == np.where(ROLL_ANGLE < 4.5, "in", "out")) > 0.9
    new = fitted.transform_labels(labels, ROLL[::9] + 1e-4, side="source")
    assert np.mean(new == found[::9]) > 0.9


def test_the_score_is_r2_of_the_projection(small: GromovWasserstein) -> None:
    partners = ROLL[::3][:30]
    assert small.score(X[:30], partners) == pytest.approx(r2_score(partners, small.transform(X[:30])))
    assert small.score(X[:30], small.transform(X[:30])) == 1


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({}, {"cost": (ANGLE[:30, None], ROLL_ANGLE[:35, None])}),
        ({}, {"supervision": Supervision(pairs=[(0, 0)])}),
        ({"options": GWOptions(coarse=None, loss="kl")}, {}),
        ({"options": GWOptions(coarse=None, gradient="sampled")}, {}),
        (
            {"options": GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=3, max_iter=30)), "epsilon": 1e-4},
            {},
        ),
    ],
    ids=["fused", "supervised", "loss", "sampled", "low-rank"],
)
@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning", "ignore::torchgw.AmbiguityWarning")
def test_plans_that_reach_no_further_map_the_rows_of_the_fit(settings: dict[str, Any], data: dict[str, Any]) -> None:
    done = made(**{"options": QUICK, "distances": "landmark", "epsilon": 2e-2} | settings).fit(
        X[:30], ROLL[:35], **data
    )
    np.testing.assert_array_equal(done.transform(X[:30]), done.result_.pull(ROLL[:35]))
    assert pickle.loads(pickle.dumps(done)).transform(X[:2]).shape == (2, 3)
    with pytest.raises(ValueError, match=r"^1 of 31 rows were not in fit: unseen points"):
        done.transform(X[:31])
    with pytest.raises(ValueError, match=r"^2 of 3 rows were not in fit: unseen points"):
        done.inverse_transform(ROLL[34:37])


def test_a_fit_survives_changes_of_its_input() -> None:
    given, target = X[:30].copy(), ROLL[:35].copy()
    done = made(options=QUICK, distances="euclidean", epsilon=2e-2).fit(given, target)
    before = done.transform(X[:40])
    given[:], target[:] = 0.0, 0.0
    np.testing.assert_array_equal(done.transform(X[:40]), before)


def test_a_clone_has_the_same_parameters_and_no_fit(fitted: GromovWasserstein) -> None:
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copied.transform(X)
    with pytest.raises(NotFittedError):
        copied.inverse_transform(ROLL)
    with pytest.raises(NotFittedError):
        copied.transform_labels(np.zeros(100))
    with pytest.raises(NotFittedError):
        copied.get_feature_names_out()


@pytest.mark.parametrize("kind", [np.random.RandomState, np.random.default_rng, torch.Generator().manual_seed])
def test_every_kind_of_generator_is_taken(kind: Any) -> None:
    settings = {"options": GWOptions(coarse=None, gradient="sampled"), "epsilon": 2e-2}
    one = made(random_state=kind(7), **settings)
    copied = clone(one)
    first = one.fit(X[:30], ROLL[:35]).value_
    assert copied.fit(X[:30], ROLL[:35]).value_ == first
    assert one.fit(X[:30], ROLL[:35]).value_ != first, "a generator goes on"


@pytest.mark.parametrize("distances", ["landmark", "dijkstra", "precomputed", "euclidean"])
@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("options", [QUICK, STREAMING], ids=["dense", "streaming"])
def test_a_fit_survives_pickling(distances: str, options: GWOptions) -> None:
    space, target, rows, columns = X[:40], ROLL[:50], X[:60], ROLL + 1e-3
    if distances == "precomputed":
        rows, columns = (cdist(new, old) for new, old in ((rows, space), (columns, target)))
        space, target = cdist(space, space), cdist(target, target)
    done = made(distances=distances, options=options, epsilon=1e-2).fit(space, target)
    file = io.BytesIO()
    joblib.dump(done, file)
    file.seek(0)
    for restored in (pickle.loads(pickle.dumps(done)), joblib.load(file)):
        np.testing.assert_array_equal(restored.transform(rows), done.transform(rows))
        np.testing.assert_array_equal(restored.inverse_transform(columns), done.inverse_transform(columns))
        assert restored.value_ == done.value_


def test_a_pipeline_is_cloned_pickled_and_restored() -> None:
    wine, kind = load_wine(return_X_y=True)
    wine, kind = wine[::2], kind[::2]
    turned = PCA(8).fit_transform(StandardScaler().fit_transform(wine))[::-1] * ([1, -1] * 4)
    pipeline = make_pipeline(StandardScaler(), PCA(8), made(distances="euclidean", epsilon=1e-3, options=FEW_STARTS))
    moved = pipeline.fit_transform(wine, turned)
    assert r2_score(turned[::-1], moved) > 0.8
    assert np.mean(pipeline[-1].transform_labels(kind[::-1]) == kind) > 0.95
    new = wine + 1e-3
    np.testing.assert_array_equal(pipeline.transform(wine), moved)
    for other in (pickle.loads(pickle.dumps(pipeline)), clone(pipeline).fit(wine, turned)):
        np.testing.assert_array_equal(other.transform(wine), moved)
        np.testing.assert_array_equal(other.transform(new), pipeline.transform(new))
    assert pipeline.inverse_transform(turned).shape == wine.shape


def test_a_grid_search_finds_the_better_epsilon_and_distances() -> None:
    space = np.random.default_rng(0).normal(size=(60, 3)) * [3, 2, 1]
    turned = space @ np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    search = GridSearchCV(
        Pipeline([("scale", StandardScaler(with_std=False)), ("gw", made(options=FEW_STARTS))]),
        {"gw__epsilon": [2e-3, 1.0], "gw__distances": ["euclidean"]},
        cv=KFold(2, shuffle=True, random_state=0),
    ).fit(space, turned)
    assert search.best_params_ == {"gw__distances": "euclidean", "gw__epsilon": 2e-3}
    sharp, blurred = search.cv_results_["mean_test_score"]
    assert blurred < 0.1 < 0.6 < sharp
    assert search.score(space, turned) > 0.8


def test_a_fused_grid_search_judges_the_rows_it_was_fitted_to() -> None:
    every, partners = np.arange(30), ROLL[np.searchsorted(ROLL_ANGLE, ANGLE[OLD][:30])]
    search = GridSearchCV(made(options=QUICK), {"alpha": [0.2, 1.0]}, cv=[(every, every)], error_score="raise")
    search.fit(X[:30], partners, cost=(ANGLE[OLD][:30, None], ANGLE[OLD][:30, None]))
    assert search.best_params_ == {"alpha": 0.2}


def test_a_list_of_numbers_is_a_line_of_points() -> None:
    done = made(options=QUICK, epsilon=2e-2).fit(X[:30], ROLL_ANGLE[:35].tolist())
    assert done.transform(X[:30]).shape == (30, 1)
    assert done.inverse_transform(ROLL_ANGLE[:35]).shape == (35, 2)
    assert done.get_feature_names_out().tolist() == ["gromovwasserstein0"]


def test_square_arrays_are_distances() -> None:
    far = cdist(SPIRAL, SPIRAL)
    done = made(options=QUICK, distances=("precomputed", "euclidean"), epsilon=2e-2).fit(far[np.ix_(OLD, OLD)], ROLL)
    like = made(options=QUICK, distances="euclidean", epsilon=2e-2).fit(X, ROLL)
    np.testing.assert_allclose(done.transform(far[:, OLD]), like.transform(SPIRAL), atol=1e-3)


def test_data_frames_keep_their_names() -> None:
    pandas = pytest.importorskip("pandas")
    source = pandas.DataFrame(X[:30], columns=["a", "b"], index=[f"cell {i}" for i in range(30)])
    target = pandas.DataFrame(ROLL[:35], columns=["u", "v", "w"])
    done = made(options=QUICK, distances="euclidean", epsilon=2e-2).set_output(transform="pandas").fit(source, target)
    assert done.feature_names_in_.tolist() == ["a", "b"]
    assert done.get_feature_names_out().tolist() == ["u", "v", "w"]
    moved = done.transform(source)
    assert moved.columns.tolist() == ["u", "v", "w"]
    assert moved.index.equals(source.index)
    np.testing.assert_array_equal(moved, done.result_.pull(ROLL[:35]))
    assert done.score(source, moved) == 1
    labels = pandas.Series(pandas.Categorical(["x", "y", "x", "y", "y"] * 7))
    assert set(done.transform_labels(labels)) <= {"x", "y"}
    with pytest.raises(ValueError, match=r"X must have the columns of the y in fit, \['u' 'v' 'w'\], got \['w' 'v'"):
        done.inverse_transform(target[["w", "v", "u"]])
    done.fit(source, target.to_numpy())
    assert done.get_feature_names_out().tolist() == [f"gromovwasserstein{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("X", "y", "settings", "error", "message"),
    [
        (X, None, {}, ValueError, "requires y to be passed"),
        (X[:1], ROLL, {}, ValueError, "minimum of 2"),
        (X, ROLL[:1], {}, ValueError, "minimum of 2"),
        (X * np.nan, ROLL, {}, ValueError, "Input X contains NaN"),
        (X, ROLL * np.nan, {}, ValueError, "Input y contains NaN"),
        (csr_matrix(X), ROLL, {}, TypeError, "Sparse data was passed"),
        (X, csr_matrix(ROLL), {}, TypeError, "Sparse data was passed"),
        (X, np.array(["a", "b"]), {}, ValueError, "could not convert"),
        (X, ROLL[None], {}, ValueError, "dim 3"),
        (ROLL @ ROLL.T - 9, ROLL, {}, ValueError, "pass distances='landmark' or 'euclidean'"),
        (X, ROLL, {"epsilon": -1}, ValueError, "epsilon must be a finite number >= 0"),
        (X, ROLL, {"alpha": 0.5}, ValueError, "alpha must be 1 with no linear cost"),
        (X, ROLL, {"distances": "cosine"}, ValueError, "distances must be one of"),
        (X, ROLL, {"marginals": "balanced"}, TypeError, "marginals must be a Marginals"),
        (X, ROLL, {"options": {"k": 5}}, TypeError, "options must be a GWOptions"),
        (X, ROLL, {"random_state": "seed"}, TypeError, "random_state must be"),
    ],
)
def test_a_fit_refuses(X: Any, y: Any, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    estimator = GromovWasserstein(**settings)
    with pytest.raises(error, match=message):
        estimator.fit(X, y)


def test_what_does_not_fit_the_fit_is_refused(small: GromovWasserstein) -> None:
    with pytest.raises(ValueError, match="X has 1 features"):
        small.transform(X[:, :1])
    with pytest.raises(ValueError, match=r"X must have the 3 columns of the y in fit, got shape \(4, 2\)"):
        small.inverse_transform(ROLL[:4, :2])
    with pytest.raises(ValueError, match=r"y must hold the partner of each row of X, \(5, E\), got shape \(4, 3\)"):
        small.score(X[:5], ROLL[:4])
    with pytest.raises(ValueError, match=r"labels must have shape \(35,\), one for each target point, got \(30,\)"):
        small.transform_labels(np.zeros(30))
    with pytest.raises(ValueError, match=r"labels must have shape \(30,\), one for each source point, got \(30, 1\)"):
        small.transform_labels(np.zeros((30, 1)), side="source")
    with pytest.raises(TypeError, match="labels must sort, so be of one kind and none missing"):
        small.transform_labels(np.array(["a", None] * 17 + ["b"], dtype=object))
    with pytest.raises(ValueError, match="side must be one of 'source', 'target', got 'left'"):
        small.transform_labels(np.zeros(35), side="left")


def test_the_blocks_of_its_document_run() -> None:
    path: Path = DOCS / "estimator.md"
    left = run_blocks(path)
    assert left["accuracy"] > 0.9
    assert left["search"].best_params_["gw__epsilon"] < 1e-2


def test_distances_are_split_by_rows_and_columns_and_nothing_else_is_taken_for_them() -> None:
    space = np.random.default_rng(0).normal(size=(60, 3)) * [3, 2, 1]
    far = cdist(space, space)
    settings = {"options": FEW_STARTS, "epsilon": 2e-3}
    cv = KFold(2, shuffle=True, random_state=0)
    found = cross_val_score(made(distances=("precomputed", "euclidean"), **settings), far, space, cv=cv)
    assert found.min() > 0.5
    for X, y, name in ((far[:30], far[:30, :30], "X"), (far[:30, :30], far[:30], "y")):
        with pytest.raises(ValueError, match=rf"^{name} must be a square matrix .*precomputed', got \(30, 60\)"):
            made(distances="precomputed").fit(X, y)
    with pytest.raises(ValueError, match="y must be a square matrix of distances"):
        cross_val_score(made(distances="precomputed"), far, far, cv=cv, error_score="raise")


class Pressing:
    """Presses Ctrl-C at a check."""

    def __call__(self, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning")
def test_an_interrupt_ends_a_fit_unless_a_callback_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = made(callback=Pressing()).fit(X[:30], ROLL[:35])
    assert done.result_.status is Status.CANCELLED
    monkeypatch.setattr(
        "torchgw.estimator.gw_align", lambda *given, **more: gw_align(*given, **more | {"callback": Pressing()})
    )
    with pytest.raises(KeyboardInterrupt):
        made().fit(X[:30], ROLL[:35])


def test_an_estimator_with_a_progress_bar_is_cloned_and_pickled() -> None:
    pytest.importorskip("tqdm")
    stream = io.StringIO()
    with ProgressBar(file=stream) as bar:
        copied = clone(made(callback=bar, options=QUICK, epsilon=2e-2))
        assert copied.callback is bar
        restored = pickle.loads(pickle.dumps(copied.fit(X[:30], ROLL[:35])))
    np.testing.assert_array_equal(restored.transform(X[:30]), copied.transform(X[:30]))
    restored.fit(X[:30], ROLL[:35])
