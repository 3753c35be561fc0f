"""Programs run by a tiny interpreter with an unkind network, against the definitions of the collectives.

All ranks are simulated in one process and in random order. A send completes only when its receive is
posted, and its memory must not change until then; a receive's memory must not be touched until it is
complete.
"""

import random
from functools import reduce
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.engine import program as p
from mpicoll.engine.layout import Shape
from mpicoll.engine.lowering import Limits, lower
from mpicoll.schedule import Schedule, algorithms, bounds, find, recv, send
from mpicoll.schedule import reduce as reduce_
from mpicoll.schedule.collectives import COLLECTIVES

ITEM = np.dtype([("a", np.uint32), ("b", np.uint32)])  # the map x -> a x + b modulo 2**32
LIMITS = [
    Limits(),
    Limits(segment=24, segments=3, message=1 << 30),
    Limits(segment=8, segments=99, message=16),
    Limits(segment=16, segments=2, whole=60),
]


NOTHING = np.empty(0, ITEM)


def compose(left, right):
    """First left, then right: associative, exact, and not commutative."""
    out = np.empty_like(left)
    out["a"] = left["a"] * right["a"]
    out["b"] = left["b"] * right["a"] + right["b"]
    return out


def add(left, right):
    out = np.empty_like(left)
    out["a"], out["b"] = left["a"] + right["a"], left["b"] + right["b"]
    return out


class Network:
    """Messages between simulated ranks, matched in order for each pair."""

    def __init__(self):
        self.sends, self.recvs = {}, {}
        self.posts = 0

    def post(self, queue, other, key, message):
        self.posts += 1
        if other.get(key):
            partner = other[key].pop(0)
            send, recv = (message, partner) if queue is self.sends else (partner, message)
            assert (send["memory"] == send["snapshot"]).all(), (
                "send buffer changed before the send was complete"
            )
            assert len(send["memory"]) == len(recv["memory"]), "message and receive differ in length"
            recv["memory"][:] = send["memory"]
            send["done"] = recv["done"] = True
        else:
            queue.setdefault(key, []).append(message)

    def send(self, source, target, memory):
        message = {"memory": memory, "snapshot": memory.copy(), "done": False}
        self.post(self.sends, self.recvs, (source, target), message)
        return message

    def recv(self, source, target, memory):
        memory[:] = 0xA5
        message = {"memory": memory, "done": False}
        self.post(self.recvs, self.sends, (source, target), message)
        return message


def run_rank(rank, program, bases, op, network):
    """Run one rank's program; a generator that yields whenever it must wait."""
    requests, posted = {}, []

    def memory(row, column, nbytes):
        base, offset = row[column], row[column + 1]
        view = bases[base][offset : offset + nbytes]
        assert len(view) == nbytes, "outside of the buffer"
        for message in posted:
            assert message["done"] or not np.shares_memory(message["memory"], view), "touched while receiving"
        return view

    def wait(message):
        while not message["done"]:
            yield
        if "snapshot" in message:
            assert (message["memory"] == message["snapshot"]).all(), (
                "send buffer changed before it was waited for"
            )

    for row in program.rows.tolist():
        code = row[0]
        if code in (p.IRECV, p.RECV):
            message = network.recv(row[4], rank, memory(row, 1, row[3]))
            posted.append(message)
        elif code in (p.ISEND, p.SEND):
            message = network.send(rank, row[4], memory(row, 1, row[3]))
        if code in (p.IRECV, p.ISEND):
            assert row[5] not in requests, "request overwritten"
            requests[row[5]] = message
        elif code in (p.RECV, p.SEND):
            yield from wait(message)
        elif code == p.WAIT:
            yield from wait(requests.pop(row[1]))
        elif code == p.SENDRECV:
            out = network.send(rank, row[4], memory(row, 1, row[3]))
            into = network.recv(row[8], rank, memory(row, 5, row[7]))
            posted.append(into)
            yield from wait(out)
            yield from wait(into)
        elif code == p.COMBINE:
            out, left, right = (memory(row, c, row[7] * ITEM.itemsize) for c in (1, 3, 5))
            out[:] = op(left.view(ITEM), right.view(ITEM)).view(np.uint8)
        elif code == p.COPY:
            memory(row, 1, row[5])[:] = memory(row, 3, row[5])
    assert not requests, "requests left"


class Call(NamedTuple):
    """What a rank passes, and what must be in its receive buffer at the end, as far as that is defined."""

    shape: Shape
    sendbuf: np.ndarray
    recvbuf: np.ndarray
    wanted: np.ndarray


