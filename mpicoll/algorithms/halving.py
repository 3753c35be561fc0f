"""Recursive halving and doubling between halves of the ranks, for any number of them.

::

      0 1 2 3 | 4 5 6       Each half wants its own half of the vector from the other: 0-4, 1-5, 2-6 exchange.
      0 1 | 2 3             The one who has no partner, 3, sends to the last one, who combines both.
      0 | 1                 Then each half goes on by itself, until each rank has its own chunk.

Steps of `recursive_halving`, a reduce-scatter, for 4 ranks (what each rank sends; ``+>`` is combined there,
``=>`` replaces)::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 2  2-3 +> 3  0-1 +> 0  0-1 +> 1
    2     1 +> 1    0 +> 0    3 +> 3    2 +> 2

Backwards it is an all-gather, `recursive_doubling`::

    step  rank 0    rank 1    rank 2    rank 3
    1     0 => 1    1 => 0    2 => 3    3 => 2
    2     0-1 => 2  0-1 => 3  2-3 => 0  2-3 => 1

Cost: ceil(log2 p) alpha + (p-1)/p M beta, and (p-1)/p M gamma for the reduce-scatter, where p is a power of
two: the least of all. For other p some rank takes part for two in some of the steps: it receives (in the
all-gather sends) and combines up to twice as much, at most 2(p-1)/p M beta and 2(p-1)/p M gamma.

Limits: distant ranks are combined first, ((0+2)+(1+3)), so the op must be commutative. Every message is one
range of chunks.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), for a power of two.
"""

from ..schedule import algorithm, mirrored, reduce, send
from ..schedule.schedule import Step, Steps

SOURCE = "Thakur, Rabenseifner & Gropp 2005"
FOR_TWO = "(1 + (p > 2**floor(log(p, 2))))"  # 2 where some rank takes part for two, else 1


@algorithm(
    "reduce_scatter",
    name="recursive_halving",
    chunks=lambda size: size,
    commutative=True,
    steps="ceil(log(p, 2))",
    sent="(p-1)/p",
    time=f"<=ceil(log(p, 2))*alpha + {FOR_TWO}*(p-1)/p*(beta + gamma)",
    source=SOURCE,
)
def reduce_scatter(rank: int, size: int) -> Steps:
    """Ranks of two halves exchange the other's half of the vector, and so on within each half."""
    group = range(size)
    while len(group) > 1:
        middle = group.start + (len(group) + 1) // 2
        lower, upper = range(group.start, middle), range(middle, group.stop)
        step: Step
        if rank in lower:
            peer = rank + len(lower)
            # the lower half may have one rank more
            step = (send(peer, upper), reduce(peer, lower)) if peer in upper else (send(peer - 1, upper),)
        else:
            peer = rank - len(lower)
            step = send(peer, lower), reduce(peer, upper)
            if rank == upper[-1] and len(lower) > len(upper):
                step += (reduce(peer + 1, upper),)
        yield step
        group = lower if rank in lower else upper


@algorithm(
    "allgather",
    name="recursive_doubling",
    chunks=lambda size: size,
    steps="ceil(log(p, 2))",
    sent="<=(1 + (p > 2**floor(log(p, 2))))*(p-1)/p",
    time=f"<=ceil(log(p, 2))*alpha + {FOR_TWO}*(p-1)/p*beta",
    source=SOURCE,
)
def allgather(rank: int, size: int) -> Steps:
    """Groups of ranks exchange all that they hold, with a group as large as their own each time."""
    yield from mirrored(reduce_scatter(rank, size))
