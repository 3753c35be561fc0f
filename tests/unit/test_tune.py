"""Tuning on machines that are made up: who is fastest is known, and noise is drawn."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpicoll import launch, tuning
from mpicoll.bench import tune
from mpicoll.bench.tune import AUTO, NATIVE, Check, Line, Ratio, anchors, between, contest, midway, ratio
from mpicoll.cli.tune import parse_collectives

ROUNDS = 20


def machine(times, seed=0, noise=0.2, rounds=ROUNDS):
    """Make what samples candidates: `times` gives each one's median seconds; spikes disturb whole rounds."""
    rng = np.random.default_rng(seed)

    def sample(labels, look):
        common = rng.lognormal(0, 0.3, rounds) * np.where(rng.random(rounds) < 0.1, 10, 1)
        return {label: times[label] * common * rng.lognormal(0, noise, rounds) for label in labels}

    return sample


def looks(most):
    """Make a clock with time for so many looks."""
    count = itertools.count(1)
    return lambda: next(count) < most


# -- intervals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "alpha", "rank"), [(5, 0.05, -1), (6, 0.05, 0), (9, 0.05, 1), (100, 0.05, 39)])
def test_the_ranks_are_those_of_the_binomial_distribution(n, alpha, rank):
    """From the tables of the sign test."""
    assert tune._rank(n, alpha) == rank
    assert 2 * sum(math.comb(n, k) for k in range(rank + 1)) <= alpha * 2**n
    assert 2 * sum(math.comb(n, k) for k in range(rank + 2)) > alpha * 2**n


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60), st.floats(0.001, 0.5))
def test_an_interval_holds_its_median(times, alpha):
    found = ratio(np.array(times), np.ones(len(times)), alpha)
    assert found.low <= found.median <= found.high


def test_an_interval_misses_the_median_as_often_as_it_says():
    rng = np.random.default_rng(1)
    trials = 2000
    missed = 0
    for _ in range(trials):
        found = ratio(rng.lognormal(0, 1, 15), rng.lognormal(0, 1, 15))
        missed += not found.low <= 1 <= found.high
    assert 0.01 * trials < missed < 0.06 * trials  # 0.035 exactly, for 15 rounds


def test_what_disturbs_a_round_disturbs_both_and_does_not_count():
    rng = np.random.default_rng(2)
    rounds = rng.lognormal(0, 2, 50)
    found = ratio(1.1 * rounds, rounds)
    assert found == pytest.approx((1.1, 1.1, 1.1))


# -- a contest at one size ---------------------------------------------------------------------


def test_the_fastest_wins():
    times = {AUTO: 2.0, NATIVE: 3.0, "ring": 1.0, "star": 1.5}
    found = contest(8, AUTO, ["ring", "star"], machine(times), looks(20))
    assert (found.winner, found.change, found.size) == ("ring", "ring", 8)
    assert found.over_builtin.low <= 2 <= found.over_builtin.high
    assert found.over_native.low <= 3 <= found.over_native.high


def test_native_keeps_its_place_where_ours_is_not_faster_than_it():
    times = {AUTO: 2.0, NATIVE: 1.0, "ring": 0.999}
    found = contest(8, AUTO, ["ring"], machine(times), looks(20))
    assert found.winner == NATIVE
    assert found.change == NATIVE


def test_the_built_in_choice_stays_where_nothing_is_faster_than_it():
    times = {AUTO: 1.0, NATIVE: 3.0, "ring": 1.001, "star": 0.999}
    found = contest(8, AUTO, ["ring", "star"], machine(times), looks(20))
    assert (found.winner, found.change) == (AUTO, None)
    times = {NATIVE: 1.0, "ring": 1.001, "star": 3.0}
    found = contest(8, NATIVE, ["ring", "star"], machine(times), looks(20))
    assert (found.winner, found.builtin, found.change) == (NATIVE, NATIVE, None)


def test_no_time_makes_no_claim():
    times = {AUTO: 100.0, NATIVE: 100.0, "ring": 1.0}
    found = contest(8, AUTO, ["ring"], machine(times, rounds=5), looks(1))
    assert found.winner == AUTO
    assert found.over_native.high == math.inf


def test_a_contest_ends_as_soon_as_it_is_decided():
    asked = []

    def more():
        asked.append(1)
        return len(asked) < 50

    contest(8, AUTO, ["ring"], machine({AUTO: 9.0, NATIVE: 9.0, "ring": 1.0}), more)
    assert not asked


