"""A result as named arrays and one JSON string, and back: what `GWResult.save` writes, no pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.diagnostics.evidence import Basin, Certificate, EpsilonStep, IssuedWarning, Rung
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LN2
from torchgw.losses import SeparableLoss
from torchgw.marginals import MARGINALS
from torchgw.options import GROUPS, GWOptions
from torchgw.persist import guards
from torchgw.persist.files import open_for_writing, read_seal
from torchgw.request.names import as_names, names_to_save
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.out_of_sample import KnownPoints
from torchgw.types import Array

# Options and other members that files of earlier versions have.
GONE = {"low_rank": ("n_starts",), "certificate": ("curvature", "curvature_error"), "result": ("escapes",)}
FACTORS = {"A": "nr", "B": "kr", "f": "n", "g": "k", "x": "n", "y": "k"}
ENTRIES = {"column": "m", "first": "f", "width": ""}
TILES = {"tile_size": "", "tile_first": "t", "tile_column": "c", "tile_separable": ""}
SHAPES: dict[type[BlockCoupling], dict[str, str]] = {
    TiledCoupling: FACTORS | {"row_order": "n", "column_order": "k"} | TILES,
    DenseCoupling: {"plan": "nk", "f": "n", "g": "k"},
    LowRankCoupling: {"Q": "nr", "R": "kr", "g": "r"},
    PotentialCoupling: FACTORS,
    SparseCoupling: {"mass": "m"} | ENTRIES,
}
KNOWN = {"points": "Nd", "rows": "Ln", "anchors": "L", "index": "n", "scale": "", "k": "", "squared": ""}
KINDS = {"points": "f", "rows": "f", "scale": "f", "anchors": "i", "index": "i", "k": "i", "squared": "b"}
ORDERS = ("row_order", "column_order")
MASSES = ("plan", "Q", "R", "x", "y", "mass")
NAMES = ("names_x", "names_y")


def write(
    path: str | PathLike[str],
    members: dict[str, Any],
    coupling: BlockCoupling,
    known: Sequence[KnownPoints] = (),
    limit: int = 0,
) -> None:
    """A file of what `pack` makes and, as ``known_x_*`` and ``known_y_*``, of what places new points, sealed; what was
    there stays until it is whole. The distances of a space may take ``limit`` bytes."""
    arrays, every = pack(members, coupling), isinstance(coupling, DenseCoupling | SparseCoupling)
    for side, points in zip("xy", known, strict=False):
        arrays |= {f"known_{side}_{name}": array for name, array in points.arrays(every, limit).items()}
    with open_for_writing(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read(path: Path, limit: int) -> dict[str, Any]:
    """The members of a result from such a file, or from one of a version that wrote no checksum."""
    guards.refuse_oversized("it", path.stat().st_size // 8, 2 * limit + guards.HARMLESS)
    read_seal(path)
    return unpack(guards.read_arrays(path, limit))


def pack(members: dict[str, Any], coupling: BlockCoupling) -> dict[str, Array]:
    """The members of a result as arrays: ``matching`` (N,), ``value``, natural-log ``f`` and ``g`` where there are any,
    ``coupling_*``, ``basin_*`` and ``meta`` (JSON)."""
    basins, options = members["basins"], members["options"]
    apart = ("coupling", "status", "options", "history", "graphs", *NAMES)
    plain = {k: v for k, v in members.items() if k not in apart}
    plain |= {name: names_to_save(members[name]) for name in NAMES if members[name] is not None}
    plain |= {
        "status": members["status"].name,
        "options": asdict(members["options"]) | {"loss": _from_loss(options.loss)},
        "marginals": {"kind": type(members["marginals"]).__name__} | asdict(members["marginals"]),
        "history": asdict(members["history"]),
        "certificate": asdict(members["certificate"]),
        "ladder": [asdict(rung) for rung in members["ladder"]],
        "path": [asdict(step) for step in members["path"]],
        "warnings": [asdict(warning) for warning in members["warnings"]],
        "graphs": [_from_report(report) for report in members["graphs"]],
        "basins": [
            {name: getattr(b, name) for name in ("energy", "count", "level", "difference", "origin")} for b in basins
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
        arrays[f"basin_{name}"] = torch.stack([torch.as_tensor(getattr(b, name)) for b in basins]).cpu().numpy()
    return arrays | {f"coupling_{name}": tensor.cpu().numpy() for name, tensor in coupling.tensors().items()}


def unpack(arrays: dict[str, Array]) -> dict[str, Any]:
    """The members of a result from such arrays, on the CPU.

    Raises
    ------
    ValueError
        For arrays that are not those of a plan, naming them; missing or unknown names raise other errors.
    """
    meta: dict[str, Any] = json.loads(str(arrays["meta"]))
    tensors = {name[9:]: torch.from_numpy(a) for name, a in arrays.items() if name.startswith("coupling_")}
    options = {name: _to_group(name, value) for name, value in meta["options"].items()}
    coupling = _coupling(tensors)
    n, k = coupling.shape
    names = {name: _to_names(name, meta.get(name), size) for name, size in zip(NAMES, (n, k), strict=True)}
    many = len(meta["basins"])
    _check_indices("matching", arrays["matching"], (n,), k)
    if many:
        matchings, shifts = arrays["basin_matching"], arrays["basin_shift"]
        _check_indices("basin_matching", matchings, (many, *matchings.shape[1:2]), np.iinfo(np.int64).max)
        if shifts.shape != matchings.shape or shifts.dtype.kind != "f" or not np.isfinite(shifts).all():
            raise ValueError(f"its basin_shift must hold finite numbers, of shape {matchings.shape}")
    if len({len(entries) for entries in meta["history"].values()}) > 1:
        raise ValueError("the entries of its history must be of equal length")
    basins = tuple(
        Basin(
            **entry,
            matching=torch.from_numpy(arrays["basin_matching"][i]),
            shift=torch.from_numpy(arrays["basin_shift"][i]),
        )
        for i, entry in enumerate(meta["basins"])
    )
    return (
        _keep_current("result", meta)
        | names
        | {
            "coupling": coupling,
            "known": _read_known_points(arrays, coupling.shape),
            "ladder": tuple(Rung(**rung | {"cells": tuple(rung["cells"])}) for rung in meta["ladder"]),
            "path": tuple(EpsilonStep(**step) for step in meta.get("path", ())),
            "warnings": tuple(IssuedWarning(**warning) for warning in meta.get("warnings", ())),
            "status": Status[meta["status"]],
            "options": GWOptions(**options | {"loss": _to_loss(options["loss"])}),
            "marginals": MARGINALS[meta["marginals"].pop("kind")](**meta["marginals"]),
            "history": History(**meta["history"]),
            # Which starts agree, earlier versions did not say.
            "certificate": Certificate(**_keep_current("certificate", meta["certificate"])).with_counts(basins),
            "basins": basins,
            "graphs": tuple(_to_report(report) for report in meta["graphs"]),
            "scales": tuple(meta["scales"]),
            "providers": tuple(meta["providers"]),
        }
    )


def _to_names(member: str, saved: Any, size: int) -> Array | None:
    """The names of points; None where a file has none."""
    if saved is None:
        return None
    if not isinstance(saved, list) or len(saved) != size:
        raise ValueError(f"its {member} must be a list of {size} names")
    names = list(map(_to_name, saved))
    if None in names:
        raise ValueError(f"its {member} must hold texts, numbers and lists of these")
    return as_names(names)


def _to_name(saved: Any) -> Any:
    """A name by what `torchgw.request.names.names_to_save` made of it: JSON has lists for tuples."""
    return tuple(map(_to_name, saved)) if isinstance(saved, list) else None if isinstance(saved, dict) else saved


def _to_group(name: str, saved: Any) -> Any:
    """A member of `GWOptions`; a group of options without those that are gone."""
    return saved if name not in GROUPS or saved is None else GROUPS[name](**_keep_current(name, saved))


def _keep_current(name: str, saved: dict[str, Any]) -> dict[str, Any]:
    """The members of a record that this version has."""
    return {member: value for member, value in saved.items() if member not in GONE.get(name, ())}


def _from_loss(loss: str | SeparableLoss) -> str | list[str]:
    """The name of a loss; in a list where it was the user's."""
    return [loss.name] if isinstance(loss, SeparableLoss) else loss


