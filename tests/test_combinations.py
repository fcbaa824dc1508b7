"""What goes with what: every combination of arguments is solved, or refused as the table says, which the page shows.

``python -m tests.test_combinations`` writes the page.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from tests.problems import daily, own_loss, quietly
from torchgw import (
    AdjacencyDistances,
    Balanced,
    Envelope,
    EuclideanDistances,
    GWOptions,
    Implicit,
    LadderOptions,
    LowRankOptions,
    Partial,
    SemiRelaxed,
    SinkhornOptions,
    StoppingOptions,
    Supervision,
    Unbalanced,
    gw_align,
)
from torchgw import align as align_module
from torchgw.request.combinations import EXCLUSIONS, IMPLIED_OPTIONS, KINDS, Exclusion, Fact, describe_kinds

PAGE = Path(__file__).parent.parent / "docs" / "combinations.md"
HEAD = """# What goes with what

`gw_align` refuses what does not go together before any work starts, and says what to do instead. Every combination of arguments that
is in no row of the first table runs. (Written from the table in `torchgw/request/combinations.py` by `python -m tests.test_combinations`.)

| argument | beside | must | because | instead |
|---|---|---|---|---|
"""  # noqa: E501 - lines of a page
DECIDED = """
## What decides for you

Where one choice is left, it is taken, whatever the option says; later rows go before earlier ones.

| given | option | is | because |
|---|---|---|---|
"""
TAIL = """
Spaces whose kind of distances is left to `distances="auto"` get `"landmark"` where factors are needed. A streaming solve has the exact
gradient of factored distances, and of those always; of others it samples. `result.gradient` has what ran, and
`result.gradient_passed_over` why. Known or forbidden pairs of more points than factors are kept for
need `N x K` numbers: by its data, such supervision asks for the dense strategy (`torchgw/objective/supervision.py`). Combinations of one
space with its `distances=` are refused in `torchgw/request/spaces.py`. What does not fit `options.max_memory` raises `MemoryError`.
"""  # noqa: E501

AXES = {name: tuple(kinds) for name, kinds in KINDS.items() if name not in "XY"}
SPARSE = 13  # of so many combinations one; no number of kinds divides it, so that any few kinds are beside each other
FACTORED = {"X": "factored", "Y": "factored"}
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(n, 2)) for n in (6, 7))
SPACES = {
    "factored": [EuclideanDistances(points, squared=True) for points in (X, Y)],
    "others": [EuclideanDistances(points) for points in (X, Y)],
    "asymmetric": [AdjacencyDistances(RNG.uniform(size=(n, n))) for n in (6, 7)],
    "sparse": [AdjacencyDistances(csr_array(np.eye(n, k=1) + np.eye(n, k=-1))) for n in (6, 7)],
    "sparse asymmetric": [AdjacencyDistances(csr_array(np.eye(n, k=1))) for n in (6, 7)],
}
FEW = {
    "coarse": None,
    "stopping": StoppingOptions(max_iter=1),
    "sinkhorn": SinkhornOptions(max_iter=1, exact_max_iter=2, final_max_iter=2),
    "ladder": LadderOptions(n_cells=16),
    "low_rank": LowRankOptions(rank=2, max_iter=2),
}
LOSSES: dict[str, Any] = {"square": "square", "kl": "kl", "own": own_loss("own")}
GIVEN: dict[str, dict[str, Any]] = {
    "epsilon": {"positive": 0.05, "zero": 0.0, "auto": "auto"},
    "marginals": {
        "Balanced": Balanced(),
        "SemiRelaxed": SemiRelaxed(1.0),
        "free": SemiRelaxed(0.0),
        "Unbalanced": Unbalanced(100.0, 100.0),
        "Partial": Partial(0.5),
    },
    "cost": {"none": None, "matrix": RNG.uniform(size=(6, 7)), "features": (X, Y)},
    "alpha": {"one": 1.0, "between": 0.5, "zero": 0.0, "tracked zero": torch.tensor(0.0, requires_grad=True)},
    "supervision": {
        "none": None,
        "rules": Supervision(pairs=[(0, 1)]),
        "mask": Supervision(mask=np.arange(42).reshape(6, 7) % 5 > 0),
    },
    "gradient_mode": {"none": None, "Envelope": Envelope(tol=0.1), "Implicit": Implicit(tol=0.1)},
}


class Begun(Exception):  # noqa: N818
    """Work would begin."""


@cache
def options(strategy: str, gradient: str, loss: str) -> GWOptions:
    return GWOptions(strategy=strategy, gradient=gradient, loss=LOSSES[loss], **FEW)  # type: ignore[arg-type]


def arguments(point: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Arguments of these kinds."""
    given = {name: values[point[name]] for name, values in GIVEN.items()}
    chosen = options(point["options.strategy"], point["options.gradient"], point["options.loss"])
    spaces = {name: SPACES[point[name]][i] for i, name in enumerate("XY")}
    return {**spaces, **given, "options": chosen, "checkpoint": folder if point["checkpoint"] == "folder" else None}


