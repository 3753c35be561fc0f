"""How a GPU kernel reaches memory and does arithmetic in Numba's simulator: in Python, with NumPy.

A packet is a NumPy array, an address one of host memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .cuda_memory import PACKET, Means, Way, lanes_of

__all__ = ["simulated_means"]


def simulated_means(
    dtype: np.dtype,
    *,
    combine: Any = None,
    divide: Any = None,
    commutes: bool = False,
) -> Means:
    """Give the Python functions.

    Parameters
    ----------
    dtype : numpy.dtype
        The element type.
    combine : callable, optional
        ``combine(out, a, b)`` on arrays, as a :class:`~mpicoll.kernels.Kernel` does.
    divide : callable, optional
        ``divide(array, size)`` in place, as :func:`mpicoll.ops.divide` does.
    commutes : bool
        Whether `combine` commutes.
    """

    def way(count: int, align: int) -> Way:
        def load(address, index):
            place = address + index * dtype.itemsize
            assert place % align == 0, f"misaligned load from {place}"
            return np.frombuffer(ctypes.string_at(place, count * dtype.itemsize), dtype).copy()

        def store(address, index, packet):
            place = address + index * dtype.itemsize
            assert place % align == 0, f"misaligned store to {place}"
            ctypes.memmove(place, packet.tobytes(), packet.nbytes)

        return Way(load, store)

    def combined(a, b):
        out = np.empty_like(a)
        combine(out, a, b)
        return out

    def divided(packet, size):
        divide(packet, size)
        return packet

    lanes = lanes_of(dtype)
    packets, elements, bytes_ = way(lanes, PACKET), way(1, dtype.alignment), way(1, 1)
    return Means(
        dtype.itemsize, dtype.alignment, lanes, packets, elements, bytes_, combined, divided, commutes,
        inline=lambda function: function,
    )  # fmt: skip
