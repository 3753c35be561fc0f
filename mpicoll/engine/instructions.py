"""What both interpreters do for an instruction."""

from numba.extending import register_jitable

from . import program as p
from .intrinsics import LINE, call_kernel, call_recv, copy_bytes, fence, load, stream_lines


@register_jitable
def address(bases, row, column):
    """The address that two operands name."""
    return load(bases, load(row, column)) + load(row, column + 1)


@register_jitable
def combine(kernel, bases, row):
    """Carry out COMBINE."""
    out, left, right = address(bases, row, 1), address(bases, row, 3), address(bases, row, 5)
    call_kernel(kernel, out, left, right, load(row, 7))


@register_jitable
def copy(bases, row):
    """Carry out COPY."""
    copy_bytes(address(bases, row, 1), address(bases, row, 3), load(row, 5))


@register_jitable
def stream(bases, row):
    """Carry out STREAM."""
    _stream(address(bases, row, 1), address(bases, row, 3), load(row, 5))
    fence()


@register_jitable
def combine_stream(kernel, piece, bases, row, others, other):
    """Carry out COMBINE_STREAM, a piece that stays in the first cache at a time.

    In between it carries out a COPY of another block, if there is one: `others` is the address of that
    block's bases, and `other` that of its row, or 0. So the processor waits for what a peer has written and
    for what is in memory at the same time.
    """
    out, left, right = address(bases, row, 1), address(bases, row, 3), address(bases, row, 5)
    elements, itemsize = load(row, 7), load(row, 8)
    target, origin, rest = _other(others, other)
    while elements > 0:
        some = min(elements, max(_piece(out, itemsize, other) // itemsize, 1))
        nbytes = some * itemsize
        part = min(rest, nbytes)
        copy_bytes(target, origin, part)
        call_kernel(kernel, piece, left, right, some)
        _stream(out, piece, nbytes)
        target, origin, rest = target + part, origin + part, rest - part
        out, left, right, elements = out + nbytes, left + nbytes, right + nbytes, elements - some
    copy_bytes(target, origin, rest)
    fence()


@register_jitable
def _other(others, other):
    """Target, origin and length of a COPY, nothing for 0."""
    if other == 0:
        return 0, 0, 0
    return address(others, other, 1), address(others, other, 3), load(other, 5)


@register_jitable
def _piece(out, itemsize, other):
    """Bytes of the next piece of a result: up to a line's end first, so that all others are whole lines."""
    head = -out % LINE
    if head > 0 and head % itemsize == 0:
        return head
    return p.TURN_BYTES if other else p.PIECE_BYTES


@register_jitable
def _stream(out, source, nbytes):
    """Copy past the caches; the two must not overlap."""
    head = min(-out % LINE, nbytes)
    lines = (nbytes - head) // LINE * LINE
    if head:
        copy_bytes(out, source, head)
    stream_lines(out + head, source + head, lines)
    if head + lines < nbytes:
        copy_bytes(out + head + lines, source + head + lines, nbytes - head - lines)


@register_jitable
def post(frame, bases, row, requests, tag):
    """Carry out IRECV or ISEND."""
    return call_recv(
        load(frame, p.FUNCTIONS + load(row, 0)),
        address(bases, row, 1), load(row, 3), load(frame, p.BYTE), load(row, 4), tag, load(frame, p.COMM),
        requests + load(row, 5) * load(frame, p.HANDLE_BYTES),
    )  # fmt: skip
