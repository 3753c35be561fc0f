"""Where ranks of one node stage what they send each other over shared memory.

Every rank has a region of the node's window: a *line*, the cache line of its step counter with room for a few
bytes of payload, and a *stage*. What a rank sends is copied to its own stage once, or computed there in the
first place, and its peers read it there. Each version of a chunk has memory of its own, so nothing that was
staged is overwritten in the same block, and no rank waits for its readers before the stage is used again.

Ranks tell each other nothing: where something is staged follows from the schedule, and a receiver works it
out for the sender as the sender does for itself.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..schedule.moves import Move, slots
from ..schedule.schedule import Schedule
from .program import LINE, PAYLOAD, PAYLOAD_BYTES, STAGE

ALIGNMENT = 64  # bytes


class Staged(NamedTuple):
    """A version of a slot: the base and the offset of its memory in its rank's region, and when it is there.

    Attributes
    ----------
    step : int
        The step, from 1, in which it is published.
    """

    base: int
    offset: int
    step: int


@dataclass
class Staging:
    """What one rank stages in a block.

    Attributes
    ----------
    sends : mapping of int to list of list
        For each peer, send by send in the order of the schedule, where each slot of the send is.
    versions : mapping of (int, int) to Staged
        The same by slot and version; a slot's value at first is version 0, each change gives the next.
    changes : mapping of int to int
        How often each slot is changed.
    nbytes : int
        Bytes of stage that are used.
    """

    sends: dict[int, list[list[Staged]]] = field(default_factory=lambda: defaultdict(list))
    versions: dict[tuple[int, int], Staged] = field(default_factory=dict)
    changes: Counter[int] = field(default_factory=Counter)
    nbytes: int = 0

    def next(self, slot: int, version: int) -> Staged | None:
        """Where the slot is staged next, in this version or a later one; None if it is not."""
        later = range(version, self.changes[slot] + 1)
        return next((self.versions[slot, v] for v in later if (slot, v) in self.versions), None)


def stage(
    schedule: Schedule,
    rank: int,
    near: Collection[int],
    length: Callable[[int], int],
    in_lines: bool = True,
) -> Staging:
    """Work out what a rank stages.

    Parameters
    ----------
    schedule : Schedule
    rank : int
    near : collection of int
        The ranks that it shares memory with.
    length : callable
        ``length(slot)`` is the slot's length in bytes, the same on all ranks.
    in_lines : bool
        Whether a few bytes may be in the line of the counter.
    """
    staging = Staging()
    for number, step in enumerate(schedule.steps(rank), 1):
        for move in step:
            if move.kind == "send" and move.peer in near:
                staging.sends[move.peer].append(list(_staged(staging, move, number, length, in_lines)))
        for move in step:
            if move.kind != "send":
                staging.changes.update(slots(move.chunks))
    return staging


def _staged(
    staging: Staging, move: Move, step: int, length: Callable[[int], int], in_lines: bool
) -> Iterator[Staged]:
    """Give the places of a send's slots, with memory for those that are not staged yet.

    The first thing to be staged goes into the line, where it fits: its readers then load one cache line.
    """
    keys = [(slot, staging.changes[slot]) for slot in slots(move.chunks)]
    new = sum(length(slot) for slot, version in keys if (slot, version) not in staging.versions)
    in_line = in_lines and not staging.versions and new <= PAYLOAD_BYTES
    # aligned only where that takes no more than as much again: blocks are made to fit
    alignment = ALIGNMENT if new >= ALIGNMENT else 1
    base, offset = (LINE, PAYLOAD) if in_line else (STAGE, -(-staging.nbytes // alignment) * alignment)
    for key in keys:
        if key not in staging.versions:
            staging.versions[key] = Staged(base, offset, step)
            offset += length(key[0])
        yield staging.versions[key]
    if new and not in_line:
        staging.nbytes = offset
