"""The compiled interpreter of programs on a device: the host tells it what to copy and combine, and waits.

What a strand gives the device goes into a CUDA stream of its own, in order, and the host goes on meanwhile.
It waits for the device before others are told, by a counter or a message, that something is there, before
memory that the device may still read is received into, and at the end.
"""

from numba.extending import register_jitable

from ..device.driver import NOT_READY
from . import program as p
from . import window as w
from .blocks import WAITS, interpreter, published, test_message
from .instructions import address, post
from .intrinsics import call_copy, call_launch, call_query, load, store, store_release

CUDA_ERROR = -1_000_000  # less a CUresult: the answer where the driver has refused something

COPY, QUERY, LAUNCH = range(p.DEVICE_FUNCTIONS, p.DEVICE_FUNCTIONS + len(p.DRIVER))


@register_jitable
def _advance(frame, window, strand, other):
    """Go on with a strand: 0 when it is done, WAITS, or an error."""
    requests, tag = load(strand, p.STRAND_REQUEST), load(strand, p.STRAND_TAG)
    patience = load(window, w.PATIENCE) // load(frame, p.STRANDS)
    row, stop, counter = load(strand, p.ROW), load(strand, p.STOP), load(strand, p.COUNTER)
    code = 0
    while row < stop and code == 0:
        instruction = load(row, 0)
        following = row + 8 * p.COLUMNS
        if instruction == p.COPY:
            code = _copy(frame, strand, row)
        elif instruction == p.COMBINE:
            following = _after(row, stop)
            code = _combine(frame, strand, row, following)
        elif instruction == p.AWAIT:
            if not published(load(strand, p.LINE) + load(row, 2), counter + load(row, 3), patience):
                store(strand, p.PEER, load(row, 4))
                code = WAITS
        elif instruction == p.WAIT:
            store(strand, p.PEER, -1)
            code = test_message(frame, requests + load(row, 1) * load(frame, p.HANDLE_BYTES))
        else:
            code = _settled(frame, strand)
            if code == 0 and instruction == p.PUBLISH:
                store_release(load(strand, p.LINE) + load(row, 2), counter + load(row, 3))
            elif code == 0 and instruction != p.SYNC:
                code = post(frame, strand, row, requests, tag)
        if code == 0:
            row = following
    store(strand, p.ROW, row)
    return code


@register_jitable
def _copy(frame, strand, row):
    """Let the device copy."""
    store(strand, p.PENDING, 1)
    out, source = address(strand, row, 1), address(strand, row, 3)
    return _told(call_copy(load(frame, COPY), out, source, load(row, 5), load(strand, p.CUDA_STREAM)))


@register_jitable
def _after(row, stop):
    """The row after a COMBINE and its operands."""
    row += 8 * p.COLUMNS
    while row < stop and load(row, 0) == p.OPERAND:
        row += 8 * p.COLUMNS
    return row


@register_jitable
def _combine(frame, strand, row, following):
    """Let the device combine two operands or more."""
    arguments, elements, left, operands = load(frame, p.ARGUMENTS), load(row, 7), 0, 2
    store(arguments, 0, address(strand, row, 1))
    store(arguments, 1, elements)
    store(arguments, p.FIRST_OPERAND, address(strand, row, 3))
    store(arguments, p.FIRST_OPERAND + 1, address(strand, row, 5))
    row += 8 * p.COLUMNS
    while row < following:
        store(arguments, p.FIRST_OPERAND + operands, address(strand, row, 1))
        left |= load(row, 3) << operands
        operands += 1
        row += 8 * p.COLUMNS
    store(arguments, 2, left)
    store(strand, p.PENDING, 1)
    stream = load(strand, p.CUDA_STREAM)
    return launch(frame, load(load(frame, p.KERNELS), operands), elements, stream)


@register_jitable
def launch(frame, kernel, elements, stream):
    """Start a kernel on the arguments that the frame has."""
    threads = load(frame, p.THREADS)
    each = load(frame, p.LANES) * threads
    grid = min(max((elements + each - 1) // each, 1), load(frame, p.GRID))
    parameters = load(frame, p.ARGUMENTS) - 8 * (p.FIRST_OPERAND + p.OPERANDS)
    function = load(frame, LAUNCH)
    return _told(call_launch(function, kernel, grid, 1, 1, threads, 1, 1, 0, stream, parameters, 0))


@register_jitable
def _settled(frame, strand):
    """0 if the device has done what the strand gave it, WAITS, or an error."""
    if load(strand, p.PENDING) == 0:
        return 0
    store(strand, p.PEER, -1)
    code = call_query(load(frame, QUERY), load(strand, p.CUDA_STREAM))
    if code == NOT_READY:
        return WAITS
    store(strand, p.PENDING, 0)
    return _told(code)


@register_jitable
def _told(code):
    """What the interpreter answers to a CUresult."""
    return 0 if code == 0 else CUDA_ERROR - code


@register_jitable
def _begun(frame, strand, index):
    """Give a strand what it has on the device."""
    store(strand, p.CUDA_STREAM, load(load(frame, p.STREAMS), index))
    store(strand, p.PENDING, 0)
    pinned = load(load(frame, p.PINNED_WORKSPACE), 0)
    store(strand, p.PINNED, pinned + index * load(frame, p.STRAND_SCRATCH))


execute_on_device = interpreter(_advance, _begun)


def run(frame, sendbuf, recvbuf):
    """Run a program on two addresses; see :func:`mpicoll.engine.blocks.interpreter`."""
    return execute_on_device(frame, sendbuf, recvbuf)
