"""The picture of a simulation."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from mpicoll.model.network import Link, Machine
from mpicoll.model.simulate import simulate
from mpicoll.model.timeline import BAR, LEFT, ROW, TOP, WIDTH, draw, seconds
from mpicoll.schedule import find

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = Machine(Link(1e-6, 10e9), Link(5e-6, 1e9), 5e9, per_node=4)


def drawn(name, size, nbytes, collective="allreduce", machine=MACHINE):
    nodes = machine.nodes(size)
    found = simulate(find(collective, name).schedule(size, nodes=nodes), nbytes, machine, timeline=True)
    return found, ET.fromstring(draw(found, f"{name} <&> {size}", nodes))


def bars(image):
    return [e for e in image.iter(f"{SVG}rect") if e.get("class") in ("near", "far") and len(e)]


@pytest.mark.parametrize(
    ("name", "size"), [("ring", 5), ("two_level", 8), ("direct", 7), ("recursive_doubling", 6)]
)
def test_a_bar_for_each_message(name, size):
    found, image = drawn(name, size, 1 << 20)
    log, seen = found.timeline, []
    end = max(found.done.max(), log.arrived.max())
    for bar in bars(image):
        x, y, width, height = (float(bar.get(key)) for key in ("x", "y", "width", "height"))
        rank = int((y - TOP) // ROW)
        assert TOP + rank * ROW <= y < y + height <= TOP + (rank + 1) * ROW
        source, target, nbytes = map(int, re.match(r"(\d+) to (\d+): (\d+) bytes", bar[0].text).groups())
        assert source == rank
        assert bar.get("class") == ("near" if source // 4 == target // 4 else "far")
        seen.append((source, target, nbytes, (x - LEFT) / WIDTH * end, (x + width - LEFT) / WIDTH * end))
    expected = zip(log.source, log.target, log.nbytes, log.began, log.arrived, strict=True)
    assert len(seen) == found.messages
    for one, other in zip(sorted(seen), sorted(expected), strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:], abs=2e-3 * end)


def test_bars_of_a_rank_do_not_overlap():
    _, image = drawn("direct", 7, 1 << 20)
    boxes = [tuple(float(bar.get(key)) for key in ("x", "y", "width", "height")) for bar in bars(image)]
    assert len({y for _, y, *_ in boxes}) > 7  # some ranks have several lines
    for x, y, width, height in boxes:
        assert height <= BAR
        over = [
            other
            for other in boxes
            if abs(other[1] - y) < 0.5 and other[0] < x + width - 0.02 and x < other[0] + other[2] - 0.02
        ]
        assert over == [(x, y, width, height)]


def test_every_rank_is_named_and_ends():
    found, image = drawn("ring", 5, 1 << 20)
    texts = [text.text for text in image.iter(f"{SVG}text")]
    assert [text for text in texts if text.startswith("rank")] == [f"rank {rank}" for rank in range(5)]
    ends = [e for e in image.iter(f"{SVG}path") if e.get("class") == "done" and len(e)]
    places = [float(re.match(r"M([\d.]+),", end.get("d"))[1]) for end in ends]
    span = max(found.done.max(), found.timeline.arrived.max())
    assert places == pytest.approx((LEFT + WIDTH * found.done / span).tolist(), abs=0.01)
    assert "time (ms)" in texts
    assert image.find(f"{SVG}title").text.startswith("ring <&> 5: ")


@pytest.mark.parametrize("nbytes", [8, 1000, 123_456, 7 << 20, 1 << 30])
def test_axis_is_round_and_full(nbytes):
    found, image = drawn("ring", 4, nbytes)
    y = TOP + 4 * ROW + 18
    labels = [t for t in image.iter(f"{SVG}text") if t.get("class") == "label" and float(t.get("y")) == y]
    numbers = [float(label.text) for label in labels]
    assert 4 <= len(numbers) <= 10
    step = numbers[1]
    assert numbers == pytest.approx([step * place for place in range(len(numbers))])
    assert f"{step:.1e}"[:3] in ("1.0", "2.0", "5.0")
    [unit] = [t.text for t in image.iter(f"{SVG}text") if (t.text or "").startswith("time (")]
    scale = {"time (us)": 1e-6, "time (ms)": 1e-3, "time (s)": 1.0}[unit]
    last = float(labels[-1].get("x"))
    span = max(found.done.max(), found.timeline.arrived.max())
    assert last == pytest.approx(LEFT + WIDTH * numbers[-1] * scale / span, abs=0.01)
    assert span - numbers[-1] * scale < step * scale


def test_light_and_dark():
    _, image = drawn("ring", 3, 8)
    light, dark = image.find(f"{SVG}style").text.rsplit("@media (prefers-color-scheme: dark)", 1)
    for kind in ("near", "far", "done", "even"):
        assert f".{kind} " in light
        assert f".{kind} " in dark


def test_one_rank_and_no_timeline():
    _, image = drawn("ring", 1, 8)
    assert bars(image) == []
    assert "rank 0" in [text.text for text in image.iter(f"{SVG}text")]
    found = simulate(find("allreduce", "ring").schedule(2), 8, MACHINE)
    with pytest.raises(ValueError, match="without a timeline"):
        draw(found, "x")


def test_without_nodes_each_rank_has_its_own():
    found = simulate(find("allreduce", "ring").schedule(3), 8, replace(MACHINE, per_node=1), timeline=True)
    assert {bar.get("class") for bar in bars(ET.fromstring(draw(found, "x")))} == {"far"}


def test_seconds():
    assert [seconds(time) for time in (0, 2.5e-9, 1.5e-6, 0.0123, 1, 90)] == [
        "0 ns",
        "2.5 ns",
        "1.5 us",
        "12.3 ms",
        "1 s",
        "90 s",
    ]
