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

if TYPE_CHECKING:
    from .context import Context


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


def decide(call: Call, size: int, algorithm: str, parameters: dict[str, Any]) -> selection.Choice:
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
        size,
        commutative=reduction is None or reduction.commutative,
        counted=call.counted,
        native=not average,
    )
    choice = selection.choose(asked, algorithm)
    if choice.algorithm == selection.NATIVE:
        if average:
            raise ValueError(f"{call.collective}: AVG is not an op of MPI's, native cannot serve it")
        return _native(call, choice, parameters)
    if call.unsuited and not choice.asked:
        return _native(call, selection.Choice(selection.NATIVE, call.unsuited), parameters)
    try:
        _check(call, choice.algorithm, parameters, size)
    except ValueError as error:
        if algorithm == selection.AUTO:  # the environment's choice, which the caller may not know of
            raise ValueError(f"{error} ({choice.reason})") from None
        raise
    return choice


def _native(call: Call, choice: selection.Choice, parameters: dict[str, Any]) -> selection.Choice:
    if parameters:
        raise ValueError(f"{call.collective}: {', '.join(parameters)} given, native takes no parameters")
    return choice


def bind(context: "Context", call: Call, name: str, parameters: dict[str, Any]) -> Plan:
    """Make the plan of a call by one of our algorithms.

    The reference engine serves what has no kernel: other types, and MPI's ops of the user's functions.

    Raises
    ------
    ValueError
        If the parameters do not suit the placement on nodes. All else has been told by :func:`decide`.
    """
    algorithm = find(call.collective, name)
    parameters = parameters_of(algorithm, call, parameters)
    schedule = algorithm.schedule(context.size, nodes=context.nodes, **parameters)
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
    reduction = call.reduction
    if context.engine == "compiled" and (reduction is None or reduction.compiled):
        kernel = 0 if reduction is None or reduction.kernel is None else reduction.kernel.address
        program = lower(schedule, shape, context.limits)
        run = compiled.Compiled(program, context.comm, kernel, context.workspace.cell)
        return Plan(schedule, run, run.address, partial(context.workspace.reserve, program.scratch))
    combine = _moves_only if reduction is None else reduction.combine()

    def execute(sendbuf: int, recvbuf: int) -> None:
        reference.execute(schedule, shape, context.comm, combine, sendbuf, recvbuf)

    return Plan(schedule, execute)


def _check(call: Call, name: str, parameters: dict[str, Any], size: int) -> None:
    """Check whether an algorithm serves a call, as far as can be told without its placement on nodes."""
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
    if not algorithm.two_level:
        algorithm.schedule(size, **({"chunks": 1} if algorithm.pipelined else {}) | parameters)
    if reduction is not None and not reduction.compiled:
        reduction.combine()


def _moves_only(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    raise AssertionError("a schedule that only moves data combines nothing")


def parameters_of(algorithm: Algorithm, call: Call, parameters: dict[str, Any]) -> dict[str, Any]:
    """Give the parameters of an algorithm's schedule: the caller's, and what follows from the call."""
    inner = parameters.get("inter")
    if algorithm.pipelined or (inner and find(call.collective, inner).pipelined):
        parameters = selection.pipeline(call.nbytes or 0) | parameters
    return parameters | {"root": call.root} if algorithm.rooted else parameters
