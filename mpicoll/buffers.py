"""From mpi4py's message specs to addresses, counts and types."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util.dtlib import to_numpy_dtype

from . import dlpack
from .device import arrays


@dataclass(slots=True)
class Buffer:
    """Memory of a caller, as a collective sees it.

    Attributes
    ----------
    address : int
        Of the first element.
    count : int
        Elements; of one block where the memory holds equal ones, of all where it holds unequal ones.
    dtype : numpy.dtype or None
        None where NumPy has no equal of `datatype`.
    datatype : MPI.Datatype or None
        As given; None where it follows from the array.
    itemsize : int
        Bytes from one element to the next.
    content : int
        Bytes of data in an element: fewer than `itemsize` where it has holes.
    readonly : bool
    packed : bool
        Whether the elements have no holes and begin at their address.
    owner : Any
        Keeps the memory alive and where it is.
    counts, displacements : tuple of int or None
        Elements of each unequal block, and where it begins, in elements from `address`.
    device : Array or None
        The array, where it is in the memory of a GPU.
    """

    address: int
    count: int
    dtype: np.dtype | None
    datatype: MPI.Datatype | None
    itemsize: int
    content: int
    readonly: bool
    packed: bool = True
    owner: Any = None
    counts: tuple[int, ...] | None = None
    displacements: tuple[int, ...] | None = None
    device: arrays.Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of data in `count` elements."""
        return self.count * self.content

    def like(self, other: "Buffer") -> bool:
        """Whether the elements are of one type."""
        return (self.dtype is not None and self.dtype is other.dtype) or self.kind == other.kind

    @property
    def kind(self) -> str:
        """What the elements are, for comparison and for messages."""
        if self.dtype is not None or self.datatype is None:
            return str(self.dtype)
        return self.datatype.Get_name() or f"derived {self.itemsize}-byte"


def parse(spec: Any, name: str, blocks: int = 1) -> Buffer:
    """Read a message spec as mpi4py does.

    Parameters
    ----------
    spec : array, or list or tuple of an array and any of count, displacement and type
        ``x``, ``[x, type]``, ``[x, count]``, ``[x, count, type]``, ``[x, (count, displ), type]``,
        ``[x, count, displ, type]``. The array is anything that NumPy or mpi4py can read without a
        copy. A type is an MPI datatype or a NumPy type code.
    name : str
        What the messages of exceptions call it, e.g. ``"allreduce: sendbuf"``.
    blocks : int
        How many equal blocks the memory holds; the count is of one of them.

    Raises
    ------
    ValueError
        If the memory is not contiguous, or shorter than the spec says.
    TypeError
        If it is not a spec.
    """
    thing, count, displacement, kind = _parts(spec, name, (list, tuple))
    memory = _Memory(thing, kind, name)
    displacement = 0 if displacement is None else _index(displacement, name)
    count = None if count is None else _index(count, name)
    if displacement < 0 or (count is not None and count < 0):
        raise ValueError(f"{name}: count {count} and displacement {displacement} given, expected 0 or more")
    if count is None:
        available = memory.items(displacement)
        if available % blocks:
            raise ValueError(f"{name} has {available} items, expected a multiple of {blocks}")
        count = available // blocks
    memory.check(displacement, count * blocks)
    return memory.buffer(displacement, count)


def parse_blocks(spec: Any, name: str, blocks: int) -> Buffer:
    """Read the message spec of a ``v`` collective as mpi4py does.

    Parameters
    ----------
    spec : array, or list or tuple of an array and any of counts, displacements and type
        ``x``, ``[x, type]``, ``[x, counts]``, ``[x, counts, type]``, ``[x, (counts, displs), type]``,
        ``[x, counts, displs, type]``. Without counts the memory is cut into nearly equal blocks, and one
        count is for all; without displacements they follow each other, and one is from each to the next.
    name, blocks
        As for :func:`parse`.

    Raises
    ------
    ValueError
        If there are not as many counts or displacements as blocks, or they go beyond the memory.
    TypeError
        If it is not a spec.
    """
    thing, given, places, kind = _parts(spec, name, tuple)
    memory = _Memory(thing, kind, name)
    if given is None:
        each, longer = divmod(memory.items(0), blocks)
        counts = tuple(each + (i < longer) for i in range(blocks))
    else:
        counts = integers(given, blocks, f"{name}: counts")
    if places is None:
        displacements = tuple(accumulate(counts, initial=0))[:-1]
    else:
        displacements = integers(places, blocks, f"{name}: displacements", lambda stride, i: stride * i)
    if min(counts) < 0:
        raise ValueError(f"{name}: counts {list(counts)} given, expected 0 or more")
    for displacement, count in zip(displacements, counts, strict=True):
        memory.check(displacement, count)
    return memory.buffer(0, sum(counts), counts, displacements)


