"""Dissemination: in every step each rank tells one other, twice as far away each time, what it has heard.

::

      0   1   2   3   4   5   6       After k steps a rank has heard from the 2^k - 1 ranks to its left,
      '---^                           and so, for any number of ranks, from all after ceil(log2 p) steps.
      '-------^
      '---------------^

Steps of the barrier for 4 ranks (what each rank sends; ``+>`` is combined there)::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1  0 +> 2  0 +> 3  0 +> 0
    2     0 +> 2  0 +> 3  0 +> 0  0 +> 1

Cost: ceil(log2 p) alpha, the least possible: nobody can hear from all in fewer steps; and ceil(log2 p) (M
beta + M gamma) for the byte or so that a message has.

Limits: where p is no power of two a rank hears from some twice, so the op must not mind: a bitwise or.

Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", Int. J. Parallel
Programming 17 (1988).
"""

from ..schedule import algorithm, reduce, send
from ..schedule.schedule import Steps


@algorithm(
    "barrier",
    chunks=1,
    steps="ceil(log(p, 2))",
    sent="ceil(log(p, 2))",
    time="ceil(log(p, 2))*(alpha + beta + gamma)",
    source="Hensgen, Finkel & Manber 1988",
)
def dissemination(rank: int, size: int) -> Steps:
    """Each rank tells the rank at distance 1, 2, 4, ... from whom it has heard."""
    distance = 1
    while distance < size:
        yield send((rank + distance) % size, 0), reduce((rank - distance) % size, 0)
        distance *= 2
