"""What can be asked of a plan without storing it: the methods that results and extensions share, and masses of groups.

The mass between groups of points

    M_rc = sum over i in group r, j in group c of T_ij

is the sum over r of the rows of T E, where E (K, C) says which column is in which group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import as_block_coupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.kernels.sampling import draw, make_generator
from torchgw.runtime.caller import allocating
from torchgw.runtime.surroundings import isolate_methods
from torchgw.types import Array, Coupling, RandomState

NEGLIGIBLE = 1e-12  # of the mass: entries that conditional gradients have left behind
PIECE = 2**24  # elements of a product that are held at once


def point_indices(name: str, value: Any, n: int) -> Tensor:
    """Indices (m,) of some of n points, as int64."""
    given = validate.read(name, value)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integer indices (m,), got shape {given.shape} of dtype {given.dtype}")
    if len(given) and not 0 <= given.min() <= given.max() < n:
        raise ValueError(f"{name} must be indices in [0, {n}), got some from {given.min()} to {given.max()}")
    return torch.from_numpy(given.astype(np.int64))


@isolate_methods
class Readable:
    """A coupling of N source with K target points.

    What is read of it comes as NumPy arrays where ``numpy_input`` says that nothing was given as a tensor, else as
    tensors on the device of the plan. ``coupling`` itself always holds tensors.
    """

    coupling: Coupling
    numpy_input: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.coupling.shape

    @property
    def max_memory(self) -> int:
        """Bytes that the dense plan may take."""
        raise NotImplementedError

    @cached_property
    def plan(self) -> Array | Tensor:
        """The dense plan (N, K), float64, built on first use and kept; O(N K) memory. As a tensor with a gradient mode
        it carries gradients, in the precision of the tensors that they are for.

        Raises
        ------
        MemoryError
            Over ``options.max_memory``, or where memory ends below it, naming what to use instead.
        """
        n, k = self.shape
        advice = "use argmax(), top_k(k), sparsify(mass), row(i), push(V), pull(V) or coupling.apply(V, axis)"
        validate.memory(f"the dense plan ({n} x {k})", 8 * n * k, self.max_memory, advice)
        with allocating(f"the dense plan ({n} x {k})", advice):
            return self._to_user_array(self._dense())

    @property
    def plan_sparse(self) -> Any:
        """The plan's own entries as a SciPy CSR array (N, K), float64: about N + K where it ended without entropy, more
        where the objective is flat or convex between matchings.

        Entries up to 1e-12 of the mass are left out. A plan with entropy has mass on all pairs, of which `sparsify`
        keeps a share.

        Raises
        ------
        MemoryError
            As ``plan`` does, where that has no entries of its own.
        """
        if isinstance(self.coupling, SparseCoupling):
            found = self.coupling.matrix.copy()
        else:
            found = csr_array(validate.read("plan", self.plan).astype(np.float64))
        found.data[found.data <= NEGLIGIBLE * found.data.sum()] = 0.0
        found.eliminate_zeros()
        return found

    def matching(self) -> tuple[Array | Tensor, Array | Tensor, Array | Tensor]:
        """Source points that keep mass, their matches, and the mass of each pair: (m,), (m,), (m,).

        The match of a point is the target point that it sends most mass to, so several points can have the same.
        """
        mass, target = self.coupling.top_k(1)
        kept = torch.nonzero(mass[:, 0] > 0)[:, 0]
        return self._to_user_array(kept), self._to_user_array(target[kept, 0]), self._to_user_array(mass[kept, 0])

    def push(self, V: Array | Tensor) -> Array | Tensor:
        """Carry values on the source points to the target: averages weighted by the plan.

        Parameters
        ----------
        V : (N,) or (N, d), real numbers; or (N,) labels, texts or categories, None or NaN where there is none.

        Returns
        -------
        (K,) or (K, d). Target points without mass get NaN. Numpy in, numpy out; torch in, torch out. Of labels, an
        array (K,) of objects: the label of most of the mass that a point gets, None where no labelled point sends any.
        One-hot rows give the shares of all labels.

        O(N K (r + d)) time, with d labels.
        """
        return self._carry(V, axis=0)

    def pull(self, V: Array | Tensor) -> Array | Tensor:
        """Carry values on the target points to the source; see `push`.

        Parameters
        ----------
        V : (K,) or (K, d), real numbers; or (K,) labels.
        """
        return self._carry(V, axis=1)

    def _carry(self, V: Any, axis: int) -> Array | Tensor:
        if isinstance(V, Tensor):
            validate.dense("V", V)
            given = V
            if V.is_complex():
                raise TypeError(f"V must hold real numbers, got dtype {V.dtype}")
        else:
            held, categories = validate.read("V", V), hasattr(getattr(V, "dtype", None), "categories")
            if categories or held.dtype.kind not in "fiub":
                return self._carry_labels(held, axis, categories)
            given = torch.from_numpy(held.astype(np.float64))
        size = self.shape[axis]
        if given.ndim not in (1, 2) or given.shape[0] != size:
            raise ValueError(f"V must have shape ({size},) or ({size}, d), got {tuple(given.shape)}")
        coupling = as_block_coupling(self.coupling, "this operation")
        values = given.to(coupling.device, coupling.dtype)
        columns = torch.cat((values.new_ones(size, 1), values.reshape(size, -1)), dim=1)
        products = self._product(columns, axis)
        empty = products[:, :1] == 0  # divided by one first: the derivative of 0 / 0 would spread
        averaged = torch.where(empty, torch.nan, products[:, 1:] / torch.where(empty, 1.0, products[:, :1]))
        averaged = averaged[:, 0] if given.ndim == 1 else averaged
        return averaged if isinstance(V, Tensor) else averaged.detach().cpu().numpy()

    def _carry_labels(self, labels: Array, axis: int, categories: bool) -> Array:
        present = [value for value in labels.ravel().tolist() if not validate.is_missing(value)]
        if not present or not (categories or all(isinstance(value, str) for value in present)):
            raise TypeError(
                f"V must hold real numbers, or labels that are texts or categories, got dtype {labels.dtype}"
            )
        if labels.shape != (self.shape[axis],):
            raise ValueError(f"V must have shape ({self.shape[axis]},) where it holds labels, got {labels.shape}")
        place = {label: i for i, label in enumerate(dict.fromkeys(present))}
        codes = np.array([-1 if validate.is_missing(value) else place[value] for value in labels.tolist()])
        found = find_heaviest_group(as_block_coupling(self.coupling, "this operation"), codes, len(place), axis)
        names = np.fromiter((*place, None), dtype=object, count=len(place) + 1)
        carried: Array = names[found]  # -1 is the last, None
        return carried

    def _dense(self) -> Tensor:
        """The dense plan."""
        return self.coupling.to_dense()

    def _product(self, V: Tensor, axis: int) -> Tensor:
        """T V for axis 1, T^T V for axis 0."""
        return self.coupling.apply(V, axis)

    def argmax(self, axis: int = 1) -> Array | Tensor:
        """For each source point the target index it sends most mass to, (N,).

        Of equal masses the lowest index counts. A point without mass gets 0: nothing is known of it.

        Parameters
        ----------
        axis : 1, or 0 for the reverse: for each target point the source index that sends it most, (K,).

        O(N K r) time at most; of a streamed plan, tiles that cannot have the largest entries are not read.
        """
        validate.integer("axis", axis, least=0, most=1)
        return self._to_user_array(self.coupling.argmax(axis))

    def top_k(self, k: int) -> tuple[Array | Tensor, Array | Tensor]:
        """Masses and target indices of the largest entries of each row, both (N, k), largest first.

        Parameters
        ----------
        k : how many of each row, 1 to K.
        """
        validate.integer("k", k, least=1, most=self.shape[1])
        values, index = self.coupling.top_k(k)
        return self._to_user_array(values), self._to_user_array(index)

    def row(self, i: int) -> Array | Tensor:
        """The mass that one source point sends to each target point, (K,).

        Parameters
        ----------
        i : index of the source point.
        """
        i = validate.integer("i", i, least=0, most=self.shape[0] - 1)
        return self._to_user_array(self.coupling.rows(torch.tensor([i]))[0])

    def marginal(self, axis: int = 1) -> Array | Tensor:
        """Sums of the plan.

        Parameters
        ----------
        axis : what is summed over: 1 gives the source points' masses (N,), 0 the target points' (K,).
        """
        return self._to_user_array(self.coupling.marginal(validate.integer("axis", axis, least=0, most=1)))

    def sample(self, count: int, random_state: RandomState = None) -> tuple[Array | Tensor, Array | Tensor]:
        """Pairs drawn from the plan: source indices (count,) and target indices (count,).

        Parameters
        ----------
        count : how many.
        random_state : int, torch.Generator or numpy.random.Generator; None takes fresh entropy.
        """
        count = validate.integer("count", count, least=1)
        mass = self.coupling.marginal(1)
        generator = make_generator(random_state, mass.device)
        rows = draw(mass, count, generator)
        return self._to_user_array(rows), self._to_user_array(self.coupling.sample_columns(rows, generator))

    def sparsify(self, mass: float = 0.99) -> Any:
        """SciPy CSR matrix (N, K) of the fewest entries that carry a share of each row.

        Parameters
        ----------
        mass : the share, above 0 and at most 1.

        Raises
        ------
        ValueError
            When the rounding of a large plan spread more than 1 - ``mass`` of a row over all pairs.
        """
        return self.coupling.to_sparse(validate.real("mass", mass, above=0.0, most=1.0))

    def _to_user_array(self, found: Tensor) -> Array | Tensor:
        """In the kind of array that the user gave: the one place where it is chosen."""
        return found.detach().cpu().numpy() if self.numpy_input else found


def group_columns(coupling: Coupling, codes: Array, groups: int, axis: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces (first group, mass (n, groups of the piece)), float64 on the CPU, that points get from groups of others.

    ``codes`` (m,) are the groups of the points that axis ``axis`` of the plan runs over; -1 is none.
    """
    like = coupling.rows(torch.tensor([0])).detach()
    index = torch.from_numpy(codes)
    step = max(1, PIECE // max(coupling.shape))
    for first in range(0, groups, step):
        here = torch.arange(first, min(first + step, groups))
        membership = (index[:, None] == here).to(like)
        yield first, coupling.apply(membership, axis).detach().double().cpu()


def group_mass(coupling: Coupling, rows: Array, n_rows: int, columns: Array, n_columns: int) -> Array:
    """M (n_rows, n_columns), float64; O(N K n_columns) time, O((N + K) n_columns) memory in pieces of up to 128 MiB.

    Points with the code -1 belong to no group.
    """
    kept = torch.from_numpy(rows >= 0)
    group = torch.from_numpy(rows)[kept]
    found = torch.zeros(n_rows, n_columns, dtype=torch.float64)
    for first, mass in group_columns(coupling, columns, n_columns, axis=1):
        found[:, first : first + mass.shape[1]].index_add_(0, group, mass[kept])
    return found.numpy()


def find_heaviest_group(coupling: Coupling, codes: Array, groups: int, axis: int = 0) -> Array:
    """For each target point (K,) the group of source points, of ``groups``, that sends it most mass; -1 without any.
    For axis 1 the same of each source point (N,) and groups of target points.

    O(N K groups) time, memory as for `group_mass`.
    """
    count = coupling.shape[1 - axis]
    best, found = torch.zeros(count, dtype=torch.float64), torch.full((count,), -1)
    for first, mass in group_columns(coupling, codes, groups, axis):
        largest = mass.max(1)
        found = torch.where(largest.values > best, largest.indices + first, found)
        best = torch.maximum(best, largest.values)
    return found.numpy()
