"""The loops of GPU kernels, in Python that Numba compiles for a GPU or runs in its simulator.

All memory and arithmetic is in the `Means` that they are made of. An argument of a loop is an int64: an
address, a number of elements, or bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda

from .cuda_memory import PACKET, Means, Way

__all__ = ["combining", "combining_walk", "dividing", "dividing_walk"]


def combining(means: Means, operands: int) -> Callable:
    """Return the kernel that combines so many operands.

    It is ``kernel(out, n, left, s0, ..., s7)``: for each element the accumulator is that of s0, then ``s_j op
    accumulator`` for each further j whose bit is set in `left`, and ``accumulator op s_j`` for the others.
    """
    walk = combining_walk(means, operands)

    def kernel(out, n, left, s0, s1, s2, s3, s4, s5, s6, s7):
        first: Any = cuda.grid(1)  # type: ignore[call-arg]
        step: Any = cuda.gridsize(1)
        walk(first, step, out, n, left, (s0, s1, s2, s3, s4, s5, s6, s7))

    return kernel


def dividing(means: Means) -> Callable:
    """Return the kernel ``kernel(out, n, size)`` that divides elements by a number, in place."""
    walk = dividing_walk(means)

    def kernel(out, n, size):
        first: Any = cuda.grid(1)  # type: ignore[call-arg]
        step: Any = cuda.gridsize(1)
        walk(first, step, out, n, size, (out,))

    return kernel


def combining_walk(means: Means, operands: int) -> Callable:
    """Return what thread `first` of `step` threads does of a combination; see :func:`combining`."""

    def each(way: Way) -> Callable:
        store, accumulated = way.store, _accumulated(means, way, operands - 1)

        @means.inline
        def combined(out, i, left, sources):
            store(out, i, accumulated(i, left, sources))

        return combined

    return _walk(means, operands, each)


def _accumulated(means: Means, way: Way, j: int) -> Callable:
    """Return what gives the accumulator of operands 0 to j: code without a loop, which LLVM might keep."""
    load, combine, commutes = way.load, means.combine, means.commutes
    if j == 0:
        return means.inline(lambda i, left, sources: load(sources[0], i))
    before = _accumulated(means, way, j - 1)

    @means.inline
    def accumulated(i, left, sources):
        a, b = before(i, left, sources), load(sources[j], i)
        if not commutes and left >> j & 1:
            a, b = b, a
        return combine(a, b)

    return accumulated


def dividing_walk(means: Means) -> Callable:
    """Return what thread `first` of `step` threads does of a division; see :func:`dividing`."""
    divide = means.divide

    def each(way: Way) -> Callable:
        load, store = way

        @means.inline
        def divided(out, i, size, sources):
            store(out, i, divide(load(out, i), size))

        return divided

    return _walk(means, 1, each)


def _walk(means: Means, operands: int, each: Callable[[Way], Callable]) -> Callable:
    """Return the walk over n elements of which each thread does its own, by packets where addresses allow.

    The first packet begins where an address is a multiple of 16, which must be at the same element for all
    addresses. The few elements before and after the packets go one by one.
    """
    size, alignment, lanes = means.size, means.alignment, means.lanes
    packet, element, bytes_ = each(means.packets), each(means.elements), each(means.bytes)

    @means.inline
    def walk(first, step, out, n, extra, sources):
        apart = 0
        for j in range(operands):
            apart |= sources[j] ^ out
        if lanes * size == PACKET and apart % PACKET == 0 and out % size == 0:
            head = min(n, (PACKET - out % PACKET) % PACKET // size)
            long = (n - head) // lanes * lanes
            for i in range(first * lanes, long, step * lanes):
                packet(out, head + i, extra, sources)
            for i in range(first, n - long, step):
                element(out, i if i < head else i + long, extra, sources)
        elif (apart | out) % alignment == 0:
            for i in range(first, n, step):
                element(out, i, extra, sources)
        else:
            for i in range(first, n, step):
                bytes_(out, i, extra, sources)

    return walk
