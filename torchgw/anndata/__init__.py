"""Alignment of AnnData: cells in, cells out."""

from torchgw.anndata.cells import align, joint, read, write

__all__ = ["align", "joint", "read", "write"]


def __dir__() -> list[str]:
    return sorted(__all__)
