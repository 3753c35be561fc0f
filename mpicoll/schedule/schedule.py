"""A schedule: every rank's steps, with the sizes that give them meaning."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .collectives import Place
from .moves import Move, resolve

Step: TypeAlias = tuple[Move, ...]
Steps: TypeAlias = Iterable[Move | Step]


@dataclass(frozen=True)
class Schedule:
    """The steps of every rank for one collective at one size.

    Attributes
    ----------
    collective : str
        What it computes, e.g. ``"allreduce"``; says what holds before and after.
    name : str
        The algorithm.
    size : int
        Number of ranks.
    chunks : int
        Number of nearly equal parts that the vector is cut into.
    generate : callable
        ``generate(rank)`` gives the rank's steps as the algorithm wrote them.
    vectors : int
        Scratch vectors that a rank holds beside its own.
    root : int
        The rank that the data comes from or goes to, where the collective has one.
    """

    collective: str
    name: str
    size: int
    chunks: int
    generate: Callable[[int], Steps]
    vectors: int = 0
    root: int = 0

    def places(self, rank: int) -> Iterator[Place]:
        """Give the places of `rank`'s chunks, in order."""
        return (Place(rank, chunk, self.size, self.chunks, self.root) for chunk in range(self.chunks))

    def steps(self, rank: int) -> Iterator[Step]:
        """Yield `rank`'s steps, their chunks resolved to runs of slots; empty steps included.

        A step that names nothing is kept: it holds the place of its turn, which is what lets two
        schedules be merged turn by turn and drawn on one time axis.
        """
        for step in self.generate(rank):
            yield tuple(self._resolved(move, rank) for move in moves_of(step))

    def _resolved(self, move: Move, rank: int) -> Move:
        runs = resolve(move.chunks, self.chunks, self.vectors)
        if move.source is None:
            if not 0 <= move.peer < self.size or move.peer == rank:
                raise ValueError(
                    f"{self.name}: rank {rank} of {self.size} cannot {move.kind} with rank {move.peer}"
                )
            return Move(move.kind, move.peer, runs)
        return Move(move.kind, rank, runs, resolve(move.source, self.chunks, self.vectors))


def moves_of(step: Move | Step) -> Step:
    """Give the moves of a step, which may have been written as a single move."""
    return (step,) if isinstance(step, Move) else step


def bounds(count: int, chunks: int) -> list[int]:
    """Where the chunks of a vector of `count` elements begin, and the end.

    Returns
    -------
    list of int
        ``chunks + 1`` element offsets. Lengths differ by one at most, the longer ones first.
    """
    length, longer = divmod(count, chunks)
    return [i * length + min(i, longer) for i in range(chunks + 1)]
