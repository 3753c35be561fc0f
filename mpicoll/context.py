"""What all plans of one communicator share."""

import functools
import itertools
import sys
import warnings
import weakref
from functools import partial
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from . import selection, topology, tuning
from .calls import Call
from .device import driver
from .device import plan as device_plan
from .device.device import Device
from .engine import compiled, ring
from .engine.device_blocks import CUDA_ERROR
from .engine.lowering import Limits
from .engine.program import TAGS
from .engine.window import GONE, UNIT, Window, allocate, alone
from .errors import DeviceError
from .launch import cores
from .plan import Plan, Workspace, bind, decide
from .progress import Queue
from .schedule.collectives import COLLECTIVES
from .schedule.registry import Nodes

PLANS = 1024  # kept per communicator
TAGS_OF_MPI = 1 << 15  # at least


class Context:
    """A communicator's private duplicate, its topology, scratch, plans, and what it has started.

    It hangs on the MPI communicator as an attribute, so that every wrapper of one communicator
    shares it and it goes when the communicator is freed.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator.
    nodes, engine, limits
        As for :class:`~mpicoll.communicator.Communicator`.
    parent : Context, optional
        Of a communicator with all of these ranks, which have agreed.
    private : tuple of MPI.Intracomm and MPI.Request, optional
        A duplicate that is being made, by all of them.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        nodes: Nodes | None,
        engine: str,
        limits: Limits,
        parent: "Context | None" = None,
        private: tuple[MPI.Intracomm, MPI.Request] | None = None,
    ) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.limits = limits
        self.workspace = Workspace()
        self._window: tuple[Window | None] | None = None
        self._device: Device | None = None
        self.asides: list[Context] = []
        self.choices: dict[tuple, selection.Choice] = {}
        self.plans: dict[tuple, Plan] = {}
        self.frames: dict[tuple, int] = {}  # of those plans that the fast path may run, by what it sees
        self.visible: dict[tuple, int] = {}  # the same, but empty while collectives wait for their turn
        self.sums = compiled.Chain()  # of those that are all-reduces of sums
        if private is None:
            self.comm = MPI.Intracomm(comm).Dup()
        else:
            self.comm = private[0]
            private[1].Wait()
        self.environment: dict[str, str] = parent.environment if parent else selection.environment()
        self.tuning: tuning.Tuning | None = parent.tuning if parent else None
        try:
            self.engine = engine if parent else self._agreed(engine)
        except ValueError:
            self.comm.Free()
            raise
        self.nodes = nodes or (topology.within(parent, self.comm) if parent else topology.nodes(self.comm))
        self.near = frozenset(next(node for node in self.nodes if self.rank in node))
        self._threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.queue = Queue(self._threaded, self._show)
        self._queues = weakref.WeakSet([self.queue])
        self._tags = itertools.cycle(range(TAGS * len(COLLECTIVES), TAGS_OF_MPI, TAGS))

    def _agreed(self, engine: str) -> str:
        """Settle with all ranks what they must not decide differently."""
        everyone = self.comm.allgather((compiled.available(), self.environment))
        for name in sorted({name for _, variables in everyone for name in variables}):
            values = [variables.get(name) for _, variables in everyone]
            if len(set(values)) > 1:
                raise ValueError(f"{name}: {values} on ranks 0 to {self.size - 1}, expected the same on all")
        selection.check_environment(self.environment)
        self.tuning = self._tuned()
        if engine == "compiled" and not all(available for available, _ in everyone):
            warnings.warn(
                "MPI's C functions cannot be found through mpi4py's module: the slow reference engine runs",
                stacklevel=6,
            )
            return "reference"
        return engine

    def _tuned(self) -> tuning.Tuning | None:
        """Read the table that the environment names: rank 0 for all, so that all have the same."""
        file = self.environment.get(selection.TUNING)
        if file is None:
            return None
        text, problem = "", ""
        if self.rank == 0:
            try:
                text = tuning.read(file)
                tuning.parse(text, file)
            except ValueError as error:
                problem = str(error)
        text, problem = self.comm.bcast((text, problem))
        if problem:
            raise ValueError(f"{selection.TUNING}: {problem}")
        return tuning.parse(text, file)

    @classmethod
    def of(
        cls,
        comm: MPI.Intracomm,
        nodes: Nodes | None,
        engine: str,
        limits: Limits,
        *origin: Any,
    ) -> "Context":
        """Give the communicator's context for these options; make it, collectively, if there is none."""
        contexts: Any = comm.Get_attr(_keyval())
        if contexts is None:
            contexts = {}
            comm.Set_attr(_keyval(), contexts)
        options = nodes, engine, limits
        if options not in contexts:
            contexts[options] = cls(comm, *options, *origin)
        return contexts[options]

    def aside(self) -> tuple[int, Queue]:
        """Give a tag and a queue to a persistent collective: ranks may start several in any order.

        All ranks make them in one order, so they have the same tag everywhere. Without threads one queue
        runs all, and then the order of the starts matters.
        """
        queue = Queue(True) if self._threaded else self.queue
        self._queues.add(queue)
        return next(self._tags), queue

    def apart(self) -> "Context":
        """Make a context of its own for a persistent collective of device memory; collective.

        Such a collective has stages and scratch, and with those a duplicate of the communicator, to itself:
        so ranks may start several in any order. They go with this context, in one order on all ranks.
        """
        self.asides.append(Context(self.comm, self.nodes, self.engine, self.limits, self))
        return self.asides[-1]

    def finish(self) -> None:
        """Return when all nonblocking collectives that were started are done."""
        if not self.queue.idle:
            self.queue.finish()

    def finish_all(self) -> None:
        """Return when all that was started is done, persistent collectives, too."""
        for queue in list(self._queues):
            queue.finish()
        for aside in self.asides:
            aside.finish_all()

    def node(self) -> MPI.Intracomm:
        """Make a communicator of the ranks of this node, to be freed; collective."""
        number = next(i for i, node in enumerate(self.nodes) if self.rank in node)
        node: Any = self.comm.Split(number, self.rank)
        return node

    def device(self, number: int | None) -> Device:
        """Give what this communicator has on the rank's device; raises as :meth:`Device.check`."""
        if self._device is None:
            self._device = Device(self, number)
        self._device.check(number)
        return self._device

    @property
    def copied(self) -> int:
        """Bytes of device memory that were copied to the host, or back."""
        return sum(aside.copied for aside in self.asides) + (self._device.copied if self._device else 0)

    def window(self) -> Window | None:
        """Give the node's window; collective the first time. None if there is no memory for it."""
        if self._window is None:
            node = self.node()
            asked = self.environment.get(selection.STAGING, selection.AUTO)
            staging = int(asked) if asked != selection.AUTO else UNIT * self._known(node)
            wait = self.environment.get(selection.WAIT, selection.AUTO)
            window = allocate(node, self.comm, staging or None, wait, cores())
            if window is not None and not staging:
                ring.choose(window, node, partial(self.fail, "the measurement of shared memory"))
            node.Free()
            self._window = (window,)
        return self._window[0]

    @property
    def shares(self) -> bool:
        """Whether there is memory for the node's window, as far as was tried."""
        return self._window != (None,)

    def alone(self) -> Window:
        """Give a window for blocks that are only sent."""
        return alone(len(self.near), self.environment.get(selection.WAIT, selection.AUTO))

    def _known(self, node: MPI.Intracomm) -> int:
        """Give the units of stage that the ranks of all nodes have measured before; 0 if some have not."""
        return min(self.comm.allgather(ring.known(node)))

    def fail(self, what: str, code: int) -> NoReturn:
        """Raise what an answer of the interpreter means; end the job where a rank of the node has ended."""
        if code <= CUDA_ERROR:
            raise DeviceError(f"{what}: {driver.text(CUDA_ERROR - code)}")
        if code <= GONE:
            rank = sorted(self.near)[GONE - code]
            print(
                f"mpicoll: rank {rank} has ended; {what} on rank {self.rank} waits for it: ending the job",
                file=sys.stderr,
                flush=True,
            )
            MPI.COMM_WORLD.Abort(1)
        raise MPI.Exception(code)

    def decide(
        self, call: Call, algorithm: str, parameters: dict[str, Any], trouble: str = ""
    ) -> selection.Choice:
        """Choose what serves a call, as :mod:`mpicoll.plan` or :mod:`mpicoll.device.plan` do."""
        if call.devices:
            return device_plan.decide(self, call, algorithm, parameters)
        return decide(self, call, algorithm, parameters, trouble)

    def plan(self, call: Call, choice: selection.Choice, *arrays: np.dtype | None) -> Plan:
        """Find the plan of a call, or make it.

        Parameters
        ----------
        call, choice
            As for :func:`~mpicoll.plan.bind`.
        *arrays : numpy.dtype or None
            Types of the NumPy arrays that the fast path is to take; each has a plan of its own.
        """
        make = device_plan.bind if call.devices else bind
        if call.key is None:
            return make(self, call, choice)
        key = (*call.key, choice.algorithm, choice.transport, choice.parameters, arrays)
        plan = self.plans.pop(key, None) or make(self, call, choice)
        self.plans[key] = plan  # as the last to be forgotten
        if len(self.plans) > PLANS:
            forgotten = self.plans.pop(next(iter(self.plans)))
            for quick in [
                quick for quick, frame in self.frames.items() if frame and frame == forgotten.frame
            ]:
                del self.frames[quick]
                self.visible.pop(quick, None)
            self.sums.drop(forgotten.frame)
            self._show(self.queue.idle)
        return plan

    def choose(self, question: tuple, choice: selection.Choice) -> None:
        """Remember what serves calls of a kind."""
        if len(self.choices) >= PLANS:
            self.choices.clear()
        self.choices[question] = choice

    def remember(self, quick: tuple, frame: int) -> None:
        """Let the fast path run a frame, or for 0 the native collective, when it sees `quick`."""
        if len(self.frames) >= PLANS:
            self.frames.clear()
            self.visible.clear()
            self.sums.clear()
        self.frames[quick] = frame
        self.visible.pop(quick, None)  # it may be of a plan that will be forgotten
        if frame and quick[0] == "Allreduce" and quick[-3:] == (MPI.SUM.handle, False, selection.AUTO):
            self.sums.add(frame)
        self._show(self.queue.idle)

    def _show(self, idle: bool) -> None:
        """Let the fast path, which does not look at the queue, find frames only while that is idle."""
        self.sums.show(idle)
        if not idle:
            self.visible.clear()
        elif len(self.visible) != len(self.frames):
            self.visible.update(self.frames)

    @property
    def closed(self) -> bool:
        """Whether the communicator was freed."""
        return self.comm == MPI.COMM_NULL

    def close(self) -> None:
        """Free the private duplicate, after what was started."""
        for aside in self.asides:
            aside.close()
        for queue in list(self._queues):
            queue.close()
        self.sums.clear()  # before the frames go
        self.plans.clear()
        self.frames.clear()
        self.visible.clear()
        self._window = None
        if not self.closed:
            if self._device is not None:
                self._device.close()
            self.comm.Free()


@functools.cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval(delete_fn=_close)


def _close(comm: MPI.Comm, keyval: int, contexts: dict[Any, Context]) -> None:
    for context in contexts.values():
        context.close()
