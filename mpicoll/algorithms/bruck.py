"""Bruck: all-gather and all-to-all over distances 1, radix, radix^2, ... around a circle, for any p.

::

      radix 2     0   1   2   3   4   5   6       After k steps a rank holds the chunks of itself and
                  ^---'                           the 2^k - 1 ranks to its right, and gets as many again
                  ^-------'                       from the rank at distance 2^k.
                  ^---------------'

Backwards, and combining, it is a reduce-scatter; the two make the all-reduce `bruck`. Steps for 4 ranks (what
each rank sends; ``+>`` is combined there, ``=>`` replaces), of which the last two are the all-gather::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 2  3 +> 3    0-1 +> 0  1-2 +> 1
                    0 +> 3
    2     1 +> 1    2 +> 2    3 +> 3    0 +> 0
    3     0 => 3    1 => 0    2 => 1    3 => 2
    4     0-1 => 2  1-2 => 3  2-3 => 0  3 => 1
                                        0 => 1

Cost: 2 ceil(log2 p) alpha + 2(p-1)/p M beta + (p-1)/p M gamma, of which the all-gather is one half without
gamma. With a larger radix, 2 ceil(log_radix p) steps of up to radix-1 messages each, and as many alpha: for
machines that send several at once. There combining puts ranks out of step, and where messages meet, the
all-reduce takes up to half as many M beta more.

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

In the all-to-all a chunk's way, from its source to its target around the circle, is written in digits of
the radix, lowest first: in step k a chunk goes as far as its digit k says, and all those that go equally
far are one message. Steps for 4 ranks, where chunk 4 s + d goes from s to d::

    step  rank 0   rank 1  rank 2   rank 3
    1     1 => 1   6 => 2  11 => 3  12 => 0
          3 => 1   4 => 2  9 => 3   14 => 0
    2     2 => 2   7 => 3  8 => 0   13 => 1
          14 => 2  3 => 3  4 => 0   9 => 1

Cost: ceil(log_radix p) steps of up to radix-1 messages each, at most ceil(log_radix p) (alpha +
(radix-1)/radix M beta): few messages, and every chunk is sent up to once a digit. Short vectors on many
ranks; a larger radix for longer ones, up to radix p, which is `direct`.

Limits: `bruck` combines in an order that depends on the chunk, so the op must be commutative.
`bruck_gather` is for vectors of a few KiB. The all-to-all's chunks pass through other ranks, which must know
their lengths; those of a message are not neighbours in memory.

Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all
communications in multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997).
"""

from collections.abc import Iterator

from ..schedule import algorithm, combine, copy, mirrored, recv, reduce, scratch, send
from ..schedule.schedule import Step, Steps

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


@algorithm(
    "allgather",
    name="bruck",
    chunks=lambda size, radix=2: size,
    steps="ceil(log(p, radix))",
    sent="(p-1)/p",
    time="ceil(log(p, radix))*alpha + (p-1)/p*beta",
    source=SOURCE,
    variants=RADIX,
)
def allgather(rank: int, size: int, radix: int = 2) -> Steps:
    """Each rank gets the chunks that ranks at distance 1, radix, radix^2, ... to its right have got."""
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
    time="<=2*ceil(log(p, radix))*alpha + (p-1)/p*((2 + (radix > 2))*beta + gamma)",
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
    time="ceil(log(p, radix))*alpha + (p-1)*(beta + gamma)",
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


@algorithm(
    "alltoall",
    name="bruck",
    chunks=lambda size, radix=2: size**2,
    transit=True,
    steps="ceil(log(p, radix))",
    sent="<=ceil(log(p, radix))*(radix-1)/radix",
    time="<=ceil(log(p, radix))*(alpha + (radix-1)/radix*beta)",
    source=SOURCE,
    variants=RADIX,
)
def alltoall(rank: int, size: int, radix: int = 2) -> Steps:
    """Each chunk goes as far as one digit of its way says, digit by digit."""

    def chunks(holder: int, ways: list[int], unit: int) -> list[int]:
        """Name the chunks that go these ways and have come to `holder` by the digits below `unit`."""
        sources = [(holder - way % unit) % size for way in ways]
        return [source * size + (source + way) % size for source, way in zip(sources, ways, strict=True)]

    for step in exchanges(rank, size, radix):
        unit = step[0][2]  # the least distance of a step
        moves: Step = ()
        for left, right, distance, _ in step:
            ways = [way for way in range(size) if way // unit % radix == distance // unit]
            moves += send(right, chunks(rank, ways, unit)), recv(left, chunks(left, ways, unit))
        yield moves
