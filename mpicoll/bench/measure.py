"""Time calls beside one another: interleaved, synchronised, checked.

One sample is a batch of calls between two readings of the clock, and counts as the time of its
slowest rank. Before the first reading all ranks meet in the native barrier. Short calls come in
batches, so that the clock and the ranks' unequal way out of the barrier weigh little: as many calls
as take about 50 us, at most 100. Samples are taken in rounds: one of each competitor, in an order that
is random and the same on all ranks. Before a sample the receive buffer is poisoned, and after it the
result is compared with one that was computed without MPI; both outside the timed part.

A batch writes its result to the same place again and again, as a program does that calls a collective
in a loop. In place that would combine results with results, so there each call of a batch has a buffer
of its own. Where a rank need not wait for all others, as in a broadcast, the calls of a batch would overlap,
and a long chain seem as fast as a tree: there a batch is one call.

A barrier has no result. Whether it keeps ranks from leaving before the last one has entered is found out
before it is timed: one rank comes late, and the others tell it that they are through.

Sources: S. Hunold and A. Carpen-Amarie, "Reproducible MPI benchmarking is still not as easy as you
think", IEEE Trans. Parallel Distrib. Syst. 27 (2016): the slowest rank, a random order, medians. The
quantities are those of nccl-tests and of the OSU benchmarks.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from ..errors import DeviceError
from .cases import Case, fill
from .data import Array
from .forms import FORMS

Call: TypeAlias = Callable[..., Any]  # takes what Buffers.arguments gives
Arguments: TypeAlias = list[tuple[Any, ...]]  # of each call of a batch

BATCH_TIME = 50e-6  # s, what a batch of short calls should take
BATCH_CALLS = 100  # at most
BATCH_BYTES = 2**18  # at most, in place
ROUNDS = 5  # at least
LATE = 0.02  # s that a rank comes late to a barrier
LATE_RANKS = 16  # at most so many do, one after the other
PATIENCE = 10.0  # s that a rank whose call was refused waits for the others


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
        Wrong elements, over all ranks and samples, or ranks that left a barrier too early; None if results
        were not checked.
    """

    samples: Array
    batch: int
    wrong: int | None


