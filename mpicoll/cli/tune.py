"""``mpicoll tune``: a table of the best algorithms here, for MPICOLL_TUNING."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..bench import words
from ..schedule.collectives import COLLECTIVES
from ..selection import TRANSPORT, TUNING, environment
from .options import RANKS, start_ranks
from .program import agree, console, parsed, start_mpi
from .study import check_ranks, check_settings, parse_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..bench.tune import Job, Line, Outcome


def parse_collectives(text: str) -> list[str]:
    """Read the option --collectives."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name != "all" and name not in COLLECTIVES:
            raise ValueError(
                f"unknown collective {name!r}, expected all, or some of {', '.join(COLLECTIVES)}"
            )
    return list(COLLECTIVES) if "all" in names else names


@click.command("tune")
@click.option("-o", "file", type=click.Path(dir_okay=False), required=True, metavar="FILE", help="The table.")
@RANKS
@click.option(
    "--ranks",
    "parts",
    callback=parsed(parse_ranks),
    metavar="NUMBERS",
    show_default="all ranks of the job",
    help="Numbers of ranks to tune for, as in 2,4,8: the first ones of the job.",
)
@click.option(
    "--collectives",
    default="all",
    show_default=True,
    callback=parsed(parse_collectives),
    metavar="NAME,...",
    help="Those to tune.",
)
@click.option(
    "--max",
    "most",
    default="64Mi",
    show_default=True,
    callback=parsed(words.parse_size),
    metavar="SIZE",
    help="Bytes of the longest vector.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, 86400, min_open=True),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="What to spend on each collective on each number of ranks; what is being measured then ends first.",
)
def command(
    *,
    file: str,
    ranks: int | None,
    parts: list[int] | None,
    collectives: list[str],
    most: int,
    budget: float,
) -> int:
    """Find the best algorithms here and write a table that communicators choose by.

    Start it with mpiexec or with -n, as the programs that it is for; they then take MPICOLL_TUNING=FILE.

    At a few sizes everything is measured beside one another: native, what the built-in table chooses, and all
    algorithms, with float64 sums. Between neighbours with different winners it goes on by bisection, until
    they are within a factor of 1.5.

    The built-in choice stays unless another one is faster by the interval (an error of 5%) of the median
    ratio, and one of ours takes native's place only if it is faster than native likewise. At last the table
    is measured beside the built-in one at sizes between; rows that are slower there by the interval, or no
    faster on average, are dropped.

    A row is for just the ranks and nodes that it was measured on, and for vectors up to the longest measured.
    """
    if most < 8:
        raise click.UsageError(f"--max {most} given, expected 8 bytes or more")
    start_ranks(ranks)
    world = start_mpi()
    parts = check_ranks(parts, world.size) or [world.size]
    agree(world, _problem(file) if world.rank == 0 else None)
    if problem := max(world.allgather(_settings(collectives))):
        raise click.UsageError(problem)
    check_settings(world)

    from ..bench.provenance import provenance  # noqa: PLC0415 - needs MPI
    from ..bench.tune import chooses_by  # noqa: PLC0415

    about, report = provenance(world), _Report(budget)
    jobs = partial(_jobs, world, parts, collectives, most, budget, report)
    lines = [line for job in jobs() for line in job.find()]
    agree(world, _write(file, lines, about, ["Not verified yet."]) if world.rank == 0 else None)
    report.verifying()
    for job in jobs():
        if mine := job.own(lines):
            with chooses_by(job.comm, file) as tuned:
                job.verify(mine, tuned)
    agree(world, _write(file, *report.verdict(lines, about, file)) if world.rank == 0 else None)
    return 0


def _problem(file: str) -> str | None:
    """Say why the table cannot be written, before time is spent; an old one stays till there is a new one."""
    if importlib.util.find_spec("tomlkit") is None:
        return 'tune: tomlkit is not installed, which writes the table: pip install "mpicoll[study]"'
    there = os.path.exists(file)
    try:
        with open(file, "a", encoding="utf-8"):
            pass
        if not there:
            os.remove(file)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _settings(collectives: list[str]) -> str:
    """Say what in the environment would change what is compared."""
    given = environment()
    for name in (TUNING, TRANSPORT, *(f"MPICOLL_{collective.upper()}" for collective in collectives)):
        if name in given:
            return f"{name}={given[name]} is set, and would change what the built-in table chooses: unset it"
    return ""


