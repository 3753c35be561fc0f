"""Which algorithm serves a call, and why.

The first of these that answers decides:

1. the call's ``algorithm=``,
2. the environment, e.g. ``MPICOLL_ALLREDUCE=ring``,
3. the table below.
"""

import os
from typing import Any, NamedTuple

NATIVE = "native"
AUTO = "auto"

CHUNK = 1 << 17  # bytes in a chunk of a pipelined algorithm
CHUNKS = 256  # at most


class Call(NamedTuple):
    """What the choice depends on."""

    collective: str
    nbytes: int
    size: int


class Choice(NamedTuple):
    """An algorithm's name, the reason in words, and whether the user asked for it."""

    algorithm: str
    reason: str
    asked: bool


def choose(call: Call, algorithm: str = AUTO) -> Choice:
    """Choose the algorithm for a call.

    Parameters
    ----------
    call : Call
    algorithm : str
        What the caller asked for; ``"auto"`` leaves it to the environment and the table.
    """
    if algorithm != AUTO:
        return Choice(algorithm, "asked for by the call", True)
    variable = f"MPICOLL_{call.collective.upper()}"
    if (os.environ.get(variable) or AUTO) != AUTO:
        return Choice(os.environ[variable], f"asked for by {variable}", True)
    for row in TABLE[call.collective]:
        if call.nbytes <= row.upto and call.size <= row.ranks:
            return Choice(row.algorithm, f"built-in table: {row}", False)
    raise AssertionError(call)


class Row(NamedTuple):
    """The algorithm for vectors and communicators up to a size."""

    upto: float  # bytes
    ranks: float
    algorithm: str

    def __str__(self) -> str:
        return f"up to {self.upto:,.0f} bytes on up to {self.ranks:,.0f} ranks"


# From runs of benchmarks/side_by_side.py on 2 and 4 ranks of one node with each of three MPI libraries;
# for more ranks from the costs: doubling sends log2(p) vectors where halving sends two.
ANY = float("inf")
TABLE = {
    "allreduce": [
        Row(128 << 10, 2, "recursive_doubling"),
        Row(64 << 10, 4, "recursive_doubling"),
        Row(16 << 10, ANY, "recursive_doubling"),
        Row(ANY, ANY, "recursive_halving_doubling"),
    ]
}

VARIABLES = tuple(f"MPICOLL_{collective.upper()}" for collective in TABLE)


def pipeline(nbytes: int) -> dict[str, Any]:
    """Choose the parameters of a pipelined algorithm."""
    return {"chunks": max(1, min(CHUNKS, -(-nbytes // CHUNK)))}
