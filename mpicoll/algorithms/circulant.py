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
chunk r, and all goes back the same way. Steps of the all-reduce for 4 ranks (what each rank sends; ``+>``
is combined there, ``=>`` replaces), of which the first two are the reduce-scatter and the last two the
all-gather::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 2  3 +> 3    0-1 +> 0  1-2 +> 1
                    0 +> 3
    2     1 +> 1    2 +> 2    3 +> 3    0 +> 0
    3     0 => 3    1 => 0    2 => 1    3 => 2
    4     0-1 => 2  1-2 => 3  2-3 => 0  3 => 1
                                        0 => 1

Cost: 2 ceil(log2 p) steps and 2(p-1)/p of the vector sent by each rank;
2 ceil(log2 p) alpha + 2(p-1)/p M beta + (p-1)/p M gamma. The least of all three at every p, with nothing
special for a p that is no power of two. Reduce-scatter and all-gather are half of that each.

In a broadcast the root sends a chunk in every step, over skip 1, 2, 4, 1, 2, 4, ..., and every rank hands on
over each skip something that the other does not have yet: a new chunk comes to each rank in every step.
Steps of the broadcast of 2 chunks for 4 ranks and root 0::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 => 2
    2     1 => 1          0 => 3
    3     1 => 2  1 => 3          0 => 1

Backwards it is a reduction::

    step  rank 0  rank 1  rank 2  rank 3
    1             0 +> 3  1 +> 0  1 +> 1
    2             1 +> 0          0 +> 2
    3                     0 +> 0

Cost for S chunks: S - 1 + ceil(log2 p) steps, the fewest in which S messages can leave the root and reach
everybody; at most (S - 1 + ceil(log2 p)) (alpha + M/S beta), and M/S gamma more in a step of the reduction.
The best S is sqrt((ceil(log2 p) - 1) M beta / alpha). With 2 ranks only the first message's alpha counts.
Vectors of any length.

Limits: a chunk's operands are combined in an order that depends on its number, so the op must be
commutative; for a power of two all chunks are computed alike, up to swapped operands. A range of chunks
that wraps around goes as two messages.

