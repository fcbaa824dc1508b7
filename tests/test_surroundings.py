"""What surrounds a call does not reach it: in every surrounding of a table each entry point has the bits that it has
without, or one line names the surrounding."""

from __future__ import annotations

import atexit
import functools
import inspect
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

import torchgw
from tests.fuzz_makers import setting
from torchgw import CoarseOptions, GWOptions, Implicit, LowRankOptions, Unbalanced, gw_align, gw_loss
from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.reader import Readable
from torchgw.results.curvature import PlanCurvature, PlanMode
from torchgw.results.out_of_sample import Unseen
from torchgw.runtime.surroundings import isolate
from torchgw.spaces.scale import ScaledDistances

pytestmark = pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(10, 2)), RNG.normal(size=(12, 3))
GIVEN, OTHER = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
NEAR: dict[str, Any] = {"epsilon": 0.05, "init": np.eye(10, 12), "distances": "euclidean", "random_state": 0}
FEW = GWOptions(coarse=CoarseOptions(n_landmarks=5, n_starts=1, n_basins=1))


class Passing(TorchFunctionMode):
    """A mode that sees every call of torch and changes none."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), keywords: Any = None) -> Any:
        return function(*given, **(keywords or {}))


def autocast(dtype: torch.dtype) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=dtype)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast, bfloat16": lambda: autocast(torch.bfloat16),
    "autocast, float16": lambda: autocast(torch.float16),
    "default dtype float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "default dtype bfloat16": lambda: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default device": lambda: setting(torch.set_default_device, "meta", None),
    "with torch.device": lambda: torch.device("meta"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "flush denormals": lambda: setting(torch.set_flush_denormal, True, False),
    "products in bfloat16": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "numpy.errstate": lambda: np.errstate(all="raise"),
    "function mode": Passing,
    "dispatch mode": lambda: FlopCounterMode(display=False),
    "saved tensors on the host": torch.autograd.graph.save_on_cpu,
}


def arrays(*found: Any) -> list[Any]:
    return [each.detach().double().numpy() if isinstance(each, Tensor) else np.asarray(each, float) for each in found]


def with_gradient(value: Callable[[Tensor], Tensor], given: Tensor = GIVEN) -> list[Any]:
    """The value, and its gradient where one is recorded."""
    leaf = given.clone().requires_grad_()
    found = value(leaf)
    if found.requires_grad:
        found.backward()  # type: ignore[no-untyped-call]
    return arrays(found, *([] if leaf.grad is None else [leaf.grad]))


def through_the_plan(mode: Any) -> Callable[[Tensor], Tensor]:
    def value(leaf: Tensor) -> Tensor:
        result = gw_align(leaf, OTHER, gradient_mode=mode, **NEAR)
        pulled = result.pull(OTHER)
        assert isinstance(pulled, Tensor)
        return result.loss + pulled.square().sum()

    return value


@functools.cache
def solved() -> torchgw.GWResult:
    return gw_align(X, Y, **NEAR)


@functools.cache
def streamed() -> torchgw.GWResult:
    return gw_align(X, Y, epsilon=0.05, options=GWOptions(strategy="streaming"), distances="landmark", random_state=0)


def read(result: torchgw.GWResult) -> list[Any]:
    """All that a result computes when it is asked."""
    vars(result).pop("plan", None)  # which is kept
    values = OTHER.to(result.coupling.rows(slice(1)).dtype)
    moved = [result.push(X), result.pull(Y), result.argmax(), result.argmax(0), *result.top_k(2), result.row(0)]
    kept = [
        result.marginal(),
        result.plan,
        result.sparsify(0.5).toarray(),
        *result.matching(),
        result.coupling.rows(slice(2)),
    ]
    drawn, sure = result.sample(5, random_state=0), result.confidence()
    return arrays(*moved, *kept, *drawn, sure.entropy, sure.margin, result.coupling.apply(values, 1))


def curved() -> list[Any]:
    found = torchgw.curvature(solved())
    return arrays([mode.eigenvalue for mode in found.modes], found.modes[0].moved, found.stiffness)


def fitted() -> list[Any]:
    model = torchgw.GromovWasserstein(epsilon=0.05, distances="euclidean", options=FEW, random_state=0).fit(X, Y)
    return arrays(model.transform(X[:3]), model.inverse_transform(Y[:3]))


@functools.cache
def begun() -> Path:
    """A checkpoint of a solve that was stopped."""
    folder = Path(tempfile.mkdtemp()) / "checkpoint"
    atexit.register(shutil.rmtree, folder.parent)
    gw_align(X, Y, checkpoint=folder, callback=lambda progress: True, **NEAR)
    return folder


def annotated() -> list[Any]:
    a, b = (pytest.importorskip("anndata").AnnData(side) for side in (X, Y))
    found = torchgw.anndata.align(a, b, use_rep="X", options=FEW, epsilon=0.05, random_state=0)
    return arrays(found.value)


@functools.cache
def distances() -> list[Any]:
    """Each of the library's kinds of distances."""
    matrix = np.abs(X[:, :1] - X[:, 0])
    points = torchgw.EuclideanDistances(X), torchgw.HeatDistances(X), torchgw.FactoredDistances(X, np.ones(2))
    graphs = [kind(csr_array(matrix)) for kind in (torchgw.DijkstraDistances, torchgw.LandmarkDistances)]
    return [*points, *graphs, torchgw.AdjacencyDistances(matrix), torchgw.PrecomputedDistances(matrix)]