def measure(
    comm: MPI.Intracomm,
    calls: dict[str, Call],
    count: int,
    dtype: np.dtype[Any],
    op: str,
    *,
    collective: str = "allreduce",
    root: int = 0,
    in_place: bool = False,
    check: bool = True,
    min_time: float = 0.1,
    seed: int = 0,
    tick: Callable[[float], None] | None = None,
    memory: "Callable[[Case, int], Buffers] | None" = None,
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time calls of a collective beside one another; collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; its native collectives synchronise them and bring the times together.
    calls : dict of str to callable
        The competitors. Each is called with a send buffer and a receive buffer, as mpi4py takes them; in a
        broadcast with the one buffer, in a barrier with nothing.
    count, dtype, op
        The vector, and the name of the op in MPI; empty where the collective takes none.
    collective : str, optional
        What the competitors are.
    root : int, optional
        The root that they have, where there is one.
    in_place : bool, optional
        Whether the vector is given in the buffer of the result.
    check : bool, optional
        Whether to poison the receive buffer before and to check the result after every sample.
    min_time : float, optional
        Seconds to spend for each competitor on average; 5 samples of each are taken in any case.
    seed : int, optional
        Of the data and of the order of samples; the same on all ranks.
    tick : callable, optional
        Is told which fraction is done, between rounds.
    memory : callable, optional
        Makes the buffers of a case, so many to receive into; :class:`Buffers` unless given.

    Returns
    -------
    timings : dict of str to Timing
        Of the competitors that serve.
    refusals : dict of str to str
        Why the others do not.
    """
    case = Case(collective, comm.rank, comm.size, count, dtype, op, root, in_place, seed)
    most = _most_calls(case)
    buffers = (memory or Buffers)(case, most if in_place else 1)

    refusals: dict[str, str] = {}
    batches: dict[str, int] = {}
    for label, call in calls.items():
        # The first call compiles, connects and allocates; it is not timed.
        if reason := _refusal(comm, call, buffers.arguments(1)):
            refusals[label] = reason
        else:
            seconds = _estimate(comm, call, buffers.arguments(1))
            batches[label] = min(max(1, round(BATCH_TIME / seconds)), most)

    if not batches:
        return {}, refusals
    labels = list(batches)
    times: list[list[float]] = [[] for _ in labels]
    wrong = np.zeros(len(labels), np.int64)
    if check and collective == "barrier":
        wrong += [_left_early(comm, calls[label]) for label in labels]
    rng = np.random.default_rng(seed)
    with _no_garbage_collection():
        for done in _rounds(comm, min_time * len(labels)):
            if tick is not None:
                tick(done)
            for index in rng.permutation(len(labels)):
                batch = batches[labels[index]]
                arguments = buffers.arguments(batch, poisoned=check)
                times[index].append(_time(comm, calls[labels[index]], arguments))
                if check:
                    wrong[index] += buffers.count_wrong(batch)
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


def _most_calls(case: Case) -> int:
    """Return how many calls a batch may have."""
    if not FORMS[case.collective].waits:
        return 1
    nbytes = case.received * case.dtype.itemsize
    return max(1, min(BATCH_CALLS, BATCH_BYTES // nbytes)) if case.in_place else BATCH_CALLS


class Buffers:
    """A rank's buffers for the calls of a batch.

    Parameters
    ----------
    case : Case
        What is in them.
    rows : int
        Receive buffers; calls beyond these take the first one again.

    Attributes
    ----------
    send, received
        What calls are given: the send buffer, and each of the receive buffers.
    """

    def __init__(self, case: Case, rows: int) -> None:
        self._case = case
        self._send = np.empty(case.sent, case.dtype)
        self._rows = np.empty((rows, case.received), case.dtype)
        fill(self._send, case.given)
        self.send: Any = self._send
        self.received: list[Any] = list(self._rows)

    def arguments(self, calls: int, poisoned: bool = False) -> Arguments:
        """Make the receive buffers ready for a batch, and return the arguments of its calls."""
        rows = self._rows[:calls]
        for row in rows:
            self._case.reset(row, poisoned)
        return [self._one(received) for received in self.received[:calls]] * (calls // len(rows))

    def count_wrong(self, calls: int) -> int:
        """Return how many elements are wrong after a batch."""
        return sum(self._case.count_wrong(row) for row in self._rows[:calls])

    def _one(self, received: Any) -> tuple[Any, ...]:
        match self._case.collective:
            case "barrier":
                return ()
            case "bcast":
                return (received,)
            case "scatter":
                send = self.send if self._case.at_root else None
                return send, MPI.IN_PLACE if self._case.inside else received
        return MPI.IN_PLACE if self._case.inside else self.send, received


def _time(comm: MPI.Intracomm, call: Call, batch: Arguments) -> float:
    """Return this rank's seconds for one call, the mean over a batch."""
    comm.Barrier()
    begin = perf_counter()
    for arguments in batch:
        call(*arguments)
    return (perf_counter() - begin) / len(batch)


def _estimate(comm: MPI.Intracomm, call: Call, batch: Arguments) -> float:
    """Return roughly the slowest rank's seconds for one call; the same on all ranks."""
    times = [_time(comm, call, batch)]
    if comm.allreduce(times[0], MPI.MAX) < 1e-2:  # once more, less roughly
        times += [_time(comm, call, batch * 5) for _ in range(4)]
    return max(comm.allreduce(min(times), MPI.MAX), 1e-9)


def _refusal(comm: MPI.Intracomm, call: Call, batch: Arguments) -> str:
    """Make a first call; return why it is refused, or nothing.

    A call may have an attribute ``prepare``, which does all but send, and may give what to free. What it
    refuses on some ranks only is a mistake in an algorithm, and an exception on all of them. What devices
    cannot do is found out together, so it may be the call itself that refuses it.
    """
    reason = ""
    try:
        prepared = getattr(call, "prepare", call)(*batch[0])
        if prepared is not None:
            prepared.Free()
    except (ValueError, TypeError, BufferError, DeviceError, MPI.Exception) as error:
        reason = str(error) or type(error).__name__
    return _agreed(comm, reason) or _refused_together(comm, call, batch)


def _agreed(comm: MPI.Intracomm, reason: str) -> str:
    """Return why all ranks refuse a call, or nothing; raise RuntimeError where some do not."""
    reasons = comm.allgather(reason)
    if any(reasons) and not all(reasons):
        ranks = [rank for rank, reason in enumerate(reasons) if reason]
        raise RuntimeError(f"on ranks {ranks} only: {max(reasons)}")
    return max(reasons)


def _refused_together(comm: MPI.Intracomm, call: Call, batch: Arguments) -> str:
    """Call; return what all ranks say that devices lack. If only some do, the others may wait in the call."""
    refused: DeviceError | None = None
    try:
        call(*batch[0])
    except DeviceError as error:
        refused = error
    request, patience = comm.Ibarrier(), perf_counter() + PATIENCE
    while not request.Test():
        sleep(1e-4)
        if refused and perf_counter() > patience:
            raise refused
    return _agreed(comm, str(refused or ""))


def _left_early(comm: MPI.Intracomm, call: Call) -> int:
    """Return how often another rank was through a barrier that this one had not entered.

    A rank that is through says so in a message. One that is there before the last rank enters is proof;
    clocks are not compared.
    """
    early = 0
    message = np.empty(0, np.uint8)
    for late in range(0, comm.size, -(-comm.size // LATE_RANKS)):
        comm.Barrier()
        if comm.rank != late:
            call()
            comm.Send(message, late)
            continue
        came, end = 0, perf_counter() + LATE
        while perf_counter() < end:
            sleep(LATE / 100)  # the others may need the core
            while comm.Iprobe():
                comm.Recv(message)
                came += 1
        call()
        for _ in range(comm.size - 1 - came):
            comm.Recv(message)
        early += came
    return early


def _over_ranks(comm: MPI.Intracomm, values: Array, op: MPI.Op) -> Array:
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
