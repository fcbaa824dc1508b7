"""The claims that hold for every implementation of the kernel families, whatever runs them.

Each takes a kernel and a device. The main suite runs them on the eager and the compiled kernels, `tests/triton` on the
Triton kernels in the interpreter, the GPU suite on everything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import block_diag, csr_matrix, diags, kronsum
from torch import Tensor

from tests.kernels import factors, log_masses, potential, softmin_oracle, sweep_oracle, transport_oracle, wide
from torchgw.couplings.potential import draw_columns, plan_product, top_k_scores
from torchgw.datasets import make_spiral
from torchgw.kernels import softmin_dense
from torchgw.kernels.kernel import Kernel, make_two_read_sweep
from torchgw.kernels.neighbour_graphs import reference as graphs_reference
from torchgw.kernels.neighbour_graphs.graphs import CsrEdges, DoubtfulEdges, GraphKernels
from torchgw.kernels.principal_directions import Keys
from torchgw.kernels.shortest_paths import reference as paths
from torchgw.kernels.shortest_paths.searches import Searches
from torchgw.kernels.small_transport import SmallTransport
from torchgw.kernels.small_transport.reference import IterationCounts
from torchgw.options import SinkhornOptions
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.sinkhorn.loop import sinkhorn
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.spaces.device_graph import DeviceGraph
from torchgw.spaces.graph import neighbour_graph
from torchgw.types import Softmins

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
PLAIN, RELAXED, LONG = IterationCounts(3), IterationCounts(1, 4), IterationCounts(2, 300)
SWEEPS = ((1.0, 0.0), (1.0, 30.0), (1.7, 0.1), (1.3, 5.0))


def poisoned() -> Iterator[None]:
    """Memory handed out by ``new_empty`` and ``empty_like`` holds NaN, so that what is not written shows."""
    saved = torch.Tensor.new_empty, torch.empty_like, torch.empty

    def fill(made: Tensor) -> Tensor:
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(-1)

    torch.Tensor.new_empty = lambda self, *size, **more: fill(saved[0](self, *size, **more))  # type: ignore[method-assign,assignment]
    torch.empty_like = lambda *given, **more: fill(saved[1](*given, **more))
    torch.empty = lambda *given, **more: fill(saved[2](*given, **more))
    try:
        yield
    finally:
        torch.Tensor.new_empty, torch.empty_like, torch.empty = saved  # type: ignore[method-assign]


def close(found: Tensor, expected: np.ndarray, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Within the tolerance of the dtype, absolutely; infinities must agree."""
    np.testing.assert_allclose(found.cpu().double().numpy(), expected, atol=factor * TOLERANCE[dtype], rtol=0)


