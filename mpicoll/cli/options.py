"""What several commands have in common: options with one name and meaning, and what is made of them."""

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from .. import launch
from ..bench import words

if TYPE_CHECKING:
    import numpy as np

RANKS = click.option(
    "-n", "ranks", type=click.IntRange(1), metavar="RANKS", help="Start so many ranks, without mpiexec."
)
DTYPE = click.option(
    "--dtype",
    type=click.Choice(words.DTYPES),
    default="float64",
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(words.DTYPES)}.",
)
OP = click.option(
    "--op",
    type=click.Choice(list(words.OPS), case_sensitive=False),
    default="SUM",
    show_default=True,
    metavar="NAME",
    help=f"For those that reduce: one of {', '.join(words.OPS)}.",
)


def start_ranks(ranks: int | None) -> None:
    """Become the ranks that -n asks for, unless this is one of them."""
    if ranks is None or launch.LAUNCHED in os.environ:
        return
    if launch.rank() is not None:
        raise click.UsageError("-n cannot be given under mpiexec, which has said how many ranks there are")
    try:
        launch.become(ranks, [sys.executable, "-m", "mpicoll", *sys.argv[1:]])
    except OSError as error:
        raise click.ClickException(str(error)) from None


def elements(dtype: str, op: str) -> "np.dtype[Any]":
    """Give the dtype of that name; raise what is wrong with it, or with an op on it, which may be none."""
    try:
        if op:
            words.check_op(op, dtype)
        from ..bench import data  # noqa: PLC0415 - NumPy, which --help does not need

        return data.find_dtype(dtype)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
