"""The nonblocking collectives."""

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .. import calls
from ..selection import AUTO
from .blocking import _SUM, Blocking, Operation


class Nonblocking(Blocking):
    """Collectives that go on in the background; arguments and errors are those of :class:`Blocking`.

    They return an MPI request. With MPI_THREAD_MULTIPLE, which mpi4py asks for, a thread runs them one
    after the other in the order of the calls; otherwise see :class:`mpicoll.requests.Request`.
    """

    def Ibarrier(  # noqa: N802
        self, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Barrier`."""
        return self._nonblocking("Ibarrier", calls.barrier, (), algorithm, parameters)

    def Ibcast(  # noqa: N802
        self, buf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Bcast`."""
        return self._nonblocking("Ibcast", calls.bcast, (buf, root), algorithm, parameters)

    def Igather(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Gather`."""
        return self._nonblocking("Igather", calls.gather, (sendbuf, recvbuf, root), algorithm, parameters)

    def Igatherv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Gatherv`."""
        return self._nonblocking("Igatherv", calls.gatherv, (sendbuf, recvbuf, root), algorithm, parameters)

    def Iscatter(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Scatter`."""
        return self._nonblocking("Iscatter", calls.scatter, (sendbuf, recvbuf, root), algorithm, parameters)

    def Iscatterv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, root: int = 0, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Scatterv`."""
        return self._nonblocking("Iscatterv", calls.scatterv, (sendbuf, recvbuf, root), algorithm, parameters)

    def Iallgather(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Allgather`."""
        return self._nonblocking("Iallgather", calls.allgather, (sendbuf, recvbuf), algorithm, parameters)

    def Iallgatherv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Allgatherv`."""
        return self._nonblocking("Iallgatherv", calls.allgatherv, (sendbuf, recvbuf), algorithm, parameters)

    def Ialltoall(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Alltoall`."""
        return self._nonblocking("Ialltoall", calls.alltoall, (sendbuf, recvbuf), algorithm, parameters)

    def Ialltoallv(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Alltoallv`."""
        return self._nonblocking("Ialltoallv", calls.alltoallv, (sendbuf, recvbuf), algorithm, parameters)

    def Ireduce(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        root: int = 0,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> MPI.Request:
        """Start :meth:`Reduce`."""
        return self._nonblocking("Ireduce", calls.reduce, (sendbuf, recvbuf, op, root), algorithm, parameters)

    def Iallreduce(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Allreduce`."""
        return self._nonblocking("Iallreduce", calls.allreduce, (sendbuf, recvbuf, op), algorithm, parameters)

    def Ireduce_scatter_block(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Reduce_scatter_block`."""
        return self._nonblocking(
            "Ireduce_scatter_block", calls.reduce_scatter_block, (sendbuf, recvbuf, op), algorithm, parameters
        )

    def Ireduce_scatter(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Operation = _SUM,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> MPI.Request:
        """Start :meth:`Reduce_scatter`."""
        recvcounts = self._recvcounts(sendbuf, recvbuf, recvcounts, op, algorithm, parameters)
        return self._nonblocking(
            "Ireduce_scatter", calls.reduce_scatter, (sendbuf, recvbuf, recvcounts, op), algorithm, parameters
        )

    def Iscan(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Scan`."""
        return self._nonblocking("Iscan", calls.scan, (sendbuf, recvbuf, op), algorithm, parameters)

    def Iexscan(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: Operation = _SUM, algorithm: str = AUTO, **parameters: Any
    ) -> MPI.Request:
        """Start :meth:`Exscan`."""
        return self._nonblocking("Iexscan", calls.exscan, (sendbuf, recvbuf, op), algorithm, parameters)
