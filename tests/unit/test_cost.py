"""What schedules cost, against the formulas of the literature."""

import dataclasses
import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpicoll.algorithms  # noqa: F401  # registers them
from mpicoll.model.cost import cost
from mpicoll.model.network import Link, Machine
from mpicoll.schedule import Schedule, algorithms, find, recv, reduce, send
from mpicoll.schedule.collectives import COLLECTIVES

ALPHA, BETA, GAMMA = 3e-6, 1e-9, 2.5e-10
MACHINE = Machine.flat(Link(ALPHA, 1 / BETA), 1 / GAMMA)
SIZES = [1, 2, 3, 4, 7, 8, 16, 33, 64]

LENGTHS_AND_GAMMAS = [  # bytes of a chunk, and s to combine one: as fast as a message takes it, or not
    (64, 2.0**-32),
    (65536, 2.0**-32),
    (65536, 2.0**-28),
    (4096, 2.0**-30),
    (1048576, 2.0**-36),
]


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


def test_best_number_of_chunks_where_links_are_busy_for_alpha():
    """(p - 2 + S)(alpha + M/S beta), as in the literature, is least for S^2 = (p-2) M beta / alpha."""
    size, nbytes = 18, 7_680_000
    times = {}
    for chunks in (20, 40, 100, 160, 200, 240, 300, 400, 800):
        length = nbytes / chunks
        busy = Machine.flat(Link(0.0, length / (ALPHA + length * BETA)))
        times[chunks] = of("bcast", "chain", size, nbytes, busy, chunks=chunks).seconds
        assert times[chunks] == pytest.approx((size - 2 + chunks) * (ALPHA + length * BETA))
    best = math.sqrt((size - 2) * nbytes * BETA / ALPHA)
    assert min(times, key=lambda chunks: abs(chunks - best)) == min(times, key=times.__getitem__) == 200
    assert find("bcast", "chain").best_chunks(size, nbytes * BETA / ALPHA) == round(best)
    least = (math.sqrt((size - 2) * ALPHA) + math.sqrt(nbytes * BETA)) ** 2
    assert least <= times[200] <= 1.001 * least


@pytest.mark.parametrize("size", SIZES)
def test_parameter_server(size):
    found = of("allreduce", "star", size, 7000)
    assert found.received == found.sent == (size - 1) * 7000  # at the centre, 2(p-1) M together
    assert found.total == 2 * (size - 1) * 7000
    assert found.seconds >= 2 * (size - 1) * 7000 * BETA  # all through the links of the centre


@pytest.mark.parametrize("size", SIZES)
def test_trees(size):
    found = of("allreduce", "binary_tree", size, 800, chunks=1)
    assert found.rounds == 2 * math.floor(math.log2(size))