def _jobs(
    world: "MPI.Intracomm",
    parts: list[int],
    collectives: list[str],
    most: int,
    budget: float,
    report: "_Report",
) -> Iterator["Job"]:
    """Give the jobs, one after the other, to the ranks that take part in each."""
    from ..bench.study import part  # noqa: PLC0415 - NumPy
    from ..bench.tune import Job  # noqa: PLC0415

    for ranks in parts:
        with part(world, ranks) as comm:
            if comm is not None:
                for collective in collectives:
                    tell, wrong = (partial(say, collective, ranks) for say in (report.tell, report.wrong))
                    yield Job(comm, collective, most, budget, tell, wrong)


def _write(file: str, *what: Any) -> str | None:
    from ..bench.tune import write  # noqa: PLC0415 - NumPy

    try:
        write(file, *what)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


class _Report:
    """What is shown: each outcome as it comes, then what the verification found. Rank 0's is seen."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._out = console()
        self._said: set[tuple[str, ...]] = set()

    def tell(self, collective: str, ranks: int, outcome: "Outcome", seconds: float) -> None:
        """Show what was found at one size."""
        stays = f"{outcome.winner} stays" if outcome.winner == "native" else "built-in stays"
        native = f"native {outcome.over_native}" if outcome.winner != "native" else ""
        builtin = f"built-in {outcome.over_builtin}" if outcome.change else ""
        self._say(
            f"{collective:14} {ranks:3} ranks  {words.format_size(outcome.size):>10}  "
            f"{outcome.change or stays:28} {builtin:28} {native:28} {seconds:.0f} of {self._budget:g} s"
        )

    def wrong(self, collective: str, ranks: int, label: str, size: int) -> None:
        """Say that a candidate gave wrong results, once."""
        if (collective, str(ranks), label) not in self._said:
            self._said.add((collective, str(ranks), label))
            self._say(
                f"# {collective}: {label} gave wrong results on {ranks} ranks at {size} bytes: left out"
            )

    def verifying(self) -> None:
        """Say what comes next."""
        self._say("# verifying: time of the built-in choice, and of native, over that of the table")

    def verdict(
        self, lines: list["Line"], about: dict[str, Any], file: str
    ) -> tuple[list["Line"], dict[str, Any], list[str]]:
        """Show what the verification found; give what is to be written: rows, provenance, remarks."""
        from ..bench.tune import mean  # noqa: PLC0415 - NumPy

        remarks = []
        for line in lines:
            row = line.tuned
            for check in line.checks:
                where = f"{row.collective:14} {row.ranks:3} ranks  {words.format_size(check.size):>10}"
                over = f"built-in {check.over_builtin!s:28} native {check.over_native}"
                self._say(f"{where}  {row.algorithm:28} {over}")
            if line.loses:
                remarks.append(
                    f"Dropped, as it lost where it was verified: {row.collective}, {row.algorithm}, {row}."
                )
                self._say(f"# {remarks[-1]}")
        kept = [line for line in lines if not line.loses]
        if checks := [check for line in kept for check in line.checks]:
            builtin = mean([check.over_builtin.median for check in checks])
            native = mean([check.over_native.median for check in checks])
            means = f"built-in over table {builtin:.3g}, native over table {native:.3g}"
            remarks.append(
                f"Verified at {len(checks)} size{'s'[: len(checks) != 1]}, geometric means: {means}."
            )
            self._say(f"# {remarks[-1]}")
        none = "the built-in table is as good as any here: " if not kept else ""
        self._say(f"# {none}{len(kept)} row{'s'[: len(kept) != 1]} in {file}")
        return kept, about, remarks

    def _say(self, line: str) -> None:
        self._out.print(line.rstrip(), soft_wrap=True)
        sys.stdout.flush()
