"""Pictures of a result: what they say, and where they are drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.sparse import csr_array

from tests.problems import ROLL, ROLL_ANGLE, SPIRAL, SPIRAL_ANGLE, quietly
from torchgw import (
    Envelope,
    GWOptions,
    GWResult,
    History,
    LowRankOptions,
    Partial,
    SemiRelaxed,
    SpaceOptions,
    Status,
    curvature,
    gw_align,
    plot,
)
from torchgw.couplings import reader
from torchgw.couplings.blocks import DenseCoupling
from torchgw.plot import clouds, heat_map, marginals
from torchgw.views import layout, point_labels

LABELS = np.array(["a", "b", "c"])[(SPIRAL_ANGLE // 3.01).astype(int)]
TARGET_LABELS = np.array(["u", "v", "w"])[(ROLL_ANGLE // 3.01).astype(int)]
UPRIGHT = np.column_stack((ROLL[:, 0], np.linspace(0, 1, len(ROLL)), ROLL[:, 1]))


def plane() -> Axes:
    return Figure(figsize=(4, 3), dpi=60, layout="constrained").add_subplot()


def solid() -> Any:
    return Figure(figsize=(4, 3), dpi=60, layout="constrained").add_subplot(projection="3d")


def polar() -> Any:
    return Figure().add_subplot(projection="polar")


def texts(ax: Axes) -> str:
    legend = ax.get_legend()
    found = [*ax.texts, *(legend.get_texts() if legend else []), ax.title, ax.xaxis.label, ax.yaxis.label]
    titles = [legend.get_title().get_text()] if legend else []
    return "; ".join([*(text.get_text() for text in found), ax.get_title(loc="left"), *titles]).replace("\n", " ")


def colours(ax: Axes, i: int) -> np.ndarray:
    """RGBA of the i-th cloud."""
    return np.asarray(ax.collections[i].get_facecolor())


@pytest.fixture(scope="module")
def streaming() -> GWResult:
    options = GWOptions(strategy="streaming", spaces=SpaceOptions(k=5, n_landmarks=30))
    return gw_align(SPIRAL, ROLL, distances="landmark", random_state=0, options=options)


@pytest.fixture(scope="module")
def partial() -> GWResult:
    return gw_align(SPIRAL[::3], ROLL[::3], random_state=0, init=np.arange(30), marginals=Partial(0.5))


@pytest.fixture(scope="module")
def begun() -> GWResult:
    """A result without a search."""
    return gw_align(SPIRAL, ROLL, random_state=0, init=np.arange(len(SPIRAL)))


def without_mass(result: GWResult, count: int) -> GWResult:
    """The result, as if its first source points and target points had been left out."""
    left = result.coupling.to_dense().clone()
    left[:count] = 0
    left[:, :count] = 0
    return replace(result, coupling=DenseCoupling(left))


@pytest.mark.parametrize("where", ["part", "inset"])
def test_clouds_are_drawn_into_parts_of_figures_and_insets(where: str, result: GWResult) -> None:
    figure = Figure(figsize=(4, 3), dpi=60)
    part = figure.subfigures(1, 2)[1]
    for draw in (
        lambda ax: plot.matching(result, colors=LABELS, ax=ax),
        lambda ax: plot.transfer(result, SPIRAL_ANGLE, ax=ax),
        lambda ax: plot.confidence(result, ax=ax),
    ):
        ax = part.add_axes((0, 0, 1, 1)) if where == "part" else figure.add_subplot().inset_axes((0, 0, 0.5, 1))
        np.testing.assert_allclose(clouds._place(ax), (2, 3) if where == "part" else (1.55, 2.31), rtol=1e-6)
        draw(ax)
    FigureCanvasAgg(figure).draw()


def test_labels_are_written_as_they_are_and_no_longer_than_there_is_room(result: GWResult) -> None:
    names = np.array(["$x_$", "_under $2^$", "long" * 50])[(SPIRAL_ANGLE // 3.01).astype(int)]
    for ax in (plot.transfer(result, names, ax=plane()), plot.plan(result, names, ax=plane())):
        FigureCanvasAgg(ax.get_figure()).draw()  # type: ignore[arg-type]
        legend = ax.get_legend()
        written = [text.get_text() for text in (legend.get_texts() if legend else ax.get_yticklabels())]
        assert sorted(written) == sorted([r"\$x_\$", r"_under \$2^\$", "longlonglong\u2026onglonglong"])
        assert ax.get_position().width > 0.3


def test_solid_lines_need_no_keyword_of_later_versions(result: GWResult, monkeypatch: pytest.MonkeyPatch) -> None:
    ax = solid()
    add = type(ax).add_collection3d
    monkeypatch.setattr(type(ax), "add_collection3d", lambda self, lines, zs=0, zdir="z": add(self, lines, zs, zdir))
    plot.matching(result, Y=UPRIGHT, ax=ax)


def test_unknown_numbers_are_grey_and_left_out_of_the_mean(result: GWResult) -> None:
    some = SPIRAL_ANGLE.copy()
    some[:10] = np.nan
    only = replace(result, coupling=DenseCoupling(torch.eye(90, 110, dtype=torch.float64) / 90))
    ax = plot.transfer(only, some, ax=plane())
    for i in (0, 1):
        assert (colours(ax, i)[:10, :3].std(1) < 1e-9).all()
        assert (colours(ax, i)[10:90, :3].std(1) > 1e-3).all()
    half = torch.full((2, 1), 0.5, dtype=torch.float64)
    moved = point_labels.carry_values(DenseCoupling(half), point_labels.Numbers(np.array([np.nan, 3.0])))
    assert isinstance(moved, point_labels.Numbers)
    np.testing.assert_allclose(moved.values, [3.0])


def test_confidence_looks_only_at_the_points_it_draws(result: GWResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "MOST", 7)
    asked = []
    find = GWResult.confidence
    monkeypatch.setattr(GWResult, "confidence", lambda self, points: (asked.append(points), find(self, points))[1])
    plot.confidence(result, ax=plane())
    np.testing.assert_array_equal(asked[0], layout.subset(90, 7))
    assert len(asked[0]) == 7


PLOTS = ["convergence", "basins", "residuals", "plan", "matching", "transfer", "confidence", "modes", "spectrum"]


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_draws_into_the_axes_that_are_given_and_returns_them(name: str, result: GWResult) -> None:
    more = (SPIRAL_ANGLE,) if name == "transfer" else ()
    ax = plane()
    assert getattr(plot, name)(result, *more, ax=ax) is ax
    assert len(ax.collections) + len(ax.lines) + len(ax.images) > 0


def test_modes_are_arrows_along_which_matches_move() -> None:
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.stack((np.cos(t), np.sin(t)), 1)
    turned = quietly(gw_align, circle, circle, distances="euclidean", epsilon=0.01, random_state=0)
    ax = plot.modes(turned, n_arrows=10, ax=plane())
    (arrows,) = (drawn for drawn in ax.collections if hasattr(drawn, "U"))
    where, way = np.asarray(arrows.get_offsets()), np.column_stack((arrows.U, arrows.V))
    assert len(where) == 10
    np.testing.assert_allclose((where * way).sum(1), 0, atol=0.01 * np.linalg.norm(way, axis=1).max())  # tangents
    assert len(np.unique(np.sign(where[:, 0] * way[:, 1] - where[:, 1] * way[:, 0]))) == 1  # all one way round
    assert np.linalg.norm(way, axis=1).max() == pytest.approx(clouds.ARROW)
    assert "mode 0, curvature" in texts(ax)
    assert "mode 1, curvature" in texts(plot.modes(turned, 1, UPRIGHT[:40], ax=solid()))
    (low, high), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert ((where + way > (low, bottom)) & (where + way < (high, top))).all()
    mode = curvature(turned, 1).modes[0]
    assert f"a mode, curvature {mode.eigenvalue:.2g}" in texts(plot.modes(turned, mode, ax=plane()))
    with pytest.raises(ValueError, match="mode must be of this result"):
        plot.modes(quietly(gw_align, circle, circle[:-1], epsilon=0.01), mode, ax=plane())
    for arguments, match in (((-1,), "mode must be >= 0"), ((0, circle[:5]), "Y must have 40 points")):
        with pytest.raises(ValueError, match=match):
            plot.modes(turned, *arguments, ax=plane())
    sharp = quietly(gw_align, circle, circle, distances="euclidean", epsilon=0)
    with pytest.raises(ValueError, match="epsilon above 0"):
        plot.modes(sharp, ax=plane())


def test_the_spectrum_counts_changes(result: GWResult) -> None:
    n, k = result.shape
    line = plot.spectrum(result, random_state=0, ax=plane()).lines[0]
    x, count = (np.asarray(side) for side in line.get_data())
    assert (np.diff(count) >= 0).all()
    assert count[-1] == pytest.approx((n - 1) * (k - 1), rel=0.1)
    assert count[x < 0.9 * x.min()].size == 0
    with pytest.raises(ValueError, match="n_probes must be >= 1"):
        plot.spectrum(result, n_probes=0, ax=plane())


def test_plots_work_without_a_display_and_the_package_without_matplotlib(result: GWResult, tmp_path: Path) -> None:
    result.save(tmp_path / "kept.npz")
    code = """
