"""What messages between two ranks take, within nodes and between them, while all pairs talk at once.

In a collective all links are busy both ways, and so are all cores; so are they here. A sample is a message
each way at once, by an all-gather of a Communicator of the two: what carries them carries the messages of a
schedule, too. Before a sample ranks rest, that a network which lets bursts pass can gather its strength. What
counts is the mean over all ranks that talk.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ..communicator import Communicator
from ..kernels import kernel
from ..schedule.registry import Nodes

Reals: TypeAlias = npt.NDArray[np.float64]

NEAR, FAR = "near", "far"
SHORTEST = 8  # bytes
REST = {NEAR: 0.0, FAR: 0.02}  # s before a sample
ROUNDS = 7  # at least
COMBINED = 1 << 20  # bytes of an operand


class Samples(NamedTuple):
    """What was measured on one kind of link.

    Attributes
    ----------
    pairs : int
        That talked at once.
    seconds : dict of int to ndarray
        For each size in bytes, what a message takes: a number for each sample.
    """

    pairs: int
    seconds: dict[int, Reals]


def partners(nodes: Nodes, level: str, most: int | None = None) -> dict[int, int]:
    """Pair the ranks of each node with each other, or those of every two nodes.

    Parameters
    ----------
    nodes : tuple of tuple of int
    level : str
        ``near`` or ``far``.
    most : int, optional
        Ranks of a node that talk.

    Returns
    -------
    dict of int to int
        Each rank's partner; ranks without one are left out.
    """
    if level == NEAR:
        ways = [pair for node in nodes for pair in zip(node[:most][::2], node[:most][1::2], strict=False)]
    else:
        couples = zip(nodes[::2], nodes[1::2], strict=False)
        ways = [pair for one, other in couples for pair in zip(one[:most], other[:most], strict=False)]
    return dict(ways) | {there: here for here, there in ways}


def messages(
    world: MPI.Intracomm,
    partner: dict[int, int],
    sizes: Sequence[int],
    *,
    rest: float,
    min_time: float,
    tick: Callable[[float], None] | None = None,
) -> Samples:
    """Measure messages of several sizes, interleaved in a random order; collective.

    Parameters
    ----------
    world : MPI.Intracomm
        All ranks; those without a partner only keep step.
    partner : dict of int to int
        As :func:`partners` gives it.
    sizes : sequence of int
        Bytes of a message, 8 among them.
    rest : float
        s before each sample.
    min_time : float
        s to spend on each size on average, rests included; at least 7 samples are taken.
    tick : callable, optional
        Is told which fraction is done.
    """
    rank = world.rank
    mine = partner.get(rank)
    color = MPI.UNDEFINED if mine is None else min(rank, mine)
    both = world.Split(color, rank)
    pair = None if mine is None else Communicator(MPI.Intracomm(both))
    vectors = {nbytes: np.zeros(nbytes, np.uint8) for nbytes in sizes}
    both_ways = np.empty(2 * max(sizes), np.uint8)
    times: dict[int, list[float]] = {nbytes: [] for nbytes in sizes}
    rng = np.random.default_rng(0)
    begin, rounds, done = time.perf_counter(), 0, 0.0
    while done < 1:
        for nbytes in rng.permutation(sizes).tolist():
            wait_awake(rest)
            world.Barrier()
            if pair is not None:  # ranks leave a barrier at different times, but an exchange nearly together
                pair.Allgather(vectors[SHORTEST], both_ways[: 2 * SHORTEST], algorithm="direct")
            start = time.perf_counter()
            if pair is not None:
                pair.Allgather(vectors[nbytes], both_ways[: 2 * nbytes], algorithm="direct")
            seconds = time.perf_counter() - start if pair is not None else 0.0
            times[nbytes].append(world.allreduce(seconds) / max(len(partner), 1))
        rounds += 1
        spent = (time.perf_counter() - begin) / (min_time * len(sizes))
        done = world.bcast(min(spent, rounds / ROUNDS))
        if tick is not None:
            tick(min(done, 1.0))
    if pair is not None:
        pair.Free()
    # the first round connects, and compiles
    return Samples(len(partner) // 2, {nbytes: np.array(times[nbytes][1:]) for nbytes in sizes})


def wait_awake(seconds: float) -> None:
    """Wait without sleeping, as a core that has slept takes long to do anything."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        os.sched_yield()


def combining(world: MPI.Intracomm, min_time: float, nbytes: int = COMBINED) -> Reals:
    """Measure on all ranks at once how many bytes a second they combine, of float64 sums; collective.

    Returns
    -------
    ndarray
        B/s of results, the mean over the ranks: a number for each sample.
    """
    left, right = np.ones(nbytes // 8), np.ones(nbytes // 8)
    add = kernel("SUM", left.dtype)
    rates: list[float] = []
    begin, done = time.perf_counter(), 0.0
    while done < 1:
        world.Barrier()
        start = time.perf_counter()
        add(left, left, right)
        rates.append(world.allreduce(nbytes / (time.perf_counter() - start)) / world.size)
        done = world.bcast(min((time.perf_counter() - begin) / min_time, len(rates) / ROUNDS))
    return np.array(rates[1:])


def rough_bandwidth(world: MPI.Intracomm, partner: dict[int, int], nbytes: int = 1 << 20) -> float:
    """Give the B/s of one long message, the same on all ranks; collective."""
    samples = messages(world, partner, [SHORTEST, nbytes], rest=0.0, min_time=1e-3)
    return float(nbytes / np.median(samples.seconds[nbytes]))
