"""What a node's window looks like, and how a rank waits for the others on it.

The memory
    A region for each rank: how far the rank has come, `LINES` lines that hold the counters of blocks in turn,
    and the stage, a ring of units that blocks take in turn. All ranks of a node take the same, so they agree
    without a word on where everything is. Positions on the ring are counted on without end.

The counters
    A line's counter says how many steps of a block are published: ``block * STRIDE + step``. It only grows,
    also from one block that has the line to the next, so a rank that comes late waits for no value that has
    passed.

Using a stage again
    A block may take units, and with them its line, when every rank of the node is done with all blocks that
    had them: the rank's *finished* is the position up to which its blocks are. It is read again only where
    what was last read of it does not suffice, once in many small collectives.
"""

import ctypes
import functools
import os
from typing import Any

import numpy as np
from mpi4py import MPI
from numba.extending import register_jitable

from ..transports import shared
from . import program as p
from .intrinsics import (
    call_plain,
    call_probe,
    call_test,
    call_wait,
    load,
    load_acquire,
    load_int,
    relax,
    store,
    store_release,
)

UNIT = 1 << 16  # bytes
LINES = 128  # no fewer than units: then a line is free when the units of its block are
LEAST = 4  # units; with fewer there is no window
RING = 32  # units: of a longer stage no shorter ring is used, and blocks are made to fit into it twice
STRIDE = 1 << 20  # more than any schedule has steps
STAGE_BEGIN = 5 * 4096  # bytes into a region, after the lines

# Slots of the state, an int64 array of the rank's own
ADDRESS = 0  # of the window
REGION = 1  # bytes of a rank's region
RANKS = 2  # of the node
NUMBER = 3  # this rank's, from 0
BLOCK = 4  # the last block that was begun
POSITION = 5  # where the next one begins, in units
KNOWN = 6  # where all ranks have finished, as far as was looked
UNITS = 7  # of the ring
PATIENCE = 8  # looks at a counter before another strand is looked at
SPINS = 9  # rounds in vain before the core is yielded
YIELDS = 10  # rounds in vain before sleeping
YIELD = 11  # address of sched_yield
SLEEP = 12  # address of nanosleep
INTERVAL = 13  # address of a struct timespec
POLL = 14  # address of poll
PROCESSES = 15  # address of a struct pollfd for each rank
ANY_SOURCE, ANY_TAG = 16, 17  # MPI's
STAGES = 18  # address of the stage from which those of all ranks are reckoned
UNIT_BYTES = 19
STATE_LENGTH = 20

PROBES = 16  # rounds between two looks into MPI
LOOKS = 1 << 12  # rounds between two looks at whether the others are alive
GONE = -2  # less a rank's number: the answer where it has ended


NAP = 50_000  # ns
NEVER = 1 << 62
WAITS = {  # rounds before yielding, before sleeping, and patience
    "spin": (16, NEVER, 64),  # a core for each rank, that something else may want, too
    "yield": (0, 1 << 14, 2),
    "sleep": (0, 64, 2),
}


class Window:
    """A node's window, as one of its ranks sees it.

    Attributes
    ----------
    state : ndarray of int64
        What the interpreter knows of it.
    stride : int
        Bytes from the region of one rank to that of the next.
    units : int
        Units in the stage of each rank; the ring may be shorter.
    unit : int
        Bytes of one.
    """

    unit = UNIT

    def __init__(self, node: MPI.Intracomm, memory: Any, units: int, wait: str) -> None:
        self._memory, self._number, self._processes = memory, node.rank, shared.processes(node)
        self._interval = np.array([0, NAP], np.int64)  # a struct timespec
        self.units, self.stride = units, STAGE_BEGIN + units * UNIT
        self.state = state = np.zeros(STATE_LENGTH, np.int64)
        state[ADDRESS], state[REGION] = np.frombuffer(memory, np.uint8).ctypes.data, self.stride
        state[RANKS], state[NUMBER], state[UNITS] = node.size, node.rank, units
        state[SPINS], state[YIELDS], state[PATIENCE] = WAITS[wait]
        state[YIELD], state[SLEEP], state[POLL] = map(_libc, ("sched_yield", "nanosleep", "poll"))
        state[INTERVAL], state[PROCESSES] = self._interval.ctypes.data, self._processes.ctypes.data
        state[ANY_SOURCE], state[ANY_TAG] = MPI.ANY_SOURCE, MPI.ANY_TAG
        state[STAGES], state[UNIT_BYTES] = state[ADDRESS] + STAGE_BEGIN, UNIT

    def shorten(self, units: int) -> None:
        """Use a ring of so many units from now on, and give the rest of the stage back."""
        self.state[UNITS] = units
        end = self._number * self.stride + STAGE_BEGIN + units * UNIT
        shared.give_back(self._memory, end, (self.units - units) * UNIT)


