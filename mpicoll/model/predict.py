"""Data-parallel training: what bringing the gradients together adds to a step, and leaves of p ranks.

Each of p ranks computes the gradients of its own data in a time Tc; then an all-reduce of all M bytes of
them takes a time Tm, and so a step takes Tc + Tm. Every rank has as much to compute on any number of ranks
(weak scaling). So the efficiency is E = Tc / (Tc + Tm), and the speed-up p E.

An all-reduce is a row of messages that wait for one another, each of which takes the latency, and some
traffic through the busiest link in one direction, or through the centre of a parameter server in both, one
after the other: the algorithm's registered formula says how many and how much. Combining is taken as free,
and links as shared by nobody.

Gradients that come in n buckets overlap. The backward pass, the last part of a computation, makes the
buckets ready evenly, one after the other; the all-reduce of a bucket begins when it is ready and that of
the one before is through, and pays for its own latency. What is not through at the end of the computation
is exposed: it makes the step longer. With gradients accumulated over k computations there is one all-reduce
for all of them, which overlaps with the last.

Sources: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
J. Parallel Distrib. Comput. 69 (2009); M. Li et al., "Scaling distributed machine learning with the
parameter server", OSDI 2014; S. Li et al., "PyTorch Distributed: experiences on accelerating data parallel
training", VLDB 2020, for the buckets.
"""

import math
import re
from dataclasses import dataclass

from ..schedule import find
from .network import Link

STAR = "star"
MOST_RANKS = 1 << 20  # beyond these nothing is looked for


ALGORITHMS = ("ring", "recursive_halving_doubling", "recursive_doubling", "circulant", STAR)


@dataclass(frozen=True)
class Training:
    """What one rank does in a step.

    Attributes
    ----------
    parameters : float
        Of the model; each has a gradient.
    dtype : str
        Of the gradients, such as ``"float16"``.
    compute : float
        s that computing the gradients takes, forwards and backwards, once.
    buckets : int
        In which the gradients are brought together; with 1 nothing overlaps.
    accumulate : int
        Computations for each all-reduce.
    backward : float
        The share of a computation in which gradients become ready.
    """

    parameters: float
    dtype: str
    compute: float
    buckets: int = 1
    accumulate: int = 1
    backward: float = 2 / 3

    def __post_init__(self) -> None:
        if not self.parameters >= 1:
            raise ValueError(f"parameters {self.parameters:g} given, expected 1 or more")
        if not self.compute > 0:
            raise ValueError(f"compute {self.compute:g} given, expected more than 0 s")
        for name in ("buckets", "accumulate"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} {value} given, expected 1 or more")
        if not 0 <= self.backward <= 1:
            raise ValueError(f"backward {self.backward:g} given, expected 0 to 1")

    @property
    def nbytes(self) -> float:
        """Bytes of all gradients: M."""
        bits = re.search(r"[0-9]+$", self.dtype)
        if bits is None:
            raise ValueError(f"dtype {self.dtype!r} given, expected one such as float16")
        return self.parameters * int(bits[0]) / 8

    @property
    def computing(self) -> float:
        """Seconds of a step that are spent on computing."""
        return self.accumulate * self.compute


@dataclass(frozen=True)
class Exchange:
    """What bringing all gradients together takes, in one piece.

    Attributes
    ----------
    messages : int
        That wait for one another.
    traffic : float
        Bytes that go through the busiest link in one direction, or through the centre in both.
    latency, transfer : float
        s for the one and for the other.
    """

    messages: int
    traffic: float
    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        """Both together: Tm."""
        return self.latency + self.transfer


@dataclass(frozen=True)
class Prediction:
    """What becomes of a step on so many ranks.

    Attributes
    ----------
    ranks : int
    exchange : Exchange
        Of all gradients in one piece.
    communication : float
        s of the all-reduces of all buckets, each with its own latency.
    exposed, hidden : float
        s of it by which the step gets longer, and which overlap with computing.
    step : float
        s of a step.
    efficiency, speedup, share : float
        Of p ranks, over one rank, and of the step that is spent waiting for gradients.
    server : Exchange
        The same through a parameter server.
    server_efficiency : float
        With that.
    half, most : float or None
        B/s from which the efficiency is 0.5 and 0.9; None where latency alone costs too much.
    """

    ranks: int
    exchange: Exchange
    communication: float
    exposed: float
    hidden: float
    step: float
    efficiency: float
    speedup: float
    share: float
    server: Exchange
    server_efficiency: float
    half: float | None
    most: float | None


