"""What ranks keep of a solve: a checkpoint of the first one, and beside it the shares of all.

    call.pt, streaming.climb.loop.pt, ...    see `torchgw.persist.checkpoint`: what all ranks have, by the first
    streaming.climb.loop.7.2-of-4.share      the matrices of which rank 2 of 4 has its share, of the 7th writing

The first rank decides what is written and when. A state names the writing whose shares it belongs to and how many ranks
there were, and is written when all shares are there; so a folder is valid at whatever moment a process was killed, and
another number of ranks takes the rows that are its own from whichever shares have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchgw.distributed.processes import Processes
from torchgw.persist.checkpoint import LOOP, Folder, ResumedCheckpoint, compute_seal, follow_solve, naming, write
from torchgw.persist.codec import storable
from torchgw.persist.watch import Journal, Watch
from torchgw.request.request import Request
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.ranks import cut_of
from torchgw.spaces.shared import SharedDistances
from torchgw.strategies.multilevel import MultilevelState
from torchgw.types import Callback, CheckpointWarning

SHARE = ".share"

Result = TypeVar("Result")
Map = Callable[[Tensor, int], Tensor]


@storable
@dataclass(frozen=True)
class ValueInParts:
    """A value whose shares lie in files of their own.

    value : with the rows of none.
    writing : the number of the writing.
    count : ranks that wrote.
    sizes : rows that each of the matrices has on all ranks together.
    """

    value: Any
    writing: int
    count: int
    sizes: list[int]


class SharedWatch(Watch):
    """A watch of each rank, which agree where all of them are at the same loop; the callback is the first one's."""

    def __init__(self, ranks: Processes, callback: Callback | None, journal: Journal | None) -> None:
        super().__init__(callback, journal)
        self.ranks = ranks

    def _read_cancellation_flags(self) -> tuple[bool, bool]:
        own = super()._read_cancellation_flags()
        if self.ranks.busy:
            return own
        stopped, acted_on = self.ranks.most(torch.tensor(own, dtype=torch.float32, device=self.ranks.device)).tolist()
        if stopped:
            self.stop()
        return bool(stopped), bool(acted_on)


@contextmanager
def follow_by_ranks(ranks: Processes, in_files: Mapping[str, Any], request: Request) -> Iterator[Watch]:
    """The watch of a solve that ranks share, in this context; the callback and the checkpoint are the first rank's.

    A checkpoint has all points, also those ``in_files``, by the names of the arguments, which the first rank did not
    read.

    Raises
    ------
    ValueError, TypeError, OSError
        As `torchgw.persist.checkpoint.follow_solve`, on all ranks.
    """
    generator, checkpoint, own = request.generator, request.checkpoint, list[Folder]()

    def call() -> dict[str, Any]:
        return (
            request.checkpoint_arguments()
            | {name: np.asarray(space[:]) for name, space in in_files.items()}
            | {"shared": True}
        )

    with ExitStack() as stack:

        def begin() -> tuple[Path, bytes, int] | None:
            journal = stack.enter_context(follow_solve(None, checkpoint, call, generator)).journal
            if not isinstance(journal, Folder):
                return None
            own.append(journal)
            written = [writing_and_rank(file)[0] for file in journal.folder.glob(f"*{SHARE}")]
            return journal.folder, journal.call, max(written, default=0)

        begun = ranks.run_on_first(begin)
        if isinstance(checkpoint, ResumedCheckpoint) and checkpoint.random is not None:
            generator.set_state(checkpoint.random)
        journal = None if begun is None else SharedFolder(ranks, own, generator, *begun)
        yield SharedWatch(ranks, request.callback if ranks.rank == 0 else None, journal)


