"""Whatever holds numbers is read in one way, under every argument: the same numbers, or an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchgw import (
    FactoredDistances,
    FeatureCost,
    GromovWasserstein,
    GWResult,
    Supervision,
    gw_align,
    gw_loss,
    gw_pairwise,
    validate,
)
from torchgw.spaces.prepare import InputSpace
from torchgw.spaces.resolution import explain_rounded_coordinates
from torchgw.types import Array

RNG = np.random.default_rng(0)
N = 6
X = RNG.integers(0, 120, size=(N, 3)).astype(float)
ORDER = RNG.permutation(N)
Y = X[ORDER][:, ::-1].copy()
TENSOR = torch.tensor(X)

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning:numpy", "ignore:.*nested tensors")


def readonly(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def backwards(array: Array) -> Array:
    return np.flip(np.flip(array).copy())


def foreign(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder())


def negated(array: Array) -> torch.Tensor:
    """A tensor whose storage has the other sign, as the imaginary part of a conjugate is."""
    return torch._neg_view(torch.tensor(-array))


class Exported:
    """An array of another library, which gives its memory and nothing else."""

    def __init__(self, array: Array) -> None:
        self.shape, self._tensor = array.shape, torch.tensor(array)

    def __dlpack__(self, **how: Any) -> Any:
        return self._tensor.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


SAME: dict[str, Callable[[Array], Any]] = {
    "read-only": readonly,
    "backwards": backwards,
    "foreign byte order": foreign,
    "long double": lambda a: a.astype(np.longdouble),
    "half": lambda a: a.astype(np.float16),
    "uint8": lambda a: a.astype(np.uint8),
    "Fortran's order": np.asfortranarray,
    "every second": lambda a: np.repeat(a, 2, axis=0)[::2],
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape))[1],
    "masked nowhere": lambda a: np.ma.masked_array(a, mask=np.zeros(a.shape, dtype=bool)),
    "data frame": pd.DataFrame,
    "data frame of several dtypes": lambda a: pd.DataFrame(a).astype({0: "float32", 1: "Int64"}),
    "another library's": Exported,
    "lists": lambda a: a.tolist(),
    "rows": list,
    "bfloat16": lambda a: torch.tensor(a, dtype=torch.bfloat16),
    "requires gradients": lambda a: torch.tensor(a).requires_grad_(),
    "of inference": lambda a: torch.inference_mode()(torch.tensor)(a),
    "negated": negated,
    "transposed": lambda a: torch.tensor(a.T.copy()).T,
}
UNREADABLE: dict[str, Any] = {
    "masked": np.ma.masked_array(X, mask=X[0, 0] == X),
    "meta": TENSOR.to("meta"),
    "sparse": TENSOR.to_sparse(),
    "quantised": torch.empty(0),  # made in the test: torch warns of it
    "rows that require gradients": list(TENSOR.clone().requires_grad_()),
    "ragged": [[1.0], [1.0, 2.0]],
    "complex": X.astype(complex),
    "objects": X.astype(object),
    "generator": (row for row in X),
}


@pytest.fixture(scope="module")
def solved() -> GWResult:
    return gw_align(X, Y, distances="euclidean", epsilon=0, random_state=0)


def align(x: Any = X, y: Any = Y, **given: Any) -> GWResult:
    return gw_align(x, y, distances="euclidean", epsilon=0, random_state=0, **given)


def estimator() -> GromovWasserstein:
    return GromovWasserstein(distances="euclidean", epsilon=0, random_state=0)


def masses(make: Callable[[Array], Any]) -> Any:
    return make(np.arange(1.0, N + 1))


# Each takes what makes an array-like of an array, and returns numbers that do not depend on the kind.
ARGUMENTS: dict[str, Callable[[Callable[[Array], Any], GWResult], Any]] = {
    "X": lambda make, _: align(make(X)).plan,
    "features": lambda make, _: align(cost=(make(X), make(X[ORDER]))).plan,
    "cost": lambda make, _: align(cost=make(np.arange(N * N, dtype=float).reshape(N, N)), alpha=0.5).plan,
    "p": lambda make, _: align(p=masses(make), q=np.arange(1.0, N + 1)[ORDER]).plan,
    "init": lambda make, solved: align(init=make(solved.plan * N)).plan,
    "push": lambda make, solved: np.asarray(solved.push(make(X))),
    "y of fit": lambda make, _: estimator().fit(X, make(Y)).transform(X),
    "rows to transform": lambda make, _: estimator().fit(X, Y).transform(make(X[:4])),
    "spaces": lambda make, _: gw_pairwise([make(X), make(Y[:5])], distances="euclidean", random_state=0).condensed,
    "F": lambda make, _: FactoredDistances(make(X), np.ones(3)).rows(torch.arange(N)),
}


@pytest.mark.parametrize("kind", SAME)
def test_numbers_of_any_kind_of_array_are_read_as_they_are(kind: str) -> None:
    found = validate.points("X", SAME[kind](X))
    np.testing.assert_array_equal(found, X)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(validate.as_tensor(found).numpy(), X)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_takes_arrays_however_they_lie_in_memory(name: str, solved: GWResult) -> None:
    plain = np.asarray(ARGUMENTS[name](np.array, solved))
    for make in (foreign, readonly, backwards, negated):
        np.testing.assert_array_equal(np.asarray(ARGUMENTS[name](make, solved)), plain)


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_what_cannot_be_read_is_refused_by_name(kind: str, solved: GWResult) -> None:
    bad = UNREADABLE[kind]
    if kind == "quantised":
        bad = torch.quantize_per_tensor(TENSOR.float(), 1.0, 0, torch.quint8)
    calls: dict[str, Callable[[], Any]] = {
        "X ": lambda: align(bad),
        "cost features of X ": lambda: FeatureCost(bad, X).factored(N, N),
        "cost ": lambda: align(cost=bad),
        "p ": lambda: align(p=bad, q=np.ones(N)),
        "init ": lambda: align(init=bad),
        "supervision.pairs ": lambda: align(supervision=Supervision(pairs=bad)),
        "supervision.mask ": lambda: align(supervision=Supervision(mask=bad)),
        r"supervision.labels\[0\] ": lambda: align(supervision=Supervision(labels=(bad, np.zeros(N, dtype=int)))),
        "V ": lambda: solved.push(bad),
        "F ": lambda: FactoredDistances(bad, np.ones(3)),
        r"spaces\[0\] ": lambda: gw_pairwise([bad, X], distances="euclidean"),
    }
    for name, call in calls.items():
        with pytest.raises((ValueError, TypeError), match=rf"^{name}"):
            call()


def test_an_estimator_reads_no_masked_numbers() -> None:
    with pytest.raises(ValueError, match=r"^X must have a number"):
        estimator().fit(UNREADABLE["masked"], Y)


def test_integers_are_read_exactly_or_refused() -> None:
    for dtype in (np.int64, np.uint64):
        np.testing.assert_array_equal(
            validate.points("X", np.array([[2**53], [2**53 - 1]], dtype=dtype))[:, 0] % 2, [0, 1]
        )
        with pytest.raises(ValueError, match=r"X must have integers of at most 9.0072e\+15"):
            validate.points("X", np.array([[2**60], [2**60 + 1]], dtype=dtype))
    for dtype, missing in (("Int64", pd.NA), ("Int64", 2**60 + 1), ("int64", 2**60 + 1)):
        table = pd.DataFrame({0: [0.5, 1.5], 1: pd.array([missing, 7], dtype=dtype)})
        with pytest.raises(ValueError, match=r"got 1 NaN|integers of at most"):
            validate.points("X", table)


class Foreign:
    """A table of another library, whose dtypes have no kind, or an array that does not give its memory away."""

    def __init__(self, **members: Any) -> None:
        self.shape, self.members = (2, 2), members

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.members:
            raise AttributeError(name)
        return self.members[name]


class Locked(Foreign):
    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("memory is locked")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_objects_of_other_libraries_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ValueError, match=r"X must be an array .*\(memory is locked\)$"):
        validate.points("X", Locked())
    with pytest.raises(TypeError, match=r"X must be an array of real numbers .* got Foreign of dtype object"):
        validate.points("X", Foreign(dtypes=["Float64", "Int64"], to_numpy=None))


def points(given: Any) -> InputSpace:
    return InputSpace("X", validate.points("X", given), "euclidean")


def test_a_table_has_the_rounding_unit_of_what_its_columns_are_read_to() -> None:
    X = np.arange(4.0)
    for dtypes, unit in ((("f4", "f4"), 2**-23), (("f4", "f8"), 2**-52), (("i4", "i8"), 0.0)):
        table = pd.DataFrame({i: X.astype(dtype) for i, dtype in enumerate(dtypes)})
        assert validate.resolution_of(table) == unit


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("of", [np.asarray, torch.tensor, pd.DataFrame])
def test_coordinates_that_are_rounded_to_noise_are_said(dtype: str, of: Callable[..., Any]) -> None:
    cloud = np.random.default_rng(1).normal(size=(4000, 2))
    steps = float(np.finfo(dtype).eps)
    for share, said in ((0.001, False), (0.005, False), (0.2, True), (0.5, True)):
        given = of((cloud + share / steps).astype(dtype))
        assert bool(explain_rounded_coordinates(points(given), given)) == said
    given = of(cloud.astype(dtype))
    assert not explain_rounded_coordinates(points(given), given)


def test_a_cloud_about_the_origin_and_points_that_coincide_are_rounded_to_no_noise() -> None:
    counted = 1e7 + np.arange(40.0)[:, None]  # whole numbers, which float32 holds without rounding
    mean = torch.tensor(X - X.mean(0), dtype=torch.bfloat16)
    for quiet in (mean, np.full((5, 2), 7.0), np.zeros((5, 2)), counted):
        assert not explain_rounded_coordinates(points(quiet), quiet)


COSTS: dict[str, Callable[[Callable[[Array], Any]], Any]] = {
    "matrix": lambda make: make(np.arange(N * N, dtype=float).reshape(N, N)),
    "features": lambda make: (make(X), make(X[ORDER])),
    "feature cost": lambda make: FeatureCost(make(X), make(X[ORDER]), "cosine"),
}


@pytest.mark.parametrize("name", COSTS)
def test_losses_read_costs_of_any_kind_of_array(name: str) -> None:
    def slope(make: Callable[[Array], Any]) -> Array:
        leaf = TENSOR.clone().requires_grad_()
        loss = gw_loss(leaf, Y, cost=COSTS[name](make), epsilon=0.1, init=np.eye(N), distances="euclidean")
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return np.append(leaf.grad.numpy(), loss.item())

    plain = slope(np.array)
    for kind in ("read-only", "backwards", "foreign byte order", "long double", "data frame", "lists", "negated"):
        np.testing.assert_array_equal(slope(SAME[kind]), plain)