def simulate(schedule, calls, op, limits=LIMITS[0], seed=0, most=1):
    """Run a schedule on all ranks.

    No rank may use more scratch for incoming data than `most` vectors, or a window of segments.
    """
    order, network, ranks = random.Random(seed), Network(), []
    for rank, call in enumerate(calls):
        program = lower(schedule, call.shape, limits)
        check_scratch(program, schedule, call.shape, limits, most)
        bases = {
            p.SENDBUF: call.sendbuf.copy().view(np.uint8),
            p.RECVBUF: call.recvbuf.view(np.uint8),
            p.SCRATCH: np.full(program.scratch, 0xA5, np.uint8),
        }
        bases[p.SENDBUF].flags.writeable = False
        ranks.append(run_rank(rank, program, bases, op, network))
    while ranks:
        order.shuffle(ranks)
        posts = network.posts
        finished = [rank for rank in ranks if next(rank, "finished") == "finished"]
        assert finished or network.posts > posts, "deadlock"
        ranks = [rank for rank in ranks if rank not in finished]
    for rank, call in enumerate(calls):
        result = call.recvbuf[: len(call.wanted)]
        np.testing.assert_array_equal(result, call.wanted, err_msg=f"rank {rank}")


def check_scratch(program, schedule, shape, limits, most):
    """Check the scratch beyond that for values that a rank only passes on, and the schedule's own vectors."""
    counts, passes_on = shape.counts, schedule.collective in ("reduce", "gather", "scatter", "reduce_scatter")
    passes_on |= schedule.collective == "bcast" and shape.rank == shape.root
    nbytes = sum(counts) * ITEM.itemsize
    passed = nbytes * (schedule.vectors + passes_on)
    if schedule.collective == "alltoall":
        uniform = shape.incoming is None and len(set(counts)) == 1
        passed, nbytes = nbytes * uniform, nbytes * schedule.size * uniform
    window = 4 * (max(limits.segment, -(-nbytes // limits.segments)) + 64)
    blocks = len(counts) * max(counts) * ITEM.itemsize  # one from each rank, all as long as the longest
    assert program.scratch - passed <= max(most * nbytes + 64, blocks, window)


def shape(schedule, rank, counts, in_place=False, **displaced):
    near = frozenset(range(schedule.size))
    own = (rank, schedule.size, schedule.root, schedule.chunks)
    return Shape(*own, tuple(counts), ITEM.itemsize, in_place, near, **displaced)


def calls_of(schedule, counts, op, in_place, displaced, alone, rng):
    """Give every rank's part of a collective on random data.

    Parameters
    ----------
    counts : list of int, or of lists of int
        Length of the vector or of each block; in an all-to-all of each block that each rank sends.
    displaced : bool
        Whether the blocks are in any order, with gaps, or where they are only sent anywhere.
    alone : bool
        Whether the ranks of a gather or scatter, but the root, know no block but their own.
    """
    if schedule.collective == "alltoall":
        return calls_of_alltoall(schedule, counts, displaced, rng)
    if schedule.collective in ("allgather", "gather"):
        return calls_of_gather(schedule, counts, in_place, displaced, alone, rng)
    if schedule.collective == "scatter":
        return calls_of_scatter(schedule, counts, in_place, displaced, alone, rng)
    data = [drawn(sum(counts), rng) for _ in range(schedule.size)]
    return [call_of_vector(schedule, rank, counts, data, op, in_place) for rank in range(schedule.size)]


def call_of_vector(schedule, rank, counts, data, op, in_place):
    collective, at_root = schedule.collective, rank == schedule.root
    mine, total = data[rank], reduce(op, data)
    start = mine.copy() if in_place else poison(len(mine))
    if collective == "bcast":
        start = data[rank].copy() if at_root else poison(len(mine))
        start.flags.writeable = not at_root
        return Call(shape(schedule, rank, counts), NOTHING, start, data[schedule.root])
    if collective == "reduce" and not at_root:
        return Call(shape(schedule, rank, counts), mine, NOTHING, NOTHING)
    if collective == "scan":
        total = reduce(op, data[: rank + 1])
    elif collective == "exscan":
        total = reduce(op, data[:rank]) if rank else start.copy()
    elif collective == "reduce_scatter":
        edges = np.cumsum([0, *counts])
        total = total[edges[rank] : edges[rank + 1]]
        start = start if in_place else poison(len(total))
    elif collective == "barrier":  # whose op does not mind to combine twice, as ours does
        total = NOTHING
    return Call(shape(schedule, rank, counts, in_place), NOTHING if in_place else mine, start, total)


def calls_of_gather(schedule, counts, in_place, displaced, alone, rng):
    blocks = [drawn(count, rng) for count in counts]
    for rank, mine in enumerate(blocks):
        if schedule.collective == "gather" and rank != schedule.root:
            yield Call(shape(schedule, rank, known(counts, rank, alone)), mine, NOTHING, NOTHING)
            continue
        places = apart(counts, rng) if displaced else following(counts)
        wanted = poison(extent(places, counts))
        start = wanted.copy()
        for block, place in zip(blocks, places, strict=True):
            wanted[place : place + len(block)] = block
        if in_place:
            start[places[rank] : places[rank] + len(mine)] = mine
        own = shape(schedule, rank, counts, in_place, displacements=places if displaced else None)
        yield Call(own, NOTHING if in_place else mine, start, wanted)


def calls_of_scatter(schedule, counts, in_place, displaced, alone, rng):
    places = anywhere(counts, rng) if displaced else following(counts)
    memory = drawn(extent(places, counts), rng)
    for rank, (place, count) in enumerate(zip(places, counts, strict=True)):
        block = memory[place : place + count]
        if rank != schedule.root:
            own = shape(schedule, rank, known(counts, rank, alone))
            yield Call(own, NOTHING, poison(count), block)
            continue
        own = shape(schedule, rank, counts, in_place, displacements=places if displaced else None)
        yield Call(own, memory, *((NOTHING, NOTHING) if in_place else (poison(count), block)))


def calls_of_alltoall(schedule, counts, displaced, rng):
    incoming = [list(column) for column in zip(*counts, strict=True)]
    alike = counts == incoming
    out = [anywhere(row, rng) if displaced else following(row) for row in counts]
    memory = [drawn(extent(*sent), rng) for sent in zip(out, counts, strict=True)]
    for rank, lengths in enumerate(incoming):
        places = apart(lengths, rng) if displaced else following(lengths)
        wanted = poison(extent(places, lengths))
        for source, (place, count) in enumerate(zip(places, lengths, strict=True)):
            begin = out[source][rank]
            wanted[place : place + count] = memory[source][begin : begin + count]
        own = shape(
            schedule,
            rank,
            counts[rank],
            displacements=out[rank] if displaced else None,
            incoming=None if alike else tuple(lengths),
            incoming_displacements=places if displaced else None,
        )
        yield Call(own, memory[rank], poison(len(wanted)), wanted)


def known(counts, rank, alone):
    return [count * (r == rank or not alone) for r, count in enumerate(counts)]


def following(counts):
    return tuple(np.cumsum([0, *counts])[:-1].tolist())


def apart(counts, rng):
    """Place blocks in any order, with gaps."""
    order = rng.permutation(len(counts))
    gaps = rng.choice([0, 0, 1, 3], len(counts))
    places = np.empty(len(counts), int)
    places[order] = np.cumsum(gaps) + following(np.array(counts)[order])
    return tuple(places.tolist())


def anywhere(counts, rng):
    """Place blocks so that they may overlap."""
    return tuple(rng.integers(0, sum(counts) + 2, len(counts)).tolist())


def extent(places, counts):
    """Give the length of memory that holds all blocks, and a gap at its end."""
    return max(place + count for place, count in zip(places, counts, strict=True)) + 2


def poison(count):
    return np.full(count * ITEM.itemsize, 0xA5, np.uint8).view(ITEM)


def drawn(count, rng):
    return rng.integers(0, 2**32, (count, 2), dtype=np.uint32).view(ITEM).reshape(count)


def parameters_of(algorithm, size, draw):
    parameters = {}
    if algorithm.collective in ("bcast", "reduce", "gather", "scatter"):
        parameters["root"] = draw(st.integers(0, size - 1), label="root")
    if "radix" in algorithm.variants:
        parameters["radix"] = draw(st.sampled_from(algorithm.variants["radix"]), label="radix")
    if algorithm.pipelined:
        parameters["chunks"] = draw(st.sampled_from([1, 2, 3, 8]), label="chunks")
    if algorithm.two_level:
        where = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size), label="nodes")
        nodes = [tuple(r for r in range(size) if where[r] == node) for node in range(4)]
        parameters["nodes"] = tuple(node for node in nodes if node)
    return parameters


@pytest.mark.parametrize("algorithm", algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_programs_compute_the_collective(algorithm, data):
    size = data.draw(st.integers(1, 9).filter(algorithm.serves), "size")
    schedule = algorithm.schedule(size, **parameters_of(algorithm, size, data.draw))
    displaced = data.draw(st.booleans(), "displaced")
    op = add if algorithm.commutative else compose
    calls = calls_of(
        schedule,
        counts_of(algorithm, size, data.draw),
        op,
        in_place=data.draw(st.booleans(), "in place"),
        displaced=displaced,
        alone=data.draw(st.booleans(), "alone") and not algorithm.transit,
        rng=np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed")),
    )
    simulate(
        schedule,
        list(calls),
        op,
        limits=data.draw(st.sampled_from(LIMITS), "limits"),
        seed=data.draw(st.integers(0, 99), "order"),
        # a chunk from each child, which may be all there is; blocks that are packed to be sent and received
        most=2 if algorithm.pipelined or displaced else 1,
    )


def counts_of(algorithm, size, draw):
    """Draw the length of the vector, of each block, or of each that each rank sends."""
    if algorithm.collective == "alltoall":
        if algorithm.transit or draw(st.booleans(), label="uniform"):
            return [[draw(st.sampled_from([0, 1, 5]), label="count")] * size] * size
        blocks = st.lists(st.sampled_from([0, 1, 2, 7, 40]), min_size=size, max_size=size)
        rows = [draw(blocks, label=f"counts of rank {rank}") for rank in range(size)]
        if draw(st.booleans(), label="symmetric"):
            return [[rows[min(s, d)][max(s, d)] for d in range(size)] for s in range(size)]
        return rows
    if COLLECTIVES[algorithm.collective].blocks(size) == size and size > 1:
        return draw(st.lists(st.sampled_from([0, 1, 2, 7, 40]), min_size=size, max_size=size), label="counts")
    return [draw(st.sampled_from([0, 1, size - 1, size, size + 1, 40, 97]), label="count")]


@pytest.mark.parametrize("displaced", [False, True])
@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("allgather", "ring"),
        ("allgather", "direct"),
        ("gather", "linear"),
        ("scatter", "linear"),
        ("alltoall", "direct"),
        ("alltoall", "pairwise"),
    ],
)
def test_no_block_but_ones_own_is_copied(collective, name, displaced):
    schedule = find(collective, name).schedule(4)
    counts = [[3, 1, 4, 2], [5, 9, 2, 6], [0, 3, 5, 8], [1, 7, 9, 3]]
    counts = counts if collective == "alltoall" else counts[0]
    for call in calls_of(schedule, counts, add, False, displaced, False, np.random.default_rng(1)):
        program = lower(schedule, call.shape)
        assert [row[0] for row in program.rows].count(p.COPY) <= 1


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("limits", LIMITS)
def test_moves_of_a_step_see_the_values_from_before_it(in_place, limits):
    """Chunks that are sent and received, or combined and sent, in one step."""

    def steps(rank):
        other = 1 - rank
        yield send(other, [0, 1]), recv(other, [0, 1])  # swapped: ranks hold each other's
        yield send(other, 1), recv(other, 1)  # swapped back
        yield send(other, range(3)), reduce_(other, range(3))  # a message from two buffers, both ways
        yield send(other, 0), reduce_(other, 0)

    rng = np.random.default_rng(1)
    vectors = [drawn(50, rng), drawn(50, rng)]
    schedule = Schedule("allreduce", "test", 2, 3, steps)
    total = add(*vectors)
    edge = bounds(50, 3)[1]
    wanted = np.concatenate([add(total, total)[:edge], total[edge:]])
    calls = [call_of_vector(schedule, rank, [50], vectors, add, in_place) for rank in range(2)]
    simulate(schedule, [call._replace(wanted=wanted) for call in calls], add, limits)