def cases(algorithm):
    """Give all sizes that an algorithm serves, each with some ways to call it; from 10 on one, in turn."""
    for size in filter(algorithm.serves, range(1, 65)):
        many = [
            dict(zip(algorithm.variants, own, strict=True)) for own in product(*algorithm.variants.values())
        ]
        if algorithm.rooted:
            many = [own | {"root": root} for own in many for root in {0, 2 * size // 3, size - 1}]
        if algorithm.two_level:  # the last node is not full, or none is and ranks take turns
            full = tuple(tuple(range(first, min(first + 4, size))) for first in range(0, size, 4))
            turns = tuple(tuple(range(first, size, 3)) for first in range(min(3, size)))
            many = [own | {"nodes": nodes} for own in many for nodes in (full, turns)]
        for own in many if size < 10 else [many[size % len(many)]]:
            yield size, own


def holds(formula, value, found):
    """Whether a formula is right, or as a bound is right and no more than twice what it bounds."""
    if formula.startswith("<="):
        return found * (1 - 1e-12) <= value <= 2 * found
    return value == found


@pytest.mark.parametrize("algorithm", algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_registered_formulas_hold(algorithm):
    """Exactly, since with powers of two nothing is rounded."""
    alpha, beta = 2.0**-18, 2.0**-30  # so a message takes as long as 4096 bytes
    near = Link(alpha / 16, 8 / beta) if algorithm.two_level else Link(alpha, 1 / beta)
    for number, (size, own) in enumerate(cases(algorithm)):
        length, gamma = LENGTHS_AND_GAMMAS[number % len(LENGTHS_AND_GAMMAS)]
        schedule = algorithm.schedule(size, **own)
        vector = length * schedule.chunks // COLLECTIVES[algorithm.collective].vectors(size)
        machine = Machine(near, Link(alpha, 1 / beta), 1 / gamma)
        found = cost(schedule, vector, machine, own.get("nodes"))
        steps, sent = algorithm.cost(size, **own)
        times = alpha, vector * beta, vector * gamma
        seconds = algorithm.time(size, *times, near=(near.latency, vector / near.bandwidth), **own)
        where = size, own, length, gamma
        assert found.rounds == steps or (found.rounds < steps and algorithm.steps.startswith("<=")), where
        assert holds(algorithm.time_formula, seconds, found.seconds), (where, seconds, found.seconds)
        assert found.sent == sent * vector or (
            found.sent < sent * vector and algorithm.sent.startswith("<=")
        ), where


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("allgather", "recursive_doubling"),
        ("allreduce", "recursive_doubling"),
        ("bcast", "scatter_doubling"),
        ("gather", "binomial"),
        ("reduce", "binomial"),
        ("reduce", "halving_gather"),
        ("reduce_scatter", "recursive_halving"),
        ("scan", "recursive_doubling"),
    ],
)
def test_bounds_are_reached_at_powers_of_two(collective, name):
    algorithm = find(collective, name)
    assert algorithm.time_formula.startswith("<=")
    for size in (1, 2, 4, 8, 16, 32, 64):
        nbytes = 6400 * size
        expected = algorithm.time(size, ALPHA, nbytes * BETA, nbytes * GAMMA)
        assert of(collective, name, size, nbytes).seconds == pytest.approx(expected)


def test_every_algorithm_has_a_formula_for_its_time():
    assert [algorithm.name for algorithm in algorithms() if not algorithm.time_formula] == []


def test_time_between_nodes_is_that_of_the_flat_algorithm():
    """Where each rank is a node there is nothing within one, and without cost within one nothing to add."""
    alone = tuple((rank,) for rank in range(8))
    pairs = tuple((rank, rank + 1) for rank in range(0, 16, 2))
    two_level = find("allreduce", "two_level")
    for inter, own in (("recursive_doubling", {}), ("binary_tree", {"chunks": 5})):
        flat = find("allreduce", inter).time(8, 3.0, 5.0, 0.0, **own)
        assert two_level.time(8, 3.0, 5.0, 0.0, nodes=alone, inter=inter, **own) == flat
        half = find("allreduce", inter).time(8, 3.0, 2.5, 0.0, **own)  # two leaders with half a vector each
        assert two_level.time(16, 3.0, 5.0, 0.0, near=(0, 0), nodes=pairs, inter=inter, **own) == half
    root = find("bcast", "two_level").time(16, 3.0, 5.0, 0.0, near=(0, 0), nodes=pairs, root=9)
    assert root == find("bcast", "binomial").time(8, 3.0, 5.0, 0.0, root=4)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((-1.0, 1.0, 1.0), "allreduce: alpha -1.0 given, expected 0 s or more, and finite"),
        ((0.0, math.nan, 1.0), "allreduce: beta nan given, expected 0 s or more, and finite"),
        ((0.0, 0.0, math.inf), "allreduce: gamma inf given, expected 0 s or more, and finite"),
    ],
)
def test_what_no_time_is(times, said):
    with pytest.raises(ValueError, match=said):
        find("allreduce", "ring").time(4, *times)


def test_without_a_formula_there_is_no_time():
    nameless = dataclasses.replace(find("allreduce", "ring"), time_formula="")
    with pytest.raises(ValueError, match="allreduce: ring is registered without a formula for its time"):
        nameless.time(4, 1.0, 1.0, 1.0)


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
