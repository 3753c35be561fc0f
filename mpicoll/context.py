"""What all plans of one communicator share."""

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from . import topology
from .engine import compiled
from .engine.lowering import Limits
from .schedule.registry import Nodes

if TYPE_CHECKING:
    from .plan import Persistent, Plan

PLANS = 256  # kept per communicator


class Workspace:
    """Scratch memory; one plan at a time runs, so all share it.

    Attributes
    ----------
    cell : ndarray of int64, shape (1,)
        Holds the address of the memory. Frames refer to the cell, since the memory moves as it grows.
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
        if engine == "compiled" and not compiled.available():
            warnings.warn(
                "MPI's C functions cannot be found through mpi4py's module: the slow reference engine runs",
                stacklevel=5,
            )
            engine = "reference"
        self.engine, self.limits = engine, limits
        self.comm = MPI.Intracomm(comm).Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.nodes = topology.nodes(self.comm) if nodes is None else nodes
        self.near = frozenset(next(node for node in self.nodes if self.rank in node))
        self.workspace = Workspace()
        self.plans: dict[tuple, Plan] = {}
        self.frames: dict[tuple, int] = {}  # what the fast path looks up
        self.started: deque[Persistent] = deque()  # in the order of their starts

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
        if plan.frame and compiled.reads_objects():
            self.frames[key] = plan.frame
        if len(self.plans) > PLANS:
            oldest = next(iter(self.plans))
            del self.plans[oldest]
            self.frames.pop(oldest, None)

    def start(self, request: "Persistent") -> None:
        """Put a collective at the end of the queue."""
        self.started.append(request)
        self.frames.clear()  # the fast path does not look at the queue

    def finish(self, last: "Persistent | None" = None) -> None:
        """Run what was started, in order, up to one of them; or all of it."""
        while self.started and (last is None or last in self.started):
            self.started.popleft().run()

    @property
    def closed(self) -> bool:
        """Whether the communicator was freed."""
        return self.comm == MPI.COMM_NULL

    def close(self) -> None:
        """Free the private duplicate."""
        self.started.clear()
        self.plans.clear()
        self.frames.clear()
        if not self.closed:
            self.comm.Free()


_KEYVAL: list[int] = []


def _keyval() -> int:
    if not _KEYVAL:
        _KEYVAL.append(MPI.Comm.Create_keyval(delete_fn=_close))
    return _KEYVAL[0]


def _close(comm: MPI.Comm, keyval: int, contexts: dict[Any, Context]) -> None:
    for context in contexts.values():
        context.close()