class _Memory:
    """Memory and the type of what is in it."""

    def __init__(self, thing: Any, kind: MPI.Datatype | None, name: str) -> None:
        self.name, self.datatype = name, kind
        self.anywhere = thing is MPI.BOTTOM
        if thing is MPI.IN_PLACE:  # it has a buffer, of no bytes
            raise TypeError(f"{name}: IN_PLACE given, expected an array or a spec")
        nowhere = self.anywhere or thing is None
        self.device: arrays.Array | None = None
        if not nowhere and arrays.is_device(thing):
            viewed = arrays.view(thing, name)
            if isinstance(viewed, arrays.Array):
                self.device = viewed
            else:
                thing = viewed
        array: Any
        if self.device is not None:
            array, self.readonly = self.device, self.device.readonly
        else:
            array, self.readonly = (_NOTHING, False) if nowhere else _array(thing, name, kind is not None)
        self.owner, self.nbytes = array, array.nbytes
        if self.device is not None:
            self.address: int = self.device.address
        elif self.anywhere:
            self.address = 0
        elif array.dtype.kind in "biufc":  # ten times as fast, but not for types that are not Python's
            self.address = MPI.Get_address(array)
        else:
            self.address = array.__array_interface__["data"][0]
        if kind is None:
            self.dtype: np.dtype | None = array.dtype
            self.itemsize = self.content = self.end = array.itemsize
            self.packed = True
        else:
            self.dtype, self.itemsize, self.content, self.packed, self.end = _described(kind, name)

    def items(self, displacement: int) -> int:
        """Elements from a displacement on."""
        nbytes = self.nbytes - displacement * self.itemsize
        if nbytes == 0:
            return 0
        if self.itemsize <= 0 or nbytes % self.itemsize or nbytes < 0:
            raise ValueError(
                f"{self.name}: {self.nbytes} bytes from displacement {displacement} given, "
                f"expected a multiple of the {self.itemsize} bytes of an item"
            )
        return nbytes // self.itemsize

    def check(self, displacement: int, count: int) -> None:
        """Raise ValueError where elements are beyond the memory."""
        if count == 0:
            return
        if self.anywhere:
            if self.datatype is None or self.datatype.is_predefined:
                raise ValueError(f"{self.name}: BOTTOM given, expected a datatype of addresses with it")
            return
        if displacement < 0 or (displacement + count - 1) * self.itemsize + self.end > self.nbytes:
            whole = self.nbytes // self.itemsize if self.itemsize > 0 else 0
            at = f" from displacement {displacement}" if displacement else ""
            raise ValueError(f"{self.name} has {max(whole - displacement, 0)} items{at}, expected {count}")

    def buffer(
        self,
        displacement: int,
        count: int,
        counts: tuple[int, ...] | None = None,
        displacements: tuple[int, ...] | None = None,
    ) -> Buffer:
        if self.device is not None and not self.packed:
            raise TypeError(
                f"{self.name}: device memory with a datatype with holes given, expected packed elements"
            )
        return Buffer(
            self.address + displacement * self.itemsize,
            count,
            self.dtype,
            self.datatype,
            self.itemsize,
            self.content,
            self.readonly,
            self.packed,
            self.owner,
            counts,
            displacements,
            self.device,
        )


