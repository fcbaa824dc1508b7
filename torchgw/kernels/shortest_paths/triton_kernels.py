"""Triton kernels for shortest paths, a source to a program, and for what chooses landmarks by them."""

import triton
import triton.language as tl

INFINITE = tl.constexpr(0x7FF0000000000000)  # the bits of infinity


@triton.jit(do_not_specialize=["n", "m"])
def ways_kernel(graph, distance, label, matrix, n, m, NODES: tl.constexpr, EDGES: tl.constexpr):
    """The shortest ways by one edge from the centre of each cell to that of another, into a matrix (m, m) of infinite
    numbers, given as the integers that have their bits."""
    pointer, target, length = graph
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    inside = node < n
    own = tl.load(distance + node, mask=inside, other=0.0)
    row = tl.load(label + node, mask=inside, other=0).to(tl.int64) * m
    low = tl.load(pointer + node, mask=inside, other=0)
    high = tl.load(pointer + node + 1, mask=inside, other=0)
    for step in range(0, tl.max(high - low, 0), EDGES):
        entry = low[:, None] + step + tl.arange(0, EDGES)[None, :]
        known = entry < high[:, None]
        near = tl.load(target + entry, mask=known, other=0)
        way = own[:, None] + tl.load(length + entry, mask=known, other=0.0)
        way += tl.load(distance + near, mask=known, other=0.0)
        place = row[:, None] + tl.load(label + near, mask=known, other=0)
        tl.atomic_min(matrix + place, way.to(tl.int64, bitcast=True), mask=known, sem="relaxed")


@triton.jit(do_not_specialize=["m", "stride"])
def entries_kernel(matrix, high, target, length, m, stride, BLOCK: tl.constexpr):
    """The finite entries of row pid of a matrix (m, m), from entry pid * m on of a list, and where they end."""
    row = tl.program_id(0).to(tl.int64)
    lane, found = tl.arange(0, BLOCK), 0
    for first in range(0, m, BLOCK):
        column = first + lane
        value = tl.load(matrix + row * stride + column, mask=column < m, other=float("inf"))
        kept = value < float("inf")
        place = row * m + found + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(target + place, column, mask=kept)
        tl.store(length + place, value, mask=kept)
        found += tl.sum(kept.to(tl.int32), 0)
    tl.store(high + row, (row * m + found).to(tl.int32))


@triton.jit(do_not_specialize=["n", "resumed", "rounds"])
def search_kernel(graph, source, distance, scratch, n, resumed, rounds, STEP: tl.constexpr):
    """Distances of the n points from source pid, as the integers that have their bits: rounds of Bellman and Ford over
    the points whose distance fell since they were looked at last, of which each round takes about the NODES nearest.

    The ``graph`` is (lows, highs, target, length): the edges of a point are the entries from ``lows`` to ``highs``. The
    ``scratch`` is (queued, queue, state): ``queued`` (M, n) is whether a point is in the ``queue`` (M, 2, n). What is
    left after so many ``rounds`` another launch does, ``resumed`` from the ``state`` (M, 2): the length of the queue,
    and which half of it. A STEP has so many nodes, edges of each, and points of the queue that are looked at together.
    """
    lows, highs, target, length = graph
    queued, queue, state = scratch
    NODES: tl.constexpr = STEP[0]
    EDGES: tl.constexpr = STEP[1]
    QUEUED: tl.constexpr = STEP[2]
    search = tl.program_id(0).to(tl.int64)
    begin = tl.load(source + search).to(tl.int32)
    distance += search * n
    queued += search * n
    queue += search * 2 * n
    every = tl.arange(0, QUEUED)
    state += search * 2
    new_search = resumed == 0
    for first in range(0, tl.where(new_search, n, 0), QUEUED):
        tl.store(distance + first + every, INFINITE, mask=first + every < n)
        tl.store(queued + first + every, 0, mask=first + every < n)
    tl.debug_barrier()
    tl.store(distance + begin, 0, mask=new_search)
    tl.store(queue, begin, mask=new_search)
    at, edge = tl.arange(0, NODES), tl.arange(0, EDGES)
    count = tl.load(state, mask=resumed > 0, other=1)
    turn = tl.load(state + 1, mask=resumed > 0, other=0)
    least, width = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    while (count > 0) & (rounds > 0):
        tl.debug_barrier()  # what all have written is read from here on
        here, there = queue + turn * n, queue + (1 - turn) * n
        width = tl.where(width > 0, width, least)
        taken = 0
        nearest = tl.full((), INFINITE, tl.int64)  # of those that are left
        for first in range(0, count, QUEUED):
            inside = first + every < count
            node = tl.load(here + first + every, mask=inside, other=0, volatile=True)
            bits = tl.load(distance + node, mask=inside, other=INFINITE, volatile=True)
            chosen = (inside & (bits.to(tl.float64, bitcast=True) <= least + width)).to(tl.int32)
            near, far = chosen != 0, inside & (chosen == 0)
            before = tl.cumsum(chosen, 0) - chosen
            tl.debug_barrier()  # those taken come first in the queue that they are read from
            tl.store(here + taken + before, node, mask=near)
            tl.store(queued + node, 0, mask=near)
            tl.store(there + first - taken + every - before, node, mask=far)
            nearest = tl.minimum(nearest, tl.min(tl.where(far, bits, INFINITE), 0))
            taken += tl.sum(chosen, 0)
        tl.debug_barrier()  # a distance that falls from here on queues its point again
        kept = count - taken
        count = kept
        for first in range(0, taken, NODES):
            inside = first + at < taken
            node = tl.load(here + first + at, mask=inside, other=0, volatile=True)
            so_far = tl.load(distance + node, mask=inside, other=0, volatile=True).to(tl.float64, bitcast=True)
            low = tl.load(lows + node, mask=inside, other=0)
            high = tl.load(highs + node, mask=inside, other=0)
            for step in range(0, tl.max(high - low, 0), EDGES):
                entry = low[:, None] + step + edge[None, :]
                known = entry < high[:, None]
                other = tl.load(target + entry, mask=known, other=0)
                new = so_far[:, None] + tl.load(length + entry, mask=known, other=0.0)
                bits = new.to(tl.int64, bitcast=True)  # in the order of the numbers, as none is negative
                shorter = known & (bits < tl.load(distance + other, mask=known, other=0, volatile=True))
                # Who queues a point need not be who lowers its distance, so neither of the two waits for the other.
                tl.atomic_min(distance + other, bits, mask=shorter, sem="relaxed")
                fresh = shorter & (tl.atomic_max(queued + other, 1, mask=shorter, sem="relaxed") == 0)
                chosen = tl.reshape(fresh.to(tl.int32), (NODES * EDGES,))
                spot = count + tl.cumsum(chosen, 0) - chosen
                tl.store(there + spot, tl.reshape(other, (NODES * EDGES,)), mask=chosen != 0)
                count += tl.sum(chosen, 0)
                nearest = tl.minimum(nearest, tl.min(tl.min(tl.where(shorter, bits, INFINITE), 1), 0))
        least = nearest.to(tl.float64, bitcast=True)
        too_few = (2 * taken < NODES) & (kept > 0)
        width *= tl.where(taken > NODES, 0.75, tl.where(too_few, 1.25, 1.0)).to(tl.float64)
        turn = 1 - turn
        rounds -= 1
    tl.debug_barrier()
    tl.store(state, count)
    tl.store(state + 1, turn)


