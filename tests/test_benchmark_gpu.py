"""The GPU suite without a GPU: what it refuses, and that its short table has a line for every kind of figure."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu

ROWS = {
    "dense": {"what": "100 iterations", "size": "5001 x 6001 float32", "ms": 5.6, "two-read floor / time": 0.91},
    "stream": {"what": "half-step", "size": "45000 x 45000", "ms": 2.0, "ps a pair": 0.98},
    "tiles": {"what": "read", "size": "45000 x 45000", "ms": 2.0, "kept": 0.2, "ps a pair": 1.5},
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
        "5.6 ms",
        "0.98 ps a pair",
        "1.50 ps a kept pair",
        "3.00 s",
        "1.25 s",
        "3.2 s, 1.9 GiB",
        "1.80x (alone)",
    ]
    assert all(line["what"] and line["size"] and line["against"] for line in lines)
