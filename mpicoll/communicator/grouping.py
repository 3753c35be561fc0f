"""Small collectives, fused into one."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from .. import calls, kernels, selection
from ..calls import Call, Where, memory_at
from ..engine import fusing
from ..ops import Average
from ..reduction import OPS
from .calling import Build, Calling
from .standing import StandIn

_AUTO = selection.AUTO
_IN_PLACE = MPI.IN_PLACE
_SUM = MPI.SUM

SMALL = 16 << 10  # bytes; a longer vector, whose copies cost more than a message, goes by itself


class Recorded(NamedTuple):
    """A call that waits for the end of the group."""

    method: str
    build: Build
    arguments: tuple
    algorithm: str
    parameters: dict[str, Any]


class RankGroup(MPI.Group, metaclass=StandIn):
    """What ``comm.group`` is in mpi4py, the group of the communicator's ranks, and more: ``comm.group()``."""

    stands_for = MPI.Group

    def __new__(cls, comm: Calling) -> "RankGroup":  # noqa: D102
        made = super().__new__(cls, comm.Get_group())
        made._comm = comm
        return made

    _comm: Calling

    def __call__(self) -> "Grouping":
        """Fuse small collectives: ``with comm.group():``; see :class:`Grouping`."""
        if self:
            self.Free()  # as nobody else will
        return Grouping(self._comm)


class Grouping:
    """What ``with comm.group():`` is: calls of Allreduce, Reduce and Bcast inside wait for its end.

    At the end those of vectors up to 16 KiB that have the method, the type, the op and the root in common
    are fused: their vectors go together, as one. The others run by themselves, in the order of the calls.
    Send buffers are read at the end, so leave them alone until then. Receive buffers have the results
    after it, so one call may not use the result of another. All ranks must make the same calls in the same
    order. What is wrong with a call is raised at the end, before
    anything is sent. A group that is left by an exception sends nothing.

    Raises
    ------
    RuntimeError
        If it is entered inside another of the same communicator.
    """

    def __init__(self, comm: Calling) -> None:
        self._comm = comm
        self._pairs: list[Any] = []  # of all-reduces with one op: the common case, and quick
        self._op: Any = _SUM
        self._others: list[Recorded] = []

    def __enter__(self) -> None:
        if "Allreduce" in vars(self._comm):
            raise RuntimeError("group: inside a group of the same communicator, expected one at a time")
        self._pairs, self._op, self._others = [], _SUM, []  # nothing of an earlier use
        vars(self._comm).update(
            Allreduce=self._recorder(), Reduce=self._reduce, Bcast=self._bcast
        )  # before the class's methods

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for method in ("Allreduce", "Reduce", "Bcast"):
            del vars(self._comm)[method]
        if kind is None and (self._others or not self._quick()):
            self._fuse([*self._others, *self._allreduces()])

    # -- recording ---------------------------------------------------------------------------

    def _recorder(self) -> Callable[..., None]:
        """Give what stands in for Allreduce; called for each small vector, it looks nothing up."""
        shared, append = self._op, self._pairs.append

        def allreduce(
            sendbuf: Any, recvbuf: Any, op: Any = _SUM, algorithm: str = _AUTO, **parameters: Any
        ) -> None:
            nonlocal shared
            if op is not shared or algorithm is not _AUTO or parameters:
                if self._pairs or self._others or algorithm != _AUTO or parameters:
                    shared = None  # from here on all go the long way
                    self._record("Allreduce", calls.allreduce, (sendbuf, recvbuf, op), algorithm, parameters)
                    return
                self._op = shared = op
            append(sendbuf)
            append(recvbuf)

        return allreduce

    def _reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | Average = _SUM,
        root: int = 0,
        algorithm: str = _AUTO,
        **parameters: Any,
    ) -> None:
        self._record("Reduce", calls.reduce, (sendbuf, recvbuf, op, root), algorithm, parameters)

    def _bcast(self, buf: Any, root: int = 0, algorithm: str = _AUTO, **parameters: Any) -> None:
        self._record("Bcast", calls.bcast, (buf, root), algorithm, parameters)

    def _record(self, *call: Any) -> None:
        self._others += self._allreduces()
        self._others.append(Recorded(*call))

    def _allreduces(self) -> list[Recorded]:
        """Take the calls of the common case to the others."""
        taken = [
            Recorded("Allreduce", calls.allreduce, (send, recv, self._op), _AUTO, {})
            for send, recv in zip(self._pairs[::2], self._pairs[1::2], strict=True)
        ]
        self._pairs.clear()
        return taken

    # -- at the end --------------------------------------------------------------------------

    def _quick(self) -> bool:
        """Fuse all-reduces of plain arrays of one type, if that is what they are."""
        pairs, comm = self._pairs, self._comm
        if not pairs:
            return True
        if type(pairs[1]) is not np.ndarray or type(self._op) is not MPI.Op:
            return False
        if comm._packed is None:
            comm._packed = {}
        key = pairs[1].dtype, self._op.handle
        if key not in comm._packed:
            comm._packed[key] = _packed(key[0], self._op)
        packed = comm._packed[key]
        vector = None if packed is None else packed.pack(pairs)
        if packed is None or vector is None:
            return False
        type(comm).Allreduce(comm, _IN_PLACE, vector, self._op)
        packed.unpack(pairs)
        return True

    def _fuse(self, recorded: list[Recorded]) -> None:
        """Check all calls, then run those that go together as one, and the others by themselves."""
        comm = self._comm
        context = comm._connected()
        where = Where(context.rank, context.size)
        together: dict[Any, list[tuple[Recorded, Call]]] = {}
        for number, each in enumerate(recorded):
            call = each.build(where, *each.arguments)
            context.decide(call, each.algorithm, each.parameters)
            together.setdefault(_common(each, call) or number, []).append((each, call))
        for members in together.values():
            if len(members) == 1:
                [(each, _)] = members
                getattr(type(comm), each.method)(
                    comm, *each.arguments, algorithm=each.algorithm, **each.parameters
                )
            else:
                self._run(members[0][0], [call for _, call in members])

    def _run(self, like: Recorded, members: list[Call]) -> None:
        """Run calls that have all but their vectors in common."""
        comm, first = self._comm, members[0]
        moves = first.reduction is None
        for call in members:
            for prepare in call.before:
                prepare()
        vector = np.concatenate(
            [
                memory_at(call.recvbuf if moves or call.in_place else call.sendbuf, _length(call))
                for call in members
            ]
        )
        if first.reduction is not None:
            vector = vector.view(np.dtype(first.reduction.dtype))
        at_root = comm.Get_rank() == first.root
        if like.method == "Bcast":
            type(comm).Bcast(comm, vector, first.root)
        elif like.method == "Reduce":
            type(comm).Reduce(comm, _IN_PLACE if at_root else vector, vector, like.arguments[2], first.root)
        else:
            type(comm).Allreduce(comm, _IN_PLACE, vector, like.arguments[2])
        if like.method == "Allreduce" or at_root != moves:
            data, begin = vector.view(np.uint8), 0
            for call in members:
                memory_at(call.recvbuf, _length(call))[:] = data[begin : begin + _length(call)]
                begin += _length(call)
                for conclude in call.after if moves else ():
                    conclude()


