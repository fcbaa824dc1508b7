"""What is read of a plan on kept tiles in one pass."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Read(NamedTuple):
    """T V (N, d), T^T W (K, e), and for each row its largest entry (N,) and that one's column (N,)."""

    moved: Tensor
    back: Tensor
    largest: Tensor
    at: Tensor
