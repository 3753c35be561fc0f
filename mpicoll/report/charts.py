"""The two kinds of charts that there are, in Vega-Lite: curves, and a map."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt

from . import style, units
from .data import BOUND, MEASURED, MODELLED, Row

WIDTH, HEIGHT = 640, 340
FADED = 0.08  # opacity of series that are not chosen
ZOOM = "wheel![event.shiftKey]"  # a wheel by itself scrolls the page
CELL = 30  # height of the map's cells
GREY, INK, PAPER = "#8A8F98", "#000000", "#FFFFFF"


class Quantity(NamedTuple):
    """What curves are of.

    Its name in rows, in a word and on an axis; the expression that writes a value; its scale; and the names
    of its quartiles in rows, if it has any.
    """

    name: str
    short: str
    title: str
    text: Callable[[str], str]
    scale: alt.Scale
    quartiles: tuple[str, ...] = ()


class Choice(NamedTuple):
    """What a select chooses: the rows that have one value of a field."""

    field: str
    label: str
    values: Sequence[int]
    labels: Sequence[str]
    chosen: int


def _log(base: int = 10) -> alt.Scale:
    return alt.Scale(type="log", base=base, nice=False, padding=12)


def _share(value: str) -> str:
    return f"format({value}, '.0%')"


TIME, BANDWIDTH = "time of one call on the slowest rank", "bus bandwidth"
SECONDS = Quantity("seconds", "time", TIME, units.time_expression, _log(), ("p25", "p75"))
BUSBW = Quantity("busbw", BANDWIDTH, BANDWIDTH, units.bandwidth_expression, _log(), ("busbw25", "busbw75"))
EFFICIENCY = Quantity("efficiency", "efficiency", "efficiency", _share, alt.Scale(zero=True, nice=True))


def curves(
    rows: Sequence[Row], x: alt.X, quantity: Quantity, choice: Choice, series: list[str]
) -> alt.LayerChart:
    """Draw a quantity: points with quartiles where it was measured, lines, and what hovering tells."""
    drawn = [row for row in rows if row[quantity.name] is not None]
    colour, shape, dash = _looks(series, drawn, "click on names to single them out")
    picked = alt.selection_point(name="picked", fields=["algorithm"], bind="legend", toggle="true")
    zoomed = alt.selection_interval(name="zoomed", bind="scales", zoom=ZOOM)
    chosen = _select(choice)
    opacity = alt.condition(picked, alt.value(1), alt.value(FADED))
    y = alt.Y(f"{quantity.name}:Q", title=quantity.title, scale=quantity.scale, axis=_axis(quantity))
    base = alt.Chart().encode(x=x, y=y, color=colour, opacity=opacity)
    of = {kind: base.transform_filter(alt.datum.kind == kind) for kind in (MEASURED, MODELLED, BOUND)}
    told = {"tooltip": _tooltip()}
    lines = base.transform_filter(alt.datum.line).mark_line(strokeWidth=2).encode(strokeDash=dash)
    layers = {
        MODELLED: [of[MODELLED].mark_point(size=28, strokeWidth=1.2).encode(shape=shape, **told)],
        BOUND: [of[BOUND].mark_circle(size=120).encode(opacity=alt.value(0), **told)],  # to hover on
        MEASURED: [of[MEASURED].mark_point(filled=True, size=70).encode(shape=shape, **told)],
    }
    if quantity.quartiles:
        low, high = (f"{end}:Q" for end in quantity.quartiles)
        bars = of[MEASURED].mark_rule(strokeWidth=2).encode(y=alt.Y(low, title=quantity.title), y2=high)
        layers[MEASURED].insert(0, bars)
    there = {row["kind"] for row in drawn}
    shown = [lines, *(layer for kind, more in layers.items() if kind in there for layer in more)]
    return (
        alt.layer(*shown, data=alt.InlineData(values=list(rows)))
        .transform_filter(f"datum.{choice.field} == {chosen.name} && isValid(datum.{quantity.name})")
        .transform_calculate(**_texts())
        .add_params(chosen, picked, zoomed)
        .properties(width=WIDTH, height=HEIGHT)
    )


def size_axis(title: str, values: Sequence[int]) -> alt.X:
    """Give the axis of bytes, with the sizes that there are."""
    text = units.size_expression("datum.value")
    axis = alt.Axis(values=list(values), labelExpr=text, labelOverlap="greedy", labelSeparation=8)
    return alt.X("size:Q", title=title, scale=_log(base=2), axis=axis)


def ranks_axis(values: Sequence[int]) -> alt.X:
    """Give the axis of ranks, with those that there are."""
    axis = alt.Axis(values=list(values), format="d", labelOverlap="greedy", labelSeparation=4)
    return alt.X("ranks:Q", title="ranks", scale=_log(base=2), axis=axis)


def best_map(cells: Sequence[Row], title: str, series: list[str]) -> alt.LayerChart:
    """Draw which algorithm is best: a colour and a shape in each cell, faint and dashed where modelled."""
    colour, shape, _ = _looks(series, cells, "best algorithm")
    measured = {cell["ranks"] for cell in cells if cell["kind"] == MEASURED}
    beyond = sorted({cell["ranks"] for cell in cells} - measured)
    text = f"datum.value + (indexof({beyond}, datum.value) >= 0 ? ' modelled' : '')"
    sizes = alt.Axis(labelExpr=units.size_expression("datum.value"), labelAngle=0, labelOverlap="greedy")
    base = alt.Chart().encode(
        x=alt.X("load:O", title=title, axis=sizes),
        y=alt.Y("ranks:O", sort="descending", title="ranks", axis=alt.Axis(labelExpr=text)),
        tooltip=_tooltip(best=True),
    )
    tile = base.mark_rect(stroke=GREY, strokeWidth=1.5, fillOpacity=0.85).encode(color=colour)
    faint = base.mark_rect(stroke=GREY, strokeWidth=1.5, fillOpacity=0.25, strokeDash=[4, 3]).encode(
        color=colour
    )
    kinds = {MEASURED: tile, MODELLED: faint}
    there = {cell["kind"] for cell in cells}
    tiles = [kinds[kind].transform_filter(alt.datum.kind == kind) for kind in kinds if kind in there]
    marks = base.mark_point(filled=True, size=70, color=INK, stroke=PAPER, strokeWidth=1).encode(shape=shape)
    ahead = "isValid(datum.ahead) ? format(datum.ahead, '.3~f') + ' times as long' : '-'"
    return (
        alt.layer(*tiles, marks, data=alt.InlineData(values=list(cells)))
        .transform_calculate(**_texts(), ahead_text=ahead)
        .properties(width=WIDTH, height=CELL * len(measured | set(beyond)))
    )


def in_legend(rows: Sequence[Row], series: list[str]) -> list[str]:
    """Name the series that have rows, in the order of the legend."""
    there = {row["algorithm"] for row in rows}
    return [name for name in style.domain(series) if name in there]


def _looks(series: list[str], rows: Sequence[Row], title: str) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Give the colour, shape and dashes that each series has in all figures of a study."""
    names, field = style.domain(series), "algorithm:N"
    legend = alt.Legend(title=title, values=in_legend(rows, series))
    shapes = alt.Scale(domain=names, range=style.shapes(len(series)))
    # Legends with one domain are merged, and a symbol's outline in dashes cannot be read: so it has one more.
    dashes = alt.Scale(domain=[*names, ""], range=[*style.dashes(len(series)), [1, 0]])
    colour = alt.Color(field, scale=alt.Scale(domain=names), legend=legend)
    return (
        colour,
        alt.Shape(field, scale=shapes, legend=legend),
        alt.StrokeDash(field, scale=dashes, legend=None),
    )


