"""Results, files, the command line, the demo, and the commands of the README."""

from __future__ import annotations

import builtins
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import save_npz
from scipy.stats import spearmanr

from tests.problems import dense_coupling
from torchgw import GWOptions, GWResult, SpaceOptions, StoppingOptions, cli, demo, gw_align, io
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.progress import ProgressBar
from torchgw.spaces.graph import neighbour_graph
from torchgw.types import Progress

ROOT = Path(__file__).parent.parent
SPIRAL, SPIRAL_ANGLE = make_spiral(90)
ROLL, ROLL_ANGLE = make_spiral(110, random_state=1)


@pytest.fixture(scope="module")
def result() -> GWResult:
    options = GWOptions(spaces=SpaceOptions(k=5, n_landmarks=30))
    return gw_align(SPIRAL, ROLL, distances="landmark", random_state=0, options=options)


def test_data_sets_are_the_curves_they_say() -> None:
    points, angle = make_spiral(50, noise=0.0)
    radius = np.linspace(0.3, 1.0, 50)
    np.testing.assert_allclose(points, np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1))
    np.testing.assert_allclose(angle, np.linspace(0, 9, 50))
    roll, _ = make_swiss_roll(50, noise=0.0)
    np.testing.assert_allclose(roll[:, [0, 2]], points)
    assert 0 <= roll[:, 1].min() < 0.2 < 0.8 < roll[:, 1].max() <= 1


def test_data_sets_depend_on_their_seed_only() -> None:
    np.testing.assert_array_equal(make_spiral(20)[0], make_spiral(20, random_state=0)[0])
    assert not np.array_equal(make_spiral(20, random_state=1)[0], make_spiral(20)[0])
    noisy = make_spiral(4000, noise=0.05)[0] - make_spiral(4000, noise=0.0)[0]
    angle = make_spiral(4000)[1]
    keep = (np.abs(np.cos(angle)) > 0.1) & (np.abs(np.sin(angle)) > 0.1)
    jitter = noisy[keep] / np.stack((np.cos(angle[keep]), np.sin(angle[keep])), 1)
    np.testing.assert_allclose(jitter.std(0), 0.05, rtol=0.05)
    assert abs(np.corrcoef(jitter.T)[0, 1]) < 0.05  # a draw of its own for each coordinate


def test_push_and_pull_are_averages_weighted_by_the_plan(result: GWResult) -> None:
    plan = result.plan.numpy()
    V = np.random.default_rng(0).normal(size=(90, 3))
    np.testing.assert_allclose(result.push(V), (plan.T @ V) / plan.sum(0)[:, None], rtol=1e-10)
    w = np.random.default_rng(1).normal(size=110)
    np.testing.assert_allclose(result.pull(w), plan @ w / plan.sum(1), rtol=1e-10)
    np.testing.assert_allclose(result.push(np.ones(90)), np.ones(110))


def test_numpy_comes_back_as_numpy_and_torch_as_torch(result: GWResult) -> None:
    assert isinstance(result.push(np.ones(90)), np.ndarray)
    assert isinstance(result.push(torch.ones(90)), torch.Tensor)
    assert isinstance(result.argmax(), np.ndarray)
    tensors = gw_align(torch.from_numpy(SPIRAL), ROLL, random_state=0, options=GWOptions(spaces=SpaceOptions(k=5)))
    assert isinstance(tensors.argmax(), torch.Tensor)
    assert isinstance(tensors.top_k(2)[1], torch.Tensor)


def test_a_result_describes_itself_in_one_line(result: GWResult) -> None:
    assert re.fullmatch(r"GWResult\(90 x 110, value 0\.\d+, settled after \d+ iterations, .*\)", repr(result))
    fields = {name: getattr(result, name) for name in GWResult.__dataclass_fields__}
    guess = GWResult(**fields | {"value": 0.5, "value_exact": False, "value_error": 0.01})
    assert "value 0.5 +- 0.01" in repr(guess)


def test_views_of_the_plan_agree_with_it(result: GWResult) -> None:
    plan = result.plan
    np.testing.assert_array_equal(result.argmax(), plan.argmax(1))
    np.testing.assert_array_equal(result.argmax(axis=0), plan.argmax(0))
    np.testing.assert_allclose(result.top_k(3)[0], plan.topk(3, dim=1).values)
    assert result.sparsify(0.9).nnz < 0.5 * plan.numel()
    assert result.plan is plan


