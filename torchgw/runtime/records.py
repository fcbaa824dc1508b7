"""Records of tensors as a list of tensors and a tree that can be hashed, and back.

What is taken apart: lists, tuples, dictionaries, dataclasses, partial functions, and the package's own objects by their
attributes. What they have cached (`functools.cached_property`) is left behind. Constants are numbers, strings,
functions, and the like; objects of other packages are none, as nobody knows what they do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from enum import Enum
from functools import cache, cached_property, partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.Size, FunctionType, type)


class Leaf(NamedTuple):
    """The place of a tensor in the list, its ``number``."""

    number: int


class Constant(NamedTuple):
    """A ``value`` that is no record, with its class, the ``kind``: 1, 1.0 and True are not the same."""

    kind: type
    value: Hashable


class Node(NamedTuple):
    """A record of a class, the ``kind``: its ``parts``, and their ``names`` where it has any."""

    kind: Any
    names: tuple[Hashable, ...]
    parts: tuple[Tree, ...]


Tree = Leaf | Constant | Node


def flattened(value: Any) -> tuple[list[Tensor], Tree]:
    """The tensors of a record, each once, and the tree of what is around them.

    Raises
    ------
    TypeError
        For an object of another package.
    """
    tensors, known = list[Tensor](), dict[int, int]()

    def tree(value: Any) -> Tree:
        kind: Any = type(value)
        if isinstance(value, Tensor):
            number = known.setdefault(id(value), len(tensors))
            if number == len(tensors):
                tensors.append(value)
            return Leaf(number)
        if kind is float:
            return Constant(float, value.hex())  # which tells -0.0 from 0.0, and is the same for every NaN
        if kind in PLAIN:
            return Constant(kind, value)
        if kind is tuple or kind is list:
            return Node(kind, (), tuple(map(tree, value)))
        if kind is dict:
            return Node(dict, tuple(value), tuple(map(tree, value.values())))
        if kind is partial:
            return Node(partial, (), (tree(value.func), tree(value.args), tree(value.keywords)))
        if isinstance(value, tuple):
            return Node(kind, (), tuple(map(tree, value)))
        if isinstance(value, Enum):
            return Constant(kind, value)
        names = _members(kind)
        if names is None:
            raise TypeError(f"{kind.__name__} is no record of the package")
        held = vars(value)
        shown = names or tuple(name for name in held if name not in _cached(kind))
        return Node(kind, shown, tuple(tree(held[name]) for name in shown))

    return tensors, tree(value)


def restored(tree: Tree, tensors: list[Tensor]) -> Any:
    """The record of a tree with these tensors."""
    if isinstance(tree, Leaf):
        return tensors[tree.number]
    if isinstance(tree, Constant):
        return float.fromhex(str(tree.value)) if tree.kind is float else tree.value
    parts: Iterator[Any] = (restored(part, tensors) for part in tree.parts)
    kind = tree.kind
    if kind is tuple or kind is list:
        return kind(parts)
    if kind is dict:
        return dict(zip(tree.names, parts, strict=True))
    if kind is partial:
        function, given, named = parts
        return partial(function, *given, **named)
    if issubclass(kind, tuple):
        return kind(*parts)
    made = object.__new__(kind)
    made.__dict__.update(zip(tree.names, parts, strict=True))
    return made


@cache
def _members(kind: type) -> tuple[str, ...] | None:
    """The names of the members of a record, none where each object has its own; None of what is no record."""
    if dataclasses.is_dataclass(kind):
        return tuple(entry.name for entry in dataclasses.fields(kind))
    ours = kind.__module__.partition(".")[0] == "torchgw"
    return () if ours and hasattr(kind, "__dict__") and "__dict__" in dir(kind) else None


@cache
def _cached(kind: type) -> frozenset[str]:
    """The names of what objects of a class keep once they have computed it."""
    return frozenset(
        name for base in kind.__mro__ for name, held in vars(base).items() if isinstance(held, cached_property)
    )
