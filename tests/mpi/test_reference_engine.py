"""The reference engine on real MPI, with every algorithm, against the library's own collectives."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from mpicoll.engine import reference
from mpicoll.engine.layout import Shape
from mpicoll.schedule import algorithms, find
from mpicoll.schedule.collectives import COLLECTIVES

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SPLIT = tuple(tuple(range(node, SIZE, 2)) for node in range(min(2, SIZE)))
ITEM = np.dtype([("a", np.uint32), ("b", np.uint32)])  # the map x -> a x + b modulo 2**32
PAIR = MPI.UINT32_T.Create_contiguous(2).Commit()


def then(left, right, _):
    """First left, then right: associative, exact, and not commutative."""
    first, second = np.frombuffer(left, ITEM), np.frombuffer(right, ITEM)
    second["b"] += first["b"] * second["a"]
    second["a"] *= first["a"]


def plus(left, right, _):
    np.frombuffer(right, np.uint32)[:] += np.frombuffer(left, np.uint32)


THEN, PLUS = MPI.Op.Create(then, commute=False), MPI.Op.Create(plus, commute=True)


def native(collective, send, recv, op, root):
    """Call the library's own; `send` and `recv` are message specs."""
    match collective:
        case "bcast":
            WORLD.Bcast(recv, root)
        case "reduce":
            WORLD.Reduce(send, recv, op, root)
        case "reduce_scatter":
            own, counts = recv
            WORLD.Reduce_scatter(send, own, counts, op)
        case "allreduce" | "scan" | "exscan":
            getattr(WORLD, collective.capitalize())(send, recv, op)
        case "gather" | "scatter":
            getattr(WORLD, f"{collective.capitalize()}v")(send, recv, root)
        case "allgather" | "alltoall":
            getattr(WORLD, f"{collective.capitalize()}v")(send, recv)


def drawn(count, rng):
    return rng.integers(0, 2**32, (count, 2), dtype=np.uint32).view(ITEM).reshape(count)


def placed(counts, displaced, rng):
    """Place blocks one after the other, or in any order with gaps."""
    order = rng.permutation(SIZE) if displaced else range(SIZE)
    places, end = [0] * SIZE, 0
    for block in order:
        places[block] = end + int(rng.integers(0, 3)) * displaced
        end = places[block] + counts[block]
    return tuple(places)


def end_of(places, counts):
    return max(place + count for place, count in zip(places, counts, strict=True))


def drawn_shape(schedule, uniform, displaced, in_place, rng):
    """Draw the counts and displacements of this rank; `rng` is in the same state on all ranks."""
    collective = schedule.collective
    counts = rng.choice([0, 1, 2, 7, 40], (SIZE, SIZE)).tolist()
    if uniform:
        counts = [counts[0][:1] * SIZE] * SIZE
    incoming = tuple(row[RANK] for row in counts)
    counts = tuple(counts[RANK] if collective == "alltoall" else counts[0])
    places, incoming_places = placed(counts, displaced, rng), placed(incoming, displaced, rng)
    return Shape(
        RANK,
        SIZE,
        schedule.root,
        schedule.chunks,
        counts if COLLECTIVES[collective].blocks(SIZE) > 1 else (sum(counts),),
        ITEM.itemsize,
        in_place,
        displacements=places if displaced else None,
        incoming=incoming if collective == "alltoall" and not uniform else None,
        incoming_displacements=incoming_places if displaced else None,
    )


