"""From a list of spaces to the distance matrices and masses of all of them, refused before anything long starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchgw import validate
from torchgw.options import GWOptions
from torchgw.request.combinations import facts_of, find_exclusion
from torchgw.request.names import check_names
from torchgw.request.spaces import DISTANCES, check_space, warn_of_adjacencies
from torchgw.request.support import restrict_space
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.transfer import to_host
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.prepare import InputSpace, make_many_providers
from torchgw.spaces.resolution import explain_rounded_coordinates, explain_unresolved_points, sample_differences
from torchgw.types import Array, DistanceProvider, PrecisionWarning, is_graph

LARGEST = 1000  # points of a space whose pairs are solved in batches
SMALLEST = 1e-70  # of distances, whose squares are still numbers
COPIES = 4  # of a distance matrix: raw, scaled, and in float32 at the resolutions of the ladder
SCALES = ("auto", "common", "own")


@dataclass(frozen=True)
class Inputs:
    """All spaces.

    distances : (n_i, n_i) of the points with mass of each, in the units of the data.
    masses : (N_i,) of all points of each.
    scales : divisor of the distances of each.
    unit : factor of distances between spaces: the divisor that they share, or 1.
    metric : whether small distances of each say what is near; entries of adjacencies do not.
    scale : "common" or "own".
    names : (N_i,) of the points of each, None where a space brings none.
    """

    distances: list[Array]
    masses: list[Array]
    scales: list[float]
    unit: float
    metric: list[bool]
    scale: str = "common"
    names: Sequence[NDArray[np.object_] | None] = ()

    @cached_property
    def sizes(self) -> list[int]:
        """Points that have mass."""
        return [len(D) for D in self.distances]

    def is_large(self, i: int) -> bool:
        """Whether a space is aligned by `gw_align`, pair by pair."""
        return self.sizes[i] > LARGEST

    def distances_over_divisor(self, i: int) -> Array:
        """The distances of a space over its divisor."""
        found: Array = self.distances[i] / self.scales[i]
        return found

    def with_unit(self, unit: float) -> Inputs:
        """The same spaces with another divisor in place of the one that they share."""
        return self if self.scale == "own" else replace(self, scales=[unit] * len(self.scales), unit=unit)

    def hash_space(self, i: int, options: GWOptions) -> bytes:
        """A hash of a space and, of a large one, of the options of `gw_align`, wherever it stands in a list."""
        of_large = {**asdict(options), "loss": str(options.loss), "max_memory": None}
        told = json.dumps(of_large, sort_keys=True, default=str) if self.is_large(i) else ""
        found = hashlib.blake2b(repr((len(self.masses[i]), self.metric[i], told)).encode(), digest_size=16)
        for part in (self.distances[i], self.masses[i]):
            found.update(np.ascontiguousarray(part, dtype=np.float64).tobytes())
        return found.digest()


def read_spaces(
    spaces: object, masses: object, distances: str, scale: str, options: GWOptions, against: object = None
) -> Inputs:
    """Validated spaces, and after them those ``against`` which they are compared, and masses of all, as `Inputs`.

    Raises
    ------
    ValueError, TypeError
        Naming the entry, like ``spaces[3]``.
    MemoryError
        When all distance matrices together exceed ``options.max_memory``.
    """
    lists = {"spaces": spaces} if against is None else {"spaces": spaces, "against": against}
    given = [as_list(name, each, least=3 - len(lists)) for name, each in lists.items()]
    entries = [space for each in given for space in each]
    keys = [
        key for each, listed in zip(lists.values(), given, strict=True) for key in names_of(each) or range(len(listed))
    ]
    validate.choice("distances", distances, DISTANCES)
    validate.choice("scale", scale, SCALES)
    if options.spaces.scale is not None:
        raise ValueError(f"options.spaces.scale must be None here, got {options.spaces.scale!r}; use scale=")
    owners = [name for name, each in zip(lists, given, strict=True) for _ in each]
    names = [f"{owner}[{key!r}]" for owner, key in zip(owners, keys, strict=True)]
    checked = [_check_space(each, space, distances, options) for each, space in zip(names, entries, strict=True)]
    if isinstance(masses, Mapping):
        other = next((name for name in masses if name not in keys), None)
        if other is not None:
            raise ValueError(f"masses must be given by the names of spaces, got {other!r}, which is none of {keys[:5]}")
        masses = [masses.get(key) for key in keys]
    own_masses = [None] * len(entries) if masses is None else as_list("masses", masses, len(entries), len(entries))
    mass = [
        validate.masses(f"masses[{i}]", m, space.size, "N")
        for i, (m, space) in enumerate(zip(own_masses, checked, strict=True))
    ]
    if scale == "auto":
        graphs = [is_graph(entry) or not space.metric for entry, space in zip(entries, checked, strict=True)]
        scale = "own" if all(graphs) else "common"
    checked = [_restrict_to_mass(space, m) for space, m in zip(checked, mass, strict=True)]
    sizes = [space.size for space in checked]
    _check_large(names, sizes, options)
    needed = COPIES * sum(8 * n**2 for n in sizes)
    validate.memory("distances within all spaces", needed, options.max_memory, "use fewer or smaller spaces")
    raw = _make_matrices(entries, checked, mass, options)
    largest = [float(np.abs(D).max()) or 1.0 for D in raw]
    scales = [max(float(np.abs(D).max()) for D in raw) or 1.0] * len(raw) if scale == "common" else largest
    for name, own, divisor in zip(names, largest, scales, strict=True):
        if not SMALLEST <= divisor <= 1 / SMALLEST or own < SMALLEST * divisor:
            smallest = SMALLEST * (divisor if scale == "common" else 1.0)
            hint = "use scale='own'" if SMALLEST <= own <= 1 / SMALLEST else "use other units"
            raise ValueError(
                f"{name} must have a largest distance from {smallest:g} to {1 / SMALLEST:g}, got {own:g}; {hint}"
            )
    unit, metric = scales[0] if scale == "common" else 1.0, [space.metric for space in checked]
    called = [check_names(name, None, space, len(m)) for name, space, m in zip(names, entries, mass, strict=True)]
    return Inputs(raw, [m / m.sum() for m in mass], scales, unit, metric, scale, called)


def _check_large(names: list[str], sizes: list[int], options: GWOptions) -> None:
    """Refuse options that `gw_align` excludes without entropy, where it aligns a space."""
    if options.loss != "square" and max(sizes) > LARGEST:
        raise ValueError(f"options.loss must be 'square' between many spaces, got {options.loss!r}: use gw_align")
    facts = facts_of(options, 0.0)
    row = find_exclusion(facts)
    for name, size in zip(names, sizes, strict=True):
        if size > LARGEST and row is not None:
            raise row.error(
                f"{row.message(facts)} ({name} has {size} points, and spaces of more than {LARGEST} "
                f"are aligned by gw_align with epsilon=0)"
            )


def check_jobs(n_jobs: object) -> None:
    """Refuse what is no number of jobs."""
    if n_jobs is not None and validate.integer("n_jobs", n_jobs, least=-1) == 0:
        raise ValueError("n_jobs must be -1, a positive number or None, got 0")


def as_list(name: str, value: object, least: int, exactly: int | None = None) -> list[Any]:
    """The entries, at least so many of them, or as many as there are spaces."""
    value = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        hint = "; for a stack of them, list(array)" if hasattr(value, "shape") else ""
        raise TypeError(f"{name} must be a list, or a dict by name, got {type(value).__name__}{hint}")
    if exactly is not None and len(value) != exactly:
        raise ValueError(f"{name} must have one entry for each of {exactly} spaces, got {len(value)}")
    if len(value) < least:
        raise ValueError(f"{name} must hold at least {least} spaces, got {len(value)}")
    return list(value)


def names_of(spaces: object) -> tuple[Any, ...] | None:
    """The names of spaces, None of those in a list."""
    return tuple(spaces) if isinstance(spaces, Mapping) else None


def _check_space(name: str, space: Any, distances: str, options: GWOptions) -> InputSpace:
    """The validated space and the kind of its distances."""
    checked = check_space(name, space, distances, options.spaces)
    warn_of_adjacencies(checked, asked=(distances,))
    if not checked.symmetric:
        raise ValueError(
            f"{name} must have the same distances in both directions, got {type(space).__name__} with others: give "
            f"(A + A.T) / 2, or align such pairs by gw_align"
        )
    # Few points seldom carry a neighbour graph: one short cut, or one gap, makes another shape of them.
    straight = distances == "auto" and checked.kind not in ("provider", "matrix") and not is_graph(space)
    if straight:
        return checked._replace(kind="euclidean")
    return checked._replace(kind="precomputed") if checked.kind in ("checked", "dijkstra") else checked


def _restrict_to_mass(space: InputSpace, mass: Array) -> InputSpace:
    """The points with mass."""
    index = np.flatnonzero(mass)
    return space if len(index) == len(mass) else restrict_space(space, None, torch.from_numpy(index))[0]


def _make_matrices(
    entries: list[Any], checked: list[InputSpace], masses: list[Array], options: GWOptions
) -> list[Array]:
    """Raw distances (n, n) of each space; warns where rounding does not tell points apart."""
    made = make_many_providers(checked, options.spaces)[0]
    numbers = [torch.from_numpy(np.flatnonzero(mass)) for mass in masses]
    positive = [torch.from_numpy(mass)[index] for mass, index in zip(masses, numbers, strict=True)]
    rows, apart = sample_differences(made, positive)
    names = [space.name for space in checked]
    found = explain_unresolved_points(names, made, positive, rows, to_host(*apart), numbers)
    found += map(explain_rounded_coordinates, checked, entries)
    if lost := [text for text in found if text]:
        more = f" (and so for {len(lost) - 1} other spaces)" if len(lost) > 1 else ""
        warn_caller(lost[0] + more, PrecisionWarning)
    return [_read_distances(space, provider) for space, provider in zip(checked, made, strict=True)]


def _read_distances(space: InputSpace, made: DistanceProvider) -> Array:
    """The distances of a space; errors of the user's own provider say which it is."""
    try:
        return _raw_distances(made)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{space.name}: {error}") from error


def _raw_distances(space: DistanceProvider) -> Array:
    """All distances in the units of the data, symmetric, with a zero diagonal; entries of adjacencies as they are."""
    everything = PrecomputedDistances.of(space.to(torch.device("cpu"), torch.float64), torch.device("cpu"))
    D: Array = everything.matrix.numpy() * float(space.scale)
    if not everything.metric:
        return D
    D = np.maximum((D + D.T) / 2, 0.0)  # factored distances may be slightly negative
    np.fill_diagonal(D, 0.0)
    return D