def test_slow_challengers_are_dropped_and_those_that_must_be_compared_with_are_not():
    seen = []
    measured = machine({AUTO: 5.0, NATIVE: 5.0, "ring": 1.0, "star": 1.0, "tree": 3.0})

    def sample(labels, look):
        seen.append(set(labels))
        return measured(labels, look)

    contest(8, AUTO, ["ring", "star", "tree"], sample, looks(4))
    assert seen[0] == {AUTO, NATIVE, "ring", "star", "tree"}
    assert len(seen) > 1
    assert all(labels == {AUTO, NATIVE, "ring", "star"} for labels in seen[1:])


def test_what_does_not_serve_is_left_out():
    measured = machine({AUTO: 2.0, NATIVE: 2.0, "ring": 1.0})

    def sample(labels, look):
        return measured([label for label in labels if label != "star"], look)

    assert contest(8, AUTO, ["star", "ring"], sample, looks(9)).winner == "ring"


def test_native_with_wrong_results_is_an_error():
    with pytest.raises(RuntimeError, match="at 8 bytes native gave no right result"):
        contest(8, AUTO, [], lambda labels, look: {AUTO: np.ones(9)}, looks(9))


@given(
    st.floats(0.2, 5),
    st.floats(0.2, 5),
    st.lists(st.floats(0.2, 5), max_size=5),
    st.floats(0.01, 0.5),
    st.integers(0, 2**20),
    st.integers(1, 6),
)
@settings(deadline=None, max_examples=200)
def test_the_rule_holds_whatever_the_times(builtin, native, others, noise, seed, most):
    """By the interval that the outcome itself gives, the winner beats what it takes the place of."""
    challengers = [f"algorithm {number}" for number in range(len(others))]
    times = {AUTO: builtin, NATIVE: native, **dict(zip(challengers, others, strict=True))}
    found = contest(8, AUTO, challengers, machine(times, seed, noise), looks(most))
    if found.change:
        assert found.over_builtin.low > 1
    if found.winner in challengers:
        assert found.over_native.low > 1


def test_alike_candidates_seldom_take_each_others_place_however_often_one_looks():
    """Without the corrections for looks and challengers it would be in half of the trials, or more."""
    labels = [f"algorithm {number}" for number in range(6)]
    times = dict.fromkeys([AUTO, NATIVE, *labels], 1.0)
    trials = 200
    changed = sum(
        contest(8, AUTO, labels, machine(times, seed, 0.3), looks(8)).change is not None
        for seed in range(trials)
    )
    assert changed <= 0.05 * trials


def test_a_clear_difference_is_found_nearly_always():
    labels = [f"algorithm {number}" for number in range(6)]
    times = {**dict.fromkeys([AUTO, NATIVE, *labels], 1.0), "algorithm 3": 0.7}
    found = [contest(8, AUTO, labels, machine(times, seed, 0.3), looks(8)).winner for seed in range(50)]
    assert found.count("algorithm 3") >= 48


# -- over sizes --------------------------------------------------------------------------------


@given(st.integers(8, 2**30), st.sampled_from([8, 16, 24, 40, 64, 8 * 97]))
def test_anchors_are_whole_elements_up_to_the_longest_vector(most, unit):
    sizes = anchors(most, unit)
    assert sizes == sorted(set(sizes))
    assert all(size % unit == 0 and size > 0 for size in sizes)
    assert sizes[-1] == -(-most // unit) * unit
    assert all(b <= 32**1.5 * a + unit for a, b in itertools.pairwise(sizes))


def test_a_barrier_has_one_anchor():
    assert anchors(2**20, 0) == [0]
    assert midway(0, 0, 0) is None


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.sampled_from([8, 24, 64]))
def test_bisection_comes_to_an_end(a, b, unit):
    low, high = sorted((a * unit, b * unit))
    assume(low < high)
    for _ in range(40):
        middle = midway(low, high, unit)
        if middle is None:
            break
        assert low < middle < high
        assert middle % unit == 0
        low = middle  # the longer way
    assert middle is None


def test_the_middle_is_a_power_of_two_where_there_is_one():
    assert midway(8, 2**20, 8) == 2**11
    assert midway(24, 264, 24) == 72  # 64, rounded
    assert midway(1024, 2048, 8) == 1448
    assert midway(1024, 1448, 8) is None


def faster_from(crossover, unit=8, seed=0, noise=0.1, most=2**26):
    """Search where ring is best from a size on, and the built-in choice below; give all sizes, too."""
    asked = []

    def hold(size, challengers):
        asked.append(size)
        labels = ["ring", "star"] if challengers is None else [c for c in challengers if c != AUTO]
        times = {AUTO: 1.0, NATIVE: 2.0, "ring": 2.0 if size < crossover else 0.5, "star": 3.0}
        return contest(size, AUTO, labels, machine(times, seed + size, noise), looks(6))

    return tune.search(anchors(most, unit), hold, unit, looks(1000)), asked


