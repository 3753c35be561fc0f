"""Whether the MPI library takes device memory.

First match wins: ``MPICOLL_CUDA_AWARE`` in the environment, no device, the library's own yes, an answer that
was found before, two ranks in processes of their own that try. A no of the library is not the last word: Open
MPI looks only at its own code, and sends device memory all the same where UCX can.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import launch
from . import driver, probe

VARIABLE = "MPICOLL_CUDA_AWARE"

# What launchers tell their ranks, and resource managers their jobs: with it, an mpiexec would take itself for
# a part of this job. Settings of the user's stay.
_OF_THE_JOB = re.compile(
    "(PMI|PMIX|PRTE|PALS|JSM|HYDRA|HYDI|I_MPI_HYDRA|I_MPI_INFO|SLURM|PBS|LSB|FLUX)_|MPI_LOCAL"
    "|OMPI_(?!MCA_|ALLOW_RUN)"
    "|OMPI_MCA_(PREFIXES|cpu_type|ess|initial_wdir|num_procs|orte|pmix|prte|shmem_RUNTIME)"
)
# What decides whether a library takes device memory.
_SETTINGS = re.compile(
    "UCX_|OMPI_MCA_|MPIR_CVAR_|MPICH_|MV2_|MVP_|I_MPI_OFFLOAD|FI_|PSM2_|PSM3_|LD_LIBRARY_PATH$"
)
_YES = "two ranks have exchanged device memory"


class Awareness(NamedTuple):
    """Whether messages, and the library's own collectives, take device memory; and how that is known."""

    messages: bool
    collectives: bool
    reason: str


_found: dict[str, Awareness] = {}  # by this process, where nothing can be written down


def awareness(*, fresh: bool = False) -> Awareness:
    """Find out, in this process alone; it may take as long as a job of two ranks.

    Parameters
    ----------
    fresh : bool
        Whether to try again where an earlier answer is known.

    Raises
    ------
    ValueError
        If ``MPICOLL_CUDA_AWARE`` is neither 0 nor 1.
    """
    told = _told()
    if told is None and not fresh:
        told = _remembered(_circumstances())
    return told or _tried()


def known() -> Awareness | None:
    """Give what is known without trying, or None; raise as :func:`awareness`."""
    return _told() or _remembered(_circumstances())


def agreed(comm: MPI.Intracomm, *, fresh: bool = False) -> Awareness:
    """Let rank 0 find out for all; collective, and raises on all ranks as :func:`awareness`."""
    answer: Awareness | Exception | None = None
    if comm.Get_rank() == 0:
        try:
            answer = awareness(fresh=fresh)
        except Exception as error:
            answer = error
    # The others sleep: the two ranks that try may need their cores.
    request = MPI.Intracomm.Ibarrier(comm)
    while not request.Test():
        time.sleep(0.001)
    answer = MPI.Intracomm.bcast(comm, answer)
    if isinstance(answer, Exception):
        raise answer
    assert answer is not None
    return answer


def _told() -> Awareness | None:
    """Give what the environment, the driver or the library says, if that settles it."""
    if (asked := os.environ.get(VARIABLE, "auto")) != "auto":
        if asked not in ("0", "1"):
            raise ValueError(f"{VARIABLE}: {asked!r} given, expected 0 or 1")
        # A yes of the user's is of messages: native collectives crash where only these take device memory.
        return Awareness(asked == "1", asked == "1" and bool(_library_says()), f"{VARIABLE}={asked}")
    if trouble := driver.trouble():
        return Awareness(False, False, trouble)
    if by := _library_says():
        return Awareness(True, True, f"{by} of the MPI library says so")
    return None


def _library_says() -> str:
    """Give the function by which the library says yes; "" if none does."""
    if not MPI.Is_initialized():  # some libraries end a process that asks before
        return ""
    library = ctypes.CDLL(MPI.__file__)
    if (query := getattr(library, "MPIX_Query_cuda_support", None)) is not None and query():
        return "MPIX_Query_cuda_support"
    answer = ctypes.c_int(0)
    query = getattr(library, "MPIX_GPU_query_support", None)  # of CUDA, which is number 0
    if query is not None and query(0, ctypes.byref(answer)) == 0 and answer.value:
        return "MPIX_GPU_query_support"
    return ""


