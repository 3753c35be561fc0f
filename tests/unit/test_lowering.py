"""Programs run by a tiny interpreter with an unkind network, against the definitions of the collectives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_calls import (
    ITEM,
    add,
    call_of_vector,
    calls_of,
    compose,
    counts_of,
    drawn,
    parameters_of,
    shape,
)
from schedule_programs import LIMITS, run_all

from mpicoll.engine import program as p
from mpicoll.engine.lowering import Limits, lower
from mpicoll.schedule import Schedule, algorithms, bounds, find, recv, send
from mpicoll.schedule import reduce as reduce_


def simulate(schedule, calls, op, limits=LIMITS[0], seed=0, most=1):
    """Run a schedule on all ranks.

    No rank may use more scratch for incoming data than `most` vectors, or a window of segments.
    """
    calls = list(calls)
    programs = [lower(schedule, call.shape, limits) for call in calls]
    for program, call in zip(programs, calls, strict=True):
        check_scratch(program, schedule, call.shape, limits, most)
    run_all(programs, calls, op, seed)


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
