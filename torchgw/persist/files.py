"""Files that are whole or not there, and that are seen to be what was written.

Results and checkpoints are .zip archives. Such a file ends in a seal: a comment, which other programs pass over, with
the SHA-256 of the place that the file belongs to and of everything before it. A bit that is changed, an end that is cut
off, or a file from another place no longer fits it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from torchgw.persist import guards

MARK = b"torchgw\x01"
DIGEST = 32
BLOCK = 2**20
# Names of files that were being written when a process was killed.
LEFT_ASIDE = f".{'[0-9a-f]' * 16}.part*"


def path_of(name: str, given: object, what: str = "a file") -> Path:
    """What an argument names, if it is the text of a path or a path.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, ``what`` it must name, and what arrived, where no system has such a path.
    """
    path = os.fspath(given) if isinstance(given, PathLike) else given
    if not isinstance(path, str):
        raise TypeError(f"{name} must name {what}, got {type(given).__name__}")
    if "\0" in path:
        raise ValueError(f"{name} must name {what}, got {path!r} with a null character in it")
    return Path(path)


def place_of(given: object, suffix: str) -> Path:
    """The path of a file to write, which has this suffix or none, in a folder that is there.

    Raises
    ------
    TypeError, ValueError
        Saying what is wrong with it.
    """
    path = path_of("path", given)
    if path.suffix.lower() not in ("", suffix):
        other = f"{path}{suffix}" if path.suffix[1:].isdigit() else path.with_suffix(suffix)  # not of r_0.5
        raise ValueError(f"path must be a {suffix} file, got {path}; take {other}")
    if path.is_dir() or not path.parent.is_dir():
        wrong = "is a folder" if path.is_dir() else f"lies in a folder that is not there; make {path.parent} first"
        raise ValueError(f"path must name a file to write, {path} {wrong}")
    return path


@contextmanager
def atomic_path(path: str | PathLike[str]) -> Iterator[Path]:
    """A path beside this one, of the same suffix, to write to; at the end of the context the file there takes its name,
    which is not touched before.

    Raises
    ------
    OSError
        Naming the path, when anything fails to be written; what was there before still is.
    """
    final = Path(os.path.realpath(path))
    if final.exists() and not final.is_file():
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    aside = final.with_name(f".{secrets.token_hex(8)}.part{final.suffix}")
    try:
        yield aside
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            shutil.copymode(final, aside)
        aside.replace(final)
    except (OSError, RuntimeError) as error:
        # torch goes on after a write has failed, and then finds its own position wrong.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno or errno.EIO, cause.strerror or str(cause), str(path)) from error
    finally:
        with suppress(OSError):
            aside.unlink()


@contextmanager
def open_for_writing(path: str | PathLike[str], place: bytes = b"") -> Iterator[BinaryIO]:
    """A file for an archive, sealed at the end of the context; by `atomic_path` it is whole or not there."""
    with atomic_path(path) as aside, aside.open("x+b") as file:
        yield file
        _seal(file, place)


def _seal(file: BinaryIO, place: bytes) -> None:
    """An archive ends in the length of its comment, two bytes, which are zero so far."""
    file.seek(-2, os.SEEK_END)
    file.write(struct.pack("<H", len(MARK) + DIGEST) + MARK)
    file.write(_digest(file, file.tell(), place))


def read_seal(path: str | PathLike[str], place: bytes = b"") -> bytes | None:
    """The checksum at the end of a file, None where it has none.

    Raises
    ------
    ValueError
        When it is not that of the file in this place, or this is no regular file, which could hang a reader.
    """
    if Path(path).exists() and not guards.is_regular(Path(path)):
        raise ValueError("it is no regular file")
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END) - DIGEST
        if end < len(MARK):
            return None
        file.seek(end - len(MARK))
        if file.read(len(MARK)) != MARK:
            return None
        found = file.read()
        if found != _digest(file, end, place):
            raise ValueError("its checksum does not fit: it is damaged, or belongs elsewhere")
        return found


def _digest(file: BinaryIO, end: int, place: bytes) -> bytes:
    """Of the place, and of the file up to ``end``, where it is left."""
    found = hashlib.sha256(place)
    file.seek(0)
    while (left := end - file.tell()) > 0 and (block := file.read(min(left, BLOCK))):
        found.update(block)
    return found.digest()