class SharedFolder:
    """The journal of a solve that ranks share, see the head of this file and `torchgw.persist.watch.Journal`.

    Parameters
    ----------
    ranks, generator : of the solve.
    own : the folder of the first rank, nothing on others.
    folder, call : its path and seal.
    writing : the number of the last writing of shares.
    """

    def __init__(
        self, ranks: Processes, own: list[Folder], generator: torch.Generator, folder: Path, call: bytes, writing: int
    ) -> None:
        self.ranks, self.own, self.generator = ranks, own, generator
        self.folder, self.call, self.writing = folder, call, writing
        self.stages: list[str] = []

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        self.stages.append(name)
        try:
            with self.own[0].within(name) if self.own else nullcontext():
                yield
        finally:
            self.stages.pop()

    def stage(self, name: str, compute: Callable[[], Result], keep: Callable[[], bool]) -> Result:
        if self.ranks.busy:  # of one rank alone, inside of what all do
            return self.own[0].stage(name, compute, keep) if self.own else compute()
        with self.within(name):
            found = self._read_on_first(lambda: self.own[0].load_result())
            if found is not None:
                result: Result = self._join_shares(found[0])
                return result
            began = time.monotonic()
            result = compute()
            if self.ranks.run_on_first(lambda: keep() and self.own[0].is_worth_keeping(began)):
                self._keep(result, lambda value: self.own[0].finish(value))
            return result

    def last_state(self) -> Any:
        if self.ranks.busy:
            return self.own[0].last_state() if self.own else None
        return self._join_shares(self._read_on_first(lambda: self.own[0].last_state()))

    def store_state_if_due(self, state: Any, now: bool) -> None:
        if self.ranks.busy:
            if self.own:
                self.own[0].store_state_if_due(state, now)
        elif self.ranks.run_on_first(lambda: self.own[0].is_due(now)):
            self._keep(state, lambda value: self.own[0].write_state(value), LOOP)

    def _read_on_first(self, task: Callable[[], Any]) -> Any:
        """What the first rank reads, with the random state that it leaves."""
        found, state = self.ranks.run_on_first(lambda: (task(), self.generator.get_state()))
        self.generator.set_state(state)
        return found

    def _keep(self, value: Any, put: Callable[[Any], bool], *more: str) -> None:
        """Write the shares of all ranks, and then the value without them by the first."""
        shares, sizes = list[Tensor](), list[int]()

        def keep_share(share: Tensor, n: int) -> Tensor:
            shares.append(share)
            sizes.append(n)
            return share[:0].clone()

        rest, self.writing = map_shares(value, keep_share, None), self.writing + 1
        if not shares:
            self.ranks.run_on_first(lambda: put(rest))
            return
        file = self._share_path(self.writing, self.ranks.rank, self.ranks.count, *more)
        failed: Exception | None = None
        try:
            write(file, {"shares": [share.cpu() for share in shares]}, self.call + file.name.encode())
        except (MemoryError, OSError, RuntimeError) as error:
            failed = error
        whole = bool(self.ranks.least(torch.tensor(float(failed is None), device=self.ranks.device)))
        parted = ValueInParts(rest, self.writing, self.ranks.count, sizes)
        if self.ranks.run_on_first(lambda: whole and put(parted)) and self.ranks.rank == 0:
            stem = ".".join(self.stages)
            for old in self.folder.glob(f"{stem}.*{SHARE}"):
                if writing_and_rank(old)[0] < self.writing:
                    with suppress(OSError):
                        old.unlink()
        if failed is not None:
            warn_caller(f"{file} was not written ({failed}); the solve goes on", CheckpointWarning)

    def _join_shares(self, found: Any) -> Any:
        """A value with this rank's shares, from those of the ranks that wrote it."""
        if not isinstance(found, ValueInParts):
            return map_shares(found, lambda share, _: share, self.ranks)
        sizes = iter(enumerate(found.sizes))
        files = sorted(self.folder.glob(f"*.{found.writing}-*-of-{found.count}{SHARE}"))
        if len(files) != found.count:
            raise ValueError(
                f"{self.folder} must hold {found.count} files *.{found.writing}-*-of-{found.count}{SHARE}, got "
                f"{len(files)}; begin again in another folder"
            )
        opened = {}
        for file in files:
            with naming(file):
                compute_seal(file, self.call + file.name.encode())
                opened[writing_and_rank(file)[1]] = torch.load(file, mmap=True, weights_only=True)["shares"]

        def own(_: Tensor, n: int) -> Tensor:
            number, size = next(sizes)
            if size != n:
                raise ValueError(f"{self.folder} holds shares of {size} points, where {n} were expected")
            wanted, rows = self.ranks.share(n), []
            for rank, shares in opened.items():
                theirs = cut_of(n, rank, found.count)
                first, last = max(wanted.start, theirs.start), min(wanted.stop, theirs.stop)
                if first < last:
                    rows.append((first, shares[number][first - theirs.start : last - theirs.start]))
            return torch.cat([part for _, part in sorted(rows, key=lambda row: row[0])]).to(self.ranks.device)

        return map_shares(found.value, own, self.ranks)

    def _share_path(self, writing: int, rank: int, count: int, *more: str) -> Path:
        return self.folder / (".".join((*self.stages, *more, f"{writing}-{rank}-of-{count}")) + SHARE)


def writing_and_rank(file: Path) -> tuple[int, int]:
    """The writing and the rank that a file of shares belongs to, by its name."""
    writing, rank = file.name.rsplit(".", 2)[1].split("-")[:2]
    return int(writing), int(rank)


def map_shares(value: Any, change: Map, ranks: Processes | None) -> Any:
    """What stages and loops of ranks keep, with each matrix of which a rank has a share changed by a function of it and
    of the number of rows of all; files hold no ``ranks``."""
    if type(value) is tuple:
        return tuple(map_shares(part, change, ranks) for part in value)
    if isinstance(value, SharedDistances):
        return value._with(_F=change(value._F, value.n), ranks=ranks)
    if isinstance(value, MultilevelState):
        cost, score, n, k = value.cost, value.score, len(value.f), len(value.g)
        cost = replace(cost, U=change(cost.U, n), V=change(cost.V, k))
        score = replace(score, A=change(score.A, n), B=change(score.B, k))
        return replace(value, cost=cost, score=score)
    return value
