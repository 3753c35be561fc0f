"""Links fitted to times that were made of known ones."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import launch
from mpicoll.model.fit import fit, interval
from mpicoll.model.network import Link

SIZES = [8 * 4**power for power in range(11)]
LATENCIES, BANDWIDTHS = st.floats(5e-7, 1e-3), st.floats(1e8, 1e11)


def samples(link, noise=0.03, count=15, seed=0, outliers=0.0):
    """Make times with multiplicative noise, some of them far off."""
    rng = np.random.default_rng(seed)
    found = {}
    for size in SIZES:
        time = link.latency + max(size / link.peak, (size - link.burst) / link.bandwidth)
        times = time * np.exp(rng.normal(0, noise, count))
        times[rng.random(count) < outliers] *= 10
        found[size] = times
    return found


@given(LATENCIES, BANDWIDTHS, st.integers(0, 9))
@settings(deadline=None, max_examples=15)
def test_a_plain_link(latency, bandwidth, seed):
    link = Link(latency, bandwidth)
    found = fit(samples(link, seed=seed), draws=3)
    assert found.link.burst == 0
    # what a figure does not show in the times, it cannot be known by
    if SIZES[-1] / bandwidth > 3 * latency:
        assert found.link.bandwidth == pytest.approx(bandwidth, rel=0.1)
    if latency > 3 * SIZES[0] / bandwidth:
        assert found.link.latency == pytest.approx(latency, rel=0.1)
    assert found.worst < 0.1


def test_outliers_do_not_matter():
    link = Link(5e-5, 1e8)
    found = fit(samples(link, outliers=0.2, count=31), draws=3)
    assert found.link.latency == pytest.approx(link.latency, rel=0.1)
    assert found.link.bandwidth == pytest.approx(link.bandwidth, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_link_with_a_burst(seed):
    link = Link(1e-4, 2.4e7, burst=1e5, peak=1e9)
    found = fit(samples(link, seed=seed), draws=10)
    assert found.link.latency == pytest.approx(link.latency, rel=0.1)
    assert found.link.bandwidth == pytest.approx(link.bandwidth, rel=0.05)
    assert found.link.burst == pytest.approx(link.burst, rel=0.2)
    assert set(found.intervals) == {"latency", "bandwidth", "burst", "peak"}


def test_intervals_hold_what_is_true():
    """They are for 95 % of cases; of 20, five that miss are too many."""
    link = Link(2e-5, 1e9)
    misses = 0
    for seed in range(20):
        low, high = fit(samples(link, noise=0.1, seed=seed), draws=40).intervals["bandwidth"]
        assert low < high
        misses += not low <= link.bandwidth <= high
    assert misses < 5


def test_interval_of_a_median():
    values = np.random.default_rng(0).normal(10, 1, 100)
    median, low, high = interval(values)
    assert low < median < high
    assert low < 10 < high
    assert high - low < 1


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({8: np.ones(3), 64: np.ones(3)}, "2 sizes measured, expected 3 or more"),
        (dict.fromkeys((8, 64, 512), np.zeros(3)), "no time above zero"),
    ],
)
def test_what_cannot_be_fitted(times, message):
    with pytest.raises(ValueError, match=message):
        fit(times)


def mpicoll(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mpicoll", "fit", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_rank_is_not_enough(tmp_path):
    done = mpicoll("-o", str(tmp_path / "machine.toml"))
    assert done.returncode == 2
    assert "one rank has nobody to talk to" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    arguments = ["fit", "-o", str(tmp_path / "nowhere" / "machine.toml")]
    done = launch.run(2, [sys.executable, "-m", "mpicoll", *arguments], timeout=60)
    assert done.returncode != 0
    assert "machine.toml: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
