"""What is seen in a figure, in a sentence or two, computed from its rows."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter

from ..bench.records import NATIVE
from ..selection import AUTO
from .data import MEASURED, MODELLED, Row, Study, many
from .units import format_bandwidth, format_size, format_time


def place(study: Study, field: str, value: int) -> str:
    """Say which rows: ``on 4 ranks``, ``at 64 KiB``."""
    if field == "ranks":
        return f"on {many(value, 'rank')}"
    if not study.vector:
        return "without a vector"
    return f"at {format_size(value)}{' a rank' if study.weak else ''}"


def curves(study: Study, cells: Sequence[Row], field: str, value: int, quantity: str) -> str:
    """Say who is fastest where the rows' field has a value, and how good the model is there.

    Parameters
    ----------
    study : Study
    cells : sequence of dict
        The :func:`~mpicoll.report.winners.winners`.
    field : str
        ``ranks``, where the curves are over sizes, or ``load``, where they are over ranks.
    value : int
    quantity : str
        The field that is drawn.
    """
    over = "load" if field == "ranks" else "ranks"
    rows = [item for item in study.rows if item[field] == value]
    best = sorted((cell for cell in cells if cell[field] == value), key=itemgetter(over))
    where = _capital(place(study, field, value))
    if not best:
        return f"{where} there is nothing to compare."
    measured = [cell for cell in best if cell["kind"] == MEASURED]
    if not measured:
        last = best[-1]
        return (
            f"{where} nothing was measured; the lines are the model's, which knows nothing of native. "
            f"It finds {last['algorithm']} best {place(study, over, last[over])}: {_write(last, quantity)}."
        )
    points = many(len(measured), "size" if over == "load" else "rank count")
    counted = f"{where}, fastest at {points} measured: {_listed(measured)}."
    return " ".join(filter(None, (counted, _at_the_end(study, rows, over, quantity), _model(rows))))


def efficiency(study: Study, load: int) -> str:
    """Say how much of the efficiency is left on most ranks."""
    rows = [item for item in study.rows if item["load"] == load and item["kind"] == MEASURED]
    rows = [item for item in rows if item["efficiency"] is not None]
    where = _capital(place(study, "load", load))
    if len({item["ranks"] for item in rows}) < 2:
        return f"{where} nothing was measured on several numbers of ranks."
    first, last = (end(item["ranks"] for item in rows) for end in (min, max))
    here = {item["algorithm"]: item["efficiency"] for item in rows if item["ranks"] == last}
    what = "of the speed" if study.weak or not study.vector else "of the bus bandwidth"
    best = max(here, key=here.__getitem__)
    text = f"{where}, {best} has {here[best]:.0%} {what} on {last} ranks that it has on {first}"
    if NATIVE in here and best != NATIVE:
        text += f"; native has {here[NATIVE]:.0%}"
    return text + "."


def best_map(cells: Sequence[Row]) -> str:
    """Say who is best how often, and how much of the map is modelled."""
    measured = [cell for cell in cells if cell["kind"] == MEASURED]
    beyond = len(cells) - len(measured)
    text = f"Best in {many(len(measured), 'measured cell')}: {_listed(measured)}."
    if not beyond:
        return f"{text} Nothing is extrapolated."
    return (
        f"{text} {many(beyond, 'faint cell')} with a dashed outline {'is' if beyond == 1 else 'are'} "
        "extrapolated by the model, which knows nothing of native."
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _write(item: Row, quantity: str) -> str:
    return format_time(item["seconds"]) if quantity == "seconds" else format_bandwidth(item[quantity])


def _listed(cells: Iterable[Row]) -> str:
    """Count who wins how often, the most frequent first."""
    counts = Counter(cell["algorithm"] for cell in cells).most_common()
    shown = [f"{name} ({count})" for name, count in counts[:3]]
    rest = sum(count for _, count in counts[3:])
    return ", ".join([*shown, f"others ({rest})"] if rest else shown)


def _at_the_end(study: Study, rows: Sequence[Row], over: str, quantity: str) -> str:
    """Compare the best of ours with native at the largest size, or number of ranks, measured."""
    measured = [item for item in rows if item["kind"] == MEASURED and item["algorithm"] != AUTO]
    end = max(item[over] for item in measured)
    here = {item["algorithm"]: item for item in measured if item[over] == end}
    native = here.pop(NATIVE, None)
    if not here:
        return ""
    best = min(here.values(), key=itemgetter("seconds"))
    where = _capital(place(study, over, end))
    text = f"{where} {best['algorithm']} is the best of ours: {_write(best, quantity)}"
    if native is None:
        return text + "."
    ratio = native["seconds"] / best["seconds"]
    compared = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times as slow"
    return f"{text}, {compared} as native."


def _model(rows: Sequence[Row]) -> str:
    """Say how far the model is from what was measured."""
    modelled = {_point(item): item["seconds"] for item in rows if item["kind"] == MODELLED}
    measured = [item for item in rows if item["kind"] == MEASURED and _point(item) in modelled]
    off = [abs(modelled[_point(item)] / item["seconds"] - 1) for item in measured]
    if not off:
        return ""
    middle = statistics.median(off)
    return f"The model is off by {middle:.0%} in the median of these points, by {max(off):.0%} at most."


def _point(item: Row) -> tuple[str, int, int]:
    return item["algorithm"], item["load"], item["ranks"]
