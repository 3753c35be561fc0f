"""Tuning: which algorithm is best for vectors of which lengths, found by bisection, with intervals.

At a few sizes, the *anchors*, all candidates are measured beside one another: the native collective, what the
built-in table chooses, and all algorithms (:func:`contest`). Between neighbours with different winners only
those two, native and the built-in choice are measured halfway (in powers of two, then halfway on a
logarithmic scale), until the neighbours are within a factor of :data:`RESOLUTION` (:func:`search`).

**The rule.** The built-in table's choice stays unless another candidate is faster by the interval; one of
ours, moreover, takes the place of native only if it is faster than native by the interval. Where that is not
so, native takes the place of the built-in choice if it is faster than that by the interval.

**The interval** is of the median of the ratios of two candidates' times, round by round, as the samples of a
round are taken beside one another and what disturbs the machine disturbs both. It lies between two of the
sorted ratios, by the binomial distribution: nothing is assumed but that rounds are independent (W. J.
Conover, Practical Nonparametric Statistics, section 3.2). Looking again and again for an interval without 1
finds one by chance, so the k-th look has an error of :data:`ALPHA` / (k (k+1)), which adds up to ALPHA over
all looks, shared among the challengers.

Only :class:`Job` and what it uses need MPI.
"""

import functools
import heapq
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..schedule import find
from ..schedule.registry import Nodes
from ..selection import AUTO, MESSAGE, NATIVE, ON_A_NODE, ON_NODES, TUNING, Table
from ..tuning import ABOUT, FORMAT, Tuned
from .data import Array
from .forms import FORMS
from .records import Record
from .words import format_size, parse_algorithm

if TYPE_CHECKING:
    from mpi4py import MPI

ALPHA = 0.05  # of wrong verdicts in a contest, at most
LOSES = 0.1  # the same, of a single look that drops a challenger: costs a good one, but makes no claim
EQUAL = 1.02  # times within this factor are not told apart
RESOLUTION = 1.5  # of crossovers: the factor between sizes that are not bisected any more
ANCHOR = 32  # the factor between anchors
LOOKS = 4  # in which a contest's time is spent where nothing is decided before
TUNED = "tuned"  # the label of what the new table chooses

Samples: TypeAlias = dict[str, Array]  # seconds of each candidate, round by round
Sample: TypeAlias = Callable[[Sequence[str], int], Samples]  # of so many candidates, at the k-th look
More: TypeAlias = Callable[[], bool]  # whether there is time


