"""A shape that flows down the gradient of Gromov-Wasserstein until it has the distances of another.

A boomerang of 500 points becomes a G. What is compared are distances within each cloud, so nothing says where the G
should stand, how it is turned, or from which side it is read: rotated and mirrored copies have the same loss, and the
flow ends in whichever is near. Its size is that of the target, because one fixed scale divides both clouds.

The loss includes the entropy of the plan, whose blur pulls points together: strokes get thinner than the target's. With
``--debiased`` half the loss of the cloud against itself is taken off, and they keep their width.

    python docs/examples/gradient_flow.py [--debiased] [--save]
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchgw import AmbiguityWarning, Envelope, GWOptions, GWResult, SpaceOptions, gw_align

FIGURE = Path(__file__).parent.parent / "gradient_flow.png"
EPSILON = 5e-3
RATE = 0.075  # of the squared distances themselves: the gradient is divided by the masses and by the unit of the loss
STAGES = (0.0, 0.03, 0.08, 0.25, 1.0)  # shares of the flow that are drawn


def boomerang(n: int, generator: torch.Generator) -> Tensor:
    """The start (n, 2): a Gaussian cloud, bent."""
    u, v = torch.randn(n, 2, generator=generator, dtype=torch.float64).T
    return torch.stack((0.5 * u, 0.3 * v + 0.125 * u.square()), 1)


def letter(n: int, generator: torch.Generator) -> Tensor:
    """The target (n, 2): an open ring, and the bar that makes it a G."""
    angle = torch.empty(n, dtype=torch.float64).uniform_(0.25 * math.pi, 1.92 * math.pi, generator=generator)
    points = torch.stack((angle.cos(), angle.sin()), 1)
    n_bar = n // 5
    along = torch.linspace(0, 1, n_bar, dtype=torch.float64)
    points[:n_bar] = torch.stack(((0.2 + along).clamp_max(0.97), (0.77 - along).clamp_max(0.0)), 1)
    return points + 0.03 * torch.randn(n, 2, generator=generator, dtype=torch.float64)


@dataclass
class Flow:
    """The target, the clouds on the way, and the loss of each."""

    target: Tensor
    clouds: list[Tensor] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    seconds: float = 0.0


def flow(n: int = 500, n_steps: int = 100, seed: int = 0, debiased: bool = False) -> Flow:
    """Plain gradient descent with a fixed step."""
    generator = torch.Generator().manual_seed(seed)
    done, X = Flow(letter(n, generator)), boomerang(n, generator)
    diameter = float(torch.cdist(done.target, done.target).max())
    began, own = time.perf_counter(), torch.eye(n, dtype=torch.float64) / n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguityWarning)  # a blob fits a G in several ways; any will do
        plan = compared(X, done.target, None, diameter).plan
    for _ in range(n_steps):
        X.requires_grad_()
        result = compared(X, done.target, plan, diameter)
        loss, plan = result.loss, result.plan
        if debiased:
            itself = compared(X, X, own, diameter)
            loss, own = loss - itself.loss / 2, itself.plan
        (gradient,) = torch.autograd.grad(loss, X)
        done.clouds.append(X.detach())
        done.loss.append(loss.item())
        X = X.detach() - RATE * n * diameter**2 * gradient
    done.seconds = time.perf_counter() - began
    return done


def compared(X: Tensor, Y: Tensor, plan: Tensor | None, diameter: float) -> GWResult:
    """Two clouds in units of ``diameter``, from the last plan on; by a search where there is none."""
    options = GWOptions(spaces=SpaceOptions(scale=diameter))
    told: dict[str, Any] = {"distances": "euclidean", "epsilon": EPSILON, "options": options}
    return gw_align(X, Y, init=plan, random_state=0, gradient_mode=Envelope(tol=1e-6), **told)


def largest_rise(loss: list[float]) -> float:
    """The largest difference of a loss and the one before; negative where it always falls."""
    return max(after - before for before, after in itertools.pairwise(loss))


def table(done: Flow) -> str:
    """Loss at some steps, and whether it always fell."""
    last = len(done.loss) - 1
    lines = ["step      loss", *(f"{i:4d}  {done.loss[i]:8.5f}" for i in (round(share * last) for share in STAGES))]
    falls = "falls at every step" if largest_rise(done.loss) < 0 else "does not fall at every step"
    return "\n".join([*lines, f"{falls}; {done.seconds:.1f} s"])


def draw(plain: Flow, debiased: Flow, path: Path) -> None:
    """Stages of both flows, the target, and the losses."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 4.6), dpi=140, layout="constrained")
        grid = figure.add_gridspec(2, 7, width_ratios=(1, 1, 1, 1, 1, 0.12, 1.35))
        rows = ((plain, "the loss", "#0072B2"), (debiased, "less half the loss\nagainst itself", "#D55E00"))
        for row, (done, name, colour) in enumerate(rows):
            for column, share in enumerate(STAGES):
                axes = figure.add_subplot(grid[row, column])
                step = round(share * (len(done.clouds) - 1))
                _scatter(axes, done.clouds[step], colour)
                axes.set_title(f"step {step}", loc="left", fontsize=10)
                if column == 0:
                    axes.text(-0.08, 0.5, name, transform=axes.transAxes, rotation=90, ha="center", va="center")
        _scatter(figure.add_subplot(grid[0, 6]), plain.target, "0.25", "the target")
        _losses(figure.add_subplot(grid[1, 6]), rows)
        figure.suptitle(
            "Gradient flow of Gromov-Wasserstein: 500 points take the distances of a G, mirrored or not",
            x=0.01,
            ha="left",
            fontsize=12,
        )
        figure.savefig(path)


def _scatter(axes: Any, points: Tensor, colour: str, title: str = "") -> None:
    axes.scatter(*points.T, s=4, color=colour, linewidths=0)
    axes.set(xlim=(-1.45, 1.45), ylim=(-1.2, 1.45))
    axes.set_aspect("equal")
    axes.set_axis_off()
    if title:
        axes.set_title(title, loc="left", fontsize=10)


def _losses(axes: Any, rows: tuple[tuple[Flow, str, str], ...]) -> None:
    for (done, name, colour), style in zip(rows, ("-", (0, (4, 2))), strict=True):
        above = [loss - done.loss[-1] for loss in done.loss[:-1]]
        axes.plot(above, color=colour, linestyle=style, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_title("loss above its last value", loc="left", fontsize=10)
    axes.legend(frameon=False)
    axes.grid(True, which="major", alpha=0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debiased", action="store_true", help="take half the loss of the cloud against itself off")
    parser.add_argument("--save", action="store_true", help=f"draw both flows in {FIGURE.name}")
    asked = parser.parse_args()
    found = {}
    for debiased in (False, True) if asked.save else (asked.debiased,):
        found[debiased] = flow(debiased=debiased)
        print("debiased" if debiased else "plain", table(found[debiased]), sep="\n")
    if asked.save:
        draw(found[False], found[True], FIGURE)


if __name__ == "__main__":
    main()