def imagine(nbytes: int, kind: Any) -> Buffer:
    """Describe memory that is not there, of a NumPy or MPI type, for questions about it."""
    if isinstance(kind, MPI.Datatype):
        dtype, itemsize, content, packed, _ = _described(kind, "datatype")
        return Buffer(0, nbytes // max(content, 1), dtype, kind, itemsize, content, False, packed)
    dtype = np.dtype(kind)
    return Buffer(0, nbytes // dtype.itemsize, dtype, None, dtype.itemsize, dtype.itemsize, False)


def on_device(spec: Any) -> bool:
    """Whether a spec is of memory on a GPU, as far as it can be read."""
    thing = spec[0] if isinstance(spec, list | tuple) and spec else spec
    if not arrays.is_device(thing):
        return False
    try:
        return isinstance(arrays.view(thing, "spec"), arrays.Array)
    except Exception:  # whoever reads it to send it says why
        return True


def _parts(spec: Any, name: str, pair: Any) -> tuple[Any, Any, Any, MPI.Datatype | None]:
    """Split a spec into array, count, displacement and datatype; `pair` holds the middle two."""
    if not isinstance(spec, list | tuple):
        if spec is None:
            raise TypeError(f"{name}: None given, expected an array or a spec")
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"{name}: a spec of {len(spec)} items given, expected 2 to 4")
    thing, *rest = spec
    kind = rest.pop() if len(rest) > 1 or isinstance(rest[-1], MPI.Datatype | str) else None
    if len(rest) == 1 and isinstance(rest[0], pair):
        rest = list(rest[0])
    if len(rest) > 2:
        raise ValueError(f"{name}: {spec[1:]} given, expected count, displacement and type")
    count, displacement = [*rest, None, None][:2]
    if isinstance(kind, str):
        try:
            kind = MPI.Datatype.fromcode(kind)
        except ValueError:
            raise KeyError(
                f"{name}: type code {kind!r} given, expected one that MPI has a type for"
            ) from None
    if not isinstance(kind, MPI.Datatype | None):
        raise TypeError(f"{name}: {kind!r} given, expected a datatype")
    if thing is None and kind is None and count is None:
        raise TypeError(f"{name}: None given, expected an array")
    return thing, count, displacement, kind


def _index(number: Any, name: str) -> int:
    if not hasattr(number, "__index__"):
        raise TypeError(f"{name}: {number!r} given, expected an integer")
    return number.__index__()


def integers(
    numbers: Any, expected: int, name: str, rule: Callable[[int, int], int] = lambda number, i: number
) -> tuple[int, ...]:
    """Read some integers, or one that gives all of them by a rule.

    Raises
    ------
    TypeError
        If they are no integers.
    ValueError
        If they are not as many as expected.
    """
    if hasattr(numbers, "__index__") and not np.ndim(numbers):
        return tuple(rule(_index(numbers, name), i) for i in range(expected))
    if isinstance(numbers, str) or not hasattr(numbers, "__iter__"):
        raise TypeError(f"{name}: {numbers!r} given, expected integers")
    found = tuple(_index(number, name) for number in numbers)
    if len(found) != expected:
        raise ValueError(f"{name}: {len(found)} given, expected {expected}")
    return found


def _array(thing: Any, name: str, as_bytes: bool) -> tuple[np.ndarray, bool]:
    """View contiguous memory as an array, without a copy; and whether it is read-only."""
    array, readonly = (
        (thing, not thing.flags.writeable) if isinstance(thing, np.ndarray) else _view(thing, name, as_bytes)
    )
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError(f"{name} is not contiguous: strides {array.strides} for shape {array.shape}")
    if not array.dtype.isnative:
        raise ValueError(f"{name}: dtype {array.dtype.str} given, expected native byte order")
    if array.dtype.hasobject:
        raise TypeError(f"{name}: dtype object given, expected plain data")
    return array, readonly


def _view(thing: Any, name: str, as_bytes: bool) -> tuple[np.ndarray, bool]:
    """View a bytes-like or DLPack object as an array, without a copy; and whether it is read-only."""
    try:
        view = memoryview(thing)
        return np.asarray(view), view.readonly
    except TypeError:
        pass
    if not hasattr(thing, "__dlpack__"):
        raise TypeError(f"{name}: {type(thing).__name__} given, expected an array or a spec")
    device = dlpack.device_of(thing)
    if device is not None and device[0] not in dlpack.HOST:
        raise TypeError(
            f"{name}: memory on DLPack's device type {device[0]} given, "
            "expected the host's or an NVIDIA GPU's"
        )
    memory = MPI.buffer(thing)  # has the bytes, but not their type
    array = np.asarray(memory)
    return array if as_bytes else array.view(dlpack.describe(thing.__dlpack__(), name).dtype), memory.readonly


def _described(datatype: MPI.Datatype, name: str) -> tuple[np.dtype | None, int, int, bool, int]:
    """Describe an MPI datatype.

    Returns
    -------
    dtype : numpy.dtype or None
        NumPy's equal.
    itemsize, content : int
        As of :class:`Buffer`.
    packed : bool
    end : int
        Where the data of an element ends, in bytes.
    """
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"{name}: MPI.DATATYPE_NULL given, expected a datatype")
    _, extent = datatype.Get_extent()
    content = datatype.Get_size()
    if not datatype.is_predefined:
        begin, length = datatype.Get_true_extent()
        return None, extent, content, (begin, length) == (0, extent) and content == extent, begin + length
    try:
        dtype = None if datatype in _WITHOUT_EQUAL else to_numpy_dtype(datatype)
    except (NotImplementedError, ValueError, TypeError):
        dtype = None
    return dtype, extent, content, content == extent, extent


_NOTHING = np.empty(0, np.uint8)

# NumPy has types of their sizes, but MPI defines other operations on them.
_WITHOUT_EQUAL = [MPI.BYTE, MPI.CHAR, MPI.WCHAR, MPI.PACKED, MPI.LOGICAL]
