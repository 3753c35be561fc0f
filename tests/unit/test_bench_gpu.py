"""``benchmarks/gpu.py``, and with it the tests in ``tests/gpu``, on the stand-in for a GPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def gpu(*options):
    return subprocess.run(
        [sys.executable, str(PROGRAM), *options], capture_output=True, text=True, timeout=250, check=False
    )


def test_everything_is_told(tmp_path):
    done = gpu("--stand-in", "--quick", "-n", "2", "--out", str(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    found = {(row["part"], row["what"]): row for row in rows}
    assert not [row for row in rows if row["what"] == "the part"], done.stdout
    # what a stand-in can be right or wrong about, and not fast or slow
    for what in (
        ("kernels", "2 to 8 operands, bits as on the host"),
        ("kernels", "operations and types, bits as on the host"),
        ("routes", "wrong elements of 1 MiB"),
        ("sizes", "bytes through the host, ipc"),
        ("sizes", "bytes through the host, mpi"),
        ("tests", "tests/gpu"),
    ):
        assert found[what]["met"] is True, done.stdout
    assert found["sizes", "4 KiB, auto took staged"]["taken"] == "staged"
    rates = [row for row in rows if row["goal"] == [">=", 0.9]]
    assert [row["met"] for row in rates] == [None] * 3
    skipped = int(re.search(r"(\d+) skipped", found["tests", "tests/gpu"]["value"])[1])
    assert skipped == 22  # what is for arrays that never change, and the other way round
    table = done.stdout.splitlines()[-len(rows) :]
    assert [line.partition(": ")[0] for line in table] == [row["part"] for row in rows]
    assert done.returncode == 0


def test_a_part_that_fails_costs_itself_only(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_MPI_FLAGS", "--no-such-flag-of-mpiexec")
    done = gpu("--stand-in", "--quick", "-n", "2", "--only", "provenance,kernels", "--out", str(tmp_path))
    assert done.returncode == 1
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [(row["what"], row["met"]) for row in rows if row["part"] == "provenance"] == [("the part", False)]
    assert "provenance: the part" in done.stdout
    assert len([row for row in rows if row["part"] == "kernels"]) > 3


def test_without_a_gpu():
    from mpicoll.device import driver  # noqa: PLC0415

    if not driver.trouble():
        pytest.skip("there is one")
    done = gpu()
    assert (done.returncode, done.stdout[:7]) == (2, "no GPU:")