import sys, torchgw
assert not any(name.startswith("matplotlib") for name in sys.modules)
ax = torchgw.plot.convergence(torchgw.GWResult.load(sys.argv[1]))
ax.figure.savefig(sys.argv[2])
sys.modules["matplotlib"] = None
for name in [name for name in sys.modules if name.startswith("torchgw.plot")]:
    del sys.modules[name]
try:
    import torchgw.plot
except ImportError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "DISPLAY")}
    paths = [str(tmp_path / "kept.npz"), str(tmp_path / "drawn.png")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "drawn.png").stat().st_size > 1000
    assert "pip install matplotlib" in done.stdout


def test_a_new_figure_is_made_without_axes_and_settings_stay_as_they_are(result: GWResult) -> None:
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    ax = plot.matching(result, Y=UPRIGHT)
    assert ax.name == "3d"
    assert plt.fignum_exists(ax.get_figure().number)  # type: ignore[union-attr]
    plt.close(ax.get_figure())  # type: ignore[arg-type]
    assert dict(plt.rcParams) == before


def test_lines_join_points_to_where_most_of_their_mass_goes(result: GWResult) -> None:
    ax = plot.matching(result, n_lines=12, ax=plane())
    lines = next(c for c in ax.collections if isinstance(c, LineCollection))
    segments = np.array(lines.get_segments())
    source, target = clouds._side_by_side(SPIRAL, ROLL, False)
    start = [int(np.abs(source - at).sum(1).argmin()) for at in segments[:, 0]]
    assert len(set(start)) == 12
    np.testing.assert_allclose(segments[:, 1], target[np.asarray(result.argmax())[start]])


