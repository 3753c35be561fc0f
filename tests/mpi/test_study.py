"""A study on subcommunicators: who takes part, what is written, and what is not measured again."""

import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.bench.provenance import mpi_name
from mpicoll.bench.study import FILE, Settings, keys, part, read, resume, study

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
FLOAT64 = np.dtype("float64")


def settings(ranks=(SIZE,), algorithms=("auto", "ring"), **more):
    more = {"op": "SUM", "min_time": 0.001} | more
    return Settings(more.pop("collective", "allreduce"), ranks, [8, 64], algorithms, FLOAT64, **more)


def run(folder, what):
    """Resume a study as the command does; give what rank 0 saw."""
    known = what.known("0", mpi_name(), WORLD.allgather(MPI.Get_processor_name()))
    known.pop(("mpicoll",))  # the real one, which is not of interest
    done = WORLD.bcast(keys(resume(folder, known)[0]) if RANK == 0 else None)
    return list(study(WORLD, what, folder, done))


@pytest.fixture
def folder(tmp_path):
    return WORLD.bcast(str(tmp_path / "study"))


def test_the_first_ranks_take_part_and_the_others_wait():
    for ranks in range(1, SIZE + 1):
        begin = time.process_time(), time.monotonic()
        with part(WORLD, ranks) as comm:
            assert (comm is not None) == (ranks > RANK)
            if comm is not None:
                assert (comm.rank, comm.size) == (RANK, ranks)
                time.sleep(0.3)
        used, passed = time.process_time() - begin[0], time.monotonic() - begin[1]
        assert passed > 0.25  # nobody is through before the others are
        if ranks <= RANK:
            assert used < 0.8 * passed  # they sleep


@pytest.mark.mpi(min_size=2)
def test_a_study_has_a_record_for_each_sample_set(folder):
    ranks = sorted({2, SIZE})
    seen = run(folder, settings(ranks))
    assert [(p, size) for p, size, *_ in seen] == [(p, size) for p in ranks for size in (8, 64) if p > RANK]
    if RANK == 0:
        records = read(folder)
        assert keys(records) == {
            ("allreduce", p, size, name)
            for p in ranks
            for size in (8, 64)
            for name in ("native", "auto", "ring")
        }
        assert [each for *_, rows, _ in seen for each in rows] == records
        for each in records:
            assert (each["world"], each["scaling"], each["study"], each["wrong"]) == (SIZE, "strong", 1, 0)
            assert each["p25_us"] <= each["median_us"] <= each["p75_us"] <= each["p95_us"]
            assert each["nodes"] == 1
            assert each["samples"] >= 5


def test_what_is_there_is_not_measured_again(folder):
    run(folder, settings())
    before = WORLD.bcast(Path(folder, FILE).read_text() if RANK == 0 else None)
    again = run(folder, settings())
    assert [rows for *_, rows, _ in again] == [[], []]
    assert WORLD.bcast(Path(folder, FILE).read_text() if RANK == 0 else None) == before


def test_a_killed_study_continues(folder):
    """Of six records, two and a half are left."""
    run(folder, settings())
    if RANK == 0:
        lines = Path(folder, FILE).read_text().splitlines(keepends=True)
        assert len(lines) == 6
        Path(folder, FILE).write_text("".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    WORLD.Barrier()
    seen = run(folder, settings())
    assert [[row["algorithm"] for row in rows] for *_, rows, _ in seen] == [
        ["ring"],
        ["native", "auto", "ring"],
    ]
    if RANK == 0:
        left = Path(folder, FILE).read_text().splitlines(keepends=True)
        assert left[:2] == lines[:2]
        assert len(keys(read(folder))) == len(left) == 6
        assert all(row["ratio"] is not None for row in read(folder))  # native was beside them


def test_an_algorithm_that_is_added_later(folder):
    run(folder, settings())
    seen = run(folder, settings(algorithms=("circulant", "ring")))
    assert [[row["algorithm"] for row in rows] for *_, rows, _ in seen] == [["circulant"]] * 2


def test_weak_scaling_is_of_what_a_rank_has(folder):
    seen = run(folder, settings(scaling="weak"))
    assert [size for _, size, *_ in seen] == [8 * SIZE, 64 * SIZE]
    assert {row["count"] * 8 for *_, rows, _ in seen for row in rows} == {8 * SIZE, 64 * SIZE}


@pytest.mark.mpi(min_size=2)
def test_what_cannot_serve_is_said_and_does_not_come_again(folder):
    what = settings(collective="allgather", op="", algorithms=("neighbour_exchange", "ring"))
    for _ in range(2):
        for *_, rows, refusals in run(folder, what):
            assert [label for label, *_ in refusals] == ["neighbour_exchange"] * (SIZE % 2)
            assert all(row["algorithm"] != "neighbour_exchange" for row in rows) or SIZE % 2 == 0
    assert [rows for *_, rows, _ in run(folder, what)] == [[], []]


def test_all_that_makes_sense_and_a_barrier(folder):
    for collective in ("barrier", "bcast"):
        seen = run(folder, settings(collective=collective, op="", algorithms=None, min_time=0.0001))
        assert {row["wrong"] for *_, rows, _ in seen for row in rows} == {0}
        names = {row["algorithm"] for *_, rows, _ in seen for row in rows}
        assert {"native", "auto"} < names


def test_a_file_that_cannot_be_written_is_an_error_on_all_ranks(folder):
    with pytest.raises(OSError, match="No such file"):
        list(study(WORLD, settings(), f"{folder}/nowhere", set()))
