"""How much of the stage to use in turn: measured when the window is made.

Writing to a line that a peer's cache still holds costs several times as much as to one that has left it. So
a ring larger than that cache is faster, unless both cores share one that the ring then falls out of: which
it is depends on where the ranks are.
"""

import logging
import os
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from ..schedule import Schedule, recv, send
from ..schedule.moves import Move
from . import window as w
from .compiled import Compiled
from .cutting import cut
from .layout import Shape
from .lowering import Regions, lower

logger = logging.getLogger("mpicoll")

NBYTES = 1 << 20  # that each rank stages for its neighbour at a time
TIMES = 3
NEARLY = 1.05  # times the best is good enough for a shorter one, which leaves more of the caches to others


_CHOSEN: dict[tuple[int, ...], int] = {}  # by the processes: all of them have measured together


def known(node: MPI.Intracomm) -> int:
    """Give the units that these processes have measured; 0 if they have not. Collective."""
    if node.size == 1:
        return w.RING
    return _CHOSEN.get(tuple(node.allgather(os.getpid())), 0)


def choose(window: w.Window, node: MPI.Intracomm, fail: Callable[[int], NoReturn]) -> None:
    """Choose a quarter, half or all of the stage, and remember it. Collective."""
    candidates = [units for units in (window.units // 4, window.units // 2, window.units) if units >= w.RING]
    if len(candidates) < 2:
        return
    units = known(node) or _measured(candidates, window, node, fail)
    window.shorten(min(units, window.units))  # there may have been room for more then
    _CHOSEN[tuple(node.allgather(os.getpid()))] = units


def _measured(
    candidates: list[int], window: w.Window, node: MPI.Intracomm, fail: Callable[[int], NoReturn]
) -> int:
    """Measure rings of so many units, and give the shortest that is nearly as fast as any; 10 to 30 ms."""
    run = _shift(window, node, fail)
    sent, received = np.ones(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)
    seconds = []
    for units in candidates:
        window.state[w.UNITS] = units
        samples = []
        for _ in range(units * w.UNIT // NBYTES + TIMES):  # once all around, and some more
            begin = perf_counter()
            run(sent.ctypes.data, received.ctypes.data)
            samples.append(perf_counter() - begin)
        node.Barrier()
        seconds.append(node.allreduce(min(samples[-TIMES:]), op=MPI.MAX))
    enough = next(i for i, time in enumerate(seconds) if time <= NEARLY * min(seconds))
    logger.debug("stages of %s units took %s s: %d", candidates, seconds, candidates[enough])
    return candidates[enough]


def _shift(window: w.Window, node: MPI.Intracomm, fail: Callable[[int], NoReturn]) -> Compiled:
    """Make a program in which each rank stages a vector for its right neighbour."""

    def steps(rank: int) -> Iterator[tuple[Move, ...]]:
        yield send((rank + 1) % node.size, 0), recv((rank - 1) % node.size, 0)

    schedule = Schedule("allreduce", "shift", node.size, 1, steps)
    numbers = {number: number for number in range(node.size)}
    shape = Shape(node.rank, node.size, 0, 1, (NBYTES,), 1, False, frozenset(numbers))
    block, _ = next(cut("allreduce", shape, w.UNIT))
    program = lower(schedule, block, window=Regions(numbers, window.stride))
    blocks = [(program, begin) for begin in range(0, NBYTES, w.UNIT)]
    return Compiled(blocks, node, 0, 0, np.zeros(1, np.int64), fail, window)
