"""Memory that collectives on a device need of their own: scratch, and pinned memory of the host."""

import ctypes
import weakref
from collections.abc import Callable

import numpy as np

from ..errors import DeviceError
from . import driver


def allocate(nbytes: int) -> int:
    """Allocate memory of the current device that other processes can open; give its address."""
    return driver.get("cuMemAlloc_v2", nbytes)


def pin(nbytes: int) -> int:
    """Allocate host memory that devices can reach; give its address."""
    return driver.get("cuMemHostAlloc", nbytes, driver.PORTABLE)


def free_bytes() -> int:
    """Give how much memory the current device has left."""
    left, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    driver.call("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
    return left.value


class Workspace:
    """Memory that grows; one plan at a time uses it.

    Parameters
    ----------
    device : int
    host : bool
        Whether it is pinned memory of the host.

    Attributes
    ----------
    cell : ndarray of int64, shape (1,)
        Holds the address, which changes as it grows.
    """

    def __init__(self, device: int, host: bool = False) -> None:
        self.cell = np.zeros(1, np.int64)
        self._device, self._reserved = device, 0
        self._allocate = pin if host else allocate
        self._free = "cuMemFreeHost" if host else "cuMemFree_v2"

    def reserve(self, nbytes: int) -> None:
        """Make room for `nbytes`."""
        if nbytes <= self._reserved:
            return
        self.release()
        with driver.current(self._device):
            self.cell[0] = self._allocate(nbytes)
        self._reserved = nbytes

    def release(self) -> None:
        """Give the memory back; nothing may be using it."""
        if self._reserved:
            address, self._reserved, self.cell[0] = int(self.cell[0]), 0, 0
            give_back(self._device, self._free, address)


def give_back(device: int, function: str, *handles: int) -> None:
    """Free things of a device, unless it is gone already, as at the end of the process."""
    try:
        with driver.current(device):
            for handle in handles:
                driver.call(function, handle)
    except DeviceError:
        pass


class Streams:
    """CUDA streams of our own.

    Attributes
    ----------
    handles : ndarray of int64
    """

    def __init__(self, device: int, number: int) -> None:
        with driver.current(device):
            made = [driver.get("cuStreamCreate", driver.NON_BLOCKING) for _ in range(number)]
        self.handles = np.array(made, np.int64)
        self.close: Callable[[], object] = weakref.finalize(
            self, give_back, device, "cuStreamDestroy_v2", *made
        )
