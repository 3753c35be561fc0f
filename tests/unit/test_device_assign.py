"""Which device is for which rank, on one rank: the driver is a stand-in."""

import ctypes
import warnings

import pytest
from mpi4py import MPI

from mpicoll.device import driver
from mpicoll.device.assigning import assign
from mpicoll.errors import DeviceError


@pytest.fixture(autouse=True)
def _no_driver_left():
    yield
    driver.stand_in(None)


def stand_in(devices):
    """Let there be devices; nothing else can be asked for, as a context."""

    def count(word):
        ctypes.cast(word, ctypes.POINTER(ctypes.c_uint64))[0] = devices
        return 0

    def uuid(buffer, device):
        buffer.raw = bytes([device]) * 16
        return 0

    driver.stand_in(
        {"cuDeviceGetCount": count, "cuDeviceGet": lambda word, device: 0, "cuDeviceGetUuid_v2": uuid}
    )


def test_alone():
    stand_in(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert assign() == assign(MPI.COMM_SELF) == 0


def test_no_device():
    stand_in(0)
    with pytest.raises(DeviceError, match="the CUDA driver sees no device"):
        assign()


def test_no_driver(monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    driver.stand_in(None)
    with pytest.raises(DeviceError, match="no CUDA driver"):
        assign()
