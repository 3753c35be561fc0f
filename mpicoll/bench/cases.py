"""What a rank gives to a collective, and what it must find afterwards, known without MPI.

A buffer is described by a *pattern*: an array with one row for each of its blocks, all equally long. Each
block repeats its row from the beginning as often as it takes, so a pattern is never larger than its buffer,
and has at most a period for each block.

Every rank gives the vector that repeats its period; where all ranks' blocks make up the vector, and a rank
gives one of them, it gives the beginning of its own. Blocks are told apart by the rank that gave them, and
by where they begin in a period.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import data
from .data import Array
from .forms import FORMS


@dataclass(frozen=True)
class Case:
    """One rank's part in a collective.

    Attributes
    ----------
    collective : str
        One of :data:`~mpicoll.bench.forms.FORMS`.
    rank, size : int
        This rank, of so many.
    count : int
        Elements of the vector: where it is made of blocks, of those of all ranks together.
    dtype : dtype
        Of the elements.
    op : str
        Its name in MPI; empty where nothing is combined.
    root : int
        The root, where there is one.
    in_place : bool
        Whether the vector is given in the receive buffer; where there is a root, only there.
    seed : int
        Of the data.
    """

    collective: str
    rank: int
    size: int
    count: int
    dtype: np.dtype[Any]
    op: str = "SUM"
    root: int = 0
    in_place: bool = False
    seed: int = 0

    @property
    def block(self) -> int:
        """Elements of a block; of the vector where there are none."""
        return self.count // FORMS[self.collective].blocks(self.size)

    @property
    def at_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root

    @property
    def inside(self) -> bool:
        """Whether this rank passes MPI_IN_PLACE."""
        return self.in_place and (self.at_root or not FORMS[self.collective].rooted)

    @property
    def sent(self) -> int:
        """Elements of the send buffer; 0 if there is none."""
        match self.collective:
            case "barrier" | "bcast":
                return 0
            case "scatter":
                return self.count if self.at_root else 0
            case "allgather" | "gather":
                return 0 if self.inside else self.block
        return 0 if self.inside else self.count

    @property
    def received(self) -> int:
        """Elements of the receive buffer; of the only one in a broadcast."""
        match self.collective:
            case "scatter":
                return self.block
            case "reduce_scatter":
                return self.count if self.inside else self.block
        return self.count

    @cached_property
    def given(self) -> Array:
        """The pattern of this rank's vector, or of its own block where it gives no more."""
        gives_block = self.collective in ("allgather", "gather")
        return self._period(self.rank)[None, : self.block if gives_block else self.count]

    @cached_property
    def expected(self) -> Array | None:
        """The pattern of what a call leaves at the front of the receive buffer.

        None where the buffer means nothing to the call, and must stay as it was.
        """
        match self.collective:
            case "allgather":
                return self._gathered()
            case "gather" if self.at_root:
                return self._gathered()
            case "alltoall":
                return np.array([self._own_block(self._period(rank)) for rank in range(self.size)])
            case "bcast":
                return self._period(self.root)[None, : self.count]
            case "scatter" if not self.inside:
                return self._own_block(self._period(self.root))[None]
            case "allreduce":
                return self._combined(self.size)
            case "reduce" if self.at_root:
                return self._combined(self.size)
            case "reduce_scatter":
                return self._own_block(self._reduced(self.size))[None]
            case "scan":
                return self._combined(self.rank + 1)
            case "exscan" if self.rank > 0:
                return self._combined(self.rank)
        return None

    def place(self, received: Array) -> Array:
        """Give the part of the receive buffer that holds the vector before the call; perhaps nothing."""
        match self.collective:
            case "bcast" if self.at_root:
                return received
            case "allgather" | "gather" if self.inside:
                return received[self.rank * self.block :][: self.block]
            case "scatter":
                return received[:0]
        return received if self.inside else received[:0]

    def reset(self, received: Array, poisoned: bool = True) -> None:
        """Make a receive buffer ready for a call: what is given in it, and poison elsewhere."""
        place = self.place(received)
        if poisoned and len(place) < len(received):
            data.poison(received)
        fill(place, self.given)

    def count_wrong(self, received: Array) -> int:
        """Return how many elements of a receive buffer are not as they must be after a call."""
        if self.expected is None:
            place = self.place(received)
            return _differing(place, self.given) if len(place) else data.count_touched(received)
        return _differing(received[: self.block * len(self.expected)], self.expected)

    def _period(self, rank: int) -> Array:
        return data.period(rank, self.size, self.dtype, self.op, self.seed)

    def _combined(self, ranks: int) -> Array:
        """Give the pattern of the first ranks' vectors, combined."""
        return self._reduced(ranks)[None, : self.count]

    def _reduced(self, ranks: int) -> Array:
        return data.reduced_period(self.size, self.dtype, self.op, self.seed, ranks=ranks)

    def _gathered(self) -> Array:
        return np.array([self._period(rank)[: self.block] for rank in range(self.size)])

    def _own_block(self, period: Array) -> Array:
        """Give what this rank's block of a vector repeats."""
        return np.roll(period, -self.rank * self.block)[: self.block]


def fill(buffer: Array, pattern: Array) -> None:
    """Write what a pattern describes."""
    for part, values in _parts(buffer, pattern):
        part[:] = values


def _differing(buffer: Array, pattern: Array) -> int:
    return sum(data.count_wrong(part, values) for part, values in _parts(buffer, pattern))


def _parts(buffer: Array, pattern: Array) -> Iterator[tuple[Array, Array]]:
    """Pair the parts of a buffer with what its pattern says of them."""
    blocks = buffer.reshape(len(pattern), -1)
    step = pattern.shape[1] or 1  # a barrier's are empty
    for start in range(0, blocks.shape[1], step):
        part = blocks[:, start : start + step]
        yield part, pattern[:, : part.shape[1]]