def test_no_window_where_a_message_waits_for_another_of_its_step():
    """Proved, so it must not hang: what a rank receives first is what the other sends last."""

    def steps(rank):
        mine, theirs = ([1, 0], [0, 1]) if rank == 0 else ([0, 1], [1, 0])
        yield send(1 - rank, mine), recv(1 - rank, theirs)
        yield send(1 - rank, [0, 1]), reduce_(1 - rank, [0, 1])

    schedule = Schedule("allreduce", "test", 2, 2, steps)
    for limits in LIMITS:
        calls = calls_of(schedule, [60], add, True, False, False, np.random.default_rng(3))
        simulate(schedule, calls, add, limits)


def test_nothing_is_sent_for_an_empty_vector():
    for algorithm in algorithms("allreduce"):
        parameters = {"chunks": 2} if algorithm.pipelined else {}
        schedule = algorithm.schedule(4, **parameters)
        assert len(lower(schedule, shape(schedule, 1, [0])).rows) == 0


def test_no_message_exceeds_the_limit():
    limits = Limits(segment=8, segments=2, message=32)
    for algorithm in algorithms("allreduce"):
        parameters = {"chunks": 2} if algorithm.pipelined else {}
        schedule = algorithm.schedule(4, **parameters)
        for row in lower(schedule, shape(schedule, 1, [100]), limits).rows.tolist():
            if row[0] in (p.IRECV, p.ISEND, p.RECV, p.SEND, p.SENDRECV):
                assert row[3] <= 32
