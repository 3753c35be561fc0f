"""The reference engine: a schedule through mpi4py, step by step as the definition says.

Short, portable, and the oracle of the compiled engine. It takes every op, on any
datatype without holes.
"""

import ctypes
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from ..kernels import Kernel
from ..schedule.collectives import COLLECTIVES
from ..schedule.moves import Move, slots
from ..schedule.schedule import Schedule
from .layout import LAYOUTS, Place, Shape
from .program import RECVBUF, SENDBUF

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]  # left and right operand, as bytes


def execute(
    schedule: Schedule,
    shape: Shape,
    comm: MPI.Intracomm,
    combine: Combine,
    sendbuf: int,
    recvbuf: int,
    tag: int = 0,
) -> None:
    """Run a schedule.

    All values are read from memory first and written to it last; in between they are arrays of their own.

    Parameters
    ----------
    schedule : Schedule
    shape : Shape
        The rank's own, as for the compiled engine.
    comm : MPI.Intracomm
        Private to the library.
    combine : callable
        Gives the combined value of two operands; all are arrays of bytes.
    sendbuf, recvbuf : int
        Addresses; may be the same.
    tag : int, optional
        Of the messages.
    """
    layout, rank = LAYOUTS[schedule.collective](shape), shape.rank
    lengths = [stop - start for start, stop in pairwise(layout.edges)]
    bases = {SENDBUF: sendbuf, RECVBUF: recvbuf}

    def memory(place: Place, nbytes: int) -> np.ndarray:
        address = bases[place.base] + place.offset
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    value = [np.empty(nbytes, np.uint8) for nbytes in lengths] * (1 + schedule.vectors)
    for place in schedule.places(rank):
        if COLLECTIVES[schedule.collective].before(place) is not None:
            value[place.chunk] = memory(layout.begin(place.chunk), lengths[place.chunk]).copy()
    for step in schedule.steps(rank):
        requests: list[MPI.Request] = []
        arriving: list[tuple[Move, int, np.ndarray]] = []
        for move in step:
            if move.kind == "send":
                for slot in slots(move.chunks):
                    requests.append(comm.Isend([value[slot], MPI.BYTE], move.peer, tag))
            elif move.kind in ("recv", "reduce"):
                for slot in slots(move.chunks):
                    incoming = np.empty_like(value[slot])
                    arriving.append((move, slot, incoming))
                    requests.append(comm.Irecv([incoming, MPI.BYTE], move.peer, tag))
        MPI.Request.Waitall(requests)
        for move, slot, incoming in arriving:
            if move.kind == "recv":
                value[slot] = incoming
            elif move.peer < rank:
                value[slot] = combine(incoming, value[slot])
            else:
                value[slot] = combine(value[slot], incoming)
        for move in step:
            if move.kind in ("copy", "combine"):
                for slot, source in zip(slots(move.chunks), slots(move.source), strict=True):
                    value[slot] = (
                        value[source] if move.kind == "copy" else combine(value[slot], value[source])
                    )
    for chunk, nbytes in enumerate(lengths):
        if (end := layout.end(chunk)) is not None:
            memory(end, nbytes)[:] = value[chunk]


def by_kernel(kernel: Kernel) -> Combine:
    """Combine with one of our kernels."""

    def combine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = np.empty_like(left)
        kernel(*(memory.view(kernel.dtype) for memory in (result, left, right)))
        return result

    return combine


def by_mpi(op: MPI.Op, datatype: MPI.Datatype, itemsize: int) -> Combine:
    """Combine with MPI's own arithmetic, for any op on any datatype that MPI knows."""

    def combine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = right.copy()
        count = len(left) // itemsize
        op.Reduce_local([left, count, datatype], [result, count, datatype])
        return result

    return combine
