"""What rank 0 shows of a benchmark: a progress bar while it runs, rows as they come, files, a summary."""

import time
from collections.abc import Sequence

import click
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from .. import launch
from ..bench import plot, records, table
from ..bench.records import NATIVE, Record
from ..bench.run import Refusal
from ..bench.words import format_size
from .program import console


class Report:
    """The output of one benchmark, on rank 0.

    Parameters
    ----------
    caption : rich.text.Text
        What stands above the table.
    sizes : sequence of int
        What will be measured, in bytes.
    algorithms : sequence of str
        What will be measured beside native.
    json : str or None
        The file for the records.
    baseline : str
        What ratios are to.
    """

    def __init__(
        self,
        caption: Text,
        sizes: Sequence[int],
        algorithms: Sequence[str],
        *,
        json: str | None,
        baseline: str = NATIVE,
    ) -> None:
        self._out = console()
        self._sizes, self._algorithms, self._json, self._baseline = sizes, algorithms, json, baseline
        self._width = max(map(len, (*algorithms, NATIVE)))
        self._records: list[Record] = []
        self._refusals: list[Refusal] = []
        self._failure: str | None = None
        self._bar: Progress | None = None
        self._drawn = 0.0
        self._begin = time.monotonic()
        self._print(caption, table.heading(self._width))

    def tick(self, done: float) -> None:
        """Draw the bar anew, a few times a second; `done` counts sizes."""
        if not launch.is_terminal("stderr") or time.monotonic() < self._drawn + 0.2:
            return
        self._drawn = time.monotonic()
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(40),
                TextColumn("{task.fields[elapsed]:.0f} s"),
            )
            # Where stdout and stderr end in one terminal, a launcher does not keep their order.
            bar_console = self._out if launch.is_terminal("stdout") else console("stderr")
            # Without rich's own thread, which would draw while a sample is timed.
            self._bar = Progress(*columns, console=bar_console, auto_refresh=False, transient=True)
            self._bar.add_task("", total=len(self._sizes), elapsed=0.0)
            self._bar.start()
        size = format_size(self._sizes[min(int(done), len(self._sizes) - 1)])
        task = self._bar.task_ids[0]
        elapsed = time.monotonic() - self._begin
        self._bar.update(task, completed=done, description=f"{size:>9}", elapsed=elapsed, refresh=True)

    def add(self, rows: list[Record], refusals: list[Refusal]) -> None:
        """Show and keep what was measured at one size."""
        if self._bar:
            self._bar.stop()
            self._bar = None
        self._print(table.rows(rows, self._width))
        self._records += rows
        self._refusals += refusals
        if self._json and not self._failure:
            try:
                records.append(rows, self._json)
            except OSError as error:
                self._failure = f"{self._json}: {error.strerror}"

    def finish(self, target: str | None, alpha: float, beta: float) -> int:
        """Show the summary, draw the plot into a file if one is given, and return the exit status."""
        if self._algorithms:
            self._print(table.summary(self._records, self._baseline))
        if self._refusals:
            self._print(table.notes(self._refusals))
        if target:
            try:
                plot.plot(self._records, target, alpha, beta)
            except OSError as error:
                self._failure = f"{target}: {error.strerror}"
        if self._failure:
            click.echo(f"mpicoll bench: {self._failure}", err=True)
        wanted = [item for item in self._records if item["algorithm"] != NATIVE or not self._algorithms]
        return int(not wanted or self._failure is not None or any(item["wrong"] for item in self._records))

    def _print(self, *texts: object) -> None:
        self._out.print(*texts, sep="\n", soft_wrap=True)
        self._out.file.flush()
