"""The compiled engine on a device: a lowered schedule, with everything that it needs to run."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI

from ..device import driver
from ..kernels.compiling import entry
from . import device_blocks
from . import program as p
from .compiled import Compiled
from .window import Window


class Resources(NamedTuple):
    """What programs on a device have in common.

    Attributes
    ----------
    device : int
    streams : ndarray of int64
        A CUDA stream for each strand.
    kernels : ndarray of int64, shape (OPERANDS + 1,)
        The kernel for each number of operands, 0 where it is not needed.
    lanes, threads, grid : int
        Elements for a thread, threads in a block of them, and blocks at most.
    pinned : ndarray of int64, shape (1,)
        Holds the address of host memory for messages.
    """

    device: int
    streams: np.ndarray
    kernels: np.ndarray
    lanes: int
    threads: int
    grid: int
    pinned: np.ndarray


class CompiledOnDevice(Compiled):
    """A program on a device in a frame.

    Parameters
    ----------
    programs, comm, tag, workspace, fail, window, one_by_one
        As for :class:`~mpicoll.engine.compiled.Compiled`; `workspace` holds the address of device memory.
    resources : Resources
    """

    def __init__(
        self,
        programs: Sequence[tuple[p.Program, int]],
        comm: MPI.Intracomm,
        tag: int,
        workspace: np.ndarray,
        fail: Callable[[int], NoReturn],
        window: Window,
        one_by_one: bool,
        resources: Resources,
    ) -> None:
        super().__init__(programs, comm, tag, 0, workspace, fail, window, one_by_one)
        self._resources = resources
        frame, count = self._frame, p.FIRST_OPERAND + p.OPERANDS
        self._arguments = np.zeros(2 * count, np.int64)
        begin = self._arguments.ctypes.data
        self._arguments[:count] = begin + 8 * np.arange(count, 2 * count)
        for i, name in enumerate(p.DRIVER):
            frame[p.DEVICE_FUNCTIONS + i] = driver.address(name)
        frame[p.KERNELS], frame[p.ARGUMENTS] = resources.kernels.ctypes.data, begin + 8 * count
        frame[p.LANES], frame[p.THREADS], frame[p.GRID] = resources.lanes, resources.threads, resources.grid
        frame[p.STREAMS] = resources.streams.ctypes.data
        frame[p.PINNED_WORKSPACE] = resources.pinned.ctypes.data

    def __call__(self, sendbuf: int, recvbuf: int) -> None:
        """Run on two addresses of device memory."""
        with driver.current(self._resources.device):
            code = run()(self.address, sendbuf, recvbuf)
        if code:
            self._fail(code)


def operands(programs: Sequence[tuple[p.Program, int]]) -> set[int]:
    """Give the numbers of operands that programs combine at once."""
    found = set()
    for rows in {id(program.rows): program.rows for program, _ in programs}.values():
        codes = rows[:, 0].tolist()
        for i, code in enumerate(codes):
            if code == p.COMBINE:
                more = next((j for j, other in enumerate(codes[i + 1 :]) if other != p.OPERAND), None)
                found.add(2 + (len(codes) - i - 1 if more is None else more))
    return found


@cache
def run() -> Callable[[int, int, int], int]:
    """Give the compiled :func:`mpicoll.engine.device_blocks.run`."""
    return entry(device_blocks.run, "int64(int64, int64, int64)")
