"""Triton kernels for graphs of nearest neighbours and their short cuts. Numbers come as the bits of float64 ones, see
`torchgw.kernels.gpu.float_bits`."""

import triton
import triton.language as tl

from torchgw.kernels.neighbour_graphs import graphs

INFINITE = tl.constexpr(0x7FF0000000000000)  # the bits of infinity
NONE = tl.constexpr(2**31 - 1)
ROUNDED = tl.constexpr(1 + 1e-9)  # what straight lines and sums may be off by
UNDECIDED, STAYS, CUT = tl.constexpr(graphs.UNDECIDED), tl.constexpr(graphs.STAYS), tl.constexpr(graphs.CUT)


@triton.jit(do_not_specialize=["n", "k", "d"])
def nearest_kernel(
    points, order, boxes, keys, n, k, d, BLOCK: tl.constexpr
):  # fmt: skip
    """The k points nearest to each of ROWS points, as the keys i * n + j and j * n + i of the edges between them.

    Of equally near ones the first are taken. ``points`` (d, n) are in an ``order``. Of the ``boxes``, if there are any,
    the lows and highs (d, tiles) bound each tile of COLUMNS of them, which the points that are out of reach are left
    out by. The KEPT points nearest, a power of two, fit what a row has in registers.
    """
    ROWS: tl.constexpr = BLOCK[0]
    COLUMNS: tl.constexpr = BLOCK[1]
    KEPT: tl.constexpr = BLOCK[2]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane, slot = tl.arange(0, COLUMNS), tl.arange(0, KEPT)
    there = row < n
    asked = there[:, None] & (slot < k)[None, :]
    best = tl.where(asked, tl.full((ROWS, KEPT), float("inf"), tl.float64), -1.0)  # of which the largest goes first
    found = tl.full((ROWS, KEPT), NONE, tl.int32)
    worst = tl.max(best, 1)
    tiles = tl.cdiv(n, COLUMNS)
    own = tl.program_id(0) * ROWS // COLUMNS
    for step in range(tiles):
        tile = (own + step) % tiles
        away = tl.zeros((), tl.float64)
        if boxes is not None:
            lows, highs = boxes
            low, high = lows, highs
            for _ in range(d):
                above, below = tl.load(low + tile) - tl.load(high + own), tl.load(low + own) - tl.load(high + tile)
                gap = tl.maximum(tl.maximum(above, below), 0.0)
                away += gap * gap
                low, high = low + tiles, high + tiles
        if away <= tl.max(worst, 0):
            column = tile * COLUMNS + lane
            square = tl.zeros((ROWS, COLUMNS), tl.float64)
            side = points
            for _ in range(d):
                x = tl.load(side + row, mask=there, other=0.0)
                y = tl.load(side + column, mask=column < n, other=0.0)
                square += (x[:, None] - y[None, :]) * (x[:, None] - y[None, :])
                side += n
            square = tl.where((column < n)[None, :] & (column[None, :] != row[:, None]), square, float("inf"))
            name = tl.load(order + column, mask=column < n, other=NONE).to(tl.int32)
            better = there
            while tl.max(better.to(tl.int32), 0) > 0:
                least = tl.min(square, 1)
                first = tl.min(tl.where(square == least[:, None], name[None, :], NONE), 1)
                last = tl.max(tl.where(best == worst[:, None], found, -1), 1)
                better = (least < float("inf")) & ((least < worst) | ((least == worst) & (first < last)))
                out = (best == worst[:, None]) & (found == last[:, None])
                place = tl.min(tl.where(out, slot[None, :], KEPT), 1)
                put = better[:, None] & (slot[None, :] == place[:, None])
                best = tl.where(put, least[:, None], best)
                found = tl.where(put, first[:, None], found)
                square = tl.where(name[None, :] == first[:, None], float("inf"), square)
                worst = tl.max(best, 1)
    one = tl.load(order + row, mask=there, other=0)[:, None]
    spot = row.to(tl.int64)[:, None] * k + slot[None, :]
    tl.store(keys + spot, one * n + found, mask=asked)
    tl.store(keys + n.to(tl.int64) * k + spot, found.to(tl.int64) * n + one, mask=asked)


