"""Guidelines: mock-ups are right, what is slow on purpose is listed, what is wrong is told."""

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

from mpicoll import Communicator
from mpicoll.bench import guidelines
from mpicoll.bench.forms import FORMS
from mpicoll.bench.guidelines import LEVEL, MARGIN, MOCK_UPS, PARTS, compare, judge
from mpicoll.cli import program

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
FLOAT64 = np.dtype("float64")
SLOW = 0.03  # s, more than a busy machine takes to go on


class Changed:
    """The native collectives, but for some."""

    def __init__(self, **methods):
        self._methods = methods

    def __getattr__(self, name):
        return self._methods.get(name) or getattr(WORLD, name)


@pytest.fixture
def few_samples(monkeypatch):
    """Where times do not matter."""
    monkeypatch.setattr(guidelines, "SAMPLES", 5)


def all_of(implementations, sizes, *collectives, dtype=FLOAT64, op="SUM"):
    runs = list(
        compare(WORLD, implementations, sizes, dtype=dtype, op=op, min_time=1e-4, collectives=collectives)
    )
    return [one for found, _ in runs for one in found], [one for _, refused in runs for one in refused]


@pytest.mark.parametrize(
    ("collective", "dtype", "op"),
    [*((collective, "float64", "SUM") for collective in FORMS), ("reduce_scatter", "int32", "BXOR")],
)
def test_all_that_is_compared_does_the_same(collective, dtype, op, few_samples):
    implementations = {"native": WORLD, "auto": Communicator(WORLD)}
    found, refused = all_of(implementations, [8, 1200], collective, dtype=np.dtype(dtype), op=op)
    assert refused == []
    assert [one.wrong for one in found] == [0] * len(found)
    unit = SIZE * np.dtype(dtype).itemsize
    short, long = (-(-size // unit) * unit for size in (8, 1200))
    mock_ups = set(MOCK_UPS.get(collective, ()))
    split = {f"{PARTS} x {collective} of 1/{PARTS}"}
    for name in implementations:
        others = {
            size: {one.other for one in found if (one.implementation, one.size) == (name, size)}
            for size in (0, short, long)
        }
        if collective == "barrier":
            assert others == {0: mock_ups, short: set(), long: set()}
            continue
        assert others[long] == mock_ups | (set() if FORMS[collective].blocked else split)
        assert others[short] - split == mock_ups | {f"{collective} of {guidelines.format_size(long)}"}


def test_what_is_slow_is_listed_and_what_is_not_is_not(monkeypatch):
    """An all-reduce of 4 elements a rank takes long; one of 1 or of 16 does not, nor does anything else."""

    def allreduce(send, received, op):
        if len(received) == PARTS * SIZE:
            time.sleep(SLOW)

    monkeypatch.setattr(guidelines, "SAMPLES", 10)
    quick = dict.fromkeys(("Reduce", "Bcast", "Reduce_scatter_block", "Allgather"), lambda *_: None)
    short, long = SIZE * 8 * PARTS, SIZE * 8 * PARTS**2
    found, _ = all_of({"slow": Changed(Allreduce=allreduce, **quick)}, [short, long], "allreduce")
    verdicts = judge(found)
    assert {one.comparison.other for one in verdicts if one.violated and one.comparison.size == short} == {
        *MOCK_UPS["allreduce"],
        f"{PARTS} x allreduce of 1/{PARTS}",
        f"allreduce of {guidelines.format_size(long)}",
    }
    (split,) = (one for one in verdicts if one.comparison.size == long and " x " in one.comparison.other)
    assert not split.violated
    assert split.comparison.right.min() >= PARTS * SLOW
    assert all(len(one.left) == len(one.right) >= 10 for one in found)


def test_comparisons_are_the_same_on_all_ranks(few_samples):
    found, _ = all_of({"native": WORLD}, [8, 64], "bcast", "reduce")
    mine = [(one.guideline, one.size, one.wrong, one.left.tolist(), one.right.tolist()) for one in found]
    assert all(other == mine for other in WORLD.allgather(mine))


def test_what_is_wrong_is_told_of_what_it_is(few_samples):
    def reduce(send, received, op, root):
        WORLD.Reduce(send, received, op, root)
        if root == RANK:
            received[0] += 1

    found, _ = all_of({"wrong": Changed(Reduce=reduce), "native": WORLD}, [64], "allreduce")
    for one in found:
        broken = (one.implementation, one.other) == ("wrong", "reduce + bcast")
        assert (one.wrong >= 5 * SIZE) if broken else one.wrong == 0


def test_what_is_refused_is_left_out(few_samples):
    def reduce(send, received, op, root):
        raise ValueError("no reduce today")

    implementations = {"without": Changed(Reduce=reduce), "native": WORLD}
    found, refused = all_of(implementations, [8], "allreduce", "reduce")
    nbytes = SIZE * 8
    assert ("without: reduce + bcast", nbytes, "no reduce today") in refused
    assert ("without: reduce", nbytes, "no reduce today") in refused
    others = {(one.collective, one.other) for one in found if one.implementation == "without"}
    assert ("allreduce", "reduce_scatter + allgather") in others
    assert ("allreduce", "reduce + bcast") not in others
    assert {collective for collective, _ in others} == {"allreduce"}


def test_ticks_rise_with_what_is_done(few_samples):
    ticks = []
    for _ in compare(
        WORLD,
        {"native": WORLD},
        [8, 64],
        dtype=FLOAT64,
        min_time=1e-4,
        collectives=["bcast", "barrier"],
        tick=lambda *told: ticks.append(told),
    ):
        pass
    assert [done for done, *_ in ticks] == sorted(done for done, *_ in ticks)
    assert 0 <= ticks[0][0] < ticks[-1][0] < 1
    assert list(dict.fromkeys(told[1:] for told in ticks))[-1] == ("barrier", 0)


def run(*arguments):
    return CliRunner().invoke(
        program, ["guidelines", *arguments, "--min-time", "0.0001"], prog_name="mpicoll"
    )


def test_command(tmp_path, few_samples):
    path = tmp_path / "checks.jsonl"
    result = run("--collectives", "allreduce,barrier", "--sizes", "8,64", "--json", str(path))
    assert result.exit_code == 0, result.output
    if RANK:
        assert result.stdout == ""
        return
    assert "# guidelines: " in result.stdout
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("native", "auto"):
        own = [record for record in records if record["implementation"] == name]
        assert {record["collective"] for record in own} == {"allreduce", "barrier"}
        assert f"{sum(record['violated'] for record in own)} of {len(own)} checks violated" in result.stdout
        assert all(record["ranks"] == SIZE for record in own)
        listed = [record for record in own if record["violated"]]
        assert all(record["p"] <= LEVEL and record["ratio"] > MARGIN for record in listed)
    assert "wrong" not in result.stdout


def test_command_shows_violations(monkeypatch):
    monkeypatch.setitem(MOCK_UPS["barrier"], "nothing", lambda at: None)
    result = run("--collectives", "barrier", "--algorithms", "native", "--margin", "1")
    assert result.exit_code == (SIZE > 1)  # what does not wait is wrong
    if RANK == 0 and SIZE > 1:
        row = next(line for line in result.stdout.splitlines() if line.startswith("barrier <= nothing "))
        assert float(row.split()[-2]) > 1


def test_command_fails_where_results_are_wrong(monkeypatch, few_samples):
    monkeypatch.setitem(MOCK_UPS["gather"], "nothing", lambda at, send, received: None)
    result = run("--collectives", "gather", "--algorithms", "auto", "--sizes", "64")
    assert result.exit_code == 1
    if RANK == 0:
        assert "wrong: auto: gather or nothing, " in result.stdout


def test_command_says_which_file_cannot_be_written():
    result = run("--json", "/no/such/folder/x")
    assert result.exit_code == (2 if RANK == 0 else 0)
    assert result.stderr == (
        "mpicoll guidelines: /no/such/folder/x: No such file or directory\n" if RANK == 0 else ""
    )
