"""The blocking collectives."""

from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from .. import calls
from ..buffers import on_device, parse
from ..engine.interpreter import ADDRESSES, BOTH_ARRAYS, DECLINED, RECV_ARRAY, SEND_ARRAY
from ..selection import AUTO
from .calling import NATIVE, UNKNOWN, Calling

_IN_PLACE = MPI.IN_PLACE
_ARRAY = np.ndarray
_SUM = MPI.SUM

_UNLIKE = AttributeError, KeyError, TypeError  # of a look-up for what is no array, or has not been met before

Operation: TypeAlias = Any  # MPI.Op, or mpicoll.AVG


def _on_host(first: Any, second: Any = None) -> bool:
    """Whether the native collective may have them: device memory has to be looked at first."""
    # spelled out, as each call of a function here costs as much as a tenth of a short message
    return (first is _IN_PLACE or type(first) is _ARRAY or not on_device(first)) and (
        second is None or second is _IN_PLACE or type(second) is _ARRAY or not on_device(second)
    )


class Blocking(Calling):
    """Collectives that return when this rank's part is done.

    The arguments are mpi4py's, and two more.

    Parameters
    ----------
    algorithm : str
        One of ``mpicoll list``, ``"native"`` for the MPI library's own, or ``"auto"``: what the
        environment says, such as ``MPICOLL_ALLREDUCE``, or the best one known.
    **parameters
        The algorithm's own, such as ``chunks`` of a pipelined one or ``leaders`` of two_level.

    Raises
    ------
    ValueError
        If the buffers do not match, or the algorithm is unknown or cannot serve the call.
    TypeError
        If something is not a buffer or an op, or an algorithm was asked for that cannot serve the memory.
    MPI.Exception
        If the root is no rank, the op is not defined for the type, or the communicator was freed, with
        the error class that MPI gives it.

    Notes
    -----
    All of these are raised on the calling rank before anything is sent. Which op is defined for which
    type is as the MPI standard says. The plan is kept for the next call of its kind, and each method that
    takes arrays looks for it by itself, since one more call of Python costs as much as a short message.

    Beside the vectors a rank holds at most one vector of scratch, and for long vectors a few
    segments. Exceptions are the binary trees with a single chunk, which may hold two, and algorithms
    that gather all ranks' vectors, which refuse long ones.

    Vectors of derived datatypes with holes are packed into memory of their own before, and unpacked
    after; to reduce them the native collective serves. Arrays on a GPU are for the routes of
    :mod:`mpicoll.device.plan`, by ``transport=``.
    Where MPI forbids the same memory in both buffers, IN_PLACE is meant.
    """

    def Barrier(self, algorithm: str = AUTO, **parameters: Any) -> None:  # noqa: N802
        """Wait until all ranks have come here."""
        frame = UNKNOWN if parameters else self._frames.get(("Barrier", algorithm), UNKNOWN)
        if frame == NATIVE:
            MPI.Intracomm.Barrier(self)
        elif frame == UNKNOWN:
            quick = None, None, None, (algorithm,)
            self._blocking("Barrier", calls.barrier, (), algorithm, parameters, quick)
        elif code := self._entry(frame, calls.BYTE, calls.BYTE, ADDRESSES):
            self._fail("Barrier", code)

    def Bcast(  # noqa: N802
        self, buf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give every rank the root's vector."""
        try:
            key = ("Bcast", buf.dtype, buf.size, index(root), algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(buf):
            MPI.Intracomm.Bcast(self, buf, root)
        elif frame == UNKNOWN or (code := self._entry(frame, 0, id(buf), RECV_ARRAY)) == DECLINED:
            quick = None, buf, buf, (root, algorithm)
            self._blocking("Bcast", calls.bcast, (buf, root), algorithm, parameters, quick)
        elif code:
            self._fail("Bcast", code)

    def Gather(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give the root a block of each rank."""
        in_place = sendbuf is _IN_PLACE
        array = recvbuf if in_place else sendbuf
        kind = SEND_ARRAY if root != self._rank else RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Gather", array.dtype, array.size, index(root), in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Gather(self, sendbuf, recvbuf, root)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, array, (root, in_place, algorithm)
            self._blocking("Gather", calls.gather, (sendbuf, recvbuf, root), algorithm, parameters, quick)
        elif code:
            self._fail("Gather", code)

    def Gatherv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give the root a block of each rank; blocks may be unequal."""
        self._blocking("Gatherv", calls.gatherv, (sendbuf, recvbuf, root), algorithm, parameters)

    def Scatter(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give each rank a block of the root's vector."""
        in_place = recvbuf is _IN_PLACE
        array = sendbuf if in_place else recvbuf
        kind = RECV_ARRAY if root != self._rank else SEND_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Scatter", array.dtype, array.size, index(root), in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Scatter(self, sendbuf, recvbuf, root)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, array, (root, in_place, algorithm)
            self._blocking("Scatter", calls.scatter, (sendbuf, recvbuf, root), algorithm, parameters, quick)
        elif code:
            self._fail("Scatter", code)

    def Scatterv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give each rank a block of the root's vector; blocks may be unequal."""
        self._blocking("Scatterv", calls.scatterv, (sendbuf, recvbuf, root), algorithm, parameters)

    def Allgather(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give every rank a block of each rank."""
        in_place = sendbuf is _IN_PLACE
        kind = RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Allgather", recvbuf.dtype, recvbuf.size, in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Allgather(self, sendbuf, recvbuf)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, recvbuf, (in_place, algorithm)
            self._blocking("Allgather", calls.allgather, (sendbuf, recvbuf), algorithm, parameters, quick)
        elif code:
            self._fail("Allgather", code)

    def Allgatherv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give every rank a block of each rank; blocks may be unequal."""
        self._blocking("Allgatherv", calls.allgatherv, (sendbuf, recvbuf), algorithm, parameters)

    def Alltoall(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give each rank a block of each rank."""
        try:
            key = ("Alltoall", recvbuf.dtype, recvbuf.size, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Alltoall(self, sendbuf, recvbuf)
        elif (
            frame == UNKNOWN
            or (code := self._entry(frame, id(sendbuf), id(recvbuf), BOTH_ARRAYS)) == DECLINED
        ):
            quick = sendbuf, recvbuf, recvbuf, (algorithm,)
            self._blocking("Alltoall", calls.alltoall, (sendbuf, recvbuf), algorithm, parameters, quick)
        elif code:
            self._fail("Alltoall", code)

    def Alltoallv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Give each rank a block of each rank; blocks may be unequal."""
        self._blocking("Alltoallv", calls.alltoallv, (sendbuf, recvbuf), algorithm, parameters)

    def Reduce(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        root: int = 0,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> None:
        """Combine the vectors of all ranks, and give the root the result."""
        in_place = sendbuf is _IN_PLACE
        array = recvbuf if in_place else sendbuf
        kind = SEND_ARRAY if root != self._rank else RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Reduce", array.dtype, array.size, op.handle, index(root), in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Reduce(self, sendbuf, recvbuf, op, root)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, array, (getattr(op, "handle", None), root, in_place, algorithm)
            self._blocking("Reduce", calls.reduce, (sendbuf, recvbuf, op, root), algorithm, parameters, quick)
        elif code:
            self._fail("Reduce", code)

    def Allreduce(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Combine the vectors of all ranks, and give every rank the result."""
        if op is _SUM and algorithm is AUTO and not parameters and sendbuf is not _IN_PLACE:
            # the frames of sums are tried one after the other: it is quicker than to look for the right one
            code = self._entry(self._sums, id(sendbuf), id(recvbuf), BOTH_ARRAYS)
            if code == 0:
                return
            if code != DECLINED:
                self._fail("Allreduce", code)
        in_place = sendbuf is _IN_PLACE
        kind = RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Allreduce", recvbuf.dtype, recvbuf.size, op.handle, in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Allreduce(self, sendbuf, recvbuf, op)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, recvbuf, (getattr(op, "handle", None), in_place, algorithm)
            self._blocking("Allreduce", calls.allreduce, (sendbuf, recvbuf, op), algorithm, parameters, quick)
        elif code:
            self._fail("Allreduce", code)

    def Reduce_scatter_block(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Combine the vectors of all ranks, and give each rank a block of the result."""
        in_place = sendbuf is _IN_PLACE
        kind = RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Reduce_scatter_block", recvbuf.dtype, recvbuf.size, op.handle, in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Reduce_scatter_block(self, sendbuf, recvbuf, op)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, recvbuf, (getattr(op, "handle", None), in_place, algorithm)
            self._blocking(
                "Reduce_scatter_block",
                calls.reduce_scatter_block,
                (sendbuf, recvbuf, op),
                algorithm,
                parameters,
                quick,
            )
        elif code:
            self._fail("Reduce_scatter_block", code)

    def Reduce_scatter(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Operation = _SUM,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> None:
        """Combine the vectors of all ranks, and give each rank a block of it; blocks may be unequal."""
        recvcounts = self._recvcounts(sendbuf, recvbuf, recvcounts, op, algorithm, parameters)
        self._blocking(
            "Reduce_scatter", calls.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), algorithm, parameters
        )

    def Scan(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Combine the vectors of the ranks up to this one."""
        in_place = sendbuf is _IN_PLACE
        kind = RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Scan", recvbuf.dtype, recvbuf.size, op.handle, in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Scan(self, sendbuf, recvbuf, op)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, recvbuf, (getattr(op, "handle", None), in_place, algorithm)
            self._blocking("Scan", calls.scan, (sendbuf, recvbuf, op), algorithm, parameters, quick)
        elif code:
            self._fail("Scan", code)

    def Exscan(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> None:
        """Combine the vectors of the ranks before this one; rank 0 gets nothing."""
        in_place = sendbuf is _IN_PLACE
        kind = RECV_ARRAY if in_place else BOTH_ARRAYS
        try:
            key = ("Exscan", recvbuf.dtype, recvbuf.size, op.handle, in_place, algorithm)
            frame = UNKNOWN if parameters else self._frames[key]
        except _UNLIKE:
            frame = UNKNOWN
        if frame == NATIVE and _on_host(sendbuf, recvbuf):
            MPI.Intracomm.Exscan(self, sendbuf, recvbuf, op)
        elif frame == UNKNOWN or (code := self._entry(frame, id(sendbuf), id(recvbuf), kind)) == DECLINED:
            quick = sendbuf, recvbuf, recvbuf, (getattr(op, "handle", None), in_place, algorithm)
            self._blocking("Exscan", calls.exscan, (sendbuf, recvbuf, op), algorithm, parameters, quick)
        elif code:
            self._fail("Exscan", code)

    def _recvcounts(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None,
        op: Operation,
        algorithm: str,
        parameters: dict[str, Any],
    ) -> Sequence[int] | None:
        """Ask all ranks for their counts where they were left out, as mpi4py does."""
        if recvcounts is not None:
            return recvcounts
        if sendbuf is None or sendbuf is _IN_PLACE:
            raise TypeError("reduce_scatter: recvcounts left out, expected them in place")
        own = parse(recvbuf, "reduce_scatter: recvbuf").count
        rest = parse(sendbuf, "reduce_scatter: sendbuf").count - own
        guess = [0] * self.Get_size()  # with which all that is wrong here shows before anything is sent
        guess[self.Get_rank() - 1] = rest
        guess[self.Get_rank()] += own
        self._decided(calls.reduce_scatter, (sendbuf, recvbuf, guess, op), algorithm, parameters)
        return self.allgather(own)
