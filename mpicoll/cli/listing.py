"""``mpicoll list``: what there is to choose from."""

import inspect
import sys

import click

from ..schedule import Algorithm
from ..schedule import algorithms as registered
from .program import console


@click.command("list")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the algorithms: what each needs, and what it costs.

    With the NAME of a collective, its algorithms only; with that of an algorithm, its page: a picture,
    the steps, its limits and its source.

    Costs are for p ranks: the steps on the critical path, and what a rank sends at most, in vectors; for
    S chunks, and for n nodes of up to m ranks with L leaders each. The proof checks them.
    """
    collectives = dict.fromkeys(algorithm.collective for algorithm in registered())
    if name is not None and name not in collectives:
        click.echo(_page(name))
        return
    from rich.text import Text  # noqa: PLC0415 - takes a tenth of a second

    out = console()
    for collective in [name] if name else collectives:
        found = registered(collective)
        width = max(len(algorithm.name) for algorithm in found)
        out.print(Text(collective, style="bold"))
        for algorithm in found:
            text = Text(f"  {algorithm.name:{width}}", style="green")
            text.append(f"  {needs(algorithm)}\n", style="yellow")
            text.append(f"    {algorithm.summary}\n", style="default")
            text.append(f"    steps {algorithm.steps}; a rank sends {algorithm.sent}", style="dim")
            out.print(text, soft_wrap=True)


def needs(algorithm: Algorithm) -> str:
    """Say in words what an algorithm needs; "" for nothing."""
    found = [
        need
        for need, holds in (
            ("an op that commutes", algorithm.commutative),
            (algorithm.ranks, algorithm.ranks != ""),
            ("several nodes to be of use", algorithm.two_level),
            (f"at most {algorithm.limit} bytes", algorithm.limit is not None),
        )
        if holds
    ]
    return f"needs {', '.join(found)}" if found else ""


def _page(name: str) -> str:
    """Return what the files with an algorithm of that name say of it."""
    named = [algorithm for algorithm in registered() if algorithm.name == name]
    if not named:
        known = ", ".join(dict.fromkeys(algorithm.name for algorithm in registered()))
        raise click.BadParameter(f"{name!r} is neither a collective nor one of {known}", param_hint="NAME")
    modules = dict.fromkeys(algorithm.function.__module__ for algorithm in named)
    pages = [inspect.getdoc(sys.modules[module]) or named[0].summary for module in modules]
    return "\n\n\n".join(pages)
