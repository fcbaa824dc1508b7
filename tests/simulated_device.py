"""A GPU that is not there: tensors that say they are on "cuda:0" and refuse what those of a real one refuse.

Within `simulated_gpu` the library finds one CUDA device. Its tensors hold CPU tensors, so numbers are those of the CPU;
for autograd and the dispatcher they are on torch's "meta" device, which nothing else uses, so that what C++ makes
beside an operand is found there too. What a real device would answer with an error is one here:

- operations on tensors of both devices, but for CPU scalars in pointwise operations, and CPU indices of a tensor there
- ``numpy()`` and ``np.asarray``
- draws by a generator of the other device
- what a graph is captured of that the host waits for, or that copies from the host

and so is what works on a real device but ought not to happen in a solve: floating sums whose order is open there
(``index_add_`` and the like), and drivers that only CPUs have. Operations for which the host waits are counted, by the
line of the package that asked, and so are launches: every operation that computes is at least one, and the replay of a
graph is one.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import thread
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

ASIDE = 2**16  # bytes of the host that CUDA copies aside at once when they are sent

CUDA, META = torch.device("cuda", 0), torch.device("meta")
aten = torch.ops.aten

COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXING = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
)
# Their results have a size, or are a number, that the host must know before it goes on.
WAITED_FOR = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "_linalg_check_errors",
    "_linalg_eigh",
    "linalg_lstsq",
}
SUMS_IN_ANY_ORDER = {"index_add", "index_add_", "scatter_add", "scatter_add_"}
NOTHING = ("empty", "new_empty", "detach", "_unsafe_view", "_reshape_alias", "alias", "lift_fresh")  # is computed
SCANS = {"cumsum", "cumsum_", "kthvalue"}  # which torch refuses where algorithms are to be deterministic


class OnDevice(Tensor):
    """A tensor of the simulated device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        strided = held.layout is torch.strided  # what is sparse seems dense: products are all that is asked of it
        laid_out = (held.stride(), held.storage_offset()) if strided else ()
        made: OnDevice = Tensor._make_wrapper_subclass(cls, held.shape, *laid_out, dtype=held.dtype, device=META)
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of a simulated device outside of its simulation")

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    layout = property(lambda self: self.held.layout)

    def __repr__(self, **_: object) -> str:
        return f"OnDevice({self.held})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()


