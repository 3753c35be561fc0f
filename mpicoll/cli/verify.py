"""``mpicoll verify``: the proof of every algorithm at every number of ranks."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from ..bench import words
from ..schedule import algorithms as registered
from ..schedule.proof import Verdict
from ..schedule.proof import verify as prove_all
from .program import console, parsed

_SHOWN = 3  # failures of one algorithm that are printed


def _names(text: str | None) -> list[str] | None:
    known = dict.fromkeys(algorithm.name for algorithm in registered())
    names = text.split(",") if text else None
    for name in names or []:
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
    return names


@click.command("verify")
@click.option(
    "--ranks",
    default="1:33",
    show_default=True,
    callback=parsed(words.parse_sizes),
    help="Numbers of ranks: numbers, ranges with both ends, and commas between.",
)
@click.option("--collective", help="Only this one.")
@click.option("--algorithms", "names", callback=parsed(_names), metavar="NAME,...", help="Only these.")
@click.option("--json", "file", type=click.File("w", lazy=False), help="Write one record for each case.")
def command(ranks: list[int], collective: str | None, names: list[str] | None, file: Any) -> int:
    """Prove the algorithms without running them.

    Each schedule is executed symbolically, with several values of its parameters and many placements on
    nodes: every contribution is in every result exactly once, all ranks get the same bits, it ends even
    if every send waits for its receive, and it costs what is registered. The exit status is 1 if
    anything is not so.
    """
    if 0 in ranks:
        raise click.BadParameter("0 ranks given, expected at least 1", param_hint="--ranks")
    known = dict.fromkeys(algorithm.collective for algorithm in registered())
    if collective not in (None, *known):
        message = f"{collective!r} is not one of {', '.join(known)}"
        raise click.BadParameter(message, param_hint="--collective")
    if names and not {algorithm.name for algorithm in registered(collective)}.intersection(names):
        raise click.UsageError(f"{collective} has no algorithm {' or '.join(names)}")
    out = console()
    width = max(len(algorithm.name) for algorithm in registered(collective))
    columns = "{:%d} {:14} {:>8} {:>5} {:10} {}" % width  # noqa: UP031
    out.print(columns.format("algorithm", "collective", "ranks", "cases", "operands", "result"), style="bold")
    total = wrong = 0
    for algorithm, group in groupby(
        prove_all(ranks, collective, names), key=lambda verdict: verdict.algorithm
    ):
        found = list(group)
        failed = [verdict for verdict in found if not verdict.ok]
        out.print(
            columns.format(
                algorithm.name,
                algorithm.collective,
                _span([verdict.size for verdict in found]),
                len(found),
                "rank order" if all(v.proof and v.proof.rank_order for v in found) else "any order",
                f"{len(failed)} wrong" if failed else "proved",
            ),
            style="red" if failed else "green",
        )
        for verdict in failed[:_SHOWN]:
            out.print(f"  {verdict.message}{_case(verdict)}", style="red", soft_wrap=True)
        if file:
            file.writelines(json.dumps(_record(verdict)) + "\n" for verdict in found)
        total, wrong = total + len(found), wrong + len(failed)
    out.print(f"{total} cases, {wrong} wrong", style="bold red" if wrong else "bold green")
    return int(wrong > 0)


def _record(verdict: Verdict) -> dict[str, Any]:
    """Describe one case."""
    proof = verdict.proof
    found: dict[str, Any] = {}
    if proof:
        found = {
            name: getattr(proof, name)
            for name in ("rank_order", "uniform", "rounds", "vectors", "expression")
        }
        found |= {name: float(getattr(proof, name)) for name in ("sent_max", "sent_total", "reductions_max")}
    return {
        "collective": verdict.algorithm.collective,
        "algorithm": verdict.algorithm.name,
        "ranks": verdict.size,
        "parameters": verdict.parameters,
        "placement": verdict.placement,
        "ok": verdict.ok,
        "message": verdict.message,
        **found,
    }


def _case(verdict: Verdict) -> str:
    settings = [f"{name}={value}" for name, value in verdict.parameters.items() if name != "nodes"]
    return f" (p = {', '.join([str(verdict.size), *settings, *filter(None, [verdict.placement])])})"


def _span(sizes: Sequence[int]) -> str:
    first, last = min(sizes), max(sizes)
    return str(first) if first == last else f"{first} to {last}"
