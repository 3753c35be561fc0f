"""The measuring: what is right counts as right, what is broken on purpose does not."""

from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.bench import data
from mpicoll.bench.measure import BATCH_CALLS, ROUNDS, measure, ping_pong
from mpicoll.bench.provenance import provenance
from mpicoll.bench.run import benchmark, competitors, whole_elements

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
FLOAT64 = np.dtype("float64")


def once(calls, count=100, dtype=FLOAT64, op="SUM", **options):
    return measure(WORLD, calls, count, dtype, op, min_time=0.001, **options)


def native(op="SUM"):
    return partial(WORLD.Allreduce, op=getattr(MPI, op))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("float64", "SUM"),
        ("float32", "PROD"),
        ("int8", "SUM"),
        ("uint8", "PROD"),
        ("uint16", "LXOR"),
        ("int64", "BOR"),
        ("complex64", "PROD"),
    ],
)
@pytest.mark.parametrize("count", [1, 1000])
def test_native_is_right(name, op, count, in_place):
    timings, refusals = once({"native": native(op)}, count, np.dtype(name), op, in_place=in_place)
    assert refusals == {}
    assert timings["native"].wrong == 0
    assert len(timings["native"].samples) >= ROUNDS
    assert (timings["native"].samples > 0).all()
    assert 1 <= timings["native"].batch <= BATCH_CALLS


@pytest.mark.parametrize("in_place", [False, True])
def test_ours_are_right(in_place):
    calls = competitors(WORLD, ["auto", "ring", "recursive_doubling"], "SUM")
    timings, refusals = once(calls, in_place=in_place)
    assert refusals == {}
    assert {label: timing.wrong for label, timing in timings.items()} == dict.fromkeys(calls, 0)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("rank", sorted({0, SIZE - 1}))
def test_one_wrong_element_on_one_rank_counts_once_a_sample(rank, in_place):
    def broken(send, recv):
        WORLD.Allreduce(send, recv)
        if rank == RANK:
            recv[17] += 1

    timings, _ = once({"broken": broken, "native": native()}, in_place=in_place)
    assert timings["native"].wrong == 0
    results = timings["broken"].batch if in_place else 1
    assert timings["broken"].wrong == results * len(timings["broken"].samples)


def test_a_result_that_is_not_written_is_wrong():
    """What a call before left in the receive buffer must not pass for its result."""
    timings, _ = once({"idle": lambda send, recv: None, "native": native()})
    assert timings["native"].wrong == 0
    assert timings["idle"].wrong == 100 * SIZE * len(timings["idle"].samples)


def test_a_sum_that_leaves_a_rank_out_is_wrong():
    def without_last(send, recv):
        WORLD.Allreduce(send if RANK < SIZE - 1 else np.zeros_like(recv), recv)

    timings, _ = once({"without last": without_last})
    assert timings["without last"].wrong > 90 * SIZE * len(timings["without last"].samples)


def test_unchecked():
    timings, _ = once({"native": native()}, check=False)
    assert timings["native"].wrong is None


@pytest.mark.mpi(min_size=2)
def test_a_refusal_on_one_rank_only_is_an_error_on_all():
    def picky(send, recv):
        raise AssertionError("called, and the others wait in it")

    def prepare(send, recv):
        if RANK == SIZE - 1:
            raise ValueError("not on this rank")

    picky.prepare = prepare
    with pytest.raises(RuntimeError, match=rf"on ranks \[{SIZE - 1}\] only: not on this rank"):
        once({"picky": picky, "native": native()})


def test_samples_are_the_slowest_ranks_and_the_same_on_all():
    times = iter(range(1000))

    def slow(send, recv):
        if RANK == SIZE - 1 and next(times) > 0:
            begin = MPI.Wtime()
            while MPI.Wtime() < begin + 0.002:
                pass

    timings, _ = once({"slow": slow})
    assert (timings["slow"].samples >= 0.0019).all()
    assert timings["slow"].batch == 1
    everywhere = WORLD.allgather(timings["slow"].samples.tolist())
    assert all(samples == everywhere[0] for samples in everywhere)


def test_samples_are_interleaved_in_the_same_order_on_all_ranks():
    order = []
    calls = {
        name: lambda send, recv, name=name: order.append(name) or WORLD.Allreduce(send, recv)
        for name in "abc"
    }
    timings, _ = once(calls, seed=3)
    rounds = {len(timing.samples) for timing in timings.values()}
    assert len(rounds) == 1
    assert all(other == order for other in WORLD.allgather(order))
    ran = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    assert len(ran) > 2 * rounds.pop()  # blocks of one after another would be three


def test_ticks_rise_from_nothing():
    ticks = []
    once({"native": native()}, tick=ticks.append)
    assert ticks[0] == 0
    assert ticks == sorted(ticks)
    assert len(ticks) >= ROUNDS
    assert ticks[-1] < 1


def test_records():
    where = provenance(WORLD)
    assert where["ranks"] == SIZE
    assert where["nodes"] >= len(where["hosts"]) >= 1
    assert where["cores"] >= 1
    sizes = whole_elements([8, 12, 100], FLOAT64)
    assert sizes == [8, 16, 104]
    calls = competitors(WORLD, ["ring", "ring:turns=2"], "SUM")
    ticks = []
    found = list(
        benchmark(
            WORLD, calls, sizes, dtype=FLOAT64, op="SUM", where=where, min_time=0.001, tick=ticks.append
        )
    )
    for (records, refusals), nbytes in zip(found, sizes, strict=True):
        assert [record["algorithm"] for record in records] == ["native", "ring"]
        assert [record["size"] for record in records] == [nbytes, nbytes]
        assert records[0]["ratio"] == 1
        assert records[1]["ratio"] == pytest.approx(records[0]["median_us"] / records[1]["median_us"])
        assert [(name, size) for name, size, _ in refusals] == [("ring:turns=2", nbytes)]
    assert len(sizes) - 1 <= max(ticks) < len(sizes)


def test_bfloat16_without_a_native_time():
    dtype = data.find_dtype("bfloat16")
    timings, refusals = once(competitors(WORLD, ["auto"], "SUM"), dtype=dtype)
    assert {label: timing.wrong for label, timing in timings.items()} == dict.fromkeys(timings, 0)
    assert {*timings, *refusals} == {"native", "auto"}


@pytest.mark.mpi(min_size=2)
def test_ping_pong():
    costs = WORLD.allgather(ping_pong(WORLD, repeats=3))
    assert all(cost == costs[0] for cost in costs)
    assert costs[0][0] > 0
    assert costs[0][1] >= 0


@pytest.mark.mpi(min_size=2)
def test_a_barrier_that_does_not_wait_is_found():
    timings, refusals = measure(
        WORLD,
        {"native": WORLD.Barrier, "none": lambda: None},
        0,
        FLOAT64,
        "",
        collective="barrier",
        min_time=0.001,
    )
    assert not refusals
    assert timings["native"].wrong == 0
    assert timings["none"].wrong > 0
