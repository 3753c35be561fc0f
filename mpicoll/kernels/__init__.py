"""Kernels: compiled code that combines two operands for one (op, dtype).

`table` says which pairs exist and what they mean, `loop` and `half` are the code, `compiling` makes an
address of it. Numba is imported when the first kernel is asked for.
"""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import numpy as np

from .table import DTYPES, OPS, PAIRS, name_of, supported

__all__ = ["DTYPES", "OPS", "PAIRS", "Kernel", "kernel", "supported"]

_prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


class Kernel(NamedTuple):
    """Compiled code for one (op, dtype).

    Attributes
    ----------
    op : str
        The operation, with its name in MPI.
    dtype : numpy.dtype
        The element type.
    address : int
        Of the C function ``void(int64 out, int64 left, int64 right, int64 n)``, which does
        ``out[i] = left[i] op right[i]`` for n elements at three addresses, aligned or not. ``out`` may be
        ``left`` or ``right``; otherwise it may not overlap them. The function needs no GIL.
    commutative : bool
        Whether the operands may be swapped: true for all of MPI's own operations.
    """

    op: str
    dtype: np.dtype
    address: int
    commutative: bool

    def __call__(self, out: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """Combine two arrays of any shape into a third, which may be one of them.

        Raises
        ------
        TypeError
            If an array has another dtype.
        ValueError
            If sizes differ, an array is not C-contiguous, `out` is read-only or partly overlaps an operand.
        """
        for name, array in {"out": out, "left": left, "right": right}.items():
            if array.dtype != self.dtype:
                raise TypeError(f"{self.op}: {name} has dtype {array.dtype}, expected {self.dtype}")
            if array.size != out.size:
                raise ValueError(f"{self.op}: {name} has {array.size} items, expected {out.size}")
            if not array.flags.c_contiguous:
                raise ValueError(f"{self.op}: {name} is not C-contiguous")
            if array.ctypes.data != out.ctypes.data and np.may_share_memory(array, out):
                raise ValueError(f"{self.op}: {name} and out overlap")
        if not out.flags.writeable:
            raise ValueError(f"{self.op}: out is read-only")
        _prototype(self.address)(out.ctypes.data, left.ctypes.data, right.ctypes.data, out.size)


def kernel(op: str, dtype: np.dtype) -> Kernel:
    """Return the kernel for an operation on an element type.

    It is compiled when it is first asked for, then kept in the process and on disk.

    Raises
    ------
    TypeError
        If MPI does not define the operation on this type. Nothing is compiled to find out.
    """
    dtype = np.dtype(dtype)
    if not supported(op, dtype):
        raise TypeError(f"no kernel for {op} on {dtype}")
    return Kernel(op, dtype, _address(op, name_of(dtype)), commutative=True)


@functools.cache
def _address(op: str, name: str) -> int:
    from .compiling import compiled, importable  # noqa: PLC0415  (Numba takes half a second to import)

    with importable():
        from . import loop  # noqa: PLC0415

    return compiled(loop.source(op, name), loop.SIGNATURE)
