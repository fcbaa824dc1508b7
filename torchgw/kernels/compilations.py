"""Says when Triton compiles kernels, which takes seconds at their first use, and remembers which.

Triton tells a listener of each kernel whether it was on disk. Before version 3.4 it has a hook instead, which is called
whether it was or not.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any

logger = logging.getLogger("torchgw")

COMPILED: dict[str, str] = {}  # names of the package's kernels that this process has compiled, by Triton's key of them
FOLDER = "TRITON_CACHE_DIR"


@cache
def watch_compilations() -> None:
    """Be told of compilations from now on, beside whoever is told already."""
    from triton.runtime.jit import JITFunction

    try:
        from triton.knobs import compilation
    except ImportError:
        JITFunction.cache_hook = staticmethod(_Hook(JITFunction.cache_hook))
    else:
        compilation.listener = _Listener(compilation.listener)


class _Listener:
    """That of Triton 3.4 and newer."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, **told: Any) -> None:
        if self._before is not None:
            self._before(**told)
        function = getattr(told["src"], "fn", None)
        if not told["cache_hit"] and function is not None:
            _remember(str(told["metadata"]["hash"]), function.module, function.__name__)


class _Hook:
    """That of older versions; what it returns says whether to compile nothing."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, **told: Any) -> Any:
        _remember(str(told["key"]), told["fn"].module, told["fn"].name)
        return self._before is not None and self._before(**told)


def _remember(key: str, module: str, name: str) -> None:
    """Remember a kernel of the package; say so at the first."""
    if not module.startswith("torchgw."):
        return
    if not COMPILED:
        folder = os.environ.get(FOLDER, "~/.triton/cache")
        logger.info("compiling Triton kernels, once; the next process finds them on disk, in %s", folder)
    COMPILED[key] = name
