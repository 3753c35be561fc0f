"""Self-consistent performance guidelines: what is promised by a library's own other calls.

What a collective does can be done by other calls of the same library, too. If these are faster, then
whoever knows may gain by calling them, and the library could have done so. So a collective should be

- no slower than a *mock-up* of it, made of other collectives, with copies on the rank if need be;
- no slower than itself with a longer vector (*monotone*);
- no slower than itself called for one part of the vector after the other (*split*); this is asked only of
  collectives whose vector has no blocks, as otherwise the parts of a part would lie apart.

All that is compared at one size is measured in one run, interleaved, on the same buffers, for the library's
own collectives and for ours alike. Scratch memory and the longer vectors are ready before a sample begins.
Whether a collective is slower is decided by a rank-sum test on the samples, one-sided; since there are many
tests, Holm's correction keeps the chance that any collective of an implementation is accused wrongly at the
level. Samples of one round resemble each other more than the test takes them to, which makes it careful.
And as a clear difference may be too small to matter, the ratio of medians must exceed a margin.

Sources: J. L. Traeff, W. D. Gropp and R. Thakur, "Self-consistent MPI performance guidelines", IEEE Trans.
Parallel Distrib. Syst. 21 (2010); S. Hunold, A. Carpen-Amarie, F. D. Luebbe and J. L. Traeff, "Automatic
verification of self-consistent MPI performance guidelines", Euro-Par 2016; H. B. Mann and D. R. Whitney, "On
a test of whether one of two random variables is stochastically larger than the other", Ann. Math. Stat. 18
(1947); S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Stat. 6 (1979).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .cases import Case
from .data import Array
from .forms import FORMS
from .records import Record
from .words import format_size

if TYPE_CHECKING:
    from mpi4py import MPI

    from .measure import Call, Timing

ROOT = 0
PARTS = 4  # of a split vector
SAMPLES = 15  # of each call at least; fewer might find nothing that stands Holm's correction
LEVEL = 0.05  # the chance of a wrong accusation, for all guidelines of an implementation together
MARGIN = 1.05  # the ratio of medians that matters

Refusal = tuple[str, int, str]  # what, size in bytes, reason


@dataclass(frozen=True)
class Comparison:
    """A collective beside what it should be no slower than.

    Attributes
    ----------
    implementation : str
        Whose it is.
    collective, other : str
        The guideline: the one should be no slower than the other.
    size : int
        Bytes of the vector; 0 if there is none.
    left, right : ndarray
        Seconds of one call: samples of the collective, and of the other.
    wrong : int
        Wrong elements that the two left.
    """

    implementation: str
    collective: str
    other: str
    size: int
    left: Array
    right: Array
    wrong: int = 0

    @property
    def guideline(self) -> str:
        """The guideline in words."""
        return f"{self.collective} <= {self.other}"

    @property
    def medians(self) -> tuple[float, float]:
        """The median seconds of both."""
        return float(np.median(self.left)), float(np.median(self.right))

    @property
    def ratio(self) -> float:
        """The median time of the collective over that of the other."""
        left, right = self.medians
        return left / right


@dataclass(frozen=True)
class Verdict:
    """What a comparison says.

    Attributes
    ----------
    comparison : Comparison
    p : float
        The chance of such samples if the collective is no slower, corrected for the number of tests.
    violated : bool
        Whether the guideline is.
    """

    comparison: Comparison
    p: float
    violated: bool

    def record(self) -> Record:
        """Describe it in one flat dict, fit for JSON."""
        one, (left, right) = self.comparison, self.comparison.medians
        return {
            "implementation": one.implementation,
            "collective": one.collective,
            "other": one.other,
            "size": one.size,
            "samples": [len(one.left), len(one.right)],
            "left_us": left * 1e6,
            "right_us": right * 1e6,
            "ratio": one.ratio,
            "p": self.p,
            "violated": self.violated,
            "wrong": one.wrong,
        }


@dataclass(frozen=True)
class Place:
    """What mock-ups work with, on one rank.

    Attributes
    ----------
    comm : MPI.Intracomm
        Whose collectives are called.
    op : MPI.Op
        For those that reduce.
    case : Case
        What is measured.
    scratch, block : ndarray
        A vector, and a rank's block of one.
    """

    comm: "MPI.Intracomm"
    op: "MPI.Op"
    case: Case
    scratch: Array
    block: Array

    def at_root_only(self, received: Array) -> Array:
        """Give a buffer for what is wanted at the root only."""
        return received if self.case.at_root else self.scratch


def _reduce_bcast(at: Place, send: Array, received: Array) -> None:
    at.comm.Reduce(send, received, at.op, ROOT)
    at.comm.Bcast(received, ROOT)


def _reduce_scatter_allgather(at: Place, send: Array, received: Array) -> None:
    at.comm.Reduce_scatter_block(send, at.block, at.op)
    at.comm.Allgather(at.block, received)


def _gather_bcast(at: Place, send: Array, received: Array) -> None:
    at.comm.Gather(send, received, ROOT)
    at.comm.Bcast(received, ROOT)


def _one_element(at: Place) -> None:
    at.comm.Allreduce(at.scratch[:1], at.block[:1], at.op)


def _scatter_allgather(at: Place, vector: Array) -> None:
    at.comm.Scatter(vector if at.case.at_root else None, at.block, ROOT)
    at.comm.Allgather(at.block, vector)


def _allgather(at: Place, send: Array, received: Array) -> None:
    at.comm.Allgather(send, at.at_root_only(received))


def _allreduce(at: Place, send: Array, received: Array) -> None:
    at.comm.Allreduce(send, at.at_root_only(received), at.op)


def _reduce_scatter_gather(at: Place, send: Array, received: Array) -> None:
    at.comm.Reduce_scatter_block(send, at.block, at.op)
    at.comm.Gather(at.block, received, ROOT)


def _reduce_scatter(at: Place, send: Array, received: Array) -> None:
    at.comm.Reduce(send, at.scratch, at.op, ROOT)
    at.comm.Scatter(at.scratch, received, ROOT)


def _bcast(at: Place, send: Array | None, received: Array) -> None:
    vector = at.scratch if send is None else send
    at.comm.Bcast(vector, ROOT)
    received[:] = vector[at.case.rank * len(received) :][: len(received)]


# Collective -> what else does the same -> how.
MOCK_UPS: dict[str, dict[str, Callable[..., None]]] = {
    "allgather": {"gather + bcast": _gather_bcast},
    "allreduce": {
        "reduce + bcast": _reduce_bcast,
        "reduce_scatter + allgather": _reduce_scatter_allgather,
    },
    "barrier": {"allreduce of one element": _one_element},
    "bcast": {"scatter + allgather": _scatter_allgather},
    "gather": {"allgather": _allgather},
    "reduce": {"allreduce": _allreduce, "reduce_scatter + gather": _reduce_scatter_gather},
    "reduce_scatter": {"reduce + scatter": _reduce_scatter},
    "scatter": {"bcast": _bcast},
}


@dataclass(frozen=True)
class Side:
    """One call of a run.

    Attributes
    ----------
    implementation : str
        Whose collectives it calls.
    other : str
        What it is, beside the collective; "" for the collective itself.
    call : callable
        Takes the buffers.
    checked : bool
        Whether its result is in them.
    """

    implementation: str
    other: str
    call: "Call"
    checked: bool = True


def compare(
    world: "MPI.Intracomm",
    implementations: "Mapping[str, MPI.Intracomm]",
    sizes: Sequence[int],
    *,
    dtype: np.dtype[Any],
    op: str = "SUM",
    min_time: float = 0.1,
    collectives: Sequence[str] = tuple(FORMS),
    tick: Callable[[float, str, int], None] | None = None,
) -> Iterator[tuple[list[Comparison], list[Refusal]]]:
    """Measure what guidelines compare, collective by collective and size by size; collective.

    Parameters
    ----------
    world : MPI.Intracomm
        A plain communicator of mpi4py.
    implementations : mapping of str to MPI.Intracomm
        By name, the communicators whose methods are compared with one another.
    sizes : sequence of int
        Bytes of the vector; rounded up to a whole number of elements in each rank's block.
    dtype, op
        Of the elements, and the name in MPI of what reduces them.
    min_time : float
        Seconds to spend on each call on average; at least `SAMPLES` are timed of each.
    collectives : sequence of str
        Which of :data:`~mpicoll.bench.forms.FORMS`.
    tick : callable, optional
        Is told which fraction is done, and of which collective and size.

    Yields
    ------
    comparisons : list of Comparison
        The same on all ranks.
    refusals : list of (str, int, str)
        What cannot be called, size in bytes, and why.
    """
    from .run import whole_elements  # noqa: PLC0415 - needs MPI, and what samples say can be told without

    lengths = sorted(whole_elements(sizes, dtype, world.size))
    runs = [
        (collective, nbytes, longer)
        for collective in collectives
        for nbytes, longer in (pairwise([*lengths, 0]) if FORMS[collective].vector else [(0, 0)])
    ]
    for index, (collective, nbytes, longer) in enumerate(runs):
        itself = _case(world, collective, nbytes, dtype, op)
        larger = _case(world, collective, longer, dtype, op) if longer else None
        told = tick and partial(_tell, tick, index, len(runs), collective, nbytes)
        yield _compared(world, _sides(implementations, itself, larger, op), itself, min_time, told)


def _case(world: "MPI.Intracomm", collective: str, nbytes: int, dtype: np.dtype[Any], op: str) -> Case:
    op = op if FORMS[collective].combines else ""
    return Case(collective, world.rank, world.size, nbytes // dtype.itemsize, dtype, op, ROOT)


def _tell(
    tick: Callable[[float, str, int], None], index: int, runs: int, collective: str, nbytes: int, part: float
) -> None:
    tick((index + part) / runs, collective, nbytes)


def _sides(
    implementations: "Mapping[str, MPI.Intracomm]", case: Case, longer: Case | None, op: str
) -> list[Side]:
    """Give the collective itself and all that it should be no slower than, of each implementation."""
    from mpi4py import MPI  # noqa: PLC0415 - see above

    from .measure import Buffers  # noqa: PLC0415 - see above

    form, combine = FORMS[case.collective], getattr(MPI, op)
    fixed = {"op": combine} if form.combines else {}
    fixed |= {"root": ROOT} if form.rooted else {}
    scratch = np.ones(max(case.count, 1), case.dtype)
    block = np.ones(max(case.count // case.size, 1), case.dtype)
    of_longer = Buffers(longer, 1).arguments(1)[0] if longer else ()
    sides = []
    for name, comm in implementations.items():
        itself = partial(getattr(comm, form.method), **fixed)
        sides.append(Side(name, "", itself))
        at = Place(comm, combine, case, scratch, block)
        for other, mock_up in MOCK_UPS.get(case.collective, {}).items():
            sides.append(Side(name, other, partial(mock_up, at)))
        if form.vector and not form.blocked and case.count >= PARTS:
            in_parts = partial(_in_parts, itself, [case.count * part // PARTS for part in range(PARTS + 1)])
            sides.append(Side(name, f"{PARTS} x {case.collective} of 1/{PARTS}", in_parts))
        if longer:
            other = f"{case.collective} of {format_size(longer.count * case.dtype.itemsize)}"
            sides.append(Side(name, other, partial(_elsewhere, itself, of_longer), checked=False))
    return sides


def _in_parts(call: "Call", edges: Sequence[int], *vectors: Array) -> None:
    for start, stop in pairwise(edges):
        call(*(vector[start:stop] for vector in vectors))


def _elsewhere(call: "Call", buffers: tuple[Any, ...], *_: Any) -> None:
    call(*buffers)


def _compared(
    world: "MPI.Intracomm",
    sides: Sequence[Side],
    case: Case,
    min_time: float,
    tick: Callable[[float], None] | None,
) -> tuple[list[Comparison], list[Refusal]]:
    nbytes = case.count * case.dtype.itemsize
    samples, wrong, refused = _measure(world, [side.call for side in sides], case, min_time, tick)
    own = {side.implementation: index for index, side in enumerate(sides) if not side.other}
    comparisons = []
    for index, side in enumerate(sides):
        left = own[side.implementation]
        if side.other and index in samples and left in samples:
            unlike = wrong[left] + (wrong[index] if side.checked else 0)
            comparisons.append(
                Comparison(
                    side.implementation,
                    case.collective,
                    side.other,
                    nbytes,
                    samples[left],
                    samples[index],
                    unlike,
                )
            )
    refusals = [
        (f"{sides[index].implementation}: {sides[index].other or case.collective}", nbytes, reason)
        for index, reason in refused.items()
    ]
    return comparisons, refusals


def _measure(
    world: "MPI.Intracomm",
    calls: "Sequence[Call]",
    case: Case,
    min_time: float,
    tick: Callable[[float], None] | None,
) -> tuple[dict[int, Array], dict[int, int], dict[int, str]]:
    """Return samples, wrong elements, and why there are none, by the number of the call."""
    from .measure import measure  # noqa: PLC0415 - see above

    labelled = {str(index): call for index, call in enumerate(calls)}
    taken: dict[str, list[Timing]] = {}
    for seed in itertools.count():
        timings, refusals = measure(
            world,
            labelled,
            case.count,
            case.dtype,
            case.op,
            collective=case.collective,
            root=ROOT,
            min_time=min_time,
            seed=seed,
            tick=tick,
        )
        for label, timing in timings.items():
            taken.setdefault(label, []).append(timing)
        # Long calls are timed a few times only, so again; the number is the same on all ranks.
        if all(sum(len(timing.samples) for timing in found) >= SAMPLES for found in taken.values()):
            break
    return (
        {int(label): np.concatenate([timing.samples for timing in found]) for label, found in taken.items()},
        {int(label): sum(timing.wrong or 0 for timing in found) for label, found in taken.items()},
        {int(label): reason for label, reason in refusals.items()},
    )


def judge(comparisons: Sequence[Comparison], margin: float = MARGIN, level: float = LEVEL) -> list[Verdict]:
    """Say which guidelines are violated, in the order given.

    Parameters
    ----------
    comparisons : sequence of Comparison
        All of each implementation: the correction is for their number.
    margin : float
        The ratio of medians that must be exceeded.
    level : float
        The chance that any guideline of an implementation which keeps them all is listed.
    """
    corrected: dict[int, float] = {}
    for name in {comparison.implementation for comparison in comparisons}:
        own = [index for index, comparison in enumerate(comparisons) if comparison.implementation == name]
        chances = [rank_sum(comparisons[index].left, comparisons[index].right) for index in own]
        corrected |= zip(own, holm(chances), strict=True)
    return [
        Verdict(comparison, corrected[index], corrected[index] <= level and comparison.ratio > margin)
        for index, comparison in enumerate(comparisons)
    ]


def rank_sum(left: Array, right: Array) -> float:
    """Return the chance of samples that are as much larger on the left, if they are of one distribution.

    The test of Wilcoxon, Mann and Whitney, one-sided, by the normal approximation with corrections for ties
    and for continuity.
    """
    n, m = len(left), len(right)
    _, place, times = np.unique(np.concatenate([left, right]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(times) - (times - 1) / 2)[place]
    larger = (
        float(ranks[:n].sum()) - n * (n + 1) / 2
    )  # pairs with the larger one on the left; ties are halves
    ties = sum(tied**3 - tied for tied in times.tolist())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    if not variance > 0:  # all the same
        return 1.0
    return math.erfc((larger - n * m / 2 - 0.5) / math.sqrt(2 * variance)) / 2


def holm(chances: Sequence[float]) -> list[float]:
    """Correct what each of many tests found.

    Where a corrected one is below some level, the chance of any such by accident is below it, too.
    """
    corrected = [0.0] * len(chances)
    largest = 0.0
    for done, index in enumerate(sorted(range(len(chances)), key=lambda index: chances[index])):
        largest = max(largest, min(1.0, (len(chances) - done) * chances[index]))
        corrected[index] = largest
    return corrected
