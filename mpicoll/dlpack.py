"""DLPack: what a capsule says of memory, without taking it over (dlpack.h, Python array API standard).

A capsule that nobody renames frees what it holds when it goes, so what is read here is copied while it lives.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np

HOST = 1, 3, 11  # kinds of devices: ordinary memory, and that which CUDA and ROCm have pinned
CUDA, CUDA_MANAGED = 2, 13
_READ_ONLY, _COPIED = 1, 2  # flags

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class Tensor(NamedTuple):
    """Memory as a capsule describes it; strides in bytes, None where rows follow each other."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype
    device: tuple[int, int]
    readonly: bool


class _Tensor(ctypes.Structure):
    """``DLTensor``, which a ``DLManagedTensor`` begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def device_of(thing: Any) -> tuple[int, int] | None:
    """Give the kind and the number of the device that an object says it is on; None if it does not say."""
    ask = getattr(thing, "__dlpack_device__", None)
    try:
        return None if ask is None else ask()
    except Exception:  # JAX's of an array on several devices
        return None


def describe(capsule: Any, name: str) -> Tensor:
    """Read what ``__dlpack__`` gave.

    Parameters
    ----------
    capsule : PyCapsule
        Of any version; it goes back unused, which the protocol allows.
    name : str
        What the messages of exceptions call the object.

    Raises
    ------
    TypeError
        If it cannot be read, holds a copy, or its elements are no numbers.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise TypeError(f"{name}: DLPack version {managed.major} given, expected 0 or 1")
        if managed.flags & _COPIED:
            raise TypeError(f"{name}: a copy of the memory given, expected the memory itself")
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        tensor, readonly = _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    else:
        raise TypeError(f"{name}: {capsule!r} given, expected a DLPack capsule")
    dtype = _dtype(tensor, name)
    strides = (
        tuple(stride * dtype.itemsize for stride in tensor.strides[: tensor.ndim]) if tensor.strides else None
    )
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[: tensor.ndim]),
        strides,
        dtype,
        tuple(tensor.device),
        readonly,
    )


def _dtype(tensor: _Tensor, name: str) -> np.dtype:
    kind = "complex" if (tensor.code, tensor.lanes) == (2, 2) else _KINDS.get(tensor.code)
    if kind is None or tensor.lanes > 1 + (kind == "complex"):
        raise TypeError(f"{name}: DLPack type code {tensor.code} given, expected numbers")
    if kind == "bfloat":
        return bfloat16(name)
    return np.dtype("bool" if kind == "bool" else f"{kind}{tensor.bits * tensor.lanes}")


def bfloat16(name: str) -> np.dtype:
    """Give NumPy's type for bfloat16, which is ml_dtypes'; raise TypeError if that is not installed."""
    try:
        import ml_dtypes  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise TypeError(f"{name}: bfloat16 needs ml_dtypes: pip install 'mpicoll[bfloat16]'") from None
    return np.dtype(ml_dtypes.bfloat16)
