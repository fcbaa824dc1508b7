"""`gw_align` and `resume` by the ranks of a process group."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchgw import align, validate
from torchgw.align import Arguments
from torchgw.couplings.blocks import as_block_coupling
from torchgw.couplings.reader import Readable
from torchgw.distributed.groups import open_ranks
from torchgw.distributed.inputs import find_differing_arguments, is_in_file, load_spaces, read_files
from torchgw.distributed.journal import follow_by_ranks
from torchgw.distributed.processes import Processes
from torchgw.entry import check_options, entry
from torchgw.kernels.sampling import make_generator
from torchgw.persist.checkpoint import has_content
from torchgw.persist.files import path_of
from torchgw.request.request import Request, build_problem
from torchgw.results.parts import write_part
from torchgw.results.result import GWResult, saved_members
from torchgw.runtime.caller import collecting_warnings
from torchgw.spaces.prepare import GraphReports, ProviderPair
from torchgw.spaces.shared import make_shared_providers
from torchgw.types import AUTO, Callback, RandomState, is_graph, is_provider

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

DEFAULTS = {
    name: parameter.default for name, parameter in signature(align.gw_align).parameters.items() if name not in "XY"
}


@entry(passes_to=align.gw_align)
def gw_align(X: Any, Y: Any, *, group: Any = None, **arguments: Unpack[Arguments]) -> GWResult:
    """Align two metric-measure spaces by all processes of a group, each of which calls this with the same arguments.

    The streaming strategy of `torchgw.gw_align`, with its points divided among the ranks: factors of distances and of
    costs are kept in shares, passes over all pairs are divided, the search and what is between cells is done by the
    first rank. Landmark searches of the two spaces are by the first two ranks, which build their graphs of all points.
    With one rank it is `torchgw.gw_align`.

    Parameters
    ----------
    X, Y : as in `torchgw.gw_align`: points, graphs, or providers that have factors. Points in a file (a memory map,
        ``numpy.load(..., mmap_mode="r")``, or an array of zarr or h5py) are read by the rank that builds their graph
        alone; sizes and the first and last row are compared between ranks.
    group : a process group of `torch.distributed`, or a `DeviceMesh` of one dimension; by default all processes, which
        are to have been started by ``torchrun``, or by `started`.
    arguments : all others of `torchgw.gw_align` by name, the same on all ranks. ``callback`` and ``checkpoint`` are
        those of the first one. ``random_state=None`` takes the first rank's fresh entropy.

    Returns
    -------
    The same `GWResult` on every rank. `GWResult.transform` needs the distances, of which no rank has all: a solve in
    one process keeps them.

    Raises
    ------
    As `torchgw.gw_align`, and

    ValueError
        When the ranks were given other arguments, naming them; for ``epsilon=0``, distances without factors, strategies
        other than streaming, gradient modes, and a start that is a plan; for square arrays in files; for fewer points
        than ranks; before any search.
    RankError
        When another rank has ended, or does not answer within the timeout of the group.

    Notes
    -----
    The matching is that of landmark distances and ``GWOptions(strategy="streaming")`` in one process with as many
    threads; values agree to 1e-6 up to some ten thousand points, beyond to the rounding of float32 passes, some 1e-5.
    Ranks should be of one kind of machine. See the page "From a laptop to a cluster" for time, memory and bytes.
    """
    with open_ranks(group, arguments.get("device")) as ranks:
        if ranks.count == 1:
            return align.gw_align(X, Y, **arguments)
        with collecting_warnings():
            return align_by_ranks(ranks, {"X": X, "Y": Y} | DEFAULTS | arguments)


def align_by_ranks(ranks: Processes, given: dict[str, Any]) -> GWResult:
    """The result of these arguments, of which none is left out, by ranks."""
    other = find_differing_arguments(given, ranks)
    if other is not None:
        ranks.meet()
        told = ", ".join(other[1])
        raise ValueError(f"all ranks must be given the same arguments, but rank {other[0]} has another {told}")
    given = load_spaces(given)
    in_files = {name: given[name] for name in "XY" if is_in_file(given[name])}
    checked = read_files(_check_arguments(given, ranks), ranks)
    return _solve_by_ranks(ranks, build_problem(**checked), in_files)


def _solve_by_ranks(ranks: Processes, request: Request, in_files: dict[str, Any]) -> GWResult:
    """The result of a request, when all ranks have it."""

    def prepare(request: Request) -> tuple[ProviderPair, GraphReports]:
        return make_shared_providers(request.spaces, request.options.spaces, ranks)

    result = align.align_request(request, ranks, partial(follow_by_ranks, ranks, in_files), prepare)
    ranks.meet()
    return result


@entry()
def resume(
    path: str | PathLike[str], *, X: Any = None, Y: Any = None, callback: Callback | None = None, group: Any = None
) -> GWResult:
    """Go on with a `gw_align` of this module that was given ``checkpoint=path``, with any number of ranks.

    Parameters
    ----------
    path : the folder of the checkpoint, which all ranks must see.
    X, Y : spaces that were distance providers, once more.
    callback : called by the first rank, like that of `torchgw.gw_align`.
    group : as in `gw_align`.

    Raises
    ------
    As `torchgw.resume`, and `RankError`.
    """
    with open_ranks(group, None) as ranks:
        if ranks.count == 1 and not align.is_solved_by_ranks(path):
            return align.resume(path, X=X, Y=Y, callback=callback)
        call, checkpoint = align.read_continuation(path, X, Y, shared=True)
        _refuse_without_entropy(call["epsilon"])
        more = {"checkpoint": checkpoint, "device": ranks.device, "callback": callback}
        with collecting_warnings():
            return _solve_by_ranks(ranks, build_problem(**call | more), {})


def save(result: GWResult, path: str | PathLike[str], *, group: Any = None) -> None:
    """Write a result in parts, each rank its own at the same time; `GWResult.load` opens the folder as one result.

    Parameters
    ----------
    result : the one that all ranks have.
    path : a folder to be made, which all ranks must see.
    group : as in `gw_align`.

    Raises
    ------
    ValueError, OSError
        When there is something at that path already, or it cannot be written.
    """
    folder = path_of("path", path, "a folder to be made")
    with open_ranks(group, None) as ranks:
        every = ranks.scatter([lambda: str(folder)] * ranks.count)
        if len(set(every)) > 1:
            raise ValueError(f"path must be the same on all ranks, got {', '.join(sorted(set(every)))}")

        def make() -> None:
            if has_content(folder):
                raise ValueError(f"path must name a folder that is not there yet, got {folder}")
            folder.mkdir(exist_ok=True)

        ranks.run_on_first(make)
        write_part(folder, saved_members(result), as_block_coupling(result.coupling, "save"), ranks)
        ranks.meet()  # nobody goes on before all parts are there


def _check_arguments(given: dict[str, Any], ranks: Processes) -> dict[str, Any]:
    """The arguments, as the ranks are to take them."""
    options = check_options(given["options"])
    if options.strategy not in ("auto", "streaming"):
        raise ValueError(
            f"options.strategy must be 'auto' or 'streaming' where processes share a solve, got {options.strategy!r}"
        )
    if given["gradient_mode"] is not None:
        raise ValueError("gradient_mode must be None where processes share a solve; solve in one process")
    if isinstance(given["init"], Readable):
        raise ValueError(
            "init must be pairs or a matching where processes share a solve, got a result: init=result.argmax()"
        )
    if np.ndim(given["init"]) == 2 and np.asarray(given["init"]).dtype.kind == "f":
        raise ValueError("init must be pairs or a matching where processes share a solve, got a plan (N, K)")
    _refuse_without_entropy(given["epsilon"])
    if given["device"] is not None and torch.device(given["device"]).type != ranks.device.type:
        raise ValueError(f"device must be that of the group, {str(ranks.device)!r}, got {str(given['device'])!r}")
    seed = ranks.run_on_first(partial(_share_seed, given["random_state"], given["callback"]))
    first, kinds = ranks.rank == 0, given["distances"]
    kinds = (kinds, kinds) if isinstance(kinds, str) else kinds
    if isinstance(kinds, tuple) and len(kinds) == 2:
        given = given | {"distances": tuple(map(_choose_kind, kinds, (given["X"], given["Y"])))}
    own = {"device": ranks.device, "random_state": seed, "options": replace(options, strategy="streaming")}
    return given | own | {name: given[name] if first else None for name in ("callback", "checkpoint")}


def _refuse_without_entropy(epsilon: Any) -> None:
    """Refuse an end without entropy, of a call or of a checkpoint that is resumed."""
    if epsilon == 0:
        raise ValueError(
            "epsilon must be above 0 or 'auto' where processes share a solve, got 0: take a small one, or solve "
            "without entropy in one process, torchgw.gw_align"
        )


def _share_seed(state: RandomState, callback: object) -> RandomState:
    """The first rank's seed, also of a generator, or of fresh entropy; its callback is looked at, too."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {type(callback).__name__}")
    validate.random_state("random_state", state)
    made = state is None or isinstance(state, torch.Generator | np.random.Generator)
    return make_generator(state, torch.device("cpu")).initial_seed() if made else state


def _choose_kind(kind: str, space: Any) -> str:
    """Landmarks where the choice is left: of points and graphs nothing else has factors."""
    square = getattr(space, "ndim", 0) == 2 and space.shape[0] == space.shape[1] and not is_graph(space)
    return "landmark" if kind == AUTO and not is_provider(space) and not square else kind
