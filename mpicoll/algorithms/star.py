r"""Star: one rank is the server, and all others talk to it only.

::

      1   2   3
       \  |  /        All send their vector to rank 0, which combines them one by one
        \ | /         and sends the result back to all.
          0

Steps of the all-reduce `star` for 4 ranks (what each rank sends; ``+>`` is combined there, ``=>`` replaces)::

    step  rank 0  rank 1  rank 2  rank 3
    1             0 +> 0
    2                     0 +> 0
    3                             0 +> 0
    4     0 => 1
          0 => 2
          0 => 3

Cost: p steps and p-1 vectors received and sent by rank 0, 2(p-1) M through its link; all send at once and
rank 0 combines one vector while the next comes in, so 2 alpha + p M beta + M gamma + (p-2) M max(beta,
gamma). What every other algorithm is better than; as the parameter server it is common, and so here to
compare with.

With a chunk of its own for each rank, all messages can be under way at once: `linear`. Steps for 4 ranks and
root 0 of the gather::

    step  rank 0  rank 1  rank 2  rank 3
    1             1 => 0  2 => 0  3 => 0

of the scatter::

    step  rank 0  rank 1  rank 2  rank 3
    1     1 => 1
          2 => 2
          3 => 3

Cost: alpha + (p-1)/p M beta, but (p-1) alpha where the root's messages go one after the other. Long vectors,
few ranks, and blocks of any lengths: nobody but the root and the owner handles a chunk.

Limits: everything passes through one rank. Operands are in rank order, (((0+1)+2)+3).

Source: M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from ..schedule import algorithm, mirrored, recv, reduce, send
from ..schedule.schedule import Steps


@algorithm(
    "allreduce",
    chunks=1,
    steps="(p > 1)*p",
    sent="p-1",
    time="(p > 1)*(2*alpha + p*beta + gamma + (p-2)*max(beta, gamma))",
    source="Li et al. 2014",
)
def star(rank: int, size: int) -> Steps:
    """Rank 0 combines all vectors and sends the result to all."""
    if rank == 0:
        for peer in range(1, size):
            yield reduce(peer, 0)
        yield tuple(send(peer, 0) for peer in range(1, size))
    else:
        yield send(0, 0)
        yield recv(0, 0)


@algorithm(
    "gather",
    name="linear",
    chunks=lambda size: size,
    steps="min(1, p-1)",
    sent="min(1, p-1)/p",
    time="min(1, p-1)*alpha + (p-1)/p*beta",
    source="Li et al. 2014",
)
def gather(rank: int, size: int, root: int = 0) -> Steps:
    """The root receives from all at once."""
    if rank == root:
        yield tuple(recv(peer, peer) for peer in range(size) if peer != root)
    else:
        yield send(root, rank)


@algorithm(
    "scatter",
    name="linear",
    chunks=lambda size: size,
    steps="min(1, p-1)",
    sent="(p-1)/p",
    time="min(1, p-1)*alpha + (p-1)/p*beta",
    source="Li et al. 2014",
)
def scatter(rank: int, size: int, root: int = 0) -> Steps:
    """The root sends to all at once."""
    yield from mirrored(gather(rank, size, root))
