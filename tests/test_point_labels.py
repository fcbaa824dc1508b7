"""Numbers or labels on points, as pictures read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from torchgw.views.point_labels import Labels, Numbers, read


@pytest.mark.parametrize(
    ("given", "names", "codes"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (np.array([10, 2, 10]), ("2", "10"), [1, 0, 1]),
        (np.array([10, 2, None], dtype=object), ("2", "10"), [1, 0, -1]),
        (pd.Categorical([3, 1, 3], categories=[3, 1, 2], ordered=True), ("3", "1"), [0, 1, 0]),
        (pd.Series(pd.Categorical(["x", None, "y"], categories=["y", "x"])), ("y", "x"), [1, -1, 0]),
        (pd.Series([1, None, 2], dtype="Int64"), ("1", "2"), [0, -1, 1]),
        (np.array(["a", np.nan, 2], dtype=object), ("2", "a"), [1, -1, 0]),
        ([b"u", b"v", b"u"], ("b'u'", "b'v'"), [0, 1, 0]),
        (torch.tensor([5, 4, 5]), ("4", "5"), [1, 0, 1]),
        ([None, None, None], (), [-1, -1, -1]),
    ],
)
def test_labels_keep_their_order(given: Any, names: tuple[str, ...], codes: list[int]) -> None:
    found = read("labels", given, 3, "N")
    assert isinstance(found, Labels)
    assert found.names == names
    assert found.codes.tolist() == codes


@pytest.mark.parametrize(
    "given",
    [
        np.array([0.5, np.nan, 2.0]),
        torch.tensor([0.5, np.nan, 2.0], dtype=torch.bfloat16),
        torch.tensor([0.5, np.inf, 2.0], requires_grad=True),
        np.array([0.5, None, 2.0], dtype=object),
        pd.Series([0.5, None, 2.0], dtype="Float64"),
    ],
)
def test_numbers_are_numbers_whatever_holds_them(given: Any) -> None:
    found = read("values", given, 3, "N")
    assert isinstance(found, Numbers)
    np.testing.assert_array_equal(found.values, [0.5, np.nan, 2.0])
    with pytest.raises(ValueError, match="values must be finite, got 1"):
        read("values", given, 3, "N", finite=True)


def test_many_integers_are_numbers() -> None:
    assert isinstance(read("values", np.arange(21), 21, "N"), Numbers)
    assert isinstance(read("values", np.arange(21) % 20, 21, "N"), Labels)
    assert isinstance(read("values", np.array([*range(21), None], dtype=object), 22, "N"), Numbers)


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(TypeError, match=r"datetime64.*convert it"):
        read("values", np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]"), 2, "N")
    with pytest.raises(ValueError, match=r"values must have shape \(K,\) = \(3,\)"):
        read("values", np.zeros(2), 3, "K")
