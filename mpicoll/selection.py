"""Which algorithm serves a call, and why.

The first of these that answers decides:

1. the call's ``algorithm=``,
2. the environment when the communicator was made, e.g. ``MPICOLL_ALLREDUCE=ring``,
3. the table that ``mpicoll tune`` wrote and ``MPICOLL_TUNING`` names: for host memory, on just as many ranks
   and nodes as it was measured on, for vectors no longer or shorter than those measured,
4. the tables below: the first row whose algorithm can serve the call.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .schedule import find
from .schedule.collectives import COLLECTIVES

if TYPE_CHECKING:
    from .tuning import Tuning

NATIVE = "native"
AUTO = "auto"
MESSAGE, SHARED = "message", "shared"  # transports
IPC, MPI_ROUTE, STAGED = "ipc", "mpi", "staged"  # routes of device memory
ROUTES = (AUTO, IPC, MPI_ROUTE, STAGED)

LEAST, MOST = 1 << 18, 1 << 23  # bytes of a rank's stage
STAGING, WAIT, TRANSPORT = "MPICOLL_STAGING", "MPICOLL_WAIT", "MPICOLL_TRANSPORT"
DEVICE, CUDA_AWARE = "MPICOLL_DEVICE", "MPICOLL_CUDA_AWARE"
TUNING = "MPICOLL_TUNING"  # names the file of a tuned table
SETTINGS = {  # of the environment, and their values
    TRANSPORT: (AUTO, MESSAGE, SHARED),
    WAIT: (AUTO, "spin", "yield", "sleep"),
    STAGING: (AUTO,),
    DEVICE: ROUTES,
    CUDA_AWARE: (AUTO, "0", "1"),
}

CHUNK = 1 << 17  # bytes in a chunk of a pipelined algorithm
CHUNKS = 256  # at most
INT_MAX = (1 << 31) - 1  # counts that every MPI library can take


class Asked(NamedTuple):
    """What the choice depends on.

    Attributes
    ----------
    collective : str
    nbytes : int or None
        Of the whole vector; None where not every rank knows it.
    size : int
        Ranks.
    commutative : bool
        Whether operands may be swapped.
    counted : bool
        Whether blocks may be unequal, of which each rank may know only its own.
    native : bool
        Whether the native collective can serve.
    nodes : int
        Nodes, where ranks of one share memory that the call can use; otherwise as many as ranks.
    """

    collective: str
    nbytes: int | None
    size: int
    commutative: bool = True
    counted: bool = False
    native: bool = True
    nodes: int = 0


class Choice(NamedTuple):
    """What serves a call.

    Attributes
    ----------
    algorithm : str
        Its name.
    reason : str
        In words.
    asked : bool
        Whether the user asked for it.
    transport : str
        Within a node, where that can be.
    parameters : tuple of (str, value)
        The algorithm's own.
    """

    algorithm: str
    reason: str
    asked: bool = False
    transport: str = SHARED
    parameters: tuple[tuple[str, Any], ...] = ()


def choose(
    what: Asked,
    algorithm: str,
    environment: Mapping[str, str],
    first: "Table | None" = None,
    tuning: "Tuning | None" = None,
) -> Choice:
    """Choose the algorithm for a call.

    Parameters
    ----------
    what : Asked
    algorithm : str
        What the caller asked for; ``"auto"`` leaves it to the environment and the table.
    environment : mapping of str to str
        What :func:`environment` gave, on all ranks. An algorithm for equal blocks is not for the calls whose
        blocks may be unequal.
    first : Table, optional
        What goes before the others.
    tuning : Tuning, optional
        A table that was measured, the same on all ranks.
    """
    if algorithm != AUTO:
        return Choice(algorithm, "asked for by the call", True)
    variable = f"MPICOLL_{what.collective.upper()}"
    named = environment.get(variable, AUTO)
    if named != AUTO and not (what.counted and named != NATIVE and find(what.collective, named).transit):
        return Choice(named, f"asked for by {variable}", True)
    if tuning is not None:
        for tuned in tuning.rows:
            if tuned.fits(what):
                reason = f"tuned table {tuning.file}: {tuned}"
                return Choice(tuned.algorithm, reason, False, tuned.transport, tuned.parameters)
    some = 1 < what.nodes < what.size
    for table in (first or {}, ON_A_NODE if what.nodes == 1 else ON_NODES if some else {}, TABLE):
        for row in table.get(what.collective, []):
            if row.fits(what):
                transport = SHARED if some else row.transport
                reason = f"built-in table{' for ranks that share memory' * (transport == SHARED)}: {row}"
                return Choice(row.algorithm, reason, False, transport, row.parameters)
    raise AssertionError(what)


class Row(NamedTuple):
    """The algorithm for vectors and communicators up to a size."""

    upto: float  # bytes
    ranks: float
    algorithm: str
    transport: str = MESSAGE
    parameters: tuple[tuple[str, Any], ...] = ()

    def fits(self, what: Asked) -> bool:
        """Whether the row is for such a call, and its algorithm can serve it."""
        nbytes = 0 if what.nbytes is None else what.nbytes
        if nbytes > self.upto or what.size > self.ranks:
            return False
        if self.algorithm == NATIVE:
            return what.native and nbytes <= INT_MAX
        algorithm = find(what.collective, self.algorithm)
        return (
            algorithm.serves(what.size)
            and (what.commutative or not algorithm.commutative)
            and not (what.counted and algorithm.transit)
        )

    def __str__(self) -> str:
        length = "vectors of any length" if self.upto == ANY else f"vectors up to {self.upto:,.0f} bytes"
        ranks = "any number of ranks" if self.ranks == ANY else f"up to {self.ranks:,.0f} ranks"
        return f"{'faster here, ' if self.algorithm == NATIVE else ''}{length} on {ranks}"


# From runs of benchmarks/side_by_side.py on 2 and 4 ranks of one node with each of three MPI libraries; for
# more ranks from the costs: doubling sends log2(p) vectors where halving sends two, and Bruck has log2(p)
# steps where direct has p - 1 messages. Native rows are where no schedule comes near the libraries' own.
ANY = float("inf")
Table = Mapping[str, list[Row]]
TABLE: Table = {
    "allgather": [
        Row(1 << 20, 2, "direct"),
        Row(ANY, 2, NATIVE),
        Row(4 << 20, 8, "direct"),
        Row(ANY, 8, NATIVE),
        Row(64 << 10, ANY, "bruck"),
        Row(ANY, ANY, "ring"),
    ],
    "allreduce": [
        Row(128 << 10, 2, "recursive_doubling"),
        Row(64 << 10, 4, "recursive_doubling"),
        Row(16 << 10, ANY, "recursive_doubling"),
        Row(1 << 20, ANY, "recursive_halving_doubling"),
        Row(ANY, 16, "ring"),
        Row(ANY, ANY, "recursive_halving_doubling"),
    ],
    "alltoall": [
        Row(ANY, 8, "direct"),
        Row(4 << 10, ANY, "bruck"),
        Row(ANY, ANY, "pairwise"),
    ],
    "barrier": [Row(ANY, ANY, "dissemination")],
    "bcast": [
        Row(ANY, 2, "binomial"),
        Row(512 << 10, ANY, "binomial"),
        Row(ANY, 8, NATIVE),
        Row(ANY, ANY, "scatter_ring"),
    ],
    "exscan": [Row(ANY, ANY, "recursive_doubling")],
    "gather": [Row(16 << 10, ANY, "binomial"), Row(ANY, ANY, "linear")],
    "reduce": [
        Row(ANY, 2, "binomial"),
        Row(2 << 10, 8, "binomial"),
        Row(ANY, 8, "circulant"),
        Row(64 << 10, ANY, "binomial"),
        Row(ANY, ANY, "halving_gather"),
        Row(ANY, ANY, "binomial"),
    ],
    "reduce_scatter": [
        Row(ANY, 2, "direct"),
        Row(ANY, 8, "recursive_halving"),
        Row(64 << 10, ANY, "recursive_halving"),
        Row(ANY, ANY, "pairwise"),
        Row(ANY, ANY, "direct"),
    ],
    "scan": [Row(ANY, ANY, "recursive_doubling")],
    "scatter": [Row(16 << 10, ANY, "binomial"), Row(ANY, ANY, "linear")],
}


def near(upto: float, ranks: float, algorithm: str, **parameters: Any) -> Row:
    """Give a row for ranks that share memory, on one node or on several."""
    return Row(upto, ranks, algorithm, SHARED, tuple(parameters.items()))


# Where all ranks share memory: from runs on 2 ranks with a core each, and on 4 ranks on 2 cores. Two ranks
# read whole vectors of each other while those are short, which saves a step, and again where they are so long
# that results go past the caches. Just below that MPI's own copy from process to process is faster.
ON_A_NODE: Table = {
    "allgather": [
        near(1 << 20, 2, "direct"),
        Row(ANY, 2, NATIVE),
        near(8 << 20, 8, "direct"),
        Row(ANY, 8, NATIVE),
        near(ANY, ANY, "direct"),
    ],
    "allreduce": [
        near(128 << 10, 2, "recursive_doubling"),
        near(16 << 20, 2, "direct"),
        Row(48 << 20, 2, "recursive_halving_doubling"),
        near(ANY, 2, "recursive_doubling"),
        near(16 << 10, 8, "direct_gather"),
        near(2 << 10, ANY, "direct_gather"),
        near(ANY, ANY, "direct"),
    ],
    "alltoall": [near(256 << 10, ANY, "pairwise"), Row(ANY, 8, NATIVE), near(ANY, ANY, "pairwise")],
    "barrier": [Row(ANY, 8, NATIVE), near(ANY, ANY, "dissemination")],
    "bcast": [near(ANY, ANY, "binomial")],
    "exscan": [near(ANY, ANY, "recursive_doubling")],
    "gather": [near(ANY, ANY, "linear")],
    "reduce": [near(ANY, 2, "binomial"), near(256 << 10, 8, "circulant"), near(ANY, ANY, "binomial")],
    "reduce_scatter": [near(1 << 20, ANY, "recursive_halving"), near(ANY, ANY, "direct")],
    "scan": [near(ANY, ANY, "recursive_doubling")],
    "scatter": [near(1 << 20, ANY, "linear"), Row(ANY, 8, NATIVE), near(ANY, ANY, "linear")],
}

# Where some do: from an emulated cluster of 2 hosts with 4 ranks each. The leaders of all nodes drive the
# network at once where what it carries takes longer than a message's start.
ON_NODES: Table = {
    "allgather": [near(ANY, ANY, "two_level")],
    "allreduce": [
        near(4 << 10, ANY, "two_level", leaders=1, inter="recursive_doubling"),
        near(64 << 10, ANY, "two_level", inter="recursive_doubling"),
        near(ANY, ANY, "two_level", inter="ring"),
    ],
    "barrier": [near(ANY, ANY, "two_level")],
    "bcast": [near(ANY, ANY, "two_level")],
    "reduce": [near(ANY, ANY, "two_level")],
}


# On devices what starts a copy or a message costs more than many bytes do, so the fewest steps are best.
ON_DEVICES: Table = {
    "allreduce": [Row(64 << 10, 8, "direct_gather"), Row(ANY, 8, "direct")],
}


class Route(NamedTuple):
    """The route of device memory for vectors up to a size, where it can be had."""

    upto: float  # bytes
    route: str


# From prototypes on one H200 that 4 ranks shared: reading peers took 2.0 ms for 256 MiB, messages in device
# memory 6.5 ms, and 4.9 ms for 1 MiB where copies through the host took 0.8 ms. Not measured with this code.
ROUTES_BY_LENGTH = [
    Route(32 << 10, STAGED),
    Route(ANY, IPC),
    Route(4 << 20, STAGED),
    Route(ANY, MPI_ROUTE),
]


def environment() -> dict[str, str]:
    """Read what the environment asks for, of this process."""
    variables = [*(f"MPICOLL_{collective.upper()}" for collective in COLLECTIVES), *SETTINGS, TUNING]
    return {name: value for name in variables if (value := os.environ.get(name))}


def check_environment(variables: Mapping[str, str]) -> None:
    """Raise ValueError for a setting with a value that it does not have."""
    for name, values in SETTINGS.items():
        given = variables.get(name, AUTO)
        stage = name == STAGING and given.isascii() and given.isdigit() and LEAST <= int(given) <= MOST
        if given not in values and not stage:
            expected = ", ".join(values) + f", or {LEAST} to {MOST} bytes" * (name == STAGING)
            raise ValueError(f"{name}: {given!r} given, expected {expected}")


def pipeline(nbytes: int) -> dict[str, Any]:
    """Choose the parameters of a pipelined algorithm."""
    return {"chunks": max(1, min(CHUNKS, -(-nbytes // CHUNK)))}
