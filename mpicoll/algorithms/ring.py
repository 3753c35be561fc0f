"""Ring: every rank talks to its two neighbours only, in one direction or in both.

::

      .-> 0 --> 1 --> 2 --> 3 -.      The vector is cut into p chunks. In each step every rank
      '------------------------'      sends one chunk to the right and gets one from the left.

Steps of the all-reduce `ring` for 4 ranks (what each rank sends; ``+>`` is combined there, ``=>`` replaces)::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1  1 +> 2  2 +> 3  3 +> 0
    2     3 +> 1  0 +> 2  1 +> 3  2 +> 0
    3     2 +> 1  3 +> 2  0 +> 3  1 +> 0
    4     1 => 1  2 => 2  3 => 3  0 => 0
    5     0 => 1  1 => 2  2 => 3  3 => 0
    6     3 => 1  0 => 2  1 => 3  2 => 0

Cost: 2(p-1) steps and 2(p-1)/p of the vector sent by each rank, which is the least possible;
2(p-1) alpha + 2(p-1)/p M beta + (p-1)/p M gamma. Long vectors.

Once around is half of that; of the reduce-scatter::

    step  rank 0  rank 1  rank 2  rank 3
    1     3 +> 1  0 +> 2  1 +> 3  2 +> 0
    2     2 +> 1  3 +> 2  0 +> 3  1 +> 0
    3     1 +> 1  2 +> 2  3 +> 3  0 +> 0

of the all-gather::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 => 1  1 => 2  2 => 3  3 => 0
    2     3 => 1  0 => 2  1 => 3  2 => 0
    3     2 => 1  3 => 2  0 => 3  1 => 0

In both directions, a chunk comes to its owner from the left half of the ring and from the right half
at once, which halves the steps and sends no byte more. Steps of `bidirectional_ring` for 4 ranks::

    step  rank 0  rank 1  rank 2  rank 3
    1     2 +> 1  3 +> 2  0 +> 3  1 +> 0
    2     1 +> 1  0 +> 0  1 +> 1  0 +> 0
          3 +> 3  2 +> 2  3 +> 3  2 +> 2
    3     0 => 1  1 => 0  2 => 1  3 => 0
          0 => 3  1 => 2  2 => 3  3 => 2
    4     1 => 3  2 => 0  3 => 1  0 => 2

Cost: 2 floor(p/2) steps; 2 floor(p/2) alpha + 2(p-1)/p M beta + (p-1)/p M gamma, of which the beta are up to
a quarter more where combining puts neighbours out of step, and half as many where a rank's two links carry a
message each.

Limits: the operands of a chunk are combined in cyclic order, from the rank after its number or from
half the ring before it, so the op must be commutative.

Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69 (2009). Both directions: N. Jain and Y. Sabharwal,
"Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010.
"""

from collections.abc import Callable

from ..schedule import Move, algorithm, mirrored, recv, reduce, send
from ..schedule.schedule import Steps

SOURCE = "Patarasuk & Yuan 2009"


def around(rank: int, size: int, chunk: int, receive: Callable[[int, int], Move]) -> Steps:
    """Send `chunk` to the right, then what came from the left in the step before, once around."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        yield send(right, chunk - step), receive(left, chunk - step - 1)


@algorithm(
    "reduce_scatter",
    name="ring",
    chunks=lambda size: size,
    commutative=True,
    steps="p-1",
    sent="(p-1)/p",
    time="(p-1)*(alpha + (beta + gamma)/p)",
    source=SOURCE,
)
def reduce_scatter(rank: int, size: int) -> Steps:
    """Each chunk goes around from the rank after its owner, and is combined on the way."""
    yield from around(rank, size, rank - 1, reduce)


@algorithm(
    "allgather",
    name="ring",
    chunks=lambda size: size,
    steps="p-1",
    sent="(p-1)/p",
    time="(p-1)*(alpha + beta/p)",
    source=SOURCE,
)
def allgather(rank: int, size: int) -> Steps:
    """Each chunk goes around from its owner."""
    yield from around(rank, size, rank, recv)


def reduce_scatter_both_ways(rank: int, size: int) -> Steps:
    """Leave rank r with chunk r reduced; each chunk starts from its far end on both sides."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for distance in range(size // 2, 0, -1):
        rightward = send(right, rank + distance), reduce(left, left + distance)
        leftward = send(left, rank - distance), reduce(right, right - distance)
        # with an even number of ranks the opposite one is reached by going right
        yield rightward if 2 * distance == size else rightward + leftward


@algorithm(
    "allreduce",
    chunks=lambda size: size,
    commutative=True,
    steps="2*(p-1)",
    sent="2*(p-1)/p",
    time="2*(p-1)*alpha + (p-1)/p*(2*beta + gamma)",
    source=SOURCE,
)
def ring(rank: int, size: int) -> Steps:
    """Each rank passes chunks to its right neighbour, twice around."""
    yield from around(rank, size, rank, reduce)
    yield from around(rank, size, rank + 1, recv)


@algorithm(
    "allreduce",
    chunks=lambda size: size,
    commutative=True,
    steps="2*floor(p/2)",
    sent="2*(p-1)/p",
    time="<=2*floor(p/2)*alpha + (p-1)/p*(5*beta/2 + gamma)",
    source="Jain & Sabharwal 2010",
)
def bidirectional_ring(rank: int, size: int) -> Steps:
    """Each rank passes chunks to both neighbours, half around and back."""
    yield from reduce_scatter_both_ways(rank, size)
    yield from mirrored(reduce_scatter_both_ways(rank, size))
