"""Data sets, and results: what they answer, refuse, and keep through saving."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from tests.problems import ROLL, SPIRAL, SPIRAL_ANGLE, dense_coupling
from torchgw import GWOptions, GWResult, Partial, SpaceOptions, StoppingOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll


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
    said = r"GWResult\(90 x 110, value 0\.\d+, settled after \d+ iterations at epsilon 0\.001, .*\)"
    assert re.fullmatch(said, repr(result))
    fields = {name: getattr(result, name) for name in GWResult.__dataclass_fields__}
    part = GWResult(**fields | {"marginals": Partial(0.5)})
    assert "GWResult(90 x 110, Partial(mass=0.5), value" in repr(part)
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
        if name not in ("coupling", "known", "model"):
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
    for bad in (SPIRAL_ANGLE * 1j, np.full(len(SPIRAL_ANGLE), np.datetime64("2026"))):
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


HTML = {"none": (None, None), "one side": ("a{}", None), "both": ("<b>&{}", "'\"{}<script>")}


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
@pytest.mark.parametrize("epsilon", [0, 1e-2])
@pytest.mark.parametrize("case", HTML)
def test_the_table_of_a_result_is_escaped_and_names_the_surest_matches(case: str, epsilon: float) -> None:
    result = gw_align(SPIRAL[:30], ROLL[:40], p=np.r_[0.0, np.full(29, 1 / 29)], epsilon=epsilon, random_state=0)
    texts = zip(HTML[case], result.shape, strict=True)
    x, y = (None if text is None else np.array([text.format(i) for i in range(n)], dtype=object) for text, n in texts)
    table = replace(result, names_x=x, names_y=y)._repr_html_()
    root = ElementTree.fromstring(table)  # well-formed, with these elements alone
    assert {element.tag for element in root.iter()} == {"table", "caption", "tr", "th", "td"}
    cells = {row[0].text: row[1].text or "" for row in root.iter("tr")}
    assert cells["shape"] == "30 x 40"
    assert cells["value"] == f"{result.value:.6g}"
    assert all(reason in cells["verdict"] for reason in result.reasons)
    assert ("surest matches" in cells) == (case == "both")
    if case == "both":
        share = (result.plan[1:] / result.plan[1:].sum(1, keepdim=True)).max(1)
        named = cells["surest matches"].split(", ")
        indices = [[int(number) for number in re.findall(r"\d+", match)] for match in named]
        assert len(indices) == 5
        for i, j in indices:
            assert int(share.indices[i - 1]) == j
        least = share.values.sort(descending=True).values[4]
        assert all(float(share.values[i - 1]) >= float(least) - 1e-12 for i, _ in indices)
