"""Message specs of every kind, datatypes with holes, and counts beyond 32 bits."""

import array
import gc
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from collective_calls import FORMS, run
from mpi4py import MPI

import mpicoll

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
COMM = mpicoll.Communicator(WORLD)
REFERENCE = mpicoll.Communicator(WORLD, engine="reference")
ROOT = SIZE - 1


class Exporter:
    """An array that is seen through DLPack only."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


SPECS = {
    "array": lambda x: x,
    "type": lambda x: [x, MPI.DOUBLE],
    "type code": lambda x: [x, "d"],
    "count": lambda x: [x, 6],
    "count and type": lambda x: [x, 6, MPI.DOUBLE],
    "count, displacement and type": lambda x: [x, (6, 0), MPI.DOUBLE],
    "four": lambda x: [x, 6, 0, MPI.DOUBLE],
    "tuple": lambda x: (x, 6, MPI.DOUBLE),
    "memoryview": memoryview,
    "bytes of memory": lambda x: memoryview(x).cast("B"),
    "bytes as doubles": lambda x: [memoryview(x).cast("B"), MPI.DOUBLE],
    "as bytes": lambda x: [x, 48, MPI.BYTE],
    "DLPack": Exporter,
    "columns": lambda x: x.reshape(2, 3, order="F"),
    "matrix": lambda x: x.reshape(3, 2),
    "contiguous pairs": lambda x: [x, 3, PAIRS],
    "MPI's own": MPI.buffer.frombuffer,
}
PAIRS = MPI.DOUBLE.Create_contiguous(2).Commit()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("other", ["array", "as bytes"])
def test_specs_of_both_sides(name, other):
    """What travels are bytes: no rank knows how another describes its memory."""
    spec, of_others = SPECS[name], SPECS[other]
    mine = np.arange(6.0) + RANK
    for send_spec, recv_spec in ((spec, of_others), (of_others, spec)):
        out = np.full((SIZE, 6), np.nan)
        block = np.full(6, np.nan)
        COMM.Alltoall(np.tile(mine, SIZE), out)
        np.testing.assert_array_equal(out, np.arange(6) + np.arange(SIZE)[:, None])
        COMM.Scatter(out if RANK == ROOT else None, recv_spec(block), ROOT)
        np.testing.assert_array_equal(block, np.arange(6) + RANK)
        out[:] = np.nan
        COMM.Allgather(send_spec(mine), out)
        np.testing.assert_array_equal(out, np.arange(6) + np.arange(SIZE)[:, None])
        out[:] = np.nan
        COMM.Gather(send_spec(mine), out if RANK == ROOT else None, ROOT)
        assert np.isnan(out).all() == (RANK != ROOT)
        buffer = mine.copy()
        COMM.Bcast(send_spec(buffer) if RANK == ROOT else recv_spec(buffer), ROOT)
        np.testing.assert_array_equal(buffer, np.arange(6) + ROOT)


def test_specs_of_blocks():
    counts, places = [rank + 1 for rank in range(SIZE)], [9 * (SIZE - 1 - rank) for rank in range(SIZE)]
    wanted = np.repeat(np.arange(SIZE), counts).astype("f8")
    mine = np.full(RANK + 1, float(RANK))
    for spec in (
        lambda x: [x, counts],
        lambda x: [x, counts, MPI.DOUBLE],
        lambda x: [x, (counts, None), MPI.DOUBLE],
        lambda x: [x, tuple(counts), None, "d"],
        lambda x: [x, np.array(counts), MPI.DOUBLE],
    ):
        out = np.full(sum(counts), np.nan)
        COMM.Allgatherv(mine, spec(out))
        np.testing.assert_array_equal(out, wanted)
        block = np.full(RANK + 1, np.nan)
        COMM.Scatterv(spec(wanted) if RANK == ROOT else None, block, ROOT)
        np.testing.assert_array_equal(block, mine)
    for spec in (
        lambda x: [x, (counts, places)],
        lambda x: [x, (counts, np.array(places)), MPI.DOUBLE],
        lambda x: [x, counts, places, MPI.DOUBLE],
    ):
        out = np.full(9 * SIZE, np.nan)
        COMM.Allgatherv([mine, MPI.DOUBLE], spec(out))
        for rank, place in enumerate(places):
            np.testing.assert_array_equal(out[place : place + counts[rank]], rank)
        assert np.isnan(out).sum() == 9 * SIZE - sum(counts)


def test_blocks_without_counts_are_cut_evenly():
    """As mpi4py does: the first ranks have one more."""
    total = 2 * SIZE + 1
    counts = [3, *[2] * (SIZE - 1)]
    for comm in (WORLD, COMM):
        out = np.full(total, np.nan)
        comm.Allgatherv(np.full(counts[RANK], float(RANK)), out)
        np.testing.assert_array_equal(out, np.repeat(np.arange(SIZE), counts))


def test_one_count_and_one_stride_for_all_blocks():
    for comm in (WORLD, COMM):
        out = np.full(3 * SIZE, -1)
        comm.Allgatherv(np.full(2, RANK), [out, 2, 3, MPI.LONG])
        assert out.reshape(SIZE, 3).tolist() == [[rank, rank, -1] for rank in range(SIZE)]


def test_python_memory():
    data = bytes(range(20))
    for buffer in (bytearray(20), array.array("B", bytes(20)), memoryview(bytearray(20))):
        COMM.Bcast(data if RANK == ROOT else buffer, ROOT)
        assert RANK == ROOT or bytes(buffer) == data
    out = array.array("d", [0] * SIZE)
    COMM.Allgather(array.array("d", [RANK + 0.5]), out)
    assert out.tolist() == [rank + 0.5 for rank in range(SIZE)]
    COMM.Allreduce(MPI.IN_PLACE, out)
    assert out.tolist() == [SIZE * (rank + 0.5) for rank in range(SIZE)]


def test_scalars():
    out = np.array(-1.0)
    COMM.Allreduce(np.float64(RANK), out)
    assert out == SIZE * (SIZE - 1) / 2
    COMM.Scan(np.array(1.0), out)
    assert out == RANK + 1
    COMM.Bcast(out, 0)
    assert out == 1
    many = np.zeros(SIZE)
    COMM.Allgather(np.array(float(RANK)), many)
    assert many.tolist() == list(range(SIZE))


def test_columns_keep_their_layout():
    matrix = np.asfortranarray(np.arange(6.0).reshape(2, 3) * (RANK + 1))
    out = np.full((2, 3), np.nan, order="F")
    COMM.Allreduce(matrix, out)
    np.testing.assert_array_equal(out, np.arange(6).reshape(2, 3) * SIZE * (SIZE + 1) / 2)
    out[:] = matrix
    COMM.Bcast(out, ROOT)
    np.testing.assert_array_equal(out, np.arange(6).reshape(2, 3) * (ROOT + 1))


@pytest.mark.parametrize("nothing", [None, MPI.BOTTOM, b"", np.empty(0)], ids=repr)
def test_nothing(nothing):
    spec = [nothing, 0, MPI.DOUBLE]
    for _ in range(2):
        if not isinstance(nothing, bytes):  # read-only
            COMM.Bcast(spec, ROOT)
            COMM.Allreduce(spec, spec)
            COMM.Allgather(spec, spec)
            COMM.Alltoall(spec, spec)
            COMM.Reduce_scatter_block(spec, spec)
        COMM.Gather(spec, [None, 0, MPI.DOUBLE] if RANK == ROOT else None, ROOT)
        COMM.Scatterv([nothing, [0] * SIZE, MPI.DOUBLE] if RANK == ROOT else None, [None, 0, "d"], ROOT)
    out = np.full(SIZE, np.nan)
    COMM.Gatherv([nothing, 0, MPI.DOUBLE] if RANK else np.ones(1), [out, [1, *[0] * ROOT], MPI.DOUBLE], 0)
    assert np.isnan(out).sum() == SIZE - (RANK == 0)


def test_no_buffer_means_in_place():
    """As in mpi4py."""
    for comm in (WORLD, COMM):
        for _ in range(2):
            out = np.full(SIZE, float(RANK))
            comm.Allgather(None, out)
            assert out.tolist() == list(range(SIZE))
            out = np.full(2, float(RANK))
            comm.Allreduce(None, out)
            assert (out == SIZE * (SIZE - 1) / 2).all()
    COMM.Allgather(np.array([5.0 * RANK]), out := np.full(SIZE, np.nan))
    assert out.tolist() == [5 * rank for rank in range(SIZE)]


def test_absolute_addresses():
    x, y = np.arange(3.0) + RANK, np.arange(2) + RANK
    addresses = [MPI.Get_address(x), MPI.Get_address(y)]
    both = MPI.Datatype.Create_struct([3, 2], addresses, [MPI.DOUBLE, MPI.LONG]).Commit()
    COMM.Bcast([MPI.BOTTOM, 1, both], ROOT)
    both.Free()
    assert (x.tolist(), y.tolist()) == ([ROOT, ROOT + 1, ROOT + 2], [ROOT, ROOT + 1])


# -- datatypes with holes ----------------------------------------------------------------------


def resized(datatype, extent):
    """Commit a datatype with another extent, in bytes."""
    made = datatype.Create_resized(0, extent).Commit()
    datatype.Free()
    return made


class Holes(NamedTuple):
    """A datatype of three doubles, and where they are, in doubles."""

    make: Callable[[], MPI.Datatype]
    extent: int
    within: list[int]

    def places(self, elements):
        return [self.extent * element + place for element in range(elements) for place in self.within]

    def memory(self, elements):
        """Give memory for some elements that is -1, and a bit more."""
        return np.full(max(self.places(elements), default=0) + 3, -1.0)

    def filled(self, values):
        """Put values where the elements have their data."""
        out = self.memory(len(values) // 3)
        out[self.places(len(values) // 3)] = values
        return out


HOLES = {
    "column of a matrix": Holes(lambda: resized(MPI.DOUBLE.Create_vector(3, 1, 99), 8), 1, [0, 99, 198]),
    "spread": Holes(lambda: resized(MPI.DOUBLE.Create_vector(3, 1, 2), 48), 6, [0, 2, 4]),
    "shifted": Holes(lambda: resized(MPI.DOUBLE.Create_indexed([1, 2], [1, 4]), 56), 7, [1, 4, 5]),
    "in another order": Holes(lambda: resized(MPI.DOUBLE.Create_indexed([2, 1], [2, 0]), 32), 4, [2, 3, 0]),
}
SPREAD = HOLES["spread"]


WHERE = {"on both sides": (True, True), "to send": (True, False), "to receive": (False, True)}


@pytest.mark.parametrize("comm", [COMM, REFERENCE], ids=["compiled", "reference"])
@pytest.mark.parametrize("odd", [False, True], ids=["all ranks", "odd ranks"])
@pytest.mark.parametrize("sides", WHERE)
@pytest.mark.parametrize("name", HOLES)
def test_datatypes_with_holes(name, sides, odd, comm):
    """Two elements a block, six doubles, where a rank has holes; others have none. No hole is written to."""
    holes, datatype = HOLES[name], HOLES[name].make()
    send_holes, recv_holes = WHERE[sides] if RANK % 2 or not odd else (False, False)
    block = np.arange(6.0) + 10 * RANK
    every = np.concatenate([np.arange(6.0) + 10 * rank for rank in range(SIZE)])

    def sending(values, blocks=1):
        if not send_holes:
            return values.copy()
        return [holes.filled(values), len(values) // 3 // blocks, datatype]

    def received(values, call, blocks=1):
        """Check what a call receives, given the spec of where."""
        out = holes.memory(len(values) // 3) if recv_holes else np.full(len(values), -1.0)
        call([out, len(values) // 3 // blocks, datatype] if recv_holes else out)
        np.testing.assert_array_equal(out, holes.filled(values) if recv_holes else values)

    if RANK == ROOT:
        comm.Bcast(sending(block), ROOT)
        comm.Gather(MPI.IN_PLACE, gathered := np.tile(block, SIZE), ROOT)
        np.testing.assert_array_equal(gathered, every)
        received(every, lambda spec: comm.Gather(sending(block), spec, ROOT), SIZE)
    else:
        received(every[-6:], lambda spec: comm.Bcast(spec, ROOT))
        comm.Gather(sending(block), None, ROOT)
        comm.Gather(sending(block), None, ROOT)
    root_sends = sending(every, SIZE) if RANK == ROOT else None
    received(block, lambda spec: comm.Scatter(root_sends, spec, ROOT))
    received(every, lambda spec: comm.Allgather(sending(block), spec), SIZE)
    received(every, lambda spec: comm.Alltoall(sending(np.tile(block, SIZE), SIZE), spec), SIZE)
    datatype.Free()


@pytest.mark.parametrize("form", FORMS)
def test_unequal_blocks_of_elements_with_holes(form):
    """In reverse order, with gaps; ranks send plain doubles."""
    datatype = SPREAD.make()
    counts = [rank % 3 for rank in range(SIZE)]
    places = [3 * (SIZE - 1 - rank) for rank in range(SIZE)]
    mine = np.arange(3.0 * counts[RANK]) + 100 * RANK
    out, wanted = SPREAD.memory(3 * SIZE), SPREAD.memory(3 * SIZE)
    for rank, place in enumerate(places):
        filled = SPREAD.filled(np.arange(3.0 * counts[rank]) + 100 * rank)[: 6 * counts[rank]]
        wanted[6 * place : 6 * place + len(filled)] = filled
    for _ in range(2):
        out[:] = -1
        run(COMM, form, "Allgatherv", (mine, [out, counts, places, datatype]))
        np.testing.assert_array_equal(out, wanted)
    datatype.Free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["Allgather", "Gather", "Alltoall", "Alltoallv", "Scatter"])
def test_elements_with_holes_in_place(method, form):
    """One element a block."""
    datatype, at_root = SPREAD.make(), RANK == ROOT
    all_ranks = [np.arange(3.0 * SIZE) + 100 * rank for rank in range(SIZE)]
    whole, out = SPREAD.filled(all_ranks[RANK]), np.full(3, np.nan)
    spec, blocks = [whole, 1, datatype], [whole, [1] * SIZE, datatype]
    mine = all_ranks[RANK][3 * RANK : 3 * RANK + 3].copy()
    arguments, values = {
        "Allgather": ((MPI.IN_PLACE, spec), [all_ranks[rank][3 * rank :][:3] for rank in range(SIZE)]),
        "Gather": (
            (MPI.IN_PLACE if at_root else mine, spec if at_root else None, ROOT),
            [all_ranks[rank if at_root else RANK][3 * rank :][:3] for rank in range(SIZE)],
        ),
        "Scatter": (
            (spec if at_root else None, MPI.IN_PLACE if at_root else out, ROOT),
            all_ranks[RANK].reshape(SIZE, 3),
        ),
        "Alltoall": ((MPI.IN_PLACE, spec), [each[3 * RANK :][:3] for each in all_ranks]),
        "Alltoallv": ((MPI.IN_PLACE, blocks), [each[3 * RANK :][:3] for each in all_ranks]),
    }[method]
    run(COMM, form, method, arguments)
    np.testing.assert_array_equal(whole, SPREAD.filled(np.concatenate(values)))
    if method == "Scatter" and not at_root:
        np.testing.assert_array_equal(out, all_ranks[ROOT][3 * RANK :][:3])
    datatype.Free()


def test_structs_to_and_from_numpys():
    """Elements of a struct whose fields MPI knows in another order than memory has them."""
    c = np.dtype({"names": ["number", "value"], "formats": ["i4", "f8"], "offsets": [0, 8], "itemsize": 24})
    datatype = resized(MPI.Datatype.Create_struct([1, 1], [8, 0], [MPI.DOUBLE, MPI.INT]), 24)
    mine = np.zeros(2, c)
    mine["number"], mine["value"] = RANK, RANK + 0.5
    out = np.zeros(2 * SIZE, c)
    for send, recv in (([mine, 2, datatype], [out, 2, datatype]), (mine, out)):
        out["number"] = -1
        COMM.Allgather(send, recv)
        assert out["number"].tolist() == np.repeat(np.arange(SIZE), 2).tolist()
        assert out["value"].tolist() == (np.repeat(np.arange(SIZE), 2) + 0.5).tolist()
    datatype.Free()


@pytest.mark.parametrize("form", ["Ibcast", "Bcast_init"])
def test_a_datatype_may_be_freed_before_completion(form):
    """As MPI says; what was started goes on with it."""
    datatype = SPREAD.make()
    buffer = SPREAD.filled(np.full(3, RANK + 1.0))
    request = getattr(COMM, form)([buffer, 1, datatype], ROOT)
    datatype.Free()
    for other in (SPREAD.make(), SPREAD.make()):  # which may get its handle
        other.Free()
    if form == "Bcast_init":
        request.Start()
    request.Wait()
    np.testing.assert_array_equal(buffer, SPREAD.filled(np.full(3, ROOT + 1.0)))


# -- counts beyond 32 bits ---------------------------------------------------------------------

GIB = 1 << 30


def room_for(gibibytes):
    """Skip on all ranks where one of them says that there is not enough memory."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    least = WORLD.allreduce(available, MPI.MIN)
    if least < gibibytes:
        pytest.skip(f"{least:.1f} GiB of memory available, {gibibytes} needed")


