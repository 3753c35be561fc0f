"""Bruck: an all-gather over distances 1, radix, radix^2, ... around a circle, for any number of ranks.

::

      radix 2     0   1   2   3   4   5   6       After k steps a rank holds the chunks of itself and
                  ^---'                           the 2^k - 1 ranks to its right, and gets as many again
                  ^-------'                       from the rank at distance 2^k.
                  ^---------------'

Backwards, and combining, it is a reduce-scatter; the two make `bruck`. Steps for 4 ranks (what each rank
sends; ``+>`` is combined there, ``=>`` replaces)::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 2  3 +> 3    0-1 +> 0  1-2 +> 1
                    0 +> 3
    2     1 +> 1    2 +> 2    3 +> 3    0 +> 0
    3     0 => 3    1 => 0    2 => 1    3 => 2
    4     0-1 => 2  1-2 => 3  2-3 => 0  3 => 1
                                        0 => 1

Cost: 2 ceil(log2 p) alpha + 2(p-1)/p M beta + (p-1)/p M gamma. With a larger radix, 2 ceil(log_radix p)
steps of up to radix-1 messages each: for machines that send several at once.

For short vectors `bruck_gather` gathers all ranks' vectors and lets every rank combine them by itself, in
rank order. Steps for 4 ranks (``s2`` is a vector in scratch)::

    step  rank 0     rank 1     rank 2     rank 3
    0     s0 = 0     s0 = 0     s0 = 0     s0 = 0
    1     s0 => 3    s0 => 0    s0 => 1    s0 => 2
    2     s0-1 => 2  s0-1 => 3  s0-1 => 0  s0-1 => 1
          0 = s0     0 = s3     0 = s2     0 = s1
          0 += s1    0 += s0    0 += s3    0 += s2
          0 += s2    0 += s1    0 += s0    0 += s3
          0 += s3    0 += s2    0 += s1    0 += s0

Cost: ceil(log_radix p) alpha + (p-1) M beta + (p-1) M gamma, and p vectors of scratch. All ranks compute
(((0+1)+2)+3), whatever the size of the vector or the radix.

Limits: `bruck` combines in an order that depends on the chunk, so the op must be commutative.
`bruck_gather` is for vectors of a few KiB.

Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all
communications in multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997).
"""

from collections.abc import Iterator

from ..schedule import algorithm, combine, copy, mirrored, recv, reduce, scratch, send
from ..schedule.schedule import Steps

SOURCE = "Bruck et al. 1997"
RADIX = {"radix": (2, 3, 4, 7)}


def exchanges(rank: int, size: int, radix: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """Give, for each step, (to, from, distance, how many): what is got from `distance` to the right."""
    if radix < 2:
        raise ValueError(f"radix {radix}, expected at least 2")
    held = 1
    while held < size:
        distances = range(held, min(held * radix, size), held)
        yield [((rank - d) % size, (rank + d) % size, d, min(held, size - d)) for d in distances]
        held *= radix


def allgather(rank: int, size: int, radix: int) -> Steps:
    """Spread chunk r from rank r to all."""
    for step in exchanges(rank, size, radix):
        yield tuple(
            move
            for left, right, distance, many in step
            for move in (
                send(left, range(rank, rank + many)),
                recv(right, range(rank + distance, rank + distance + many)),
            )
        )


@algorithm(
    "allreduce",
    chunks=lambda size, radix=2: size,
    commutative=True,
    steps="2*ceil(log(p, radix))",
    sent="2*(p-1)/p",
    source=SOURCE,
    variants=RADIX,
)
def bruck(rank: int, size: int, radix: int = 2) -> Steps:
    """Bruck's all-gather backwards as a reduce-scatter, then the all-gather."""
    yield from mirrored(allgather(rank, size, radix), receive=reduce)
    yield from allgather(rank, size, radix)


@algorithm(
    "allreduce",
    chunks=1,
    vectors=lambda size, radix=2: size if size > 1 else 0,
    steps="ceil(log(p, radix))",
    sent="p-1",
    limit=64 * 1024,
    source=SOURCE,
    variants=RADIX,
)
def bruck_gather(rank: int, size: int, radix: int = 2) -> Steps:
    """Gather all vectors by Bruck's all-gather; every rank combines them in rank order."""
    if size == 1:
        return
    # The vector of rank r+i goes to scratch i: what a step sends or receives is never cut in two.
    yield copy(scratch(0), 0)
    for step in exchanges(rank, size, radix):
        yield tuple(
            move
            for left, right, distance, many in step
            for move in (
                send(left, scratch(range(many))),
                recv(right, scratch(range(distance, distance + many))),
            )
        )
    yield copy(0, scratch(-rank)), *(combine(0, scratch(other - rank)) for other in range(1, size))
