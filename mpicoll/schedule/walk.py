"""All ranks' way through a schedule, in lockstep with their messages and without any data.

Every send is synchronous: it is over when its receive is. So what gets to the end here gets to the
end whatever an MPI library buffers.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from .moves import Run
from .schedule import Schedule, Step


class ProofError(ValueError):
    """A schedule is wrong, and where."""


class Posted(NamedTuple):
    """A rank has started all moves of a step; what it sends is fixed now."""

    rank: int
    step: int
    moves: Step


class Message(NamedTuple):
    """One run of slots on its way; `round` is one more than the latest round before it on both sides."""

    round: int
    source: int
    target: int
    sent: Run
    received: Run
    combined: bool


class Finished(NamedTuple):
    """All messages of a rank's step are through; its receives and local moves take effect now."""

    rank: int
    step: int
    moves: Step
    round: int


Event: TypeAlias = Posted | Message | Finished


class _Half(NamedTuple):
    """One side of a message."""

    kind: str
    run: Run
    step: int
    part: tuple[int, int]  # which run of how many in its move


def walk(schedule: Schedule) -> Iterator[Event]:
    """Yield what happens, in an order that respects every dependence.

    The n-th message from a to b is the n-th receive from a that b posts. Steps count from 1 and a
    rank's round is that of its latest message, 0 before the first.

    Raises
    ------
    ProofError
        If a rank waits for ever, the two sides of a message name different chunks, or a move is
        malformed.
    """
    programs = [schedule.steps(rank) for rank in range(schedule.size)]
    current = [Posted(rank, 0, ()) for rank in range(schedule.size)]
    open_messages = [0] * schedule.size
    before = [0] * schedule.size  # round of the latest message of the steps that are over
    latest = [0] * schedule.size  # the same, this step included
    unmatched: dict[tuple[int, int], deque[_Half]] = {}  # (source, target): sends, or receives

    def finish(rank: int) -> Finished:
        before[rank] = latest[rank]
        ready.append(rank)
        return Finished(*current[rank], before[rank])

    ready = deque(range(schedule.size))
    while ready:
        rank = ready.popleft()
        number = current[rank].step + 1
        try:
            step = next(programs[rank], None)
        except ValueError as error:
            raise ProofError(f"{schedule.name}: rank {rank}, step {number}: {error}") from error
        if step is None:
            continue
        current[rank] = posted = Posted(rank, number, step)
        yield posted
        messages = [
            (move, run, (number_of_run, len(move.chunks)))
            for move in step
            if move.source is None
            for number_of_run, run in enumerate(move.chunks, 1)
        ]
        open_messages[rank] = len(messages)
        for move, run, part in messages:
            half = _Half(move.kind, run, number, part)
            pair = (rank, move.peer) if move.kind == "send" else (move.peer, rank)
            others = unmatched.setdefault(pair, deque())
            if not others or (others[0].kind == "send") == (move.kind == "send"):
                others.append(half)
                continue
            sent, received = (half, others.popleft()) if move.kind == "send" else (others.popleft(), half)
            _check_sides(schedule, *pair, sent, received)
            message_round = 1 + max(before[rank], before[move.peer])
            yield Message(message_round, *pair, sent.run, received.run, received.kind == "reduce")
            for side in pair:
                latest[side] = max(latest[side], message_round)
                open_messages[side] -= 1
            if not open_messages[move.peer]:
                yield finish(move.peer)
        if not open_messages[rank]:
            yield finish(rank)

    if any(unmatched.values()):
        raise ProofError(_stuck(schedule, unmatched))


def name_chunks(run: Run, chunks: int) -> str:
    """Name a run of slots for people, such as ``3``, ``0-1`` or, in scratch, ``s2``."""
    start, stop = run
    prefix, offset = ("", 0) if stop <= chunks else ("s", chunks)
    if stop - start == 1:
        return f"{prefix}{start - offset}"
    return f"{prefix}{start - offset}-{stop - 1 - offset}"


def _chunks(run: Run, chunks: int) -> str:
    return f"chunk{'s' if run[1] - run[0] > 1 else ''} {name_chunks(run, chunks)}"


def _check_sides(schedule: Schedule, source: int, target: int, sent: _Half, received: _Half) -> None:
    """Both sides of a message must name the same chunks, up to which vector holds them, in like moves."""
    (start, stop), (to, end) = sent.run, received.run
    if stop - start != end - to or (start - to) % schedule.chunks:
        raise ProofError(
            f"{schedule.name}: rank {source} in step {sent.step} sends "
            f"{_chunks(sent.run, schedule.chunks)} to rank {target}, "
            f"which in step {received.step} expects {_chunks(received.run, schedule.chunks)}"
        )
    if sent.part != received.part:
        raise ProofError(
            f"{schedule.name}: rank {source} in step {sent.step} sends "
            f"{_chunks(sent.run, schedule.chunks)} as part {sent.part[0]} of {sent.part[1]} of a move "
            f"to rank {target}, which in step {received.step} expects part {received.part[0]} of "
            f"{received.part[1]}"
        )


def _stuck(schedule: Schedule, unmatched: dict[tuple[int, int], deque[_Half]]) -> str:
    """Say who waits for whom: for a rank that is through, or around a circle."""
    waits: dict[int, list[tuple[int, str]]] = {}  # rank: whom it waits for, and how that reads
    for (source, target), halves in unmatched.items():
        for kind, run, step, _ in halves:
            chunks = _chunks(run, schedule.chunks)
            if kind == "send":
                text = f"rank {source} in step {step} waits to send {chunks} to rank {target}"
                waits.setdefault(source, []).append((target, text))
            else:
                text = f"rank {target} in step {step} waits to receive {chunks} from rank {source}"
                waits.setdefault(target, []).append((source, text))
    for peer, text in (wait for those in waits.values() for wait in those):
        if peer not in waits:
            return f"{schedule.name}: {text}, which is through"
    rank, path = min(waits), []
    while rank not in path:
        path.append(rank)
        rank = waits[rank][0][0]
    circle = path[path.index(rank) :]
    return f"{schedule.name}: deadlock: " + ", ".join(waits[rank][0][1] for rank in circle)