class Ratio(NamedTuple):
    """The median ratio of two candidates' times, and the interval that it is in."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def ratio(times: Array, others: Array, alpha: float = ALPHA) -> Ratio:
    """Compare times, round by round.

    Parameters
    ----------
    times, others : ndarray, shape (rounds,)
        Seconds.
    alpha : float
        The probability that the interval misses the median. Too few rounds give one from 0 to infinity.
    """
    ratios = np.sort(times / others)
    median, rank = float(np.median(ratios)), _rank(len(ratios), alpha)
    if rank < 0:
        return Ratio(median, 0.0, math.inf)
    return Ratio(median, float(ratios[rank]), float(ratios[-1 - rank]))


@functools.lru_cache(4096)
def _rank(n: int, alpha: float) -> int:
    """Give the largest k for which ``2 P(B <= k) <= alpha``, B of n fair coins; -1 if there is none.

    In integers, as all ranks must come to the same, whatever their processors are.
    """
    bound, ways, term, k = Fraction(alpha) / 2 * 2**n, 0, 1, -1
    while (ways := ways + term) <= bound:
        k += 1
        term = term * (n - k) // (k + 1)
    return k


class Outcome(NamedTuple):
    """What was found at one size.

    Attributes
    ----------
    size : int
        Bytes of the vector.
    winner : str
        The candidate that is chosen.
    builtin : str
        The candidate that the built-in table chooses: ``"native"`` or ``"auto"``.
    rounds : int
    over_builtin, over_native : Ratio
        The built-in choice's and native's time over the winner's: above 1 the winner is faster.
    """

    size: int
    winner: str
    builtin: str
    rounds: int
    over_builtin: Ratio
    over_native: Ratio

    @property
    def change(self) -> str | None:
        """What takes the place of the built-in choice; None where that stays."""
        return None if self.winner == self.builtin else self.winner


def contest(size: int, builtin: str, challengers: Sequence[str], sample: Sample, more: More) -> Outcome:
    """Find the best candidate at one size by the rule.

    Parameters
    ----------
    size : int
        Bytes, for the outcome.
    builtin : {"auto", "native"}
        What the built-in table chooses.
    challengers : sequence of str
        The other candidates; native and the built-in choice take part in any case.
    sample : callable
        Measures candidates beside one another; leaves out those that do not serve.
    more : callable
        Whether there is time for another look.
    """
    standing = list(dict.fromkeys((builtin, NATIVE)))
    alive = [*standing, *(label for label in challengers if label not in standing)]
    rivals = max(1, len(alive) - 1)
    taken: dict[str, list[Array]] = {label: [] for label in alive}
    for look in itertools.count(1):
        for label, new in sample(alive, look).items():
            taken[label].append(new)
        alive = [label for label in alive if len(taken[label]) == look]
        if missing := [label for label in standing if label not in alive]:
            raise RuntimeError(f"at {size} bytes {' and '.join(missing)} gave no right result")
        times = {label: np.concatenate(taken[label]) for label in alive}
        compare = functools.partial(_compare, times, ALPHA / (look * (look + 1)) / rivals)
        best = min(alive, key=lambda label: float(np.median(times[label])))
        alive = [
            label
            for label in alive
            if label in (*standing, best) or _compare(times, LOSES, label, best).low <= 1
        ]
        winner = _choose(best, builtin, compare)
        decided = all(_settled(compare(label, best)) for label in alive if label != best)
        if decided or not more():
            break
    over_builtin, over_native = (compare(label, winner) for label in (builtin, NATIVE))
    return Outcome(size, winner, builtin, len(times[winner]), over_builtin, over_native)


def _compare(times: Samples, alpha: float, label: str, other: str) -> Ratio:
    return ratio(times[label], times[other], alpha)


def _choose(best: str, builtin: str, compare: Callable[[str, str], Ratio]) -> str:
    """Apply the rule to the candidate with the least median."""

    def beats(label: str, other: str) -> bool:
        return label != other and compare(other, label).low > 1

    if beats(best, builtin) and (best == NATIVE or beats(best, NATIVE)):
        return best
    return NATIVE if beats(NATIVE, builtin) else builtin


def _settled(found: Ratio) -> bool:
    """Whether another look would tell nothing new: slower, or equal."""
    return found.low > 1 or (found.low > 1 / EQUAL and found.high < EQUAL)


# -- over sizes --------------------------------------------------------------------------------


def anchors(most: int, unit: int) -> list[int]:
    """Give the sizes at which all candidates are measured: from one element in each block up to `most` bytes.

    Parameters
    ----------
    most : int
        Bytes.
    unit : int
        Bytes of which sizes are multiples; 0 where there is no vector.
    """
    if unit == 0:
        return [0]
    sizes = [8]
    while sizes[-1] * ANCHOR < most:
        sizes.append(sizes[-1] * ANCHOR)
    if len(sizes) > 1 and most / sizes[-1] < ANCHOR**0.5:
        sizes.pop()  # rather one long gap than a short one
    return sorted({max(1, -(-size // unit)) * unit for size in (*sizes, most)})


def midway(low: int, high: int, unit: int) -> int | None:
    """Give the size to measure between two, a power of two where there is one; None where they are close.

    Examples
    --------
    >>> midway(8, 2048, 8), midway(1024, 2048, 8), midway(1024, 1448, 8)
    (128, 1448, None)
    """
    if low < 1 or high <= RESOLUTION * low:
        return None
    power = 1 << (low.bit_length() + high.bit_length() - 2) // 2
    wanted = power if high > 2 * low and low < power < high else math.isqrt(low * high)
    found = max(low + unit, min(high - unit, round(wanted / unit) * unit))
    return found if low < found < high else None


def search(
    sizes: Sequence[int],
    hold: Callable[[int, Sequence[str] | None], Outcome],
    unit: int,
    more: More,
) -> list[Outcome]:
    """Find the winners at the anchors, then where one takes over from another.

    Parameters
    ----------
    sizes : sequence of int
        The anchors, in rising order.
    hold : callable
        Holds the contest at a size, among these challengers, or all.
    unit : int
        Bytes of which sizes are multiples.
    more : callable
        Whether there is time to bisect further; the widest gap is bisected first.

    Returns
    -------
    list of Outcome
        In rising order of sizes.
    """
    found = [hold(size, None) for size in sizes]
    gaps: list[tuple[float, int, Outcome, Outcome]] = []
    number = itertools.count()

    def note(low: Outcome, high: Outcome) -> None:
        if low.change != high.change and midway(low.size, high.size, unit):
            heapq.heappush(gaps, (low.size / high.size, next(number), low, high))

    for low, high in itertools.pairwise(found):
        note(low, high)
    while gaps and more():
        _, _, low, high = heapq.heappop(gaps)
        size = midway(low.size, high.size, unit)
        assert size is not None
        between = hold(size, [each.winner for each in (low, high)])
        found.append(between)
        note(low, between)
        note(between, high)
    return sorted(found, key=lambda outcome: outcome.size)


class Range(NamedTuple):
    """Lengths for which the built-in choice is not the best.

    Attributes
    ----------
    label : str
        What is.
    least, most : int
        Bytes, both included.
    outcomes : tuple of Outcome
        What was found in it.
    """

    label: str
    least: int
    most: int
    outcomes: tuple[Outcome, ...]


def ranges(outcomes: Sequence[Outcome]) -> list[Range]:
    """Give the lengths that belong to each winner, where the built-in choice does not stay.

    From 1 byte on, up to the largest size measured; to halfway, on a logarithmic scale, between sizes.
    """
    groups = [tuple(group) for _, group in itertools.groupby(outcomes, key=lambda outcome: outcome.change)]
    ends = [math.isqrt(a[-1].size * b[0].size) for a, b in itertools.pairwise(groups)]
    begins = [min(1, outcomes[0].size), *(end + 1 for end in ends)]
    return [
        Range(group[0].winner, begin, end, group)
        for group, begin, end in zip(groups, begins, [*ends, outcomes[-1].size], strict=True)
        if group[0].change
    ]


def between(row: Range, unit: int, most: int = 3) -> list[int]:
    """Give sizes in a range that were not measured, to verify at: no more than `most`, well spread."""
    measured = [outcome.size for outcome in row.outcomes]
    points = sorted({max(row.least, unit), *measured, row.most})
    middles = [round(math.sqrt(a * b) / unit) * unit for a, b in itertools.pairwise(points)]
    inside = sorted({size for size in middles if row.least <= size <= row.most and size not in measured})
    if len(inside) > most:
        inside = [inside[round(k * (len(inside) - 1) / (most - 1))] for k in range(most)]
    return inside or measured[:1]


# -- measuring ---------------------------------------------------------------------------------


@dataclass
class Check:
    """What the verification found at one size: the built-in choice's, and native's, time over the table's."""

    size: int
    over_builtin: Ratio
    over_native: Ratio

    @property
    def loses(self) -> bool:
        """Whether the table is slower than either by the interval."""
        return min(self.over_builtin.high, self.over_native.high) < 1


