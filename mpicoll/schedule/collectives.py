"""What each collective promises: what a chunk holds before, and what it must hold after.

A contribution has a number, and a set of contributions is the bits of an integer. One collective is
one entry of :data:`COLLECTIVES`; the proof knows nothing else about it.

Where every rank has a block of its own, the chunks are the blocks of rank 0, rank 1, ..., equally many
for each, and the lengths of the blocks may be given by counts. In an all-to-all the chunks are the
blocks from rank 0 to all, then those from rank 1 to all, and so on.
"""

from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """One chunk of one rank's vector."""

    rank: int
    chunk: int
    size: int
    chunks: int
    root: int = 0

    def block(self, blocks: int) -> int:
        """Give the block that the chunk is in, of so many."""
        return self.chunk * blocks // self.chunks

    @property
    def owner(self) -> int:
        """The rank whose block the chunk is in, where there is one for each."""
        return self.block(self.size)

    @property
    def way(self) -> tuple[int, int]:
        """From which rank to which the chunk goes in an all-to-all."""
        source, target = divmod(self.block(self.size**2), self.size)
        return source, target


class Collective(NamedTuple):
    """What holds at a place before and after.

    Attributes
    ----------
    before : callable
        The number of the contribution that a place begins with; None if it holds nothing.
    after : callable
        The set of contributions that a place must end with, each exactly once; None if it may end
        with anything. All places of one chunk that must end with the same set, must end with the
        same bits.
    blocks : callable
        How many blocks the chunks make up for a number of ranks: there are equally many chunks in each.
    vectors : callable
        How many ranks' vectors the chunks make up. All ranks share one numbering, which in an
        all-to-all is that of all ranks' vectors.
    reduces : bool
        Whether an op combines contributions.
    idempotent : bool
        Whether the op may combine a contribution twice, such as a bitwise or. Then the order does not
        matter either.
    """

    before: Callable[[Place], int | None]
    after: Callable[[Place], int | None]
    blocks: Callable[[int], int] = lambda size: 1
    vectors: Callable[[int], int] = lambda size: 1
    reduces: bool = False
    idempotent: bool = False


def _own(place: Place) -> int:
    return place.rank


def _all(place: Place) -> int:
    return (1 << place.size) - 1


def _size(size: int) -> int:
    return size


COLLECTIVES = {
    "allgather": Collective(
        before=lambda place: place.owner if place.rank == place.owner else None,
        after=lambda place: 1 << place.owner,
        blocks=_size,
    ),
    "allreduce": Collective(before=_own, after=_all, reduces=True),
    "alltoall": Collective(
        before=lambda place: place.rank if place.rank == place.way[0] else None,
        after=lambda place: 1 << place.way[0] if place.rank == place.way[1] else None,
        blocks=lambda size: size**2,
        vectors=_size,
    ),
    "barrier": Collective(before=_own, after=_all, reduces=True, idempotent=True),
    "bcast": Collective(
        before=lambda place: place.root if place.rank == place.root else None,
        after=lambda place: 1 << place.root,
    ),
    "exscan": Collective(
        before=_own, after=lambda place: (1 << place.rank) - 1 if place.rank else None, reduces=True
    ),
    "gather": Collective(
        before=lambda place: place.owner if place.rank == place.owner else None,
        after=lambda place: 1 << place.owner if place.rank == place.root else None,
        blocks=_size,
    ),
    "reduce": Collective(
        before=_own, after=lambda place: _all(place) if place.rank == place.root else None, reduces=True
    ),
    "reduce_scatter": Collective(
        before=_own,
        after=lambda place: _all(place) if place.rank == place.owner else None,
        blocks=_size,
        reduces=True,
    ),
    "scan": Collective(before=_own, after=lambda place: (2 << place.rank) - 1, reduces=True),
    "scatter": Collective(
        before=lambda place: place.root if place.rank == place.root else None,
        after=lambda place: 1 << place.root if place.rank == place.owner else None,
        blocks=_size,
    ),
}
