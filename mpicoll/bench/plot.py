"""The plot of a benchmark: time over size, both logarithmic, one line for each algorithm."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .forms import FORMS
from .records import NATIVE, Record
from .words import format_size

FORMATS = (".png", ".svg", ".pdf")


def check_target(path: str) -> None:
    """Find out whether a plot can be written.

    Raises
    ------
    ValueError
        If the name says no known format, or matplotlib is not installed.
    OSError
        If the file cannot be written.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"plot: {path} given, expected a name that ends in {', '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        raise ValueError("plot: matplotlib is missing: pip install 'mpicoll[plot]'") from None
    with open(path, "ab"):
        pass


def bound(collective: str, nbytes: float, ranks: int, alpha: float, beta: float) -> float:
    """Return the least seconds of a collective by messages, combining taken as free.

    Some rank must hear of every other, or every rank of one, which takes ceil(log2 p) rounds; and as many
    vectors must pass some rank's link as the factor of busbw says.
    """
    return math.ceil(math.log2(ranks)) * alpha + FORMS[collective].busbw(ranks) * nbytes * beta


def plot(records: Sequence[Record], path: str, alpha: float, beta: float) -> None:
    """Draw the records of one run into a PNG, SVG or PDF file.

    Parameters
    ----------
    records : sequence of dict
        See :func:`mpicoll.bench.records.record`.
    path : str
        The file.
    alpha, beta : float
        Seconds of a message and of a byte, for the bound: :func:`mpicoll.bench.measure.ping_pong`. If they
        are 0, there is none.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    where = records[0]
    ranks, nodes = where["ranks"], where["nodes"]
    sizes = sorted({item["size"] for item in records})
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="size of the vector in bytes")
    axes.set_ylabel("time of one call on the slowest rank, median")

    # The legend goes from top to bottom as the lines do at their right end.
    last = {item["algorithm"]: item["median_us"] for item in sorted(records, key=lambda item: item["size"])}
    for label in sorted(last, key=lambda label: last[label], reverse=True):
        points = sorted((item["size"], item["median_us"]) for item in records if item["algorithm"] == label)
        axes.plot(*zip(*points, strict=True), label=label, **_style(label, list(last)))
    bottom = axes.get_ylim()[0]
    if ranks > 1 and alpha:
        least = [bound(where["collective"], size, ranks, alpha, beta) * 1e6 for size in sizes]
        bottom = min(bottom, least[0] / 1.5)
        speed = f"{1e-9 / beta:.1f}" if beta else "?"
        label = f"alpha-beta bound of messages:\n{alpha * 1e6:.2f} \N{MICRO SIGN}s, {speed} GB/s (ping-pong)"
        axes.plot(sizes, least, label=label, color="0.5", linewidth=1.5, linestyle=(0, (1, 1.5)))
        axes.fill_between(sizes, least, bottom, color="0.94", zorder=0)
    axes.set_ylim(bottom=bottom)
    axes.margins(x=0.02)

    axes.xaxis.set_major_locator(FixedLocator(_apart(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(size).removesuffix("B").strip()))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: _format_time(us)))
    axes.grid(which="major", color="0.85", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    title = f"{where['collective']}, {ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    axes.set_title(title, loc="left", weight="bold", pad=24)
    what = " ".join(filter(None, (where["dtype"], where["op"])))
    root = "" if where.get("root") is None else f", root {where['root']}"
    subtitle = (
        f"{what}{root}{', in place' if where['in_place'] else ''}; {where['mpi']}; {where['cores']} cores"
        f"{'; ' + where['device'] if 'device' in where else ''}"
    )
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize="small", color="0.35")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def _style(label: str, labels: list[str]) -> dict[str, Any]:
    """Say how a line is drawn: colours come again after ten, with other markers and dashes."""
    if label == NATIVE:
        return {"color": "black", "linewidth": 2.5, "marker": "o", "markersize": 5, "zorder": 3}
    index = [other for other in labels if other != NATIVE].index(label)
    return {
        "color": f"C{index % 10}",
        "linestyle": "-" if index < 10 else "--",
        "marker": "s^vDPX<>phd*"[index % 12],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def _apart(sizes: Sequence[int]) -> list[int]:
    """Leave out the sizes whose labels would touch."""
    space = math.log(sizes[-1] / sizes[0]) / 15
    kept = [sizes[0]]
    for size in sizes[1:]:
        if math.log(size / kept[-1]) >= space:
            kept.append(size)
    return kept


def _format_time(us: float) -> str:
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{us / scale:g} {unit}"
    return f"{us:g} \N{MICRO SIGN}s"
