"""What ``mpicoll bench --device cuda`` reads, and what is shown of devices; the rest needs MPI."""

import pytest
from click.testing import CliRunner

from mpicoll import launch
from mpicoll.bench import table
from mpicoll.bench.words import parse_algorithm
from mpicoll.cli import bench, program

WHERE = {"ranks": 4, "nodes": 2, "cores": 8, "mpi": "Some MPI 1.0", "mpicoll": "0.1.0"}


def test_the_routes_are_what_calls_take():
    names = bench.parse_algorithms("allreduce", bench.ROUTES, "cuda")
    assert names == bench.ROUTES.split(",")
    assert [parse_algorithm(name) for name in names] == [
        ("auto", {}),
        *(("auto", {"transport": route}) for route in ("ipc", "mpi", "staged")),
        ("nccl", {}),
    ]


def test_nccl_is_for_devices():
    assert bench.parse_algorithms("bcast", "chain:transport=ipc,nccl", "cuda")[-1] == "nccl"
    with pytest.raises(ValueError, match="nccl"):
        bench.parse_algorithms("bcast", "nccl")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["barrier", "--device", "cuda"], "barrier has no --device"),
        (["allreduce", "--device", "gpu"], "'gpu' is not one of"),
        (["allreduce", "--device", "host", "--algorithms", "nccl"], "nccl"),
    ],
)
def test_what_cannot_be(monkeypatch, arguments, text):
    monkeypatch.setattr(launch, "rank", lambda: None)
    result = CliRunner().invoke(program, ["bench", *arguments], prog_name="mpicoll")
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_caption_says_where_and_to_what():
    where = WHERE | {"devices": 1, "device": "Some GPU"}
    lines = table.caption("scan", where, baseline="auto:transport=staged").plain.splitlines()
    assert "8 cores, 1 device (Some GPU); Some MPI" in lines[0]
    assert "ratio: auto:transport=staged median / median" in lines[1]
    assert "device" not in table.caption("scan", WHERE).plain
