"""Studies, read: what belongs together, and one row for each point that is drawn."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from ..bench import study
from ..bench.records import NATIVE, Record
from ..bench.study import WEAK
from ..model.network import INF, Machine

Row: TypeAlias = dict[str, Any]

MEASURED, MODELLED, BOUND = "measured", "modelled", "bound"

# Records that differ in one of these are not for one figure; a folder has its own.
_APART = ("collective", "scaling", "dtype", "op", "root", "in_place", "device")
_TIMES = ("median_us", "p25_us", "p75_us")
_FIGURES = (*_TIMES, "size", "ranks", "nodes", "samples", "busbw_GBps")


@dataclass
class Study:
    """What is drawn together: records of one collective with the same settings.

    Attributes
    ----------
    folder : Path
        Where it is.
    title, slug : str
        For people, and for names of files.
    records : list of dict
        As they were read; those with wrong results are left out.
    wrong : list of str
        The algorithms that had them.
    rows : list of dict
        A point each; see :func:`row`.
    machine : Machine, optional
        Which models it.
    left_out : list of str
        What was not modelled, and why.
    """

    folder: Path
    title: str
    slug: str
    records: list[Record]
    wrong: list[str]
    rows: list[Row]
    machine: Machine | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def collective(self) -> str:
        """What was measured."""
        return self.records[0]["collective"]

    @property
    def weak(self) -> bool:
        """Whether vectors grow with the ranks; their `load` is the bytes for each of these then."""
        return self.records[0]["scaling"] == WEAK

    @property
    def vector(self) -> bool:
        """Whether there is one."""
        return any(item["size"] for item in self.rows)

    def values(self, name: str, kind: str | None = None) -> list[Any]:
        """Give the different values of a field, in order."""
        return sorted({item[name] for item in self.rows if kind in (None, item["kind"])})

    @property
    def series(self) -> list[str]:
        """The names of our algorithms, in the order in which they were measured."""
        names = dict.fromkeys(item["algorithm"] for item in self.rows)
        return [name for name in names if name not in (NATIVE, BOUND)]


def studies(folders: Sequence[Path]) -> list[Study]:
    """Read folders, and part what does not belong together.

    Raises
    ------
    ValueError
        If a folder is not a study or is empty, or the records are of different versions of mpicoll.
    """
    found: list[Study] = []
    versions: dict[str, Path] = {}
    for folder in folders:
        records = read(folder)
        versions |= {item["mpicoll"]: folder for item in records if item["mpicoll"] not in versions}
        if len(versions) > 1:
            given = ", ".join(f"{version} in {place / study.FILE}" for version, place in versions.items())
            raise ValueError(f"mpicoll: {given} given, expected studies of one version")
        parts = groupby(sorted(records, key=_settings), _settings)
        found += [_study(folder, list(items), named=len(folders) > 1) for _, items in parts]
    for number, each in enumerate(found):
        if each.slug in {other.slug for other in found[:number]}:
            each.slug += f"_{number + 1}"
    return found


def read(folder: Path) -> list[Record]:
    """Read the records of a study, all figures of which are numbers.

    Raises
    ------
    ValueError
        If they are not; the message names the file, the line and the field.
    """
    records = study.read(str(folder))
    for number, item in enumerate(records, 1):
        for name in _FIGURES:
            value = item.get(name)
            if not isinstance(value, int | float) or not 0 <= value < INF or (value == 0 and name in _TIMES):
                where = f"{folder / study.FILE}: line {number}: {name}"
                least = "more than 0" if name in _TIMES else "0 or more"
                raise ValueError(f"{where}: {value!r} given, expected {least}")
    return records


def row(kind: str, algorithm: str, size: int, ranks: int, load: int, **more: Any) -> Row:
    """Describe a point.

    Parameters
    ----------
    kind : str
        Measured, modelled, or a bound.
    algorithm : str
        Its name, with parameters.
    size, ranks : int
        Bytes of the vector, and ranks.
    load : int
        What points of one curve over ranks have in common: the size, or in weak scaling the bytes a rank.
    **more
        ``seconds``; ``busbw`` in B/s, None where no bytes must pass; and where they were measured the
        quartiles of both, ``ratio`` to native and ``samples``.

    Returns
    -------
    dict
        With ``line`` true where a line goes through the point.
    """
    return {
        "kind": kind,
        "algorithm": algorithm,
        "size": size,
        "ranks": ranks,
        "load": load,
        "line": True,
        "efficiency": None,
        **more,
    }


def add_efficiency(of: Study) -> None:
    """Compare each point with that of the fewest ranks, measured with measured and modelled with modelled.

    In strong scaling it is the share of bus bandwidth that is left, in weak scaling time over time.
    """
    fewest = min((ranks for ranks in of.values("ranks") if ranks > 1), default=0)
    first = {(r["kind"], r["algorithm"], r["load"]): r for r in of.rows if r["ranks"] == fewest}
    for item in of.rows:
        base = first.get((item["kind"], item["algorithm"], item["load"]))
        if base is None or item["ranks"] < fewest or item["kind"] == BOUND:
            continue
        if of.weak or not of.vector:
            item["efficiency"] = base["seconds"] / item["seconds"]
        else:
            item["efficiency"] = item["busbw"] / base["busbw"]


def many(number: int, thing: str) -> str:
    """Count things: ``1 rank``, ``2 ranks``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _settings(item: Record) -> tuple[str, ...]:
    return tuple(str(item.get(name)) for name in _APART)


def _study(folder: Path, records: list[Record], named: bool) -> Study:
    right = [item for item in records if not item.get("wrong")]
    if not right:
        raise ValueError(f"{folder / study.FILE}: no right result of {records[0]['collective']}")
    latest = {(item["algorithm"], item["size"], item["ranks"]): item for item in right}
    first = right[0]
    what = " ".join(filter(None, (first.get("dtype"), first.get("op"))))
    about = (
        f"{first['collective']}, {first['scaling']} scaling",
        what,
        "in place" if first.get("in_place") else "",
        f"root {first['root']}" if first.get("root") is not None else "",
        first.get("device", ""),
        first.get("mpi", ""),
        folder.resolve().name if named else "",
    )
    slug = f"{first['collective']}_{first['scaling']}"
    wrong = sorted({item["algorithm"] for item in records if item.get("wrong")})
    rows = list(_measured(latest.values()))
    return Study(folder, "; ".join(filter(None, about)), slug, right, wrong, rows)


def _measured(records: Iterable[Record]) -> Iterator[Row]:
    for item in records:
        weak, busbw = item["scaling"] == WEAK, item["busbw_GBps"] * 1e9
        yield row(
            MEASURED,
            item["algorithm"],
            item["size"],
            item["ranks"],
            item["size"] // item["ranks"] if weak else item["size"],
            nodes=item["nodes"],
            seconds=item["median_us"] / 1e6,
            p25=item["p25_us"] / 1e6,
            p75=item["p75_us"] / 1e6,
            busbw=busbw or None,
            busbw25=busbw * item["median_us"] / item["p75_us"],
            busbw75=busbw * item["median_us"] / item["p25_us"],
            ratio=item.get("ratio"),
            samples=item["samples"],
        )
