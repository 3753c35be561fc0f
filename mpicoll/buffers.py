"""From mpi4py's message specs to an address, a count and a type."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util.dtlib import to_numpy_dtype


@dataclass(frozen=True)
class Buffer:
    """Contiguous memory of a caller, as a collective sees it.

    Attributes
    ----------
    address : int
        Of the first element.
    count : int
        Elements of `dtype`.
    dtype : numpy.dtype or None
        None where NumPy has no equal of `datatype`.
    datatype : MPI.Datatype or None
        As given; None where it follows from the array.
    itemsize : int
        Bytes from one element to the next.
    readonly : bool
    """

    address: int
    count: int
    dtype: np.dtype | None
    datatype: MPI.Datatype | None
    itemsize: int
    readonly: bool

    @property
    def nbytes(self) -> int:
        """Size of the whole in bytes."""
        return self.count * self.itemsize


def parse(spec: Any, name: str) -> Buffer:
    """Read a message spec as mpi4py does.

    Parameters
    ----------
    spec : array, or list or tuple of an array and any of count, displacement and type
        ``x``, ``[x, type]``, ``[x, count]``, ``[x, count, type]``, ``[x, (count, displ), type]``,
        ``[x, count, displ, type]``. The array is anything that NumPy or mpi4py can read without a
        copy. A type is an MPI datatype or a NumPy type code.
    name : str
        What the messages of exceptions call it, e.g. ``"allreduce: sendbuf"``.

    Raises
    ------
    ValueError
        If the memory is not contiguous, or shorter than the spec says.
    TypeError
        If it is not a spec.
    """
    thing, count, displacement, datatype = _parts(spec, name)
    address, nbytes, readonly, own = _memory(thing, name)
    dtype, itemsize = (own, own.itemsize) if datatype is None else _described(datatype, name)
    if displacement < 0 or (count is not None and count < 0):
        raise ValueError(f"{name}: count {count} and displacement {displacement} given, expected 0 or more")
    available, rest = divmod(nbytes - displacement * itemsize, itemsize) if itemsize else (0, 0)
    if count is None:
        if rest or available < 0:
            raise ValueError(
                f"{name}: {nbytes} bytes from displacement {displacement} given, "
                f"expected a multiple of the {itemsize} bytes of an item"
            )
        count = available
    elif count > available:
        raise ValueError(f"{name} has {max(available, 0)} items, expected {count}")
    return Buffer(address + displacement * itemsize, count, dtype, datatype, itemsize, readonly)


def on_device(spec: Any) -> bool:
    """Whether a spec is of memory on a GPU."""
    thing = spec[0] if isinstance(spec, list | tuple) and spec else spec
    return hasattr(thing, "__cuda_array_interface__")


def _parts(spec: Any, name: str) -> tuple[Any, int | None, int, MPI.Datatype | None]:
    """Split a spec into array, count, displacement and datatype."""
    if not isinstance(spec, list | tuple):
        return spec, None, 0, None
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"{name}: a spec of {len(spec)} items given, expected 2 to 4")
    thing, *rest = spec
    kind = rest.pop() if isinstance(rest[-1], MPI.Datatype | str) else None
    if len(rest) == 1 and isinstance(rest[0], list | tuple):
        rest = list(rest[0])
    if len(rest) > 2 or not all(r is None or hasattr(r, "__index__") for r in rest):
        raise TypeError(f"{name}: {spec[1:]} given, expected count, displacement and type")
    count, displacement = [*rest, None, None][:2]
    return (
        thing,
        None if count is None else int(count),
        int(displacement or 0),
        MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind,
    )


def _memory(thing: Any, name: str) -> tuple[int, int, bool, np.dtype]:
    """Address, length in bytes, whether it is read-only, and element type of an array."""
    array, readonly = (
        (thing, not thing.flags.writeable) if isinstance(thing, np.ndarray) else _view(thing, name)
    )
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError(f"{name} is not contiguous: strides {array.strides} for shape {array.shape}")
    if not array.dtype.isnative:
        raise ValueError(f"{name}: dtype {array.dtype.str} given, expected native byte order")
    if array.dtype.hasobject:
        raise TypeError(f"{name}: dtype object given, expected plain data")
    address = array.__array_interface__["data"][0]
    return address, array.nbytes, readonly, array.dtype


def _view(thing: Any, name: str) -> tuple[np.ndarray, bool]:
    """View a bytes-like or DLPack object as an array, without a copy; and whether it is read-only."""
    try:
        memory = memoryview(thing)
        return np.asarray(memory), memory.readonly
    except TypeError:
        pass
    if not hasattr(thing, "__dlpack__"):
        raise TypeError(f"{name}: {type(thing).__name__} given, expected an array or a spec")
    # NumPy takes every DLPack object for read-only unless it says otherwise, mpi4py does not
    return np.from_dlpack(thing), MPI.buffer(thing).readonly


def _described(datatype: MPI.Datatype, name: str) -> tuple[np.dtype | None, int]:
    """NumPy's equal of an MPI datatype, and the bytes from one element to the next."""
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"{name}: MPI.DATATYPE_NULL given, expected a datatype")
    lower, extent = datatype.Get_extent()
    if lower or not datatype.is_predefined or datatype in _WITHOUT_EQUAL:
        return None, extent
    try:
        return to_numpy_dtype(datatype), extent
    except (NotImplementedError, ValueError, TypeError):
        return None, extent


# NumPy has types of their sizes, but MPI defines other operations on them.
_WITHOUT_EQUAL = [MPI.BYTE, MPI.CHAR, MPI.WCHAR, MPI.PACKED, MPI.LOGICAL]
