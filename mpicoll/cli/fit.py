"""``mpicoll fit``: a machine file from measurements."""

import os
import time
from typing import TYPE_CHECKING, Any

import click

from .. import launch
from .program import agree, console, start_mpi

if TYPE_CHECKING:
    from ..bench.fitting import Findings

UNITS = {"latency": ("us", 1e6), "bandwidth": ("GB/s", 1e-9), "burst": ("KB", 1e-3), "peak": ("GB/s", 1e-9)}
LEVELS = {"near": "within a node", "far": "between nodes"}


@click.command("fit")
@click.option(
    "-o", "file", type=click.Path(dir_okay=False), metavar="FILE", required=True, help="The machine file."
)
@click.option("--name", default="", help="What the machine is called in it.")
@click.option(
    "--min-time",
    type=click.FloatRange(0, 3600, min_open=True),
    default=0.3,
    show_default=True,
    metavar="SECONDS",
    help="What to spend on each size of message; at least 7 samples are taken of each.",
)
def command(file: str, name: str, min_time: float) -> int:
    """Measure this machine, and write what models need into a file.

    Start it with mpiexec. Ranks send each other messages, in pairs that all talk at once, within each node
    where it has two ranks, and between every two nodes; and all ranks combine. Latency and bandwidth, with
    95 % intervals of confidence, are fitted to the times, and where a network lets a burst pass after a rest,
    the burst. Take as many ranks as will run: where they share cores, messages take longer.
    """
    world = start_mpi()
    if world.size == 1:
        raise click.UsageError("one rank has nobody to talk to: start it with mpiexec and two ranks or more")
    agree(world, _problem(file) if world.rank == 0 else None)
    from ..bench import fitting, provenance  # noqa: PLC0415 - need MPI

    where = provenance.provenance(world)
    progress = _Progress() if world.rank == 0 else None
    findings = fitting.measure(world, min_time, progress.tick if progress else None)
    failure = None
    if findings is not None:
        assert progress is not None
        progress.stop()
        _show(findings)
        failure = _write(findings, file, name, where)
    agree(world, failure)
    return 0


def _problem(file: str) -> str | None:
    """Say what keeps the file from being written, before time is spent; one that is there stays as it is."""
    try:
        import scipy  # noqa: F401, PLC0415 - an extra
        import tomlkit  # noqa: F401, PLC0415
    except ImportError as error:
        return f'{error.name} is missing: pip install "mpicoll[study]"'
    new = not os.path.exists(file)
    try:
        with open(file, "a", encoding="utf-8"):
            pass
        if new:
            os.remove(file)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None


def _write(findings: "Findings", file: str, name: str, where: dict[str, Any]) -> str | None:
    from dataclasses import replace  # noqa: PLC0415 - rank 0 alone

    from ..model import files  # noqa: PLC0415

    source = f"mpicoll fit, {where['ranks']} ranks on {where['nodes']} nodes, {where['mpi']}, {where['time']}"
    machine = replace(findings.machine, name=name or ", ".join(where["hosts"][:3]), source=source)
    try:
        files.write(machine, file, {"fit": where | findings.record()})
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None


def _show(findings: "Findings") -> None:
    from rich.table import Table  # noqa: PLC0415 - rank 0 alone

    table = Table(box=None, pad_edge=False)
    for column in ("", "", "fitted", "95 % interval", "unit"):
        table.add_column(column, justify="left" if column in ("", "unit") else "right")
    for level, fitted in findings.links.items():
        pairs = findings.samples[level].pairs
        for number, (figure, ends) in enumerate(fitted.intervals.items()):
            unit, scale = UNITS[figure]
            value, low, high = (scale * x for x in (getattr(fitted.link, figure), *ends))
            title = f"{LEVELS[level]}, {pairs} pair{'s' * (pairs > 1)} at once" if number == 0 else ""
            table.add_row(title, figure, f"{value:.4g}", f"{low:.4g} to {high:.4g}", unit)
        table.add_row("", "worst size", f"{100 * fitted.worst:.1f}", "", "% off")
    value, low, high = (1e-9 * rate for rate in findings.combine)
    table.add_row("each rank", "combines", f"{value:.4g}", f"{low:.4g} to {high:.4g}", "GB/s")
    machine = findings.machine
    if machine.rails > 1:
        table.add_row("a node", "rails", str(machine.rails), "", "")
    if machine.memory < float("inf"):
        table.add_row("a node", "memory", f"{1e-9 * machine.memory:.4g}", "", "GB/s")
    out = console()
    out.print(table)
    for level, title in LEVELS.items():
        if level not in findings.links:
            out.print(f"{title}: not measured, as no two ranks are so; the other figures stand there")


class _Progress:
    """A line that says what is measured."""

    def __init__(self) -> None:
        self._drawn = 0.0
        self._terminal = launch.is_terminal("stderr")

    def tick(self, level: str, part: float) -> None:
        if self._terminal and time.monotonic() > self._drawn + 0.2:
            self._drawn = time.monotonic()
            click.echo(f"\r{LEVELS[level]}: {100 * part:3.0f} %", nl=False, err=True)

    def stop(self) -> None:
        if self._drawn:
            click.echo("\r" + " " * 30 + "\r", nl=False, err=True)