def provided() -> list[Any]:
    found = [space.with_scale(2.0).to(torch.device("cpu"), torch.float32) for space in distances()]
    some = torch.tensor([1, 3], device="cpu")
    rows = [space.rows(some) for space in found]
    assert {each.dtype for each in rows} == {torch.float32}
    return arrays(*rows, *(side for space in found for side in space.factors() or ()))


def drawn() -> list[Any]:
    figures = [
        torchgw.plot.plan(solved()),
        torchgw.plot.confidence(solved(), X),
        torchgw.plot.spectrum(solved(), n_probes=2, n_steps=5, random_state=0),
    ]
    shown = figures[0].images[0].get_array(), figures[1].collections[0].get_facecolor(), figures[2].lines[0].get_ydata()
    plt.close("all")
    return arrays(*shown)


LOW_RANK = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=3, max_iter=20))
ENTRIES: dict[str, Callable[[], list[Any]]] = {
    "gw_align": lambda: arrays(gw_align(X, Y, options=FEW, random_state=0).plan),
    "gw_loss": lambda: with_gradient(lambda leaf: gw_loss(leaf, OTHER, **NEAR)),
    "read": lambda: read(solved()),
    "relaxed": lambda: arrays(gw_align(X, Y, marginals=Unbalanced(0.1, 0.1), **NEAR).plan),
    "without entropy": lambda: arrays(gw_align(X, Y, **NEAR | {"epsilon": 0.0}).plan),
    "streaming": lambda: arrays(
        gw_align(X, Y, **NEAR | {"distances": "landmark"}, options=GWOptions(strategy="streaming")).argmax()
    ),
    "read streamed": lambda: read(streamed()),
    "low rank": lambda: arrays(gw_align(X, Y, distances="landmark", options=LOW_RANK, random_state=0).value),
    "implicit": lambda: with_gradient(through_the_plan(Implicit())),
    "heat": lambda: with_gradient(
        lambda leaf: gw_loss(torchgw.HeatDistances(leaf), OTHER, **NEAR | {"distances": "auto"})
    ),
    "providers": provided,
    "plot": drawn,
    "unseen": lambda: arrays(
        solved().transform(np.vstack((X, X))).pull(Y), streamed().transform(X[:3] + 0.01).argmax()
    ),
    "gw_pairwise": lambda: arrays(torchgw.gw_pairwise([X, Y, X + Y[:10, :2]], random_state=0).values),
    "gw_neighbours": lambda: arrays(torchgw.gw_neighbours([X, Y, X + Y[:10, :2]], 1, random_state=0).indices),
    "epsilon_path": lambda: arrays(
        [each.value for each in torchgw.epsilon_path(X, Y, epsilons=[0.1, 0.05], random_state=0).results]
    ),
    "gw_certify": lambda: arrays(torchgw.gw_certify(X[:6], Y[:6], seconds=0.01, gap=1.0, random_state=0).value),
    "curvature": curved,
    "resume": lambda: arrays(torchgw.resume(begun()).value),
    "anndata": annotated,
    "estimator": fitted,
    "joint_embedding": lambda: arrays(*torchgw.joint_embedding([X, Y], {(0, 1): solved()}, n_components=2).coordinates),
    "distributed": lambda: arrays(torchgw.distributed.gw_align(X, Y, **NEAR).value),
}

