"""The data of a page as a dictionary for JSON; long arrays as base64 of little-endian numbers."""

from __future__ import annotations

import base64
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from torchgw import validate
from torchgw.couplings.blocks import in_blocks
from torchgw.diagnostics.evidence import confidence_values
from torchgw.report import colourings, sentences, tables
from torchgw.report.reported import Reported
from torchgw.types import Array
from torchgw.views import layout
from torchgw.views.matches import matches_of

N_DRAWN = 5000
N_MATCHES = 5
FAR, HUGE = 100.0, 1e12  # times the extent that a cloud is from zero; extent


def contents(result: Reported, X: Any = None, Y: Any = None, labels: Any = None) -> dict[str, Any]:
    """The data of the page of a result.

    At most `N_DRAWN` points of a cloud are drawn, a random subset that is the same every time. The `N_MATCHES` best
    matches of each are kept with their coordinates, whether they are drawn or not.
    """
    coupling = in_blocks(result.coupling, "a report")
    places = layout.both(result, X, Y)
    chosen = tuple(layout.subset(n, N_DRAWN) for n in result.shape)
    found = tuple(matches_of(coupling, torch.from_numpy(chosen[at]), 1 - at, N_MATCHES) for at in (0, 1))
    undrawn = [np.setdiff1d(found[1 - at].index, (-1, *chosen[at])) for at in (0, 1)]  # matches of what is drawn
    kept = [np.concatenate(side) for side in zip(chosen, undrawn, strict=True)]
    colours = [] if labels is None else [colourings.given(labels, coupling)]
    colours.append(colourings.placed(places[0].astype(np.float64), coupling))
    sure = result.confidence(chosen[0])
    colours += colourings.confidences(sure, chosen[0], result.shape[0])
    shown = [near_zero(side) for side in places]
    sides = [
        {
            "name": ("source", "target")[at],
            "caption": origin_of(result, at, (X, Y)[at]) + shown[at][1],
            "size": result.shape[at],
            "drawn": len(chosen[at]),
            "dimension": places[at].shape[1],
            "index": packed(kept[at], "<i4"),
            "coordinates": packed(shown[at][0][kept[at]], "<f4"),
            "mass": packed(found[at].mass, "<f4"),
            "matches": packed(positions(kept[1 - at], found[at].index), "<i4"),
            "shares": packed(found[at].share, "<f4"),
            "matches_of_each": found[at].index.shape[1],
        }
        for at in (0, 1)
    ]
    entropy = confidence_values(sure, "entropy")
    spread = float(np.exp(np.median(entropy[np.isfinite(entropy)]))) if np.isfinite(entropy).any() else math.nan
    certain, uncertain = sentences.certainties(result)
    return {
        "title": f"{result.shape[0]:,} source points matched with {result.shape[1]:,} target points",
        "verdict": {"level": result.verdict.name.lower(), "text": " ".join((str(result.verdict), *result.reasons))},
        "summary": sentences.summary(result, spread),
        "warnings": [str(warning) for warning in result.warnings],
        "sides": sides,
        "colourings": [coloured(colouring, kept) for colouring in colours],
        "history": {name: [finite(x) for x in column] for name, column in asdict(result.history).items()},
        "certain": certain,
        "uncertain": uncertain,
        "matchings": asdict(tables.matchings(result)),
        "resolutions": asdict(tables.resolutions(result)),
        "problem": asdict(tables.problem(result)),
        "options": asdict(tables.options(result)),
        "origin": asdict(tables.origin(result, coupling.device)),
    }


def near_zero(places: Array) -> tuple[Array, str]:
    """Coordinates that float32 resolves, and the words for their translation and scaling."""
    low, high = places.min(0), places.max(0)
    extent, middle = float((high - low).max()), (low + high) / 2
    if float(np.abs(middle).max()) > FAR * extent > 0:
        places, said = places - middle, ", from their centre on"
    else:
        said = ""
    if extent > 0 and not 1 / HUGE < extent < HUGE:
        return places / extent, f"{said}, in units of their extent"
    return places, said


def positions(kept: Array, index: Array) -> Array:
    """Where each index stands among those that are kept; -1 stays -1."""
    order = np.argsort(kept)
    found: Array = order[np.searchsorted(kept, index, sorter=order).clip(max=len(kept) - 1)]
    return np.where(index < 0, -1, found)


def origin_of(result: Reported, which: int, points: Any) -> str:
    """Where the coordinates of a side come from."""
    if points is None and result.known is not None and result.known[which].points is None:
        return "two coordinates whose distances resemble those that were given"
    known = None if result.known is None else result.known[which].points
    dimension = validate.points("XY"[which], known if points is None else points).shape[1]
    if dimension > layout.MOST:
        return f"two principal components of {dimension} coordinates"
    return "its own coordinates"


def coloured(colouring: colourings.Colouring, kept: list[Array]) -> dict[str, Any]:
    """A colouring of the points that are kept."""
    kind = "<f8" if colouring.names is None else "<i4"
    known = [side[np.isfinite(side)] for side in colouring.sides if side is not None]
    every = np.concatenate(known)
    return {
        "title": colouring.title,
        "explanation": colouring.explanation,
        "names": colouring.names,
        "plane": colouring.plane,
        "range": [float(every.min()), float(every.max())] if len(every) else [0.0, 1.0],
        "sides": [
            None if side is None else packed(side[at], kind) for side, at in zip(colouring.sides, kept, strict=True)
        ],
    }


def packed(array: Array, kind: str) -> str:
    """Base64 of the numbers as ``kind``, row after row."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


def finite(value: Any) -> Any:
    """None for what JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
