"""A result as named arrays and one JSON string, and back: what `GWResult.save` writes, no pickles."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from torchgw.couplings import BlockCoupling, DenseCoupling, PotentialCoupling
from torchgw.evidence import Basin, Certificate, Rung
from torchgw.kernels import LN2
from torchgw.losses import SeparableLoss
from torchgw.lowrank_coupling import LowRankCoupling
from torchgw.marginals import Balanced, Partial, SemiRelaxed, Unbalanced
from torchgw.options import (
    AnnealingOptions,
    CoarseOptions,
    GWOptions,
    LadderOptions,
    LowRankOptions,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
)
from torchgw.spaces.graph import GraphReport
from torchgw.status import History, Status
from torchgw.tiled import TiledCoupling
from torchgw.types import Array

MARGINALS = {kind.__name__: kind for kind in (Balanced, SemiRelaxed, Unbalanced, Partial)}
GROUPS = {
    "spaces": SpaceOptions,
    "sampling": SamplingOptions,
    "sinkhorn": SinkhornOptions,
    "annealing": AnnealingOptions,
    "stopping": StoppingOptions,
    "coarse": CoarseOptions,
    "ladder": LadderOptions,
    "low_rank": LowRankOptions,
}


def pack(members: dict[str, Any], coupling: BlockCoupling) -> dict[str, Array]:
    """The members of a result as arrays: ``matching`` (N,), ``value``, natural-log ``f`` and ``g`` where there are any,
    ``coupling_*``, ``basin_*`` and ``meta`` (JSON)."""
    basins, options = members["basins"], members["options"]
    plain = {k: v for k, v in members.items() if k not in ("coupling", "status", "options", "history", "graphs")}
    plain |= {
        "status": members["status"].name,
        "options": asdict(members["options"]) | {"loss": _from_loss(options.loss)},
        "marginals": {"kind": type(members["marginals"]).__name__} | asdict(members["marginals"]),
        "history": asdict(members["history"]),
        "certificate": asdict(members["certificate"]),
        "ladder": [asdict(rung) for rung in members["ladder"]],
        "graphs": [_from_report(report) for report in members["graphs"]],
        "basins": [
            {"energy": b.energy, "count": b.count, "level": b.level, "difference": b.difference} for b in basins
        ],
    }
    arrays: dict[str, Array] = {
        "matching": coupling.argmax(1).cpu().numpy(),
        "value": np.array(members["value"]),
        "meta": np.array(json.dumps(plain)),
    }
    if coupling.potentials is not None:
        arrays |= {name: (side * LN2).cpu().numpy() for name, side in zip("fg", coupling.potentials, strict=True)}
    for name in ("matching", "shift") if basins else ():
        arrays[f"basin_{name}"] = torch.stack([getattr(b, name) for b in basins]).cpu().numpy()
    return arrays | {f"coupling_{name}": tensor.cpu().numpy() for name, tensor in coupling.tensors().items()}


def unpack(arrays: dict[str, Array]) -> dict[str, Any]:
    """The members of a result from such arrays, on the CPU."""
    meta: dict[str, Any] = json.loads(str(arrays["meta"]))
    tensors = {name[9:]: torch.from_numpy(a) for name, a in arrays.items() if name.startswith("coupling_")}
    options = {
        name: GROUPS[name](**value) if name in GROUPS and value is not None else value
        for name, value in meta["options"].items()
    }
    basins = tuple(
        Basin(
            **entry,
            matching=torch.from_numpy(arrays["basin_matching"][i]),
            shift=torch.from_numpy(arrays["basin_shift"][i]),
        )
        for i, entry in enumerate(meta["basins"])
    )
    return meta | {
        "coupling": _coupling(tensors, torch.from_numpy(arrays["matching"])),
        "ladder": tuple(Rung(**rung | {"cells": tuple(rung["cells"])}) for rung in meta["ladder"]),
        "status": Status[meta["status"]],
        "options": GWOptions(**options | {"loss": _to_loss(options["loss"])}),
        "marginals": MARGINALS[meta["marginals"].pop("kind")](**meta["marginals"]),
        "history": History(**meta["history"]),
        "certificate": Certificate(**meta["certificate"]),
        "basins": basins,
        "graphs": tuple(_to_report(report) for report in meta["graphs"]),
        "scales": tuple(meta["scales"]),
        "providers": tuple(meta["providers"]),
    }


def _from_loss(loss: str | SeparableLoss) -> str | list[str]:
    """The name of a loss; in a list where it was the user's."""
    return [loss.name] if isinstance(loss, SeparableLoss) else loss


def _to_loss(saved: str | list[str]) -> str | SeparableLoss:
    """A loss by its name; the functions of one that was the user's are not saved."""
    if isinstance(saved, str):
        return saved
    (name,) = saved

    def gone(_: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"the functions of the loss {name!r} are not kept in files")

    return SeparableLoss(gone, gone, gone, gone, name)


def _coupling(tensors: dict[str, torch.Tensor], matching: torch.Tensor) -> BlockCoupling:
    """The kind of coupling that has these tensors."""
    if "tile_size" in tensors:
        return TiledCoupling(**tensors, matching=matching)
    kinds = {"plan": DenseCoupling, "Q": LowRankCoupling}
    found: BlockCoupling = next((kind for name, kind in kinds.items() if name in tensors), PotentialCoupling)(**tensors)
    return found


def _from_report(report: GraphReport | None) -> dict[str, Any] | None:
    return None if report is None else asdict(report) | {"short_cuts": report.short_cuts.tolist()}


def _to_report(plain: dict[str, Any] | None) -> GraphReport | None:
    if plain is None:
        return None
    return GraphReport(**(plain | {"short_cuts": np.array(plain["short_cuts"], dtype=np.int64).reshape(-1, 2)}))
