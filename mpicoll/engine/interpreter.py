"""The compiled interpreter: one function that runs any program, compiled once for all of them."""

from numba.extending import register_jitable

from .intrinsics import (
    call_kernel,
    call_recv,
    call_send,
    call_sendrecv,
    call_wait,
    copy_bytes,
    load,
    load_int,
)
from .program import (
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
    PROGRAM,
    RECEIVED,
    RECV,
    REQUESTS,
    SCRATCH,
    SEND,
    SENDBUF,
    SENDRECV,
    SENT,
    STATUS,
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
def _address(row, column, sendbuf, recvbuf, scratch):
    base = load(row, column)
    start = sendbuf if base == SENDBUF else scratch if base == SCRATCH else recvbuf
    return start + load(row, column + 1)


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
        0, or the code of the MPI error that ended it.
    """
    comm, byte, tag = load(frame, COMM), load(frame, BYTE), load(frame, TAG)
    status, kernel = load(frame, STATUS), load(frame, KERNEL)
    requests, width = load(frame, REQUESTS), load(frame, HANDLE_BYTES)
    scratch = load(load(frame, WORKSPACE), 0)
    row = load(frame, PROGRAM)
    stop = row + load(frame, LENGTH) * 8 * COLUMNS
    code = 0
    while row < stop:
        instruction = load(row, 0)
        first = _address(row, 1, sendbuf, recvbuf, scratch)
        if instruction == SENDRECV:
            code = call_sendrecv(
                load(frame, FUNCTIONS + SENDRECV),
                first, load(row, 3), byte, load(row, 4), tag,
                _address(row, 5, sendbuf, recvbuf, scratch), load(row, 7), byte, load(row, 8), tag,
                comm, status,
            )  # fmt: skip
        elif instruction == COMBINE:
            left = _address(row, 3, sendbuf, recvbuf, scratch)
            right = _address(row, 5, sendbuf, recvbuf, scratch)
            call_kernel(kernel, first, left, right, load(row, 7))
        elif instruction == WAIT:
            code = call_wait(load(frame, FUNCTIONS + WAIT), requests + load(row, 1) * width, status)
        elif instruction <= ISEND:
            request = requests + load(row, 5) * width
            function = load(frame, FUNCTIONS + instruction)
            code = call_recv(function, first, load(row, 3), byte, load(row, 4), tag, comm, request)
        elif instruction == SEND:
            code = call_send(
                load(frame, FUNCTIONS + SEND), first, load(row, 3), byte, load(row, 4), tag, comm
            )
        elif instruction == RECV:
            function = load(frame, FUNCTIONS + RECV)
            code = call_recv(function, first, load(row, 3), byte, load(row, 4), tag, comm, status)
        else:
            copy_bytes(first, _address(row, 3, sendbuf, recvbuf, scratch), load(row, 5))
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


def run(frame, send, recv, kind):
    """Run a program on two addresses, or on NumPy arrays given by the addresses of the Python objects.

    Reading arrays here costs nanoseconds where asking them in Python costs microseconds.

    Parameters
    ----------
    frame : int
        Address of the frame.
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
