"""All pairs again: the store after a kill, files that are none of ours, the command, clusters."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config, register_parallel_backend
from joblib.parallel import SequentialBackend

from tests.problems import ROLL, SPIRAL
from torchgw import ConvergenceWarning, PairwiseResult, Progress, cli, datasets, gw_pairwise
from torchgw.batched.space import prepare_space
from torchgw.cli import pairwise as command
from torchgw.pairwise import schedule
from torchgw.pairwise.result import SolvedPair
from torchgw.pairwise.solve import Task
from torchgw.spaces.graph import neighbour_graph

SPACES = [datasets.make_spiral(n, random_state=n)[0] for n in (40, 190, 85, 160, 65, 180, 95, 170, 58, 200)]
N_PAIRS = 45
CHILD = """
    import os, signal, sys
    import torchgw

    spaces = [torchgw.datasets.make_spiral(n, random_state=n)[0] for n in (40, 190, 85, 160, 65, 180, 95, 170, 58, 200)]

    def told(progress):
        if progress.iteration >= int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        print(progress.iteration, flush=True)

    torchgw.gw_pairwise(spaces, store=sys.argv[1], callback=told, keep="matchings", random_state=0)
"""


def pairwise(**keywords: Any) -> PairwiseResult:
    return gw_pairwise(SPACES, **{"keep": "matchings", "random_state": 0, **keywords})


@pytest.fixture(scope="module")
def whole() -> PairwiseResult:
    return pairwise()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The pairs that are solved in this process, in no order."""
    seen: list[tuple[int, int]] = []
    solve = schedule.solve_task

    def counting(task: Task) -> list[SolvedPair]:
        seen.extend(task.pairs)
        return solve(task)

    monkeypatch.setattr(schedule, "solve_task", counting)
    return seen


def kept_pairs(path: Path) -> list[tuple[bytes, bytes]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT one, other FROM pairs ORDER BY one, other").fetchall()
    finally:
        connection.close()


def assert_same(found: PairwiseResult, whole: PairwiseResult) -> None:
    for name in ("values", "gaps", "status", "scales"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    for i in range(found.n_spaces):
        for j in set(range(found.n_spaces)) - {i}:
            np.testing.assert_array_equal(found.matching(i, j), whole.matching(i, j))


def start(path: Path, pairs: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), str(pairs)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_after_a_kill_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, whole: PairwiseResult, counted: list[tuple[int, int]]
) -> None:
    path = tmp_path / "pairs.sqlite"
    child = start(path, N_PAIRS // 2)
    told = [int(line) for line in child.communicate()[0].split()]
    assert child.returncode == -signal.SIGKILL
    before = kept_pairs(path)
    assert len(set(before)) >= N_PAIRS // 2 > max(told, default=0)
    assert len(before) < N_PAIRS
    result = pairwise(store=path)
    assert_same(result, whole)
    assert (result.n_stored, result.n_solved) == (len(before), N_PAIRS - len(before))
    assert set(before) < set(kept_pairs(path))
    assert len(set(counted)) == len(counted) == len(kept_pairs(path)) - len(before)
    assert len(kept_pairs(path)) == N_PAIRS
    counted.clear()
    again = pairwise(store=path)
    assert_same(again, whole)
    assert counted == []
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM pairs WHERE value > (SELECT avg(value) FROM pairs)")
    connection.close()
    for n_jobs in (None, 1):
        with pytest.warns(ConvergenceWarning, match="pending"):
            pairwise(store=path, n_jobs=n_jobs, callback=lambda _: True)  # stops at what is stored
    assert counted == []
    assert_same(pairwise(store=path), whole)
    assert (again.n_stored, again.n_solved) == (N_PAIRS, 0)


@pytest.mark.slow
def test_kills_at_any_moment_leave_whole_batches(tmp_path: Path, whole: PairwiseResult) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "pairs.sqlite"
    for _ in range(6):
        child = start(path, N_PAIRS + 1)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        child.communicate()
    stored = kept_pairs(path)
    result = pairwise(store=path)
    assert result.n_stored == len(stored) > 0
    assert_same(result, whole)


@pytest.mark.bits
def test_a_call_that_is_ended_or_fails_goes_on_too(tmp_path: Path, whole: PairwiseResult) -> None:
    path = tmp_path / "pairs.sqlite"
    with pytest.warns(ConvergenceWarning, match="pending"):
        cut = pairwise(store=path, callback=lambda told: told.iteration > 5)
    assert 0 < cut.n_solved < N_PAIRS
    pair = np.argwhere(np.isnan(cut.square()))[0]
    with pytest.raises(ValueError, match="has no matching: pending"):
        cut.matching(*pair)

    def fail(told: Progress) -> None:
        if told.iteration > cut.n_solved:
            raise RuntimeError("out of ink")

    with pytest.raises(RuntimeError, match="out of ink"):
        pairwise(store=path, callback=fail)
    assert len(kept_pairs(path)) > cut.n_solved
    result = pairwise(store=path, random_state=None)  # its own seed is in the file
    assert_same(result, whole)
    assert result.n_stored > cut.n_solved


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"keep": "values"}, "with other keep;"),
        ({"tol": 0.05}, "with other tol;"),
        ({"random_state": 1}, "with other random_state;"),
        ({"scale": "own", "tol": 0.05}, "with other scale, tol;"),
    ],
)
def test_stores_of_other_calls_are_refused_and_left_alone(
    given: dict[str, Any], text: str, tmp_path: Path, one_batch: bytes
) -> None:
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(one_batch)
    with pytest.raises(ValueError, match=f"belongs to another call, {text} give another path, or delete the file"):
        pairwise(store=path, **given)
    assert path.read_bytes() == one_batch


