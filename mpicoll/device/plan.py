"""From a call with device memory to a plan: by which route, and by which algorithm.

Routes
    ``ipc``: ranks of a node read each other's memory on the devices; to other nodes as ``mpi`` where MPI can,
    else through pinned host memory. ``mpi``: messages in device memory. ``staged``: through the
    host, and from there as host memory would go.

The program of a route differs in nothing else from that of host memory: it is the same schedule, lowered.
"""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from .. import selection
from ..calls import Call
from ..engine.compiled_on_device import CompiledOnDevice, operands
from ..engine.cutting import cut
from ..engine.lowering import DeviceRegions, Limits, lower
from ..engine.program import IRECV, ISEND, PINNED, Program
from ..engine.window import RING
from ..errors import DeviceError
from ..plan import Plan, check, complete, shape_of, tag_of
from ..reduction import Reduction
from ..schedule import find
from ..selection import AUTO, DEVICE, IPC, MPI_ROUTE, NATIVE, ROUTES, STAGED
from . import functions, producers
from .device import Device
from .stage import offsets
from .staged import Staged

if TYPE_CHECKING:
    from ..context import Context

BLOCK = 1 << 25  # bytes of a vector that are a block, where there are several nodes
SEGMENT = 1 << 24  # bytes of a message; a device combines one much faster than it comes
LIMITS = Limits(segment=SEGMENT, whole=1 << 62)


class DevicePlan(Plan):
    """A collective ready to run on any device arrays that are laid out alike.

    Attributes
    ----------
    route, algorithm : str
    """

    def __init__(
        self,
        device: Device,
        route: str,
        algorithm: str,
        execute: Callable[[Call], None],
        reserve: Callable[[], None] = lambda: None,
    ) -> None:
        self._device, self.route, self.algorithm, self.frame = device, route, algorithm, 0
        self.label = route if algorithm == AUTO else f"{algorithm} ({route})"
        self._run, self._reserve = execute, reserve

    def run(self, call: Call) -> None:
        """Run on the buffers of a call, when what was under way for them is done."""
        noted, call.produced = call.produced, None
        if noted is None:
            producers.settle(call.devices)
        else:
            noted.wait()
        self._device.check(None)
        try:
            self._reserve()
            self._run(call)
        except BaseException as error:
            self._device.broken = f"{call.collective}: {error!r}"
            raise


def decide(context: "Context", call: Call, algorithm: str, parameters: dict[str, Any]) -> selection.Choice:
    """Choose what serves a call, as far as that is local; nothing is sent.

    See :func:`mpicoll.plan.decide`, which is for host memory. The route that is not asked for is
    :func:`bind`'s to choose, with all ranks: `transport` is ``"auto"`` then.
    """
    if not isinstance(algorithm, str):
        raise TypeError(f"{call.collective}: algorithm {algorithm!r} given, expected a name")
    given = dict(parameters)
    route = given.pop("transport", AUTO)
    if route not in ROUTES:
        raise ValueError(f"{call.collective}: transport {route!r} given, expected {', '.join(ROUTES)}")
    if route == AUTO:
        route = context.environment.get(DEVICE, AUTO)
    if algorithm == AUTO:
        variable = f"MPICOLL_{call.collective.upper()}"
        named = context.environment.get(variable, AUTO)
        reason = f"asked for by {variable}" if named != AUTO else "by the route"
        if named == NATIVE or (named != AUTO and call.counted and find(call.collective, named).transit):
            named, reason = AUTO, "by the route"
    else:
        named, reason = algorithm, "asked for by the call"
    if named == NATIVE:
        _check_native_arguments(call, parameters)
    if named == AUTO and given:
        raise ValueError(f"{call.collective}: {', '.join(given)} given, expected an algorithm with them")
    if named not in (AUTO, NATIVE):
        check(context, call, named, given)
    return selection.Choice(named, reason, named != AUTO, route, tuple(sorted(given.items())))


