"""``mpicoll bench`` for every collective, as a job of three ranks."""

import json
import subprocess
import sys

import pytest

from mpicoll.bench.forms import FORMS
from mpicoll.schedule import algorithms


def bench(collective, *options):
    command = [
        sys.executable,
        "-m",
        "mpicoll",
        "bench",
        collective,
        "-n",
        "3",
        "--min-time",
        "0.01",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def cells(done):
    """Return the rows of the table, split."""
    return [line.split() for line in done.stdout.splitlines() if line[:1] == " "]


@pytest.mark.parametrize("collective", FORMS)
def test_all_algorithms(collective, tmp_path):
    form, path = FORMS[collective], tmp_path / "records.jsonl"
    options = ["--sizes", "10,4Ki"] if form.vector else []
    options += ["--root", "2"] if form.rooted else []
    done = bench(collective, "--json", str(path), *options)
    assert done.returncode == 0, done.stderr
    place = " at root 2" if form.rooted else ""
    assert done.stdout.startswith(f"# {collective}{place}: 3 ranks, ")
    unit = 24 if form.blocked else 8
    sizes = [-(-size // unit) * unit for size in (10, 4096)] if form.vector else [0]
    assert (f"# sizes: rounded up to multiples of {unit} B" in done.stdout) == form.vector
    names = ["native", *(a.name for a in algorithms(collective) if a.serves(3) and not a.two_level)]
    found = [json.loads(line) for line in path.read_text().splitlines()]
    measured = [(row["size"], row["algorithm"]) for row in found]
    assert [pair for pair in measured if pair[1] in names] == [
        (size, name) for size in sizes for name in names
    ]
    for row, line in zip(found, cells(done), strict=True):
        assert (row["collective"], row["wrong"], row["count"] * 8) == (collective, 0, row["size"])
        assert row["op"] == ("SUM" if form.combines else None)
        assert form.waits or row["batch"] == 1  # or calls would overlap
        assert row["root"] == (2 if form.rooted else None)
        assert line[:2] == ([str(row["size"]), str(row["count"])] if form.vector else ["-", "-"])
        assert line[4].lstrip("*") == row["algorithm"]
        assert line[-1] == "0"


@pytest.mark.parametrize("collective", [name for name, form in FORMS.items() if form.in_place])
def test_in_place(collective):
    done = bench(collective, "--sizes", "24", "--in-place", "--dtype", "int32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# {collective} in place")
    assert "rounded" not in done.stdout
    assert {row[-1] for row in cells(done)} == {"0"}


def test_native_alone():
    done = bench("allreduce", "--sizes", "8", "--algorithms", "native")
    assert done.returncode == 0, done.stderr
    assert [row[4] for row in cells(done)] == ["native"]
    assert "best" not in done.stdout.replace("our best", "")


def test_nothing_of_ours_is_an_error():
    done = bench("allreduce", "--sizes", "8", "--algorithms", "ring:turns=2")
    assert done.returncode == 1
    assert "# left out: ring:turns=2, 8 B: " in done.stdout


def test_a_root_that_is_no_rank():
    done = bench("bcast", "--root", "3")
    assert done.returncode == 2
    assert "mpicoll bench: --root 3 given, expected 0 to 2" in done.stderr.splitlines()
