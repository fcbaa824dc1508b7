"""Process groups: started where there are none, and as the ranks of a solve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchgw import validate
from torchgw.distributed.processes import Processes

TIMEOUT = 1800.0


@contextmanager
def started(timeout: float = TIMEOUT, device: str | torch.device | None = None) -> Iterator[dist.ProcessGroup]:
    """The group of all processes that ``torchrun`` started, in this context; without ``torchrun``, of this one alone.

    Parameters
    ----------
    timeout : seconds that a rank waits for the others; one that ends is noticed at once, by its closed connection.
    device : "cpu" for gloo between CPUs, "cuda" for NCCL between GPUs, one for each local rank; by default GPUs where
        there is one for each.

    Raises
    ------
    ValueError
        When a group is there already, or the device is not.
    """
    seconds = validate.real("timeout", timeout, above=0.0)
    if device is not None:
        validate.device("device", device)
    if dist.is_initialized():
        raise ValueError("a process group is there already: give it, group=torch.distributed.group.WORLD")
    if "RANK" not in os.environ:
        with _open_single_group() as alone:
            yield alone
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    several = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    kind = torch.device(("cuda" if several else "cpu") if device is None else device).type
    if kind == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=seconds))
    try:
        yield _world_group()
        dist.barrier()  # who leaves while others still read ends them
    finally:
        dist.destroy_process_group()


@contextmanager
def open_ranks(group: Any, device: Any) -> Iterator[Processes]:
    """The ranks of a process group or `DeviceMesh`, by default of all processes that ``torchrun`` started, or of this
    one alone; where there is no group of them, it is started for this context."""
    if group is None and not dist.is_initialized():
        with started(device=device) as world:
            yield Processes(world, _group_device(world))
        return
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise ValueError(f"group must be a DeviceMesh of one dimension, got {group.ndim}; take mesh['name']")
        group = group.get_group()
    found = _world_group() if group is None else group
    if found == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("group must be one that this process is in")
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(f"group must be a process group of torch.distributed, or a DeviceMesh, got {found!r}")
    yield Processes(found, _group_device(found))


@contextmanager
def _open_single_group() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield _world_group()
    finally:
        dist.destroy_process_group()


def _world_group() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert isinstance(world, dist.ProcessGroup)
    return world


def _group_device(group: dist.ProcessGroup) -> torch.device:
    """Where the tensors of a rank lie, by the group's backend."""
    on_gpus = "nccl" in dist.get_backend(group)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpus else torch.device("cpu")
