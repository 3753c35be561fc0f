"""``mpicoll run`` as a job of several ranks."""

import json
import os
import re
import sys

import pytest

from mpicoll import launch

RUN = [sys.executable, "-m", "mpicoll", "run"]

# Says on rank 0 what every rank finds, and on every rank that it was there.
PROGRAM = """
import os, sys
import numpy as np
import mpi4py
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD

result = np.empty(1)
COMM_WORLD.Allreduce(np.ones(1), result)
found = {
    "argv": sys.argv,
    "path": os.path.realpath(sys.path[0]),
    "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "type": type(COMM_WORLD).__name__,
    "same": MPI.COMM_WORLD is COMM_WORLD,
    "sum": result[0],
}
sys.stdout.write(f"rank {COMM_WORLD.rank} was here\\n")
for other in COMM_WORLD.gather(found) or ():
    assert other == found, other
if COMM_WORLD.rank == 0:
    sys.stdout.write(f"found {__import__('json').dumps(found)}\\n")
"""

FAILING = """
from mpi4py import MPI

def fail():
    raise RuntimeError("rank 1 does not want to")

if MPI.COMM_WORLD.rank == 1:
    fail()
MPI.COMM_WORLD.Barrier()
"""

# Where the status is not 0, the other rank waits for this one.
EXITING = """
import sys
from mpi4py import MPI

if MPI.COMM_WORLD.rank == 1 or {0} in (0, None):
    sys.exit({0})
MPI.COMM_WORLD.Barrier()
"""

# Counts by itself, so that the report is known.
COUNTING = """
from mpi4py import MPI
from mpicoll import statistics

print("the program's own ")  # a launcher may mix the lines
for _ in range(3):
    statistics.active.record("Allreduce", "ring", 500, 0.25)
statistics.active.record("Bcast", "native", 8, 0.25, "not plain: derived datatype")
statistics.active.record("Iscan", "native", 8, 0.25, "op of the user")
"""
SHARE = "9 of 12 intracommunicator collective calls on buffers (75.0 %) ran mpicoll's schedules"


@pytest.fixture
def write(tmp_path):
    def write(text, name="program.py"):
        (tmp_path / name).write_text(text)
        return name

    return write


@pytest.fixture
def run(tmp_path):
    def run(n, *arguments, command=RUN, folder=tmp_path):
        return launch.run(n, [*command, *arguments], timeout=120, cwd=folder)

    return run


def check_found(done, **expected):
    assert done.returncode == 0, done.stderr
    assert all(done.stdout.count(f"rank {rank} was here") == 1 for rank in range(3)), done.stdout
    found = json.loads(re.search(r"found (\{.*\})", done.stdout)[1])
    common = {"name": "__main__", "main": True, "type": "Communicator", "same": True, "sum": 3.0}
    assert found == common | expected


def test_script(run, write, tmp_path):
    (tmp_path / "folder").mkdir()
    name = write(PROGRAM, "folder/program.py")
    done = run(3, name, "--report", "-m", "x")
    check_found(done, argv=[name, "--report", "-m", "x"], path=str(tmp_path / "folder"))
    assert "intracommunicator" not in done.stderr  # its option, not ours


def test_module(run, write, tmp_path):
    write(PROGRAM, "some_module.py")
    done = run(3, "-m", "some_module", "-h", "--report")
    check_found(done, argv=[str(tmp_path / "some_module.py"), "-h", "--report"], path=str(tmp_path))


def test_command(run, write, tmp_path):
    (tmp_path / "bin").mkdir()  # which is not the program's folder
    installed = write("from mpicoll.cli import main\nmain()", "bin/mpicoll")
    done = run(3, "-c", PROGRAM, "-c", "x", command=[sys.executable, installed, "run"])
    check_found(done, argv=["-c", "-c", "x"], path=str(tmp_path))


@pytest.mark.parametrize("options", [[], ["--report"]])
def test_an_exception_on_one_rank_ends_the_job(run, write, options):
    done = run(3, *options, write(FAILING))
    assert done.returncode != 0
    assert "RuntimeError: rank 1 does not want to" in done.stderr
    assert done.stderr.count("Traceback") == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith('  File "')]
    assert [line.rpartition(" in ")[2] for line in lines] == ["<module>", "fail"]  # nothing of ours
    assert "intracommunicator" not in done.stderr


@pytest.mark.parametrize("status", ["0", "None", "7", "'some words'"])
def test_exit_status_is_as_without(run, status):
    program = ["-c", EXITING.format(status)]
    ours = run(2, "--report", *program)
    theirs = run(2, *program, command=[sys.executable, "-m", "mpi4py"])
    assert ours.returncode == theirs.returncode
    assert (ours.returncode == 0) == (status in ("0", "None"))
    assert ("some words" in ours.stderr) == ("words" in status)
    assert ("intracommunicator" in ours.stderr) == (ours.returncode == 0)


@pytest.mark.parametrize("last", ["", "MPI.Finalize()"])
def test_report(run, write, tmp_path, last):
    moves = f"{COUNTING}\n__import__('os').chdir('/')\n{last}\n"
    done = run(3, "--report", "--report-file", "report.json", write(moves))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["the", "program's", "own"] * 3
    assert done.stderr.count(SHARE) == 1
    words = [line.split() for line in done.stderr.splitlines()]
    assert ["Allreduce", "9", "4.5", "kB", "0.750", "9", "ring"] in words
    assert ["Iscan", "3", "24", "bytes", "0.250", "3", "native", "3", "op", "of", "the", "user"] in words
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["ranks"], found["calls"], found["ours"], found["not_plain"]) == (3, 12, 9, 3)
    assert list(found["methods"]) == ["Allreduce", "Bcast", "Iscan"]


def test_file_without_words(run, write, tmp_path):
    done = run(2, "--report-file", "report.json", write(COUNTING))
    assert done.returncode == 0, done.stderr
    assert "intracommunicator" not in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["ours"] == 6


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line(run, write):
    done = run(2, "--report", "--report-file", "/dev/full", write(COUNTING))
    assert "mpicoll run: /dev/full: No space left on device" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert "calls on buffers" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "mpicoll run: Missing argument"),
        (["--bogus", "program.py"], "mpicoll run: No such option '--bogus'"),
        (["--report-file", "/no/such/x", "program.py"], "mpicoll run: /no/such/x: No such file or directory"),
    ],
)
def test_a_wrong_command_line_is_said_once(run, write, arguments, line):
    write(PROGRAM)
    done = run(3, *arguments)
    assert done.returncode == 2
    ours = [text for text in done.stderr.splitlines() if text.startswith("mpicoll")]
    assert len(ours) == 1, done.stderr
    assert ours[0].startswith(line)
    assert done.stdout.strip() == ""
