"""`gw_align` by the ranks of a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torchgw.align import aligned
from torchgw.distributed.processes import Processes
from torchgw.marginals import Balanced
from torchgw.options import GWOptions
from torchgw.request.request import Asked, Request
from torchgw.results.result import GWResult


def gw_align(X: Any, Y: Any, *, group=None, **arguments) -> GWResult:
    ranks = Processes(dist.group.WORLD if group is None else group, torch.device("cpu"))
    given = dict(
        distances="auto",
        p=None,
        q=None,
        cost=None,
        alpha=None,
        supervision=None,
        init=None,
        epsilon="auto",
        marginals=Balanced(),
        options=GWOptions(),
        gradient_mode=None,
        device=None,
        backend="auto",
        random_state=None,
        callback=None,
        checkpoint=None,
    )
    request = Request.of(Asked(X=X, Y=Y, **given | arguments))
    result = aligned(request, ranks)
    gw_align.ranks = ranks
    return result