@pytest.fixture(scope="module")
def one_batch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store that has a few pairs."""
    path = tmp_path_factory.mktemp("stores") / "pairs.sqlite"
    with pytest.warns(ConvergenceWarning, match="pending"):
        pairwise(store=path, callback=lambda _: True)
    return path.read_bytes()


def test_files_that_are_no_stores_are_refused_and_left_alone(tmp_path: Path, one_batch: bytes) -> None:
    path = tmp_path / "pairs.sqlite"
    rng = np.random.default_rng(0)
    scrambled = bytearray(one_batch)
    scrambled[4096:] = rng.integers(0, 256, len(scrambled) - 4096, dtype=np.uint8).tobytes()
    for content in (b"distances,between,spaces\n" * 300, one_batch[: len(one_batch) // 2], bytes(scrambled)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"store .* (is not a file of pairs|is damaged|cannot be used)"):
            pairwise(store=path)
        assert path.read_bytes() == content
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE pairs (i INTEGER)")
    other.close()
    with pytest.raises(ValueError, match="is an SQLite file of something else"):
        pairwise(store=path)
    with pytest.raises(ValueError, match=r"store must be the path of a file, but .* is a folder"):
        pairwise(store=tmp_path)
    with pytest.raises(ValueError, match="needs a folder"):
        pairwise(store=tmp_path / "nowhere" / "pairs.sqlite")


def test_one_process_at_a_time_has_a_store(tmp_path: Path) -> None:
    path = tmp_path / "pairs.sqlite"
    refused: list[str] = []

    def second(_: Progress) -> bool:
        with pytest.raises(RuntimeError) as error:
            pairwise(store=path)
        refused.append(str(error.value))
        return True

    with pytest.warns(ConvergenceWarning, match="pending"):
        pairwise(store=path, callback=second)
    assert "is in use by another process; wait for it" in refused[0]


class AllAtOnce(SequentialBackend):
    """As Ray's: no generators."""

    supports_return_generator = False

    def effective_n_jobs(self, n_jobs: int) -> int:
        return 1


