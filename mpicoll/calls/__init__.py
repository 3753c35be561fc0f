"""From the arguments of a collective to what the engines need.

Every function here reads and checks the arguments of one rank, and sends nothing. `moving` and `reducing`
have one for each collective; `sides` is about the memory, `call` is what comes out.
"""

from .call import Call, Where
from .imaginary import imagine
from .moving import (
    allgather,
    allgatherv,
    alltoall,
    alltoallv,
    bcast,
    gather,
    gatherv,
    scatter,
    scatterv,
)
from .reducing import (
    BYTE,
    allreduce,
    barrier,
    exscan,
    reduce,
    reduce_scatter,
    reduce_scatter_block,
    scan,
)
from .sides import memory_at

__all__ = [
    "BYTE",
    "Call",
    "Where",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "exscan",
    "gather",
    "gatherv",
    "imagine",
    "memory_at",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "scan",
    "scatter",
    "scatterv",
]
