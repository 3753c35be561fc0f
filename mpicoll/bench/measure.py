"""Time calls beside one another: interleaved, synchronised, checked.

One sample is a batch of calls between two readings of the clock, and counts as the time of its
slowest rank. Before the first reading all ranks meet in the native barrier. Short calls come in
batches, so that the clock and the ranks' unequal way out of the barrier weigh little: as many calls
as take about 50 us, at most 100. Samples are taken in rounds: one of each competitor, in an order that
is random and the same on all ranks. Before a sample the receive buffer is poisoned, and after it the
result is compared with one that was computed without MPI; both outside the timed part.

A batch writes its result to the same place again and again, as a program does that calls a collective
in a loop. In place that would combine results with results, so there each call of a batch has a buffer
of its own.

Sources: S. Hunold and A. Carpen-Amarie, "Reproducible MPI benchmarking is still not as easy as you
think", IEEE Trans. Parallel Distrib. Syst. 27 (2016): the slowest rank, a random order, medians. The
quantities are those of nccl-tests and of the OSU benchmarks.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from . import data

Call: TypeAlias = Callable[[Any, Any], Any]  # (sendbuf, recvbuf)
Pairs: TypeAlias = list[tuple[Any, data.Array]]  # the arguments of the calls of a batch

BATCH_TIME = 50e-6  # s, what a batch of short calls should take
BATCH_CALLS = 100  # at most
BATCH_BYTES = 2**18  # at most, in place
ROUNDS = 5  # at least


@dataclass
class Timing:
    """What was measured of one competitor.

    Attributes
    ----------
    samples : ndarray
        Seconds of one call; each is the slowest rank's mean over a batch.
    batch : int
        Calls in a batch.
    wrong : int or None
        Wrong elements, over all ranks and samples; None if results were not checked.
    """

    samples: data.Array
    batch: int
    wrong: int | None


def measure(
    comm: MPI.Intracomm,
    calls: dict[str, Call],
    count: int,
    dtype: np.dtype[Any],
    op: str,
    *,
    in_place: bool = False,
    check: bool = True,
    min_time: float = 0.1,
    seed: int = 0,
    tick: Callable[[float], None] | None = None,
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time all-reduce calls beside one another; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; its native collectives synchronise them and bring the times together.
    calls : dict of str to callable
        The competitors. Each is called with a send buffer (or ``MPI.IN_PLACE``) and a receive buffer.
    count, dtype, op
        The vector, and the name of the op in MPI.
    in_place : bool, optional
        Whether the vector is given in the receive buffer.
    check : bool, optional
        Whether to poison the receive buffer before and to check the result after every sample.
    min_time : float, optional
        Seconds to spend for each competitor on average; 5 samples of each are taken in any case.
    seed : int, optional
        Of the data and of the order of samples; the same on all ranks.
    tick : callable, optional
        Is told which fraction is done, between rounds.

    Returns
    -------
    timings : dict of str to Timing
        Of the competitors that serve.
    refusals : dict of str to str
        Why the others do not.
    """
    send = data.repeat(data.period(comm.rank, comm.size, dtype, op, seed), count)
    expected = data.repeat(data.reduced_period(comm.size, dtype, op, seed), count) if check else None
    most = max(1, min(BATCH_CALLS, BATCH_BYTES // send.nbytes)) if in_place else BATCH_CALLS
    rows = np.empty((most if in_place else 1, count), dtype)

    refusals: dict[str, str] = {}
    batches: dict[str, int] = {}
    for label, call in calls.items():
        # The first call compiles, connects and allocates; it is not timed.
        if reason := _refusal(comm, call, _prepare(send, rows, 1, in_place)):
            refusals[label] = reason
        else:
            seconds = _estimate(comm, call, _prepare(send, rows, 1, in_place))
            batches[label] = min(max(1, round(BATCH_TIME / seconds)), most)

    labels = list(batches)
    times: list[list[float]] = [[] for _ in labels]
    wrong = np.zeros(len(labels), np.int64)
    rng = np.random.default_rng(seed)
    with _no_garbage_collection():
        for done in _rounds(comm, min_time * len(labels)):
            if tick is not None:
                tick(done)
            for index in rng.permutation(len(labels)):
                batch = batches[labels[index]]
                pairs = _prepare(send, rows, batch, in_place, poisoned=check)
                times[index].append(_time(comm, calls[labels[index]], pairs))
                if expected is not None:
                    wrong[index] += sum(data.count_wrong(row, expected) for row in rows[:batch])
    slowest = _over_ranks(comm, np.array(times), MPI.MAX)
    wrong = _over_ranks(comm, wrong, MPI.SUM)
    timings = {
        label: Timing(slowest[index], batches[label], int(wrong[index]) if check else None)
        for index, label in enumerate(labels)
    }
    return timings, refusals


def _rounds(comm: MPI.Intracomm, seconds: float) -> Iterator[float]:
    """Go on until the time is over, for at least `ROUNDS` rounds; yield which fraction is done."""
    begin = perf_counter()
    rounds, done = 0, 0.0
    while done < 1:
        yield done
        rounds += 1
        done = comm.bcast(min((perf_counter() - begin) / seconds, rounds / ROUNDS))


def _prepare(send: data.Array, rows: data.Array, calls: int, in_place: bool, poisoned: bool = False) -> Pairs:
    """Return the arguments of the calls of a batch, their receive buffers made ready."""
    if in_place:
        rows[:calls] = send
        return [(MPI.IN_PLACE, row) for row in rows[:calls]]
    if poisoned:
        data.poison(rows)
    return [(send, rows[0])] * calls


def _time(comm: MPI.Intracomm, call: Call, pairs: Pairs) -> float:
    """Return this rank's seconds for one call, the mean over a batch."""
    comm.Barrier()
    begin = perf_counter()
    for send, recv in pairs:
        call(send, recv)
    return (perf_counter() - begin) / len(pairs)


def _estimate(comm: MPI.Intracomm, call: Call, pairs: Pairs) -> float:
    """Return roughly the slowest rank's seconds for one call; the same on all ranks."""
    times = [_time(comm, call, pairs)]
    if comm.allreduce(times[0], MPI.MAX) < 1e-2:  # once more, less roughly
        times += [_time(comm, call, pairs * 5) for _ in range(4)]
    return max(comm.allreduce(min(times), MPI.MAX), 1e-9)


def _refusal(comm: MPI.Intracomm, call: Call, pairs: Pairs) -> str:
    """Make a first call; return why it is refused, or nothing.

    A call may have an attribute ``prepare``, which does all but send. What it refuses on some ranks only
    is a mistake in an algorithm, and an exception on all of them.
    """
    reason = ""
    try:
        getattr(call, "prepare", call)(*pairs[0])
    except (ValueError, TypeError, BufferError, MPI.Exception) as error:
        reason = str(error) or type(error).__name__
    reasons = comm.allgather(reason)
    if any(reasons) and not all(reasons):
        ranks = [rank for rank, reason in enumerate(reasons) if reason]
        raise RuntimeError(f"on ranks {ranks} only: {max(reasons)}")
    if not any(reasons):
        call(*pairs[0])
    return max(reasons)


def _over_ranks(comm: MPI.Intracomm, values: data.Array, op: MPI.Op) -> data.Array:
    result = np.empty_like(values)
    comm.Allreduce(values, result, op)
    return result


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ping_pong(comm: MPI.Intracomm, repeats: int = 50) -> tuple[float, float]:
    """Measure what a message between the first and the last rank costs; collective.

    Returns
    -------
    alpha : float
        Seconds of the shortest message, one way.
    beta : float
        Seconds a byte of a message of 4 MiB, beyond alpha; both the same on all ranks.
    """
    alpha = _one_way(comm, 8, repeats)
    nbytes = 2**22
    return alpha, max(0.0, _one_way(comm, nbytes, repeats) - alpha) / nbytes


def _one_way(comm: MPI.Intracomm, nbytes: int, repeats: int) -> float:
    """Return half of the median round trip in seconds; the other ranks wait."""
    last, message = comm.size - 1, np.zeros(nbytes, np.uint8)
    times = []
    comm.Barrier()
    for _ in range(repeats + 5 if last and comm.rank in (0, last) else 0):  # 5 to warm up
        begin = perf_counter()
        if comm.rank == 0:
            comm.Send(message, last)
            comm.Recv(message, last)
        else:
            comm.Recv(message, 0)
            comm.Send(message, 0)
        times.append((perf_counter() - begin) / 2)
    return float(comm.bcast(np.median(times[5:]) if times else 0.0))
