"""Finished pairs in one SQLite file, from which a later call goes on.

A batch of pairs is one transaction: killed at any time, the file has whole batches and nothing else. A pair is found by
the contents of its two spaces, wherever these stand in a list, so that a file serves any lists and grows with them. It
belongs to the options that it was begun with, and to one process at a time, which holds its lock as long as it lives.
The header and every pair have a checksum, those of pairs keyed by the header's, so that nothing is taken from a file
that was damaged or put together from others.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from torchgw.pairwise.result import Pair, PairStatus, SolvedPair
from torchgw.persist.files import path_of
from torchgw.types import Array

APPLICATION = 0x74675077
FORMAT = 2  # which has the contents of spaces in place of their numbers
TABLES = """
CREATE TABLE header (name TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE pairs (
    one BLOB NOT NULL, other BLOB NOT NULL, value REAL, gap REAL, marginal_error REAL, status INTEGER NOT NULL,
    forward BLOB, backward BLOB, checksum BLOB NOT NULL, PRIMARY KEY (one, other)
) WITHOUT ROWID;
"""
INSERT = "INSERT OR IGNORE INTO pairs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
HEADER = ("fingerprint", "seed", "unit")
DISK_FAILS = ("disk is full", "disk I/O error")  # as SQLite says it


def check_path(path: object) -> Path:
    """The path, if there may be a file."""
    place = path_of("store", path, "a file, or be None")
    if place.is_dir() or not place.parent.is_dir():
        what = "is a folder" if place.is_dir() else f"needs a folder {place.parent}"
        raise ValueError(f"store must be the path of a file, but {place} {what}")
    return place


class Store:
    """An open file of pairs, as a context.

    Parameters
    ----------
    path : the file, made if it is not there.
    fingerprint : what the values depend on beside the spaces, by name.
    contents : a hash of each space of the call.
    unit : what distances are divided by; kept in a new file, an old one has its own, the attribute ``unit``.
    seed : kept in a new file; an old one has its own, the attribute ``seed``.
    insists : whether an old one must have the same seed.

    Raises
    ------
    ValueError
        When the file is something else, is damaged, of an earlier version, or belongs to other options.
    RuntimeError
        When another process has it open.
    OSError
        When the disk is full, or fails.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        fingerprint: Mapping[str, str],
        contents: Sequence[bytes],
        unit: float,
        seed: int,
        insists: bool,
    ) -> None:
        self.path, self.contents = check_path(path), contents
        with self._translate_errors():
            self.connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            with self._translate_errors():
                # Locks are taken with the first write and kept until the connection is closed.
                self.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                self.connection.execute("BEGIN EXCLUSIVE")
                self.seed, self.unit = self._open_tables(fingerprint, seed, unit, insists)
                self.connection.execute("COMMIT")
        except BaseException:
            self.connection.close()
            raise

    def _open_tables(self, fingerprint: Mapping[str, str], seed: int, unit: float, insists: bool) -> tuple[int, float]:
        """Make the tables, or see that they are those of this call; the seed and unit that they were made with."""
        run = self.connection.execute
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        ours = run("PRAGMA application_id").fetchone()[0] == APPLICATION
        if not tables and not ours:
            for statement in TABLES.split(";"):
                run(statement)
            run(f"PRAGMA application_id = {APPLICATION}")
            run(f"PRAGMA user_version = {FORMAT}")
            content = {"fingerprint": json.dumps(dict(fingerprint)), "seed": str(seed), "unit": repr(unit)}
            self.key = _checksum(b"", *(content[name] for name in HEADER))
            content["checksum"] = self.key.hex()
            self.connection.executemany("INSERT INTO header VALUES (?, ?)", content.items())
            return seed, unit
        if not ours or tables != {"header", "pairs"}:
            raise ValueError(f"store {self.path} is an SQLite file of something else; give another path")
        if (version := run("PRAGMA user_version").fetchone()[0]) != FORMAT:
            raise ValueError(
                f"store {self.path} has format {version}, and this version reads format {FORMAT} alone, which finds "
                f"pairs by the contents of spaces; give another path, or delete the file"
            )
        (wrong,) = run("PRAGMA integrity_check(1)").fetchone()
        if wrong != "ok":
            raise self._damage_error(wrong.splitlines()[-1])
        header = dict(run("SELECT name, content FROM header").fetchall())
        self.key = _checksum(b"", *(header.get(name) for name in HEADER))
        if header.get("checksum") != self.key.hex():
            raise self._damage_error("its header is not as it was written")
        before, kept = json.loads(header["fingerprint"]), int(header["seed"])
        other = sorted(name for name in {*before, *fingerprint} if before.get(name) != fingerprint.get(name))
        other += ["random_state"] if insists and kept != seed else []
        if other:
            raise ValueError(
                f"store {self.path} belongs to another call, with other {', '.join(other)}; give another path, or "
                f"delete the file"
            )
        return kept, float(header["unit"])

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """SQLite's errors in words."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise RuntimeError(f"store {self.path} is in use by another process; wait for it") from None
            if any(words in str(error) for words in DISK_FAILS):
                hint = "make room, or mend it; the same call then goes on from what was written before"
                raise OSError(f"store {self.path} cannot be read or written: {error}; {hint}") from None
            raise ValueError(f"store {self.path} cannot be used: {error}; give another path") from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damage_error(str(error)) from None

    def _damage_error(self, what: str) -> ValueError:
        return ValueError(
            f"store {self.path} is not a file of pairs, or is damaged: {what}; put a copy in its place, delete it, or "
            f"give another path"
        )

    def read_pairs(self, wanted: Iterable[Pair]) -> list[SolvedPair]:
        """Those of the ``wanted`` pairs that are in the file, as they were written."""
        with self._translate_errors():
            rows = self.connection.execute("SELECT * FROM pairs").fetchall()
        for *row, checksum in rows:
            if checksum != _checksum(self.key, *row):
                raise self._damage_error("a pair is not as it was written")
        kept = {(one, other): row for one, other, *row, _ in rows}
        keys = ((pair, *self._key(pair)) for pair in wanted)
        return [_from_row(pair, turned, kept[key]) for pair, key, turned in keys if key in kept]

    def _key(self, pair: Pair) -> tuple[tuple[bytes, bytes], bool]:
        """The contents of two spaces in the order of files, and whether that is the other one."""
        one, other = (self.contents[i] for i in pair)
        return ((one, other), False) if one <= other else ((other, one), True)

    def add(self, pairs: Sequence[SolvedPair]) -> None:
        """Write pairs down, all or none of them."""
        with self._translate_errors():
            self.connection.execute("BEGIN")
            self.connection.executemany(INSERT, [_to_row(pair, *self._key(pair.pair), self.key) for pair in pairs])
            self.connection.execute("COMMIT")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()


def _to_row(found: SolvedPair, contents: tuple[bytes, bytes], turned: bool, key: bytes) -> tuple[object, ...]:
    """A row, as it will be read: SQLite has neither NaN nor a negative zero."""
    each = found.value, found.gap, found.marginal_error
    numbers = [None if math.isnan(number) else float(number) + 0.0 for number in each]
    blobs = [None, None] if found.matching is None else [part.astype("<i4").tobytes() for part in found.matching]
    row = (*contents, *numbers, int(found.status), *(reversed(blobs) if turned else blobs))
    return (*row, _checksum(key, *row))


def _checksum(key: bytes, *content: object) -> bytes:
    """Of integers, floats, texts, bytes and None, each with its type."""
    return hashlib.blake2b(repr(content).encode("utf-8", "backslashreplace"), digest_size=16, key=key).digest()


def _from_row(pair: Pair, turned: bool, row: Sequence[Any]) -> SolvedPair:
    value, gap, error, status, *blobs = row
    forward, backward = reversed(blobs) if turned else blobs
    value, gap, error = (float("nan") if number is None else number for number in (value, gap, error))
    matching = None if forward is None or backward is None else (_read_indices(forward), _read_indices(backward))
    return SolvedPair(pair, value, gap, error, PairStatus(status), matching)


def _read_indices(blob: bytes) -> Array:
    return np.frombuffer(blob, "<i4").astype(np.int32)
