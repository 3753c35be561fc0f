"""Compiled copies between many small arrays and one, for collectives that are fused.

As the interpreter's fast entry this reads NumPy arrays, and the list that holds them, in memory.
"""

import functools
from collections.abc import Callable

import numpy as np

from ..kernels.compiling import entry
from . import compiled
from .interpreter import CONTIGUOUS, DATA, DECLINED, DTYPE, FLAGS, HEADER, NDIM, SHAPE, TYPE, WRITEABLE
from .intrinsics import copy_bytes, load, load_int

# A Python list in memory (PyListObject): the number of items, and the address of their addresses
LENGTH, ITEMS = HEADER, HEADER + 1


def _pack(pairs, kind, dtype, itemsize, in_place, longest, out, room):
    """Copy the send arrays of a list one after the other.

    Parameters
    ----------
    pairs : int
        Address of a list: a send array (or IN_PLACE) and a receive array, in turn.
    kind, dtype : int
        Addresses of what their Python type and their NumPy dtype must be.
    itemsize : int
    in_place : int
        Address of MPI.IN_PLACE.
    longest : int
        Bytes that an array may have.
    out, room : int
        Where to, and how many bytes; beyond them nothing is copied, only counted.

    Returns
    -------
    int
        Bytes in all; or DECLINED, if an array is not contiguous, too long or of another type, or a
        receive array is not writable, of another size, or partly the same memory.
    """
    total, items = 0, load(pairs, ITEMS)
    for i in range(0, load(pairs, LENGTH), 2):
        send, recv = load(items, i), load(items, i + 1)
        if send == in_place:
            send = recv
        nbytes = 0
        for thing in (send, recv):
            if load(thing, TYPE) != kind or load(thing, DTYPE) != dtype:
                return DECLINED
            if load_int(thing + 8 * FLAGS) & CONTIGUOUS == 0:
                return DECLINED
            before, nbytes, shape = nbytes, itemsize, load(thing, SHAPE)
            for axis in range(load_int(thing + 8 * NDIM)):
                nbytes *= load(shape, axis)
            if nbytes > longest or (thing == recv and send != recv and nbytes != before):
                return DECLINED
        source, target = load(send, DATA), load(recv, DATA)
        apart = source == target or source + nbytes <= target or target + nbytes <= source
        if not apart or load_int(recv + 8 * FLAGS) & WRITEABLE == 0:
            return DECLINED
        if total + nbytes <= room:
            copy_bytes(out + total, source, nbytes)
        total += nbytes
    return total


def _unpack(pairs, itemsize, source):
    """Copy one array to the receive arrays of a list that :func:`_pack` took."""
    items = load(pairs, ITEMS)
    for i in range(1, load(pairs, LENGTH), 2):
        recv = load(items, i)
        nbytes, shape = itemsize, load(recv, SHAPE)
        for axis in range(load_int(recv + 8 * NDIM)):
            nbytes *= load(shape, axis)
        copy_bytes(load(recv, DATA), source, nbytes)
        source += nbytes
    return 0


@functools.cache
def pack() -> Callable[..., int]:
    """Give the compiled :func:`_pack`."""
    return entry(_pack, f"int64({', '.join(['int64'] * 8)})")


@functools.cache
def unpack() -> Callable[[int, int, int], int]:
    """Give the compiled :func:`_unpack`."""
    return entry(_unpack, "int64(int64, int64, int64)")


@functools.cache
def available() -> bool:
    """Whether arrays and lists are where compiled code expects them; a trial tells."""
    if not compiled.reads_objects():
        return False
    first, second, packed = np.arange(3.0), np.zeros((1, 2)), np.zeros(5)
    pairs = [first, first, second + 1, second]
    kind, dtype = id(np.ndarray), id(packed.dtype)
    length = pack()(id(pairs), kind, dtype, 8, 0, 1 << 20, packed.ctypes.data, packed.nbytes)
    if length != packed.nbytes or packed.tolist() != [0, 1, 2, 1, 1]:
        return False
    unpack()(id(pairs), 8, packed.ctypes.data)
    return second.tolist() == [[1, 1]]
