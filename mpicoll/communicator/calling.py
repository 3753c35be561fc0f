"""From a method's arguments to a collective: blocking, nonblocking, persistent."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from time import perf_counter
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from .. import selection, statistics
from ..calls import Call, Where
from ..context import Context
from ..device import plan as device_plan
from ..device import producers
from ..engine import compiled
from ..engine.interpreter import DECLINED
from ..engine.lowering import LIMITS
from ..errors import FreedCommunicator
from ..plan import Plan, bind
from ..requests import Persistent, Request
from ..schedule.registry import Nodes

NATIVE = 0  # in place of a frame: the native collective serves
URGENT = 16 << 10  # bytes; what takes longer than a switch of threads is worth one
UNKNOWN = -1  # no equal call before, or not quite equal

Build = Callable[..., Call]  # (where, *arguments)


def _decline(*_: int) -> int:
    return DECLINED


class Calling(MPI.Intracomm):
    """What the collectives of a communicator have in common.

    A blocking collective first looks for the frame of an equal call: by the dtype and size of its array,
    and what else is in the arguments. The compiled entry then looks at the arrays itself, so that a call
    costs little more than in C. What is not found there goes the long way: :meth:`_blocking`.
    """

    _context: Context | None = None
    _entry: Callable[[int, int, int, int], int] = staticmethod(_decline)  # or the compiled interpreter
    _sums = 0  # a frame that leads to those of all-reduces of sums
    _frames: Mapping[tuple, int] = MappingProxyType({})  # until there is a context
    _nodes: Nodes | None = None
    _engine = "compiled"
    _limits = LIMITS
    _rank = -1
    _packed: dict[tuple, Any] | None = None
    _started: tuple[Context, tuple[MPI.Intracomm, MPI.Request]] | None = None  # where Idup makes it

    def _blocking(
        self,
        method: str,
        build: Build,
        arguments: tuple,
        algorithm: str,
        parameters: dict[str, Any],
        quick: Sequence[Any] = (),
    ) -> None:
        """Call a collective and return when this rank's part is done.

        Parameters
        ----------
        method : str
            Its name in mpi4py.
        build : callable
            What reads the arguments, of :mod:`mpicoll.calls`.
        arguments : tuple
        algorithm, parameters
            As the caller gave them.
        quick : sequence
            The send array, the receive array, and what finds the frame for an equal call: one of the
            arrays, and the arguments beside.
        """
        begin = perf_counter()
        call, choice = self._decided(build, arguments, algorithm, parameters)
        context = self._connected()
        context.finish()
        plan = None
        if choice.algorithm == selection.NATIVE:
            self._native(method, call)
        else:
            arrays = [array for array in quick[:2] if isinstance(array, np.ndarray)]
            plan = context.plan(call, choice, *(array.dtype for array in arrays))
            plan.run(call)
        if statistics.active is not None:
            _record(method, call, choice, begin, "" if plan is None else plan.label)
        elif quick and not parameters and _repeats(call, choice, quick, arguments):
            array, rest = quick[2:]
            key = (method, *(() if array is None else (array.dtype, array.size)), *rest)
            if plan is None:
                context.remember(key, NATIVE)
            elif plan.frame:
                plan.accept(*(array if isinstance(array, np.ndarray) else None for array in quick[:2]))
                context.remember(key, plan.frame)

    def _nonblocking(
        self, method: str, build: Build, arguments: tuple, algorithm: str, parameters: dict[str, Any]
    ) -> MPI.Request:
        """Start a collective."""
        call, choice = self._decided(build, arguments, algorithm, parameters)
        context = self._connected()
        if choice.algorithm == selection.NATIVE:
            begin = perf_counter()
            request = self._native(method, call)
            if statistics.active is not None:
                _record(method, call, choice, begin)
            return request

        call.produced = producers.note(call.devices)

        def run() -> None:  # the plan is made in its turn: that may be collective
            _run(context.plan(call, choice), method, call, choice)

        return Request.start(context.queue, run, call.owners, call.own_bytes > URGENT)

    def _persistent(
        self,
        method: str,
        build: Build,
        arguments: tuple,
        info: MPI.Info,
        algorithm: str,
        parameters: dict[str, Any],
    ) -> "Persistent | MPI.Prequest":
        """Make a collective that runs again and again on the same buffers."""
        # ranks may start several in any order, but take shared memory in one
        trouble = "persistent collectives send messages"
        call, choice = self._decided(build, arguments, algorithm, parameters, trouble)
        context = self._connected()
        if call.devices:
            return self._persistent_on_device(method, call, choice)
        if choice.algorithm == selection.NATIVE:
            if statistics.active is not None:
                _record(method, call, choice, perf_counter())
            return self._native(method, call, info)
        tag, queue = context.aside()
        plan = bind(context, call, choice, tag)
        run = partial(_run, plan, method, call, choice)
        return Persistent(queue, run, call.owners, lambda: context.closed, call.own_bytes > URGENT)

    def _persistent_on_device(self, method: str, call: Call, choice: selection.Choice) -> Persistent:
        """Make a collective of device memory that runs again and again; all ranks wait for each other."""
        if choice.algorithm == selection.NATIVE:
            raise TypeError(
                f"{call.collective}: native asked for, but the library's persistent collectives do not wait "
                "for a device when they start"
            )
        context = self._connected()
        context.finish()
        aside = context.apart()
        run = partial(_run, aside.plan(call, choice), method, call, choice)

        def begin() -> None:
            call.produced = producers.note(call.devices)

        urgent = call.own_bytes > URGENT
        return Persistent(aside.queue, run, call.owners, lambda: context.closed, urgent, begin)

    def _native(self, method: str, call: Call, *more: Any) -> Any:
        """Call the MPI library's own collective."""
        if call.devices:
            context = self._connected()
            context.finish()  # what follows may be collective on the private communicator
            device_plan.check_native(context, call)
        return getattr(MPI.Intracomm, method)(self, *call.native, *more)

    def _decided(
        self, build: Build, arguments: tuple, algorithm: str, parameters: dict[str, Any], trouble: str = ""
    ) -> tuple[Call, selection.Choice]:
        """Read and check the arguments, and choose what serves; nothing is sent.

        `trouble` says what keeps the call from shared memory, if it is not in the arguments.
        """
        if self == MPI.COMM_NULL or (self._context is not None and self._context.closed):
            raise FreedCommunicator("the communicator was freed, or is MPI.COMM_NULL")
        context = self._connected()
        call = build(Where(context.rank, context.size), *arguments)
        limits = call.nbytes, call.counted, call.unsuited, trouble
        question = (call.key, *limits, algorithm, *parameters.items())
        try:
            return call, context.choices[question]
        except (KeyError, TypeError):
            choice = context.decide(call, algorithm, parameters, trouble)
        if call.key is not None:
            context.choose(question, choice)
        return call, choice

    def _fail(self, method: str, code: int) -> NoReturn:
        self._connected().fail(method, code)

    def _connected(self, parent: Context | None = None) -> Context:
        """Give the context; the first time it is made, by all ranks."""
        if self._context is None:
            options = self._nodes, self._engine, self._limits
            parent, private = self._started or (parent, None)
            self._context = Context.of(self, *options, parent, private)
            self._started = None
            if self._context.engine == "compiled" and compiled.available():
                self._entry = compiled.run()
            self._frames, self._rank = self._context.visible, self._context.rank
            self._sums = self._context.sums.address
        return self._context