def test_backends_that_return_all_at_once_are_given_a_few_at_a_time(
    tmp_path: Path, whole: PairwiseResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_parallel_backend("all at once", AllAtOnce)
    monkeypatch.setattr(schedule, "AT_A_TIME", 2)
    path = tmp_path / "pairs.sqlite"
    with parallel_config("all at once"), pytest.warns(ConvergenceWarning, match="pending"):
        part = pairwise(store=path, callback=lambda _: True)
    assert 0 < part.n_solved == len(kept_pairs(path)) < N_PAIRS
    with parallel_config("all at once"):
        assert_same(pairwise(store=path), whole)


@pytest.mark.slow
def test_a_cluster_of_two_workers_finds_the_same(tmp_path: Path, whole: PairwiseResult) -> None:
    distributed = pytest.importorskip("distributed")
    folder = str(tmp_path)
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=folder
    )
    with cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        with parallel_config(backend="dask"):
            result = pairwise(store=tmp_path / "pairs.sqlite")
        at_work = client.run(lambda: sum(name.startswith("torchgw.pairwise") for name in sys.modules))
    assert len(at_work) == 2
    assert all(at_work.values())
    assert_same(result, whole)
    assert len(kept_pairs(tmp_path / "pairs.sqlite")) == N_PAIRS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_two_workers_of_ray_find_the_same(tmp_path: Path, whole: PairwiseResult) -> None:
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    path = os.pathsep.join(filter(None, sys.path))
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        register_ray()
        with parallel_config(backend="ray", n_jobs=2):
            result = pairwise(store=tmp_path / "pairs.sqlite")
    finally:
        ray.shutdown()
    assert_same(result, whole)
    assert len(kept_pairs(tmp_path / "pairs.sqlite")) == N_PAIRS


def test_spaces_that_lie_in_shared_memory_are_solved_as_others_are() -> None:
    """There arrays may not be written to, and begin anywhere."""
    space = prepare_space(np.random.default_rng(0).normal(size=(70, 70)) ** 2, np.full(70, 1 / 70), 0, metric=True)
    buffers = list[pickle.PickleBuffer]()
    packed = pickle.dumps(space, protocol=5, buffer_callback=buffers.append)
    moved = [memoryview(b"odd" + bytes(each.raw()))[3:] for each in buffers]
    found = pickle.loads(packed, buffers=moved)
    for name in ("distances", "mass", "support"):
        here, there = getattr(space, name), getattr(found, name)
        np.testing.assert_array_equal(here, there)
        assert there.flags.writeable
        assert there.flags.aligned