UNRECORDED = ("no_grad", "inference_mode")
SEEN_EVERYWHERE = ("gw_align", "gw_loss", "read", "implicit")
SEEN_BY_ALL = ("autocast, bfloat16", "default device")
CELLS = [
    pytest.param(around, entry, marks=() if entry in SEEN_EVERYWHERE or around in SEEN_BY_ALL else pytest.mark.slow)
    for around in SURROUNDINGS
    for entry in ENTRIES
]


@functools.cache
def alone(entry: str) -> list[Any]:
    """What an entry gives where nothing surrounds it."""
    return ENTRIES[entry]()


def same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("around", "entry"), CELLS)
def test_surroundings_change_no_bit(around: str, entry: str) -> None:
    expected = alone(entry)
    with SURROUNDINGS[around]():
        found = ENTRIES[entry]()
    same(found, expected[: len(found)] if around in UNRECORDED else expected)


class Unnamed(TorchDispatchMode):
    """Counts the operations that make numbers of the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), keywords: Any = None) -> Any:
        found = function(*given, **(keywords or {}))
        made = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        self.names += [str(function) for each in made if each.dtype == torch.bfloat16 and each.numel()]
        return found


SPIRAL, ROLL = torchgw.datasets.make_spiral(60)[0], torchgw.datasets.make_swiss_roll(70)[0]
EDGES = np.triu(np.random.default_rng(1).random((20, 20)) < 0.2, 1)
LARGER: dict[str, Callable[[], Any]] = {
    "curves": lambda: gw_align(SPIRAL, ROLL, random_state=0),
    "landmarks": lambda: gw_align(SPIRAL, ROLL, distances="landmark", random_state=0),
    "streamed": lambda: gw_align(SPIRAL, ROLL, epsilon=1e-2, options=GWOptions(strategy="streaming"), random_state=0),
    "edges": lambda: gw_align(EDGES | EDGES.T, EDGES | EDGES.T, distances="adjacency", random_state=0),
    "sampled": lambda: gw_align(X, Y, epsilon=0.05, options=GWOptions(gradient="sampled"), random_state=0),
}


@pytest.mark.parametrize("entry", [*ENTRIES, *LARGER])
def test_code_names_its_dtypes(entry: str) -> None:
    """The default dtype is one for all threads, so a solve cannot suspend it."""
    with setting(torch.set_default_dtype, torch.bfloat16, torch.float32), Unnamed() as seen:
        (ENTRIES | LARGER)[entry]()
    assert not seen.names


@pytest.mark.parametrize("around", ["autocast, bfloat16", "products in bfloat16", "default device"])
def test_a_backward_pass_that_begins_elsewhere_is_undisturbed_too(around: str) -> None:
    expected = with_gradient(through_the_plan(Implicit()))
    leaf = GIVEN.clone().requires_grad_()
    found = through_the_plan(Implicit())(leaf)
    with SURROUNDINGS[around]():
        found.backward()  # type: ignore[no-untyped-call]
    same(arrays(found, leaf.grad), expected)


def test_what_is_made_in_inference_mode_can_be_differentiated_after_it() -> None:
    with torch.inference_mode():
        result = gw_align(X, Y, **NEAR)
        assert not result.coupling.to_dense().is_inference()
    values = OTHER.double().requires_grad_()
    pulled = result.pull(values)
    assert isinstance(pulled, Tensor)
    pulled.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None


def test_a_callback_may_disturb_its_own_calls_and_no_others() -> None:
    found = []

    def callback(progress: Any) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(gw_align(X, Y, **NEAR).plan)

    result = gw_align(X, Y, callback=callback, **NEAR)
    same(arrays(result.plan, found[0]), arrays(*[gw_align(X, Y, **NEAR).plan] * 2))


def loss(points: Tensor) -> Tensor:
    return gw_loss(points, OTHER, **NEAR)


def forward_derivative(points: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return loss(forward_ad.make_dual(points, points))  # type: ignore[no-untyped-call]


def with_fake_tensors(points: Tensor) -> Tensor:
    with FakeTensorMode():
        return loss(points)


HIDING: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "vmap": (lambda x: torch.vmap(loss)(x[None]), "torch.vmap, .* gw_pairwise"),
    "grad": (torch.func.grad(loss), r"torch.func \(grad, vjp, jacrev\), .* \.backward\(\)"),
    "jacrev": (torch.func.jacrev(loss), r"torch.func \(grad"),
    "jacfwd": (torch.func.jacfwd(loss), r"torch.func \(jvp"),
    "hessian": (torch.func.hessian(loss), r"torch.func \(grad"),
    "functionalize": (torch.func.functionalize(loss), "torch.func.functionalize"),
    "forward_ad": (forward_derivative, "torch.autograd.forward_ad, .* torch.autograd.grad"),
    "jit.trace": (lambda x: torch.jit.trace(loss, x), "torch.jit.trace"),
    "make_fx": (lambda x: make_fx(loss)(x), "make_fx"),
    "FakeTensorMode": (with_fake_tensors, "FakeTensorMode"),
}


@pytest.mark.parametrize("transform", HIDING)
def test_transforms_that_hide_numbers_are_refused_by_name(transform: str) -> None:
    run, words = HIDING[transform]
    with pytest.raises(RuntimeError, match=f"^gw_loss cannot be called under {words}"):
        run(GIVEN.clone())


def test_every_entry_refuses_transforms_by_its_own_name() -> None:
    for name, call in {
        "gw_align": lambda x: gw_align(x, Y).plan,
        "gw_pairwise": lambda x: torchgw.gw_pairwise([x, Y]).values,
        "epsilon_path": lambda x: torchgw.epsilon_path(x, Y).best.plan,
        "EuclideanDistances": lambda x: torchgw.EuclideanDistances(x).rows(torch.tensor([0])),
    }.items():
        with pytest.raises(RuntimeError, match=f"^{name} cannot be called under torch.vmap"):
            torch.vmap(call)(GIVEN[None])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_keeps_value_and_gradient(reentrant: bool) -> None:
    same(with_gradient(lambda leaf: checkpoint(loss, leaf, use_reentrant=reentrant)), alone("gw_loss"))


def test_a_checkpoint_that_keeps_graphs_does_not_solve_again() -> None:
    calls = []

    def counted(leaf: Tensor) -> Tensor:
        calls.append(leaf)
        return loss(leaf)

    with_gradient(lambda leaf: checkpoint(counted, leaf, use_reentrant=False))
    assert len(calls) == 1


def test_vectorised_jacobians_are_gradients() -> None:
    found = torch.autograd.functional.jacobian(loss, GIVEN, vectorize=True)
    same(arrays(found), alone("gw_loss")[1:])


@pytest.mark.slow  # torch's compiler takes seconds to import
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's, of tensors that it looks at
def test_compiled_functions_call_solves_outside_their_graphs() -> None:
    def doubled(leaf: Tensor, near: dict[str, Any]) -> Tensor:
        return 2 * gw_loss(1.0 * leaf, OTHER, **near)

    compiled = torch.compile(doubled, backend="eager")
    for epsilon in (0.05, 0.1):
        near = NEAR | {"epsilon": epsilon}
        run, plain = (functools.partial(function, near=near) for function in (compiled, doubled))
        same(with_gradient(run), with_gradient(plain))
    with pytest.raises(RuntimeError, match="a solve decides by numbers"):
        torch.compile(doubled, backend="eager", fullgraph=True)(GIVEN, NEAR)


class Solves(Dataset[float]):
    """Values of solves."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        return gw_align(X, Y, **NEAR).value


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_loader_have_the_same_values(way: str) -> None:
    expected = Solves()[0]
    found = list(DataLoader(Solves(), batch_size=None, num_workers=2, multiprocessing_context=way))
    assert found == [expected] * 3


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The functions behind the public methods and properties that a class defines."""
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        plain = inspect.isfunction(function) and not inspect.isgeneratorfunction(function)
        if plain and not name.startswith("_") and not getattr(function, "__isabstractmethod__", False):
            yield f"{kind.__name__}.{name}", function


def test_every_public_function_and_method_that_computes_is_undisturbed() -> None:
    kinds = [Readable, torchgw.GWResult, Unseen, PlanCurvature, PlanMode, BlockCoupling, torchgw.GromovWasserstein]
    found = dict(pair for kind in [*kinds, *BlockCoupling.__subclasses__()] for pair in members(kind))
    found |= {name: call for name in torchgw.__all__ if inspect.isfunction(call := getattr(torchgw, name))}
    found |= {f"distributed.{name}": getattr(torchgw.distributed, name) for name in ("gw_align", "resume")}
    found |= {f"plot.{name}": getattr(torchgw.plot, name) for name in torchgw.plot.__all__}
    providers = [getattr(torchgw, name) for name in torchgw.__all__ if re.fullmatch(r"\w+Distances", name)]
    found |= {kind.__name__: kind.__init__ for kind in providers}
    found |= dict(pair for kind in [*providers, ScaledDistances] for pair in members(kind))
    assert len(found) > 100
    assert not [name for name, call in found.items() if call.__code__.co_filename != isolate.__code__.co_filename]
