"""Commands by several processes: ``torchrun`` started for ``--nproc``, and what each of its processes does."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

FLAG = "--nproc"
TOLD = (1, 2, 130)  # exit codes of a command, which has said why
RESUMED = "torchgw resume FOLDER -o OUTPUT goes on with a --checkpoint, where there is one"


def is_among_ranks() -> bool:
    """Whether this process is one of those that ``torchrun`` started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return not is_among_ranks() or os.environ.get("RANK") == "0"


def should_report_errors() -> bool:
    """Whether this process says why it ends: one of each machine, whose files may be others."""
    return not is_among_ranks() or os.environ.get("LOCAL_RANK") == "0"


def launch_ranks(arguments: Sequence[str], nproc: int) -> int:
    """The exit code of the same command by so many processes on this machine, which share its cores."""
    if nproc < 1:
        print(f"torchgw: error: {FLAG} must be a number of processes >= 1, got {nproc}", file=sys.stderr)
        return 2
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // nproc, 1)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what went wrong is told here
    run_by = ["--standalone", "--nproc-per-node", str(nproc), "-m", "torchgw", *_remove_nproc(arguments)]
    try:
        run(parse_args(run_by))  # type: ignore[no-untyped-call]
    except (KeyboardInterrupt, SignalException):
        print(f"torchgw: interrupted; {RESUMED}", file=sys.stderr)
        return 130
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        if code not in TOLD:
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            print(f"torchgw: error: rank {rank} of {nproc} {ended}; {RESUMED}", file=sys.stderr)
        return code if code in TOLD else 1
    return 0


def _remove_nproc(arguments: Sequence[str]) -> list[str]:
    """The arguments but for the number of processes."""
    kept, skipped = list[str](), False
    for word in arguments:
        if skipped or word == FLAG:
            skipped = not skipped
        elif not word.startswith(f"{FLAG}="):
            kept.append(word)
    return kept
