"""The GPU suite without a GPU: what it refuses, and that its short table has a line for every kind of figure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import gpu, kernels
from benchmarks.common import RESULTS, rehearsal, write
from torchgw.kernels import dispatch

ROWS = {
    "machine": {"what": "copy", "device": "a GPU", "figure": 4.3, "unit": "TB/s"},
    "jobs": {
        "size": "400 x 500",
        "strategy": "dense",
        "s": 0.04,
        "asked s": 0.05,
        "launches": 1400,
        "waits": 20,
        "GPU GiB": 0.1,
        "same bits": True,
    },
    "million": {
        "size": "1000000 x 1000000",
        "strategy": "streaming",
        "s": 20.4,
        "asked s": None,
        "launches": None,
        "waits": None,
        "GPU GiB": 5.6,
        "same bits": False,
    },
    "variants": {"size": "400 x 500", "backend": "triton", "graphs": False, "s": 0.1, "value": 0.0017},
    "dense": {"what": "100 iterations", "size": "5001 x 6001 float32", "ms": 5.6, "two-read floor / time": 0.91},
    "stream": {"what": "half-step", "size": "45000 x 45000", "ms": 2.0, "ps a pair": 0.98},
    "tiles": {"what": "read", "size": "45000 x 45000", "ms": 2.0, "kept": 0.2, "ps a pair": 1.5},
    "preparation": {"what": "graph", "size": 45000, "ms": 9.0},
    "rows": {
        "size": "400 x 500",
        "distances": "landmark",
        "backend": "triton",
        "search s": 1.0,
        "solve s": 2,
        "|rho|": 1.0,
    },
    "sharp": {"size": "2000 x 2500", "epsilon": 0.0, "search s": 1.0, "solve s": 0.25, "rho": 0.999, "value": 0.001},
    "large": {"size": "45000 x 45000", "s": 3.2, "GPU GiB": 1.9, "rho": 0.999, "residual": 2e-3},
    "phases": {"phase": "3 mixed precision", "problem": "spiral", "ratio": 1.8, "how": "alone", "verdict": "pays"},
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_what_waits():
    with pytest.raises(SystemExit, match="no GPU here"):
        gpu.run()


def test_the_short_table_has_a_line_for_every_figure():
    lines = gpu.summary({name: [row] for name, row in ROWS.items()})
    assert set(gpu.LINES) == set(gpu.GROUPS) == set(ROWS)
    assert [line["figure"] for line in lines] == [
        "4.3 TB/s",
        "0.04 s, 1400 launches, 20 waits, 0.10 GiB",
        "20.4 s, 5.60 GiB",
        "0.1 s, value 0.0017",
        "5.6 ms",
        "0.98 ps a pair",
        "1.50 ps a kept pair",
        "9 ms",
        "3.00 s",
        "1.25 s",
        "3.2 s, 1.9 GiB",
        "1.80x (alone)",
    ]
    assert all(line["what"] and line["size"] and line["against"] for line in lines)


def stored() -> dict[Path, bytes]:
    """What measurements write."""
    return {path: path.read_bytes() for path in (dispatch.MEASURED, *RESULTS.glob("*.json"))}


@pytest.mark.parametrize("name", ["machine", "jobs", "dense", "stream", "tiles"])
def test_a_group_comes_to_its_end_on_the_cpu_and_stores_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = stored()
    gpu.run([name], cpu_check=True)
    assert capsys.readouterr().out.rstrip().endswith(gpu.LINES[name](ROWS[name])[3].split()[-1])
    assert stored() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernels", "variants", "rows", "sharp", "large", "phases"])
def test_a_long_group_does_too(name: str) -> None:
    before = stored()
    gpu.run([name], cpu_check=True)
    assert stored() == before


def test_kernels_are_timed_in_every_way_that_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BACKENDS", ("eager", "triton"))  # compiling takes longer than all else
    device = torch.device("cpu")
    with rehearsal():
        rows = kernels.dense(device, torch.float64)
    assert [row["what"] for row in rows][2:] == ["iteration, log domain", "iteration, scaling"]
    assert all(row["eager"] > 0 < row["floor"] for row in rows)
    assert all(kernels.summary(row)["size"] == "40 x 50" for row in rows)


def test_what_is_copied_fits_no_cache_but_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, most in ((2**36, 2**31), (2**30, 2**28)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 2**37))
        assert kernels.copied_bytes(torch.device("cuda")) == most


def test_the_dispatchers_table_keeps_the_rows_of_other_devices() -> None:
    row = {"what": "iteration, log domain", "dtype": "float32", "family": "softmin_dense", "n": 4, "k": 5, "rank": 0}
    row |= dict.fromkeys(kernels.BACKENDS, 1.0)
    before = {"environments": {"cpu": 1}, "rows": [{"device": "cpu", "n": 1}, {"device": "cuda", "n": 2}]}
    after = kernels.renewed(before, "cuda", [row, row | {"dtype": "float64"}, row | {"what": "softmin, axis 1"}])
    assert [(each["device"], each["n"]) for each in after["rows"]] == [("cpu", 1), ("cuda", 4)]
    assert set(after["environments"]) == {"cpu", "cuda"}


def test_a_rehearsal_finds_what_could_not_be_stored() -> None:
    with rehearsal(), pytest.raises(TypeError, match="JSON"):
        write("gpu", [{"device": torch.device("cpu")}])