def test_lines_can_be_those_of_another_basin(result: GWResult) -> None:
    other = result.basins[1].matching
    assert (other != np.asarray(result.argmax())).mean() > 0.5
    ax = plot.matching(result, n_lines=len(SPIRAL), basin=1, colors=np.arange(float(len(SPIRAL))), ax=plane())
    lines = next(c for c in ax.collections if isinstance(c, LineCollection))
    target = clouds._side_by_side(SPIRAL, ROLL, False)[1]
    np.testing.assert_allclose(np.array(lines.get_segments())[:, 1], target[other])
    with pytest.raises(ValueError, match=f"basin must be .* {len(result.basins) - 1}"):
        plot.matching(result, basin=len(result.basins))


def test_a_cost_that_hardly_changes_is_not_blown_up(result: GWResult) -> None:
    flat = History([1, 2], [1.0, 1.0001], [1e-3, 1e-4], [1e-3, 1e-3], [0.0, 0.1])
    low, high = plot.convergence(replace(result, history=flat), ax=plane()).get_ylim()
    assert high - low == pytest.approx(0.01, rel=0.01)


def test_a_line_is_the_fainter_the_smaller_its_share_of_the_mass(result: GWResult) -> None:
    ax = plot.matching(result, colors=SPIRAL_ANGLE, n_lines=len(SPIRAL), ax=plane())
    lines = next(c for c in ax.collections if isinstance(c, LineCollection))
    share = np.asarray(result.top_k(1)[0])[:, 0] / np.asarray(result.marginal(1))
    opacity = np.asarray(lines.get_colors())[:, 3]
    order = np.argsort(share)  # the angle orders the points as they are
    assert (np.diff(opacity[order]) >= -1e-9).all()
    assert opacity.max() > opacity.min() + 0.05


