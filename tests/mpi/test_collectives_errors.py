"""What collectives refuse: on the calling rank, before anything is sent."""

import numpy as np
import pytest
from collective_calls import METHODS, REDUCING, ROOTED, UNEQUAL, draw
from mpi4py import MPI

import mpicoll
from mpicoll.schedule import algorithms

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
ROOT = SIZE - 1  # the rank that is given bad arguments
COMM = mpicoll.Communicator(WORLD)


def forms(method):
    return method, f"I{method.lower()}", f"{method}_init"


def good(method, seed=0):
    return draw(method, RANK, SIZE, count=5, dtype=np.dtype("f8"), root=ROOT, seed=seed)


def refused(comm, method, arguments, error, message, **options):
    """Have one rank alone refused, in every form, and then all ranks do a good call of each form."""
    for form in forms(method):
        if RANK == ROOT:
            with pytest.raises(error, match=message) as raised:
                getattr(comm, form)(*arguments, **options)
            code = raised.value.Get_error_class() if isinstance(raised.value, MPI.Exception) else None
        for again in range(2):
            call = good(method, again)
            started = getattr(comm, form)(*call.arguments)
            if form.endswith("_init"):
                started.Start()
            if started is not None:
                started.Wait()
            call.check()
    return code if RANK == ROOT else None


@pytest.mark.parametrize("root", [-1, SIZE, 2**40, MPI.PROC_NULL])
@pytest.mark.parametrize("method", ROOTED)
def test_root_that_is_no_rank(method, root):
    arguments = *good(method).arguments[:-1], root
    code = refused(COMM, method, arguments, MPI.Exception, rf"root {root} given, expected 0 to {SIZE - 1}")
    assert code == (MPI.ERR_ROOT if RANK == ROOT else None)


@pytest.mark.parametrize("root", [None, "0", float(ROOT)])
def test_root_that_is_no_number(root):
    refused(COMM, "Bcast", (np.ones(5), root), TypeError, r"bcast: root .* given, expected a rank")


X = np.ones(5)
COUNTS_THAT_DO_NOT_FIT = {
    "Bcast": ([X, 6, MPI.DOUBLE], ROOT),
    "Gather": (X, np.ones(5 * SIZE + 1), ROOT),
    "Scatter": (np.ones(5 * SIZE), np.ones(4), ROOT),
    "Allgather": (X, np.ones(4 * SIZE)),
    "Alltoall": (np.ones(3 * SIZE), np.ones(2 * SIZE)),
    "Gatherv": (X, [np.ones(5 * SIZE), [4] * SIZE], ROOT),
    "Scatterv": ([np.ones(5 * SIZE), [5] * SIZE], np.ones(6), ROOT),
    "Allgatherv": (X, [np.ones(5 * SIZE), [6] * SIZE]),
    "Alltoallv": ([np.ones(5 * SIZE), [5] * SIZE], [np.ones(5 * SIZE), [4] * SIZE]),
    "Reduce": (X, np.ones(6), MPI.SUM, ROOT),
    "Allreduce": (X, np.ones(4)),
    "Reduce_scatter_block": (np.ones(5 * SIZE), np.ones(4)),
    "Reduce_scatter": (np.ones(5 * SIZE), np.ones(5), [6] * SIZE),
    "Scan": (X, np.ones(6)),
    "Exscan": ([X, 6], [np.ones(6), 6]),
}


@pytest.mark.parametrize("method", COUNTS_THAT_DO_NOT_FIT)
def test_counts_that_do_not_fit(method):
    refused(COMM, method, COUNTS_THAT_DO_NOT_FIT[method], ValueError, METHODS[method])


def blocks(counts, places=None, items=5 * SIZE):
    return [np.ones(items), (counts, places)]


BAD_BLOCKS = {
    "too few counts": (lambda: blocks([5] * (SIZE - 1)), f"counts: {SIZE - 1} given, expected {SIZE}"),
    "too many counts": (lambda: blocks([5] * (SIZE + 1)), f"counts: {SIZE + 1} given, expected {SIZE}"),
    "negative count": (lambda: blocks([*[5] * (SIZE - 1), -1]), "expected 0 or more"),
    "beyond the end": (lambda: blocks([5] * SIZE, [5 * i + 1 for i in range(SIZE)]), "items.* expected 5"),
    "far beyond": (lambda: blocks([5] * SIZE, [2**62] * SIZE), "items.* expected 5"),
    "before the beginning": (lambda: blocks([5] * SIZE, [-1] * SIZE), "displacement -1"),
    "too few displacements": (lambda: blocks([5] * SIZE, [0] * (SIZE - 1)), "displacements: .* given"),
    "no numbers": (lambda: blocks(["5"] * SIZE), "expected an integer"),
}


