"""Predictions of data-parallel training, against the sums that people quote and against the schedules."""

import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

import mpicoll.algorithms  # noqa: F401  # registers them
from mpicoll import launch
from mpicoll.cli import program
from mpicoll.model.cost import cost
from mpicoll.model.network import Link, Machine
from mpicoll.model.predict import (
    ALGORITHMS,
    MOST_RANKS,
    Training,
    bandwidth_for,
    exchange,
    exposed,
    most_ranks,
    predict,
)
from mpicoll.schedule import find

LARGE = Training(7e9, "float16", 0.3)
QUOTED = "--parameters 7e9 --dtype float16 --ranks 8 --bandwidth 400e9 --latency 10e-6 --compute 0.3"

times = st.floats(1e-6, 10)
trainings = st.builds(
    Training,
    st.floats(1e3, 1e12),
    st.sampled_from(["float16", "float32", "float64"]),
    times,
    st.integers(1, 40),
    st.integers(1, 9),
    st.floats(0, 1),
)
links = st.builds(Link, st.floats(0, 1e-2), st.floats(1e6, 1e13))
names = st.sampled_from(list(ALGORITHMS))
ranks = st.integers(1, 5000)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(launch, "rank", lambda: None)

    def run(arguments):
        return CliRunner().invoke(program, ["predict", *arguments.split()], prog_name="mpicoll")

    return run


def test_large_model_at_400_gb_per_second():
    found = predict(LARGE, 8, Link(10e-6, 400e9))
    assert found.exchange.traffic == 24.5e9
    assert found.exchange.transfer == pytest.approx(61.25e-3)
    assert found.efficiency == pytest.approx(0.83, abs=5e-3)
    assert found.speedup == pytest.approx(8 * found.efficiency)
    assert found.share == pytest.approx(1 - found.efficiency)
    assert found.step == pytest.approx(0.3 + 61.25e-3 + 14 * 10e-6)
    assert found.hidden == pytest.approx(0)


def test_large_model_at_20_gb_per_second():
    found = predict(LARGE, 8, Link(10e-6, 20e9))
    assert found.exchange.seconds == pytest.approx(1.2, abs=0.05)
    assert found.efficiency == pytest.approx(0.20, abs=5e-3)


@pytest.mark.parametrize(("size", "transfer", "latency"), [(64, 4.4e-3, 1.3e-3), (4096, 4.4e-3, 81.9e-3)])
def test_many_ranks(size, transfer, latency):
    whole = exchange("ring", size, 1e9, Link(10e-6, 450e9))
    assert whole.transfer == pytest.approx(transfer, abs=0.05e-3)
    assert whole.latency == pytest.approx(latency, abs=0.05e-3)
    assert whole.seconds == pytest.approx({64: 5.6e-3, 4096: 86e-3}[size], rel=0.01)


def test_parameter_server():
    found = predict(LARGE, 8, Link(10e-6, 400e9))
    assert found.server.traffic == 196e9
    assert found.server.transfer == pytest.approx(0.49)
    assert found.server_efficiency == pytest.approx(0.3 / (0.3 + 0.49 + 2 * 10e-6))
    assert predict(LARGE, 8, Link(10e-6, 400e9), "star").efficiency == found.server_efficiency


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12, 16, 33])
def test_the_schedules_cost_as_much(name, size):
    nbytes = size * 2**5 * 1155
    schedule = find("allreduce", name).schedule(size)
    link = Link(0.0, 1.0)
    seconds = cost(schedule, nbytes, Machine.flat(link)).seconds
    assert seconds == pytest.approx(exchange(name, size, nbytes, link).seconds)
    link = Link(1.0, 1e300)
    seconds = cost(schedule, nbytes, Machine.flat(link)).seconds
    messages = exchange(name, size, nbytes, link).messages
    if name == "recursive_doubling" and size & (size - 1):  # there some of them may not have to wait
        assert messages - 1 <= seconds <= messages
    else:
        assert seconds == messages


