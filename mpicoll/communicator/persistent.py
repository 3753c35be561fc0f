"""The persistent collectives."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mpi4py import MPI

from .. import calls
from ..requests import Persistent as _Persistent
from ..selection import AUTO
from .blocking import _SUM, Blocking, Operation

_NO_INFO = MPI.INFO_NULL

PersistentRequest: TypeAlias = _Persistent | MPI.Prequest


class Persistent(Blocking):
    """Collectives that run again and again on the same buffers; arguments are those of :class:`Blocking`.

    `info` is for the native collective. They return what to ``Start`` and ``Wait`` for:
    :class:`mpicoll.requests.Persistent`, or mpi4py's own where the native collective serves.
    """

    def Barrier_init(  # type: ignore[override]  # noqa: N802
        self, info: MPI.Info = _NO_INFO, algorithm: str = AUTO, **parameters: Any
    ) -> PersistentRequest:
        """Make :meth:`Barrier` ready to run again and again."""
        return self._persistent("Barrier_init", calls.barrier, (), info, algorithm, parameters)

    def Bcast_init(  # type: ignore[override]  # noqa: N802
        self, buf: Any, root: int = 0, info: MPI.Info = _NO_INFO, algorithm: str = AUTO, **parameters: Any
    ) -> PersistentRequest:
        """Make :meth:`Bcast` ready to run again and again."""
        return self._persistent("Bcast_init", calls.bcast, (buf, root), info, algorithm, parameters)

    def Gather_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Gather` ready to run again and again."""
        return self._persistent(
            "Gather_init", calls.gather, (sendbuf, recvbuf, root), info, algorithm, parameters
        )

    def Gatherv_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Gatherv` ready to run again and again."""
        return self._persistent(
            "Gatherv_init", calls.gatherv, (sendbuf, recvbuf, root), info, algorithm, parameters
        )

    def Scatter_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Scatter` ready to run again and again."""
        return self._persistent(
            "Scatter_init", calls.scatter, (sendbuf, recvbuf, root), info, algorithm, parameters
        )

    def Scatterv_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        root: int = 0,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Scatterv` ready to run again and again."""
        return self._persistent(
            "Scatterv_init", calls.scatterv, (sendbuf, recvbuf, root), info, algorithm, parameters
        )

    def Allgather_init(  # type: ignore[override]  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = _NO_INFO, algorithm: str = AUTO, **parameters: Any
    ) -> PersistentRequest:
        """Make :meth:`Allgather` ready to run again and again."""
        return self._persistent(
            "Allgather_init", calls.allgather, (sendbuf, recvbuf), info, algorithm, parameters
        )

    def Allgatherv_init(  # type: ignore[override]  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = _NO_INFO, algorithm: str = AUTO, **parameters: Any
    ) -> PersistentRequest:
        """Make :meth:`Allgatherv` ready to run again and again."""
        return self._persistent(
            "Allgatherv_init", calls.allgatherv, (sendbuf, recvbuf), info, algorithm, parameters
        )

    def Alltoall_init(  # type: ignore[override]  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = _NO_INFO, algorithm: str = AUTO, **parameters: Any
    ) -> PersistentRequest:
        """Make :meth:`Alltoall` ready to run again and again."""
        return self._persistent(
            "Alltoall_init", calls.alltoall, (sendbuf, recvbuf), info, algorithm, parameters
        )

    def Alltoallv_init(  # type: ignore[override]  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = _NO_INFO, algorithm: str = AUTO, **parameters: Any
    ) -> PersistentRequest:
        """Make :meth:`Alltoallv` ready to run again and again."""
        return self._persistent(
            "Alltoallv_init", calls.alltoallv, (sendbuf, recvbuf), info, algorithm, parameters
        )

    def Reduce_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        root: int = 0,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Reduce` ready to run again and again."""
        return self._persistent(
            "Reduce_init", calls.reduce, (sendbuf, recvbuf, op, root), info, algorithm, parameters
        )

    def Allreduce_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Allreduce` ready to run again and again."""
        return self._persistent(
            "Allreduce_init", calls.allreduce, (sendbuf, recvbuf, op), info, algorithm, parameters
        )

    def Reduce_scatter_block_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Reduce_scatter_block` ready to run again and again."""
        return self._persistent(
            "Reduce_scatter_block_init",
            calls.reduce_scatter_block,
            (sendbuf, recvbuf, op),
            info,
            algorithm,
            parameters,
        )

    def Reduce_scatter_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Operation = _SUM,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Reduce_scatter` ready to run again and again."""
        recvcounts = self._recvcounts(sendbuf, recvbuf, recvcounts, op, algorithm, parameters)
        return self._persistent(
            "Reduce_scatter_init",
            calls.reduce_scatter,
            (sendbuf, recvbuf, recvcounts, op),
            info,
            algorithm,
            parameters,
        )

    def Scan_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Scan` ready to run again and again."""
        return self._persistent("Scan_init", calls.scan, (sendbuf, recvbuf, op), info, algorithm, parameters)

    def Exscan_init(  # type: ignore[override]  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = _SUM,
        info: MPI.Info = _NO_INFO,
        algorithm: str = AUTO,
        **parameters: Any,
    ) -> PersistentRequest:
        """Make :meth:`Exscan` ready to run again and again."""
        return self._persistent(
            "Exscan_init", calls.exscan, (sendbuf, recvbuf, op), info, algorithm, parameters
        )
