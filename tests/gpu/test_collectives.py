"""Every collective on arrays of every library, by every route, while the arrays are still being computed."""

import collective_calls as cc
import numpy as np
import pytest
from gpu.calls import RANK, SIZE, by_route, had, need, run
from mpi4py import MPI

import mpicoll

METHODS = [method for method in cc.METHODS if method != "Barrier"]
STAGED_ONLY = ("Gatherv", "Scatterv", "Alltoallv")  # no rank knows the lengths of all blocks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:::(cupy|jax|numba|torch).*"),  # what others warn of is not ours
]


def cases(seed, number, dtypes=("float32", "int32", "complex64")):
    """Draw what varies, alike on all ranks."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        yield {
            "count": int(rng.choice([0, 1, 7, 1000, 70_001])),
            "dtype": str(rng.choice(dtypes)),
            "seed": int(rng.integers(1 << 30)),
            "root": int(rng.integers(SIZE)),
        }


def places(method, root, library):
    """Say where IN_PLACE may stand, on this rank, of each of both kinds of a call."""
    rooted = method in ("Gather", "Gatherv", "Reduce", "Scatter", "Scatterv")
    if method == "Bcast" or not library.receives:
        return (False,)
    return False, not rooted or root == RANK


@pytest.mark.parametrize("method", METHODS)
@by_route
def test_every_collective(comm, library, device, method, route):
    """In all forms, with separate buffers and in place."""
    need(comm, route, method in cc.REDUCING)
    if method == "Bcast" and not library.receives:
        pytest.skip("its arrays cannot be received into")
    for number, case in enumerate(cases(len(method), 3)):
        for in_place in places(method, case["root"], library):
            staged = method in STAGED_ONLY or (method == "Alltoall" and in_place)
            options = {"transport": "staged" if staged else route}
            run(
                comm, library, device, method, cc.FORMS[number],
                options=options, in_place=in_place, **case,
            )  # fmt: skip


def test_by_the_route_that_is_chosen(comm, library, device):
    for case in cases(1, 4, ("float32",)):
        run(comm, library, device, "Allreduce", options={}, **case)
    for count, route in ((100, "staged"), (100_000, "ipc")):
        if route in had(comm) and SIZE > 1:
            before = mpicoll.device.through_host(comm)
            run(comm, library, device, "Allreduce", options={}, count=count, dtype="float32", seed=1)
            assert (mpicoll.device.through_host(comm) > before) == (route == "staged")


@pytest.mark.parametrize("name", ["int8", "uint16", "int64", "float16", "float64", "bfloat16"])
def test_types(comm, library, device, name):
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16) if name == "bfloat16" else np.dtype(name)
    if not library.takes(dtype):
        pytest.skip(f"it has no {name}")
    need(comm, "ipc")
    run(comm, library, device, "Allreduce", options={"transport": "ipc"}, count=999, dtype=dtype, seed=2)
    run(comm, library, device, "Allgather", options={"transport": "ipc"}, count=999, dtype=dtype, seed=2)


@by_route
def test_what_is_computed_between_collectives(comm, library, route):
    """A persistent request reads what the stream has been given before each start, and not earlier."""
    if not library.receives:
        pytest.skip("its arrays never change")
    need(comm, route)
    count = 50_000
    x, y = (library.array(np.full(count, value, np.float32)) for value in (RANK, -1))
    request = comm.Allreduce_init(x, y, transport=route)
    for k in range(3):
        library.write(x, np.full(count, k + RANK, np.float32))
        library.write(y, np.full(count, -2, np.float32))  # what comes late must not stand in the result
        request.Start()
        request.Wait()
        np.testing.assert_array_equal(library.get(y), k * SIZE + sum(range(SIZE)))
    request.Free()


@by_route
def test_several_at_once(comm, library, route):
    """Nonblocking ones of several lengths, among the library's own work."""
    need(comm, route)
    if not library.receives:
        pytest.skip("its arrays never change")
    counts, requests = (10, 100_000, 3000), []
    pairs = [[library.array(np.full(count, value, np.int32)) for value in (-2, -1)] for count in counts]
    for (x, y), count in zip(pairs, counts, strict=True):
        library.write(x, np.full(count, count + RANK, np.int32))
        requests.append(comm.Iallreduce(x, y, transport=route))
    MPI.Request.Waitall(requests)
    for (x, y), count in zip(pairs, counts, strict=True):
        assert (library.get(y) == count * SIZE + sum(range(SIZE))).all()
        assert (library.get(x) == count + RANK).all()


@pytest.mark.limit(120)
@by_route
def test_long_vectors(comm, library, device, route):
    """So long that they go in several pieces, segments and stages, of which there are several lengths."""
    need(comm, route)
    options = {"transport": route}
    for count in (100, 3_000_000, 200_000, 6_000_001):
        run(comm, library, device, "Allreduce", options=options, count=count, dtype="float32", seed=1)
    for method in ("Allgather", "Alltoall", "Reduce_scatter_block", "Scatter"):
        run(comm, library, device, method, options=options, count=1_000_003, dtype="int16", seed=2)


def test_average(comm, library):
    if not library.receives:
        pytest.skip("its arrays never change")
    need(comm, "ipc")
    x, y = (library.array(np.full(500, value, np.float32)) for value in (SIZE * RANK, -1))
    comm.Allreduce(x, y, op=mpicoll.AVG, transport="ipc")
    np.testing.assert_array_equal(library.get(y), sum(range(SIZE)))