def dense_softmin(kernel: Kernel, device: str, n: int, k: int, dtype: torch.dtype, axis: int, holes: bool) -> None:
    """A stored score of range +-200, with -inf entries in score and bias where ``holes``."""
    A, B = factors(n, k, 5, torch.float64, n * 7919 + k)
    score = A @ B.T
    if holes:
        score[::4, : k // 2] = -torch.inf
    score, bias = score.to(dtype), potential(k if axis == 1 else n, dtype, n + k, holes=holes)
    found = kernel.bind(score.to(device)).softmin(bias.to(device), axis)
    close(found, softmin_oracle(*wide(score, bias), axis), dtype)


def dense_layouts(kernel: Kernel, device: str, axis: int) -> None:
    """Transposed, sliced and offset scores are read by their strides."""
    base = torch.randn(130, 150, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 50
    for score in (base.T.contiguous().T, base[::2, ::3], base[7:, 5:], base.T):
        bias = potential(score.shape[1 - (axis == 0)] if axis == 1 else score.shape[0], torch.float64, 1)
        moved = torch.empty_strided(score.shape, score.stride(), dtype=torch.float64, device=device)
        moved.copy_(score)
        (strided_bias,) = strided(bias, device=device)
        close(kernel.bind(moved).softmin(strided_bias, axis), softmin_oracle(*wide(score, bias), axis), torch.float64)


def small_transport(
    small: SmallTransport, device: str, batch: int, n: int, k: int, dtype: torch.dtype, holes: bool, n_iter: int = 9
) -> None:
    """Random problems of one size, each with its own score and potentials; two with the same potentials."""
    gen = torch.Generator().manual_seed(n * 31 + k)
    score = (torch.randn(batch, n, k, generator=gen, dtype=torch.float64) * 8).to(dtype)
    log_p, log_q = log_masses(n, dtype, n, holes), log_masses(k, dtype, k + 1, holes)
    f, g = (torch.randn(batch, size, generator=gen, dtype=torch.float64).mul(5).to(dtype) for size in (n, k))
    f[:, torch.isneginf(log_p)] = -torch.inf
    for start in (f, f[:1].expand(batch, n)):
        given = [side.to(device) for side in (score, log_p, log_q)]
        found = small.solve(*given, start.to(device), g.to(device), n_iter)
        for at in range(batch):
            expected = transport_oracle(*wide(score[at], log_p, log_q, start[at]), n_iter)
            for one, other in zip(found, expected, strict=True):
                close(one[at], other, dtype, factor=10.0)
        assert torch.equal(given[0].cpu(), score)
    small_scalings(small, device, batch, n, k, dtype)


def small_scalings(small: SmallTransport, device: str, batch: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Random kernels and masses; and one of two blocks, between which scalings grow beyond what the dtype holds where
    they are over-relaxed for long, so that those before count."""
    gen = torch.Generator().manual_seed(n * 37 + k)
    kernel = torch.randn(batch, n, k, generator=gen, dtype=torch.float64).mul(3).exp2()
    p, q = (torch.rand(batch, 1, size, generator=gen, dtype=torch.float64) + 0.1 for size in (n, k))
    cases = [(effort, kernel, p / p.sum(2, keepdim=True), q / q.sum(2, keepdim=True)) for effort in (PLAIN, RELAXED)]
    if n > 1 and k > 1:
        blocks, a, b = torch.ones(1, n, k), torch.full((1, 1, n), 0.01), torch.full((1, 1, k), 0.01)
        blocks[0, :1, 1:] = blocks[0, 1:, :1] = torch.finfo(dtype).tiny
        a[0, 0, 0] = b[0, 0, -1] = 1.0
        cases.append((LONG, blocks, a, b))
    for effort, *given in cases:
        rounded = [side.to(dtype) for side in given]
        u, v = (side.cpu().double() for side in small.scalings(*(side.to(device) for side in rounded), effort))
        expected, safe = scaled_oracle(*(side.double() for side in rounded), effort)
        close(u.mT * rounded[0] * v, safe if effort == LONG else expected, dtype, factor=10.0)


def scaled_oracle(K: Tensor, p: Tensor, q: Tensor, effort: IterationCounts) -> tuple[Tensor, Tensor]:
    """Scaled kernels, and those after the plain iterations, with the rows of p."""
    v = q / K.sum(1, keepdim=True)
    for _ in range(effort.plain):
        v = q / ((p / (v @ K.mT)) @ K)
    u, safe = p / (v @ K.mT), v
    for _ in range(effort.relaxed):
        v = v**-0.8 * (q / (u @ K)) ** 1.8
        u = u**-0.8 * (p / (v @ K.mT)) ** 1.8
    v = q / (u @ K)
    return tuple((p / (each @ K.mT)).mT * K * each for each in (v, safe))  # type: ignore[return-value]


def graphs() -> dict[str, Any]:
    """Symmetric CSR graphs (N, N) by what is odd about them."""
    rng, star = np.random.default_rng(3), np.zeros((600, 600))  # more points than a search looks at together
    star[0, 1:] = star[1:, 0] = rng.uniform(1, 2, 599)
    lengths = rng.uniform(0, 1, 110)
    chain = diags([lengths, lengths], [1, -1], format="csr")
    duplicates = neighbour_graph(np.repeat(rng.normal(size=(20, 2)), 3, axis=0))
    parts = block_diag([chain, duplicates, csr_matrix((3, 3))], format="csr")
    many = neighbour_graph(rng.normal(size=(150, 9)))
    path = diags([np.ones(11), np.ones(11)], [1, -1])
    made = {"star": csr_matrix(star), "chain": chain, "duplicates": duplicates, "parts": parts, "many": many}
    return made | {"ties": kronsum(path, path, format="csr")}  # a grid, so that many are as far from a source


def shortest_paths(searches: Searches, device: str, graph: Any) -> None:
    """The same bits as those of the reference, from every point and in whatever order paths are looked at."""
    given = DeviceGraph.of(graph, searches, torch.device(device))[:3]
    host, every = [part.cpu() for part in given], torch.arange(graph.shape[0])
    rows = paths.paths(*host, every)
    some = every[:: 1 if device == "cuda" else len(every) // 4]  # the interpreter takes a second for each
    for sources in (some, every[[1, 1, 0]], every[:0]):
        assert torch.equal(searches.paths(*given, sources.to(device)).cpu(), rows[sources])
    distance = torch.full((graph.shape[0],), torch.inf, dtype=torch.float64)
    distance[::7] = 0.0
    known = distance, torch.where(distance == 0, every // 7, len(every)).int()
    found = tuple(part.to(device) for part in known)
    for _ in range(4):
        known, found = paths.spread_labels(*host, *known), searches.spread_labels(*given, *found)
        assert all(torch.equal(one.cpu(), other) for one, other in zip(found, known, strict=True))
    cells = 4  # and points near none
    known = known[0], known[1].clamp_max(cells)
    found = tuple(part.to(device) for part in known)
    assert torch.equal(searches.cell_distances(*given, *found, cells).cpu(), paths.cell_distances(*host, *known, cells))
    count = min(len(rows), 9)
    assert torch.equal(searches.farthest(rows.to(device), count).cpu(), paths.farthest(rows, count))


def clouds() -> dict[str, Tensor]:
    """Points (N, D) by what their neighbour graphs have that others have not."""
    rng = np.random.default_rng(5)
    turns = make_spiral(150, noise=0.13, random_state=4)[0]  # with short cuts between them
    parts = rng.normal(size=(83, 2)) + 9.0 * rng.integers(0, 3, (83, 1))
    made = {
        "short cuts": turns,
        "parts": parts,
        "duplicates": np.repeat(rng.normal(size=(20, 2)), 5, axis=0),
        "hubs": rng.normal(size=(70, 9)),
        "line": rng.uniform(size=(141, 1)),
        "ties": np.stack(np.meshgrid(np.arange(9), np.arange(9)), 2).reshape(-1, 2).astype(float),
        "two": rng.normal(size=(2, 3)),
    }
    return {name: torch.from_numpy(points) for name, points in made.items()}


def neighbour_graphs(built: GraphKernels, device: str, points: Tensor, k: int) -> None:
    """The same edges as those of the reference, the same of them in doubt, and joined, kept and cut."""
    gen, n = torch.Generator().manual_seed(len(points)), len(points)
    known = graphs_reference.neighbours(points, k)
    orders = (None, torch.randperm(n, generator=gen), points[:, 0].argsort())
    for order in orders:
        edges, doubtful = built.neighbours(points.to(device), k, None if order is None else order.to(device))
        same_graph(edges, doubtful, *known)
        label = doubtful.label.cpu()
        for _ in range(n):  # steps, at most
            label = label[label.long()]
        assert torch.equal(label, known[1].label)
    assert int(built.join_parts(edges, doubtful)) == int(graphs_reference.join_parts(*known))
    joined = known[1].state.clone()
    built.decide_edges(points.to(device), edges, doubtful, 5.0)
    graphs_reference.decide_edges(points, *known, 5.0)
    assert bool((known[1].state != joined).any() or n == 2)
    size = torch.tensor(1e60 / 3, dtype=torch.float64)
    told = [built.finish_graph(edges, doubtful, size.to(device)).cpu(), graphs_reference.finish_graph(*known, size)]
    same_graph(edges, doubtful, *known)
    assert torch.equal(told[0][:2], told[1][:2])
    one, other = (found[2:].view(-1, 3)[: int(found[1])].tolist() for found in told)
    assert sorted(one) == sorted(other)


def same_graph(edges: CsrEdges, doubtful: DoubtfulEdges, known: CsrEdges, doubted: DoubtfulEdges) -> None:
    """The same entries, but for what lies behind the last."""
    found, in_doubt = ([part.cpu() for part in given] for given in (edges, doubtful))
    assert torch.equal(found[0], known.pointer)
    n, m = int(known.pointer[-1]), int(doubted.length.isfinite().sum())
    assert all(torch.equal(one[:n], other[:n]) for one, other in zip(found[1:3], known[1:3], strict=True))
    torch.testing.assert_close(found[3], known.length, rtol=1e-14, atol=0.0)
    assert torch.equal(in_doubt[0][:n], doubted.rank[:n])
    assert all(torch.equal(one[:m], other[:m]) for one, other in zip(in_doubt[2:5], doubted[2:5], strict=True))
    torch.testing.assert_close(in_doubt[1], doubted.length, rtol=1e-14, atol=0.0)


def rescaled(kernel: Kernel, device: str, n: int, dtype: torch.dtype, weight: float) -> None:
    """Random masses, sums and scalings, some of the sums too small to divide by."""
    gen = torch.Generator().manual_seed(n)
    mass, sums, old = (torch.rand(n, generator=gen, dtype=torch.float64).add(0.1).to(dtype) for _ in range(3))
    sums[::7] = 0.0
    mass[::7] = torch.finfo(dtype).tiny
    found = kernel.update_scaling(*(side.to(device) for side in (mass, sums, old)), weight)
    m, s, u = wide(mass, sums.clamp_min(torch.finfo(dtype).tiny), old)
    close(found, u * (m / s / u) ** weight, dtype, factor=10.0)


class _Second(Ranks):
    """The second of two ranks, to whom the first has sent nothing but zeros."""

    rank, count = 1, 2

    def __init__(self, features: Tensor) -> None:
        self.features = features

    def all_gather(self, share: Tensor, n: int, unit: int = 1) -> Tensor:
        return torch.cat((share.new_zeros(n - len(share)), share))

    def gather(self, share: Tensor, n: int, index: Tensor) -> Tensor:
        return self.features[index]


def principal_directions(find: Keys, device: str, n: int, d: int, dtype: torch.dtype) -> None:
    """Keys of cells of odd sizes, of one point and of equal points rise from cell to cell, and along the directions of
    a float64 oracle; those of a rank's share do, among cells of all points."""
    gen = torch.Generator().manual_seed(n * 31 + d)
    features = torch.randn(n, d, generator=gen, dtype=torch.float64) * torch.linspace(3, 0.1, d, dtype=torch.float64)
    features[: n // 4] = features[0]
    order = torch.randperm(n, generator=gen)
    order = order[torch.argsort((order >= n // 4).to(torch.int64), stable=True)]  # equal points in the first cells
    ends = torch.unique(torch.cat((torch.randint(0, n, (9,), generator=gen), torch.tensor([0, 1, n // 4, n]))))
    given, largest = [each.to(device) for each in (features.to(dtype), order, ends)], int(ends.diff().max())
    second = _Second(given[0])
    own = second.share(n)
    found = find(*given, largest, ALONE), find(given[0][own], *given[1:], largest, second)
    points, every = features.to(dtype).double().numpy()[order], torch.arange(n)
    for key, known in zip(found, (every >= 0, every >= own.start), strict=True):
        key, known, below = key.cpu()[order], known[order], -math.inf
        for first, last in itertools.pairwise(ends.tolist()):
            which = known[first:last].nonzero()[:, 0] + first
            which = which[key[which].argsort(stable=True)]
            if len(which):
                assert below < int(key[which[0]])
                below = int(key[which[-1]])
            steps = ((np.arange(32) + 0.5) / 32 * (last - first)).astype(int)
            sample = points[first + steps] - points[first + steps].mean(0)
            u = sample[-1] - sample[0]
            for _ in range(3):
                u = sample.T @ (sample @ u)
                u = u / max(float(np.linalg.norm(u)), 1e-30)
            if np.abs(sample).max() > 1e-6:  # what is rounding has no direction
                slack = 10 * TOLERANCE[dtype] * np.abs(points).max()
                assert np.diff(points[which.numpy()] @ u).min(initial=0.0) > -slack


def sweeps(kernel: Kernel, operands: tuple[Tensor, ...], score: np.ndarray, dtype: torch.dtype, device: str) -> None:
    """`swept` for a kernel on its operands."""
    swept(kernel.bind(*(side.to(device) for side in operands)), score, dtype, device)


def swept(bound: Softmins, score: np.ndarray, dtype: torch.dtype, device: str) -> None:
    """A sweep is a row step, relaxed, and the softmin over the rows under it, for every weight."""
    n, k = score.shape
    for number, (weight, far) in enumerate(SWEEPS):
        log_p, g = log_masses(n, dtype, number, holes=True), log_masses(k, dtype, 10 + number)
        plain = log_p.double() - torch.from_numpy(softmin_oracle(score, wide(g)[0], 1))
        f = torch.where(log_p.isneginf(), log_p.double(), plain + far).to(dtype)
        new_f, softmin = bound.sweep(*strided(g, log_p, f, device=device), weight)
        close(new_f, sweep_oracle(score, *wide(g, log_p, f), 1.0, weight)[0], dtype, 1 + far)
        close(softmin, softmin_oracle(score, wide(new_f)[0], 0), dtype, 1 + far)


def strided(*vectors: Tensor, device: str) -> list[Tensor]:
    """The same vectors as every second entry of longer ones."""
    longer = [torch.full((2 * len(v),), float("nan"), dtype=v.dtype, device=device) for v in vectors]
    for place, vector in zip(longer, vectors, strict=True):
        place[::2] = vector
    return [place[::2] for place in longer]


def dense_sweep(kernel: Kernel, device: str, n: int, k: int, dtype: torch.dtype) -> None:
    A, B = factors(n, k, 5, torch.float64, n + k, reach=30.0)
    score = (A @ B.T).to(dtype)
    sweeps(kernel, (score,), wide(score)[0], dtype, device)


def stream_sweep(kernel: Kernel, device: str, n: int, k: int, rank: int, dtype: torch.dtype) -> None:
    A, B = factors(n, k, rank, dtype, n + k, reach=30.0)
    a, b = wide(A, B)
    sweeps(kernel, (A, B), a @ b.T, dtype, device)


def stream_softmin(
    kernel: Kernel,
    device: str,
    n: int,
    k: int,
    rank: int,
    dtype: torch.dtype,
    axis: int,
    holes: bool,
    lost: float = 0.0,
) -> None:
    """Factors whose products have range +-200; ``lost`` of each term is what matrix units may lose."""
    A, B = factors(n, k, rank, dtype, n * 7919 + k * 31 + rank)
    bias = potential(k if axis == 1 else n, dtype, n + k, holes=holes)
    a, b, c = wide(A, B, bias)
    found = kernel.bind(A.to(device), B.to(device)).softmin(bias.to(device), axis)
    allowed = 1 + lost * float((abs(a) @ abs(b).T).max()) / TOLERANCE[dtype]
    close(found, softmin_oracle(a @ b.T, c, axis), dtype, allowed)


def stream_layouts(kernel: Kernel, device: str) -> None:
    """Factors that are transposed, strided or narrow views."""
    gen = torch.Generator().manual_seed(3)
    base = torch.randn(20, 140, generator=gen, dtype=torch.float64)
    for A, B in ((base.T, base[:, :90].T), (base.T[::2, ::2], base.T[3:50, ::2]), (base.T[:, 1:4], base.T[:, 5:8])):
        bias = potential(len(B), torch.float64, 2)
        a, b, c = wide(A, B, bias)
        moved, (strided_bias,) = (side.to(device) for side in (A, B)), strided(bias, device=device)
        close(kernel.bind(*moved).softmin(strided_bias, 1), softmin_oracle(a @ b.T, c, 1), torch.float64)


def stream_bfloat16(kernel: Kernel, device: str) -> None:
    """bfloat16 factors are read as they are and multiplied without further rounding."""
    A, B = factors(100, 90, 40, torch.bfloat16, 1)
    bias = potential(90, torch.float32, 2)
    a, b, c = wide(A, B, bias)
    found = kernel.bind(A.to(device), B.to(device)).softmin(bias.to(device), 1)
    close(found, softmin_oracle(a @ b.T, c, 1), torch.float32)


def absorbs(kernel: Kernel, operands: tuple[Tensor, ...], score: np.ndarray, device: str) -> None:
    """The plan under potentials, zero where they have no mass, never below 2^-120 elsewhere; into any layout."""
    n, k = score.shape
    f, g = potential(n, torch.float64, 1, 5.0, holes=True), potential(k, torch.float64, 2, 5.0, holes=True)
    left, right = wide(f, g)
    expected = np.exp2(np.maximum(score + left[:, None] + right, -120.0))
    expected[np.isinf(left)] = 0.0
    expected[:, np.isinf(right)] = 0.0
    for turned in (False, True):
        out = torch.full((k, n) if turned else (n, k), float("nan"), dtype=torch.float64, device=device)
        out = out.T if turned else out
        kernel.bind(*(side.to(device) for side in operands)).absorb(*strided(f, g, device=device), out)
        np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=1e-10)


def relaxed_marginals(
    kernel: Kernel, operands: tuple[Tensor, ...], damping: tuple[float, float], weight: float, n_iter: int
) -> Tensor:
    """Potentials (N + K,) of a solve under these dampings, in float64."""
    bound = kernel.bind(*operands)
    n, k = len(operands[0]), operands[1].shape[0] if len(operands) == 2 else operands[0].shape[1]
    device = operands[0].device
    log_p, log_q = (log_masses(size, torch.float64, size, holes=True).to(device) for size in (n, k))
    row, column = MarginalConstraint(log_p, damping[0]), MarginalConstraint(log_q, damping[1])
    options = SinkhornOptions(tol=1e-12, relaxation=weight)
    state = sinkhorn(bound, row, column, log_p, options=options, max_iter=n_iter)
    return torch.cat((state.f, state.g)).cpu()


def relaxed_agree(
    dense: Kernel, stream: Kernel, damping: tuple[float, float], weight: float, n_iter: int = 400, device: str = "cpu"
) -> None:
    """Both kernels give the potentials of two eager softmins, to 1e-5."""
    n, k = (30, 41) if n_iter > 100 else (9, 11)
    A, B = factors(n, k, 6, torch.float64, 1, reach=20.0)
    eager = softmin_dense.reference.KERNEL
    two_reads = Kernel(eager.softmin, make_two_read_sweep(eager.softmin), eager.absorb)
    expected = relaxed_marginals(two_reads, (A @ B.T,), damping, weight, n_iter)
    assert expected.isfinite().sum() > (n + k) / 2
    for kernel, given in ((dense, (A @ B.T,)), (stream, (A, B))):
        on = tuple(side.to(device) for side in given)
        found = relaxed_marginals(kernel, on, damping, weight, n_iter)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def outliers(kernel: Kernel, device: str, dtype: torch.dtype, damping: tuple[float, float]) -> None:
    """A row and a column so far from all others that their mass under a relaxed marginal is next to nothing."""
    score = -30 * torch.rand(20, 25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    score[3], score[:, 7] = score[3] - 700.0, score[:, 7] - 700.0
    log_p, log_q = log_masses(20, dtype, 1), log_masses(25, dtype, 2)
    bound = kernel.bind(score.to(device, dtype))
    row, column = (MarginalConstraint(mass.to(device), tau) for mass, tau in zip((log_p, log_q), damping, strict=True))
    # To the end: a residual does not see points without mass to speak of.
    options = SinkhornOptions(check_every=3000, relaxation=1.0)
    state = sinkhorn(bound, row, column, log_p.to(device), options=options, max_iter=3000)
    f, g = wide(log_p.clone(), log_q.clone())
    p, q = wide(log_p, log_q)
    for _ in range(3000):
        g = q - damping[1] * softmin_oracle(wide(score)[0], f, 0)
        f = p - damping[0] * softmin_oracle(wide(score)[0], g, 1)
    shift = wide(state.f)[0][0] - f[0] if damping == (1.0, 1.0) else 0.0
    np.testing.assert_allclose(wide(state.f)[0] - shift, f, atol=0.02)
    np.testing.assert_allclose(wide(state.g)[0] + shift, g, atol=0.02)


def transports(device: str, n: int, k: int, rank: int, dtype: torch.dtype) -> None:
    """T V, the largest entries of each row with their columns, and draws from the rows."""
    A, B = factors(n, k, rank, dtype, n + k + rank, reach=20.0)
    f, g = log_masses(n, dtype, 1, holes=True), log_masses(k, dtype, 2, holes=True)
    V = torch.randn(k, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    a, b, left, right, values = wide(A, B, f, g, V)
    plan = np.exp2(a @ b.T + left[:, None] + right)
    on = [side.to(device) for side in (A, B, f, g, V)]
    moved = plan_product(*on)
    np.testing.assert_allclose(wide(moved)[0], plan @ values, rtol=0, atol=TOLERANCE[dtype] * max(plan.sum(1).max(), 1))
    count = min(4, k)
    values, columns = top_k_scores(on[0], on[1], on[3], count)
    expected = a @ b.T + right
    np.testing.assert_allclose(wide(values)[0], -np.sort(-expected, 1)[:, :count], atol=10 * TOLERANCE[dtype])
    found = np.take_along_axis(expected, columns.cpu().numpy(), 1)
    np.testing.assert_allclose(found, wide(values)[0], atol=10 * TOLERANCE[dtype])
    assert all(len(set(row)) == count for row in columns.tolist())
    if k > 1:  # as many as there are, with those that have no mass last
        everything = top_k_scores(on[0], on[1], on[3], k)[1]
        assert all(sorted(row) == list(range(k)) for row in everything.tolist())


def draws_follow_the_rows(device: str) -> None:
    """Frequencies of the drawn columns against the row of the plan; columns without mass are never drawn."""
    rows, k = 4000, 9
    A = torch.zeros(rows, 2, dtype=torch.float32)
    A[rows // 2 :, 0] = 1.0
    B = torch.zeros(k, 2, dtype=torch.float32)
    B[:, 0] = torch.arange(k) / 2.0
    g = potential(k, torch.float32, 7, spread=1.0, holes=True)
    generator = torch.Generator(device=device).manual_seed(5)
    drawn = draw_columns(A.to(device), B.to(device), g.to(device), generator).cpu()
    again = draw_columns(A.to(device), B.to(device), g.to(device), generator).cpu()
    assert (drawn != again).any()
    for half in (slice(0, rows // 2), slice(rows // 2, rows)):
        weights = torch.exp2(A[half][0] @ B.T + g)
        expected = weights / weights.sum()
        share = torch.bincount(drawn[half], minlength=k) / (rows // 2)
        error = 4 * torch.sqrt(expected * (1 - expected) / (rows // 2))
        assert (share - expected).abs().le(error + 1e-9).all()
