"""Checkpoints: a folder with a call, the results of its finished stages, and the last state of the running loop.

    call.pt                      the arguments, and the random state at the beginning
    dense.search.pt              the result of a stage
    dense.solve-0.loop.pt        the state of a loop; gone when its stage is done

A file is written aside and then renamed, so each is whole or not there, and sealed, see `torchgw.persist.files`: the
seal of a stage or loop is of its name and of the seal of the call too, so no file passes for another one. A stage or
loop state has the random state with it. What is missing is computed again with the same result, so a folder is valid
at whatever moment its process was killed.
"""

from __future__ import annotations

import errno
import logging
import os
import pickle
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import torch
from torch import Tensor

from torchgw import validate
from torchgw._version import __version__
from torchgw.persist.codec import KIND, decode, encode, load
from torchgw.persist.files import LEFT_ASIDE, open_for_writing, path_of, read_seal
from torchgw.persist.watch import Watch
from torchgw.runtime.caller import warn_caller
from torchgw.types import Callback, CheckpointWarning, is_provider

logger = logging.getLogger("torchgw")

FORMAT = 12
CALL = "call.pt"
LOOP = "loop"
SHORT = 1.0
FAULTS = (
    *(AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError),
    *(BadZipFile, EOFError, pickle.UnpicklingError),
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Checkpoint:
    """Where the states of a solve are stored, and how often.

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
        path_of("path", self.path, "a folder")
        object.__setattr__(self, "every", validate.real("every", self.every, least=0.0))


class Folder:
    """The journal of one solve, in the folder of a checkpoint; see `torchgw.persist.watch.Journal`. One solve at a
    time.

    Raises
    ------
    ValueError
        When another solve is at it, or a file in it is damaged or belongs to another checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint, generator: torch.Generator) -> None:
        self.folder, self.every = Path(checkpoint.path).absolute(), checkpoint.every
        self.generator = generator
        self.stages: list[str] = []
        self.written = time.monotonic()
        self.lock = lock_folder(self.folder)
        try:
            self.call = compute_seal(self.folder / CALL)
            self.files = {file.name for file in self.folder.glob("[!.]*.pt")} - {CALL}
            for name in sorted(self.files):
                compute_seal(self.folder / name, self._place(name))
            self._remove({file.name for file in self.folder.glob(LEFT_ASIDE)})  # of a process that was killed
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the folder to others."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        self.stages.append(name)
        try:
            yield
        finally:
            self.stages.pop()

    def stage(self, name: str, compute: Callable[[], Result], keep: Callable[[], bool]) -> Result:
        with self.within(name):
            found: tuple[Result] | None = self.load_result()
            if found is not None:
                return found[0]
            began = time.monotonic()
            result = compute()
            if keep() and self.is_worth_keeping(began):
                self.finish(result)
            return result

    def load_result(self) -> tuple[Any] | None:
        """The result of this stage, where it is there."""
        return self._read(self._file())

    def is_worth_keeping(self, began: float) -> bool:
        """Whether this stage, which began then, is to be kept: what took no time is computed again, unless a part of it
        that was written would be lost."""
        return bool(self._parts()) or time.monotonic() - began >= min(SHORT, self.every)

    def finish(self, result: Any) -> bool:
        """Keep the result of this stage in place of its parts; whether it could be written."""
        parts = self._parts()
        done = self._write(self._file(), result)
        if done:
            self._remove(parts)
        return done

    def last_state(self) -> Any:
        found = self._read(self._file(LOOP))
        return None if found is None else found[0]

    def store_state_if_due(self, state: Any, now: bool) -> None:
        if self.is_due(now):
            self.write_state(state)

    def is_due(self, now: bool) -> bool:
        """Whether a state is to be kept, at once if ``now``."""
        return now or time.monotonic() - self.written >= self.every

    def write_state(self, state: Any) -> bool:
        """Keep the state of the loop of this stage; whether it could be written."""
        return self._write(self._file(LOOP), state)

    def _parts(self) -> set[str]:
        """The files of what this stage is made of."""
        file = self._file()
        return {part for part in self.files if part.startswith(f"{file.stem}.") and part != file.name}

    def _file(self, *more: str) -> Path:
        return self.folder / (".".join((*self.stages, *more)) + ".pt")

    def _place(self, name: str) -> bytes:
        return self.call + name.encode()

    def _read(self, file: Path) -> tuple[Any] | None:
        """What a file that was there at the beginning, or was written since, holds; None without one."""
        if file.name not in self.files:
            return None
        try:
            plain = read(file)
        except OSError as error:
            warn_caller(f"{file} cannot be read ({_reason(error)}); what it holds is computed again", CheckpointWarning)
            return None
        with naming(file):
            self.generator.set_state(plain["random"])
            value = decode(plain["value"])
        logger.info("checkpoint: going on with %s", file)
        return (value,)

    def _write(self, file: Path, value: Any) -> bool:
        """Whether the value is in the file now. A full disk or memory is no reason to lose a solve."""
        self.written = time.monotonic()
        try:
            plain = {"random": self.generator.get_state(), "value": encode(value)}
            write(file, plain, self._place(file.name))
        except (MemoryError, OSError, RuntimeError, TypeError) as error:
            warn_caller(f"{file} was not written ({_reason(error)}); the solve goes on", CheckpointWarning)
            return False
        self.files.add(file.name)
        return True

    def _remove(self, names: set[str]) -> None:
        self.files -= names
        for name in names:
            with suppress(OSError):  # it is passed over as long as the whole that it is a part of is there
                (self.folder / name).unlink()


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).partition("\n")[0] or type(error).__name__


