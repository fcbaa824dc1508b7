"""Whole solves on a simulated GPU: no tensor of one device meets one of the other, nothing is summed in an open order,
results can be read in every way, and the host waits no more often than it is said to.

The numbers are those of the CPU, so this says nothing of kernels or times; see `tests.simulated_device`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from tests import gradient_mode_cases as cases
from tests.problems import quietly
from tests.simulated_device import Simulation, simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import (
    Checkpoint,
    CoarseOptions,
    EuclideanDistances,
    GWOptions,
    GWResult,
    HeatDistances,
    LadderOptions,
    LowRankOptions,
    Partial,
    SemiRelaxed,
    StoppingOptions,
    Supervision,
    Unbalanced,
    gw_align,
    gw_pairwise,
    resume,
)
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.runtime.transfer import to_device

N, K = 20, 24
X, Y = make_spiral(N)[0], make_swiss_roll(K, random_state=1)[0]
INIT = np.array([[0, 0], [N - 1, K - 1]])
FEATURES = tuple(np.random.default_rng(side).uniform(size=(side, 3)) for side in (N, K))
RINGS = tuple(nx.to_scipy_sparse_array(nx.connected_watts_strogatz_graph(n, 4, 0.3, seed=n)) for n in (N, K))
SEARCH = GWOptions(coarse=CoarseOptions(n_starts=6, n_landmarks=12))
LOW_RANK = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=3))
STREAMING = replace(SEARCH, strategy="streaming", ladder=LadderOptions(n_cells=16))
GIVEN: dict[str, Any] = {"init": INIT, "epsilon": 5e-3}
SHORT: dict[str, Any] = GIVEN | {"options": GWOptions(stopping=StoppingOptions(max_iter=2, min_iter=1))}
STREAMED: dict[str, Any] = {"options": replace(STREAMING, coarse=None), "epsilon": 5e-3}


# What is solved, and how often the host may wait: a quarter more than it did when this was written.
SOLVES: dict[str, tuple[dict[str, Any], int]] = {
    "dense": ({"options": SEARCH, "epsilon": 1e-3}, 890),
    "sampled": ({"options": replace(SEARCH, strategy="dense", gradient="sampled"), "epsilon": 1e-3}, 480),
    "streaming": ({"options": STREAMING, "epsilon": 5e-3}, 695),
    "low rank": ({"options": LOW_RANK, "epsilon": 1e-3}, 610),
    "dense, epsilon left open": ({"options": SEARCH}, 2410),
    "sharp": ({"options": replace(SEARCH, coarse=None), "epsilon": 0.0, "init": INIT}, 310),
    "landmark distances": ({"distances": "landmark", **GIVEN}, 125),
    "euclidean distances": ({"distances": "euclidean", **GIVEN}, 130),
    "rows on demand, sampled and streamed": (
        {
            "distances": "dijkstra",
            **STREAMED,
            "init": INIT,
            "options": replace(STREAMED["options"], gradient="sampled"),
        },
        400,
    ),
    "semi-relaxed": ({"marginals": SemiRelaxed(0.05, "y"), **GIVEN}, 150),
    "unbalanced": ({"marginals": Unbalanced(0.1, 0.2), **SHORT}, 295),
    "partial": ({"marginals": Partial(0.6), **SHORT}, 38),
    "matrix cost": ({"cost": np.random.default_rng(0).uniform(size=(N, K)), **GIVEN}, 165),
    "matrix cost alone": ({"cost": np.random.default_rng(0).uniform(size=(N, K)), "alpha": 0.0}, 37),
    "edges of sparse graphs": (
        {"source": RINGS[0], "target": RINGS[1], "distances": "adjacency", "epsilon": 0.02},
        245,
    ),
    "features, streamed": ({"cost": FEATURES, **STREAMED}, 315),
    "pairs and labels": (
        {"supervision": Supervision(pairs=INIT, labels=([0] * 10 + [1] * 10, [0] * 12 + [1] * 12)), **GIVEN},
        85,
    ),
    "loss of Kullback and Leibler": ({"options": GWOptions(loss="kl"), **GIVEN}, 135),
}
SLOW: dict[str, tuple[dict[str, Any], int]] = {
    "low rank, epsilon left open": ({"options": LOW_RANK}, 995),
    "semi-relaxed, epsilon left open": ({"marginals": SemiRelaxed(0.05, "y"), "init": INIT}, 585),
    "sharp with a search": ({"options": SEARCH, "epsilon": 0.0}, 2000),
    "semi-relaxed, streamed": ({"marginals": SemiRelaxed(0.05, "y"), **STREAMED}, 335),
    "unbalanced, streamed": ({"marginals": Unbalanced(0.1, 0.2), **STREAMED}, 345),
    "partial, streamed": ({"marginals": Partial(0.6), **STREAMED}, 615),
    "partial, searched": ({"marginals": Partial(0.6), "options": SEARCH, "epsilon": 1e-3}, 870),
    "supervised, streamed": ({"supervision": Supervision(pairs=INIT), **STREAMED}, 405),
    "a plan to begin with": ({"init": np.full((N, K), 1 / N / K), "epsilon": 1e-3}, 245),
    "features alone": ({"cost": FEATURES, "alpha": 0.0, "epsilon": 0.05}, 37),
}


def align(source: Any = X, target: Any = Y, device: str = "cuda", **given: Any) -> GWResult:
    return quietly(gw_align, source, target, device=device, backend="eager", random_state=0, **given)


def array(found: Any) -> np.ndarray:
    return np.asarray(found.cpu() if isinstance(found, Tensor) else found)


@pytest.mark.parametrize("name", [*SOLVES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_solve_stays_on_the_device_and_ends_as_on_the_cpu(name: str) -> None:
    given, most = (SOLVES | SLOW)[name]
    with simulated_gpu() as simulation:
        found = align(**given)
        assert found.coupling.rows(torch.tensor([0])).is_cuda
        matching = found.argmax()
    assert simulation.n_waits <= most, simulation.table(5)
    expected = align(device="cpu", **given)
    if found.gradient == "exact" and "low rank" not in name:  # the others draw by another algorithm
        # The level of a partial plan is a scan, which a GPU adds in another order, and a stop follows from it.
        assert found.value == pytest.approx(expected.value, rel=1e-3 if name == "partial, searched" else 1e-6)
        assert (matching == expected.argmax()).mean() >= 0.95
    else:
        assert found.value == pytest.approx(expected.value, rel=0.3)


READERS: dict[str, Callable[[GWResult], Any]] = {
    "argmax": lambda result: result.argmax(0),
    "top_k": lambda result: result.top_k(2)[0],
    "row": lambda result: result.row(1),
    "marginal": lambda result: result.marginal(0),
    "sample": lambda result: result.sample(2000, random_state=0)[0].mean(dtype=float),
    "sparsify": lambda result: result.sparsify(0.9).toarray(),
    "push": lambda result: result.push(X),
    "push of tensors": lambda result: result.push(torch.from_numpy(X).to(result.coupling.device)),
    "pull of tensors of the host": lambda result: result.pull(torch.from_numpy(Y)),
    "plan": lambda result: result.plan,
    "potentials": lambda result: result.potentials[0] - result.potentials[0][0],
    "confidence": lambda result: result.confidence().entropy,
    "table": lambda result: result.table()["cost_difference"],
    "mutual": lambda result: result.mutual(),
    "one to one": lambda result: result.one_to_one().target,
    "confidence of some": lambda result: result.confidence([0, 3]).margin,
    "unseen source points": lambda result: result.transform(X[:3] + 0.01).pull(Y),
    "the plan of unseen points": lambda result: result.transform(X[:3] + 0.01).top_k(2)[0],
    "unseen target points": lambda result: result.transform(Y[:3] + 0.01, "target").push(X),
    "repr": lambda result: len(repr(result)) // 20,
}


def softened(**given: Any) -> GWResult:
    return align(**given).soft()


@pytest.mark.parametrize("strategy", ["dense", "streaming", "soft"])
def test_everything_that_a_result_says_it_says_on_the_device(strategy: str, tmp_path: Path) -> None:
    given = {**STREAMED, "distances": "landmark", "init": INIT} if strategy == "streaming" else GIVEN
    given, solve = (GIVEN | {"epsilon": 0.0}, softened) if strategy == "soft" else (given, align)
    loose = 2e-2 if strategy == "streaming" else 1e-5  # what it draws stops it elsewhere
    expected = solve(device="cpu", **given)
    with simulated_gpu():
        found = solve(**given)
        found.save(tmp_path / "result.npz")
        for name, read in READERS.items():
            tolerance = 1.0 if name == "sample" else loose
            np.testing.assert_allclose(array(read(found)), array(read(expected)), atol=tolerance, err_msg=name)
    np.testing.assert_allclose(GWResult.load(tmp_path / "result.npz").push(X), expected.push(X), atol=loose)


@pytest.mark.parametrize("given", [{"X": torch.from_numpy(X)}, {"X": X, "device": "cuda"}], ids=["tensor", "device"])
def test_a_checkpoint_goes_on_on_its_device_and_nowhere_else(given: dict[str, Any], tmp_path: Path) -> None:
    folder, solve = tmp_path / "kept", GIVEN | {"random_state": 0, "backend": "eager", "Y": Y}
    with simulated_gpu():
        given = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in given.items()}
        expected = gw_align(**given | solve)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gw_align(**given | solve, checkpoint=Checkpoint(folder, every=0), callback=lambda _: True)
        assert list(folder.glob("*loop.pt"))
        found = resume(folder)
        assert found.coupling.device == expected.coupling.device == torch.device("cuda", 0)
        assert torch.equal(*(each.coupling.to_dense() for each in (found, expected)))
    with pytest.raises(ValueError, match=r"begin again.*its device cuda:0 is not there; resume it on a machine that"):
        resume(folder)


def test_tensors_come_back_where_they_came_from() -> None:
    with simulated_gpu():
        found = align(*(torch.from_numpy(side).to("cuda") for side in (X, Y)), device=None, **GIVEN)
        assert found.argmax().is_cuda
        assert found.plan.is_cuda
        assert found.transform(torch.from_numpy(X[:3]).to("cuda")).argmax().is_cuda


def test_rules_are_taken_from_tensors_of_the_device() -> None:
    labels = np.arange(N) % 2, np.arange(K) % 2
    expected = align(device="cpu", supervision=Supervision(pairs=INIT, forbidden=[[0, 2]], labels=labels), **SHORT)
    with simulated_gpu():
        pairs, forbidden, x, y = (torch.as_tensor(rule).to("cuda") for rule in (INIT, [[0, 2]], *labels))
        found = align(supervision=Supervision(pairs=pairs, forbidden=forbidden, labels=(x, y)), **SHORT)
    assert found.value == pytest.approx(expected.value, rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("envelope", {}),
        ("implicit", {}),
        ("implicit", {"cost": cases.COST}),
        ("implicit", {"options": GWOptions(strategy="streaming")}),
        *(
            pytest.param(mode, given, marks=pytest.mark.slow)
            for mode, given in [
                ("implicit", {"marginals": Partial(0.7)}),
                ("envelope", {"options": GWOptions(strategy="streaming")}),
                ("implicit", {"marginals": Unbalanced(0.5, 0.3)}),
            ]
        ),
    ],
)
def test_gradients_flow_through_the_device_and_are_those_of_the_cpu(mode: str, given: dict[str, Any]) -> None:
    def gradients(device: str) -> list[Tensor]:
        leaves = [cases.leaf(side.to(device)) for side in (cases.X, cases.Y, cases.P, cases.Q)]
        x, y = (EuclideanDistances(side, squared=True) for side in leaves[:2])
        common = {"init": cases.INIT, "epsilon": 0.1, "gradient_mode": cases.MODES[mode]}
        found = align(x, y, device=device, p=leaves[2], q=leaves[3], **(common | given))
        outputs = [found.loss]
        if mode != "envelope":
            outputs += [(found.plan * cases.G.to(device)).sum(), found.push(cases.cloud(6, 2, 1).to(device)).sum()]
        parts = [torch.autograd.grad(output, leaves, retain_graph=True) for output in outputs]
        return [side for part in parts for side in part]

    with simulated_gpu():
        found = gradients("cuda")
        assert all(side.is_cuda for side in found)
        found = [side.cpu() for side in found]
    for one, other in zip(found, gradients("cpu"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def through(make: Callable[[Tensor], Any], **given: Any) -> None:
    def gradient(device: str) -> Tensor:
        points = torch.from_numpy(X).to(device).requires_grad_()
        common = {"init": INIT, "epsilon": 0.05, "gradient_mode": cases.MODES["envelope"]}
        found = align(make(points), make(torch.from_numpy(Y).to(device)), device=device, **common, **given)
        return torch.autograd.grad(found.loss, points)[0]

    with simulated_gpu():
        found = gradient("cuda").cpu()
    torch.testing.assert_close(found, gradient("cpu"), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("distances", ["precomputed", pytest.param("landmark", marks=pytest.mark.slow)])
def test_gradients_flow_through_shortest_paths_of_points_on_the_device(distances: str) -> None:
    through(lambda points: points, distances=distances)


def test_gradients_flow_through_heat_on_the_device() -> None:
    through(HeatDistances)


def test_pairs_are_solved_on_the_device_as_on_the_cpu() -> None:
    spaces = [X, Y, X[:15]]
    with simulated_gpu() as simulation, triton_stands_in(simulation):
        found = gw_pairwise(spaces, device="cuda", random_state=0, n_jobs=1)
    np.testing.assert_allclose(found.square(), gw_pairwise(spaces, random_state=0, n_jobs=1).square(), atol=1e-6)


def there(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cuda")


REFUSED: dict[str, Callable[[], object]] = {
    "a product with the other device": lambda: there(3, 4) @ torch.ones(4),
    "a sum with the other device": lambda: there(4) + torch.ones(4),
    "a CPU tensor at places of the device": lambda: torch.ones(4)[torch.tensor([0], device="cuda")],
    "a CPU tensor at a mask of the device": lambda: torch.ones(4)[there(4) > 0],
    "a CPU tensor changed at places of the device": lambda: torch.ones(4).__setitem__(there(4) > 0, 1.0),
    "a CPU tensor changed by the device": lambda: torch.ones(4).add_(there(1)[0]),
    "scalars of both devices side by side": lambda: torch.stack((there(1)[0], torch.tensor(1.0))),
    "numpy": lambda: there(3).numpy(),
    "np.asarray": lambda: np.asarray(there(3)),
    "a generator of the CPU": lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
    "a generator of the device": lambda: torch.rand(3, generator=torch.Generator("cuda")),
    "index_add": lambda: there(3).index_add_(0, torch.tensor([0, 0], device="cuda"), there(2)),
    "scatter_add": lambda: there(3).scatter_add_(0, torch.tensor([0, 0], device="cuda"), there(2)),
    "weights by label": lambda: torch.bincount(torch.tensor([0, 0], device="cuda"), there(2)),
    "a scan of numbers": lambda: there(3, 4).cumsum(0),
    "a scan of exponentials of one row": lambda: there(3).logcumsumexp(0),
    "a selection": lambda: there(3).kthvalue(1),
    "draws from one row": lambda: there(3).multinomial(2, True, generator=torch.Generator("cuda")),
    "drivers of CPUs": lambda: torch.linalg.lstsq(there(3, 2), there(3, 1), driver="gelsd"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_simulation_refuses_what_a_gpu_would_or_what_makes_its_bits_open(name: str) -> None:
    with simulated_gpu(), pytest.raises((RuntimeError, TypeError)):
        REFUSED[name]()


def test_the_simulation_does_what_a_gpu_does() -> None:
    with simulated_gpu():
        x = torch.arange(6.0, device="cuda").reshape(2, 3)
        assert str(x.device) == "cuda:0"
        assert x.is_cuda
        assert (x + torch.tensor(1.0)).sum().item() == 21
        assert x[torch.tensor([1])].is_cuda  # places may come from the host
        assert (x.new_zeros(3) + there(3) @ torch.eye(3).to(x)).tolist() == [1, 1, 1]
        assert not x.cpu().is_cuda
        x[0] = 7.0
        x.clamp_(max=5.0)
        assert x.tolist() == [[5, 5, 5], [3, 4, 5]]
        leaf = torch.arange(3.0).requires_grad_()
        (leaf.to("cuda").square().sum() + leaf.to("cuda").max()).backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [0, 2, 5]


MUCH = torch.zeros(2**15)
WAITS: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "arithmetic": (lambda x: (x * 2 + 1).sum().sqrt(), 0),
    "places": (lambda x: x[torch.zeros(2, dtype=torch.int64, device="cuda")], 0),
    "filling a mask": (lambda x: x.__setitem__(x > 2, 0.0), 0),
    "item": (lambda x: x[0].item(), 1),
    "float": (lambda x: float(x[0]), 1),
    "bool": (lambda x: bool((x > 0).any()), 1),
    "a place that is a tensor": (lambda x: x[x.argmax()], 1),
    "cpu": (lambda x: x.cpu(), 1),
    "tolist": (lambda x: x.tolist(), 1),
    "nonzero": (lambda x: x.nonzero(), 1),
    "a mask": (lambda x: x[x > 0], 1),
    "equal": (lambda x: torch.equal(x, x), 1),
    "places of the host": (lambda x: x[torch.tensor([1, 2])], 1),
    "a copy to the device": (lambda _: torch.zeros(3).to("cuda"), 1),
    "a list": (lambda _: torch.tensor([1, 2], device="cuda"), 1),
    "a copy that is queued": (lambda _: torch.zeros(3).to("cuda", non_blocking=True), 0),
    "a large copy that is queued": (lambda _: MUCH.to("cuda", non_blocking=True), 1),
    "a large copy of pinned memory": (lambda _: MUCH.pin_memory().to("cuda"), 1),
    "a large copy of pinned memory that is queued": (lambda _: MUCH.pin_memory().to("cuda", non_blocking=True), 0),
    "sent": (lambda _: to_device(torch.zeros(3), torch.device("cuda")), 0),
    "much that is sent": (lambda _: to_device(MUCH, torch.device("cuda")), 0),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_simulation_counts_what_the_host_waits_for(name: str) -> None:
    def waited(simulation: Simulation) -> int:
        before = simulation.n_waits
        call(x)
        return simulation.n_waits - before

    call, expected = WAITS[name]
    with simulated_gpu() as simulation:
        x = torch.arange(5.0, device="cuda")
        assert waited(simulation) == expected