def points(**fixed: str) -> Iterator[dict[str, str]]:
    """Every combination of kinds, some of them fixed."""
    axes = {name: (fixed[name],) if name in fixed else kinds for name, kinds in (AXES | dict.fromkeys(fixed)).items()}
    for kinds in itertools.product(*axes.values()):
        yield dict(zip(axes, kinds, strict=True))


def row_of(point: Mapping[str, str]) -> Exclusion | None:
    return next((row for row in EXCLUSIONS if row.holds(point)), None)


@cache
def allowed() -> list[dict[str, str]]:
    """The combinations that are not refused, in no order."""
    found = [point for point in points(**FACTORED) if row_of(point) is None]
    random.Random(0).shuffle(found)
    return found


def page() -> str:
    """The text of docs/combinations.md."""
    refused = (
        (
            describe_kinds(row.argument, row.kinds),
            _all(row.beside),
            f"`{row.argument}` must {row.must}",
            row.why,
            row.instead,
        )
        for row in EXCLUSIONS
    )
    decided = ((_all(row.given), f"`{row.option}`", f"`{row.value!r}`", row.why) for row in IMPLIED_OPTIONS)
    tables = ["".join(f"| {' | '.join(cells)} |\n" for cells in rows) for rows in (refused, decided)]
    return HEAD + tables[0] + DECIDED + tables[1] + TAIL


