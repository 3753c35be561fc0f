"""The command line as a job of several ranks."""

import json
import os
import subprocess
import sys

import pytest

from mpicoll import launch

MPICOLL = [sys.executable, "-m", "mpicoll"]
BENCH = ["bench", "allreduce", "--min-time", "0.01", "--sizes", "8,4Ki"]

# An algorithm that forgets half of its work, and one that fails on one rank.
BROKEN = """
from mpicoll.algorithms.ring import reduce_scatter
from mpicoll.schedule import algorithm

FACTS = dict(chunks=lambda size: size, commutative=True, steps="p-1", sent="(p-1)/p", source="")

@algorithm("allreduce", **FACTS)
def forgetful(rank, size):
    "Leave the result scattered."
    yield from reduce_scatter(rank, size)

@algorithm("allreduce", **FACTS)
def failing(rank, size):
    "Fail on rank 1."
    if rank == 1:
        raise RuntimeError("rank 1 does not want to")
    yield from reduce_scatter(rank, size)
"""

# A command that fails before it has started MPI, while the other ranks wait for it in MPI_Init.
EARLY = """
from mpicoll import launch
from mpicoll.cli import main, program
from mpicoll.cli.program import start_mpi

@program.command("info")
def early():
    if launch.rank() == 1:
        raise RuntimeError("rank 1 does not start")
    start_mpi().Barrier()

main()
"""


@pytest.fixture
def broken(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    return {"MPICOLL_ALGORITHMS": str(tmp_path)}


def mpicoll(n, *arguments, **options):
    return launch.run(n, [*MPICOLL, *arguments], timeout=120, **options)


def ours(done):
    """Return the lines on stderr that are not the launcher's."""
    return [line for line in done.stderr.splitlines() if line.startswith("mpicoll")]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["bench", "allreduce", "--bogus"], "mpicoll bench: No such option '--bogus'"),
        ([*BENCH, "-n", "3"], "mpicoll bench: -n cannot be given under mpiexec"),
        (
            [*BENCH, "--json", "/no/such/folder/x"],
            "mpicoll bench: /no/such/folder/x: No such file or directory",
        ),
        ([*BENCH, "--plot", "x.txt"], "mpicoll bench: plot: x.txt given, expected a name that ends in"),
    ],
)
def test_a_wrong_command_line_is_said_once(arguments, line):
    done = mpicoll(3, *arguments)
    assert done.returncode == 2
    assert len(ours(done)) == 1, done.stderr
    assert ours(done)[0].startswith(line)
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() == ""


def test_help_is_said_once():
    done = mpicoll(3, "--help")
    assert done.returncode == 0
    assert done.stdout.count("Usage:") == 1


def test_one_rank_that_nothing_launched():
    done = subprocess.run([*MPICOLL, *BENCH], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert ours(done) == done.stderr.splitlines()
    assert "start it with -n RANKS or with mpiexec" in done.stderr


def test_bench(tmp_path):
    path = tmp_path / "records.jsonl"
    done = mpicoll(3, *BENCH, "--algorithms", "all,auto", "--json", str(path))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(int(row[0]), row[4].lstrip("*")) for row in rows] == [
        (record["size"], record["algorithm"]) for record in records
    ]
    assert {"native", "ring"} <= {record["algorithm"] for record in records if record["size"] == 4096}
    assert all(row[-1] == "0" for row in rows)
    assert sum(row[4].startswith("*") for row in rows) == 2
    for record in records:
        assert (record["ranks"], record["count"] * 8, record["wrong"]) == (3, record["size"], 0)
        assert 0 < record["min_us"] <= record["median_us"] <= record["p95_us"]
        assert record["samples"] >= 5
        assert record["command"].endswith(str(path))
    best = [
        line.split()
        for line in done.stdout.splitlines()
        if line.startswith("# ") and line.split()[2] in "B KiB"
    ]
    assert [row[1] for row in best] == ["8", "4"]
    assert "# geometric mean of these ratios: " in done.stdout


def test_n_does_the_same():
    command = [
        *MPICOLL,
        *BENCH,
        "-n",
        "3",
        "--algorithms",
        "ring",
        "--in-place",
        "--dtype",
        "int32",
        "--op",
        "max",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# allreduce in place: 3 ranks, ")
    assert [line.split()[1:5] for line in done.stdout.splitlines() if line[:1] == " "] == [
        [str(count), "int32", "MAX", name] for count in (2, 1024) for name in ("native", "*ring")
    ]
    assert "\x1b" not in done.stdout + done.stderr


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    done = mpicoll(2, *BENCH, "--algorithms", "ring", "--no-check", "--plot", str(tmp_path / "plot.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert all(line.split()[-1] == "-" for line in done.stdout.splitlines() if line[:1] == " ")


def test_wrong_results_are_counted_and_fail(broken):
    done = mpicoll(3, *BENCH, "--algorithms", "forgetful,ring", env=broken)
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    wrong = {(row[4].lstrip("*"), row[0]): int(row[-1]) for row in rows}
    assert wrong["forgetful", "4096"] > 0
    assert all(number == 0 for (name, _), number in wrong.items() if name != "forgetful")
    assert not any(row[4] == "*forgetful" for row in rows)
    assert done.returncode == 1


def test_what_cannot_serve_is_left_out():
    done = mpicoll(2, *BENCH, "--algorithms", "ring,ring:turns=2")
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stdout.splitlines() if line.startswith("# left out")]
    assert len(notes) == 1
    assert notes[0].startswith("# left out: ring:turns=2, 8 B to 4 KiB: ")
    assert mpicoll(2, *BENCH, "--algorithms", "ring:turns=2").returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line_at_the_end():
    done = mpicoll(2, *BENCH, "--algorithms", "ring", "--json", "/dev/full")
    assert done.returncode == 1
    assert ours(done) == ["mpicoll bench: /dev/full: No space left on device"]
    assert "Traceback" not in done.stderr
    assert "# geometric mean" in done.stdout


def test_an_exception_on_one_rank_ends_the_job(broken):
    done = mpicoll(3, *BENCH, "--algorithms", "failing", env=broken)
    assert done.returncode not in (0, 2)
    assert "RuntimeError: rank 1 does not want to" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert ours(done) == ["mpicoll: rank 1 failed:"]


def test_an_exception_before_mpi_is_started_ends_the_job():
    done = launch.run(3, [sys.executable, "-c", EARLY, "info"], timeout=120)
    assert done.returncode not in (0, 2)
    assert "RuntimeError: rank 1 does not start" in done.stderr


def test_info():
    done = mpicoll(2, "info")
    assert done.returncode == 0, done.stderr
    lines = {line[:12].strip(): line[14:].strip() for line in done.stdout.splitlines()}
    assert lines["ranks"] == "2 on 1 node"
    assert "ranks 0, 1, " in lines["node 0"]
    assert {"mpicoll", "MPI library", "launcher", "transports", "GPU support"} <= set(lines)


@pytest.mark.parametrize("asked", ["multiple", "serialized", "single"])
def test_info_says_where_collectives_go_on(asked):
    env = {"MPI4PY_RC_THREAD_LEVEL": asked}
    program = f"from mpi4py import MPI; print(MPI.Query_thread() == MPI.THREAD_{asked.upper()})"
    if "False" in launch.run(1, [sys.executable, "-c", program], env=env, timeout=120).stdout:
        pytest.skip(f"this MPI library provides another level than {asked}")
    done = mpicoll(1, "info", env=env)
    where = "in the background" if asked == "multiple" else "inside Wait, Test or the next collective"
    assert f"progress      {where} (MPI_THREAD_{asked.upper()})\n" in done.stdout
