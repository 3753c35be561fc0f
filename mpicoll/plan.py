"""Plans: a schedule bound to a communicator, a count, a type and an op, ready to run again and again."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from . import kernels, selection
from .buffers import Buffer
from .context import Context
from .engine import compiled, reference
from .engine.layout import Shape
from .engine.lowering import lower
from .errors import UndefinedOp
from .kernels.table import name_of
from .schedule import Algorithm, Schedule, find

OPS = {getattr(MPI, name).handle: name for name in kernels.OPS}  # MPI.Op objects are not hashable


@dataclass(frozen=True)
class Reduction:
    """What a reduction computes.

    Attributes
    ----------
    count, dtype, datatype, itemsize
        As of :class:`~mpicoll.buffers.Buffer`.
    op : MPI.Op
    """

    count: int
    dtype: np.dtype | None
    datatype: MPI.Datatype | None
    itemsize: int
    op: MPI.Op

    @property
    def nbytes(self) -> int:
        """Size of the vector in bytes."""
        return self.count * self.itemsize

    @property
    def commutative(self) -> bool:
        """Whether the operands may be swapped."""
        return bool(self.op.Is_commutative())

    @property
    def kernel(self) -> tuple[str, np.dtype] | None:
        """Name and type of the kernel that serves it, if there is one."""
        name = OPS.get(self.op.handle)
        if name is None or self.dtype is None or not kernels.supported(name, self.dtype):
            return None
        return name, self.dtype

    def check_defined(self) -> None:
        """Raise :class:`UndefinedOp` where MPI does not define the op for the type."""
        if self.op == MPI.OP_NULL:
            raise UndefinedOp("allreduce: MPI.OP_NULL given, expected an op")
        name = OPS.get(self.op.handle)
        if name and self.dtype is not None and name_of(self.dtype) and self.kernel is None:
            raise UndefinedOp(f"allreduce: {name} is not defined for {self.dtype}")


class Plan:
    """A schedule ready to run on any two buffers of its count and type.

    Attributes
    ----------
    choice : Choice
        The algorithm and why it was chosen.
    schedule : Schedule
    execute : callable
        ``execute(sendbuf, recvbuf)`` with two addresses, equal where the vector is in the receive
        buffer from the start.
    frame : int
        Address of the compiled engine's frame, 0 for the reference engine.
    """

    def __init__(
        self,
        choice: selection.Choice,
        schedule: Schedule,
        execute: Callable[[int, int], None],
        frame: int = 0,
    ) -> None:
        self.choice, self.schedule, self.execute, self.frame = choice, schedule, execute, frame


def bind(
    context: Context, what: Reduction, choice: selection.Choice, parameters: dict[str, Any], in_place: bool
) -> Plan:
    """Make the plan of an all-reduce by one of our algorithms.

    The reference engine serves what has no kernel: other types, and the user's ops.

    Raises
    ------
    ValueError
        If the parameters do not suit the placement on nodes. All else has been told by :func:`check`.
    """
    schedule = _schedule(find("allreduce", choice.algorithm), context, what.nbytes, parameters)
    if context.engine == "compiled" and what.kernel is not None:
        kernel = kernels.kernel(*what.kernel)
        shape = Shape(
            rank=context.rank,
            size=context.size,
            root=0,
            chunks=schedule.chunks,
            counts=(what.count,),
            itemsize=what.itemsize,
            in_place=in_place,
            near=context.near,
        )
        program = lower(schedule, shape, context.limits)
        context.workspace.reserve(program.scratch)
        cell = context.workspace.cell
        run = compiled.Compiled(program, context.comm, kernel.address, cell, what.count, kernel.dtype)
        return Plan(choice, schedule, run, run.address)
    combine = _combine(what)

    def execute(sendbuf: int, recvbuf: int) -> None:
        send, recv = _memory(sendbuf, what.nbytes), _memory(recvbuf, what.nbytes)
        reference.execute(schedule, context.comm, combine, send, recv, what.itemsize)

    return Plan(choice, schedule, execute)


def check(what: Reduction, name: str, parameters: dict[str, Any], size: int) -> None:
    """Check whether an algorithm serves a call, as far as can be told without its placement on nodes.

    Raises
    ------
    ValueError
        If it is unknown, cannot serve the call, or does not take the parameters.
    MPI.Exception, TypeError
        If MPI cannot apply the op to the type.
    """
    algorithm = find("allreduce", name)
    inner = [find("allreduce", parameters["inter"])] if "inter" in parameters else []
    if algorithm.commutative and not what.commutative:
        raise ValueError(f"allreduce: {name} needs a commutative op, and this one is not")
    for each in (algorithm, *inner):
        if each.limit is not None and what.nbytes > each.limit:
            raise ValueError(
                f"allreduce: {each.name} holds the vectors of all ranks and takes at most "
                f"{each.limit} bytes, given {what.nbytes}"
            )
    if not algorithm.two_level:
        algorithm.schedule(size, **({"chunks": 1} if algorithm.pipelined else {}) | parameters)
    if what.kernel is None:
        _combine(what)


def _schedule(algorithm: Algorithm, context: Context, nbytes: int, parameters: dict[str, Any]) -> Schedule:
    inner = parameters.get("inter")
    if algorithm.pipelined or (inner and find("allreduce", inner).pipelined):
        parameters = selection.pipeline(nbytes) | parameters
    return algorithm.schedule(context.size, nodes=context.nodes, **parameters)


def _combine(what: Reduction) -> reference.Combine:
    if what.kernel is not None:
        return reference.by_kernel(kernels.kernel(*what.kernel))
    datatype = what.datatype or _datatype(np.dtype(what.dtype))
    combine = reference.by_mpi(what.op, datatype, what.itemsize)
    if what.op.is_predefined:  # find out now whether MPI can
        combine(np.zeros(what.itemsize, np.uint8), np.zeros(what.itemsize, np.uint8))
    return combine


def _datatype(dtype: np.dtype) -> MPI.Datatype:
    """Give MPI's equal of a NumPy type; only numbers have one."""
    try:
        datatype = MPI.Datatype.fromcode(dtype.char) if dtype.kind in "biufc" else MPI.DATATYPE_NULL
    except (KeyError, ValueError):
        datatype = MPI.DATATYPE_NULL
    if datatype == MPI.DATATYPE_NULL or datatype.Get_size() != dtype.itemsize:
        raise TypeError(f"allreduce: MPI has no type for {dtype}")
    return datatype