def allocate(
    node: MPI.Intracomm, nodes: MPI.Intracomm, staging: int | None, wait: str, cores: set[int]
) -> Window | None:
    """Make the window of a node. Collective over all nodes.

    Parameters
    ----------
    node, nodes : MPI.Intracomm
        The ranks of the node, and those of all nodes.
    staging : int or None
        Bytes of stage for each rank; None for the most.
    wait : str
        How to wait: ``"spin"``, ``"yield"``, ``"sleep"``; or ``"auto"``, by the ranks for each core.
    cores : set of int
        That this rank may run on.

    Returns
    -------
    Window or None
        None on all ranks where some have no room for it.
    """
    most = LINES if staging is None else min(max(staging // UNIT, LEAST), LINES)
    made = shared.allocate(node, nodes, STAGE_BEGIN, UNIT, LEAST, 1 << (most.bit_length() - 1))
    if made is None:
        return None
    available = set().union(*node.allgather(cores))
    return Window(node, *made, chosen(wait, node.size, len(available)))


def alone(ranks: int, wait: str) -> Window:
    """Make the window of a rank that shares it with nobody, for blocks that are only sent; local.

    Parameters
    ----------
    ranks : int
        Of the node, which share its cores.
    wait : str
        As for :func:`allocate`.
    """
    memory = np.zeros(STAGE_BEGIN, np.uint8)  # nothing is staged
    return Window(MPI.COMM_SELF, memory, LINES, chosen(wait, ranks, os.cpu_count() or 1))


def chosen(wait: str, ranks: int, available: int) -> str:
    """Choose how to wait, by the ranks on so many cores, where it is not said."""
    if wait != "auto":
        return wait
    return "spin" if ranks <= available else "yield"


@functools.cache
def _libc(symbol: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value or 0


@register_jitable
def finished(window, number):
    """Address of the word that says up to where a rank has finished."""
    return load(window, ADDRESS) + number * load(window, REGION)


@register_jitable
def room(window, units):
    """Where a block of so many units would begin; or -1 - number, of a rank whose readers it waits for."""
    ring, begun = load(window, UNITS), load(window, POSITION)
    start = begun
    if start % ring + units > ring:  # what is left before the end is nobody's
        start += ring - start % ring
    needed = min(start + units - ring, begun)
    if load(window, KNOWN) < needed:
        known = start
        for number in range(load(window, RANKS)):
            value = load_acquire(finished(window, number))
            if value < needed:
                return -1 - number
            known = min(known, value)
        store(window, KNOWN, known)
    return start


@register_jitable
def take(window, start, units, strand):
    """Give a strand its line and units."""
    block = load(window, BLOCK) + 1
    store(window, BLOCK, block)
    store(window, POSITION, start + units)
    base = load(window, ADDRESS) + 2 * p.LINE_BYTES
    store(strand, p.LINE, base + block % LINES * p.LINE_BYTES)
    store(strand, p.STAGE, load(window, STAGES) + start % load(window, UNITS) * load(window, UNIT_BYTES))
    store(strand, p.COUNTER, block * STRIDE)
    store(strand, p.START, start)


@register_jitable
def finish(window, position):
    """Tell the others up to where this rank has finished."""
    store_release(finished(window, load(window, NUMBER)), position)


@register_jitable
def rest(frame, window, rounds):
    """Pass the time until the next look; the more rounds were in vain, the longer.

    Others may wait for messages that MPI can only move on while this rank is in an MPI call, sent by this
    collective or by the program before it: so MPI is looked into now and then.
    """
    if rounds < load(window, SPINS):
        relax()
    elif rounds < load(window, YIELDS):
        call_plain(load(window, YIELD))
    else:
        call_wait(load(window, SLEEP), load(window, INTERVAL), 0)
    if rounds % PROBES != PROBES - 1:
        return 0
    status = load(frame, p.STATUS)
    return call_probe(
        load(frame, p.FUNCTIONS + p.PROBE),
        load(window, ANY_SOURCE), load(window, ANY_TAG), load(frame, p.COMM), status, status + 8,
    )  # fmt: skip


@register_jitable
def ended(window, number):
    """Whether the process of a rank of the node has ended."""
    processes = load(window, PROCESSES)
    if call_test(load(window, POLL), processes, load(window, RANKS), 0) <= 0:
        return False
    return load_int(processes + 8 * number + 4) >> 16 != 0
