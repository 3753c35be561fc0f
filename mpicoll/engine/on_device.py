"""From one rank's part of a schedule to a program on a device.

It is the program over shared memory, with the stage of each rank in its device's memory, where the ranks of
the node that can open it read it. Operands that would be combined one after the other are combined at once:
that reads and writes them once. To and from other ranks go messages, from device memory where MPI can take
it, and else through pinned host memory, out of which the device combines.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..schedule.schedule import Schedule
from . import program as p
from .layout import Place, Shape
from .messages import Limits
from .sharing import Sharing
from .staging import Staged


class DeviceRegions(NamedTuple):
    """The parts of a node's window, and where the stages are.

    Attributes
    ----------
    numbers, stride, stream
        As of :class:`~mpicoll.engine.sharing.Regions`.
    stages : mapping of int to int
        For each rank of `numbers`, bytes from this rank's stage to that one's.
    aware : bool
        Whether messages may be in device memory.
    """

    numbers: Mapping[int, int]
    stride: int
    stages: Mapping[int, int]
    aware: bool
    stream: bool = False


class OnDevice(Sharing):
    """The program so far, as of the base class."""

    in_lines = False  # the counters are in host memory

    def __init__(self, schedule: Schedule, shape: Shape, limits: Limits, window: DeviceRegions) -> None:
        super().__init__(schedule, shape, limits, window)
        self.stages = window.stages
        self.transit = p.SCRATCH if window.aware else p.PINNED
        self.combining: int | None = None  # the row of a COMBINE that may get more operands

    def finish(self) -> p.Program:
        """Add what is left to do after the last step, and give the program."""
        program = super().finish()
        end = np.zeros((1, p.COLUMNS), np.int64)
        end[0, 0] = p.SYNC
        return program._replace(rows=np.concatenate([program.rows, end]))

    def _region(self, rank: int, staged: Staged) -> Place:
        if staged.base == p.STAGE:
            return Place(p.STAGE, self.stages[rank] + staged.offset)
        return super()._region(rank, staged)

    def _combine(self, out: Place, left: Place, right: Place, nbytes: int) -> None:
        if not nbytes:
            return
        if self.combining is not None:
            _, *before = self.rows[self.combining]
            operands = len(self.rows) - self.combining + 1
            same = (*out, nbytes // self.itemsize) == (*before[:2], before[6]) and operands < p.OPERANDS
            if same and out in (left, right) and left != right:
                other = left if right == out else right
                self.rows.append((p.OPERAND, *other, int(right == out)))
                return
        super()._combine(out, left, right, nbytes)
        self.combining = len(self.rows) - 1

    def _emit(self, *row: int) -> None:
        if row[0] == p.AWAIT and self.combining is not None:  # what is combined may wait for that, too
            self.rows.insert(self.combining, row)
            self.combining += 1
            return
        self.combining = None
        super()._emit(*row)