def _run(plan: Plan, method: str, call: Call, choice: selection.Choice) -> None:
    """Run a plan when its turn comes."""
    begin = perf_counter()
    plan.run(call)
    if statistics.active is not None:
        _record(method, call, choice, begin, plan.label)


def _repeats(call: Call, choice: selection.Choice, quick: Sequence[Any], arguments: tuple) -> bool:
    """Whether an equal key means an equal call.

    It does for NumPy arrays, an op that is not freed, and IN_PLACE where that was said: the same memory in
    both buffers has the key of separate ones. The native collective takes what it is given, so it must be
    what the caller gave; and two buffers are looked at each time, unless the caller asked for it.
    """
    if choice.algorithm == selection.NATIVE:
        one = any(array is None or array is MPI.IN_PLACE for array in quick[:2])
        if not all(map(is_, arguments, call.native)) or not (one or choice.asked):
            return False
    in_place = [argument is MPI.IN_PLACE for argument in arguments[:2]]
    plain = all(array is None or type(array) is np.ndarray or array is MPI.IN_PLACE for array in quick[:2])
    predefined = call.reduction is None or (call.reduction.op.is_predefined and not call.reduction.average)
    aliased = call.in_place and bool(arguments) and not any(in_place)
    return plain and predefined and not aliased and compiled.reads_objects()


def _record(method: str, call: Call, choice: selection.Choice, begin: float, label: str = "") -> None:
    assert statistics.active is not None
    native = choice.algorithm == selection.NATIVE
    seconds = perf_counter() - begin
    statistics.active.record(
        method, label or choice.algorithm, call.own_bytes, seconds, choice.reason if native else ""
    )
