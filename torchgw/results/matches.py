"""What users take away from a plan: a table of matches, mutual matches, and the best one-to-one assignment.

The match of a source point i is the target point j with the largest T_ij of its row; see `docs/glossary.md`. With
entropy, T_ij = exp((f_i + g_j - C_ij) / epsilon), so the reduced costs C_ij - f_i - g_j of the match and of the
runner-up j' differ by epsilon ln(T_ij' / T_ij).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling, as_block_coupling
from torchgw.couplings.reader import Readable
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.surroundings import isolate_methods
from torchgw.solvers.one_to_one import TOLERANCE, assign
from torchgw.types import Array


@hide_constructor
@dataclass(frozen=True, kw_only=True)
class OneToOne:
    """The one-to-one assignment of a plan that has most mass, see `GWResult.one_to_one`.

    Attributes
    ----------
    source, target : (m,) indices of the pairs, ``source`` ascending; no point is in two pairs.
    mass : (m,) of each pair in the plan, above 0.
    left_source, left_target : indices of the points that are in no pair, ascending.
    bound : no assignment has more mass in all, up to rounding.
    """

    source: Array | Tensor
    target: Array | Tensor
    mass: Array | Tensor
    left_source: Array | Tensor
    left_target: Array | Tensor
    bound: float

    @property
    def gap(self) -> float:
        """By which share of its mass the assignment may fall short of the best one."""
        total = float(self.mass.sum())
        return max(self.bound / total - 1, 0.0) if total > 0 else 0.0

    def __repr__(self) -> str:
        left = f"{len(self.left_source)} source and {len(self.left_target)} target points left"
        return f"OneToOne({len(self.source)} pairs, mass {float(self.mass.sum()):.6g}, {left}, gap {self.gap:.1e})"


@isolate_methods
class MatchMixin(Readable):
    """A plan whose matches are read; ``epsilon`` is NaN where it is not known."""

    epsilon: float
    names_x: NDArray[np.object_] | None
    names_y: NDArray[np.object_] | None

    def mutual(self) -> Array | Tensor:
        """Pairs (m, 2) of source and target points that are each other's match, by source point; O(N K r) time.

        The match of a point is the one that it exchanges most mass with. Points without mass have none.
        """
        _, index, mutual = matches_both_ways(as_block_coupling(self.coupling, "mutual"))
        return self._to_user_array(torch.stack((torch.arange(len(index)), index[:, 0]), 1)[mutual])

    def one_to_one(self, tolerance: float = TOLERANCE) -> OneToOne:
        """The one-to-one assignment of highest total mass: pairs of points, each of which is in one pair at the most.

        Parameters
        ----------
        tolerance : the share of the highest total that an assignment of a large plan may miss; above 0.

        Returns
        -------
        `OneToOne`, with the points that are left over. Pairs without mass are no pairs.

        Notes
        -----
        The total is the highest for plans of up to 2^25 entries, for all stored plans and for plans of few entries. Of
        others, dual potentials that are checked on all pairs of points give ``bound``, which no assignment exceeds.
        The search ends when ``gap`` is within the tolerance, or after twenty rounds: look at ``gap``. Each round finds
        the best assignment among some candidates of each point, of many points by OR-tools where it is installed.
        """
        limit = validate.real("tolerance", tolerance, above=0.0)
        found = assign(as_block_coupling(self.coupling, "one_to_one"), limit)
        left = (
            np.setdiff1d(np.arange(size), side)
            for size, side in zip(self.shape, (found.source, found.target), strict=True)
        )
        arrays = (self._to_user_array(torch.from_numpy(side)) for side in (*found[:3], *left))
        names = ("source", "target", "mass", "left_source", "left_target")
        return OneToOne(**dict(zip(names, arrays, strict=True)), bound=found.bound)

    def table(self) -> Any:
        """The matches as a pandas DataFrame, a row for each source point.

        Returns
        -------
        A DataFrame with the columns

        - ``source``, ``target``: the point and its match, the target point that gets most of its mass; by their names
          where the result has names, else by index;
        - ``share``: how much of the point's mass the match gets, in [0, 1];
        - ``runner_up``: the target point that gets most after the match;
        - ``mutual``: whether the point is the match of its match, too;
        - ``confidence``: 1 - runner-up's mass / match's mass, 0 for a tie; see `GWResult.confidence`;
        - ``cost_difference``: the reduced cost of the match less that of the runner-up, in units of ``value``: by how
          much dearer the match is, once the potential of each target point is its price. Negative where the match is
          cheaper. Plans without entropy that have no soft plan, as those of low rank, lack the column.

        Points without mass have no match: ``target``, ``runner_up`` and numbers are missing. Of a result without
        entropy the runner-up, confidence and cost are those of its soft plan, see `GWResult.soft`.

        Raises
        ------
        ImportError
            Without pandas.

        Notes
        -----
        O(N K r) time, in blocks of rows; of large plans without most tiles.
        """
        pandas = import_pandas()
        coupling = as_block_coupling(self.coupling, "table")
        value, index, mutual = matches_both_ways(coupling)
        mass = coupling.marginal(1).detach().double().cpu()
        matched = (mass > 0) & (value[:, 0] > 0)
        share = torch.where(matched, value[:, 0] / mass, torch.nan).clamp(max=1.0)
        rivals, index_of_rivals, epsilon = self._find_matches_and_runners_up(value, index)
        first, second = rivals[:, 0], rivals[:, 1]
        rivalled = matched & (second > 0)
        columns: dict[str, Any] = {
            "source": np.arange(len(mass)) if self.names_x is None else self.names_x,
            "target": to_names(index[:, 0], matched, self.names_y),
            "share": share.numpy(),
            "runner_up": to_names(index_of_rivals[:, 1], rivalled, self.names_y),
            "mutual": mutual.numpy(),
            "confidence": torch.where(matched, 1 - second / first, torch.nan).clamp(min=0.0).numpy(),
        }
        if 0 < epsilon < math.inf:
            cost = epsilon * (second / first).log()
            columns["cost_difference"] = torch.where(rivalled, cost, torch.nan).numpy()
        return pandas.DataFrame(columns)

    def _find_matches_and_runners_up(self, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor, float]:
        """Mass and columns (N, 2) of each match and its runner-up, and the epsilon by which masses say costs, NaN where
        they do not, from the largest entries of each row."""
        return value, index, math.nan if as_block_coupling(self.coupling, "table").potentials is None else self.epsilon


def import_pandas() -> Any:
    """pandas, which is not needed elsewhere."""
    try:
        import pandas
    except ImportError:
        raise ImportError("a table needs pandas, which is not installed: pip install pandas") from None
    return pandas


def to_names(index: Tensor, some: Tensor, names: NDArray[np.object_] | None) -> Any:
    """Names of target points, or indices that may be missing."""
    if names is not None:
        found = np.full(len(index), None, dtype=object)
        found[some.numpy()] = np.asarray(names, dtype=object)[index[some].numpy()]
        return found
    return import_pandas().arrays.IntegerArray(index.numpy(), ~some.numpy())


def match_and_runner_up(coupling: BlockCoupling) -> tuple[Tensor, Tensor]:
    """The two largest entries of each row and their columns, both (N, 2), on the CPU. The second has no mass where
    there is one column alone."""
    value, index = (side.detach().cpu() for side in coupling.top_k(min(2, coupling.shape[1])))
    value, index = (torch.nn.functional.pad(side, (0, 2 - side.shape[1])) for side in (value, index))
    return value.double(), index


def matches_both_ways(coupling: BlockCoupling) -> tuple[Tensor, Tensor, Tensor]:
    """The two largest entries of each row (N, 2), their columns (N, 2), and whether row and column of the first are
    each other's match (N,)."""
    value, index = match_and_runner_up(coupling)
    back = coupling.argmax(0).cpu()
    return value, index, (back[index[:, 0]] == torch.arange(len(index))) & (value[:, 0] > 0)
