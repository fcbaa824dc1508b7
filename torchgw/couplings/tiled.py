"""The plan of a large solve: potentials on the kept tiles of a score of small rank, and a rank-one correction.

    T_ij = 2^(A_i . B_j + f_i + g_j) on the kept tiles, + x_i y_j everywhere

The correction makes the marginals exact for the plan without the tiles that were left out, so what is read of it agrees
with itself. Tensors are stored in the tile order, in which neighbours are near, see `torchgw.spaces.coarsening`;
arguments and results of all methods are in the order of the user's points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, SparseEntries, mark_leading_entries
from torchgw.couplings.factored import FactoredPlan
from torchgw.kernels.blocks import parts
from torchgw.kernels.sampling import draw
from torchgw.kernels.softmin_tiles import PlanProducts, reference
from torchgw.kernels.tiles import Tiles, inverse_permutation
from torchgw.persist.codec import storable

MOST_SPREAD = 5e7
ORDERED = ("A", "B", "f", "g", "x", "y", "row_order", "column_order")


@storable
class TiledCoupling(BlockCoupling):
    """See the head of this file; O((N + K) r) memory and a list of tiles.

    Parameters
    ----------
    factored : the plan in the tile order, with its tiles; factors of the score are of any precision.
    """

    _level = 0  # log2 of the factor of the mass that products in float32 leave out

    def __init__(self, factored: FactoredPlan) -> None:
        assert factored.tiles is not None
        self.factored_plan, self.tiles, self.shape = factored, factored.tiles, factored.shape
        self._ordered: dict[str, Tensor] = {name: getattr(factored, name) for name in ORDERED}
        self._ordered |= {"tile_first": self.tiles.first, "tile_column": self.tiles.column}
        self._row_rank = inverse_permutation(factored.row_order)
        self._column_rank = inverse_permutation(factored.column_order)

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> TiledCoupling:
        """The coupling of its `tensors`, of which older files have no ``tile_separable``."""
        members: dict[str, Any] = {name: tensors[name] for name in ORDERED}
        n, k, first, column = len(members["A"]), len(members["B"]), tensors["tile_first"], tensors["tile_column"]
        separable = "tile_separable" in tensors and bool(tensors["tile_separable"])
        return cls(FactoredPlan(**members, tiles=Tiles(int(tensors["tile_size"]), n, k, first, column, separable)))

    def with_tensors(self, tensors: dict[str, Tensor]) -> TiledCoupling:
        return self.of(tensors)

    def __getstate__(self) -> dict[str, object]:
        return {**self.tensors(), "_level": self._level}

    def __setstate__(self, state: dict[str, Any]) -> None:
        level = state.pop("_level")
        vars(self).update(vars(TiledCoupling.of(state)) | {"_level": level})

    def tensors(self) -> dict[str, Tensor]:
        size, separable = torch.tensor(self.tiles.size), torch.tensor(self.tiles.separable)
        return {**self._ordered, "tile_size": size, "tile_separable": separable}

    @property
    def dtype(self) -> torch.dtype:
        return self._ordered["f"].dtype

    @property
    def A(self) -> Tensor:
        """Factor of the score on the source points, (N, r)."""
        return self._ordered["A"][self._row_rank]

    @property
    def B(self) -> Tensor:
        """Factor of the score on the target points, (K, r)."""
        return self._ordered["B"][self._column_rank]

    @property
    def f(self) -> Tensor:
        """Base-2 potentials of the source points, (N,)."""
        return self._ordered["f"][self._row_rank]

    @property
    def g(self) -> Tensor:
        """Base-2 potentials of the target points, (K,)."""
        return self._ordered["g"][self._column_rank]

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        return self.f, self.g

    def times(self, mass: float) -> TiledCoupling:
        """The coupling with ``mass`` times the mass."""
        scaled = {"f": self._ordered["f"] + math.log2(mass), "x": self._ordered["x"] * mass}
        found = self.of(self.tensors() | scaled)
        found._level = self._level + round(math.log2(mass))
        return found

    def zero_pad(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> TiledCoupling:
        """Points without mass come last in the tile order. Those that fill up a tile stand at its centre, which the
        entries of tiles that are sums of products refer to."""
        size, made = self.tiles.size, self.tensors()
        for names, index, count in (("Afx", rows, shape[0]), ("Bgy", columns, shape[1])):
            factor, order = made[names[0]], made["row_order" if names[0] == "A" else "column_order"]
            index, more = index.to(factor.device), count - len(factor)
            centre = factor[(len(factor) - 1) // size * size :].double().mean(0).to(factor.dtype)
            made[names[0]] = torch.cat((factor, centre.expand(more, -1)))
            for name, fill in zip(names[1:], (-math.inf, 0.0), strict=True):
                made[name] = torch.cat((made[name], made[name].new_full((more,), fill)))
            others = torch.ones(count, dtype=torch.bool, device=factor.device).index_fill_(0, index, False)
            made["row_order" if names[0] == "A" else "column_order"] = torch.cat((index[order], others.nonzero()[:, 0]))
        first = made["tile_first"]
        made["tile_first"] = torch.cat((first, first[-1:].expand(-(-shape[0] // size) + 1 - len(first))))
        found = self.of(made)
        found._level = self._level
        return found

    def rows(self, index: Tensor | slice) -> Tensor:
        return self.factored_plan.block(self._row_rank[index], self._column_rank)

    def _products(self, V: Tensor, axis: int) -> PlanProducts:
        """Products of the uncorrected plan (axis 1) or its transpose (axis 0) with V, in the tile order."""
        ordered = self._ordered
        none, tiles = V.new_zeros(self.shape[1 - axis], 0), self.tiles if axis == 1 else self.tiles.transpose
        sides = (ordered["A"], ordered["f"] - self._level), (ordered["B"], ordered["g"])
        (A, f), (B, g) = sides if axis == 1 else sides[::-1]
        found = reference.read(A, B, tiles, f, g, V, none)
        return found._replace(TV=found.TV * 2.0**self._level)

    def _correction_and_orders(self, axis: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of a product with V, by the plan (axis 1) or its transpose (axis 0): the correction's factors on the side of
        the result and of V, the rank of the result's points, the order of V's."""
        ordered = self._ordered
        if axis == 1:
            return ordered["x"], ordered["y"], self._row_rank, ordered["column_order"]
        return ordered["y"], ordered["x"], self._column_rank, ordered["row_order"]

    def apply(self, V: Tensor, axis: int) -> Tensor:
        self._check_rows(V, axis)
        x, y, rank, order = self._correction_and_orders(axis)
        values = V.reshape(len(V), -1)[order].to(self.dtype)
        # Constants come out exact, and what is read in low precision is small, when columns are centred.
        centre = values.mean(0)
        found = self._products(torch.cat((torch.ones_like(values[:, :1]), values - centre), 1), axis).TV
        product = found[:, 1:] + found[:, :1] * centre + x[:, None] * (y @ values)
        return product[rank].reshape(len(rank), *V.shape[1:]).to(V.dtype)

    def marginal(self, axis: int) -> Tensor:
        x, y, rank, _ = self._correction_and_orders(axis)
        ones = torch.ones(len(y), 1, dtype=x.dtype, device=x.device)
        return (self._products(ones, axis).TV[:, 0] + x * y.sum())[rank]

    def transpose(self) -> TiledCoupling:
        """The transposed coupling."""
        ordered, tiles = self._ordered, self.tiles.transpose
        pairs = (("A", "B"), ("f", "g"), ("x", "y"), ("row_order", "column_order"))
        exchanged = {one: ordered[other] for pair in pairs for one, other in (pair, pair[::-1])}
        listed = {"tile_first": tiles.first, "tile_column": tiles.column}
        found = self.of(self.tensors() | exchanged | listed)
        found._level = self._level
        return found

    def row_tiles(self, points: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Blocks of rows of a tile: their points (n,), those of the columns that it keeps (k,), the plan there (n, k),
        and the largest that entries elsewhere can be (n,). With ``points``, of these alone."""
        size, x, y = self.tiles.size, self._ordered["x"], self._ordered["y"]
        row_order, column_order, highest = self._ordered["row_order"], self._ordered["column_order"], y.max()
        asked = (
            torch.arange(self.shape[0], device=self.device) if points is None else self._row_rank[points].sort().values
        )
        ends = torch.arange(-(-self.shape[0] // size) + 1, device=self.device) * size
        bounds = torch.searchsorted(asked, ends).tolist()
        for tile, spans in enumerate(self.tiles.spans):
            every = asked[bounds[tile] : bounds[tile + 1]]
            if len(every) == 0:
                continue
            # Rows of which no tile is kept have the correction alone, and none of it without mass: one tile is enough.
            runs = spans or [slice(0, self.shape[1] if bool((x[every] > 0).any()) else min(size, self.shape[1]))]
            columns = torch.cat([torch.arange(run.start, run.stop, device=self.device) for run in runs])
            for where in parts(every, len(columns)):
                block = (self.factored_plan.block_in_tiles if spans else self.factored_plan.block)(where, columns)
                yield row_order[where], column_order[columns], block, x[where] * highest

    def _row_blocks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of whole rows of the plan, with their points."""
        for part in parts(rows, self.shape[1]):
            yield part, self.rows(part)

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.empty_like(rows)
        for out, part in zip(*(parts(index, self.shape[1]) for index in (drawn, rows)), strict=True):
            out.copy_(draw(self.rows(part), 1, generator)[:, 0])
        return drawn

    def top_k(self, k: int, points: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `BlockCoupling.top_k`. Kept tiles without large entries are not read, see `FactoredPlan.top_k`."""
        if points is None:
            values, index = self.factored_plan.top_k(k)
            return values[self._row_rank], index[self._row_rank]
        asked, back = torch.unique(self._row_rank[points], return_inverse=True)
        values, index = self.factored_plan.top_k(k, asked)
        return values[back], index[back]

    def to_sparse(self, mass: float) -> Any:
        found, stored, marginal = SparseEntries(self.shape), 0, self.marginal(1)
        for rows, columns, block, rival in self.row_tiles():
            wanted = mass * marginal[rows]
            value, order = block.sort(dim=1, descending=True)
            keep = mark_leading_entries(value, wanted)
            last = value.gather(1, (keep.sum(1, keepdim=True) - 1).clamp_min(0))[:, 0]
            outside = (value.sum(1) < wanted) | (last < rival)  # entries outside the kept tiles are needed
            inside = ~outside
            found.add(rows[inside], columns[order[inside]], value[inside], keep[inside])
            for part, whole in self._row_blocks(rows[outside]):
                value, order = whole.sort(dim=1, descending=True)
                keep = mark_leading_entries(value, mass * marginal[part])
                stored += int(keep.sum())
                if stored > MOST_SPREAD:
                    raise ValueError(
                        f"mass must leave out what rounding spread over all pairs, got {mass}: more than "
                        f"{MOST_SPREAD:.0e} entries of it would be stored; ask for less, for example mass=0.9"
                    )
                found.add(part, order, value, keep)
        return found.matrix()
