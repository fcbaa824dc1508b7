"""Pictures of a result look as they did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from tests.problems import ROLL_ANGLE, SPIRAL_ANGLE
from tests.test_plot import LABELS, TARGET_LABELS, UPRIGHT
from torchgw import GWResult, History, plot
from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import Basin
from torchgw.views import point_labels

IMAGES = Path(__file__).parent / "images"
SIDE = 80  # pixels of an image that is compared
ALIKE = 0.9  # least likeness to the stored image
FAINT = 20  # of 255, a layer that says nothing


def fixed(kind: str | None = None) -> Any:
    """Axes at a fixed place, whatever is written beside them."""
    return Figure(figsize=(4, 3), dpi=60).add_axes((0.1, 0.1, 0.7, 0.8), projection=kind)


def pixels(ax: Axes) -> np.ndarray:
    """The figure (SIDE, SIDE, 3) without text, whose shape depends on the version of matplotlib, averaged over what
    falls into each pixel."""
    figure: Any = ax.get_figure()
    for artist in (*figure.findobj(Text), *figure.findobj(Legend)):
        artist.set_visible(False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = np.asarray(canvas.buffer_rgba())[..., :3].astype(float)
    for axis in (0, 1):
        edges = np.arange(SIDE) * found.shape[axis] // SIDE
        counts = np.diff(edges, append=found.shape[axis])
        found = np.add.reduceat(found, edges, axis=axis) / np.expand_dims(counts, (1 - axis, 2))
    return found


def likeness(found: np.ndarray, stored: np.ndarray) -> float:
    """The least of the correlations of brightness, and of each colour's surplus over it, in either half of the images.

    A half counts for a colour where that is strong somewhere in it, so that some wrong points are not lost among right
    ones, nor noise is compared.
    """
    half = SIDE // 2
    one, other = (layers(image[:, :half]) + layers(image[:, half:]) for image in (found, stored))
    strong = [pair for pair in zip(one, other, strict=True) if max(map(np.ptp, pair)) > FAINT]
    return min(float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) for a, b in strong)


def layers(image: np.ndarray) -> list[np.ndarray]:
    """Brightness (n, m), and what red, green and blue have more."""
    grey = image.mean(2)
    return [grey, *(np.moveaxis(image, 2, 0) - grey)]


def uneven(result: GWResult) -> GWResult:
    """The result, as if its marginals were off by shares that are no noise."""
    row, column = (torch.linspace(low, 1.0, n).double() for low, n in zip((0.8, 0.2), result.shape, strict=True))
    plan = row[:, None] / row.sum() * column / column.sum()
    return replace(result, coupling=DenseCoupling(plan), marginal_error=1.0, marginal_residual=0.03)


# Basins and iterations of a solve can depend on the processor's last bits.
BASINS = tuple(
    Basin(energy=energy, count=count, level=level, difference=apart, matching=torch.zeros(1), shift=torch.zeros(1))
    for energy, count, level, apart in ((0.024357415, 86, "full", 0.0), (0.03058663, 59, "landmarks", 0.5117728))
)
COURSE = History(
    iteration=[1, 2, 3, 4, 5, 6],
    cost=[0.05, 0.03, 0.026, 0.0245, 0.0244, 0.0244],
    marginal_error=[3e-3, 1e-3, 4e-4, 2e-4, 9e-5, 8e-5],
    epsilon=[8e-3, 4e-3, 2e-3, 1e-3, 1e-3, 1e-3],
    elapsed=[0.01, 0.02, 0.03, 0.04, 0.05, 0.06],
)

DRAWN: dict[str, Callable[[GWResult], Axes]] = {
    "matching": lambda r: plot.matching(r, n_lines=30, ax=fixed()),
    "matching_labels": lambda r: plot.matching(r, colors=LABELS, n_lines=30, ax=fixed()),
    "matching_solid": lambda r: plot.matching(r, Y=UPRIGHT, n_lines=30, ax=fixed("3d")),
    "transfer": lambda r: plot.transfer(r, SPIRAL_ANGLE, ax=fixed()),
    "transfer_labels": lambda r: plot.transfer(r, LABELS, ax=fixed()),
    "plan": lambda r: plot.plan(r, bins=30, ax=fixed()),
    "plan_numbers": lambda r: plot.plan(r, SPIRAL_ANGLE, ROLL_ANGLE, bins=40, ax=fixed()),
    "plan_labels": lambda r: plot.plan(r, LABELS, TARGET_LABELS, ax=fixed()),
    "convergence": lambda r: plot.convergence(replace(r, history=COURSE), ax=fixed()),
    "basins": lambda r: plot.basins(replace(r, basins=BASINS), ax=fixed()),
    "entropy": lambda r: plot.confidence(r, ax=fixed()),
    "margin": lambda r: plot.confidence(r, kind="margin", ax=fixed()),
    "stability": lambda r: plot.confidence(r, kind="stability", ax=fixed()),
    "residuals": lambda r: plot.residuals(uneven(r), ax=fixed()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_looks_as_it_did(name: str, result: GWResult) -> None:
    found, stored = pixels(DRAWN[name](result)), np.load(IMAGES / "plots.npz")[name].astype(float)
    assert likeness(found, stored) > ALIKE


def test_an_image_of_which_a_third_is_wrong_is_told_apart(result: GWResult, monkeypatch: pytest.MonkeyPatch) -> None:
    right = point_labels.find_heaviest_group
    monkeypatch.setattr(
        point_labels, "find_heaviest_group", lambda coupling, codes, n: right(coupling, codes[::-1].copy(), n)
    )
    stored = np.load(IMAGES / "plots.npz")["transfer_labels"].astype(float)
    assert likeness(pixels(DRAWN["transfer_labels"](result)), stored) < ALIKE


def store(result: GWResult) -> None:
    """Write the images that the plots are compared with."""
    IMAGES.mkdir(exist_ok=True)
    found = {name: pixels(draw(result)).round().astype(np.uint8) for name, draw in DRAWN.items()}
    np.savez_compressed(IMAGES / "plots.npz", **found)  # type: ignore[arg-type]