def test_potentials_reproduce_the_plan_before_rounding(result: GWResult) -> None:
    assert result.potentials is not None
    f, g = result.potentials
    tensors: Any = result.coupling.tensors()  # type: ignore[attr-defined]
    score = tensors["A"] @ tensors["B"].T * np.log(2)
    plan = (score + f[:, None] + g).exp()
    assert float((plan - result.plan).abs().sum()) <= 4 * result.marginal_residual + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.push(np.ones(91)), r"V must have shape \(90,\) or \(90, d\), got \(91,\)"),
        (lambda r: r.pull(np.ones((2, 2, 2))), "V must have shape"),
        (lambda r: r.argmax(axis=2), "axis must be"),
        (lambda r: r.top_k(0), "k must be"),
        (lambda r: r.top_k(111), "k must be"),
        (lambda r: r.sparsify(0.0), "mass must be"),
    ],
)
def test_results_refuse_bad_questions(result: GWResult, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(result)


def test_the_dense_plan_refuses_over_the_memory_limit_and_names_the_alternatives(result: GWResult) -> None:
    fields = {name: getattr(result, name) for name in GWResult.__dataclass_fields__}
    small = GWResult(**fields | {"options": GWOptions(max_memory=10_000)})
    with pytest.raises(MemoryError, match=r"argmax\(\), top_k\(k\), sparsify\(mass\)"):
        _ = small.plan
    np.testing.assert_array_equal(small.argmax(), result.argmax())


def test_a_result_survives_saving_and_loading(result: GWResult, tmp_path: Path) -> None:
    path = tmp_path / "result.npz"
    result.save(path)
    loaded = GWResult.load(path)
    assert torch.equal(loaded.plan, result.plan)
    for name in GWResult.__dataclass_fields__:
        if name != "coupling":
            assert getattr(loaded, name) == getattr(result, name), name
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["matching"], result.argmax())
        assert float(file["value"]) == result.value
        assert file["f"].shape == (90,)


def test_options_given_as_numpy_numbers_survive_saving(tmp_path: Path) -> None:
    options = GWOptions(
        spaces=SpaceOptions(k=np.int64(5)),  # type: ignore[arg-type]
        stopping=StoppingOptions(plan_tol=np.float32(0.5)),  # type: ignore[arg-type]
        mixed_precision=np.bool_(True),  # type: ignore[arg-type]
    )
    gw_align(SPIRAL, ROLL, random_state=0, options=options).save(tmp_path / "r.npz")
    assert GWResult.load(tmp_path / "r.npz").options == options


def test_values_on_points_may_be_views_and_must_be_real(result: GWResult) -> None:
    np.testing.assert_allclose(result.push(SPIRAL_ANGLE[::-1]), result.push(SPIRAL_ANGLE[::-1].copy()))
    fixed = SPIRAL_ANGLE.copy()
    fixed.flags.writeable = False
    np.testing.assert_allclose(result.push(fixed), result.push(SPIRAL_ANGLE))
    for bad in (SPIRAL_ANGLE * 1j, SPIRAL_ANGLE.astype(str)):
        with pytest.raises(TypeError, match="V must hold real numbers"):
            result.push(bad)


def test_a_dense_coupling_survives_saving_and_loading(result: GWResult, tmp_path: Path) -> None:
    fields = {name: getattr(result, name) for name in GWResult.__dataclass_fields__}
    stored = GWResult(**fields | {"coupling": dense_coupling(5, 6, 0)})
    assert stored.potentials is None
    stored.save(tmp_path / "dense.npz")
    assert torch.equal(GWResult.load(tmp_path / "dense.npz").plan, stored.plan)


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "pickle.npz", meta=np.array([{"a": 1}], dtype=object))
    for name in ("other", "text", "pickle"):
        with pytest.raises(ValueError, match=r"written by GWResult\.save"):
            GWResult.load(tmp_path / f"{name}.npz")


def write_inputs(folder: Path) -> tuple[str, str]:
    np.save(folder / "source.npy", SPIRAL)
    np.savetxt(folder / "target.csv", ROLL, delimiter=",", header="x,height,z", comments="")
    return str(folder / "source.npy"), str(folder / "target.csv")


def test_every_format_is_read_alike(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROLL)
    np.savez(tmp_path / "b.npz", points=ROLL, angle=ROLL_ANGLE)
    np.savez(tmp_path / "c.npz", ROLL)
    np.savetxt(tmp_path / "d.csv", ROLL, delimiter=",")
    np.savetxt(tmp_path / "e.tsv", ROLL, delimiter="\t", header="x\ty\tz", comments="")
    for path in sorted(tmp_path.iterdir()):
        np.testing.assert_allclose(io.read_space("X", path), ROLL, rtol=1e-12)
    save_npz(tmp_path / "graph.npz", neighbour_graph(SPIRAL, 5))
    assert io.read_space("X", tmp_path / "graph.npz").shape == (90, 90)


