"""All commands with their options; defaults are the library's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from torchgw._version import __version__
from torchgw.cli.input import READERS
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
from torchgw.request.spaces import DISTANCES, METRIC_DISTANCES
from torchgw.types import AUTO, Epsilon

SHELLS = ("bash", "zsh", "tcsh")
KINDS = ", ".join(READERS)
TABLES = "result to write: .npz, everything; .csv, the matching"
KEPT = "keep the solve here, for `torchgw resume`; not with an .h5ad output"
CODES = "exit codes: 0 done, 2 refused (one line says why), 130 interrupted, 1 an error of torchgw itself"


class Parser(argparse.ArgumentParser):
    """Argument errors as one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def epsilon(text: str) -> Epsilon:
    """A number, or "auto"."""
    return AUTO if text == AUTO else float(text)


def build_parser() -> Parser:
    """The parser of the whole command."""
    parser = Parser(
        prog="torchgw",
        allow_abbrev=False,
        description="Gromov-Wasserstein alignment of point clouds, graphs and metric spaces.",
        epilog=CODES,
    )
    parser.add_argument("--version", action="version", version=f"torchgw {__version__}")
    commands = parser.add_subparsers(dest="command")
    _align(commands)
    resume = _command(commands, "resume", "go on with an alignment that was killed or interrupted")
    resume.add_argument("checkpoint", type=Path, help="the folder that `align --checkpoint` made")
    _output(resume, TABLES)
    _report(resume)
    _pairwise(commands)
    estimate = _command(commands, "estimate", "memory and time of an alignment, and how it would be solved")
    estimate.add_argument("source", help=f"a number of points, or a file ({KINDS})")
    estimate.add_argument("target", help="the same for the other space")
    estimate.add_argument("--epsilon", type=epsilon, default=AUTO, help="default: %(default)s")
    estimate.add_argument("--rank", type=int, default=LowRankOptions().rank, help="default: %(default)s")
    _device(estimate, backend=False)
    _memory(estimate)
    _command(commands, "info", "versions, devices and backends, and why each is or is not available")
    show = _command(commands, "demo", "align a spiral with a Swiss roll and draw the result")
    show.add_argument("-o", "--output", type=Path, default=Path("demo.png"), help="picture (default: %(default)s)")
    _device(show, backend=False)
    completion = _command(commands, "completion", "print a script that completes this command in your shell")
    completion.add_argument("shell", choices=SHELLS)
    return parser


def run_completion(arguments: argparse.Namespace) -> str:
    """``torchgw completion``: the script of a shell."""
    try:
        import shtab
    except ImportError as error:
        raise ImportError("shell completion needs shtab; pip install shtab") from error
    script: str = shtab.complete(build_parser(), arguments.shell)
    return script


def _command(commands: Any, name: str, text: str) -> Parser:
    """A command with what all have."""
    made: Parser = commands.add_parser(name, allow_abbrev=False, help=text, description=text, epilog=CODES)
    made.add_argument("--json", action="store_true", help="print what was found as JSON")
    made.add_argument("-v", "--verbose", action="store_true", help="say on stderr what happens")
    return made


def _align(commands: Any) -> None:
    spaces, sampling, stopping = SpaceOptions(), SamplingOptions(), StoppingOptions()
    align = _command(commands, "align", "align two files and write matching, potentials, value and options")
    align.add_argument("source", type=Path, help=f"points, square distance matrix or sparse graph ({KINDS})")
    align.add_argument("target", type=Path, help="the same for the other space")
    _output(align, f"{TABLES}; .h5ad, the source's cells with what was carried")
    _report(align)
    _distances(align, DISTANCES)
    align.add_argument(
        "--epsilon", type=epsilon, default=AUTO, help="entropy, 0 for none, or auto (default: %(default)s)"
    )
    models = align.add_mutually_exclusive_group()
    models.add_argument("--semi-relaxed", type=float, metavar="RHO", help="the target's masses may give way")
    models.add_argument("--unbalanced", type=float, metavar="RHO", help="masses of both may give way")
    models.add_argument("--partial", type=float, metavar="MASS", help="only this share of the mass moves")
    align.add_argument("--pairs", type=Path, metavar="TABLE", help="known matches: rows of both, from 0")
    align.add_argument("--features", type=Path, nargs=2, metavar="TABLE", help="what both sides measured: two tables")
    align.add_argument("--alpha", type=float, help="weight of distances beside features; 0.99: features break ties")
    align.add_argument(
        "--anchors", type=int, default=sampling.n_anchors, help="pairs drawn for a sampled gradient (%(default)s)"
    )
    align.add_argument("-k", type=int, default=spaces.k, help="neighbours in the graph (default: chosen from the data)")
    align.add_argument(
        "--landmarks", type=int, default=spaces.n_landmarks, help="points that distances go through (%(default)s)"
    )
    align.add_argument("--max-iter", type=int, default=stopping.max_iter, help="outer iterations (%(default)s)")
    align.add_argument("--strategy", choices=STRATEGIES, default="auto", help="how large problems are solved")
    align.add_argument(
        "--marginal-tol", type=float, default=LadderOptions().marginal_tol, help="of large problems (%(default)s)"
    )
    align.add_argument("--rank", type=int, default=LowRankOptions().rank, help="of low-rank plans (%(default)s)")
    align.add_argument("--double", action="store_true", help="iterate in float64")
    align.add_argument("--checkpoint", type=Path, metavar="FOLDER", help=KEPT)
    cells = align.add_argument_group("cells (.h5ad on both sides and as the output)")
    cells.add_argument("--use-rep", metavar="KEY", help="key of obsm, or X (default: X_pca where both have it)")
    cells.add_argument("--labels", nargs="+", metavar="COLUMN", help="columns of the target's obs to carry over")
    cells.add_argument("--keep-plan", type=float, metavar="MASS", help="store the plan's largest entries, like 0.99")
    _device(align)
    _memory(align)


def _pairwise(commands: Any) -> None:
    pairwise = _command(commands, "pairwise", "Gromov-Wasserstein distances between all pairs of files")
    pairwise.add_argument("spaces", type=Path, nargs="+", help=f"two files or more ({KINDS})")
    pairwise.add_argument("-o", "--output", type=Path, required=True, help="distances to write: .npz, or .csv")
    _distances(pairwise, METRIC_DISTANCES)
    pairwise.add_argument("--store", type=Path, help="a file for finished pairs, from which a later call goes on")
    pairwise.add_argument(
        "--scale", choices=("common", "own"), default="common", help="common (default): sizes count; own: shapes"
    )
    pairwise.add_argument("--tol", type=float, default=1e-2, help="gap over value at which a pair is settled (0.01)")
    pairwise.add_argument("--jobs", type=int, help="processes (default: one, with batches of pairs)")
    _device(pairwise, backend=False)
    _memory(pairwise)


def _output(parser: Parser, text: str) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, help=text)


def _report(parser: Parser) -> None:
    parser.add_argument("--report", type=Path, metavar="PAGE", help="an interactive .html page to write too")


def _distances(parser: Parser, kinds: tuple[str, ...]) -> None:
    parser.add_argument("--distances", choices=kinds, default="auto", help="what is compared (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random state (default: %(default)s)")


def _device(parser: Parser, backend: bool = True) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    if backend:
        parser.add_argument("--backend", choices=BACKENDS, default="auto", help="default: %(default)s")


def _memory(parser: Parser) -> None:
    default = GWOptions().max_memory / 2**30
    parser.add_argument(
        "--max-memory", type=float, default=default, metavar="GIB", help="of one dense object (default: %(default)g)"
    )