def exchange(algorithm: str, ranks: int, nbytes: float, link: Link) -> Exchange:
    """Say what an all-reduce takes.

    Parameters
    ----------
    algorithm : str
        One of :data:`ALGORITHMS`.
    ranks : int
        So many.
    nbytes : float
        Of the vector.
    link : Link
        Of each rank, of which the latency and the bandwidth count.

    Raises
    ------
    ValueError
        If `ranks` or `algorithm` is out of range.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm {algorithm!r} given, expected one of {', '.join(ALGORITHMS)}")
    if ranks < 1:
        raise ValueError(f"{ranks} ranks given, expected 1 or more")
    formula = find("allreduce", algorithm)
    messages = round(formula.time(ranks, 1, 0, 0))
    traffic = formula.time(ranks, 0, 1, 0) * nbytes
    return Exchange(messages, traffic, messages * link.latency, traffic / link.bandwidth)


def exposed(whole: Exchange, training: Training) -> float:
    """Return by how many seconds an all-reduce in buckets makes a step longer."""
    n, backward = training.buckets, training.backward * training.compute
    seconds = whole.latency + whole.transfer / n
    over = -math.inf  # when the all-reduce before is through, from the end of the computation
    for bucket in range(1, n + 1):
        ready = backward * (bucket - n) / n
        over = max(ready, over) + seconds
    return over


def predict(training: Training, ranks: int, link: Link, algorithm: str = "ring") -> Prediction:
    """Predict a step on so many ranks.

    Raises
    ------
    ValueError
        If something is out of range, or the figures are too large to reckon with.
    """
    whole = exchange(algorithm, ranks, training.nbytes, link)
    waits = exposed(whole, training)
    communication = training.buckets * whole.latency + whole.transfer
    step = training.computing + waits
    server = exchange(STAR, ranks, training.nbytes, link)
    server_step = training.computing + exposed(server, training)
    if not math.isfinite(step + server_step + server.traffic):
        raise ValueError("these figures are too large to reckon with")
    efficiency = training.computing / step
    return Prediction(
        ranks=ranks,
        exchange=whole,
        communication=communication,
        exposed=waits,
        hidden=max(communication - waits, 0.0),
        step=step,
        efficiency=efficiency,
        speedup=ranks * efficiency,
        share=waits / step,
        server=server,
        server_efficiency=training.computing / server_step,
        half=bandwidth_for(0.5, training, whole),
        most=bandwidth_for(0.9, training, whole),
    )


def bandwidth_for(efficiency: float, training: Training, whole: Exchange) -> float | None:
    """Return the B/s from which that efficiency is reached, None if latency alone costs too much.

    At the end either the last bucket was the only one under way, or all buckets have followed one another
    without a pause; :func:`exposed` is the longer of the two. So both must be short enough.
    """
    if not whole.traffic:
        return 0.0
    n, latency = training.buckets, whole.latency
    may_wait = training.computing * (1 / efficiency - 1)
    overlap = training.backward * training.compute * (n - 1) / n
    transfer = min(n * (may_wait - latency), may_wait + overlap - n * latency)
    return whole.traffic / transfer if transfer > 0 else None


def most_ranks(efficiency: float, training: Training, link: Link, algorithm: str = "ring") -> int:
    """Return the most ranks with that efficiency at least; `MOST_RANKS` stands for that many or more.

    No algorithm is faster on more than 2^i ranks than on 2^i, nor gets faster from there to 2^(i+1) - 1.
    """

    def reached(ranks: int) -> bool:
        waits = exposed(exchange(algorithm, ranks, training.nbytes, link), training)
        return training.computing / (training.computing + waits) >= efficiency

    known = 1
    while known < MOST_RANKS and reached(2 * known):
        known *= 2
    beyond = 2 * known
    while known < MOST_RANKS and beyond - known > 1:
        middle = (known + beyond) // 2
        known, beyond = (middle, beyond) if reached(middle) else (known, middle)
    return known
