"""From one rank's part of a schedule to a program that goes through shared memory where it can.

What goes to a rank of the same node is staged (see :mod:`mpicoll.engine.staging`) and published, and the
receiver awaits that and reads it where it is: a receive copies nothing, and the value is from then on in the
sender's stage; a receive-and-combine has it as an operand. What will be staged later is combined, or received
from another node, straight into the stage. A result goes to where it must be as soon as nothing will change
it any more and those who wait for it can read it.

Other ranks get messages, all of a step posted at once, and the program never blocks in MPI.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..schedule.moves import Move, slots
from ..schedule.schedule import Schedule, Step
from .layout import Place, Shape
from .messages import TAKING, Limits, Lowering, Piece
from .program import (
    AWAIT,
    COMBINE_STREAM,
    LINE,
    PIECE_BYTES,
    PUBLISH,
    RECVBUF,
    SENDBUF,
    STREAM,
    Program,
)
from .staging import Staged, stage


class Regions(NamedTuple):
    """The parts of a node's window.

    Attributes
    ----------
    numbers : mapping of int to int
        Of each rank of the node, from 0.
    stride : int
        Bytes from the region of one rank to that of the next.
    stream : bool
        Whether results are too long to stay in a cache, and go past it.
    """

    numbers: Mapping[int, int]
    stride: int
    stream: bool = False


class Sharing(Lowering):
    """The program so far, where the values are, and what is staged."""

    takes_turns = False  # all segments are posted at once
    in_lines = True  # whether a few bytes are staged with the counter

    def __init__(self, schedule: Schedule, shape: Shape, limits: Limits, window: Any) -> None:
        super().__init__(schedule, shape, limits)
        self.window, self.numbers = window, window.numbers
        self.stagings = {
            rank: stage(schedule, rank, self.numbers, self._length, self.in_lines) for rank in self.numbers
        }
        self.own = self.stagings[shape.rank]
        self.version: Counter[int] = Counter()
        self.staged: set[tuple[int, int]] = set()  # slots and versions that are in the stage
        self.awaited: Counter[int] = Counter()  # the step of each peer that was waited for
        self.taken: Counter[int] = Counter()  # receives from each peer
        self.number = 0  # of the step

    def step(self, step: Step) -> None:
        """Add a step."""
        self.number += 1
        outgoing, incoming = [[move for move in step if move.kind in kinds] for kinds in (("send",), TAKING)]
        self._publish([move for move in outgoing if move.peer in self.numbers])
        sends, used = self._outgoing([move for move in outgoing if move.peer not in self.numbers])
        pieces, _ = self._incoming(incoming, [(place, nbytes) for _, place, nbytes in sends], used)
        self._both(sends, pieces, incoming)
        for move in step:
            if move.kind in ("copy", "combine"):
                self._local(move)

    def finish(self) -> Program:
        """Add what is left to do after the last step, and give the program."""
        staged = max(staging.nbytes for staging in self.stagings.values())
        return super().finish()._replace(staged=staged)

    def _publish(self, moves: list[Move]) -> None:
        """Stage what goes to ranks of the node, and tell them."""
        named = dict.fromkeys(slot for move in moves for slot in slots(move.chunks))
        new = [slot for slot in named if (slot, self.version[slot]) not in self.staged]
        for nbytes, place, value in self._merged(new, self._place_staged, self._value):
            self._copy(place, value, nbytes)
        self.staged.update((slot, self.version[slot]) for slot in new)
        if any(self._length(slot) for slot in new):
            self._emit(PUBLISH, *self._counter(self.rank), self.number)
        self._settle_early(new)

    def _both(self, sends: list[tuple[int, Place, int]], pieces: list[Piece], incoming: list[Move]) -> None:
        """Post all messages; take what comes by either way in the order of the moves."""
        posted = {id(piece): self._post(piece) for piece in pieces}
        for peer, place, nbytes in sends:
            self._send(peer, place, nbytes)
        for move in incoming:
            if move.peer in self.numbers:
                self._read(move)
                continue
            for piece in pieces:
                if piece.move is move:
                    self._arrived(piece, posted[id(piece)])
            self._settle(move)

    def _read(self, move: Move) -> None:
        """Receive from a rank of the node, without a copy."""
        sent = self.stagings[move.peer].sends[self.rank][self.taken[move.peer]]
        self.taken[move.peer] += 1
        named = list(slots(move.chunks))
        places = {slot: self._region(move.peer, staged) for slot, staged in zip(named, sent, strict=True)}
        steps = [staged.step for slot, staged in zip(named, sent, strict=True) if self._length(slot)]
        if steps and max(steps) > self.awaited[move.peer]:
            self.awaited[move.peer] = max(steps)
            self._emit(AWAIT, *self._counter(move.peer), max(steps), self.numbers[move.peer])
        if move.kind == "reduce":
            for nbytes, arrived, own, out in self._merged(
                named, places.__getitem__, self._value, self._target
            ):
                left, right = (arrived, own) if move.peer < self.rank else (own, arrived)
                self._combine(out, left, right, nbytes)
            self._settle(move)
        else:
            self._settle(move)
            self.places |= places
        self._settle_early(named)

    def _settle_early(self, named: Iterable[int]) -> None:
        """Copy to its end what nothing will change any more, and what nobody waits for."""
        final: dict[int, Place] = {}
        for slot in named:
            if slot < self.chunks and self.version[slot] == self.own.changes[slot]:
                end, begin = self.layout.end(slot), self.layout.begin(slot)
                key = slot, self.version[slot]
                # in place, the end may be where another chunk's value still is
                if end is None or (end != begin and end.base == begin.base):
                    continue
                if key not in self.own.versions or key in self.staged:
                    final[slot] = end
        for nbytes, end, value in self._merged(final, final.__getitem__, self._value):
            self._copy(end, value, nbytes)
        self.places |= final

    def _place_staged(self, slot: int) -> Place:
        return self._region(self.rank, self.own.versions[slot, self.version[slot]])

    def _region(self, rank: int, staged: Staged) -> Place:
        return Place(staged.base, self.numbers[rank] * self.window.stride + staged.offset)

    def _counter(self, rank: int) -> Place:
        return self._region(rank, Staged(LINE, 0, 0))

    def _merged(self, named: Iterable[int], *where: Callable[[int], Place]) -> Iterator[tuple[Any, ...]]:
        """Join slots that follow each other in every memory that `where` names; give length and places."""
        length = 0
        start: tuple[Place, ...] = ()
        for slot in named:
            places = tuple(w(slot) for w in where)
            if length and places == tuple(Place(p.base, p.offset + length) for p in start):
                length += self._length(slot)
                continue
            if length:
                yield length, *start
            length, start = self._length(slot), places
        if length:
            yield length, *start

    # -- what differs from messages ----------------------------------------------------------

    def _messages(self, move: Move) -> Iterator[tuple[Any, ...]]:
        return iter(()) if move.peer in self.numbers else super()._messages(move)

    def _target(self, slot: int) -> Place:
        staged = self.own.next(slot, self.version[slot] + 1)
        return self._home(slot) if staged is None else self._region(self.rank, staged)

    def _settle(self, move: Move) -> None:
        super()._settle(move)
        self.version.update(slots(move.chunks))

    def _local(self, move: Move) -> None:
        named, sources = list(slots(move.chunks)), list(slots(move.source))
        values = {slot: self._value(source) for slot, source in zip(named, sources, strict=True)}
        if move.kind == "copy" and all(value.base == SENDBUF for value in values.values()):
            self._settle(move)  # nothing changes the send buffer: no copy is needed
            self.places |= values
        else:
            super()._local(move)
        self._settle_early(named)

    def _copy(self, out: Place, source: Place, nbytes: int) -> None:
        if not self._streams(out, source):
            super()._copy(out, source, nbytes)
        elif nbytes and out != source:
            self._release(out, nbytes)
            self._emit(STREAM, *out, *source, nbytes)

    def _combine(self, out: Place, left: Place, right: Place, nbytes: int) -> None:
        if not self._streams(out, left, right) or self.itemsize > PIECE_BYTES:
            super()._combine(out, left, right, nbytes)
            return
        self._release(out, nbytes)
        self._emit(COMBINE_STREAM, *out, *left, *right, nbytes // self.itemsize, self.itemsize)

    def _streams(self, out: Place, *operands: Place) -> bool:
        """Whether what is written to the receive buffer is not read again there."""
        return self.window.stream and out.base == RECVBUF and all(place.base != RECVBUF for place in operands)
