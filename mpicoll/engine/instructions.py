"""What both interpreters do for an instruction."""

from numba.extending import register_jitable

from . import program as p
from .intrinsics import call_kernel, call_recv, copy_bytes, load


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
def post(frame, bases, row, requests, tag):
    """Carry out IRECV or ISEND."""
    return call_recv(
        load(frame, p.FUNCTIONS + load(row, 0)),
        address(bases, row, 1), load(row, 3), load(frame, p.BYTE), load(row, 4), tag, load(frame, p.COMM),
        requests + load(row, 5) * load(frame, p.HANDLE_BYTES),
    )  # fmt: skip