def _to_loss(saved: str | list[str]) -> str | SeparableLoss:
    """A loss by its name; the functions of one that was the user's are not saved."""
    if isinstance(saved, str):
        return saved
    (name,) = saved

    def missing_function(_: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"the functions of the loss {name!r} are not kept in files")

    return SeparableLoss(missing_function, missing_function, missing_function, missing_function, name)


def _coupling(tensors: dict[str, torch.Tensor]) -> BlockCoupling:
    """The kind of coupling that has these tensors."""
    marks = {"tile_size": TiledCoupling, "plan": DenseCoupling, "Q": LowRankCoupling, "mass": SparseCoupling}
    kind: Any = next((kind for name, kind in marks.items() if name in tensors), PotentialCoupling)
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        letters, shape = SHAPES[kind][name], tuple(tensor.shape)
        if len(letters) != len(shape) or any(sizes.setdefault(c, m) != m for c, m in zip(letters, shape, strict=True)):
            raise ValueError(f"its coupling_{name} has shape {shape}, which does not fit the other arrays")
        if name in ORDERS or name in TILES or name in ENTRIES:
            continue
        if not tensor.is_floating_point():
            raise ValueError(f"its coupling_{name} must hold floating-point numbers, got {tensor.dtype}")
        logarithms = name in "fg" and kind is not LowRankCoupling
        least = -torch.inf if logarithms else 0.0 if name in MASSES or name == "g" else torch.finfo(tensor.dtype).min
        if not ((tensor >= least) & (tensor < torch.inf)).all():
            raise ValueError(f"its coupling_{name} must be finite{' and not negative' if least == 0 else ''}")
    if kind is TiledCoupling:
        _check_tiles(tensors, sizes)
    if kind is SparseCoupling:
        _check_entries(tensors, sizes)
    found: BlockCoupling = kind.of(tensors) if kind is TiledCoupling else kind(**tensors)
    return found


