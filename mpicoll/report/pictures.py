"""Figures for paper: PNG and SVG from the same descriptions as the page's."""

from typing import Any

import altair as alt
import vl_convert

from . import style

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])  # the version, as vl_convert has it
SCALE = 2.0  # pixels of a PNG for one of the figure's


def svg(spec: dict[str, Any]) -> str:
    """Draw a figure as SVG."""
    return vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=style.config())


def png(picture: str) -> bytes:
    """Give an SVG as PNG."""
    return vl_convert.svg_to_png(picture, scale=SCALE)
