"""``mpicoll study``: a collective measured on 2, 3, 4, ... ranks, in a folder that can be gone on with."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..bench import words
from ..bench.forms import FORMS
from ..schedule.collectives import COLLECTIVES
from .bench import parse_algorithms
from .options import DTYPE, OP, RANKS, elements, start_ranks
from .program import agree, console, parsed, start_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..bench.records import Record
    from ..bench.study import Known, Settings

STRONG, WEAK = "strong", "weak"


def _algorithms(context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str] | None:
    try:
        return None if value is None else parse_algorithms(context.params["collective"], value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def parse_ranks(text: str | None) -> list[int] | None:
    """Read the option --ranks."""
    return None if text is None else sorted(words.parse_sizes(text))


@click.command("study")
@click.argument("collective", type=click.Choice(list(COLLECTIVES)), is_eager=True)  # others depend on it
@click.option(
    "-o",
    "folder",
    type=click.Path(file_okay=False),
    required=True,
    metavar="FOLDER",
    help="Where records.jsonl is, or will be: what is in it with the same settings is not measured again.",
)
@RANKS
@click.option(
    "--ranks",
    "parts",
    callback=parsed(parse_ranks),
    metavar="NUMBERS",
    show_default="2 to 8, then powers of two, and all",
    help="Numbers of ranks to measure on, as in 2,4,8 or 2:8: the first ones of the job.",
)
@click.option(
    "--scaling",
    type=click.Choice((STRONG, WEAK)),
    default=STRONG,
    show_default=True,
    help="What --sizes are of: with strong the whole vector, on any number of ranks; with weak what each "
    "rank has of it, so that on p ranks the vector is p times as long.",
)
@click.option(
    "--sizes",
    default="8:64Mi:x4",
    show_default=True,
    callback=parsed(words.parse_sizes),
    metavar="SIZES",
    help="Bytes, as in mpicoll bench. Rounded up to whole elements in each block.",
)
@click.option(
    "--algorithms",
    show_default="auto and all that make sense on so many ranks",
    callback=_algorithms,
    metavar="NAME,...",
    help="Beside native, as in mpicoll bench.",
)
@DTYPE
@OP
@click.option("--in-place", is_flag=True, help="Give the vector in the buffer of the result.")
@click.option(
    "--min-time",
    type=click.FloatRange(0, 3600, min_open=True),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="What to spend on each algorithm at each size; at least 5 samples are taken of each.",
)
@click.pass_context
def command(
    context: click.Context,
    collective: str,
    *,
    folder: str,
    ranks: int | None,
    parts: list[int] | None,
    scaling: str,
    sizes: list[int],
    algorithms: list[str] | None,
    dtype: str,
    op: str,
    in_place: bool,
    min_time: float,
) -> int:
    """Measure how a collective scales: on the first 2, 3, 4, ... ranks of the job, as mpicoll bench does.

    Ranks that do not take part wait without using a core. Each sample set is a line of JSON in
    FOLDER/records.jsonl, with all that it depends on. A study that was ended goes on when it is started
    again; other settings, another MPI library or other hosts need another folder. The root, where there is
    one, is rank 0. The exit status is 1 if a result was wrong.
    """
    form = FORMS[collective]
    for name in form.lacks():
        if name in context.params and context.get_parameter_source(name) != ParameterSource.DEFAULT:
            raise click.UsageError(f"{collective} has no --{name.replace('_', '-')}")
    if scaling == WEAK and not form.vector:
        raise click.UsageError(f"{collective} has no --scaling weak, as there is no vector")
    start_ranks(ranks)
    op = op if form.combines else ""
    element = elements(dtype, op)
    world = start_mpi()
    parts = check_ranks(parts, world.size)
    check_settings(world)

    from ..bench import study  # noqa: PLC0415 - NumPy

    parts = parts or study.default_ranks(world.size)
    settings = study.Settings(collective, parts, sizes, algorithms, element, op, in_place, min_time, scaling)
    known = _known(world, settings)
    done, problem, dropped = _resume(folder, known) if world.rank == 0 else (set(), None, 0)
    agree(world, problem)
    done = world.bcast(done)
    report = _Report(settings, folder, done, dropped) if world.rank == 0 else None
    try:
        for measured in study.study(world, settings, folder, done):
            if report:
                report.add(*measured)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    return world.bcast(report.finish() if report else None)


def check_ranks(parts: list[int] | None, world: int) -> list[int] | None:
    """Raise what is wrong with the option --ranks, or with the job."""
    if world == 1:
        raise click.UsageError("one rank has nobody to talk to: start it with -n RANKS or with mpiexec")
    for ranks in parts or ():
        if not 2 <= ranks <= world:
            raise click.UsageError(f"--ranks {ranks} given, expected 2 to {world}, the ranks of the job")
    return parts


def check_settings(world: "MPI.Intracomm") -> None:
    """Raise what is wrong with settings in the environment, while all ranks take the same way; collective."""
    from .. import Communicator  # noqa: PLC0415 - needs MPI

    try:
        Communicator(world.Dup()).Free()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _known(world: "MPI.Intracomm", settings: "Settings") -> "Known":
    """Say what records of this study have; collective."""
    from mpi4py import MPI  # noqa: PLC0415

    from .. import __version__  # noqa: PLC0415
    from ..bench.provenance import mpi_name  # noqa: PLC0415

    return settings.known(__version__, mpi_name(), world.allgather(MPI.Get_processor_name()))


def _resume(folder: str, known: "Known") -> tuple[set[Any], str | None, int]:
    """Give what is there, or why it cannot be gone on with; and the bytes of a last line that was dropped."""
    from ..bench import study  # noqa: PLC0415

    try:
        records, dropped = study.resume(folder, known)
    except OSError as error:
        return set(), f"{error.filename}: {error.strerror}", 0
    except ValueError as error:
        return set(), str(error), 0
    return study.keys(records), None, dropped


class _Report:
    """What rank 0 shows: a line for each number of ranks and size, and how long the rest will take."""

    def __init__(self, settings: "Settings", folder: str, done: set[Any], dropped: int) -> None:
        self._out = console()
        self._left = sum(len(settings.vectors(ranks)) for ranks in settings.ranks)
        self._measured, self._wrong = 0, 0
        self._begin = time.monotonic()
        self._refused: dict[str, str] = {}
        if dropped:
            self._say(f"# the last line of {folder} was half written ({dropped} bytes) and is dropped")
        if done:
            self._say(f"# {len(done)} sample sets are there and stay")
        self._say("#  ranks        size      native (us)   best (us)  ratio  algorithm")

    def add(
        self, ranks: int, size: int, records: list["Record"], refusals: list[tuple[str, int, str]]
    ) -> None:
        """Show what was measured at one size."""
        from ..bench.records import best  # noqa: PLC0415

        self._left -= 1
        for label, _, reason in refusals:
            self._refused.setdefault(label, reason)
        if not records:
            return
        self._measured += 1
        self._wrong += sum(bool(record["wrong"]) for record in records)
        native = next((record["median_us"] for record in records if record["algorithm"] == "native"), None)
        winner = next(iter(best(records)), None)
        cells = [f"{ranks:8} {words.format_size(size) if size else '-':>11}"]
        cells.append(f"{'-' if native is None else f'{native:.4g}':>16}")
        if winner:
            cells.append(
                f"{winner['median_us']:>11.4g}  {winner['ratio'] or 0:5.2f}  {winner['algorithm']:28}"
            )
        cells.append(f"{self._rest()}")
        self._say(" ".join(cells))

    def finish(self) -> int:
        """Say what was left out and what is wrong; return the exit status."""
        for label, reason in self._refused.items():
            self._say(f"# left out at some sizes or ranks: {label}: {' '.join(reason.split())}")
        if self._wrong:
            self._say(f"# {self._wrong} sample sets with wrong results")
        if not self._measured:
            self._say("# nothing to measure: all is there")
        return int(self._wrong > 0)

    def _rest(self) -> str:
        seconds = (time.monotonic() - self._begin) / self._measured * self._left
        return f"about {_duration(seconds)} left" if self._left else "done"

    def _say(self, line: str) -> None:
        self._out.print(line, soft_wrap=True)
        sys.stdout.flush()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