def bind(context: "Context", call: Call, choice: selection.Choice) -> DevicePlan:
    """Make the plan of a call. Collective where the device's resources are new.

    Raises
    ------
    DeviceError
        On all ranks, if the route asked for cannot be had.
    """
    device = context.device(call.device)
    route = _route(context, device, call, choice)
    if route == STAGED:
        staged = Staged(context, device, call, choice)
        return DevicePlan(device, route, choice.algorithm, staged)
    return _compiled(context, device, call, choice, route)


def _check_native_arguments(call: Call, parameters: dict[str, Any]) -> None:
    """Raise what keeps the native collective from serving a call, as far as that is local."""
    if parameters:
        raise ValueError(f"{call.collective}: {', '.join(parameters)} given, native takes no parameters")
    reduction = call.reduction
    if reduction is not None and reduction.average:
        raise ValueError(f"{call.collective}: AVG is not an op of MPI's, native cannot serve it")
    if reduction is not None and not reduction.op.is_predefined:
        raise TypeError(
            f"{call.collective}: native asked for, but {reduction.op_name} reads the host's memory only"
        )


def check_native(context: "Context", call: Call) -> None:
    """Wait for the producers of arrays that the native collective is to have; collective the first time.

    Raises
    ------
    DeviceError
        If the MPI library's collectives cannot take device memory.
    """
    awareness = context.device(call.device).awareness
    if not awareness.collectives:
        raise DeviceError(
            f"{call.collective}: native asked for, but MPI's collectives are not known to take device "
            f"memory: {awareness.reason}"
        )
    producers.settle(call.devices)


def _route(context: "Context", device: Device, call: Call, choice: selection.Choice) -> str:
    """Choose the route, the same on all ranks."""
    asked, trouble = choice.transport, _staged_only(context, device, call)
    if context.size == 1 and asked != STAGED and not trouble and not _missing(device, call):
        return MPI_ROUTE  # without a message
    if asked not in (AUTO, STAGED):
        trouble = trouble or _missing(device, call) or _unavailable(context, device, call, asked)
        if trouble:
            raise DeviceError(f"{call.collective}: {asked} asked for, but {trouble}")
    if asked != AUTO:
        return asked
    if missing := _missing(device, call):
        warnings.warn(f"{call.collective} goes through the host: {missing}", stacklevel=2)
    if trouble or missing:
        return STAGED
    for row in selection.ROUTES_BY_LENGTH:
        if call.own_bytes <= row.upto and not _unavailable(context, device, call, row.route):
            return row.route
    return STAGED


def _staged_only(context: "Context", device: Device, call: Call) -> str:
    """Say why only the host can serve a call; "" if devices can."""
    if call.counted and call.nbytes is None:
        return "not every rank knows the lengths of all blocks"
    if call.collective == "alltoall" and call.in_place:
        return "an all-to-all in place needs a copy"
    if context.engine != "compiled":
        return "the reference engine reads host memory"
    return "" if call.reduction is None else _without_kernel(device, call.reduction)


def _without_kernel(device: Device, reduction: Reduction) -> str:
    """Say why there is no kernel for a reduction; "" if there is one, or none at all can be made."""
    op = functions.named(reduction.op, reduction.dtype)
    if op is None:
        return f"there is no kernel for {reduction.op_name} on {reduction.dtype or 'its type'}"
    if isinstance(op, str) or device.without_kernels:
        return ""
    assert reduction.dtype is not None
    try:
        functions.combine(device.number, op, reduction.dtype, 2)
    except TypeError as error:
        return str(error)
    return ""


def _missing(device: Device, call: Call) -> str:
    """Say what a reduction lacks on some rank; "" if nothing."""
    return device.without_kernels if call.reduction is not None else ""


