r"""Star: rank 0 is the server.

::

      1   2   3
       \  |  /        All send their vector to rank 0, which combines them one by one
        \ | /         and sends the result back to all.
          0

Steps for 4 ranks (what each rank sends; ``+>`` is combined there, ``=>`` replaces)::

    step  rank 0  rank 1  rank 2  rank 3
    1             0 +> 0
    2                     0 +> 0
    3                             0 +> 0
    4     0 => 1
          0 => 2
          0 => 3

Cost: p steps and p-1 vectors sent by rank 0; p alpha + 2(p-1) M beta + (p-1) M gamma. What every other
algorithm is better than; as the parameter server it is common, and so here to compare with.

Limits: everything passes through one rank. Operands are in rank order, (((0+1)+2)+3).

Source: M. Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from ..schedule import algorithm, recv, reduce, send
from ..schedule.schedule import Steps


@algorithm(
    "allreduce",
    chunks=1,
    steps="(p > 1)*p",
    sent="p-1",
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