@given(st.integers(65, 2**26 - 1), st.sampled_from([8, 24, 64]), st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_a_crossover_is_found_to_the_resolution(crossover, unit, seed):
    found, asked = faster_from(crossover, unit, seed)
    below = max(outcome.size for outcome in found if outcome.size < crossover)
    above = min(outcome.size for outcome in found if outcome.size >= crossover)
    assert all((outcome.change == "ring") == (outcome.size >= crossover) for outcome in found)
    assert above <= tune.RESOLUTION * below or above - below <= unit
    assert len(asked) == len(set(asked)) <= len(anchors(2**26, unit)) + 7


def test_nothing_is_bisected_where_neighbours_agree():
    found, asked = faster_from(2**30)
    assert asked == anchors(2**26, 8)
    assert tune.ranges(found) == []


def test_without_time_there_is_no_bisection():
    def hold(size, _):
        times = {AUTO: 1.0, NATIVE: 2.0, "ring": 2.0 if size < 5000 else 0.5}
        return contest(size, AUTO, ["ring"], machine(times), looks(6))

    found = tune.search([8, 4096, 2**20], hold, 8, looks(1))
    assert [outcome.change for outcome in found] == [None, None, "ring"]
    assert tune.ranges(found)[0][:3] == ("ring", 65536 + 1, 2**20)


def outcome(size, winner, builtin=AUTO):
    return tune.Outcome(size, winner, builtin, 9, Ratio(2, 1.5, 3), Ratio(2, 1.5, 3))


def test_ranges_leave_out_where_the_built_in_choice_stays():
    found = [
        outcome(8, "ring"),
        outcome(32, "ring"),
        outcome(128, AUTO),
        outcome(512, NATIVE, NATIVE),
        outcome(2048, NATIVE),
        outcome(8192, "star"),
    ]
    ranges = tune.ranges(found)
    assert [row[:3] for row in ranges] == [
        ("ring", 1, 64),
        (NATIVE, 1025, 4096),
        ("star", 4097, 8192),
    ]
    assert [each.size for each in ranges[0].outcomes] == [8, 32]
    assert tune.ranges([outcome(0, "tree")])[0][:3] == ("tree", 0, 0)


@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=9, unique=True), st.sampled_from([8, 24]))
def test_verification_is_inside_a_range_and_where_nothing_was_measured(sizes, unit):
    outcomes = [outcome(size * unit, "ring") for size in sorted(sizes)]
    (row,) = tune.ranges(outcomes)
    found = between(row, unit)
    assert 1 <= len(found) <= 3
    assert all(row.least <= size <= row.most and size % unit == 0 for size in found)
    measured = {each.size for each in outcomes}
    assert not measured & set(found) or found == [outcomes[0].size]


def test_rows_that_lose_are_dropped():
    row = tune.ranges([outcome(8, "ring")])[0]

    def line(*checks):
        return Line(tuning.Tuned("allreduce", 4, 1, 1, 8, "ring"), row, [Check(8, *each) for each in checks])

    good, even, bad = Ratio(1.5, 1.2, 2), Ratio(0.99, 0.9, 1.1), Ratio(0.8, 0.7, 0.9)
    assert not line((good, good)).loses
    assert not line((good, even)).loses
    assert line((good, good), (bad, good)).loses
    assert line((good, good), (good, bad)).loses
    assert line((even, good)).loses  # on average no faster than the built-in choice


# -- the table ---------------------------------------------------------------------------------

ABOUT = {
    "time": "2026-01-01T00:00:00+00:00",
    "mpicoll": "0.1.0",
    "mpi": "Some MPI 1.0",
    "hosts": ["a", "b"],
    "nodes": 2,
    "ranks": 4,
    "cores": 8,
    "python": "3.11.0",
    "command": "mpicoll tune -o 'x'",
}