def _unavailable(context: "Context", device: Device, call: Call, route: str) -> str:
    """Say why a route cannot be had; collective the first time."""
    if route == STAGED:
        return ""
    if route == MPI_ROUTE:
        return "" if device.awareness.messages else f"MPI is not CUDA-aware: {device.awareness.reason}"
    if max(map(len, context.nodes)) == 1:
        return "every rank is on a node of its own"
    if device.window(call.own_bytes) is not None:
        return ""
    return device.trouble or "there was no memory for stages"


def _compiled(
    context: "Context", device: Device, call: Call, choice: selection.Choice, route: str
) -> DevicePlan:
    """Make a plan of a program on the device."""
    ipc = route == IPC
    near = sorted(context.near) if ipc else [context.rank]
    numbers = {rank: number for number, rank in enumerate(near)}
    window = device.window(call.own_bytes) if ipc else context.alone()
    assert window is not None
    name, given = choice.algorithm, dict(choice.parameters)
    if name == AUTO:
        name, given = _algorithm(context, call, route)
    check(context, call, name, given)
    algorithm = find(call.collective, name)
    several = ipc and len(context.nodes) > 1
    parameters = complete(algorithm, call, given, BLOCK if several else None)
    schedule = algorithm.schedule(context.size, nodes=context.nodes, **parameters)
    shape = shape_of(context, call, schedule)
    nbytes = max(call.own_bytes, 1)
    if ipc:
        sent = float(algorithm.cost(context.size, nodes=context.nodes, **parameters)[1])
        nbytes = max(64, int(RING * window.unit // 2 // max(sent, 1)) // 64 * 64)
        nbytes = min(nbytes, BLOCK) if several else nbytes
    regions = DeviceRegions(
        numbers,
        window.stride,
        offsets(window, numbers),
        (ipc and not several) or context.size == 1 or device.awareness.messages,
    )
    lowered = cache(lambda part: lower(schedule, part, LIMITS, regions))
    programs = [(lowered(part), shift) for part, shift in cut(call.collective, shape, nbytes)]
    reduction = call.reduction
    op, dtype = (None, None) if reduction is None else (reduction.op, reduction.dtype)
    resources = device.resources(functions.named(op, dtype) if op else None, dtype, operands(programs))
    one_by_one = call.collective == "reduce_scatter" and call.in_place
    fail = partial(context.fail, f"{call.collective} by {name}")
    compiled = CompiledOnDevice(
        programs,
        context.comm,
        tag_of(call.collective),
        device.workspace.cell,
        fail,
        window,
        one_by_one,
        resources,
    )

    def reserve() -> None:
        device.workspace.reserve(compiled.scratch)
        if not regions.aware:
            device.pinned.reserve(compiled.scratch)

    crossing = sum(_crossing(program) for program, _ in programs)

    def execute(call: Call) -> None:
        device.copied += crossing
        compiled(call.sendbuf, call.recvbuf)
        if call.reduction is not None and call.reduction.average:
            assert call.reduction.dtype is not None
            device.divide(call.recvbuf, call.received, call.reduction.dtype, context.size)

    return DevicePlan(device, route, name, execute, reserve)


def _crossing(program: Program) -> int:
    """Give the bytes of messages that a program has on the host."""
    rows = program.rows
    messages = (rows[:, 0] == IRECV) | (rows[:, 0] == ISEND)
    return int(rows[messages & (rows[:, 1] == PINNED), 3].sum())


def _algorithm(context: "Context", call: Call, route: str) -> tuple[str, dict[str, Any]]:
    """Choose the algorithm for a route from the tables, the native collectives aside."""
    asked = selection.Asked(
        call.collective,
        call.nbytes,
        context.size,
        commutative=call.reduction is None or call.reduction.commutative,
        counted=call.counted,
        native=False,
        nodes=len(context.nodes) if route == IPC else context.size,
    )
    flat = asked.nodes in (1, asked.size)
    choice = selection.choose(asked, AUTO, {}, selection.ON_DEVICES if flat else None)
    return choice.algorithm, dict(choice.parameters)