def _tried() -> Awareness:
    """Let two ranks try, and remember what came of it."""
    outcome = _probe()
    if outcome.trouble:
        what = "two ranks could not exchange device memory" if outcome.tried else "that could not be tried"
        answer = Awareness(False, False, f"{what}: {outcome.trouble}")
    else:
        answer = Awareness(True, False, _YES)
    circumstances = _circumstances()
    _found[_key(circumstances)] = answer
    if outcome.tried:
        _remember(circumstances, answer)
    return answer


def _probe() -> probe.Outcome:
    """Run the probe where nothing of this job is known."""
    try:
        launch.mpiexec()
        done = subprocess.run(
            [sys.executable, "-m", probe.__name__],
            env=_outside(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * probe.LIMIT,
            check=False,
        )
        return probe.Outcome(*json.loads((done.stdout.splitlines() or [""])[-1]))
    except FileNotFoundError as error:
        return probe.Outcome(False, str(error))
    except subprocess.TimeoutExpired:
        return probe.Outcome(True, f"no end within {2 * probe.LIMIT} s")
    except (ValueError, TypeError):  # not what the probe prints
        return probe.Outcome(
            False, probe.reason(done.stderr, done.stdout) or f"exit status {done.returncode}"
        )


def _outside() -> dict[str, str]:
    """Give the environment without what is of this job."""
    return {name: value for name, value in os.environ.items() if not _OF_THE_JOB.match(name)}


def _circumstances() -> dict[str, Any]:
    """Give what the answer depends on."""
    library = _library_path()
    try:
        status = os.stat(library)
        size, changed = status.st_size, status.st_mtime_ns
    except OSError:
        size = changed = 0
    return {
        "library": library,
        "size": size,
        "changed": changed,
        "version": MPI.Get_library_version().strip("\0 \n"),
        "driver": driver.get("cuDriverGetVersion") & 0xFFFFFFFF,
        "settings": {name: value for name, value in sorted(_outside().items()) if _SETTINGS.match(name)},
    }


def _library_path() -> str:
    """Give the file that MPI_Init is in: mpi4py's module is the same for many libraries."""

    class Where(ctypes.Structure):  # Dl_info
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    where = Where()
    function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Init, ctypes.c_void_p)
    found = ctypes.CDLL(None).dladdr(function, ctypes.byref(where))
    return os.path.realpath(os.fsdecode(where.file)) if found and where.file else MPI.__file__


def _key(circumstances: dict[str, Any]) -> str:
    return json.dumps(circumstances, sort_keys=True)


def _file(circumstances: dict[str, Any]) -> Path:
    """Give the file for an answer; raise OSError or RuntimeError where there is no place for it."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    digest = hashlib.sha256(_key(circumstances).encode()).hexdigest()
    return folder / "mpicoll" / f"cuda-aware-{digest[:16]}.json"


def _remembered(circumstances: dict[str, Any]) -> Awareness | None:
    """Give the answer that was found in the same circumstances."""
    if found := _found.get(_key(circumstances)):
        return found
    try:
        record = json.loads(_file(circumstances).read_text(encoding="utf-8"))
        messages, reason = record["messages"], record["reason"]
        if record["circumstances"] != circumstances or (type(messages), type(reason)) != (bool, str):
            return None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # none, or not one of ours
        return None
    return Awareness(messages, False, reason)


def _remember(circumstances: dict[str, Any], answer: Awareness) -> None:
    """Write an answer down for the next job; where that cannot be, the next one tries again."""
    record = {"circumstances": circumstances, "messages": answer.messages, "reason": answer.reason}
    with contextlib.suppress(OSError, RuntimeError):
        file = _file(circumstances)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".tmp", delete=False) as new:
            json.dump(record, new, indent=2)
        os.replace(new.name, file)
