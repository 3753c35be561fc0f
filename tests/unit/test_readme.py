"""What README.md says is so: its tables, its programs, and its example of a new algorithm."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll.algorithms  # noqa: F401  # registers them
from mpicoll import launch
from mpicoll.schedule import algorithms
from mpicoll.schedule.collectives import COLLECTIVES

ROOT = Path(__file__).parents[2]
README = ROOT.joinpath("README.md").read_text()
PROGRAM, _ON_GPUS, LINE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
MPICOLL = [sys.executable, "-m", "mpicoll"]


def needs(algorithm):
    """Say in the table's words what an algorithm needs."""
    found = ["op that commutes"] if algorithm.commutative else []
    found += [f"`{algorithm.ranks}`"] if algorithm.ranks else []
    found += ["several nodes"] if algorithm.two_level else []
    found += [f"at most {algorithm.limit // 1024} KiB"] if algorithm.limit else []
    return ", ".join(found)


def test_table_of_algorithms():
    table = [
        line.strip("|").split("|") for line in README.splitlines() if line.startswith("| `") and "(" in line
    ]
    cells = [[cell.strip() for cell in row] for row in table]
    expected = [[f"`{a.name}`", f"`{a.steps}`", f"`{a.sent}`", needs(a)] for a in algorithms("allreduce")]
    assert [row[:4] for row in cells] == expected
    assert all(row[4] for row in cells)


def test_table_of_other_collectives():
    rows = [line.split("|") for line in README.splitlines() if line.startswith("| `")]
    listed = {row[1].strip(" `"): row[2].strip() for row in rows}
    for collective in set(COLLECTIVES) - {"allreduce"}:
        assert listed[collective] == ", ".join(algorithm.name for algorithm in algorithms(collective))


def test_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch.run(4, [sys.executable, "program.py"], cwd=tmp_path, timeout=200)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"```\n{ended.stdout}```" in README


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_example(example):
    assert f"(examples/{example.name})" in README
    ended = launch.run(4, [*MPICOLL, "run", "--report", str(example)], timeout=200)
    assert ended.returncode == 0
    assert "(100.0 %) ran mpicoll's schedules" in ended.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of a user's own with the example algorithm."""
    folder = tmp_path_factory.mktemp("algorithms")
    (folder / "line.py").write_text(LINE)
    return folder


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("list line", "Line: partial results travel up the ranks"),
        ("verify --algorithms line", "line"),
        ("draw line -n 4 -o line.svg", ""),
        ("bench allreduce -n 4 --algorithms line --sizes 8,4Ki --min-time 0.01", "line"),
    ],
)
def test_added_algorithm(folder, command, answer):
    assert re.search(f"mpicoll {command.partition(' --sizes')[0]}\\b", README)
    ended = subprocess.run(
        [*MPICOLL, *command.split()],
        cwd=folder,
        env=os.environ | {"MPICOLL_ALGORITHMS": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert answer in ended.stdout
    if command.startswith("draw"):
        assert "<svg" in (folder / "line.svg").read_text()
