"""Features and labels of points that are given by name, or as texts: in numbers, the same for both spaces.

A name stands for an attribute of the nodes of a networkx graph, or for a column of a table. Numbers stay as they are.
Texts and categories get a code each, in the union of both sides. As features they are one-hot, so that the squared
distance of two different ones is 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

from torchgw import validate
from torchgw.objective.features import FeatureCost, features_of
from torchgw.objective.supervision import UNLABELLED, Supervision
from torchgw.request.objective import convert_list_to_pair
from torchgw.types import Array, is_table

LISTED = 5  # points or attributes in an error
SPACES = ("X", "Y")


def replace_attributes(
    X: Any, Y: Any, cost: Any, supervision: Any, limit: int
) -> tuple[Any, Any, Any, Supervision | None]:
    """Both spaces without columns that a cost or labels name; cost and rules as `encode_attributes` returns them."""
    if supervision is not None:
        example = "; for example Supervision(pairs=[(0, 3), (10, 7)])"
        validate.instance("supervision", supervision, Supervision, example)
    cost = convert_list_to_pair(cost)
    x, y = drop_named_columns((X, Y), cost, supervision)
    return x, y, *encode_attributes((X, Y), cost, supervision, limit)


def encode_attributes(
    points: tuple[Any, Any], cost: Any, supervision: Supervision | None, limit: int, spaces: tuple[str, str] = SPACES
) -> tuple[Any, Supervision | None]:
    """A linear cost and rules without names of attributes and without texts; what has neither is returned as it is.

    Parameters
    ----------
    points : both spaces, or tables of them, whose attributes are named.
    cost, supervision : as `torchgw.gw_align` takes them.
    limit : bytes that columns may take.
    spaces : what errors call the two spaces.

    Raises
    ------
    ValueError, TypeError
        For names that a space does not have, points that lack a feature, and features or labels that do not compare.
    MemoryError
        For more categories than the limit has room for.
    """
    if (features := _sides(cost)) is not None:
        made = _features(features, points, limit, spaces)
        if made is not features or features_of(cost) is None:
            cost = replace(cost, X=made[0], Y=made[1]) if isinstance(cost, FeatureCost) else made
    if isinstance(supervision, Supervision) and supervision.labels is not None:
        codes = _labels(_pair_of_labels(supervision), points, spaces)
        supervision = supervision if codes is None else replace(supervision, labels=codes)
    return cost, supervision


def drop_named_columns(points: tuple[Any, Any], cost: Any, supervision: Supervision | None) -> tuple[Any, Any]:
    """Both spaces; tables without the columns that a cost or labels name."""
    features, labels = _sides(cost), _pair_of_labels(supervision)
    found = list[Any]()
    for side, table in enumerate(points):
        names = set() if features is None else {*(_names(features[side]) or ())}
        if labels is not None and isinstance(labels[side], str):  # a list of texts has the labels themselves
            names.add(labels[side])
        if names and is_table(table):
            table = table[[column for column in table.columns if column not in names]]
            if not len(table.columns):
                raise ValueError(
                    f"{SPACES[side]} must have coordinates beside the columns that cost= and labels= name, got "
                    f"{_quote_some(sorted(names))} alone; features that are coordinates too go as arrays: "
                    f"cost=(X.to_numpy(), Y.to_numpy())"
                )
        found.append(table)
    return found[0], found[1]


def _sides(given: Any) -> tuple[Any, Any] | None:
    """What is given for the points of X and of Y; names alone are for both. None of all else."""
    names = _names(given)
    found = (names, names) if names is not None else features_of(given)
    return (found[0], found[1]) if found is not None and len(found) == 2 else None


def _pair_of_labels(supervision: Supervision | None) -> Any:
    """The labels of X and of Y; a name alone is for both."""
    labels = None if supervision is None else supervision.labels
    return (labels, labels) if isinstance(labels, str) else labels


def _names(given: Any) -> list[str] | None:
    """The attributes that a text or a list of texts names; None of all else."""
    if isinstance(given, str):
        return [given]
    named = isinstance(given, list) and bool(given) and all(isinstance(name, str) for name in given)
    return list(given) if named else None


def _attribute(argument: str, name: str, space: str, points: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """The values (N,) of an attribute, None where a node lacks it, and what the points are called."""
    if validate.is_networkx(points):
        nodes = list(points)
        known = sorted({key for _, data in points.nodes(data=True) for key in data}, key=str)
        if any(name in data for _, data in points.nodes(data=True)):
            return [data.get(name) for _, data in points.nodes(data=True)], nodes
        what = "a node attribute"
    elif is_table(points):
        known, what = list(points.columns), "a column"
        many = known.count(name) or sum(isinstance(title, tuple) and name in title[:1] for title in known)
        if many > 1:
            raise ValueError(f"{argument} must name one column of {space}, got {name!r}, which {many} columns have")
        if name in points.columns:
            return points[name], getattr(points, "index", range(len(points)))
    else:
        raise TypeError(
            f"{argument} names {name!r}, which a networkx graph or a table could have as {space}, got "
            f"{type(points).__name__}; give arrays, one for each space: (values of X, values of Y)"
        )
    raise ValueError(
        f"{argument} must name {what} of {space}, got {name!r}; it has {_quote_some(known)}, and texts themselves go "
        f"as an array"
    )


def _features(given: tuple[Any, Any], points: tuple[Any, Any], limit: int, spaces: tuple[str, str]) -> tuple[Any, ...]:
    """Features (N, d), (K, d) in numbers; those of arrays and tables of numbers as they are given."""
    if all(map(is_table, given)) and len(given[0].columns) == len(given[1].columns):
        titles, others = (list(table.columns) for table in given)
        if titles != others and len({*titles}) == len(titles) and {*titles} == {*others}:
            given = (given[0], given[1][titles])  # by name
    sides = [_columns(side, *each) for side, each in zip(given, zip(spaces, points, strict=True), strict=True)]
    if sides == [None, None]:
        return given
    texts = [[] if side is None else [column.dtype == object for column in side] for side in sides]
    if texts[0] != texts[1] and (any(texts[0]) or any(texts[1])):
        said = [f"{sum(each)} columns of texts among {len(each)}" if each else "numbers alone" for each in texts]
        raise ValueError(
            f"cost features must have numbers or texts in the same columns of both spaces, got {said[0]} for "
            f"{spaces[0]} and {said[1]} for {spaces[1]}"
        )
    made: list[list[Array]] = [[] if side is None else list(side) for side in sides]
    for at, is_text in enumerate(texts[0]):
        if is_text:
            codes, count = _codes((made[0][at], made[1][at]))
            validate.memory(
                f"cost features of {count} categories",
                8 * count * sum(map(len, codes)),
                limit,
                "leave out columns that name single points",
            )
            for side, own in zip(made, codes, strict=True):
                side[at] = (own[:, None] == np.arange(count)).astype(np.float64)
    x, y = (
        raw if side is None else np.column_stack(columns) for raw, side, columns in zip(given, sides, made, strict=True)
    )
    return x, y


def _columns(given: Any, space: str, points: Any) -> list[Array] | None:
    """The columns of features, numbers (N,) or (N, d) in float64 and texts (N,) as objects; None of what holds numbers
    alone and was not named."""
    names = _names(given)
    if names is not None:
        return [_column(space, repr(name), *_attribute("cost", name, space, points)) for name in names]
    if is_table(given):
        index = getattr(given, "index", range(len(given)))
        titles = list(given.columns)
        if len({*titles}) < len(titles) or all(_is_number(given[title]) for title in titles):
            return None
        return [_column(space, repr(title), given[title], index) for title in titles]
    if not _holds_texts(given):
        return None
    array = np.asarray(given, dtype=object)  # in which the numbers of lists stay numbers
    if array.ndim not in (1, 2):
        return None
    columns = array.T if array.ndim == 2 else [given]
    return [_column(space, f"column {i}", column, range(len(column))) for i, column in enumerate(columns)]


def _is_number(column: Any) -> bool:
    """Whether the dtype of a column is one of numbers."""
    kind = getattr(column.dtype, "kind", None) or np.asarray(column).dtype.kind  # tables of polars have no kinds
    return kind in "fiubc"


def _column(space: str, title: str, values: Iterable[Any], called: Sequence[Any]) -> Array:
    """Numbers (N,), or (N, d) where each value is a vector; texts and categories (N,) as objects."""
    listed = [value.tolist() if isinstance(value, np.ndarray | Tensor) else value for value in values]
    missing = [
        called[i] for i, value in enumerate(listed) if not isinstance(value, list) and validate.is_missing(value)
    ]
    if missing:
        raise ValueError(
            f"cost features must be there for each point of {space}, got none in {title} for {len(missing)} of "
            f"{len(listed)}: {_quote_some(missing)}; fill them in, or leave out these points"
        )
    if not hasattr(getattr(values, "dtype", None), "categories"):
        vectors = all(isinstance(value, list | tuple) for value in listed)
        entries = list(chain.from_iterable(listed)) if vectors and len({*map(len, listed)}) == 1 else listed
        if all(isinstance(value, Real | np.bool_) for value in entries):
            whole = (abs(int(value)) for value in entries if isinstance(value, Integral))
            validate.exact(f"cost features of {space}", max(whole, default=0))
            return np.asarray(listed, dtype=np.float64)
        other = next((value for value in listed if not isinstance(value, str)), None)
        if other is not None:
            raise TypeError(
                f"cost features of {space} must be numbers alone, texts alone, or lists of as many numbers in {title}, "
                f"got {type(other).__name__} {str(other)[:40]!r} among {len(listed)} values; write them all as one"
            )
    return np.fromiter(listed, dtype=object, count=len(listed))


def _labels(given: tuple[Any, Any], points: tuple[Any, Any], spaces: tuple[str, str]) -> tuple[Array, Array] | None:
    """Codes (N,), (K,) of labels that are named, or are no integers; None of others. A point may have no label."""
    if not any(
        isinstance(side, str) or _has_pandas_dtype(side) or _holds_texts(side, "USOb") or _misses_integers(side)
        for side in given
    ):
        return None
    sides = [
        _attribute("supervision.labels", side, *each)[0] if isinstance(side, str) else side
        for side, each in zip(given, zip(spaces, points, strict=True), strict=True)
    ]
    for which, side in enumerate(sides):
        shape = validate.shape_of(side)
        if not isinstance(given[which], str) and len(shape) != 1:
            raise ValueError(f"supervision.labels[{which}] must have one label for each point, got shape {shape}")
    sides = [validate.labels(f"supervision.labels of {space}", side) for side, space in zip(sides, spaces, strict=True)]
    codes, _ = _codes(sides)
    shared = np.intersect1d(*(side[side != UNLABELLED] for side in codes))
    if not len(shared):
        some = [next((value for value in side if not validate.is_missing(value)), None) for side in sides]
        raise ValueError(
            f"supervision.labels must have labels in common, got such as {some[0]!r} for {spaces[0]} and {some[1]!r} "
            f"for {spaces[1]}; with none in common, no pair of labelled points may match"
        )
    return codes


def _codes(sides: Sequence[Iterable[Any]]) -> tuple[tuple[Array, Array], int]:
    """The place of each value among the distinct ones of both sides, `UNLABELLED` where there is none, and their
    number."""
    place = dict[Any, int]()
    x, y = (
        np.array(
            [
                UNLABELLED if validate.is_missing(value) or value == UNLABELLED else place.setdefault(value, len(place))
                for value in side
            ],
            dtype=np.int64,
        )
        for side in sides
    )
    return (x, y), len(place)


def _has_pandas_dtype(given: Any) -> bool:
    """Whether the dtype is one of pandas', in which values may be missing."""
    return hasattr(getattr(given, "dtype", None), "na_value")


def _holds_texts(given: Any, kinds: str = "USO") -> bool:
    """Whether an array-like has one of these kinds of NumPy's dtypes, or categories; not if it cannot be read."""
    if isinstance(given, Tensor):
        return False
    try:
        return hasattr(getattr(given, "dtype", None), "categories") or (
            not np.ma.is_masked(given) and np.asarray(given).dtype.kind in kinds
        )
    except (TypeError, ValueError, RuntimeError):
        return False


def _misses_integers(given: Any) -> bool:
    """Whether numbers are whole but for NaN, which is what a column of integers has for nothing."""
    if isinstance(given, Tensor) or not _holds_texts(given, "f"):
        return False
    array = np.asarray(given)
    return bool(np.isnan(array).any() and (np.isnan(array) | (array == np.trunc(array))).all())


def _quote_some(values: Sequence[Any]) -> str:
    """Some values, for an error."""
    more = ", ..." if len(values) > LISTED else ""
    return (", ".join(map(repr, list(values)[:LISTED])) + more) if len(values) else "none"
