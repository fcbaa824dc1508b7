"""A bounded cache of matrix rows that never drops a row which the current call needs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from torchgw.types import Array


class RowCache:
    """Least-recently-used rows, at most ``capacity`` of them between calls.

    A call may ask for more rows than that: it gets them all, and only the last ``capacity`` stay.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self._rows: OrderedDict[int, Array] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def hit_rate(self) -> float:
        """Share of the rows asked for that were there, in [0, 1]; 0 before the first call."""
        return self.hits / max(self.hits + self.misses, 1)

    def __getstate__(self) -> dict[str, object]:
        """All but the rows, which are searched again when they are needed."""
        return {name: value for name, value in vars(self).items() if name != "_rows"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._rows = OrderedDict()

    def get(self, index: Array, compute: Callable[[Array], Array]) -> Array:
        """Rows for ``index`` (M,), repeats allowed; ``compute`` is called once for those not held."""
        if not len(index):
            return compute(index)
        wanted = np.unique(index)
        missing = np.array([i for i in wanted.tolist() if i not in self._rows], dtype=np.int64)
        self.hits += len(index) - len(missing)
        self.misses += len(missing)
        if len(missing):
            # Copies, so that keeping one row does not keep the whole block alive.
            self._rows.update((i, row.copy()) for i, row in zip(missing.tolist(), compute(missing), strict=True))
        for i in wanted.tolist():
            self._rows.move_to_end(i)
        out = np.stack([self._rows[i] for i in index.tolist()])
        while len(self._rows) > self.capacity:
            self._rows.popitem(last=False)
        return out
