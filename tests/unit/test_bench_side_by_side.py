import subprocess
import sys
from pathlib import Path

from mpicoll.bench import records

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "side_by_side.py"


def test_it_starts_itself_and_compares(tmp_path):
    path = tmp_path / "records.jsonl"
    options = [
        "--sizes",
        "8,1Ki",
        "--min-time",
        "0.01",
        "--algorithms",
        "auto,ring:turns=2",
        "--json",
        str(path),
    ]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--mpi", sys.prefix, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = records.read(str(path))
    assert [(row["algorithm"], row["size"]) for row in found] == [
        ("native", 8),
        ("auto", 8),
        ("native", 1024),
        ("auto", 1024),
    ]
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert "ranks: 2," in done.stdout
    assert lines[1] == ["native/ours", "auto", "ring:turns=2"]
    ours = [row["ratio"] for row in found if row["algorithm"] == "auto"]
    assert lines[2] == ["8", "B", f"{ours[0]:.2f}", "-"]
    assert lines[3] == ["1", "KiB", f"{ours[1]:.2f}", "-"]
    assert lines[4] == ["mean", f"{(ours[0] * ours[1]) ** 0.5:.2f}", "-"]
    assert "turns" in " ".join(lines[5])
    assert lines[6][:6] == ["#", "8", "B,", "auto:", "reference", "engine"]
