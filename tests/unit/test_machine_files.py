"""Machine files: what is written is read again, and what is wrong is named with its line."""

import dataclasses
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.model import files
from mpicoll.model.files import presets, read, write
from mpicoll.model.network import DRAGONFLY, FAT_TREE, FLAT, INF, Fabric, Link, Machine, Switches

WHOLE = """\
name = "test"
source = \"\"\"
[node]
latency = 7
\"\"\"

[rank]
combine = 5e9

[node]
ranks = 4
latency = 1e-6
bandwidth = 1e10

[network]
kind = "fat_tree"
group = 8
latency = 3e-6  # s
bandwidth = 1e9

[switches]
latency = 2e-6
bandwidth = 1e9

[fit]
residual = 0.02
"""


@pytest.fixture
def refused(tmp_path):
    """Check that a file is refused, and with what line and message."""

    def refused(text, line, *parts):
        path = tmp_path / "m.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ValueError, match=re.escape(f"{path}: line {line}: ")) as error:
            read(path)
        assert "\n" not in str(error.value)
        for part in parts:
            assert part in str(error.value)

    return refused


def edited(old, new):
    assert old in WHOLE
    return WHOLE.replace(old, new, 1)


def test_what_is_read(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(WHOLE)
    assert read(path) == Machine(
        Link(1e-6, 1e10),
        Link(3e-6, 1e9),
        5e9,
        per_node=4,
        fabric=Fabric(FAT_TREE, 8),
        switches=Switches(2e-6, 1e9),
        name="test",
        source="[node]\nlatency = 7\n",
    )
    path.write_text(WHOLE.replace('name = "test"\n', "").split("[switches]")[0])
    assert read(str(path)).switches is None
    assert read(path).name == "m"


def test_lines_of_wrong_figures(refused):
    refused(edited("latency = 3e-6", "latency = -1"), 18, "network.latency -1 given, expected 0 s or more")
    refused(edited("latency = 1e-6", "latency = -1.5"), 12, "node.latency -1.5 given")
    refused(edited("bandwidth = 1e9", "bandwidth = 0"), 19, "network.bandwidth 0 given, expected more than 0")
    refused(edited("combine = 5e9", "combine = nan"), 8, "rank.combine nan given, expected a number, in B/s")
    refused(
        edited("latency = 3e-6", "latency = inf"), 18, "network.latency inf given, expected a number, in s"
    )
    refused(edited("latency = 3e-6", 'latency = "3 us"'), 18, "'3 us' given, expected a number, in s")
    refused(edited("latency = 3e-6", "latency = true"), 18, "network.latency True given")
    refused(edited("ranks = 4", "ranks = 0"), 11, "node.ranks 0 given, expected more than 0")
    refused(edited("ranks = 4", "ranks = 4.0"), 11, "node.ranks 4.0 given, expected a whole number")
    refused(edited("group = 8", f"group = {10**12}"), 17, "expected a whole number")
    refused(edited("combine = 5e9", f"combine = {10**400}"), 8, "expected a number")
    refused(edited('"fat_tree"', '"torus"'), 16, "kind 'torus' given, expected flat, fat_tree or dragonfly")
    refused(edited('"fat_tree"', "3"), 16, "network.kind 3 given, expected a word in quotes")
    refused(edited('"test"', "5"), 1, "name 5 given, expected text in quotes")


def test_lines_of_what_is_missing_or_unknown(refused):
    refused(edited("bandwidth = 1e9\n\n[switches]", "\n[switches]"), 15, "network.bandwidth is missing")
    refused(edited("latency = 2e-6\n", ""), 21, "switches.latency is missing")
    refused(edited("[rank]\ncombine = 5e9\n", ""), 24, "section [rank] is missing")
    refused("", 1, "section [rank] is missing")
    refused(
        edited("bandwidth = 1e9", "bandwith = 1e9"),
        19,
        "network.bandwith is unknown, did you mean bandwidth?",
    )
    refused(edited("[network]", "[netwrok]"), 15, "netwrok is unknown, did you mean network?")
    refused(edited('name = "test"', "beta = 1"), 1, "beta is unknown, expected one of name, source")
    refused(edited("[rank]\ncombine = 5e9", "[[rank]]\ncombine = 5e9"), 7, "expected a section [rank]")


def test_lines_in_other_spellings(refused):
    refused(
        'node.latency = 1\n"node"."bandwidth" = -3\nrank.combine = 1\nnetwork = {latency = 1, bandwidth = 1}',
        2,
    )
    refused("[ node ]\nlatency = 1\n'bandwidth'=-3\n[rank]\ncombine=1\n[network]\nlatency=1\nbandwidth=1", 3)
    refused(
        "rank = {combine = 1}\nnode = {latency = 1, bandwidth = 1}\nnetwork = {latency = -1, bandwidth = 1}",
        3,
    )


def test_lines_of_what_is_not_toml(refused):
    refused(edited("combine = 5e9", "combine = 5 GB/s"), 8)
    refused('[rank]\ncombine = 1\nname = """ no end', 3)
    refused(edited("combine = 5e9", "combine = 5e9\ncombine = 6e9"), 9)
    refused(b"[rank]\ncombine = 1 # \xff\n", 2, "not UTF-8")


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"no/such: no such file, nor one of the presets dragonfly, "):
        read("no/such")
    with pytest.raises(ValueError, match=f"{tmp_path}: Is a directory"):
        read(tmp_path)
    with pytest.raises(ValueError, match="null"):
        read("a\0b")


