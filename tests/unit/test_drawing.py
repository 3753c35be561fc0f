"""The table and the diagram of a schedule."""

import itertools
import xml.etree.ElementTree as ET

import pytest

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.schedule import Schedule, algorithms, combine, copy, find, recv, reduce, scratch, send
from mpicoll.schedule.drawing import draw, table
from mpicoll.schedule.proof import ProofError, prove

SVG = "{http://www.w3.org/2000/svg}"
# with how many ranks hold something complete at first, and at the end
DRAWN = [
    ("allreduce", "ring", 4, {}, 0, 4),
    ("allreduce", "recursive_halving_doubling", 6, {}, 0, 6),
    ("allreduce", "double_binary_tree", 8, {"chunks": 4}, 0, 8),
    ("allreduce", "bruck_gather", 5, {}, 0, 5),
    ("allreduce", "circulant", 7, {}, 0, 7),
    ("allreduce", "two_level", 6, {"nodes": ((0, 2, 4), (1, 3, 5))}, 0, 6),
    ("allgather", "bruck", 5, {}, 5, 5),
    ("alltoall", "pairwise", 4, {}, 4, 4),
    ("barrier", "dissemination", 6, {}, 0, 6),
    ("bcast", "scatter_ring", 5, {"root": 2}, 1, 5),
    ("exscan", "chain", 4, {"chunks": 3}, 0, 3),
    ("gather", "binomial", 7, {"root": 3}, 1, 1),
    ("reduce", "binary_tree", 6, {"chunks": 2}, 0, 1),
    ("reduce_scatter", "recursive_halving", 7, {}, 0, 7),
    ("scan", "recursive_doubling", 6, {}, 1, 6),
    ("scatter", "linear", 4, {}, 1, 4),
]


def drawn(name, size, parameters, collective="allreduce"):
    schedule = find(collective, name).schedule(size, **parameters)
    return schedule, ET.fromstring(draw(schedule))


def with_class(image, tag, *names):
    return [e for e in image.iter(f"{SVG}{tag}") if e.get("class") in names and e.get("id") is None]


def messages(schedule, *kinds):
    return [
        (rank, move.peer, run)
        for rank in range(schedule.size)
        for step in schedule.steps(rank)
        for move in step
        if move.kind in kinds
        for run in move.chunks
    ]


@pytest.mark.parametrize(("collective", "name", "size", "parameters"), [case[:4] for case in DRAWN])
def test_one_arrow_for_each_message(collective, name, size, parameters):
    schedule, image = drawn(name, size, parameters, collective)
    arrows = {kind: with_class(image, "path", kind) for kind in ("reduce", "replace")}
    # one more of each is in the legend
    assert len(arrows["reduce"]) == 1 + len(messages(schedule, "reduce"))
    assert len(arrows["replace"]) == 1 + len(messages(schedule, "recv"))
    tips = {kind: {arrow.get("marker-end") for arrow in arrows[kind]} for kind in arrows}
    assert tips == {"reduce": {"url(#reduce)"}, "replace": {"url(#replace)"}}
    assert len(with_class(image, "text", "label")) == len(messages(schedule, "send"))
    told = sorted(arrow.findtext(f"{SVG}title") or "" for arrow in arrows["reduce"] + arrows["replace"])
    pairs = sorted(f"{a} to {b}" for a, b, _ in messages(schedule, "send"))
    assert [text.partition(":")[0] for text in told[2:]] == pairs


@pytest.mark.parametrize(("collective", "name", "size", "parameters", "first", "last"), DRAWN)
def test_every_rank_is_shown_after_every_step_and_ends_complete(
    collective, name, size, parameters, first, last
):
    schedule, image = drawn(name, size, parameters, collective)
    rows = {}  # the gauges of a step are at one height
    for group in image.iter(f"{SVG}g"):
        if group.get("transform"):
            height = group.get("transform").partition(",")[2]
            rows.setdefault(height, []).append(group)
    assert [len(row) for row in rows.values()] == [size] * (1 + prove(schedule).rounds)
    complete = [sum(bool(with_class(gauge, "path", "whole")) for gauge in row) for row in rows.values()]
    assert (complete[0], complete[-1]) == (first, last)


@pytest.mark.parametrize(("collective", "name", "size", "parameters"), [case[:4] for case in DRAWN])
def test_labels_keep_clear_of_each_other(collective, name, size, parameters):
    _, image = drawn(name, size, parameters, collective)
    boxes = [
        [float(e.get(key)) for key in ("x", "y", "width", "height")]
        for e in with_class(image, "rect", "plate")
    ]
    for (x, y, width, height), (x2, y2, width2, height2) in itertools.combinations(boxes, 2):
        assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y


@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.parametrize("found", algorithms(), ids=lambda found: f"{found.collective}-{found.name}")
def test_every_algorithm_can_be_drawn(found, size):
    schedule = found.schedule(size, **{"chunks": 2} if found.pipelined else {})
    text = draw(schedule)
    assert text == draw(schedule)
    image = ET.fromstring(text)
    width, height = float(image.get("width")), float(image.get("height"))
    for arrow in with_class(image, "path", "reduce", "replace"):
        start, _, end = arrow.get("d")[1:].partition(" L")
        for point in (start, end) if end else ():
            x, y = map(float, point.split(","))
            assert 0 < x < width
            assert 0 < y < height


def test_the_title_tells_the_cost():
    _, image = drawn("ring", 4, {})
    texts = [text.text for text in image.iter(f"{SVG}text")]
    assert texts[0] == "ring allreduce, 4 ranks"
    assert texts[1] == "6 steps, 4 chunks; a rank sends at most 3/2 vectors, all together 6 vectors"
    assert image.findtext(f"{SVG}title").startswith("ring allreduce, 4 ranks: 6 steps")


def test_a_wrong_schedule_is_not_drawn():
    schedule = Schedule("allreduce", "wrong", 2, 1, lambda rank: [send(1 - rank, 0)])
    for picture in (draw, table):
        with pytest.raises(ProofError, match="deadlock"):
            picture(schedule)


def test_a_table_of_all_kinds_of_moves():
    def steps(rank):
        yield copy(scratch(range(2, 4)), range(2))
        if rank == 0:
            yield (
                send(1, scratch(range(2, 4))),
                recv(1, scratch([1, 0])),
                combine(range(2), scratch(range(2))),
            )
        else:
            yield reduce(0, range(2)), send(0, [1, 0])

    assert table(Schedule("allreduce", "x", 2, 2, steps, vectors=2)).splitlines() == [
        "step  rank 0       rank 1",
        "0     s2-3 = 0-1   s2-3 = 0-1",
        "1     s2-3 +> 1    1 => 0",
        "      0-1 += s0-1  0 => 0",
    ]


def test_a_table_has_a_row_for_each_step_of_the_critical_path():
    found = find("allreduce", "double_binary_tree").schedule(9, chunks=4)
    rows = [line.split()[0] for line in table(found).splitlines()[1:] if not line.startswith(" ")]
    assert rows == [str(number) for number in range(1, prove(found).rounds + 1)]
