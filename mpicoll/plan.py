"""Plans: a schedule bound to a communicator, counts, a type and an op, ready to run again and again."""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import selection
from .calls import Call
from .engine import compiled, reference
from .engine.cutting import cut
from .engine.layout import Shape
from .engine.lowering import Regions, lower
from .engine.program import TAGS
from .engine.window import RING, Window
from .schedule import Algorithm, Schedule, find
from .schedule.collectives import COLLECTIVES
from .selection import AUTO

if TYPE_CHECKING:
    from .context import Context


BLOCK = 1 << 17  # bytes of a vector that are a block, where it goes over shared memory only
LONG_BLOCK = 1 << 19  # and where there are messages
STREAM = 48 << 20  # bytes; the results of longer vectors do not stay in a cache
ELEMENT = 1 << 12  # bytes; longer elements need not fit into a stage


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
    label : str
        What statistics call it; "" for the name of the algorithm that was chosen.
    """

    label = ""

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


def decide(
    context: "Context", call: Call, algorithm: str, parameters: dict[str, Any], trouble: str = ""
) -> selection.Choice:
    """Choose what serves a call, and check that it does; nothing is sent.

    Parameters
    ----------
    context : Context
    call : Call
    algorithm, parameters
        As the caller gave them.
    trouble : str
        What keeps the call from shared memory, beside what is in the call.

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
    given = {name: value for name, value in parameters.items() if (name, value) != ("transport", AUTO)}
    parameters = {name: value for name, value in given.items() if name != "transport"}
    reduction = call.reduction
    if call.unsuited and not call.ours and (reduction is None or call.holes):
        if algorithm not in (selection.AUTO, selection.NATIVE):
            memory = call.unsuited.removeprefix("not plain: ")
            raise TypeError(f"{call.collective}: {memory} given, {algorithm} takes plain host memory")
        return _native(call, selection.Choice(selection.NATIVE, call.unsuited), given)
    average = reduction is not None and reduction.average
    trouble = trouble or _keeps_from_sharing(context, call)
    transport = _transport(context, call, given.get("transport", AUTO), trouble)
    asked = selection.Asked(
        call.collective,
        call.nbytes,
        context.size,
        commutative=reduction is None or reduction.commutative,
        counted=call.counted,
        native=not average and "transport" not in given and not call.ours,
        nodes=context.size if trouble or transport == selection.MESSAGE else len(context.nodes),
    )
    environment = context.environment
    if call.ours:
        environment = {name: value for name, value in environment.items() if value != selection.NATIVE}
    choice = selection.choose(asked, algorithm, environment, tuning=context.tuning)
    if choice.algorithm == selection.NATIVE:
        if average:
            raise ValueError(f"{call.collective}: AVG is not an op of MPI's, native cannot serve it")
        return _native(call, choice, given)
    if call.unsuited and not call.ours and not choice.asked:
        return _native(call, selection.Choice(selection.NATIVE, call.unsuited), given)
    parameters = dict(choice.parameters) | parameters
    try:
        check(context, call, choice.algorithm, parameters)
    except ValueError as error:
        if algorithm == selection.AUTO:  # the environment's choice, which the caller may not know of
            raise ValueError(f"{error} ({choice.reason})") from None
        raise
    if transport == selection.AUTO:
        transport = selection.MESSAGE if trouble else choice.transport
    return choice._replace(transport=transport, parameters=tuple(sorted(parameters.items())))


def _keeps_from_sharing(context: "Context", call: Call) -> str:
    """Say why a call cannot go over shared memory; the same on all ranks, "" where it can."""
    if max(map(len, context.nodes)) == 1:
        return "every rank is on a node of its own"
    if call.counted and call.collective in ("alltoall", "gather", "scatter"):
        return "not every rank knows the lengths of all blocks"
    if call.itemsize > ELEMENT:
        return f"its elements are longer than {ELEMENT} bytes"
    if not _compiles(context, call):
        return "the reference engine sends messages"
    return ""


def _transport(context: "Context", call: Call, asked: Any, trouble: str) -> str:
    """Give the transport that the call or the environment asks for."""
    if asked not in (selection.AUTO, selection.MESSAGE, selection.SHARED):
        raise ValueError(
            f"{call.collective}: transport {asked!r} given, expected auto, message or shared for host memory"
        )
    if asked == selection.SHARED and trouble:
        raise ValueError(f"{call.collective}: transport 'shared' given, but {trouble}")
    if asked == selection.AUTO and not trouble:
        asked = context.environment.get(selection.TRANSPORT, asked)
    return asked


def _native(call: Call, choice: selection.Choice, parameters: dict[str, Any]) -> selection.Choice:
    if parameters:
        raise ValueError(f"{call.collective}: {', '.join(parameters)} given, native takes no parameters")
    return choice


