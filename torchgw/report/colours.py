"""What the points of a report are coloured by: values, which the plan averages, or labels, of which it carries most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchgw.couplings import group_mass as grouped
from torchgw.couplings.blocks import BlockCoupling
from torchgw.types import Array
from torchgw.views import point_labels as values

MOST = 40  # labels: eight colours in five shapes


@dataclass(frozen=True)
class Colouring:
    """Colours of all points: ``sides`` are (N,) and (K,) numbers, NaN where nothing is known, or None for a grey cloud.
    With ``names`` the numbers are positions in that list, -1 where nothing is known. ``plane``: sides are (N, 2) and
    (K, 2) in [0, 1], places on a square of colours."""

    title: str
    explanation: str
    sides: tuple[Array, Array | None]
    names: list[str] | None = None
    plane: bool = False


def given(labels: Any, coupling: BlockCoupling) -> Colouring:
    """The colouring by ``labels`` (N,) of the source, numbers or labels as in `torchgw.views.point_labels`.

    Raises
    ------
    ValueError
        For another number of labels than source points. Missing ones, and NaN, are grey.
    """
    held = values.read("labels", labels, coupling.shape[0], "N")
    if isinstance(held, values.Numbers):
        return averaged("labels", "", held.values, coupling)
    text = "A target point has the label that most of its mass comes from."
    if len(held.names) > MOST:
        text += (
            f" The {MOST} most frequent of {len(held.names)} labels have colours; the others are grey, taken together."
        )
    codes, names = most_frequent(held)
    carried = grouped.most(coupling, codes, len(names) + 1)
    sides = tuple(np.where(side < len(names), side, -1) for side in (codes, carried))
    return Colouring("labels", text, (sides[0], sides[1]), names)


def most_frequent(held: values.Labels) -> tuple[Array, list[str]]:
    """Codes (n,) and names of at most `MOST` labels; all others have the code after the last, missing ones -1."""
    counts = np.bincount(held.codes[held.codes >= 0], minlength=len(held.names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST])
    place = np.full(len(held.names) + 1, len(kept))
    place[kept], place[-1] = np.arange(len(kept)), -1
    return place[held.codes], [held.names[i] for i in kept]


def averaged(title: str, text: str, numbers: Array, coupling: BlockCoupling) -> Colouring:
    """A colouring by numbers (N,) of the source; a target point has their average, weighted by the plan, of those that
    are known."""
    known = np.isfinite(numbers)
    columns = torch.from_numpy(np.column_stack((known, np.where(known, numbers, 0.0))))
    columns = columns.to(coupling.device, coupling.dtype)
    moved = coupling.apply(columns, 0).detach()
    carried = torch.where(moved[:, 0] > 0, moved[:, 1] / moved[:, 0], torch.nan).cpu().numpy()
    explanation = "A target point has the average of the source points that its mass comes from."
    return Colouring(title, f"{text} {explanation}".strip(), (numbers, carried))


def placed(points: Array, coupling: BlockCoupling) -> Colouring:
    """The colouring by two coordinates of the source points (N, d), of more than two by their principal ones."""
    if points.shape[1] > 2:
        centred = points - points.mean(0)
        points = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    low = points.min(0)
    square = (points - low) / np.where(np.ptp(points, axis=0) > 0, np.ptp(points, axis=0), 1.0)
    sides = zip(*(averaged("", "", column, coupling).sides for column in square.T), strict=True)
    source, target = (np.column_stack(pair) for pair in sides)
    text = (
        "Where a source point is: from left to right blue to orange, from bottom to top dark to light. A target point "
        "has the average of the source points that its mass comes from, so colours that run the same way on both "
        "sides are a matching that keeps the shape, and colours that turn round show a part that is turned over."
    )
    return Colouring("place", text, (source, target), plane=True)
