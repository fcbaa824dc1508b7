"""Pairs of spaces as tasks for workers; each space is prepared once, when it is first needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from torchgw.options import GWOptions
from torchgw.pairwise.inputs import Inputs
from torchgw.pairwise.space import Space, prepare
from torchgw.pairwise.tiles import Pair, tiles
from torchgw.pairwise.work import Task

LARGEST = 1000


@dataclass(frozen=True)
class Maker:
    """Makes tasks of pairs of ``inputs``; see `Task` for what they share."""

    inputs: Inputs
    tol: float
    device: torch.device
    matchings: bool
    options: GWOptions
    seed: int
    prepared: dict[int, Space] = field(default_factory=dict)

    def tasks(self, wanted: Sequence[Pair]) -> list[Task]:
        """The wanted pairs in tiles, with the spaces that each needs; those of large spaces one by one, last."""
        sizes = self.inputs.sizes
        large = [pair for pair in wanted if max(sizes[i] for i in pair) > LARGEST]
        one_by_one = set(large)
        small = tiles(sizes, [pair for pair in wanted if pair not in one_by_one])
        return [self._task(tile, False) for tile in small] + [self._task([pair], True) for pair in large]

    def _task(self, pairs: list[Pair], large: bool) -> Task:
        spaces = {i: self._space(i) for pair in pairs for i in pair}
        return Task(pairs, spaces, self.tol, self.device, self.matchings, large, self.seed, self.options)

    def _space(self, i: int) -> Space:
        if i not in self.prepared:
            self.prepared[i] = prepare(self.inputs.distances[i], self.inputs.masses[i], self.seed % 2**32)
        return self.prepared[i]
