"""What each collective promises: what a chunk holds before, and what it must hold after.

A contribution has a number, and a set of contributions is the bits of an integer. One collective is
one entry of :data:`COLLECTIVES`; the proof knows nothing else about it.
"""

from collections.abc import Callable
from typing import NamedTuple


class Place(NamedTuple):
    """One chunk of one rank's vector."""

    rank: int
    chunk: int
    size: int
    chunks: int


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
    """

    before: Callable[[Place], int | None]
    after: Callable[[Place], int | None]


COLLECTIVES = {
    "allreduce": Collective(
        before=lambda place: place.rank,
        after=lambda place: (1 << place.size) - 1,
    ),
}
