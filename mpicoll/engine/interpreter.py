"""The compiled interpreter: one function that runs any program, compiled once for all of them."""

from numba.extending import register_jitable

from .blocks import execute_blocks
from .instructions import address, combine, copy, post
from .intrinsics import call_recv, call_send, call_sendrecv, call_wait, load, load_int, store
from .program import (
    BLOCKS,
    BYTE,
    COLUMNS,
    COMBINE,
    COMM,
    FUNCTIONS,
    HANDLE_BYTES,
    ISEND,
    KERNEL,
    LENGTH,
    NDARRAY,
    NEXT,
    PROGRAM,
    RECEIVED,
    RECV,
    RECVBUF,
    REQUESTS,
    SCRATCH,
    SEND,
    SENDBUF,
    SENDRECV,
    SENT,
    STATUS,
    STRAND,
    TAG,
    WAIT,
    WORKSPACE,
)

# What `run` is given: two addresses; or an array to send, an array to receive into, or both
ADDRESSES, SEND_ARRAY, RECV_ARRAY, BOTH_ARRAYS = 0, 1, 2, 3
DECLINED = -1  # its answer to arrays that the frame was not made for

# numpy.ndarray in memory (PyArrayObject_fields, part of NumPy's C ABI), in words after the header
# whose second word is the type; and two of its flags.
HEADER = object.__basicsize__ // 8
TYPE, DATA, NDIM, SHAPE, DTYPE, FLAGS = HEADER - 1, HEADER, HEADER + 1, HEADER + 2, HEADER + 5, HEADER + 6
CONTIGUOUS, WRITEABLE = 0x1 | 0x2, 0x400


@register_jitable
def execute(frame, sendbuf, recvbuf):
    """Run a program.

    Parameters
    ----------
    frame : int
        Address of the frame, see :mod:`mpicoll.engine.program`.
    sendbuf, recvbuf : int
        Addresses of the vectors.

    Returns
    -------
    int
        0, or the code of the MPI error that ended it; of one over shared memory, what `execute_blocks` says.
    """
    if load(frame, BLOCKS):
        return execute_blocks(frame, sendbuf, recvbuf)
    comm, byte, tag = load(frame, COMM), load(frame, BYTE), load(frame, TAG)
    status, kernel, requests = load(frame, STATUS) + 8, load(frame, KERNEL), load(frame, REQUESTS)
    bases = frame + 8 * STRAND
    store(bases, SENDBUF, sendbuf)
    store(bases, RECVBUF, recvbuf)
    store(bases, SCRATCH, load(load(frame, WORKSPACE), 0))
    row = load(frame, PROGRAM)
    stop = row + load(frame, LENGTH) * 8 * COLUMNS
    code = 0
    while row < stop:
        instruction = load(row, 0)
        if instruction == SENDRECV:
            code = call_sendrecv(
                load(frame, FUNCTIONS + SENDRECV),
                address(bases, row, 1), load(row, 3), byte, load(row, 4), tag,
                address(bases, row, 5), load(row, 7), byte, load(row, 8), tag,
                comm, status,
            )  # fmt: skip
        elif instruction == COMBINE:
            combine(kernel, bases, row)
        elif instruction == WAIT:
            request = requests + load(row, 1) * load(frame, HANDLE_BYTES)
            code = call_wait(load(frame, FUNCTIONS + WAIT), request, status)
        elif instruction <= ISEND:
            code = post(frame, bases, row, requests, tag)
        elif instruction == SEND:
            function = load(frame, FUNCTIONS + SEND)
            code = call_send(function, address(bases, row, 1), load(row, 3), byte, load(row, 4), tag, comm)
        elif instruction == RECV:
            code = call_recv(
                load(frame, FUNCTIONS + RECV),
                address(bases, row, 1), load(row, 3), byte, load(row, 4), tag, comm, status,
            )  # fmt: skip
        else:
            copy(bases, row)
        if code != 0:
            return code
        row += 8 * COLUMNS
    return 0


@register_jitable
def _fits(frame, expected, thing):
    """Whether the object is a contiguous array of the expected dtype and count."""
    if load(thing, TYPE) != load(frame, NDARRAY) or load(thing, DTYPE) != load(frame, expected + 2):
        return False
    if load_int(thing + 8 * FLAGS) & CONTIGUOUS == 0:
        return False
    count, shape = 1, load(thing, SHAPE)
    for axis in range(load_int(thing + 8 * NDIM)):
        count *= load(shape, axis)
    return count == load(frame, expected)


@register_jitable
def _accepted(frame, send, recv, kind):
    """Run a program on arrays, if they are what the frame was made for."""
    sendbuf, recvbuf = 0, 0
    if kind & RECV_ARRAY:
        if not _fits(frame, RECEIVED, recv) or load_int(recv + 8 * FLAGS) & WRITEABLE == 0:
            return DECLINED
        recvbuf = load(recv, DATA)
        sendbuf = recvbuf
    if kind & SEND_ARRAY:
        if not _fits(frame, SENT, send):
            return DECLINED
        sendbuf = load(send, DATA)
        if kind & RECV_ARRAY:
            sent = load(frame, SENT) * load(frame, SENT + 1)
            received = load(frame, RECEIVED) * load(frame, RECEIVED + 1)
            if sendbuf < recvbuf + received and recvbuf < sendbuf + sent:
                return DECLINED
    return execute(frame, sendbuf, recvbuf)


def run(frame, send, recv, kind):
    """Run a program on two addresses, or on NumPy arrays given by the addresses of the Python objects.

    Reading arrays here costs nanoseconds where asking them in Python costs microseconds.

    Parameters
    ----------
    frame : int
        Address of the frame. One that does not accept the arrays leads to another, or to none.
    send, recv : int
        Two addresses, or objects, as `kind` says.
    kind : int
        ADDRESSES; BOTH_ARRAYS; RECV_ARRAY, where `send` is ignored and what the rank contributes is in
        the receive buffer; or SEND_ARRAY, where it receives nothing.

    Returns
    -------
    int
        As :func:`execute`; or DECLINED, with nothing done, if an object is not a contiguous array of
        the frame's dtype and count, or the second not writable, or the two overlap.
    """
    if kind == ADDRESSES:
        return execute(frame, send, recv)
    while frame != 0:
        code = _accepted(frame, send, recv, kind)
        if code != DECLINED:
            return code
        frame = load(frame, NEXT)
    return DECLINED
