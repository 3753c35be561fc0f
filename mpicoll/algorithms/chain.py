"""Chain: every rank hands on to the next one, chunk by chunk.

::

      0 --> 1 --> 2 --> 3        While chunk 1 goes from 0 to 1, chunk 0 goes from 1 to 2.

Steps of the broadcast of 2 chunks for 4 ranks and root 0 (what each rank sends; ``+>`` is combined there,
``=>`` replaces)::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 => 1
    2     1 => 1  0 => 2
    3             1 => 2  0 => 3
    4                     1 => 3

A scan combines on the way: what comes in is the reduction of all ranks before. Steps for 2 chunks::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1
    2     1 +> 1  0 +> 2
    3             1 +> 2  0 +> 3
    4                     1 +> 3

In an exclusive scan that stays, and what goes on is the sum of it and the rank's own, which is kept in
scratch (``s0-1``, and the sums in ``s2-3``)::

    step  rank 0  rank 1      rank 2      rank 3
    0             s0-1 = 0-1  s0-1 = 0-1
    1     0 => 1  s2 = 0
                  s2 += s0
    2     1 => 1  s2 => 2     s2 = 0
                  s3 = 1      s2 += s0
                  s3 += s1
    3             s3 => 2     s2 => 3
                              s3 = 1
                              s3 += s1
    4                         s3 => 3

Cost for S chunks: p - 2 + S steps of M/S each, (p-1) alpha + (p - 2 + S) M/S beta where a rank sends the
next chunk while one is on its way. A scan, which combines one while the next comes in: (p-1) (alpha + M/S
beta + M/S gamma) + (S-1) M/S max(beta, gamma); an exclusive one first receives and then combines: (p-1)
alpha + (p - 2 + S) M/S beta + (p - 3 + S) M/S gamma. If a message keeps its sender busy for alpha, too, a
broadcast takes (p - 2 + S)(alpha + M/S beta). The best S then is sqrt((p-2) M beta / alpha), for which that
is (sqrt((p-2) alpha) + sqrt(M beta))^2: for long vectors on few ranks little more than M beta, the least
possible.

Limits: the number of steps grows with p. Operands are in rank order, (((0+1)+2)+3). An exclusive scan needs
two vectors of scratch.

Source: for the broadcast and its best S, J. Pjesivac-Grbovic, T. Angskun, G. Bosilca, G. E. Fagg, E. Gabriel
and J. J. Dongarra, "Performance analysis of MPI collective operations", Cluster Computing 10 (2007). For the
scan, P. Sanders and J. L. Traeff, "Parallel prefix (scan) algorithms for MPI", EuroPVM/MPI 2006.
"""

from collections.abc import Callable

from ..schedule import Move, algorithm, combine, copy, recv, reduce, scratch, send
from ..schedule.schedule import Step, Steps

CHUNKS = {"chunks": (1, 2, 3, 7)}
STEPS = "(p > 1)*(p - 2 + S)"
SCAN = "Sanders & Traeff 2006"


def along(left: int | None, right: int | None, chunks: int, receive: Callable[[int, int], Move]) -> Steps:
    """Take each chunk from the left, and hand it on to the right while the next one comes in."""
    for turn in range(chunks + 1):
        step: Step = ()
        if left is not None and turn < chunks:
            step += (receive(left, turn),)
        if right is not None and turn > 0:
            step += (send(right, turn - 1),)
        yield step


@algorithm(
    "bcast",
    name="chain",
    steps=STEPS,
    sent="min(1, p-1)",
    time="(p-1)*alpha + (p > 1)*(p - 2 + S)/S*beta",
    source="Pjesivac-Grbovic et al. 2007",
    variants=CHUNKS,
)
def bcast(rank: int, size: int, chunks: int, root: int = 0) -> Steps:
    """Chunks go from rank to rank, once around, in a pipeline."""
    left = None if rank == root else (rank - 1) % size
    right = None if (rank + 1) % size == root else (rank + 1) % size
    yield from along(left, right, chunks, recv)


@algorithm(
    "scan",
    name="chain",
    steps=STEPS,
    sent="min(1, p-1)",
    time="(p-1)*(alpha + (beta + gamma)/S) + (p > 1)*(S-1)/S*max(beta, gamma)",
    source=SCAN,
    variants=CHUNKS,
)
def scan(rank: int, size: int, chunks: int) -> Steps:
    """Each rank combines what comes from the rank before with its own, and hands it on."""
    yield from along(rank - 1 if rank > 0 else None, rank + 1 if rank + 1 < size else None, chunks, reduce)


@algorithm(
    "exscan",
    name="chain",
    vectors=lambda size, chunks: 2 if size > 2 else 0,
    steps=STEPS,
    sent="min(1, p-1)",
    time="(p-1)*alpha + ((p > 1)*(p - 2 + S)*beta + (p > 2)*(p - 3 + S)*gamma)/S",
    source=SCAN,
    variants=CHUNKS,
)
def exscan(rank: int, size: int, chunks: int) -> Steps:
    """Each rank keeps what comes from the rank before, and hands on that and its own combined."""
    last = size - 1
    if 0 < rank < last:
        yield copy(scratch(range(chunks)), range(chunks))
    for turn in range(chunks + 1):
        step: Step = ()
        if rank > 0 and turn < chunks:
            step += (recv(rank - 1, turn),)
        if 0 < rank < last and turn < chunks:
            total = scratch(chunks + turn)
            step += copy(total, turn), combine(total, scratch(turn))
        if rank < last and turn > 0:
            step += (send(rank + 1, scratch(chunks + turn - 1) if rank > 0 else turn - 1),)
        yield step
