"""Joint coordinates of several spaces that transport plans align: manifold alignment by Laplacian eigenmaps.

The neighbour graphs W_i of all spaces (sum 1 each) and the plans T_ij between them (sum 1 each, times mu) are the edges
of one joint graph. Its smoothest functions z are the coordinates: each minimises

    sum_i 1/2 sum_ab W_i[a,b] (z_a - z_b)^2  +  mu sum_ij sum_ab T_ij[a,b] (z_a - z_b)^2    subject to  Z^T D Z = 1,

with D the degrees of the joint graph, D 1 = W_i 1 + mu T_ij 1 on space i. The solutions are the lowest eigenvectors of
D^-1/2 (D - joint W) D^-1/2 but for the constant one. Plans are applied as operators and never stored.

Sources: J. Ham, D. Lee, L. Saul, "Semisupervised alignment of manifolds", 2005; C. Wang, S. Mahadevan, "A general
framework for manifold alignment", 2009. The degrees as metric: J. Shi, J. Malik, "Normalized cuts and image
segmentation", 2000. Plans of Gromov-Wasserstein type as correspondences: K. Cao, Y. Hong, L. Wan, "Manifold alignment
for heterogeneous single-cell multi-omics data integration using Pamona", 2022.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.reader import Readable
from torchgw.embedding.eigen import LEAST, Eigenpairs, smallest_eigenpairs
from torchgw.embedding.graph import JointGraph, Plan, check_data_sets, compute_affinities, make_plan, make_space_graph
from torchgw.kernels.sampling import make_generator
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.surroundings import isolate
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.neighbours import components, symmetrise_edges
from torchgw.types import Array, ConvergenceWarning, Coupling, GraphWarning, RandomState

logger = logging.getLogger("torchgw")

TIE = 1e-3

Results: TypeAlias = "Sequence[Readable | Coupling] | Mapping[tuple[int, int], Readable | Coupling]"


@hide_constructor
@dataclass(frozen=True, kw_only=True, repr=False)
class JointEmbedding:
    """Coordinates that several spaces share, from `joint_embedding`.

    Attributes
    ----------
    coordinates : (N_i, n_components) float64 for each space. Weighted by the degrees of the joint graph, each
        component has mean 0 and variance 1 over all points together. Points that nothing joins with the anchor are NaN.
    eigenvalues : (n_components,) in [0, 2], ascending: how rough each component is on the joint graph.
    residuals : (n_components,), of the eigenpairs, over their eigenvalues (or 1e-8, if those are smaller).
    converged : whether every residual is at most ``tol``.
    n_iter : how often each plan was applied.
    solver : "dense" or "lobpcg", whichever ran.
    anchor, coupling_weight, tol : as they were given.
    graphs : how the neighbour graphs were made; None for spaces that were not points.
    """

    coordinates: tuple[Array | Tensor, ...] = field(compare=False)
    eigenvalues: Array = field(compare=False)
    residuals: Array = field(compare=False)
    converged: bool
    n_iter: int
    solver: str
    anchor: int
    coupling_weight: float
    tol: float
    graphs: tuple[GraphReport | None, ...]

    def __repr__(self) -> str:
        sizes = " + ".join(str(len(found)) for found in self.coordinates)
        ended = "converged" if self.converged else "not converged"
        return f"JointEmbedding({sizes} points, {len(self.eigenvalues)} components, {ended}, solver {self.solver})"


@isolate
def joint_embedding(
    spaces: Sequence[Any],
    results: Results,
    n_components: int = 2,
    *,
    anchor: int = 0,
    coupling_weight: float = 3.0,
    k: int | None = None,
    tol: float = 1e-3,
    max_iter: int = 300,
    random_state: RandomState = None,
) -> JointEmbedding:
    """Embed several aligned spaces in one Euclidean space, where neighbours and matched points are near each other.

    Parameters
    ----------
    spaces : two or more of: points (N_i, D_i), SciPy sparse graphs of edge lengths, square distance matrices. Arrays,
        tensors and nested lists are accepted; a square array is a distance matrix, as for `torchgw.gw_align`.
    results : plans between the spaces, as results of `torchgw.gw_align` or couplings. A list has one for each space
        but the anchor, in their order: ``gw_align(spaces[i], spaces[anchor])``, the rows being space i and the columns
        the anchor. A dict ``{(i, j): result}`` has plans between any spaces, with rows i and columns j; together they
        must join all of them. Every plan is divided by its mass.
    n_components : dimension of the embedding, below the number of points of the smallest space.
    anchor : the space that the list of results refers to, and in which signs are chosen.
    coupling_weight : mu, the weight of each plan beside that of each graph. Small numbers keep the shape of each space,
        large ones draw matched points together. Without unit: spaces and plans of any size weigh the same.
    k : neighbours of each point; None chooses them and leaves out short cuts, see `torchgw.spaces.graph`.
    tol : largest residual of an eigenpair over its eigenvalue. Coordinates are off by about as much.
    max_iter : largest number of times that each plan is applied, at least 3.
    random_state : of the start vectors: int, torch.Generator or numpy.random.Generator. The same seed on the same
        machine gives the same bits; other seeds give the same to about ``tol``. None takes fresh entropy.

    Returns
    -------
    JointEmbedding. Coordinates of tensors are tensors on their device, all others are arrays. No gradients flow.

    Raises
    ------
    ValueError, TypeError
        For input that cannot be used, before any work: spaces, shapes of plans, spaces that no plan joins with the
        rest, too many components.

    Warns
    -----
    ConvergenceWarning
        When the residuals do not reach ``tol`` within ``max_iter`` applications, or by the precision to which large
        plans are read: about 1e-6 over the eigenvalue.
    GraphWarning
        When graphs had to be stitched, or when parts of a graph that is not connected carry no mass: their coordinates
        are NaN.

    Notes
    -----
    The largest entry of each component in the anchor is positive; among entries within 0.1 % of it, the first. Where
    eigenvalues agree, by symmetry, only the span of their components is determined.

    O(n_iter (E + cost of applying each plan to b = max(32, n_components + 16) columns)), with E edges and n_iter 11 or
    22 for plans with entropy, 200 for matchings of 2000 points. Memory O(sum N_i (k + n_components)): with 17 b float64
    numbers 4.4 kB for each point. Up to 1000 points, or 5 b, O((sum N_i)^3) time and O((sum N_i)^2) memory. Distance
    matrices take O(N^2). Formula: the head of `torchgw.embedding`; see `torchgw.embedding.eigen`, `docs/embedding.md`.

    Examples
    --------
    >>> import torchgw
    >>> from torchgw.embedding import joint_embedding
    >>> X, _ = torchgw.datasets.make_spiral(300)
    >>> Y, _ = torchgw.datasets.make_swiss_roll(350, random_state=1)
    >>> result = torchgw.gw_align(Y, X, epsilon=5e-3, random_state=0)
    >>> [found.shape for found in joint_embedding([X, Y], [result], random_state=0).coordinates]
    [(300, 2), (350, 2)]
    """
    checked = check_data_sets(spaces, k)
    sizes = [space.shape[0] for space in checked]
    anchor = validate.integer("anchor", anchor, least=0, most=len(sizes) - 1)
    weight = validate.real("coupling_weight", coupling_weight, above=0.0)
    tol = validate.real("tol", tol, above=0.0, most=1.0)
    max_iter = validate.integer("max_iter", max_iter, least=LEAST)
    count = _check_dimension(n_components, sizes)
    generator = make_generator(random_state, torch.device("cpu"))
    plans = _read_plans(results, checked, anchor, weight)

    made = [make_space_graph(space, k, f"spaces[{i}]") for i, space in enumerate(checked)]
    joint = JointGraph([compute_affinities(graph) for graph, _ in made], plans, anchor)
    count = _check_dimension(count, _count_joined_points(joint))

    def start(n: int, block: int) -> Array:
        return torch.randn(n, block, generator=generator, dtype=torch.float64).numpy()

    found = smallest_eigenpairs(joint.apply_laplacian, joint.null, count, start, tol, max_iter)
    logger.info("joint embedding: %s, %d applications of each plan", found.solver, found.n_iter)
    _warn_of_residuals(found, tol, max_iter)
    coordinates = _fix_signs(joint.to_coordinates(found.vectors), joint.offsets[anchor : anchor + 2])
    return JointEmbedding(
        coordinates=tuple(
            _to_kind_of(part, space) for part, space in zip(joint.split(coordinates), spaces, strict=True)
        ),
        eigenvalues=found.values,
        residuals=found.residuals,
        converged=bool((found.residuals <= tol).all()),
        n_iter=found.n_iter,
        solver=found.solver,
        anchor=anchor,
        coupling_weight=weight,
        tol=tol,
        graphs=tuple(report for _, report in made),
    )


def _count_joined_points(joint: JointGraph) -> list[int]:
    """How many points of each space are joined with the anchor; some have to be, and others are warned of."""
    found = [int(part.sum()) for part in joint.split(joint.kept)]
    lost = {i: len(part) - count for i, (part, count) in enumerate(zip(joint.split(joint.kept), found, strict=True))}
    if 0 in found:
        raise ValueError(
            f"results must join spaces[{found.index(0)}] with the anchor, got plans without mass between them"
        )
    if any(lost.values()):
        where = ", ".join(f"{count} points of spaces[{i}]" for i, count in lost.items() if count)
        warn_caller(
            f"neither edges nor plans join {where} with the anchor: their coordinates are NaN; connect their graph, or "
            f"leave them out",
            GraphWarning,
        )
    return found


def _check_dimension(n_components: object, sizes: list[int]) -> int:
    """A number of components below the smallest size."""
    count = validate.integer("n_components", n_components, least=1)
    if count >= min(sizes):
        i = sizes.index(min(sizes))
        raise ValueError(
            f"n_components must be below the number of joined points of every space, got {count} and "
            f"{sizes[i]} points in spaces[{i}]"
        )
    return count


def _read_plans(results: Any, spaces: list[Any], anchor: int, weight: float) -> list[Plan]:
    """Every plan with its spaces, checked to fit them and to join all."""
    others = [i for i in range(len(spaces)) if i != anchor]
    if isinstance(results, Mapping):
        named = [(f"results[{key!r}]", *_read_key(key, len(spaces)), value) for key, value in results.items()]
    elif not isinstance(results, list | tuple):
        one = "; give one result as [result]" if isinstance(results, Readable | Coupling) else ""
        raise TypeError(f"results must be a list or a dict {{(i, j): result}}, got {type(results).__name__}{one}")
    elif len(results) != len(others):
        raise ValueError(
            f"results must hold one result for each space but the anchor, {len(others)}, got {len(results)}; a dict "
            f"{{(i, j): result}} may hold any pairs"
        )
    else:
        named = [(f"results[{at}]", i, anchor, results[at]) for at, i in enumerate(others)]
    source, target = (np.array([entry[side] for entry in named], dtype=np.int64) for side in (1, 2))
    joined, label = components(symmetrise_edges(len(spaces), source, target))
    if joined > 1:
        apart = [i for i in others if label[i] != label[anchor]]
        raise ValueError(f"results must join every space with spaces[{anchor}], got none that leads to spaces {apart}")
    return [_read_plan(*entry, spaces, weight) for entry in named]


def _read_key(key: object, n: int) -> tuple[int, int]:
    """Two different spaces, from the key of a dict of results."""
    if not isinstance(key, tuple) or len(key) != 2:
        raise TypeError(f"results must have pairs of indices (i, j) as keys, got {key!r}")
    i, j = (validate.integer(f"key {key!r} of results", side, least=0, most=n - 1) for side in key)
    if i == j:
        raise ValueError(f"results must have keys of two different spaces, got {key!r}")
    return i, j


def _read_plan(name: str, i: int, j: int, result: Any, spaces: list[Any], weight: float) -> Plan:
    """A result that fits its two spaces."""
    coupling = result.coupling if isinstance(result, Readable) else result
    if not isinstance(coupling, Coupling):
        kind = type(result).__name__
        raise TypeError(
            f"{name} must be a result of gw_align or a coupling, got {kind}; a matrix goes as DenseCoupling"
        )
    got, wanted = tuple(coupling.shape), (spaces[i].shape[0], spaces[j].shape[0])
    turned = _has_reversed_spaces(getattr(result, "known", None), spaces[i], spaces[j])
    if got != wanted or turned:
        fix = f"give gw_align(spaces[{i}], spaces[{j}])"
        if got == wanted[::-1]:
            fix = f"it is turned: give gw_align(spaces[{i}], spaces[{j}]), or a dict {{({j}, {i}): this result, ...}}"
        raise ValueError(
            f"{name} must have the points of spaces[{i}] as rows and of spaces[{j}] as columns, {wanted}, got {got}"
            f"{' from the spaces in reverse order' if turned else ''}; {fix}"
        )
    return make_plan(i, j, coupling, weight, name)


def _has_reversed_spaces(known: Any, row: Any, column: Any) -> bool:
    """Whether a result remembers points of both spaces, in reverse order: shapes do not tell where sizes agree."""
    if known is None or any(side.points is None for side in known) or np.array_equal(known[0].points, row):
        return False
    return np.array_equal(known[0].points, column) and np.array_equal(known[1].points, row)


def _warn_of_residuals(found: Eigenpairs, tol: float, max_iter: int) -> None:
    if (found.residuals > tol).any():
        spent = found.n_iter > max_iter - LEAST
        limit = "raise max_iter" if spent else "plans are not read more precisely, so raise tol"
        warn_caller(
            f"the joint embedding is not converged: a residual is {found.residuals.max():.1e} of its eigenvalue after "
            f"{found.n_iter} applications of each plan, over tol={tol:g}; {limit}",
            ConvergenceWarning,
        )


def _fix_signs(coordinates: Array, anchor: Array) -> Array:
    """The largest entry of each component in the anchor's rows positive; among nearly equal ones the first."""
    size = np.nan_to_num(np.abs(own := coordinates[anchor[0] : anchor[1]]))
    first = (size >= (1 - TIE) * size.max(0)).argmax(0)
    return coordinates * np.where(own[first, np.arange(own.shape[1])] < 0, -1.0, 1.0)


def _to_kind_of(part: Array, space: Any) -> Array | Tensor:
    """In the kind of array that the space was."""
    return torch.from_numpy(part).to(space.device) if isinstance(space, Tensor) else part