@pytest.mark.parametrize("method", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
@pytest.mark.parametrize("what", BAD_BLOCKS)
def test_blocks_that_do_not_fit(method, what):
    make, message = BAD_BLOCKS[what]
    bad = make()
    arguments = {
        "Gatherv": (X, bad, ROOT),
        "Scatterv": (bad, np.ones(5), ROOT),
        "Allgatherv": (X, bad),
        "Alltoallv": (bad, np.ones(5 * SIZE)),
    }[method]
    refused(COMM, method, arguments, (ValueError, TypeError), message)


@pytest.mark.parametrize("counts", [[5] * (SIZE + 1), [5] * (SIZE - 1), [-5] * SIZE, 6, "5", [5.0] * SIZE])
def test_recvcounts_that_do_not_fit(counts):
    arguments = np.ones(5 * SIZE), np.ones(5), counts
    refused(COMM, "Reduce_scatter", arguments, (ValueError, TypeError), ".")


def test_recvcounts_left_out():
    """They are asked for; a rank that is refused has not taken part in that."""
    for sendbuf, op in ((np.ones(SIZE), "sum"), (np.ones(SIZE, "f4"), MPI.SUM), (3, MPI.SUM)):
        if RANK == ROOT:
            with pytest.raises((TypeError, ValueError)):
                COMM.Reduce_scatter(sendbuf, np.ones(1), op=op)
        out = np.full(1, np.nan)
        COMM.Reduce_scatter(np.arange(SIZE) + 1.0, out)
        assert out == SIZE * (RANK + 1)
    with pytest.raises(TypeError, match="recvcounts"):
        COMM.Reduce_scatter(MPI.IN_PLACE, np.ones(SIZE))


def in_place_where_forbidden():
    there = MPI.IN_PLACE
    yield "Bcast", (there, ROOT)
    yield "Gather", (X, there, ROOT)
    yield "Gatherv", (X, there, ROOT)
    yield "Scatter", (there, X, ROOT)
    yield "Scatterv", (there, X, ROOT)
    yield "Allgather", (X, there)
    yield "Allgatherv", (X, there)
    yield "Alltoall", (X, there)
    yield "Allreduce", (X, there)
    yield "Scan", (X, there)
    yield "Reduce", (X, there, MPI.SUM, ROOT)
    yield "Reduce_scatter_block", (X, there)
    yield "Reduce_scatter", (X, there, [5] * SIZE)
    if SIZE > 1:  # away from the root
        yield "Gather", (there, None, 0)
        yield "Gatherv", (there, None, 0)
        yield "Scatter", (None, there, 0)
        yield "Scatterv", (None, there, 0)
        yield "Reduce", (there, None, MPI.SUM, 0)
        yield "Reduce", (there, X, MPI.SUM, 0)


@pytest.mark.parametrize(("method", "arguments"), list(in_place_where_forbidden()))
def test_in_place_where_forbidden(method, arguments):
    refused(COMM, method, arguments, (TypeError, ValueError), METHODS[method])


@pytest.mark.parametrize("op", ["sum", None, 3, np.add, sum])
@pytest.mark.parametrize("method", REDUCING)
def test_what_is_no_op(method, op):
    refused(COMM, method, with_op(method, op), TypeError, r"op .* given, expected")


@pytest.mark.parametrize("method", REDUCING)
def test_ops_that_mpi_does_not_define(method):
    for op in (MPI.BAND, MPI.OP_NULL, MPI.MAXLOC, MPI.LAND):
        code = refused(COMM, method, with_op(method, op), MPI.Exception, "OP_NULL|not defined")
        assert code == (MPI.ERR_OP if RANK == ROOT else None)


def with_op(method, op):
    """Give the arguments of a good call of the last rank, but for the op."""
    call = draw(method, ROOT, SIZE, count=5, dtype=np.dtype("f8"), root=ROOT, seed=0)
    return tuple(op if isinstance(argument, MPI.Op) else argument for argument in call.arguments)


@pytest.mark.parametrize("method", [each for each in METHODS if each != "Barrier"])
def test_read_only_memory_to_receive_into(method):
    call = draw(method, ROOT, SIZE, count=5, dtype=np.dtype("f8"), root=ROOT, seed=0)
    if method == "Bcast":  # the root's may be read-only
        frozen = np.ones(5)
        frozen.flags.writeable = RANK != ROOT
        for _ in range(3):
            COMM.Bcast(frozen, ROOT)
        if RANK == ROOT and SIZE > 1:
            with pytest.raises(ValueError, match="bcast: buf is read-only"):
                COMM.Bcast(frozen, 0)
        WORLD.Barrier()
        return
    call.received.flags.writeable = False
    refused(COMM, method, call.arguments, ValueError, "recvbuf is read-only")


MEMORY, EACH = np.zeros(10 * SIZE), [5] * SIZE
BLOCK, BLOCKS = MEMORY[:5], MEMORY[4 : 4 + 5 * SIZE]  # with one element in common
FRONT, BACK, VECTOR = MEMORY[: 5 * SIZE], MEMORY[5 * SIZE - 1 : -1], MEMORY[4:9]
OVERLAPPING = {
    "Gather": (BLOCK, BLOCKS, ROOT),
    "Gatherv": (BLOCK, [BLOCKS, EACH], ROOT),
    "Scatter": (BLOCKS, BLOCK, ROOT),
    "Scatterv": ([BLOCKS, EACH], BLOCK, ROOT),
    "Allgather": (BLOCK, BLOCKS),
    "Allgatherv": (BLOCK, [BLOCKS, EACH]),
    "Alltoall": (FRONT, BACK),
    "Alltoallv": ([FRONT, EACH], [BACK, EACH]),
    "Reduce": (BLOCK, VECTOR, MPI.SUM, ROOT),
    "Allreduce": (BLOCK, VECTOR),
    "Reduce_scatter_block": (BLOCKS, BLOCK),
    "Reduce_scatter": (BLOCKS, BLOCK, EACH),
    "Scan": (BLOCK, VECTOR),
    "Exscan": (BLOCK, VECTOR),
}


@pytest.mark.parametrize("method", OVERLAPPING)
def test_memory_that_overlaps(method):
    """By one element; the very same memory is another matter."""
    refused(COMM, method, OVERLAPPING[method], ValueError, "overlap")


def test_blocks_that_overlap_where_they_are_only_read():
    """As MPI allows."""
    same = [np.arange(5.0), (EACH, [0] * SIZE)]
    COMM.Scatterv(same if RANK == ROOT else None, out := np.empty(5), ROOT)
    assert out.tolist() == list(range(5))
    COMM.Alltoallv(same, out := np.empty(5 * SIZE))
    assert out.tolist() == list(range(5)) * SIZE


def test_arrays_that_mpi_cannot_read():
    out = np.ones(5)
    for bad, error, message in (
        (np.ones(10)[::2], ValueError, "not contiguous"),
        (np.ones(5)[::-1], ValueError, "not contiguous"),
        (np.ones(5, ">f8"), ValueError, "byte order"),
        (np.ones(5, object), TypeError, "object"),
        ([1.0, 2.0], (TypeError, ValueError), "allreduce"),
        ("text", TypeError, "str given"),
        ([out, 5, "no type"], (TypeError, ValueError, KeyError), "."),
        ([out, 5, MPI.DATATYPE_NULL], (ValueError, MPI.Exception), "."),
    ):
        refused(COMM, "Allreduce", (bad, out), error, message)


@pytest.mark.parametrize("method", METHODS)
def test_unknown_algorithms_and_parameters(method):
    arguments = draw(method, ROOT, SIZE, count=5, dtype=np.dtype("f8"), root=ROOT, seed=0).arguments
    name = next(each.name for each in algorithms(METHODS[method]) if not each.transit)
    for error, message, options in (
        (ValueError, "unknown algorithm 'rign', did you mean", {"algorithm": "rign"}),
        (ValueError, "unexpected keyword argument 'colour'", {"algorithm": name, "colour": 3}),
        (TypeError, "algorithm None given", {"algorithm": None}),
        (TypeError, "algorithm 3 given", {"algorithm": 3}),
    ):
        refused(COMM, method, arguments, error, message, **options)


@pytest.mark.parametrize("options", [{"chunks": 3}, {"algorithm": "native", "chunks": 3}], ids=repr)
def test_parameters_for_nobody(options):
    """They are an algorithm's own: nobody is told to take them."""
    refused(COMM, "Allreduce", (np.ones(5), np.ones(5)), (TypeError, ValueError), "chunks", **options)


@pytest.mark.parametrize("chunks", [0, -1, "2", 1.5])
def test_parameters_out_of_range(chunks):
    options = {"algorithm": "chain", "chunks": chunks}
    refused(COMM, "Bcast", (np.ones(5), ROOT), ValueError, "chunk", **options)


PASSING_ON = [
    (method, algorithm.name)
    for method in UNEQUAL
    for algorithm in algorithms(METHODS[method])
    if algorithm.transit
]


@pytest.mark.parametrize(("method", "name"), PASSING_ON)
def test_algorithms_that_take_equal_blocks_only(method, name):
    arguments = draw(method, ROOT, SIZE, count=5, dtype=np.dtype("f8"), root=ROOT, seed=0).arguments
    refused(COMM, method, arguments, ValueError, f"{name} passes blocks on", algorithm=name)


@pytest.mark.parametrize("method", METHODS)
def test_freed_communicators(method):
    raw = WORLD.Dup()
    used, other = mpicoll.Communicator(raw), mpicoll.Communicator(raw)
    arguments = good(method).arguments
    for comm in (used, other):
        for _ in range(2):
            getattr(comm, method)(*arguments)
    used.Free()
    for comm in (used, other):
        for form in forms(method):
            with pytest.raises(MPI.Exception, match="freed") as raised:
                getattr(comm, form)(*arguments)
            assert raised.value.Get_error_class() == MPI.ERR_COMM


@pytest.mark.parametrize("method", METHODS)
def test_null_communicators(method):
    comm = COMM.Dup()
    comm.Free()  # and never used
    for form in forms(method):
        with pytest.raises(MPI.Exception) as raised:
            getattr(comm, form)(*good(method).arguments)
        assert raised.value.Get_error_class() == MPI.ERR_COMM