BEYOND = (1 << 31) + 9  # more than a C int counts
MARKED = [0, 1, (1 << 30) + 5, (1 << 31) - 1, 1 << 31, BEYOND - 1]


@pytest.mark.limit(120)
@pytest.mark.skipif(SIZE != 2, reason="2 ranks have the memory and the time")
@pytest.mark.parametrize("method", ["Bcast", "Allreduce", "Allgatherv", "Reduce_scatter", "Iallreduce"])
def test_more_than_two_to_the_31(method):
    room_for(16)
    buffer = np.zeros(BEYOND, np.uint8)
    buffer[MARKED] = 1 + RANK
    if method == "Bcast":
        COMM.Bcast(buffer, ROOT)
        assert (buffer[MARKED] == 1 + ROOT).all()
    elif method == "Allreduce":
        COMM.Allreduce(MPI.IN_PLACE, buffer, MPI.BOR)
        assert (buffer[MARKED] == 3).all()
    elif method == "Iallreduce":
        COMM.Iallreduce(MPI.IN_PLACE, buffer, MPI.SUM).Wait()
        assert (buffer[MARKED] == 3).all()
    elif method == "Allgatherv":
        COMM.Allgatherv(MPI.IN_PLACE, [buffer, [BEYOND - 5, 5]])
        assert buffer[MARKED].tolist() == [1] * 5 + [2]
    else:
        COMM.Reduce_scatter(MPI.IN_PLACE, buffer, [BEYOND - 1, 1], MPI.BOR)
        assert (buffer[MARKED[:-1]] == 3).all() if RANK == 0 else buffer[0] == 3
    assert np.count_nonzero(buffer) == len(MARKED) or method == "Reduce_scatter"
    del buffer
    gc.collect()


@pytest.mark.limit(120)
@pytest.mark.skipif(SIZE != 2, reason="2 ranks have the memory and the time")
def test_more_than_two_to_the_32_bytes():
    room_for(16)
    count = (1 << 29) + 9  # of doubles
    marked = [0, (1 << 28) + 1, (1 << 29) - 1, 1 << 29, count - 1]
    buffer = np.zeros(count)
    buffer[marked] = RANK + 1
    COMM.Bcast(buffer, ROOT)
    assert (buffer[marked] == ROOT + 1).all()
    assert np.count_nonzero(buffer) == len(marked)
