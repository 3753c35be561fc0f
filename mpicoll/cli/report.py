"""``mpicoll report``: studies as one page, figures and tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import launch
from .program import console

if TYPE_CHECKING:
    from ..model.network import Machine
    from ..report.data import Study
    from ..report.figures import Figure
    from ..report.tables import Table

MACHINE = "machine.toml"  # in a study's folder, from mpicoll fit


@click.command("report")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STUDY...")
@click.option(
    "-o",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The page, HTML.",
)
@click.option(
    "--machine",
    metavar="FILE|PRESET",
    help="Model all studies on this machine; otherwise each on the machine.toml in its folder, if any.",
)
@click.option(
    "--figures",
    "pictures",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each figure as PNG and SVG, too.",
)
@click.option(
    "--tables",
    "texts",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each table as CSV and LaTeX, too.",
)
def command(
    folders: tuple[Path, ...], file: Path, machine: str | None, pictures: Path | None, texts: Path | None
) -> None:
    """Make one page of studies, which opens anywhere without a network.

    It has time, bus bandwidth and efficiency over sizes and ranks, a map of the best algorithms, where they
    cross over, and what ran where. With a machine every algorithm is modelled, too, on up to 8 times as many
    ranks as were measured.
    """
    try:
        import altair  # noqa: F401, PLC0415 - optional dependencies
        import vl_convert  # noqa: F401, PLC0415
    except ImportError as error:
        raise click.UsageError(f'{error.name} is missing: pip install "mpicoll[study]"') from None
    from ..model import files  # noqa: PLC0415 - these take a second
    from ..report.data import studies  # noqa: PLC0415
    from ..report.figures import figures  # noqa: PLC0415
    from ..report.page import page  # noqa: PLC0415
    from ..report.tables import tables  # noqa: PLC0415

    try:
        given = None if machine is None else files.read(machine)
        found = studies(folders)
        besides = [study.folder / MACHINE for study in found]
        machines = [given or (files.read(path) if path.exists() else None) for path in besides]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        for folder in filter(None, (pictures, texts)):
            folder.mkdir(parents=True, exist_ok=True)
        file.parent.stat()  # before time is spent
        for study, on in zip(found, machines, strict=True):
            _model(study, on)
        parts = [(study, figures(study), tables(study)) for study in found]
        file.write_text(page(_title(found), parts), encoding="utf-8")
        for study, drawn, written in parts:
            if pictures:
                _draw(pictures, study, drawn)
            if texts:
                _write(texts, study, written)
    except OSError as error:
        raise click.UsageError(f"{error.filename or file}: {error.strerror}") from None


def _model(study: "Study", machine: "Machine | None") -> None:
    """Add what a machine's model says, if there is one."""
    from ..report.modelled import add_model  # noqa: PLC0415

    if machine is not None:
        with _bar(f"modelling {study.title}") as tick:
            add_model(study, machine, tick)


def _title(found: "Sequence[Study]") -> str:
    collectives = dict.fromkeys(study.collective for study in found)
    return f"How {', '.join(collectives)} scale{'s' if len(collectives) == 1 else ''}"


def _draw(folder: Path, study: "Study", drawn: "Sequence[Figure]") -> None:
    from ..report.pictures import png, svg  # noqa: PLC0415

    specs = {name: spec for figure in drawn for name, spec in figure.on_paper()}
    with _bar(f"drawing {study.title}") as tick:
        for number, (name, spec) in enumerate(specs.items(), 1):
            picture = svg(spec)
            (folder / f"{study.slug}_{name}.svg").write_text(picture, encoding="utf-8")
            (folder / f"{study.slug}_{name}.png").write_bytes(png(picture))
            if tick is not None:
                tick(number / len(specs))


def _write(folder: Path, study: "Study", written: "Sequence[Table]") -> None:
    from ..report.tables import latex, write_csv  # noqa: PLC0415

    for table in written:
        write_csv(table, folder / f"{study.slug}_{table.name}.csv")
        (folder / f"{study.slug}_{table.name}.tex").write_text(latex(table), encoding="utf-8")


@contextmanager
def _bar(title: str) -> Iterator[Callable[[float], None] | None]:
    """Show on a terminal how much is done."""
    if not launch.is_terminal("stderr"):
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(30), TimeRemainingColumn()
    with Progress(*columns, console=console("stderr"), transient=True) as progress:
        task = progress.add_task(title, total=1)
        yield lambda part: progress.update(task, completed=part)