@triton.jit(do_not_specialize=["n", "d", "entries"])
def edges_kernel(
    found, points, edges, doubtful, n, d, entries, BLOCK: tl.constexpr
):  # fmt: skip
    """CSR rows, the ``edges``, of those with sorted keys, of which twice the same is one: a mutual edge.

    What is ``found`` are the keys and ``place`` (entries - 1,), which counts the others up to the next one. Behind them
    come as many as there are pairs, of infinite length, from point 0 to itself. ``doubtful`` is
    (waiting, rank, state, label): no entry is ``waiting`` or has a ``rank`` or a ``state``, and the ``label`` (n,) of a
    point is its number.
    """
    keys, place = found
    pointer, row, target, length, mutual = edges
    waiting, rank, state, label = doubtful
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    key = tl.load(keys + at, mask=inside, other=0)
    before = tl.load(keys + at - 1, mask=inside & (at > 0), other=-1)
    after = tl.load(keys + at + 1, mask=at + 1 < entries, other=-1)
    spot = tl.load(place + at - 1, mask=inside & (at > 0), other=0)
    count = tl.load(place + entries - 2) + 1
    fresh = key != before
    one, other = (key // n).to(tl.int32), (key % n).to(tl.int32)
    square = tl.zeros((BLOCK,), tl.float64)
    for axis in range(d):
        x = tl.load(points + one.to(tl.int64) * d + axis, mask=inside & fresh, other=0.0)
        y = tl.load(points + other.to(tl.int64) * d + axis, mask=inside & fresh, other=0.0)
        square += (x - y) * (x - y)
    spot = tl.where(fresh, spot, count + at - spot - 1)
    tl.store(row + spot, tl.where(fresh, one, 0), mask=inside)
    tl.store(target + spot, tl.where(fresh, other, 0), mask=inside)
    tl.store(length + spot, tl.where(fresh, tl.sqrt(square), float("inf")), mask=inside)
    tl.store(mutual + spot, (~fresh | (key == after)).to(tl.int8), mask=inside)
    tl.store(waiting + at, float("inf"), mask=inside)
    tl.store(rank + at, -1, mask=inside)
    tl.store(state + at, UNDECIDED, mask=inside)
    tl.store(label + at, at, mask=at < n)
    tl.store(pointer + one, spot, mask=inside & fresh & ((at == 0) | (one != (before // n).to(tl.int32))))
    tl.store(pointer + n, count, mask=tl.program_id(0) == 0)


@triton.jit
def doubts_kernel(pointer, target, length, mutual, waiting, label, EDGES: tl.constexpr, LINKED: tl.constexpr):
    """The lengths, in ``waiting``, of the edges from point pid to later points that are not mutual, and whose ends
    share no neighbour through edges that are; infinite for others.

    Those others link their ends: in the end ``label``, at first the number of each point, leads from each of a part to
    the first of it, step by step. Of two roots the later one is put below the other. If it was put below a third one
    meanwhile, the first two of the three are linked next, so no link is lost.
    """
    node = tl.program_id(0)
    lane = tl.arange(0, EDGES)
    low, high = tl.load(pointer + node), tl.load(pointer + node + 1)
    for entry in range(low, high):
        other = tl.load(target + entry)
        shared = (tl.load(mutual + entry) != 0) | (other < node)
        if not shared:
            begin, end = tl.load(pointer + other), tl.load(pointer + other + 1)
            first = low
            while (first < high) & (not shared):
                mine = first + lane
                known = mine < high
                known &= tl.load(mutual + mine, mask=known, other=0) != 0
                near = tl.load(target + mine, mask=known, other=-1)
                for second in range(begin, end, EDGES):
                    theirs = second + lane
                    also = theirs < end
                    also &= tl.load(mutual + theirs, mask=also, other=0) != 0
                    far = tl.load(target + theirs, mask=also, other=-2)
                    shared |= tl.max(tl.max((near[:, None] == far[None, :]).to(tl.int32), 1), 0) > 0
                first += EDGES
        tl.store(waiting + entry, tl.where(shared, float("inf"), tl.load(length + entry)))
    tl.debug_barrier()
    for step in range(low, high, LINKED):
        at = step + tl.arange(0, LINKED)
        linked = at < high
        linked &= tl.load(waiting + at, mask=linked, other=0.0, volatile=True) == float("inf")
        left = tl.load(target + at, mask=linked, other=0)
        right = tl.zeros((LINKED,), tl.int32) + node
        apart = linked & (left > right)
        while tl.max(apart.to(tl.int32), 0) > 0:
            above = tl.load(label + left, mask=apart, other=0, volatile=True)
            beyond = tl.load(label + right, mask=apart, other=0, volatile=True)
            roots = apart & (above == left) & (beyond == right)
            before, after = tl.minimum(left, right), tl.maximum(left, right)
            old = tl.atomic_min(label + after, before, mask=roots, sem="relaxed")
            left = tl.where(roots, before, above)
            right = tl.where(roots, tl.where(old == after, before, old), beyond)
            apart &= left != right


@triton.jit(do_not_specialize=["entries"])
def list_doubtful_kernel(found, graph, out, entries, BLOCK: tl.constexpr, EDGES: tl.constexpr):
    """The ends of the edges that wait, shortest first, and the ``rank`` of each at its two entries of the graph.

    What is ``found`` are their lengths and their entries; the ``graph`` is (pointer, row, target), and ``out`` is
    (rank, low, high).
    """
    waiting, order = found
    pointer, row, target = graph
    rank, low, high = out
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    listed = at < entries
    listed &= tl.load(waiting + at, mask=listed, other=float("inf")) < float("inf")
    entry = tl.load(order + at, mask=listed, other=0)
    one = tl.load(row + entry, mask=listed, other=0)
    other = tl.load(target + entry, mask=listed, other=0)
    tl.store(low + at, one, mask=listed)
    tl.store(high + at, other, mask=listed)
    tl.store(rank + entry, at, mask=listed)
    first = tl.load(pointer + other, mask=listed, other=0)
    last = tl.load(pointer + other + 1, mask=listed, other=0)
    for step in range(0, tl.max(last - first, 0), EDGES):
        back = first[:, None] + step + tl.arange(0, EDGES)[None, :]
        known = listed[:, None] & (back < last[:, None])
        same = known & (tl.load(target + back, mask=known, other=-1) == one[:, None])
        tl.store(rank + back, at[:, None], mask=same)


@triton.jit(do_not_specialize=["n", "entries"])
def join_parts_kernel(doubtful, parts, n, entries, LISTED: tl.constexpr):
    """Marks the edges that join parts which neither edges that stay nor those before them do, as in a spanning tree,
    and counts the parts that are left: by one program, as few edges do.

    ``doubtful`` is a `torchgw.kernels.neighbour_graphs.graphs.DoubtfulEdges`, whose label leads from each point to the
    first of its part, step by step.
    """
    _, waiting, low, high, state, label = doubtful
    listing = tl.arange(0, LISTED)
    first = 0
    ahead = 1
    while ahead > 0:
        tl.debug_barrier()
        at_once = first + listing
        listed = at_once < entries
        listed &= tl.load(waiting + at_once, mask=listed, other=float("inf")) < float("inf")
        one = tl.load(low + at_once, mask=listed, other=0)
        other = tl.load(high + at_once, mask=listed, other=0)
        joining = 0
        while joining < entries:
            tl.debug_barrier()
            moved = 1
            while moved > 0:
                above = tl.load(label + one, mask=listed, other=0, volatile=True)
                beyond = tl.load(label + other, mask=listed, other=0, volatile=True)
                moved = tl.sum((listed & ((above != one) | (beyond != other))).to(tl.int32), 0)
                one, other = above, beyond
            joining = tl.min(tl.where(listed & (one != other), at_once, entries), 0)
            this = at_once == joining
            tl.store(state + joining, STAYS, mask=joining < entries)
            tl.store(label + tl.maximum(one, other), tl.minimum(one, other), mask=this & (joining < entries))
        ahead = tl.sum(listed.to(tl.int32), 0)
        first += LISTED
    tl.debug_barrier()
    count = 0
    for first in range(0, n, LISTED):
        node = first + listing
        count += tl.sum((tl.load(label + node, mask=node < n, other=-1, volatile=True) == node).to(tl.int32), 0)
    tl.store(parts, count)


@triton.jit
def _has_path(graph, decisions, scratch, sizes, attempt, ends, limit, STEP: tl.constexpr):
    """Whether a path of at most the limit leads from the first of its ends to the other, the goal, by edges that stay
    before an edge has its turn; in hope by those that may. The ``attempt`` is (turn, hope), and the ``decisions`` are
    (rank, state). ``distance`` and ``queued``, of the ``scratch``, are left as they were."""
    points, pointer, target, length = graph
    rank, state = decisions
    distance, queued, queue, touched = scratch
    n, d = sizes
    turn, hope = attempt
    begin, goal = ends
    NODES: tl.constexpr = STEP[0]
    EDGES: tl.constexpr = STEP[1]
    at, edge, every = tl.arange(0, NODES), tl.arange(0, EDGES), tl.arange(0, NODES * EDGES)
    most = limit * ROUNDED
    tl.debug_barrier()
    tl.store(distance + begin, 0)
    tl.store(queue, begin)
    tl.store(touched, begin)
    count = 1
    seen = 1
    half = 0
    there = 0
    while count > 0:
        tl.debug_barrier()  # what all have written is read from here on
        here, into = queue + half * n, queue + (1 - half) * n
        fallen = 0
        for first in range(0, count, NODES):
            inside = first + at < count
            node = tl.load(here + first + at, mask=inside, other=0, volatile=True)
            tl.store(queued + node, 0, mask=inside)
            tl.debug_barrier()  # a distance that falls from here on queues its point again
            so_far = tl.load(distance + node, mask=inside, other=0, volatile=True).to(tl.float64, bitcast=True)
            low = tl.load(pointer + node, mask=inside, other=0)
            high = tl.load(pointer + node + 1, mask=inside, other=0)
            for step in range(0, tl.max(high - low, 0), EDGES):
                entry = low[:, None] + step + edge[None, :]
                known = entry < high[:, None]
                place = tl.load(rank + entry, mask=known, other=n)
                decided = tl.load(state + tl.maximum(place, 0), mask=known & (place >= 0), other=CUT, volatile=True)
                passable = (decided == STAYS) | ((hope != 0) & (decided == UNDECIDED))
                known &= (place < 0) | ((place < turn) & passable)
                near = tl.load(target + entry, mask=known, other=0)
                new = so_far[:, None] + tl.load(length + entry, mask=known, other=0.0)
                known &= new <= limit
                bits = new.to(tl.int64, bitcast=True)  # in the order of the numbers, as none is negative
                known &= bits < tl.load(distance + near, mask=known, other=0, volatile=True)
                square = tl.zeros((NODES, EDGES), tl.float64)
                for axis in range(d):
                    x = tl.load(points + near.to(tl.int64) * d + axis, mask=known, other=0.0)
                    gap = x - tl.load(points + goal.to(tl.int64) * d + axis)
                    square += gap * gap
                known &= new + tl.sqrt(square) <= most
                old = tl.atomic_min(distance + near, bits, mask=known, sem="relaxed")
                known &= bits < old
                new_here = tl.reshape((known & (old == INFINITE)).to(tl.int32), (NODES * EDGES,))
                flat = tl.reshape(near, (NODES * EDGES,))
                tl.store(touched + seen + tl.cumsum(new_here, 0) - new_here, flat, mask=new_here != 0)
                seen += tl.sum(new_here, 0)
                fresh = known & (tl.atomic_max(queued + near, 1, mask=known, sem="relaxed") == 0)
                chosen = tl.reshape(fresh.to(tl.int32), (NODES * EDGES,))
                tl.store(into + fallen + tl.cumsum(chosen, 0) - chosen, flat, mask=chosen != 0)
                fallen += tl.sum(chosen, 0)
        tl.debug_barrier()
        there = (tl.load(distance + goal, volatile=True) < INFINITE).to(tl.int32)
        count = tl.where(there != 0, 0, fallen)
        half = 1 - half
    tl.debug_barrier()
    for first in range(0, seen, NODES * EDGES):
        node = tl.load(touched + first + every, mask=first + every < seen, other=0, volatile=True)
        tl.store(distance + node, INFINITE, mask=first + every < seen)
        tl.store(queued + node, 0, mask=first + every < seen)
    return there


@triton.jit(do_not_specialize=["n", "d", "entries", "factor"])
def decide_edges_kernel(
    graph, doubtful, scratch, n, d, entries, factor, STEP: tl.constexpr
):  # fmt: skip
    """Decides of edges that wait, each program of every so many of them and so many times in turn, whether each stays
    or is cut, as far as those before it are decided.

    The ``graph`` is (points, pointer, target, length), and ``doubtful`` is a
    `torchgw.kernels.neighbour_graphs.graphs.DoubtfulEdges`, whose state is 0 for undecided edges. The ``scratch`` is
    (distance, queued, queue, touched): ``distance`` (programs, n) is infinite, ``queued`` (programs, n) is zero. A STEP
    has so many nodes and edges of each, and is done in so many sweeps.
    """
    rank, waiting, low, high, state, _ = doubtful
    distance, queued, queue, touched = scratch
    SWEEPS: tl.constexpr = STEP[2]
    program = tl.program_id(0)
    row = program.to(tl.int64) * n
    own_scratch = distance + row, queued + row, queue + 2 * row, touched + row
    factor = factor.to(tl.float64, bitcast=True)
    sweep = 0
    while sweep < SWEEPS:
        sweep += 1
        left = 0
        turn = program
        own = tl.load(waiting + turn, mask=turn < entries, other=float("inf"))
        while own < float("inf"):
            for hope in range(2):
                if tl.load(state + turn, volatile=True) == UNDECIDED:
                    begin, goal = tl.load(low + turn), tl.load(high + turn)
                    there = _has_path(
                        graph, (rank, state), own_scratch, (n, d), (turn, hope), (begin, goal), factor * own, STEP
                    )
                    tl.debug_barrier()
                    tl.store(state + turn, STAYS, mask=(hope == 0) & (there != 0))
                    tl.store(state + turn, CUT, mask=(hope == 1) & (there == 0))
                tl.debug_barrier()
            left += (tl.load(state + turn, volatile=True) == UNDECIDED).to(tl.int32)
            turn += tl.num_programs(0)
            own = tl.load(waiting + turn, mask=turn < entries, other=float("inf"))
        sweep = tl.where(left == 0, SWEEPS, sweep)


@triton.jit(do_not_specialize=["entries"])
def finish_graph_kernel(edges, doubtful, told, size, entries, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """The graph, in the unit at ``size``, without the edges that were cut, which become loops of infinite length. Of
    those in doubt the numbers that are undecided, and that are cut, and place and ends of the latter, in any order.
    With the undecided ones count those of no length. ``edges`` and ``doubtful`` are the records of
    `torchgw.kernels.neighbour_graphs.graphs`."""
    _, row, target, length, _ = edges
    rank, waiting, low, high, state, _ = doubtful
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    listed = tl.load(waiting + at, mask=inside, other=float("inf")) < float("inf")
    decided = tl.load(state + at, mask=listed, other=STAYS)
    place = tl.load(rank + at, mask=inside, other=-1)
    cut = tl.load(state + tl.maximum(place, 0), mask=inside & (place >= 0), other=STAYS) == CUT
    own = tl.load(length + at, mask=inside, other=0.0) * tl.load(size)
    own = tl.where(cut, float("inf"), own)
    undecided, gone = (decided == UNDECIDED).to(tl.int32), (decided == CUT).to(tl.int32)
    undecided += (inside & (own == 0)).to(tl.int32)
    tl.atomic_add(told, tl.sum(undecided, 0), sem="relaxed")
    spot = tl.atomic_add(told + 1, tl.sum(gone, 0), sem="relaxed") + tl.cumsum(gone, 0) - 1
    kept = (gone != 0) & (spot < MOST)
    tl.store(told + 2 + 3 * spot, at, mask=kept)
    tl.store(told + 3 + 3 * spot, tl.load(low + at, mask=kept, other=0), mask=kept)
    tl.store(told + 4 + 3 * spot, tl.load(high + at, mask=kept, other=0), mask=kept)
    tl.store(length + at, own, mask=inside)
    tl.store(target + at, tl.load(row + at, mask=inside, other=0), mask=inside & cut)
