"""The ``torchgw`` command: ``align`` two files, or run the ``demo``.

Exit codes: 0 done, 2 bad input or options (one line on stderr says which), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torchgw import demo
from torchgw._version import __version__
from torchgw.gw.align import gw_align
from torchgw.gw.prepare import DISTANCES
from torchgw.io import SUFFIXES, read_space
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
from torchgw.progress import ProgressBar
from torchgw.result import GWResult
from torchgw.types import TorchGWWarning


class Parser(argparse.ArgumentParser):
    """Argument errors as one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def build_parser() -> Parser:
    """All commands with their options; defaults are the library's own."""
    spaces, sampling, stopping = SpaceOptions(), SamplingOptions(), StoppingOptions()
    ladder, low_rank = LadderOptions(), LowRankOptions()
    parser = Parser(
        prog="torchgw", allow_abbrev=False, description="Gromov-Wasserstein alignment of point clouds and graphs."
    )
    parser.add_argument("--version", action="version", version=f"torchgw {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    align = commands.add_parser(
        "align", allow_abbrev=False, help="align two files and write matching, potentials, value and options"
    )
    kinds = ", ".join(SUFFIXES)
    align.add_argument("source", type=Path, help=f"points, square distance matrix or sparse graph ({kinds})")
    align.add_argument("target", type=Path, help="the same for the other space")
    align.add_argument("-o", "--output", type=Path, required=True, help="result to write, .npz")
    align.add_argument("--distances", choices=DISTANCES, default="auto")
    align.add_argument("--epsilon", type=float, default=1e-3, help="entropy, 0 for none (default: %(default)s)")
    align.add_argument("-k", type=int, default=spaces.k, help="neighbours in the graph (default: chosen from the data)")
    align.add_argument("--landmarks", type=int, default=spaces.n_landmarks, help="default: %(default)s")
    align.add_argument("--anchors", type=int, default=sampling.n_anchors, help="default: %(default)s")
    align.add_argument("--max-iter", type=int, default=stopping.max_iter, help="default: %(default)s")
    align.add_argument("--strategy", choices=STRATEGIES, default="auto", help="how large problems are solved")
    align.add_argument("--marginal-tol", type=float, default=ladder.marginal_tol, help="default: %(default)s")
    align.add_argument("--rank", type=int, default=low_rank.rank, help="of low-rank plans (default: %(default)s)")
    align.add_argument("--seed", type=int, default=0, help="random state (default: %(default)s)")
    align.add_argument("--double", action="store_true", help="iterate in float64")
    align.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    align.add_argument("--backend", choices=BACKENDS, default="auto")

    show = commands.add_parser("demo", allow_abbrev=False, help="align a spiral with a Swiss roll and draw the result")
    show.add_argument("-o", "--output", type=Path, default=Path("demo.png"), help="picture (default: %(default)s)")
    show.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = build_parser().parse_args(arguments)
    run = {"align": run_align, "demo": run_demo}[options.command]
    with warnings.catch_warnings():
        warnings.simplefilter("always", TorchGWWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"torchgw: warning: {message}", file=sys.stderr)
        try:
            run(options)
        except (ValueError, TypeError, MemoryError, ArithmeticError, OSError) as error:
            print(f"torchgw: error: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("torchgw: interrupted", file=sys.stderr)
            return 130
    return 0


def run_align(arguments: argparse.Namespace) -> None:
    """Read, align, write."""
    check_output(arguments.output, ".npz")
    options = GWOptions(
        spaces=SpaceOptions(k=arguments.k, n_landmarks=arguments.landmarks),
        sampling=SamplingOptions(n_anchors=arguments.anchors),
        stopping=StoppingOptions(max_iter=arguments.max_iter),
        strategy=arguments.strategy,
        ladder=LadderOptions(marginal_tol=arguments.marginal_tol),
        low_rank=LowRankOptions(rank=arguments.rank),
        mixed_precision=not arguments.double,
    )
    source, target = read_space("source", arguments.source), read_space("target", arguments.target)
    bar = ProgressBar("align")
    with warnings.catch_warnings(record=True) as given:
        try:
            result = gw_align(
                source,
                target,
                distances=arguments.distances,
                epsilon=arguments.epsilon,
                options=options,
                device=arguments.device,
                backend=arguments.backend,
                random_state=arguments.seed,
                callback=bar,
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"{error} (X is {arguments.source}, Y is {arguments.target})") from error
        finally:
            bar.close()
    for warning in given:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    write_whole(result, arguments.output)
    if sys.stderr.isatty():
        n, k = result.shape
        print(
            f"{n} x {k}: GW {result.value:.6g}, marginal error {result.marginal_error:.1e}, "
            f"{result.status.name.lower()} after {result.n_iter} iterations; written to {arguments.output}",
            file=sys.stderr,
        )


def check_output(path: Path, suffix: str) -> None:
    """Refuse, before the solve, a place that the result could not be written to."""
    if path.suffix != suffix:
        raise ValueError(f"output must be a {suffix} file, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"output {path} lies in a folder that is not there; make {path.parent} first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"output {path} cannot be written to")


def write_whole(result: GWResult, path: Path) -> None:
    """Write aside, then rename, so that a reader never sees half a file."""
    aside = path.with_name(path.name + ".part")
    try:
        result.save(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def run_demo(arguments: argparse.Namespace) -> None:
    """Solve, print the table, draw the picture."""
    check_output(arguments.output, ".png")
    runs = demo.run_all(arguments.device, ProgressBar)
    print(demo.table(runs))
    try:
        demo.draw(runs, arguments.output)
    except ModuleNotFoundError as error:
        raise ValueError(f"the picture needs matplotlib ({error}); pip install matplotlib") from error
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    sys.exit(main())
