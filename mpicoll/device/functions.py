"""Kernels that are loaded on a device."""

import ctypes
import functools
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import kernels
from ..kernels import cuda
from ..ops import Op
from ..reduction import OPS
from . import driver

_combines: dict[tuple, tuple[int, int]] = {}  # ops cannot be hashed, their tokens can


def combine(device: int, op: "str | Op", dtype: np.dtype, operands: int) -> tuple[int, int]:
    """Give the kernel that combines so many operands, and the elements that a thread of it takes.

    Raises
    ------
    DeviceError
        If it cannot be compiled for want of a package, or loaded.
    TypeError
        If an operation of the user's cannot be compiled for the type.
    """
    key = device, op if isinstance(op, str) else op.token, dtype, operands
    if key not in _combines:
        _combines[key] = _load(device, cuda.combine(op, dtype, operands, driver.capability(device)))
    return _combines[key]


@functools.cache
def divide(device: int, dtype: np.dtype) -> tuple[int, int]:
    """Give the kernel that divides by the number of ranks, and the elements that a thread of it takes."""
    return _load(device, cuda.divide(dtype, driver.capability(device)))


def forget() -> None:
    """Forget all kernels, of a driver that is no longer used."""
    _combines.clear()
    divide.cache_clear()


def named(op: MPI.Op, dtype: np.dtype | None) -> "str | Op | None":
    """Give what :func:`combine` knows an op by; None if there is no kernel."""
    if dtype is None:
        return None
    if isinstance(op, Op):
        return op
    name = OPS.get(op.handle)
    return name if name and kernels.supported(name, dtype) else None


def _load(device: int, image: cuda.Image) -> tuple[int, int]:
    with driver.current(device):
        try:
            module = _module(image.code)
        except driver.RefusedError as error:
            if error.code != driver.UNSUPPORTED_PTX:
                raise
            module = _module(cuda.assembled(image, driver.capability(device)))
        return driver.get("cuModuleGetFunction", module, image.name.encode()), image.lanes


def _module(code: bytes) -> int:
    buffer: Any = ctypes.create_string_buffer(code, len(code) + 1)
    return driver.get("cuModuleLoadData", buffer)