def test_what_is_written_is_read(tmp_path):
    pytest.importorskip("tomlkit")
    file = str(tmp_path / "table.toml")
    rows = [
        tuning.Tuned("allreduce", 4, 1, 1, 4096, "ring", "message"),
        tuning.Tuned("bcast", 4, 1, 1, 4096, "chain", "shared", (("chunks", 8),)),
        tuning.Tuned("allreduce", 4, 2, 1, 64, "two_level", "shared", (("inter", "ring"), ("leaders", 1))),
        tuning.Tuned("barrier", 4, 1, 0, 0, "native"),
    ]
    found = tune.ranges([outcome(8, "ring"), outcome(4096, "ring")])[0]
    lines = [Line(row, found, [Check(512, Ratio(1.5, 1.2, 2), Ratio(3, 2, math.inf))]) for row in rows]
    tune.write(file, lines, ABOUT, ["A remark."])
    text = tuning.read(file)
    read = tuning.parse(text, file)
    assert sorted(read.rows) == sorted(rows)
    assert [row.collective for row in read.rows] == ["allreduce", "allreduce", "bcast", "barrier"]
    for said in (
        "# A remark.",
        "Some MPI 1.0",
        "# to 4 KiB",
        "# at 8 B: built-in 2 (1.5 to 3), native 2 (1.5",
    ):
        assert said in text
    assert "# verified at 512 B: built-in 1.5 (1.2 to 2), native 3 (2 to inf)" in text
    tune.write(file, [], ABOUT, [])
    assert tuning.parse(tuning.read(file), file).rows == ()


def test_the_candidates_of_the_built_in_table_come_with_their_parameters():
    pair, two_nodes = ((0, 1),), ((0, 1), (2, 3))
    assert tune.variants("allreduce", pair) == ["recursive_halving_doubling:transport=message"]
    assert tune.variants("allreduce", two_nodes) == [
        "two_level:leaders=1:inter=recursive_doubling",
        "two_level:inter=recursive_doubling",
        "two_level:inter=ring",
    ]
    assert tune.variants("allreduce", ((0,), (1,))) == []
    assert tune.variants("scan", pair) == []


def test_collectives_are_read():
    assert parse_collectives("bcast, allreduce,bcast") == ["bcast", "allreduce"]
    assert "scan" in parse_collectives("all")
    with pytest.raises(ValueError, match="unknown collective 'gossip', expected all, or some of allgather"):
        parse_collectives("gossip")


# -- the command -------------------------------------------------------------------------------

TUNE = ["tune", "--collectives", "barrier,allreduce", "--max", "64", "--budget", "2"]


def mpicoll(n, *arguments, **options):
    return launch.run(n, [sys.executable, "-m", "mpicoll", *arguments], timeout=120, **options)


def test_wrong_command_lines(tmp_path):
    file = str(tmp_path / "table.toml")
    for arguments, env, said in (
        (["-o", "/no/such/folder/t"], {}, "/no/such/folder/t: No such file or directory"),
        (["--collectives", "gossip"], {}, "Invalid value for '--collectives': unknown collective 'gossip', "),
        (["--max", "7"], {}, "--max 7 given, expected 8 bytes or more"),
        ([], {"MPICOLL_ALLREDUCE": "ring"}, "MPICOLL_ALLREDUCE=ring is set, and would change what "),
        ([], {"MPICOLL_WAIT": "nap"}, "MPICOLL_WAIT: 'nap' given, expected auto, spin, yield, sleep"),
    ):
        done = mpicoll(2, *TUNE, "-o", file, *arguments, env=env)
        lines = [line for line in done.stderr.splitlines() if line.startswith("mpicoll")]
        assert done.returncode == 2, done.stderr
        assert len(lines) == 1
        assert lines[0].startswith(f"mpicoll tune: {said}")
    assert not (tmp_path / "table.toml").exists()


def test_the_command_writes_a_table_that_can_be_read(tmp_path):
    pytest.importorskip("tomlkit")
    file = tmp_path / "table.toml"
    done = mpicoll(3, *TUNE, "-o", str(file), "--ranks", "2,3")
    assert done.returncode == 0, done.stderr
    for collective, ranks in itertools.product(("barrier", "allreduce"), (2, 3)):
        assert any(line.split()[:3] == [collective, str(ranks), "ranks"] for line in done.stdout.splitlines())
    rows = tuning.parse(file.read_text(), str(file)).rows
    assert done.stdout.splitlines()[-1].endswith(f"{len(rows)} row{'s'[: len(rows) != 1]} in {file}")
    assert {row.ranks for row in rows} <= {2, 3}
    assert "Not verified yet" not in file.read_text()
    env = {"MPICOLL_TUNING": str(file)}
    done = mpicoll(2, "info", env=env)
    assert f"MPICOLL_TUNING={file}; " in done.stdout
    two = sum(row.ranks == 2 for row in rows)
    assert (f"{two} row{'s'[: two > 1]} for 2 ranks on 1 node" in done.stdout) == (two > 0)
