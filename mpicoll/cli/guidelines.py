"""``mpicoll guidelines``: whether an MPI library keeps what its own other calls promise."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .. import launch
from ..bench import words
from ..bench.forms import FORMS
from .options import DTYPE, OP, RANKS, elements, start_ranks
from .program import agree, console, parsed, start_mpi

if TYPE_CHECKING:
    from mpi4py import MPI
    from rich.progress import Progress
    from rich.table import Table

    from ..bench.guidelines import Comparison, Refusal, Verdict

NATIVE, AUTO = "native", "auto"


def _implementations(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in (NATIVE, AUTO):
            raise ValueError(f"{name!r} is not one of {NATIVE}, {AUTO}")
    return list(dict.fromkeys(names))


def _collectives(text: str) -> list[str]:
    if text == "all":
        return list(FORMS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FORMS:
            raise ValueError(f"{name!r} is not one of {', '.join(FORMS)}")
    return list(dict.fromkeys(names))


def _sizes(text: str) -> list[int]:
    sizes = words.parse_sizes(text)
    if 0 in sizes:
        raise ValueError("0 bytes given, expected at least 1")
    return sizes


@click.command("guidelines")
@RANKS
@click.option(
    "--collectives",
    default="all",
    show_default=True,
    callback=parsed(_collectives),
    metavar="NAME,...",
    help="Which are checked.",
)
@click.option(
    "--sizes",
    default="8:1Mi:x4",
    show_default=True,
    callback=parsed(_sizes),
    metavar="SIZES",
    help="Bytes of the vector, as in mpicoll bench. Rounded up to whole elements in each rank's block.",
)
@click.option(
    "--algorithms",
    default=f"{NATIVE},{AUTO}",
    show_default=True,
    callback=parsed(_implementations),
    metavar="NAME,...",
    help=f"Whose collectives: {NATIVE} are the MPI library's, {AUTO} are ours, as a call gets them that asks "
    "for no algorithm.",
)
@DTYPE
@OP
@click.option(
    "--min-time",
    type=click.FloatRange(0, 3600, min_open=True),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="What to spend on each call at each size; at least 15 samples are taken of each.",
)
@click.option(
    "--margin",
    type=click.FloatRange(1, 100),
    default=1.05,
    show_default=True,
    metavar="RATIO",
    help="What the ratio of the median times must exceed.",
)
@click.option(
    "--json", "file", type=click.Path(dir_okay=False), metavar="FILE", help="Write one record for each check."
)
def command(
    ranks: int | None,
    collectives: list[str],
    sizes: list[int],
    algorithms: list[str],
    dtype: str,
    op: str,
    min_time: float,
    margin: float,
    file: str | None,
) -> int:
    """Check that collectives are no slower than what does the same, and list where they are.

    Start it with mpiexec or with -n. A collective should be no slower than

    \b
    - a mock-up of it, made of the same library's other collectives:
        allgather       gather + bcast
        allreduce       reduce + bcast; reduce_scatter + allgather
        barrier         allreduce of one element
        bcast           scatter + allgather
        gather          allgather
        reduce          allreduce; reduce_scatter + gather
        reduce_scatter  reduce + scatter
        scatter         bcast
    - the same with a longer vector, the next of --sizes;
    - the same for four parts of the vector, one after the other (unless it is made of blocks).

    Samples of all are interleaved in one run. A guideline is listed as violated where a one-sided rank-sum
    test says so, at a level of 5 % for all checks of an implementation together (Holm), and where the ratio
    of the medians exceeds the margin. p is corrected for the number of checks. The exit status is 1 only if
    results were wrong.
    """  # noqa: D301 - click wants the backspace itself
    start_ranks(ranks)
    element = elements(dtype, op)
    world = start_mpi()
    if world.size == 1 and launch.rank() is None:
        raise click.UsageError("one rank has nobody to talk to: start it with -n RANKS or with mpiexec")
    agree(world, _problem(file) if world.rank == 0 else None)

    from .. import Communicator  # noqa: PLC0415 - needs MPI
    from ..bench import guidelines, provenance  # noqa: PLC0415

    where = provenance.provenance(world) | {"dtype": dtype, "op": op, "min_time_s": min_time}
    compared: dict[str, MPI.Intracomm] = {
        name: world if name == NATIVE else Communicator(world) for name in algorithms
    }
    report = Report(where) if world.rank == 0 else None
    for comparisons, refusals in guidelines.compare(
        world,
        compared,
        sizes,
        dtype=element,
        op=op,
        min_time=min_time,
        collectives=collectives,
        tick=report.tick if report else None,
    ):
        if report:
            report.add(comparisons, refusals)
    return world.bcast(report.finish(algorithms, margin, file) if report else None)


class Report:
    """What rank 0 shows: a progress bar, and at the end what is violated.

    Parameters
    ----------
    where : dict
        What all records have.
    """

    def __init__(self, where: dict[str, Any]) -> None:
        self._out, self._where = console(), where
        self._comparisons: list[Comparison] = []
        self._refusals: list[Refusal] = []
        self._bar: Progress | None = None
        self._drawn = self._done = 0.0

    def tick(self, done: float, collective: str, size: int) -> None:
        """Draw the bar anew, a few times a second."""
        if not launch.is_terminal("stderr") or time.monotonic() < self._drawn + 0.2:
            return
        from rich.progress import Progress  # noqa: PLC0415 - where there is a bar

        self._drawn, self._done = time.monotonic(), max(self._done, done)
        if self._bar is None:
            bar_console = self._out if launch.is_terminal("stdout") else console("stderr")
            # Without rich's own thread, which would draw while a sample is timed.
            self._bar = Progress(console=bar_console, auto_refresh=False, transient=True)
            self._bar.add_task("", total=1.0)
            self._bar.start()
        what = f"{collective} {words.format_size(size) if size else ''}"
        self._bar.update(self._bar.task_ids[0], completed=self._done, description=f"{what:24}", refresh=True)

    def add(self, comparisons: "list[Comparison]", refusals: "list[Refusal]") -> None:
        """Keep what was measured in one run."""
        self._comparisons += comparisons
        self._refusals += refusals

    def finish(self, algorithms: Sequence[str], margin: float, file: str | None) -> int:
        """Show what is violated, write the records, and return the exit status."""
        from ..bench.guidelines import judge  # noqa: PLC0415 - NumPy

        if self._bar:
            self._bar.stop()
        verdicts = judge(self._comparisons, margin)
        where = self._where
        self._out.print(
            f"# guidelines: {', '.join(_many(where, what) for what in ('ranks', 'nodes', 'cores'))}; "
            f"{where['mpi']}; mpicoll {where['mpicoll']}; {where['dtype']} {where['op']}",
            style="dim",
            soft_wrap=True,
        )
        for name in algorithms:
            own = [verdict for verdict in verdicts if verdict.comparison.implementation == name]
            self._show(name, [verdict for verdict in own if verdict.violated], len(own))
        for what, size, reason in self._refusals:
            line = f"left out: {what}{_at(size)}: {' '.join(reason.split())}"
            self._out.print(line, style="yellow", soft_wrap=True)
        wrong = [comparison for comparison in self._comparisons if comparison.wrong]
        for one in wrong:
            what = f"{one.implementation}: {one.collective} or {one.other}{_at(one.size)}"
            line = f"wrong: {what}: {one.wrong} elements"
            self._out.print(line, style="bold red", soft_wrap=True)
        failure = _write(file, verdicts, where, margin) if file else None
        if failure:
            click.echo(f"mpicoll guidelines: {failure}", err=True)
        return int(bool(wrong) or failure is not None)

    def _show(self, name: str, violated: "list[Verdict]", checks: int) -> None:
        if violated:
            self._out.print(_table(violated))
        what = f"{name} ({self._where['mpi']})" if name == NATIVE else name
        line = f"{what}: {len(violated)} of {checks} checks violated"
        self._out.print(line, style="bold yellow" if violated else "bold green")


def _many(where: dict[str, Any], what: str) -> str:
    return f"{where[what]} {what if where[what] > 1 else what.rstrip('s')}"


def _at(size: int) -> str:
    return f", {words.format_size(size)}" if size else ""


def _table(violated: "list[Verdict]") -> "Table":
    """List violations, the worst of each collective first."""
    from rich.table import Table  # noqa: PLC0415 - takes a tenth of a second

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("guideline")
    for name in ("size", "left (us)", "right (us)", "ratio", "p"):
        table.add_column(name, justify="right")
    for verdict in sorted(
        violated, key=lambda verdict: (verdict.comparison.collective, -verdict.comparison.ratio)
    ):
        one = verdict.comparison
        left, right = one.medians
        table.add_row(
            one.guideline,
            words.format_size(one.size) if one.size else "-",
            f"{left * 1e6:.4g}",
            f"{right * 1e6:.4g}",
            f"{one.ratio:.2f}",
            f"{verdict.p:.1g}",
        )
    return table


def _problem(file: str | None) -> str | None:
    """Say why the records cannot be written, before time is spent."""
    try:
        if file:
            with open(file, "w", encoding="utf-8"):
                pass
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _write(file: str, verdicts: "list[Verdict]", where: dict[str, Any], margin: float) -> str | None:
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(
                json.dumps(verdict.record() | {"margin": margin} | where) + "\n" for verdict in verdicts
            )
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None
