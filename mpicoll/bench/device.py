"""Measuring collectives of memory on NVIDIA GPUs: arrays there, buffers for a case, and what ran on which.

A buffer of a case has its copy on the host, where it is made ready and checked as any other: what is on
the device is copied from it before a batch and to it after, both outside the timed part.
"""

import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..device import aware, driver
from ..device.assigning import assign
from ..device.memory import give_back
from ..errors import DeviceError
from ..selection import AUTO, STAGED
from .cases import Case
from .measure import Arguments, Buffers, Call
from .records import NATIVE, Record


class DeviceArray:
    """A vector in the memory of a device, which is freed with it.

    Parameters
    ----------
    host : ndarray
        What is copied there; C-contiguous.
    device : int
        The driver's number of the device.

    Raises
    ------
    DeviceError
        If there is no room, or no driver.
    """

    def __init__(self, host: np.ndarray, device: int) -> None:
        self.shape, self.dtype, self.nbytes, self.device = host.shape, host.dtype, host.nbytes, device
        self.address = 0
        if self.nbytes:
            with driver.current(device):
                self.address = driver.get("cuMemAlloc_v2", self.nbytes)
            weakref.finalize(self, give_back, device, "cuMemFree_v2", self.address)
        self.put(host)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array as CuPy, Numba and PyTorch show theirs; whatever fills it waits, so it has no stream."""
        return {
            "shape": self.shape,
            # the protocol has no code for bfloat16: NumPy, once it has it from ml_dtypes, knows its name
            "typestr": self.dtype.str if self.dtype.kind != "V" else self.dtype.name,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }

    def put(self, host: np.ndarray) -> None:
        """Copy an array of as many bytes to the device, and wait for it."""
        self._copy(self.address, host.ctypes.data, host)

    def get(self, host: np.ndarray) -> None:
        """Copy the vector into an array of as many bytes, and wait for it."""
        self._copy(host.ctypes.data, self.address, host)

    def _copy(self, out: int, source: int, host: np.ndarray) -> None:
        if host.nbytes != self.nbytes or not host.flags.c_contiguous:
            raise ValueError(f"array of {host.nbytes} bytes given, expected {self.nbytes}, contiguous")
        if self.nbytes:
            with driver.current(self.device):
                driver.call("cuMemcpyAsync", out, source, self.nbytes, 0)
                driver.call("cuStreamSynchronize", 0)


class DeviceBuffers(Buffers):
    """Buffers in device memory, with those of the base class as their copies on the host."""

    def __init__(self, case: Case, rows: int, device: int) -> None:
        super().__init__(case, rows)
        self.send = DeviceArray(self._send, device)
        self.received = [DeviceArray(row, device) for row in self._rows]

    def arguments(self, calls: int, poisoned: bool = False) -> Arguments:
        """Make the receive buffers ready for a batch, and return the arguments of its calls."""
        arguments = super().arguments(calls, poisoned)
        for row, there in zip(self._rows[:calls], self.received, strict=False):
            if poisoned or len(self._case.place(row)):  # else what is there does not matter
                there.put(row)
        return arguments

    def count_wrong(self, calls: int) -> int:
        """Return how many elements are wrong after a batch."""
        for row, there in zip(self._rows[:calls], self.received, strict=False):
            there.get(row)
        return super().count_wrong(calls)


class Devices(NamedTuple):
    """The devices of all ranks.

    Attributes
    ----------
    number : int
        The driver's number of this rank's device.
    ids : tuple of bytes
        For each rank what tells its device from all others.
    models : tuple of str
        Their names, each once.
    awareness : Awareness
        What the MPI library can do with device memory.
    """

    number: int
    ids: tuple[bytes, ...]
    models: tuple[str, ...]
    awareness: aware.Awareness

    @property
    def baseline(self) -> str:
        """What ratios are to: the native collective, or the way through the host where that cannot serve."""
        return NATIVE if self.awareness.collectives else f"{AUTO}:transport={STAGED}"

    def buffers(self, case: Case, rows: int) -> DeviceBuffers:
        """Make a rank's buffers for a case."""
        return DeviceBuffers(case, rows, self.number)

    def record(self) -> Record:
        """Say what goes into every record, beside the provenance."""
        version = driver.get("cuDriverGetVersion") & 0xFFFFFFFF
        return {
            "device": ", ".join(self.models),
            "devices": len(set(self.ids)),
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
            "cuda_aware": self.awareness._asdict(),
        }


def find(world: MPI.Intracomm) -> Devices:
    """Give each rank its device; collective, and may let two processes try what MPI can do.

    Raises
    ------
    DeviceError
        On all ranks, if one has no device.
    """
    number, uuid, name, trouble = -1, b"", "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that ranks share a device: the caption says how many there are
            number = assign(world)
        uuid, name = driver.uuid(number), driver.name(number)
    except DeviceError as error:
        trouble = f"rank {world.rank}: {error}"
    everyone = world.allgather((uuid, name, trouble))
    if troubles := [text for *_, text in everyone if text]:
        raise DeviceError(troubles[0])
    ids, names = tuple(uuid for uuid, *_ in everyone), {name for _, name, _ in everyone}
    return Devices(number, ids, tuple(sorted(names)), aware.agreed(world))


def refused(reason: str) -> Call:
    """Make a competitor that cannot be had, and says so."""

    def call(*_: Any) -> None:
        raise DeviceError(reason)

    return call
