"""From one rank's part of a schedule to a program that sends messages.

Where a value is
    Nothing is copied at the start. Lowering keeps track of where a chunk's value is: where it began, or
    at home (see :mod:`mpicoll.engine.layout`). In an all-reduce the first
    receive-and-combine of a chunk receives into the receive buffer and combines it there with the
    operand in the send buffer. Only what arrives for a chunk whose value is at home needs scratch.

Segments
    A long message travels as segments, so that combining one overlaps receiving the next and the
    scratch for incoming data stays small enough for a cache. Where everything that a step receives
    comes from one peer, and need not wait for what the step sends, `AHEAD` segments of scratch are
    used in turn. Otherwise every receive is posted at once, as the proof's model demands: taking turns
    would make one message wait for another.

    Where nothing is combined there is nothing to overlap, and messages go whole; so do very long ones
    within a node: the libraries then copy straight from process to process
    (Intel MPI only then), nothing proceeds by itself meanwhile, and segments would not overlap anything.

Waiting
    A receive is waited for when its data is combined. A send is waited for when its memory is about
    to be overwritten, and at the end. That may be later than the schedule says, where a step is over
    when all its moves are, and is harmless: a rank that goes on earlier keeps nobody waiting.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..schedule.collectives import COLLECTIVES
from ..schedule.moves import Move, slots
from ..schedule.schedule import Schedule, Step
from .layout import LAYOUTS, Place, Shape
from .program import (
    COLUMNS,
    COMBINE,
    COPY,
    IRECV,
    ISEND,
    RECV,
    SCRATCH,
    SEND,
    SENDRECV,
    WAIT,
    Program,
)

SEGMENT = 1 << 19  # bytes; long messages are cut into segments no smaller than this
SEGMENTS = 64  # and into no more of them than this, as far as MESSAGE allows
WHOLE = 1 << 24  # bytes; within a node, messages from this size on are not cut (see above)
MESSAGE = 1 << 30  # bytes; no message is larger, since MPI's counts are C ints
TAKING = "recv", "reduce"
AHEAD = 4  # segments of scratch used in turn
ALIGNMENT = 64  # bytes


class Limits(NamedTuple):
    """Sizes of segments; see the constants. Shrunk, they send small vectors along the long paths."""

    segment: int = SEGMENT
    segments: int = SEGMENTS
    whole: int = WHOLE
    message: int = MESSAGE


LIMITS = Limits()


class Span(NamedTuple):
    """Bytes `start` to `stop` of the vector, or of the schedule's scratch vectors that follow it."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Length."""
        return self.stop - self.start


class Piece(NamedTuple):
    """A segment of an incoming message, the move that it belongs to, and where it lands."""

    move: Move
    spans: tuple[Span, ...]
    landing: Place

    @property
    def nbytes(self) -> int:
        """Length."""
        return sum(span.nbytes for span in self.spans)


