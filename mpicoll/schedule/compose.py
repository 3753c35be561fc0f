"""Larger schedules from smaller ones. One after the other is Python's own ``yield from``."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from .moves import Move, Scratch, Spec, recv, resolve, send, slots
from .schedule import Step, Steps, moves_of


def together(*parts: Steps) -> Iterator[Step]:
    """Merge schedules turn by turn: the first steps of all become one step, and so on."""
    for turn in zip_longest(*parts, fillvalue=()):
        yield tuple(move for step in turn for move in moves_of(step))


def mirrored(steps: Steps, receive: Callable[[int, Spec], Move] = recv) -> Iterator[Step]:
    """Run a schedule backwards: last step first, each receive a send and each send a receive.

    A reduce-scatter becomes the all-gather that returns each chunk the way it came. With
    ``receive=reduce`` an all-gather becomes a reduce-scatter.

    Parameters
    ----------
    steps : iterable of steps
        Without local moves.
    receive : callable
        :func:`~mpicoll.schedule.moves.recv` or :func:`~mpicoll.schedule.moves.reduce`: what
        becomes of a send.
    """
    for step in reversed([moves_of(step) for step in steps]):
        yield tuple(
            receive(move.peer, move.chunks) if move.kind == "send" else send(move.peer, move.chunks)
            for move in reversed(step)
        )


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
        A schedule that uses scratch cannot be mapped onto other chunks.
    """

    def widen(spec: Spec) -> Spec:
        if chunks is None:
            return spec
        if isinstance(spec, Scratch):  # its slots would have to be widened too
            raise TypeError("a schedule that uses scratch cannot be mapped onto other chunks")
        runs = resolve(spec, len(chunks), 0)
        # a range stays one, as thousands of chunks would take long to name
        return (
            [chunks[slice(*run)] for run in runs]
            if isinstance(chunks, range)
            else [chunks[slot] for slot in slots(runs)]
        )

    for step in steps:
        yield tuple(
            move._replace(
                peer=move.peer if ranks is None or move.source is not None else ranks[move.peer],
                chunks=widen(move.chunks),
                source=None if move.source is None else widen(move.source),
            )
            for move in moves_of(step)
        )
