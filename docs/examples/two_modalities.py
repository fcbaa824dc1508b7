"""Learn what to compare, so that two modalities align: Gromov-Wasserstein as the loss of an encoder.

Cells on a fork with three arms are measured in two ways. Modality A has 30 features: 6 that bend with the place on the
fork, and 24 that have nothing to do with it and vary more. Modality B has 20 features, all of the place. No cell is in
both, no feature is in both, and no pair is known. Straight distances of A are those of its nuisances, so A and B do not
align. An encoder that weighs the features of A is trained until its distances are those of B; the places are used to
judge matches and for nothing else.

What the encoder cannot do matters as much as what it can. ``--mlp`` trains a perceptron, which finds in 300 cells
some function of the nuisances that has the distances of B: its loss gets as low, and its matches are wrong.

    python docs/examples/two_modalities.py [--seeds 3] [--mlp] [--save]
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchgw import AmbiguityWarning, Envelope, GWOptions, GWResult, SpaceOptions, gw_align

FIGURE = Path(__file__).parent.parent / "two_modalities.png"
ARMS = (1.3, 0.8, 0.3)  # lengths; equal ones would make the matching ambiguous
ANGLES = (1.5 * math.pi, 0.2 * math.pi, 0.75 * math.pi)
SIGNAL, NUISANCE = 6, 24
SIZED = GWOptions(spaces=SpaceOptions(scale=3.0))  # one unit for both clouds, so that sizes count
SHARP = 1e-3  # epsilon of the alignments that are judged


@dataclass(frozen=True)
class Cells:
    """Measured cells (n, d) and the places (n, 2) that are known because they were simulated."""

    features: Tensor
    place: Tensor


def standard(A: Tensor) -> Tensor:
    """Every feature with mean 0 and variance 1."""
    return (A - A.mean(0)) / A.std(0)


def of_unit_size(Z: Tensor) -> Tensor:
    """A cloud at a mean squared distance of 1 from its mean."""
    centred = Z - Z.mean(0)
    return centred / centred.square().sum(1).mean().sqrt()


def simulate(n: int, k: int, seed: int) -> tuple[Cells, Cells]:
    """n cells in modality A and k others in modality B."""
    generator = torch.Generator().manual_seed(seed)
    a, b = _places(n, generator), _places(k, generator)
    spread = torch.linspace(0.5, 2.0, NUISANCE, dtype=torch.float64)
    nuisance = spread * _normal(n, NUISANCE, generator)
    A = torch.cat((_bent(a, SIGNAL, 0.2, generator), nuisance), 1)
    return Cells(A, a), Cells(_bent(b, 20, 0.4, generator), b)


def _normal(n: int, d: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def _places(n: int, generator: torch.Generator) -> Tensor:
    """Points (n, 2) along the arms of the fork."""
    lengths, angles = torch.tensor(ARMS).double(), torch.tensor(ANGLES).double()
    arm = torch.multinomial(lengths, n, replacement=True, generator=generator)
    along = torch.rand(n, generator=generator, dtype=torch.float64) * lengths[arm]
    straight = along[:, None] * torch.stack((angles[arm].cos(), angles[arm].sin()), 1)
    return straight + 0.04 * _normal(n, 2, generator)


def _bent(place: Tensor, d: int, bend: float, generator: torch.Generator) -> Tensor:
    """A surface in d dimensions: a plane that curves into four others, in a random direction, with little noise."""
    u, v = place.T
    curves = torch.stack((u.square(), v.square(), u * v, (2 * u).sin()), 1)
    frame = torch.linalg.qr(_normal(d, 6, generator))[0]
    return torch.cat((place, bend * curves), 1) @ frame.T + 0.02 * _normal(len(place), d, generator)


class Weights(nn.Module):
    """An encoder that gives each feature a weight and the cloud unit size; at first all features count the same."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(d, dtype=torch.float64))

    def forward(self, A: Tensor) -> Tensor:
        return of_unit_size(standard(A) * self.log.exp())


