import json
from pathlib import Path

import numpy as np
import pytest

from mpicoll.bench import plot, records, table

WHERE = {"ranks": 4, "nodes": 2, "cores": 8, "mpi": "Some MPI 1.0", "mpicoll": "0.1.0"}


class Timing:
    """As of measure, which needs MPI."""

    def __init__(self, microseconds, wrong=0):
        self.samples, self.batch, self.wrong = np.array(microseconds) / 1e6, 3, wrong


def record(algorithm, nbytes, microseconds, native=None, wrong=0):
    more = {"count": nbytes // 8, "dtype": "float64", "op": "SUM", "in_place": False, **WHERE}
    native = None if native is None else native / 1e6
    return records.record("allreduce", algorithm, nbytes, Timing(microseconds, wrong), native, **more)


ROWS = [
    record("native", 8, [2, 4, 6], 4),
    record("ring", 8, [8, 8, 8], 4),
    record("tree", 8, [2, 2, 2], 4),
    record("star", 8, [1, 1, 1], 4, wrong=7),
    record("native", 64, [9], 9),
    record("ring", 64, [18], 9),
]


def test_a_record_derives_its_figures():
    found = record("ring", 8000, list(range(1, 101)), native=101)
    assert found["samples"] == 100
    assert found["batch"] == 3
    assert found["median_us"] == pytest.approx(50.5)
    assert found["p95_us"] == pytest.approx(95.05)
    assert found["min_us"] == pytest.approx(1)
    assert found["algbw_GBps"] == pytest.approx(8000 / 50.5e-6 / 1e9)
    assert found["busbw_GBps"] == pytest.approx(found["algbw_GBps"] * 2 * 3 / 4)
    assert found["ratio"] == pytest.approx(2)
    assert found["count"] == 1000
    assert found["nodes"] == 2


def test_no_native_time_gives_no_ratio():
    found = [record("ring", 8, [1])]
    assert found[0]["ratio"] is None
    assert records.mean_ratio(found) is None


def test_best_is_ours_and_right():
    assert [(item["size"], item["algorithm"]) for item in records.best(ROWS)] == [(8, "tree"), (64, "ring")]
    assert records.best(ROWS[:1]) == []


def test_the_mean_is_geometric():
    assert records.mean_ratio(records.best(ROWS)) == pytest.approx((2 * 0.5) ** 0.5)


def test_records_come_back_from_a_file(tmp_path):
    path = str(tmp_path / "records.jsonl")
    records.append(ROWS[:2], path)
    records.append(ROWS[2:], path)
    assert records.read(path) == ROWS
    assert len([json.loads(line) for line in Path(path).read_text().splitlines()]) == len(ROWS)


def test_a_full_disk_is_an_error():
    with pytest.raises(OSError, match="No space left"):
        records.append(ROWS, "/dev/full")


def test_the_table_has_one_line_for_each_row():
    lines = table.rows(ROWS[:4], 6).plain.splitlines()
    cells = [line.split() for line in lines]
    assert [row[4] for row in cells] == ["native", "ring", "*tree", "star"]
    assert cells[2] == ["8", "1", "float64", "SUM", "*tree", "2.00", "2.00", "0.004", "0.006", "2.00", "0"]
    assert cells[3][-1] == "7"
    headings = table.heading(6).plain.splitlines()
    assert len({len(line) for line in (*lines, *headings)}) == 1
    assert headings[0].split()[1:] == [
        *("size", "count", "type", "op", "algorithm", "median", "p95", "algbw", "busbw", "ratio", "#wrong")
    ]


def test_unchecked_rows_say_so():
    assert table.rows([record("ring", 8, [1], wrong=None)], 6).plain.split()[-2:] == ["-", "-"]


def test_the_summary_names_the_best():
    lines = table.summary(ROWS).plain.splitlines()
    assert lines[1].split() == ["#", "8", "B", "tree", "2.00"]
    assert lines[2].split() == ["#", "64", "B", "ring", "0.50"]
    assert lines[3].split()[-1] == "1.00"


def test_nothing_right_of_ours_has_no_summary():
    assert table.summary([ROWS[0], ROWS[3]]).plain == "# no right result of ours to compare with native"


def test_a_row_without_a_vector():
    row = records.record(
        "barrier", "ring", 0, Timing([3]), 6e-6, **WHERE, count=0, dtype=None, op=None, root=None
    )
    assert (row["algbw_GBps"], row["busbw_GBps"], row["ratio"]) == (0, 0, pytest.approx(2))
    cells = table.rows([row], 6).plain.split()
    assert cells == ["-", "-", "-", "-", "*ring", "3.00", "3.00", "-", "-", "2.00", "0"]
    assert table.summary([row]).plain.splitlines()[1].split() == ["#", "-", "ring", "2.00"]
    assert table.notes([("star", 0, "no")]).plain == "# left out: star: no"


def test_the_caption_says_what_is_measured():
    lines = table.caption("gather", WHERE, in_place=True, root=2, rounded=32).plain.splitlines()
    assert lines[0].startswith("# gather in place at root 2: 4 ranks, 2 nodes, 8 cores; Some MPI 1.0; ")
    assert lines[2:] == ["# sizes: rounded up to multiples of 32 B"]
    assert len(table.caption("scan", WHERE).plain.splitlines()) == 2
    assert table.caption("scan", WHERE).plain.startswith("# scan: ")


def test_notes_gather_the_sizes():
    refusals = [
        ("star", 2**20, "too long,\n given 1"),
        ("star", 2**22, "too long, given 2"),
        ("tree", 8, "no"),
    ]
    assert table.notes(refusals).plain.splitlines() == [
        "# left out: star, 1 MiB to 4 MiB: too long, given 1",
        "# left out: tree, 8 B: no",
    ]


def test_the_bound():
    assert plot.bound("allreduce", 1000, 2, alpha=1.0, beta=0.0) == 1
    assert plot.bound("allreduce", 1000, 5, alpha=1.0, beta=0.0) == 3
    assert plot.bound("allreduce", 1000, 4, alpha=0.0, beta=0.1) == pytest.approx(150)
    assert plot.bound("bcast", 1000, 4, alpha=0.0, beta=0.1) == pytest.approx(100)
    assert plot.bound("gather", 1000, 4, alpha=1.0, beta=0.1) == pytest.approx(77)


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.SVG", b"<?xml")])
def test_a_plot(tmp_path, name, start):
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    plot.check_target(str(path))
    plot.plot(ROWS, str(path), 1e-6, 1e-10)
    content = path.read_bytes()
    assert content.startswith(start)
    if name == "p.SVG":
        for text in (
            "native",
            "ring",
            "tree",
            "alpha-beta bound",
            "allreduce, 4 ranks on 2 nodes",
            "float64 SUM",
        ):
            assert text in content.decode()


def test_plot_targets_that_cannot_be():
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"expected a name that ends in \.png"):
        plot.check_target("p.txt")
    with pytest.raises(OSError, match="No such file or directory"):
        plot.check_target("/no/such/folder/p.png")
