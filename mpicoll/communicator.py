"""The face of the package: a communicator whose collectives run schedules."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mpi4py import MPI

from . import selection, topology
from .buffers import Buffer, on_device, parse
from .context import Context
from .engine import compiled
from .engine.interpreter import DECLINED, OBJECT, OBJECTS
from .engine.lowering import LIMITS, Limits
from .plan import Persistent, Plan, Reduction, bind, check
from .schedule.registry import Nodes

_IN_PLACE = MPI.IN_PLACE
_SUM = MPI.SUM


class Communicator(MPI.Intracomm):
    """An intracommunicator whose ``Allreduce`` runs mpicoll's algorithms.

    Everything else is mpi4py's own; duplicates and clones have the same options. The communicator
    given and this one are the same MPI communicator, so freeing either frees both. Messages travel on
    a private duplicate, which is made by the first collective and freed with the communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator to use.
    nodes : sequence of sequence of int, optional
        The ranks of each node, the same on all ranks; by default MPI is asked which ranks can share
        memory.
    engine : {"compiled", "reference"}
        What executes schedules. The reference engine is for comparison.
    limits : Limits, optional
        Sizes of segments, the same on all ranks.

    Raises
    ------
    TypeError
        If `comm` is not an intracommunicator.
    ValueError
        If it is MPI.COMM_NULL, `nodes` does not name each rank once, or `engine` is unknown.
    """

    _context: Context | None = None
    _frames: Mapping[tuple, int] = MappingProxyType({})  # until there is a context
    _nodes: Nodes | None = None
    _engine = "compiled"
    _limits = LIMITS

    def __new__(cls, comm: Any = None, **options: Any) -> "Communicator":  # noqa: D102
        # without a communicator by mpi4py itself, for what Dup and Clone return
        return super().__new__(cls, comm if isinstance(comm, MPI.Intracomm) else None)

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        nodes: Nodes | None = None,
        engine: str = "compiled",
        limits: Limits = LIMITS,
    ) -> None:
        if isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL:
            raise ValueError("Communicator: MPI.COMM_NULL given, expected an intracommunicator")
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"Communicator: {type(comm).__name__} given, expected an intracommunicator")
        if engine not in ("compiled", "reference"):
            raise ValueError(f"Communicator: engine {engine!r} given, expected 'compiled' or 'reference'")
        self._nodes = None if nodes is None else topology.check(nodes, comm.Get_size())
        self._engine, self._limits = engine, limits

    def Allreduce(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = _SUM,
        algorithm: str = selection.AUTO,
        **parameters: Any,
    ) -> None:
        """Combine the vectors of all ranks, and give every rank the result.

        Parameters
        ----------
        sendbuf : buffer, message spec, or MPI.IN_PLACE
            This rank's vector; IN_PLACE takes it from `recvbuf`, and so does the very same memory.
        recvbuf : buffer or message spec
            Receives the result: as many elements, of the same type.
        op : MPI.Op
            A predefined operation, or one of the user's.
        algorithm : str
            One of ``mpicoll list``, ``"native"`` for the MPI library's own, or ``"auto"``: what the
            environment variable ``MPICOLL_ALLREDUCE`` says, or the best one known.
        **parameters
            The algorithm's own, such as ``chunks`` of a pipelined one or ``leaders`` of two_level.

        Raises
        ------
        ValueError
            If the buffers do not match, or the algorithm is unknown or cannot serve the call.
        TypeError
            If something is not a buffer or an op.
        MPI.Exception
            If the op is not defined for the type, with the error class that MPI gives it.

        Notes
        -----
        All of these are raised on the calling rank before anything is sent; only a placement that does
        not suit two_level shows after the first collective has made the private duplicate. Which op is
        defined for which type is as the MPI standard says. The plan is kept for the next call of its
        kind.

        Beside the vectors a rank holds at most one vector of scratch, and for long vectors a few
        segments. Exceptions are the binary trees with a single chunk, which may hold two, and algorithms
        that gather all ranks' vectors, which refuse long ones.
        """
        if not parameters:
            in_place = sendbuf is _IN_PLACE
            try:
                frame = self._frames[recvbuf.dtype, recvbuf.size, op.handle, algorithm, in_place]
            except (AttributeError, KeyError, TypeError):
                pass
            else:
                code = self._run(
                    frame, 0 if in_place else id(sendbuf), id(recvbuf), OBJECT if in_place else OBJECTS
                )
                if code == 0:
                    return
                if code != DECLINED:
                    raise MPI.Exception(code)
        self._allreduce(sendbuf, recvbuf, op, algorithm, parameters)

    def Allreduce_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = _SUM,
        info: MPI.Info = MPI.INFO_NULL,
        algorithm: str = selection.AUTO,
        **parameters: Any,
    ) -> "Persistent | MPI.Prequest":
        """Make an all-reduce that runs again and again on the same buffers.

        Parameters are those of :meth:`Allreduce`; `info` is for the native collective. The result does
        not go on by itself between ``Start`` and ``Wait``: what was started runs, in order, when one waits
        for it or calls the next collective of the communicator. So all ranks must come to that.

        Returns
        -------
        Persistent or MPI.Prequest
            To ``Start`` and ``Wait`` for; mpi4py's own where the native collective serves.
        """
        plan, buffers, sendbuf = self._prepared(sendbuf, recvbuf, op, algorithm, parameters)
        if plan is None:
            return super().Allreduce_init(sendbuf, recvbuf, op, info)
        return Persistent(self._connected(), plan, *buffers)

    def Dup(self, info: MPI.Info | None = None) -> "Communicator":  # noqa: N802
        """Duplicate the communicator, and its options."""
        return self._inherited(super().Dup(info))

    def Clone(self) -> "Communicator":  # noqa: N802
        """Clone the communicator, and its options."""
        return self._inherited(super().Clone())

    def _inherited(self, made: "Communicator") -> "Communicator":
        made._nodes, made._engine, made._limits = self._nodes, self._engine, self._limits
        return made

    def _allreduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str, parameters: dict[str, Any]
    ) -> None:
        plan, buffers, sendbuf = self._prepared(sendbuf, recvbuf, op, algorithm, parameters)
        if self._context is not None:
            self._context.finish()
        if plan is None:
            super().Allreduce(sendbuf, recvbuf, op)
        else:
            plan.execute(*(buffer.address for buffer in buffers))

    def _prepared(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op, algorithm: str, parameters: dict[str, Any]
    ) -> tuple[Plan | None, tuple[Buffer, ...], Any]:
        """Check a call.

        Returns
        -------
        plan : Plan or None
            None where the native collective serves.
        buffers : tuple of Buffer
            Both, for the plan.
        sendbuf : Any
            For the native collective: IN_PLACE where both buffers are the same memory.
        """
        if not isinstance(algorithm, str):
            raise TypeError(f"allreduce: algorithm {algorithm!r} given, expected a name")
        if not isinstance(op, MPI.Op):
            raise TypeError(f"allreduce: op {op!r} given, expected an MPI.Op")
        if on_device(sendbuf) or on_device(recvbuf):
            if algorithm not in (selection.AUTO, selection.NATIVE):
                raise TypeError(f"allreduce: device memory given, {algorithm} takes host memory")
            return None, (), sendbuf
        send, recv = self._buffers(sendbuf, recvbuf)
        plan = self._plan(recv, op, algorithm, parameters, in_place=send is None)
        return plan, (send or recv, recv), _IN_PLACE if send is None else sendbuf

    def _buffers(self, sendbuf: Any, recvbuf: Any) -> tuple[Buffer | None, Buffer]:
        """Read and check both buffers; None for a vector that is in the receive buffer."""
        recv = parse(recvbuf, "allreduce: recvbuf")
        if recv.readonly:
            raise ValueError("allreduce: recvbuf is read-only")
        if sendbuf is None or sendbuf is _IN_PLACE:
            return None, recv
        send = parse(sendbuf, "allreduce: sendbuf")
        if send.count != recv.count:
            raise ValueError(f"allreduce: recvbuf has {recv.count} items, expected {send.count}")
        if send.kind != recv.kind:
            raise ValueError(f"allreduce: recvbuf has {recv.kind} items, expected {send.kind}")
        if send.address == recv.address:
            return None, recv
        if send.address < recv.address + recv.nbytes and recv.address < send.address + send.nbytes:
            raise ValueError("allreduce: sendbuf and recvbuf overlap, expected the same memory or separate")
        return send, recv

    def _plan(
        self, recv: Buffer, op: MPI.Op, algorithm: str, parameters: dict[str, Any], in_place: bool
    ) -> Plan | None:
        """Find or make the plan for a call; None for the native collective."""
        context = self._context
        if self == MPI.COMM_NULL or (context is not None and context.closed):  # by another object of it
            raise MPI.Exception(MPI.ERR_COMM)
        key = (recv.dtype, recv.count, op.handle, algorithm, in_place, tuple(sorted(parameters.items())))
        kept = op.is_predefined and recv.dtype is not None
        if kept and context is not None and key in context.plans:
            return context.kept(key)
        what = Reduction(recv.count, recv.dtype, recv.datatype, recv.itemsize, op)
        what.check_defined()
        choice = selection.choose(selection.Call("allreduce", what.nbytes, self.Get_size()), algorithm)
        unsuited = what.kernel is None or not recv.packed
        if choice.algorithm == selection.NATIVE or (unsuited and not choice.asked):
            return None
        if not recv.packed:
            raise TypeError(f"allreduce: a datatype with holes given, {choice.algorithm} takes one without")
        try:  # before anything is sent
            check(what, choice.algorithm, parameters, self.Get_size())
        except ValueError as error:
            if algorithm == selection.AUTO:  # the environment's choice, which the caller may not know of
                raise ValueError(f"{error} ({choice.reason})") from None
            raise
        context = self._connected()
        plan = bind(context, what, choice, parameters, in_place)
        if kept:
            context.keep(key, plan)
        return plan

    def _connected(self) -> Context:
        """Give the context; the first time, collectively."""
        if self._context is None:
            self._context = Context.of(self, self._nodes, self._engine, self._limits)
            self._frames = self._context.visible
            if self._context.engine == "compiled":
                self._run = compiled.run()
        return self._context
