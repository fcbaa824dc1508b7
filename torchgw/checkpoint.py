"""Checkpoints: a folder that holds a call, the stages of its solve that are done, and where the running loop is.

    call.pt                      the arguments, and the random state at the beginning
    dense.search.pt              the result of a stage
    dense.solve-0.loop.pt        the state of a loop; gone when its stage is done

A file is written aside and then renamed, so each is whole or not there. A stage or loop state has the random state with
it. What is missing is computed again and comes out the same, so a folder is good whenever its owner was killed.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile, is_zipfile

import torch

from torchgw import validate
from torchgw.codec import Codec

logger = logging.getLogger("torchgw")

FORMAT = 1
CALL = "call"
LOOP = "loop"
SHORT = 1.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Checkpoint:
    """Where a solve is kept, and how often.

    Parameters
    ----------
    path : a folder, made by the solve; it must not be there before.
    every : seconds after which the state of a loop is written again; 0 writes every iteration. Stages that took longer
        than this, or than a second, are written when they end.

    Notes
    -----
    Takes the space of X and Y, and of what the loop needs: with the dense strategy a few times 8 bytes for each pair of
    points, O((N + K) r) otherwise.
    """

    path: str | PathLike[str]
    every: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | PathLike):
            raise TypeError(f"path must be the name of a folder, got {type(self.path).__name__}")
        object.__setattr__(self, "every", validate.real("every", self.every, least=0.0))


class Folder:
    """The journal of one solve, in the folder of a checkpoint; see `torchgw.watch.Journal`."""

    def __init__(self, checkpoint: Checkpoint, codec: Codec, generator: torch.Generator) -> None:
        self.folder, self.every = Path(checkpoint.path), checkpoint.every
        self.codec, self.generator = codec, generator
        self.stages: list[str] = []
        self.written = time.monotonic()

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        self.stages.append(name)
        try:
            yield
        finally:
            self.stages.pop()

    def stage(self, name: str, compute: Callable[[], Result], keep: Callable[[], bool]) -> Result:
        with self.within(name):
            file = self._file()
            if file.exists():
                found: Result = self._read(file)
                return found
            began = time.monotonic()
            result = compute()
            if keep():
                if time.monotonic() - began >= min(SHORT, self.every):
                    self._write(file, result)
                for inner in self.folder.glob(file.stem + ".*.pt"):
                    inner.unlink()
            return result

    def restored(self) -> Any:
        file = self._file(LOOP)
        return self._read(file) if file.exists() else None

    def offer(self, state: Callable[[], Any], now: bool) -> None:
        if now or time.monotonic() - self.written >= self.every:
            self._write(self._file(LOOP), state())

    def _file(self, *more: str) -> Path:
        return self.folder / (".".join((*self.stages, *more)) + ".pt")

    def _read(self, file: Path) -> Any:
        plain = read(file)
        self.generator.set_state(plain["random"])
        logger.info("checkpoint: going on with %s", file)
        return self.codec.decode(plain["value"])

    def _write(self, file: Path, value: Any) -> None:
        write(file, {"random": self.generator.get_state(), "value": self.codec.encode(value)})
        self.written = time.monotonic()


def begin(checkpoint: Checkpoint, codec: Codec, call: dict[str, Any], generator: torch.Generator) -> Folder:
    """A new folder with the call in it.

    Raises
    ------
    ValueError
        For a folder that is there already, or cannot be made.
    TypeError
        For an argument that cannot be kept.
    """
    folder = Path(checkpoint.path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"checkpoint must name a folder that is not there yet, got {folder}; torchgw.resume({str(folder)!r}) goes "
            f"on with what it holds, or remove it"
        )
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"checkpoint {folder} lies in a folder that is not there; make {folder.parent} first")
    plain = {"format": FORMAT, "every": checkpoint.every, "random": generator.get_state(), "value": codec.encode(call)}
    folder.mkdir(exist_ok=True)
    write(folder / f"{CALL}.pt", plain)
    return Folder(checkpoint, codec, generator)


def reopened(path: str | PathLike[str], codec: Codec) -> tuple[dict[str, Any], float, torch.Tensor]:
    """The call of a folder, how often it was written, and the random state that it began with.

    Raises
    ------
    ValueError
        When it is not the folder of a checkpoint.
    """
    file = Path(path) / f"{CALL}.pt"
    if not file.is_file():
        raise ValueError(f"path must name the folder of a checkpoint, with {CALL}.pt in it, got {path}")
    plain = read(file)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ValueError(f"{file} is not of a checkpoint that this version of torchgw reads")
    return codec.decode(plain["value"]), plain["every"], plain["random"]


def write(file: Path, plain: dict[str, Any]) -> None:
    """Write aside, then rename, so that a reader never sees half a file."""
    aside = file.with_name(file.name + ".part")
    try:
        with aside.open("wb") as opened:
            torch.save(plain, opened)
            opened.flush()
            os.fsync(opened.fileno())
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)


def read(file: Path) -> Any:
    """What `write` wrote. Nothing that a file brings is run.

    Raises
    ------
    ValueError
        When the file is something else.
    """
    if not is_zipfile(file):  # older formats of torch.load are for trusted files
        raise ValueError(f"{file} cannot be read as a part of a checkpoint: it is no archive of tensors")
    try:
        return torch.load(file, weights_only=True)
    except (RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError, BadZipFile) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{file} cannot be read as a part of a checkpoint: {reason}") from error
