"""The blocks of a buffer, in bytes."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..buffers import Buffer, parse, parse_blocks


class Side(NamedTuple):
    """The blocks of a buffer, in bytes, without holes; `native` is the buffer for mpi4py's collectives."""

    address: int
    counts: tuple[int, ...]
    displacements: tuple[int, ...] | None
    pack: tuple[Callable[[], None], ...]
    unpack: tuple[Callable[[], None], ...]
    owners: tuple
    native: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(self.counts)

    def block(self, rank: int) -> "Side":
        """One of the blocks."""
        begin = sum(self.counts[:rank]) if self.displacements is None else self.displacements[rank]
        return self._replace(address=self.address + begin, counts=(self.counts[rank],), displacements=None)

    def ranges(self) -> list[tuple[int, int]]:
        """Begin and end of the memory of each block that has any."""
        sides = (self.block(rank) for rank in range(len(self.counts)))
        if self.displacements is None:
            return [(self.address, self.address + self.nbytes)] if self.nbytes else []
        return [(side.address, side.address + side.nbytes) for side in sides if side.nbytes]


def in_bytes(spec: Any, buffer: Buffer, blocks: int = 1) -> Side:
    """Describe a buffer in bytes; one with holes gets memory of its own."""
    counts = buffer.counts or (buffer.count,) * blocks
    places = buffer.displacements
    nbytes = tuple(count * buffer.content for count in counts)
    if buffer.packed:
        contiguous = places is None or all(
            not count or place == begin
            for place, count, begin in zip(places, counts, accumulate(counts, initial=0), strict=False)
        )
        displacements = (
            None if contiguous or places is None else tuple(place * buffer.itemsize for place in places)
        )
        side = Side(buffer.address, nbytes, displacements, (), (), (buffer.owner,), spec)
        return side if buffer.datatype or _known(buffer.dtype) else side._replace(native=_as_bytes(side))
    if places is None:
        places = tuple(rank * buffer.count for rank in range(blocks))
    stage = Stage(buffer, tuple(zip(places, counts, strict=True)))
    address = stage.memory.ctypes.data
    return Side(address, nbytes, None, (stage.pack,), (stage.unpack,), (stage,), spec)


@cache
def _known(dtype: np.dtype | None) -> bool:
    """Whether mpi4py has a datatype for NumPy's type; the codes of strings stand for one character."""
    try:
        return (
            dtype is not None
            and dtype.kind in "biufc"
            and MPI.Datatype.fromcode(dtype.char) != MPI.DATATYPE_NULL
        )
    except ValueError:
        return False


def _as_bytes(side: Side) -> list[Any]:
    """Give mpi4py a buffer of a type that it does not know."""
    end = max((stop for _, stop in side.ranges()), default=side.address)
    memory = memory_at(side.address, end - side.address)
    if side.displacements is None and len(set(side.counts)) == 1:
        return [memory, side.counts[0], MPI.BYTE]
    places = side.displacements or tuple(accumulate(side.counts, initial=0))[:-1]
    return [memory, (side.counts, places), MPI.BYTE]


def parse_side(spec: Any, name: str, blocks: int, counted: bool) -> Buffer:
    """Read a message spec of several blocks, which may be unequal where they are counted."""
    return parse_blocks(spec, name, blocks) if counted else parse(spec, name, blocks)


def extent(buffer: Buffer) -> Side:
    """Give the memory of a reduction's buffer."""
    return Side(buffer.address, (buffer.count * buffer.itemsize,), None, (), (), ())


def copied(side: Side) -> tuple[Side, tuple[Callable[[], None], ...]]:
    """Give a copy of the blocks, and how it is made: an all-to-all in place sends from there."""
    memory = np.empty(side.nbytes, np.uint8)

    def copy() -> None:
        begin = 0
        for rank in range(len(side.counts)):
            block = side.block(rank)
            memory[begin : begin + block.nbytes] = memory_at(block.address, block.nbytes)
            begin += block.nbytes

    out = Side(memory.ctypes.data, side.counts, None, (), (), (memory, *side.owners))
    return out, (*side.pack, copy)


def check_apart(collective: str, send: Side, recv: Side) -> None:
    """Raise ValueError where send and receive buffers overlap."""
    for begin, end in send.ranges():
        if any(begin < stop and start < end for start, stop in recv.ranges()):
            raise ValueError(
                f"{collective}: sendbuf and recvbuf overlap, expected the same memory or separate"
            )


class Stage:
    """Memory without holes in place of a buffer with holes.

    Parameters
    ----------
    buffer : Buffer
    blocks : sequence of (int, int)
        Displacement and count of each block, in elements.

    Attributes
    ----------
    memory : ndarray of uint8
    """

    def __init__(self, buffer: Buffer, blocks: Sequence[tuple[int, int]]) -> None:
        assert buffer.datatype is not None
        self.memory = np.empty(sum(count for _, count in blocks) * buffer.content, np.uint8)
        self._owner = buffer.owner
        address = buffer.address
        if address:
            self._datatype = buffer.datatype.Dup()  # the user may free it while a collective is under way
        else:  # MPI.BOTTOM, and addresses in the datatype: mpi4py takes no memory at address 0
            address = buffer.datatype.Get_true_extent()[0]
            self._datatype = MPI.Datatype.Create_struct([1], [-address], [buffer.datatype]).Commit()
        self._places = [
            MPI.buffer.fromaddress(address + displacement * buffer.itemsize, count * buffer.itemsize)
            for displacement, count in blocks
            if count
        ]

    def pack(self) -> None:
        """Copy from the buffer."""
        position = 0
        for place in self._places:
            position = self._datatype.Pack(place, self.memory, position, MPI.COMM_SELF)

    def unpack(self) -> None:
        """Copy to the buffer."""
        position = 0
        for place in self._places:
            position = self._datatype.Unpack(self.memory, position, place, MPI.COMM_SELF)

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            self._datatype.Free()


def memory_at(address: int, nbytes: int) -> np.ndarray:
    """View memory as an array of bytes."""
    return np.asarray(MPI.buffer.fromaddress(address, nbytes)) if nbytes else _NO_BYTES


_NO_BYTES = np.empty(0, np.uint8)