def test_presets_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dragonfly").write_text(WHOLE)
    assert read("dragonfly").fabric.kind == DRAGONFLY
    assert read("./dragonfly").name == "test"


def test_presets():
    machines = {name: read(name) for name in presets()}
    assert set(machines) == {
        "dragonfly",
        "fat_tree_hdr",
        "infiniband_hdr",
        "infiniband_ndr",
        "infiniband_ndr_sharp",
        "nvlink_node",
        "ten_gigabit_ethernet",
        "two_rail_ndr",
    }
    rates = {"ten": 10e9, "hdr": 200e9, "ndr": 400e9, "fat": 200e9, "dra": 200e9, "two": 400e9, "nvl": 400e9}
    for name, machine in machines.items():
        assert machine.name
        assert "network.bandwidth" in machine.source or "As infiniband_" in machine.source
        key = name[11:14] if name.startswith("infiniband") else name[:3]
        assert 0.9 < machine.far.bandwidth * 8 / rates[key] < 1  # headers take some
        assert machine.memory >= machine.near.bandwidth
    assert machines["fat_tree_hdr"].fabric == Fabric(FAT_TREE, 24, 2, 0.26e-6)
    assert machines["dragonfly"].fabric.kind == DRAGONFLY
    assert (machines["nvlink_node"].per_node, machines["two_rail_ndr"].rails) == (8, 2)
    assert [name for name, machine in machines.items() if machine.switches] == ["infiniband_ndr_sharp"]


def test_every_figure_has_a_place():
    described = {place for _, places in files._PARTS.values() for place in places.values()}
    described |= set(files._OWN.values())
    assert described == {(section, key) for section, keys in files.SECTIONS.items() for key in keys}
    own = {field.name for field in dataclasses.fields(Machine)}
    assert own == {*files._PARTS, *files._OWN, *files.TEXTS}


def test_what_is_written(tmp_path):
    path = tmp_path / "m.toml"
    machine = Machine(Link(1e-6, 1.25e9), Link(2.5e-5, 1e8, eager=65536), 4e9, name="mine", source="a\nb")
    write(
        machine,
        path,
        {"fit": {"points": 12, "op": None, "residual": [0.1, 0.25], "near": {"x": None, "y": 1}}},
    )
    assert path.read_text() == (
        'name = "mine"\n'
        'source = """a\nb"""\n'
        "\n[rank]\n"
        "combine = 4e9 # B/s of results, combining two operands\n"
        "\n[node]\n"
        "ranks = 1 # of a node\n"
        "latency = 1e-6 # s from when the last byte has left to when it is there\n"
        "bandwidth = 1.25e9 # B/s each way\n"
        "\n[network]\n"
        'kind = "flat" # flat, fat_tree or dragonfly\n'
        "latency = 2.5e-5 # s from when the last byte has left to when it is there\n"
        "bandwidth = 1e8 # B/s each way\n"
        "eager = 65536 # bytes up to which a message does not wait for its receiver\n"
        "\n[fit]\n"
        "points = 12\n"
        "residual = [0.1, 0.25]\n"
        "\n[fit.near]\n"
        "y = 1\n"
    )
    assert read(path) == machine


def test_writing_needs_tomlkit(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomlkit", None)
    with pytest.raises(ValueError, match=r"pip install \"mpicoll\[study\]\""):
        write(read("dragonfly"), tmp_path / "m.toml")


def figures(least, **bounds):
    return st.floats(least, allow_nan=False, **bounds)


times = figures(0, allow_infinity=False)
rates = figures(0, exclude_min=True)
links = st.builds(Link, times, rates, overhead=times, gap=times, eager=figures(0), burst=times, peak=rates)
machines = st.builds(
    Machine,
    links,
    links,
    combine=rates,
    per_node=st.integers(1, 2**31 - 1),
    rails=st.integers(1, 64),
    memory=rates,
    fabric=st.builds(
        Fabric,
        st.sampled_from((FLAT, FAT_TREE, DRAGONFLY)),
        st.integers(1, 10**6),
        figures(0, exclude_min=True, allow_infinity=False),
        times,
    ),
    switches=st.none() | st.builds(Switches, times, rates),
    name=st.text(),
    source=st.text() | st.text(alphabet="ab\n\"\\'# "),
)


@given(machines)
@settings(deadline=None, max_examples=100)
def test_round_trip(tmp_path_factory, machine):
    path = tmp_path_factory.getbasetemp() / "round.toml"
    write(machine, path)
    assert read(path) == machine


def test_infinite_figures(tmp_path):
    machine = Machine(Link(0, INF), Link(0, INF))
    write(machine, tmp_path / "m.toml")
    assert read(tmp_path / "m.toml") == dataclasses.replace(machine, name="")
