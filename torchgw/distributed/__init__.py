"""One solve by several processes of `torch.distributed`, on one machine or several."""

from torchgw.distributed.align import gw_align, resume, save
from torchgw.distributed.groups import started
from torchgw.runtime.ranks import RankError

__all__ = ["RankError", "gw_align", "resume", "save", "started"]
