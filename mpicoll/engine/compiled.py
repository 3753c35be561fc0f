"""The compiled engine: a lowered schedule, with everything that it needs to run."""

import ctypes
import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from ..kernels.compiling import entry
from ..transports import libmpi
from . import interpreter
from . import program as p
from .window import RING, Window

STRANDS = 2  # blocks under way at once
STRANDS_OF_MESSAGES = 8  # and where messages to other nodes take their time
ALIGNMENT = 64  # bytes
CHAIN = 8  # frames that are tried


class Compiled:
    """A program in a frame; over shared memory, a program for each block of the vector.

    Parameters
    ----------
    programs : sequence of tuple of Program and int
        For each block its program, and how many bytes it is into the buffers.
    comm : MPI.Intracomm
    tag : int
        The tag of its messages; blocks take `TAGS` from this one on.
    kernel : int
        Address of the kernel, 0 if nothing is combined.
    workspace : ndarray of int64, shape (1,)
        Holds the address of scratch.
    fail : callable
        Raises what an answer of :func:`run` other than 0 means.
    window : Window, optional
        The node's, for blocks. Without, there is one program.
    one_by_one : bool
        Whether a block is done before the next one begins.

    Raises
    ------
    ValueError
        If a block stages more than there is room for.

    Attributes
    ----------
    address : int
        Of the frame, for :func:`run`.
    scratch : int
        Bytes of scratch that it needs.
    """

    def __init__(
        self,
        programs: Sequence[tuple[p.Program, int]],
        comm: MPI.Intracomm,
        tag: int,
        kernel: int,
        workspace: np.ndarray,
        fail: Callable[[int], NoReturn],
        window: Window | None = None,
        one_by_one: bool = False,
    ) -> None:
        first = programs[0][0]
        self._programs, self._fail = programs, fail
        self.blocks = len(programs)
        requests = max(program.requests for program, _ in programs)
        self.scratch = max(program.scratch for program, _ in programs)
        strands = 1
        if window is not None:
            strands = 1 if one_by_one else STRANDS_OF_MESSAGES if requests else STRANDS
            strands = min(strands, len(programs))
            self.scratch = -(-self.scratch // ALIGNMENT) * ALIGNMENT * strands
        self._requests = np.zeros(max(requests, 1) * strands * libmpi.HANDLE_BYTES, np.uint8)
        self._status = np.zeros(8 + libmpi.STATUS_BYTES, np.uint8)
        self._frame = frame = np.zeros(p.FRAME_LENGTH, np.int64)
        frame[p.PROGRAM], frame[p.LENGTH] = first.rows.ctypes.data, len(first.rows)
        frame[p.WORKSPACE], frame[p.KERNEL] = workspace.ctypes.data, kernel
        frame[p.COMM], frame[p.BYTE], frame[p.TAG] = libmpi.handle(comm), libmpi.handle(MPI.BYTE), tag
        frame[p.REQUESTS], frame[p.HANDLE_BYTES] = self._requests.ctypes.data, libmpi.HANDLE_BYTES
        frame[p.STATUS] = self._status.ctypes.data
        for i, function in enumerate(libmpi.FUNCTIONS):
            frame[p.FUNCTIONS + i] = libmpi.address(function)
        frame[p.NDARRAY] = id(np.ndarray)
        if window is not None:
            self._set_blocks(window, strands, max(requests, 1))
        self._dtypes: list[np.dtype] = []
        self.address: int = frame.ctypes.data

    def _set_blocks(self, window: Window, strands: int, requests: int) -> None:
        """Tell the frame of the window, the blocks, and what each strand has."""
        frame = self._frame
        self._window, self._table = window, np.zeros((len(self._programs), p.BLOCK_WORDS), np.int64)
        for row, (program, shift) in zip(self._table, self._programs, strict=True):
            units = max(1, -(-program.staged // window.unit))
            if units > min(window.units, RING):
                raise ValueError(
                    f"a block stages {program.staged} bytes, more than there is shared memory for"
                )
            row[:] = program.rows.ctypes.data, len(program.rows), shift, units
        self._strands = np.zeros((strands, p.STRAND_WORDS), np.int64)
        self._piece = np.zeros(p.PIECE_BYTES + ALIGNMENT, np.uint8)
        frame[p.WINDOW] = window.state.ctypes.data
        frame[p.TABLE], frame[p.BLOCKS] = self._table.ctypes.data, len(self._table)
        frame[p.STRANDS], frame[p.STRAND_TABLE] = strands, self._strands.ctypes.data
        frame[p.STRAND_SCRATCH], frame[p.STRAND_REQUESTS] = self.scratch // strands, requests
        frame[p.PIECE] = -(-self._piece.ctypes.data // ALIGNMENT) * ALIGNMENT

    def accept(self, send: np.ndarray | None, recv: np.ndarray | None) -> None:
        """Let :func:`run` take arrays like these, whose dtypes stay alive: the frame has their addresses."""
        for slot, array in ((p.SENT, send), (p.RECEIVED, recv)):
            if array is not None:
                self._frame[slot : slot + 3] = array.size, array.itemsize, id(array.dtype)
        self._dtypes = [array.dtype for array in (send, recv) if array is not None]

    def __call__(self, sendbuf: int, recvbuf: int) -> None:
        """Run on two addresses; that of a buffer which the rank does not have is not looked at."""
        if code := run()(self.address, sendbuf, recvbuf, interpreter.ADDRESSES):
            self._fail(code)


class Chain:
    """Frames that are tried one after the other, the last one that was added first.

    Attributes
    ----------
    address : int
        Of a frame that accepts nothing and leads to them.
    """

    def __init__(self) -> None:
        self._anchor = np.zeros(p.FRAME_LENGTH, np.int64)
        self._frames: list[int] = []
        self.address: int = self._anchor.ctypes.data

    def add(self, frame: int) -> None:
        """Add a frame, and forget the first one where there are too many."""
        self._link([frame, *(other for other in self._frames if other != frame)][:CHAIN])

    def drop(self, frame: int) -> None:
        """Forget a frame, before it goes."""
        self._link([other for other in self._frames if other != frame])

    def clear(self) -> None:
        """Forget all frames."""
        self._link([])

    def _link(self, frames: list[int]) -> None:
        """Let each frame lead to the next, and those that are no longer there to none."""
        following = dict.fromkeys(self._frames, 0) | dict(pairwise([*frames, 0]))
        for frame, other in following.items():
            ctypes.c_int64.from_address(frame + 8 * p.NEXT).value = other
        self._frames = frames
        self._anchor[p.NEXT] = 0  # until it is shown again

    def show(self, visible: bool) -> None:
        """Lead to the frames, or to none."""
        self._anchor[p.NEXT] = self._frames[0] if visible and self._frames else 0


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
