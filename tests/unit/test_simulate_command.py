"""``mpicoll simulate``."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from click.testing import CliRunner

from mpicoll import launch
from mpicoll.cli import program
from mpicoll.model import files
from mpicoll.model import program as writing
from mpicoll.model.in_network import in_network
from mpicoll.model.network import Link, Machine
from mpicoll.model.simulate import Disturbance, simulate
from mpicoll.schedule import algorithms, find

FLAT = """
name = "flat"
[rank]
combine = 4e9
[node]
latency = 3e-6
bandwidth = 1e9
[network]
latency = 3e-6
bandwidth = 1e9
"""
MACHINE = Machine.flat(Link(3e-6, 1e9), 4e9)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(launch, "rank", lambda: None)
    monkeypatch.delenv(launch.LAUNCHED, raising=False)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.toml").write_text(FLAT)

    def run(text, *more):
        return CliRunner().invoke(program, ["simulate", *text.split(), *more], prog_name="mpicoll")

    return run


@pytest.fixture
def records(run):
    def records(text):
        result = run(f"{text} --json r.jsonl")
        assert result.exit_code == 0, result.output
        with open("r.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    return records


def cells(result):
    """Give the rows of the table, split."""
    return [line.split() for line in result.stdout.splitlines() if line[:1] == " "]


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_table_and_records_are_the_simulation(run, records):
    text = "allreduce --machine m.toml --ranks 3,8 --sizes 1Ki,1Mi --algorithm ring,recursive_doubling"
    found = records(text)
    keys = [(row["ranks"], row["size"], row["algorithm"]) for row in found]
    names = ("ring", "recursive_doubling")
    assert keys == [(p, n, name) for p in (3, 8) for n in (1 << 10, 1 << 20) for name in names]
    table = cells(run(text))
    best = {}
    for row, line in zip(found, table, strict=True):
        expected = simulate(find("allreduce", row["algorithm"]).schedule(row["ranks"]), row["size"], MACHINE)
        p, time = row["ranks"], expected.seconds
        assert row["median_us"] == pytest.approx(time * 1e6)
        assert row["algbw_GBps"] == pytest.approx(row["size"] / time / 1e9)
        assert row["busbw_GBps"] == pytest.approx(2 * (p - 1) / p * row["size"] / time / 1e9)
        assert row["bound_share"] == pytest.approx(2 * (p - 1) / p * row["size"] / 1e9 / time)
        assert (row["nodes"], row["messages"], row["machine"]) == (p, expected.messages, "flat")
        assert (row["ratio"], row["modelled"], row["collective"]) == (None, True, "allreduce")
        assert line[:2] == [str(p), str(row["size"])]
        assert line[2].lstrip("*") == row["algorithm"]
        assert float(line[3]) == pytest.approx(time * 1e6, rel=1e-3)
        assert float(line[6]) == pytest.approx(100 * row["bound_share"], abs=0.051)
        if line[2].startswith("*"):
            best[p, row["size"]] = row
    assert len(best) == 4
    for (p, nbytes), row in best.items():
        rivals = [r["median_us"] for r in found if (r["ranks"], r["size"]) == (p, nbytes)]
        assert row["median_us"] == min(rivals)


def test_sizes_without_a_step_multiply_by_four(records):
    found = records("allreduce --machine m.toml --ranks 2 --sizes 8:1Ki,3 --algorithm ring")
    assert [row["size"] for row in found] == [8, 32, 128, 512, 1024, 3]


def test_a_schedule_is_written_out_once_for_all_sizes(records, monkeypatch):
    written = []

    def program(schedule):
        written.append((schedule.name, schedule.size, schedule.chunks))
        return once(schedule)

    once = writing.program
    monkeypatch.setattr(writing, "program", program)
    records("allreduce --machine m.toml --ranks 4,5 --sizes 8:64Mi --algorithm ring,two_level")
    assert written == [("ring", 4, 4), ("two_level", 4, 4), ("ring", 5, 5), ("two_level", 5, 5)]


def test_chunks_are_the_best_unless_given(records):
    text = "allreduce --machine m.toml --ranks 9 --sizes 8,16Mi"
    found = records(f"{text} --algorithm binary_tree,binary_tree:chunks=5")
    algorithm = find("allreduce", "binary_tree")
    best = [algorithm.best_chunks(9, nbytes / 1e9 / 3e-6) for nbytes in (8, 16 << 20)]
    assert [row["parameters"]["chunks"] for row in found] == [best[0], 5, best[1], 5]
    assert best[0] < 5 < best[1]
    chosen, given = (row["median_us"] for row in found[2:])
    assert chosen < given


def test_nodes(records):
    text = "allreduce --machine infiniband_hdr --ranks 8 --sizes 1Mi --algorithm two_level:inter=ring"
    [alone] = records(text)
    [four] = records(f"{text} --per-node 4")
    assert (alone["nodes"], four["nodes"]) == (8, 2)
    machine = files.read("infiniband_hdr")
    assert alone["bound_share"] == pytest.approx(14 / 8 * 2**20 / 24.8e9 / alone["median_us"] * 1e6)
    assert four["bound_share"] == pytest.approx(2**20 / 24.8e9 / four["median_us"] * 1e6)
    nodes = ((0, 1, 2, 3), (4, 5, 6, 7))
    schedule = find("allreduce", "two_level").schedule(8, nodes=nodes, inter="ring")
    assert four["median_us"] == pytest.approx(simulate(schedule, 1 << 20, machine, nodes).seconds * 1e6)
    assert four["parameters"] == {"inter": "ring"}


def test_bound_within_a_node_and_over_rails(records):
    [row] = records("allgather --machine nvlink_node --ranks 8 --sizes 8Mi --algorithm ring")
    assert row["bound_share"] == pytest.approx(7 / 8 * 2**23 / 423e9 / row["median_us"] * 1e6)
    [row] = records("bcast --machine two_rail_ndr --ranks 8 --sizes 8Mi --algorithm binomial")
    assert row["bound_share"] == pytest.approx(2**23 / (2 * 49.7e9) / row["median_us"] * 1e6)
    [row] = records("bcast --machine two_rail_ndr --per-node 1 --ranks 8 --sizes 8Mi --algorithm binomial")
    assert row["bound_share"] == pytest.approx(2**23 / 49.7e9 / row["median_us"] * 1e6)
    [row] = records("scan --machine m.toml --ranks 8 --sizes 8Mi --algorithm recursive_doubling")
    assert row["bound_share"] is None


def test_disturbance(records):
    text = "allreduce --machine m.toml --ranks 4 --sizes 1Mi --algorithm ring"
    schedule = find("allreduce", "ring").schedule(4)
    [row] = records(f"{text} --late 1=1e-3,3=0.002 --slow-rank 2=3 --slow-node 0=1.5")
    disturbance = Disturbance([0, 1e-3, 0, 2e-3], {2: 3.0}, {0: 1.5})
    expected = simulate(schedule, 1 << 20, MACHINE, disturbance=disturbance).seconds
    assert row["median_us"] == pytest.approx(expected * 1e6)
    assert row["late"] == {"1": 1e-3, "3": 2e-3}
    assert (row["slow_ranks"], row["slow_nodes"]) == ({"2": 3.0}, {"0": 1.5})
    assert expected != simulate(schedule, 1 << 20, MACHINE).seconds


def test_in_network(run, records):
    text = "allreduce --machine infiniband_ndr_sharp --per-node 2 --ranks 8 --sizes 1Mi --algorithm"
    names = [row["algorithm"] for row in records(f"{text} all")]
    assert names[-1] == "in_network"
    [row] = records(f"{text} in_network")
    machine = replace(files.read("infiniband_ndr_sharp"), per_node=2)
    assert row["median_us"] == pytest.approx(in_network(8, 1 << 20, machine).seconds * 1e6)
    refused(
        run("allreduce --machine infiniband_ndr --ranks 8 --algorithm in_network"), "needs a machine with"
    )
    refused(run("bcast --machine infiniband_ndr_sharp --ranks 8 --algorithm in_network"), "is an allreduce")


@pytest.mark.parametrize(
    "collective", ["allgather", "alltoall", "barrier", "exscan", "gather", "reduce", "scatter"]
)
def test_other_collectives(records, collective):
    sizes = "" if collective == "barrier" else " --sizes 4Ki"
    found = records(f"{collective} --machine m.toml --per-node 2 --ranks 6{sizes}")
    assert [row["algorithm"] for row in found] == [a.name for a in algorithms(collective)]
    assert all(row["median_us"] > 0 for row in found)


def test_what_cannot_be_is_left_out(run):
    result = run(
        "allreduce --machine m.toml --ranks 2,4 --sizes 8,1Mi --algorithm ring,direct_gather,ring:turns=2"
    )
    assert result.exit_code == 0
    assert [line[2].lstrip("*") for line in cells(result)] == ["ring", "direct_gather", "ring"] * 2
    notes = [line for line in result.stdout.splitlines() if line.startswith("# left out")]
    assert notes[0].startswith("# left out: ring:turns=2 on 2 and 4 ranks: allreduce: ring: ")
    assert notes[1] == "# left out: direct_gather on 2 and 4 ranks: direct_gather is for at most 64 KiB"


def test_too_large_is_one_line(run, monkeypatch):
    monkeypatch.setattr(writing, "available", lambda: 1 << 16)
    text = "--machine infiniband_ndr_sharp --ranks 512 --sizes 8,16 --algorithm recursive_halving_doubling"
    refused(run(f"allreduce {text}"), "GiB of memory to be written out", "are free")
    result = run(f"allreduce {text},in_network")
    assert result.exit_code == 0
    assert [line[2] for line in cells(result)] == ["*in_network", "*in_network"]
    assert "# left out: recursive_halving_doubling on 512 ranks: " in result.stdout


def test_one_rank_takes_no_time(run, records):
    [row] = records("allreduce --machine m.toml --ranks 1 --sizes 8 --algorithm ring")
    assert (row["median_us"], row["algbw_GBps"], row["busbw_GBps"]) == (0, None, None)
    [line] = cells(run("allreduce --machine m.toml --ranks 1 --sizes 8 --algorithm ring"))
    assert line == ["1", "8", "*ring", "0.000", "-", "-", "-", "0.0"]


def test_timeline(run):
    text = (
        "allreduce --machine m.toml --per-node 2 --ranks 4 --sizes 1Mi --algorithm two_level --timeline t.svg"
    )
    result = run(text)
    assert result.exit_code == 0, result.output
    image = ET.parse("t.svg").getroot()
    title = image.find("{http://www.w3.org/2000/svg}title").text
    assert title.startswith("two_level allreduce, 4 ranks, 1 MiB, flat: ")
    assert {e.get("class") for e in image.iter()} >= {"near", "far", "done"}
    for more in ("--ranks 4,8", "--sizes 8,16", "--algorithm ring,direct", "--ranks 65"):
        refused(run(f"{text} {more}"), "--timeline is for one algorithm")
    switches = "--machine infiniband_ndr_sharp --algorithm in_network"
    refused(run(f"allreduce {switches} --ranks 4 --sizes 8 --timeline t.svg"), "--timeline is for one")


def test_wrong_command_lines(run, tmp_path):
    text = "allreduce --machine m.toml --ranks 4 --sizes 8"
    refused(run("gossip --machine m.toml --ranks 4"), "'gossip' is not one of")
    refused(run("allreduce --ranks 4"), "--machine")
    refused(run("allreduce --machine m.toml"), "--ranks")
    refused(run("allreduce --machine no.toml --ranks 4"), "no.toml: no such file, nor one of the presets")
    refused(run("allreduce --machine m.toml --ranks 0:4"), "0 ranks given, expected 1 to")
    refused(run("allreduce --machine m.toml --ranks 1Gi"), "1073741824 ranks given, expected 1 to 1048576")
    refused(run("allreduce --machine m.toml --ranks four"), "'four' is not a size")
    refused(run(f"{text} --algorithm rinq"), "unknown algorithm 'rinq'")
    refused(run(f"{text} --algorithm ring:turns=2"), "turns")
    refused(run(f"{text} --sizes 8KB"), "'8KB' is not a size")
    refused(run(f"{text} --per-node 0"), "--per-node")
    refused(run(f"{text} --late 4=1"), "--late 4=1 given, expected 0 to 3")
    refused(run(f"{text} --late 1"), "'1' given, expected a number of a rank or node")
    refused(run(f"{text} --late 1=1e999"), "--late 1=inf given")
    refused(run(f"{text} --slow-rank 1=-2"), "'1=-2' given")
    refused(run(f"{text} --slow-rank 1=1..2"), "'1=1..2' given")
    refused(run(f"{text} --slow-node 2=0"), "--slow-node 2=0 given, expected more than 0")
    refused(run(f"{text} --per-node 2 --slow-node 2=3"), "--slow-node 2=3 given, expected 0 to 1")
    refused(run(f"{text} --json /no/such/folder/x"), "/no/such/folder/x: No such file")
    refused(run(f"{text} --algorithm ring --timeline /no/such/folder/x"), "/no/such/folder/x: No such file")
    refused(run("barrier --machine m.toml --ranks 4 --sizes 8"), "barrier has no --sizes")
    (tmp_path / "bad.toml").write_text(FLAT.replace("latency = 3e-6", "latency = -1", 1))
    refused(run("allreduce --machine bad.toml --ranks 4"), "bad.toml: line 6: node.latency -1 given")


def test_progress_on_a_terminal(run, monkeypatch):
    text = "allreduce --machine m.toml --ranks 700 --sizes 1Mi --algorithm ring"
    assert "simulated" in run(text).output
    assert run(text).stderr == ""
    monkeypatch.setattr(launch, "is_terminal", lambda stream: stream == "stderr")
    shown = run(text).stderr
    assert "ring, 700 ranks: the schedule is written out" in shown
    assert "ring, 700 ranks, 1 MiB" in shown


def test_it_needs_no_mpi():
    check = (
        "import sys\nfrom mpicoll.cli import main\n"
        "try: main()\n"
        "finally: print(*{'mpi4py'} & set(sys.modules), file=sys.stderr)"
    )
    text = "simulate allreduce --machine dragonfly --ranks 4 --sizes 8 --algorithm ring"
    command = [sys.executable, "-c", check, *text.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == "\n"
    assert " *ring " in done.stdout
