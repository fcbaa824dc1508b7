"""What the points of a report are coloured by: values, which the plan averages, or labels, of which it carries most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchgw import grouped, values
from torchgw.couplings import BlockCoupling
from torchgw.types import Array

MOST = 40  # labels: eight colours in five shapes


@dataclass(frozen=True)
class Colouring:
    """Colours of all points: ``sides`` are (N,) and (K,) numbers, NaN where nothing is known, or None for a grey cloud.
    With ``names`` the numbers are positions in that list, -1 where nothing is known. ``told``: whether a point's own
    number or label is worth reading."""

    title: str
    explanation: str
    sides: tuple[Array, Array | None]
    names: list[str] | None = None
    told: bool = True


def given(labels: Any, coupling: BlockCoupling) -> Colouring:
    """The colouring by ``labels`` (N,) of the source, numbers or labels as in `torchgw.values`.

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
