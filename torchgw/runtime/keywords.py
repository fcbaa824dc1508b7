"""What constructors show and refuse: words that a function or a group of options does not have, with what stands for
them or was meant; and records that the library alone makes, whose constructors help does not show."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")
Kind = TypeVar("Kind", bound=type)
NEAR, SHORT = 0.8, 3  # likeness from which a word is a slip of the pen for another, and letters that are too few for it
WITHOUT = {
    "log": "the result holds all of it in any case, that of gw_align as result.value and result.history",
    "symmetric": "distances are symmetric, and distances='adjacency' sees by itself whether a matrix is",
    "armijo": "the length of every step is found without a search",
}


def refusal(name: str, word: str, answers: Mapping[str, str]) -> str:
    """What to say of a word that ``name`` does not take, where ``answers`` has other words and what stands for them."""
    if word in WITHOUT:
        return f"{name} has no argument {word!r}: {WITHOUT[word]}; leave it out"
    if word in answers:
        return f"{name} has no argument {word!r}; here that is {answers[word]}"
    near = get_close_matches(word.lower(), answers, 1, NEAR) if len(word) > SHORT else []
    meant = "".join(f"; did you mean {answers[found]}?" for found in near)
    return f"{name}() got an unexpected keyword argument {word!r}{meant}"


def places(options: type[Any], before: str = "") -> dict[str, str]:
    """Where each member of options and of their groups stands, by its name: in each group that has one of it."""
    found: dict[str, str] = {}
    for member in fields(options):
        group: Any = member.default_factory
        inner = "..." if group is MISSING else f"{group.__name__}(...)"
        found[member.name] = f"{before}{options.__name__}({member.name}={inner})"
        for option in () if group is MISSING else fields(group):
            place = f"{before}{options.__name__}({member.name}={group.__name__}({option.name}=...))"
            found[option.name] = f"{found[option.name]}, or {place}" if option.name in found else place
    return found


class Worded:
    """A dataclass of options whose constructor answers words that it does not have."""

    def __new__(cls: type[T], *_: object, **given: object) -> T:
        own = {member.name: member.name for member in fields(cls)}  # type: ignore[arg-type]
        for word in filter(lambda word: word not in own, given):
            raise TypeError(refusal(cls.__name__, word, places(cls) | own))
        return object.__new__(cls)


def hide_constructor(kind: Kind) -> Kind:
    """A decorator of records that functions return and users do not make: help and the reference show no arguments of
    the constructor, and no defaults of fields. It takes them as before, as `dataclasses.replace` and pickle need it."""
    made = vars(kind)["__init__"]
    made.__signature__ = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)])
    made.__doc__ = "Made by the functions of the library."
    for name in [field.name for field in fields(kind)] if is_dataclass(kind) else ():
        if name in vars(kind):
            delattr(kind, name)
    return kind
