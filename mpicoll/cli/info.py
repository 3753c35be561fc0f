"""``mpicoll info``: what runs here, and with what."""

import ctypes
import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .program import console, start_mpi

if TYPE_CHECKING:
    from mpi4py import MPI


@click.command("info")
@click.option(
    "--probe", is_flag=True, help="Let two ranks try whether MPI takes device memory, for up to a minute."
)
def command(*, probe: bool) -> None:
    """Show the MPI library, the ranks and where they are, the transports, threads, and GPU support.

    Under mpiexec it describes the job, alone this machine.
    """
    from mpi4py import MPI  # noqa: PLC0415 - starts MPI as programs do, at the thread level asked for

    world = start_mpi()
    from .. import launch, topology  # noqa: PLC0415
    from ..bench.provenance import provenance  # noqa: PLC0415

    where = provenance(world)
    nodes = topology.nodes(world)
    aware = _aware(world, probe) if probe or world.rank == 0 else ""
    places = world.gather((MPI.Get_processor_name(), launch.cores()))
    if places is None:
        return
    lines = {
        "mpicoll": f"{where['mpicoll']} with Python {where['python']}, "
        + ", ".join(f"{name} {where[name]}" for name in ("mpi4py", "numpy", "numba")),
        "MPI library": f"{where['mpi']}, MPI {where['mpi_standard']}, ABI: {where['mpi_abi']}",
        "launcher": _launcher(),
        "ranks": f"{where['ranks']} on {len(nodes)} node{'s' if len(nodes) > 1 else ''}",
    }
    for number, ranks in enumerate(nodes):
        host, cores = places[ranks[0]][0], len(set.union(*(places[rank][1] for rank in ranks)))
        lines[f"  node {number}"] = f"{host}: {_ranks(ranks)}, {cores} core{'s' if cores > 1 else ''}"
    lines["transports"] = _transports()
    lines["progress"] = _progress()
    lines["settings"] = _settings()
    lines["GPUs"] = _gpus()
    lines["CUDA-aware"] = aware
    lines["GPU support"] = _said_and_installed()
    out = console()
    for name, text in lines.items():
        out.print(f"[bold]{name:12}[/]  {text}", markup=True, soft_wrap=True)


def _launcher() -> str:
    from .. import launch  # noqa: PLC0415

    try:
        return launch.mpiexec()
    except FileNotFoundError:
        return "no mpiexec beside this Python nor on PATH"


def _ranks(ranks: Sequence[int]) -> str:
    """Write ranks briefly: ``ranks 0 to 3``."""
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _transports() -> str:
    """Say how bytes can get from rank to rank here."""
    from ..transports import libmpi, shared  # noqa: PLC0415 - needs MPI

    missing = []
    for function in libmpi.FUNCTIONS:
        try:
            libmpi.address(function)
        except AttributeError:
            missing.append(function)
    if missing:
        return f"message, reference engine only: no {', '.join(missing)}"
    if not os.access(shared.FOLDER, os.W_OK):
        return f"message, compiled engine; no shared memory: {shared.FOLDER} cannot be written"
    return f"message, shared ({shared.FOLDER}), compiled engine"


def _progress() -> str:
    """Say where nonblocking collectives go on, at the thread level that the MPI library provides."""
    from mpi4py import MPI  # noqa: PLC0415

    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    level = {getattr(MPI, f"THREAD_{name}"): f"MPI_THREAD_{name}" for name in names}[MPI.Query_thread()]
    where = (
        "in the background" if level == "MPI_THREAD_MULTIPLE" else "inside Wait, Test or the next collective"
    )
    return f"{where} ({level})"


def _settings() -> str:
    """Say what the environment asks for, and what is in the tuned table that it names."""
    from .. import selection, tuning  # noqa: PLC0415 - are not needed for --help

    given = selection.environment()
    said = [f"{name}={value}" for name, value in given.items()]
    try:
        selection.check_environment(given)
        if file := given.get(selection.TUNING):
            rows = tuning.parse(tuning.read(file), file).rows
            counts = Counter(f"{row.ranks} ranks on {row.nodes} node{'s'[: row.nodes > 1]}" for row in rows)
            said.append(
                ", ".join(f"{n} row{'s'[: n > 1]} for {where}" for where, n in counts.items()) or "no rows"
            )
    except ValueError as error:
        said.append(f"not right: {error}")
    return "; ".join(said) or "none in the environment"


def _gpus() -> str:
    """Say which devices this process sees, or why none."""
    from ..device import driver  # noqa: PLC0415

    if trouble := driver.trouble():
        return f"none: {trouble}"
    names = Counter(driver.name(device) for device in range(driver.count()))
    version = driver.get("cuDriverGetVersion") & 0xFFFFFFFF
    models = ", ".join(f"{number} x {name}" for name, number in names.items())
    return f"{models}; driver for CUDA {version // 1000}.{version % 1000 // 10}"


def _aware(world: "MPI.Intracomm", probe: bool) -> str:
    """Say whether the MPI library takes device memory, if that is known; collective where it is tried."""
    from ..device import aware, driver  # noqa: PLC0415 - needs MPI

    try:
        answer = aware.agreed(world, fresh=True) if probe else aware.known()
    except ValueError as error:
        return str(error)
    if answer is None:
        return "not known; info --probe, started as a job of yours is, tries it in up to a minute"
    if answer.reason == driver.trouble():
        return "no: there is no GPU"
    what = "messages and collectives" if answer.collectives else "messages"
    return f"yes, {what}: {answer.reason}" if answer.messages else f"no: {answer.reason}"


def _said_and_installed() -> str:
    """Say what the MPI library says of itself, and which packages there are."""
    from mpi4py import MPI  # noqa: PLC0415

    library = ctypes.CDLL(MPI.__file__)
    aware = []
    for name, function in (("CUDA", "MPIX_Query_cuda_support"), ("ROCm", "MPIX_Query_rocm_support")):
        answer = getattr(library, function, None)
        aware.append(f"{name}-aware: {'not said' if answer is None else 'yes' if answer() else 'no'}")
    packages = [name for name in ("cupy", "jax", "numba_cuda", "torch") if importlib.util.find_spec(name)]
    return f"the MPI library says: {', '.join(aware)}; Python packages: {', '.join(packages) or 'none'}"
