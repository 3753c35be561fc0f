"""``mpicoll predict``: how well data-parallel training scales, by sums."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..bench import words
from ..model.network import Link
from ..model.predict import ALGORITHMS, MOST_RANKS, Exchange, Prediction, Training, most_ranks
from ..model.predict import predict as predicted
from .program import console, parsed

if TYPE_CHECKING:
    from rich.table import Table

GOOD = 0.9  # the efficiency that is looked for
_LEGEND = (
    "traffic: over the busiest link; waiting: what overlap does not hide; share: of waiting in a step\n"
    "0.9 needs: the bandwidth for that efficiency; server: the efficiency with a parameter server"
)
_PREFIXES = {1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1: "", 1e-3: "m", 1e-6: "u"}


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number, expected one such as 7e9 or 0.3")
    return value


def _ranks(text: str) -> list[int]:
    counts = words.parse_sizes(text)
    for count in counts:
        if not 1 <= count <= MOST_RANKS:
            raise ValueError(f"{count} ranks given, expected 1 to {MOST_RANKS}")
    return counts


@click.command("predict")
@click.option(
    "--parameters",
    required=True,
    callback=parsed(_finite),
    metavar="NUMBER",
    help="Parameters of the model, such as 7e9; each has a gradient.",
)
@click.option(
    "--dtype",
    type=click.Choice(words.DTYPES),
    default="float32",
    show_default=True,
    metavar="NAME",
    help=f"Of the gradients: one of {', '.join(words.DTYPES)}.",
)
@click.option(
    "--ranks",
    required=True,
    callback=parsed(_ranks),
    metavar="RANKS",
    help="Numbers of ranks, often GPUs: numbers, ranges a:b:xK (times K) and a:b:+K (plus K) with both "
    "ends, and commas between. Several get a row each.",
)
@click.option(
    "--bandwidth",
    required=True,
    callback=parsed(_finite),
    metavar="B/S",
    help="Bytes that a rank can send each second, such as 400e9.",
)
@click.option(
    "--latency",
    default="0",
    show_default=True,
    callback=parsed(_finite),
    metavar="SECONDS",
    help="What a message takes even if it is empty, such as 10e-6.",
)
@click.option(
    "--compute",
    required=True,
    callback=parsed(_finite),
    metavar="SECONDS",
    help="What a rank computes until it has gradients, forwards and backwards, once.",
)
@click.option(
    "--buckets",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="In which the gradients are brought together, each while later ones are computed.",
)
@click.option(
    "--backward",
    default="2/3",
    show_default=True,
    callback=parsed(lambda text: 2 / 3 if text == "2/3" else _finite(text)),
    metavar="SHARE",
    help="The share of a computation in which gradients become ready, 0 to 1.",
)
@click.option(
    "--accumulate",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="Computations whose gradients are added up before they are brought together.",
)
@click.option(
    "--algorithm",
    type=click.Choice(list(ALGORITHMS)),
    default="ring",
    show_default=True,
    metavar="NAME",
    help=f"Of the all-reduce: one of {', '.join(ALGORITHMS)}.",
)
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write one record for each number of ranks; to stdout, instead of the table, if it is -.",
)
def command(
    parameters: float,
    dtype: str,
    ranks: list[int],
    bandwidth: float,
    latency: float,
    compute: float,
    buckets: int,
    backward: float,
    accumulate: int,
    algorithm: str,
    file: str | None,
) -> None:
    """Predict how well data-parallel training scales.

    Every rank computes the gradients of its own data; an all-reduce adds up those of all ranks, and all
    wait for it. Where a step takes Tc to compute and Tm to communicate, the efficiency is Tc / (Tc + Tm).
    Each rank has as much to compute on any number of ranks. Combining is taken as free, and links as shared
    by nobody.

    With --buckets the all-reduce overlaps with the backward pass: gradients become ready evenly over it,
    the all-reduce of a bucket begins when it is ready and that of the one before is through, and each pays
    for its own latency. With --accumulate there is one all-reduce for several computations.

    mpicoll predict --parameters 7e9 --dtype float16 --ranks 8 --bandwidth 400e9 --compute 0.3
    """
    try:
        training = Training(parameters, dtype, compute, buckets, accumulate, backward)
        link = Link(latency, bandwidth)
        found = [predicted(training, count, link, algorithm) for count in ranks]
        most = most_ranks(GOOD, training, link, algorithm)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(str(error)) from None
    if file is not None:
        _write(file, [_record(one, training, link, algorithm, most) for one in found])
    if file == "-":
        return
    out = console()
    out.print(_heading(training, link, algorithm), style="bold", soft_wrap=True)
    out.print(_sheet(found[0], training, algorithm) if len(found) == 1 else _rows(found))
    if len(found) > 1:
        out.print(_LEGEND, style="dim")
    out.print(_limit(most))


def _record(one: Prediction, training: Training, link: Link, algorithm: str, most: int) -> dict[str, Any]:
    """Describe one row; times are in seconds."""
    asked = asdict(training) | {"latency": link.latency, "bandwidth": link.bandwidth}
    return {"algorithm": algorithm, **asked, "nbytes": training.nbytes, **asdict(one), "most_ranks": most}


def _write(file: str, records: list[dict[str, Any]]) -> None:
    try:
        with click.open_file(file, "w") as out:
            out.writelines(json.dumps(record) + "\n" for record in records)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None


def _heading(training: Training, link: Link, algorithm: str) -> str:
    return (
        f"{training.parameters:g} gradients in {training.dtype}: {_human(training.nbytes, 'B')}; "
        f"{algorithm} at {_human(link.bandwidth, 'B/s')} and {_human(link.latency, 's')} a message"
    )


def _sheet(one: Prediction, training: Training, algorithm: str) -> "Table":
    """Show one number of ranks: what, how much, and how it comes about."""
    from rich.table import Table  # noqa: PLC0415 - takes a tenth of a second

    whole, n, k = one.exchange, training.buckets, training.accumulate
    buckets = [
        (f"all-reduce of {n} buckets", _human(one.communication, "s"), f"{n} times the latency"),
        ("hidden behind computing", _human(one.hidden, "s"), _of(one.hidden, one.communication)),
    ]
    rows = [
        ("ranks", str(one.ranks), "each computes gradients of its own data"),
        _traffic(one, algorithm),
        ("all-reduce", _human(whole.seconds, "s"), _parts(whole)),
        *(buckets if n > 1 else []),
        ("computing", _human(training.computing, "s"), f"{k} times, then one all-reduce" if k > 1 else ""),
        ("waiting for gradients", _human(one.exposed, "s"), f"{one.share:.1%} of a step"),
        ("a step", _human(one.step, "s"), ""),
        ("efficiency", f"{one.efficiency:.3f}", "computing / a step"),
        ("speed-up", f"{one.speedup:.4g}", f"{one.ranks} ranks x efficiency"),
        ("0.5 needs", *_from(one.half)),
        ("0.9 needs", *_from(one.most)),
    ]
    if algorithm != "star":
        server = (
            f"{_human(one.server.traffic, 'B')} through its centre take {_human(one.server.seconds, 's')}"
        )
        rows.append(("a parameter server", f"{one.server_efficiency:.3f}", f"efficiency: {server}"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", style="green")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _traffic(one: Prediction, algorithm: str) -> tuple[str, str, str]:
    if algorithm == "star":
        return "through the centre", _human(one.exchange.traffic, "B"), "2 (p-1) vectors, in and out again"
    return "sent over a link", _human(one.exchange.traffic, "B"), "at most, in one direction"


def _parts(whole: Exchange) -> str:
    return (
        f"{_human(whole.transfer, 's')} for the bytes + {_human(whole.latency, 's')} for "
        f"{whole.messages} messages in a row"
    )


def _from(bandwidth: float | None) -> tuple[str, str]:
    """Say which bandwidth an efficiency needs."""
    if bandwidth is None:
        return "-", "out of reach at any bandwidth: the latency alone takes too long"
    return (
        (_human(bandwidth, "B/s"), "of bandwidth at least, for that efficiency")
        if bandwidth
        else ("-", "always")
    )


def _rows(found: list[Prediction]) -> "Table":
    """Show several numbers of ranks, a row each."""
    from rich.table import Table  # noqa: PLC0415 - takes a tenth of a second

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (
        *(
            "ranks",
            "traffic",
            "bytes take",
            "latency",
            "waiting",
            "a step",
            "share",
            "efficiency",
            "speed-up",
        ),
        *("0.9 needs", "server"),
    ):
        table.add_column(name, justify="right")
    for one in found:
        whole = one.exchange
        table.add_row(
            str(one.ranks),
            _human(whole.traffic, "B"),
            _human(whole.transfer, "s"),
            _human(whole.latency, "s"),
            _human(one.exposed, "s"),
            _human(one.step, "s"),
            f"{one.share:.1%}",
            f"{one.efficiency:.3f}",
            f"{one.speedup:.4g}",
            _from(one.most)[0],
            f"{one.server_efficiency:.3f}",
        )
    return table


def _limit(most: int) -> str:
    if most == 1:
        return f"No two ranks reach an efficiency of {GOOD} with these figures."
    if most == MOST_RANKS:
        return f"The efficiency stays {GOOD} or more up to {most} ranks and beyond."
    return f"The efficiency is {GOOD} or more up to {most} ranks."


def _of(part: float, whole: float) -> str:
    return f"{part / whole:.0%} of it" if whole else ""


def _human(value: float, unit: str) -> str:
    """Write a figure with four digits and a decimal prefix: ``24.5 GB``, ``61.25 ms``."""
    scale = next((scale for scale in _PREFIXES if value >= scale), min(_PREFIXES)) if value else 1
    return f"{value / scale:.4g} {_PREFIXES[scale]}{unit}"
