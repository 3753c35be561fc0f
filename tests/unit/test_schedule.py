"""Moves, schedules, their composition and the registry."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.schedule import (
    Schedule,
    algorithm,
    algorithms,
    bounds,
    combine,
    copy,
    evaluate,
    find,
    mapped,
    mirrored,
    recv,
    reduce,
    scratch,
    send,
    together,
)
from mpicoll.schedule.moves import resolve, slots

numbers = st.integers(-100, 100)


@pytest.mark.parametrize(
    ("spec", "runs"),
    [
        (3, ((3, 4),)),
        (-1, ((7, 8),)),
        (range(2, 5), ((2, 5),)),
        (range(6, 10), ((6, 8), (0, 2))),
        (range(-2, 0), ((6, 8),)),
        (range(5, 13), ((5, 8), (0, 5))),
        (range(8), ((0, 8),)),
        (range(3, 3), ()),
        ([], ()),
        ([1, 2, 5, 4], ((1, 3), (5, 6), (4, 5))),
        ([range(2), range(2, 4), 6], ((0, 4), (6, 7))),
        (range(4, 0, -2), ((4, 5), (2, 3))),
        (scratch(0), ((8, 9),)),
        (scratch(range(14, 18)), ((22, 24), (8, 10))),
    ],
)
def test_resolve(spec, runs):
    assert resolve(spec, chunks=8, vectors=2) == runs


@given(st.lists(numbers | st.builds(lambda a, n: range(a, a + n), numbers, st.integers(0, 7))))
def test_runs_name_what_was_written_in_order(parts):
    written = [n % 7 for part in parts for n in (part if isinstance(part, range) else [part])]
    runs = resolve(parts, chunks=7, vectors=0)
    assert list(slots(runs)) == written
    assert all(0 <= start < stop <= 7 for start, stop in runs)
    assert all(a[1] != b[0] for a, b in pairwise(runs)), "two runs where one would do"


def test_a_long_range_is_resolved_without_its_numbers():
    assert resolve(range(10**12 - 5, 2 * 10**12 - 5), chunks=10**12, vectors=0) == (
        (10**12 - 5, 10**12),
        (0, 10**12 - 5),
    )


def test_resolve_refuses():
    with pytest.raises(ValueError, match="9 chunks named, but there are 8"):
        resolve(range(9), chunks=8, vectors=0)
    with pytest.raises(ValueError, match="scratch named, but the schedule has none"):
        resolve(scratch(0), chunks=8, vectors=0)


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_bounds_cut_into_nearly_equal_chunks_longest_first(count, chunks):
    edges = bounds(count, chunks)
    lengths = [stop - start for start, stop in pairwise(edges)]
    assert (edges[0], edges[-1], len(lengths)) == (0, count, chunks)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_steps_resolve_moves_and_keep_empty_steps():
    schedule = Schedule(
        "allreduce", "x", 2, 4, lambda rank: [send(1 - rank, -1), (), [*map(recv, [1 - rank], [0])]]
    )
    assert list(schedule.steps(0)) == [(send(1, ((3, 4),)),), (), (recv(1, ((0, 1),)),)]
    local = Schedule("allreduce", "x", 2, 1, lambda rank: [copy(scratch(0), 0)], vectors=1)
    (step,) = local.steps(1)
    assert (step[0].peer, step[0].chunks, step[0].source) == (1, ((1, 2),), ((0, 1),))


@pytest.mark.parametrize("peer", [-1, 0, 3])
def test_a_rank_talks_to_other_ranks_that_exist(peer):
    schedule = Schedule("allreduce", "x", 3, 1, lambda rank: [send(peer, 0)])
    with pytest.raises(ValueError, match=f"x: rank 0 of 3 cannot send with rank {peer}"):
        list(schedule.steps(0))


def test_together_merges_turn_by_turn():
    merged = together([send(1, 0), (), recv(1, 0)], [(recv(2, 1), send(2, 1))])
    assert list(merged) == [(send(1, 0), recv(2, 1), send(2, 1)), (), (recv(1, 0),)]


def test_mapped_renames_ranks_and_widens_chunks():
    inner = [(send(1, range(1, 3)), reduce(2, 0)), (combine(0, 1),)]
    outer = mapped(inner, ranks=[5, 7, 9], chunks=[range(2), range(2, 4), 9])
    (first, second), (local,) = outer
    assert (first.kind, first.peer, resolve(first.chunks, 10, 0)) == ("send", 7, ((2, 4), (9, 10)))
    assert (second.kind, second.peer, resolve(second.chunks, 10, 0)) == ("reduce", 9, ((0, 2),))
    assert (resolve(local.chunks, 10, 0), resolve(local.source, 10, 0)) == (((0, 2),), ((2, 4),))


def test_mapped_wraps_around_in_the_inner_numbering():
    ((move,),) = mapped([send(0, range(2, 4))], chunks=[4, 5, 6])
    assert resolve(move.chunks, 8, 0) == ((6, 7), (4, 5))


def test_scratch_cannot_be_mapped_onto_other_chunks():
    assert next(mapped([copy(scratch(0), 0)], ranks=[3])) == (copy(scratch(0), 0),)
    with pytest.raises(TypeError, match="scratch"):
        list(mapped([copy(scratch(0), 0)], chunks=[3]))


def test_mirrored_runs_backwards():
    steps = [(send(1, 0), reduce(2, 1)), (), (recv(3, 2),)]
    assert list(mirrored(steps)) == [(send(3, 2),), (), (send(2, 1), recv(1, 0))]
    assert list(mirrored([send(1, 0)], receive=reduce)) == [(reduce(1, 0),)]
    moves = [(send(1, 0), recv(2, 1)), (recv(3, 2),)]
    assert list(mirrored(mirrored(moves))) == moves


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("mpicoll.schedule.registry._REGISTRY", {})


def register(**fields):
    def example(rank, size, chunks=2):
        """Do nothing.

        At length.
        """
        return iter(())

    fields = {"collective": "allreduce", "steps": "0", "sent": "0", "source": "nobody"} | fields
    algorithm(**fields)(example)
    return find("allreduce", "example")


@pytest.mark.usefixtures("registry")
def test_registering():
    found = register(ranks="p == 2**floor(log(p, 2))")
    assert algorithms() == algorithms("allreduce") == [found]
    assert algorithms("bcast") == []
    assert (found.summary, found.pipelined, found.two_level) == ("Do nothing.", True, False)
    assert [size for size in range(1, 17) if found.serves(size)] == [1, 2, 4, 8, 16]
    schedule = found.schedule(4, chunks=3)
    assert (schedule.name, schedule.size, schedule.chunks, schedule.vectors) == ("example", 4, 3, 0)
    with pytest.raises(ValueError, match=r"example needs p == 2.*, given p = 3"):
        found.schedule(3, chunks=1)


@pytest.mark.usefixtures("registry")
def test_parameters_are_checked_early():
    found = register(chunks=lambda size, chunks=2: chunks * size)
    assert found.schedule(3).chunks == 6
    with pytest.raises(ValueError, match="example: got an unexpected keyword argument 'radix'"):
        found.schedule(3, radix=2)
    with pytest.raises(ValueError, match="needs at least 1 chunk, given 0"):
        found.schedule(3, chunks=0)
    with pytest.raises(ValueError, match="given p = 0"):
        found.schedule(0)


@pytest.mark.usefixtures("registry")
def test_one_name_in_several_collectives():
    for collective in ("scan", "allgather"):
        algorithm(collective, name="short", chunks=1, steps="0", sent="0", source="nobody")(lambda r, p: ())
    assert [(a.collective, a.name) for a in algorithms()] == [("allgather", "short"), ("scan", "short")]
    assert find("allgather", "short").schedule(2).name == "short"


def test_the_root_is_a_rank():
    found = find("gather", "binomial")
    assert (found.rooted, found.schedule(4).root, found.schedule(4, root=3).root) == (True, 0, 3)
    for root in (-1, 4):
        with pytest.raises(ValueError, match=f"gather: root {root}, expected 0 to 3"):
            found.schedule(4, root=root)
    with pytest.raises(ValueError, match="ring: got an unexpected keyword argument 'root'"):
        find("allgather", "ring").schedule(4, root=1)
    assert not find("allgather", "ring").rooted


def test_places_name_rank_chunk_and_root():
    schedule = Schedule("gather", "x", 2, 4, lambda rank: [], root=1)
    places = list(schedule.places(0))
    assert [(p.rank, p.chunk, p.owner, p.root) for p in places] == [
        (0, 0, 0, 1),
        (0, 1, 0, 1),
        (0, 2, 1, 1),
        (0, 3, 1, 1),
    ]
    assert [place.way for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_pipelined_algorithm_wants_chunks():
    with pytest.raises(ValueError, match="binary_tree: missing a required argument: 'chunks'"):
        find("allreduce", "binary_tree").schedule(4)


@pytest.mark.parametrize("nodes", [((0, 1), (1, 2)), ((0, 1),), ((0, 1, 2), ()), ((0, 1, 2, 3),)])
def test_nodes_hold_every_rank_once(nodes):
    with pytest.raises(ValueError, match="two_level needs nodes that hold each of 3 ranks once"):
        find("allreduce", "two_level").schedule(3, nodes=nodes)


def test_find_tells_the_nearest_names():
    assert find("allreduce", "ring").name == "ring"
    with pytest.raises(ValueError, match=r"allreduce: unknown algorithm 'rng', did you mean ring\?"):
        find("allreduce", "rng")
    with pytest.raises(ValueError, match=r"did you mean .*star.*two_level"):
        find("allreduce", "qqqq")


def test_formulas_are_exact():
    assert evaluate("2*(p-1)/p", p=3) == Fraction(4, 3)
    assert evaluate("<=S/2", S=3) == Fraction(3, 2)
    for radix in range(2, 12):
        for power in range(1, 6):
            assert evaluate("ceil(log(p, r))", p=radix**power, r=radix) == power
            assert evaluate("ceil(log(p, r))", p=radix**power + 1, r=radix) == power + 1
            assert evaluate("floor(log(p, r))", p=radix**power - 1, r=radix) == power - 1


def test_cost_of_two_levels_uses_the_flat_one():
    two_level = find("allreduce", "two_level")
    nodes = ((0, 1, 2, 3), (4, 5), (6, 7))
    # 2 leaders: 1 exchange, then 2 more ranks; ring of 3: 4 steps and 4/3 of a half; 1 step back
    assert two_level.cost(8, nodes=nodes) == (1 + 1 + 4 + 1, (Fraction(4, 3) + 2 + 4 - 2) / 2)
    assert two_level.cost(8, nodes=nodes, inter="binary_tree", chunks=5)[0] == 3 + 2 + 5 - 1
