"""What is combined on a GPU has the bits that the host's kernels give."""

import numpy as np
import pytest
from gpu.calls import RANK, SIZE, by_route, need
from mpi4py import MPI

import mpicoll
from mpicoll import kernels
from mpicoll.bench.data import find_dtype
from mpicoll.bench.device import DeviceArray

pytestmark = pytest.mark.gpu

COUNT = 4099


def pairs():
    """Give every operation and every element type, but not all of both: those are benchmarks/gpu.py's to try.

    MPI's types with a hole between value and index are not for device memory.
    """
    holes = [
        name for name, pair in kernels.PAIRS.items() if pair.itemsize > pair[0].itemsize + pair[1].itemsize
    ]
    found = {}
    for op, kinds in kernels.OPS.items():
        types = [name for name, kind in kernels.DTYPES.items() if kind in kinds]
        found |= dict.fromkeys((op, name) for name in types[:: max(len(types) - 1, 1)])
    for name in kernels.DTYPES:
        op = next(op for op, kinds in kernels.OPS.items() if kernels.DTYPES[name] in kinds)
        found[op, name] = None
    return [(op, name) for op, name in found if name not in holes]


def elements(name, rng):
    """Draw elements of all kinds, but no NaN: which one it is in the end is not defined."""
    if name in kernels.PAIRS:
        dtype = kernels.PAIRS[name]
        vector = np.zeros(COUNT, dtype)
        vector["value"], vector["index"] = rng.integers(-9, 9, COUNT), rng.integers(0, 99, COUNT)
        return vector
    dtype = find_dtype(name)
    if name == "bool":
        return rng.integers(0, 2, COUNT).astype(dtype)
    if kernels.DTYPES[name] == "integer":
        return rng.integers(0, 256, COUNT * dtype.itemsize, np.uint8).view(dtype)
    vector = rng.normal(size=(2, COUNT)) * 10.0 ** rng.integers(-3, 4, COUNT)
    vector[:, :: COUNT // 9] = -0.0
    return (vector[0] + 1j * vector[1] if kernels.DTYPES[name] == "complex" else vector[0]).astype(dtype)


def spec(array, name):
    """Give the message spec of an array, where it does not speak for itself."""
    return (
        [array, COUNT, getattr(MPI, name if name != "2INT" else "TWOINT")] if name in kernels.PAIRS else array
    )


@pytest.mark.parametrize(("op", "name"), pairs())
def test_operations(comm, device, op, name):
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    need(comm, "ipc")
    mine = elements(name, np.random.default_rng(RANK))
    host = np.zeros_like(mine)
    comm.Allreduce(spec(mine, name), spec(host, name), getattr(MPI, op), algorithm="ring")
    bits = mine.view(np.uint8) if name in kernels.PAIRS else mine  # whose type the spec says
    x, y = DeviceArray(bits, device), DeviceArray(np.zeros_like(bits), device)
    options = {"algorithm": "ring", "transport": "ipc"}
    comm.Allreduce(spec(x, name), spec(y, name), getattr(MPI, op), **options)
    found = np.empty_like(bits)
    y.get(found)
    np.testing.assert_array_equal(found.view(np.uint8), host.view(np.uint8))


@pytest.mark.parametrize("name", ["ring", "direct", "recursive_halving_doubling"])
@by_route
def test_the_same_bits_on_all_ranks_and_as_on_the_host(comm, library, route, name):
    need(comm, route)
    if not library.receives:
        pytest.skip("its arrays never change")
    mine = np.random.default_rng(RANK).random(5000, np.float32)
    host = np.empty_like(mine)
    comm.Allreduce(mine, host, algorithm=name)
    x, y = library.array(mine), library.array(np.zeros_like(mine))
    comm.Allreduce(x, y, algorithm=name, transport=route)
    np.testing.assert_array_equal(library.get(y), host)


@by_route
def test_functions_of_the_users_in_rank_order(comm, device, route):
    need(comm, route)
    second = mpicoll.op(lambda a, b: b)
    x, y = (DeviceArray(np.full(40_000, value, np.int32), device) for value in (RANK, -1))
    comm.Scan(x, y, op=second, transport=route)
    host = np.empty(40_000, np.int32)
    y.get(host)
    assert (host == RANK).all()
    comm.Allreduce(x, y, op=second, transport=route)
    y.get(host)
    assert (host == SIZE - 1).all()
    second.Free()
