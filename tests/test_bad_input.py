"""Every input that cannot be used is refused at once, by an error that names the argument."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_matrix

import torchgw
from tests.fuzz_makers import Bare, edited
from tests.problems import Own
from torchgw import (
    AdjacencyDistances,
    AnnealingOptions,
    CoarseOptions,
    DijkstraDistances,
    Envelope,
    EuclideanDistances,
    GWOptions,
    Implicit,
    LandmarkDistances,
    LowRankOptions,
    Partial,
    PrecomputedDistances,
    SamplingOptions,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
    Supervision,
    Unbalanced,
    estimate,
    gw_align,
    gw_loss,
)
from torchgw import align as align_module
from torchgw.datasets import make_spiral, make_swiss_roll

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 2)), RNG.normal(size=(40, 3))
D = np.abs(np.arange(10.0)[:, None] - np.arange(10.0))


class Lists(Own):
    """A user's provider without tensors."""

    def rows(self, index: torch.Tensor) -> Any:
        return super().rows(index).tolist()


def networkx_like() -> Any:
    return type("Graph", (), {"edges": [], "is_directed": None, "is_multigraph": None})()


ONE_WAY = csr_matrix((np.array([1e-9, 1.0, 1.0]), (np.array([0, 1, 2]), np.array([1, 2, 1]))), shape=(3, 3))


def pointing_outside(array: str, where: int, kind: str = "csr") -> Any:
    bad = csr_matrix(D).asformat(kind)
    getattr(bad, array)[0] = where
    return bad


def align(*spaces: Any, **keywords: Any) -> Any:
    return lambda: gw_align(*(spaces or (X, Y)), **keywords)


def adjacency(space: Any, **keywords: Any) -> Any:
    return lambda: gw_align(space, D, distances="adjacency", **keywords)


