"""Pairwise: in step k every rank sends to the rank k to its right, straight from owner to owner.

::

      step 1   0 -> 1 -> 2 -> 3 -> 0       Everybody sends one message and receives one in every step,
      step 2   0 <-> 2, 1 <-> 3            and no chunk passes through a third rank.
      step 3   0 -> 3 -> 2 -> 1 -> 0

Steps of the all-to-all for 4 ranks, where chunk 4 s + d goes from s to d (what each rank sends; ``+>`` is
combined there, ``=>`` replaces)::

    step  rank 0  rank 1  rank 2   rank 3
    1     1 => 1  6 => 2  11 => 3  12 => 0
    2     2 => 2  7 => 3  8 => 0   13 => 1
    3     3 => 3  4 => 0  9 => 1   14 => 2

of the reduce-scatter::

    step  rank 0  rank 1  rank 2  rank 3
    1     1 +> 1  2 +> 2  3 +> 3  0 +> 0
    2     2 +> 2  3 +> 3  0 +> 0  1 +> 1
    3     3 +> 3  0 +> 0  1 +> 1  2 +> 2

Cost: (p-1) alpha + (p-1)/p M beta, and (p-1)/p M gamma for the reduce-scatter: the fewest bytes possible.
Long vectors, and blocks of any lengths.

Limits: a reduce-scatter's operands are combined around the circle, so the op must be commutative.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
"""

from collections.abc import Iterator

from ..schedule import algorithm, recv, reduce, send
from ..schedule.schedule import Steps

SOURCE = "Thakur, Rabenseifner & Gropp 2005"


def partners(rank: int, size: int) -> Iterator[tuple[int, int]]:
    """Give whom a rank sends to and whom it receives from in each step."""
    return (((rank + step) % size, (rank - step) % size) for step in range(1, size))


@algorithm(
    "alltoall",
    name="pairwise",
    chunks=lambda size: size**2,
    steps="p-1",
    sent="(p-1)/p",
    time="(p-1)*(alpha + beta/p)",
    source=SOURCE,
)
def alltoall(rank: int, size: int) -> Steps:
    """Each rank sends to one and receives from one in every step."""
    for right, left in partners(rank, size):
        yield send(right, rank * size + right), recv(left, left * size + rank)


@algorithm(
    "reduce_scatter",
    name="pairwise",
    chunks=lambda size: size,
    commutative=True,
    steps="p-1",
    sent="(p-1)/p",
    time="(p-1)*(alpha + (beta + gamma)/p)",
    source=SOURCE,
)
def reduce_scatter(rank: int, size: int) -> Steps:
    """Each rank sends to one its chunk and combines what it gets for its own, in every step."""
    for right, left in partners(rank, size):
        yield send(right, right), reduce(left, rank)