class Generator(torch.Generator):
    """A generator of either device; draws are those of the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, device="cpu")
        made.place = torch.device(device)
        return made

    device = property(lambda self: CUDA if self.place.type == "cuda" else self.place)


def _distinct(label: Tensor, dim: int) -> bool:
    """Whether no place is added to twice."""
    label = label.sort(dim).values
    return bool((label.diff(dim=dim) != 0).all())


def _inner(x: Any) -> Any:
    return x.held if isinstance(x, OnDevice) else x


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """What `change` makes of each leaf of lists and tuples."""
    if isinstance(value, list | tuple):
        parts = [_mapped(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


class Simulation(TorchDispatchMode):
    """Runs operations on what the tensors hold, and counts by place: ``waits``, operations that the host waits for,
    ``reads``, events that it waits for behind other work, ``launches``, all that compute, ``captured``, what goes into
    graphs instead, ``uploads``, copies to the device. A copy is waited for unless it is asked not to block, and on the
    way to the device comes from pinned memory or is small. ``crossings`` are the most entries of a copy between
    devices, ``variants`` the kinds of arguments that each Triton kernel is compiled for, ``memory`` what tensors
    take."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.captured: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.crossings: Counter[str] = Counter()
        self.variants: defaultdict[str, set[Hashable]] = defaultdict(set)
        self.memory = Memory()
        self.capturing: Graph | None = None
        self.pools = set[Any]()  # that captures write to
        self._within_launch = False

    @contextmanager
    def one_launch(self, name: str, body: Callable[..., None], given: Sequence[Any]) -> Iterator[None]:
        """What happens within is a kernel of this name: one launch, and nothing that the host waits for. A graph does
        it again by the ``body``, whatever shapes are within."""
        self._counter[f"{caller()} {name}"] += 1
        self._within_launch = True
        try:
            yield
        finally:
            self._within_launch = False
        if self.capturing is not None:
            self.capturing.add_kernel(partial(body, *_mapped(_inner, tuple(given))))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode
                return func.decompose(*args, **kwargs)
        tensors = [t for t in _leaves((args, *kwargs.values())) if isinstance(t, Tensor)]
        there = [t for t in tensors if isinstance(t, OnDevice)]
        if func is aten._to_copy.default:
            kwargs.pop("layout", None)  # a copy keeps its own: what is sparse seems dense to torch
        to = kwargs.get("device")
        lands = bool(there) if to is None else torch.device(to).type == "meta"
        if to is not None and lands:
            kwargs["device"] = torch.device("cpu")
        self._refuse(func, args, kwargs, tensors, there)
        before = self.waits.total() + self.uploads.total()
        if not self._within_launch:
            self._count(func, args, kwargs, there, lands)
        if self.capturing is not None and not self._within_launch and func in INDEXING and len(tensors) > len(there):
            self.capturing.valid = False
            raise RuntimeError(f"{func}: not permitted while a graph is captured: a number of the host is sent")
        call = partial(func, *_mapped(_inner, args), **{name: _mapped(_inner, value) for name, value in kwargs.items()})
        if self.capturing is not None:
            if self.waits.total() + self.uploads.total() > before:
                self.capturing.valid = False
                raise RuntimeError(f"{func}: not permitted while a graph is captured")
            self.capturing.keep(func, args, kwargs)
        found = call()
        if self.capturing is not None and not self._within_launch:
            self.capturing.add(func, call, found)
        if torch.Tag.inplace_view in func.tags and there:
            with no_dispatch():  # squeeze_() and the like change what the wrapper says of itself, too
                func(*args, **kwargs)
        if not lands or (func is aten.copy_.default and not isinstance(args[0], OnDevice)):
            return args[0] if func is aten.copy_.default else found
        known = {id(t.held): t for t in there}

        def there_too(x: Any) -> Any:
            if not isinstance(x, Tensor) or id(x) in known:
                return known.get(id(x), x)
            made = OnDevice(x)
            if not self._within_launch:  # what a kernel keeps in registers takes no memory
                self.memory.add(made)
            return made

        return _mapped(there_too, found)

    def _refuse(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], there: list[OnDevice]) -> None:
        name = func.overloadpacket.__name__
        if not there:
            return
        here = [t for t in tensors if not isinstance(t, OnDevice)]
        if func in INDEXING and isinstance(args[0], OnDevice):
            here = [t for t in here if t.is_floating_point() and t.ndim]
        elif func in COPIES:
            here = []
        elif torch.Tag.pointwise in func.tags or name in ("where", "fill_", "masked_fill", "masked_fill_", "lerp"):
            changed = args[0] if name.endswith("_") and isinstance(args[0], Tensor) else kwargs.get("out", there[0])
            here = [t for t in here if t.ndim or t is changed]
        if here:
            shapes = [tuple(t.shape) for t in here]
            raise RuntimeError(f"{func}: expected all tensors on cuda:0, got some on the CPU, of shapes {shapes}")
        first = args[0]
        if not isinstance(first, Tensor) or not first.is_floating_point():
            weighed = name == "bincount" and (args[1] if len(args) > 1 else kwargs.get("weights")) is not None
            if not weighed:
                return
        one_row = first.ndim and first.numel() == first.shape[args[1] if name == "logcumsumexp" else -1]
        one_row = one_row and (name == "logcumsumexp" or (name == "multinomial" and args[1] > 1)) and first.numel() > 1
        one_row = one_row or name in SCANS
        if name in SUMS_IN_ANY_ORDER and _distinct(args[2].held, args[1]):
            return
        if name in SUMS_IN_ANY_ORDER or name == "bincount" or one_row:
            raise RuntimeError(f"{func}: the order of its sums is open on a GPU, so equal seeds give other bits")
        if name == "linalg_lstsq" and kwargs.get("driver", "gels") != "gels":
            raise RuntimeError(f"{func}: no driver but 'gels' on a GPU, got {kwargs['driver']!r}")

    def _count(self, func: Any, args: Any, kwargs: Any, there: list[OnDevice], lands: bool) -> None:
        name = func.overloadpacket.__name__
        copies = func in COPIES
        target = isinstance(args[0], OnDevice) if func is aten.copy_.default else lands
        source = args[1] if func is aten.copy_.default else args[0]
        if copies and isinstance(source, OnDevice) != target and isinstance(source, Tensor):
            self.crossings[caller()] = max(self.crossings[caller()], source.numel())
        elif (there or lands) and _computes(func):
            self._counter[f"{caller()} {name}"] += 1
        if copies:
            queued = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
            if isinstance(source, OnDevice) and not target:
                if not queued:
                    self.waits[f"{caller()} copy to the host"] += 1
            elif target and not isinstance(source, OnDevice):
                self.uploads[caller()] += 1
                if not (queued and (source.nbytes <= ASIDE or hasattr(source, "pinned"))):
                    self.waits[f"{caller()} copy to the device"] += 1
            return
        if func in INDEXING and isinstance(args[0], OnDevice):
            for place in args[1]:
                if isinstance(place, Tensor) and place.ndim and not isinstance(place, OnDevice):
                    self.waits[f"{caller()} places from the host"] += 1
        masks = func in INDEXING and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
        if masks and func is not aten.index.Tensor and args[2].numel() == 1:
            masks = False  # filled without looking where
        if there and (name in WAITED_FOR or masks or (name == "repeat_interleave" and "output_size" not in kwargs)):
            self.waits[f"{caller()} {name}"] += 1

    def reset(self) -> None:
        """Begin to count anew."""
        for counter in (self.waits, self.launches, self.uploads, self.captured, self.reads, self.crossings):
            counter.clear()
        self.memory.peak = self.memory.now

    @property
    def _counter(self) -> Counter[str]:
        return self.launches if self.capturing is None else self.captured

    @property
    def n_launches(self) -> int:
        """How often the host launched something."""
        return sum(self.launches.values())

    @property
    def n_waits(self) -> int:
        """How often the host waited."""
        return sum(self.waits.values())

    def table(self, most: int = 20) -> str:
        """The places that waited most often."""
        return "\n".join(f"{count:6}  {place}" for place, count in self.waits.most_common(most))


