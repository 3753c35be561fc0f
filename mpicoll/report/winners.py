"""Which algorithm is best where: as cells of a map, and as ranges of sizes."""

from collections import defaultdict
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from ..bench.records import NATIVE
from ..selection import AUTO
from .data import BOUND, MEASURED, Row, Study


class Reign(NamedTuple):
    """Neighbouring sizes at which one algorithm is best.

    Attributes
    ----------
    ranks, kind, algorithm
        As in rows.
    first, last : int
        Loads, in bytes.
    after : int or None
        The load at which another was still best; None at the smallest.
    ratio : tuple of float or None
        Least and most of native's time over its own; None where native was not measured.
    ahead : float or None
        Least of the next one's time over its own; None without a next one.
    """

    ranks: int
    kind: str
    algorithm: str
    first: int
    last: int
    after: int | None
    ratio: tuple[float, float] | None
    ahead: float | None


def winners(study: Study) -> list[Row]:
    """Give the fastest row at each load on each number of ranks.

    Native can be it; auto cannot, which is one of the others. What was measured goes before what was
    modelled. Each has in addition the ``next`` algorithm and how many times as long it takes, ``ahead``; None
    where there is no other.
    """
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for item in study.rows:
        if item["algorithm"] not in (BOUND, AUTO) and item["ranks"] > 1:
            groups[item["ranks"], item["load"]].append(item)
    found = []
    for key in sorted(groups):
        rows = [item for item in groups[key] if item["kind"] == MEASURED] or groups[key]
        best, *others = sorted(rows, key=itemgetter("seconds"))
        ahead = others[0]["seconds"] / best["seconds"] if others else None
        found.append({**best, "next": others[0]["algorithm"] if others else None, "ahead": ahead})
    return found


def reigns(study: Study) -> list[Reign]:
    """Put neighbouring sizes with the same winner together."""
    found: list[Reign] = []
    key = itemgetter("ranks", "kind", "algorithm")
    for (ranks, kind, algorithm), group in groupby(winners(study), key):
        cells = list(group)
        previous = found[-1] if found and found[-1].ranks == ranks else None
        ratios = [1.0 if algorithm == NATIVE else cell.get("ratio") for cell in cells]
        known = [ratio for ratio in ratios if ratio is not None]
        found.append(
            Reign(
                ranks,
                kind,
                algorithm,
                cells[0]["load"],
                cells[-1]["load"],
                previous.last if previous else None,
                (min(known), max(known)) if known else None,
                min((cell["ahead"] for cell in cells if cell["ahead"]), default=None),
            )
        )
    return found
