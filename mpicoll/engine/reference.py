"""The reference engine: a schedule through mpi4py, step by step as the definition says.

Short, portable, and the oracle of the compiled engine. It takes every op, on any
datatype without holes.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from ..kernels import Kernel
from ..schedule.moves import Move, slots
from ..schedule.schedule import Schedule, bounds

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]  # left and right operand, as bytes


def execute(
    schedule: Schedule,
    comm: MPI.Intracomm,
    combine: Combine,
    sendbuf: np.ndarray,
    recvbuf: np.ndarray,
    itemsize: int,
) -> None:
    """Run a schedule.

    Parameters
    ----------
    schedule : Schedule
    comm : MPI.Intracomm
        Private to the library.
    combine : callable
        Gives the combined value of two operands; all are arrays of bytes.
    sendbuf, recvbuf : ndarray of uint8
        The vectors; may be the same memory.
    itemsize : int
        Bytes in an element.
    """
    edges = [edge * itemsize for edge in bounds(len(sendbuf) // itemsize, schedule.chunks)]
    value = [sendbuf[a:b].copy() for a, b in pairwise(edges)] * (1 + schedule.vectors)
    rank = comm.Get_rank()
    for step in schedule.steps(rank):
        requests: list[MPI.Request] = []
        arriving: list[tuple[Move, int, np.ndarray]] = []
        for move in step:
            if move.kind == "send":
                for slot in slots(move.chunks):
                    requests.append(comm.Isend([value[slot], MPI.BYTE], move.peer))
            elif move.kind in ("recv", "reduce"):
                for slot in slots(move.chunks):
                    incoming = np.empty_like(value[slot])
                    arriving.append((move, slot, incoming))
                    requests.append(comm.Irecv([incoming, MPI.BYTE], move.peer))
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
    for chunk in range(schedule.chunks):
        recvbuf[edges[chunk] : edges[chunk + 1]] = value[chunk]


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
