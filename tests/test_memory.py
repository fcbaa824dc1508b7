"""Nothing allocates a matrix of all pairs of a large problem."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STREAMED = r"""
import sys
import torchgw

n = 16000
x, _ = torchgw.datasets.make_spiral(n)
y, _ = torchgw.datasets.make_swiss_roll(n, random_state=1)
result = torchgw.gw_align(x, y, random_state=0, options=torchgw.GWOptions(max_memory=10**9))
assert result.strategy == "streaming"
result.argmax(), result.argmax(axis=0), result.push(x), result.pull(y), result.top_k(2), result.row(3)
result.sample(500, random_state=0), result.marginal(0), result.sparsify(0.05), result.confidence()
result.save(sys.argv[1])
back = torchgw.GWResult.load(sys.argv[1])
back.push(x)
result.transform(x[:100] + 0.001).argmax()
try:
    result.plan
except MemoryError as error:
    assert "argmax" in str(error)
else:
    raise AssertionError("a plan over the limit was built")
"""
LOW_RANK = r"""
del result, back
low = torchgw.GWOptions(strategy="low-rank", low_rank=torchgw.LowRankOptions(rank=4, max_iter=10))
low = torchgw.gw_align(x, y, epsilon=0, random_state=0, options=low)
low.argmax(), low.push(x), low.sample(100, random_state=0)
"""
FUSED = r"""
import numpy as np
import torchgw

n = 20000
x, s = torchgw.datasets.make_spiral(n)
y, t = torchgw.datasets.make_swiss_roll(n, random_state=1)
noise = np.random.default_rng(0).normal(scale=0.3, size=(2, n, 3))
features = tuple(np.stack((a, np.sin(a), np.cos(a)), 1) + e for a, e in zip((s, t), noise))
rules = torchgw.Supervision(pairs=[(0, 0), (n - 1, n - 1)])
for model in (torchgw.Balanced(), torchgw.Unbalanced(0.05, 0.05)):
    result = torchgw.gw_align(x, y, cost=features, marginals=model, supervision=rules, random_state=0)
    assert result.strategy == "streaming"
    assert np.corrcoef(s, t[result.argmax()])[0, 1] > 0.99
assert torchgw.gw_align(None, None, cost=features, alpha=0, random_state=0).converged
"""
READ = r"""
import re
from pathlib import Path
print(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def peak(script: str, *arguments: str) -> int:
    """The most bytes that a process of its own held in memory while it ran this."""
    command = [sys.executable, "-c", script + READ, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def test_nothing_stores_all_pairs_streaming_and_of_low_rank(tmp_path: Path) -> None:
    """A float32 matrix of all pairs alone would take 1.02e9 bytes."""
    assert peak(STREAMED + LOW_RANK, str(tmp_path / "result.npz")) < 0.95e9


@pytest.mark.slow
def test_fused_costs_and_relaxed_marginals_store_no_pairs_either() -> None:
    """20000 x 20000: a float32 matrix of all pairs alone would take 1.6e9 bytes."""
    assert peak(FUSED) < 1.2e9