def _memory(address: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class Persistent:
    """A plan with its buffers: what ``Allreduce_init`` gives.

    Start it and wait for it as often as you like. The collective runs inside :meth:`Wait` (or
    :meth:`Test`), in the order in which the collectives of the communicator were started.
    """

    def __init__(self, context: Context, plan: Plan, sendbuf: Buffer, recvbuf: Buffer) -> None:
        self.plan = plan
        self._context = context
        self._buffers: tuple[Buffer, ...] = (sendbuf, recvbuf)
        self._active = False

    def Start(self) -> None:  # noqa: N802
        """Start the collective.

        Raises
        ------
        RuntimeError
            If it was started and not waited for, or freed.
        MPI.Exception
            If the communicator was freed.
        """
        if self._context.closed:
            raise MPI.Exception(MPI.ERR_COMM)
        if not self._buffers:
            raise RuntimeError("Start: the plan was freed")
        if self._active:
            raise RuntimeError("Start: the plan is active, expected one that was waited for")
        self._active = True
        self._context.start(self)

    def Wait(self) -> None:  # noqa: N802
        """Return when the result is in the receive buffer; at once if it was not started."""
        self._context.finish(self)

    def Test(self) -> bool:  # noqa: N802
        """Complete the collective, which waits for the other ranks, and say so."""
        self.Wait()
        return True

    def Free(self) -> None:  # noqa: N802
        """Complete the collective if it was started, and let go of the buffers."""
        self.Wait()
        self._buffers = ()

    def run(self) -> None:
        """Run it; for the context, when its turn comes."""
        self._active = False
        self.plan.execute(*(buffer.address for buffer in self._buffers))