@triton.jit(do_not_specialize=["n"])
def spread_kernel(
    graph, distance, label, new_distance, new_label, n, NODES: tl.constexpr, EDGES: tl.constexpr
):  # fmt: skip
    """Distances to the nearest centre, and its label, by way of one edge more: see the reference."""
    pointer, target, length = graph
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    inside = node < n
    best = tl.load(distance + node, mask=inside, other=0.0)
    chosen = tl.load(label + node, mask=inside, other=0)
    low = tl.load(pointer + node, mask=inside, other=0)
    high = tl.load(pointer + node + 1, mask=inside, other=0)
    for step in range(0, tl.max(high - low, 0), EDGES):
        entry = low[:, None] + step + tl.arange(0, EDGES)[None, :]
        known = entry < high[:, None]
        near = tl.load(target + entry, mask=known, other=0)
        through = tl.load(distance + near, mask=known, other=float("inf"))
        through += tl.load(length + entry, mask=known, other=0.0)
        least = tl.min(through, 1)
        labels = tl.load(label + near, mask=known & (through == least[:, None]), other=2147483647)
        first = tl.min(labels, 1)
        as_near = (least == best) & (best > 0)
        chosen = tl.where(least < best, first, tl.where(as_near, tl.minimum(first, chosen), chosen))
        best = tl.minimum(least, best)
    tl.store(new_distance + node, best, mask=inside)
    tl.store(new_label + node, chosen, mask=inside)


@triton.jit(do_not_specialize=["n", "most"])
def farthest_kernel(rows, nearest, chosen, n, most, BLOCK: tl.constexpr):
    """Farthest points (most,) in turn, the first of all first, of distances (n, n), by way of ``nearest`` (n,)."""
    lane = tl.arange(0, BLOCK)
    last = tl.zeros((), tl.int64)
    tl.store(chosen, last)
    for number in range(1, most):
        best, where = tl.full((BLOCK,), -1.0, tl.float64), tl.zeros((BLOCK,), tl.int32)
        for first in range(0, n, BLOCK):
            inside = first + lane < n
            near = tl.load(rows + last * n + first + lane, mask=inside, other=-1.0)
            if number > 1:
                near = tl.minimum(near, tl.load(nearest + first + lane, mask=inside, other=-1.0))
            tl.store(nearest + first + lane, near, mask=inside)
            better = near > best
            best, where = tl.where(better, near, best), tl.where(better, first + lane, where)
        last = tl.min(tl.where(best == tl.max(best, 0), where, n), 0).to(tl.int64)
        tl.store(chosen + number, last)
