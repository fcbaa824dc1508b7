"""The examples do what their documents say, in a reduced form, and the code in the documents runs."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from torchgw import Status

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def example(name: str) -> ModuleType:
    """A file of docs/examples as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def run_blocks(path: Path) -> dict[str, Any]:
    """What the Python blocks of a document leave behind, run one after the other; errors name the document's line."""
    text, left = path.read_text(), {"__name__": path.stem}
    blocks = list(BLOCK.finditer(text))
    assert blocks, path
    for block in blocks:
        above = text[: block.start(1)].count("\n")
        exec(compile("\n" * above + block[1], str(path), "exec"), left)
    return left


@cache
def flowed(debiased: bool) -> tuple[ModuleType, Any]:
    """The example and a short run of it."""
    flow = example("gradient_flow")
    return flow, flow.flow(n=100, n_steps=15, debiased=debiased)


@pytest.mark.parametrize("debiased", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_flow_falls_at_every_step(debiased: bool) -> None:
    flow, done = flowed(debiased)
    assert len(done.clouds) == len(done.loss) == 15
    assert flow.largest_rise(done.loss) < 0
    assert done.loss[-1] < 0.4 * done.loss[0]
    assert "falls at every step" in flow.table(done)


def test_the_flow_takes_the_size_of_its_target() -> None:
    done = flowed(False)[1]
    sizes = [float(torch.pdist(cloud).square().mean()) for cloud in (done.clouds[0], done.clouds[-1], done.target)]
    assert abs(sizes[1] / sizes[2] - 1) < 0.1 < abs(sizes[0] / sizes[2] - 1)


@cache
def learned() -> tuple[ModuleType, Any]:
    """The other example, and a short run of it."""
    modalities = example("two_modalities")
    return modalities, modalities.run(seed=1, n=150, k=170, n_steps=20)


def test_learned_weights_align_two_modalities() -> None:
    _, done = learned()
    assert done.training.loss[-1] < 0.6 * done.training.loss[0]
    assert done.errors["encoded"] < 0.25 * done.errors["raw"]
    assert done.errors["encoded"] < 0.8 * done.errors["standardised"]
    weights = done.training.encoder.log.detach()
    assert weights[:6].mean() > weights[6:].mean() + 1.0


def test_figures_are_drawn(tmp_path: Path) -> None:
    (flow, plain), (modalities, done) = flowed(False), learned()
    flow.draw(plain, plain, tmp_path / "flow.png")
    modalities.draw(done, tmp_path / "two.png")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("flow.png", "two.png"))


def test_the_blocks_about_gradients_run() -> None:
    left = run_blocks(DOCS / "gradients.md")
    assert left["losses"] == sorted(left["losses"], reverse=True)
    assert left["report"].trusted
    assert left["grown"] > left["result"].loss.item()
    assert left["free"] == pytest.approx(left["result"].loss.item(), rel=1e-6)


def test_the_blocks_about_long_runs_run() -> None:
    handlers = list(logging.getLogger().handlers)
    left = run_blocks(DOCS / "running.md")
    assert left["early"].status is Status.CANCELLED
    assert np.array_equal(left["again"].plan, left["whole"].plan)
    assert np.array_equal(left["result"].plan, left["whole"].plan)
    assert np.array_equal(left["loaded"].transform(left["new"]).plan, left["result"].transform(left["new"]).plan)
    assert logging.getLogger().handlers == handlers


def test_the_blocks_about_all_pairs_run() -> None:
    left = run_blocks(DOCS / "pairwise.md")
    assert set(left["labels"][:3]) == {left["labels"][0]} != set(left["labels"][3:]) == {left["labels"][3]}
    assert 0 < left["part"].n_solved == left["whole"].n_stored
    assert (left["grown"].n_solved, left["every"].n_stored, left["every"].n_solved) == (12, 27, 1)
    assert left["nearest"].n_pruned > 0


def test_the_block_of_the_front_page_runs() -> None:
    left = run_blocks(DOCS / "index.md")
    assert left["match"].shape == (400,)


def test_a_block_that_fails_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.md"
    path.write_text("# Bad\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as raised:
        run_blocks(path)
    assert raised.traceback[-1].lineno == 4
