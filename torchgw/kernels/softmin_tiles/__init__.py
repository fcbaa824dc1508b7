"""Softmins and reading of a score A B^T on the tiles that are kept: the dispatch chain of this family."""

from __future__ import annotations

from torchgw.kernels.dispatch import Implementation, Request, Selection, select
from torchgw.kernels.softmin_tiles import reference
from torchgw.kernels.softmin_tiles.reference import Read
from torchgw.kernels.softmin_tiles.tile_kernel import TileKernel

__all__ = ["FAMILY", "Read", "TileKernel", "choose"]

FAMILY: tuple[Implementation[TileKernel], ...] = (
    Implementation("eager", lambda _: None, lambda _: None, lambda _: TileKernel(reference.softmin, reference.read)),
)


def choose(backend: str, request: Request) -> Selection[TileKernel]:
    """The implementation that runs this request; see `dispatch.select`."""
    return select(FAMILY, backend, request)
