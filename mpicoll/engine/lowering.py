"""From one rank's part of a schedule to a program.

Where a value is
    Nothing is copied at the start. Lowering keeps track of whether a chunk's value is still in the
    send buffer or already in the receive buffer: the first receive-and-combine of a chunk receives
    into the receive buffer and combines it there with the send buffer's operand. Only what arrives
    for a chunk that has a value in the receive buffer needs scratch.

Segments
    A long message travels as segments, so that combining one overlaps receiving the next and the
    scratch for incoming data stays small enough for a cache. Where everything that a step receives
    comes from one peer, `WINDOW` segments of scratch are used in turn. Where there are several
    peers every receive is posted at once, as the proof's model demands: a window would make one
    peer wait for another.

Waiting
    A receive is waited for when its data is combined. A send is waited for when its memory is about
    to be overwritten, and at the end: sooner than the schedule's "a step is over when all its moves
    are" asks is never, later is harmless, since what a step waits for depends on receives alone.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..schedule.moves import Move, slots
from ..schedule.schedule import Schedule, Step, bounds
from .program import (
    COLUMNS,
    COMBINE,
    COPY,
    IRECV,
    ISEND,
    RECV,
    RECVBUF,
    SCRATCH,
    SEND,
    SENDBUF,
    SENDRECV,
    WAIT,
    Program,
)

SEGMENT = 1 << 18  # bytes; long messages are cut into segments no smaller than this
SEGMENTS = 64  # and into no more of them than this, as far as MESSAGE allows
MESSAGE = 1 << 30  # bytes; no message is larger, since MPI's counts are C ints
WINDOW = 4  # segments of scratch used in turn
ALIGNMENT = 64  # bytes


class Limits(NamedTuple):
    """Sizes that tests shrink so that small vectors take the long paths."""

    segment: int = SEGMENT
    segments: int = SEGMENTS
    message: int = MESSAGE


LIMITS = Limits()


class Span(NamedTuple):
    """Bytes `start` to `stop` of the vector, or of the schedule's own scratch."""

    held: bool  # in scratch
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Length."""
        return self.stop - self.start


class Place(NamedTuple):
    """An address: base and offset."""

    base: int
    offset: int


class Piece(NamedTuple):
    """A segment of an incoming message, the move that it belongs to, and where it lands."""

    move: Move
    span: Span
    landing: Place


def lower(
    schedule: Schedule,
    rank: int,
    count: int,
    itemsize: int,
    in_place: bool = False,
    limits: Limits = LIMITS,
) -> Program:
    """Lower `rank`'s steps for vectors of `count` elements of `itemsize` bytes.

    Parameters
    ----------
    schedule : Schedule
        A schedule that :func:`~mpicoll.schedule.proof.prove` accepts.
    in_place : bool
        Whether the vector is in the receive buffer from the start.
    limits : Limits
        Sizes of segments.

    Returns
    -------
    Program
    """
    lowering = _Lowering(schedule, rank, count, itemsize, in_place, limits)
    for step in schedule.steps(rank):
        lowering.step(step)
    return lowering.finish()


class _Lowering:
    def __init__(
        self, schedule: Schedule, rank: int, count: int, itemsize: int, in_place: bool, limits: Limits
    ) -> None:
        self.rank, self.itemsize, self.limits = rank, itemsize, limits
        self.chunks = schedule.chunks
        self.edges = [element * itemsize for element in bounds(count, schedule.chunks)]
        self.nbytes = count * itemsize
        self.base = [RECVBUF if in_place else SENDBUF] * schedule.chunks  # where each value is
        self.held = self.scratch = schedule.vectors * self.nbytes
        self.rows: list[tuple[int, ...]] = []
        self.sending: dict[int, tuple[Place, int]] = {}  # request: memory that it still reads
        self.receiving: set[int] = set()
        self.requests = 0

    def step(self, step: Step) -> None:
        outgoing = [move for move in step if move.kind == "send"]
        incoming = [move for move in step if move.kind in ("recv", "reduce")]
        for move in outgoing:
            self._unite(move)
        sends = [(move.peer, *part) for move in outgoing for part in self._outgoing(move)]
        pieces, window = self._incoming(incoming, [(place, nbytes) for _, place, nbytes in sends])
        if len(sends) <= 1 and len(pieces) <= 1:
            self._exchange(sends, pieces)
        else:
            self._overlap(sends, pieces, window)
        for move in step:
            if move.kind in ("copy", "combine"):
                self._local(move)

    def finish(self) -> Program:
        for chunk in range(self.chunks):
            self._to_recvbuf(chunk)
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
        into = [(*piece.landing, piece.span.nbytes, piece.move.peer) for piece in pieces]
        for piece in pieces:
            self._release(piece.landing, piece.span.nbytes)
        if out and into:
            self._emit(SENDRECV, *out[0], *into[0])
        elif out:
            self._emit(SEND, *out[0])
        elif into:
            self._emit(RECV, *into[0])
        for piece in pieces:
            self._take(piece)
            self._settle(piece.move)

    def _overlap(self, sends: list[tuple[int, Place, int]], pieces: list[Piece], window: int) -> None:
        """Post `window` receives and all sends; combine segments as they come, and post the rest."""
        posted = [self._post(piece) for piece in pieces[:window]]
        for peer, place, nbytes in sends:
            request = self._request()
            self.sending[request] = (place, nbytes)
            self._emit(ISEND, *place, nbytes, peer, request)
        for i, piece in enumerate(pieces):
            self._emit(WAIT, posted[i])
            self.receiving.remove(posted[i])
            self._take(piece)
            if i + 1 == len(pieces) or pieces[i + 1].move is not piece.move:
                self._settle(piece.move)
            if i + window < len(pieces):
                posted.append(self._post(pieces[i + window]))

    def _post(self, piece: Piece) -> int:
        self._release(piece.landing, piece.span.nbytes)
        request = self._request()
        self.receiving.add(request)
        self._emit(IRECV, *piece.landing, piece.span.nbytes, piece.move.peer, request)
        return request

    def _outgoing(self, move: Move) -> Iterator[tuple[Place, int]]:
        for run in move.chunks:
            for span in self._segments(run):
                ((place, nbytes),) = self._values(span)
                yield place, nbytes

    def _incoming(self, moves: list[Move], leaving: list[tuple[Place, int]]) -> tuple[list[Piece], int]:
        """Where each incoming segment lands, and how many of them may be under way at once."""
        parts: list[tuple[Move, Span, bool]] = []
        touched: set[int] = set()
        for move in moves:
            for run in move.chunks:
                direct = touched.isdisjoint(range(*run)) and self._direct(move, run, leaving)
                touched.update(range(*run))
                parts += [(move, span, direct) for span in self._segments(run)]
        one_peer = len({move.peer for move in moves}) == 1
        start, used = _aligned(self.held), 0
        stride = _aligned(max((span.nbytes for _, span, _ in parts), default=0))
        pieces = []
        for i, (move, span, direct) in enumerate(parts):
            if direct:
                landing = Place(SCRATCH if span.held else RECVBUF, span.start)
            else:
                landing = Place(SCRATCH, start + (i % WINDOW * stride if one_peer else used))
                used += span.nbytes
                self.scratch = max(self.scratch, landing.offset + span.nbytes)
            pieces.append(Piece(move, span, landing))
        return pieces, WINDOW if one_peer else len(parts)

    def _direct(self, move: Move, run: tuple[int, int], leaving: list[tuple[Place, int]]) -> bool:
        """Whether a run may be received where its value will be: nothing there is still needed."""
        span = self._span(run)
        if move.kind == "reduce":
            return not span.held and self._bases(span) == {SENDBUF}
        final = Place(SCRATCH if span.held else RECVBUF, span.start)
        return not any(_overlap(final, span.nbytes, *memory) for memory in leaving)

    def _take(self, piece: Piece) -> None:
        """Do what the move says with a segment that has arrived."""
        held, start, _ = piece.span
        if piece.move.kind == "recv":
            final = Place(SCRATCH if held else RECVBUF, start)
            if piece.landing != final:
                self._copy(final, piece.landing, piece.span.nbytes)
            return
        arrived = piece.landing.offset - start
        for own, nbytes in self._values(piece.span):
            theirs = Place(piece.landing.base, arrived + own.offset)
            operands = (theirs, own) if piece.move.peer < self.rank else (own, theirs)
            self._combine(Place(SCRATCH if held else RECVBUF, own.offset), *operands, nbytes)

    # -- where values are --------------------------------------------------------------------

    def _span(self, run: tuple[int, int]) -> Span:
        first, start = divmod(run[0], self.chunks)
        last, stop = divmod(run[1] - 1, self.chunks)
        if first == 0:
            return Span(False, self.edges[start], self.edges[stop + 1])
        return Span(
            True,
            (first - 1) * self.nbytes + self.edges[start],
            (last - 1) * self.nbytes + self.edges[stop + 1],
        )

    def _segments(self, run: tuple[int, int]) -> Iterator[Span]:
        """Cut a run into messages; both sides cut it alike."""
        held, start, stop = self._span(run)
        size = max(self.limits.segment, -(-(stop - start) // self.limits.segments))
        size = max(min(size, self.limits.message) // self.itemsize, 1) * self.itemsize
        for begin in range(start, stop, size):
            yield Span(held, begin, min(begin + size, stop))

    def _values(self, span: Span) -> Iterator[tuple[Place, int]]:
        """Where the current values of a span are, as contiguous parts."""
        if span.held:
            yield Place(SCRATCH, span.start), span.nbytes
            return
        chunk, begin = bisect_right(self.edges, span.start) - 1, span.start
        while begin < span.stop:
            base = self.base[chunk]
            while (
                chunk < self.chunks
                and self.edges[chunk] < span.stop
                and (self.base[chunk] == base or self.edges[chunk] == self.edges[chunk + 1])
            ):
                chunk += 1
            end = min(self.edges[chunk], span.stop)
            yield Place(base, begin), end - begin
            begin = end

    def _bases(self, span: Span) -> set[int]:
        return {place.base for place, _ in self._values(span)}

    def _unite(self, move: Move) -> None:
        """Bring a run whose values lie in both buffers together, so that it is one message."""
        for run in move.chunks:
            if len(self._bases(self._span(run))) > 1:
                for chunk in range(*run):
                    self._to_recvbuf(chunk)

    def _to_recvbuf(self, chunk: int) -> None:
        if self.base[chunk] == SENDBUF:
            start, stop = self.edges[chunk : chunk + 2]
            self._copy(Place(RECVBUF, start), Place(SENDBUF, start), stop - start)
            self.base[chunk] = RECVBUF

    def _settle(self, move: Move) -> None:
        """The move is done: the values of its chunks are in the receive buffer from now on."""
        for slot in slots(move.chunks):
            if slot < self.chunks:
                self.base[slot] = RECVBUF

    # -- instructions ------------------------------------------------------------------------

    def _local(self, move: Move) -> None:
        for slot, source in zip(slots(move.chunks), slots(move.source), strict=True):
            span, other = self._span((slot, slot + 1)), self._span((source, source + 1))
            if span.nbytes == 0:
                continue
            out = Place(SCRATCH if span.held else RECVBUF, span.start)
            ((theirs, nbytes),) = self._values(other)
            if move.kind == "copy":
                self._copy(out, theirs, nbytes)
            else:
                ((own, _),) = self._values(span)
                self._combine(out, own, theirs, nbytes)
        self._settle(move)

    def _copy(self, out: Place, source: Place, nbytes: int) -> None:
        if nbytes:
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


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _overlap(place: Place, nbytes: int, other: Place, length: int) -> bool:
    return (
        place.base == other.base
        and place.offset < other.offset + length
        and other.offset < place.offset + nbytes
    )
