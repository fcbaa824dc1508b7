"""One command, once its options are known: run, and print what was found, warnings and errors in a line each."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from torchgw.cli.align import InterruptedSolve, run_align, run_resume
from torchgw.cli.apply import run_apply
from torchgw.cli.demo import run_demo
from torchgw.cli.info import run_estimate, run_info
from torchgw.cli.pairwise import run_pairwise
from torchgw.cli.parser import run_completion
from torchgw.cli.ranks import is_first, should_report_errors
from torchgw.cli.score import run_score
from torchgw.cli.warm import run_warm
from torchgw.runtime.caller import allocating
from torchgw.runtime.ranks import LOST, RankError
from torchgw.types import AmbiguityWarning, TorchGWWarning

COMMANDS: dict[str, Callable[[argparse.Namespace], dict[str, Any] | str]] = {
    "align": run_align,
    "resume": run_resume,
    "apply": run_apply,
    "pairwise": run_pairwise,
    "score": run_score,
    "estimate": run_estimate,
    "info": run_info,
    "warm": run_warm,
    "demo": run_demo,
    "completion": run_completion,
}
REFUSALS = (ValueError, TypeError, MemoryError, ArithmeticError, OSError, ImportError, RankError)


def run(options: argparse.Namespace) -> int:
    """The exit code of a command, after what it found is printed."""
    if options.verbose and is_first():
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="torchgw: %(message)s", force=True)
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", TorchGWWarning)
        warnings.showwarning = lambda message, *_, **__: said.append(_format_warning(message, options.command))
        code, found, last = _run_command(options)
    if not is_first():
        if LOST in last or (last and should_report_errors()):  # all else the first one says
            print(f"torchgw: {last}", file=sys.stderr)
        return code
    for warning in said:
        print(f"torchgw: warning: {warning}", file=sys.stderr)
    if last:
        print(f"torchgw: {last}", file=sys.stderr)
    if found and options.json:
        print(json.dumps(found | {"warnings": said} if isinstance(found, dict) else found, indent=2))
    elif isinstance(found, str) and found:
        print(found)
    return code


def _format_warning(message: Warning | str, command: str) -> str:
    """A warning in one line, with what the command has against it."""
    said = " ".join(str(message).split())
    if isinstance(message, AmbiguityWarning) and command == "align":
        return f"{said}. Here these are --pairs and --features; a --report lists both matchings"
    return said


def _run_command(options: argparse.Namespace) -> tuple[int, dict[str, Any] | str, str]:
    """The exit code, what the command found, and the last line for stderr."""
    try:
        with allocating(f"torchgw {options.command}", "torchgw estimate says what it takes"):
            return 0, COMMANDS[options.command](options), ""
    except InterruptedSolve as ended:
        return 130, ended.found, f"interrupted: {ended}"
    except KeyboardInterrupt:
        return 130, "", "interrupted"
    except BrokenPipeError:
        raise
    except REFUSALS as error:
        ran_out = isinstance(error, MemoryError) and error.__cause__ is not None  # rather than refused before any work
        said = " ".join(str(error).split()).replace("supervision.pairs", "--pairs")
        said = said.replace("torchgw.distributed.resume goes", "torchgw resume FOLDER -o OUTPUT goes")
        return 1 if ran_out or isinstance(error, RankError) else 2, "", f"error: {said}"
