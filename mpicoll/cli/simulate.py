"""``mpicoll simulate``: what collectives would take on machines that are not here."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .. import __version__, launch
from ..bench import words
from ..bench.forms import FORMS
from ..model import files
from ..model.network import Machine
from ..schedule import algorithms as registered
from ..schedule import find
from ..schedule.collectives import COLLECTIVES
from ..schedule.registry import Algorithm
from .program import console, parsed

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.text import Text

    from ..bench.records import Record
    from ..model.program import Program
    from ..model.simulate import Simulated

IN_NETWORK = "in_network"  # a model, without a schedule
MOST_RANKS, MOST_DRAWN = 1 << 20, 64
SHORTEST = 1e-9  # s; what a message takes at least where the number of chunks is chosen
# Collectives of which each node must hear, or tell, so many vectors over its rails: the factor of busbw.
BOUNDED = ("allgather", "allreduce", "bcast", "gather", "reduce", "reduce_scatter", "scatter")

Refusal = tuple[str, int, int, str]  # algorithm, ranks, size in bytes, reason


def _ranks(text: str) -> list[int]:
    ranks = words.parse_sizes(text)
    for number in ranks:
        if not 1 <= number <= MOST_RANKS:
            raise ValueError(f"{number} ranks given, expected 1 to {MOST_RANKS}")
    return ranks


def _sizes(text: str) -> list[int]:
    """Read sizes; a range without a step multiplies by 4."""
    return words.parse_sizes(",".join(i + ":x4" if i.count(":") == 1 else i for i in text.split(",")))


def _pairs(text: str) -> dict[int, float]:
    """Read ``3=0.5,4=2``."""
    found = {}
    for item in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*([0-9]+)=([0-9.]+(?:e[+-]?[0-9]+)?)\s*", item)
        try:
            number, value = int(match[1]), float(match[2])  # type: ignore[index]
        except (TypeError, ValueError):
            raise ValueError(
                f"{item!r} given, expected a number of a rank or node and a figure, as in 3=0.5"
            ) from None
        found[number] = value
    return found


def _list_presets() -> str:
    return "Machines that are here: " + ", ".join(files.presets())


@click.command("simulate", epilog=_list_presets())
@click.argument("collective", type=click.Choice(list(COLLECTIVES)))
@click.option(
    "--machine",
    required=True,
    callback=parsed(files.read),
    metavar="FILE",
    help="A machine file, or the name of one of the machines below.",
)
@click.option(
    "--ranks",
    required=True,
    callback=parsed(_ranks),
    metavar="RANKS",
    help="Numbers, ranges a:b, a:b:xK (times K) and a:b:+K (plus K) with both ends, and commas between.",
)
@click.option(
    "--algorithm",
    "--algorithms",
    "algorithms",
    default="all",
    show_default=True,
    metavar="NAME,...",
    help="All of the collective, or some. Parameters follow a colon: two_level:inter=ring. in_network is an "
    "allreduce by switches that reduce, for machines with [switches].",
)
@click.option(
    "--sizes",
    default="8:64Mi:x4",
    show_default=True,
    callback=parsed(_sizes),
    metavar="SIZES",
    help="Bytes of the vector, written as numbers of ranks; a:b is a:b:x4.",
)
@click.option("--per-node", type=click.IntRange(1), metavar="M", help="Ranks on a node, not the machine's.")
@click.option(
    "--late",
    default="",
    callback=parsed(_pairs),
    metavar="RANK=SECONDS,...",
    help="Ranks that arrive so much later; times count from the last arrival.",
)
@click.option(
    "--slow-rank",
    "slow_ranks",
    default="",
    callback=parsed(_pairs),
    metavar="RANK=FACTOR,...",
    help="Ranks that take so many times as long for overheads and combining.",
)
@click.option(
    "--slow-node",
    "slow_nodes",
    default="",
    callback=parsed(_pairs),
    metavar="NODE=FACTOR,...",
    help="Nodes whose rails have so many times less bandwidth.",
)
@click.option("--json", type=click.Path(dir_okay=False), metavar="FILE", help="Write a record for each row.")
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help=f"Draw who sends when, as SVG: of one algorithm and size, on at most {MOST_DRAWN} ranks.",
)
@click.pass_context
def command(
    context: click.Context,
    collective: str,
    *,
    machine: Machine,
    ranks: list[int],
    algorithms: str,
    sizes: list[int],
    per_node: int | None,
    late: dict[int, float],
    slow_ranks: dict[int, float],
    slow_nodes: dict[int, float],
    json: str | None,
    timeline: str | None,
) -> None:
    """Simulate a collective on a machine that need not be here, without MPI.

    Every rank and every message of the algorithm's schedule is simulated, with the links that they share.
    Ranks fill the nodes one after the other. Where an algorithm leaves the number of chunks to the caller,
    it is the best for the machine's latency and bandwidth, unless given as in chain:chunks=16.

    algbw and busbw are those of mpicoll bench. bound is the time that the vectors which must pass a node's
    rails take at least, as a share of the time: for n nodes 2(n-1)/n vectors in an allreduce, (n-1)/n in
    allgather, reduce_scatter, gather and scatter, and 1 in bcast and reduce. Switches that reduce may pass
    it. busiest is the share of the time that the busiest link was in use.
    """
    if not FORMS[collective].vector:
        if context.get_parameter_source("sizes") != ParameterSource.DEFAULT:
            raise click.UsageError(f"{collective} has no --sizes")
        sizes = [0]
    machine = replace(machine, per_node=per_node or machine.per_node)
    fewest = min(ranks)
    _check_numbers("--late", late, fewest)
    _check_numbers("--slow-rank", slow_ranks, fewest, positive=True)
    _check_numbers("--slow-node", slow_nodes, len(machine.nodes(fewest)), positive=True)
    try:
        labels = _labels(collective, algorithms, machine)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    single = len(labels) == len(sizes) == len(ranks) == 1 and fewest <= MOST_DRAWN
    if timeline and (not single or labels == [IN_NETWORK]):
        raise click.UsageError(
            f"--timeline is for one algorithm with a schedule, one size and ranks up to {MOST_DRAWN}"
        )
    _check_targets(json, timeline)
    report = _Report(collective, machine, max(map(len, labels)), json)
    slow = {"late": late, "slow_ranks": slow_ranks, "slow_nodes": slow_nodes}
    for size in ranks:
        runs = _Runs(collective, size, machine, slow, report.bar, bool(timeline))
        for nbytes in sizes:
            report.add(*_rows(runs, labels, nbytes))
    report.finish()
    if timeline:
        title = f"{labels[0]} {collective}, {ranks[0]} ranks, {words.format_size(sizes[0])}, {machine.name}"
        _draw(timeline, runs, title)


def _labels(collective: str, text: str, machine: Machine) -> list[str]:
    """Read the option --algorithm."""
    found = []
    for item in map(str.strip, text.split(",")):
        name, parameters = words.parse_algorithm(item)
        if item == "all":
            found += [algorithm.name for algorithm in registered(collective)]
            found += [IN_NETWORK] if collective == "allreduce" and machine.switches else []
            continue
        if name != IN_NETWORK:
            find(collective, name)
        elif collective != "allreduce" or parameters:
            raise ValueError(
                f"{item} of {collective} given, but {IN_NETWORK} is an allreduce without parameters"
            )
        found.append(item)
    return list(dict.fromkeys(found))


def _check_numbers(option: str, given: dict[int, float], there: int, positive: bool = False) -> None:
    """Check that ranks or nodes are there, and their figures possible."""
    for number, value in given.items():
        if number >= there:
            raise click.UsageError(f"{option} {number}={value:g} given, expected 0 to {there - 1}")
        if not value < float("inf") or (positive and value == 0):
            least = "more than 0" if positive else "0 s or more"
            raise click.UsageError(f"{option} {number}={value:g} given, expected {least}, and finite")


def _check_targets(*paths: str | None) -> None:
    """Find out whether files can be written, before time is spent."""
    for path in filter(None, paths):
        try:
            with open(path, "w", encoding="utf-8"):
                pass
        except OSError as error:
            raise click.UsageError(f"{path}: {error.strerror}") from None


def _bound(collective: str, nbytes: int, size: int, machine: Machine) -> float | None:
    """Give the least seconds that links need for the vectors, where that is easily said."""
    if collective not in BOUNDED:
        return None
    nodes, factor = len(machine.nodes(size)), FORMS[collective].busbw
    if nodes == 1:
        return factor(size) * nbytes / machine.near.bandwidth
    return factor(nodes) * nbytes / (min(machine.rails, machine.per_node) * machine.far.bandwidth)


class _Runs:
    """Simulations on so many ranks. A schedule is written out once for all sizes that it serves."""

    def __init__(
        self,
        collective: str,
        size: int,
        machine: Machine,
        slow: dict[str, dict[int, float]],
        bar: "_Bar",
        timeline: bool,
    ) -> None:
        from ..model.simulate import Disturbance  # noqa: PLC0415 - Numba, which --help does not need

        self.collective, self.size, self.machine = collective, size, machine
        self.nodes, self.slow = machine.nodes(size), slow
        self.last: Simulated | None = None
        self._bar, self._timeline = bar, timeline
        self._programs: dict[str, tuple[dict[str, Any], Program]] = {}
        late = [slow["late"].get(rank, 0.0) for rank in range(size)] if slow["late"] else []
        self._disturbance = Disturbance(late, slow["slow_ranks"], slow["slow_nodes"])

    def run(self, label: str, nbytes: int) -> tuple["Simulated", dict[str, Any]]:
        """Simulate an algorithm; give what was found, and its parameters.

        Raises
        ------
        ValueError, MemoryError
            If it cannot be.
        """
        from ..model import in_network, simulate  # noqa: PLC0415 - see above

        name, parameters = words.parse_algorithm(label)
        if name == IN_NETWORK:
            return in_network.in_network(self.size, nbytes, self.machine, self._disturbance), {}
        algorithm = find(self.collective, name)
        if algorithm.limit is not None and nbytes > algorithm.limit:
            raise ValueError(f"{name} is for at most {words.format_size(algorithm.limit)}")
        parameters = self._with_chunks(algorithm, parameters, nbytes)
        where = f"{label}, {self.size} ranks"
        moves = self._program(label, algorithm, parameters, where)
        self._bar.say(f"{where}, {words.format_size(nbytes)}")
        found = simulate.simulate(
            moves, nbytes, self.machine, self.nodes, self._disturbance, self._timeline, self._bar.tick
        )
        self.last = found
        return found, parameters

    def _with_chunks(self, algorithm: Algorithm, given: dict[str, Any], nbytes: int) -> dict[str, Any]:
        """Choose the number of chunks, where that is for the caller to choose."""
        if not algorithm.pipelined or "chunks" in given:
            return given
        link = self.machine.far if len(self.nodes) > 1 else self.machine.near
        start = max(link.latency + 2 * link.overhead, link.gap, SHORTEST)
        best = algorithm.best_chunks(self.size, nbytes / link.bandwidth / start, nodes=self.nodes, **given)
        return given | {"chunks": min(best, max(nbytes, 1))}

    def _program(self, label: str, algorithm: Algorithm, parameters: dict[str, Any], where: str) -> "Program":
        """Write a schedule out, unless it is still there."""
        from ..model.program import program  # noqa: PLC0415 - see above

        kept = self._programs.get(label)
        if kept is None or kept[0] != parameters:
            self._programs.pop(label, None)  # first, for its memory
            self._bar.say(f"{where}: the schedule is written out")
            schedule = algorithm.schedule(self.size, nodes=self.nodes, **parameters)
            kept = self._programs[label] = parameters, program(schedule)
        return kept[1]


def _rows(runs: _Runs, labels: Sequence[str], nbytes: int) -> tuple[list["Record"], list[Refusal]]:
    """Simulate all algorithms at one size."""
    records: list[Record] = []
    refusals: list[Refusal] = []
    bound = _bound(runs.collective, nbytes, runs.size, runs.machine)
    for label in labels:
        try:
            found, parameters = runs.run(label, nbytes)
        except (ValueError, MemoryError) as error:
            refusals.append((label, runs.size, nbytes, str(error) or "there is not enough memory"))
            continue
        algbw = nbytes / found.seconds / 1e9 if found.seconds else None  # one rank takes no time
        records.append(
            {
                "collective": runs.collective,
                "algorithm": label,
                "size": nbytes,
                "parameters": parameters,
                "ranks": runs.size,
                "nodes": len(runs.nodes),
                "machine": runs.machine.name,
                "modelled": True,
                **{
                    name: {str(number): value for number, value in of.items()}
                    for name, of in runs.slow.items()
                },
                "mpicoll": __version__,
                "median_us": found.seconds * 1e6,
                "algbw_GBps": algbw,
                "busbw_GBps": algbw and algbw * FORMS[runs.collective].busbw(runs.size),
                "ratio": None,
                "bound_share": bound / found.seconds if bound is not None and found.seconds else None,
                "busiest_share": found.busiest,
                "messages": found.messages,
            }
        )
    return records, refusals


def _draw(path: str, runs: _Runs, title: str) -> None:
    from ..model.timeline import draw  # noqa: PLC0415 - NumPy, which --help does not need

    assert runs.last is not None  # or the report had ended
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(draw(runs.last, title, runs.nodes))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None


class _Bar:
    """A progress bar on a terminal, while something is simulated."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._drawn = 0.0

    def say(self, what: str) -> None:
        """Begin something whose end is not known."""
        if not launch.is_terminal("stderr"):
            return
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - for terminals only

        if self._progress is None:
            columns = TextColumn("{task.description}"), BarColumn(40)
            # Where stdout and stderr end in one terminal, they share a console, which keeps their order.
            shared = console("stdout" if launch.is_terminal("stdout") else "stderr")
            self._progress = Progress(*columns, console=shared, auto_refresh=False, transient=True)
            self._progress.add_task("", total=1.0)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], description=what, completed=0.0, refresh=True)
        self._drawn = time.monotonic()

    def tick(self, share: float) -> None:
        """Show how much is done, a few times a second."""
        if self._progress is not None and time.monotonic() > self._drawn + 0.2:
            self._progress.update(self._progress.task_ids[0], completed=share, refresh=True)
            self._drawn = time.monotonic()

    def stop(self) -> None:
        """Take the bar away, so that rows can be printed."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class _Report:
    """The table, row by row, and the file of records."""

    def __init__(self, collective: str, machine: Machine, width: int, json: str | None) -> None:
        self.bar = _Bar()
        self._heading = _heading(collective, machine, width)
        self._out, self._width, self._json = console(), width, json
        self._refusals: list[Refusal] = []
        self._begun = False

    def add(self, rows: list["Record"], refusals: list[Refusal]) -> None:
        """Show and keep what was found for some ranks and a size."""
        from ..bench import records  # noqa: PLC0415 - NumPy, which --help does not need

        self.bar.stop()
        self._refusals += refusals
        if rows and not self._begun:
            self._print(self._heading)
            self._begun = True
        best = min(rows, key=lambda row: row["median_us"], default=None)
        for row in rows:
            self._print(_line(row, self._width, row is best))
        if self._json:
            try:
                records.append(rows, self._json)
            except OSError as error:
                raise click.ClickException(f"{self._json}: {error.strerror}") from None

    def finish(self) -> None:
        """Say what was left out, and why; an error if that is everything."""
        reasons: dict[tuple[str, str], list[Refusal]] = {}
        for refusal in self._refusals:
            reasons.setdefault((refusal[0], refusal[3]), []).append(refusal)
        if not self._begun:
            raise click.UsageError("; ".join(dict.fromkeys(reason for _, reason in reasons)))
        for (label, reason), where in reasons.items():
            ranks = " and ".join(dict.fromkeys(str(refusal[1]) for refusal in where))
            self._print(f"# left out: {label} on {ranks} ranks: {' '.join(reason.split())}", style="yellow")

    def _print(self, text: object, style: str | None = None) -> None:
        self._out.print(text, style=style, soft_wrap=True)
        self._out.file.flush()


COLUMNS = "{:>8} {:>11}  {:%d} {:>12} {:>9} {:>9} {:>7} {:>8}"


def _heading(collective: str, machine: Machine, width: int) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - takes a tenth of a second, which --help does not need

    columns = COLUMNS % (width + 1)
    names = "ranks", "size", " algorithm", "time", "algbw", "busbw", "bound", "busiest"
    units = "", "(B)", "", "(us)", "(GB/s)", "(GB/s)", "(%)", "(%)"
    place = f"{machine.per_node} rank{'' if machine.per_node == 1 else 's'} a node"
    lines = (
        f"# {collective}, simulated on {machine.name}, {place}; mpicoll {__version__}\n"
        "# time: until the last rank is done; bound: the least that links allow / time; *: the best"
    )
    text = Text(lines, style="dim")
    for words_ in (names, units):
        text.append("\n#" + columns.format(*words_)[1:], style="bold")
    return text


def _line(row: "Record", width: int, best: bool) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - see above

    share, bandwidth = row["bound_share"], row["size"] > 0 and row["algbw_GBps"] is not None
    cells = (
        row["ranks"],
        row["size"] if FORMS[row["collective"]].vector else "-",
        ("*" if best else " ") + row["algorithm"],
        _digits(row["median_us"]),
        _digits(row["algbw_GBps"]) if bandwidth else "-",
        _digits(row["busbw_GBps"]) if bandwidth else "-",
        "-" if share is None else f"{100 * share:.1f}",
        f"{100 * row['busiest_share']:.1f}",
    )
    return Text((COLUMNS % (width + 1)).format(*cells), style="green" if best else "")


def _digits(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 1000 else f"{value:.1f}"
