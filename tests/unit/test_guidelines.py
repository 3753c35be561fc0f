"""The statistics of guidelines, against scipy's and against samples of which the truth is known."""

import re

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mpicoll import launch
from mpicoll.bench.forms import FORMS
from mpicoll.bench.guidelines import LEVEL, MOCK_UPS, Comparison, holm, judge, rank_sum
from mpicoll.cli import program

few = st.lists(st.integers(0, 9), min_size=1, max_size=30)  # with ties
chances = st.lists(st.floats(0, 1), max_size=20)


def compared(left, right, implementation="native", size=8):
    return Comparison(implementation, "allreduce", "reduce + bcast", size, np.array(left), np.array(right))


def times(rng, samples=20, factor=1.0):
    """Times as they are measured: most are near the least, some far from it."""
    return factor * 1e-5 * (1 + rng.exponential(0.1, samples))


def test_rank_sum_of_a_known_case():
    """Ages at which men and women were diagnosed, from scipy's manual: two-sided 0.1113."""
    men, women = np.array([19, 22, 16, 29, 24]), np.array([20, 11, 17, 12])
    assert rank_sum(men, women) == pytest.approx(0.11134688653314041 / 2)
    assert rank_sum(women, men) > 0.9


@given(few, few)
def test_rank_sum_is_scipys(left, right):
    left, right = np.array(left, float), np.array(right, float)
    if len(set(left) | set(right)) == 1:
        assert rank_sum(left, right) == 1
        return
    expected = stats.mannwhitneyu(left, right, alternative="greater", method="asymptotic").pvalue
    assert rank_sum(left, right) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_rank_sum_of_samples_apart():
    assert rank_sum(np.arange(100) + 1000.0, np.arange(100.0)) < 1e-30
    assert rank_sum(np.arange(100.0), np.arange(100) + 1000.0) == pytest.approx(1)


def test_rank_sum_at_its_level():
    """Of samples of one distribution it finds no more than the level says."""
    rng = np.random.default_rng(1)
    found = sum(rank_sum(times(rng), times(rng)) <= LEVEL for _ in range(4000))
    assert 0.035 * 4000 < found < 0.06 * 4000


def test_holm_of_a_known_case():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1, 1]
    assert holm([]) == []


@given(chances)
def test_holm(found):
    corrected = holm(found)
    assert all(before <= after <= 1 for before, after in zip(found, corrected, strict=True))
    assert all(after <= min(1, len(found) * before) for before, after in zip(found, corrected, strict=True))
    in_order = [corrected[index] for index in np.argsort(found, kind="stable")]
    assert in_order == sorted(in_order)
    if found:
        assert min(corrected) == min(1, len(found) * min(found))


def test_a_slower_one_is_found_among_many():
    rng = np.random.default_rng(2)
    for _ in range(50):
        comparisons = [compared(times(rng), times(rng)) for _ in range(100)]
        comparisons[37] = compared(times(rng, factor=1.5), times(rng))
        assert judge(comparisons)[37].violated


def test_equal_ones_are_not_listed_more_often_than_the_level():
    rng = np.random.default_rng(3)
    accused = 0
    for _ in range(400):
        verdicts = judge([compared(times(rng), times(rng)) for _ in range(30)], margin=1.0)
        accused += any(verdict.violated for verdict in verdicts)
    assert accused <= 0.07 * 400


def test_without_the_correction_they_would_be():
    """What the test above looks for is there to be found."""
    rng = np.random.default_rng(3)
    accused = 0
    for _ in range(100):
        accused += any(rank_sum(times(rng), times(rng)) <= LEVEL for _ in range(30))
    assert accused > 50


def test_drift_does_not_accuse():
    """Rounds that are slow for both sides alike make the test careful."""
    rng = np.random.default_rng(4)
    accused = 0
    for _ in range(300):
        drift = 1 + rng.exponential(0.5, 20)
        accused += judge([compared(drift * times(rng), drift * times(rng))], margin=1.0)[0].violated
    assert accused <= LEVEL * 300


def test_a_difference_below_the_margin_is_not_listed():
    slower = compared(np.linspace(1.03, 1.04, 50), np.linspace(1.0, 1.01, 50))
    assert slower.ratio == pytest.approx(1.03, abs=0.001)
    assert judge([slower])[0].p < 1e-9
    assert not judge([slower])[0].violated
    assert judge([slower], margin=1.02)[0].violated


def test_faster_is_not_listed():
    assert not judge([compared(np.linspace(1, 2, 20), np.linspace(11, 12, 20))])[0].violated


def test_a_ratio_without_evidence_is_not_listed():
    noisy = compared([1.0, 9.0, 9.0], [1.0, 1.5, 8.0])
    assert noisy.ratio > 1.05
    assert not judge([noisy])[0].violated


def test_the_correction_is_for_each_implementation_by_itself():
    rng = np.random.default_rng(5)
    mild = compared(times(rng, factor=1.1), times(rng), "auto")
    alone = judge([mild])[0].p
    with_others = judge([compared(times(rng), times(rng)) for _ in range(9)] + [mild])[-1]
    of_one = judge([compared(times(rng), times(rng), "auto") for _ in range(9)] + [mild])[-1]
    assert with_others.p == alone
    assert of_one.p == pytest.approx(10 * alone)
    assert with_others.comparison is mild


def test_records():
    (verdict,) = judge([compared([3e-6] * 20, [1e-6] * 20)])
    record = verdict.record()
    assert verdict.comparison.guideline == "allreduce <= reduce + bcast"
    assert (record["collective"], record["other"], record["size"]) == ("allreduce", "reduce + bcast", 8)
    assert (record["left_us"], record["right_us"], record["ratio"]) == pytest.approx((3, 1, 3))
    assert record["violated"] is True
    assert record["samples"] == [20, 20]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(launch, "rank", lambda: None)
    monkeypatch.delenv(launch.LAUNCHED, raising=False)

    def run(*arguments):
        return CliRunner().invoke(program, ["guidelines", *arguments], prog_name="mpicoll")

    return run


def test_help_states_every_mock_up(run):
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in run("--help").stdout.splitlines()]
    stated = {line[0]: set(line[1].split("; ")) for line in lines if len(line) == 2 and line[0] in FORMS}
    assert stated == {collective: set(others) for collective, others in MOCK_UPS.items()}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--algorithms", "ring"], "'ring' is not one of native, auto"),
        (["--collectives", "gossip"], "'gossip' is not one of allgather"),
        (["--sizes", "lots"], "'lots' is not a size"),
        (["--sizes", "0,8"], "0 bytes given, expected at least 1"),
        (["--dtype", "float8"], "'float8' is not one of"),
        (["--op", "BAND"], "BAND is for integers, given float64"),
        (["--min-time", "0"], "--min-time"),
        (["--margin", "0.9"], "--margin"),
        (["-n", "0"], "-n"),
    ],
)
def test_bad_input_is_one_line(run, arguments, part):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert part in result.stderr