@dataclass
class Line:
    """A row of the table, and what speaks for it.

    Attributes
    ----------
    tuned : Tuned
        The row.
    found : Range
    checks : list of Check
        Empty until it is verified.
    """

    tuned: Tuned
    found: Range
    checks: list[Check] = field(default_factory=list)

    @property
    def loses(self) -> bool:
        """Whether it is to be dropped: slower at a size by the interval, or no faster on average."""
        over = [check.over_builtin.median for check in self.checks]
        return any(check.loses for check in self.checks) or (bool(over) and mean(over) <= 1)


def mean(ratios: Sequence[float]) -> float:
    """Give the geometric mean."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


class Clock:
    """Time that all ranks agree on, as rank 0 has it.

    Parameters
    ----------
    comm : MPI.Intracomm
    """

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self._comm, self._begin = comm, time.monotonic()

    def until(self, seconds: float) -> More:
        """Make a question: whether there is time until so many seconds from the beginning; collective."""
        return lambda: bool(self._comm.bcast(time.monotonic() - self._begin < seconds))

    def now(self) -> float:
        """Give the seconds since the beginning; collective."""
        return float(self._comm.bcast(time.monotonic() - self._begin))


def sampler(
    comm: "MPI.Intracomm",
    calls: dict[str, Any],
    collective: str,
    size: int,
    seconds: float,
    wrong: Callable[[str, int], None],
) -> Sample:
    """Make what measures candidates at a size; each look takes so many seconds, or five rounds; collective.

    The first look checks results; who is wrong is left out from then on, and `wrong` is told.
    """
    from .measure import measure  # noqa: PLC0415 - needs MPI

    dtype, op = np.dtype("float64"), "SUM" if FORMS[collective].combines else ""
    bad: set[str] = set()

    def sample(labels: Sequence[str], look: int) -> Samples:
        taking_part = {label: calls[label] for label in labels}
        timings, _ = measure(
            comm,
            taking_part,
            size // dtype.itemsize,
            dtype,
            op,
            collective=collective,
            check=look == 1,
            min_time=seconds / len(labels),
            seed=look,
        )
        for label in [label for label, timing in timings.items() if timing.wrong]:
            bad.add(label)
            wrong(label, size)
        return {label: timing.samples for label, timing in timings.items() if label not in bad}

    return sample


def _plain(calls: dict[str, Any]) -> dict[str, Any]:
    """Leave out what finds out whether a call serves: that is known here, and takes longer than a call."""
    return {label: functools.partial(call.func, *call.args, **call.keywords) for label, call in calls.items()}


def variants(collective: str, nodes: Nodes) -> list[str]:
    """Name the candidates that the built-in table for such nodes has, other than algorithms by themselves."""
    size = sum(map(len, nodes))
    table: Table = ON_A_NODE if len(nodes) == 1 else ON_NODES if len(nodes) < size else {}
    labels = []
    for row in table.get(collective, ()):
        settings = [f"{name}={value}" for name, value in row.parameters]
        if row.transport == MESSAGE and row.algorithm != NATIVE:
            settings.append(f"transport={MESSAGE}")
        if settings and find(collective, row.algorithm).serves(size):
            labels.append(":".join((row.algorithm, *settings)))
    return list(dict.fromkeys(labels))


class Job:
    """The tuning of one collective on one number of ranks.

    Parameters
    ----------
    comm : MPI.Intracomm
        A plain communicator of these ranks.
    collective : str
    most : int
        Bytes of the longest vector.
    budget : float
        Seconds: at most 0.45 of them for the anchors, 0.35 for bisection, 0.2 for the verification. A
        measurement that has begun ends, of at least five rounds.
    tell : callable
        Is told each outcome and the seconds until then, on all ranks.
    wrong : callable
        Is told the candidates with wrong results, and the size.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        collective: str,
        most: int,
        budget: float,
        tell: Callable[[Outcome, float], None],
        wrong: Callable[[str, int], None],
    ) -> None:
        from .. import Communicator, topology  # noqa: PLC0415 - needs MPI
        from .run import competitors  # noqa: PLC0415
        from .study import sensible  # noqa: PLC0415

        self.comm, self._collective, self._budget = comm, collective, budget
        self._tell, self._wrong = tell, wrong
        form = FORMS[collective]
        self.unit = 8 * form.blocks(comm.size) if form.vector else 0
        self._anchors = anchors(most, self.unit)
        self._nodes = topology.nodes(comm)
        self._labels = [*sensible(collective, self._nodes), *variants(collective, self._nodes)]
        self._op = "SUM" if form.combines else ""
        self._ours = Communicator(comm)
        self._calls = _plain(competitors(comm, self._labels, self._op, collective=collective))

    def find(self) -> list[Line]:
        """Search; collective."""
        clock = Clock(self.comm)
        anchor = 0.45 * self._budget / len(self._anchors)

        def hold(size: int, challengers: Sequence[str] | None) -> Outcome:
            begin, most = clock.now(), anchor if challengers is None else 0.05 * self._budget
            sample = sampler(self.comm, self._calls, self._collective, size, most / LOOKS, self._wrong)
            builtin, others = self._candidates(size, self._labels if challengers is None else challengers)
            outcome = contest(size, builtin, others, sample, clock.until(begin + most))
            self._tell(outcome, clock.now())
            return outcome

        outcomes = search(self._anchors, hold, self.unit, clock.until(0.8 * self._budget))
        return [Line(self._row(found), found) for found in ranges(outcomes)]

    def own(self, lines: Sequence[Line]) -> list[Line]:
        """Give the lines of this collective on so many ranks."""
        mine = self._collective, self.comm.size
        return [line for line in lines if (line.tuned.collective, line.tuned.ranks) == mine]

    def verify(self, lines: Sequence[Line], tuned: Any) -> None:
        """Measure what the table chooses beside the built-in choice and native, at sizes between; collective.

        Parameters
        ----------
        lines : sequence of Line
            Of this collective on so many ranks; what is found is noted in them.
        tuned : Communicator
            One that chooses by the table.
        """
        sizes = [between(line.found, self.unit) for line in lines]
        seconds = 0.2 * self._budget / max(1, sum(map(len, sizes)))
        calls = {**self._calls, TUNED: self._tuned_call(tuned)}
        for line, of_line in zip(lines, sizes, strict=True):
            for size in of_line:
                sample = sampler(self.comm, calls, self._collective, size, seconds, self._wrong)
                times = sample([TUNED, AUTO, NATIVE], 1)
                if len(times) == 3:
                    over = [ratio(times[label], times[TUNED]) for label in (AUTO, NATIVE)]
                    line.checks.append(Check(size, *over))

    def _tuned_call(self, tuned: Any) -> Any:
        from .run import competitors  # noqa: PLC0415

        return _plain(competitors(tuned, [AUTO], self._op, collective=self._collective))[AUTO]

    def _candidates(self, size: int, labels: Sequence[str]) -> tuple[str, list[str]]:
        """Give the built-in choice at a size, and those candidates that are not the same."""
        found: dict[tuple[Any, ...], str] = {}
        for label in (AUTO, *labels):  # AUTO first: it stands for what it chooses
            if what := self._choice(size, label):
                found.setdefault(what, label)
        builtin = NATIVE if (NATIVE, "", ()) in found else AUTO
        return builtin, [label for label in found.values() if label not in (AUTO, NATIVE)]

    def _choice(self, size: int, label: str) -> tuple[Any, ...]:
        """Give the algorithm, transport and parameters of a candidate at a size; () if it does not serve."""
        name, parameters = parse_algorithm(label)
        try:
            choice = self._ours.choice(self._collective, size, algorithm=name, **parameters)
        except ValueError:
            return ()
        native = choice.algorithm == NATIVE
        return choice.algorithm, "" if native else choice.transport, choice.parameters

    def _row(self, found: Range) -> Tuned:
        """Write a winner as a row of a table."""
        where = self._collective, self.comm.size, len(self._nodes), found.least, found.most
        if found.label == NATIVE:
            return Tuned(*where, NATIVE)
        return Tuned(*where, *self._choice(found.outcomes[0].size, found.label))


