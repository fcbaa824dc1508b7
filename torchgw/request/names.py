"""Names of points: given, or taken from the index of a data frame or the nodes of a networkx graph.

They stand beside a solve and change nothing in it. Names are told apart by what files keep of them: texts, numbers and
tuples of these as they are, and the text of everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchgw import validate
from torchgw.types import is_table

logger = logging.getLogger("torchgw")

KEPT = (str, int, float, bool, type(None))


def check_names(space: str, given: Iterable[Any] | None, points: Any, size: int) -> NDArray[np.object_] | None:
    """The names (N,) of the points of X or Y: those ``given``, else those that the points bring, else None.

    Raises
    ------
    ValueError, TypeError
        For given names that are not one for each point, unique and hashable.
    """
    if given is None:
        return _own_names(space, points, size)
    argument = f"names_{space.lower()}"
    names = _to_list(argument, given)
    if len(names) != size:
        raise ValueError(
            f"{argument} must have one name for each of the {size} points of {space}, got {len(names)}; names go in "
            f"the order of the points"
        )
    fault = find_fault(names)
    if fault:
        raise ValueError(f"{argument} must name each point of {space} differently, got {fault}")
    return as_names(names)


def as_names(names: Sequence[Any]) -> NDArray[np.object_]:
    """An array (N,) of objects; tuples stay tuples."""
    return np.fromiter(names, dtype=object, count=len(names))


def names_to_save(names: Iterable[Any] | None) -> list[Any] | None:
    """What files keep of names; None of none."""
    return None if names is None else [_name_to_save(name) for name in names]


def _name_to_save(name: Any) -> Any:
    if isinstance(name, tuple):
        return tuple(_name_to_save(part) for part in name)
    return name if type(name) in KEPT else str(name)


def _own_names(space: str, points: Any, size: int) -> NDArray[np.object_] | None:
    """The names that points bring; None where these only count the points, or do not tell them apart."""
    if is_table(points) and hasattr(points, "index"):
        what, names = "index", points.index.tolist()
    elif validate.is_networkx(points):
        what, names = "nodes", list(points)
    else:
        return None
    fault = find_fault(names)
    if fault:
        logger.info("the %s of %s gives its points no names: it has %s", what, space, fault)
        return None
    return None if names == list(range(size)) else as_names(names)


def _to_list(argument: str, given: Any) -> list[Any]:
    """Names in a list; NumPy's numbers and texts as Python's."""
    other = isinstance(given, set | frozenset | str | bytes) or is_table(given)  # has no order, or one of letters
    if other or not isinstance(given, Iterable) or getattr(given, "shape", None) == ():
        raise TypeError(
            f"{argument} must be a list or array of names in the order of the points, got {type(given).__name__}"
        )
    names = given.tolist() if isinstance(given, Tensor) else list(given)
    names = [name.item() if isinstance(name, np.number | np.bool_ | np.character) else name for name in names]
    return validate.labels(argument, names)


def find_fault(names: list[Any]) -> str:
    """What is wrong with names, and what to do about it; nothing where they are unique."""
    missing = next((i for i, name in enumerate(names) if validate.is_missing(name) or name == ""), None)
    if missing is not None:
        return f"none ({names[missing]!r}) for point {missing}; fill it in, or leave out the point"
    seen = dict[Any, int]()
    for i, name in enumerate(names):
        first = seen.setdefault(_name_to_save(name), i)
        if first != i:
            return f"{name!r} for points {first} and {i}; add to it what tells them apart"
    return ""
