"""Scan by recursive doubling: sums of 1, 2, 4, ... ranks, from twice as far to the left each time.

::

      0 -> 1 -> 2 -> 3 -> 4        A rank that holds the sum of its own and the d - 1 vectors before
      0 ------> 2 ------> 4        gets that of the d vectors before these.
           1 ------> 3
      0 ----------------> 4

Steps of `recursive_doubling` for 4 ranks (what each rank sends; ``+>`` is combined there, ``=>`` replaces);
of the scan::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1  0 +> 2  0 +> 3
    2     0 +> 2  0 +> 3

An exclusive scan is that of the left neighbours' vectors, on all ranks but the first::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 => 1  0 => 2  0 => 3
    2             0 +> 2  0 +> 3
    3             0 +> 3

Cost: ceil(log2 p) steps, the fewest possible; at most floor(log2 p) alpha + ceil(log2 p) (M beta + M
gamma). Exclusive 1 + ceil(log2(p-1)) steps, at most one more, and for the first step alpha + M beta beside
the scan of p-1 ranks. Short vectors.

Limits: none. Operands are in rank order.

Source: W. D. Hillis and G. L. Steele, "Data parallel algorithms", Communications of the ACM 29 (1986). For
the exclusive scan, J. L. Traeff, "Communication round and computation efficient exclusive prefix-sums
algorithms (for MPI_Exscan)", arXiv:2507.04785 (2025), where this is the simplest of several.
"""

from ..schedule import algorithm, mapped, recv, reduce, send
from ..schedule.schedule import Step, Steps


@algorithm(
    "scan",
    name="recursive_doubling",
    chunks=1,
    steps="ceil(log(p, 2))",
    sent="ceil(log(p, 2))",
    time="<=floor(log(p, 2))*alpha + ceil(log(p, 2))*(beta + gamma)",
    source="Hillis & Steele 1986",
)
def scan(rank: int, size: int) -> Steps:
    """Each rank combines its sum with that of the rank 1, 2, 4, ... to its left."""
    distance = 1
    while distance < size:
        step: Step = ()
        if rank + distance < size:
            step += (send(rank + distance, 0),)
        if rank >= distance:
            step += (reduce(rank - distance, 0),)
        yield step
        distance *= 2


@algorithm(
    "exscan",
    name="recursive_doubling",
    chunks=1,
    steps="(p > 1)*(1 + ceil(log(max(1, p-1), 2)))",
    sent="(p > 1)*(1 + ceil(log(max(1, p-1), 2)))",
    time="<=(p > 1)*((1 + floor(log(max(1, p-1), 2)))*alpha + beta"
    " + ceil(log(max(1, p-1), 2))*(beta + gamma))",
    source="Traeff 2025",
)
def exscan(rank: int, size: int) -> Steps:
    """Each rank gets its left neighbour's vector; then these are scanned."""
    right = (send(rank + 1, 0),) if rank + 1 < size else ()
    left = (recv(rank - 1, 0),) if rank > 0 else ()
    yield right + left
    if rank > 0:
        yield from mapped(scan(rank - 1, size - 1), ranks=range(1, size))
