"""The C functions and handles of the MPI library that mpi4py uses.

``ctypes.CDLL(MPI.__file__)`` opens mpi4py's own extension module, and through it every symbol of the
very library that it was bound to: no library name, no search, no second MPI in the process.

Compiled code calls the functions by address with 64-bit integers (:mod:`mpicoll.engine.interpreter`),
so the same compiled code serves every implementation. A handle is an ``int`` in the MPICH ABI (MPICH, Intel
MPI) and a pointer in Open MPI's and in the standard ABI. An ``int`` handle passed as a 64-bit integer
is read from the low half of its register or stack slot by the calling conventions of x86-64 (where
this is tested), and of 64-bit Arm and POWER on Linux.
"""

import ctypes
import functools

from mpi4py import MPI

HANDLE_BYTES: int = MPI._sizeof(MPI.Request)
STATUS_BYTES: int = max(64, MPI._sizeof(MPI.Status))

FUNCTIONS = (
    "MPI_Irecv",
    "MPI_Isend",
    "MPI_Wait",
    "MPI_Recv",
    "MPI_Send",
    "MPI_Sendrecv",
    "MPI_Test",
    "MPI_Iprobe",
)


@functools.cache
def address(symbol: str) -> int:
    """Address of an MPI function.

    Raises
    ------
    AttributeError, OSError
        If it cannot be found.
    """
    value = ctypes.cast(getattr(ctypes.CDLL(MPI.__file__), symbol), ctypes.c_void_p).value
    assert value is not None
    return value


def handle(thing: MPI.Comm | MPI.Datatype | MPI.Request) -> int:
    """The C handle as a signed 64-bit integer; MPICH's are negative or positive 32-bit ones."""
    bits = 8 * MPI._sizeof(thing)
    value: int = MPI._handleof(thing) & ((1 << bits) - 1)
    return value - (1 << bits) if value >> (bits - 1) else value
