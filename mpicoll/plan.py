"""Plans: a schedule bound to a communicator, counts, a type and an op, ready to run again and again."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import selection
from .calls import Call
from .engine import compiled, reference
from .engine.layout import Shape
from .engine.lowering import lower
from .schedule import Algorithm, Schedule, find
from .schedule.collectives import COLLECTIVES

if TYPE_CHECKING:
    from .context import Context


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


class Plan:
    """A schedule ready to run on any buffers that are laid out alike.

    Attributes
    ----------
    schedule : Schedule
    execute : callable
        ``execute(sendbuf, recvbuf)`` with two addresses.
    frame : int
        Address of the compiled engine's frame, 0 for the reference engine.
    """

    def __init__(
        self,
        schedule: Schedule,
        execute: Callable[[int, int], None],
        frame: int = 0,
        reserve: Callable[[], None] = lambda: None,
    ) -> None:
        self.schedule, self.execute, self.frame, self._reserve = schedule, execute, frame, reserve

    def run(self, call: Call) -> None:
        """Run on the buffers of a call; alone on the communicator, since plans share their scratch."""
        self._reserve()
        for prepare in call.before:
            prepare()
        self.execute(call.sendbuf, call.recvbuf)
        for conclude in call.after:
            conclude()

    def accept(self, send: np.ndarray | None, recv: np.ndarray | None) -> None:
        """Let the frame take arrays like these."""
        if isinstance(self.execute, compiled.Compiled):
            self.execute.accept(send, recv)


def decide(context: "Context", call: Call, algorithm: str, parameters: dict[str, Any]) -> selection.Choice:
    """Choose what serves a call, and check that it does; nothing is sent.

    Raises
    ------
    ValueError
        If an algorithm was asked for that is unknown, cannot serve the call, or does not take the
        parameters.
    TypeError
        If one was asked for that cannot serve the memory.
    MPI.Exception
        If MPI cannot apply the op to the type.
    """
    if not isinstance(algorithm, str):
        raise TypeError(f"{call.collective}: algorithm {algorithm!r} given, expected a name")
    reduction = call.reduction
    if call.unsuited and (reduction is None or call.holes):
        if algorithm not in (selection.AUTO, selection.NATIVE):
            given = call.unsuited.removeprefix("not plain: ")
            raise TypeError(f"{call.collective}: {given} given, {algorithm} takes plain host memory")
        return _native(call, selection.Choice(selection.NATIVE, call.unsuited), parameters)
    average = reduction is not None and reduction.average
    asked = selection.Asked(
        call.collective,
        call.nbytes,
        context.size,
        commutative=reduction is None or reduction.commutative,
        counted=call.counted,
        native=not average,
    )
    choice = selection.choose(asked, algorithm, context.environment)
    if choice.algorithm == selection.NATIVE:
        if average:
            raise ValueError(f"{call.collective}: AVG is not an op of MPI's, native cannot serve it")
        return _native(call, choice, parameters)
    if call.unsuited and not choice.asked:
        return _native(call, selection.Choice(selection.NATIVE, call.unsuited), parameters)
    try:
        _check(context, call, choice.algorithm, parameters)
    except ValueError as error:
        if algorithm == selection.AUTO:  # the environment's choice, which the caller may not know of
            raise ValueError(f"{error} ({choice.reason})") from None
        raise
    return choice


def _native(call: Call, choice: selection.Choice, parameters: dict[str, Any]) -> selection.Choice:
    if parameters:
        raise ValueError(f"{call.collective}: {', '.join(parameters)} given, native takes no parameters")
    return choice


def bind(
    context: "Context", call: Call, name: str, parameters: dict[str, Any], tag: int | None = None
) -> Plan:
    """Make the plan of a call by one of our algorithms.

    The reference engine serves what has no kernel: other types, and MPI's ops of the user's functions.

    Parameters
    ----------
    context : Context
    call : Call
        One that :func:`decide` has chosen the algorithm for.
    name, parameters
        The algorithm.
    tag : int, optional
        Of its messages, for a plan that runs at the same time as others; it has its own scratch, too.
    """
    schedule = schedule_of(context, call, find(call.collective, name), parameters)
    shape = Shape(
        rank=context.rank,
        size=context.size,
        root=call.root,
        chunks=schedule.chunks,
        counts=call.counts,
        itemsize=call.itemsize,
        in_place=call.in_place,
        near=context.near,
        displacements=call.displacements,
        incoming=call.incoming,
        incoming_displacements=call.incoming_displacements,
    )
    workspace = context.workspace if tag is None else Workspace()
    if tag is None:  # what another collective has left under way can then not be taken for this one's
        tag = list(COLLECTIVES).index(call.collective)
    reduction = call.reduction
    if context.engine == "compiled" and (reduction is None or reduction.compiled):
        kernel = 0 if reduction is None or reduction.kernel is None else reduction.kernel.address
        program = lower(schedule, shape, context.limits)
        run = compiled.Compiled(program, context.comm, tag, kernel, workspace.cell)
        return Plan(schedule, run, run.address, partial(workspace.reserve, program.scratch))
    combine = _moves_only if reduction is None else reduction.combine()

    def execute(sendbuf: int, recvbuf: int) -> None:
        reference.execute(schedule, shape, context.comm, combine, sendbuf, recvbuf, tag)

    return Plan(schedule, execute)


def _check(context: "Context", call: Call, name: str, parameters: dict[str, Any]) -> None:
    """Raise what keeps an algorithm from serving a call."""
    collective, reduction = call.collective, call.reduction
    algorithm = find(collective, name)
    inner = [find(collective, parameters["inter"])] if "inter" in parameters else []
    if algorithm.commutative and reduction is not None and not reduction.commutative:
        raise ValueError(f"{collective}: {name} needs a commutative op, and this one is not")
    if algorithm.transit and call.counted:
        raise ValueError(f"{collective}: {name} passes blocks on, and takes equal ones only")
    for each in (algorithm, *inner):
        if each.limit is not None and call.nbytes is not None and call.nbytes > each.limit:
            raise ValueError(
                f"{collective}: {each.name} holds the vectors of all ranks and takes at most "
                f"{each.limit} bytes, given {call.nbytes}"
            )
    schedule_of(context, call, algorithm, parameters)
    if reduction is not None and not reduction.compiled:
        reduction.combine()


def _moves_only(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    raise AssertionError("a schedule that only moves data combines nothing")


def schedule_of(context: "Context", call: Call, algorithm: Algorithm, parameters: dict[str, Any]) -> Schedule:
    """Give the schedule of a call; raise ValueError if the algorithm has none for it."""
    parameters = parameters_of(algorithm, call, parameters)
    return algorithm.schedule(context.size, nodes=context.nodes, **parameters)


def parameters_of(algorithm: Algorithm, call: Call, parameters: dict[str, Any]) -> dict[str, Any]:
    """Give the parameters of an algorithm's schedule: the caller's, and what follows from the call."""
    inner = parameters.get("inter")
    if algorithm.pipelined or (inner and find(call.collective, inner).pipelined):
        parameters = selection.pipeline(call.nbytes or 0) | parameters
    return parameters | {"root": call.root} if algorithm.rooted else parameters