Source: J. L. Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
arXiv:2410.14234 (2024). For the broadcast J. L. Traeff, "Optimal broadcast schedules in logarithmic time with
applications to broadcast, all-broadcast, reduction and all-reduction", arXiv:2407.18004 (2024).
"""

from ..schedule import algorithm, mirrored, recv, reduce, send
from ..schedule.schedule import Step, Steps

SOURCE = "Traeff 2024"
CHUNKS = {"chunks": (1, 2, 3, 7)}


@algorithm(
    "reduce_scatter",
    name="circulant",
    chunks=lambda size: size,
    commutative=True,
    steps="ceil(log(p, 2))",
    sent="(p-1)/p",
    time="ceil(log(p, 2))*alpha + (p-1)/p*(beta + gamma)",
    source=SOURCE,
)
def reduce_scatter(rank: int, size: int) -> Steps:
    """Ranks at distance p/2, p/4, ..., 1 around a circle combine what the others own."""
    span = size
    while span > 1:
        skip = (span + 1) // 2
        right, left = (rank + skip) % size, (rank - skip) % size
        yield send(right, range(rank + skip, rank + span)), reduce(left, range(rank, rank + span - skip))
        span = skip


@algorithm(
    "allgather",
    name="circulant",
    chunks=lambda size: size,
    steps="ceil(log(p, 2))",
    sent="(p-1)/p",
    time="ceil(log(p, 2))*alpha + (p-1)/p*beta",
    source=SOURCE,
)
def allgather(rank: int, size: int) -> Steps:
    """Ranks at distance 1, 2, ..., p/2 around a circle send all that they hold."""
    yield from mirrored(reduce_scatter(rank, size))


@algorithm(
    "allreduce",
    chunks=lambda size: size,
    commutative=True,
    steps="2*ceil(log(p, 2))",
    sent="2*(p-1)/p",
    time="2*ceil(log(p, 2))*alpha + (p-1)/p*(2*beta + gamma)",
    source=SOURCE,
)
def circulant(rank: int, size: int) -> Steps:
    """Ranks at distance p/2, p/4, ..., 1 around a circle combine what the others own, then back."""
    yield from reduce_scatter(rank, size)
    yield from allgather(rank, size)


@algorithm(
    "bcast",
    name="circulant",
    steps="(p > 1)*(ceil(log(p, 2)) + S - 1)",
    sent="(p > 1)*(ceil(log(p, 2)) + S - 1)/S",
    time="<=(ceil(log(p, 2)) + (p > 2)*(S - 1))*alpha + (p > 1)*(ceil(log(p, 2)) + S - 1)/S*beta",
    source=SOURCE,
    variants=CHUNKS,
)
def bcast(rank: int, size: int, chunks: int, root: int = 0) -> Steps:
    """The root sends a chunk in every step, and every rank hands on what it got, over all skips in turn."""
    skips = skips_to(size)
    rounds = len(skips) - 1
    if rounds == 0:
        return
    place = (rank - root) % size
    received = first_chunks(place, skips)
    sent = [first_chunks((place + skip) % size, skips)[k] for k, skip in enumerate(skips[:-1])]
    late = -(chunks - 1) % rounds  # begin in this round, so that the last step is the last round
    for turn in range(late, late + chunks - 1 + rounds):
        phase, k = divmod(turn, rounds)
        passed = phase * rounds - late
        step: Step = ()
        if (place + skips[k]) % size != 0 and sent[k] + passed >= 0:
            step += (send((rank + skips[k]) % size, min(sent[k] + passed, chunks - 1)),)
        if place != 0 and received[k] + passed >= 0:
            step += (recv((rank - skips[k]) % size, min(received[k] + passed, chunks - 1)),)
        yield step


@algorithm(
    "reduce",
    name="circulant",
    commutative=True,
    steps="(p > 1)*(ceil(log(p, 2)) + S - 1)",
    sent="min(1, p-1)",
    time="<=(ceil(log(p, 2)) + (p > 2)*(S - 1))*alpha + (p > 1)*(ceil(log(p, 2)) + S - 1)/S*(beta + gamma)",
    source=SOURCE,
    variants=CHUNKS,
)
def reduction(rank: int, size: int, chunks: int, root: int = 0) -> Steps:
    """The broadcast backwards: what was handed on is combined."""
    yield from mirrored(bcast(rank, size, chunks, root), receive=reduce)


def skips_to(size: int) -> list[int]:
    """Give the skips: each is half of the next one, rounded up, and the last one is all around."""
    skips = [size]
    while skips[-1] > 1:
        skips.append((skips[-1] + 1) // 2)
    return skips[::-1]


def first_chunk(place: int, skips: list[int]) -> int:
    """Give the first chunk that comes to a place.

    The root sends chunk k over skip k first, and the place is the sum of skips of which that is the least.
    """
    least = len(skips) - 1
    for k in range(len(skips) - 2, -1, -1):
        if place >= skips[k]:
            place, least = place - skips[k], k
    return least


def first_chunks(place: int, skips: list[int]) -> list[int]:
    """Give the chunk that comes to a place over each skip in phase 0, all different.

    In every phase, once through all skips, each of them grows by the number of skips. So of phase 0 only the
    first chunk of a place is there yet; the others are below 0.

    Over skip k comes the first chunk of some other place, at least skip k and not yet skip k+1 behind. It is
    looked for depth first among the sums of falling skips, from 0 to where the place is after one time
    around; of what is found the next must be further behind.
    """
    size, rounds = skips[-1], len(skips) - 1
    behind = [size + place - skip for skip in skips]
    first = first_chunk(place, skips)
    unused = [k for k in range(rounds, -1, -1) if k != first]
    found: list[int] = []

    def search(start: int, end: int, largest: int) -> None:
        for k in [k for k in unused if k <= largest]:
            there = start + skips[k]
            if len(found) == rounds:
                return
            if k not in unused or there > behind[len(found)] or there >= end:
                continue
            if there <= behind[len(found) + 1]:
                search(there, end, k)
            if len(found) == rounds or start > behind[len(found) + 1]:
                return
            end = there
            found.append(k)
            unused.remove(k)

    search(0, 2 * size, rounds)
    return [first if k == rounds else k - rounds for k in found]
