"""`gw_align` for cells in AnnData objects, written back where scanpy looks for it.

A cell i of the source gets from the reference what its row of the plan T carries: coordinates sum_j T_ij y_j / sum_j
T_ij; of each label the share of its mass that goes to cells with that label, the largest of which names it and is its
confidence; of numbers, their mean over the cells that have one.

Layout: I. Virshup et al., "anndata: Access and store annotated data matrices", 2024, and scanpy's ``key_added``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchgw import validate
from torchgw._version import __version__
from torchgw.align import gw_align
from torchgw.anndata.annotated import (
    check_cells,
    choose_representations,
    decode_columns,
    encode_column,
    import_anndata,
    match_names,
    read_representation,
)
from torchgw.entry import OURS, entry
from torchgw.options import GWOptions
from torchgw.persist import guards
from torchgw.request.attributes import encode_attributes
from torchgw.request.objective import convert_list_to_pair
from torchgw.results.result import GWResult

__all__ = ["align", "joint", "read", "write"]


@entry(OURS | dict.fromkeys(("label", "groupby"), "labels"), passes_to=gw_align)
def align(
    a: Any,
    b: Any,
    *,
    use_rep: str | Sequence[str] | None = None,
    labels: str | Sequence[str] | None = None,
    key_added: str = "torchgw",
    plan: float | None = None,
    **keywords: Any,
) -> GWResult:
    """Align the cells of ``a`` with those of the reference ``b``, and write what the plan carries from ``b`` to ``a``.

    Parameters
    ----------
    a, b : AnnData of N and K cells, also backed ones, of which X is only read where it is asked for. Nothing is written
        to ``b``, nor to a file. A view ``a`` becomes an AnnData of its own, as with scanpy.
    use_rep : key of obsm, or "X"; a pair for different ones. None takes "X_pca" where both have it, else "X", and logs
        which. Sparse arrays are made dense, within ``options.max_memory``.
    labels : columns of ``b.obs`` to carry over. Categories, texts and truth values are labels; numbers are averaged.
        Cells of ``b`` where one is missing tell nothing of it.
    key_added : what the names of all that is written have in them.
    plan : share of the mass of each row, in (0, 1], for which the plan's largest entries are kept; None keeps none.
    keywords : of `gw_align`. Names in ``cost`` and in the labels of ``supervision`` are columns of ``obs``.

    Returns
    -------
    GWResult of a (N,) and b (K,), with the names of the cells. On ``a`` is written, where "torchgw" stands for
    ``key_added``:

    - ``obsm["X_torchgw"]``: coordinates among the cells of ``b``, (N, E);
    - ``obs["torchgw_match"]``: name of the cell of ``b`` that most of the mass goes to;
    - ``obs["torchgw_<label>"]``: for labels a categorical with the categories of ``b``, for numbers their mean;
    - ``obs["torchgw_<label>_confidence"]``: share in [0, 1] of the cell's mass that goes to that label;
    - ``uns["torchgw_<label>_colors"]``: where ``b`` has ``uns["<label>_colors"]``;
    - ``uns["torchgw"]``: the verdict with its reasons, value, how the solve ended, warnings, parameters and
      versions;
    - ``obsm["torchgw_plan"]``: with ``plan``, the sparse (N, K) plan.

    What is there by these names is replaced, an earlier plan also where none is asked for. A cell without mass, as
    other marginals than balanced leave some, has no match and no labels, a confidence of 0, and NaN for numbers.

    Raises
    ------
    ValueError, TypeError, MemoryError
        Before the solve and before anything is written, for what `gw_align` refuses, absent keys, labels that would be
        written to one column, names of cells that are not unique, and a view of a backed ``a``. After it, only where
        ``plan`` asks for more than a large plan has.
    ImportError
        Without anndata.

    Notes
    -----
    The solve, and O(N K (r + E + C)) work for E coordinates and C categories.

    Examples
    --------
    >>> import torchgw  # doctest: +SKIP
    >>> torchgw.anndata.align(atac, rna, labels="cell_type", random_state=0)  # doctest: +SKIP
    >>> atac.obs["torchgw_cell_type"], atac.obs["torchgw_cell_type_confidence"]  # doctest: +SKIP
    """
    check_cells("a", a)
    check_cells("b", b)
    if a.is_view and a.isbacked:
        raise ValueError("a is a view of a backed file, on which nothing can be written; pass a.to_memory()")
    if not isinstance(key_added, str) or not key_added:
        raise ValueError(f"key_added must be a text that is not empty, got {key_added!r}")
    if plan is not None:
        validate.real("plan", plan, above=0.0, most=1.0)
    limit = getattr(keywords.get("options"), "max_memory", GWOptions().max_memory)
    names = _unique_names(labels)
    taken = choose_representations(a, b, use_rep)
    X, Y = (read_representation(side, cells, rep, limit) for side, cells, rep in zip("ab", (a, b), taken, strict=True))
    for name in names:
        if name not in b.obs and name in a.obs:
            raise ValueError(
                f"labels must be columns of b.obs, the reference, got {name!r}, which a has and b has not; the cells "
                f"that get labels come first, those that have them second"
            )
    told = [encode_column(name, b, limit) for name in names]
    _check_columns(key_added, {name: categories is not None for name, (_, categories) in zip(names, told, strict=True)})
    width = Y.shape[1] + sum(columns.shape[1] for columns, _ in told)
    advice = "carry fewer labels, or coordinates of fewer dimensions"
    validate.memory("what b tells of all cells", 8 * max(len(X), len(Y)) * width, limit, advice)

    given = dict(zip(("cost", "supervision"), _replace_columns(a, b, keywords, limit), strict=True))
    result = gw_align(X, Y, **{"names_x": a.obs_names, "names_y": b.obs_names} | keywords | given)

    pulled = np.asarray(result.pull(np.concatenate([Y, *(columns for columns, _ in told)], axis=1)))
    place, shares = pulled[:, : Y.shape[1]], pulled[:, Y.shape[1] :]
    a.obsm[f"X_{key_added}"] = place
    a.obs[f"{key_added}_match"] = match_names(result, ~np.isnan(place[:, 0]), b.obs_names)
    for name, (columns, categories) in zip(names, told, strict=True):
        own, shares = shares[:, : columns.shape[1]], shares[:, columns.shape[1] :]
        for key, column in decode_columns(f"{key_added}_{name}", own, categories).items():
            a.obs[key] = column
        _copy_colors(a, f"{key_added}_{name}", b, name, categories)
    a.uns[key_added] = _describe_solve(result, taken, names, keywords)
    a.obsm.pop(f"{key_added}_plan", None)
    if plan is not None:
        try:
            a.obsm[f"{key_added}_plan"] = result.sparsify(plan)
        except ValueError as error:
            raise ValueError(f"{error}; all but the plan was written to a") from error
    return result


def joint(a: Any, b: Any, result: GWResult, *, mass: float = 0.99, key_added: str = "torchgw") -> Any:
    """The cells of both sides as one AnnData, whose neighbour graph is the plan.

    Parameters
    ----------
    a, b : what `align` was given.
    result : what it returned.
    mass : share of each row's mass for which the plan's largest entries are kept, in (0, 1].
    key_added : what `align` was given.

    Returns
    -------
    AnnData of N + K cells, those of ``a`` first, without X. ``obs`` has the columns of both, empty where a side has
    none, with their colours; in ``torchgw_<label>`` the cells of ``b`` have the label itself that ``a`` got from them.
    ``torchgw_side`` is "a" or "b", which also ends the names of the cells; ``obsm["X_torchgw"]`` holds all coordinates,
    in the representation of ``b``; ``obsp["torchgw"]`` the symmetric sparse graph whose weight between a cell of ``a``
    and one of ``b`` is the mass between them.

    Raises
    ------
    ValueError, TypeError
        Where ``a`` has not been aligned, or with other cells.
    """
    import anndata
    from scipy.sparse import bmat

    check_cells("a", a)
    check_cells("b", b)
    validate.instance("result", result, GWResult, ", as torchgw.anndata.align returns it")
    if result.shape != (a.n_obs, b.n_obs):
        raise ValueError(f"result must be of (a, b) with ({a.n_obs}, {b.n_obs}) cells, got {result.shape}")
    if key_added not in a.uns or f"X_{key_added}" not in a.obsm:
        raise ValueError(f"a must hold what align wrote, got no {key_added!r}; call torchgw.anndata.align(a, b) first")
    reference = read_representation("b", b, str(a.uns[key_added]["params"]["use_rep"][1]), result.max_memory)
    place = np.concatenate((a.obsm[f"X_{key_added}"], reference))
    kept = result.sparsify(mass)
    names = {f"{key_added}_{name}": name for name in a.uns[key_added]["params"].get("labels", ())}
    own = {column: b.obs[name].astype(a.obs[column].dtype) for column, name in names.items()}
    columns = {"a": a.obs, "b": b.obs.assign(**own)}
    bare = {side: anndata.AnnData(obs=_allow_missing(obs)) for side, obs in columns.items()}
    both = anndata.concat(bare, join="outer", label=f"{key_added}_side", index_unique="-")
    for cells in (b, a):
        _keep_colors(cells, both)
    both.obsm[f"X_{key_added}"] = place
    both.obsp[key_added] = bmat([[None, kept], [kept.T, None]], format="csr")
    return both


def read(name: str, path: str | PathLike[str], max_memory: int | None = None, *, backed: bool = False) -> Any:
    """Cells of a file that nobody vouches for.

    What it declares is compared with a limit before it is loaded, and it must not lead to other files; see
    `torchgw.persist.guards`. Beyond that anndata and libhdf5 are trusted to survive broken input.

    Parameters
    ----------
    name : what errors call it.
    path : an .h5ad file.
    max_memory : bytes that its arrays may take, by default that of `GWOptions`.
    backed : leave X in the file, and out of the limit.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it, in one line.
    ImportError
        Without anndata.
    """
    anndata = import_anndata()
    import h5py

    limit = GWOptions().max_memory if max_memory is None else validate.integer("max_memory", max_memory, least=1)
    file = Path(path)
    with guards.guard_reading(name, file, ".h5ad"):
        with h5py.File(file, "r") as opened:
            guards.check_tree(opened, limit, apart="X" if backed else "")
        return anndata.read_h5ad(file, backed="r" if backed else None)


def write(cells: Any, path: str | PathLike[str]) -> None:
    """Write cells of a backed file with what was added to them, without loading X: `AnnData.write_h5ad` would.

    ``obs``, ``var``, ``obsm`` and ``uns`` are those in memory; everything else is copied from the file, chunk by chunk.
    The file itself is left as it is.

    Parameters
    ----------
    cells : what `read` returns with ``backed``.
    path : an .h5ad file other than that of ``cells``.

    Raises
    ------
    ValueError
        For cells that are not backed by a file, and for the path of that file; nothing is written then.
    """
    if cells.filename is None:
        raise ValueError("cells must be backed by a file, got cells in memory; cells.write_h5ad(path) writes those")
    if Path(path).resolve() == Path(cells.filename).resolve():
        raise ValueError(f"path must be another file than that of the cells, got {str(path)!r}")
    anndata = import_anndata()
    import h5py

    ours = {"obs": cells.obs, "var": cells.var, "obsm": dict(cells.obsm), "uns": cells.uns}
    anndata.AnnData(**ours).write_h5ad(path)
    with h5py.File(path, "r+") as written, h5py.File(cells.filename, "r") as given:
        for name in set(given) - set(ours):
            if name in written:
                del written[name]
            given.copy(name, written)


def _check_columns(key: str, labels: dict[str, bool]) -> None:
    """Refuse labels that would be written to one column of ``a.obs``; those that are no numbers bring a confidence."""
    taken = {f"{key}_match": "the match of each cell"}
    for name, has_confidence in labels.items():
        for column in (f"{key}_{name}", f"{key}_{name}_confidence")[: 1 + has_confidence]:
            if column in taken:
                both = f"{name!r} and {taken[column]}, both of which would be a.obs[{column!r}]"
                raise ValueError(f"labels must go to columns of their own, got {both}; rename the column of b.obs")
            taken[column] = f"label {name!r}" if column == f"{key}_{name}" else f"the confidence of {name!r}"


def _replace_columns(a: Any, b: Any, keywords: dict[str, Any], limit: int) -> tuple[Any, Any]:
    """The cost and the supervision of a call, with columns of ``obs`` in place of their names."""
    cost, supervision = convert_list_to_pair(keywords.get("cost")), keywords.get("supervision")
    return encode_attributes((a.obs, b.obs), cost, supervision, limit, ("a.obs", "b.obs"))


def _unique_names(labels: str | Sequence[str] | None) -> list[str]:
    """Columns without repetition."""
    found: Any = [] if labels is None else [labels] if isinstance(labels, str) else labels
    if hasattr(found, "dtype") or not isinstance(found, Iterable):
        raise TypeError(f"labels must name columns of b.obs, like 'cell_type' or a list, got a {type(found).__name__}")
    names = list(found)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"labels must be a name or names of columns of b.obs, got {labels!r}")
    return list(dict.fromkeys(names))


def _copy_colors(a: Any, key: str, b: Any, name: str, categories: Any) -> None:
    """The reference's colours, which go by the order of its categories; none of an earlier call stay."""
    a.uns.pop(f"{key}_colors", None)
    colors = b.uns.get(f"{name}_colors")
    if categories is not None and colors is not None and len(colors) >= len(categories.categories):
        a.uns[f"{key}_colors"] = list(colors)


