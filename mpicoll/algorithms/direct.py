r"""Direct: everybody to everybody, in one step each way.

::

      0 <--> 1
      | \  / |        Rank r owns chunk r: all send it there, where it is combined,
      | /  \ |        and from there it goes back to all.
      2 <--> 3

Steps of the all-reduce for 4 ranks (what each rank sends; ``+>`` is combined there, ``=>`` replaces), of
which the first is the reduce-scatter and the second the all-gather::

    step  rank 0  rank 1  rank 2  rank 3
    1     1 +> 1  0 +> 0  0 +> 0  0 +> 0
          2 +> 2  2 +> 2  1 +> 1  1 +> 1
          3 +> 3  3 +> 3  3 +> 3  2 +> 2
    2     0 => 1  1 => 0  2 => 0  3 => 0
          0 => 2  1 => 2  2 => 1  3 => 1
          0 => 3  1 => 3  2 => 3  3 => 2

Cost: 2 steps of p-1 messages each, and 2(p-1)/p of the vector sent by each rank, the least possible; the
all-gather takes alpha + (p-1)/p M beta (with (p-1) alpha where each message keeps its sender busy so long).
In the reduce-scatter all send to the last rank last, which combines one chunk while the next comes in:
alpha + (p-1)/p M beta + M/p gamma + (p-2)/p M max(beta, gamma). Few ranks that all see each other, as on
one node or one switch.

For the shortest vectors `direct_gather` sends whole vectors, and every rank combines them by itself, in rank
order. Steps for 4 ranks (``s2`` is a vector in scratch)::

    step  rank 0   rank 1    rank 2    rank 3
    1     0 => 1   0 => 0    0 => 0    0 => 0
          0 => 2   0 => 2    0 => 1    0 => 1
          0 => 3   0 => 3    0 => 3    0 => 2
          0 += s0  s0 += 0   s0 += s1  s0 += s1
          0 += s1  s0 += s1  s0 += 0   s0 += s2
          0 += s2  s0 += s2  s0 += s2  s0 += 0
                   0 = s0    0 = s0    0 = s0

Cost: one step of p-1 messages, alpha + (p-1) M beta + (p-1) M gamma, and p-1 vectors of scratch: the least
possible start-up, for few ranks. All ranks compute (((0+1)+2)+3), whatever the size of the vector.

In an all-to-all chunk 4 s + d goes from s to d::

    step  rank 0  rank 1  rank 2   rank 3
    1     1 => 1  4 => 0  8 => 0   12 => 0
          2 => 2  6 => 2  9 => 1   13 => 1
          3 => 3  7 => 3  11 => 3  14 => 2

Cost: one step of p-1 messages, alpha + (p-1)/p M beta.

Limits: p(p-1) messages at once. The operands of chunk r are combined around rank r, downwards to 0 and
then upwards, so they are in rank order, but each chunk's expression is another one. `direct_gather` is for
vectors of a few KiB.

Source: the parameter server with one shard a rank: M. Li et al., "Scaling distributed machine learning
with the parameter server", OSDI 2014.
"""

from ..schedule import algorithm, combine, copy, recv, reduce, scratch, send
from ..schedule.moves import Spec
from ..schedule.schedule import Steps

SOURCE = "Li et al. 2014"


def to_owners(rank: int, size: int, owners: int) -> Steps:
    """Leave each rank r below `owners` with chunk r reduced.

    The others' chunks are combined `owners` at a time, so that no more than one vector is under way to
    a rank.
    """
    if rank >= owners:
        yield tuple(send(owner, owner) for owner in range(owners))
        return
    if owners > 1:
        # from neighbours outwards, so that what is combined always covers neighbouring ranks
        order = [*range(rank)[::-1], *range(rank + 1, owners)]
        yield tuple(send(owner, owner) for owner in order) + tuple(reduce(peer, rank) for peer in order)
    for first in range(owners, size, owners):
        yield tuple(reduce(peer, rank) for peer in range(first, min(first + owners, size)))


def from_owners(rank: int, size: int, owners: int) -> Steps:
    """Spread chunk r from each rank r below `owners` to all."""
    if size == 1:
        return
    peers = [(rank + distance) % size for distance in range(1, size)]
    sends = tuple(send(peer, rank) for peer in peers if rank < owners)
    yield sends + tuple(recv(peer, peer) for peer in peers if peer < owners)


@algorithm(
    "allreduce",
    chunks=lambda size: size,
    steps="min(2, 2*(p-1))",
    sent="2*(p-1)/p",
    time="(p > 1)*(2*alpha + (2*(p-1)*beta + gamma + (p-2)*max(beta, gamma))/p)",
    source=SOURCE,
)
def direct(rank: int, size: int) -> Steps:
    """Each rank combines its chunk from all ranks and sends it back to all."""
    yield from to_owners(rank, size, size)
    yield from from_owners(rank, size, size)


@algorithm(
    "allreduce",
    chunks=1,
    vectors=lambda size: size - 1,
    steps="min(1, p-1)",
    sent="p-1",
    time="min(1, p-1)*alpha + (p-1)*(beta + gamma)",
    limit=64 * 1024,
    source=SOURCE,
)
def direct_gather(rank: int, size: int) -> Steps:
    """Each rank sends its vector to all; every rank combines them in rank order."""
    vectors: list[Spec] = [scratch(place) for place in range(size - 1)]
    vectors.insert(rank, 0)  # its own is where it is, and the others' are in scratch
    peers = [(rank + distance) % size for distance in range(1, size)]
    messages = [move for peer in peers for move in (send(peer, 0), recv(peer, vectors[peer]))]
    first, *others = vectors
    result = [copy(0, first)] if rank > 0 else []
    yield *messages, *(combine(first, other) for other in others), *result


@algorithm(
    "reduce_scatter",
    name="direct",
    chunks=lambda size: size,
    steps="min(1, p-1)",
    sent="(p-1)/p",
    time="(p > 1)*(alpha + ((p-1)*beta + gamma + (p-2)*max(beta, gamma))/p)",
    source=SOURCE,
)
def reduce_scatter(rank: int, size: int) -> Steps:
    """Each rank combines its chunk from all ranks."""
    yield from to_owners(rank, size, size)


@algorithm(
    "allgather",
    name="direct",
    chunks=lambda size: size,
    steps="min(1, p-1)",
    sent="(p-1)/p",
    time="min(1, p-1)*alpha + (p-1)/p*beta",
    source=SOURCE,
)
def allgather(rank: int, size: int) -> Steps:
    """Each rank sends its chunk to all."""
    yield from from_owners(rank, size, size)


@algorithm(
    "alltoall",
    name="direct",
    chunks=lambda size: size**2,
    steps="min(1, p-1)",
    sent="(p-1)/p",
    time="min(1, p-1)*alpha + (p-1)/p*beta",
    source=SOURCE,
)
def alltoall(rank: int, size: int) -> Steps:
    """Each rank sends to all and receives from all at once."""
    peers = [(rank + distance) % size for distance in range(1, size)]
    sends = tuple(send(peer, rank * size + peer) for peer in peers)
    yield sends + tuple(recv(peer, peer * size + rank) for peer in peers)