def drawn_buffers(collective, shape, rng):
    """Draw this rank's memory, as long as the collective wants it, and give the library's message specs."""
    following = tuple(accumulate(shape.counts, initial=0))[:-1]
    places = shape.displacements or following
    total, at_root = sum(shape.counts), shape.rank == shape.root
    if collective == "alltoall":
        incoming = shape.incoming or shape.counts
        incoming_places = shape.incoming_displacements or tuple(accumulate(incoming, initial=0))[:-1]
        send, recv = drawn(end_of(places, shape.counts), rng), drawn(end_of(incoming_places, incoming), rng)
        return send, recv, [send, shape.counts, places, PAIR], [recv, incoming, incoming_places, PAIR]
    if collective not in ("allgather", "gather", "reduce_scatter", "scatter"):
        send, recv = drawn(total, rng), drawn(total * (at_root or collective != "reduce"), rng)
        return send, recv, [send, PAIR], [recv, PAIR]
    own = shape.counts[RANK]
    if collective == "reduce_scatter":
        send, recv = drawn(total, rng), drawn(total if shape.in_place else own, rng)
        return send, recv, [send, PAIR], [recv, PAIR]
    block, blocks = drawn(own, rng), drawn(end_of(places, shape.counts), rng)
    specs = [block, PAIR], [blocks, shape.counts, places, PAIR]
    return (blocks, block, *specs[::-1]) if collective == "scatter" else (block, blocks, *specs)


SERVING = [(a.collective, a.name) for a in algorithms() if a.serves(SIZE) and a.collective != "barrier"]


@pytest.mark.parametrize(("collective", "name"), SERVING)
@settings(max_examples=15)
@given(
    root=st.integers(0, SIZE - 1),
    chunks=st.sampled_from([1, 3]),
    uniform=st.booleans(),
    displaced=st.booleans(),
    alone=st.booleans(),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_as_the_library_does(collective, name, root, chunks, uniform, displaced, alone, in_place, seed):
    algorithm, rng = find(collective, name), np.random.default_rng(seed)
    parameters = {"root": root} if algorithm.rooted else {}
    parameters |= {"chunks": chunks} if algorithm.pipelined else {}
    schedule = algorithm.schedule(SIZE, nodes=SPLIT, **parameters)
    op = PLUS if algorithm.commutative else THEN
    in_place = in_place and collective not in ("alltoall", "bcast")
    if collective in ("gather", "reduce", "scatter"):
        in_place = in_place and schedule.root == RANK
    uniform = uniform or (algorithm.transit and collective == "alltoall")
    displaced = displaced and collective != "reduce_scatter"  # the library has no such form of it
    shape = drawn_shape(schedule, uniform, displaced, in_place, rng)
    send, recv, out, into = drawn_buffers(collective, shape, np.random.default_rng([RANK, seed]))

    before = recv.copy()
    if in_place:
        out, into = (out, MPI.IN_PLACE) if collective == "scatter" else (MPI.IN_PLACE, into)
    native(collective, out, (into, shape.counts) if collective == "reduce_scatter" else into, op, root)
    wanted = recv.copy()
    recv[:] = before

    if alone and not algorithm.transit and collective in ("gather", "scatter") and schedule.root != RANK:
        alone = [count * (rank == RANK) for rank, count in enumerate(shape.counts)]
        shape = shape._replace(counts=tuple(alone))
    sent = send.copy()
    combine = reference.by_mpi(op, PAIR, ITEM.itemsize)
    reference.execute(schedule, shape, WORLD, combine, send.ctypes.data, recv.ctypes.data)
    np.testing.assert_array_equal(send, sent)
    if collective == "exscan" and RANK == 0:  # the library may leave anything there
        wanted = before
    defined = shape.counts[RANK] if collective == "reduce_scatter" else len(wanted)
    np.testing.assert_array_equal(recv[:defined], wanted[:defined])


@pytest.mark.parametrize("algorithm", algorithms("barrier"), ids=lambda a: a.name)
def test_no_rank_leaves_a_barrier_before_all_have_come(algorithm):
    schedule = algorithm.schedule(SIZE)
    shape = Shape(RANK, SIZE, 0, schedule.chunks, (1,), itemsize=1, in_place=False)
    came, all_came = np.array([1 << RANK], np.uint8), np.zeros(1, np.uint8)
    reference.execute(schedule, shape, WORLD, np.bitwise_or, came.ctypes.data, all_came.ctypes.data)
    assert all_came[0] == (1 << SIZE) - 1
