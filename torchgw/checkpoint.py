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
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch

from torchgw import validate
from torchgw._version import __version__
from torchgw.caller import warn_caller
from torchgw.codec import Codec
from torchgw.types import CheckpointWarning

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
    """The journal of one solve, in the folder of a checkpoint; see `torchgw.watch.Journal`. One process at a time."""

    def __init__(self, checkpoint: Checkpoint, codec: Codec, generator: torch.Generator) -> None:
        self.folder, self.every = Path(checkpoint.path), checkpoint.every
        self.codec, self.generator = codec, generator
        self.stages: list[str] = []
        self.written = time.monotonic()
        lock = locked(self.folder)
        if lock is not None:
            weakref.finalize(self, os.close, lock)
        for left in self.folder.glob("*.part"):  # of a process that was killed
            left.unlink()

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
            parts = list(self.folder.glob(file.stem + ".*.pt"))
            # What took no time is computed again, unless a part of it that was written would be lost.
            if keep() and (parts or time.monotonic() - began >= min(SHORT, self.every)) and self._write(file, result):
                for part in parts:
                    part.unlink()
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
        with naming(file):
            self.generator.set_state(plain["random"])
            value = self.codec.decode(plain["value"])
        logger.info("checkpoint: going on with %s", file)
        return value

    def _write(self, file: Path, value: Any) -> bool:
        """Whether the value is in the file now. A disk that is full is no reason to lose a solve."""
        self.written = time.monotonic()
        try:
            write(file, {"random": self.generator.get_state(), "value": self.codec.encode(value)})
        except (OSError, RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            warn_caller(f"{file} was not written ({reason}); the solve goes on", CheckpointWarning)
            return False
        return True


def begin(checkpoint: Checkpoint, codec: Codec, call: Any, generator: torch.Generator) -> Folder:
    """A new folder with the call, which is encoded, in it.

    Raises
    ------
    ValueError
        For a folder that is there already, or cannot be made.
    """
    folder = Path(checkpoint.path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(_taken(folder))
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"checkpoint {folder} lies in a folder that is not there; make {folder.parent} first")
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    try:
        made = {"torchgw": __version__, "torch": str(torch.__version__), "threads": torch.get_num_threads()}
        plain = {"format": FORMAT, "every": checkpoint.every, "random": generator.get_state(), "value": call}
        write(aside / f"{CALL}.pt", plain | {"made": made})
        aside.chmod(0o755)
        try:
            aside.replace(folder)  # whole or not there, and only one of two that begin at once
        except OSError as error:
            raise ValueError(_taken(folder)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Folder(checkpoint, codec, generator)


def _taken(folder: Path) -> str:
    return (
        f"checkpoint must name a folder that is not there yet, got {folder}; torchgw.resume({str(folder)!r}) goes on "
        f"with what it holds, or remove it"
    )


def reopened(path: str | PathLike[str], codec: Codec) -> tuple[Any, float, torch.Tensor]:
    """The call of a folder, how often it was written, and the random state that it began with.

    Raises
    ------
    ValueError
        When it is not the folder of a checkpoint.

    Warns
    -----
    CheckpointWarning
        When it was begun by other versions, or with another number of threads: bits may differ.
    """
    file = Path(path) / f"{CALL}.pt"
    if not file.is_file():
        raise ValueError(f"path must name the folder of a checkpoint, with {CALL}.pt in it, got {path}")
    plain = read(file)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ValueError(f"{file} is not of a checkpoint that this version of torchgw reads")
    with naming(file):
        call, every, random, made = codec.decode(plain["value"]), plain["every"], plain["random"], plain["made"]
    now = {"torchgw": __version__, "torch": str(torch.__version__), "threads": torch.get_num_threads()}
    if made != now:
        warn_caller(f"{path} was begun with {made}, and goes on with {now}", CheckpointWarning)
    return call, every, random


def locked(folder: Path) -> int | None:
    """The descriptor of a file that this process alone holds while it is open, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise ValueError(f"checkpoint {folder} is written by another process; wait for it, or end it") from None
    except OSError as error:
        logger.info("checkpoint: %s cannot be locked (%s)", folder, error)
    return file


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """What goes wrong in this context is the file's fault."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"{file} cannot be read as a part of a checkpoint: {reason}") from error


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
    """What `write` wrote. Nothing that a file brings is run, and nothing in it is larger than it is.

    Raises
    ------
    ValueError
        When the file is something else.
    """
    with naming(file):
        try:
            with file.open("rb") as opened, ZipFile(opened) as archive:
                opened.seek(0)
                if opened.read(4) != b"PK\x03\x04":  # older formats of torch.load are for trusted files
                    raise ValueError("it is no archive of tensors")
                if any(member.compress_type != ZIP_STORED for member in archive.infolist()):
                    raise ValueError("its members are compressed, as torch never does")
            return torch.load(file, weights_only=True)
        except (BadZipFile, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(error) from error
