import io
import json
import threading
import time

import pytest
from rich.console import Console

from mpicoll import statistics


@pytest.fixture(autouse=True)
def _inactive(monkeypatch):
    monkeypatch.setattr(statistics, "active", None)


def tally(*calls):
    recorded = statistics.Statistics()
    for call in calls:
        recorded.record(*call)
    return recorded.tally()


RANKS = [
    tally(
        ("Allreduce", "ring", 800, 0.5),
        ("Allreduce", "ring", 800, 0.25),
        ("Allreduce", "native", 8, 0.125, "op of the user"),
        ("Bcast", "native", 16, 0.1, "not plain: derived datatype"),
        ("Iallgather", "bruck", 24, 0.0625),
    ),
    tally(
        ("Allreduce", "ring", 800, 1.0),
        ("Allreduce", "native", 8, 0.0, "op of the user"),
        ("Allreduce", "native", 8, 0.0, "no counts"),
        ("Allreduce", "recursive_doubling", 8, 0.0),
    ),
]


def shown(found):
    out = Console(width=120, file=io.StringIO())
    out.print(statistics.table(found))
    return [line.split() for line in out.file.getvalue().splitlines() if line.strip()]


def test_nothing_is_recorded_until_it_is_started():
    assert statistics.active is None
    started = statistics.start()
    assert statistics.active is started
    started.record("Allreduce", "ring", 8, 0.1)
    assert statistics.start().tally() == {}


def test_all_ranks_calls_are_added():
    found = statistics.summary(RANKS)
    assert found["ranks"] == 2
    assert found["methods"]["Allreduce"] == {
        "calls": 7,
        "bytes": 3 * 800 + 4 * 8,
        "seconds": 1.0,  # of the slower rank, not of both
        "algorithms": {"ring": 3, "native": 3, "recursive_doubling": 1},
        "reasons": {"op of the user": 2, "no counts": 1},
    }
    assert list(found["methods"]) == ["Allreduce", "Bcast", "Iallgather"]


def test_what_is_not_plain_is_counted_apart():
    found = statistics.summary(RANKS)
    assert (found["calls"], found["ours"], found["not_plain"]) == (8, 5, 1)
    apart, line = statistics.verdict(found).splitlines()
    assert line == "5 of 8 intracommunicator collective calls on buffers (62.5 %) ran mpicoll's schedules"
    assert apart.startswith("1 calls on derived datatypes ")


def test_verdict_of_no_calls():
    found = statistics.summary([{}, {}, {}])
    assert statistics.verdict(found).startswith("0 of 0 intracommunicator collective calls on buffers ran")


def test_it_is_fit_for_json():
    found = statistics.summary(RANKS)
    assert json.loads(json.dumps(found)) == found


def test_table_has_a_line_for_each_method():
    lines = shown(statistics.summary(RANKS))
    assert lines[0][:6] == ["Collectives:", "calls", "and", "bytes", "of", "2"]
    assert ["Allreduce", "7", "2.4", "kB", "1.000", "3", "ring", "2", "op", "of", "the", "user"] in lines
    assert ["3", "native", "1", "no", "counts"] in lines
    assert ["1", "recursive_doubling"] in lines
    assert ["Iallgather", "1", "24", "bytes", "0.062", "1", "bruck"] in lines


def test_rank_0_gathers():
    class World:
        def __init__(self, gathered):
            self.gathered, self.given = gathered, None

        def gather(self, given):
            self.given = given
            return self.gathered

    recorded = statistics.Statistics()
    recorded.record("Bcast", "binomial", 8, 0.5)
    assert recorded.gathered(World(None)) is None
    world = World([*RANKS, recorded.tally()])
    assert recorded.gathered(world) == statistics.summary([*RANKS, recorded.tally()])
    assert world.given == recorded.tally()


class Slow(str):
    """Lets other threads run while it is looked up."""

    __slots__ = ()

    def __hash__(self):
        time.sleep(1e-4)
        return super().__hash__()


def test_threads_lose_no_call():
    recorded = statistics.Statistics()

    def many():
        for _ in range(50):
            recorded.record(Slow("Iallreduce"), "ring", 1, 0.0)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorded.tally() == {("Iallreduce", "ring", ""): (200, 200, 0.0)}