def test_points_without_mass_have_no_line_and_get_no_label(result: GWResult) -> None:
    bare = without_mass(result, 20)
    lines = plot.matching(bare, n_lines=len(SPIRAL), ax=plane()).collections[-1]
    assert len(lines.get_segments()) == len(SPIRAL) - 20  # type: ignore[attr-defined]
    grey = colours(plot.transfer(bare, LABELS, ax=plane()), 1)
    assert (grey[:20, :3].std(1) < 1e-9).all()
    assert (grey[20:, :3].std(1) > 1e-3).all()
    grey = colours(plot.confidence(bare, ax=plane()), 0)
    assert (grey[:20, :3].std(1) < 1e-9).all()


def test_numbers_and_labels_are_carried_as_the_plan_carries_them(result: GWResult) -> None:
    ax = plot.transfer(result, SPIRAL_ANGLE, ax=plane())
    from matplotlib import colormaps

    pushed = np.asarray(result.push(SPIRAL_ANGLE)) / 9
    np.testing.assert_allclose(colours(ax, 1), colormaps["viridis"](pushed), atol=0.01)
    ax = plot.transfer(result, LABELS, ax=plane())
    wanted = np.asarray(result.push(np.eye(3)[np.unique(LABELS, return_inverse=True)[1]])).argmax(1)
    for label in range(3):
        assert len(np.unique(colours(ax, 1)[wanted == label], axis=0)) == 1
    assert texts(ax).count("a") >= 1


@pytest.mark.parametrize("kind", ["entropy", "margin", "stability"])
def test_confidence_colours_each_point_by_its_own(kind: str, result: GWResult) -> None:
    drawn = colours(plot.confidence(result, kind=kind, ax=plane()), 0)
    measure = np.asarray(getattr(result.confidence(), kind))
    order = np.argsort(measure)
    luminance = drawn[order, :3] @ (0.2126, 0.7152, 0.0722)  # rises along viridis
    assert (np.diff(luminance) >= -5e-3).all()
    assert luminance[-1] > luminance[0] + 0.2


def test_labels_are_carried_in_pieces_as_at_once(result: GWResult, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = colours(plot.transfer(result, LABELS, ax=plane()), 1)
    monkeypatch.setattr(reader, "PIECE", 110)
    np.testing.assert_array_equal(colours(plot.transfer(result, LABELS, ax=plane()), 1), at_once)


def test_a_plot_says_how_many_points_it_leaves_out(result: GWResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "MOST", 50)
    ax = plot.matching(result, n_lines=5, ax=plane())
    assert "source 50 of 90 points drawn" in texts(ax)
    assert "target 50 of 110 points drawn" in texts(ax)
    assert len(ax.collections[0].get_offsets()) == 50
    assert "source 50 of 90 points drawn" in texts(plot.confidence(result, ax=plane()))
    first, second = (colours(plot.transfer(result, SPIRAL_ANGLE, ax=plane()), 0) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_many_points_are_one_picture_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    ax = plane()
    clouds._scatter(ax, np.zeros((clouds.RASTER + 1, 2)), "red")
    clouds._scatter(ax, np.zeros((9, 2)), "red")
    assert [bool(c.get_rasterized()) for c in ax.collections] == [True, False]


@pytest.mark.parametrize("which", ["result", "streaming"])
def test_the_heat_map_is_that_of_the_dense_plan(
    which: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligned: GWResult = request.getfixturevalue(which)
    monkeypatch.setattr(reader, "PIECE", 3 * 110)
    drawn = plot.plan(aligned, SPIRAL_ANGLE, ROLL_ANGLE, bins=10, ax=plane()).images[0].get_array()
    dense = np.asarray(aligned.coupling.to_dense())
    wanted = dense.reshape(10, 9, 10, 11).sum((1, 3)) / dense.sum()
    np.testing.assert_allclose(np.asarray(drawn), wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("edges", "numbers"),
    [
        (np.linspace(0, 9, 101), [0, 2, 4, 6, 8]),
        (np.linspace(0.3, 0.71, 42), [0.3, 0.4, 0.5, 0.6, 0.7]),
        (np.exp(np.linspace(0, 9, 5)), list(np.exp(np.linspace(0, 9, 5)))),  # round ones would crowd at the end
    ],
    ids=["even", "small", "skewed"],
)
def test_ticks_of_sorted_cells_are_round_where_these_are_spread(edges: np.ndarray, numbers: list[float]) -> None:
    at, found = heat_map._marks(edges)
    np.testing.assert_allclose(found, numbers)
    np.testing.assert_allclose(np.interp(at, np.arange(len(edges)), edges), numbers)


def test_the_heat_map_of_labels_shows_the_share_of_each_row(result: GWResult) -> None:
    ax = plot.plan(result, LABELS, TARGET_LABELS, ax=plane())
    dense = np.asarray(result.coupling.to_dense())
    wanted = np.array([[dense[np.ix_(i == LABELS, j == TARGET_LABELS)].sum() for j in "uvw"] for i in "abc"])
    wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), wanted, atol=1e-9)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in ax.texts] == [f"{share:.2f}" for share in wanted.ravel()]


