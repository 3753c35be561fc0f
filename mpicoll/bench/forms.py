"""What each collective takes, as far as measuring it needs to know. No NumPy, no MPI."""

from collections.abc import Callable
from typing import NamedTuple


def _share(p: int) -> float:
    """All but a rank's own block."""
    return (p - 1) / p


class Form(NamedTuple):
    """The form of a call.

    Attributes
    ----------
    method : str
        Of mpi4py's communicators.
    busbw : callable
        The factor from algbw to busbw for so many ranks: the vectors that must pass some rank's link,
        whichever algorithm is used.
    vector : bool
        Whether there is one at all.
    blocked : bool
        Whether the vector is made of one block for each rank.
    combines : bool
        Whether it takes an op.
    rooted : bool
        Whether it takes a root.
    in_place : bool
        Whether MPI lets a rank give its vector in the buffer of the result.
    waits : bool
        Whether every rank waits for every other. If not, the calls of a loop overlap: a rank may be
        through with many of them before another has come to the first.
    """

    method: str
    busbw: Callable[[int], float] = lambda p: 1
    vector: bool = True
    blocked: bool = False
    combines: bool = False
    rooted: bool = False
    in_place: bool = True
    waits: bool = False

    def blocks(self, size: int) -> int:
        """Give the number of blocks of a vector on so many ranks."""
        return size if self.blocked else 1

    def lacks(self) -> list[str]:
        """Name the options of a benchmark that mean nothing here."""
        has = {"sizes": self.vector, "dtype": self.vector, "plot": self.vector}
        has |= {"op": self.combines, "root": self.rooted, "in_place": self.in_place}
        return [name for name, meaningful in has.items() if not meaningful]


FORMS = {
    "allgather": Form("Allgather", _share, blocked=True, waits=True),
    "allreduce": Form("Allreduce", lambda p: 2 * (p - 1) / p, combines=True, waits=True),
    "alltoall": Form("Alltoall", _share, blocked=True, waits=True),
    "barrier": Form("Barrier", vector=False, in_place=False, waits=True),
    "bcast": Form("Bcast", rooted=True, in_place=False),
    "exscan": Form("Exscan", combines=True),
    "gather": Form("Gather", _share, blocked=True, rooted=True),
    "reduce": Form("Reduce", combines=True, rooted=True),
    "reduce_scatter": Form("Reduce_scatter_block", _share, blocked=True, combines=True, waits=True),
    "scan": Form("Scan", combines=True),
    "scatter": Form("Scatter", _share, blocked=True, rooted=True),
}
