"""Ranks that are processes of `torch.distributed`: the exchanges of `torchgw.runtime.ranks` as its collectives.

    sum, most, taken            all_reduce             2 (R - 1) b bytes by all R ranks together, for a result of b
    moved                       all_to_all             (R - 1) / R b
    divided                     from one rank          (R - 1) / R b
    joined, passed, dealt       broadcasts             (R - 1) b, for all that is passed

NCCL carries tensors between GPUs, gloo those of the CPU. What is no tensor goes as its bytes.
"""

from __future__ import annotations

import io
import pickle
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from torchgw.runtime.memory import give_back
from torchgw.runtime.ranks import LOST, RankError, Ranks

Result = TypeVar("Result")

COLUMNS = 16  # of a matrix that are moved at a time: beside it and its rows elsewhere little is held
REASON = re.compile(r"Connection \w+(?: by peer)?|[Tt]imed out[^.\n]*|Broken pipe")


class Processes(Ranks):
    """The ranks of a process group.

    Parameters
    ----------
    group : of `torch.distributed`.
    device : where this rank's tensors are.

    Attributes
    ----------
    sent : bytes that all ranks together have sent, by the kind of exchange, as the model of its collectives has it.
    waited : seconds in exchanges.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.sent: Counter[str] = Counter()
        self.waited = 0.0

    @contextmanager
    def _exchange(self, kind: str, bytes_sent: float) -> Iterator[None]:
        """Counts what is sent; the errors of a group whose ranks have gone are told as such."""
        assert not self.busy, f"{kind} within a task of one rank"
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            said = REASON.search(str(error))
            reason = said[0] if said else type(error).__name__
            raise RankError(
                f"rank {self.rank} of {self.count} {LOST}: one of them has ended, or has not answered "
                f"within the timeout of the group ({reason}); torchgw.distributed.resume goes on with a checkpoint"
            ) from error
        self.sent[kind] += round(bytes_sent)
        self.waited += time.perf_counter() - began

    def _reduce(self, values: Tensor, operation: Any, kind: str) -> Tensor:
        found = values.contiguous().clone()
        with self._exchange(kind, 2 * (self.count - 1) * found.nbytes):
            dist.all_reduce(found, operation, self.group)
        return found

    def sum(self, values: Tensor) -> Tensor:
        return self._reduce(values, dist.ReduceOp.SUM, "sum")

    def most(self, values: Tensor) -> Tensor:
        return self._reduce(values, dist.ReduceOp.MAX, "most")

    def all_gather(self, share: Tensor, n: int, unit: int = 1) -> Tensor:
        found = share.new_empty(n, *share.shape[1:])
        for rank in range(self.count):  # all_gather would pad, and makes copies of all
            rows = found[self.cut(n, rank, unit)]
            if rank == self.rank:
                rows.copy_(share)
            with self._exchange("joined", (self.count - 1) * rows.nbytes):
                dist.broadcast(rows, self._global_rank(rank), self.group)
        return found

    def gather(self, share: Tensor, n: int, index: Tensor) -> Tensor:
        own = self.share(n)
        found = share.new_zeros(len(index), *share.shape[1:])
        here = torch.nonzero((index >= own.start) & (index < own.stop))[:, 0]
        found[here] = share[index[here] - own.start]
        return self._reduce(found, dist.ReduceOp.SUM, "taken")

    def permute(self, share: Tensor, order: Tensor, unit: int = 1) -> Tensor:
        n, own = len(order), self.share(len(order))
        sent, received = [], []
        for rank in range(self.count):
            wanted = order[self.cut(n, rank, unit)]
            sent.append(wanted[(wanted >= own.start) & (wanted < own.stop)] - own.start)
            theirs, place = self.cut(n, rank), order[self.share(n, unit)]
            received.append(torch.nonzero((place >= theirs.start) & (place < theirs.stop))[:, 0])
        leaving, place, sizes = torch.cat(sent), torch.cat(received), (list(map(len, received)), list(map(len, sent)))
        found = share.new_empty(len(place), share.shape[1])
        for some, theirs in zip(*(torch.split(rows, COLUMNS, 1) for rows in (share, found)), strict=True):
            outgoing = some[leaving]
            incoming = outgoing.new_empty(len(place), outgoing.shape[1])
            row = outgoing.element_size() * outgoing.shape[1]
            with self._exchange("moved", (self.count - 1) / self.count * n * row):
                dist.all_to_all_single(incoming, outgoing, *sizes, self.group)
            theirs[place] = incoming
        return found

    def ring(
        self, shares: Sequence[Tensor], n: int, unit: int, most: int | None = None
    ) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        for rank in range(self.count):
            cut = self.cut(n, rank, unit)
            step = max(cut.stop - cut.start, 1) if most is None else most
            for start in range(cut.start, cut.stop, step):
                run = slice(start, min(start + step, cut.stop))
                give_back()  # a pass is where most is needed
                yield (
                    run,
                    tuple(
                        self._broadcast_rows(share, rank, slice(run.start - cut.start, run.stop - cut.start))
                        for share in shares
                    ),
                )

    def _broadcast_rows(self, share: Tensor, rank: int, where: slice) -> Tensor:
        """Rows of the share of one rank."""
        own = rank == self.rank
        rows = share[where].contiguous() if own else share.new_empty(where.stop - where.start, *share.shape[1:])
        with self._exchange("passed", (self.count - 1) * rows.nbytes):
            dist.broadcast(rows, self._global_rank(rank), self.group)
        return rows

    def scatter_rows(self, values: Tensor | None, n: int, like: Tensor, source: int) -> Tensor:
        """This rank's rows of values (n, ...) that the rank ``source`` has, which look like those of ``like``."""
        own = self.share(n)
        if self.rank == source:
            assert values is not None
            found = values[own]
        else:
            found = like.new_empty(own.stop - own.start, *like.shape[1:])
        with self._exchange("divided", (self.count - 1) / self.count * n * like[:1].nbytes):
            if self.rank == source:
                assert values is not None
                for rank in range(self.count):
                    if rank != source:
                        dist.send(values[self.cut(n, rank)].contiguous(), self._global_rank(rank), self.group)
            else:
                dist.recv(found, self._global_rank(source), self.group)
        return found

    def _global_rank(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)

    def scatter(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        numbered = enumerate(tasks)
        own = {number: self._try_task(task) for number, task in numbered if number % self.count == self.rank}
        found = []
        for number in range(len(tasks)):
            done = own.get(number)
            result, error = self._broadcast(
                None if done is None else (done[0], _to_sendable(done[1])), number % self.count
            )
            if error is not None:
                self.meet()
                raise error if done is None or done[1] is None else done[1]
            found.append(result)
        return found

    def meet(self) -> None:
        """Wait for all ranks: one that leaves the group while others still read may break it."""
        with self._exchange("meet", 0):
            dist.barrier(self.group)

    def _try_task(self, task: Callable[[], Result]) -> tuple[Result | None, BaseException | None]:
        """A task of this rank alone: what it gives, or how it fails."""
        self.busy = True
        try:
            return task(), None
        except Exception as error:
            return None, error
        finally:
            self.busy = False

    def _broadcast(self, value: Any, source: int) -> Any:
        """A value of one rank, on all of them; its tensors on each one's device."""
        data = io.BytesIO()
        if self.rank == source:
            _CpuPickler(data, pickle.HIGHEST_PROTOCOL).dump(value)
        size = torch.tensor([data.getbuffer().nbytes], device=self.device)
        with self._exchange("dealt", 8 * (self.count - 1)):
            dist.broadcast(size, self._global_rank(source), self.group)
        raw = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == source:
            raw.copy_(torch.frombuffer(data.getbuffer(), dtype=torch.uint8))
        with self._exchange("dealt", (self.count - 1) * raw.nbytes):
            dist.broadcast(raw, self._global_rank(source), self.group)
        if self.rank == source:
            return value
        return _Unpickler(io.BytesIO(raw.cpu().numpy().tobytes()), self.device).load()


def _to_sendable(error: BaseException | None) -> BaseException | None:
    """An error that other ranks can be told; in words where it cannot be pickled, or made again."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class of somebody else's raises
        return RankError(f"a task of another rank raised {type(error).__name__}: {error}")
    return error


class _CpuPickler(pickle.Pickler):
    """Writes tensors of a device as those of the CPU."""

    def persistent_id(self, value: Any) -> Tensor | None:
        return value.cpu() if isinstance(value, Tensor) and value.device.type != "cpu" else None


class _Unpickler(pickle.Unpickler):
    """Reads what another rank has written, with the tensors of its device on this one's."""

    def __init__(self, data: io.BytesIO, device: torch.device) -> None:
        super().__init__(data)
        self.device = device

    def persistent_load(self, value: Tensor) -> Tensor:
        return value.to(self.device)
