"""What runs where: it goes into every record."""

import importlib.metadata
import platform
import shlex
import sys
from datetime import datetime, timezone

from mpi4py import MPI

from .. import __version__, launch, topology
from .records import Record


def provenance(comm: MPI.Intracomm) -> Record:
    """Describe what runs where; collective.

    Returns
    -------
    dict
        Versions of the packages and of the MPI library, its ABI, the hosts, the cores that the program
        may use on all of them, numbers of ranks and nodes, the time in UTC and the command.
    """
    places = comm.allgather((MPI.Get_processor_name(), launch.cores()))
    return {
        "ranks": comm.size,
        "nodes": len(topology.nodes(comm)),
        "hosts": sorted({host for host, _ in places}),
        "cores": len({(host, core) for host, cores in places for core in cores}),
        "mpi": mpi_name(),
        "mpi_library": MPI.Get_library_version().strip("\0 \n"),
        "mpi_standard": "{}.{}".format(*MPI.Get_version()),
        "mpi_abi": mpi_abi(),
        "mpicoll": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "numba", "mpi4py")},
        "machine": platform.machine(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
    }


def mpi_name() -> str:
    """Return the MPI library's name and version."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def mpi_abi() -> str:
    """Say whether the MPI library has the standard's ABI, and if not how wide its handles are."""
    major, minor = MPI.Get_abi_version() if hasattr(MPI, "Get_abi_version") else (-1, -1)
    return f"standard {major}.{minor}" if major > 0 else f"own, {8 * MPI._sizeof(MPI.Comm)}-bit handles"
