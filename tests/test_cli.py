"""The command line: files, options, messages, progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix, save_npz

from tests.problems import ROLL, ROLL_ANGLE, SPIRAL
from torchgw import GWResult, SpaceOptions, StoppingOptions, cli
from torchgw.cli import align as command
from torchgw.cli.input import read_space
from torchgw.spaces.graph import neighbour_graph


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
        np.testing.assert_allclose(read_space("X", path), ROLL, rtol=1e-12)
    save_npz(tmp_path / "graph.npz", neighbour_graph(SPIRAL, 5))
    assert read_space("X", tmp_path / "graph.npz").shape == (90, 90)


@pytest.mark.parametrize("storage", [np.asarray, csr_matrix, csc_matrix])
def test_cells_are_read_from_their_principal_components(
    storage: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anndata = pytest.importorskip("anndata")
    path = tmp_path / "cells.h5ad"
    anndata.AnnData(storage(SPIRAL), obsm={"X_pca": storage(ROLL[:90]), "X_umap": ROLL[:90]}).write_h5ad(path)
    np.testing.assert_array_equal(read_space("X", path), ROLL[:90])
    anndata.AnnData(storage(SPIRAL), obsm={"X_umap": ROLL[:90]}).write_h5ad(path)
    np.testing.assert_array_equal(read_space("X", path), SPIRAL)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match="h5py is not installed; pip install anndata"):
        read_space("X", path)


def test_the_command_writes_what_the_library_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], result: GWResult
) -> None:
    source, target = write_inputs(tmp_path)
    out = tmp_path / "out.npz"
    flags = "-k 5 --landmarks 30 --distances landmark --epsilon 1e-3 --seed 0"
    assert cli.main(["align", source, target, "-o", str(out), *flags.split()]) == 0
    captured = capsys.readouterr()
    loaded = GWResult.load(out)
    assert captured.out == ""
    assert captured.err == f"torchgw: {loaded.verdict} {' '.join(loaded.reasons)}\n"  # doubtful, so said in a pipe too
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


def test_the_command_alone_names_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert re.fullmatch(
        "torchgw: error: name a command: align, resume, .*; torchgw --help .*\n", capsys.readouterr().err
    )


def test_one_feature_for_each_point_is_a_column(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", SPIRAL[:, 0])
    found = command.load_features([tmp_path / "t.npy"] * 2, 2**20)
    np.testing.assert_array_equal(found[1], SPIRAL[:, :1])
    with pytest.raises(ValueError, match=r"rows and columns, got shape \(90,\); one number .* x\[:, None\]"):
        read_space("X", tmp_path / "t.npy")


def test_pickles_are_refused_unread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, target = write_inputs(tmp_path)
    for name, save in (("p.npy", np.save), ("p.npz", np.savez)):
        save(tmp_path / name, np.array([{"a": 1}] * 9, dtype=object))  # type: ignore[operator]
        assert cli.main(["align", str(tmp_path / name), target, "-o", str(tmp_path / "out.npz")]) == 2
        assert "pickled objects" in capsys.readouterr().err


def test_several_arrays_without_a_known_name_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", a=ROLL, b=ROLL)
    with pytest.raises(ValueError, match=r"one called 'X' or 'points', got \['a', 'b'\]"):
        read_space("source", tmp_path / "many.npz")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["-o", "out.txt"], "output must be a .npz or .csv or .h5ad"),
        (["-o", "out.h5ad"], "is for two .h5ad files"),
        (["-o", "out.npz", "--labels", "kind"], "need an .h5ad output"),
        (["-o", "out.npz", "--partial", "0.5", "--unbalanced", "1"], "not allowed with"),
        (["-o", "out.npz", "--max-memory", "0"], "max-memory"),
        (["-o", "no/such/folder/out.npz"], "folder that is not there"),
        (["-o", "out.npz", "--epsilon", "-1"], "epsilon"),
        (["-o", "out.npz", "--epsilon", "tiny"], "epsilon"),
        (["-o", "out.npz", "--distances", "taxi"], "distances"),
        (["-o", "out.npz", "--device", "cuda:99"], "device"),
        (["-o", "out.npz", "--backend", "triton", "--device", "cpu"], "backend"),
        (["-o", "out.npz", "-k", "90"], "k must be smaller"),
        (["-o", "out.npz", "--anchors", "0"], "n_anchors"),
        (["-o", "out.npz", "--seed", "-1"], "random_state"),
        (
            ["-o", "out.npz", "--epsilon", "0", "--semi-relaxed", "0.1"],
            "--semi-relaxed does not go with --epsilon 0: relaxed marginals need an entropy",
        ),
        (
            ["-o", "out.npz", "--strategy", "low-rank", "--partial", "1"],
            "--partial does not go with --strategy low-rank: the descent is that of squared distances",
        ),
        (["-o", "my out.npz", "--checkpoint", "."], "; `torchgw resume . -o 'my out.npz'` goes on"),
        (["-o", "out.npz", "--report", "out.pdf"], "--report must be a .html file, got out.pdf"),
        (["-o", "out.npz", "--pairs", "no.csv"], "--pairs: no.csv is not there"),
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
    assert cli.main(["align", source, target, "-o", str(tmp_path / "o.npz"), "-k", "5", "--max-iter", "1"]) == 0
    verdict, warning = capsys.readouterr().err.splitlines()
    assert verdict.startswith("torchgw: Check this matching before you use it. ")
    assert warning.startswith("torchgw: warning: the iteration limit ")


def test_a_convincing_verdict_is_silent_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _ = write_inputs(tmp_path)
    assert cli.main(["align", source, source, "-o", str(tmp_path / "o.npz"), "--seed", "0"]) == 0
    assert capsys.readouterr().err == ""


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    source, target = write_inputs(tmp_path)
    monkeypatch.setattr(command, "gw_align", interrupt)
    assert cli.main(["align", source, target, "-o", str(tmp_path / "out.npz")]) == 130