def test_cells_are_read_from_their_principal_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cells:
        obsm = {"X_pca": ROLL}  # noqa: RUF012
        X = SPIRAL

    class Module:
        @staticmethod
        def read_h5ad(_: Path) -> Cells:
            return Cells()

    (tmp_path / "cells.h5ad").touch()
    monkeypatch.setitem(sys.modules, "anndata", Module)  # type: ignore[arg-type]
    np.testing.assert_array_equal(io.read_space("X", tmp_path / "cells.h5ad"), ROLL)
    monkeypatch.setattr(Cells, "obsm", {})
    np.testing.assert_array_equal(io.read_space("X", tmp_path / "cells.h5ad"), SPIRAL)
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(ValueError, match="anndata is not installed"):
        io.read_space("X", tmp_path / "cells.h5ad")


def test_the_command_writes_what_the_library_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], result: GWResult
) -> None:
    source, target = write_inputs(tmp_path)
    out = tmp_path / "out.npz"
    flags = "-k 5 --landmarks 30 --distances landmark --seed 0"
    assert cli.main(["align", source, target, "-o", str(out), *flags.split()]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""  # silence when piped
    loaded = GWResult.load(out)
    np.testing.assert_array_equal(loaded.argmax(), result.argmax())
    assert loaded.value == pytest.approx(result.value, rel=1e-9)
    assert not list(tmp_path.glob("*.part"))


def test_every_main_parameter_of_the_command_reaches_the_solve(tmp_path: Path) -> None:
    source, target = write_inputs(tmp_path)
    out = str(tmp_path / "out.npz")
    flags = "-k 5 --landmarks 30 --anchors 40 --max-iter 5 --seed 3 --epsilon 0.01 --distances landmark --double"
    assert cli.main(["align", source, target, "-o", out, *flags.split(), "--device", "cpu", "--backend", "eager"]) == 0
    loaded = GWResult.load(out)
    assert loaded.options.spaces == SpaceOptions(k=5, n_landmarks=30)
    assert loaded.options.sampling.n_anchors == 40
    assert loaded.options.stopping == StoppingOptions(max_iter=5)
    assert not loaded.options.mixed_precision
    assert loaded.epsilon == 0.01
    assert loaded.providers == ("LandmarkDistances", "LandmarkDistances")


BAD_FILES = {
    "missing.npy": None,
    "folder.npy": "folder",
    "wrong.txt": b"1 2 3",
    "text.npy": b"not numpy at all",
    "empty.npy": b"",
    "empty.csv": b"",
    "words.csv": b"a,b\nc,d\n",
    "ragged.csv": b"1,2\n3\n4,5\n",
    "latin.csv": b"\xff\xfe\x00",
    "broken.npz": b"PK\x03\x04 broken",
    "one.csv": b"1,2,3\n",
    "index.csv": b",x,y\n0,1,2\n1,2,3\n2,5,6\n",
    "hole.csv": b"1.0,NA\n2,3\n4,5\n",
    "flipped.npz": "flipped",
    "nan.csv": b"1,2\nnan,3\n4,5\n6,7\n8,9\n1,1\n2,2\n",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_gives_one_line_and_exit_code_two(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, target = write_inputs(tmp_path)
    path, content = tmp_path / name, BAD_FILES[name]
    if content == "folder":
        path.mkdir()
    elif content == "flipped":
        np.savez_compressed(path, ROLL)
        whole = bytearray(path.read_bytes())
        whole[60:400] = bytes(340)
        path.write_bytes(whole)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    assert cli.main(["align", str(path), target, "-o", str(tmp_path / "out.npz")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("torchgw: error: ")
    assert captured.err.count("\n") == 1
    assert "source" in captured.err or "X must" in captured.err
    assert not (tmp_path / "out.npz").exists()


def test_pickles_are_refused_unread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, target = write_inputs(tmp_path)
    for name, save in (("p.npy", np.save), ("p.npz", np.savez)):
        save(tmp_path / name, np.array([{"a": 1}] * 9, dtype=object))  # type: ignore[operator]
        assert cli.main(["align", str(tmp_path / name), target, "-o", str(tmp_path / "out.npz")]) == 2
        assert "pickled objects" in capsys.readouterr().err


def test_several_arrays_without_a_known_name_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", a=ROLL, b=ROLL)
    with pytest.raises(ValueError, match=r"one called 'X' or 'points', got \['a', 'b'\]"):
        io.read_space("source", tmp_path / "many.npz")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["-o", "out.csv"], "output must be a .npz"),
        (["-o", "no/such/folder/out.npz"], "folder that is not there"),
        (["-o", "out.npz", "--epsilon", "-1"], "epsilon"),
        (["-o", "out.npz", "--epsilon", "tiny"], "epsilon"),
        (["-o", "out.npz", "--distances", "taxi"], "distances"),
        (["-o", "out.npz", "--device", "cuda:99"], "device"),
        (["-o", "out.npz", "--backend", "triton", "--device", "cpu"], "backend"),
        (["-o", "out.npz", "-k", "90"], "k must be smaller"),
        (["-o", "out.npz", "--anchors", "0"], "n_anchors"),
        (["-o", "out.npz", "--seed", "-1"], "random_state"),
        (["-o", "out.npz", "--unknown"], "unrecognized"),
        ([], "-o"),
    ],
)
def test_bad_options_give_one_line_and_exit_code_two(
    flags: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(["align", source, target, *flags])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    error = capsys.readouterr().err
    assert code == 2
    assert word in error
    assert error.count("\n") == 1


def test_warnings_of_the_command_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_inputs(tmp_path)
    assert cli.main(["align", source, target, "-o", str(tmp_path / "o.npz"), "-k", "5", "--max-iter", "3"]) == 0
    assert re.fullmatch(r"torchgw: warning: the iteration limit .*\n", capsys.readouterr().err)


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    source, target = write_inputs(tmp_path)
    monkeypatch.setattr(cli, "gw_align", interrupt)
    assert cli.main(["align", source, target, "-o", str(tmp_path / "out.npz")]) == 130


class Terminal:
    """A stream that says it is a terminal and keeps what was written."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


def test_the_progress_bar_rewrites_one_line_on_a_terminal() -> None:
    stream: Any = Terminal()
    bar = ProgressBar("solve", stream)
    for i in (50, 100):
        bar(Progress(iteration=i, max_iter=100, cost=0.25, marginal_error=1e-3, epsilon=1e-3, elapsed=1.0))
    bar.close()
    assert "\n" not in stream.text
    assert stream.text.count("\r") == 4
    assert "solve [############............] 50/100  cost 0.25000" in stream.text
    assert "[########################] 100/100" in stream.text


def test_the_demo_prints_its_table_and_draws_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RUNS", ((400, 500, "precomputed"), (400, 500, "dijkstra"), (400, 500, "landmark")))
    picture = tmp_path / "demo.png"
    assert cli.main(["demo", "-o", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["size", "provider", "preparing"]
    rows = [line for line in lines if line.strip().startswith("400 x 500")]
    assert [row.split()[3] for row in rows] == ["precomputed", "dijkstra", "landmark"]
    assert all(float(row.split()[6]) > 0.998 for row in rows)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size > 50_000


def test_the_binned_plan_keeps_all_mass_and_lies_on_the_diagonal() -> None:
    run = demo.align_once(400, 500, "precomputed", None, None)
    mass = demo.binned_plan(run, 30)
    np.testing.assert_allclose(mass, _binned(run.result.plan.numpy(), 30), atol=1e-12)
    assert mass.sum() == pytest.approx(1.0)
    ridge = mass.argmax(1)
    assert abs(spearmanr(np.arange(30), ridge)[0]) > 0.9


def _binned(plan: np.ndarray, bins: int) -> np.ndarray:
    out = np.zeros((bins, bins))
    for i, row in enumerate(plan):
        for j, value in enumerate(row):
            out[i * bins // len(plan), j * bins // len(row)] += value
    return out


def test_the_demo_without_matplotlib_prints_the_table_and_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RUNS", ((60, 70, "precomputed"),))
    real_import = builtins.__import__

    def no_matplotlib(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    assert cli.main(["demo", "-o", str(tmp_path / "demo.png")]) == 2
    captured = capsys.readouterr()
    assert "60 x 70" in captured.out
    assert "pip install matplotlib" in captured.err


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = readme_blocks("python")
    assert blocks
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(block, scope)


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    np.save(tmp_path / "source.npy", SPIRAL)
    np.save(tmp_path / "target.npy", ROLL)
    lines = [line for block in readme_blocks("bash") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("torchgw ") and "demo" not in line]
    assert commands
    for line in commands:
        subprocess.run([sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, check=True)
    for target in (line.split()[1] for line in lines if line.startswith("make ")):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
