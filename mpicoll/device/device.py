"""What the collectives of one communicator have on this rank's device."""

import ctypes
import functools
from typing import TYPE_CHECKING

import numpy as np

from ..engine import program as p
from ..engine.compiled_on_device import Resources
from ..errors import DeviceError
from ..kernels import cuda
from ..launch import cores
from ..selection import AUTO, WAIT
from . import aware, driver, stage
from . import functions as kernels
from .memory import Streams, Workspace, free_bytes

if TYPE_CHECKING:
    from ..context import Context

STRANDS = 8  # at most, in which a vector's blocks are under way
LEAST, MOST = 1 << 22, 1 << 30  # bytes of a stage; they come in powers of four
SHARE = 8  # of the device's free memory a stage takes one part in so many at most
BLOCKS = 1 << 3  # blocks of threads for each multiprocessor, as many as it can run at once


class Device:
    """Streams, scratch, stages and pinned memory of one communicator on this rank's device.

    Attributes
    ----------
    number : int
    trouble : str
        Why the ranks of a node could not open each other's memory; "" where they could, or were not asked.
    broken : str
        How a collective has failed halfway; "" if none has.
    workspace, pinned : Workspace
        Scratch for one plan at a time, on the device and on the host.
    copied : int
        Bytes that went from the device to the host, or back, in all.
    """

    def __init__(self, context: "Context", number: int | None) -> None:
        self._context, self._assumed = context, number is None
        self._windows: dict[int, stage.DeviceWindow | None] = {}  # by what was wanted, see `window`
        self.trouble = self.broken = ""
        self.copied = 0
        self._take(driver.present() if number is None else number)

    def _take(self, number: int) -> None:
        """Make what there is from the beginning."""
        self.number = number
        self.workspace, self.pinned = Workspace(number), Workspace(number, host=True)
        self._streams = Streams(number, STRANDS + 1)
        self.streams, self.stream = self._streams.handles[:STRANDS], int(self._streams.handles[STRANDS])

    def check(self, number: int | None) -> None:
        """See that an array is on this device, and that nothing is broken.

        Raises
        ------
        ValueError
            If it is on another.
        DeviceError
            If a collective has failed halfway.
        """
        if self.broken:
            raise DeviceError(
                f"a collective of this communicator has failed before ({self.broken}), and the ranks may be "
                "out of step: free it"
            )
        if number in (None, self.number):
            return
        if self._assumed and not self._windows:  # there were arrays without elements only
            self.workspace.release()
            self.pinned.release()
            self._take(number)
        else:
            raise ValueError(
                f"an array on device {number} given, but this communicator's collectives are on device "
                f"{self.number}: expected that, or a duplicate of the communicator"
            )
        self._assumed = False

    @functools.cached_property
    def awareness(self) -> aware.Awareness:
        """What MPI can do with device memory; collective the first time, which may take a while."""
        return aware.agreed(self._context.comm)

    @functools.cached_property
    def without_kernels(self) -> str:
        """Why kernels cannot be made on some rank; "" where they can. Collective the first time."""
        trouble = ""
        try:
            kernels.combine(self.number, "SUM", np.dtype(np.float32), 2)
        except Exception as error:  # whatever it is, the others wait for a word
            trouble = str(error) or repr(error)
        return next((text for text in self._context.comm.allgather(trouble) if text), "")

    # -- memory ------------------------------------------------------------------------------

    def window(self, nbytes: int) -> stage.DeviceWindow | None:
        """Give a window with stages for vectors of so many bytes; collective the first time for each length.

        The answer for a length never changes, as some ranks may have kept a plan and others not. It is None
        where the ranks of a node cannot open each other's memory: `trouble` says why.
        """
        wanted = LEAST
        while wanted < min(4 * nbytes, MOST):
            wanted *= 4
        if wanted not in self._windows:
            self._windows[wanted] = self._shared(wanted)
        return self._windows[wanted]

    def _shared(self, nbytes: int) -> stage.DeviceWindow | None:
        """Make a window with stages of so many bytes, or give a shorter one where there is no room."""
        context = self._context
        try:
            with driver.current(self.number):
                room = free_bytes() // SHARE
        except DeviceError:
            room = 0
        room = min(context.comm.allgather(room))
        while nbytes > max(room, LEAST):
            nbytes //= 4
        for window in self._windows.values():
            if window is not None and window.unit * window.units == nbytes:
                return window
        wait = context.environment.get(WAIT, AUTO)
        node = context.node()
        window, self.trouble = stage.share(node, context.comm, self.number, nbytes, wait, cores())
        node.Free()
        return window

    def close(self) -> None:
        """Give everything back. Collective if stages were opened."""
        windows = {id(window): window for window in self._windows.values() if window is not None}.values()
        for window in windows:
            window.close()
        if windows:
            self._context.comm.Barrier()  # nobody has them open any more
        for window in windows:
            window.free()
        self._windows.clear()
        self.workspace.release()
        self.pinned.release()
        self._streams.close()

    # -- work --------------------------------------------------------------------------------

    def resources(self, op: object, dtype: np.dtype | None, operands: set[int]) -> Resources:
        """Give what a program needs that combines so many operands at once."""
        table, lanes = np.zeros(p.OPERANDS + 1, np.int64), 1
        for number in operands:
            assert dtype is not None
            table[number], lanes = kernels.combine(self.number, op, dtype, number)  # type: ignore[arg-type]
        grid = BLOCKS * driver.processors(self.number)
        return Resources(self.number, self.streams, table, lanes, cuda.THREADS, grid, self.pinned.cell)

    def divide(self, address: int, count: int, dtype: np.dtype, size: int) -> None:
        """Divide elements by the number of ranks, and wait for it."""
        if not count:
            return
        kernel, lanes = kernels.divide(self.number, dtype)
        values = (ctypes.c_int64 * 3)(address, count, size)
        begin = ctypes.addressof(values)
        pointers = (ctypes.c_uint64 * 3)(begin, begin + 8, begin + 16)
        most = BLOCKS * driver.processors(self.number)
        blocks = min(max(-(-count // (lanes * cuda.THREADS)), 1), most)
        with driver.current(self.number):
            driver.call(
                "cuLaunchKernel",
                kernel, blocks, 1, 1, cuda.THREADS, 1, 1, 0, self.stream, pointers, None,
            )  # fmt: skip
            driver.call("cuStreamSynchronize", self.stream)