class Memory:
    """The bytes that tensors of the device take: ``now``, at the ``peak``, and the line that reached it.

    What an operation needs beside its result, and what an allocator keeps, is not there.
    """

    def __init__(self) -> None:
        self.now, self.peak, self.place = 0, 0, ""
        self._users: Counter[int] = Counter()

    def add(self, tensor: OnDevice) -> None:
        storage = tensor.held.untyped_storage() if tensor.held.layout is torch.strided else None
        if storage is None or not storage.nbytes():
            return
        key, size = storage.data_ptr(), storage.nbytes()
        self._users[key] += 1
        if self._users[key] == 1:
            self.now += size
            if self.now > self.peak:
                self.peak, self.place = self.now, caller()
        weakref.finalize(tensor, self._remove, key, size).atexit = False

    def _remove(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self.now -= size


def _computes(func: Any) -> bool:
    """Whether an operation launches a kernel: views and empty tensors do not."""
    aliased = (argument.alias_info for argument in func._schema.arguments)
    view = any(alias is not None and not alias.is_write for alias in aliased)
    view = view or torch.Tag.inplace_view in func.tags
    return not view and not func.overloadpacket.__name__.startswith(NOTHING)


class Graph:
    """A CUDA graph: the operations of a capture, which leaves all memory as it was, done again at each replay."""

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Callable[[], Any], Any]] = []
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def capture_begin(self, pool: Any, **_: Any) -> None:
        simulation = self._simulation()
        if pool in simulation.pools:
            raise RuntimeError(f"beginAllocateToPool: already recording to mempool_id {pool}")
        simulation.pools.add(pool)
        self._pool, self.valid = pool, True
        simulation.capturing = self

    def capture_end(self) -> None:
        self._simulation().capturing = None
        with no_dispatch():
            for storage, was in self._saved.values():
                storage.copy_(was)
        if not self.valid:  # as torch, which leaves the pool open
            raise RuntimeError("operation failed due to a previous error during capture")
        self._simulation().pools.remove(self._pool)

    def replay(self) -> None:
        self._simulation().launches[f"{caller()} graph"] += 1
        with no_dispatch():
            for func, call, found in self._calls:
                again = call()
                if func is None:  # a kernel, which writes where it is told to
                    continue
                for old, new in zip(_leaves([found]), _leaves([again]), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr() and _computes(func):
                        old.copy_(new.reshape(old.shape))

    def keep(self, func: Any, args: Any, kwargs: Any) -> None:
        """Note what an operation is about to write over, but memory of the capture's own."""
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given:
                for tensor in map(_inner, _leaves([given[argument.name]])):
                    key = tensor.untyped_storage().data_ptr()
                    if key not in self._made and key not in self._saved:
                        with no_dispatch():
                            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                            self._saved[key] = whole, whole.clone()

    def add(self, func: Any, call: Callable[[], Any], found: Any) -> None:
        """An operation that was done, and its results."""
        if torch.Tag.inplace_view not in func.tags:  # whose tensor has its shape now
            self._calls.append((func, call, found))
        if _computes(func) or func.overloadpacket.__name__.startswith(("empty", "new_empty")):
            for tensor in _leaves([found]):
                if isinstance(tensor, Tensor):
                    key = tensor.untyped_storage().data_ptr()
                    if key not in self._saved:
                        self._made.add(key)

    def add_kernel(self, call: Callable[[], None]) -> None:
        """A kernel that was launched."""
        self._calls.append((None, call, None))

    @staticmethod
    def _simulation() -> Simulation:
        return next(mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Simulation))


