"""The page: one HTML file that needs nothing else, neither files nor a network."""

import json
import re
from collections.abc import Sequence
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from .. import __version__
from . import style
from .data import Study
from .figures import Figure
from .pictures import VEGA_LITE
from .script import SCRIPT
from .sheet import SHEET
from .tables import Table

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="mpicoll {{ version }}">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>{{ sheet }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p>Filled points are measured medians, with bars from quartile to quartile; a sample is the time of the
slowest rank. Hollow points are modelled. Drag to pan, hold Shift and turn the wheel to zoom, double-click to
go back. Hover for all values.</p>
{% if parts|length > 1 %}
<nav aria-label="Studies"><ul>
{% for part in parts %}<li><a href="#{{ part.study.slug }}">{{ part.study.title }}</a></li>
{% endfor %}</ul></nav>
{% endif %}
</header>
<main>
{% for part in parts %}
<section id="{{ part.study.slug }}" aria-labelledby="{{ part.study.slug }}-title">
<h2 id="{{ part.study.slug }}-title">{{ part.study.title }}</h2>
{% for note in part.notes %}<p class="note">{{ note }}</p>
{% endfor %}
<div class="figures">
{% for figure in part.figures %}
<figure id="{{ part.study.slug }}-{{ figure.name }}">
<h3>{{ figure.title }}</h3>
<div class="chart" data-figure="{{ part.study.slug }}-{{ figure.name }}"></div>
<figcaption aria-live="polite">{{ figure.captions[figure.chosen] }}</figcaption>
</figure>
{% endfor %}
</div>
{% for table in part.tables %}
<details{% if table.open %} open{% endif %}>
<summary><h3>{{ table.title }}</h3></summary>
{% if table.about %}<p>{{ table.about }}</p>{% endif %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.title }}"><table>
<thead><tr>{% for column in table.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
</details>
{% endfor %}
</section>
{% endfor %}
</main>
<footer><p>Made by mpicoll {{ version }}.</p></footer>
<script type="application/json" id="report">{{ report }}</script>
<script>{{ bundle }}</script>
<script>{{ script }}</script>
</body>
</html>
"""


def page(title: str, parts: Sequence[tuple[Study, Sequence[Figure], Sequence[Table]]]) -> str:
    """Write the page.

    Parameters
    ----------
    title : str
    parts : sequence of (Study, sequence of Figure, sequence of Table)
        A section each.
    """
    datasets: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for study, figures, _ in parts:
        for figure in figures:
            spec = dict(figure.spec)
            datasets |= spec["datasets"]  # figures of the same rows share them
            spec["datasets"] = list(spec["datasets"])
            shown[f"{study.slug}-{figure.name}"] = {
                "spec": spec,
                "captions": figure.captions,
                "names": figure.names,
            }
    report = {
        "figures": shown,
        "datasets": datasets,
        "themes": {"light": style.config(), "dark": style.config(dark=True)},
    }
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)
    return template.render(
        title=title,
        version=__version__,
        parts=[
            {"study": study, "figures": figures, "tables": tables, "notes": notes(study)}
            for study, figures, tables in parts
        ],
        sheet=Markup(SHEET),
        report=_inside_script(json.dumps(report, separators=(",", ":")).replace("<", "\\u003c")),
        bundle=_inside_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)),
        script=Markup(SCRIPT),
    )


def notes(study: Study) -> list[str]:
    """Say what a reader has to know of a study before its figures."""
    found = []
    if study.wrong:
        found.append(f"Results were wrong, and are left out, of {', '.join(study.wrong)}.")
    if study.machine is None:
        found.append("No machine was given, so nothing is modelled, and there is no bound.")
    else:
        name = study.machine.name or "the given machine"
        found.append(
            f"Modelled on {name}. The bound is that of messages sent one after the other over its best "
            "links: as many latencies as it takes to reach all ranks by doubling, and the bytes that some "
            "rank must send or get."
        )
    if study.left_out:
        found.append(f"Not modelled: {'; '.join(study.left_out)}.")
    return found


def _inside_script(text: str) -> Markup:
    """Keep a text, JSON or a program, from ending the element that it is in: there it is inside a string."""
    return Markup(re.sub(r"<(?=!--|/?script)", r"\\x3c", text, flags=re.IGNORECASE))
