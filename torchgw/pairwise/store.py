"""Finished pairs in one SQLite file, from which a later call goes on.

A batch of pairs is one transaction: killed at any time, the file has whole batches and nothing else. It belongs to the
spaces, masses and options that it was begun with, whose hashes it has, and to one process at a time, which holds its
lock as long as it lives.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from torchgw.pairwise.status import PairStatus
from torchgw.pairwise.work import Solved
from torchgw.types import Array

APPLICATION = 0x74675077
TABLES = """
CREATE TABLE header (name TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE pairs (
    i INTEGER NOT NULL, j INTEGER NOT NULL, value REAL, gap REAL, marginal_error REAL, status INTEGER NOT NULL,
    forward BLOB, backward BLOB, PRIMARY KEY (i, j)
) WITHOUT ROWID;
"""
INSERT = "INSERT INTO pairs VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def check_place(path: object) -> Path:
    """The path, if there may be a file."""
    if not isinstance(path, str | PathLike):
        raise TypeError(f"store must be a path or None, got {type(path).__name__}")
    place = Path(path)
    if place.is_dir() or not place.parent.is_dir():
        what = "is a folder" if place.is_dir() else f"needs a folder {place.parent}"
        raise ValueError(f"store must be the path of a file, but {place} {what}")
    return place


class Store:
    """An open file of pairs, as a context.

    Parameters
    ----------
    path : the file, made if it is not there.
    fingerprint : what the values depend on, by name.
    seed : kept in a new file; an old one has its own, the attribute ``seed``.
    insists : whether an old one must have the same seed.

    Raises
    ------
    ValueError
        When the file is something else, is damaged, or belongs to other spaces or options.
    RuntimeError
        When another process has it open.
    """

    def __init__(self, path: str | PathLike[str], fingerprint: Mapping[str, str], seed: int, insists: bool) -> None:
        self.path = check_place(path)
        with self._understood():
            self.connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            with self._understood():
                # Locks are taken with the first write and kept until the connection is closed.
                self.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                self.connection.execute("BEGIN EXCLUSIVE")
                self.seed = self._begun(fingerprint, seed, insists)
                self.connection.execute("COMMIT")
        except BaseException:
            self.connection.close()
            raise

    def _begun(self, fingerprint: Mapping[str, str], seed: int, insists: bool) -> int:
        """Make the tables, or see that they are those of this call; the seed that they were made with."""
        run = self.connection.execute
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        ours = run("PRAGMA application_id").fetchone()[0] == APPLICATION
        if not tables and not ours:
            for statement in TABLES.split(";"):
                run(statement)
            run(f"PRAGMA application_id = {APPLICATION}")
            content = {"fingerprint": json.dumps(dict(fingerprint)), "seed": str(seed)}
            self.connection.executemany("INSERT INTO header VALUES (?, ?)", content.items())
            return seed
        if not ours or tables != {"header", "pairs"}:
            raise ValueError(f"store {self.path} is an SQLite file of something else; give another path")
        header = dict(run("SELECT name, content FROM header").fetchall())
        try:
            before, kept = json.loads(header["fingerprint"]), int(header["seed"])
        except (KeyError, ValueError) as error:
            raise ValueError(f"store {self.path} is damaged ({error!r}); delete it or give another path") from None
        other = sorted(name for name in {*before, *fingerprint} if before.get(name) != fingerprint.get(name))
        other += ["random_state"] if insists and kept != seed else []
        if other:
            raise ValueError(
                f"store {self.path} belongs to another call, with other {', '.join(other)}; give another path, or "
                f"delete the file"
            )
        return kept

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """SQLite's errors in words."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise RuntimeError(f"store {self.path} is in use by another process; wait for it") from None
            raise ValueError(f"store {self.path} cannot be used: {error}") from None
        except sqlite3.DatabaseError as error:
            raise ValueError(f"store {self.path} is not a file of pairs, or is damaged: {error}") from None

    def finished(self) -> list[Solved]:
        """All pairs that are in the file."""
        with self._understood():
            rows = self.connection.execute("SELECT * FROM pairs").fetchall()
        return [_read(row) for row in rows]

    def add(self, pairs: Sequence[Solved]) -> None:
        """Write pairs down, all or none of them."""
        with self._understood():
            self.connection.execute("BEGIN")
            self.connection.executemany(INSERT, map(_written, pairs))
            self.connection.execute("COMMIT")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()


def _written(found: Solved) -> tuple[object, ...]:
    blobs = [None, None] if found.matching is None else [part.astype("<i4").tobytes() for part in found.matching]
    return (*found.pair, found.value, found.gap, found.marginal_error, int(found.status), *blobs)


def _read(row: Sequence[Any]) -> Solved:
    i, j, value, gap, error, status, forward, backward = row
    value, gap, error = (float("nan") if number is None else number for number in (value, gap, error))
    matching = None if forward is None or backward is None else (_indices(forward), _indices(backward))
    return Solved((i, j), value, gap, error, PairStatus(status), matching)


def _indices(blob: bytes) -> Array:
    return np.frombuffer(blob, "<i4").astype(np.int32)
