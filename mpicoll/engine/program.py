"""The instructions that a schedule is lowered to, and the frame that a program runs in.

A program is an int64 array with one instruction a row. Memory is named by one of the bases (the
send buffer, the receive buffer, scratch) and an offset in bytes, so a program serves every call of
its count and dtype.
"""

from typing import NamedTuple

import numpy as np

# Instruction codes and their operands; an address is two operands, base and offset.
IRECV = 0  # address, nbytes, peer, request
ISEND = 1  # address, nbytes, peer, request
WAIT = 2  # request
RECV = 3  # address, nbytes, peer
SEND = 4  # address, nbytes, peer
SENDRECV = 5  # address, nbytes, peer (sent), address, nbytes, peer (received)
COMBINE = 6  # out address, left address, right address, elements
COPY = 7  # out address, source address, nbytes

COLUMNS = 9

# Bases
SENDBUF, RECVBUF, SCRATCH = 0, 1, 2

# Slots of the frame, the int64 array through which the interpreter finds everything else
PROGRAM = 0  # address of the first instruction
LENGTH = 1  # number of instructions
WORKSPACE = 2  # address of the word that holds the address of scratch (it moves when it grows)
KERNEL = 3  # address of the kernel
COMM = 4  # handle
BYTE = 5  # handle of MPI_BYTE
TAG = 6
REQUESTS = 7  # address of the request handles
HANDLE_BYTES = 8  # their width
STATUS = 9  # address of a status
FUNCTIONS = 10  # addresses of the MPI functions, in the order of libmpi.FUNCTIONS
SENT = 16  # the send buffer that the fast entry accepts: elements, bytes in one, address of the NumPy dtype
RECEIVED = 19  # and the receive buffer
NDARRAY = 22  # address of the type numpy.ndarray
FRAME_LENGTH = 23


class Program(NamedTuple):
    """One rank's part of a schedule, lowered.

    Attributes
    ----------
    rows : ndarray of int64, shape (n, COLUMNS)
    scratch : int
        Bytes of scratch that it needs.
    requests : int
        Number of requests in flight at most.
    """

    rows: np.ndarray
    scratch: int
    requests: int
