"""Circulant: the fewest rounds and the fewest bytes for every number of ranks.

::

      p = 7:  skips 4, 2, 1             In each step every rank sends to the one `skip` to its right and
                                        gets from the one `skip` to its left. Each skip is half of the
      0   1   2   3   4   5   6         one before, rounded up; so is what it holds for others.
      '---------------^
      '-------^
      '---^

A rank begins with chunks r .. r+p-1 (modulo p). It sends the last ones of them, for which the rank
`skip` to the right is nearer to the owner, and combines the first ones from the left. At last it holds
chunk r, and all goes back the same way. Steps for 4 ranks (what each rank sends; ``+>`` is combined
there, ``=>`` replaces)::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 2  3 +> 3    0-1 +> 0  1-2 +> 1
                    0 +> 3
    2     1 +> 1    2 +> 2    3 +> 3    0 +> 0
    3     0 => 3    1 => 0    2 => 1    3 => 2
    4     0-1 => 2  1-2 => 3  2-3 => 0  3 => 1
                                        0 => 1

Cost: 2 ceil(log2 p) steps and 2(p-1)/p of the vector sent by each rank;
2 ceil(log2 p) alpha + 2(p-1)/p M beta + (p-1)/p M gamma. The least of all three at every p, with nothing
special for a p that is no power of two.

Limits: a chunk's operands are combined in an order that depends on its number, so the op must be
commutative; for a power of two all chunks are computed alike, up to swapped operands. A range of chunks
that wraps around goes as two messages.

Source: J. L. Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
arXiv:2410.14234 (2024).
"""

from ..schedule import algorithm, mirrored, reduce, send
from ..schedule.schedule import Steps


def reduce_scatter(rank: int, size: int) -> Steps:
    """Leave rank r with chunk r reduced."""
    span = size
    while span > 1:
        skip = (span + 1) // 2
        right, left = (rank + skip) % size, (rank - skip) % size
        yield send(right, range(rank + skip, rank + span)), reduce(left, range(rank, rank + span - skip))
        span = skip


@algorithm(
    "allreduce",
    chunks=lambda size: size,
    commutative=True,
    steps="2*ceil(log(p, 2))",
    sent="2*(p-1)/p",
    source="Traeff 2024",
)
def circulant(rank: int, size: int) -> Steps:
    """Ranks at distance p/2, p/4, ..., 1 around a circle combine what the others own, then back."""
    yield from reduce_scatter(rank, size)
    yield from mirrored(reduce_scatter(rank, size))