def _select(choice: Choice) -> alt.Parameter:
    bind = alt.binding_select(
        options=list(choice.values), labels=list(choice.labels), name=f"{choice.label} "
    )
    return alt.param(name="chosen", value=choice.chosen, bind=bind)


def _axis(quantity: Quantity) -> alt.Axis:
    """Give the axis of a quantity; on a logarithmic one 1, 2 and 5 are written, and tens stand out."""
    text = quantity.text("datum.value")
    if quantity is EFFICIENCY:
        return alt.Axis(labelExpr=text)
    digit = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
    faint = {"condition": {"test": f"{digit} == 1", "value": 1}, "value": 0.35}
    shown = f"indexof([1, 2, 5], {digit}) >= 0 ? {text} : ''"
    return alt.Axis(labelExpr=shown, tickCount=8, labelOverlap="greedy", gridOpacity=faint, tickOpacity=faint)


def _texts() -> dict[str, str]:
    """Give the expressions of what tooltips show."""

    def known(field: str, text: str) -> str:
        return f"isValid(datum.{field}) ? {text} : '-'"

    return {
        "size_text": units.size_expression("datum.size"),
        "time_text": units.time_expression("datum.seconds"),
        "quartiles_text": known(
            "p25", f"{units.time_expression('datum.p25')} + ' to ' + {units.time_expression('datum.p75')}"
        ),
        "busbw_text": known("busbw", units.bandwidth_expression("datum.busbw")),
        "ratio_text": known("ratio", "format(datum.ratio, '.3~f')"),
        "efficiency_text": known("efficiency", "format(datum.efficiency, '.1%')"),
        "samples_text": known("samples", "datum.samples"),
    }


def _tooltip(best: bool = False) -> list[Any]:
    shown = {
        "algorithm": "algorithm",
        "kind": "from",
        "size_text": "size",
        "ranks": "ranks",
        "time_text": "time",
        "quartiles_text": "quartiles",
        "busbw_text": "bus bandwidth",
        "ratio_text": "native / this",
        "efficiency_text": "efficiency",
        "samples_text": "samples",
    }
    shown |= {"next": "next best", "ahead_text": "which takes"} if best else {}
    return [
        alt.Tooltip(f"{field}:{'Q' if field == 'ranks' else 'N'}", title=title)
        for field, title in shown.items()
    ]
