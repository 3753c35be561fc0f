"""The machinery behind the MPI tests: whatever tests do on their ranks, the job ends and says so."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll import launch

TESTS = Path(__file__).parents[1]

SUITE = {
    "test_a.py": """
        import ctypes, os, time
        import pytest
        from hypothesis import given, strategies as st
        from mpi4py import MPI

        comm = MPI.COMM_WORLD

        @pytest.mark.parametrize("x", [1, 2])
        def test_good(x):
            assert comm.allreduce(x) == 3 * x

        @pytest.mark.mpi(min_size=4)
        def test_more_ranks():
            assert comm.size >= 4

        @pytest.mark.mpi(minsize=4)
        def test_misspelt():
            pass

        def test_one_fails():
            assert comm.rank != 1, "only here"

        def test_one_fails_and_others_wait():
            assert comm.rank != 2, "left alone"
            comm.Barrier()

        @given(st.integers(0, 100))
        def test_drawn(x):
            assert comm.allreduce(x) == 3 * x

        @given(st.integers(0, 100))
        def test_drawn_and_one_fails(x):
            comm.Barrier()
            assert not (comm.rank == 1 and x > 10)

        @given(st.integers(0, 100))
        def test_drawn_and_others_wait(x):
            assert not (comm.rank == 1 and x > 10)
            comm.Barrier()

        @given(st.integers(comm.rank, 100))
        def test_drawn_differently(x):
            pass

        @pytest.mark.limit(3)
        def test_sleeps():
            if comm.rank == 2:
                time.sleep(1000)
            comm.Barrier()

        def test_exits():
            if comm.rank == 1:
                os._exit(3)
            comm.Barrier()

        def test_crashes():
            if comm.rank == 1:
                ctypes.string_at(8)
            comm.Barrier()

        class TestAfter:
            def test_all_of_that(self):
                comm.Barrier()
    """,
    "test_b.py": """
        import no_such_module

        def test_not_imported():
            pass
    """,
}


def lay(folder, files):
    """Make a project with this suite of MPI tests and our machinery."""
    (folder / "tests/mpi").mkdir(parents=True)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    for file in TESTS.glob("*.py"):
        shutil.copy(file, folder / "tests")
    for name, text in files.items():
        (folder / "tests/mpi" / name).write_text(re.sub(r"(?m)^ {8}", "", text))


def run_pytest(folder, *arguments):
    """Run pytest there; return its exit code and, for each failure, what it says."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    parts = re.split(r"(?m)^_+ (\w+)\[\d-ranks\] _+$", ended.stdout)
    return ended.returncode, dict(zip(parts[1::2], parts[2::2], strict=True)), ended.stdout


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    lay(folder, SUITE)
    return run_pytest(folder, "--mpi-ranks=3")


def test_the_rest_passes(outcome):
    code, failures, output = outcome
    assert code == 1
    assert not failures.keys() & {"test_good", "test_more_ranks", "test_drawn", "TestAfter"}
    assert re.search(r"3 ranks: 4 passed, 10 failed, 1 skipped;", output)
    assert "Test requires 4 MPI processes" in output


@pytest.mark.parametrize(
    ("test", "headline", "detail"),
    [
        ("test_misspelt", "rank 0, 1, 2: mark mpi takes min_size, given minsize", ""),
        ("test_one_fails", "rank 1: AssertionError: only here", "> +assert comm.rank != 1"),
        (
            "test_one_fails_and_others_wait",
            "rank 2: AssertionError: left alone; rank 0, 1: did not end",
            r"rank 0, process \d+, did not end\n.* in test_one_fails_and_others_wait",
        ),
        (
            "test_drawn_and_one_fails",
            r"rank 1: AssertionError: test_drawn_and_one_fails\(x=\d+\)",
            r"assert not .*comm.rank == 1 and x > 10",
        ),
        (
            "test_drawn_and_others_wait",
            "rank 1: assert not .*; rank 0, 2: did not end",
            r"rank 1 failed:\ntest_drawn_and_others_wait\(x=\d+\)",
        ),
        ("test_drawn_differently", ".*the ranks are not in the same test or example", ""),
        ("test_sleeps", "rank 0, 1, 2: Timeout", r"rank 2, .*\nTimeout.*\n.* in test_sleeps"),
        ("test_exits", r"rank 1: os._exit\(3\); rank 0, 2: did not end", "in test_exits"),
        (
            "test_crashes",
            "rank 1: Fatal Python error: Segmentation fault; rank 0, 2: did not end",
            "in test_crashes",
        ),
        ("test_not_imported", "rank 0, 1, 2: ImportError", "No module named 'no_such_module'"),
    ],
)
def test_failure_names_test_and_rank(outcome, test, headline, detail):
    _, failures, _ = outcome
    assert re.match(headline, failures[test].strip())
    assert re.search(detail, failures[test])


def test_job_out_of_time(tmp_path):
    lay(tmp_path, {"test_a.py": "import time\ndef test_sleeps():\n    time.sleep(1000)"})
    code, failures, _ = run_pytest(tmp_path, "--mpi-ranks=2", "--mpi-job-limit=10")
    assert code == 1
    assert "Out of time after 1" in failures["test_sleeps"]
    assert not [p for p in Path("/proc").glob("[0-9]*/cwd") if p.exists() and p.resolve() == tmp_path]


def test_bad_end_after_the_last_test(tmp_path):
    text = """
        import atexit, os, signal
        from mpi4py import MPI

        def test_good():
            if MPI.COMM_WORLD.rank == 1:
                atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    """
    lay(tmp_path, {"test_a.py": text})
    code, failures, _ = run_pytest(tmp_path, "--mpi-ranks=2")
    assert code == 1
    assert "The job ended badly after its last test" in failures["test_good"]


def test_numbers_of_ranks(tmp_path):
    lay(
        tmp_path,
        {"test_a.py": "from mpi4py import MPI\ndef test_size():\n    assert MPI.COMM_WORLD.size != 2"},
    )
    code, failures, output = run_pytest(tmp_path, "--mpi-ranks=1,2")
    assert code == 1
    assert list(failures) == ["test_size"]
    assert "1 ranks: 1 passed, 0 failed" in output
    assert "2 ranks: 0 passed, 1 failed" in output


def test_no_test_is_overlooked(tmp_path):
    lay(tmp_path, {"test_a.py": "def good():\n    pass\ntest_hidden = good"})
    code, _, output = run_pytest(tmp_path, "--collect-only")
    assert code == 2
    assert "test_hidden is no function or class of the file" in output


def test_by_hand(tmp_path):
    lay(tmp_path, SUITE)
    command = [sys.executable, "-m", "pytest", "--with-mpi", "-k", "good or one_fails", "tests/mpi/test_a.py"]
    ended = launch.run(3, command, cwd=tmp_path, timeout=120)
    assert ended.returncode != 0
    assert ended.stdout.count("test session starts") == 1
    assert "rank 2: tests/mpi/test_a.py::test_one_fails_and_others_wait failed" in ended.stderr
