"""The command line, ``mpicoll`` and ``python -m mpicoll``."""

import click

from .. import __version__
from . import bench, draw, fit, guidelines, info, listing, predict, report, run, simulate, study, tune, verify
from .program import COLLECTIVE, Program, is_first

__all__ = ["main", "program"]


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """See, prove, run and measure collective communication on MPI."""
    if context.invoked_subcommand not in COLLECTIVE and not is_first():
        context.exit()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _module in (
    run,
    bench,
    listing,
    verify,
    draw,
    info,
    fit,
    predict,
    report,
    study,
    simulate,
    tune,
    guidelines,
):
    program.add_command(_module.command)


def main() -> None:
    """Run the command line of this process."""
    program.main(prog_name="mpicoll")