STREAMING = GWOptions(strategy="streaming")
PARTED = torch.full((30,), 1 / 30, dtype=torch.float16)
BAD: list[tuple[str, Any, str]] = [
    ("three-dimensional points", align(np.zeros((3, 3, 3)), Y), "X must have shape"),
    ("one-dimensional points", align(X, np.zeros(7)), "Y must have shape"),
    ("no array at all", align("cloud", Y), "X must be"),
    ("ragged points", align([[1.0, 2.0], [3.0]], Y), "X must be"),
    ("complex points", align(X + 1j, Y), "X must be an array of real numbers"),
    ("object points", align(np.array([[object()] * 2] * 9), Y), "X must be an array of real numbers"),
    ("NaN in points", align(edited(X, 3, 1, np.nan), Y), "X must be finite"),
    ("place of NaN in points", align(edited(X, 3, 1, np.nan), Y), "X must .* 1 NaN .*, the first in row 3, column 1$"),
    ("cells", align(type("Cells", (), {"obsm": {}})(), Y), r"X must be an array.*; torchgw.anndata.align\(a, b\)"),
    ("word for scale", lambda: SpaceOptions(scale="max"), "scale must be 'common', a number, a pair .*, or None"),
    ("inf in points", align(edited(X, 3, 1, np.inf), Y), "X must be finite"),
    ("points without coordinates", align(np.zeros((5, 0)), Y), "X must have at least one coordinate"),
    ("no points", align(X, np.zeros((0, 3))), "Y must hold at least 1 point, got"),
    ("too many neighbours", align(X, Y, options=GWOptions(spaces=SpaceOptions(k=30))), "k must be smaller"),
    ("asymmetric matrix", align(edited(D, 2, 5, 4.0), Y), "X must be a symmetric distance matrix"),
    (
        "not connected in one direction",
        align(edited(edited(edited(D, 0, 1, 1e9), 1, 0, 1e9), 2, 5, np.inf), Y),
        "X must be a symmetric distance matrix, got entries that differ by inf",
    ),
    ("negative distances", align(-D, Y), "X is square, so it must be a non-negative distance matrix"),
    ("NaN distances", align(D * np.nan, Y), "X must not contain NaN"),
    ("similarities", align(np.exp(-D), Y), "X must have a zero diagonal"),
    ("non-square graph", align(csr_matrix(np.ones((3, 4))), Y), "X must be a square sparse graph"),
    ("asymmetric graph", align(csr_matrix(np.triu(D)), Y), "X must be a symmetric graph"),
    ("negative graph", align(csr_matrix(-D), Y), "X must have non-negative edge lengths"),
    ("NaN in a graph", align(csr_matrix(D * np.nan), Y), "X must have finite edge lengths"),
    ("complex graph", align(csr_matrix(D * 1j), Y), "X must hold real edge lengths"),
    *(
        (
            f"a {kind} graph with {array} of {where}",
            align(pointing_outside(array, where, kind), Y),
            "X must be a sparse graph whose indices fit its shape",
        )
        for kind, array in (("csr", "indices"), ("csc", "indices"), ("coo", "row"), ("coo", "col"))
        for where in (10**6, -5)
    ),
    (
        "masked points",
        align(np.ma.masked_greater(X, X.max() - 1e-9), Y),
        "X must have a number everywhere, got masked entries",
    ),
    (
        "masked masses",
        align(p=np.ma.masked_less(np.arange(30.0), 2)),
        "p must have a number everywhere, got masked entries",
    ),
    ("graph of no points", align(csr_matrix((0, 0)), Y), r"X must be a square sparse graph \(N, N\), N >= 1"),
    ("euclidean distances of a graph", align(csr_matrix(D), Y, distances="euclidean"), "distances='euclidean'"),
    ("kind for a provider", align(EuclideanDistances(X), Y, distances="landmark"), "distances must be 'auto'"),
    ("a path", align("source.npy", Y), "X must be .*, got a str; load it first"),
    (
        "networkx graph",
        align(networkx_like(), Y),
        "X must be .*, got a graph of networkx, Graph; give it with distances='adjacency', .*to_scipy_sparse_array",
    ),
    ("asymmetric matrix", align(np.triu(D), Y), "X must be a symmetric distance matrix, .*distances='adjacency'"),
    ("negative matrix", align(-D, Y), "X is square, so it must be a non-negative .*distances='adjacency'"),
    ("similarity matrix", align(D + 1, Y, distances="precomputed"), "X must have a zero diag.*distances='adjacency'"),
    *(
        (f"{kind} adjacency {what}", adjacency(make(given)), message)
        for kind, make in (("dense", np.asarray), ("sparse", csr_matrix))
        for what, given, message in (
            ("with NaN", D * np.nan, "X must be finite, got 1?.* NaN"),
            ("with infinite entries", np.where(D > 8, np.inf, D), "X must be finite, got 0 NaN and 2 infinite entries"),
            ("that is not square", D[:4], r"X must be a square adjacency matrix \(N, N\), got shape \(4, 10\)"),
            ("of no points", np.ones((0, 0)), "X must hold at least 1 point"),
            ("of no edges", D * 0, "X must have an entry that is not zero, got a graph without edges"),
            ("of complex numbers", D * 1j, "X must .*real numbers.* dtype complex128"),
            ("of astronomic weights", D * 1e200, "X must stay below"),
        )
    ),
    ("adjacency of text", adjacency([["a", "b"], ["c", "d"]]), "X must be an array of real numbers"),
    ("a path for an adjacency", adjacency("graph.npz"), "X must be .*, got a str; load it first"),
    ("adjacency of points", adjacency(X), "X must be a square adjacency matrix"),
    ("adjacency of a vector", adjacency(X[:, 0]), r"X must have shape \(N, N\), got \(30,\)"),
    (
        "sparse tensor for an adjacency",
        adjacency(torch.eye(5).to_sparse()),
        "X must be a SciPy sparse graph .*coo_array",
    ),
    (
        "sparse adjacency that points outside",
        adjacency(pointing_outside("indices", 10**6)),
        "whose indices fit its shape",
    ),
    (
        "networkx graph without edges",
        adjacency(nx.empty_graph(4)),
        "X must have edges, got a networkx graph of 4 nodes",
    ),
    (
        "networkx graph with words as weights",
        adjacency(nx.Graph([(0, 1, {"weight": "strong"})])),
        "X must have real numbers as the attribute 'weight' of its edges, got str",
    ),
    (
        "networkx graph with lists as weights",
        adjacency(nx.Graph([(0, 1, {"weight": [1.0]}), (1, 2, {"weight": [1.0, 2.0]})])),
        "X must be a graph with real numbers as the attribute 'weight' of its edges, got an unreadable one",
    ),
    (
        "networkx graph with vectors as weights",
        adjacency(nx.Graph([(0, 1, {"weight": np.ones(2)}), (1, 2, {"weight": np.ones(2)})])),
        "X must have real numbers as the attribute 'weight' of its edges, got ndarray",
    ),
    (
        "adjacency of a provider",
        adjacency(PrecomputedDistances(D)),
        "distances must be 'auto' when X is a distance prov",
    ),
    (
        "streaming of a directed graph",
        adjacency(np.triu(D), options=STREAMING),
        "options.strategy must be 'auto' or 'dense'",
    ),
    ("other loss of a negative adjacency", adjacency(-D, options=GWOptions(loss="kl")), "X must .* loss='kl'"),
    (
        "many adjacencies, one of them one way",
        lambda: torchgw.gw_pairwise([D, np.triu(D)], distances="adjacency"),
        r"spaces\[1\] must have the same distances in both directions, got ndarray with others",
    ),
    (
        "many providers, one of them one way",
        lambda: torchgw.gw_pairwise([D, AdjacencyDistances(np.triu(D))]),
        r"spaces\[1\] must have",
    ),
    (
        "new points of an adjacency",
        lambda: gw_align(D, D, distances="adjacency", epsilon=1e-2, random_state=0).transform(D),
        "points must have distances to be placed by",
    ),
    (
        "graph with a one-way edge",
        align(ONE_WAY, Y),
        "X must be a symmetric graph, got edges without their reverse; .*distances='adjacency' .*compares them",
    ),
    (
        "cells by genes for Euclidean",
        align(csr_matrix(np.ones((3, 4))), Y, distances="euclidean"),
        r"needs points, got a sparse matrix as X; X\.toarray\(\) has its rows for points",
    ),
    ("points of astronomic size", align(X * 1e200, Y), "X must stay below"),
    (
        "sparse tensor",
        align(torch.eye(5).to_sparse(), Y, distances="landmark"),
        "X must be .* a sparse tensor; .*coo_array",
    ),
    ("distances of pdist", align(X[:28, 0], Y), r"X must have shape .*column, .*pdist as .*distance\.squareform\(X\)"),
    ("one number for each of 30", align(X[:, 0], Y), r"X must have shape .* as a column, x\[:, None\]$"),
    ("matrix taken for points", align(D, Y, distances="landmark"), "X is a distance matrix"),
    (
        "provider without all members",
        align(Bare(), Y),
        "X has rows but is no DistanceProvider: Bare lacks .* stored, to",
    ),
    ("provider of no points", align(Own(np.ones((0, 0))), Y), "X.size must be >= 1"),
    ("provider without scale", align(Own(D, scale=0.0), Y), "X.scale must be"),
    ("provider of the wrong width", align(Own(np.ones((10, 9))), Y), r"X.rows must return .*\(1, 10\)"),
    ("provider of lists", align(Lists(D), Y), "X.rows must return .*, got list"),
    ("provider of NaN", align(Own(np.full((10, 10), np.nan)), Y), "X.rows must be finite"),
    (
        "provider of NaN further on",
        align(Own(edited(D, 5, 6, np.nan)), Y, options=STREAMING),
        "Own.rows must give finite",
    ),
    ("a divergence beyond floats", lambda: Unbalanced(1e300, 1.0), r"rho_x must be within .*1e\+18.*math.inf"),
    (
        "total variation",
        lambda: Unbalanced(0.1, 0.1, divergence="tv"),
        r"divergence must be 'kl', got 'tv'; total variation .* use Partial\(mass\), .* or Unbalanced\(rho_x, rho_y\)",
    ),
    (
        "another divergence",
        lambda: Unbalanced(0.1, 0.1, "l2"),
        r"divergence must be 'kl', got 'l2'; .* Partial\(mass\)",
    ),
    ("a divergence of nothing", lambda: Unbalanced(1e-300, 1.0), r"rho_x must be within \[1e-18.*SemiRelaxed\(0.0\)"),
    (
        "a strength beyond floats",
        lambda: Supervision(pairs=[(0, 0)], strength=1e300),
        r"strength must be within .*1e\+18",
    ),
    (
        "masses and a cost",
        align(p=np.full(30, 1e-100), q=np.full(40, 7.5e-101), cost=np.ones((30, 40))),
        "p and q must .*cost",
    ),
    ("masses beyond floats", align(p=np.full(30, 1e308)), r"p must have a positive sum within \[1e-150, 1e\+150\]"),
    ("negative masses", align(p=np.linspace(-1, 1, 30)), "p must be non-negative"),
    ("zero masses", align(q=np.zeros(40)), "q must have a positive sum"),
    ("short masses", align(p=np.ones(29)), r"p must have shape \(N,\) = \(30,\), got \(29,\)"),
    ("masses as a matrix", align(q=np.ones((40, 1))), "q must have shape"),
    ("NaN masses", align(p=np.full(30, np.nan)), "p must be finite"),
    ("numbers as objects", align(pd.DataFrame(D).astype(object), Y), r"X must be .*; .*, take X.to_numpy\(float\)"),
    ("a tensor of nothing", align(X, torch.zeros(40, 3, device="meta")), "Y must be an array .* no data"),
    ("sums that rounding parts", align(p=PARTED), r"p and q must sum alike.* take p / p.sum\(\) and .* in float64, or"),
    (
        "unequal sums",
        align(p=np.ones(30), q=np.ones(40)),
        r"p and q must sum alike, got sum\(p\) = 30 and .* = 40; take p / p.sum\(\) and .*, or use",
    ),
    ("sampled zero epsilon", align(epsilon=0, options=GWOptions(gradient="sampled")), "epsilon must be > 0 with"),
    ("negative epsilon", align(epsilon=-1e-3), "epsilon must be .*>= 0"),
    ("gradient", lambda: GWOptions(gradient="full"), "gradient must be one of"),
    ("coarse", lambda: GWOptions(coarse=3), "coarse must be a CoarseOptions or None"),  # type: ignore[arg-type]
    ("one landmark", lambda: CoarseOptions(n_landmarks=1), "n_landmarks must be >= 2"),
    ("no starts", lambda: CoarseOptions(n_starts=0), "n_starts must be >= 1"),
    ("no basins", lambda: CoarseOptions(n_basins=0), "n_basins must be >= 1"),
    ("pairs outside", align(init=np.array([[0, 40]])), r"init must hold pairs of indices below .*, got \(0, 40\)$"),
    ("negative pairs", align(init=np.array([[-1, 0]])), "init must hold pairs of indices below"),
    ("no pairs", align(init=np.empty((0, 2), dtype=int)), "init must hold at least one"),
    ("init of another shape", align(init=np.ones((40, 30))), "init must be a plan of shape"),
    ("negative init", align(init=-np.ones((30, 40))), "init must be finite and non-negative"),
    ("empty init", align(init=np.zeros((30, 40))), "init must be finite and non-negative"),
    ("text init", align(init=np.full((30, 40), "a")), "init must be an array of real numbers"),
    ("NaN epsilon", align(epsilon=float("nan")), "epsilon must be"),
    ("text epsilon", align(epsilon="small"), "epsilon must be a number"),
    ("unknown distances", align(distances="geodesic"), "distances must be one of"),
    ("a ragged init", align(init=[[1], [2, 3]]), "init must have shape|init must be an array"),
    ("pairs between points", align(init=None, supervision=Supervision(pairs=[(0.5, 0)])), r"pairs of indices .*0\.5"),
    ("pairs of three", align(supervision=Supervision(pairs=[(0, 1, 2)])), r"pairs of indices .*shape \(1, 3\)"),
    ("masses whose squares overflow", align(p=np.full(30, 1e200)), "p must have a positive sum within"),
    ("masses whose squares vanish", align(p=np.full(30, 1e-200)), "p must have a positive sum within"),
    ("next to no mass", align(marginals=Partial(1e-20)), "marginals must ask for 1e-09 of the smaller mass"),
    ("an astronomic epsilon", align(epsilon=1e300), "epsilon must be .*<= 1e"),
    ("an astronomic cost", align(cost=np.full((30, 40), 1e300)), "cost must be at most 1e"),
    ("no points beside a cost", align(3, Y, cost=np.ones((30, 40)), alpha=0), "X must be points, .* got int"),
    (
        "an objective of free mass beyond floats",
        align(p=np.full(30, 1e99), q=np.full(40, 1e99), marginals=Unbalanced(1.0, 1.0), gradient_mode=Envelope()),
        "p and q must have sums whose product is at most 1e.150 .* gradients are asked for, got 3e.100 and 4e.100",
    ),
    (
        "rows without a size beside a cost",
        align(SimpleNamespace(rows=None), Y, cost=np.ones((30, 40)), alpha=0),
        "X.size must be an integer, got NoneType",
    ),
    ("text beside a cost", align("a" * 30, Y, cost=np.ones((30, 40)), alpha=0), "X must be points, .* got str"),
    ("a ragged cost alone", align(cost=[[1, 2], [3]], alpha=0), "cost must be a matrix"),
    ("features that are numbers", align(cost=(1, 2), alpha=0), "cost must be a matrix .* or a pair of feature arrays"),
    ("a graph of another size", align(csr_matrix(D), Y, cost=np.ones((9, 40)), alpha=0), "each of the 10 points of X"),
    (
        "an astronomic scale",
        align(options=GWOptions(spaces=SpaceOptions(scale=1e30))),
        "scale must be at most 1e.09 times",
    ),
    ("three distances", align(distances=("auto",) * 3), "distances must be"),
    ("distances by number", align(distances=3), "distances must be one of"),
    ("unknown backend", align(backend="cuda"), "backend must be one of"),
    ("backend that cannot run", align(backend="triton", device="cpu"), "backend 'triton' cannot run"),
    ("unknown device", align(device="abacus"), "device must name a torch device"),
    ("absent device", align(device="cuda:99"), "device 'cuda:99' is not there"),
    ("a device to choose", align(device="auto"), "got 'auto'; leave it out to have one chosen"),
    ("a device by its maker", align(device="hip"), "torch calls AMD's GPUs 'cuda'"),
    ("a forecast for no device", lambda: estimate(30, 40, device="gpu"), "device must name a torch device"),
    ("a forecast for another kind", lambda: estimate(30, 40, device="mps"), "device must be 'cpu' or 'cuda'"),
    ("unsupported device", align(device="meta"), "device must be 'cpu' or 'cuda'"),
    ("device by number", align(device=0), "device must be a string"),
    ("options as a dictionary", align(options={"k": 5}), "options must be a GWOptions"),
    ("marginals as text", align(marginals="balanced"), r"marginals must be a Marginals: Balanced\(\)"),
    ("callback that is none", align(callback=3), "callback must be callable"),
    ("seed as text", align(random_state="zero"), "random_state must be"),
    ("negative seed", align(random_state=-1), "random_state must be"),
    ("a pair by number", lambda: gw_loss(X, Y, return_result=1), "return_result must be True or False"),  # type: ignore[call-overload]
    ("unknown argument", align(espilon=1), "espilon"),
    ("unknown option", lambda: GWOptions(samplng=SamplingOptions()), "samplng"),  # type: ignore[call-arg]
    ("group of the wrong kind", lambda: GWOptions(sampling=SinkhornOptions()), "sampling must be a SamplingOptions"),
    ("mixed precision by number", lambda: GWOptions(mixed_precision=1), "mixed_precision must be True or False"),
    ("no memory", lambda: GWOptions(max_memory=0), "max_memory must be >= 1"),
    ("no anchors", lambda: SamplingOptions(n_anchors=0), "n_anchors must be >= 1"),
    ("fractional anchors", lambda: SamplingOptions(n_anchors=2.5), "n_anchors must be an integer"),
    ("step above one", lambda: SamplingOptions(step=1.5), "step must be"),
    ("no neighbours", lambda: SpaceOptions(k=0), "k must be >= 1"),
    ("k as a truth value", lambda: SpaceOptions(k=True), "k must be an integer"),
    ("one landmark", lambda: SpaceOptions(n_landmarks=1), "n_landmarks must be >= 2"),
    ("no cache", lambda: SpaceOptions(cache_rows=0), "cache_rows must be >= 1"),
    ("hot annealing", lambda: AnnealingOptions(factor=11.0), "factor must be"),
    ("negative annealing", lambda: AnnealingOptions(n_iter=-1), "n_iter must be >= 0"),
    ("no inner iterations", lambda: SinkhornOptions(max_iter=0), "max_iter must be >= 1"),
    ("no tolerance", lambda: SinkhornOptions(tol=0.0), "tol must be"),
    ("relaxation of two", lambda: SinkhornOptions(relaxation=2.0), "relaxation must be"),
    ("no outer iterations", lambda: StoppingOptions(max_iter=0), "max_iter must be >= 1"),
    ("no patience", lambda: StoppingOptions(patience=0), "patience must be >= 1"),
    ("empty average", lambda: StoppingOptions(ema_weight=0.0), "ema_weight must be"),
    ("matrix that is not square", lambda: PrecomputedDistances(np.ones((3, 4))), "D must be a square"),
    ("graph with too few landmarks", lambda: LandmarkDistances(csr_matrix(D), 1), "n_landmarks must be >= 2"),
    ("dense tensor of edges", lambda: DijkstraDistances(torch.ones(3, 3)), "graph must be a SciPy sparse graph"),
    ("provider without cache", lambda: DijkstraDistances(csr_matrix(D), 0), "cache_rows must be >= 1"),
    ("points with NaN", lambda: EuclideanDistances(edited(X, 3, 1, np.nan)), "points must be finite"),
    ("squared by number", lambda: EuclideanDistances(X, squared=2), "squared must be True or False"),  # type: ignore[arg-type]
    ("too few samples", lambda: make_spiral(1), "n must be >= 2"),
    ("negative noise", lambda: make_swiss_roll(10, noise=-1), "noise must be"),
    ("torch generator for a data set", lambda: make_spiral(10, random_state=torch.Generator()), "random_state must be"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input_is_refused_at_once_and_named(call: Any, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises((ValueError, TypeError), match=message):
        call()
    assert time.perf_counter() - began < 1.0


EVEN, AT = np.ones((12, 12)), np.arange(12)[:, None]
GIVEN: dict[str, dict[str, Any]] = {
    "complex cost": {"cost": EVEN * 1j},
    "sparse cost": {"cost": csr_matrix(EVEN)},
    "cost of a hidden entry": {"cost": np.ma.masked_array(EVEN, AT + 12 * AT.T == 3 + 12 * 9)},
    "cost of another size": {"cost": EVEN[1:, 1:]},
    "cost in a tensor on no device": {"cost": torch.ones(12, 12, device="meta")},
    "three features": {"cost": (EVEN, EVEN, EVEN)},
    "sparse features": {"cost": (csr_matrix(EVEN), EVEN)},
    "hidden features": {"cost": (EVEN, np.ma.masked_array(EVEN, AT + 12 * AT.T == 5))},
    "fewer features": {"cost": torchgw.FeatureCost(EVEN, EVEN[1:])},
    "features of other columns": {"cost": (EVEN, EVEN[:, 1:])},
    "zero features": {"cost": torchgw.FeatureCost(np.where(AT == 9, 0.0, EVEN), EVEN, "cosine")},
    "pair forbidden": {"supervision": Supervision(pairs=[(9, 3)], forbidden=[(2, 2), (9, 3)])},
    "pair of no point": {"supervision": Supervision(pairs=[(9, 12)])},
    "half a pair": {"supervision": Supervision(forbidden=[(9, 3.5)])},
    "labels of fewer": {"supervision": Supervision(labels=(np.arange(11), np.arange(12)))},
    "row of a mask": {"supervision": Supervision(mask=np.where(AT == 9, 0.0, EVEN))},
    "column of a mask": {"supervision": Supervision(mask=csr_matrix(np.where(AT.T == 9, 0.0, EVEN)))},
    "mask of another size": {"supervision": Supervision(mask=EVEN[1:])},
    "hidden mask": {"supervision": Supervision(mask=np.ma.masked_array(EVEN, np.eye(12)))},
    **{
        f"{bad} in {what} of {who}": {"cost": cost}
        for bad in (np.nan, np.inf, -1e300)
        for who, place in (("a point with mass", 9), ("one without", 0))
        for what, cost in (("the cost", edited(EVEN, place, 3, bad)), ("features", (EVEN, edited(EVEN, place, 3, bad))))
    },
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("alpha", [None, 0.0])
def test_what_is_given_is_refused_alike_whatever_has_mass(name: str, alpha: float | None) -> None:
    some = np.ones(12)
    some[0] = 0.0
    said = set()
    for p, q in ((None, None), (some, some)):
        with pytest.raises((ValueError, TypeError)) as caught:
            gw_align(X[:12], Y[:12], p=p, q=q, alpha=alpha, distances="euclidean", **GIVEN[name])
        said.add((caught.type, str(caught.value)))
    assert len(said) == 1


@pytest.mark.parametrize(
    ("epsilon", "options", "advice"),
    [
        (1e-3, GWOptions(max_memory=10**6, strategy="dense"), "streaming"),
        (0.0, GWOptions(max_memory=10**6, strategy="dense"), "streaming"),
    ],
)
def test_a_dense_solve_over_the_memory_limit_is_refused_before_any_work(
    epsilon: float, options: GWOptions, advice: str
) -> None:
    big = np.random.default_rng(0).normal(size=(4000, 2))
    began = time.perf_counter()
    with pytest.raises(MemoryError, match=f"{advice}.*max_memory"):
        gw_align(big, big, epsilon=epsilon, options=options)
    assert time.perf_counter() - began < 1.0


def test_a_distance_matrix_over_the_memory_limit_is_refused_before_any_work() -> None:
    with pytest.raises(MemoryError, match=r"distance matrix of X .* use distances='landmark'"):
        gw_align(np.zeros((2000, 2)), Y, distances="precomputed", options=GWOptions(max_memory=20 * 10**6))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_single_bad_entry_anywhere_is_found(bad: float, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(8, 20), st.integers(1, 4)))
    points = data.draw(arrays(np.float64, shape, elements=st.floats(-1e6, 1e6)))
    points[data.draw(st.integers(0, shape[0] - 1)), data.draw(st.integers(0, shape[1] - 1))] = bad
    with pytest.raises(ValueError, match="Y must be finite"):
        gw_align(X, points, distances="euclidean")


@given(shape=st.lists(st.integers(0, 5), max_size=4).filter(lambda s: len(s) != 2))
@settings(max_examples=20, deadline=None)
def test_any_number_of_dimensions_but_two_is_refused(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="X must have shape"):
        torchgw.EuclideanDistances(np.zeros(shape), name="X")


@pytest.mark.parametrize("size", [1e-300, 1e305, 1.7e308])
def test_a_plan_to_begin_with_may_be_of_any_size(size: float) -> None:
    plan = np.random.default_rng(0).uniform(0.5, 1.0, (6, 7))
    keywords: dict[str, Any] = {"distances": "euclidean", "epsilon": 0.05, "random_state": 0}
    expected = gw_align(X[:6], Y[:7], init=plan, **keywords).plan
    found = gw_align(X[:6], Y[:7], init=plan * size, **keywords).plan
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("epsilon", [2e-8, 1e-12, 1e-300])
@pytest.mark.parametrize("mode", [None, Envelope(), Implicit()])
@pytest.mark.parametrize("strategy", ["dense", "streaming", "low-rank"])
def test_an_epsilon_beyond_float64_is_refused_at_once(epsilon: float, mode: Any, strategy: str) -> None:
    if mode is not None and strategy != "dense":
        return
    options = GWOptions(strategy=strategy, low_rank=LowRankOptions(rank=3))
    began = time.perf_counter()
    with pytest.raises(FloatingPointError, match=r"epsilon = .* too small for .*: .*; raise epsilon"):
        gw_align(X, Y, epsilon=epsilon, options=options, gradient_mode=mode, distances="landmark")
    with pytest.raises(FloatingPointError, match="raise epsilon"):
        gw_align(X, Y, epsilon=epsilon, marginals=torchgw.Unbalanced(1.0, 1.0))
    assert time.perf_counter() - began < 1.0


def test_an_epsilon_is_small_or_not_beside_the_scale_of_distances() -> None:
    options = GWOptions(spaces=SpaceOptions(scale=1e6), coarse=None)
    result = gw_align(X, Y, distances="euclidean", epsilon=1e-12, options=options, random_state=0)
    assert result.converged
    with pytest.raises(FloatingPointError, match="raise epsilon"):
        gw_align(EuclideanDistances(X).with_scale(1e-3), Y, epsilon=1e-3)


def test_a_graph_beside_a_cost_alone_counts_its_points_only() -> None:
    cost = np.random.default_rng(0).uniform(size=(10, 40))
    result = gw_align(csr_matrix(D), Y, cost=cost, alpha=0, epsilon=1e-2)
    assert np.array_equal(result.plan, gw_align(None, None, cost=cost, alpha=0, epsilon=1e-2).plan)


MODELS = [torchgw.Balanced(), torchgw.SemiRelaxed(0.1), torchgw.Unbalanced(1.0, 1e6), torchgw.Partial(0.5)]


@pytest.mark.parametrize("marginals", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("strategy", ["auto", "dense", "streaming", "low-rank"])
@pytest.mark.parametrize("mode", [None, Envelope()])
@pytest.mark.parametrize("more", ["", "cost", "kl", "sampled", "little memory"])
def test_a_remedy_for_a_small_epsilon_is_one_that_is_taken(
    marginals: Any, strategy: str, mode: Any, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begun(Exception):  # noqa: N818
        pass

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(align_module, "make_providers", begin)
    options = GWOptions(
        strategy=strategy,
        low_rank=LowRankOptions(rank=3),
        loss="kl" if more == "kl" else "square",
        gradient="sampled" if more == "sampled" else "auto",
        max_memory=20 * 30 * 40 if more == "little memory" else 2**30,
    )
    keywords: dict[str, Any] = {
        "options": options,
        "marginals": marginals,
        "gradient_mode": mode,
        "cost": (X, X[:, :2].repeat(2, 0)[:40]) if more == "cost" else None,
        "distances": "landmark",
    }

    def outcome(epsilon: float, **changed: Any) -> BaseException:
        with pytest.raises((Begun, ValueError, MemoryError, FloatingPointError)) as caught:
            gw_align(X, Y, epsilon=epsilon, **keywords | changed)
        return caught.value

    refused = outcome(1e-32)
    if isinstance(refused, FloatingPointError):
        assert isinstance(outcome(1e-2), Begun)
        assert ("epsilon=0" in str(refused)) == isinstance(outcome(0), Begun)
        # What distances and costs are beside epsilon, no weight of a divergence changes.
        assert "weights" not in str(refused)
        if isinstance(marginals, torchgw.Unbalanced):
            assert isinstance(outcome(1e-32, marginals=torchgw.Unbalanced(1e-3, 1e-3)), FloatingPointError)
    else:
        assert not isinstance(refused, Begun)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_negative_distances_of_rounding_are_zeros_and_larger_ones_are_refused(dtype: Any) -> None:
    D = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0))).astype(dtype)
    D[0, 1] = D[1, 0] = -4 * np.finfo(dtype).eps
    assert torchgw.validate.distance_matrix("D", D)[0, 1] == 0
    assert D[0, 1] < 0
    D[0, 1] = D[1, 0] = -1e-3
    with pytest.raises(ValueError, match=r"np.maximum\(D, 0\) mends rounding"):
        torchgw.validate.distance_matrix("D", D)


def test_a_graph_without_edges_has_no_paths() -> None:
    with pytest.raises(ValueError, match="X must have edges, got a graph of 8 nodes"):
        torchgw.gw_align(csr_matrix((8, 8)), np.eye(8))


def test_cosine_distances_are_told_how_to_be_given() -> None:
    with pytest.raises(ValueError, match="normalised rows and distances='euclidean'"):
        torchgw.gw_align(np.eye(4)[:, :3], np.eye(4)[:, :3], distances="cosine")


OBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "Trimesh": (
        {"vertices": X, "faces": [], "edges": []},
        "a mesh, Trimesh; X.vertices are its points; .*edges of its",
    ),
    "TriangleMesh": ({"vertices": X, "triangles": []}, "a mesh, .*numpy.asarray\\(X.vertices\\)"),
    "PolyData": ({"points": X, "faces": []}, "a mesh, .*numpy.asarray\\(X.points\\)"),
    "InMemoryMesh": ({"coordinates": X, "faces": []}, "a mesh, .*X.coordinates"),
    "PointCloud": ({"points": X}, "a cloud of points, .*numpy.asarray\\(X.points\\)"),
    "AnnData": ({"obsm": {}}, "cells, AnnData; torchgw.anndata.align"),
    "Graph": ({"get_adjacency_sparse": None, "vs": []}, "a graph of igraph, .*X.get_adjacency_sparse\\(\\)"),
    "Data": ({"edge_index": [], "x": X}, "a graph of torch_geometric, .*to_scipy_sparse_matrix\\(X.edge_index"),
}


@pytest.mark.parametrize("distances", ["auto", "adjacency", "euclidean"])
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_other_packages_are_called_what_they_are(name: str, distances: str) -> None:
    members, message = OBJECTS[name]
    space = type(name, (), members)()
    with pytest.raises(TypeError, match=f"X must be .*, got {message}"):
        gw_align(space, Y, distances=distances)
    with pytest.raises(TypeError, match=r"spaces\[0\] must be .*, got "):
        torchgw.gw_pairwise([space, Y], distances=distances)


def test_tables_are_arrays_whatever_their_columns_are_called() -> None:
    pandas = pytest.importorskip("pandas")
    tables = [pandas.DataFrame(X[:6, :2], columns=names) for names in (["rows", "edges"], ["obsm", "vertices"])]
    assert gw_align(*tables, distances="euclidean", epsilon=0, random_state=0).value == pytest.approx(0, abs=1e-12)
