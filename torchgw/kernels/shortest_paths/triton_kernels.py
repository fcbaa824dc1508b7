"""Triton kernels for shortest paths, a source to a program, and for what chooses landmarks by them."""

import triton
import triton.language as tl

HIGHEST = tl.constexpr(1.7e308)


@triton.jit
def is_searched(number, height, count, most, capacity):
    """Which of the candidates are searched from; see the reference."""
    left = most - tl.load(count)
    room = capacity - tl.load(count + 1) - left
    return (height > 0) & ((number == 0) | ((number < left) & (number <= room)))


@triton.jit(do_not_specialize=["n", "most", "capacity"])
def search_kernel(
    pointer, target, length, source, height, place, count, distance, queued, queue, n, most, capacity,
    CHOSEN: tl.constexpr, NODES: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Distances of the n points from source pid, as the integers that have their bits: rounds of Bellman and Ford over
    the points whose distance fell since they were looked at last.

    ``distance`` (M, n) comes infinite, and ``queued`` (M, n), whether a point is in the ``queue`` (M, 2, n), zero, as
    it is left. Of CHOSEN sources, those that are searched from get their place, the next row of ``distance``.
    """
    search = tl.program_id(0).to(tl.int64)
    begin = tl.load(source + search).to(tl.int32)
    found, count_here = search, 1
    if CHOSEN:
        count_here = is_searched(search, tl.load(height + search), count, most, capacity).to(tl.int32)
        found += tl.load(count + 1)
        if count_here > 0:
            tl.store(place + begin, found.to(tl.int32))
    distance += found * n
    queued += search * n
    queue += search * 2 * n
    if count_here > 0:
        tl.store(distance + begin, 0)
        tl.store(queue, begin)
        tl.store(queued + begin, 1)
    at, edge = tl.arange(0, NODES), tl.arange(0, EDGES)
    turn = 0
    while count_here > 0:
        tl.debug_barrier()  # what all have written is read from here on
        here, there = queue + turn * n, queue + (1 - turn) * n
        fallen = 0
        for first in range(0, count_here, NODES):
            inside = first + at < count_here
            node = tl.load(here + first + at, mask=inside, other=0, volatile=True)
            tl.store(queued + node, 0, mask=inside)
            tl.debug_barrier()  # a distance that falls from here on queues its point again
            so_far = tl.load(distance + node, mask=inside, other=0, volatile=True).to(tl.float64, bitcast=True)
            low = tl.load(pointer + node, mask=inside, other=0)
            high = tl.load(pointer + node + 1, mask=inside, other=0)
            for step in range(0, tl.max(high - low, 0), EDGES):
                entry = low[:, None] + step + edge[None, :]
                known = entry < high[:, None]
                near = tl.load(target + entry, mask=known, other=0)
                new = so_far[:, None] + tl.load(length + entry, mask=known, other=0.0)
                bits = new.to(tl.int64, bitcast=True)  # in the order of the numbers, as none is negative
                shorter = known & (bits < tl.load(distance + near, mask=known, other=0, volatile=True))
                shorter &= bits < tl.atomic_min(distance + near, bits, mask=shorter, sem="relaxed")
                fresh = shorter & (tl.atomic_max(queued + near, 1, mask=shorter, sem="relaxed") == 0)
                chosen = tl.reshape(fresh.to(tl.int32), (NODES * EDGES,))
                spot = fallen + tl.cumsum(chosen, 0) - chosen
                tl.store(there + spot, tl.reshape(near, (NODES * EDGES,)), mask=chosen != 0)
                fallen += tl.sum(chosen, 0)
        count_here = fallen
        turn = 1 - turn


@triton.jit
def _around(pointer, target, value, node, inside, own, EDGES: tl.constexpr):
    """The highest value (NODES,) of each node and its neighbours."""
    low = tl.load(pointer + node, mask=inside, other=0)
    high = tl.load(pointer + node + 1, mask=inside, other=0)
    highest = own
    for step in range(0, tl.max(high - low, 0), EDGES):
        entry = low[:, None] + step + tl.arange(0, EDGES)[None, :]
        known = entry < high[:, None]
        near = tl.load(target + entry, mask=known, other=0)
        highest = tl.maximum(highest, tl.max(tl.load(value + near, mask=known, other=-1.0), 1))
    return highest


@triton.jit(do_not_specialize=["n"])
def around_kernel(pointer, target, value, out, n, NODES: tl.constexpr, EDGES: tl.constexpr):
    """The highest of the values (n,) of each point and its neighbours."""
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    inside = node < n
    own = tl.load(value + node, mask=inside, other=-1.0)
    tl.store(out + node, _around(pointer, target, value, node, inside, own, EDGES), mask=inside)


@triton.jit(do_not_specialize=["n", "most"])
def peaks_kernel(
    pointer, target, value, around, place, landmark, count, height, n, most, NODES: tl.constexpr, EDGES: tl.constexpr
):
    """The values (n,) of the points that none is above within two edges and that have no place yet, the next landmark
    infinitely high; -1 of the others, and of all once there are enough."""
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    inside = node < n
    own = tl.load(value + node, mask=inside, other=-1.0)
    highest = _around(pointer, target, around, node, inside, own, EDGES)
    number = tl.load(count)
    lacking = number < most
    following = tl.load(landmark + tl.minimum(number, most - 1))
    free = lacking & (tl.load(place + node, mask=inside, other=0) < 0)
    found = tl.where(free & (own >= highest), tl.minimum(own, HIGHEST), -1.0)
    tl.store(height + node, tl.where(free & (node == following), float("inf"), found), mask=inside)


@triton.jit(do_not_specialize=["n", "m", "most", "capacity"])
def farthest_kernel(
    rows, height, place, nearest, landmark, count, n, m, most, capacity, BLOCK: tl.constexpr, CANDIDATES: tl.constexpr
):
    """Landmarks in turn, from number ``count`` on, while those before it have a row: see the reference."""
    lane, candidate = tl.arange(0, BLOCK), tl.arange(0, CANDIDATES)
    heights = tl.load(height + candidate, mask=candidate < m, other=-1.0)
    searched = tl.sum(is_searched(candidate, heights, count, most, capacity).to(tl.int32), 0)
    number, known = tl.load(count), tl.load(count + 1)
    row = tl.load(place + tl.load(landmark + tl.minimum(number, most - 1))).to(tl.int64)
    going = (row >= 0) & (number < most)
    while going:
        best, where = tl.full((BLOCK,), -1.0, tl.float64), tl.zeros((BLOCK,), tl.int32)
        for first in range(0, n, BLOCK):
            inside = first + lane < n
            near = tl.load(nearest + first + lane, mask=inside, other=-1.0)
            near = tl.minimum(near, tl.load(rows + row * n + first + lane, mask=inside, other=-1.0))
            tl.store(nearest + first + lane, near, mask=inside)
            better = near > best
            best, where = tl.where(better, near, best), tl.where(better, first + lane, where)
        number += 1
        going = number < most
        if going:
            chosen = tl.min(tl.where(best == tl.max(best, 0), where, n), 0)
            tl.store(landmark + number, chosen.to(tl.int64))
            row = tl.load(place + chosen).to(tl.int64)
            going = row >= 0
    tl.debug_barrier()  # all have read what is written over
    tl.store(count, number)
    tl.store(count + 1, known + searched)
