"""Recursive doubling, and recursive halving and doubling: exchanges with a partner twice as far each time.

::

      distance 1     0 <-> 1     2 <-> 3
      distance 2     0 <-----> 2     1 <-----> 3

Doubling exchanges the whole vector. Steps of `recursive_doubling` for 4 ranks (what each rank sends;
``+>`` is combined there, ``=>`` replaces)::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1  0 +> 0  0 +> 3  0 +> 2
    2     0 +> 2  0 +> 3  0 +> 0  0 +> 1

Cost: log2(p) (alpha + M beta + M gamma), for a power of two: the fewest steps possible. Short vectors.
For other p, with q the largest power of two below, each of the first p-q odd ranks hands its vector to its
left neighbour and gets the result from it: 2 steps more, at most (floor(log2 p) + 2) (alpha + M beta) +
ceil(log2 p) M gamma.

Halving exchanges half of what is left, so that each rank ends with 1/p of the result, and goes all the way
back. Steps of `recursive_halving_doubling` for 4 ranks::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 1  0-1 +> 0  2-3 +> 3  0-1 +> 2
    2     1 +> 2    3 +> 3    0 +> 0    2 +> 1
    3     0 => 2    2 => 3    1 => 0    3 => 1
    4     0-1 => 1  2-3 => 0  0-1 => 3  2-3 => 2

Cost: 2 log2(p) alpha + 2(p-1)/p M beta + (p-1)/p M gamma, for a power of two: the least of both. Medium and
long vectors. For other p the first p-q pairs of neighbours act as one: each of the two combines one half of
the vector for both, and from there on it holds that half for the pair, so that the fold costs one
step each way with half a vector: 2 ceil(log2 p) alpha + (3 - 2/q) M beta + (3/2 - 1/q) M gamma.

Limits: none. Partners always hold the combined values of neighbouring groups of ranks, so operands are in
rank order; and all chunks are computed alike, ((0+1)+(2+3)), by both algorithms.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005); R. Rabenseifner, "Optimization of collective
reduction operations", ICCS 2004. Pairs that share the work: R. Rabenseifner and J. L. Traeff, "More
efficient reduction algorithms for non-power-of-two number of processors in message-passing parallel
systems", EuroPVM/MPI 2004.
"""

from ..schedule import algorithm, mirrored, recv, reduce, send
from ..schedule.schedule import Step, Steps


@algorithm(
    "allreduce",
    chunks=1,
    steps="2*ceil(log(p, 2)) - floor(log(p, 2))",
    sent="ceil(log(p, 2))",
    time="<=(2*ceil(log(p, 2)) - floor(log(p, 2)))*(alpha + beta) + ceil(log(p, 2))*gamma",
    source="Thakur, Rabenseifner & Gropp 2005",
)
def recursive_doubling(rank: int, size: int) -> Steps:
    """Partners at distance 1, 2, 4, ... exchange and combine whole vectors."""
    places = 1 << (size.bit_length() - 1)
    pairs = size - places  # the first `pairs` places are two ranks each, of which the left one acts
    place = rank // 2 if rank < 2 * pairs else rank - pairs
    if place < pairs and rank % 2:
        yield send(rank - 1, 0)
        yield recv(rank - 1, 0)
        return
    if place < pairs:
        yield reduce(rank + 1, 0)
    for bit in range(places.bit_length() - 1):
        partner = place ^ 1 << bit
        peer = 2 * partner if partner < pairs else partner + pairs
        yield send(peer, 0), reduce(peer, 0)
    if place < pairs:
        yield send(rank + 1, 0)


def reduce_scatter(rank: int, size: int) -> Steps:
    """Leave one rank of each place with one chunk reduced."""
    places = 1 << (size.bit_length() - 1)
    pairs = size - places  # the first `pairs` places are two ranks each
    place = rank // 2 if rank < 2 * pairs else rank - pairs
    lower, upper = range(places // 2), range(places // 2, places)

    def of_lower(place: int) -> int:
        """Give the rank that holds the lower half of the vector for its place."""
        return 2 * place if place < pairs else place + pairs

    def of_upper(place: int) -> int:
        return 2 * place + 1 if place < pairs else place + pairs

    if size == 1:
        return
    # The two of a pair combine one half each.
    if place < pairs and rank == of_lower(place):
        yield send(rank + 1, upper), reduce(rank + 1, lower)
    elif place < pairs:
        yield send(rank - 1, lower), reduce(rank - 1, upper)
    # The even place of two neighbours keeps the lower half, the odd one the upper half.
    even, odd = place & ~1, place | 1
    step: Step = ()
    if rank == of_lower(even):
        step += (reduce(of_lower(odd), lower),)
    if rank == of_upper(even):
        step += (send(of_upper(odd), upper),)
    if rank == of_lower(odd):
        step += (send(of_lower(even), lower),)
    if rank == of_upper(odd):
        step += (reduce(of_upper(even), upper),)
    yield step
    keeper = of_upper if place == odd else of_lower
    if rank != keeper(place):
        return
    # From here on one rank of each place goes on, with a half of what it kept each time.
    kept = upper if place == odd else lower
    for bit in range(1, places.bit_length() - 1):
        middle = kept.start + len(kept) // 2
        halves = range(kept.start, middle), range(middle, kept.stop)
        kept, given = halves if not place >> bit & 1 else halves[::-1]
        peer = keeper(place ^ 1 << bit)
        yield send(peer, given), reduce(peer, kept)


@algorithm(
    "allreduce",
    chunks=lambda size: 1 << (size.bit_length() - 1),
    steps="2*ceil(log(p, 2))",
    sent="2 - 2/2**floor(log(p, 2)) + (ceil(log(p, 2)) - floor(log(p, 2)))/2",
    time="2*ceil(log(p, 2))*alpha"
    " + (2 - 2/2**floor(log(p, 2)) + ceil(log(p, 2)) - floor(log(p, 2)))*(beta + gamma/2)",
    source="Rabenseifner 2004",
)
def recursive_halving_doubling(rank: int, size: int) -> Steps:
    """Partners at distance 1, 2, 4, ... exchange half of what they hold, then all the way back."""
    yield from reduce_scatter(rank, size)
    yield from mirrored(reduce_scatter(rank, size))
