"""Tuning for real, with little time; and communicators that choose by a table."""

import os

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.bench.provenance import provenance
from mpicoll.bench.tune import AUTO, NATIVE, Job, chooses_by, write

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

ROWS = f"""\
format = 1

[[allreduce]]
ranks = {SIZE}
nodes = 1
bytes = [8, 800]
algorithm = "circulant"

[[allreduce]]
ranks = {SIZE}
nodes = 1
bytes = [801, 8000]
algorithm = "binary_tree"
transport = "message"
parameters = {{chunks = 3}}

[[bcast]]
ranks = {SIZE}
nodes = 1
bytes = [1, 100000]
algorithm = "native"

[[allreduce]]
ranks = {SIZE + 1}
nodes = 1
bytes = [1, 100000]
algorithm = "star"
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Name a table in the environment, which only rank 0 has."""

    def name(text):
        file = WORLD.bcast(str(tmp_path / "table.toml"))
        if RANK == 0 and text is not None:
            (tmp_path / "table.toml").write_text(text)
        monkeypatch.setenv("MPICOLL_TUNING", file)
        return file

    return name


def test_a_communicator_chooses_by_the_table_and_says_so(table):
    file = table(ROWS)
    comm = mpicoll.Communicator(WORLD.Dup())
    choice = comm.choice("allreduce", 800)
    assert (choice.algorithm, choice.transport) == ("circulant", "shared" if SIZE > 1 else "message")
    ranks = f"{SIZE} ranks, 1 node"
    assert choice.reason == f"tuned table {file}: vectors of 8 to 800 bytes on {ranks}"
    choice = comm.choice("allreduce", 801)
    assert (choice.algorithm, choice.transport) == ("binary_tree", "message")
    assert choice.parameters == (("chunks", 3),)
    explained = comm.explain("allreduce", 8000)
    assert "binary_tree (chunks=3)" in explained
    assert f"why: tuned table {file}: vectors of 801 to 8,000 bytes on {ranks}" in explained
    assert "over messages" in explained
    assert comm.choice("bcast", 5).algorithm == "native"
    for nbytes in (0, 8001):
        assert comm.choice("allreduce", nbytes).reason.startswith("built-in table")
    assert comm.choice("allreduce", 800, algorithm="ring").reason == "asked for by the call"
    for nbytes in (8, 800, 808, 8000, 8008):
        comm.Allreduce(np.full(nbytes // 8, RANK + 1.0), out := np.empty(nbytes // 8))
        assert (out == SIZE * (SIZE + 1) / 2).all()
    comm.Bcast(out := np.full(3, float(RANK)), SIZE - 1)
    assert (out == SIZE - 1).all()
    comm.Free()


def test_the_environment_of_the_collective_goes_before_the_table(table, monkeypatch):
    table(ROWS)
    monkeypatch.setenv("MPICOLL_ALLREDUCE", "star")
    comm = mpicoll.Communicator(WORLD.Dup())
    assert comm.choice("allreduce", 800).reason == "asked for by MPICOLL_ALLREDUCE"
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_a_row_is_for_just_so_many_ranks_and_where_they_share_memory(table):
    table(ROWS)
    comm = mpicoll.Communicator(WORLD.Dup())
    part = comm.Split(RANK == 0)
    assert part.choice("allreduce", 800).reason.startswith("built-in table")
    assert comm.Dup().choice("allreduce", 800).reason.startswith("tuned table")
    assert comm.choice("allreduce", 800, transport="message").reason.startswith("built-in table")
    apart = mpicoll.Communicator(WORLD.Dup(), nodes=[[rank] for rank in range(SIZE)])
    assert apart.choice("allreduce", 800).reason.startswith("built-in table")
    comm.Free()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, ": No such file or directory"),
        (ROWS.replace("circulant", "cirque"), ": line 7: allreduce.algorithm 'cirque': allreduce: unknown"),
        (ROWS.replace("[8, 800]", "[8, -800]"), ": line 6: allreduce.bytes [8, -800] given, expected"),
        ("format = ", ": line 1: Invalid value"),
    ],
)
def test_a_bad_table_is_refused_on_all_ranks(table, text, message):
    file = table(text)
    with pytest.raises(ValueError, match="MPICOLL_TUNING") as caught:
        mpicoll.Communicator(WORLD.Dup())
    assert str(caught.value).startswith(f"MPICOLL_TUNING: {file}{message}")
    assert "\n" not in str(caught.value)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_name_different_tables_are_refused(table, monkeypatch):
    table(ROWS)
    if RANK == SIZE - 1:
        monkeypatch.setenv("MPICOLL_TUNING", "another.toml")
    with pytest.raises(ValueError, match=r"MPICOLL_TUNING: .*another.toml.*expected the same on all"):
        mpicoll.Communicator(WORLD.Dup())


