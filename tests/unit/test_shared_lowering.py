"""Programs over shared memory, run with memory as weak as it may be, against the definitions; and blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_calls import ITEM, add, calls_of, compose, counts_of, parameters_of
from schedule_programs import LIMITS, lower_shared, run_all

from mpicoll.engine import program as p
from mpicoll.engine.cutting import cut
from mpicoll.engine.layout import LAYOUTS, Shape
from mpicoll.schedule import Schedule, algorithms, bounds, find, recv, send
from mpicoll.schedule import reduce as reduce_
from mpicoll.schedule.collectives import COLLECTIVES, Place

every_algorithm = pytest.mark.parametrize("algorithm", algorithms(), ids=lambda a: f"{a.collective}-{a.name}")


def placements(size):
    """All ranks on one node, each alone, round robin, uneven, and any other partition."""
    half = -(-size // 2)
    whole = tuple(range(size))
    return [
        (whole,),
        tuple((rank,) for rank in whole),
        tuple(whole[first::half] for first in range(half)),
        tuple(node for node in (whole[:1], whole[1:]) if node),
    ]


def drawn_placement(size, draw):
    where = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size), label="nodes")
    nodes = [tuple(r for r in range(size) if where[r] == node) for node in range(4)]
    return draw(
        st.sampled_from([*placements(size), tuple(node for node in nodes if node)]), label="placement"
    )


def drawn_counts(algorithm, size, draw):
    """Draw lengths, some of a few bytes and some of several times a line."""
    if algorithm.collective == "alltoall":  # over shared memory all blocks are of one length
        return [[draw(st.sampled_from([0, 1, 5, 40]), label="count")] * size] * size
    return counts_of(algorithm, size, draw)


@every_algorithm
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_programs_compute_the_collective(algorithm, data):
    size = data.draw(st.integers(1, 9).filter(algorithm.serves), "size")
    nodes = drawn_placement(size, data.draw)
    parameters = parameters_of(algorithm, size, data.draw)
    nodes = parameters.get("nodes", nodes)
    schedule = algorithm.schedule(size, **parameters)
    op = add if algorithm.commutative else compose
    calls = list(
        calls_of(
            schedule,
            drawn_counts(algorithm, size, data.draw),
            op,
            in_place=data.draw(st.booleans(), "in place"),
            displaced=data.draw(st.booleans(), "displaced"),
            alone=False,
            rng=np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed")),
        )
    )
    limits, stream = data.draw(st.sampled_from(LIMITS), "limits"), data.draw(st.booleans(), "stream")
    programs, stride = lower_shared(schedule, calls, nodes, limits, stream)
    run_all(programs, calls, op, data.draw(st.integers(0, 99), "order"), nodes, stride)


def example(nodes=((0, 1, 2), (3, 4)), name="ring", collective="allreduce", count=97):
    """Give programs, their calls, and what else runs them."""
    size = sum(map(len, nodes))
    algorithm = find(collective, name)
    schedule = algorithm.schedule(size, **({"nodes": nodes} if algorithm.two_level else {}))
    counts = [count] * (size if COLLECTIVES[collective].blocks(2) == 2 else 1)
    op = add if algorithm.commutative else compose
    calls = list(calls_of(schedule, counts, op, False, False, False, np.random.default_rng(1)))
    programs, stride = lower_shared(schedule, calls, nodes)
    return programs, calls, op, nodes, stride


def run(programs, calls, op, nodes, stride):
    fresh = [call._replace(recvbuf=call.recvbuf.copy()) for call in calls]
    run_all(programs, fresh, op, 0, nodes, stride)


def without(program, at):
    return program._replace(rows=np.delete(program.rows, at, axis=0))


def moved(program, at, to):
    order = [row for row in range(len(program.rows)) if row != at]
    return program._replace(rows=program.rows[[*order[:to], at, *order[to:]]])


def rows_of(program, *codes):
    return np.flatnonzero(np.isin(program.rows[:, 0], codes)).tolist()


def staging_rows(program):
    """Give the rows that write to shared memory."""
    return [
        row
        for row in rows_of(program, p.COPY, p.COMBINE, p.IRECV)
        if program.rows[row, 1] in (p.LINE, p.STAGE)
    ]


EXAMPLES = [
    {},
    {"count": 5},
    {"name": "two_level"},
    {"name": "two_level", "count": 2},
    {"name": "recursive_doubling", "nodes": ((0, 1, 2, 3),)},
    {"name": "direct_gather", "count": 3, "nodes": ((0, 2, 4), (1, 3))},
    {"name": "bruck", "collective": "allgather"},
]


def mutants(programs, change):
    """Give the programs with one changed: `change` gives those that a program may become."""
    for rank, program in enumerate(programs):
        for changed in change(program):
            yield [*programs[:rank], changed, *programs[rank + 1 :]]


def unwaited(program):
    """Do not wait for a peer."""
    for row in rows_of(program, p.AWAIT):
        yield without(program, row)


def unpublished(program):
    """Do not publish a step, nor any that follows: a later one would serve in its place."""
    for row in rows_of(program, p.PUBLISH):
        yield without(program, [at for at in rows_of(program, p.PUBLISH) if at >= row])


def premature(program):
    """Publish before the last of what was staged since the step before is written."""
    writes, last = staging_rows(program), -1
    for row in rows_of(program, p.PUBLISH):
        if since := [write for write in writes if last < write < row]:
            yield moved(program, row, since[-1])
        last = row


def impatient(program):
    """Take the step before the one that is needed, of peers that publish several."""
    for row in rows_of(program, p.AWAIT):
        earlier = [
            at for at in rows_of(program, p.AWAIT) if at < row and program.rows[at, 4] == program.rows[row, 4]
        ]
        if earlier:
            rows = program.rows.copy()
            rows[row, 3] = rows[earlier[-1], 3]
            yield program._replace(rows=rows)


@pytest.mark.parametrize("change", [unwaited, unpublished, premature, impatient])
def test_programs_that_do_not_wait_for_each_other_fail(change):
    changed = 0
    for each in EXAMPLES:
        programs, *rest = example(**each)
        run(programs, *rest)
        for mutant in mutants(programs, change):
            changed += 1
            with pytest.raises(AssertionError):
                run(mutant, *rest)
    assert changed > 5


def with_row(program, at, *row):
    return program._replace(rows=np.insert(program.rows, at, [*row, *[0] * (p.COLUMNS - len(row))], axis=0))


def test_what_was_published_must_stay():
    """Also where nobody has read it yet, and where the same is written once more."""
    programs, *rest = example(nodes=((0, 1, 2, 3, 4),))
    first, end = staging_rows(programs[0])[0], len(programs[0].rows)
    again = with_row(programs[0], end, *programs[0].rows[first][: p.COLUMNS])
    with pytest.raises(AssertionError, match="written after it was published"):
        run([again, *programs[1:]], *rest)


def test_nobody_writes_to_anothers_region():
    programs, *rest, stride = example()
    other = with_row(programs[0], 0, p.COPY, p.STAGE, stride, p.SENDBUF, 0, 8)
    with pytest.raises(AssertionError, match="another rank's region"):
        run([other, *programs[1:]], *rest, stride)


def test_no_more_is_staged_than_reported():
    programs, *rest = example()
    with pytest.raises(AssertionError, match="more is staged than reported"):
        run([program._replace(staged=program.staged - 1) for program in programs], *rest)


def test_small_vectors_travel_in_the_line():
    most = p.PAYLOAD_BYTES // ITEM.itemsize
    for count, staged in ((most, 0), (most + 1, (most + 1) * ITEM.itemsize)):
        for program in example(name="recursive_doubling", nodes=((0, 1),), count=count)[0]:
            assert program.staged == staged


def test_nothing_is_done_for_an_empty_vector():
    for algorithm in algorithms():
        parameters = {"chunks": 2} if algorithm.pipelined else {}
        parameters |= {"nodes": ((0, 1, 2, 3),)} if algorithm.two_level else {}
        schedule = algorithm.schedule(4, **parameters)
        counts = [0] * 4 if COLLECTIVES[algorithm.collective].blocks(4) == 4 else [0]
        counts = [[0] * 4] * 4 if algorithm.collective == "alltoall" else counts
        calls = list(calls_of(schedule, counts, add, False, False, False, np.random.default_rng(1)))
        programs, _ = lower_shared(schedule, calls, ((0, 1, 2, 3),))
        assert not any(len(program.rows) or program.staged for program in programs)


@pytest.mark.parametrize("nodes", [((0, 1),), ((0,), (1,))])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("limits", LIMITS)
def test_moves_of_a_step_see_the_values_from_before_it(nodes, in_place, limits):
    """Chunks that are sent and received, or combined and sent, in one step."""

    def steps(rank):
        other = 1 - rank
        yield send(other, [0, 1]), recv(other, [0, 1])  # swapped: ranks hold each other's
        yield send(other, 1), recv(other, 1)  # swapped back
        yield send(other, range(3)), reduce_(other, range(3))
        yield send(other, 0), reduce_(other, 0)

    schedule = Schedule("allreduce", "test", 2, 3, steps)
    calls = list(calls_of(schedule, [50], add, in_place, False, False, np.random.default_rng(1)))
    total, edge = calls[0].wanted, bounds(50, 3)[1]
    wanted = np.concatenate([add(total, total)[:edge], total[edge:]])
    calls = [call._replace(wanted=wanted) for call in calls]
    programs, stride = lower_shared(schedule, calls, nodes, limits)
    run_all(programs, calls, add, 0, nodes, stride)


@given(data=st.data())
@settings(deadline=None)
def test_blocks_are_all_of_the_vector_once(data):
    """In each of a rank's buffers; and as many of them on all ranks, with the same lengths."""
    collective = data.draw(st.sampled_from(sorted(LAYOUTS)), "collective")
    size = data.draw(st.integers(1, 5), "size")
    itemsize = data.draw(st.sampled_from([1, 3, 8, 16]), "itemsize")
    nbytes = data.draw(st.integers(1, 300), "nbytes")
    in_place = data.draw(st.booleans(), "in place")
    if COLLECTIVES[collective].blocks(2) == 1:
        counts = (data.draw(st.integers(0, 100), "count"),)
    elif collective == "alltoall":
        counts = (data.draw(st.integers(0, 100), "count"),) * size
    else:
        counts = tuple(data.draw(st.lists(st.integers(0, 100), min_size=size, max_size=size), "counts"))
    chunks = size**2 if collective == "alltoall" else len(counts)
    vector = [
        Shape(rank, size, 0, chunks, counts, itemsize, in_place, frozenset(range(size)))
        for rank in range(size)
    ]
    cuts = [list(cut(collective, whole, nbytes)) for whole in vector]
    lengths = [[(block.counts, shift) for block, shift in blocks] for blocks in cuts]
    assert all(each == lengths[0] for each in lengths)
    for each, _ in lengths[0]:
        assert sum(each) * itemsize <= max(nbytes, itemsize * len(counts))
    for whole, blocks in zip(vector, cuts, strict=True):
        for which in ("begin", "end"):
            together = sorted(
                byte for block, shift in blocks for byte in touched(collective, block, shift, which)
            )
            assert together == touched(collective, whole, 0, which)


def touched(collective, block, shift, which):
    """Give the bytes of each buffer where the chunks of a block that a rank holds begin or end."""
    layout = LAYOUTS[collective](block)
    found = []
    for chunk in range(block.chunks):
        if which == "begin" and not holds(collective, block, chunk):
            continue
        if (place := getattr(layout, which)(chunk)) is not None:
            length = layout.edges[chunk + 1] - layout.edges[chunk]
            found += [(place.base, place.offset + shift + byte) for byte in range(length)]
    return sorted(found)


def holds(collective, block, chunk):
    """Whether the rank has the chunk at first."""
    place = Place(block.rank, chunk, block.size, block.chunks, block.root)
    return COLLECTIVES[collective].before(place) is not None
