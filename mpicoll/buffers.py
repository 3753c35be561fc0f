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
    packed : bool
        Whether the elements have no holes and begin at their address.
    owner : Any
        Keeps the memory alive and where it is.
    """

    address: int
    count: int
    dtype: np.dtype | None
    datatype: MPI.Datatype | None
    itemsize: int
    readonly: bool
    packed: bool = True
    owner: Any = None

    @property
    def nbytes(self) -> int:
        """Size of the whole in bytes."""
        return self.count * self.itemsize

    @property
    def kind(self) -> str:
        """What the elements are, for comparison and for messages."""
        if self.dtype is not None or self.datatype is None:
            return str(self.dtype)
        return self.datatype.Get_name() or f"derived {self.itemsize}-byte"


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
    if thing is None and count == 0:
        thing = np.empty(0, np.uint8)
    array, readonly = _array(thing, name)
    nbytes = array.nbytes
    own = (array.dtype, array.itemsize, True)
    dtype, itemsize, packed = own if datatype is None else _described(datatype, name)
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
    elif count > available and packed:
        raise ValueError(f"{name} has {max(available, 0)} items, expected {count}")
    address = array.__array_interface__["data"][0] + displacement * itemsize
    return Buffer(address, count, dtype, datatype, itemsize, readonly, packed, array)


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


def _array(thing: Any, name: str) -> tuple[np.ndarray, bool]:
    """View contiguous memory as an array, without a copy; and whether it is read-only."""
    array, readonly = (
        (thing, not thing.flags.writeable) if isinstance(thing, np.ndarray) else _view(thing, name)
    )
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError(f"{name} is not contiguous: strides {array.strides} for shape {array.shape}")
    if not array.dtype.isnative:
        raise ValueError(f"{name}: dtype {array.dtype.str} given, expected native byte order")
    if array.dtype.hasobject:
        raise TypeError(f"{name}: dtype object given, expected plain data")
    return array, readonly


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


def _described(datatype: MPI.Datatype, name: str) -> tuple[np.dtype | None, int, bool]:
    """NumPy's equal of an MPI datatype, the bytes from one element to the next, and whether it is packed."""
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"{name}: MPI.DATATYPE_NULL given, expected a datatype")
    _, extent = datatype.Get_extent()
    if not datatype.is_predefined:
        return None, extent, datatype.Get_true_extent() == (0, extent) and datatype.Get_size() == extent
    if datatype in _WITHOUT_EQUAL:
        return None, extent, True
    try:
        return to_numpy_dtype(datatype), extent, True
    except (NotImplementedError, ValueError, TypeError):
        return None, extent, True


# NumPy has types of their sizes, but MPI defines other operations on them.
_WITHOUT_EQUAL = [MPI.BYTE, MPI.CHAR, MPI.WCHAR, MPI.PACKED, MPI.LOGICAL]