@contextmanager
def chooses_by(comm: "MPI.Intracomm", file: str) -> Iterator[Any]:
    """Give a communicator of the same ranks that chooses by a table; collective."""
    from .. import Communicator  # noqa: PLC0415 - needs MPI

    os.environ[TUNING] = file
    try:
        tuned = Communicator(comm.Dup())
    finally:
        del os.environ[TUNING]
    yield tuned
    tuned.Free()


# -- the table ---------------------------------------------------------------------------------

HEAD = """\
Written by mpicoll tune. MPICOLL_TUNING=FILE lets communicators choose by it.
A row is for just so many ranks on so many nodes, and for vectors of `bytes`, both ends included.
Where no row fits, the built-in table decides.
Ratios: the built-in choice's, or native's, median time over this row's, more is better, and the interval
that the median is in."""


def write(file: str, lines: Sequence[Line], about: Record, remarks: Sequence[str]) -> None:
    """Write a table.

    Parameters
    ----------
    file : str
    lines : sequence of Line
        Its rows.
    about : dict
        The provenance.
    remarks : sequence of str
        Comments at the top.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    import tomlkit  # noqa: PLC0415 - an extra

    document = tomlkit.document()
    for text in (*HEAD.splitlines(), *remarks):
        document.add(tomlkit.comment(text))
    document.add("format", tomlkit.item(FORMAT))
    measured = tomlkit.table()
    for name in ("time", "mpicoll", "mpi", "hosts", "nodes", "ranks", "cores", "python", "command"):
        measured.add(name, about[name])
    document.add(ABOUT, measured.add("dtype", "float64").add("op", "SUM"))
    for collective in dict.fromkeys(line.tuned.collective for line in lines):
        rows = tomlkit.aot()
        for line in lines:
            if line.tuned.collective == collective:
                rows.append(_table(line))
        document.add(collective, rows)
    with open(file, "w", encoding="utf-8") as opened:
        opened.write(tomlkit.dumps(document))


def _table(line: Line) -> Any:
    """Give a row as TOML, with what speaks for it."""
    import tomlkit  # noqa: PLC0415

    row, table = line.tuned, tomlkit.table()
    length = tomlkit.item([row.least, row.most])
    if row.most >= 1024:
        length.comment(f"to {format_size(row.most)}")
    table.add("ranks", row.ranks).add("nodes", row.nodes).add("bytes", length).add("algorithm", row.algorithm)
    if row.algorithm != NATIVE:
        table.add("transport", row.transport)
    if row.parameters:
        parameters = tomlkit.inline_table()
        parameters.update(dict(row.parameters))
        table.add("parameters", parameters)
    for outcome in line.found.outcomes:
        text = f"{_size(outcome.size)}built-in {outcome.over_builtin}, native {outcome.over_native}"
        table.add(tomlkit.comment(f"{text}, {outcome.rounds} rounds"))
    for check in line.checks:
        text = f"{_size(check.size)}built-in {check.over_builtin}, native {check.over_native}"
        table.add(tomlkit.comment(f"verified {text}"))
    table.add(tomlkit.nl())
    return table


def _size(nbytes: int) -> str:
    return f"at {format_size(nbytes)}: " if nbytes else ""
