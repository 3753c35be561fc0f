"""Which ranks share a node."""

from typing import TYPE_CHECKING

from mpi4py import MPI

from .schedule.registry import Nodes

if TYPE_CHECKING:
    from .context import Context


def nodes(comm: MPI.Intracomm) -> Nodes:
    """Ask MPI which ranks of a communicator can share memory. Collective.

    Returns
    -------
    tuple of tuple of int
        The ranks of each node in rising order, the nodes in order of their lowest rank.
    """
    local = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED)
    lowest = local.allreduce(comm.Get_rank(), op=MPI.MIN)
    local.Free()
    members: dict[int, list[int]] = {}
    for rank, leader in enumerate(comm.allgather(lowest)):
        members.setdefault(leader, []).append(rank)
    return tuple(tuple(ranks) for _, ranks in sorted(members.items()))


def within(whole: "Context", comm: MPI.Intracomm) -> Nodes:
    """Tell the nodes of a communicator from those of one that has all of its ranks; local."""
    mine, all_ranks = comm.Get_group(), whole.comm.Get_group()
    ranks = mine.Translate_ranks(None, all_ranks)
    mine.Free()
    all_ranks.Free()
    node_of = {rank: number for number, node in enumerate(whole.nodes) for rank in node}
    members: dict[int, list[int]] = {}
    for rank, there in enumerate(ranks):
        members.setdefault(node_of[there], []).append(rank)
    return tuple(tuple(members_of) for members_of in members.values())


def check(placement: Nodes, size: int) -> Nodes:
    """Check that a placement given by hand names every rank once.

    Raises
    ------
    ValueError
        If it does not.
    """
    placement = tuple(tuple(sorted(node)) for node in placement if node)
    if sorted(rank for node in placement for rank in node) != list(range(size)):
        raise ValueError(f"nodes: {placement} given, expected each of the ranks 0 to {size - 1} once")
    return placement