def _allow_missing(obs: Any) -> Any:
    """The columns in types that have room for missing values, which files can hold."""
    return obs.astype({name: "boolean" for name in obs if obs[name].dtype == bool})


def _keep_colors(cells: Any, both: Any) -> None:
    """The colours of the columns whose categories are the same in both."""
    for name in cells.obs.select_dtypes("category"):
        there = both.obs[name].dtype == "category" and list(both.obs[name].cat.categories)
        if f"{name}_colors" in cells.uns and list(cells.obs[name].cat.categories) == there:
            both.uns[f"{name}_colors"] = list(cells.uns[f"{name}_colors"])


def _describe_solve(
    result: GWResult, taken: tuple[str, str], names: list[str], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Parameters and diagnostics of the solve, in types that every .h5ad file can hold."""
    options = asdict(result.options) | {"loss": getattr(result.options.loss, "name", result.options.loss)}
    seed, distances = keywords.get("random_state"), keywords.get("distances", "auto")
    params = {
        "use_rep": list(taken),
        "distances": [distances, distances] if isinstance(distances, str) else list(distances),
        "epsilon": result.epsilon,
        "alpha": result.alpha,
        "marginals": repr(result.marginals),
        "options": json.dumps(options),
    }
    return {
        "params": params | ({"labels": names} if names else {}) | ({"random_state": seed} if type(seed) is int else {}),
        "value": result.value,
        "chance": result.chance,
        "distance_correlation": result.distance_correlation,
        "verdict": result.verdict.name.lower(),
        "reasons": np.array(result.reasons, dtype=object),
        "warnings": np.array([str(warning) for warning in result.warnings], dtype=object),
        "marginal_error": result.marginal_error,
        "status": str(result.status),
        "converged": result.converged,
        "ambiguous": result.ambiguous,
        "basins": np.array([basin.energy for basin in result.basins]),
        "n_iter": result.n_iter,
        "strategy": result.strategy,
        "backend": result.backend,
        "versions": {"torchgw": __version__, "torch": str(torch.__version__)},
    }