def _check_entries(tensors: dict[str, torch.Tensor], sizes: dict[str, int]) -> None:
    """Refuse entries that lie nowhere, and rows that are none."""
    width, first, column = int(tensors["width"]), tensors["first"], tensors["column"]
    if width < 1:
        raise ValueError(f"its coupling_width must be >= 1, got {width}")
    _check_indices("coupling_column", column.numpy(), (sizes["m"],), width)
    _check_indices("coupling_first", first.numpy(), (sizes["f"],), sizes["m"] + 1)
    _check_rise("coupling_first", first, sizes["m"])


def _check_rise(name: str, first: torch.Tensor, count: int) -> None:
    """Refuse beginnings of runs of ``count`` entries that do not go from 0 up to their number."""
    if not len(first) or first[0] != 0 or first[-1] != count or (first.diff() < 0).any():
        raise ValueError(f"its {name} must go from 0 up to {count}")


def _check_tiles(tensors: dict[str, torch.Tensor], sizes: dict[str, int]) -> None:
    """Refuse orders that are none, and lists of tiles that point elsewhere."""
    for name, letter in zip(ORDERS, "nk", strict=True):
        if not torch.equal(tensors[name].sort().values, torch.arange(sizes[letter])):
            raise ValueError(f"its coupling_{name} must be an order of {sizes[letter]} points")
    size, first, column = int(tensors["tile_size"]), tensors["tile_first"], tensors["tile_column"]
    if size < 1:
        raise ValueError(f"its coupling_tile_size must be >= 1, got {size}")
    rows, columns = (-(-sizes[letter] // size) for letter in "nk")
    _check_indices("coupling_tile_column", column.numpy(), (sizes["c"],), columns)
    _check_indices("coupling_tile_first", first.numpy(), (rows + 1,), sizes["c"] + 1)
    _check_rise("coupling_tile_first", first, sizes["c"])


def _read_known_points(arrays: dict[str, Array], shape: tuple[int, int]) -> tuple[KnownPoints, KnownPoints] | None:
    """What places new points on either side, where the file has it."""
    if not any(name.startswith("known_") for name in arrays):
        return None
    sides = [{name[8:]: array for name, array in arrays.items() if name.startswith(f"known_{side}_")} for side in "xy"]
    for side, found, size in zip("xy", sides, shape, strict=True):
        _check_known_points(f"known_{side}_", found, size)
    x, y = (KnownPoints.of_arrays(found, size) for found, size in zip(sides, shape, strict=True))
    return x, y


def _check_known_points(prefix: str, arrays: dict[str, Array], size: int) -> None:
    """Refuse arrays that do not place points among ``size`` ones."""
    straight = "squared" in arrays
    needed = {"k", "scale", *(("squared", "points") if straight else ("rows",))}
    if missing := needed - arrays.keys():
        raise ValueError(f"it holds no array {prefix + min(missing)!r}")
    if other := arrays.keys() - KNOWN.keys():
        raise ValueError(f"it holds an array {prefix + min(other)!r} that no result has")
    lengths = {"N": size} | ({} if "index" in arrays else {"n": size})
    shapes = KNOWN if "anchors" in arrays else KNOWN | {"rows": "nn"}
    for name in KNOWN:
        if name not in arrays:
            continue
        array, letters = arrays[name], shapes[name]
        fits = len(letters) == array.ndim and 0 not in array.shape
        if not fits or any(lengths.setdefault(c, m) != m for c, m in zip(letters, array.shape, strict=True)):
            raise ValueError(f"its {prefix}{name} has shape {array.shape}, which does not fit the other arrays")
        if array.dtype.kind != KINDS[name] or array.dtype.itemsize not in (1, 8) or not np.isfinite(array).all():
            raise ValueError(f"its {prefix}{name} must hold finite numbers of kind {KINDS[name]}, got {array.dtype}")
    for name, below in (("index", size), ("anchors", lengths["n"])):
        if name in arrays:
            _check_indices(prefix + name, arrays[name], arrays[name].shape, below)
    if "index" in arrays and (np.diff(arrays["index"]) <= 0).any():
        raise ValueError(f"its {prefix}index must rise")
    if not arrays["scale"] > 0 or not 1 <= arrays["k"] <= lengths["n"]:
        raise ValueError(
            f"its {prefix}scale must be positive and its {prefix}k from 1 to {lengths['n']}, got {arrays['scale']} and "
            f"{arrays['k']}"
        )


def _check_indices(name: str, values: Array, shape: tuple[int, ...], below: int) -> None:
    if values.shape != shape or values.dtype != np.int64 or ((values < 0) | (values >= below)).any():
        raise ValueError(f"its {name} must hold indices below {below}, of shape {shape} and 64 bits")


def check_types(name: str, value: Any, declared: Any) -> None:
    """Refuse a value from a file that is not of the type that its class declares for it; whole numbers are real ones.

    Raises
    ------
    ValueError
        Naming the member, its type, and what arrived.
    """
    origin, inner = get_origin(declared) or declared, get_args(declared)
    if origin in (Union, UnionType):
        fits = any(isinstance(value, get_origin(each) or each) for each in inner)
    elif origin in (int, float):
        fits = isinstance(value, (int, origin)) and not isinstance(value, bool)
    else:
        fits = isinstance(value, origin)
    if not fits:
        raise ValueError(f"its {name} must be of type {getattr(declared, '__name__', declared)}, got {value!r}")
    if is_dataclass(origin):
        check_members(value, f"{name}.")
    elif origin is tuple and inner[-1] is not Ellipsis and len(inner) != len(value):
        raise ValueError(f"its {name} must have {len(inner)} entries, got {value!r}")
    elif origin in (tuple, list):
        for i, entry in enumerate(value):
            check_types(f"{name}[{i}]", entry, inner[i if inner[-1] is not Ellipsis and origin is tuple else 0])
    elif origin is dict:
        for key, entry in value.items():
            check_types(f"{name}[{key!r}]", entry, inner[1])


def check_members(value: Any, prefix: str = "", but: tuple[str, ...] = ()) -> None:
    """`check_types` of all members of a dataclass ``but`` some."""
    hints: Mapping[str, Any] = get_type_hints(type(value))
    for name, member in vars(value).items():
        if name not in but:
            check_types(prefix + name, member, hints[name])


def _from_report(report: GraphReport | None) -> dict[str, Any] | None:
    return None if report is None else asdict(report) | {"short_cuts": report.short_cuts.tolist()}


def _to_report(plain: dict[str, Any] | None) -> GraphReport | None:
    if plain is None:
        return None
    return GraphReport(**(plain | {"short_cuts": np.array(plain["short_cuts"], dtype=np.int64).reshape(-1, 2)}))