def _all(given: Mapping[str, tuple[str, ...]]) -> str:
    return " and ".join(describe_kinds(name, kinds) for name, kinds in given.items())


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.test_combinations`"


def test_rows_name_kinds_that_there_are() -> None:
    for row in EXCLUSIONS:
        given = {row.argument: row.kinds, **row.beside}
        message = row.message({name: Fact(kinds[0], "this") for name, kinds in given.items()})
        assert message.startswith(f"{row.argument} must {row.must} with ")
        for name, kinds in given.items():
            assert set(kinds) <= set(KINDS[name])
        more = {} if "epsilon" in given else {"epsilon": "auto"}  # which most strategies take
        assert set("XY") & given.keys() or any(row_of(point | more) is row for point in points_of(row))
    for settled in IMPLIED_OPTIONS:
        assert hasattr(GWOptions(), settled.option)
        assert all(set(kinds) <= set(KINDS[name]) for name, kinds in settled.given.items())


# What an advice says to change, in kinds of arguments.
ADVICE = {
    "strategy='dense'": {"options.strategy": "dense"},
    "strategy='auto'": {"options.strategy": "auto"},
    "strategy='streaming'": {"options.strategy": "streaming"},
    "another strategy": {"options.strategy": "auto"},
    "gradient='auto'": {"options.gradient": "auto"},
    "loss='square'": {"options.loss": "square"},
    "a small epsilon > 0": {"epsilon": "positive"},
    "epsilon=0": {"epsilon": "zero"},
    "take 1e-6": {"alpha": "between", "cost": "matrix"},
    "give a matrix or features": {"cost": "matrix"},
    "a pair of feature arrays": {"cost": "features"},
    "distances='landmark'": {"X": "factored", "Y": "factored"},
    "EuclideanDistances(points, squared=True)": {"X": "factored", "Y": "factored"},
    "(A + A.T) / 2": {"X": "others", "Y": "others"},
    "labels, known and forbidden pairs stream": {"supervision": "rules"},
    "leave one of them out": {"checkpoint": "none"},
}
ADVISED = [
    (row, each) for row in EXCLUSIONS for each in ADVICE if re.search(rf"{re.escape(each)}(?![\w.])", row.instead)
]
USUAL = {name: kinds[0] for name, kinds in AXES.items()} | FACTORED


def points_of(row: Exclusion) -> Iterator[dict[str, str]]:
    """The combinations that a row is about, beside defaults."""
    names = [row.argument, *row.beside]
    for kinds in itertools.product(row.kinds, *row.beside.values()):
        given = USUAL | dict(zip(names, kinds, strict=True))
        if given["alpha"] != "one" and "cost" not in names:
            given["cost"] = "features"
        yield given


@pytest.mark.parametrize(("row", "advice"), ADVISED)
def test_who_follows_an_advice_is_not_led_in_a_circle(row: Exclusion, advice: str) -> None:
    """Each advice mends its row, and where arguments contradict each other more than once, advices followed one after
    the other end in a call that is taken."""
    for given in points_of(row):
        left: Exclusion | None = row
        met, following = set[int](), advice
        while left is not None:
            assert id(left) not in met, (given, left)
            met.add(id(left))
            given = given | ADVICE[following]
            assert not left.holds(given), (given, left)
            left = row_of(given)
            following = next((each for other, each in ADVISED if other is left), "")


def test_every_row_has_an_advice_that_is_followed() -> None:
    assert {id(row) for row, _ in ADVISED} == set(map(id, EXCLUSIONS))


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Mapping[str, str]], bool]]:
    """Whether `gw_align` would begin with such arguments; otherwise it refuses them, in the words of the table."""

    def begin(*_: object) -> None:
        raise Begun

    def check(point: Mapping[str, str]) -> bool:
        row, given = row_of(point), arguments(point, tmp_path / "kept")
        with pytest.raises((Begun, ValueError, TypeError)) as caught:
            gw_align(given.pop("X"), given.pop("Y"), **given)
        error = caught.value
        assert type(error) is (Begun if row is None else row.error), (point, error)
        if row is not None:
            assert str(error).startswith(f"{row.argument} must {row.must} with "), (point, error)
            assert str(error).endswith(f": {row.why}; {row.instead}"), (point, error)
        return row is None

    monkeypatch.setattr(align_module, "follow_solve", begin)
    yield check
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("of", [SPARSE, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", AXES["options.strategy"])
def test_every_combination_of_the_table_is_refused_in_its_words(begins: Any, strategy: str, of: int) -> None:
    tried = itertools.islice(points(**FACTORED | {"options.strategy": strategy}), 0, None, of)
    refused = [point for point in tried if row_of(point)]
    assert not any(map(begins, refused))
    numbers = [point for point in refused if point["epsilon"] != "auto"]  # which nothing is refused beside
    every = math.prod(map(len, AXES.values())) / len(AXES["options.strategy"]) / of
    assert len(numbers) > 0.8 * every * (1 - 1 / len(AXES["epsilon"]))


@pytest.mark.parametrize("part", daily({(0,)}, range(25)))
def test_every_other_combination_begins(begins: Any, part: int) -> None:
    assert all(map(begins, allowed()[part::25]))
    assert 5000 < len(allowed()) < math.prod(map(len, AXES.values())) / 10


PLAIN = {"marginals": "Balanced", "cost": "none", "alpha": "one", "supervision": "none", "checkpoint": "none"}


@pytest.mark.parametrize("kind", ["others", "asymmetric"])
@pytest.mark.parametrize("which", "XY")
def test_spaces_without_factors_are_refused_as_the_table_says(begins: Any, which: str, kind: str) -> None:
    assert 30 < sum(map(begins, points(**FACTORED | PLAIN | {which: kind}))) < 144


@pytest.mark.parametrize("kind", ["sparse", "sparse asymmetric"])
def test_sparse_adjacencies_begin_or_are_refused_as_the_table_says(begins: Any, kind: str) -> None:
    begun = [point for point in points(X=kind, Y=kind, **PLAIN) if begins(point)]
    by_few_entries = [point for point in begun if point["options.strategy"] == "sparse"]
    assert {(point["epsilon"], point["options.gradient"]) for point in by_few_entries} == {
        (epsilon, gradient) for epsilon in ("zero", "auto") for gradient in ("auto", "exact")
    }
    assert len(begun) > 5 * len(by_few_entries)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("asymmetric", "asymmetric"), marks=pytest.mark.slow),
        pytest.param(("asymmetric", "others"), marks=pytest.mark.slow),
        pytest.param(("factored", "asymmetric"), marks=pytest.mark.slow),
    ],
)
def test_asymmetric_spaces_are_solved_with_every_model_that_the_table_has(kinds: tuple[str, str]) -> None:
    found = [
        point
        for point in points(**dict(zip("XY", kinds, strict=True)), supervision="none", checkpoint="none")
        if row_of(point) is None and point["options.strategy"] == "auto" and point["options.gradient"] == "auto"
    ]
    assert len(found) > 50
    for point in found:
        given = arguments(point, Path())
        result = quietly(gw_align, given.pop("X"), given.pop("Y"), random_state=0, **given)
        assert result.strategy == "dense"
        assert point["alpha"].endswith("zero") or (result.options.strategy, result.options.gradient) == (
            "dense",
            "exact",
        )
        assert math.isfinite(result.value), point
        assert bool(torch.isfinite(torch.as_tensor(result.plan)).all()), point


def chosen(few: int) -> list[dict[str, str]]:
    """Combinations that are not refused, in which every few kinds that go together are together once."""
    seen: set[Any] = set()
    found = []
    for point in allowed():
        together = set(itertools.combinations(point.items(), few))
        if not together <= seen:
            seen |= together
            found.append(point)
    return found


@pytest.mark.parametrize(("few", "least"), [(2, 50), pytest.param(3, 200, marks=pytest.mark.slow)])
def test_what_is_not_refused_is_solved_by_the_strategy_that_was_asked_for(few: int, least: int, tmp_path: Path) -> None:
    found = chosen(few)
    assert len(found) > least
    for i, point in enumerate(found):
        given = arguments(point, tmp_path / str(i))
        result = quietly(gw_align, given.pop("X"), given.pop("Y"), random_state=0, **given)
        assert result.strategy == ("dense" if point["options.strategy"] == "auto" else point["options.strategy"])
        decided = {
            row.option: row.value for row in IMPLIED_OPTIONS if all(point[n] in kinds for n, kinds in row.given.items())
        }
        assert decided == {option: getattr(result.options, option) for option in decided}, point
        assert math.isfinite(result.value), point
        assert bool(torch.isfinite(torch.as_tensor(result.plan)).all()), point
        assert (tmp_path / str(i)).exists() == (point["checkpoint"] == "folder")
        if point["gradient_mode"] != "none":
            assert bool(torch.isfinite(result.loss)), point


if __name__ == "__main__":
    PAGE.write_text(page())
