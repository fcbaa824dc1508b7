"""Data sets, and results: what they answer, refuse, and keep through saving."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from tests.problems import ROLL, SPIRAL, SPIRAL_ANGLE, dense_coupling
from torchgw import GWOptions, GWResult, Partial, SpaceOptions, StoppingOptions, curvature, epsilon_path, gw_align
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
    plan = result.plan
    V = np.random.default_rng(0).normal(size=(90, 3))
    np.testing.assert_allclose(result.push(V), (plan.T @ V) / plan.sum(0)[:, None], rtol=1e-10)
    w = np.random.default_rng(1).normal(size=110)
    np.testing.assert_allclose(result.pull(w), plan @ w / plan.sum(1), rtol=1e-10)
    np.testing.assert_allclose(result.push(np.ones(90)), np.ones(110))


# How each method that reads a plan is called; all other public members of a result are read as they are.
CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("argmax", "confidence", "marginal", "matching", "mutual", "one_to_one", "soft"), ()),
    **{"top_k": (2,), "row": (0,), "sample": (3, 0), "pull": ("K",), "push": ("N",)},
}
TORCH = {
    "coupling",
    "known",
    "model",
    "differentiated",
    "loss",
}  # what the solve is made of, and what is differentiated
SCIPY_OR_PANDAS = {"sparsify", "plan_sparse", "table"}
AWAY = {"report", "save", "load", "transform", "unseen"}


def arrays_of(found: Any) -> Iterator[Any]:
    """Arrays of numbers and tensors within tuples and records."""
    if isinstance(found, np.ndarray | torch.Tensor):
        if not (isinstance(found, np.ndarray) and found.dtype == object):
            yield found
    elif isinstance(found, tuple | list | dict):
        for each in found.values() if isinstance(found, dict) else found:
            yield from arrays_of(each)
    elif is_dataclass(found) and not isinstance(found, GWResult | type):
        yield from arrays_of([value for name, value in vars(found).items() if name not in ("short_cuts", "hessian")])


def read(result: Any) -> dict[str, list[Any]]:
    """The arrays of each public member of a result, or of points that are mapped by one."""
    found = {}
    for name in {*dir(result), *vars(result)} - TORCH - SCIPY_OR_PANDAS - AWAY:
        if name.startswith("_") or (name == "soft" and not getattr(result, "known", None)):
            continue
        value = getattr(result, name)
        if callable(value):
            make = np.ones if result.numpy_input else torch.ones
            value = value(
                *(make(result.shape["NK".index(one)]) if isinstance(one, str) else one for one in CALLS[name])
            )
        found[name] = list(arrays_of(value))
    return found


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
@pytest.mark.parametrize("epsilon", [0, 0.02])
@pytest.mark.parametrize("given", ["arrays", "X", "cost", "p", "alpha"])
def test_numpy_goes_in_and_out_and_one_tensor_makes_all_tensors(epsilon: Any, given: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"X": SPIRAL[:30], "Y": ROLL[:25], "p": np.full(30, 1 / 30)}
    if given in ("cost", "alpha"):
        arguments |= {"cost": np.random.default_rng(0).random((30, 25)), "alpha": 0.9}
    if given != "arrays":
        arguments[given] = torch.as_tensor(arguments[given])
    solved = gw_align(**arguments, epsilon=epsilon, random_state=0)
    solved.save(tmp_path / "result.npz")
    results: list[Any] = [solved, GWResult.load(tmp_path / "result.npz"), solved.soft()]
    results += [solved.transform(SPIRAL[30:33])] if solved.alpha == 1 else []
    for result in results:
        assert result.numpy_input == (given == "arrays")
        kind = np.ndarray if result.numpy_input else torch.Tensor
        found = read(result)
        assert {"plan", "argmax", "top_k"} <= found.keys()
        for name, arrays in found.items():
            assert all(isinstance(array, kind) for array in arrays), name


def test_basins_of_a_path_follow_its_points() -> None:
    for convert, kind in ((np.asarray, np.ndarray), (torch.as_tensor, torch.Tensor)):
        path = epsilon_path(convert(SPIRAL[:30]), convert(ROLL[:25]), epsilons=[0.05, 0.02], random_state=0)
        for result in path.results:
            assert isinstance(result.plan, kind)
            assert all(isinstance(basin.matching, kind) for basin in result.basins)


def test_values_come_back_in_the_kind_that_they_were_given_in(result: GWResult) -> None:
    assert isinstance(result.push(np.ones(90)), np.ndarray)
    assert isinstance(result.push(torch.ones(90)), torch.Tensor)
    whole = curvature(gw_align(SPIRAL[:20], ROLL[:20], epsilon=0.02, random_state=0), whole=True)
    density = whole.density(2, 8, random_state=0)
    assert all(isinstance(side, np.ndarray) for side in density.shares_below([0.5]))
    assert all(isinstance(side, torch.Tensor) for side in density.shares_below(torch.tensor([0.5])))
    modes = [getattr(whole.modes[0], name) for name in ("moved", "loses", "gains")]
    assert all(
        isinstance(each, np.ndarray) for each in (*modes, whole.smallest, whole.stiffness, whole.modes[0].rows())
    )


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
    np.testing.assert_allclose(result.top_k(3)[0], -np.sort(-plan, 1)[:, :3])
    assert result.sparsify(0.9).nnz < 0.5 * plan.size
    assert result.plan is plan


def test_potentials_reproduce_the_plan_before_rounding(result: GWResult) -> None:
    assert result.potentials is not None
    f, g = result.potentials
    tensors: Any = result.coupling.tensors()  # type: ignore[attr-defined]
    score = tensors["A"] @ tensors["B"].T * np.log(2)
    plan = np.exp(score.numpy() + f[:, None] + g)
    assert np.abs(plan - result.plan).sum() <= 4 * result.marginal_residual + 1e-9


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
    assert np.array_equal(loaded.plan, result.plan)
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
    assert np.array_equal(GWResult.load(tmp_path / "dense.npz").plan, stored.plan)


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
        share = result.plan[1:] / result.plan[1:].sum(1, keepdims=True)
        named = cells["surest matches"].split(", ")
        indices = [[int(number) for number in re.findall(r"\d+", match)] for match in named]
        assert len(indices) == 5
        for i, j in indices:
            assert share[i - 1].argmax() == j
        least = np.sort(share.max(1))[-5]
        assert all(share[i - 1].max() >= least - 1e-12 for i, _ in indices)
