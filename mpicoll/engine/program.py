"""The instructions that a schedule is lowered to, and the frame that a program runs in.

A program is an int64 array with one instruction a row. Memory is named by one of the bases (the
send buffer, the receive buffer, scratch, and of shared memory a line and the stage) and an offset in
bytes, so a program serves every call of its count and dtype.
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
PUBLISH = 8  # address of the own counter, step
AWAIT = 9  # address of a peer's counter, step, the peer's number on the node
STREAM = 10  # as COPY, past the caches
COMBINE_STREAM = 11  # as COMBINE, and the bytes in an element; the result goes past the caches
OPERAND = 12  # address; after COMBINE, of one more operand; whether it goes to the left of what is combined
SYNC = 13  # wait for the device

COLUMNS = 9

# Bases. Those of shared memory are of the first rank of the node; the offset says whose region it is. On a
# device the stage is the rank's own, and PINNED is host memory for messages that cannot be in the device's.
SENDBUF, RECVBUF, SCRATCH, LINE, STAGE, PINNED = range(6)
BASES = 6

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
STATUS = 9  # address of a flag, and 8 bytes on of a status
FUNCTIONS = 10  # addresses of the MPI functions, in the order of libmpi.FUNCTIONS
TEST = 6  # the functions there that are no instructions
PROBE = 7
SENT = 18  # the send buffer that the fast entry accepts: elements, bytes in one, address of the NumPy dtype
RECEIVED = 21  # and the receive buffer
NDARRAY = 24  # address of the type numpy.ndarray
NEXT = 25  # address of the frame that is tried where this one does not accept the arrays; 0 for none
STRAND = 26  # the strand of a program that is not cut into blocks
# Of a program over shared memory
WINDOW = STRAND + BASES  # address of the window's state, see mpicoll.engine.window; 0 if there is none
TABLE = WINDOW + 1  # address of the table of blocks
BLOCKS = WINDOW + 2  # their number
STRANDS = WINDOW + 3  # how many may be under way at once
STRAND_TABLE = WINDOW + 4  # address of their strands
STRAND_SCRATCH = WINDOW + 5  # bytes of scratch for each
STRAND_REQUESTS = WINDOW + 6  # requests of each
PIECE = WINDOW + 7  # address of memory for a piece of a result on its way past the caches
# Of a program on a device
DEVICE_FUNCTIONS = WINDOW + 8  # addresses of the driver's functions, in the order of DRIVER
KERNELS = WINDOW + 11  # address of the kernels, as functions of the driver's, by the number of operands
LANES = WINDOW + 12  # elements for a thread
THREADS = WINDOW + 13  # in a block of threads
GRID = WINDOW + 14  # blocks of threads at most
ARGUMENTS = WINDOW + 15  # address of the arguments of a kernel, after addresses of each of them
STREAMS = WINDOW + 16  # address of the CUDA stream of each strand
PINNED_WORKSPACE = WINDOW + 17  # as WORKSPACE, of host memory
FRAME_LENGTH = WINDOW + 18

DRIVER = ("cuMemcpyAsync", "cuStreamQuery", "cuLaunchKernel")
OPERANDS = 8  # of a kernel at most
FIRST_OPERAND = 3  # argument of a kernel: before it the result, the elements, a bit for each that goes left

PIECE_BYTES = 1 << 12
TURN_BYTES = 1 << 10  # of one instruction before it is another's turn

# A row of the table of blocks
BLOCK_PROGRAM = 0  # address of the first instruction
BLOCK_LENGTH = 1  # number of instructions
BLOCK_SHIFT = 2  # bytes that the block is into each buffer
BLOCK_UNITS = 3  # units of the stage that it uses
BLOCK_WORDS = 4

# A strand: a block under way. Its first words are the addresses of the bases.
ROW = BASES  # address of the next instruction
STOP = BASES + 1  # and of what follows the last one
COUNTER = BASES + 2  # what the counters say at the block's step 0
STRAND_REQUEST = BASES + 3  # address of its request handles
STRAND_TAG = BASES + 4
START = BASES + 5  # where in the endless stage it begins, in units
PEER = BASES + 6  # number on the node of the rank that it waits for
CUDA_STREAM = BASES + 7
PENDING = BASES + 8  # whether the device has been given work since it was last waited for
STRAND_WORDS = BASES + 9

TAGS = 16  # that blocks of a vector have in turn

# A line of the window
LINE_BYTES = 128  # two cache lines: processors fetch them in pairs
PAYLOAD = 8  # bytes into the line, after the counter
PAYLOAD_BYTES = 120


class Program(NamedTuple):
    """One rank's part of a schedule, lowered.

    Attributes
    ----------
    rows : ndarray of int64, shape (n, COLUMNS)
    scratch : int
        Bytes of scratch that it needs.
    requests : int
        Number of requests in flight at most.
    staged : int
        Bytes of stage that the rank of its node that uses most needs.
    """

    rows: np.ndarray
    scratch: int
    requests: int
    staged: int = 0
