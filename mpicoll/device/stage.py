"""Stages in device memory, which the ranks of a node open of each other by CUDA IPC.

The counters that say what is there are those of a window in host memory (:mod:`mpicoll.engine.window`); only
the stages are on devices.
"""

import ctypes
import logging
from collections.abc import Mapping

from mpi4py import MPI

from ..engine import window as w
from ..errors import DeviceError
from ..transports import shared
from . import driver, memory

logger = logging.getLogger("mpicoll")


class DeviceWindow(w.Window):
    """A node's window with stages on devices, as one of its ranks sees it.

    Attributes
    ----------
    stages : mapping of int to int
        For each number on the node, bytes from this rank's stage to that one's.
    """

    def __init__(self, node: MPI.Intracomm, lines: object, wait: str, stage: "Stage") -> None:
        super().__init__(node, lines, w.RING, wait)
        self._stage = stage
        own = stage.addresses[node.rank]
        self.stages = {number: address - own for number, address in enumerate(stage.addresses)}
        self.units, self.unit = w.RING, stage.nbytes // w.RING
        self.stride = w.STAGE_BEGIN + w.UNIT  # of the lines
        self.state[w.REGION] = self.stride
        self.state[w.STAGES], self.state[w.UNIT_BYTES], self.state[w.UNITS] = own, self.unit, self.units

    def close(self) -> None:
        """Let go of the others' stages."""
        self._stage.close()

    def free(self) -> None:
        """Free this rank's stage, which nobody may have open any more."""
        self._stage.free()


class Stage:
    """The stage of this rank, and those of the others on the node, opened.

    Attributes
    ----------
    nbytes : int
    addresses : list of int
        By number on the node.
    """

    def __init__(self, device: int, nbytes: int) -> None:
        self.nbytes, self._device = nbytes, device
        self.addresses: list[int] = []
        self._opened: list[int] = []
        with driver.current(device):
            self._own = memory.allocate(nbytes)
            self.handle = driver.IpcHandle()
            try:
                driver.call("cuIpcGetMemHandle", ctypes.byref(self.handle), self._own)
            except DeviceError:
                self.free()
                raise

    def open(self, handles: list[bytes], number: int) -> None:
        """Open the stages of all ranks of the node, of which this one is `number`."""
        with driver.current(self._device):
            for other, handle in enumerate(handles):
                address = self._own
                if other != number:
                    address = driver.get(
                        "cuIpcOpenMemHandle_v2",
                        driver.IpcHandle.from_buffer_copy(handle),
                        driver.LAZY_PEER_ACCESS,
                    )
                    self._opened.append(address)
                self.addresses.append(address)

    def close(self) -> None:
        """Let go of the others' stages."""
        opened, self._opened = self._opened, []
        memory.give_back(self._device, "cuIpcCloseMemHandle", *opened)

    def free(self) -> None:
        """Free this rank's stage."""
        own, self._own = self._own, 0
        if own:
            memory.give_back(self._device, "cuMemFree_v2", own)


def share(
    node: MPI.Intracomm, nodes: MPI.Intracomm, device: int, nbytes: int, wait: str, cores: set[int]
) -> tuple[DeviceWindow | None, str]:
    """Make stages on devices and open them. Collective over all nodes.

    Parameters
    ----------
    node, nodes : MPI.Intracomm
        The ranks of the node, and those of all nodes.
    device : int
        This rank's.
    nbytes : int
        Of each stage, a multiple of `window.RING`, the same on all ranks.
    wait, cores
        As for :func:`mpicoll.engine.window.allocate`.

    Returns
    -------
    window : DeviceWindow or None
        None on all ranks where it cannot be had on some.
    trouble : str
        Why not.
    """
    stage, trouble = None, ""
    try:
        stage = Stage(device, nbytes)
    except DeviceError as error:
        trouble = f"rank {nodes.rank}: {error}"
    handles = node.allgather(b"" if stage is None else bytes(stage.handle))
    if stage is not None and all(handles):
        try:
            stage.open(handles, node.rank)
        except DeviceError as error:
            trouble = f"rank {nodes.rank}: {error}"
    troubles = [text for text in nodes.allgather(trouble) if text]
    lines = None if troubles else shared.allocate(node, nodes, w.STAGE_BEGIN, w.UNIT, 1, 1)
    if stage is not None and lines is not None:
        available = set().union(*node.allgather(cores))
        return DeviceWindow(node, lines[0], w.chosen(wait, node.size, len(available)), stage), ""
    trouble = troubles[0] if troubles else "there is no shared memory for the counters"
    if stage is not None:
        stage.close()
    node.Barrier()
    if stage is not None:
        stage.free()
    if nodes.rank == 0:
        logger.info("no stages of %d bytes on devices: %s", nbytes, trouble)
    return None, trouble


def offsets(window: w.Window, numbers: Mapping[int, int]) -> dict[int, int]:
    """Give for each rank the bytes from this rank's stage to that one's."""
    if not isinstance(window, DeviceWindow):  # of this rank alone
        return dict.fromkeys(numbers, 0)
    return {rank: window.stages[number] for rank, number in numbers.items()}
