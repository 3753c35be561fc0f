"""``mpicoll run``: a program as it is, with mpicoll's communicators in the place of mpi4py's."""

import atexit
import contextlib
import copyreg
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from .. import statistics
from .program import agree, console

_PREDEFINED = "COMM_WORLD", "COMM_SELF"


class _Options(click.Command):
    """A command whose options end where a program begins; what follows belongs to the program."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        begin = 0
        while args[begin:] and args[begin].startswith("-") and args[begin] not in ("-m", "-c", "-"):
            begin += 2 if args[begin] == "--report-file" else 1
        return super().parse_args(context, [*args[:begin], "--", *args[begin:]])


@click.command("run", cls=_Options, options_metavar="[--report] [--report-file FILE]")
@click.option("--report", is_flag=True, help="At the end, say on stderr which collectives ran what.")
@click.option("--report-file", type=click.Path(dir_okay=False), metavar="FILE", help="Write that as JSON.")
@click.argument("program", nargs=-1, required=True, metavar="SCRIPT|-m MODULE|-c COMMAND|- [ARGUMENT]...")
def command(*, report: bool, report_file: str | None, program: tuple[str, ...]) -> None:
    """Run a Python program as it is, its collectives by mpicoll.

    MPI.COMM_WORLD and MPI.COMM_SELF are mpicoll's, and so is every communicator made from them. Start it
    with mpiexec, as in: mpiexec -n 4 python -m mpicoll run script.py. An exception on one rank ends all.

    MPI is there before the program starts, so what the program sets in mpi4py.rc comes too late; the
    environment does not: MPI4PY_RC_THREAD_LEVEL=serialized and its like. There is no report of a program
    that fails.
    """
    from mpi4py import MPI  # noqa: PLC0415

    native = MPI.COMM_WORLD
    _replace(MPI)
    if report or report_file:
        if MPI.Is_initialized():
            agree(native, _problem(report_file) if native.rank == 0 else None)
        _report_at_end(MPI, native, report, Path(report_file).absolute() if report_file else None)
    try:
        _run(list(program))
    except SystemExit as end:
        if end.code not in (None, 0):
            statistics.active = None  # this rank ends the job, so the others cannot report either
        raise


def _problem(file: str | None) -> str | None:
    """Say why a file cannot be written, before time is spent; for rank 0, which writes it."""
    try:
        if file:
            Path(file).write_text("", encoding="utf-8")
    except OSError as error:
        return f"{file}: {error.strerror}"
    return None


def _replace(module: Any) -> None:
    """Put mpicoll's communicators in the place of those that mpi4py.MPI has from the start."""
    from ..communicator import Communicator  # noqa: PLC0415 - needs MPI

    for name in _PREDEFINED:
        ours = Communicator(getattr(module, name))
        ours.__module__ = module.__name__  # where pickle looks for what goes by name, as theirs do
        setattr(module, name, ours)

    def reduce(comm: Any) -> Any:
        for name in _PREDEFINED:
            ours = getattr(module, name)
            if comm == ours:
                return name if comm is ours else (type(comm), (ours,))
        return comm.__reduce__()

    for kind in (Communicator, module.Intracomm):
        copyreg.pickle(kind, reduce)


def _report_at_end(module: Any, comm: Any, show: bool, file: Path | None) -> None:
    """Start statistics, and report them while MPI is still there: it is finalised after Python's atexit."""
    statistics.start()

    def report() -> None:
        recorded = statistics.active
        if recorded is None or not module.Is_initialized() or module.Is_finalized():
            return
        found = recorded.gathered(comm)
        if found is None:
            return
        if show:
            tables = [statistics.table(found)] if found["methods"] else []
            console("stderr").print(*tables, statistics.verdict(found), sep="\n")
        try:
            if file:
                file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            click.echo(f"mpicoll run: {file}: {error.strerror}", err=True)

    def finalize(original: Callable[[], None] = module.Finalize) -> None:
        report()
        original()

    atexit.register(report)
    module.Finalize = finalize


def _run(program: list[str]) -> None:
    """Run a program; an exception is shown as Python shows it, and ends all ranks as with mpi4py.run."""
    from mpi4py import run  # noqa: PLC0415

    if not sys.flags.isolated:  # a script's folder is seen to
        sys.path[0] = os.getcwd() if program[0] == "-m" else ""
    try:
        with contextlib.redirect_stdout(sys.__stdout__):  # on every rank, as it is the program's
            run.run_command_line(program)
    except SystemExit as end:
        run.set_abort_status(end)
        raise
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        run.set_abort_status(error if interrupted else 1)
        sys.excepthook(type(error), error.with_traceback(_own(error.__traceback__)), error.__traceback__)
        sys.exit(130 if interrupted else 1)


def _own(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that lead to the program."""
    while trace and trace.tb_frame.f_globals.get("__name__") in (__name__, "mpi4py.run", "runpy"):
        trace = trace.tb_next
    return trace
