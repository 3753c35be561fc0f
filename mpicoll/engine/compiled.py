"""The compiled engine: a lowered schedule, with everything that it needs to run."""

import ctypes
import functools
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from ..kernels.compiling import entry
from ..transports import libmpi
from . import interpreter
from . import program as p


class Compiled:
    """A program in a frame.

    Attributes
    ----------
    address : int
        Of the frame, for :func:`run`.
    """

    def __init__(
        self, program: p.Program, comm: MPI.Intracomm, tag: int, kernel: int, workspace: np.ndarray
    ) -> None:
        self._rows = program.rows
        self._requests = np.zeros(program.requests * libmpi.HANDLE_BYTES, np.uint8)
        self._status = np.zeros(libmpi.STATUS_BYTES, np.uint8)
        self._frame = frame = np.zeros(p.FRAME_LENGTH, np.int64)
        frame[p.PROGRAM], frame[p.LENGTH] = self._rows.ctypes.data, len(self._rows)
        frame[p.WORKSPACE], frame[p.KERNEL] = workspace.ctypes.data, kernel
        frame[p.COMM], frame[p.BYTE], frame[p.TAG] = libmpi.handle(comm), libmpi.handle(MPI.BYTE), tag
        frame[p.REQUESTS], frame[p.HANDLE_BYTES] = self._requests.ctypes.data, libmpi.HANDLE_BYTES
        frame[p.STATUS] = self._status.ctypes.data
        for i, function in enumerate(libmpi.FUNCTIONS):
            frame[p.FUNCTIONS + i] = libmpi.address(function)
        frame[p.NDARRAY] = id(np.ndarray)
        self._dtypes: list[np.dtype] = []
        self.address: int = frame.ctypes.data

    def accept(self, send: np.ndarray | None, recv: np.ndarray | None) -> None:
        """Let :func:`run` take arrays like these, whose dtypes stay alive: the frame has their addresses."""
        for slot, array in ((p.SENT, send), (p.RECEIVED, recv)):
            if array is not None:
                self._frame[slot : slot + 3] = array.size, array.itemsize, id(array.dtype)
        self._dtypes = [array.dtype for array in (send, recv) if array is not None]

    def __call__(self, sendbuf: int, recvbuf: int) -> None:
        """Run on two addresses; that of a buffer which the rank does not have is not looked at."""
        check(run()(self.address, sendbuf, recvbuf, interpreter.ADDRESSES))


@functools.cache
def available() -> bool:
    """Whether MPI's C functions can be found."""
    try:
        return all(libmpi.address(function) for function in libmpi.FUNCTIONS)
    except (AttributeError, OSError):
        return False


@functools.cache
def run() -> Callable[[int, int, int, int], int]:
    """Give the compiled :func:`mpicoll.engine.interpreter.run`."""
    return entry(interpreter.run, "int64(int64, int64, int64, int64)")


@functools.cache
def reads_objects() -> bool:
    """Whether compiled code finds arrays where it expects them inside Python objects.

    It does on CPython, whose ``id`` is an object's address, with NumPy's C ABI. A trial on a frame
    without instructions tells.
    """
    array = np.zeros((2, 3))
    fields = (ctypes.c_int64 * (interpreter.DATA + 1)).from_address(id(array))
    frame = np.zeros(p.FRAME_LENGTH, np.int64)
    frame[p.WORKSPACE] = frame.ctypes.data
    frame[p.RECEIVED : p.RECEIVED + 3] = array.size, array.itemsize, id(array.dtype)
    frame[p.NDARRAY] = id(np.ndarray)
    return (
        object.__basicsize__ % 8 == 0
        and fields[interpreter.DATA] == array.ctypes.data
        and run()(frame.ctypes.data, 0, id(array), interpreter.RECV_ARRAY) == 0
    )


def check(code: int) -> None:
    """Raise what an MPI error code stands for."""
    if code:
        raise MPI.Exception(code)
