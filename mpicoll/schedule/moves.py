"""What an algorithm yields: moves of chunks, and the sets of chunks that they name.

A chunk is named by its number. Chunks ``0 .. chunks-1`` are the vector itself; an algorithm that
must hold more than one vector at a time names the rest with :func:`scratch`, and internally those
slots simply continue the numbering: scratch vector ``v`` holds chunk ``c`` at slot
``(1 + v) * chunks + c`` and has that chunk's size.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias



class Scratch(NamedTuple):
    """Slots beyond the vector."""

    slots: int | range | Sequence[int]


Spec: TypeAlias = int | range | Sequence[int] | Scratch
Runs: TypeAlias = tuple[tuple[int, int], ...]  # half-open (start, stop) runs of slots, in order


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
    chunks: Spec | Runs
    source: Spec | Runs | None = None


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


def scratch(slots: int | range | Sequence[int]) -> Scratch:
    """Name slots beyond the vector, numbered from 0."""
    return Scratch(slots)


def resolve(spec: Spec, chunks: int, vectors: int) -> Runs:
    """Turn a spec into runs of slots: modulo `chunks` in the vector, modulo the rest in scratch.

    A contiguous range stays one run, or two where it wraps around, however long it is.
    """
    if isinstance(spec, Scratch):
        return tuple(
            (start + chunks, stop + chunks) for start, stop in _runs(spec.slots, chunks * vectors)
        )
    return _runs(spec, chunks)


def slots(runs: Runs) -> Iterable[int]:
    """Every slot of `runs`, in order."""
    for start, stop in runs:
        yield from range(start, stop)


def _runs(spec: int | range | Sequence[int], modulus: int) -> Runs:
    if isinstance(spec, range) and spec.step == 1:
        length = len(spec)
        if length == 0:
            return ()
        if length > modulus:
            raise ValueError(f"{length} chunks named, but there are {modulus}")
        start = spec.start % modulus
        stop = start + length
        return ((start, stop),) if stop <= modulus else ((start, modulus), (0, stop - modulus))
    if isinstance(spec, Iterable):
        runs: list[tuple[int, int]] = []
        for number in spec:
            slot = number % modulus
            if runs and runs[-1][1] == slot:
                runs[-1] = (runs[-1][0], slot + 1)
            else:
                runs.append((slot, slot + 1))
        return tuple(runs)
    slot = spec % modulus
    return ((slot, slot + 1),)
