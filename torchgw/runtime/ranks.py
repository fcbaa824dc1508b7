"""The processes that share one solve, seen from one of them; here that one is alone.

What is a number for each point, an order of points or the narrow factors of a score is the same in every process. Wide
matrices, coordinates, factors of distances and of costs, are divided: of the N rows each process, a rank, has a run,
its share. So a formula that sums over points takes the ranks, sums what is here, and `Ranks.sum` does the rest; whoever
is alone has all rows, and nothing to exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


LOST = "has lost the others"


class RankError(RuntimeError):
    """Another rank has ended, or has not answered within the timeout of the group."""


class Ranks:
    """One process alone: every exchange gives back what it was given. `torchgw.distributed` has those of several.

    Every rank must call the same methods in the same order, with tensors of the same shapes but for shares.

    rank, count : the number of this one, and how many there are.
    busy : whether this one does a task of its own, in which it exchanges nothing.
    device : where what is exchanged lies.
    """

    rank = 0
    count = 1
    busy = False
    device = torch.device("cpu")

    def cut(self, n: int, rank: int, unit: int = 1) -> slice:
        """The share of n rows that a rank has; shares end at multiples of ``unit``."""
        return cut_of(n, rank, self.count, unit)

    def share(self, n: int, unit: int = 1) -> slice:
        """This rank's share of n rows."""
        return self.cut(n, self.rank, unit)

    def own(self, values: Tensor, unit: int = 1) -> Tensor:
        """This rank's rows of values (N, ...) that all ranks have."""
        return values if self.count == 1 else values[self.share(len(values), unit)]

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks, entry by entry."""
        return values

    def most(self, values: Tensor) -> Tensor:
        """The largest over the ranks, entry by entry."""
        return values

    def least(self, values: Tensor) -> Tensor:
        """The smallest over the ranks, entry by entry."""
        return -self.most(-values)

    def all_gather(self, share: Tensor, n: int, unit: int = 1) -> Tensor:
        """The n rows of which each rank has its share."""
        return share

    def gather(self, share: Tensor, n: int, index: Tensor) -> Tensor:
        """The rows ``index`` (m,), the same on all ranks, of n that are shared."""
        return share[index]

    def permute(self, share: Tensor, order: Tensor, unit: int = 1) -> Tensor:
        """This rank's share of ``values[order]`` (N, r), an order (N,) that all know of rows that are shared."""
        return share[order]

    def ring(
        self, shares: Sequence[Tensor], n: int, unit: int, most: int | None = None
    ) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """Runs of rows of matrices of n rows, of which each rank has its shares, one run after the other: where they
        lie, and the rows of each matrix. A run is of one rank and of at most ``most`` rows, a multiple of ``unit``."""
        yield slice(0, n), tuple(shares)

    def scatter_rows(self, values: Tensor | None, n: int, like: Tensor, source: int) -> Tensor:
        """This rank's rows of values (n, ...) that the rank ``source`` has, of the kind of the rows of ``like``."""
        assert values is not None
        return values

    def scatter(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of tasks that are divided among the ranks, on all of them."""
        return [task() for task in tasks]

    def run_on_first(self, task: Callable[[], Result]) -> Result:
        """The result of a task that the first rank does, on all of them."""
        return self.scatter([task])[0]


def cut_of(n: int, rank: int, count: int, unit: int = 1) -> slice:
    """The share of n rows that one of ``count`` ranks has; shares end at multiples of ``unit``."""
    units = -(-n // unit)
    first, last = (units * at // count * unit for at in (rank, rank + 1))
    return slice(min(first, n), min(last, n))


ALONE = Ranks()


def ranks_of(holder: Any) -> Ranks:
    """The ranks that share a space; most have none but this one."""
    found: Ranks = getattr(holder, "ranks", ALONE)
    return found
