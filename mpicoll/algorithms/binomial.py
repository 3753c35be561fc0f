"""Binomial tree: single ranks join to pairs, pairs to fours, and so on; or they part the same way.

::

      0 <-- 1     2 <-- 3     4 <-- 5     6       Groups of 1, 2, 4, ... consecutive ranks join: the keeper
      0 <-------- 2           4 <-------- 6       of one sends to the keeper of the other. A group's keeper
      0 <-------------------- 4                   is the root if it is in there, else its lowest rank.

So a group holds consecutive ranks whatever the root is: what its keeper has gathered is one range of
chunks, and what it has reduced is in rank order. Backwards, a reduction is a broadcast and a gather a
scatter. Steps for 4 ranks and root 0 (what each rank sends; ``+>`` is combined there, ``=>`` replaces);
of the reduction::

    step  rank 0  rank 1  rank 2  rank 3
    1             0 +> 0          0 +> 2
    2                     0 +> 0

of the broadcast::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 => 2
    2     0 => 1          0 => 3

of the gather::

    step  rank 0  rank 1  rank 2    rank 3
    1             1 => 0            3 => 2
    2                     2-3 => 0

of the scatter::

    step  rank 0    rank 1  rank 2  rank 3
    1     2-3 => 2
    2     1 => 1            3 => 3

Cost, with q the largest power of two that is not above p: floor(log2 p) alpha + ceil(log2 p) M beta, and
for the reduction, which may take less, ceil(log2 p) M gamma more: the fewest steps possible, for short
vectors. Gather, which may take less, and scatter: floor(log2 p) alpha + (p-1)/p M beta, the least of both.
Where the root is not below q, one alpha more for all, and (2q-1)/p M beta for gather and scatter.

Limits: in a gather or scatter, ranks pass on the chunks of others; where counts give their lengths, all ranks
must know them. Operands are in rank order, and the expression is the same for every root.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005). Keepers in rank order: as in recursive doubling.
"""

from collections.abc import Iterator

from ..schedule import algorithm, mirrored, recv, reduce, send
from ..schedule.schedule import Steps

SOURCE = "Thakur, Rabenseifner & Gropp 2005"

AMONG_LAST = "(root >= 2**floor(log(p, 2)))"  # not below q
HOPS = f"(floor(log(p, 2)) + {AMONG_LAST})"  # of one message after the other
PASSED = f"max(p-1, {AMONG_LAST}*(2**ceil(log(p, 2)) - 1))/p"  # in them, of the vector


def joins(rank: int, size: int, root: int) -> Iterator[tuple[int, int, range]]:
    """Give, for each step of a rank, the sender, the receiver and the group that the sender keeps."""

    def keeper(group: range) -> int:
        return root if root in group else group.start

    length = 1
    while length < size:
        first = rank // (2 * length) * 2 * length
        middle = first + length
        if middle < size:
            lower, upper = range(first, middle), range(middle, min(middle + length, size))
            given = lower if root in upper else upper
            sender, receiver = keeper(given), keeper(upper if given is lower else lower)
            if rank in (sender, receiver):
                yield sender, receiver, given
            if rank in given:
                return
        length *= 2


@algorithm(
    "reduce",
    name="binomial",
    chunks=1,
    steps="ceil(log(p, 2))",
    sent="min(1, p-1)",
    time=f"<={HOPS}*alpha + ceil(log(p, 2))*(beta + gamma)",
    source=SOURCE,
)
def reduction(rank: int, size: int, root: int = 0) -> Steps:
    """Groups of 1, 2, 4, ... ranks combine their vectors."""
    for sender, receiver, _ in joins(rank, size, root):
        yield send(receiver, 0) if rank == sender else reduce(sender, 0)


@algorithm(
    "bcast",
    name="binomial",
    chunks=1,
    steps="ceil(log(p, 2))",
    sent="<=ceil(log(p, 2))",
    time=f"{HOPS}*alpha + ceil(log(p, 2))*beta",
    source=SOURCE,
)
def bcast(rank: int, size: int, root: int = 0) -> Steps:
    """The ranks that have the vector send it to as many others, at half the distance each time."""
    yield from mirrored(reduction(rank, size, root))


@algorithm(
    "gather",
    name="binomial",
    chunks=lambda size: size,
    transit=True,
    steps="ceil(log(p, 2))",
    sent="<=(p > 1)*2**ceil(log(p, 2))/(2*p)",
    time=f"<={HOPS}*alpha + {PASSED}*beta",
    source=SOURCE,
)
def gather(rank: int, size: int, root: int = 0) -> Steps:
    """Groups of 1, 2, 4, ... ranks put their chunks together."""
    for sender, receiver, chunks in joins(rank, size, root):
        yield send(receiver, chunks) if rank == sender else recv(sender, chunks)


@algorithm(
    "scatter",
    name="binomial",
    chunks=lambda size: size,
    transit=True,
    steps="ceil(log(p, 2))",
    sent="(p-1)/p",
    time=f"{HOPS}*alpha + {PASSED}*beta",
    source=SOURCE,
)
def scatter(rank: int, size: int, root: int = 0) -> Steps:
    """Groups of ranks part in halves, and each half gets the chunks of its ranks."""
    yield from mirrored(gather(rank, size, root))