def job(collective, most=4096, budget=1.0):
    outcomes = []
    comm = WORLD.Dup()
    made = Job(comm, collective, most, budget, lambda outcome, _: outcomes.append(outcome), pytest.fail)
    return made, outcomes


@pytest.mark.parametrize("collective", ["allreduce", "barrier", "bcast", "reduce_scatter"])
def test_what_tuning_finds_is_written_read_chosen_and_verified(tmp_path, collective):
    pytest.importorskip("tomlkit")
    file = WORLD.bcast(str(tmp_path / "tuned.toml"))
    made, outcomes = job(collective)
    lines = made.find()
    found = WORLD.allgather([(each.size, each.winner, each.builtin) for each in outcomes])
    assert found == [found[0]] * SIZE  # all ranks come to the same
    sizes = [0] if collective == "barrier" else [made.unit, 4096]
    assert all(
        any(size - made.unit < each[0] < size + made.unit or size == each[0] for each in found[0])
        for size in sizes
    )
    about = provenance(WORLD)
    if RANK == 0:
        write(file, lines, about, [])
    WORLD.Barrier()
    with chooses_by(made.comm, file) as tuned:
        assert "MPICOLL_TUNING" not in os.environ
        for line in lines:
            row = line.tuned
            choice = tuned.choice(collective, row.most)
            assert choice.reason == f"tuned table {file}: {row}"
            assert (choice.algorithm, choice.parameters) == (row.algorithm, row.parameters)
        made.verify(lines, tuned)
    assert all(line.checks for line in lines)


def test_a_faster_algorithm_is_found_and_the_table_gets_it(tmp_path):
    """The built-in choice is made slow, so there is something to find on any machine."""
    pytest.importorskip("tomlkit")
    made, _ = job("allreduce", 8, 80.0)  # it ends when it is decided
    made._labels = [AUTO, "ring", "star"]
    for label in (AUTO, NATIVE):
        made._calls[label] = slow(made._calls[label])
    lines = made.find()
    assert [(line.tuned.least, line.tuned.most) for line in lines] == [(1, 8)]
    assert lines[0].tuned.algorithm not in (AUTO, NATIVE)
    outcome = lines[0].found.outcomes[0]
    assert outcome.over_builtin.low > 1
    assert outcome.over_native.low > 1


def test_a_candidate_with_wrong_results_is_told_and_never_chosen():
    told = []
    made = Job(
        WORLD.Dup(), "allreduce", 8, 1.0, lambda *_: None, lambda label, size: told.append((label, size))
    )
    made._calls = {label: made._calls[label] for label in (AUTO, NATIVE)}
    made._calls[AUTO], made._calls[NATIVE] = (slow(made._calls[label]) for label in (AUTO, NATIVE))
    made._labels = [AUTO, "ring"]
    made._calls["ring"] = nothing
    assert made.find() == []
    assert set(told) == {("ring", 8)}


def slow(call):
    def wait(*buffers):
        end = MPI.Wtime() + 0.003
        while MPI.Wtime() < end:
            pass
        call(*buffers)

    return wait


def nothing(send, recv):
    pass
