"""Shared memory in jobs that end badly, wait in every way, or have no room: each test starts its own job."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpicoll import launch

SHM = Path("/dev/shm")
STRESS = Path(__file__).parents[1] / "mpi" / "stress.py"
LIMIT = 120  # seconds for a job that ends by itself
SOON = 30  # seconds in which a job must have ended after one of its ranks has

HEAD = """
import logging, os, sys, time
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.transports import shared

logging.basicConfig(format="LOG %(name)s %(message)s")
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size

class Space:
    f_frsize = 1

    def __init__(self, free):
        self.f_bavail = free

def say(*words):
    "Write a line at once: ranks' pieces of lines get mixed."
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def refuse(*what):
    raise OSError("no room")

def stream(comm, turns=10**9, transport="shared", between=lambda turn: None):
    for turn in range(turns):
        count = (3, 1000, 60_000)[turn % 3]
        x, y = np.full(count, RANK + turn, "f8"), np.full(count, np.nan)
        comm.Allreduce(x, y, algorithm="ring", transport=transport)
        assert (y == SIZE * turn + SIZE * (SIZE - 1) // 2).all(), turn
        between(turn)
"""

STREAM = """
comm = mpicoll.Communicator(WORLD)
stream(comm, 20)
say("PID", RANK, os.getpid())
stream(comm)
"""

LEAVES = """
def leave(turn):
    if RANK == 1 and turn == 5:
        os._exit(0)

stream(mpicoll.Communicator(WORLD), between=leave)
"""

ENDS = """
stream(mpicoll.Communicator(WORLD), 20)
say("DONE")
"""

RAISES = """
def fail(turn):
    if RANK == 1 and turn == 10:
        raise RuntimeError("rank 1 has had enough")

try:
    stream(mpicoll.Communicator(WORLD), between=fail)
except RuntimeError:
    WORLD.Abort(3)
"""

TRIES = """
stream(mpicoll.Communicator(WORLD), 12)
say("SHARED", "mpicoll-" in open("/proc/self/maps").read())
"""

TROUBLES = {  # what one rank meets; only the first makes the file
    "no folder": 'shared.FOLDER = shared.Path("/no/such/folder")',
    "no room": "os.statvfs = lambda path: Space(1 << 16)",
    "little room": "os.statvfs = lambda path: Space(16 << 20)",
    "no file": "os.posix_fallocate = refuse",
    "no map": "shared.mmap.mmap = refuse",
}

REFUSED = """
try:
    stream(mpicoll.Communicator(WORLD), 1, "auto")
except ValueError as error:
    say("REFUSED", error)
"""


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Whatever a job did, it left no file of ours."""
    before = set(SHM.glob("mpicoll-*"))
    yield
    assert set(SHM.glob("mpicoll-*")) <= before


@pytest.fixture
def program(tmp_path):
    """Give the command that runs a text after what all of them begin with."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(HEAD + text)
        return [sys.executable, str(path)]

    return write


def ranks_of(job):
    """Wait for the ranks to say which processes they are."""
    found = {}
    for line in job.stdout:
        if line.startswith("PID"):
            rank, process = map(int, line.split()[1:])
            found[rank] = process
        if len(found) == 3:
            return found
    raise AssertionError(f"the job ended early: {job.stderr.read()}")


def runs(process):
    """Whether a process is there and not only its exit status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for_end(processes):
    """Return when none of the processes runs; fail if that takes too long."""
    end = time.monotonic() + SOON
    while any(map(runs, processes)):
        assert time.monotonic() < end, "a rank goes on for ever"
        time.sleep(0.05)


def test_a_killed_rank_ends_the_job(program):
    environment = os.environ | launch.environment(3)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = launch.command(3, program(STREAM))
    with subprocess.Popen(command, text=True, env=environment, **pipes) as job:
        try:
            ranks = ranks_of(job)
            time.sleep(0.3)
            os.kill(ranks[1], signal.SIGKILL)
            wait_for_end(ranks.values())
            assert job.wait(SOON) != 0
        finally:
            job.terminate()


def patient(command):
    """Have the launcher leave the other ranks alone when one has ended; None where it has no such option."""
    launcher, *rest = command
    asked = [launcher, "-disable-auto-cleanup"]
    trial = [*asked, "-n", "1", "true"]
    environment = os.environ | launch.environment()
    known = subprocess.run(trial, env=environment, capture_output=True, timeout=LIMIT, check=False)
    return [*asked, *rest] if known.returncode == 0 else None


@pytest.mark.parametrize("wait", ["spin", "yield", "sleep"])
def test_a_rank_that_leaves_without_a_word_ends_the_job(program, wait):
    """By itself, also where the launcher would not end it."""
    command = launch.command(3, program(LEAVES))
    environment = os.environ | launch.environment(3) | {"MPICOLL_WAIT": wait}
    alone = patient(command)
    done = subprocess.run(
        alone or command, env=environment, capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode != 0
    if alone:
        assert re.search(r"mpicoll: rank 1 has ended; allreduce by ring on rank [02] waits", done.stderr)


def test_a_job_that_ends_leaves_nothing(program):
    done = launch.run(3, program(ENDS), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == 3


def test_a_job_that_fails_leaves_nothing(program):
    assert launch.run(3, program(RAISES), timeout=LIMIT).returncode != 0


@pytest.mark.parametrize("wait", ["auto", "spin", "yield", "sleep"])
def test_more_ranks_than_cores(program, wait):
    done = launch.run(8, program(ENDS), timeout=LIMIT, env={"MPICOLL_WAIT": wait})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DONE") == 8


@pytest.mark.parametrize(
    ("rank", "trouble"),
    [(rank, trouble) for rank in (0, 1) for trouble in TROUBLES if (rank, trouble) != (1, "no file")],
)
def test_without_room(program, rank, trouble):
    """On one rank only: all of them take messages, or make do with less, and one of them says so once."""
    done = launch.run(3, program(f"if RANK == {rank}:\n    {TROUBLES[trouble]}\n{TRIES}"), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"SHARED (\w+)", done.stdout) == [str(trouble == "little room")] * 3
    assert len(re.findall("LOG mpicoll", done.stderr)) == 1, done.stderr


@pytest.mark.parametrize("name", ["TRANSPORT", "WAIT", "STAGING"])
def test_wrong_settings_are_refused_on_all_ranks(program, name):
    done = launch.run(3, program(REFUSED), timeout=LIMIT, env={f"MPICOLL_{name}": "pigeon"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"REFUSED MPICOLL_{name}: 'pigeon' given, expected auto") == 3


@pytest.mark.parametrize(("name", "values"), [("TRANSPORT", "auto shared"), ("WAIT", "yield sleep")])
def test_settings_that_differ_are_refused_on_all_ranks(program, name, values):
    one, other = values.split()
    early = f'import os\nos.environ["MPICOLL_{name}"] = "{other}" if RANK == 1 else "{one}"\n'
    done = launch.run(3, program(early + REFUSED), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"REFUSED MPICOLL_{name}: ") == 3
    assert done.stdout.count("expected the same on all") == 3


def test_stress():
    """A short run of the program that is to be run for long by hand."""
    done = launch.run(3, [sys.executable, str(STRESS), "--count", "600", "--seed", "7"], timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert re.match(r"stress: 600 collectives on 3 ranks, seed 7, .* blocking shared", done.stdout)
