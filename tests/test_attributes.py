"""Features and labels by name and as texts: however they are given, a solve sees the numbers that they stand for."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import torchgw
from torchgw import FeatureCost, GWOptions, Supervision, epsilon_path, gw_align, resume
from torchgw.request.attributes import drop_named_columns, encode_attributes

anndata = pytest.importorskip("anndata")
pytestmark = pytest.mark.filterwarnings("ignore::torchgw.types.TorchGWWarning")

N, K = 12, 14
RNG = np.random.default_rng(0)
KIND_X, KIND_Y = list("abcabcabcabc"), list("bcdbcdbcdbcdbc")  # each side lacks a category of the other
SIZE_X, SIZE_Y = RNG.normal(size=N), RNG.normal(size=K)
PLACE_X, PLACE_Y = RNG.normal(size=(N, 2)), RNG.normal(size=(K, 2))
LIMIT = 2**20
KINDS = (KIND_X, KIND_Y)


def one_hot(kinds: list[str]) -> np.ndarray[Any, Any]:
    return (np.array(kinds)[:, None] == np.array(list("abcd"))).astype(np.float64)


def graph(kinds: list[str], sizes: Any, places: Any, offset: int = 0) -> nx.Graph:
    made = nx.relabel_nodes(nx.cycle_graph(len(kinds)), lambda i: f"node {i + offset}")
    for node, kind, size, place in zip(list(made), kinds, sizes, places, strict=True):
        made.nodes[node].update(kind=kind, size=float(size), place=tuple(place), other=kind)
    return made


def table(kinds: list[str], sizes: Any, places: Any) -> pd.DataFrame:
    made = pd.DataFrame(places, columns=["u", "v"])
    return made.assign(kind=kinds, size=sizes, other=pd.Categorical(kinds))


SIDES = ((KIND_X, SIZE_X, PLACE_X), (KIND_Y, SIZE_Y, PLACE_Y))
GRAPHS, TABLES = tuple(graph(*side) for side in SIDES), tuple(table(*side) for side in SIDES)
ARRAYS = (PLACE_X, PLACE_Y)
HOT, SIZES = (one_hot(KIND_X), one_hot(KIND_Y)), (SIZE_X[:, None], SIZE_Y[:, None])
BOTH = tuple(np.hstack(sides) for sides in zip(HOT, SIZES, strict=True))
OBJECTS = tuple(np.array(list(zip(kind, size, strict=True)), dtype=object) for kind, size, _ in SIDES)

# Points, what is given as the cost, and the features that it stands for.
FEATURES: dict[str, tuple[Any, Any, Any]] = {
    "texts of nodes": (GRAPHS, "kind", HOT),
    "texts of columns": (TABLES, "kind", HOT),
    "categories of columns": (TABLES, "other", HOT),
    "numbers of nodes": (GRAPHS, "size", SIZES),
    "vectors of nodes": (GRAPHS, "place", ARRAYS),
    "several": (GRAPHS, ["kind", "size"], BOTH),
    "several columns": (TABLES, ["kind", "size"], BOTH),
    "a name each": (GRAPHS, ("kind", "other"), HOT),
    "names each": (GRAPHS, (["kind", "size"], ["other", "size"]), BOTH),
    "a graph and a table": ((GRAPHS[0], TABLES[1]), "kind", HOT),
    "a name and an array": (GRAPHS, ("kind", np.array(KIND_Y)), HOT),
    "numbers by name and in an array": (GRAPHS, ("size", SIZES[1]), SIZES),
    "arrays of texts": (ARRAYS, (np.array(KIND_X), np.array(KIND_Y)), HOT),
    "columns of texts": (ARRAYS, (pd.Series(KIND_X), pd.Series(KIND_Y, dtype="string")), HOT),
    "categories": (ARRAYS, (pd.Categorical(KIND_X), pd.Categorical(KIND_Y)), HOT),
    "tables": (ARRAYS, tuple(each[["kind", "size"]] for each in TABLES), BOTH),
    "tables in another order": (ARRAYS, (TABLES[0][["kind", "size"]], TABLES[1][["size", "kind"]]), BOTH),
    "objects": (ARRAYS, OBJECTS, BOTH),
}


def squared(x: Any, y: Any) -> Any:
    return ((np.asarray(x)[:, None] - np.asarray(y)[None]) ** 2).sum(2)


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_the_numbers_that_they_stand_for(name: str) -> None:
    """By distances of all pairs, which the order of columns does not change."""
    points, cost, expected = FEATURES[name]
    for given in (cost, FeatureCost(*(cost if isinstance(cost, tuple) else (cost, cost)), metric="cosine")):
        found, _ = encode_attributes(points, given, None, LIMIT)
        x, y = (found.X, found.Y) if isinstance(given, FeatureCost) else found
        np.testing.assert_allclose(squared(x, y), squared(*expected))


def test_tables_of_numbers_are_compared_by_their_titles() -> None:
    (x, y), _ = encode_attributes(ARRAYS, (TABLES[0][["u", "size"]], TABLES[1][["size", "u"]]), None, LIMIT)
    assert [*x.columns] == [*y.columns] == ["u", "size"]


def test_numbers_are_passed_on_as_they_are_given() -> None:
    """So that gradients flow to tensors, and errors of arrays name these."""
    leaf = torch.ones(N, 1, requires_grad=True)
    frames = tuple(each[["u", "v"]] for each in TABLES)
    labels = np.arange(N), np.arange(K)
    rules = Supervision(labels=labels)
    for cost in (None, np.ones((N, K)), (leaf, SIZES[1]), frames, FeatureCost(*SIZES), (1, 2, 3), (None, 3)):
        assert encode_attributes(ARRAYS, cost, rules, LIMIT) == (cost, rules)
        assert encode_attributes(ARRAYS, cost, rules, LIMIT)[0] is cost


# Points, and what is given as their labels.
LABELS: dict[str, tuple[Any, Any]] = {
    "name": (GRAPHS, "kind"),
    "name of columns": (TABLES, "kind"),
    "a name each": (GRAPHS, ("kind", "other")),
    "lists": (ARRAYS, (KIND_X, KIND_Y)),
    "arrays": (ARRAYS, (np.array(KIND_X), np.array(KIND_Y, dtype=object))),
    "columns": (ARRAYS, (pd.Series(KIND_X), pd.Series(KIND_Y, dtype="string"))),
    "categories": (ARRAYS, (pd.Categorical(KIND_X), pd.Series(KIND_Y, dtype="category"))),
    "a name and a list": (GRAPHS, ("kind", KIND_Y)),
    "tuples of nodes": (
        tuple(nx.from_edgelist([("hub", i) for i in range(len(kinds) - 1)]) for kinds in (KIND_X, KIND_Y)),
        "pair",
    ),
    "integers of pandas": (ARRAYS, tuple(pd.array([ord(kind) for kind in kinds], "Int64") for kinds in KINDS)),
    "numbers of which some are missing": (
        ARRAYS,
        tuple(np.r_[["abcd".index(kind) for kind in side[:-1]], np.nan] for side in (KIND_X, KIND_Y)),
    ),
}
for graph_of, kinds in zip(LABELS["tuples of nodes"][0], KINDS, strict=True):
    for node, kind in zip(graph_of, kinds, strict=True):
        graph_of.nodes[node]["pair"] = (kind, 1)


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_codes_of_both_sides(name: str) -> None:
    points, labels = LABELS[name]
    x, y = encode_attributes(points, None, Supervision(labels=labels), LIMIT)[1].labels  # type: ignore[union-attr, misc]
    some, other = slice(0, len(x) - (x[-1] < 0)), slice(0, len(y) - (y[-1] < 0))
    same = np.array(KIND_X)[:, None] == np.array(KIND_Y)
    np.testing.assert_array_equal((x[:, None] == y)[some, other], same[some, other])


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA, np.ma.masked])
def test_points_may_have_no_label(nothing: Any) -> None:
    labels = ([nothing, "a", "b"], pd.Series(["b", nothing, "a"], dtype=object))
    x, y = encode_attributes((None, None), None, Supervision(labels=labels), LIMIT)[1].labels  # type: ignore[union-attr, misc]
    assert x[0] == y[1] == -1
    assert x[1] == y[2] >= 0 <= x[2] == y[0] != x[1]


def test_labels_that_are_missing_are_none_in_each_kind_of_array() -> None:
    for one, other in (
        (pd.array([1, None, 2], dtype="Int64"), [2, 1, 2]),
        (pd.Series([1, None, 2], dtype="Int64"), [2, 1, 2]),
        (np.ma.array(["a", "b", "b"], mask=[0, 1, 0]), ["b", "a", "b"]),
    ):
        rules = encode_attributes((None, None), None, Supervision(labels=(one, other)), LIMIT)[1]
        x, y = rules.labels  # type: ignore[union-attr, misc]
        assert x[1] == -1
        assert x[0] == y[1] != x[2] == y[0]


def test_columns_that_are_named_are_no_coordinates() -> None:
    x, y = drop_named_columns(TABLES, ("kind", ["other", "size"]), Supervision(labels=("other", "kind")))
    assert [*x.columns] == ["u", "v", "size"]
    assert [*y.columns] == ["u", "v"]
    assert drop_named_columns(GRAPHS, "kind", None) == GRAPHS
    assert drop_named_columns(TABLES, None, None) == TABLES
    assert drop_named_columns(TABLES, None, Supervision(labels=(["u"] * N, ["u"] * K))) == TABLES


TITLED_TWICE = pd.DataFrame(np.ones((N, 2)), columns=["a", "a"])
LEVELS = pd.DataFrame(np.ones((N, 2)), columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]))
NUMBERED = pd.DataFrame(np.ones((N, 2)))
WHOLE, UNEVEN, LISTS, LONG = (nx.relabel_nodes(nx.cycle_graph(3), str) for _ in range(4))
for i, node in enumerate(WHOLE):
    WHOLE.nodes[node]["it"], LONG.nodes[node]["it"] = 2**60 + i, 10**400
    UNEVEN.nodes[node]["it"], LISTS.nodes[node]["it"] = [1.0] * i, [[2**60 + i], [1]][i % 2]
LACKING = graph(*SIDES[1])
for gap in ("node 3", "node 5"):
    del LACKING.nodes[gap]["kind"]
REFUSED: dict[str, tuple[Any, Any, Any, str]] = {
    "no such attribute": (GRAPHS, "colour", None, "node attribute of X, got 'colour'; it has 'kind', 'other', 'place'"),
    "no such column": (TABLES, "colour", None, "name a column of X, got 'colour'; it has 'u', 'v', 'kind', 'size'"),
    "no attributes": (ARRAYS, "kind", None, "cost names 'kind', which a networkx graph or a table .* got ndarray"),
    "nodes without it": (
        (GRAPHS[0], LACKING),
        "kind",
        None,
        "of Y, got none in 'kind' for 2 of 14: 'node 3', 'node 5'",
    ),
    "gaps": (TABLES, (TABLES[0].kind, TABLES[1].kind.mask(TABLES[1].index == 7)), None, "1 of 14: 7; fill them in"),
    "texts and numbers": (GRAPHS, ("kind", "size"), None, "1 columns of texts among 1 for X and 0 .* among 1 for Y"),
    "texts and an array": (
        GRAPHS,
        ("kind", SIZES[1]),
        None,
        "1 columns of texts among 1 for X and numbers alone for Y",
    ),
    "mixed": (ARRAYS, (np.array(["a", 1.0], object), np.array(["a"])), None, "in column 0, got float '1.0' among 2"),
    "a list of texts": (GRAPHS, (KIND_X, KIND_Y), None, "got 'a'; .* texts themselves go as an array"),
    "labels of nothing": (GRAPHS, None, "colour", "supervision.labels must name a node attribute of X, got 'colour'"),
    "a title of two columns": ((TITLED_TWICE,) * 2, "a", None, "name one column of X, got 'a', which 2 columns have"),
    "a title of a level": ((LEVELS,) * 2, "a", None, "name one column of X, got 'a', which 2 columns have"),
    "a title that is a number": ((NUMBERED,) * 2, "0", None, "got '0'; it has 0, 1, and texts"),
    "integers that would be rounded": ((WHOLE,) * 2, "it", None, "of X must have integers of at most 9.* got 1.15292e"),
    "integers beyond float64": ((LONG,) * 2, "it", None, r"of X must have integers of at most 9.* got 1.00000e\+400"),
    "integers of lists": ((LISTS,) * 2, "it", None, "of X must have integers of at most 9.* got 1.15292e"),
    "lists of different lengths": ((UNEVEN,) * 2, "it", None, r"lists of as many numbers in 'it', got list '\[\]'"),
    "labels of lists": ((UNEVEN,) * 2, None, "it", "labels of X must hold texts, numbers .* got a list"),
    "labels in a table": (
        ARRAYS,
        None,
        (np.array([["a"]] * N), KIND_Y),
        r"one label for each point, got shape \(12, 1",
    ),
    "labels apart": (GRAPHS, None, (["p"] * N, ["q"] * K), "labels in common, got such as 'p' for X and 'q' for Y"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_compare_is_refused(name: str) -> None:
    points, cost, labels, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        encode_attributes(points, cost, None if labels is None else Supervision(labels=labels), LIMIT)


def test_columns_that_name_single_points_are_refused_before_they_are_made() -> None:
    ids = [f"id {i}" for i in range(1000)]
    with pytest.raises(MemoryError, match=r"2000 categories would take .* leave out columns that name single points"):
        encode_attributes((None, None), (np.array(ids), np.char.add(ids, "'")), None, LIMIT)


def aligned(X: Any, Y: Any, **more: Any) -> Any:
    return gw_align(X, Y, epsilon=1e-2, options=GWOptions(coarse=None), random_state=0, **more)


def test_a_solve_by_names_is_that_of_the_numbers() -> None:
    """Of graphs and of tables; points without mass lose their features too."""
    p = np.r_[np.zeros(2), np.ones(N - 2)] / (N - 2)
    codes = tuple(one_hot(side).argmax(1) for side in (KIND_X, KIND_Y))
    named = aligned(
        *GRAPHS, distances="adjacency", p=p, cost=["kind", "size"], supervision=Supervision(labels="kind", strength=0.1)
    )
    plain = aligned(*GRAPHS, distances="adjacency", p=p, cost=BOTH, supervision=Supervision(labels=codes, strength=0.1))
    np.testing.assert_allclose(np.asarray(named.plan), np.asarray(plain.plan), atol=1e-6)
    named = aligned(*(each[["u", "v", "kind"]] for each in TABLES), distances="euclidean", p=p, cost="kind")
    plain = aligned(*ARRAYS, distances="euclidean", p=p, cost=HOT)
    np.testing.assert_allclose(np.asarray(named.plan), np.asarray(plain.plan), atol=1e-6)


def test_a_path_and_a_checkpoint_keep_what_is_named(tmp_path: Any) -> None:
    common = {"distances": "adjacency", "cost": "kind", "supervision": Supervision(labels="kind"), "random_state": 0}
    path = epsilon_path(*GRAPHS, epsilons=[0.05, 0.02], **common)
    assert [*path.best.names_y][:2] == ["node 0", "node 1"]
    result = gw_align(*GRAPHS, **common, checkpoint=tmp_path / "kept")
    assert resume(tmp_path / "kept").value == pytest.approx(result.value)


def test_cells_are_aligned_by_columns_of_obs() -> None:
    a, b = (
        anndata.AnnData(places, obs=pd.DataFrame({"kind": kinds}, index=[f"cell {i}" for i in range(len(kinds))]))
        for kinds, _, places in SIDES
    )
    common = {"distances": "euclidean", "epsilon": 1e-2, "random_state": 0}
    found = torchgw.anndata.align(a, b, cost="kind", supervision=Supervision(labels="kind"), **common)
    codes = tuple(one_hot(side).argmax(1) for side in (KIND_X, KIND_Y))
    plain = torchgw.anndata.align(a, b, cost=HOT, supervision=Supervision(labels=codes), **common)
    np.testing.assert_allclose(np.asarray(found.plan), np.asarray(plain.plan), atol=1e-6)
    with pytest.raises(ValueError, match=r"cost must name a column of a\.obs, got 'day'; it has 'kind'"):
        torchgw.anndata.align(a, b, cost="day", **common)


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, pd.Categorical])
@pytest.mark.parametrize("way", ["push", "pull"])
def test_labels_travel_where_most_of_their_mass_goes(kind: Any, way: str) -> None:
    """As the shares of one-hot rows say; points without mass, and those that labelled ones send none, get none."""
    p = np.r_[0.0, np.ones(N - 1)] / (N - 1)
    result = aligned(*ARRAYS, distances="euclidean", p=p)
    names = [*(KIND_X if way == "push" else KIND_Y)]
    names[2] = None
    known = [name for name in dict.fromkeys(names) if name is not None]
    shares = getattr(result, way)(np.array(names, dtype=object)[:, None] == np.array(known, dtype=object))
    expected = [None if np.isnan(row).any() else known[row.argmax()] for row in shares]
    assert getattr(result, way)(kind(names)).tolist() == expected
    assert (None in expected) == (way == "pull")


def test_categories_that_are_numbers_travel_as_labels() -> None:
    result = aligned(*ARRAYS, distances="euclidean")
    codes = ["abcd".index(kind) for kind in KIND_X]
    expected = [int("abcd".index(kind)) for kind in result.push(KIND_X)]
    for given in (pd.Categorical(codes), pd.Series(codes, dtype="category")):
        assert result.push(given).tolist() == expected
    assert all(type(label) is str for label in result.push(np.array(KIND_X)))


@pytest.mark.parametrize("values", [[None] * N, [1.0, "a"] * 6, [b"a"] * N, list("ab")])
def test_what_is_neither_numbers_nor_labels_does_not_travel(values: list[Any]) -> None:
    result = aligned(*ARRAYS, distances="euclidean")
    with pytest.raises((TypeError, ValueError), match=r"V must h(old real numbers, or labels|ave shape \(12,\))"):
        result.push(np.array(values, dtype=object))


def test_columns_of_texts_among_coordinates_are_named() -> None:
    with pytest.raises(TypeError, match=r"or leave out 'kind', 'other', which cost= or labels= compare by name"):
        gw_align(*TABLES, distances="euclidean")
    with pytest.raises(TypeError, match=r"or leave out 'kind', .* by name; set_index\('kind'\) takes it for names of"):
        gw_align(*(table.drop(columns="other") for table in TABLES), distances="euclidean")
