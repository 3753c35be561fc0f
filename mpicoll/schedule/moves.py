"""What an algorithm yields: moves of chunks, and the sets of chunks that they name.

A chunk is named by its number. Chunks ``0 .. chunks-1`` are the vector itself; an algorithm that
must hold more than one vector at a time names the rest with :func:`scratch`, and internally those
slots simply continue the numbering: scratch vector ``v`` holds chunk ``c`` at slot
``(1 + v) * chunks + c`` and has that chunk's size.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

Numbers: TypeAlias = int | range | Sequence[int | range]


class Scratch(NamedTuple):
    """Slots beyond the vector."""

    slots: Numbers


Spec: TypeAlias = Numbers | Scratch
Run: TypeAlias = tuple[int, int]  # half-open: from the first slot up to, not including, the second
Runs: TypeAlias = tuple[Run, ...]


class Move(NamedTuple):
    """One send, receive, or receive-and-combine with a peer, or one local copy or combine.

    Attributes
    ----------
    kind : str
        ``send``, ``recv``, ``reduce``, ``copy`` or ``combine``.
    peer : int
        The other rank; the rank itself for the local kinds.
    chunks : Spec or Runs
        The chunks sent, or written. A spec as the algorithm wrote it; runs of slots once a
        :class:`~mpicoll.schedule.schedule.Schedule` has resolved it.
    source : Spec or Runs or None
        The chunks that a local move reads.
    """

    kind: str
    peer: int
    chunks: Any
    source: Any = None


def send(peer: int, chunks: Spec) -> Move:
    """Send `chunks` to `peer`, as they were before the step."""
    return Move("send", peer, chunks)


def recv(peer: int, chunks: Spec) -> Move:
    """Receive `chunks` from `peer`; what they held is gone."""
    return Move("recv", peer, chunks)


def reduce(peer: int, chunks: Spec) -> Move:
    """Receive `chunks` from `peer` and combine them into ours.

    A lower rank's value becomes the left operand and a higher one's the right, so operands stay
    in rank order wherever the two cover neighbouring ranks.
    """
    return Move("reduce", peer, chunks)


def copy(chunks: Spec, source: Spec) -> Move:
    """Copy `source` to `chunks` on this rank, after the step's messages."""
    return Move("copy", -1, chunks, source)


def combine(chunks: Spec, source: Spec) -> Move:
    """Combine `chunks` (left operand) with `source` (right), after the step's messages."""
    return Move("combine", -1, chunks, source)


def scratch(slots: Numbers) -> Scratch:
    """Name slots beyond the vector, numbered from 0."""
    return Scratch(slots)


def resolve(spec: Spec, chunks: int, vectors: int) -> Runs:
    """Turn a spec into runs of slots: modulo `chunks` in the vector, modulo the rest in scratch.

    A contiguous range stays one run, or two where it wraps around, however long it is.

    Raises
    ------
    ValueError
        If a range names more chunks than there are, or scratch is named and there is none.
    """
    if not isinstance(spec, Scratch):
        return _runs(spec, chunks)
    if not vectors:
        raise ValueError("scratch named, but the schedule has none")
    return tuple((start + chunks, stop + chunks) for start, stop in _runs(spec.slots, chunks * vectors))


def slots(runs: Runs) -> Iterator[int]:
    """Every slot of `runs`, in order."""
    for start, stop in runs:
        yield from range(start, stop)


def _runs(numbers: Numbers, modulus: int) -> Runs:
    """Cut `numbers` into runs that do not wrap around, as few as keep the order."""
    if isinstance(numbers, int):
        return ((numbers % modulus, numbers % modulus + 1),)
    runs: list[Run] = []
    for first, length in _stretches(numbers):
        if length > modulus:
            raise ValueError(f"{length} chunks named, but there are {modulus}")
        start = first % modulus
        for run in ((start, min(start + length, modulus)), (0, start + length - modulus)):
            if run[0] >= run[1]:
                continue
            if runs and runs[-1][1] == run[0]:
                runs[-1] = (runs[-1][0], run[1])
            else:
                runs.append(run)
    return tuple(runs)


def _stretches(numbers: Numbers) -> Iterator[tuple[int, int]]:
    """Give the first number and the length of each stretch of consecutive numbers, as written."""
    if isinstance(numbers, range) and numbers.step == 1:
        yield numbers.start, len(numbers)
    elif isinstance(numbers, Iterable):
        for part in numbers:
            yield from _stretches(part)
    else:
        yield numbers, 1
