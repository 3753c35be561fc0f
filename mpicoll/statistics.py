"""What collectives a program called, and what ran them: for ``python -m mpicoll run --report``.

Nothing is recorded until :func:`start`. Each rank keeps its own tally, and rank 0 gathers them at the end.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI
    from rich.table import Table

NATIVE = "native"
NOT_PLAIN = "not plain"  # how the reason begins where a call has to be native

# method, algorithm, reason -> calls, bytes, seconds
Tally = dict[tuple[str, str, str], tuple[int, int, float]]


class Statistics:
    """The calls of one rank; any of its threads may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tally: Tally = {}

    def record(self, method: str, algorithm: str, nbytes: int, seconds: float, reason: str = "") -> None:
        """Add one call.

        Parameters
        ----------
        method : str
            mpi4py's name of it, such as ``"Iallreduce"``; ``"Allreduce_init"`` for each start of one.
        algorithm : str
            The schedule that ran, with the route of device memory, or ``"native"``.
        nbytes : int
            Length of this rank's vector, in bytes.
        seconds : float
            What the call took on this rank.
        reason : str
            Why the native collective served. It begins with ``"not plain"`` for derived datatypes.
        """
        key = method, algorithm, reason
        with self._lock:
            calls, total, took = self._tally.get(key, (0, 0, 0.0))
            self._tally[key] = calls + 1, total + nbytes, took + seconds

    def tally(self) -> Tally:
        """Return calls, bytes and seconds so far, for each method, algorithm and reason."""
        with self._lock:
            return dict(self._tally)

    def gathered(self, comm: "MPI.Intracomm") -> dict[str, Any] | None:
        """Gather what all ranks recorded, collectively.

        Returns
        -------
        dict or None
            What :func:`summary` makes of it, on rank 0; None on the others.
        """
        tallies = comm.gather(self.tally())
        return None if tallies is None else summary(tallies)


active: Statistics | None = None  # what calls are recorded in; None for nothing


def start() -> Statistics:
    """Record from now on, from nothing."""
    global active  # noqa: PLW0603 - the one name that a call looks at
    active = Statistics()
    return active


def summary(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Add up the tallies of all ranks.

    Parameters
    ----------
    tallies : sequence of Tally
        One for each rank.

    Returns
    -------
    dict
        Fit for JSON. ``ranks``; ``calls`` on buffers of plain types, of all ranks; ``ours``, those of them
        that ran a schedule; ``not_plain``, the calls on anything else; and ``methods``: for each its
        ``calls`` and ``bytes`` on all ranks, the ``seconds`` of the rank where they took longest, the calls
        of each of its ``algorithms``, and those for each of its ``reasons`` to go native.
    """
    calls = [(key, count) for tally in tallies for key, (count, _, _) in tally.items()]
    plain = [(key, count) for key, count in calls if not key[2].startswith(NOT_PLAIN)]
    return {
        "ranks": len(tallies),
        "calls": sum(count for _, count in plain),
        "ours": sum(count for (_, algorithm, _), count in plain if algorithm != NATIVE),
        "not_plain": sum(count for _, count in calls) - sum(count for _, count in plain),
        "methods": {
            name: _method([_of(name, tally) for tally in tallies])
            for name in sorted({method for (method, _, _), _ in calls})
        },
    }


def _of(name: str, tally: Tally) -> Tally:
    return {key: sums for key, sums in tally.items() if key[0] == name}


def _method(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Add up one method's."""
    algorithms: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for tally in tallies:
        for (_, algorithm, reason), (calls, _, _) in tally.items():
            algorithms[algorithm] += calls
            if algorithm == NATIVE:
                reasons[reason] += calls
    return {
        "calls": algorithms.total(),
        "bytes": sum(nbytes for tally in tallies for _, nbytes, _ in tally.values()),
        "seconds": max(sum(seconds for _, _, seconds in tally.values()) for tally in tallies),
        "algorithms": dict(algorithms.most_common()),
        "reasons": dict(reasons.most_common()),
    }


def table(found: dict[str, Any]) -> "Table":
    """Show a summary's methods, a line for each."""
    from rich import box, filesize  # noqa: PLC0415 - rank 0's alone
    from rich.table import Table  # noqa: PLC0415

    ranks = f"{found['ranks']} rank{'s' if found['ranks'] > 1 else ''}"
    shown = Table(
        title=f"Collectives: calls and bytes of {ranks}, time of the slowest",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("method", "calls", "bytes", "time (s)", "algorithms", "why native"):
        shown.add_column(heading, justify="right" if heading in ("calls", "bytes", "time (s)") else "left")
    for name, method in found["methods"].items():
        shown.add_row(
            name,
            str(method["calls"]),
            filesize.decimal(method["bytes"]),
            f"{method['seconds']:.3f}",
            _counts(method["algorithms"]),
            _counts(method["reasons"]),
        )
    return shown


def _counts(counts: dict[str, int]) -> str:
    return "\n".join(f"{count} {what}" for what, count in counts.items())


def verdict(found: dict[str, Any]) -> str:
    """Say which part of the calls ran schedules, and first of all whether there are others."""
    calls, ours, others = found["calls"], found["ours"], found["not_plain"]
    share = f" ({100 * ours / calls:.1f} %)" if calls else ""
    line = f"{ours} of {calls} intracommunicator collective calls on buffers{share} ran mpicoll's schedules"
    apart = f"{others} calls on derived datatypes are counted apart\n"
    return apart + line if others else line
