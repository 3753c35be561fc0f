"""Communicators, and those made from them."""

from collections.abc import Sequence
from typing import Any, ClassVar

from mpi4py import MPI

from .. import selection, topology
from ..engine.lowering import LIMITS, Limits
from ..schedule.registry import Nodes
from . import explaining
from .grouping import RankGroup
from .nonblocking import Nonblocking
from .persistent import Persistent
from .standing import StandIn
from .unscheduled import ALLTOALLW, NEIGHBOURHOODS, unscheduled


@unscheduled(MPI.Intracomm, *ALLTOALLW)
class Communicator(Nonblocking, Persistent, metaclass=StandIn):
    """An intracommunicator whose collectives run mpicoll's algorithms.

    Everything else is mpi4py's own. What is made of it by Dup, Split, Create_cart and so on is of this class
    too, with the same options. The communicator given and this one are the same MPI communicator, so
    freeing either frees both. Messages travel on a private duplicate, which is made at once, by all
    ranks, and freed with the communicator.

    Alltoallw, the neighbourhood collectives and the lower-case methods are native.

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

    stands_for: ClassVar[type] = MPI.Intracomm

    def __new__(cls, comm: Any = None, **options: Any) -> "Communicator":  # noqa: D102
        if cls is Communicator:  # a topology keeps its methods
            cls = next((kind for kind in TOPOLOGIES if isinstance(comm, kind.stands_for)), cls)  # noqa: PLW0642
        # without a communicator by mpi4py itself, for what Dup and Clone return
        return MPI.Intracomm.__new__(cls, comm if isinstance(comm, MPI.Intracomm) else None)

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
        self._connected()

    def explain(self, collective: str, nbytes: int = 0, **question: Any) -> str:
        """Say in words what would serve a collective, and why.

        See :func:`~mpicoll.communicator.explaining.explain`.

        Examples
        --------
        >>> print(comm.explain("allreduce", nbytes=1 << 20))
        """
        return explaining.explain(self, collective, nbytes, **question)

    def choice(self, collective: str, nbytes: int = 0, **question: Any) -> selection.Choice:
        """Say what would serve a collective, and why, to a program; as :meth:`explain` to people."""
        return explaining.choice(self, collective, nbytes, **question)[1]

    @property
    def group(self) -> RankGroup:  # type: ignore[override]
        """The group of the ranks; and ``with comm.group():`` fuses small collectives.

        See :class:`~mpicoll.communicator.grouping.Grouping`.
        """
        return RankGroup(self)

    # -- what is made of it ------------------------------------------------------------------

    def Dup(self, info: MPI.Info | None = None) -> "Communicator":  # noqa: N802
        """Duplicate the communicator, and its options."""
        return self._alike(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> "Communicator":  # noqa: N802
        """Duplicate the communicator, and its options."""
        return self._alike(super().Dup_with_info(info))

    def Idup(self, info: MPI.Info | None = None) -> "tuple[Communicator, MPI.Request]":  # noqa: N802
        """Start to duplicate the communicator, and its options."""
        return self._starting(*super().Idup(info))

    def Idup_with_info(self, info: MPI.Info) -> "tuple[Communicator, MPI.Request]":  # noqa: N802
        """Start to duplicate the communicator, and its options."""
        return self._starting(*super().Idup_with_info(info))

    def Clone(self) -> "Communicator":  # noqa: N802
        """Clone the communicator, and its options."""
        return self._alike(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> "Communicator":  # noqa: N802
        """Split the communicator by color and key."""
        return self._made(super().Split(color, key))

    def Split_type(  # noqa: N802
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> "Communicator":
        """Split the communicator by what ranks share."""
        return self._made(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> "Communicator":  # noqa: N802
        """Make a communicator of a group of ranks; collective over this one."""
        return self._made(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> "Communicator":  # noqa: N802
        """Make a communicator of a group of ranks; collective over the group."""
        return self._made(super().Create_group(group, tag))

    def Create_cart(  # noqa: N802
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> "Cartcomm":
        """Make a communicator of a grid."""
        return self._made(super().Create_cart(dims, periods, reorder))

    def Create_graph(  # noqa: N802
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> "Graphcomm":
        """Make a communicator of a graph."""
        return self._made(super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(self, *arguments: Any, **named: Any) -> "Distgraphcomm":  # noqa: N802
        """Make a communicator of a distributed graph, each rank giving its neighbours."""
        return self._made(super().Create_dist_graph_adjacent(*arguments, **named))

    def Create_dist_graph(self, *arguments: Any, **named: Any) -> "Distgraphcomm":  # noqa: N802
        """Make a communicator of a distributed graph, any rank giving any edges."""
        return self._made(super().Create_dist_graph(*arguments, **named))

    def Free(self) -> None:  # noqa: N802
        """Free the communicator, after what was started."""
        if self._started is not None:
            self._connected()
        if self._context is not None and not self._context.closed:
            self._context.finish_all()
        super().Free()

    def _alike(self, made: Any) -> Any:
        """Hand the options on to a duplicate."""
        made._nodes, made._engine, made._limits = self._nodes, self._engine, self._limits
        made._connected(self._connected())
        return made

    def _starting(self, made: Any, request: MPI.Request) -> Any:
        """Hand the options on to a duplicate that is being made, and start to make its private one."""
        made._nodes, made._engine, made._limits = self._nodes, self._engine, self._limits
        context = self._connected()
        made._started = context, MPI.Intracomm(context.comm).Idup()
        return made, request

    def _made(self, comm: MPI.Comm) -> Any:
        """Give a communicator of other ranks our class, and the options that are not of these ranks."""
        if comm == MPI.COMM_NULL:
            return comm
        made = Communicator.__new__(Communicator, comm)
        made._engine, made._limits = self._engine, self._limits
        made._connected(self._connected())
        return made


@unscheduled(MPI.Cartcomm, *NEIGHBOURHOODS)
class Cartcomm(Communicator, MPI.Cartcomm):
    """A communicator of a grid."""

    stands_for = MPI.Cartcomm

    def Sub(self, remain_dims: Sequence[bool]) -> "Cartcomm":  # noqa: N802
        """Make communicators of the grid's slices."""
        return self._made(super().Sub(remain_dims))


@unscheduled(MPI.Graphcomm, *NEIGHBOURHOODS)
class Graphcomm(Communicator, MPI.Graphcomm):
    """A communicator of a graph."""

    stands_for = MPI.Graphcomm


@unscheduled(MPI.Distgraphcomm, *NEIGHBOURHOODS)
class Distgraphcomm(Communicator, MPI.Distgraphcomm):
    """A communicator of a distributed graph."""

    stands_for = MPI.Distgraphcomm


TOPOLOGIES = (Cartcomm, Graphcomm, Distgraphcomm)
