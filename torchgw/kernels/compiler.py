"""Whether torch.compile works here, found out once, before any solve.

Compilation costs seconds: about 14 s on a CPU for the first kernel of a process with an empty cache, 2 s for each
further one, 6 s in all with a full cache. Each is announced through the "torchgw" logger. The cache lies in the folder
that the environment variable TORCHINDUCTOR_CACHE_DIR names, by default torchinductor_USER in the folder for temporary
files.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from torchgw.kernels.dispatch import Workload

logger = logging.getLogger("torchgw")

COMPILERS = {"CC": ("C", "gcc", "clang"), "CXX": ("C++", "g++", "clang++")}


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through torch.compile for any sizes, equal ones too: one compilation serves them all."""
    from torch.fx.experimental import _config

    made = torch.compile(function, dynamic=True)
    seen: set[tuple[str, torch.dtype]] = set()

    def run(*given: Any) -> Any:
        kind = given[0].device.type, given[0].dtype
        if kind not in seen:
            seen.add(kind)
            folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "the folder for temporary files")
            logger.info("torch.compile: a kernel for %s, %s; takes seconds, less from the cache in %s", *kind, folder)
        # By default sizes that are equal at first are compiled as one size, and again once they differ.
        with _config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            return made(*given)

    return run


def reason_unavailable(trial: Callable[[str], Any], workload: Workload) -> str | None:
    """Why the device has no working compiler, or None."""
    return failure(workload.device.type, trial)


@cache
def failure(device_type: str, trial: Callable[[str], Any]) -> str | None:
    """Run ``trial`` on the device; the reason if that fails. Once per process, device type and trial."""
    if device_type == "cpu" and missing("CXX"):
        return missing("CXX")
    try:
        # Only this trial is guarded: a kernel that compiled and then fails in a solve raises there.
        trial(device_type)
    except Exception as error:
        return f"torch.compile failed on a trial: {summarise_error(error)}"
    return None


def missing(variable: str) -> str | None:
    """What to do where no compiler is on the path, neither the one that the variable names nor a usual one; or None."""
    language, *usual = COMPILERS[variable]
    if any(map(shutil.which, (os.environ.get(variable, usual[0]), *usual))):
        return None
    return f"no {language} compiler: install {usual[0]} or set {variable}"


def summarise_error(error: Exception) -> str:
    """The error in a line: torch's own begins with the compiler's name, the reason stands in its second line."""
    lines = " ".join(line.strip() for line in str(error).splitlines()[:2])
    return f"{type(error).__name__}: {lines}"