class Lowering:
    """The program so far, and where the values are."""

    takes_turns = True  # whether segments may take scratch in turn
    transit = SCRATCH  # where messages are that do not come from or go to where values are

    def __init__(self, schedule: Schedule, shape: Shape, limits: Limits) -> None:
        self.layout = LAYOUTS[schedule.collective](shape)
        self.rank, self.itemsize, self.near, self.limits = shape.rank, shape.itemsize, shape.near, limits
        self.combines = COLLECTIVES[schedule.collective].reduces
        self.chunks, self.edges = schedule.chunks, self.layout.edges
        self.nbytes = self.edges[-1]
        self.places: dict[int, Place] = {}  # of the values that are no longer where they began
        self.held = self.layout.scratch  # where the schedule's own scratch vectors begin
        self.arriving = _aligned(self.held + schedule.vectors * self.nbytes)  # and incoming data
        self.scratch = self.held + schedule.vectors * self.nbytes
        self.rows: list[tuple[int, ...]] = []
        self.sending: dict[int, tuple[Place, int]] = {}  # request: memory that it still reads
        self.receiving: set[int] = set()
        self.requests = 0

    def step(self, step: Step) -> None:
        """Add a step."""
        outgoing, incoming = [[move for move in step if move.kind in kinds] for kinds in (("send",), TAKING)]
        sends, used = self._outgoing(outgoing)
        pieces, ahead = self._incoming(incoming, [(place, nbytes) for _, place, nbytes in sends], used)
        if len(sends) <= 1 and len(pieces) <= 1:
            self._exchange(sends, pieces)
        else:
            self._overlap(sends, pieces, ahead)
        for move in step:
            if move.kind in ("copy", "combine"):
                self._local(move)

    def finish(self) -> Program:
        """Add what is left to do after the last step, and give the program."""
        for chunk in range(self.chunks):
            if (end := self.layout.end(chunk)) is not None:
                self._copy(end, self._value(chunk), self._length(chunk))
        for request in list(self.sending):
            self._wait_send(request)
        rows = np.zeros((len(self.rows), COLUMNS), np.int64)
        for i, row in enumerate(self.rows):
            rows[i, : len(row)] = row
        return Program(rows, self.scratch, self.requests)

    # -- messages ----------------------------------------------------------------------------

    def _exchange(self, sends: list[tuple[int, Place, int]], pieces: list[Piece]) -> None:
        """One message out and one in at most: a single blocking call is the fastest."""
        out = [(*place, nbytes, peer) for peer, place, nbytes in sends]
        into = [(*piece.landing, piece.nbytes, piece.move.peer) for piece in pieces]
        for piece in pieces:
            self._release(piece.landing, piece.nbytes)
        if out and into:
            self._emit(SENDRECV, *out[0], *into[0])
        elif out:
            self._emit(SEND, *out[0])
        elif into:
            self._emit(RECV, *into[0])
        for piece in pieces:
            self._take(piece)
            self._settle(piece.move)

    def _overlap(self, sends: list[tuple[int, Place, int]], pieces: list[Piece], ahead: int) -> None:
        """Post `ahead` receives and all sends; combine segments as they come, and post the rest."""
        posted = [self._post(piece) for piece in pieces[:ahead]]
        for peer, place, nbytes in sends:
            self._send(peer, place, nbytes)
        for i, piece in enumerate(pieces):
            self._arrived(piece, posted[i])
            if i + 1 == len(pieces) or pieces[i + 1].move is not piece.move:
                self._settle(piece.move)
            if i + ahead < len(pieces):
                posted.append(self._post(pieces[i + ahead]))

    def _post(self, piece: Piece) -> int:
        self._release(piece.landing, piece.nbytes)
        request = self._request()
        self.receiving.add(request)
        self._emit(IRECV, *piece.landing, piece.nbytes, piece.move.peer, request)
        return request

    def _send(self, peer: int, place: Place, nbytes: int) -> None:
        request = self._request()
        self.sending[request] = (place, nbytes)
        self._emit(ISEND, *place, nbytes, peer, request)

    def _arrived(self, piece: Piece, request: int) -> None:
        """Wait for a segment, and take it."""
        self._emit(WAIT, request)
        self.receiving.remove(request)
        self._take(piece)

    def _messages(self, move: Move) -> Iterator[tuple[Span, ...]]:
        """Cut a move into messages; both sides cut it alike.

        A run is contiguous in the vector and goes by itself, two of them do (a range that wraps around);
        more runs are packed together.
        """
        spans = [self._span(run) for run in move.chunks]
        for together in [spans] if len(spans) > 2 else [[span] for span in spans]:
            nbytes = sum(span.nbytes for span in together)
            size = max(self.limits.segment, -(-nbytes // self.limits.segments))
            if not self.combines or (move.peer in self.near and nbytes >= self.limits.whole):
                size = nbytes
            size = max(min(size, self.limits.message) // self.itemsize, 1) * self.itemsize
            for begin in range(0, nbytes, size):
                yield tuple(_cut(together, begin, min(begin + size, nbytes)))

    def _outgoing(self, moves: list[Move]) -> tuple[list[tuple[int, Place, int]], int]:
        """Give the messages of sends, (peer, memory, bytes), and how much scratch they use."""
        used = 0
        sends = []
        for move in moves:
            for spans in self._messages(move):
                place, used = self._packed(spans, used)
                sends.append((move.peer, place, sum(span.nbytes for span in spans)))
        return sends, used

    def _packed(self, spans: tuple[Span, ...], used: int) -> tuple[Place, int]:
        """Give the memory to send spans from, and how much scratch the step uses up to there.

        Values that do not follow each other in memory are copied together.
        """
        parts = [part for span in spans for part in self._parts(span, self._value)]
        if len(parts) == 1 and self.transit == SCRATCH:
            return parts[0][1], used
        start = place = Place(self.transit, self.arriving + used)
        for nbytes, value in parts:
            self._copy(place, value, nbytes)
            place = Place(self.transit, place.offset + nbytes)
        self.scratch = max(self.scratch, place.offset)
        return start, place.offset - self.arriving

    def _incoming(
        self, moves: list[Move], leaving: list[tuple[Place, int]], used: int
    ) -> tuple[list[Piece], int]:
        """Where each incoming segment lands, and how many of them may be under way at once."""
        parts: list[tuple[Move, tuple[Span, ...], Place | None]] = []
        touched: set[int] = set()
        for move in moves:
            chunks = set(slots(move.chunks))
            fresh = touched.isdisjoint(chunks)
            touched |= chunks
            for spans in self._messages(move):
                parts.append((move, spans, self._direct(move, spans, leaving) if fresh else None))
        in_turn = (
            self.takes_turns
            and len(parts) > AHEAD
            and len({move.peer for move in moves}) == 1
            and not self._overwrites(moves, leaving)
        )
        stride = _aligned(max((sum(span.nbytes for span in spans) for _, spans, _ in parts), default=0))
        start = _aligned(self.arriving + used)
        used = 0
        pieces = []
        for i, (move, spans, direct) in enumerate(parts):
            piece = Piece(
                move, spans, direct or Place(self.transit, start + (i % AHEAD * stride if in_turn else used))
            )
            if not direct:
                used += piece.nbytes
                self.scratch = max(self.scratch, piece.landing.offset + piece.nbytes)
            pieces.append(piece)
        return pieces, AHEAD if in_turn else len(parts)

    def _overwrites(self, moves: list[Move], leaving: list[tuple[Place, int]]) -> bool:
        """Whether taking in what comes must wait for a send of the same step."""
        spans = (self._span(run) for move in moves for run in move.chunks)
        homes = [part for span in spans for part in self._parts(span, self._target)]
        return any(_overlap(home, nbytes, *memory) for nbytes, home in homes for memory in leaving)

    def _direct(self, move: Move, spans: tuple[Span, ...], leaving: list[tuple[Place, int]]) -> Place | None:
        """Where spans may be received so that they need not be moved; None if something is in the way."""
        homes = [part for span in spans for part in self._parts(span, self._target)]
        if len(homes) != 1 or self.transit != SCRATCH:
            return None
        nbytes, home = homes[0]
        if move.kind == "reduce":  # our own operand must be elsewhere
            values = [part for span in spans for part in self._parts(span, self._value)]
            return None if any(_overlap(home, nbytes, value, n) for n, value in values) else home
        return None if any(_overlap(home, nbytes, *memory) for memory in leaving) else home

    def _take(self, piece: Piece) -> None:
        """Do what the move says with a segment that has arrived."""
        base, offset = piece.landing
        for span in piece.spans:
            for nbytes, own, home in self._parts(span, self._value, self._target):
                arrived = Place(base, offset)
                offset += nbytes
                if piece.move.kind == "recv":
                    self._copy(home, arrived, nbytes)
                else:
                    lower_first = piece.move.peer < self.rank
                    left, right = (arrived, own) if lower_first else (own, arrived)
                    self._combine(home, left, right, nbytes)

    # -- where values are --------------------------------------------------------------------

    def _value(self, slot: int) -> Place:
        """Where a slot's value is."""
        if slot in self.places:
            return self.places[slot]
        return self.layout.begin(slot) if slot < self.chunks else self._home(slot)

    def _target(self, slot: int) -> Place:
        """Where a slot's next value is received and combined."""
        return self._home(slot)

    def _home(self, slot: int) -> Place:
        """Where a slot's value belongs on this rank."""
        if slot < self.chunks:
            return self.layout.home(slot)
        vector, chunk = divmod(slot, self.chunks)
        return Place(SCRATCH, self.held + (vector - 1) * self.nbytes + self.edges[chunk])

    def _settle(self, move: Move) -> None:
        """The move is done: its chunks have their next value."""
        for slot in slots(move.chunks):
            self.places[slot] = self._target(slot)

    def _length(self, slot: int) -> int:
        chunk = slot % self.chunks
        return self.edges[chunk + 1] - self.edges[chunk]

    def _start(self, slot: int) -> int:
        """Where a slot begins in the vector and the scratch vectors that follow it."""
        vector, chunk = divmod(slot, self.chunks)
        return vector * self.nbytes + self.edges[chunk]

    def _span(self, run: tuple[int, int]) -> Span:
        last = run[1] - 1
        return Span(self._start(run[0]), self._start(last) + self._length(last))

    def _parts(self, span: Span, *where: Callable[[int], Place]) -> Iterator[tuple]:
        """Cut a span so that each part is contiguous in every memory that `where` names.

        Yields
        ------
        tuple of int and places
            The length in bytes, and for each of `where` the place.
        """
        found: list[tuple[int, tuple[Place, ...]]] = []
        vector, begin = divmod(span.start, self.nbytes) if self.nbytes else (0, 0)
        slot = vector * self.chunks + bisect_right(self.edges, begin) - 1
        position = span.start
        while position < span.stop:
            start = self._start(slot)
            stop = min(self._start(slot + 1), span.stop)
            places = tuple(Place(p.base, p.offset + position - start) for p in (w(slot) for w in where))
            if found and places == tuple(Place(p.base, p.offset + found[-1][0]) for p in found[-1][1]):
                found[-1] = (found[-1][0] + stop - position, found[-1][1])
            elif stop > position:
                found.append((stop - position, places))
            position, slot = stop, slot + 1
        for nbytes, places in found:
            yield nbytes, *places

    # -- instructions ------------------------------------------------------------------------

    def _local(self, move: Move) -> None:
        for slot, source in zip(slots(move.chunks), slots(move.source), strict=True):
            nbytes = self._length(slot)
            if move.kind == "copy":
                self._copy(self._target(slot), self._value(source), nbytes)
            elif nbytes:
                self._combine(self._target(slot), self._value(slot), self._value(source), nbytes)
        self._settle(move)

    def _copy(self, out: Place, source: Place, nbytes: int) -> None:
        if nbytes and out != source:
            self._release(out, nbytes)
            self._emit(COPY, *out, *source, nbytes)

    def _combine(self, out: Place, left: Place, right: Place, nbytes: int) -> None:
        self._release(out, nbytes)
        self._emit(COMBINE, *out, *left, *right, nbytes // self.itemsize)

    def _release(self, place: Place, nbytes: int) -> None:
        """Wait for the sends that still read memory that is about to be overwritten."""
        for request in [r for r, memory in self.sending.items() if _overlap(place, nbytes, *memory)]:
            self._wait_send(request)

    def _wait_send(self, request: int) -> None:
        self._emit(WAIT, request)
        del self.sending[request]

    def _request(self) -> int:
        """The lowest number not in use."""
        request = next(
            i for i in range(self.requests + 1) if i not in self.sending and i not in self.receiving
        )
        self.requests = max(self.requests, request + 1)
        return request

    def _emit(self, *row: int) -> None:
        self.rows.append(row)


def _cut(spans: list[Span], begin: int, end: int) -> Iterator[Span]:
    """Bytes `begin` to `end` of several spans, one after the other."""
    for span in spans:
        start, stop = span.start + max(begin, 0), span.start + min(end, span.nbytes)
        if start < stop:
            yield Span(start, stop)
        begin, end = begin - span.nbytes, end - span.nbytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _overlap(place: Place, nbytes: int, other: Place, length: int) -> bool:
    return (
        place.base == other.base
        and place.offset < other.offset + length
        and other.offset < place.offset + nbytes
    )
