"""The table of a benchmark, printed size by size while it is measured.

Lines have fixed columns and no frame, so that they can be printed before the last one is known, cut with
``awk``, and read by those who know the tables of nccl-tests and of the OSU benchmarks.
"""

from collections.abc import Iterable, Sequence

from rich.text import Text

from .records import NATIVE, THEIRS, Record, best, mean_ratio
from .words import format_size

Part = tuple[str, str]  # text, style


def caption(
    collective: str,
    where: Record,
    *,
    in_place: bool = False,
    root: int | None = None,
    rounded: int = 0,
    baseline: str = NATIVE,
) -> Text:
    """Say what is measured where, and how to read the figures.

    Parameters
    ----------
    collective : str
        What is measured.
    where : dict
        The provenance.
    in_place : bool
        Whether in place.
    root : int or None
        The root, if there is one.
    rounded : int
        Bytes of which the sizes are multiples, if those asked for were not.
    baseline : str
        What ratios are to.
    """
    what = f"{collective}{' in place' if in_place else ''}{'' if root is None else f' at root {root}'}"
    things = [thing for thing in ("ranks", "nodes", "cores", "devices") if thing in where]
    place = ", ".join(_many(where[thing], thing.rstrip("s")) for thing in things)
    place += f" ({where['device']})" if "device" in where else ""
    lines = (
        f"# {what}: {place}; {where['mpi']}; mpicoll {where['mpicoll']}\n"
        f"# times: one call on the slowest rank; ratio: {baseline} median / median, more is better; "
        "*: our best"
    )
    if rounded:
        lines += f"\n# sizes: rounded up to multiples of {rounded} B"
    return Text(lines, style="dim")


def heading(width: int) -> Text:
    """Return the two lines above the columns; `width` is that of the longest algorithm."""
    names = "size", "count", "type", "op", " algorithm", "median", "p95", "algbw", "busbw", "ratio", "#wrong"
    units = "(B)", "", "", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "", ""
    return Text("#" + _columns(names, width)[1:] + "\n#" + _columns(units, width)[1:], style="bold")


def rows(records: Sequence[Record], width: int) -> Text:
    """Return the lines of one size, the best marked."""
    winners = [id(item) for item in best(records)]
    lines = Text()
    for item in records:
        wrong = item["wrong"]
        vector = item["size"] > 0
        line = _columns(
            (
                str(item["size"]) if vector else "-",
                str(item["count"]) if vector else "-",
                item["dtype"] or "-",
                item["op"] or "-",
                ("*" if id(item) in winners else " ") + item["algorithm"],
                _time(item["median_us"]),
                _time(item["p95_us"]),
                _decimals(item["algbw_GBps"]) if vector else "-",
                _decimals(item["busbw_GBps"]) if vector else "-",
                _ratio(item["ratio"]),
                "-" if wrong is None else str(wrong),
            ),
            width,
        )
        style = (
            "red"
            if wrong
            else "green"
            if id(item) in winners
            else "cyan"
            if item["algorithm"] in THEIRS
            else ""
        )
        lines.append(line + "\n", style=style)
    return lines


def summary(records: Sequence[Record], baseline: str = NATIVE) -> Text:
    """Return the best algorithm for each size and the geometric mean of the ratios to the baseline."""
    winners = best(records)
    if not winners:
        return Text(f"# no right result of ours to compare with {baseline}", style="bold")
    width = max(len(item["algorithm"]) for item in winners)
    lines = Text(f"# best for each size, and its ratio to {baseline}\n", style="bold")
    for item in winners:
        size = format_size(item["size"]) if item["size"] else "-"
        lines.append(f"# {size:>9}  {item['algorithm']:{width}}  {_ratio(item['ratio']):>6}\n")
    mean = mean_ratio(winners)
    lines.append("# geometric mean of these ratios: ", style="bold")
    lines.append(f"no {baseline} time to compare with" if mean is None else f"{mean:.2f}", style="bold green")
    return lines


def notes(refusals: Iterable[tuple[str, int, str]]) -> Text:
    """Say which algorithms were left out at which sizes and why, one line for each.

    Parameters
    ----------
    refusals : iterable of (str, int, str)
        Algorithm, size in bytes, reason.
    """
    sizes: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for algorithm, nbytes, reason in refusals:
        sizes.setdefault(algorithm, []).append(nbytes)
        reasons.setdefault(algorithm, reason)
    lines = [
        f"# left out: {algorithm}{_span(sizes[algorithm])}: {' '.join(reason.split())}"
        for algorithm, reason in reasons.items()
    ]
    return Text("\n".join(lines), style="yellow")


def _columns(cells: Sequence[str], width: int) -> str:
    size, count, dtype, op, algorithm, median, p95, algbw, busbw, ratio, wrong = cells
    return (
        f"{size:>11} {count:>10}  {dtype:8} {op:4} {algorithm:{max(width + 1, 10)}} {median:>9} {p95:>9} "
        f"{algbw:>7} {busbw:>7} {ratio:>6} {wrong:>7}"
    )


def _time(us: float) -> str:
    return f"{us:.2f}" if us < 1e3 else f"{us:.1f}" if us < 1e5 else f"{us:.0f}"


def _decimals(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _span(sizes: Sequence[int]) -> str:
    if not any(sizes):  # a barrier has none
        return ""
    first, last = format_size(min(sizes)), format_size(max(sizes))
    return f", {first}" if first == last else f", {first} to {last}"


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
