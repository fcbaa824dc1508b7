"""``torchgw demo`` and ``torchgw completion``."""

from __future__ import annotations

import argparse
from typing import Any

from torchgw import demo
from torchgw.cli.output import check_output, finite
from torchgw.cli.parser import build_parser
from torchgw.diagnostics.status import Status
from torchgw.progress import bar_on_terminal


def run_demo(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """Solve, print the table, draw the picture."""
    check_output(arguments.output, ".png")
    runs = [_aligned(n, k, provider, arguments.device) for n, k, provider in demo.RUNS]
    if not arguments.json:
        print(demo.table(runs), flush=True)
    try:
        demo.draw(runs, arguments.output)
    except ModuleNotFoundError as error:
        raise ValueError(f"the picture needs matplotlib ({error}); pip install matplotlib") from error
    if not arguments.json:
        return f"wrote {arguments.output}"
    rows = [
        {
            "shape": list(run.result.shape),
            "distances": run.provider,
            "signed_rho": run.spearman,
            "value": finite(run.result.value),
            "marginal_error": run.result.marginal_error,
            "status": run.result.status.name.lower(),
            "seconds": run.result.timings,
        }
        for run in runs
    ]
    return {"output": str(arguments.output), "runs": rows}


def _aligned(n: int, k: int, provider: str, device: str | None) -> demo.Run:
    """One run under its progress bar; Ctrl-C in it ends the demo."""
    bar: Any = bar_on_terminal(f"{n} x {k} {provider}")
    try:
        run = demo.align_once(n, k, provider, device, bar)
    finally:
        if bar is not None:
            bar.close()
    if run.result.status is Status.CANCELLED:
        raise KeyboardInterrupt
    return run


def run_completion(arguments: argparse.Namespace) -> str:
    """The script of a shell."""
    try:
        import shtab
    except ImportError as error:
        raise ImportError("shell completion needs shtab; pip install shtab") from error
    script: str = shtab.complete(build_parser(), arguments.shell)
    return script
