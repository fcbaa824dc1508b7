"""What the points of a report are coloured by: values, which the plan averages, or labels, of which it carries most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw.couplings import BlockCoupling
from torchgw.types import Array

MOST_INTEGERS = 20  # distinct ones that are taken for labels
AT_ONCE = 64  # labels carried in one product


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
    """The colouring by ``labels`` (N,) of the source: real numbers are values, anything else, and integers of up to
    twenty kinds, are labels.

    Raises
    ------
    ValueError
        For another number of labels than source points, and values that are not finite.
    """
    found = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    n = coupling.shape[0]
    if found.shape != (n,):
        raise ValueError(f"labels must have shape (N,) = ({n},), one for each source point, got {found.shape}")
    if found.dtype.kind == "f" or (found.dtype.kind in "iu" and len(np.unique(found)) > MOST_INTEGERS):
        if not np.isfinite(found).all():
            bad = int((~np.isfinite(found)).sum())
            raise ValueError(f"labels must be finite where they are numbers, got {bad} that are not; name them instead")
        return averaged("labels", "", found.astype(np.float64), coupling)
    names, codes = np.unique(found.astype(str), return_inverse=True)
    carried = most_mass(codes.reshape(-1), len(names), coupling)
    text = "A target point has the label that most of its mass comes from."
    return Colouring("labels", text, (codes.reshape(-1), carried), [str(name) for name in names])


def averaged(title: str, text: str, values: Array, coupling: BlockCoupling) -> Colouring:
    """A colouring by values (N,) of the source; a target point has their average, weighted by the plan."""
    columns = torch.from_numpy(np.column_stack((np.ones(len(values)), values))).to(coupling.device, coupling.dtype)
    moved = coupling.apply(columns, 0).detach()
    carried = torch.where(moved[:, 0] > 0, moved[:, 1] / moved[:, 0], torch.nan).cpu().numpy()
    explanation = "A target point has the average of the source points that its mass comes from."
    return Colouring(title, f"{text} {explanation}".strip(), (values, carried))


def most_mass(codes: Array, count: int, coupling: BlockCoupling) -> Array:
    """For each target point (K,) the code in [0, count) of the source points that send it most mass, -1 without mass;
    O((N + K) count) work beyond the product with the plan, in groups of codes."""
    code = torch.from_numpy(codes).to(coupling.device)
    best = torch.zeros(coupling.shape[1], dtype=coupling.dtype, device=coupling.device)
    found = torch.full((coupling.shape[1],), -1, dtype=torch.int64, device=coupling.device)
    for group in torch.split(torch.arange(count, device=coupling.device), AT_ONCE):
        mass, at = coupling.apply((code[:, None] == group).to(coupling.dtype), 0).detach().max(1)
        found = torch.where(mass > best, group[at], found)
        best = torch.maximum(mass, best)
    return found.cpu().numpy()
