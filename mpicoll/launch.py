"""Start MPI programs: the one place that knows launchers and their workarounds.

Imports neither MPI nor anything that costs start-up time, so that it serves the command line before it
has decided to start MPI, the tests, and the benchmark programs alike.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAUNCHED = "MPICOLL_LAUNCHED"  # set for programs that `become` started: which of its streams are terminals

# Where launchers tell a process its rank, before MPI is initialised.
_RANK_VARIABLES = (
    "PMI_RANK",  # MPICH, Intel MPI, Cray MPICH, srun --mpi=pmi2, Flux
    "PMIX_RANK",  # Open MPI, srun --mpi=pmix
    "OMPI_COMM_WORLD_RANK",  # Open MPI before 5
    "PALS_RANKID",  # HPE PALS
    "JSM_NAMESPACE_RANK",  # IBM jsrun
)


def rank() -> int | None:
    """Return the rank that the launcher gave this process, or None if nothing launched it."""
    for variable in _RANK_VARIABLES:
        if variable in os.environ:
            return int(os.environ[variable])
    # Batch scripts and interactive shells carry SLURM_PROCID=0 too: it says something only within a step
    # of several tasks.
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return int(os.environ["SLURM_PROCID"])
    return None


def cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def mpiexec(prefix: str | os.PathLike[str] = sys.prefix) -> str:
    """Find the launcher of the MPI library in a Python environment.

    Parameters
    ----------
    prefix : path, optional
        The environment; this Python's own unless given. Wheels and conda put their ``mpiexec`` beside its
        interpreter. A library that the system or a module provides has its launcher on PATH.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    found = shutil.which("mpiexec", path=str(Path(prefix, "bin"))) or shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError(f"launch: no mpiexec in {Path(prefix, 'bin')} nor on PATH")
    return found


@functools.cache
def _is_open_mpi(launcher: str) -> bool:
    answer = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return "Open MPI" in answer.stdout or "OpenRTE" in answer.stdout


def command(n: int, argv: Sequence[str], prefix: str | os.PathLike[str] = sys.prefix) -> list[str]:
    """Return the command that starts a program on `n` ranks.

    Parameters
    ----------
    n : int
        Number of ranks.
    argv : sequence of str
        The program and its arguments, for example ``[sys.executable, "program.py"]``.
    prefix : path, optional
        The Python environment whose ``mpiexec`` is wanted, see :func:`mpiexec`.
    """
    launcher = mpiexec(prefix)
    # Open MPI refuses more ranks than cores unless asked; the others do not know the option.
    more_than_cores = ["--oversubscribe"] if _is_open_mpi(launcher) else []
    return [launcher, *more_than_cores, "-n", str(n), *argv]


def environment(n: int = 1) -> dict[str, str]:
    """Return the environment for a program on `n` ranks of this machine.

    What the caller's environment sets stays. A variable means something to one implementation only, so all
    of them are set whichever it is. MPICH and Intel MPI need none.
    """
    workarounds = {
        # Without it, the one-sided component over UCX complains on every window where UCX finds no network.
        "OMPI_MCA_osc": "^ucx",
    }
    if os.geteuid() == 0:  # containers: Open MPI asks for both before it starts anything as root
        workarounds |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if n > len(cores()):  # a rank that waits would otherwise keep the core from the one it waits for
        workarounds["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return workarounds | os.environ


def run(
    n: int,
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    prefix: str | os.PathLike[str] = sys.prefix,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program on `n` ranks, wait for it, and return its exit status and what it printed.

    Parameters
    ----------
    n, argv, prefix
        As for :func:`command`.
    timeout : float, optional
        Seconds after which the job is ended.
    **options
        For :class:`subprocess.Popen`. Output is captured as text unless `stdout` or `stderr` says otherwise;
        variables in `env` are added to :func:`environment`.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes longer than `timeout`; no rank is left behind.
    """
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    options["env"] = environment(n) | dict(options.get("env") or {})
    started = command(n, argv, prefix)
    with subprocess.Popen(started, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.terminate()  # not kill: the launcher must live to end its ranks
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(started, process.returncode, out, err)


def become(n: int, argv: Sequence[str]) -> None:
    """Replace this process by a program on `n` ranks.

    Launchers pass a program's output on through pipes, so the program cannot see where it ends: it is told
    through the environment whether that is a terminal, and how wide.
    """
    terminals = [name for name in ("stdout", "stderr") if getattr(sys, name).isatty()]
    env = environment(n) | {LAUNCHED: " ".join(terminals)}
    if terminals:
        env["COLUMNS"] = str(shutil.get_terminal_size().columns)
    sys.stdout.flush()
    started = command(n, argv)
    os.execvpe(started[0], started, env)


def is_terminal(stream: str) -> bool:
    """Whether what this rank prints to ``"stdout"`` or ``"stderr"`` ends in a terminal, if that is known."""
    if LAUNCHED in os.environ:
        return stream in os.environ[LAUNCHED].split()
    # Open MPI gives its ranks a pseudo-terminal for stdout even where it ends in a file.
    return getattr(sys, stream).isatty() and (stream == "stderr" or rank() is None)
