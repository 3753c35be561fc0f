"""Two ranks try whether the MPI library takes device memory: ``python -m mpicoll.device.probe``.

A library that does not may crash, hang or send something else, so this runs in processes of its own. One that
nothing launched starts itself on two ranks and prints what came of it, as JSON.
"""

import faulthandler
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from .. import launch

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT = 60  # seconds for the two ranks
SIZES = (
    8,
    4 << 10,
    64 << 10,
    8 << 20,
)  # bytes: sent at once and after a handshake, wherever a library changes
BEGUN, RIGHT, WRONG = "mpicoll probe has begun", "mpicoll probe is right", "mpicoll probe failed: "


class Outcome(NamedTuple):
    """Whether two ranks came as far as to try, and why they failed; "" if they did not."""

    tried: bool
    trouble: str


def main() -> None:
    """Be one of two ranks, or start them."""
    if launch.rank() is None:
        print(json.dumps(start([sys.executable, "-m", "mpicoll.device.probe"])))
    else:
        be_rank()


def start(program: list[str]) -> Outcome:
    """Run a program on two ranks, and see what came of it."""
    try:
        done = launch.run(2, program, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Outcome(True, f"no end within {LIMIT} s")
    except OSError as error:
        return Outcome(False, f"mpiexec cannot be started: {error}")
    tried = BEGUN in done.stdout
    if done.returncode == 0 and done.stdout.count(RIGHT) == 2:
        return Outcome(tried, "")
    return Outcome(tried, reason(done.stderr, done.stdout) or f"mpiexec ended with {done.returncode}")


def reason(errors: str, output: str) -> str:
    """Find the line that says what went wrong, before what launchers and libraries add when a rank ends."""
    for pattern in (
        rf"(?m){WRONG}(.*?)($|{WRONG})",
        r"Fatal Python error: (.*)",
        r"(Segmentation fault|[Ss]ignal.*\d)",
    ):
        if found := re.search(pattern, errors) or re.search(pattern, output):
            return found[1].strip()
    return (errors.strip().splitlines() or [""])[-1]


def be_rank() -> None:
    """Exchange device memory with the other rank; whatever fails here ends both."""
    faulthandler.enable()
    from mpi4py import MPI  # noqa: PLC0415 - it starts MPI, which is not for the process that starts the ranks

    from . import driver  # noqa: PLC0415

    comm = MPI.COMM_WORLD
    try:
        device = comm.rank % driver.count()
        with driver.current(device):
            print(BEGUN, flush=True)
            for nbytes in SIZES:
                exchange(comm, nbytes)
        print(RIGHT, flush=True)
    except BaseException as error:
        sys.stderr.write(f"\n{WRONG}{error}\n")  # in one piece: what two ranks print may be mixed
        comm.Abort(1)


def exchange(comm: "MPI.Intracomm", nbytes: int) -> None:
    """Send some bytes to the other rank and receive its own, and compare.

    Raises
    ------
    RuntimeError
        If they are not what the other rank has sent.
    """
    import numpy as np  # noqa: PLC0415
    from mpi4py import MPI  # noqa: PLC0415

    from . import driver  # noqa: PLC0415

    mine, theirs = (np.random.default_rng(rank).bytes(nbytes) for rank in (comm.rank, 1 - comm.rank))
    got = np.full(nbytes, 0xFF, np.uint8)
    source, target = (driver.get("cuMemAlloc_v2", nbytes) for _ in range(2))
    for memory, content in ((source, np.frombuffer(mine, np.uint8)), (target, got)):
        driver.call("cuMemcpyAsync", memory, content.ctypes.data, nbytes, 0)
    driver.call("cuStreamSynchronize", 0)
    send, receive = (
        lambda: comm.Send([MPI.buffer.fromaddress(source, nbytes), MPI.BYTE], 1 - comm.rank),
        lambda: comm.Recv([MPI.buffer.fromaddress(target, nbytes), MPI.BYTE], 1 - comm.rank),
    )
    for step in (send, receive) if comm.rank == 0 else (receive, send):
        step()
    driver.call("cuMemcpyAsync", got.ctypes.data, target, nbytes, 0)
    driver.call("cuStreamSynchronize", 0)
    if got.tobytes() != theirs:
        raise RuntimeError(f"{nbytes} bytes arrived with other contents than were sent")
    for memory in (source, target):
        driver.call("cuMemFree_v2", memory)


if __name__ == "__main__":
    main()
