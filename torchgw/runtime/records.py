"""Records of tensors as a list of tensors and a tree that can be hashed, and back.

What is taken apart: lists, tuples, dictionaries, dataclasses, partial functions, and the package's own objects by their
attributes. What they have cached (`functools.cached_property`) is left behind. Constants are numbers, strings, the
package's own functions, and the like. Objects and functions of others are none, as nobody knows what they do or read.

A tree is, and is made of plain tuples because it is made often,

    a number                a tensor, by its place in the list
    (class, value)          a constant: 1, 1.0 and True are not the same
    (class, names, trees)   a record with tensors somewhere in it, and the names of its members where it has any
    `Whole`                 a record without
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from enum import Enum
from functools import cache, cached_property, partial
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = Any
PLAIN = frozenset((bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.Size, type))


class Whole:
    """A record without tensors, which stays the same object: it may be asked whether it is another one."""

    __slots__ = ("tree", "value")

    def __init__(self, tree: Hashable, value: Any) -> None:
        self.tree, self.value = tree, value

    def __hash__(self) -> int:
        return hash(self.tree)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Whole) and self.tree == other.tree


def flatten(value: Any) -> tuple[list[Tensor], Tree]:
    """The tensors of a record, each once, and the tree of what is around them.

    Raises
    ------
    TypeError
        For an object or a function of another package.
    """
    tensors = list[Tensor]()
    return tensors, _tree(value, tensors, {})


def _tree(value: Any, tensors: list[Tensor], known: dict[int, int]) -> Tree:
    """The tree of a record, whose tensors are added to those that are ``known`` by their places."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if isinstance(value, Tensor):
        number = known.setdefault(id(value), len(tensors))
        if number == len(tensors):
            tensors.append(value)
        return number
    if kind is float:
        return kind, value.hex()  # which tells -0.0 from 0.0, and is the same for every NaN
    names: tuple[Hashable, ...] = ()
    members: Any
    if isinstance(value, tuple | list):
        members = value
    elif kind is dict:
        names, members = tuple(value), value.values()
    elif kind is partial:
        members = value.func, value.args, value.keywords
    elif isinstance(value, Enum) or (kind is FunctionType and _is_own(value)):
        return kind, value
    else:
        names = _members(kind, value)
        held = vars(value)
        members = [held[name] for name in names]
    parts = tuple([_tree(member, tensors, known) for member in members])
    found = kind, names, parts
    return found if any(map(_holds, parts)) else Whole(found, value)


def _holds(tree: Tree) -> bool:
    """Whether there is a tensor in it."""
    return type(tree) is int or (type(tree) is tuple and len(tree) == 3)


def unflatten(tree: Tree, tensors: list[Tensor]) -> Any:
    """The record of a tree with these tensors."""
    if type(tree) is int:
        return tensors[tree]
    if type(tree) is Whole:
        return tree.value
    if len(tree) == 2:
        kind, value = tree
        return float.fromhex(value) if kind is float else value
    kind, names, trees = tree
    parts: Iterator[Any] = (unflatten(part, tensors) for part in trees)
    if kind is tuple or kind is list:
        return kind(parts)
    if kind is dict:
        return dict(zip(names, parts, strict=True))
    if kind is partial:
        function, given, named = parts
        return partial(function, *given, **named)
    if issubclass(kind, tuple):
        return kind(*parts)
    made = object.__new__(kind)
    made.__dict__.update(zip(names, parts, strict=True))
    return made


def _members(kind: type, value: Any) -> tuple[str, ...]:
    """The names of the members of a record."""
    fields, cached = _fields(kind)
    return fields or tuple(name for name in vars(value) if name not in cached)


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """The members of a dataclass, none where each object has its own; what objects keep once they have computed it."""
    if not _is_own(kind) or "__dict__" not in dir(kind):
        raise TypeError(f"{kind.__name__} is no record of the package")
    if dataclasses.is_dataclass(kind):
        return tuple(entry.name for entry in dataclasses.fields(kind)), frozenset()
    held = (entry for base in kind.__mro__ for entry in vars(base).items())
    return (), frozenset(name for name, each in held if isinstance(each, cached_property))


def _is_own(kind: Any) -> bool:
    """Whether a class or a function is the package's."""
    return str(kind.__module__).partition(".")[0] == "torchgw"