def test_overlap_by_hand():
    """Four buckets become ready at 1.5, 2, 2.5 and 3 s; each takes 0.6 s."""
    training = Training(1e9, "float32", 3.0, buckets=4)
    found = predict(training, 2, Link(0.05, 4e9 / 2.0))
    assert found.exchange.seconds == pytest.approx(0.1 + 2.0)
    assert found.communication == pytest.approx(4 * 0.1 + 2.0)
    assert found.exposed == pytest.approx(1.5 + 4 * 0.6 - 3)
    assert found.hidden == pytest.approx(1.5)
    assert found.step == pytest.approx(3.9)


def test_only_the_last_bucket_is_exposed_where_communication_is_fast():
    training = Training(1e9, "float32", 3.0, buckets=4)
    assert predict(training, 2, Link(0.0, 4e9 / 0.4)).exposed == pytest.approx(0.1)


def test_accumulation_is_one_all_reduce_for_many_computations():
    link, four = Link(10e-6, 400e9), Training(7e9, "float16", 0.3, accumulate=4)
    once, often = predict(LARGE, 8, link), predict(four, 8, link)
    assert often.exposed == once.exposed
    assert often.step == pytest.approx(4 * 0.3 + once.exposed)
    assert often.efficiency == pytest.approx(1.2 / often.step)


@given(trainings, ranks, links, names)
def test_what_always_holds(training, size, link, name):
    found = predict(training, size, link, name)
    assert 0 < found.efficiency <= 1
    assert found.efficiency + found.share == pytest.approx(1)
    assert found.speedup == pytest.approx(size * training.accumulate * training.compute / found.step)
    assert found.exposed + found.hidden == pytest.approx(found.communication)
    # nothing overlaps with more than there is of the backward pass
    assert found.hidden <= training.backward * training.compute + 1e-9 * found.communication


@given(trainings, st.integers(2, 5000), links, names, st.floats(0.05, 0.95))
def test_bandwidth_for_an_efficiency_gives_it(training, size, link, name, wanted):
    whole = exchange(name, size, training.nbytes, link)
    bandwidth = bandwidth_for(wanted, training, whole)
    if bandwidth is None:
        fastest = exchange(name, size, training.nbytes, Link(link.latency, math.inf))
        assert training.computing / (training.computing + exposed(fastest, training)) <= wanted * (1 + 1e-9)
        return
    assume(bandwidth < 1e25)  # where the latency alone nearly takes as long, all digits are lost
    found = predict(training, size, Link(link.latency, bandwidth), name)
    assert found.efficiency == pytest.approx(wanted, rel=1e-6)


@given(trainings, links, names, st.floats(0.5, 0.99))
def test_most_ranks_are_the_most(training, link, name, wanted):
    def reached(size):
        waits = exposed(exchange(name, size, training.nbytes, link), training)
        return training.computing / (training.computing + waits) >= wanted

    most = most_ranks(wanted, training, link, name)
    assert reached(most)
    if most < MOST_RANKS:
        assert not any(map(reached, range(most + 1, min(most + 70, 2 * most + 3))))
        assert not any(reached(most * 2**power + 1) for power in range(1, 10))


def test_alone_nothing_is_sent():
    found = predict(LARGE, 1, Link(10e-6, 400e9))
    assert (found.exchange.traffic, found.efficiency, found.speedup, found.half) == (0, 1, 1, 0)


def test_out_of_reach_at_any_bandwidth():
    found = predict(Training(1e3, "float32", 1e-3), 4096, Link(10e-6, 450e9))
    assert (found.half, found.most) == (None, None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"parameters": 0}, "parameters 0 given, expected 1 or more"),
        ({"parameters": math.nan}, "parameters nan given"),
        ({"compute": 0}, "compute 0 given, expected more than 0 s"),
        ({"compute": -1}, "compute -1 given"),
        ({"buckets": 0}, "buckets 0 given, expected 1 or more"),
        ({"accumulate": 0}, "accumulate 0 given, expected 1 or more"),
        ({"backward": 1.5}, "backward 1.5 given, expected 0 to 1"),
        ({"backward": math.nan}, "backward nan given"),
    ],
)
def test_training_out_of_range(changed, message):
    with pytest.raises(ValueError, match=message):
        Training(**({"parameters": 7e9, "dtype": "float16", "compute": 0.3} | changed))