class _Stream:
    cuda_stream = 0

    def __init__(self, device: object = None) -> None:
        pass

    def wait_stream(self, other: object) -> None:
        pass


class _Translated(TorchFunctionMode):
    """Calls that name the device, in torch's words for the tensors that stand for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            kwargs["device"] = _translated(kwargs["device"])
        if kwargs.get("generator") is not None:
            asked = kwargs.get("device") or getattr(args[0], "device", "cpu")
            if (torch.device(asked).type != "cpu") != (kwargs["generator"].device.type == "cuda"):
                raise RuntimeError(f"{func}: the generator is on {kwargs['generator'].device}, the tensor elsewhere")
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == META:
            kwargs.pop("device")
            return func(*args, **kwargs).to(META)
        if func is Tensor.to_dense and isinstance(args[0], OnDevice):
            return args[0].held.to_dense().to(META)
        if func is Tensor.new_tensor and isinstance(args[0], OnDevice):
            return torch.tensor(*args[1:], **({"dtype": args[0].dtype} | kwargs)).to(META)
        indexed = func in (Tensor.__getitem__, Tensor.__setitem__) and not isinstance(args[0], OnDevice)
        if indexed and any(isinstance(x, OnDevice) for x in _leaves(args[1:])):
            raise RuntimeError(f"{func.__name__} of a tensor on the CPU with one of cuda:0")
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            pinned.pinned = True
            return pinned
        if func is Tensor.to:
            args = (args[0], *map(_translated, args[1:]))
        elif func is Tensor.cuda:
            func, args = Tensor.to, (args[0], META)
        return func(*args, **kwargs)


def _translated(value: Any) -> Any:
    named = isinstance(value, torch.device | str) and torch.device(value).type == "cuda"
    return META if named else value


def caller() -> str:
    """The innermost line of the package that is being run, but for those that only carry tensors."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/torchgw/" in name and not name.endswith("/runtime/transfer.py"):
            return f"{name.rpartition('/torchgw/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "the test"


class _Event:
    def __init__(self, **_: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        Graph._simulation().reads[caller()] += 1


@contextmanager
def simulated_gpu() -> Iterator[Simulation]:
    """Within it there is one CUDA device, of which `Simulation` keeps count."""
    pools = count()
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(
            multi_processor_count=132, total_memory=2**37, name="a card"
        ),
        "mem_get_info": lambda device=None: (2**36, 2**37),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_allocator_backend": lambda: "native",
        "device": lambda device: nullcontext(),
        "Event": _Event,
        "Stream": _Stream,
        "current_stream": _Stream,
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: (0, next(pools)),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in cuda.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch, "Generator", Generator)
        with Simulation() as simulation, _Translated() as translated:
            # Calls leave the mode that sees them, and threads begin without any.
            backward, work = torch.autograd._engine_run_backward, thread._WorkItem.run

            def run_backward(*args: Any, **kwargs: Any) -> Any:
                with translated:
                    return backward(*args, **kwargs)

            def run_item(item: Any, *args: Any) -> None:
                with simulation, translated:
                    work(item, *args)

            patch.setattr(torch.autograd, "_engine_run_backward", run_backward)
            patch.setattr(thread._WorkItem, "run", run_item)
            yield simulation
