"""Broadcast in two halves: scatter the vector, gather it everywhere; and a reduction the other way.

::

      0 1 2 3                      0 - - -                      0 1 2 3
      - - - -     scatter -->      - 1 - -     all-gather -->   0 1 2 3
      - - - -                      - - 2 -                      0 1 2 3
      - - - -                      - - - 3                      0 1 2 3

The root scatters by a binomial tree, so that it sends each part once. Steps for 4 ranks and root 0 (what each
rank sends; ``+>`` is combined there, ``=>`` replaces) of `scatter_ring`::

    step  rank 0    rank 1  rank 2  rank 3
    1     2-3 => 2
    2     1 => 1            3 => 3
    3     0 => 1    1 => 2  2 => 3  3 => 0
    4     3 => 1    0 => 2  1 => 3  2 => 0
    5     2 => 1    3 => 2  0 => 3  1 => 0

of `scatter_doubling`, with recursive doubling instead of the ring::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 => 2
    2     1 => 1              3 => 3
    3     0 => 1    1 => 0    2 => 3    3 => 2
    4     0-1 => 2  0-1 => 3  2-3 => 0  2-3 => 1

of the reduction `halving_gather`, a reduce-scatter by recursive halving and a gather by a binomial tree::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 2  2-3 +> 3  0-1 +> 0  0-1 +> 1
    2     1 +> 1    0 +> 0    3 +> 3    2 +> 2
    3               1 => 0              3 => 2
    4                         2-3 => 0

Cost: (floor(log2 p) + p - 1) alpha + 2(p-1)/p M beta with the ring; with doubling and halving, where p is a
power of two, 2 log2(p) alpha + 2(p-1)/p M beta, and (p-1)/p M gamma for the reduction, for other p up to
(floor(log2 p) + ceil(log2 p)) alpha + 3(p-1)/p M beta and 2(p-1)/p M gamma. Where the root is late in the
order of ranks, more of the scatter or gather: see `binomial.py`. Long vectors: a binomial tree takes
log2(p) M beta.

Limits: what a rank has of the scatter comes to it once more. For other p than powers of two, some ranks do
twice as much in some steps of halving and doubling; the op of a reduction must be commutative.

Source: M. Barnett, L. Shuler, R. van de Geijn, S. Gupta, D. G. Payne and J. Watts, "Interprocessor collective
communication library (InterCom)", SHPCC 1994; for the reduction R. Thakur, R. Rabenseifner and W. Gropp,
"Optimization of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
"""

from ..schedule import algorithm
from ..schedule.schedule import Steps
from . import binomial, halving, ring
from .binomial import HOPS, PASSED
from .halving import FOR_TWO


@algorithm(
    "bcast",
    chunks=lambda size: size,
    steps="ceil(log(p, 2)) + p - 1",
    sent="2*(p-1)/p",
    time=f"({HOPS} + p-1)*alpha + ({PASSED} + (p-1)/p)*beta",
    source="Barnett et al. 1994",
)
def scatter_ring(rank: int, size: int, root: int = 0) -> Steps:
    """The root scatters the vector by a binomial tree; all gather it around a ring."""
    yield from binomial.scatter(rank, size, root)
    yield from ring.allgather(rank, size)


@algorithm(
    "bcast",
    chunks=lambda size: size,
    steps="2*ceil(log(p, 2))",
    sent="<=(2 + (p > 2**floor(log(p, 2))))*(p-1)/p",
    time=f"<=({HOPS} + ceil(log(p, 2)))*alpha + ({PASSED} + {FOR_TWO}*(p-1)/p)*beta",
    source="Barnett et al. 1994",
)
def scatter_doubling(rank: int, size: int, root: int = 0) -> Steps:
    """The root scatters the vector by a binomial tree; all gather it by recursive doubling."""
    yield from binomial.scatter(rank, size, root)
    yield from halving.allgather(rank, size)


@algorithm(
    "reduce",
    chunks=lambda size: size,
    commutative=True,
    steps="2*ceil(log(p, 2))",
    sent="<=(p-1)/p + (p > 1)*2**ceil(log(p, 2))/(2*p)",
    time=f"<=({HOPS} + ceil(log(p, 2)))*alpha + {PASSED}*beta + {FOR_TWO}*(p-1)/p*(beta + gamma)",
    source="Thakur, Rabenseifner & Gropp 2005",
)
def halving_gather(rank: int, size: int, root: int = 0) -> Steps:
    """Each rank reduces its chunk by recursive halving; the root gathers them by a binomial tree."""
    yield from halving.reduce_scatter(rank, size)
    yield from binomial.gather(rank, size, root)
