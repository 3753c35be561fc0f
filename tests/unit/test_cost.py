"""What schedules cost on model.networks, against the formulas of the literature."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpicoll.algorithms  # noqa: F401  # registers them
from mpicoll.model.cost import cost
from mpicoll.model.network import Link, Machine
from mpicoll.schedule import Schedule, algorithms, find, recv, reduce, send

ALPHA, BETA, GAMMA = 3e-6, 1e-9, 2.5e-10
MACHINE = Machine.flat(Link(ALPHA, 1 / BETA), 1 / GAMMA)
SIZES = [1, 2, 3, 4, 7, 8, 16, 33, 64]


def of(collective, name, size, nbytes, machine=MACHINE, nodes=None, **parameters):
    schedule = find(collective, name).schedule(size, nodes=nodes, **parameters)
    return cost(schedule, nbytes, machine, nodes)


@pytest.mark.parametrize("size", SIZES)
def test_ring(size):
    share = 5040
    found = of("allreduce", "ring", size, share * size)
    time = 2 * (size - 1) * (ALPHA + share * BETA) + (size - 1) * share * GAMMA
    assert found.seconds == pytest.approx(time)
    assert (found.rounds, found.sent) == (2 * (size - 1), 2 * (size - 1) * share)
    assert found.messages == 2 * (size - 1) * size
    assert found.combined == (size - 1) * share


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64])
def test_doublings(size):
    nbytes, steps = 6400, round(math.log2(size))
    doubling = of("allreduce", "recursive_doubling", size, nbytes)
    assert doubling.seconds == pytest.approx(steps * (ALPHA + nbytes * (BETA + GAMMA)))
    halving = of("allreduce", "recursive_halving_doubling", size, nbytes)
    share = nbytes * (size - 1) / size
    assert halving.seconds == pytest.approx(2 * steps * ALPHA + share * (2 * BETA + GAMMA))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("chunks", [1, 2, 10])
def test_pipelined_chain(size, chunks):
    """Patarasu and Yuan; Pjesivac-Grbovic et al.: (p - 2 + S) steps of a chunk each."""
    nbytes = 10_000
    found = of("bcast", "chain", size, nbytes, chunks=chunks)
    assert found.seconds == pytest.approx((size - 2 + chunks) * nbytes / chunks * BETA + (size - 1) * ALPHA)


def test_best_number_of_chunks():
    """Each chunk costs a time of its own; it is best where that is the time of the chunk's bytes."""
    size, nbytes, gap = 18, 10_000_000, 1e-4
    machine = Machine.flat(Link(0.0, 1 / BETA, gap=gap))
    times = {
        s: of("bcast", "chain", size, nbytes, machine, chunks=s).seconds for s in (10, 50, 100, 200, 400)
    }
    assert min(times, key=times.__getitem__) == nbytes * BETA / gap == 100


@pytest.mark.parametrize("size", SIZES)
def test_parameter_server(size):
    found = of("allreduce", "star", size, 7000)
    assert found.received == found.sent == (size - 1) * 7000  # at the centre
    assert found.total == 2 * (size - 1) * 7000
    assert found.seconds >= 2 * (size - 1) * 7000 * BETA  # all through the links of the centre


@pytest.mark.parametrize("size", SIZES)
def test_trees(size):
    found = of("allreduce", "binary_tree", size, 800, chunks=1)
    assert found.rounds <= 2 * math.floor(math.log2(size)) if size > 1 else found.rounds == 0


@pytest.mark.parametrize("algorithm", algorithms("allreduce"), ids=lambda algorithm: algorithm.name)
def test_registered_formulas_hold(algorithm):
    for size in range(1, 65):
        if not algorithm.serves(size):
            continue
        nodes = (
            tuple(tuple(range(b, min(b + 4, size))) for b in range(0, size, 4))
            if algorithm.two_level
            else None
        )
        parameters = {"chunks": 3} if algorithm.pipelined else {}
        steps, sent = algorithm.cost(size, nodes=nodes, **parameters)
        schedule = algorithm.schedule(size, nodes=nodes, **parameters)
        nbytes = 240 * schedule.chunks
        found = cost(schedule, nbytes, MACHINE, nodes)
        assert found.rounds <= steps
        assert found.sent <= sent * nbytes
        if not algorithm.steps.startswith("<="):
            assert found.rounds == steps
        if not algorithm.sent.startswith("<="):
            assert found.sent == sent * nbytes


def test_two_levels_send_less_between_nodes():
    nodes = tuple(tuple(range(b, b + 4)) for b in range(0, 16, 4))
    machine = Machine(Link(1e-7, 1e10), Link(1e-5, 1e9))
    two = of("allreduce", "two_level", 16, 1 << 20, machine, nodes)
    ring = of("allreduce", "ring", 16, 1 << 20, machine)
    assert two.far < ring.total
    assert two.seconds < of("allreduce", "ring", 16, 1 << 20, Machine.flat(machine.far)).seconds


def test_overhead_and_gap():
    """LogGP of messages from one rank to another: the first takes o + kG + L + o, others wait for the gap."""

    def steps(rank):
        yield from [send(1, 0) if rank == 0 else recv(0, 0)] * 4

    schedule = Schedule("bcast", "four", 2, 1, steps)
    link = Link(latency=5.0, bandwidth=1.0, overhead=1.0, gap=10.0)
    found = cost(schedule, 3, Machine.flat(link))
    assert found.seconds == pytest.approx(1 + 3 * 10 + 3 + 5 + 1)


def test_what_came_early_is_combined_when_its_step_begins():
    def steps(rank):
        yield from ([send(1, 0)], [recv(2, 0), reduce(0, 0)], [recv(3, 0), send(1, 0)], [send(2, 0)])[rank]

    found = cost(Schedule("bcast", "late", 4, 1, steps), 1000, MACHINE)
    assert found.seconds == pytest.approx(2 * (ALPHA + 1000 * BETA) + 1000 * GAMMA)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 20), st.integers(0, 10**6))
def test_no_less_than_the_busiest_link_and_no_more_than_one_thing_after_the_other(size, nbytes):
    for algorithm in algorithms("allreduce"):
        if algorithm.two_level or algorithm.pipelined or not algorithm.serves(size):
            continue
        found = cost(algorithm.schedule(size), nbytes, MACHINE)
        assert found.seconds * (1 + 1e-9) >= max(found.sent, found.received) * BETA + ALPHA
        assert (
            found.seconds
            <= found.messages * ALPHA + found.total * (2 * BETA + GAMMA) + size**2 * nbytes * GAMMA
        )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Link(-1e-6, 1e9), "latency -1e-06 given, expected 0 s or more"),
        (lambda: Link(math.nan, 1e9), "latency nan given"),
        (lambda: Link(1e-6, 0), "bandwidth 0 given, expected more than 0 B/s"),
        (lambda: Machine.flat(Link(1e-6, 1), 0), "combine 0 given, expected more than 0 B/s"),
        (lambda: of("allreduce", "ring", 2, -1), "-1 bytes given, expected 0 or more"),
    ],
)
def test_what_no_machine_is(make, said):
    with pytest.raises(ValueError, match=said):
        make()
