"""How figures look: colours that people tell apart without colour vision, light and dark."""

from itertools import cycle, islice
from typing import Any

from ..bench.records import NATIVE
from .data import BOUND

# M. Okabe and K. Ito, "Color universal design", 2008. Black, or white, is native's, and grey the bound's.
_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#F0E442")
_YELLOW = {"#F0E442": "#B5A800"}  # darker on white, where theirs can hardly be seen
_SHAPES = ("square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_DASHES = ([1, 0], [7, 3], [3, 2], [9, 2, 2, 2], [12, 4], [5, 2, 1, 2, 1, 2], [2, 4], [1, 1])
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_MOST = 64  # series


def domain(series: list[str]) -> list[str]:
    """Give the names of all series in the order of their looks."""
    return [NATIVE, BOUND, *series]


def shapes(count: int) -> list[str]:
    """Give the shape of each series' points."""
    return ["circle", "stroke", *islice(cycle(_SHAPES), count)]


def dashes(count: int) -> list[list[int]]:
    """Give the dashes of each series' lines."""
    return [[1, 0], [1, 3], *islice(cycle(_DASHES), count)]


def config(dark: bool = False) -> dict[str, Any]:
    """Give Vega-Lite's configuration: light, as on paper, or dark."""
    text, grid, quiet, back = (
        ("#E8E8E8", "#3A3D42", "#A8ACB3", "#16181C") if dark else ("#1B1B1B", "#DDDDDD", "#666666", "#FFFFFF")
    )
    change = {} if dark else _YELLOW
    ours = [change.get(colour, colour) for colour in islice(cycle(_COLOURS), _MOST)]
    return {
        "background": back,
        "font": _FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": text,
            "titleColor": text,
            "gridColor": grid,
            "domainColor": quiet,
            "tickColor": quiet,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
        },
        "legend": {
            "orient": "bottom",
            "columns": 4,
            "labelColor": text,
            "titleColor": quiet,
            "titleFontWeight": "normal",
            "titleLimit": 500,
            "labelFontSize": 12,
            "labelLimit": 240,
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
            "columnPadding": 18,
            "rowPadding": 4,
        },
        "title": {"color": text, "anchor": "start", "fontSize": 14, "subtitleColor": quiet},
        "range": {"category": [text, "#8A8F98", *ours]},
        "text": {"color": text},
    }
