"""Neighbour exchange: every rank talks to its two neighbours in turn, two chunks at a time.

::

      0-1   2-3   4-5        1. the two ranks of a pair exchange their chunks
     -0   1-2   3-4   5-     2. each exchanges the two that it has with the neighbour on its other side
      0-1   2-3   4-5        3. the two of a pair exchange what they got last; and so on

Steps of the all-gather for 4 ranks (what each rank sends; ``=>`` replaces)::

    step  rank 0    rank 1    rank 2    rank 3
    1     0 => 1    1 => 0    2 => 3    3 => 2
    2     0-1 => 3  0-1 => 2  2-3 => 1  2-3 => 0

Cost: p/2 alpha + (p-1)/p M beta: half the steps of a ring, and every exchange goes both ways between two
neighbours. Medium and long vectors.

Limits: the number of ranks must be even.

Source: J. Chen, L. Zhang, Y. Zhang and W. Yuan, "Performance evaluation of allgather algorithms on terascale
Linux cluster with fast Ethernet", HPC Asia 2005.
"""

from ..schedule import algorithm, recv, send
from ..schedule.schedule import Steps


@algorithm(
    "allgather",
    chunks=lambda size: size,
    ranks="p == 1 or p % 2 == 0",
    steps="floor(p/2)",
    sent="(p-1)/p",
    time="floor(p/2)*alpha + (p-1)/p*beta",
    source="Chen, Zhang, Zhang & Yuan 2005",
)
def neighbour_exchange(rank: int, size: int) -> Steps:
    """Neighbours exchange the two chunks that they got last, on one side and the other in turn."""
    if size == 1:
        return
    pair, side = rank // 2, 1 if rank % 2 == 0 else -1  # where the partner is
    partner = rank + side
    yield send(partner, rank), recv(partner, partner)
    held = pair
    for step in range(1, size // 2):
        toward = side if step % 2 == 0 else -side
        peer = (rank + toward) % size
        got = pair + toward * ((step + 1) // 2)
        yield send(peer, range(2 * held, 2 * held + 2)), recv(peer, range(2 * got, 2 * got + 2))
        held = got
