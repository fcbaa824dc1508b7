"""The Triton slot of this family: the dispatcher asks here first, and is told why it must look on."""

from __future__ import annotations

from torchgw.kernels.dispatch import Request
from torchgw.kernels.softmin_dense.reference import SoftminDense


def unable(request: Request) -> str | None:
    """Why no Triton kernel can run this request."""
    if request.device.type != "cuda":
        return f"Triton kernels need a GPU, the tensors are on {request.device.type!r}"
    return "this version has no Triton kernel for a stored score"


def build() -> SoftminDense:
    """Never reached while `unable` always gives a reason; an error rather than a wrong kernel if it ever is."""
    raise NotImplementedError("this version has no Triton kernel for a stored score")