def test_the_heat_map_of_a_shuffled_matching_is_a_diagonal(result: GWResult) -> None:
    n = len(SPIRAL)
    order = np.random.default_rng(0).permutation(n)
    shuffled = replace(
        result,
        coupling=DenseCoupling(torch.eye(n, dtype=torch.float64)[order] / n),
        known=(result.known[0], replace(result.known[0], points=SPIRAL[order])),  # type: ignore[index, type-var]
    )
    drawn = np.asarray(plot.plan(shuffled, ax=plane()).images[0].get_array())
    np.testing.assert_allclose(drawn, np.eye(n) / n)
    mixed = np.asarray(plot.plan(shuffled, columns=SPIRAL[:, 0], bins=n, ax=plane()).images[0].get_array())
    np.testing.assert_allclose(mixed, np.eye(n) / n)


def test_convergence_shows_the_history_and_how_it_ended(result: GWResult, streaming: GWResult) -> None:
    ax = plot.convergence(result, ax=plane())
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), result.history.cost)
    assert f"{result.status.name.lower()} after {result.n_iter} iterations" in texts(ax)
    assert len(plot.convergence(streaming, ax=plane()).lines) >= 1


def test_convergence_draws_histories_of_no_and_of_one_entry(result: GWResult) -> None:
    empty = replace(result, history=History(), status=Status.MAX_ITER)
    assert "no outer iteration was recorded" in texts(plot.convergence(empty, ax=plane()))
    one = History(iteration=[1], cost=[0.5], marginal_error=[0.0], epsilon=[1e-3], elapsed=[0.0])
    ax = plot.convergence(replace(result, history=one), ax=plane())
    assert ax.lines[0].get_marker() == "o"
    FigureCanvasAgg(ax.get_figure()).draw()  # type: ignore[arg-type]


def test_costs_that_fall_far_are_drawn_in_logarithms(result: GWResult) -> None:
    few = {name: [1.0, 1.0] for name in ("marginal_error", "epsilon", "elapsed")}
    assert plot.convergence(
        replace(result, history=History(iteration=[1, 2], cost=[1.0, 0.01], **few)), ax=plane()
    ).get_yscale() == ("log")
    near = replace(result, history=History(iteration=[1, 2], cost=[1.0, 0.5], **few))
    assert plot.convergence(near, ax=plane()).get_yscale() == "linear"