def test_other_things_out_of_range():
    link = Link(0.0, 1.0)
    with pytest.raises(ValueError, match="'star2' given, expected one of ring"):
        predict(LARGE, 8, link, "star2")
    with pytest.raises(ValueError, match="0 ranks given"):
        predict(LARGE, 0, link)
    with pytest.raises(ValueError, match="too large"):
        predict(Training(1e300, "float64", 1e-3), 8, Link(0.0, 1e-200))
    with pytest.raises(ValueError, match="dtype 'float' given"):
        predict(Training(7e9, "float", 0.3), 8, link)


def test_command_shows_the_sums(run):
    result = run(QUOTED)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for part in (
        *("14 GB", "24.5 GB", "61.25 ms", "0.830", "196 GB", "17.0% of a step", "81.7 GB/s", "738.1 GB/s"),
        "No two ranks reach an efficiency of 0.9",
    ):
        assert part in text


def test_command_has_a_row_for_each_number_of_ranks(run):
    found = run(
        "--parameters 5e8 --dtype float16 --ranks 64,4Ki --bandwidth 450e9 --latency 1e-5 --compute 0.05"
    )
    rows = [line.split() for line in found.stdout.splitlines()]
    assert [row[:9] for row in rows if row[0].isdecimal()] == [
        ["64", "1.969", "GB", "4.375", "ms", "1.26", "ms", "5.635", "ms"],
        ["4096", "2", "GB", "4.443", "ms", "81.9", "ms", "86.34", "ms"],
    ]
    assert "0.9 or more up to 60 ranks" in found.stdout


def test_command_tells_what_overlap_hides(run):
    text = " ".join(run(f"{QUOTED} --buckets 20 --accumulate 4").stdout.split())
    assert "all-reduce of 20 buckets 64.05 ms" in text
    assert "waiting for gradients 3.203 ms" in text
    assert "computing 1.2 s 4 times, then one all-reduce" in text


def test_command_writes_records(run, tmp_path):
    path = tmp_path / "predicted.jsonl"
    assert run(f"{QUOTED} --json {path} --compute 0").exit_code == 2
    assert not path.exists()
    arguments = QUOTED.replace("--ranks 8", "--ranks 8,16") + " --algorithm circulant --json"
    assert run(f"{arguments} {path}").exit_code == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["ranks"], record["algorithm"]) for record in records] == [
        (8, "circulant"),
        (16, "circulant"),
    ]
    assert records[0]["exchange"]["traffic"] == 24.5e9
    assert records[0]["exchange"]["messages"] == 6
    assert records[0]["parameters"] == 7e9
    assert run(f"{arguments} -").stdout == path.read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("--ranks 0", "0 ranks given"),
        ("--ranks -1", "'-1' is not a size"),
        ("--ranks 2Gi", "2147483648 ranks given, expected 1 to"),
        ("--bandwidth nan", "'nan' is not a number"),
        ("--bandwidth 0", "bandwidth 0.0 given, expected more than 0 B/s"),
        ("--bandwidth -4e9", "bandwidth"),
        ("--latency -1e-6", "latency -1e-06 given, expected 0 s or more"),
        ("--latency inf", "'inf' is not a number"),
        ("--compute 0", "compute 0 given, expected more than 0 s"),
        ("--compute soon", "'soon' is not a number"),
        ("--parameters 0", "parameters 0 given, expected 1 or more"),
        ("--parameters 1e308", "too large"),
        ("--dtype float8", "'float8' is not one of"),
        ("--backward 2", "backward 2 given, expected 0 to 1"),
        ("--buckets 0", "--buckets"),
        ("--accumulate 0", "--accumulate"),
        ("--algorithm rinq", "'rinq'"),
        ("--json /no/such/folder/x", "/no/such/folder/x: No such file"),
    ],
)
def test_bad_input_is_one_line(run, arguments, part):
    result = run(f"{QUOTED} {arguments}")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert part in result.stderr


def test_what_must_be_given(run):
    result = run("--parameters 7e9")
    assert result.exit_code == 2
    assert "Missing option" in result.stderr
