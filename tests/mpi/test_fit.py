"""Measuring messages, and the machine that comes of it."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import topology
from mpicoll.bench import fitting, point_to_point
from mpicoll.bench.point_to_point import partners
from mpicoll.model import files, fit

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.mark.parametrize(
    ("nodes", "level", "most", "expected"),
    [
        (((0, 1, 2, 3),), "near", None, {0: 1, 1: 0, 2: 3, 3: 2}),
        (((0, 1, 2), (3, 4)), "near", None, {0: 1, 1: 0, 3: 4, 4: 3}),
        (((0, 1, 2, 3), (4, 5)), "near", 2, {0: 1, 1: 0, 4: 5, 5: 4}),
        (((0, 1, 2, 3),), "far", None, {}),
        (((0,), (1,)), "near", None, {}),
        (((0, 1), (2, 3), (4, 5)), "far", 1, {0: 2, 2: 0}),
        (((0, 1), (2, 3), (4, 5), (6,)), "far", None, {0: 2, 2: 0, 1: 3, 3: 1, 4: 6, 6: 4}),
    ],
)
def test_partners(nodes, level, most, expected):
    assert partners(nodes, level, most) == expected


def test_messages():
    partner = partners(topology.nodes(WORLD), "near")
    told = []
    found = point_to_point.messages(WORLD, partner, [8, 1 << 22], rest=0.0, min_time=0.001, tick=told.append)
    assert found.pairs == SIZE // 2
    assert set(found.seconds) == {8, 1 << 22}
    assert told == sorted(told)
    assert told[-1] == 1
    if found.pairs:
        assert np.median(found.seconds[1 << 22]) > np.median(found.seconds[8])


def nodes_of_one(comm):
    return tuple((rank,) for rank in range(comm.size))


def two_nodes(comm):
    return tuple(tuple(range(first, comm.size, 2)) for first in range(min(2, comm.size)))


@pytest.mark.parametrize("nodes", [topology.nodes, nodes_of_one, two_nodes])
def test_a_machine(nodes, monkeypatch, tmp_path):
    if SIZE == 1:
        pytest.skip("one rank has nobody to talk to")
    places = nodes(WORLD)
    monkeypatch.setattr(topology, "nodes", lambda _: places)
    monkeypatch.setattr(fitting, "SIZES", [8, 1 << 10, 1 << 14, 1 << 17])
    monkeypatch.setattr(fit, "DRAWS", 5)
    monkeypatch.setitem(fitting.REST, "far", 0.0)
    found = fitting.measure(WORLD, 0.001)
    assert (found is None) == (RANK > 0)
    if found is None:
        return
    levels = {"near"} if max(map(len, places)) > 1 else set()
    levels |= {"far"} if len(places) > 1 else set()
    assert set(found.links) == set(found.samples) == levels
    assert found.machine.per_node == max(map(len, places))
    assert 0 < found.combine[1] <= found.combine[2]  # of five draws, which may all be on one side
    for fitted in found.links.values():
        low, high = fitted.intervals["latency"]
        assert 0 < low <= high
    file = tmp_path / "machine.toml"
    files.write(found.machine, file, {"fit": found.record()})
    assert files.read(file) == found.machine
    assert set(found.record()["not_measured"]) == {"near", "far"} - levels


def test_combining():
    rates = point_to_point.combining(WORLD, 0.001, 1 << 12)
    assert len(rates) >= point_to_point.ROUNDS - 1
    assert (rates > 1e6).all()
