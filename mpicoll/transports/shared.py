"""Memory that the ranks of a node share.

It is a file in ``/dev/shm`` that all of them map and whose name is then removed, so that nothing is left of
it however they end after that. MPI's own shared windows would do, but whether something is left of them where
a job is killed depends on the library, as does what happens where there is no room.
"""

import contextlib
import logging
import mmap
import os
import select
import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

logger = logging.getLogger("mpicoll")

FOLDER = Path("/dev/shm")
SHARE = 4  # of the free space there one communicator takes one part in so many


def allocate(
    node: MPI.Intracomm, nodes: MPI.Intracomm, fixed: int, unit: int, least: int, most: int
) -> tuple[mmap.mmap, int] | None:
    """Allocate memory of a node, zeros, in as many parts as it has ranks. Collective over all nodes.

    Parameters
    ----------
    node : MPI.Intracomm
        The ranks of the node.
    nodes : MPI.Intracomm
        Those of all nodes.
    fixed, unit : int
        Bytes in a part: `fixed`, and a power of two times `unit`.
    least, most : int
        How many units, powers of two; fewer than `most` where there is not room for more.

    Returns
    -------
    memory : mmap
    units : int
        In each part, the same on all nodes.

    None on all ranks where a node has no room for the least, or its ranks do not see the same memory.
    """
    room = np.array([_room(node.size, fixed, unit, most)])
    nodes.Allreduce(MPI.IN_PLACE, room, op=MPI.MIN)
    units = int(room[0])
    if units < most and nodes.rank == 0:
        logger.warning(
            "%s: room for %d KiB a rank, expected %d", FOLDER, units * unit >> 10, most * unit >> 10
        )
    if units < least:
        return None
    part = fixed + units * unit
    memory, trouble = None, ""
    path = node.bcast(_create(node.size * part) if node.rank == 0 else "")
    try:
        with open(path, "r+b") as file:
            # each rank its own part, near it; memory that is not there would show as a signal when touched
            os.posix_fallocate(file.fileno(), node.rank * part, part)
            memory = mmap.mmap(file.fileno(), node.size * part)
    except (OSError, ValueError) as error:
        trouble = f"{path or FOLDER} cannot be used on rank {nodes.rank}: {error}"
    troubles = [text for text in nodes.allgather(trouble) if text]
    if node.rank == 0 and path:
        os.unlink(path)
    if troubles and nodes.rank == 0:
        logger.warning("messages instead of shared memory: %s", troubles[0])
    return None if troubles or memory is None else (memory, units)


def give_back(memory: mmap.mmap, begin: int, nbytes: int) -> None:
    """Give memory back that will not be used, in whole pages; it stays mapped."""
    if nbytes and hasattr(mmap, "MADV_REMOVE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_REMOVE, begin, nbytes)


def _room(ranks: int, fixed: int, unit: int, most: int) -> int:
    """Give the number of units for each rank that there is room for."""
    try:
        status = os.statvfs(FOLDER)
    except OSError:
        return 0
    units = (status.f_bavail * status.f_frsize // SHARE // ranks - fixed) // unit
    return 0 if units < 1 else min(most, 1 << (units.bit_length() - 1))


def _create(nbytes: int) -> str:
    """Make a file of so many bytes; give its path, or nothing if that cannot be."""
    try:
        file, path = tempfile.mkstemp(prefix="mpicoll-", dir=FOLDER)
    except OSError:
        return ""
    try:
        os.truncate(file, nbytes)
    except OSError:
        os.unlink(path)
        return ""
    finally:
        os.close(file)
    return path


def processes(node: MPI.Intracomm) -> np.ndarray:
    """Give what ``poll`` needs to tell which ranks of a node have ended. Collective.

    Returns
    -------
    ndarray of int64, shape (ranks,)
        A ``struct pollfd`` for each: of no file for the caller, and where the process cannot be seen.
    """
    table = np.full((node.size, 2), (-1, select.POLLIN), np.int32)  # readable: it has ended
    if node.size > 1:
        namespace = Path("/proc/self/ns/pid")
        mine = os.getpid(), os.readlink(namespace) if namespace.exists() else ""
        for number, theirs in enumerate(node.allgather(mine)):
            if theirs != mine and theirs[1] == mine[1]:
                table[number, 0] = _file_of(theirs[0])
    return table.view(np.int64)[:, 0]


_FILES: dict[int, int] = {}  # of processes, for all communicators


def _file_of(process: int) -> int:
    """Open a file that tells when a process has ended; -1 if that cannot be."""
    if process in _FILES:
        look = select.poll()
        look.register(_FILES[process], select.POLLIN)
        if look.poll(0):  # another process had this number
            os.close(_FILES.pop(process))
    if process not in _FILES:
        try:
            _FILES[process] = os.pidfd_open(process)
        except (AttributeError, OSError):  # before Linux 5.3
            return -1
    return _FILES[process]
