"""How much of the stage to use in turn: measured when the window is made.

Writing to a line that a peer's cache still holds costs several times as much as to one that has left it. So
a ring larger than that cache is faster, unless both cores share one that the ring then falls out of: which
it is depends on where the ranks are.
"""

import logging
from time import perf_counter
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from ..schedule import find
from . import window as w
from .compiled import Compiled
from .cutting import cut
from .layout import Shape
from .lowering import Regions, lower

logger = logging.getLogger("mpicoll")

NBYTES = 1 << 21  # of each rank, in all
BLOCK = 1 << 17  # bytes of all ranks' vectors together
TIMES = 3


def choose(window: w.Window, node: MPI.Intracomm) -> None:
    """Measure an all-gather with a quarter, half and all of the stage; keep the fastest. Collective."""
    all_units = window.units
    candidates = [units for units in (all_units // 4, all_units // 2, all_units) if units >= w.LEAST]
    if node.size == 1 or len(candidates) < 2:
        return
    nbytes = NBYTES // node.size
    send, recv = np.ones(nbytes, np.uint8), np.zeros(nbytes * node.size, np.uint8)
    schedule = find("allgather", "direct").schedule(node.size)
    counts = (nbytes,) * node.size
    shape = Shape(node.rank, node.size, 0, schedule.chunks, counts, 1, False, frozenset(range(node.size)))
    regions = Regions({number: number for number in range(node.size)}, window.stride)
    parts = list(cut("allgather", shape, BLOCK))
    programs = {part: lower(schedule, part, window=regions) for part in {part for part, _ in parts}}
    blocks = [(programs[part], shift) for part, shift in parts]
    run = Compiled(blocks, node, 0, 0, np.zeros(1, np.int64), _fail, window.state)
    seconds = []
    for units in candidates:
        window.state[w.UNITS] = units
        samples = []
        for _ in range(TIMES):
            node.Barrier()
            begin = perf_counter()
            run(send.ctypes.data, recv.ctypes.data)
            samples.append(perf_counter() - begin)
        node.Barrier()
        seconds.append(node.allreduce(min(samples), op=MPI.MAX))
    window.state[w.UNITS] = candidates[seconds.index(min(seconds))]
    logger.debug("stage of %d units chosen; %s took %s s", window.state[w.UNITS], candidates, seconds)


def _fail(code: int) -> NoReturn:
    raise MPI.Exception(code)
