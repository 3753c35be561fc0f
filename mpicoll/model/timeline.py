"""The picture of a simulation: who sends when."""

import math
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from ..schedule.drawing import STYLE
from .network import node_of
from .simulate import Simulated, Timeline

WIDTH = 900  # of the time axis, in pixels
LEFT, TOP = 72, 84  # margins
ROW, BAR = 22, 14  # heights of a rank's row, and of what is in it
TICKS = 8  # of the axis at most, about
NO_RANKS, NO_TIMES = np.zeros(0, np.int64), np.zeros(0)
NOTHING = Timeline(NO_RANKS, NO_RANKS, NO_RANKS, NO_TIMES, NO_TIMES)

BARS = """
.even { fill: #f3f5f8 }
.near { fill: #0a58ca }
.far { fill: #bc4c00 }
.done { stroke: #24292f; stroke-width: 1.5 }
.side { text-anchor: end }
@media (prefers-color-scheme: dark) {
.even { fill: #161b22 }
.near { fill: #6cb0ff }
.far { fill: #ffa657 }
.done { stroke: #e6edf3 }
}
"""


def draw(simulated: Simulated, title: str, nodes: Sequence[Sequence[int]] | None = None) -> str:
    """Draw a row for each rank, time to the right, and a bar for each message that it sends.

    A bar goes from when the first byte leaves to when the last one is there. Where a rank has several
    messages on their way at once, their bars share the height of its row. A stroke ends what a rank does.

    Parameters
    ----------
    simulated : Simulated
        With a timeline.
    title : str
    nodes : sequence of sequence of int, optional
        The ranks of each node, as in the simulation.

    Returns
    -------
    str
        An SVG image.

    Raises
    ------
    ValueError
        If the simulation has messages, but no timeline.
    """
    timeline = simulated.timeline
    if timeline is None:
        if simulated.messages:
            raise ValueError("a simulation without a timeline given, expected one with timeline=True")
        timeline = NOTHING
    size = len(simulated.done)
    end = max(float(simulated.done.max()), float(timeline.arrived.max(initial=0.0))) or 1e-9
    width, height = LEFT + WIDTH + 40, TOP + size * ROW + 44
    summary = f"{seconds(simulated.seconds)}, {simulated.messages} messages, {simulated.nbytes} bytes"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        f"<title>{escape(title)}: {summary}</title>",
        f"<style>{STYLE}{BARS}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text x="16" y="45">{summary}</text>',
        *_legend(),
        *_rows(size),
        *_axis(end, TOP + size * ROW),
        *_bars(timeline, node_of(nodes, size), end),
        *_ends(simulated, end),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def seconds(time: float) -> str:
    """Write a time with three digits and the unit that suits it."""
    scale, unit = _unit(time)
    return f"{time / scale:.3g} {unit}"


def _unit(time: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if time >= scale:
            return scale, unit
    return 1e-9, "ns"


def _legend() -> Iterator[str]:
    for kind, x, text in (("near", 16, "within a node"), ("far", 148, "between nodes")):
        yield f'<rect class="{kind}" x="{x}" y="57" width="24" height="9"/>'
        yield f'<text x="{x + 30}" y="66">{text}</text>'
    yield '<path class="done" d="M288,54 v15"/><text x="296" y="66">done</text>'


def _rows(size: int) -> Iterator[str]:
    for rank in range(size):
        y = TOP + rank * ROW
        if rank % 2 == 0:
            yield f'<rect class="even" x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}"/>'
        yield f'<text class="side" x="{LEFT - 8}" y="{y + ROW / 2 + 4:g}">rank {rank}</text>'


def _axis(end: float, y: float) -> Iterator[str]:
    """Draw the time axis, with round numbers."""
    scale, unit = _unit(end)
    rough = end / scale / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(round_ * power for round_ in (1, 2, 5, 10) if round_ * power >= rough * (1 - 1e-9))
    yield f'<path class="frame" d="M{LEFT},{y} h{WIDTH}"/>'
    for number in range(int(end / scale / step + 1e-9) + 1):
        x = LEFT + WIDTH * number * step * scale / end
        yield f'<path class="lane" d="M{x:.2f},{TOP} V{y + 5}"/>'
        yield f'<text class="label" x="{x:.2f}" y="{y + 18}">{number * step:.6g}</text>'
    yield f'<text class="label" x="{LEFT + WIDTH / 2:g}" y="{y + 36}">time ({unit})</text>'


def _bars(timeline: Timeline, places: list[int], end: float) -> Iterator[str]:
    """Draw the messages, rank by rank."""
    for rank in range(len(places)):
        mine = np.flatnonzero(timeline.source == rank)
        mine = mine[np.argsort(timeline.began[mine], kind="stable")]
        lines = _lines(timeline.began[mine].tolist(), timeline.arrived[mine].tolist())
        share = BAR / (max(lines, default=0) + 1)
        for message, line in zip(mine.tolist(), lines, strict=True):
            began, arrived = float(timeline.began[message]), float(timeline.arrived[message])
            target, nbytes = int(timeline.target[message]), int(timeline.nbytes[message])
            yield (
                f'<rect class="{"near" if places[rank] == places[target] else "far"}" '
                f'x="{LEFT + WIDTH * began / end:.2f}" '
                f'y="{TOP + rank * ROW + (ROW - BAR) / 2 + line * share:.2f}" '
                f'width="{max(WIDTH * (arrived - began) / end, 0.5):.2f}" height="{0.9 * share:.2f}">'
                f"<title>{rank} to {target}: {nbytes} bytes, {seconds(began)} to {seconds(arrived)}</title>"
                "</rect>"
            )


def _lines(began: Sequence[float], arrived: Sequence[float]) -> list[int]:
    """Put bars that would overlap on different lines, the first that is free; they come in their order."""
    free: list[float] = []
    found = []
    for begin, end in zip(began, arrived, strict=True):
        line = next((line for line, time in enumerate(free) if time <= begin), len(free))
        free[line : line + 1] = [end]
        found.append(line)
    return found


def _ends(simulated: Simulated, end: float) -> Iterator[str]:
    for rank, done in enumerate(simulated.done.tolist()):
        x, y = LEFT + WIDTH * done / end, TOP + rank * ROW + 2
        path = f'<path class="done" d="M{x:.2f},{y} v{ROW - 4}">'
        yield f"{path}<title>rank {rank} is done: {seconds(done)}</title></path>"
