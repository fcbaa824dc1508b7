"""The data of a page as a dictionary for JSON; long arrays as base64 of little-endian numbers."""

from __future__ import annotations

import base64
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from torchgw import validate
from torchgw.couplings.blocks import as_block_coupling
from torchgw.diagnostics.evidence import confidence_values
from torchgw.report import colourings, sentences, tables
from torchgw.report.result_protocol import ReportInput
from torchgw.types import Array
from torchgw.views import layout
from torchgw.views.matches import matches_of

N_DRAWN = 5000
N_EDGES = 20_000
N_MATCHES = 5
N_OTHERS = 5  # other basins whose matches are told
FAR, HUGE = 100.0, 1e12  # times the extent that a cloud is from zero; extent


def contents(result: ReportInput, X: Any = None, Y: Any = None, labels: Any = None) -> dict[str, Any]:
    """The data of the page of a result.

    At most `N_DRAWN` points of a cloud are drawn, a random subset that is the same every time. The `N_MATCHES` best
    matches of each, and those in `N_OTHERS` other basins, are kept with their coordinates, whether drawn or not.
    """
    coupling = as_block_coupling(result.coupling, "a report")
    drawn = layout.make_layouts(result, X, Y)
    places = [side.points for side in drawn]
    chosen = tuple(layout.subset(n, N_DRAWN) for n in result.shape)
    found = tuple(matches_of(coupling, torch.from_numpy(chosen[at]), 1 - at, N_MATCHES) for at in (0, 1))
    others = [(at, basin) for at, basin in enumerate(result.basins) if 0 < at <= N_OTHERS]
    elsewhere = [validate.read("matching", basin.matching)[chosen[0]] for _, basin in others]
    matched = [found[1].index.ravel(), np.concatenate((found[0].index.ravel(), *elsewhere))]
    undrawn = [np.setdiff1d(matched[at], (-1, *chosen[at])) for at in (0, 1)]  # matches of what is drawn
    kept = [np.concatenate(side) for side in zip(chosen, undrawn, strict=True)]
    colours = [] if labels is None else [colourings.colour_by_labels(labels, coupling)]
    colours.append(colourings.colour_by_position(places[0].astype(np.float64), coupling))
    sure = result.confidence(chosen[0])
    colours += colourings.confidences(sure, chosen[0], result.shape[0])
    shown = [near_zero(side) for side in places]
    sides = [
        {
            "name": ("source", "target")[at],
            "caption": drawn[at].origin + shown[at][1],
            "size": result.shape[at],
            "drawn": len(chosen[at]),
            "dimension": places[at].shape[1],
            "index": encode_base64(kept[at], "<i4"),
            "coordinates": encode_base64(shown[at][0][kept[at]], "<f4"),
            "names": names_of(result, at, kept[at]),
            "edges": encode_base64(positions(kept[at], edges_between(drawn[at], chosen[at])), "<i4"),
            "mass": encode_base64(found[at].mass, "<f4"),
            "matches": encode_base64(positions(kept[1 - at], found[at].index), "<i4"),
            "shares": encode_base64(found[at].share, "<f4"),
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
        "colourings": [encode_colouring(colouring, kept) for colouring in colours],
        "history": {name: [none_if_nonfinite(x) for x in column] for name, column in asdict(result.history).items()},
        "certain": certain,
        "uncertain": uncertain,
        "matchings": asdict(tables.matchings(result)),
        "others": [
            {
                "number": at + 1,
                "matches": encode_base64(positions(kept[1], matching), "<i4"),
                "shifts": encode_base64(validate.read("shift", basin.shift)[chosen[0]], "<f4"),
            }
            for (at, basin), matching in zip(others, elsewhere, strict=True)
        ],
        "resolutions": asdict(tables.resolutions(result)),
        "problem": asdict(tables.problem(result)),
        "options": asdict(tables.options(result)),
        "origin": asdict(tables.origin(result, coupling.device)),
    }


def names_of(result: ReportInput, which: int, index: Array) -> list[str] | None:
    """The names of some points, None where a side has none."""
    names = (result.names_x, result.names_y)[which]
    return None if names is None else [str(names[i]) for i in index]


def edges_between(space: layout.Layout, drawn: Array) -> Array:
    """The edges (m, 2) of a graph, or of the faces of a mesh, between points that are drawn; at most `N_EDGES`."""
    sides = [space.faces[:, pair] for pair in ((0, 1), (1, 2), (0, 2))]
    every = np.unique(np.sort(np.concatenate((space.edges, *sides)), axis=1), axis=0)
    both = every[np.isin(every, drawn).all(1)]
    return both[layout.subset(len(both), N_EDGES)]


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


def encode_colouring(colouring: colourings.Colouring, kept: list[Array]) -> dict[str, Any]:
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
            None if side is None else encode_base64(side[at], kind)
            for side, at in zip(colouring.sides, kept, strict=True)
        ],
    }


def encode_base64(array: Array, kind: str) -> str:
    """Base64 of the numbers as ``kind``, row after row."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


def none_if_nonfinite(value: Any) -> Any:
    """None for what JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
