"""The options of each command; defaults are the library's own."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from torchgw.cli.input import SUFFIXES
from torchgw.kernels.dispatch import BACKENDS
from torchgw.options import (
    STRATEGIES,
    GWOptions,
    LadderOptions,
    LowRankOptions,
    SamplingOptions,
    SpaceOptions,
    StoppingOptions,
)
from torchgw.pairwise.inputs import SCALES
from torchgw.request.spaces import DISTANCES
from torchgw.types import AUTO, Epsilon

SHELLS = ("bash", "zsh", "tcsh")
KINDS = ", ".join(SUFFIXES)
TABLES = "result to write: .npz, everything; .csv, the matching"
TIMEOUT = 1800.0
KEPT = "keep the solve here, for `torchgw resume`; not with an .h5ad output"


def epsilon(text: str) -> Epsilon:
    """A number, or "auto"."""
    return AUTO if text == AUTO else float(text)


def align(command: ArgumentParser) -> None:
    """Of ``torchgw align``."""
    spaces, sampling, stopping = SpaceOptions(), SamplingOptions(), StoppingOptions()
    command.add_argument("source", type=Path, help=f"points, square distance matrix or sparse graph ({KINDS})")
    command.add_argument("target", type=Path, help="the same for the other space")
    _add_output(command, f"{TABLES}; .h5ad, the source's cells with what was carried")
    _add_report(command)
    _add_points(command)
    _add_distances(command, DISTANCES)
    _add_edges(command)
    command.add_argument(
        "--index-col",
        action="append",
        metavar="TITLE",
        help="column of tables that names the points; twice if the two differ (default: a first column of texts)",
    )
    command.add_argument(
        "--epsilon", type=epsilon, default=AUTO, help="entropy, 0 for none, or auto (default: %(default)s)"
    )
    models = command.add_mutually_exclusive_group()
    models.add_argument("--semi-relaxed", type=float, metavar="RHO", help="the target's masses may give way")
    models.add_argument("--unbalanced", type=float, metavar="RHO", help="masses of both may give way")
    models.add_argument("--partial", type=float, metavar="MASS", help="only this share of the mass moves")
    command.add_argument("--pairs", type=Path, metavar="TABLE", help="known matches: names of both, or rows from 0")
    command.add_argument("--features", type=Path, nargs=2, metavar="TABLE", help="what both sides measured: two tables")
    command.add_argument("--alpha", type=float, help="weight of distances beside features; 0.99: features break ties")
    command.add_argument(
        "--anchors", type=int, default=sampling.n_anchors, help="pairs drawn for a sampled gradient (%(default)s)"
    )
    command.add_argument(
        "-k", type=int, default=spaces.k, help="neighbours in the graph (default: chosen from the data)"
    )
    command.add_argument(
        "--landmarks", type=int, default=spaces.n_landmarks, help="points that distances go through (%(default)s)"
    )
    command.add_argument("--max-iter", type=int, default=stopping.max_iter, help="outer iterations (%(default)s)")
    command.add_argument("--strategy", choices=STRATEGIES, default="auto", help="how large problems are solved")
    command.add_argument(
        "--marginal-tol", type=float, default=LadderOptions().marginal_tol, help="of large problems (%(default)s)"
    )
    command.add_argument("--rank", type=int, default=LowRankOptions().rank, help="of low-rank plans (%(default)s)")
    command.add_argument("--double", action="store_true", help="iterate in float64")
    command.add_argument("--checkpoint", type=Path, metavar="FOLDER", help=KEPT)
    _add_ranks(command)
    cells = command.add_argument_group("cells (.h5ad on both sides and as the output)")
    cells.add_argument("--use-rep", metavar="KEY", help="key of obsm, or X (default: X_pca where both have it)")
    cells.add_argument("--labels", nargs="+", metavar="COLUMN", help="columns of the target's obs to carry over")
    cells.add_argument("--keep-plan", type=float, metavar="MASS", help="store the plan's largest entries, like 0.99")
    _add_device(command)
    _add_memory(command)


def resume(command: ArgumentParser) -> None:
    """Of ``torchgw resume``."""
    command.add_argument("checkpoint", type=Path, help="the folder that `align --checkpoint` made")
    _add_output(command, TABLES)
    _add_report(command)
    _add_points(command)
    _add_ranks(command)


def apply(command: ArgumentParser) -> None:
    """Of ``torchgw apply``."""
    command.add_argument("result", type=Path, help="a result that `align --points` or GWResult.save(points=True) wrote")
    command.add_argument("points", type=Path, help=f"new points, or rows of distances to all known ones ({KINDS})")
    command.add_argument("-o", "--output", type=Path, required=True, help="matches to write: .csv")
    _add_index_col(command)
    command.add_argument(
        "--side", choices=("source", "target"), default="source", help="what the points belong to (%(default)s)"
    )
    _add_memory(command)


def pairwise(command: ArgumentParser) -> None:
    """Of ``torchgw pairwise``."""
    command.add_argument(
        "spaces", type=Path, nargs="+", help=f"two files or more; one will do with --against ({KINDS})"
    )
    command.add_argument("-o", "--output", type=Path, required=True, help="distances to write: .npz, or .csv")
    command.add_argument(
        "--against", type=Path, nargs="+", metavar="FILE", help="compare each file with each of these, and no others"
    )
    _add_edges(command)
    _add_index_col(command)
    _add_distances(command, DISTANCES)
    command.add_argument("--store", type=Path, help="a file for finished pairs, from which a later call goes on")
    command.add_argument(
        "--scale",
        choices=SCALES,
        default="auto",
        help="common: sizes count; own: shapes; auto (default): own of graphs",
    )
    command.add_argument("--tol", type=float, default=1e-2, help="gap over value at which a pair is settled (0.01)")
    command.add_argument("--jobs", type=int, help="processes (default: one, with batches of pairs)")
    _add_device(command, backend=False)
    _add_memory(command)


def score(command: ArgumentParser) -> None:
    """Of ``torchgw score``."""
    command.add_argument("result", type=Path, help="what `torchgw align` wrote: a result (.npz) or a matching (.csv)")
    command.add_argument(
        "--truth", type=Path, metavar="TABLE", help="true matches: columns source and target, or the target of each row"
    )
    command.add_argument(
        "--labels-x",
        type=Path,
        metavar="TABLE",
        help="labels of the source: a column of them, or columns point and label",
    )
    command.add_argument("--labels-y", type=Path, metavar="TABLE", help="the same of the target")
    command.add_argument(
        "--points-y", type=Path, metavar="FILE", help=f"points of the target, for FOSCTTM of what is carried ({KINDS})"
    )
    command.add_argument(
        "--graph-y", type=Path, metavar="FILE", help="graph of the target, up to whose automorphisms nodes are right"
    )
    _add_memory(command)


def estimate(command: ArgumentParser) -> None:
    """Of ``torchgw estimate``."""
    command.add_argument("source", help=f"a number of points, or a file ({KINDS})")
    command.add_argument("target", help="the same for the other space")
    command.add_argument("--epsilon", type=epsilon, default=AUTO, help="default: %(default)s")
    command.add_argument("--rank", type=int, default=LowRankOptions().rank, help="default: %(default)s")
    _add_device(command, backend=False)
    _add_memory(command)


def info(command: ArgumentParser) -> None:
    """Of ``torchgw info``: none of its own."""


def warm(command: ArgumentParser) -> None:
    """Of ``torchgw warm``."""
    command.add_argument("--device", default="cuda", help="cuda, cuda:1 (default: %(default)s)")


def demo(command: ArgumentParser) -> None:
    """Of ``torchgw demo``."""
    command.add_argument("-o", "--output", type=Path, default=Path("demo.png"), help="picture (default: %(default)s)")
    _add_device(command, backend=False)


def completion(command: ArgumentParser) -> None:
    """Of ``torchgw completion``."""
    command.add_argument("shell", choices=SHELLS)


def _add_ranks(command: ArgumentParser) -> None:
    command.add_argument("--nproc", type=int, metavar="N", help="processes of this machine that share the solve")
    command.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="SECONDS", help="that they wait for each other (%(default)g)"
    )


def _add_output(command: ArgumentParser, text: str) -> None:
    command.add_argument("-o", "--output", type=Path, required=True, help=text)


def _add_report(command: ArgumentParser) -> None:
    command.add_argument("--report", type=Path, metavar="PAGE", help="an interactive .html page to write too")


def _add_edges(command: ArgumentParser) -> None:
    command.add_argument("--edges", action="store_true", help="tables are lists of edges: u, v and perhaps a length")


def _add_index_col(command: ArgumentParser) -> None:
    command.add_argument(
        "--index-col", metavar="TITLE", help="column of tables that names the points (default: a first column of texts)"
    )


def _add_points(command: ArgumentParser) -> None:
    command.add_argument("--points", action="store_true", help="keep in an .npz what `torchgw apply` needs")


def _add_distances(command: ArgumentParser, kinds: tuple[str, ...]) -> None:
    command.add_argument("--distances", choices=kinds, default="auto", help="what is compared (default: %(default)s)")
    command.add_argument("--seed", type=int, default=0, help="random state (default: %(default)s)")


def _add_device(command: ArgumentParser, backend: bool = True) -> None:
    command.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if it pays)")
    if backend:
        command.add_argument("--backend", choices=BACKENDS, default="auto", help="default: %(default)s")


def _add_memory(command: ArgumentParser) -> None:
    default = GWOptions().max_memory / 2**30
    command.add_argument(
        "--max-memory", type=float, default=default, metavar="GIB", help="of one dense object (default: %(default)g)"
    )
