"""What a checkpoint of `gw_align` knows: the classes that its files may name, and how a call is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from torchgw.couplings.reader import Readable
from torchgw.marginals import MARGINALS
from torchgw.options import GROUPS, GWOptions
from torchgw.persist.checkpoint import Checkpoint, Folder, begin
from torchgw.persist.codec import KIND, encode, storable
from torchgw.persist.files import path_of
from torchgw.persist.watch import Watch
from torchgw.types import Callback, is_provider

for _kind in (GWOptions, *GROUPS.values(), *MARGINALS.values()):  # modules below the codec
    storable(_kind)


@dataclass(frozen=True)
class Continued(Checkpoint):
    """A checkpoint that is there and goes on, and the random state that its solve began with."""

    random: Tensor | None = None


@contextmanager
def followed(
    callback: Callback | None,
    checkpoint: str | PathLike[str] | Checkpoint | None,
    call: dict[str, Any],
    generator: torch.Generator,
) -> Iterator[Watch]:
    """Who follows a solve with these arguments, in this context.

    Raises
    ------
    ValueError, TypeError
        For a checkpoint that cannot be made, and arguments that it cannot hold.
    """
    if checkpoint is None:
        yield Watch(callback)
        return
    if isinstance(checkpoint, Continued):
        assert checkpoint.random is not None
        generator.set_state(checkpoint.random)
        folder = Folder(checkpoint, generator)
    else:
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(path_of("checkpoint", checkpoint, "a folder, or be a Checkpoint"))
        folder = begin(checkpoint, kept(call), generator)
    with closing(folder):
        yield Watch(callback, folder)


def kept(call: dict[str, Any]) -> Any:
    """Arguments as they are written down, encoded. Of spaces that are providers it is their looks, see `looks_of`.

    Raises
    ------
    TypeError
        For an argument that files cannot hold, by name.
    """
    if isinstance(call["init"], Readable):
        call = call | {"init": call["init"].plan}
    again = {name: looks_of(call[name]) for name in "XY" if is_provider(call[name])}
    items = [[name, _encoded(name, value)] for name, value in (call | dict.fromkeys(again)).items()]
    return {KIND: "dict", "items": [*items, ["again", encode(again)]]}


def _encoded(name: str, value: Any) -> Any:
    try:
        return encode(value)
    except TypeError as error:
        raise TypeError(f"checkpoint cannot hold {name}: {error}") from error


def looks_of(space: Any) -> tuple[int, float, Tensor]:
    """What a provider is known by when it is given again: its size, its scale, and its first row."""
    return space.size, float(space.scale), space.rows(torch.tensor([0]))[0].cpu()
