"""The compiled interpreter of programs over shared memory: a vector in blocks, several of them under way.

A block under way is a strand: it has a line and units of the window, scratch, requests and a tag of its own.
A strand that must wait, for a peer's counter or for a message, lets the next one go on. So the two levels of
a two-level collective overlap, and a rank that is late for one block finds the next one waiting for it.
"""

from collections.abc import Callable
from typing import Any

from numba.extending import register_jitable

from . import program as p
from . import window as w
from .instructions import combine, combine_stream, copy, post, stream
from .intrinsics import call_test, load, load_acquire, load_int, relax, store, store_release

WAITS = -1


Jitable = Callable[..., Any]


def interpreter(advance: Jitable, begun: Jitable) -> Jitable:
    """Make an interpreter of programs in blocks.

    Parameters
    ----------
    advance : callable
        ``advance(frame, window, strand, other)`` goes on with a strand: 0 when it is done, WAITS, or an
        error. It may do something of `other`, too, the strand of the next block unless that is 0.
    begun : callable
        ``begun(frame, strand, index)`` prepares the strand of that number for another block.
    """

    @register_jitable
    def execute(frame, sendbuf, recvbuf):
        """Run a program: as `execute` of messages, with GONE less a rank's number as another result."""
        window, blocks = load(frame, p.WINDOW), load(frame, p.BLOCKS)
        oldest, following, rounds, gone = 0, 0, 0, -1
        while oldest < blocks:
            before = oldest + following
            following, peer = fill(frame, window, oldest, following, sendbuf, recvbuf)
            moved = oldest + following != before
            block = oldest
            while block < following:
                strand = _strand(frame, block)
                row = load(strand, p.ROW)
                next_strand = _strand(frame, block + 1) if block + 1 < following else 0
                code = advance(frame, window, strand, next_strand)
                if code not in (0, WAITS):
                    return code
                moved = moved or load(strand, p.ROW) != row
                if block == oldest and _done(strand):
                    oldest += 1
                    moved = True
                    at = load(window, w.POSITION) if oldest == following else load(next_strand, p.START)
                    w.finish(window, at)
                    following, peer = fill(frame, window, oldest, following, sendbuf, recvbuf)
                block += 1
            if moved:
                rounds, gone = 0, -1
                continue
            if oldest < following:
                peer = load(_strand(frame, oldest), p.PEER)
            if peer >= 0 and peer == gone:  # it had ended before the last look at what it has left
                return w.GONE - gone
            rounds += 1
            code = w.rest(frame, window, rounds)
            if code != 0:
                return code
            if rounds % w.LOOKS == 0 and peer >= 0 and w.ended(window, peer):
                gone = peer
        return 0

    @register_jitable
    def fill(frame, window, oldest, following, sendbuf, recvbuf):
        """Begin blocks while there are strands for them: which follows, and the rank it waits for, or -1."""
        while following < load(frame, p.BLOCKS) and following - oldest < load(frame, p.STRANDS):
            peer = _begin(frame, window, following, sendbuf, recvbuf)
            if peer >= 0:
                return following, peer
            begun(frame, _strand(frame, following), following % load(frame, p.STRANDS))
            following += 1
        return following, -1

    return execute


@register_jitable
def _strand(frame, block):
    """The strand of a block."""
    return load(frame, p.STRAND_TABLE) + 8 * p.STRAND_WORDS * (block % load(frame, p.STRANDS))


@register_jitable
def _done(strand):
    return load(strand, p.ROW) == load(strand, p.STOP)


@register_jitable
def _begin(frame, window, number, sendbuf, recvbuf):
    """Begin a block: -1, or the rank whose stage has no room for it yet."""
    block = load(frame, p.TABLE) + 8 * p.BLOCK_WORDS * number
    units = load(block, p.BLOCK_UNITS)
    start = w.room(window, units)
    if start < 0:
        return -1 - start
    strand = _strand(frame, number)
    w.take(window, start, units, strand)
    shift, row = load(block, p.BLOCK_SHIFT), load(block, p.BLOCK_PROGRAM)
    index = number % load(frame, p.STRANDS)
    store(strand, p.SENDBUF, sendbuf + shift)
    store(strand, p.RECVBUF, recvbuf + shift)
    store(strand, p.SCRATCH, load(load(frame, p.WORKSPACE), 0) + index * load(frame, p.STRAND_SCRATCH))
    store(strand, p.ROW, row)
    store(strand, p.STOP, row + load(block, p.BLOCK_LENGTH) * 8 * p.COLUMNS)
    width = load(frame, p.STRAND_REQUESTS) * load(frame, p.HANDLE_BYTES)
    store(strand, p.STRAND_REQUEST, load(frame, p.REQUESTS) + index * width)
    # blocks with one tag are one after the other on all ranks, however many strands each of them has
    store(strand, p.STRAND_TAG, load(frame, p.TAG) + number % p.TAGS)
    return -1


@register_jitable
def _advance(frame, window, strand, other):
    """Go on with a strand: 0 when it is done, WAITS, or an MPI error.

    Where the strand of the next block, `other` unless that is 0, is to copy, it may do that, too.
    """
    kernel, requests, tag = load(frame, p.KERNEL), load(strand, p.STRAND_REQUEST), load(strand, p.STRAND_TAG)
    patience = load(window, w.PATIENCE) // load(frame, p.STRANDS)
    row, stop, counter = load(strand, p.ROW), load(strand, p.STOP), load(strand, p.COUNTER)
    code = 0
    while row < stop and code == 0:
        instruction = load(row, 0)
        if instruction == p.AWAIT:
            address = load(strand, p.LINE) + load(row, 2)
            if not published(address, counter + load(row, 3), patience):
                store(strand, p.PEER, load(row, 4))
                code = WAITS
        elif instruction == p.PUBLISH:
            store_release(load(strand, p.LINE) + load(row, 2), counter + load(row, 3))
        elif instruction == p.COMBINE:
            combine(kernel, strand, row)
        elif instruction == p.COPY:
            copy(strand, row)
        elif instruction == p.STREAM:
            stream(strand, row)
        elif instruction == p.COMBINE_STREAM:
            copies = other != 0 and not _done(other) and load(load(other, p.ROW), 0) == p.COPY
            copied = load(other, p.ROW) if copies else 0
            combine_stream(kernel, load(frame, p.PIECE), strand, row, other, copied)
            if copies:
                store(other, p.ROW, copied + 8 * p.COLUMNS)
        elif instruction == p.WAIT:
            code = test_message(frame, requests + load(row, 1) * load(frame, p.HANDLE_BYTES))
            store(strand, p.PEER, -1)
        else:
            code = post(frame, strand, row, requests, tag)
        if code == 0:
            row += 8 * p.COLUMNS
    store(strand, p.ROW, row)
    return code


@register_jitable
def _no_more(frame, strand, index):
    """Do nothing more for a strand that has begun."""


@register_jitable
def published(address, value, patience):
    """Whether a counter has come to a value, after so many looks."""
    for _ in range(patience):
        if load_acquire(address) >= value:
            return True
        relax()
    return load_acquire(address) >= value


@register_jitable
def test_message(frame, request):
    """0 if a message is complete, WAITS, or an MPI error."""
    status = load(frame, p.STATUS)
    code = call_test(load(frame, p.FUNCTIONS + p.TEST), request, status, status + 8)
    return WAITS if code == 0 and load_int(status) == 0 else code


execute_blocks = interpreter(_advance, _no_more)
