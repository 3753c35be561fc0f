"""The tables of a study: for the page, as CSV and as LaTeX."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..model.network import INF, Machine
from .data import MEASURED, Study
from .units import format_bandwidth, format_size, format_time
from .winners import Reign, reigns

_SPECIAL = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\u00b5": r"\textmu{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_UNITS = {
    **dict.fromkeys(("latency", "overhead", "gap", "hop"), format_time),
    **dict.fromkeys(("bandwidth", "memory", "combine"), format_bandwidth),
    "eager": format_size,
}
_WORDS = {
    "near": "within a node",
    "far": "between nodes",
    "per_node": "ranks of a node",
    "combine": "combining",
}
_PROVENANCE = (
    *("mpi", "mpi_library", "mpi_abi", "hosts", "cores", "world", "machine", "device"),
    *("mpicoll", "python", "numpy", "numba", "mpi4py", "min_time_s", "time", "command"),
)


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes
    ----------
    name, title, about : str
        For files, for people, and what they must know to read it.
    columns : sequence of str
    rows : list of sequence of str
    open : bool
        Whether the page shows it at once.
    """

    name: str
    title: str
    about: str
    columns: Sequence[str]
    rows: list[Sequence[str]]
    open: bool = True


def tables(study: Study) -> list[Table]:
    """Make all tables of a study, after its figures, which add to the rows."""
    found = [_crossovers(study), _provenance(study)]
    if study.machine is not None:
        found.insert(1, _machine(study.machine))
    return [*found, _results(study)]


def write_csv(table: Table, path: Path) -> None:
    """Write a table as CSV. Raises OSError if it cannot be written."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([table.columns, *table.rows])


def latex(table: Table) -> str:
    """Give a table in LaTeX, for the packages booktabs and longtable."""
    lines = (" & ".join(map(_escaped, cells)) + r" \\" for cells in table.rows)
    heading = " & ".join(map(_escaped, table.columns)) + r" \\"
    return "\n".join(
        (
            f"% {table.title}; needs the packages booktabs and longtable",
            rf"\begin{{longtable}}{{{'l' * len(table.columns)}}}",
            r"\toprule",
            heading,
            r"\midrule",
            r"\endhead",
            *lines,
            r"\bottomrule",
            r"\end{longtable}",
            "",
        )
    )


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(mark, mark) for mark in text)


def _crossovers(study: Study) -> Table:
    size = "bytes a rank" if study.weak else "size"
    columns = ("ranks", "from", "best", size, "takes over between", "native / this", "next / this, at least")
    rows = [_reign(item) for item in reigns(study)]
    about = (
        "The fastest at neighbouring sizes, native among them. Where the next one takes hardly longer, "
        "another run may name another."
    )
    return Table("crossovers", "Crossovers", about, columns, rows)


def _reign(item: Reign) -> Sequence[str]:
    first, last = format_size(item.first), format_size(item.last)
    over = "" if item.after is None else f"{format_size(item.after)} and {first}"
    return (
        str(item.ranks),
        item.kind,
        item.algorithm,
        first if first == last else f"{first} to {last}",
        over,
        "" if item.ratio is None else _between(*item.ratio),
        "" if item.ahead is None else f"{item.ahead:.2f}",
    )


def _between(low: float, high: float) -> str:
    texts = f"{low:.2f}", f"{high:.2f}"
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _results(study: Study) -> Table:
    columns = (
        *("ranks", "size (B)", "algorithm", "from", "median (us)", "25% (us)", "75% (us)"),
        *("bus bandwidth (GB/s)", "native / this", "efficiency", "samples"),
    )
    order = sorted(study.rows, key=lambda item: (item["ranks"], item["size"], item["kind"], item["seconds"]))
    rows: list[Sequence[str]] = [
        (
            *(str(item["ranks"]), str(item["size"]), item["algorithm"], item["kind"]),
            *(_number(item.get(name), 1e6) for name in ("seconds", "p25", "p75")),
            _number(item["busbw"], 1e-9),
            *(_number(item.get(name)) for name in ("ratio", "efficiency", "samples")),
        )
        for item in order
    ]
    about = "Everything that is drawn. Efficiency is relative to the fewest ranks."
    return Table("results", "All values", about, columns, rows, open=False)


def _number(value: float | None, factor: float = 1) -> str:
    return "" if value is None else f"{value * factor:.4g}"


def _machine(machine: Machine) -> Table:
    rows: list[Sequence[str]] = list(_figures(machine, ""))
    return Table(
        "machine", "The model's machine", "What is not limited is left out.", ("what", "figure"), rows
    )


def _figures(of: Any, prefix: str) -> Iterable[tuple[str, str]]:
    """Give the figures of a machine, and of what it is made of, with their units."""
    for item in fields(of):
        value = getattr(of, item.name)
        name = f"{prefix}{_WORDS.get(item.name, item.name)}"
        if is_dataclass(value):
            yield from _figures(value, f"{name}: ")
        elif value not in (None, "", INF):
            yield name, _UNITS.get(item.name, str)(value)


def _provenance(study: Study) -> Table:
    """Say what ran where: every value that the records have."""
    rows: list[Sequence[str]] = []
    for name in _PROVENANCE:
        values = dict.fromkeys(map(_text, filter(None, (item.get(name) for item in study.records))))
        if name == "time" and values:
            first, last = min(values), max(values)
            values = dict.fromkeys([first if first == last else f"{first} to {last}"])
        if values:
            rows.append((name.replace("_", " "), "; ".join(values)))
    kinds = sum(item["kind"] == MEASURED for item in study.rows)
    rows.append(("sets of samples", str(kinds)))
    return Table("provenance", "What ran where", "", ("what", "value"), rows)


def _text(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(chain.from_iterable(line.split() for line in text.splitlines()))
