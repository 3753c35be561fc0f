"""Programs run by a tiny interpreter with an unkind network, against the definition of an all-reduce.

All ranks are simulated in one process and in random order. A send completes only when its receive is
posted, and its memory must not change until then; a receive's memory must not be touched until it is
complete.
"""

import random
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.engine import program as p
from mpicoll.engine.layout import Shape
from mpicoll.engine.lowering import Limits, lower
from mpicoll.schedule import Schedule, algorithms, bounds, recv, send
from mpicoll.schedule import reduce as reduce_
from mpicoll.schedule.collectives import COLLECTIVES

ITEM = np.dtype([("a", np.uint32), ("b", np.uint32)])  # the map x -> a x + b modulo 2**32
LIMITS = [
    Limits(),
    Limits(segment=24, segments=3, message=1 << 30),
    Limits(segment=8, segments=99, message=16),
    Limits(segment=16, segments=2, whole=60),
]


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


def simulate(schedule, buffers, op, counts, in_place=False, limits=LIMITS[0], seed=0, most=1):
    """Run a schedule on all ranks; give what is in their receive buffers at the end.

    No rank may use more scratch for incoming data than `most` vectors, or a window of segments.
    """
    order, network, ranks, results = random.Random(seed), Network(), [], []
    for rank, (sendbuf, recvbuf) in enumerate(buffers):
        only_root = schedule.collective in ("gather", "reduce", "scatter")
        here = in_place and (rank == schedule.root or not only_root)
        program = lower(schedule, shape(schedule, rank, counts, here), limits)
        memory = np.full(program.scratch, 0xA5, np.uint8)
        bases = {p.RECVBUF: recvbuf.view(np.uint8), p.SCRATCH: memory}
        bases[p.SENDBUF] = sendbuf.copy().view(np.uint8)
        bases[p.SENDBUF].flags.writeable = False
        results.append(recvbuf)
        ranks.append(run_rank(rank, program, bases, op, network))
        nbytes = sum(counts) * ITEM.itemsize * (schedule.size if schedule.collective == "alltoall" else 1)
        window = 4 * (max(limits.segment, -(-nbytes // limits.segments)) + 64)
        own = lowered_scratch(schedule, nbytes)
        blocks = len(counts) * max(counts) * ITEM.itemsize  # one from each rank, all as long as the longest
        assert program.scratch - own <= max(most * nbytes + 64, blocks, window)
    while ranks:
        order.shuffle(ranks)
        posts = network.posts
        finished = [rank for rank in ranks if next(rank, "finished") == "finished"]
        assert finished or network.posts > posts, "deadlock"
        ranks = [rank for rank in ranks if rank not in finished]
    return results


def lowered_scratch(schedule, nbytes):
    """Give the scratch for values that a rank only passes on, and for the schedule's own vectors."""
    passes_on = schedule.collective in ("reduce", "gather", "scatter", "reduce_scatter", "alltoall")
    return (schedule.vectors + passes_on) * nbytes


def shape(schedule, rank, counts, in_place=False):
    near = frozenset(range(schedule.size))
    own = (rank, schedule.size, schedule.root, schedule.chunks)
    return Shape(*own, tuple(counts), ITEM.itemsize, in_place, near)


def memory_of(collective, rank, root, data, counts, op, in_place):
    """Give a rank's send buffer, receive buffer and what must be in the latter at the end.

    `data` are all ranks' vectors; where a vector is made of blocks, `counts` are their lengths.
    """
    none = np.empty(0, ITEM)
    mine, total = data[rank], reduce(op, data)
    if collective in ("allreduce", "barrier"):
        return mine, mine if in_place else None, total
    if collective == "scan":
        return mine, mine if in_place else None, reduce(op, data[: rank + 1])
    if collective == "exscan":
        start = mine if in_place else poison(len(mine))
        return mine, start, reduce(op, data[:rank]) if rank else start
    if collective == "bcast":
        return none, mine if rank == root else None, data[root]
    if collective == "reduce":
        return mine, none if rank != root else mine if in_place else None, total if rank == root else none
    edges = np.cumsum([0, *counts])
    own = slice(edges[rank], edges[rank + 1])
    if collective in ("allgather", "gather"):
        blocks = [vector[edges[i] : edges[i + 1]] for i, vector in enumerate(data)]
        if collective == "gather" and rank != root:
            return blocks[rank], none, none
        start = poison(edges[-1])
        if in_place:
            start[own] = blocks[rank]
        return blocks[rank], start, np.concatenate(blocks)
    if collective == "reduce_scatter":
        if in_place:
            rest = mine.copy()
            rest[: counts[rank]] = total[own]
            return none, mine, (rest, counts[rank])
        return mine, None, total[own]
    if collective == "scatter":
        if in_place and rank == root:
            return mine, none, none
        return mine if rank == root else none, None, data[root][own]
    assert collective == "alltoall"
    return mine, None, np.concatenate([vector[own] for vector in data])


def poison(count):
    return np.full(count * ITEM.itemsize, 0xA5, np.uint8).view(ITEM)


def draw_vectors(size, count, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, (size, count, 2), dtype=np.uint32).view(ITEM).reshape(size, count)


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
    collective = algorithm.collective
    size = data.draw(st.integers(1, 9).filter(algorithm.serves), "size")
    in_place = data.draw(st.booleans(), "in place") and collective not in ("alltoall", "bcast")
    parameters = parameters_of(algorithm, size, data.draw)
    counts = counts_of(collective, size, data.draw)
    vectors = draw_vectors(size, sum(counts), data.draw(st.integers(0, 2**32 - 1), "seed"))
    op = add if algorithm.commutative else compose
    root = parameters.get("root", 0)
    memory = [memory_of(collective, r, root, vectors, counts, op, in_place) for r in range(size)]
    buffers, wanted = [], []
    for sendbuf, recvbuf, result in memory:
        whole, due = result if isinstance(result, tuple) else (result, len(result))
        buffers.append((sendbuf, poison(len(whole)) if recvbuf is None else recvbuf.copy()))
        wanted.append(whole[:due])
    results = simulate(
        algorithm.schedule(size, **parameters),
        buffers,
        op,
        counts,
        in_place=in_place,
        limits=data.draw(st.sampled_from(LIMITS), "limits"),
        seed=data.draw(st.integers(0, 99), "order"),
        most=2 if algorithm.pipelined else 1,  # a chunk from each child, which may be all there is
    )
    if collective != "barrier":
        for rank, (result, due) in enumerate(zip(results, wanted, strict=True)):
            np.testing.assert_array_equal(result[: len(due)], due, err_msg=f"rank {rank}")


def counts_of(collective, size, draw):
    """Draw the length of the vector, or of each block."""
    if collective == "alltoall":
        return [draw(st.sampled_from([0, 1, 5]), label="count")] * size
    if COLLECTIVES[collective].blocks(size) == size and size > 1:
        return draw(st.lists(st.sampled_from([0, 1, 2, 7, 40]), min_size=size, max_size=size), label="counts")
    return [draw(st.sampled_from([0, 1, size - 1, size, size + 1, 40, 97]), label="count")]


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

    vectors = draw_vectors(2, 50, 1)
    schedule = Schedule("allreduce", "test", 2, 3, steps)
    edges = bounds(50, 3)
    buffers = [(vector, vector.copy() if in_place else poison(50)) for vector in vectors]
    for rank, result in enumerate(simulate(schedule, buffers, add, [50], in_place, limits)):
        total = add(*vectors)
        wanted = np.concatenate([add(total, total)[: edges[1]], total[edges[1] :]])
        np.testing.assert_array_equal(result, wanted, err_msg=f"rank {rank}")


def test_no_window_where_a_message_waits_for_another_of_its_step():
    """Proved, so it must not hang: what a rank receives first is what the other sends last."""

    def steps(rank):
        mine, theirs = ([1, 0], [0, 1]) if rank == 0 else ([0, 1], [1, 0])
        yield send(1 - rank, mine), recv(1 - rank, theirs)
        yield send(1 - rank, [0, 1]), reduce_(1 - rank, [0, 1])

    vectors = draw_vectors(2, 60, 3)
    schedule = Schedule("allreduce", "test", 2, 2, steps)
    for limits in LIMITS:
        buffers = [(vector, vector.copy()) for vector in vectors]
        for result in simulate(schedule, buffers, add, [60], True, limits):
            np.testing.assert_array_equal(result, add(*vectors))


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
