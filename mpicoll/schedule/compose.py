"""Larger schedules from smaller ones. One after the other is Python's own ``yield from``."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, zip_longest

from .moves import Move, Scratch, Spec
from .schedule import Step, Steps


def together(*parts: Steps) -> Iterator[Step]:
    """Merge schedules turn by turn: the first steps of all become one step, and so on."""
    for turn in zip_longest(*parts, fillvalue=()):
        yield tuple(move for step in turn for move in _moves(step))


def mapped(
    steps: Steps,
    *,
    ranks: Sequence[int] | None = None,
    chunks: Sequence[int | range] | None = None,
) -> Iterator[Step]:
    """Run a schedule on a group of ranks, on some of the chunks, or both.

    Parameters
    ----------
    steps : iterable of steps
        Written for ranks ``0 .. len(ranks)-1`` and chunks ``0 .. len(chunks)-1``.
    ranks : sequence of int, optional
        The group: the inner schedule's rank ``i`` is rank ``ranks[i]``.
    chunks : sequence of int or range, optional
        The inner schedule's chunk ``i`` is ``chunks[i]``, itself one chunk or a range of them.
    """
    widen = _identity if chunks is None else _widener(chunks)
    for step in steps:
        yield tuple(
            Move(
                move.kind,
                move.peer if ranks is None or move.source is not None else ranks[move.peer],
                widen(move.chunks),
                None if move.source is None else widen(move.source),
            )
            for move in _moves(step)
        )


def _moves(step: Move | Step) -> Step:
    return (step,) if isinstance(step, Move) else step


def _identity(spec: Spec) -> Spec:
    return spec


def _widener(chunks: Sequence[int | range]) -> Callable[[Spec], Spec]:
    outer = [c if isinstance(c, range) else range(c, c + 1) for c in chunks]

    def widen(spec: Spec) -> Spec:
        if isinstance(spec, Scratch):
            raise TypeError("a schedule that uses scratch cannot be mapped onto other chunks")
        numbers = spec if isinstance(spec, Sequence) else (spec,)
        return _joined([outer[number % len(outer)] for number in numbers])

    return widen


def _joined(parts: list[range]) -> Spec:
    """One range where the parts follow each other, the list of all numbers otherwise."""
    if not parts:
        return range(0)
    if all(before.stop == after.start for before, after in pairwise(parts)):
        return range(parts[0].start, parts[-1].stop)
    return [number for part in parts for number in part]
