"""Files of all pairs at their hardest: stores with a flipped bit or of other pairs, full disks, names as formulas."""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.problems import ROLL, SPIRAL, files_of_at_most
from torchgw import cli, datasets, gw_pairwise
from torchgw.cli.output import write_whole
from torchgw.cli.pairwise import save_table
from torchgw.pairwise import PairStatus
from torchgw.pairwise.result import SolvedPair
from torchgw.pairwise.store import Store

FINGERPRINT = {"tol": "0.01", "keep": "matchings", "scale": "own"}
CONTENTS = [bytes([i % 256, i // 256]) * 8 for i in range(400)]


def solved(i: int, j: int) -> SolvedPair:
    """A pair that failed, or one with numbers of its own."""
    if i == 3:
        return SolvedPair((i, j), float("nan"), float("inf"), float("nan"), PairStatus.FAILED)
    rng = np.random.default_rng([i, j])
    matching = rng.integers(0, 9, 6).astype(np.int32), rng.integers(0, 6, 9).astype(np.int32)
    return SolvedPair((i, j), rng.random(), np.float64(-0.0), 2.0, PairStatus.SETTLED, matching if j % 2 else None)  # type: ignore[arg-type]


ONE = f"one = x'{'0000' * 8}' AND other = x'{'0100' * 8}'"
FAILED = f"one = x'{'0300' * 8}' AND other = x'{'0400' * 8}'"
EVERY = [(i, j) for i in range(10) for j in range(i + 1, 10)]
PAIRS = [solved(*pair) for pair in EVERY]


def opened(path: Path) -> Store:
    return Store(path, FINGERPRINT, CONTENTS, 1.0, 7, True)


def content(path: Path) -> list[str]:
    with opened(path) as store:
        return [repr(pair) for pair in store.read_pairs(EVERY)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store of all pairs, written in two batches."""
    path = tmp_path_factory.mktemp("stores") / "pairs.sqlite"
    with opened(path) as store:
        store.add(PAIRS[:20])
        store.add(PAIRS[20:])
    return path.read_bytes()


def test_what_is_read_is_what_was_written(tmp_path: Path, kept: bytes) -> None:
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(kept)
    plain = [replace(pair, gap=float(pair.gap)) for pair in PAIRS]
    assert [text.replace("gap=0.0", "gap=-0.0") for text in content(path)] == [repr(pair) for pair in plain]


def test_a_store_with_a_flipped_bit_is_refused_or_gives_the_same(tmp_path: Path, kept: bytes) -> None:
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(kept)
    whole, refused, rng = content(path), 0, np.random.default_rng(0)
    header, anywhere = (rng.choice(8 * size, 90, replace=False) for size in (100, len(kept)))
    counts = [8 * (page + 3) + bit for page in range(4096, len(kept), 4096) for bit in range(16)]  # rows of a page
    for bit in [*header.tolist(), *anywhere.tolist(), *counts]:
        flipped = bytearray(kept)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found, said = content(path), ""
        except ValueError as error:
            found, said = whole, str(error)
            refused += 1
        assert found == whole, bit
        assert not said or f"store {path} " in said, (bit, said)
        assert not said or "give another path" in said, (bit, said)
        assert path.read_bytes() == flipped, bit
    assert refused > 100  # many bits of a file are nobody's


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (f"UPDATE pairs SET value = value + 1e-15 WHERE {ONE}", "a pair is not as it was"),
        (f"UPDATE pairs SET value = 0.5 WHERE {FAILED}", "a pair is not as it was"),
        (f"UPDATE pairs SET status = 9 WHERE {ONE}", "a pair is not as it was"),
        (f"UPDATE pairs SET forward = backward, backward = forward WHERE {ONE}", "a pair is not as it was"),
        (f"UPDATE pairs SET other = x'{b'k'.hex() * 16}' WHERE {ONE}", "a pair is not as it was"),
        ("UPDATE header SET content = '8' WHERE name = 'seed'", "its header is not as it was"),
        ("UPDATE header SET content = '2.0' WHERE name = 'unit'", "its header is not as it was"),
        ("UPDATE header SET content = replace(content, '0.01', '0.02')", "its header is not as it was"),
        ("DELETE FROM header WHERE name = 'checksum'", "its header is not as it was"),
    ],
)
def test_a_store_in_which_something_was_changed_is_refused(
    statement: str, text: str, tmp_path: Path, kept: bytes
) -> None:
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(kept)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount > 0
    with pytest.raises(ValueError, match=rf"is damaged: {text}.*; put a copy in its place, delete it, or give another"):
        content(path)


def test_pairs_of_another_store_are_refused(tmp_path: Path, kept: bytes) -> None:
    path, other = tmp_path / "pairs.sqlite", tmp_path / "other.sqlite"
    path.write_bytes(kept)
    with Store(other, FINGERPRINT | {"tol": "0.1"}, CONTENTS, 1.0, 7, True) as store:
        store.add(PAIRS)
    with pytest.raises(ValueError, match=r"belongs to another call, with other tol; give another path, or delete"):
        content(other)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ATTACH ? AS other", (str(other),))
        connection.execute("INSERT OR REPLACE INTO pairs SELECT * FROM other.pairs LIMIT 1")
    with pytest.raises(ValueError, match="a pair is not as it was written"):
        content(path)


SPACES = [datasets.make_spiral(n, random_state=n)[0] for n in (12, 40, 75, 20)]


def test_a_call_tells_of_a_damaged_store_and_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "pairs.sqlite"
    gw_pairwise(SPACES, store=path, random_state=0)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE pairs SET value = 2 * value WHERE value = (SELECT max(value) FROM pairs)")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"pairs.sqlite is not .* is damaged: a pair is not as it was"):
        gw_pairwise(SPACES, store=path, random_state=0)
    assert path.read_bytes() == before


@contextmanager
def databases_of_at_most(size: int) -> Iterator[None]:
    """What SQLite says then is what it says of a full disk."""
    connect = sqlite3.connect

    def connected(*given: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*given, **more)
        connection.execute(f"PRAGMA max_page_count = {size // 4096}")
        return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite3, "connect", connected)
        yield


@pytest.mark.parametrize(
    ("limited", "said"), [(files_of_at_most, "disk I/O error"), (databases_of_at_most, "database or disk is full")]
)
def test_a_full_disk_names_the_store_and_loses_nothing(limited: Any, said: str, tmp_path: Path, kept: bytes) -> None:
    text = rf"store .*pairs.sqlite cannot be read or written: {said}; make room"
    path, new = tmp_path / "pairs.sqlite", tmp_path / "new" / "pairs.sqlite"
    path.write_bytes(kept)
    before, many = content(path), [replace(PAIRS[0], pair=(20, j)) for j in range(21, 400)]
    with limited(len(kept) + 8192), opened(path) as store, pytest.raises(OSError, match=text):
        store.add(many)
    assert content(path) == before
    new.parent.mkdir()
    with limited(4096), pytest.raises(OSError, match=text):
        gw_pairwise(SPACES, store=new, random_state=0)
    whole = gw_pairwise(SPACES, store=new, random_state=0)
    np.testing.assert_array_equal(whole.values, gw_pairwise(SPACES, random_state=0).values)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_full_disk_names_the_table_and_what_was_there_stays(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "done" / f"out.{suffix}"
    out.parent.mkdir()
    out.write_text("before")
    for name, points in (("spiral", SPIRAL), ("roll", ROLL)):
        np.save(tmp_path / f"{name}.npy", points)
    files = [str(tmp_path / name) for name in ("spiral.npy", "roll.npy")]
    with files_of_at_most(20):
        assert cli.main(["pairwise", *files, "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"torchgw: error: output {out} was not written: File too large; name a file elsewhere")
    assert [path.read_text() for path in out.parent.iterdir()] == ["before"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_no_space_left_is_said_of_the_file_that_was_asked_for(tmp_path: Path) -> None:
    table = SimpleNamespace(square=lambda: np.zeros((2, 2)))
    with pytest.raises(
        OSError, match=rf"output {tmp_path / 'out.csv'} was not written: No space left on device; make room"
    ):
        write_whole(lambda _: save_table(Path("/dev/full"), ["a", "b"], table), tmp_path / "out.csv")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_names_that_look_like_formulas_are_text_and_numbers_are_numbers(tmp_path: Path) -> None:
    names = ['=HYPERLINK("http://x","y")', "+1", "-2.npy", "@SUM(A1)", "\t=1", "\r=1", "a=b.npy", "'=1"]
    square = np.random.default_rng(0).normal(size=(8, 8))
    save_table(tmp_path / "out.csv", names, SimpleNamespace(square=lambda: square))  # type: ignore[arg-type]
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["space", *(f"'{name}" for name in names[:6]), *names[6:]]
    assert [name for name, *_ in rows] == header[1:]
    assert square.min() < 0
    np.testing.assert_array_equal(np.array([row for _, *row in rows], dtype=float), square)


def test_the_command_escapes_the_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("=1+1.npy", "@b.npy"):
        np.save(name, SPIRAL)
    assert cli.main(["pairwise", "=1+1.npy", "@b.npy", "-o", "out.csv"]) == 0
    assert Path("out.csv").read_text().splitlines()[0] == "space,'=1+1,'@b"
