import subprocess
import sys
from pathlib import Path

from mpicoll.bench import records
from mpicoll.schedule.collectives import COLLECTIVES

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "side_by_side.py"


def side_by_side(path, *options):
    """Run it on 2 ranks; return its lines, split, and its records."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--min-time", "0.01", "--json", str(path), *options],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ranks: 2," in done.stdout
    return [line.split() for line in done.stdout.splitlines() if line][1:], records.read(str(path))


def ratio(found, collective, nbytes, algorithm="auto"):
    """Return what the table must show, without an asterisk."""
    (row,) = (
        row
        for row in found
        if (row["collective"], row["size"], row["algorithm"]) == (collective, nbytes, algorithm)
    )
    return row["ratio"], f"{row['ratio']:.2f}"


def test_it_starts_itself_and_compares(tmp_path):
    lines, found = side_by_side(
        tmp_path / "records.jsonl",
        *("--mpi", sys.prefix, "--sizes", "8,1Ki", "--algorithms", "auto,recursive_doubling,ring:turns=2"),
    )
    assert [(row["algorithm"], row["size"]) for row in found] == [
        (name, size) for size in (8, 1024) for name in ("native", "auto", "recursive_doubling")
    ]
    assert lines[0] == ["allreduce", "auto", "recursive_doubling", "ring:turns=2"]
    for line, (size, unit), nbytes in zip(lines[1:3], (("8", "B"), ("1", "KiB")), (8, 1024), strict=True):
        assert line[:2] == [size, unit]
        assert line[2].rstrip("*") == ratio(found, "allreduce", nbytes)[1]
        assert line[3:] == [ratio(found, "allreduce", nbytes, "recursive_doubling")[1], "-"]
    ours = [ratio(found, "allreduce", nbytes)[0] for nbytes in (8, 1024)]
    assert lines[3][:2] == ["mean", f"{(ours[0] * ours[1]) ** 0.5:.2f}"]
    assert lines[3][3] == "-"
    assert "turns" in " ".join(lines[4])
    at = lines.index(["native/ours", *found[0]["mpi"].split()])
    assert lines[at + 1] == ["allreduce", lines[3][1]]
    assert lines[at + 2] == ["allreduce", "recursive_doubling", lines[3][2]]


def test_every_collective_and_the_summary(tmp_path):
    lines, found = side_by_side(tmp_path / "records.jsonl", "--collective", "all", "--sizes", "10")
    heads = [line[0] for line in lines if line[1:] == ["auto"]]
    assert heads == list(COLLECTIVES)
    sizes = {row["collective"]: row["size"] for row in found}
    assert sizes == {
        name: 0 if name == "barrier" else 16 for name in COLLECTIVES
    }  # rounded up to whole elements, in each rank's block
    assert all(row["wrong"] == 0 for row in found)
    assert lines[-len(COLLECTIVES) - 1][0] == "native/ours"
    assert [line[0] for line in lines].count("native/ours") == 1
    assert lines[-len(COLLECTIVES) :] == [[name, ratio(found, name, sizes[name])[1]] for name in COLLECTIVES]


def test_where_auto_is_native_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("MPICOLL_BCAST", "native")
    monkeypatch.setenv("MPICOLL_REDUCE", "binomial")
    lines, found = side_by_side(tmp_path / "records.jsonl", "--collective", "bcast,reduce", "--sizes", "8")
    rows = [line for line in lines if line[:2] == ["8", "B"]]
    assert [row[2] for row in rows] == [
        ratio(found, "bcast", 8)[1] + "*",
        ratio(found, "reduce", 8)[1],
    ]


def test_records_are_added(tmp_path):
    path = tmp_path / "records.jsonl"
    first = side_by_side(path, "--sizes", "8")[1]
    assert side_by_side(path, "--sizes", "16")[1][: len(first)] == first
    assert [row["size"] for row in records.read(str(path))] == [8, 8, 16, 16]


def test_an_unknown_collective_is_refused():
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--collective", "gossip"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "'gossip' given, expected all or some of allgather, allreduce" in done.stderr