def test_basins_are_compared_on_one_level_only(result: GWResult) -> None:
    best = replace(result.basins[0], energy=0.1, level="full")
    other = replace(best, energy=0.104, difference=0.25, count=7)
    coarse = replace(best, energy=0.09, level="landmarks")
    ax = plot.basins(replace(result, basins=(best, other, coarse)), ax=plane())
    assert "7 starts, 0.25 away" in texts(ax)
    assert "on landmarks" in texts(ax)
    assert "not comparable" in texts(ax)
    band = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    np.testing.assert_allclose((band.x0, band.x1), (0.1, 0.105))
    stems = [c for c in ax.collections if isinstance(c, LineCollection)]
    assert len(stems) == 2


def test_at_most_fifteen_basins_are_drawn_and_that_is_said(result: GWResult) -> None:
    many = replace(result, basins=(result.basins[0],) * 40)
    assert "15 of 40 basins" in texts(plot.basins(many, ax=plane()))


def test_residuals_of_relaxed_marginals_are_the_masses_that_were_kept(partial: GWResult) -> None:
    ax = plot.residuals(partial, ax=plane())
    kept = np.asarray(partial.marginal(1)) * len(SPIRAL[::3])
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.sort(kept), atol=1e-12)
    assert "mass of a point" in texts(ax)


def test_residuals_of_hard_marginals_are_those_of_the_masses_asked_for(result: GWResult) -> None:
    ax = plot.residuals(result, ax=plane())
    assert ax.get_yscale() == "log"
    assert float(np.max(ax.lines[0].get_ydata())) < 1e-6  # type: ignore[arg-type]
    assert "before rounding" in texts(ax)
    with pytest.raises(ValueError, match="q must be the masses that were aligned"):
        plot.residuals(result, q=np.linspace(1, 2, len(ROLL)) / 165, ax=plane())
    near = 1 / 90 + 1e-6 * (-1.0) ** np.arange(90)
    with pytest.raises(ValueError, match="p must be the masses that were aligned"):
        plot.residuals(result, p=near, ax=plane())


def test_masses_that_no_marginal_can_tell_are_said_to_be_assumed(result: GWResult, partial: GWResult) -> None:
    assert "uniform p and q assumed" in texts(plot.residuals(partial, ax=plane()))
    assert "uniform q assumed" in texts(plot.residuals(partial, p=np.full(30, 1 / 30), ax=plane()))
    assert "assumed" not in texts(plot.residuals(result, ax=plane()))


def test_masses_of_a_relaxed_side_are_scaled_to_the_plan(result: GWResult) -> None:
    relaxed = replace(result, marginals=SemiRelaxed(1.0))
    ax = plot.residuals(relaxed, q=np.full(len(ROLL), 5.0), ax=plane())
    np.testing.assert_allclose(ax.lines[1].get_ydata(), 1.0, atol=1e-6)


def test_many_residuals_are_drawn_as_quantiles() -> None:

    values = np.random.default_rng(0).exponential(size=5000)
    curve = marginals._curve(values)
    assert len(curve) == marginals.CURVE
    assert (curve[0], curve[-1]) == (values.min(), values.max())


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (np.linspace(0, 1, 30), "numbers"),
        (np.arange(30), "numbers"),
        (np.arange(30) % 4, "labels"),
        (torch.arange(30) % 2 == 0, "labels"),
        (["x", "y"] * 15, "labels"),
        (np.array(["x", None] * 15, dtype=object), "labels"),
    ],
)
def test_values_are_numbers_or_labels_by_their_type(given: Any, kind: str) -> None:
    assert type(point_labels.read("colors", given, 30, "N")).__name__.lower() == kind


def test_categories_keep_their_order_and_what_is_missing_is_grey(result: GWResult) -> None:
    import pandas as pd

    given = pd.Series(pd.Categorical(["low", "high", None] * 30, ["low", "none", "high"]))
    held = point_labels.read("colors", given, 90, "N")
    assert isinstance(held, point_labels.Labels)
    assert held.names == ("low", "high")
    assert held.codes[:3].tolist() == [0, 1, -1]
    ax = plot.matching(result, colors=given, ax=plane())
    assert "low; high; missing" in texts(ax)
    np.testing.assert_allclose(colours(ax, 0)[2::3, :3].std(1), 0, atol=1e-9)


def test_a_legend_has_at_most_twelve_entries_and_says_so(result: GWResult) -> None:
    ax = plot.matching(result, colors=[f"label {i % 30}" for i in range(90)], ax=plane())
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 12
    assert "12 of 30 labels" in texts(ax)


