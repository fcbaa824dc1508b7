"""What the points of a report are coloured by: numbers or labels that the plan carries, their place, its confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.reader import find_heaviest_group
from torchgw.diagnostics.evidence import Confidence, confidence_values
from torchgw.types import Array
from torchgw.views import layout, point_labels
from torchgw.views.point_labels import Labels, Numbers, averages

MOST = 40  # labels: eight colours in five shapes


@dataclass(frozen=True)
class Colouring:
    """Colours of all points.

    Attributes
    ----------
    title, explanation : what the reader is told.
    sides : numbers (N,) of the source and (K,) of the target, NaN where nothing is known, None for a grey cloud; with
        ``plane`` (N, 2) and (K, 2) in [0, 1], places on a square of colours.
    names : of labels, into which the numbers are positions, -1 where nothing is known.
    plane : whether sides are places.
    """

    title: str
    explanation: str
    sides: tuple[Array, Array | None]
    names: list[str] | None = None
    plane: bool = False


def colour_by_labels(labels: Any, coupling: BlockCoupling) -> Colouring:
    """The colouring by ``labels`` (N,) of the source, numbers or labels as in `torchgw.views.point_labels`.

    Raises
    ------
    ValueError
        For another number of labels than source points. Missing ones, and NaN, are grey.
    """
    found = point_labels.read("labels", labels, coupling.shape[0], "N")
    if isinstance(found, Numbers):
        text = "A target point has the average of the source points that its mass comes from."
        return Colouring("labels", text, (found.values, averages(coupling, found.values)))
    text = "A target point has the label that most of its mass comes from."
    if len(found.names) > MOST:
        text += (
            f" The {MOST} most frequent of {len(found.names)} labels have colours; the others are grey, taken together."
        )
    kept = most_frequent(found)
    both = kept.codes, find_heaviest_group(coupling, kept.codes, len(kept.names))
    source, target = (np.where(codes < MOST, codes, -1) for codes in both)
    return Colouring("labels", text, (source, target), list(kept.names[:MOST]))


def most_frequent(labels: Labels) -> Labels:
    """The labels, of more than `MOST` those that most points have, with all others as one more."""
    if len(labels.names) <= MOST:
        return labels
    counts = np.bincount(labels.codes[labels.present], minlength=len(labels.names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST])
    place = np.full(len(labels.names) + 1, MOST)
    place[kept], place[-1] = np.arange(MOST), -1
    return Labels(place[labels.codes], (*(labels.names[i] for i in kept), "others"))


def colour_by_position(points: Array, coupling: BlockCoupling) -> Colouring:
    """The colouring by two coordinates of the source points (N, d), of more than two by their principal ones."""
    if points.shape[1] > 2:
        points = layout.principal(points, 2)
    low, extent = points.min(0), np.ptp(points, axis=0)
    source = (points - low) / np.where(extent > 0, extent, 1.0)
    target = np.column_stack([averages(coupling, column) for column in source.T])
    text = (
        "Where a source point is: from left to right blue to orange, from bottom to top dark to light. A target point "
        "has the average of the source points that its mass comes from, so colours that run the same way on both "
        "sides are a matching that keeps the shape, and colours that turn round show a part that is turned over."
    )
    return Colouring("place", text, (source, target), plane=True)


def confidences(sure: Confidence, points: Array, n: int) -> list[Colouring]:
    """The three views of how sure the plan is of ``points``, out of n source points."""
    told = {
        "entropy": "Spread of a source point's matches, in nats: 0 for a single match, larger for many. The target is "
        "left grey.",
        "margin": "1 for source points with a single match, 0 where the two best matches tie. The target is left grey.",
        "stability": "1 where every matching that the search found sends the source point to the same place, lower "
        "where another one sends it elsewhere. The target is left grey.",
    }
    found = {name: np.full(n, np.nan) for name in told}
    for name, every in found.items():
        every[points] = confidence_values(sure, name)
    return [
        Colouring(f"confidence: {name}", text, (found[name], None))
        for name, text in told.items()
        if np.isfinite(found[name]).any()
    ]
