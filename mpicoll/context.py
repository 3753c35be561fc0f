"""What all plans of one communicator share."""

import functools
import os
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from . import selection, topology
from .engine import compiled
from .engine.lowering import Limits
from .schedule.registry import Nodes

if TYPE_CHECKING:
    from .plan import Persistent, Plan

PLANS = 1024  # kept per communicator


class Workspace:
    """Scratch memory; one plan at a time runs, so all share it.

    Attributes
    ----------
    cell : ndarray of int64, shape (1,)
        Holds the address of the memory. Frames refer to the cell, since the memory moves as it grows.
    reserved : int
        Bytes that there is room for.
    """

    def __init__(self) -> None:
        self.cell = np.zeros(1, np.int64)
        self.reserved = 0
        self._memory = np.empty(0, np.uint8)

    def reserve(self, nbytes: int) -> None:
        """Make room for `nbytes`, aligned to cache lines."""
        if nbytes > self.reserved:
            self.reserved = nbytes
            self._memory = np.empty(nbytes + 64, np.uint8)
            self.cell[0] = -(-self._memory.ctypes.data // 64) * 64


class Context:
    """A communicator's private duplicate, its topology, scratch and plans.

    It hangs on the MPI communicator as an attribute, so that every wrapper of one communicator
    shares it and it goes when the communicator is freed.
    """

    def __init__(self, comm: MPI.Intracomm, nodes: Nodes | None, engine: str, limits: Limits) -> None:
        self.comm = MPI.Intracomm(comm).Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.engine = self._agreed(engine)
        self.limits = limits
        self.nodes = topology.nodes(self.comm) if nodes is None else nodes
        self.near = frozenset(next(node for node in self.nodes if self.rank in node))
        self.workspace = Workspace()
        self.plans: dict[tuple, Plan] = {}
        self.frames: dict[tuple, int] = {}  # of those plans that the fast path may run
        self.visible: dict[tuple, int] = {}  # the same, but empty while collectives wait for their turn
        self.started: deque[Persistent] = deque()  # in the order of their starts

    def _agreed(self, engine: str) -> str:
        """Settle with all ranks what they must not decide differently."""
        mine = compiled.available(), {name: os.environ.get(name) for name in selection.VARIABLES}
        everyone = self.comm.allgather(mine)
        for name in selection.VARIABLES:
            values = [variables[name] for _, variables in everyone]
            if len(set(values)) > 1:
                raise ValueError(f"{name}: {values} on ranks 0 to {self.size - 1}, expected the same on all")
        if engine == "compiled" and not all(available for available, _ in everyone):
            warnings.warn(
                "MPI's C functions cannot be found through mpi4py's module: the slow reference engine runs",
                stacklevel=6,
            )
            return "reference"
        return engine

    @classmethod
    def of(cls, comm: MPI.Intracomm, *options: Any) -> "Context":
        """Give the communicator's context for these options; make it, collectively, if there is none."""
        contexts: Any = comm.Get_attr(_keyval())
        if contexts is None:
            contexts = {}
            comm.Set_attr(_keyval(), contexts)
        if options not in contexts:
            contexts[options] = cls(comm, *options)
        return contexts[options]

    def keep(self, key: tuple, plan: "Plan") -> None:
        """Remember a plan, and forget the oldest where there are too many."""
        self.plans[key] = plan
        *call, parameters = key
        if plan.frame and not parameters and compiled.reads_objects():
            self.frames[tuple(call)] = plan.frame
            self._show()
        if len(self.plans) > PLANS:
            oldest = next(iter(self.plans))
            del self.plans[oldest]
            self.frames.pop(oldest[:-1], None)
            self.visible.pop(oldest[:-1], None)

    def kept(self, key: tuple) -> "Plan":
        """Give a plan, which becomes the last to be forgotten."""
        self.plans[key] = plan = self.plans.pop(key)
        return plan

    def start(self, request: "Persistent") -> None:
        """Put a collective at the end of the queue."""
        self.started.append(request)
        self._show()

    def finish(self, last: "Persistent | None" = None) -> None:
        """Run what was started, in order, up to one of them; or all of it."""
        try:
            while self.started and (last is None or last in self.started):
                self.started.popleft().run()
        finally:
            self._show()

    def _show(self) -> None:
        """Let the fast path, which does not look at the queue, find frames only while that is empty."""
        if self.started:
            self.visible.clear()
        elif len(self.visible) != len(self.frames):
            self.visible.update(self.frames)

    @property
    def closed(self) -> bool:
        """Whether the communicator was freed."""
        return self.comm == MPI.COMM_NULL

    def close(self) -> None:
        """Free the private duplicate."""
        self.started.clear()
        self.plans.clear()
        self.frames.clear()
        self.visible.clear()
        if not self.closed:
            self.comm.Free()


@functools.cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval(delete_fn=_close)


def _close(comm: MPI.Comm, keyval: int, contexts: dict[Any, Context]) -> None:
    for context in contexts.values():
        context.close()
