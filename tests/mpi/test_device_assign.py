"""Which device is for which rank: the driver is a stand-in, and each rank may see other devices."""

import ctypes
import warnings

import pytest
from mpi4py import MPI

from mpicoll.device import aware, driver
from mpicoll.device.assigning import assign
from mpicoll.errors import DeviceError

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.fixture(autouse=True)
def _no_driver_left():
    yield
    driver.stand_in(None)


def see(*devices):
    """Let this rank see some of the node's devices."""

    def count(word):
        ctypes.cast(word, ctypes.POINTER(ctypes.c_uint64))[0] = len(devices)
        return 0

    def handle(word, device):
        ctypes.cast(word, ctypes.POINTER(ctypes.c_uint32))[0] = device
        return 0

    def uuid(buffer, device):
        buffer.raw = bytes([devices[device]]) * 16
        return 0

    def name(buffer, length, device):
        buffer.value = b"H200"
        return 0

    driver.stand_in(
        {
            "cuDeviceGetCount": count,
            "cuDeviceGet": handle,
            "cuDeviceGetUuid_v2": uuid,
            "cuDeviceGetName": name,
        }
    )


def assigned(comm=None):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        device = assign(comm)
    return device, [str(warning.message) for warning in heard]


def test_enough_devices():
    see(*range(10, 10 + SIZE))
    assert assigned() == (RANK, [])


@pytest.mark.mpi(min_size=2)
def test_too_few_devices():
    see(10, 11)
    device, heard = assigned()
    assert device == RANK % 2
    sharing = ", ".join(str(rank) for rank in range(RANK % 2, SIZE, 2))
    assert heard == ([f"assign: ranks {sharing} share device {device} (H200)"] if "," in sharing else [])


def test_one_device_for_each_rank_to_see():
    see(10 + RANK)
    assert assigned() == (0, [])


@pytest.mark.mpi(min_size=2)
def test_one_device_that_all_see():
    see(10)
    everybody = ", ".join(map(str, range(SIZE)))
    assert assigned() == (0, [f"assign: ranks {everybody} share device 0 (H200)"])


@pytest.mark.mpi(min_size=2)
def test_another_communicator():
    see(10, 11)
    parity = WORLD.Split(RANK % 2, RANK)
    device, _ = assigned(parity)
    assert device == parity.Get_rank() % 2
    parity.Free()


@pytest.mark.mpi(min_size=2)
def test_a_rank_without_a_device_does_not_hold_up_the_others():
    see(*([] if RANK == 1 else range(10, 10 + SIZE)))
    if RANK == 1:
        with pytest.raises(DeviceError, match="sees no device"):
            assign()
    else:
        assert assigned() == (RANK, [])


def test_all_ranks_agree_with_rank_0(monkeypatch):
    monkeypatch.setenv(aware.VARIABLE, "0" if RANK == 0 else "1")
    assert aware.agreed(WORLD) == (False, False, "MPICOLL_CUDA_AWARE=0")


def test_all_ranks_raise_what_rank_0_found(monkeypatch):
    monkeypatch.setenv(aware.VARIABLE, "x" if RANK == 0 else "1")
    with pytest.raises(ValueError, match="MPICOLL_CUDA_AWARE: 'x' given"):
        aware.agreed(WORLD)


def test_only_rank_0_tries(monkeypatch):
    tries = []
    answer = aware.Awareness(True, False, "tried")
    monkeypatch.setattr(aware, "awareness", lambda fresh: tries.append(fresh) or answer)
    assert aware.agreed(WORLD, fresh=True) == answer
    assert tries == [True] * (RANK == 0)


def test_no_device():
    see()
    with pytest.raises(DeviceError, match="the CUDA driver sees no device"):
        assign()


def test_no_driver(monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    driver.stand_in(None)
    with pytest.raises(DeviceError, match="no CUDA driver"):
        assign()
