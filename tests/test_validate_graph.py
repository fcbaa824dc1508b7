"""Graphs that are accepted: what comes back, and that the caller's own stays as it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.sparse import csr_array

from torchgw.validate import graph

RING = np.roll(np.eye(30), 1, axis=1) + np.roll(np.eye(30), -1, axis=1)


def with_room() -> csr_array:
    """60 entries in arrays of 70."""
    found = csr_array(RING)
    found.data, found.indices = np.r_[found.data, np.full(10, np.nan)], np.r_[found.indices, np.full(10, 10**6)]
    return found


def with_repetitions() -> csr_array:
    """Every entry twice, which are added up."""
    half, rows = csr_array(RING / 2), np.arange(0, 61, 2)
    return csr_array((np.repeat(half.data, 2), np.repeat(half.indices, 2), 2 * rows), shape=half.shape)


@pytest.mark.parametrize("make", [with_room, with_repetitions])
def test_a_graph_is_read_and_left_as_it_was(make: Callable[[], csr_array]) -> None:
    given = make()
    held = given.data, given.indices, given.indptr
    before = [array.copy() for array in held]
    np.testing.assert_array_equal(graph("X", given).toarray(), RING)
    for name, array, copy in zip(("data", "indices", "indptr"), held, before, strict=True):
        assert getattr(given, name) is array
        np.testing.assert_array_equal(array, copy)