class Perceptron(nn.Module):
    """An encoder that can fit anything: a warning."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, 3)).double()

    def forward(self, A: Tensor) -> Tensor:
        return of_unit_size(self.layers(standard(A)))


@dataclass
class Training:
    """An encoder on its way: the plan it has reached, the loss of each step, and the matching error that nobody would
    know."""

    encoder: nn.Module
    optimizer: torch.optim.Optimizer
    init: Tensor
    loss: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    rivals: list[list[float]] = field(default_factory=list)  # losses of the starts that were given up


def compare(encoder: nn.Module, A: Cells, B: Cells, init: Tensor | None = None) -> GWResult:
    """The alignment of the encoded A with B, whose loss is trained."""
    target = of_unit_size(B.features)
    mode = Envelope(tol=1e-4)
    told: dict[str, Any] = {"distances": "euclidean", "epsilon": 5e-3, "options": SIZED, "gradient_mode": mode}
    return gw_align(encoder(A.features), target, init=init, random_state=0, **told)


def advance(done: Training, A: Cells, B: Cells, n_steps: int) -> Training:
    """Take steps that make the distances of the encoded A those of B; each goes on from the plan of the last."""
    for _ in range(n_steps):
        result = compare(done.encoder, A, B, done.init)
        done.optimizer.zero_grad()
        result.loss.backward()
        done.optimizer.step()
        done.init = result.plan
        done.loss.append(result.loss.item())
        done.error.append(error(result.plan, A, B))
    return done


def train(encoder: nn.Module, A: Cells, B: Cells, n_steps: int = 30, n_starts: int = 2, rate: float = 0.1) -> Training:
    """Train from the best few local optima of the first alignment, and to the end from where the loss got lowest.

    Before training the right matching is one optimum among others of nearly the same energy.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguityWarning)  # that is why there are several starts
        basins = compare(encoder, A, B).basins[:n_starts]
    index, found = torch.arange(len(A.features)), []
    for basin in basins:
        own = copy.deepcopy(encoder)
        pairs = torch.stack((index, basin.matching), 1)
        found.append(advance(Training(own, torch.optim.Adam(own.parameters(), lr=rate), pairs), A, B, n_steps // 2))
    found.sort(key=lambda done: done.loss[-1])
    best = found[0]
    best.rivals = [done.loss for done in found[1:]]
    return advance(best, A, B, n_steps - n_steps // 2)


def error(plan: Tensor, A: Cells, B: Cells) -> float:
    """Mean distance between the place of a cell of A and that of its match; 0.66 by chance."""
    return float((A.place - B.place[plan.argmax(1)]).norm(dim=1).mean())


def aligned(features: Tensor, B: Cells) -> Tensor:
    """The plan of an alignment from nothing, as anyone would make it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AmbiguityWarning)  # nuisances have many equally bad matchings
        return gw_align(features, B.features, distances="euclidean", epsilon=SHARP, random_state=0).plan


@dataclass
class Run:
    """What one seed gave: plans of the raw, the standardised and the encoded features."""

    A: Cells
    B: Cells
    training: Training
    plans: dict[str, Tensor]
    seconds: float

    @property
    def errors(self) -> dict[str, float]:
        return {name: error(plan, self.A, self.B) for name, plan in self.plans.items()}


def run(seed: int, n: int = 300, k: int = 350, n_steps: int = 30, mlp: bool = False) -> Run:
    """Simulate, train, and align before and after."""
    A, B = simulate(n, k, seed)
    torch.manual_seed(seed)
    encoder = Perceptron(A.features.shape[1]) if mlp else Weights(A.features.shape[1])
    began = time.perf_counter()
    training = train(encoder, A, B, n_steps, rate=0.01 if mlp else 0.1)
    seconds = time.perf_counter() - began
    encoded = training.encoder(A.features).detach()
    clouds = {"raw": A.features, "standardised": standard(A.features), "encoded": encoded}
    return Run(A, B, training, {name: aligned(cloud, B) for name, cloud in clouds.items()}, seconds)


def table(runs: list[Run]) -> str:
    """Errors before and after, loss, and time of each seed."""
    lines = ["seed  error: raw  standardised  encoded   loss: first    last   training"]
    for seed, done in enumerate(runs):
        raw, standardised, encoded = done.errors.values()
        first, last = done.training.loss[0], done.training.loss[-1]
        lines.append(
            f"{seed:4d}  {raw:10.3f}  {standardised:12.3f}  {encoded:7.3f}   {first:11.4f}  {last:6.4f}"
            f"  {done.seconds:7.1f} s"
        )
    return "\n".join(lines)


def draw(done: Run, path: Path) -> None:
    """Both modalities, where the matches lie before and after, and the loss."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    A, B, training, errors = done.A, done.B, done.training, done.errors
    encoded = training.encoder(A.features).detach()
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10.5, 6.8), dpi=140, layout="constrained")
        axes = figure.subplots(2, 3)
        _scatter(axes[0, 0], _plane(A.features), A.place, "A: its features as they are")
        _scatter(axes[0, 1], _plane(encoded), A.place, "A: its features as they were weighed")
        _scatter(axes[0, 2], _plane(of_unit_size(B.features)), B.place, "B")
        for axis, name, title in ((axes[1, 0], "raw", "before"), (axes[1, 1], "encoded", "after")):
            match = B.place[done.plans[name].argmax(1)]
            _scatter(axis, match, A.place, f"places of A's matches, {title}: mean error {errors[name]:.2f}")
        _losses(axes[1, 2], training)
        figure.suptitle(
            "Two modalities without common cells or features; colours say on which arm a cell really is",
            x=0.01,
            ha="left",
            fontsize=12,
        )
        figure.savefig(path)


def _plane(Z: Tensor) -> Tensor:
    """The first two principal components (n, 2)."""
    centred = Z - Z.mean(0)
    return centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].T


def _colours(place: Tensor) -> Tensor:
    """A hue for each arm (n, 3), grey where they meet."""
    hues = torch.tensor(((0, 0x72, 0xB2), (0xD5, 0x5E, 0), (0, 0x9E, 0x73))) / 255.0
    angles = torch.tensor(ANGLES)
    arm = (place.float() @ torch.stack((angles.cos(), angles.sin()))).argmax(1)
    far = (place.norm(dim=1, keepdim=True).float() / 0.2).clamp_max(1.0)
    return 0.7 * (1 - far) + far * hues[arm]


def _scatter(axes: Any, points: Tensor, place: Tensor, title: str) -> None:
    axes.scatter(*points.T, c=_colours(place).numpy(), s=11, linewidths=0)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontsize=10)


def _losses(axes: Any, training: Training) -> None:
    axes.plot(training.loss, color="#0072B2", label="the start that was kept")
    for i, loss in enumerate(training.rivals):
        axes.plot(loss, color="#D55E00", linestyle=(0, (4, 2)), label="" if i else "a rival of the first alignment")
    axes.set_xlabel("step")
    axes.set_title("loss", loc="left", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(True, which="major", alpha=0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--mlp", action="store_true", help="train a perceptron instead of weights: a warning")
    parser.add_argument("--save", action="store_true", help=f"draw {FIGURE.name}")
    asked = parser.parse_args()
    runs = [run(seed, mlp=asked.mlp) for seed in range(asked.seeds)]
    print(table(runs))
    if asked.save:
        draw(runs[0], FIGURE)


if __name__ == "__main__":
    main()
