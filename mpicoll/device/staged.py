"""Collectives of device memory through pinned memory of the host.

The vector goes in pieces: while the ranks exchange one on the host, as any host memory, the device copies the
next one there and the one before back. Blocks that may be unequal go in one piece.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import ops
from ..calls import Call, memory_at
from ..plan import decide
from ..selection import AUTO, Choice
from . import driver

if TYPE_CHECKING:
    from ..context import Context
    from .device import Device

PIECE = 1 << 22  # bytes of a vector that are exchanged at a time
SLOTS = 3  # pieces under way at once: one comes, one is exchanged, one goes back
ALIGNMENT = 64  # bytes


class Rows(NamedTuple):
    """Rows of bytes to copy between a device buffer and packed host memory.

    Attributes
    ----------
    host, device : int
        Where the first one begins, from the beginning of either.
    nbytes, number : int
        Of a row, and of rows.
    pitch : int
        Bytes from one row to the next on the device.
    """

    host: int
    device: int
    nbytes: int
    number: int = 1
    pitch: int = 0


class Piece(NamedTuple):
    """A part of the vector.

    Attributes
    ----------
    coming : list of (bool, bool, Rows)
        What is copied to the host before: whether from the receive buffer, and whether to what is received.
    going : list of Rows
        And from there to the receive buffer after.
    run : callable
        The exchange on the host.
    """

    coming: list[tuple[bool, bool, Rows]]
    going: list[Rows]
    run: Callable[[], None]


class Staged:
    """A collective of device memory through the host, for buffers that are laid out alike."""

    def __init__(self, context: "Context", device: "Device", call: Call, choice: Choice) -> None:
        self._context, self._device, self._choice = context, device, choice
        # without what keeps the arrays of the first call alive, as plans are kept
        self._call = replace(call, devices=(), owners=(), native=(), before=(), after=(), produced=None)
        self._parts = list(parts(self._call, context.rank))
        most = [max((part.room[side] for part in self._parts), default=0) for side in (0, 1)]
        self._room = [-(-room // ALIGNMENT) * ALIGNMENT for room in most]
        self._pinned = 0  # where the pinned memory was when the pieces were made
        self._pieces: list[Piece] = []

    def __call__(self, call: Call) -> None:
        """Run on the buffers of a call."""
        pieces = self._ready()
        streams = [int(stream) for stream in self._device.streams[: min(SLOTS, len(pieces))]]
        with driver.current(self._device.number):
            try:
                self._exchange(call, pieces, streams)
            finally:
                for stream in streams:
                    driver.call("cuStreamSynchronize", stream)

    def _exchange(self, call: Call, pieces: list[Piece], streams: list[int]) -> None:
        """Exchange all pieces; those on their way back may not be there yet."""
        self._come(call, 0, pieces, streams)
        for i, piece in enumerate(pieces):
            if i + 1 < len(pieces):
                self._come(call, i + 1, pieces, streams)
            driver.call("cuStreamSynchronize", streams[i % SLOTS])
            piece.run()
            for rows in piece.going:
                self._copy(call.recvbuf, self._slot(i, 1), rows, streams[i % SLOTS], back=True)

    def _come(self, call: Call, i: int, pieces: list[Piece], streams: list[int]) -> None:
        """Let the device copy a piece to the host; what its slot had before goes back first."""
        for received, side, rows in pieces[i].coming:
            buffer = call.recvbuf if received else call.sendbuf
            self._copy(buffer, self._slot(i, side), rows, streams[i % SLOTS], back=False)

    def _copy(self, device: int, host: int, rows: Rows, stream: int, back: bool) -> None:
        """Let the device copy rows to the host, or back."""
        here, there = host + rows.host, device + rows.device
        if rows.number == 1 or rows.pitch == rows.nbytes:
            self._device.copied += rows.nbytes * rows.number
            out, source = (there, here) if back else (here, there)
            driver.call("cuMemcpyAsync", out, source, rows.nbytes * rows.number, stream)
            return
        if rows.pitch > driver.MAX_PITCH:
            for number in range(rows.number):
                row = Rows(rows.host + number * rows.nbytes, rows.device + number * rows.pitch, rows.nbytes)
                self._copy(device, host, row, stream, back)
            return
        names = ("src", "dst") if back else ("dst", "src")
        self._device.copied += rows.nbytes * rows.number
        copy = driver.Copy2D(WidthInBytes=rows.nbytes, Height=rows.number)
        for name, address, pitch in zip(names, (here, there), (rows.nbytes, rows.pitch), strict=True):
            setattr(copy, f"{name}MemoryType", driver.UNIFIED)
            setattr(copy, f"{name}Device", address)
            setattr(copy, f"{name}Pitch", pitch)
        driver.call("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream)

    def _slot(self, i: int, side: int) -> int:
        """Give the pinned memory of a piece, for what is sent (0) or received (1)."""
        return self._pinned + i % SLOTS * sum(self._room) + side * self._room[0]

    def _ready(self) -> list[Piece]:
        """Give the pieces, made anew where the pinned memory has moved."""
        self._device.pinned.reserve(min(SLOTS, len(self._parts)) * sum(self._room))
        address = int(self._device.pinned.cell[0])
        if address != self._pinned or not self._pieces:
            self._pinned = address
            self._pieces = [self._piece(i, part) for i, part in enumerate(self._parts)]
        return self._pieces

    def _piece(self, i: int, part: "Part") -> Piece:
        """Make the exchange of a part in its slot."""
        send, recv = self._slot(i, 0), self._slot(i, 1)
        if part.in_place and self._call.collective != "scatter":  # whose root has its block where it is
            send = recv
        call = replace(
            self._call,
            counts=part.counts,
            incoming=part.incoming,
            displacements=None,
            incoming_displacements=None,
            in_place=part.in_place,
            sendbuf=send,
            recvbuf=recv,
            nbytes=None if self._call.nbytes is None else part.nbytes,
            received=part.received,
            ours=True,
        )
        if call.reduction is not None and call.reduction.average and part.received:
            nbytes, dtype = part.received * call.itemsize, np.dtype(call.reduction.dtype)
            result = memory_at(recv, nbytes).view(dtype)
            call = replace(call, after=(lambda: ops.divide(result, self._context.size),))
        asked = self._choice.algorithm if self._choice.asked else AUTO
        choice = decide(self._context, call, asked, dict(self._choice.parameters))
        plan = self._context.plan(call, choice)
        return Piece(part.coming, part.going, lambda: plan.run(call))


class Part(NamedTuple):
    """A part of the vector: counts, and copies as of :class:`Piece`; room for what is sent, and received."""

    counts: tuple[int, ...]
    incoming: tuple[int, ...] | None
    coming: list[tuple[bool, bool, Rows]]
    going: list[Rows]
    room: tuple[int, int]
    nbytes: int
    received: int
    in_place: bool


def parts(call: Call, rank: int) -> Iterator[Part]:
    """Cut a call's vector, alike on all ranks."""
    if call.counted:
        yield _unequal(call, rank)
        return
    blocks, each = len(call.counts), call.counts[0]
    length = max(PIECE // call.itemsize // blocks, 1)
    for begin in range(0, max(each, 1), length):
        yield _equal(call, rank, begin, min(length, each - begin))


def _equal(call: Call, rank: int, begin: int, count: int) -> Part:
    """Give elements `begin` to `begin + count` of all blocks, which are equal."""
    item, blocks = call.itemsize, len(call.counts)
    each = call.counts[0] * item

    def rows(number: int, first: int = 0) -> Rows:
        """Rows of `number` blocks of a buffer, of which the host has those from `first` on."""
        at = begin * item
        return Rows(first * count * item, first * each + at, count * item, number, each)

    sides = _sides(call, rank, blocks)
    coming = [(received, to, rows(number, first)) for received, to, number, first in sides.coming if count]
    going = [rows(number, first) for number, first in sides.going if count]
    nbytes = count * item
    room = (sides.sent * nbytes, sides.received * nbytes)
    received = count * sides.going[0][0] if going else 0
    in_place = call.in_place and call.collective != "alltoall"
    return Part((count,) * blocks, None, coming, going, room, blocks * nbytes, received, in_place)


class Sides(NamedTuple):
    """Blocks of both buffers: how many of each, which come, and which go back."""

    sent: int
    received: int
    coming: list[tuple[bool, bool, int, int]]  # from the receive buffer, to what is received; number, first
    going: list[tuple[int, int]]  # number, first


def _sides(call: Call, rank: int, blocks: int) -> Sides:
    """Say which blocks of its buffers a rank reads and writes."""
    name, root, in_place = call.collective, call.root == rank, call.in_place
    if name == "bcast":
        return Sides(0, 1, [(True, True, 1, 0)] if root else [], [] if root else [(1, 0)])
    if name in ("allreduce", "scan", "exscan", "reduce"):
        keeps = (name == "reduce" and not root) or (name == "exscan" and rank == 0)
        own = [(in_place, in_place, 1, 0)]
        return Sides(1, 1, own, [] if keeps else [(1, 0)])
    if name in ("allgather", "gather"):
        all_here = name == "allgather" or root
        own = [(in_place, in_place, 1, rank if in_place else 0)]
        return Sides(1, blocks if all_here else 0, own, [(blocks, 0)] if all_here else [])
    if name == "scatter":
        going = [] if root and in_place else [(1, 0)]
        return Sides(blocks if root else 0, 1, [(False, False, blocks, 0)] if root else [], going)
    if name == "alltoall":
        return Sides(blocks, blocks, [(in_place, False, blocks, 0)], [(blocks, 0)])
    assert name == "reduce_scatter", name
    return Sides(blocks, blocks, [(in_place, in_place, blocks, 0)], [(1, 0)])


def _unequal(call: Call, rank: int) -> Part:
    """Give all of a call's blocks, which may be unequal."""
    name, root, item = call.collective, call.root == rank, call.itemsize
    sent = _packed(call.counts, call.displacements, item)
    received = sent
    if call.incoming is not None:
        received = _packed(call.incoming, call.incoming_displacements, item)
    own = [Rows(0, 0, call.counts[rank] * item)]
    coming: list[tuple[bool, bool, Rows]] = []
    going: list[Rows] = []
    if name in ("allgather", "gather"):
        coming = [(True, True, sent[rank])] if call.in_place else [(False, False, own[0])]
        going = received if name == "allgather" or root else []
    elif name == "scatter":
        coming = [(False, False, rows) for rows in sent] if root else []
        going = [] if root and call.in_place else own
    elif name == "alltoall":
        coming, going = [(call.in_place, False, rows) for rows in sent], received
    else:
        assert name == "reduce_scatter", name
        whole = Rows(0, 0, sum(call.counts) * item)
        coming, going = [(call.in_place, call.in_place, whole)], own
    room = tuple(
        max(
            sum(rows.nbytes for _, to, rows in coming if to == side) or 0,
            sum(rows.nbytes for rows in (received if name != "scatter" else own)) if side else 0,
        )
        for side in (False, True)
    )
    return Part(
        call.counts,
        call.incoming,
        [each for each in coming if each[2].nbytes],
        [rows for rows in going if rows.nbytes],
        (room[0], room[1]),
        sum(call.counts) * item,
        call.received,
        call.in_place and name != "alltoall",
    )


def _packed(counts: Sequence[int], displacements: Sequence[int] | None, item: int) -> list[Rows]:
    """Give the rows of blocks that follow each other in host memory."""
    begins = list(accumulate(counts, initial=0))
    places = begins if displacements is None else displacements
    return [
        Rows(begin * item, place * item, count * item)
        for begin, place, count in zip(begins, places, counts, strict=False)
    ]