def test_results_of_every_kind_are_drawn(
    result: GWResult, streaming: GWResult, partial: GWResult, tmp_path: Path
) -> None:
    x, y = SPIRAL[::3], ROLL[::3]
    begin = np.arange(len(x))
    options = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4))
    low = gw_align(x, y, init=begin, options=options, random_state=0)
    given = torch.from_numpy(x).requires_grad_()
    traced = gw_align(given, torch.from_numpy(y), init=begin, gradient_mode=Envelope(), random_state=0)
    result.save(tmp_path / "kept.npz")
    kept = GWResult.load(tmp_path / "kept.npz")
    for found in (low, partial, traced, streaming, kept):
        points = (SPIRAL, ROLL) if found is streaming or found is kept else (x, y)
        values = np.arange(len(points[0]), dtype=float)
        plot.matching(found, *points, ax=plane())
        plot.transfer(found, values > 9, *points, ax=plane())
        plot.plan(found, values, ax=plane())
        plot.convergence(found, ax=plane())
        plot.residuals(found, ax=plane())
        plot.confidence(found, points[0], kind="margin", ax=plane())


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda r: plot.matching(r, colors=[1, 2]), r"colors must have shape \(N,\) = \(90,\).*got \(2,\)"),
        (lambda r: plot.matching(r, n_lines=-1), "n_lines must be >= 0"),
        (lambda r: plot.matching(r, Y=ROLL[:5]), "Y must have 110 points"),
        (lambda r: plot.matching(r, Y=UPRIGHT, ax=plane()), r'subplot_kw=\{"projection": "3d"\}'),
        (lambda r: plot.transfer(r, np.full(90, np.nan)), "values must be known for at least one point, got 90"),
        (lambda r: plot.plan(r, np.full(90, None)), "rows must have a label for at least one point, got 90"),
        (lambda r: plot.plan(r, bins=2001), r"bins must be in \[1, 2000\]"),
        (lambda r: plot.convergence(r, ax=polar()), "ax must have Cartesian coordinates, got the projection 'polar'"),
        (lambda r: plot.matching(r, ax=polar()), "ax must have Cartesian coordinates"),
        (lambda r: plot.plan(r, columns=[0.0, 1.0]), r"columns must have shape \(K,\) = \(110,\)"),
        (lambda r: plot.plan(r, bins=0), r"bins must be in \[1, 2000\], got 0"),
        (lambda r: plot.plan(r, ax=solid()), "ax must be a plane Axes"),
        (lambda r: plot.convergence(r, ax=solid()), "ax must be a plane Axes"),
        (lambda r: plot.confidence(r, kind="doubt"), "kind must be one of"),
        (lambda r: plot.residuals(r, p=np.ones(4)), r"p must have shape \(N,\) = \(90,\)"),
    ],
)
def test_what_does_not_fit_is_refused(draw: Callable[[GWResult], Axes], message: str, result: GWResult) -> None:
    import matplotlib.pyplot as plt

    there = plt.get_fignums()
    with pytest.raises(ValueError, match=message):
        draw(result)
    assert plt.get_fignums() == there  # no empty figure is left behind


def test_too_many_labels_are_refused_before_any_mass_is_carried(
    result: GWResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heat_map, "MOST", 89)
    monkeypatch.setattr(heat_map, "group_mass", None)
    with pytest.raises(ValueError, match=r"rows must have at most 89 distinct labels.* got 90; group them"):
        plot.plan(result, [f"cell {i}" for i in range(90)])


