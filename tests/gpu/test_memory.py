"""What collectives take of a device and give back, what they copy to the host, and what they refuse."""

import numpy as np
import pytest
from gpu.calls import SIZE, WORLD, by_route, had, need
from mpi4py import MPI

import mpicoll
from mpicoll.bench.device import DeviceArray
from mpicoll.device import driver, memory
from mpicoll.errors import DeviceError

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::(cupy|jax|numba|torch).*")]

VECTOR = 1 << 22  # float32: 16 MiB, for which a rank's stage takes 64
SLACK = 32 << 20  # bytes; drivers and other ranks take a little for good


@pytest.fixture
def taken(device, stand_in):
    """Give a function that says how much of the device is taken."""

    def free():
        if stand_in:
            return -sum(nbytes for _, nbytes, *_ in stand_in.memory.values())
        with driver.current(device):
            return memory.free_bytes()

    def measure():
        WORLD.Barrier()
        found = -free()
        WORLD.Barrier()
        return found

    return measure


def test_memory_is_given_back(comm, device, taken):
    need(comm, "ipc")
    x, y = (DeviceArray(np.ones(VECTOR, np.float32), device) for _ in range(2))

    routes = had(comm)

    def use():
        other = mpicoll.Communicator(WORLD.Dup())
        for route in routes:
            other.Allreduce(x, y, transport=route)
        most = taken()
        other.Free()
        return most

    use()  # loads kernels, which stay
    before = taken()
    most = use()
    if SIZE > 1 and "ipc" in routes:
        assert most >= before + (VECTOR * 4)
    assert taken() <= before + SLACK * SIZE


@by_route
def test_bytes_through_the_host(comm, device, route):
    need(comm, route)
    x, y = (DeviceArray(np.ones(100_000, np.float32), device) for _ in range(2))
    before = mpicoll.device.through_host(comm)
    comm.Allreduce(x, y, transport=route)
    assert mpicoll.device.through_host(comm) - before == (800_000 if route == "staged" else 0)


def test_host_and_device_memory_in_one_call(comm, library):
    array = library.array(np.ones(3))
    with pytest.raises(TypeError, match="recvbuf is in host memory and sendbuf on a device"):
        comm.Allreduce(array, np.ones(3))
    if library.receives:
        with pytest.raises(TypeError, match="sendbuf is in host memory and recvbuf on a device"):
            comm.Allreduce(np.ones(3), array)


def test_what_cannot_be_received_into(comm, library):
    if library.receives:
        pytest.skip("its arrays can")
    with pytest.raises(ValueError, match="recvbuf is read-only"):
        comm.Allreduce(library.array(np.ones(3)), library.array(np.ones(3)))


def test_no_such_route(comm, device):
    x, y = (DeviceArray(np.ones(3), device) for _ in range(2))
    with pytest.raises(ValueError, match="transport 'shared' given, expected auto, ipc, mpi, staged"):
        comm.Allreduce(x, y, transport="shared")


def test_native_only_where_the_library_can(comm, device):
    x, y = (DeviceArray(np.ones(3), device) for _ in range(2))
    if comm._connected().device(device).awareness.collectives:
        comm.Allreduce(x, y, algorithm="native")
        host = np.empty(3)
        y.get(host)
        assert (host == SIZE).all()
    else:
        with pytest.raises(DeviceError, match="not known to take device memory"):
            comm.Allreduce(x, y, MPI.SUM, algorithm="native")
