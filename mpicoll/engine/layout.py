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
        of the vector. In an all-to-all, what this rank sends to each. Where only the root and the owner
        handle a block, another rank need not know its length, and may say 0.
    itemsize : int
        Bytes in an element.
    in_place : bool
        Whether what the rank contributes is in the receive buffer.
    near : frozenset of int
        The ranks of the same node.
    displacements : tuple of int, optional
        Where each block begins in the buffer that holds those of all ranks, in elements: what a gather or
        an all-gather receives, and what a scatter, a reduce-scatter or an all-to-all sends. One after the
        other if None; else in any order, with gaps, and where they are sent they may overlap.
    incoming : tuple of int, optional
        Elements that this rank receives from each in an all-to-all; `counts` if None. What it keeps for
        itself is the same in both.
    incoming_displacements : tuple of int, optional
        Where these begin in the receive buffer, as `displacements`.
    """

    rank: int
    size: int
    root: int
    chunks: int
    counts: tuple[int, ...]
    itemsize: int
    in_place: bool
    near: frozenset[int] = frozenset()
    displacements: tuple[int, ...] | None = None
    incoming: tuple[int, ...] | None = None
    incoming_displacements: tuple[int, ...] | None = None

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

    def displaced(self, edges: list[int]) -> list[int]:
        """Give where chunks begin in the buffer that holds all ranks' blocks, in bytes."""
        if self.displacements is None:
            return edges
        per_block = self.chunks // self.size
        shifts = [
            displacement * self.itemsize - edge
            for displacement, edge in zip(self.displacements, edges[:-1:per_block], strict=True)
        ]
        return [edge + shifts[chunk // per_block] for chunk, edge in enumerate(edges[:-1])]


def of_vector(shape: Shape) -> Layout:
    """Lay out all-reduce and scans: the whole vector in both buffers."""
    edges = shape.edges()
    home = _at(RECVBUF, edges)
    return Layout(edges, home, begin=home if shape.in_place else _at(SENDBUF, edges), end=home)


def of_exscan(shape: Shape) -> Layout:
    """Lay out exscan: the receive buffer of rank 0 is left alone."""
    return dataclasses.replace(of_vector(shape), end=_nowhere) if shape.rank == 0 else of_vector(shape)


def of_reduce(shape: Shape) -> Layout:
    """Lay out reduce: only the root has a receive buffer."""
    if shape.rank == shape.root:
        return of_vector(shape)
    edges = shape.edges()
    return Layout(edges, _at(SCRATCH, edges), _at(SENDBUF, edges), _nowhere, scratch=edges[-1])


def of_bcast(shape: Shape) -> Layout:
    """Lay out broadcast: one buffer, given as the receive buffer.

    What comes back to the root, in algorithms where it does, goes to scratch: its buffer may be read-only.
    """
    edges = shape.edges()
    buffer = _at(RECVBUF, edges)
    if shape.rank == shape.root:
        return Layout(edges, _at(SCRATCH, edges), buffer, _nowhere, scratch=edges[-1])
    return Layout(edges, buffer, buffer, buffer)


def of_allgather(shape: Shape) -> Layout:
    """Lay out all-gather: a block in the send buffer, all ranks' blocks in the receive buffer."""
    edges = shape.edges()
    home = _at(RECVBUF, shape.displaced(edges))
    begin = home if shape.in_place else _at(SENDBUF, edges, edges[shape.own().start])
    return Layout(edges, home, begin, end=home)


def of_gather(shape: Shape) -> Layout:
    """Lay out gather: as all-gather at the root; the others pass on what is not theirs."""
    if shape.rank == shape.root:
        return of_allgather(shape)
    edges = shape.edges()
    begin = _at(SENDBUF, edges, edges[shape.own().start])
    return Layout(edges, _at(SCRATCH, edges), begin, _nowhere, scratch=edges[-1])


def of_reduce_scatter(shape: Shape) -> Layout:
    """Lay out reduce-scatter: the vector in the send buffer, a block in the receive buffer.

    In place the vector is in the receive buffer, and the block goes to its beginning; the rest is left alone,
    as the MPI libraries do.
    """
    edges, own = shape.edges(), shape.own()
    end = _only(own, _at(RECVBUF, edges, edges[own.start]))
    begin = _at(RECVBUF if shape.in_place else SENDBUF, shape.displaced(edges))
    return Layout(edges, _at(SCRATCH, edges), begin, end, scratch=edges[-1])


def of_scatter(shape: Shape) -> Layout:
    """Lay out scatter: all ranks' blocks in the root's send buffer, a block in every receive buffer.

    In place the root's own block stays where it is.
    """
    edges, own = shape.edges(), shape.own()
    begin = _at(SENDBUF, shape.displaced(edges))
    end = _nowhere if shape.in_place else _only(own, _at(RECVBUF, edges, edges[own.start]))
    return Layout(edges, _at(SCRATCH, edges), begin, end, scratch=edges[-1])


def of_alltoall(shape: Shape) -> Layout:
    """Lay out all-to-all: chunk ``s * size + d`` goes from rank s to rank d.

    Chunks on their way through a rank are held by the distance that they go, ``d - s`` modulo size: the
    algorithms that pass chunks on have at most one of each distance on a rank. They need chunks that are
    all of one length; otherwise a rank knows only those that it sends and receives.
    """
    rank, size, counts = shape.rank, shape.size, shape.counts
    incoming = counts if shape.incoming is None else shape.incoming
    passing = counts[0] * shape.itemsize if len({*counts, *incoming}) == 1 else 0
    lengths = [passing] * size**2
    lengths[rank * size : (rank + 1) * size] = [count * shape.itemsize for count in counts]
    lengths[rank::size] = [count * shape.itemsize for count in incoming]
    sent = _starts(counts, shape.displacements, shape.itemsize)
    received = _starts(incoming, shape.incoming_displacements, shape.itemsize)

    def home(chunk: int) -> Place:
        source, target = divmod(chunk, size)
        if target == rank:
            return Place(RECVBUF, received[source])
        return Place(SCRATCH, (target - source) % size * passing)

    return Layout(
        list(accumulate(lengths, initial=0)),
        home,
        begin=lambda chunk: Place(SENDBUF, sent[chunk % size]),
        end=lambda chunk: home(chunk) if chunk % size == rank else None,
        scratch=size * passing,
    )


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


def _at(base: int, offsets: Sequence[int], start: int = 0) -> Callable[[int], Place]:
    """Give the places of chunks in a buffer that begins at `start`."""
    return lambda chunk: Place(base, offsets[chunk] - start)


def _only(chunks: range, places: Callable[[int], Place]) -> Callable[[int], Place | None]:
    return lambda chunk: places(chunk) if chunk in chunks else None


def _nowhere(chunk: int) -> None:
    """Give no place."""


def _starts(counts: Sequence[int], displacements: Sequence[int] | None, itemsize: int) -> list[int]:
    """Where blocks begin, in bytes."""
    starts = list(accumulate(counts, initial=0))[:-1] if displacements is None else displacements
    return [start * itemsize for start in starts]
