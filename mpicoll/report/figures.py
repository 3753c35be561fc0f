"""Each figure of a study, described once for the page, PNG and SVG."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import charts, sentences, units
from .charts import BUSBW, EFFICIENCY, SECONDS, Choice, Quantity
from .data import MEASURED, Row, Study, add_efficiency
from .winners import winners


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes
    ----------
    name, title : str
        For files, and for people.
    spec : dict
        Vega-Lite, without configuration.
    captions : dict of int to str
        What is seen, for each value of what a select chooses; or under 0 where there is no select.
    names : list of str
        What is in the legend.
    chosen : int
        The value at first.
    """

    name: str
    title: str
    spec: dict[str, Any]
    captions: dict[int, str]
    names: list[str]
    chosen: int = 0

    def on_paper(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give a name and the description for each value that there is to choose, its caption above it."""
        for value, caption in self.captions.items():
            spec = copy.deepcopy(self.spec)
            for parameter in spec.get("params", []):
                if parameter["name"] == "chosen":
                    parameter["value"] = value
            spec["description"] = caption
            yield (f"{self.name}_{value}" if value else self.name), spec


def figures(study: Study) -> list[Figure]:
    """Describe all figures of a study."""
    add_efficiency(study)
    cells = winners(study)
    scaled = len(study.values("ranks")) > 1
    quantities = [SECONDS, BUSBW] if study.vector else [SECONDS]
    found = [_over_size(study, cells, quantity) for quantity in quantities if len(study.values("load")) > 1]
    found += [_over_ranks(study, cells, quantity) for quantity in quantities if scaled]
    found += [_map(study, cells)] if cells else []
    return found + ([_over_ranks(study, cells, EFFICIENCY)] if scaled else [])


def _over_size(study: Study, cells: list[Row], quantity: Quantity) -> Figure:
    measured = study.values("ranks", MEASURED)
    values = study.values("ranks")
    labels = [str(p) if p in measured else f"{p}, modelled" for p in values]
    choice = Choice("ranks", "ranks", values, labels, measured[-1])
    captions = {p: sentences.curves(study, cells, "ranks", p, quantity.name) for p in values}
    axis = charts.size_axis("size of the vector", study.values("size"))
    return _figure(study, "size", axis, quantity, choice, captions)


def _over_ranks(study: Study, cells: list[Row], quantity: Quantity) -> Figure:
    loads = study.values("load")
    labels = [units.format_size(load) if study.vector else "no vector" for load in loads]
    choice = Choice("load", "bytes a rank" if study.weak else "size", loads, labels, loads[-1])
    if quantity is EFFICIENCY:
        captions = {load: sentences.efficiency(study, load) for load in loads}
    else:
        captions = {load: sentences.curves(study, cells, "load", load, quantity.name) for load in loads}
    axis = charts.ranks_axis(study.values("ranks"))
    return _figure(study, "ranks", axis, quantity, choice, captions)


def _figure(
    study: Study, over: str, axis: Any, quantity: Quantity, choice: Choice, captions: dict[int, str]
) -> Figure:
    title = f"{quantity.short.capitalize()} over {over}"
    spec = charts.curves(study.rows, axis, quantity, choice, study.series).to_dict()
    spec["description"] = f"{title}: {study.title}. {captions[choice.chosen]}"
    drawn = [item for item in study.rows if item[quantity.name] is not None]
    names = charts.in_legend(drawn, study.series)
    name = f"{quantity.short.replace(' ', '_')}_over_{over}"
    return Figure(name, title, spec, captions, names, choice.chosen)


def _map(study: Study, cells: list[Row]) -> Figure:
    title = "bytes a rank" if study.weak else "size of the vector"
    spec = charts.best_map(cells, title, study.series).to_dict()
    caption = sentences.best_map(cells)
    spec["description"] = f"Best algorithm: {study.title}. {caption}"
    return Figure(
        "best",
        "Best algorithm over size and ranks",
        spec,
        {0: caption},
        charts.in_legend(cells, study.series),
    )