def begin(checkpoint: Checkpoint, call: Any, generator: torch.Generator) -> Folder:
    """A new folder with the call, which is encoded, in it.

    Raises
    ------
    ValueError
        For a folder that is there already, or lies in none.
    OSError
        When it cannot be made or written, naming it.
    """
    folder = Path(checkpoint.path)
    if has_content(folder):
        raise ValueError(_refusal(folder))
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"checkpoint {folder} lies in a folder that is not there; make {folder.parent} first")
    made = {"torchgw": __version__, "torch": str(torch.__version__), "threads": torch.get_num_threads()}
    plain = {"format": FORMAT, "every": checkpoint.every, "random": generator.get_state(), "value": call, "made": made}
    aside = folder.absolute().with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        aside.mkdir()
        write(aside / CALL, plain)
        aside.replace(folder)  # whole or not there, and only one of two that begin at once
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise ValueError(_refusal(folder)) from error
        raise OSError(error.errno, f"the checkpoint cannot be made: {_reason(error)}", str(folder)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Folder(checkpoint, generator)


def has_content(folder: Path) -> bool:
    """Whether there is something that a new checkpoint would have to replace."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _refusal(folder: Path) -> str:
    return (
        f"checkpoint must name a folder that is not there yet, got {folder}; torchgw.resume({str(folder)!r}), or "
        f"torchgw.distributed.resume where ranks began it, goes on with what it holds; or remove it"
    )


def reopen(path: str | PathLike[str]) -> tuple[Any, float, Tensor]:
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
    file = path_of("path", path, "the folder of a checkpoint") / CALL
    if not file.is_file():
        raise ValueError(f"path must name the folder of a checkpoint, with {CALL} in it, got {path}")
    compute_seal(file)
    plain = read(file)
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ValueError(
            f"{file} is not of a checkpoint that this version of torchgw reads; begin again in another folder"
        )
    with naming(file):
        call, every, random, made = decode(plain["value"]), plain["every"], plain["random"], plain["made"]
    now = {"torchgw": __version__, "torch": str(torch.__version__), "threads": torch.get_num_threads()}
    if isinstance(call, dict) and call.get("shared"):  # by ranks, whose number of threads goes with their own
        made["threads"] = now["threads"]
    if made != now:
        warn_caller(f"{path} was begun with {made}, and goes on with {now}", CheckpointWarning)
    return call, every, random


def lock_folder(folder: Path) -> int | None:
    """The descriptor of a file that this solve alone holds while it is open, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        warn_caller(f"checkpoint {folder} cannot be written ({_reason(error)}); the solve goes on", CheckpointWarning)
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # lockf would let the same process in twice
    except BlockingIOError:
        os.close(file)
        raise ValueError(
            f"checkpoint {folder} is in use by a solve, in this process or another; wait for it, or end it"
        ) from None
    except OSError as error:
        logger.info("checkpoint: %s cannot be locked (%s)", folder, error)
    return file


def compute_seal(file: Path, place: bytes = b"") -> bytes:
    """The checksum of a file of a checkpoint.

    Raises
    ------
    ValueError
        When the file has none, or it does not fit.
    """
    with naming(file):
        found = read_seal(file, place)
        if found is None:
            raise ValueError("it has no checksum, so it is cut off, or of an older version of torchgw")
        return found


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Errors in this context are raised as a `ValueError` that names the file."""
    try:
        yield
    except FAULTS as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        remedy = "begin again in another folder" if file.name == CALL else "remove it, and it is computed again"
        raise ValueError(f"{file} cannot be read as a part of a checkpoint; {remedy} ({reason})") from error


def write(file: Path, plain: dict[str, Any], place: bytes = b"") -> None:
    """Write aside, seal, then rename, so that a reader never sees half a file."""
    with open_for_writing(file, place) as opened:
        torch.save(plain, opened)


def read(file: Path) -> Any:
    """What `write` wrote, as `torchgw.persist.codec.load` reads it."""
    with naming(file):
        return load(file)


@dataclass(frozen=True)
class ResumedCheckpoint(Checkpoint):
    """A checkpoint that is resumed.

    random : state of the generator at the beginning of its solve.
    """

    random: Tensor | None = None


@contextmanager
def follow_solve(
    callback: Callback | None,
    checkpoint: str | PathLike[str] | Checkpoint | None,
    call: Callable[[], dict[str, Any]],
    generator: torch.Generator,
) -> Iterator[Watch]:
    """The watch of a solve, in this context; ``call`` has the arguments that a checkpoint keeps.

    Raises
    ------
    ValueError, TypeError
        For a checkpoint that cannot be made, and arguments that it cannot hold.
    """
    if checkpoint is None:
        yield Watch(callback)
        return
    if isinstance(checkpoint, ResumedCheckpoint):
        assert checkpoint.random is not None
        generator.set_state(checkpoint.random)
        folder = Folder(checkpoint, generator)
    else:
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = Checkpoint(path_of("checkpoint", checkpoint, "a folder, or be a Checkpoint"))
        folder = begin(checkpoint, encoded_call(call()), generator)
    with closing(folder):
        yield Watch(callback, folder)


def encoded_call(call: dict[str, Any]) -> Any:
    """Arguments, encoded; of providers only their fingerprint, see `fingerprint`.

    Raises
    ------
    TypeError
        For an argument that files cannot hold, by name.
    """
    again = {name: fingerprint(call[name]) for name in "XY" if is_provider(call[name])}
    items = [[name, _encode_argument(name, value)] for name, value in (call | dict.fromkeys(again)).items()]
    return {KIND: "dict", "items": [*items, ["again", encode(again)]]}


def _encode_argument(name: str, value: Any) -> Any:
    try:
        return encode(value)
    except TypeError as error:
        raise TypeError(f"checkpoint cannot hold {name}: {error}") from error


def fingerprint(space: Any) -> tuple[int, float, Tensor]:
    """The fingerprint of a provider: its size N, its scale, and its first row (N,)."""
    return space.size, float(space.scale), space.rows(torch.tensor([0]))[0].cpu()
