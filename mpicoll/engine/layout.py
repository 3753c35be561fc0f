"""Where the chunks of a collective's vector are in the memory of one rank.

The vector is what the schedule speaks of: for an all-gather, say, the blocks of all ranks one after the
other. A rank's buffers hold parts of it. Every chunk has a *home*, where its value is once the rank has
received or combined it; before that it may lie in the send buffer; and at the end some chunks must be in
the receive buffer.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ..schedule.schedule import bounds
from .program import RECVBUF, SCRATCH, SENDBUF


class Place(NamedTuple):
    """An address: base and offset in bytes."""

    base: int
    offset: int


@dataclass(frozen=True)
class Layout:
    """The memory of one rank.

    Attributes
    ----------
    edges : sequence of int
        Where in the vector each chunk begins, in bytes, and the end of the last one.
    home : callable
        ``home(chunk)`` is the place where the chunk's value is received and combined.
    begin : callable
        ``begin(chunk)`` is the place where the chunk's value is before the first step.
    end : callable
        ``end(chunk)`` is the place where it must be at last; None if nowhere in particular.
    scratch : int
        Bytes of scratch that the homes take, from its beginning.
    """

    edges: Sequence[int]
    home: Callable[[int], Place]
    begin: Callable[[int], Place]
    end: Callable[[int], Place | None]
    scratch: int = 0


class Shape(NamedTuple):
    """What a layout depends on.

    Attributes
    ----------
    rank, size, root : int
    chunks : int
        Of the schedule.
    counts : tuple of int
        Elements of each rank's block where the vector is made of blocks; else one number, the elements
        of the vector.
    itemsize : int
        Bytes in an element.
    in_place : bool
        Whether what the rank contributes is in the receive buffer.
    near : frozenset of int
        The ranks of the same node.
    """

    rank: int
    size: int
    root: int
    chunks: int
    counts: tuple[int, ...]
    itemsize: int
    in_place: bool
    near: frozenset[int] = frozenset()

    def own(self) -> range:
        """Give the chunks of this rank's block."""
        per_block = self.chunks // self.size
        return range(self.rank * per_block, (self.rank + 1) * per_block)

    def edges(self) -> list[int]:
        """Cut the vector, or each block of it, into chunks."""
        parts = len(self.counts)
        lengths = [bounds(count, self.chunks // parts) for count in self.counts]
        starts = accumulate(self.counts, initial=0)
        inner = [start + edge for start, block in zip(starts, lengths, strict=False) for edge in block[:-1]]
        return [edge * self.itemsize for edge in [*inner, sum(self.counts)]]


def of_vector(shape: Shape) -> Layout:
    """Lay out all-reduce and scans: the whole vector in both buffers."""
    return _linear(shape, begin=RECVBUF if shape.in_place else SENDBUF, home=RECVBUF)


def of_exscan(shape: Shape) -> Layout:
    """Lay out exscan: the receive buffer of rank 0 is left alone."""
    return (
        dataclasses.replace(of_vector(shape), end=lambda chunk: None) if shape.rank == 0 else of_vector(shape)
    )


def of_reduce(shape: Shape) -> Layout:
    """Lay out reduce: only the root has a receive buffer."""
    if shape.rank == shape.root:
        return of_vector(shape)
    return _linear(shape, begin=SENDBUF, home=SCRATCH, end=range(0))


def of_bcast(shape: Shape) -> Layout:
    """Lay out broadcast: one buffer, given as the receive buffer."""
    return _linear(shape, begin=RECVBUF, home=RECVBUF)


def of_allgather(shape: Shape) -> Layout:
    """Lay out all-gather: a block in the send buffer, the vector in the receive buffer."""
    if shape.in_place:
        return _linear(shape, begin=RECVBUF, home=RECVBUF)
    return _linear(shape, begin=SENDBUF, home=RECVBUF, block_in=SENDBUF)


def of_gather(shape: Shape) -> Layout:
    """Lay out gather: as all-gather at the root; the others pass on what is not theirs."""
    if shape.rank == shape.root:
        return of_allgather(shape)
    return _linear(shape, begin=SENDBUF, home=SCRATCH, block_in=SENDBUF, end=range(0))


def of_reduce_scatter(shape: Shape) -> Layout:
    """Lay out reduce-scatter: the vector in the send buffer, a block in the receive buffer.

    In place the vector is in the receive buffer, and the block goes to its beginning.
    """
    begin, home = (RECVBUF, RECVBUF) if shape.in_place else (SENDBUF, SCRATCH)
    return _linear(shape, begin=begin, home=home, block_in=RECVBUF, end=shape.own())


def of_scatter(shape: Shape) -> Layout:
    """Lay out scatter: the vector in the root's send buffer, a block in every receive buffer.

    In place the root's own block stays where it is.
    """
    end = range(0) if shape.in_place else shape.own()
    return _linear(shape, begin=SENDBUF, home=SCRATCH, block_in=RECVBUF, end=end)


def of_alltoall(shape: Shape) -> Layout:
    """Lay out all-to-all: chunk ``s * size + d`` goes from rank s to rank d.

    Chunks on their way through a rank are held by the distance that they go, ``d - s`` modulo size: the
    algorithms that pass chunks on have at most one of each distance on a rank.
    """
    rank, size = shape.rank, shape.size
    (count,) = set(shape.counts)
    block = count * shape.itemsize

    def begin(chunk: int) -> Place:
        return Place(SENDBUF, chunk % size * block)

    def home(chunk: int) -> Place:
        source, target = divmod(chunk, size)
        if target == rank:
            return Place(RECVBUF, source * block)
        return Place(SCRATCH, (target - source) % size * block)

    def end(chunk: int) -> Place | None:
        return Place(RECVBUF, chunk // size * block) if chunk % size == rank else None

    return Layout([chunk * block for chunk in range(size * size + 1)], home, begin, end, size * block)


LAYOUTS: dict[str, Callable[[Shape], Layout]] = {
    "allreduce": of_vector,
    "scan": of_vector,
    "exscan": of_exscan,
    "barrier": of_vector,
    "reduce": of_reduce,
    "bcast": of_bcast,
    "allgather": of_allgather,
    "gather": of_gather,
    "reduce_scatter": of_reduce_scatter,
    "scatter": of_scatter,
    "alltoall": of_alltoall,
}


def _linear(
    shape: Shape, *, begin: int, home: int, block_in: int | None = None, end: range | None = None
) -> Layout:
    """Lay out a vector that is contiguous in every memory that holds it.

    Parameters
    ----------
    begin, home : int
        The bases where chunks are at first, and where they are received and combined.
    block_in : int, optional
        The base that holds, at the end or from the beginning, nothing but this rank's block.
    end : range, optional
        The chunks that must be in the receive buffer at the end; all of them by default.
    """
    edges = shape.edges()
    shift = {block_in: edges[shape.own().start]} if block_in is not None else {}
    last = range(shape.chunks) if end is None else end

    def place(base: int, chunk: int) -> Place:
        return Place(base, edges[chunk] - shift.get(base, 0))

    whole = home == RECVBUF and block_in == RECVBUF  # in place the vector is there, and then the block
    return Layout(
        edges,
        home=lambda chunk: Place(home, edges[chunk]) if whole else place(home, chunk),
        begin=lambda chunk: Place(begin, edges[chunk]) if whole else place(begin, chunk),
        end=lambda chunk: place(RECVBUF, chunk) if chunk in last else None,
        scratch=edges[-1] if home == SCRATCH else 0,
    )