def bind(
    context: "Context",
    call: Call,
    choice: selection.Choice,
    tag: int | None = None,
) -> Plan:
    """Make the plan of a call by one of our algorithms.

    The reference engine serves what has no kernel: other types, and MPI's ops of the user's functions.
    Over shared memory it is collective the first time.

    Parameters
    ----------
    context : Context
    call : Call
    choice : Choice
        What :func:`decide` has chosen for it.
    tag : int, optional
        Of its messages, for a plan that runs at the same time as others; it has its own scratch, too.
    """
    reduction, algorithm = call.reduction, find(call.collective, choice.algorithm)
    numbers, window = _window(context, call, choice)
    parameters = parameters_as_run(context, call, choice)
    schedule = algorithm.schedule(context.size, nodes=context.nodes, **parameters)
    shape = shape_of(context, call, schedule)
    workspace = context.workspace if tag is None else Workspace()
    tag = tag_of(call.collective) if tag is None else tag
    if not _compiles(context, call):
        combine = _moves_only if reduction is None else reduction.combine()

        def execute(sendbuf: int, recvbuf: int) -> None:
            reference.execute(schedule, shape, context.comm, combine, sendbuf, recvbuf, tag)

        return Plan(schedule, execute)

    if window is None:
        programs = [(lower(schedule, shape, context.limits), 0)]
    else:
        nbytes = _block_bytes(context, algorithm, parameters, window)
        regions = Regions(numbers, window.stride, call.own_bytes >= STREAM)
        lowered = cache(lambda part: lower(schedule, part, context.limits, regions))
        programs = [(lowered(part), shift) for part, shift in cut(call.collective, shape, nbytes)]
    kernel = 0 if reduction is None or reduction.kernel is None else reduction.kernel.address
    fail = partial(context.fail, f"{call.collective} by {choice.algorithm}")
    # in place a block's result lies where blocks before it begin
    one_by_one = call.collective == "reduce_scatter" and call.in_place
    run = compiled.Compiled(programs, context.comm, tag, kernel, workspace.cell, fail, window, one_by_one)
    return Plan(schedule, run, run.address, partial(workspace.reserve, run.scratch))


def shape_of(context: "Context", call: Call, schedule: Schedule) -> Shape:
    """Say what the layout of a call's memory depends on."""
    return Shape(
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


def tag_of(collective: str) -> int:
    """Give a collective's tag: what another one has left under way can then not be taken for this one's."""
    return TAGS * list(COLLECTIVES).index(collective)


def _compiles(context: "Context", call: Call) -> bool:
    """Whether the compiled engine serves a call."""
    return context.engine == "compiled" and (call.reduction is None or call.reduction.compiled)


def _blocks(context: "Context", call: Call, choice: selection.Choice) -> bool:
    """Whether the vector runs in blocks: where there is shared memory, and where it is long between nodes."""
    if not _compiles(context, call):
        return False
    if choice.transport == selection.SHARED and context.shares:
        return True
    return len(context.nodes) > 1 and not call.counted and call.own_bytes >= 2 * LONG_BLOCK


def _window(context: "Context", call: Call, choice: selection.Choice) -> tuple[dict[int, int], Window | None]:
    """Give the window in which a call's blocks run, and the ranks that share it; none for whole messages."""
    if choice.transport == selection.SHARED and (window := context.window()) is not None:
        return {rank: number for number, rank in enumerate(sorted(context.near))}, window
    if _blocks(context, call, choice):
        return {context.rank: 0}, context.alone()
    return {}, None


def _block_bytes(context: "Context", algorithm: Algorithm, parameters: dict[str, Any], window: Window) -> int:
    """Choose how long the blocks of a vector are, the same on all ranks.

    No rank stages more than it sends, so by the algorithm's cost two blocks fit into the shortest ring.
    """
    sent = float(algorithm.cost(context.size, nodes=context.nodes, **parameters)[1])
    room = min(window.units, RING) * window.unit // 2
    return max(64, min(_longest(context), int(room // max(sent, 1)) // 64 * 64))


def _longest(context: "Context") -> int:
    """Give the most bytes that a block has."""
    return BLOCK if len(context.nodes) == 1 else LONG_BLOCK


def check(context: "Context", call: Call, name: str, parameters: dict[str, Any]) -> None:
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
    algorithm.schedule(context.size, nodes=context.nodes, **complete(algorithm, call, parameters))
    if reduction is not None and not reduction.compiled:
        reduction.combine()


def _moves_only(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    raise AssertionError("a schedule that only moves data combines nothing")


def parameters_as_run(context: "Context", call: Call, choice: selection.Choice) -> dict[str, Any]:
    """Give the parameters of the schedule that serves a call, or each of its blocks."""
    most = _longest(context) if _blocks(context, call, choice) else None
    return complete(find(call.collective, choice.algorithm), call, dict(choice.parameters), most)


def complete(
    algorithm: Algorithm, call: Call, parameters: dict[str, Any], most: int | None = None
) -> dict[str, Any]:
    """Give all parameters: the caller's, and those for a vector of no more than `most` bytes."""
    inner = parameters.get("inter")
    if algorithm.pipelined or (inner and find(call.collective, inner).pipelined):
        nbytes = call.nbytes or 0
        parameters = selection.pipeline(nbytes if most is None else min(nbytes, most)) | parameters
    return parameters | {"root": call.root} if algorithm.rooted else parameters