@pytest.mark.slow
def test_an_interrupt_of_the_terminal_reaches_workers_and_loses_nothing(tmp_path: Path) -> None:
    """It goes to all processes of the command, idle workers and busy ones."""
    for number, points in enumerate(SPACES * 3):
        np.save(tmp_path / f"{number}.npy", points)
    out, store = tmp_path / "out.csv", tmp_path / "pairs.sqlite"
    files = [str(tmp_path / f"{n}.npy") for n in range(30)]
    command = [
        sys.executable,
        "-m",
        "torchgw",
        "pairwise",
        *files,
        "-o",
        str(out),
        "--store",
        str(store),
        "--jobs",
        "2",
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while child.poll() is None and not (store.exists() and store.stat().st_size > 4 * 4096):
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert f"interrupted: the pairs done so far are in {out}" in said
    missing = np.isnan(pd.read_csv(out, index_col=0)).to_numpy().sum() // 2
    assert len(kept_pairs(store)) == 30 * 29 // 2 - missing > 0


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, points in (("spiral", SPIRAL), ("roll", ROLL), ("copy", SPIRAL[::-1])):
        np.save(tmp_path / f"{name}.npy", points)
    return [str(tmp_path / f"{name}.npy") for name in ("spiral", "roll", "copy")]


def test_the_command_writes_what_the_library_finds(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = gw_pairwise([SPIRAL, ROLL, SPIRAL[::-1]], random_state=0)
    table, arrays, store = tmp_path / "out.csv", tmp_path / "out.npz", tmp_path / "pairs.sqlite"
    assert cli.main(["pairwise", *files, "-o", str(table), "--store", str(store), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["distances"] == expected.condensed.tolist()
    assert described["status"] == ["settled"] * 3
    assert (described["solved"], described["stored"]) == (3, 0)
    read = pd.read_csv(table, index_col=0)
    assert [*read.index] == [*read.columns] == ["spiral", "roll", "copy"]
    np.testing.assert_allclose(read, expected.square(), rtol=1e-12)
    assert cli.main(["pairwise", *files, "-o", str(arrays), "--store", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stored"] == 3
    with np.load(arrays) as content:
        np.testing.assert_array_equal(content["distances"], expected.condensed)
        np.testing.assert_array_equal(content["square"], expected.square())
        assert content["names"].tolist() == described["spaces"] == ["spiral", "roll", "copy"]


def written_graphs(folder: Path, sizes: range) -> list[str]:
    """Lists of edges of wheels, whose hubs have names that begin like a formula."""
    for n in sizes:
        edges = [f"-hub,{i}\n{i},{(i + 1) % n}" for i in range(n)]
        (folder / f"wheel {n}.csv").write_text("\n".join(["a,b", *edges]))
    return [str(folder / f"wheel {n}.csv") for n in sizes]


def test_the_command_adds_graphs_to_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New against old first, then all of them, which has the pairs of the new ones left."""
    old, new = written_graphs(tmp_path, range(5, 11)), written_graphs(tmp_path, range(12, 14))
    common = ["--edges", "--distances", "adjacency", "--store", str(tmp_path / "pairs.sqlite"), "--json"]

    def solved(*arguments: str) -> Any:
        assert cli.main(["pairwise", *arguments, *common]) == 0
        found = json.loads(capsys.readouterr().out)
        return found["solved"], found["stored"]

    assert solved(*old, "-o", str(tmp_path / "old.csv")) == (15, 0)
    assert solved(*new, "--against", *old, "-o", str(tmp_path / "new.csv")) == (12, 0)
    assert solved(*new, "--against", *old, "-o", str(tmp_path / "new.npz")) == (0, 12)
    assert solved(*old, *new, "-o", str(tmp_path / "all.csv")) == (1, 27)
    part, every = (pd.read_csv(tmp_path / f"{name}.csv", index_col=0) for name in ("new", "all"))
    assert [*part.index] == ["wheel 12", "wheel 13"]
    assert [*part.columns] == [f"wheel {n}" for n in range(5, 11)]
    pd.testing.assert_frame_equal(part, every.loc[part.index, part.columns])
    with np.load(tmp_path / "new.npz") as content:
        np.testing.assert_allclose(content["square"], part, rtol=1e-12)
        assert (content["names"].tolist(), content["against"].tolist()) == ([*part.index], [*part.columns])


def test_the_command_reads_tables_with_names_and_calls_files_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / folder / "cloud.csv") for folder in "ab"]
    for number, file in enumerate(files):
        Path(file).parent.mkdir()
        pd.DataFrame(SPACES[number], index=range(7, 7 + len(SPACES[number]))).to_csv(file, index_label="id")
    out = tmp_path / "out.csv"
    assert cli.main(["pairwise", *files, "-o", str(out)]) == 2
    assert "`--index-col id` takes it for names of the points" in capsys.readouterr().err
    assert cli.main(["pairwise", *files, "-o", str(out), "--index-col", "id"]) == 0
    read = pd.read_csv(out, index_col=0)
    assert [*read.index] == [*read.columns] == files
    expected = gw_pairwise(SPACES[:2], random_state=0)
    np.testing.assert_allclose(read, expected.square(), rtol=1e-9)
    np.save(tmp_path / "nan.npy", np.full((5, 2), np.nan))
    assert (
        cli.main(["pairwise", files[0], "--index-col", "id", "--against", str(tmp_path / "nan.npy"), "-o", "o.csv"])
        == 2
    )
    assert f"error: {tmp_path / 'nan.npy'} must be finite" in capsys.readouterr().err
    assert (
        cli.main(["pairwise", str(tmp_path / "nan.npy"), files[0], "--edges", "--index-col", "id", "-o", "o.csv"]) == 2
    )
    assert "--edges is for tables without --index-col" in capsys.readouterr().err


def test_an_interrupted_command_writes_what_is_done_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, points in enumerate(SPACES):
        np.save(tmp_path / f"{number}.npy", points)
    out, store = tmp_path / "out.csv", tmp_path / "pairs.sqlite"
    arguments = ["pairwise", *(str(tmp_path / f"{n}.npy") for n in range(10)), "-o", str(out), "--store", str(store)]
    monkeypatch.setattr(command, "bar_on_terminal", lambda _: nullcontext(Interrupting()))
    assert cli.main(arguments) == 130
    said = capsys.readouterr().err
    assert f"interrupted: the pairs done so far are in {out}, the others are nan" in said
    assert f"the same command goes on from {store}" in said
    assert 0 < np.isnan(pd.read_csv(out, index_col=0)).to_numpy().sum() < 90
    monkeypatch.undo()
    assert cli.main(arguments) == 0
    np.testing.assert_allclose(pd.read_csv(out, index_col=0), pairwise().square(), rtol=1e-12)


class Interrupting:
    """Presses Ctrl-C at the first batch."""

    def __call__(self, _: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["-o", "out.txt"], "out.txt"),
        (["-o", "out.csv", "--jobs", "0"], "n_jobs must be"),
        (["-o", "out.csv", "--store", "no/where.sqlite"], "needs a folder"),
        (["-o", "out.csv", "--max-memory", "1e-9"], "GiB"),
    ],
)
def test_the_command_refuses_in_one_line(
    more: list[str], text: str, files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(files[0]).parent)
    assert cli.main(["pairwise", *files, *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith("torchgw: error: ")
    assert said.count("\n") == 1
    assert text in said
    assert cli.main(["pairwise", files[0], "-o", "out.csv"]) == 2
    assert f"pairwise needs two files or more, got {files[0]} alone" in capsys.readouterr().err
    np.save("nan.npy", np.full((5, 2), np.nan))
    assert cli.main(["pairwise", *files, "nan.npy", "-o", "out.csv"]) == 2
    assert "torchgw: error: nan.npy must be finite" in capsys.readouterr().err
    assert not Path("out.csv").exists()


LARGER = [3 * datasets.make_spiral(n, random_state=n)[0] for n in (45, 70)]
SMALL = [SPACES[i] for i in (0, 4, 8)]
LATER: dict[str, tuple[dict[str, Any], int]] = {  # what a later call is given, and the pairs that it solves
    "the same": ({"spaces": SMALL}, 0),
    "in another order": ({"spaces": SMALL[::-1]}, 0),
    "some of them": ({"spaces": SMALL[1:]}, 0),
    "two more": ({"spaces": [*LARGER, *SMALL]}, 7),
    "two more against the old": ({"spaces": LARGER, "against": SMALL}, 6),
    "the old against two more": ({"spaces": SMALL, "against": LARGER}, 6),
    "other masses": ({"spaces": SMALL, "masses": [None, np.arange(65.0), None]}, 2),
    "other distances": ({"spaces": SMALL, "distances": "dijkstra"}, 3),
}


@pytest.mark.parametrize("scale", ["common", "own"])
@pytest.mark.parametrize("name", LATER)
def test_a_store_grows_by_the_pairs_that_it_lacks(
    name: str, scale: str, tmp_path: Path, counted: list[tuple[int, int]]
) -> None:
    path, (given, new) = tmp_path / "pairs.sqlite", LATER[name]
    keywords: dict[str, Any] = {"scale": scale, "keep": "matchings", "random_state": 0}
    gw_pairwise(SMALL, store=path, **keywords)
    counted.clear()
    grown = gw_pairwise(**given, store=path, **keywords)
    assert (grown.n_solved, len(counted), len(kept_pairs(path))) == (new, new, 3 + new)
    fresh = gw_pairwise(**given, **keywords)
    np.testing.assert_allclose(grown.values, fresh.values, rtol=1e-6 if scale == "common" else 0)
    for i, j in {(i, j) for i in range(len(given["spaces"])) for j in range(len(given.get("against", [])))}:
        np.testing.assert_array_equal(grown.matching(i, j), fresh.matching(i, j))
    if "against" not in given:
        np.testing.assert_array_equal(grown.matching(1, 0), fresh.matching(1, 0))
    again = gw_pairwise(**given, store=path, **keywords)
    assert again.n_solved == 0
    np.testing.assert_array_equal(again.values, grown.values)


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
def test_five_more_graphs_in_a_store_of_many_solve_only_their_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.sqlite"
    graphs = [neighbour_graph(np.random.default_rng(n).random((12, 2)), 3) for n in range(35)]
    before = gw_pairwise(graphs[:30], store=path, random_state=0)
    rows = gw_pairwise(graphs[30:], against=graphs[:30], store=path, random_state=0)
    whole = gw_pairwise(graphs, store=path, random_state=0)
    assert (before.n_solved, rows.n_solved, whole.n_solved) == (435, 150, 10)
    np.testing.assert_array_equal(whole.square()[:30, :30], before.square())
    np.testing.assert_array_equal(whole.square()[30:, :30], rows.square())


def test_a_store_of_an_earlier_format_is_refused_and_left_alone(tmp_path: Path, one_batch: bytes) -> None:
    path = tmp_path / "pairs.sqlite"
    path.write_bytes(one_batch)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"has format 0, and this version reads format 2 alone.*give another path"):
        pairwise(store=path)
    assert path.read_bytes() == before
