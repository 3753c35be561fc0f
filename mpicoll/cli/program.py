"""How every command behaves: errors in one line and once, a traceback ends the job, MPI only where needed."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from .. import launch

if TYPE_CHECKING:
    from mpi4py import MPI
    from rich.console import Console

T = TypeVar("T")

# the commands that run on all ranks; the others are rank 0's alone
COLLECTIVE = ("bench", "fit", "guidelines", "info", "run", "study", "tune")


class Program(click.Group):
    """A click group for a program that runs as one process or as many."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run, and exit with the status that the command returns.

        A wrong command line exits with 2 on rank 0, and any other exception ends all ranks with 1.
        """
        extra["standalone_mode"] = False
        try:
            with contextlib.ExitStack() as stack:
                if not is_first():  # help, versions and the like are the same on all ranks
                    nowhere = stack.enter_context(open(os.devnull, "w"))
                    stack.enter_context(contextlib.redirect_stdout(nowhere))
                status = super().main(*args, **extra)
        except click.ClickException as error:
            status = 0  # a launcher that sees a rank fail may end rank 0 before it has spoken
            if is_first():
                status = error.exit_code
                where = (
                    error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "mpicoll"
                )
                click.echo(f"{where}: {' '.join(error.format_message().split())}", err=True)
        except (click.Abort, KeyboardInterrupt):
            status = 130
        except BrokenPipeError:  # of `mpicoll list | head`; what is left to print goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        except Exception:
            status = _abort()
        sys.exit(status)


def is_first() -> bool:
    """Whether this process speaks for all: rank 0, or one that nothing launched."""
    mpi = _mpi_in_use()
    return mpi.COMM_WORLD.rank == 0 if mpi else launch.rank() in (None, 0)


def start_mpi() -> "MPI.Intracomm":
    """Initialise MPI and return its world."""
    import mpi4py  # noqa: PLC0415 - commands that need no MPI must not load it

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    from mpi4py import MPI  # noqa: PLC0415

    if not MPI.Is_initialized():
        MPI.Init_thread()
    return MPI.COMM_WORLD


def agree(comm: "MPI.Intracomm", problem: str | None) -> None:
    """Let rank 0 decide that the command line asks for something impossible; raises on all ranks."""
    problem = comm.bcast(problem)
    if problem is not None:
        raise click.UsageError(problem)


def parsed(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str], T]:
    """Make an option's callback from a function that raises ValueError."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: str) -> T:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def console(stream: str = "stdout") -> "Console":
    """Return rich's console for rank 0; a stream that is not a terminal is 120 columns wide."""
    from rich.console import Console  # noqa: PLC0415 - takes a tenth of a second, and other ranks need none

    terminal = launch.is_terminal(stream)
    return Console(
        stderr=stream == "stderr",
        force_terminal=terminal,
        width=None if terminal else 120,
        highlight=False,
        emoji=False,
        markup=False,
    )


def _mpi_in_use() -> Any:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi if mpi and mpi.Is_initialized() and not mpi.Is_finalized() else None


def _abort() -> int:
    """Print the traceback, and end all ranks if there are others."""
    rank = launch.rank()
    if rank is not None:
        print(f"mpicoll: rank {rank} failed:", file=sys.stderr)
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if rank is not None or _mpi_in_use():
        # Ranks that are starting MPI wait for this one, even if it exits: so join them first, then abort.
        start_mpi().Abort(1)
    return 1
