"""Reduction by switches, against its formula and against a simulation of its stages."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.model.in_network import in_network
from mpicoll.model.network import Link, Machine, Switches
from mpicoll.model.simulate import Disturbance, simulate
from mpicoll.schedule import Schedule, recv, reduce, send

NEAR = Link(2e-6, 10e9, overhead=1e-7, gap=3e-7)
FAR = Link(5e-6, 4e9, overhead=4e-7)
SWITCHES = Switches(3e-6, 6e9)
MACHINE = Machine(NEAR, FAR, combine=5e9, switches=SWITCHES)


def test_one_rank_a_node_is_up_and_down():
    for size in (2, 3, 64, 4096):
        found = in_network(size, 4_000_000, MACHINE)
        assert found.seconds == pytest.approx(3e-6 + 2 * 4e-7 + 4e6 / 4e9, rel=1e-12)
        assert (found.messages, found.nbytes, found.far) == (2 * size, 8_000_000 * size, 8_000_000 * size)
    assert found.busiest == pytest.approx(1e-3 / found.seconds)


def test_the_slower_of_switches_and_rails_counts():
    two_rails = replace(MACHINE, rails=2, per_node=2, near=Link(0, 1e30), combine=1e30)
    fixed = 3e-6 + 2 * 4e-7
    assert in_network(8, 4_000_000, two_rails).seconds == pytest.approx(fixed + 4e6 / 6e9, rel=1e-9)
    three = replace(two_rails, per_node=3)  # two of its ranks share a rail
    assert in_network(9, 6_000_000, three).seconds == pytest.approx(fixed + 2 * 2e6 / 4e9, rel=1e-9)
    one_rank = replace(two_rails, per_node=1)  # which has only one of the rails
    assert in_network(4, 4_000_000, one_rank).seconds == pytest.approx(fixed + 4e6 / 4e9, rel=1e-9)


def test_three_stages_by_hand():
    machine = replace(MACHINE, per_node=4, memory=20e9)
    part, nbytes = 100_000, 400_000
    first = nbytes / 20e9  # the memory is slower than a rank
    scatter = 2e-6 + 2e-7 + first + 2 * max(first, part / 5e9) + part / 5e9
    gather = 2e-6 + 2e-7 + 3 * first
    over = 3e-6 + 8e-7 + nbytes / 4e9
    assert in_network(16, nbytes, machine).seconds == pytest.approx(scatter + over + gather, rel=1e-12)
    assert in_network(16, nbytes, machine).busiest == pytest.approx(6 * first / (scatter + over + gather))
    asks = replace(machine, near=replace(NEAR, eager=part - 1))
    more = in_network(16, nbytes, asks).seconds - in_network(16, nbytes, machine).seconds
    assert more == pytest.approx(4 * 2e-6, rel=1e-9)


def test_one_node_needs_no_switch():
    alone = in_network(4, 1 << 20, replace(MACHINE, per_node=4))
    both = in_network(8, 1 << 20, replace(MACHINE, per_node=4))
    assert alone.far == 0
    assert both.seconds - alone.seconds == pytest.approx(3e-6 + 8e-7 + (1 << 20) / 4e9, rel=1e-9)
    assert in_network(1, 1 << 20, MACHINE).seconds == 0


def test_time_does_not_depend_on_the_number_of_nodes():
    assert in_network(16, 1 << 20, MACHINE).seconds == in_network(65536, 1 << 20, MACHINE).seconds


@given(st.integers(2, 9), st.integers(1, 1 << 20), st.sampled_from((1e30, 20e9, 1e9)), st.booleans())
@settings(deadline=None, max_examples=40)
def test_stages_within_a_node_are_those_of_a_simulation(m, part, combine, limited):
    """Without overheads, which overlap in part; memory is shared in turns that a formula does not know."""
    near = Link(2e-6, 10e9)
    machine = Machine(near, FAR, combine, m, memory=15e9 if limited else float("inf"), switches=SWITCHES)

    def steps(rank):
        turns = [((rank + distance) % m, (rank - distance) % m) for distance in range(1, m)]
        yield tuple(move for to, of in turns for move in (send(to, to), reduce(of, rank)))
        yield tuple(move for to, of in turns for move in (send(to, rank), recv(of, of)))

    schedule = Schedule("allreduce", "within", m, m, steps)
    simulated = simulate(schedule, m * part, machine).seconds
    found = in_network(m, m * part, machine).seconds
    assert found == pytest.approx(simulated, rel=0.2 if limited else 1e-6)


def test_disturbance():
    calm = in_network(8, 1 << 20, replace(MACHINE, per_node=2))
    late = Disturbance(arrival=[0.0] * 7 + [1e-3])
    found = in_network(8, 1 << 20, replace(MACHINE, per_node=2), late)
    assert found.seconds == calm.seconds
    assert set(found.done) == {1e-3 + calm.seconds}
    slow = in_network(8, 1 << 20, MACHINE, Disturbance(slow_nodes={3: 2.0}))
    assert slow.seconds == pytest.approx(3e-6 + 8e-7 + (1 << 20) / 2e9, rel=1e-12)
    slow = in_network(8, 1 << 20, MACHINE, Disturbance(slow_ranks={3: 2.0}))
    assert slow.seconds == pytest.approx(3e-6 + 16e-7 + (1 << 20) / 4e9, rel=1e-12)


def test_needs_switches():
    with pytest.raises(ValueError, match=r"in_network needs a machine with \[switches\]; those of 'plain'"):
        in_network(4, 8, Machine(NEAR, FAR, name="plain"))
