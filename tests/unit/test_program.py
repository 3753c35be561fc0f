"""Schedules written out as arrays, against the schedules themselves."""

import numpy as np
import pytest

from mpicoll.model.program import KINDS, LAST, program
from mpicoll.schedule import Schedule, algorithms, find, recv, reduce, send


def written_out(schedule, rank):
    """Give what `Program.of` does, by the schedule's own steps."""
    rows = []
    for step in schedule.steps(rank):
        for move in step:
            rows += [(KINDS[move.kind], move.peer, first, stop - first) for first, stop in move.chunks]
        if step:
            rows[-1] = (rows[-1][0] | LAST, *rows[-1][1:])
    return rows


@pytest.mark.parametrize("algorithm", algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_all_algorithms(algorithm):
    for size in (1, 2, 3, 4, 5, 7, 8, 12, 16, 17):
        if not algorithm.serves(size):
            continue
        nodes = tuple(tuple(range(first, min(first + 3, size))) for first in range(0, size, 3))
        parameters = {"chunks": 3} if algorithm.pipelined else {}
        schedule = algorithm.schedule(size, nodes=nodes, **parameters)
        found = program(schedule)
        rows = [written_out(schedule, rank) for rank in range(size)]
        assert [found.of(rank) for rank in range(size)] == rows
        assert found.moves == sum(map(len, rows))


@pytest.mark.parametrize(
    ("name", "alike"), [("ring", True), ("bidirectional_ring", True), ("recursive_halving_doubling", False)]
)
def test_ranks_that_do_alike_are_asked_at_once(name, alike):
    found = program(find("allreduce", name).schedule(64))
    assert found.alike == alike
    assert (len(found.kind) < found.moves) == alike


def test_slots():
    schedule = find("allgather", "bruck").schedule(3)
    slots = program(schedule).slots(10)
    assert slots[:4].tolist() == [0, 4, 7, 10]
    assert (np.diff(slots[: schedule.chunks + 1]) >= 0).all()


def ring_but(rank, size, odd):
    """Give a step of a ring, in which one rank's chunk is another."""
    yield send((rank + 1) % size, odd(rank)), recv((rank - 1) % size, 0)


@pytest.mark.parametrize(
    "odd",
    [
        lambda rank: 1 if rank == 5 else 0,  # NumPy refuses
        lambda rank: 0 if isinstance(rank, np.ndarray) else 1,  # it does not
    ],
)
def test_what_all_ranks_at_once_say_is_checked(odd):
    schedule = Schedule("bcast", "odd", 16, 2, lambda rank: ring_but(rank, 16, odd))
    found = program(schedule)
    assert not found.alike
    assert [found.of(rank) for rank in range(16)] == [written_out(schedule, rank) for rank in range(16)]


def test_a_rank_that_is_changed_in_place():
    def steps(rank):
        right, left = (rank + 1) % 8, (rank - 1) % 8
        for _ in range(3):
            yield send(right, rank), recv(left, rank - 1)
            rank += 1

    schedule = Schedule("bcast", "sliding", 8, 8, steps)
    found = program(schedule)
    assert [found.of(rank) for rank in range(8)] == [written_out(schedule, rank) for rank in range(8)]


@pytest.mark.parametrize("peer", [lambda rank: rank, lambda rank: rank + 1, lambda _: -1])
def test_peers_that_are_not_there(peer):
    schedule = Schedule("bcast", "lonely", 4, 1, lambda rank: [reduce(peer(rank), 0)])
    with pytest.raises(ValueError, match=r"lonely: rank [03] of 4 cannot reduce with rank"):
        program(schedule)


@pytest.mark.parametrize("name", ["ring", "recursive_halving_doubling"])
def test_too_large(name):
    schedule = find("allreduce", name).schedule(64)
    with pytest.raises(MemoryError, match=rf"{name} on 64 ranks takes up to \S+ GiB of memory .* are free"):
        program(schedule, memory=1000)
