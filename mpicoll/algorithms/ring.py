"""Ring: every rank talks to its two neighbours only.

::

      .-> 0 --> 1 --> 2 --> 3 -.      The vector is cut into p chunks. In each step every rank
      '------------------------'      sends one chunk to the right and gets one from the left.

Steps for 4 ranks (chunk sent by each rank; ``+`` is combined, ``=`` replaces)::

    step      0   1   2   3
    1  +      0   1   2   3       after step 3 rank r holds chunk r+1 of the result
    2  +      3   0   1   2
    3  +      2   3   0   1
    4  =      1   2   3   0
    5  =      0   1   2   3
    6  =      3   0   1   2       after step 6 every rank holds all

Cost: 2(p-1) steps and 2(p-1)/p of the vector sent by each rank, which is the least possible;
2(p-1) alpha + 2(p-1)/p M beta + (p-1)/p M gamma. Long vectors.

Limits: the operands of a chunk are combined in cyclic order from the rank after its number, so the
op must be commutative.

Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69 (2009).
"""

from collections.abc import Iterator

from ..schedule import algorithm, mapped, recv, reduce, send, together
from ..schedule.schedule import Step

SOURCE = "Patarasuk & Yuan 2009"


def reduce_scatter(rank: int, size: int) -> Iterator[Step]:
    """Leave rank r with chunk r+1 reduced."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        yield send(right, rank - step), reduce(left, rank - step - 1)


def allgather(rank: int, size: int) -> Iterator[Step]:
    """Spread chunk r+1 from rank r to all."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        yield send(right, rank - step + 1), recv(left, rank - step)


@algorithm(
    "allreduce",
    chunks=lambda size: size,
    commutative=True,
    steps="2*(p-1)",
    sent="2*(p-1)/p",
    source=SOURCE,
)
def ring(rank: int, size: int) -> Iterator[Step]:
    """Each rank passes chunks to its right neighbour, twice around."""
    yield from reduce_scatter(rank, size)
    yield from allgather(rank, size)


@algorithm(
    "allreduce",
    chunks=lambda size: 2 * size,
    commutative=True,
    steps="2*(p-1)",
    sent="2*(p-1)/p",
    source=SOURCE,
)
def bidirectional_ring(rank: int, size: int) -> Iterator[Step]:
    """Two rings in opposite directions at once, each on half of the vector."""
    mirror = range(size)[::-1]
    yield from together(
        mapped(ring(rank, size), chunks=range(size)),
        mapped(ring(mirror[rank], size), ranks=mirror, chunks=range(size, 2 * size)),
    )
