"""``mpicoll draw``: a picture of a schedule."""

from typing import Any

import click

from ..bench import words
from ..schedule import find
from ..schedule.drawing import draw
from .program import parsed


@click.command("draw")
@click.argument("algorithm", callback=parsed(words.parse_algorithm))
@click.option(
    "-n", "ranks", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of ranks."
)
@click.option("--per-node", type=click.IntRange(1), metavar="M", help="For two levels: ranks on a node.")
@click.option("--collective", default="allreduce", show_default=True)
@click.option(
    "-o",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="An SVG file; stdout unless given.",
)
def command(
    algorithm: tuple[str, dict[str, Any]], ranks: int, per_node: int | None, collective: str, file: str
) -> None:
    """Draw an algorithm's steps as an SVG picture.

    Parameters follow a colon: mpicoll draw binary_tree:chunks=3 -n 7 -o tree.svg
    """
    name, parameters = algorithm
    per_node = per_node or ranks
    nodes = tuple(tuple(range(first, min(first + per_node, ranks))) for first in range(0, ranks, per_node))
    try:
        schedule = find(collective, name)
        if schedule.pipelined:
            parameters = {"chunks": 1} | parameters
        picture = draw(schedule.schedule(ranks, nodes=nodes, **parameters))
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    try:
        with click.open_file(file, "w") as out:
            out.write(picture)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
