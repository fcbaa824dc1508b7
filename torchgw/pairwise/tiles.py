"""Which pairs are solved together: tiles of the table of all pairs, spaces sorted by size.

Pairs of a tile have about equal shapes and belong to few spaces, which is what a worker is sent. Tiles depend on the
sizes alone, so that every run of a problem has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

GROUP_POINTS = 600
GROUP_SPACES = 16

Pair: TypeAlias = tuple[int, int]


def n_pairs(n: int) -> int:
    """Pairs among n spaces."""
    return n * (n - 1) // 2


def position(i: int, j: int, n: int) -> int:
    """Where SciPy's condensed matrices have the pair i < j of n."""
    return n * i - i * (i + 1) // 2 + j - i - 1


def tiles(sizes: Sequence[int], wanted: Iterable[Pair]) -> list[list[Pair]]:
    """The ``wanted`` pairs (i, j) of spaces of these sizes, in tiles, the most work first."""
    group = _groups(sizes)
    found: dict[Pair, list[Pair]] = {}
    for i, j in wanted:
        first, second = sorted((group[i], group[j]))
        found.setdefault((first, second), []).append((i, j))
    work = {key: sum(sizes[i] * sizes[j] * (sizes[i] + sizes[j]) for i, j in pairs) for key, pairs in found.items()}
    return [found[key] for key in sorted(found, key=lambda key: (-work[key], key))]


def _groups(sizes: Sequence[int]) -> list[int]:
    """A group for each space: neighbours in the order of sizes, of few points together."""
    group, number, points, count = [0] * len(sizes), 0, 0, 0
    for space in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        if count and (points + sizes[space] > GROUP_POINTS or count == GROUP_SPACES):
            number, points, count = number + 1, 0, 0
        group[space], points, count = number, points + sizes[space], count + 1
    return group
