"""A graph's adjacency, a similarity, or any other square matrix of costs, taken as it is.

D = A / max |A|: weights, a diagonal, negative entries and directions count as they
stand. Entries say nothing of nearness: most points of a graph are at 0 from each
other. A sparse A stays sparse; absent entries are zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from torchgw import validate
from torchgw.persist.codec import storable
from torchgw.runtime.transfer import to_device, to_host
from torchgw.spaces.scale import ScaledDistances, positive_scale
from torchgw.spaces.traced import DifferentiableDistances, growth_of

DERIVED = ("_D", "_turned", "symmetric", "negative", "leaf")  # what files keep as the matrix, or not at all


@storable
class AdjacencyDistances(ScaledDistances):
    """The entries of a square matrix A in place of distances, divided by the largest absolute one.

    Parameters
    ----------
    A : (N, N), real and finite, not all zero: an array or tensor; or a SciPy sparse
        matrix or a networkx graph, which stay sparse. Of a graph of networkx: nodes
        in their order, and parallel edges added up.
    name : what the argument is called in error messages.
    weight : the attribute of edges of a graph of networkx that counts, see
        `SpaceOptions`.

    Attributes
    ----------
    largest : the largest absolute entry, before scaling.
    fixed : whether the scale was set by `with_scale`.
    leaf : A, where it is a tensor that requires gradients.
    symmetric : whether A is its own transpose; without that (directed graphs)
        solves are dense, with exact gradients.
    negative : whether an entry is below zero; "kl" takes no such ones.
    metric : False: the search goes by no landmarks.

    Raises
    ------
    ValueError, TypeError
        When A is not such a matrix.

    Notes
    -----
    O(nnz) memory of a sparse A, twice that of an asymmetric one, and O(nnz d) for a
    product with d columns.
    """

    metric = False

    def __init__(self, A: Any, *, name: str = "A", weight: str | None = "weight") -> None:
        matrix = validate.adjacency(name, A, weight)
        entries = matrix.data if issparse(matrix) else matrix
        self.scale = self.largest = positive_scale(float(np.abs(entries).max(initial=0.0)))
        self.leaf = A if isinstance(A, Tensor) and A.requires_grad else None
        if issparse(matrix):  # SciPy would multiply by the inverse
            matrix = csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=True)
            matrix.data /= self.scale
            matrix.eliminate_zeros()
        self._set(matrix if issparse(matrix) else matrix / self.scale)

    def _set(self, matrix: Any) -> None:
        """Keep a scaled matrix, and its transpose where that is another sparse one."""
        turned = matrix.T.tocsr() if issparse(matrix) else matrix.T
        self.symmetric = not bool((matrix != turned).sum())
        self.negative = bool(matrix.min() < 0)
        make = sparse_tensor if issparse(matrix) else torch.from_numpy
        self._D = make(matrix)
        self._turned = self._D if self.symmetric else make(turned)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in DERIVED}
        return kept | {"matrix": self.matrix if self.sparse else self._D.cpu().numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        matrix = state.pop("matrix")
        vars(self).update(state)
        self._set(matrix)

    @property
    def size(self) -> int:
        return int(self._D.shape[0])

    @property
    def sparse(self) -> bool:
        """Whether only the entries that are not zero are stored."""
        return self._D.layout == torch.sparse_csr

    @property
    def density(self) -> float:
        """The share of entries that are not zero."""
        entries = self._D.values() if self.sparse else self._D
        return int(torch.count_nonzero(entries)) / self.size**2

    def at(self, index: Tensor) -> AdjacencyDistances:
        """The entries between the points ``index`` (n,); a scale that was given stays."""
        places = index.cpu().numpy()
        matrix = self.matrix[places][:, places] if self.sparse else self._D.cpu().numpy()[np.ix_(places, places)]
        largest = positive_scale(float(abs(matrix).max()))
        growth = 1.0 if self.fixed else largest
        leaf = None if self.leaf is None else self.leaf[index][:, index]
        found = self._with(scale=self.scale * growth, largest=self.scale * largest, leaf=leaf)
        found._set(matrix / growth)
        return found.to(self._D.device, self._D.dtype)

    def compressed(self) -> AdjacencyDistances:
        """The same distances, sparse, on the CPU."""
        if self.sparse:
            return self
        other = self._with()
        other._set(csr_array(self._D.cpu().numpy()))
        return other

    @property
    def matrix(self) -> Any:
        """D (N, N) as a SciPy CSR array, where it is sparse."""
        parts = to_host(self._D.values(), self._D.col_indices(), self._D.crow_indices())
        return csr_array(tuple(part.numpy() for part in parts), shape=tuple(self._D.shape))

    def to(self, device: torch.device, dtype: torch.dtype) -> AdjacencyDistances:
        return self._map_matrix(
            lambda matrix: matrix.to(device, dtype) if self.sparse else to_device(matrix.to(dtype), device)
        )

    def _rescale_storage(self, ratio: float) -> AdjacencyDistances:
        return self._map_matrix(lambda matrix: _entrywise(matrix, lambda values: values * ratio))

    def _map_matrix(self, change: Callable[[Tensor], Tensor]) -> AdjacencyDistances:
        """A copy of the matrix and its transpose, changed alike."""
        D = change(self._D)
        return self._with(_D=D, _turned=D if self.symmetric else change(self._turned) if self.sparse else D.T)

    def rows(self, index: Tensor) -> Tensor:
        if not self.sparse:
            return self._D[index]
        # A row at a time would be a kernel each; a product with unit vectors takes
        # the columns of the transpose.
        units = torch.zeros(self.size, len(index), dtype=self._D.dtype, device=self._D.device)
        units[index, torch.arange(len(index), device=index.device)] = 1.0
        return self.apply(units, 0).T

    def apply(self, V: Tensor, axis: int = 1) -> Tensor:
        """D V for V (N, d), D^T V for axis 0."""
        matrix = self._D if axis == 1 else self._turned
        # Sparse products want rows of V side by side.
        return matrix.to(V.dtype) @ (V.contiguous() if self.sparse else V)

    def squares(self) -> AdjacencyDistances:
        """The squares of all scaled entries."""
        return self._map_matrix(lambda matrix: _entrywise(matrix, Tensor.square))

    def trace(self, leaf: Tensor, k: int | None, device: torch.device) -> DifferentiableDistances:
        unit = leaf.to(device, torch.float64) / self.scale
        unit = (unit + unit.T) / 2 if self.symmetric else unit
        return DifferentiableDistances(unit, growth=growth_of(unit))


def _entrywise(D: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The matrix with its entries changed, zeros to zeros."""
    if D.layout != torch.sparse_csr:
        return change(D)
    return _sparse(D.crow_indices(), D.col_indices(), change(D.values()), D.shape)


def sparse_tensor(matrix: Any) -> Tensor:
    """A SciPy CSR matrix as a sparse tensor of the same layout and dtype, on the CPU."""
    index = torch.int32 if matrix.nnz < 2**31 else torch.int64  # the smaller one is multiplied by without a copy
    pointers, columns = (torch.from_numpy(np.array(part)).to(index) for part in (matrix.indptr, matrix.indices))
    return _sparse(pointers, columns, torch.from_numpy(np.array(matrix.data)), matrix.shape)


def _sparse(pointers: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        about = "Sparse (CSR tensor support is in beta|invariant checks are implicitly disabled)"
        warnings.filterwarnings("ignore", about, UserWarning)
        return torch.sparse_csr_tensor(pointers, columns, values, size=shape, check_invariants=False)