def test_what_is_of_another_type_is_refused(result: GWResult) -> None:
    with pytest.raises(TypeError, match="result must be a GWResult"):
        plot.matching(SPIRAL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ax must be an Axes"):
        plot.convergence(result, ax=Figure())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colors must hold numbers or labels, got dtype complex"):
        plot.matching(result, colors=np.ones(90) * 1j)


def test_without_a_search_there_are_neither_basins_nor_stability(begun: GWResult) -> None:
    with pytest.raises(ValueError, match="result must come from a search"):
        plot.basins(begun)
    with pytest.raises(ValueError, match="kind must be 'entropy' or 'margin'"):
        plot.confidence(begun, kind="stability")


def test_a_result_from_a_file_asks_what_to_sort_by(result: GWResult, tmp_path: Path) -> None:
    result.save(tmp_path / "kept.npz")
    kept = GWResult.load(tmp_path / "kept.npz")
    with pytest.raises(ValueError, match=r"rows=np.arange\(90.0\)"):
        plot.plan(kept)


def octahedron() -> tuple[np.ndarray, np.ndarray]:
    corners = np.concatenate((np.eye(3), -np.eye(3)))
    return corners, np.array([[i, j, k] for i in (0, 3) for j in (1, 4) for k in (2, 5)])


def of_names(names: list[Any] | None) -> GWResult:
    points = np.random.default_rng(0).normal(size=(len(names or range(6)), 3))
    return gw_align(points, points[::-1], names_x=names, names_y=names, distances="euclidean", random_state=0)


def test_a_surface_has_the_colours_that_its_points_get() -> None:
    mesh = octahedron()
    aligned = gw_align(mesh[0], mesh[0], init=np.arange(6), random_state=0)
    ax: Any = plot.transfer(aligned, np.arange(6.0), mesh, (mesh[0], mesh[1][::-1]), ax=solid())
    one, other = (surface._facecolor3d for surface in ax.collections)
    np.testing.assert_allclose(one, other[::-1])
    assert len(np.unique(one, axis=0)) > 4
    both: Any = plot.matching(aligned, mesh, mesh, n_lines=0, ax=solid())
    np.testing.assert_allclose(*(surface._facecolor3d for surface in both.collections))
    FigureCanvasAgg(both.get_figure()).draw()


def test_graphs_are_drawn_with_their_edges() -> None:
    graph = csr_array(np.eye(9, k=1) + np.eye(9, k=-1) + np.eye(9, k=4) + np.eye(9, k=-4))
    aligned = gw_align(graph, graph, distances="adjacency", init=np.arange(9), random_state=0)
    for draw, sides in (
        (lambda: plot.matching(aligned, n_lines=0, ax=plane()), 2),
        (lambda: plot.transfer(aligned, np.arange(9.0), ax=plane()), 2),
        (lambda: plot.confidence(aligned, ax=plane()), 1),
    ):
        edges = [lines for lines in draw().collections if isinstance(lines, LineCollection)]
        assert [len(lines.get_segments()) for lines in edges] == [13] * sides


@pytest.mark.parametrize("count", [40, 41])
def test_names_are_written_where_they_are_few(count: int) -> None:
    names = [f"point ${i}$" for i in range(count)]
    aligned = of_names(names)
    written = {name.replace("$", r"\$") for name in names} if count == 40 else set()
    for draw, sides in (
        (lambda: plot.matching(aligned, ax=solid()), 2),
        (lambda: plot.transfer(aligned, np.arange(count), ax=solid()), 2),
        (lambda: plot.confidence(aligned, ax=solid()), 1),
    ):
        texts = [text.get_text().strip() for text in draw().texts]
        assert len(texts) == sides * (1 + len(written))
        assert written <= set(texts)
    ax = plot.plan(aligned, ax=plane())
    for axis in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert {text.get_text() for text in axis} == written
    FigureCanvasAgg(ax.get_figure()).draw()  # type: ignore[arg-type]


def test_the_axes_of_a_plan_name_the_points_of_its_cells() -> None:
    aligned = of_names(list("abcdef"))
    ax = plot.plan(aligned, ax=plane())
    shares = np.asarray(ax.images[0].get_array())
    down, across = ([text.get_text() for text in axis] for axis in (ax.get_yticklabels(), ax.get_xticklabels()))
    order = [["abcdef".index(name) for name in side] for side in (down, across)]
    np.testing.assert_allclose(shares, np.asarray(aligned.plan)[np.ix_(*order)], atol=1e-12)
    assert down != list("abcdef") or across != list("abcdef")
    assert not plot.plan(aligned, bins=3, ax=plane()).get_xticklabels()