def _common(each: Recorded, call: Call) -> tuple | None:
    """Give what calls that are fused have in common; None for one that is not."""
    if call.devices or call.unsuited or each.algorithm != _AUTO or each.parameters:
        return None
    if call.nbytes is None or call.nbytes > SMALL:
        return None
    what = () if call.reduction is None else call.reduction.key
    return None if what is None else (each.method, call.root, what)


def _length(call: Call) -> int:
    return call.counts[0] * call.itemsize


def _packed(dtype: np.dtype, op: MPI.Op) -> "Packed | None":
    """Give memory for fused vectors; None where they are not fused, or not by compiled code."""
    if not (fusing.available() and op.is_predefined and OPS.get(op.handle)):
        return None
    return Packed(dtype) if kernels.supported(OPS[op.handle], dtype) else None


class Packed:
    """Memory for fused vectors of one type."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._fixed = id(np.ndarray), id(dtype), dtype.itemsize, id(_IN_PLACE), SMALL
        self._memory = np.empty(0, dtype)
        self._address = 0

    def pack(self, pairs: list[Any]) -> np.ndarray | None:
        """Copy vectors together; None if they are not all plain, short arrays of the type."""
        nbytes = fusing.pack()(id(pairs), *self._fixed, self._address, self._memory.nbytes)
        if nbytes < 0:
            return None
        if nbytes > self._memory.nbytes:
            self._memory = np.empty(2 * nbytes // self._dtype.itemsize, self._dtype)
            self._address = self._memory.ctypes.data
            return self.pack(pairs)
        return self._memory[: nbytes // self._dtype.itemsize]

    def unpack(self, pairs: list[Any]) -> None:
        """Copy the results to where they belong."""
        fusing.unpack()(id(pairs), self._dtype.itemsize, self._address)
