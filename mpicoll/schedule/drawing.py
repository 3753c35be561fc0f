"""Pictures of a schedule: a table of its messages as text, and a space-time diagram as SVG."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import NamedTuple

from .collectives import COLLECTIVES
from .moves import Run, Runs
from .proof import prove
from .schedule import Schedule
from .symbolic import Expressions, execute, initial_values
from .walk import Finished, Message, name_chunks

LANE = 104  # from one rank to the next, in pixels
GAUGE = 72, 14  # the picture of what a rank holds: width and height
MARGIN = 56, 96  # left and top
BAND = 54  # height of a step, and
FAN = 7  # more for every message of its busiest rank

STYLE = """
.paper, .plate { fill: #ffffff }
text { font: 12px system-ui, "Helvetica Neue", Arial, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.label { font-size: 11px; text-anchor: middle }
.rank { font-weight: 600; text-anchor: middle }
.lane, .frame { stroke: #8c959f; fill: none }
.lane { stroke-width: 0.6 }
.frame { stroke-width: 0.75 }
.part { fill: #9aa7b5 }
.whole { fill: #1a7f37 }
.reduce, .replace { fill: none; stroke-width: 1.6 }
.reduce, .tip-reduce { stroke: #0a58ca }
.replace, .tip-replace { stroke: #bc4c00 }
.replace { stroke-dasharray: 5 3 }
.tip-reduce { fill: #0a58ca }
.tip-replace { fill: none; stroke-width: 1.6; stroke-dasharray: none }
.still { opacity: 0.4 }
.many path { stroke-width: 0.7 }
@media (prefers-color-scheme: dark) {
.paper, .plate { fill: #0d1117 }
text { fill: #e6edf3 }
.part { fill: #6e7b8a }
.whole { fill: #3fb950 }
.reduce, .tip-reduce { stroke: #6cb0ff }
.tip-reduce { fill: #6cb0ff }
.replace, .tip-replace { stroke: #ffa657 }
}
"""


class Local(NamedTuple):
    """A copy or combine within a rank, after the messages of `round`."""

    round: int
    rank: int
    kind: str
    chunks: Runs
    source: Runs


class Fill(NamedTuple):
    """How much of a slot is there: the share of all contributions that any rank ends with."""

    share: float
    whole: bool  # it is what the rank must end with


class Picture(NamedTuple):
    """What there is to see: messages, local moves, and how much of each slot is there.

    `held` gives, for a rank and a round, how full each slot is after it, where that changed.
    """

    messages: list[Message]
    locals: list[Local]
    held: dict[tuple[int, int], list[Fill]]


def observe(schedule: Schedule) -> Picture:
    """Run a schedule symbolically and note what can be seen."""
    collective = COLLECTIVES[schedule.collective]
    expressions = Expressions(collective.idempotent)
    values = initial_values(schedule, expressions)
    due = [list(map(collective.after, schedule.places(rank))) for rank in range(schedule.size)]
    most = max((ends.bit_count() for goals in due for ends in goals if ends is not None), default=1)

    def held(rank: int) -> list[Fill]:
        found = [0 if value is None else expressions.contributions[value] for value in values[rank]]
        goals = due[rank] * (1 + schedule.vectors)
        return [Fill(has.bit_count() / most, has == goal) for has, goal in zip(found, goals, strict=True)]

    picture = Picture([], [], {(rank, 0): held(rank) for rank in range(schedule.size)})
    for event in execute(schedule, expressions, values):
        if isinstance(event, Message):
            picture.messages.append(event)
        elif isinstance(event, Finished):
            picture.held[event.rank, event.round] = held(event.rank)
            picture.locals.extend(
                Local(event.round, event.rank, move.kind, move.chunks, move.source)
                for move in event.moves
                if move.source is not None
            )
    picture.messages.sort(key=lambda message: (message.round, message.source, message.target))
    return picture


def table(schedule: Schedule) -> str:
    """Write what every rank sends in each step.

    Returns
    -------
    str
        A row for each step, a column for each rank. ``2-3 +> 1`` is chunks 2 and 3 sent to rank 1,
        which combines them; after ``=>`` they replace what it had. ``s0`` is a slot in scratch.
        Local moves are in the row of the messages before them, row 0 if there are none.

    Raises
    ------
    ProofError
        If the schedule is wrong.
    """
    picture = observe(schedule)
    cells: dict[tuple[int, int], list[str]] = {}
    for message in picture.messages:
        arrow = "+>" if message.combined else "=>"
        text = f"{name_chunks(message.sent, schedule.chunks)} {arrow} {message.target}"
        cells.setdefault((message.round, message.source), []).append(text)
    for local in picture.locals:
        to, of = (_names(runs, schedule.chunks) for runs in (local.chunks, local.source))
        text = f"{to} {'+=' if local.kind == 'combine' else '='} {of}"
        cells.setdefault((local.round, local.rank), []).append(text)
    rows = [["step", *(f"rank {rank}" for rank in range(schedule.size))]]
    for number in sorted({number for number, _ in cells}):
        columns = [cells.get((number, rank), []) for rank in range(schedule.size)]
        for line in range(max(map(len, columns))):
            row = [column[line] if line < len(column) else "" for column in columns]
            rows.append([str(number) if line == 0 else "", *row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def draw(schedule: Schedule) -> str:
    """Draw a schedule: a lane for each rank, time downwards, an arrow for each message.

    A gauge shows what a rank holds after a step: a cell for each chunk, as full as the share of the
    contributions that it has, and green when it has those that the rank must end with. Local copies and
    combines show there only.

    Returns
    -------
    str
        An SVG image, the same for the same schedule.

    Raises
    ------
    ProofError
        If the schedule is wrong.
    """
    proof = prove(schedule)
    picture = observe(schedule)
    heights = [_band(picture, number) for number in range(1, proof.rounds + 1)]
    tops = [MARGIN[1] + sum(heights[:number]) for number in range(proof.rounds + 1)]
    width = max(2 * MARGIN[0] + (schedule.size - 1) * LANE + GAUGE[0], 420)
    height = tops[-1] + GAUGE[1] + 24
    title = f"{schedule.name} {schedule.collective}, {_plural(schedule.size, 'rank')}"
    cost = (
        f"{_plural(proof.rounds, 'step')}, {_plural(schedule.chunks, 'chunk')}; "
        f"a rank sends at most {_vectors(proof.sent_max)}, all together {_vectors(proof.sent_total)}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        f"<title>{escape(title)}: {cost}</title>",
        f"<style>{STYLE}</style>",
        "<defs>",
        *_tips(),
        _frame(schedule),
        "</defs>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
        f'<text x="16" y="45">{cost}</text>',
        *_legend(),
        *_lanes(schedule, tops, width),
        *_arrows(schedule, picture, tops),
        *_gauges(schedule, picture, tops),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _names(runs: Runs, chunks: int) -> str:
    return " ".join(name_chunks(run, chunks) for run in runs)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _vectors(share: object) -> str:
    return f"{share} vector{'' if share == 1 else 's'}"


def _band(picture: Picture, number: int) -> int:
    """Give the height of a step: the more messages a rank has in it, the more room for labels."""
    ends = [rank for m in picture.messages if m.round == number for rank in (m.source, m.target)]
    return BAND + GAUGE[1] + FAN * max(ends.count(rank) for rank in set(ends))


def _tips() -> Iterator[str]:
    for kind, path in (("reduce", "M0,0 L8,4 L0,8 Z"), ("replace", "M0,0 L8,4 L0,8")):
        yield (
            f'<marker id="{kind}" viewBox="-1 -1 10 10" refX="8" refY="4" markerWidth="9" markerHeight="9" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip-{kind}" d="{path}"/></marker>'
        )


def _legend() -> Iterator[str]:
    for kind, x, text in (("reduce", 16, "is combined"), ("replace", 132, "replaces")):
        yield f'<path class="{kind}" marker-end="url(#{kind})" d="M{x},62 h28"/>'
        yield f'<text x="{x + 34}" y="66">{text}</text>'
    for kind, x, height, text in (("part", 234, 6, "partial"), ("whole", 306, 14, "complete")):
        yield f'<rect class="{kind}" x="{x}" y="{69 - height}" width="14" height="{height}"/>'
        yield f'<rect class="frame" x="{x}" y="55" width="14" height="14"/>'
        yield f'<text x="{x + 20}" y="66">{text}</text>'


def _lanes(schedule: Schedule, tops: list[int], width: int) -> Iterator[str]:
    for number, top in enumerate(tops[1:], start=1):
        yield f'<text x="16" y="{top + GAUGE[1] / 2 + 4:g}">{number}</text>'
    for rank in range(schedule.size):
        x = _lane(rank)
        yield f'<text class="rank" x="{x:g}" y="{tops[0] - 8}">{rank}</text>'
        between = "".join(f"M{x:g},{above + GAUGE[1]} V{below}" for above, below in pairwise(tops))
        yield f'<path class="lane" d="{between}"/>'


def _lane(rank: int) -> float:
    """Give the middle of a rank's lane."""
    return MARGIN[0] + GAUGE[0] / 2 + rank * LANE


def _cell(schedule: Schedule, slot: int) -> float:
    """Give the left edge of a slot in a gauge, relative to its lane."""
    return GAUGE[0] * (slot / (schedule.chunks * (1 + schedule.vectors)) - 0.5)


def _frame(schedule: Schedule) -> str:
    """Define the outline of a gauge, with its cells as long as they can be told apart."""
    width, height = GAUGE
    slots = schedule.chunks * (1 + schedule.vectors)
    edges = range(1, slots) if slots <= 24 else range(schedule.chunks, slots, schedule.chunks)
    lines = "".join(f"M{_cell(schedule, slot):.1f},0 v{height}" for slot in edges)
    return f'<path id="frame" class="frame" d="M{-width / 2:g},0 h{width} v{height} h{-width} z{lines}"/>'


def _gauges(schedule: Schedule, picture: Picture, tops: list[int]) -> Iterator[str]:
    """Draw what every rank holds after every step, pale where it is as before."""
    for rank in range(schedule.size):
        held = picture.held[rank, 0]
        for number, top in enumerate(tops):
            still = (rank, number) not in picture.held
            held = picture.held.get((rank, number), held)
            yield f'<g transform="translate({_lane(rank):g},{top})"' + (' class="still">' if still else ">")
            yield from _bars(schedule, held)
            yield '<use href="#frame"/></g>'


def _bars(schedule: Schedule, held: list[Fill]) -> Iterator[str]:
    """Fill the cells of a gauge; neighbours that are equally full make one bar."""
    paths = {"part": "", "whole": ""}
    slot = 0
    for fill, group in groupby(held):
        start, slot = slot, slot + len(list(group))
        left, right = _cell(schedule, start), _cell(schedule, slot)
        kind = "whole" if fill.whole else "part"
        if fill.share:
            full = GAUGE[1] * fill.share
            paths[kind] += f"M{left:.1f},{GAUGE[1]}v{-full:.1f}h{right - left:.1f}v{full:.1f}z"
    for kind, path in paths.items():
        if path:
            yield f'<path class="{kind}" d="{path}"/>'


def _arrows(schedule: Schedule, picture: Picture, tops: list[int]) -> Iterator[str]:
    """Draw the messages step by step, then their labels on top."""

    def end(rank: int, run: Run) -> float:
        """Give the middle of what is sent or received."""
        return _lane(rank) + (_cell(schedule, run[0]) + _cell(schedule, run[1])) / 2

    for number in range(1, len(tops)):
        messages = [message for message in picture.messages if message.round == number]
        top, bottom = tops[number - 1] + GAUGE[1] + 1, tops[number] - 2
        lines = [(end(m.source, m.sent), top, end(m.target, m.received), bottom) for m in messages]
        labels = [f"{name_chunks(m.sent, schedule.chunks)}{'+' if m.combined else ''}" for m in messages]
        yield '<g class="many">' if len(messages) > 6 * schedule.size else "<g>"
        for message, (x, y, to_x, to_y) in zip(messages, lines, strict=True):
            kind = "reduce" if message.combined else "replace"
            yield (
                f'<path class="{kind}" marker-end="url(#{kind})" d="M{x:g},{y} L{to_x:g},{to_y}">'
                f"<title>{message.source} to {message.target}: "
                f"{name_chunks(message.sent, schedule.chunks)}</title></path>"
            )
        for label, (at_x, at_y) in zip(labels, _label_places(labels, lines), strict=True):
            half = _half_width(label)
            yield (
                f'<rect class="plate" x="{at_x - half:g}" y="{at_y - 7:g}" width="{2 * half:g}" '
                f'height="13" rx="3"/>'
                f'<text class="label" x="{at_x:g}" y="{at_y + 4:g}">{label}</text>'
            )
        yield "</g>"


def _half_width(label: str) -> float:
    return 2 + 3.2 * len(label)


def _label_places(
    labels: Sequence[str], lines: Sequence[tuple[float, float, float, float]]
) -> list[tuple[float, float]]:
    """Put each label on its arrow, where it covers other labels and arrows least."""
    placed: list[tuple[float, float, float]] = []
    for label, (x, y, to_x, to_y) in zip(labels, lines, strict=True):
        half = _half_width(label)

        def cost(share: float, ends=(x, y, to_x, to_y), half=half) -> tuple[int, float]:
            at_x, at_y = ends[0] + share * (ends[2] - ends[0]), ends[1] + share * (ends[3] - ends[1])
            over = sum(abs(at_x - px) < half + ph + 5 and abs(at_y - py) < 15 for px, py, ph in placed)
            crossed = 0
            for line in lines:
                along = (at_y - line[1]) / (line[3] - line[1])
                crossed += line != ends and abs(line[0] + along * (line[2] - line[0]) - at_x) < half + 2
            return 100 * over + crossed, abs(share - 0.4)

        share = min((0.12 + 0.04 * step for step in range(19)), key=cost)
        placed.append((x + share * (to_x - x), y + share * (to_y - y), half))
    return [(x, y) for x, y, _ in placed]
