"""What of its surroundings reaches a call: nothing that would change its numbers.

torch and NumPy keep settings for a process, a thread or a block of code, and consult them in every operation. A solve
chooses the precision, the device and the kind of its tensors itself. So within every public call

| surrounding | is |
|---|---|
| `torch.autocast` | off |
| `torch.set_default_device`, `with torch.device` | off |
| `torch.inference_mode` | off: what is made can be differentiated later; whether gradients are recorded stays |
| hooks on saved tensors, as `torch.utils.checkpoint` sets them | off: a graph keeps the solve that it belongs to |
| `numpy.seterr` | as NumPy begins |
| products that may round float32 to fewer bits | exact, see `exact_products` |
| `torch.compile` | left: the call is no part of a graph |

A solve decides by numbers. So transforms that hide them from Python are refused by name: `torch.func`, `torch.vmap`,
fake tensors, tracing, the capture of a CUDA graph. The default dtype is one for all threads, so code names its dtypes.

``torch.set_float32_matmul_precision("high")``, ``allow_tf32`` and ``fp32_precision`` let every product round its inputs
to the 10 bits of tf32, on some CPUs to bfloat16. Scores reach a few hundred bits, so they would be off by up to half a
bit without a word. The settings are the process's, so the first call that begins turns them off and the last one that
ends restores them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torchgw.runtime.threads import lock_across_forks

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind", bound=type)

UNCOMPILED = "a solve decides by numbers, so it is no part of a graph; leave fullgraph=True out"
BY_AUTOGRAD = "take .backward() or torch.autograd.grad"
# What hides numbers from Python, by torch's own names, and what to do instead.
TRANSFORMS = {
    "Vmap": ("torch.vmap", "loop over the problems, or take gw_pairwise"),
    "Grad": ("torch.func (grad, vjp, jacrev)", BY_AUTOGRAD),
    "Jvp": ("torch.func (jvp, jacfwd)", BY_AUTOGRAD),
    "Functionalize": ("torch.func.functionalize", "call it outside"),
    "FakeTensorMode": ("FakeTensorMode (torch.export, torch.compile)", "call it with tensors that have numbers"),
    "ProxyTorchDispatchMode": ("make_fx or torch.export", "call it outside"),
    "FunctionalTensorMode": ("torch.export", "call it outside"),
    "dual level": ("torch.autograd.forward_ad", BY_AUTOGRAD),
    "tracing": ("torch.jit.trace", "call it outside"),
    "capture": ("the capture of a CUDA graph", "call it outside"),
}
_PARENTS: tuple[tuple[Any, Any], ...] = (
    (torch.backends.cuda, torch.backends.cudnn),  # which sets all of CUDA
    (torch.backends.mkldnn, torch.backends.mkldnn),
)
_LOCK = lock_across_forks()
_RUNNING: list[Callable[[], None]] = []
_here = threading.local()  # ``within``: whether this thread is in surroundings of a solve


def isolate(function: Callable[P, R], refusing: str = "", traced: bool = False) -> Callable[P, R]:
    """A decorator: the surroundings of a call of this function do not reach it, as the head of this file has it.

    ``refusing`` is the name under which it refuses transforms that hide numbers; without one it lets them pass. What
    may be ``traced`` by `torch.compile` becomes a part of graphs.
    """

    def apart(*arguments: P.args, **keywords: P.kwargs) -> R:
        if refusing:
            _refuse_transforms(refusing)
        with own_surroundings():
            return function(*arguments, **keywords)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if (traced and torch.compiler.is_compiling()) or _has_own_surroundings():
            return function(*arguments, **keywords)
        if "torch._dynamo" not in sys.modules:  # torch's own decorator would import it, which takes seconds
            return apart(*arguments, **keywords)
        run: Callable[P, R] = torch.compiler.disable(apart, reason=UNCOMPILED)  # type: ignore[no-untyped-call]
        return run(*arguments, **keywords)

    if not traced:  # what torch's decorator leaves on a function: a graph ends where it is called
        vars(call).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=UNCOMPILED)
    return call


def isolate_methods(kind: Kind, traced: bool = False) -> Kind:
    """A decorator: `isolate` for every public method and property of a class but generators."""
    shield = functools.partial(isolate, traced=traced)
    for name, member in list(vars(kind).items()):
        if name.startswith("_") or getattr(member, "__isabstractmethod__", False):
            continue
        if isinstance(member, functools.cached_property):
            member.func = shield(member.func)
        elif isinstance(member, property):
            setattr(kind, name, property(shield(cast(Any, member.fget)), doc=member.__doc__))
        elif isinstance(member, classmethod):
            setattr(kind, name, classmethod(shield(member.__func__)))
        elif inspect.isfunction(member) and not inspect.isgeneratorfunction(member):
            setattr(kind, name, shield(member))
    return kind


@contextmanager
def own_surroundings() -> Iterator[None]:
    """The surroundings of a solve, see the head of this file."""
    with ExitStack() as stack:
        if torch._C._is_any_autocast_enabled():
            stack.enter_context(torch._C._DisableAutocast())
        if _default_device():
            stack.enter_context(_no_default_device())
        if torch.is_inference_mode_enabled():
            recorded = torch.is_grad_enabled()
            stack.enter_context(torch.inference_mode(False))  # which would record
            stack.enter_context(torch.set_grad_enabled(recorded))
        if torch._C._autograd._top_saved_tensors_default_hooks(True):
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is))
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.enter_context(exact_products())
        within, _here.within = getattr(_here, "within", False), True
        try:
            yield
        finally:
            _here.within = within


def _default_device() -> bool:
    """Whether tensors are made on another device than the CPU where none is named."""
    return any(isinstance(mode, DeviceContext) for mode in _function_modes())


def _function_modes() -> list[object]:
    """The modes that see this thread's calls of torch."""
    found: list[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return found


@contextmanager
def _no_default_device() -> Iterator[None]:
    """Without the modes that set one; others stay."""
    modes = [_pop_mode() for _ in _function_modes()]  # type: ignore[no-untyped-call]
    kept = [mode for mode in modes if not isinstance(mode, DeviceContext)]
    for mode in reversed(kept):
        _push_mode(mode)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for _ in kept:
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in reversed(modes):
            _push_mode(mode)  # type: ignore[no-untyped-call]


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _has_own_surroundings() -> bool:
    """Whether this thread is in surroundings of a solve, and nothing has disturbed them since, as callbacks may."""
    return getattr(_here, "within", False) and not (
        torch._C._is_any_autocast_enabled()
        or (torch._C._len_torch_function_stack() and _default_device())
        or torch.is_inference_mode_enabled()
        or torch._C._are_functorch_transforms_active()
    )


def _refuse_transforms(name: str) -> None:
    """Raise a RuntimeError where a transform of torch hides the numbers of what is called ``name``."""
    for kind in _active():
        if kind in TRANSFORMS:
            what, instead = TRANSFORMS[kind]
            raise RuntimeError(f"{name} cannot be called under {what}, which hides the numbers of tensors; {instead}")


def _active() -> Iterator[str]:
    """What is active of the kinds of `TRANSFORMS`, and of others that leave numbers visible."""
    if torch._C._are_functorch_transforms_active():
        yield torch._C._functorch.peek_interpreter_stack().key().name
    for mode in _get_current_dispatch_mode_stack():
        yield type(mode).__name__
    if forward_ad._current_level >= 0:
        yield "dual level"
    if torch._C._get_tracing_state() is not None:
        yield "tracing"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        yield "capture"


@contextmanager
def exact_products() -> Iterator[None]:
    """Within it products of float32 matrices round like float32."""
    with _LOCK:
        _RUNNING.append(_RUNNING[0] if _RUNNING else _insist())
    try:
        yield
    finally:
        with _LOCK:
            restore = _RUNNING.pop()
            if not _RUNNING:
                restore()


def _insist() -> Callable[[], None]:
    """Ask for exact products; what to call to have the settings back.

    Torch has two vocabularies for them and refuses to read the older one where the newer says something else; so the
    older is used where it can be read, and the newer, which alone knows "as the parent", brings back what that hides.
    """
    old = _old_words()
    if old == "highest":
        return lambda: None
    new = [pair for pair in _PARENTS if hasattr(pair[0].matmul, "fp32_precision")]
    held = [(backend.matmul, backend.matmul.fp32_precision, parent.fp32_precision) for backend, parent in new]
    if old is None:
        for matmul, _, _ in held:
            matmul.fp32_precision = "ieee"
    else:
        torch.set_float32_matmul_precision("highest")

    def restore() -> None:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        for matmul, before, parent in held:
            matmul.fp32_precision = "none" if before == parent else before

    return restore


def _old_words() -> str | None:
    """The setting in the older words; None where it was made in the newer ones."""
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32
        found = torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
    return found if allowed == (found != "highest") else None
