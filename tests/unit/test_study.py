"""A study's folder: what is read, refused and gone on with; and a study that is killed."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mpicoll import launch
from mpicoll.bench.study import FILE, Settings, default_ranks, keys, read, resume, sensible
from mpicoll.cli.study import parse_ranks

SETTINGS = Settings("allreduce", [2, 3], [8, 100], None, np.dtype("float64"), "SUM")
KNOWN = SETTINGS.known("0.1.0", "Some MPI 1.0", ["a", "a", "b"])


def record(size=8, ranks=2, algorithm="native", **more):
    return {
        "collective": "allreduce",
        "algorithm": algorithm,
        "size": size,
        "dtype": "float64",
        "op": "SUM",
        "root": None,
        "in_place": False,
        "min_time_s": 0.1,
        "ranks": ranks,
        "nodes": 1,
        "hosts": ["a"] if ranks == 2 else ["a", "b"],
        "mpi": "Some MPI 1.0",
        "mpicoll": "0.1.0",
        "study": 1,
        "scaling": "strong",
        "world": 3,
        "median_us": 5.0,
        "p25_us": 4.0,
        "p75_us": 6.0,
        **more,
    }


RECORDS = [record(), record(algorithm="ring"), record(104), record(ranks=3)]


def write(folder, *records, tail=""):
    folder.mkdir(exist_ok=True)
    path = folder / FILE
    path.write_text("".join(json.dumps(each) + "\n" for each in records) + tail)
    return path


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "study", *RECORDS)
    assert read(str(tmp_path / "study")) == RECORDS


@pytest.mark.parametrize("tail", ['{"collective": "allr', json.dumps(record(16)), "{", "\x00\x00"])
def test_a_half_written_last_line_is_dropped(tmp_path, tail):
    path = write(tmp_path / "study", *RECORDS, tail=tail)
    assert read(str(tmp_path / "study")) == RECORDS
    assert path.read_text().endswith(tail)  # readers change nothing
    records, dropped = resume(str(tmp_path / "study"), KNOWN)
    assert (records, dropped) == (RECORDS, len(tail))
    assert path.read_text() == "".join(json.dumps(each) + "\n" for each in RECORDS)
    assert resume(str(tmp_path / "study"), KNOWN) == (RECORDS, 0)


def test_nothing_to_read(tmp_path):
    with pytest.raises(ValueError, match=r"study: no such folder$"):
        read(str(tmp_path / "study"))
    (tmp_path / "study").mkdir()
    with pytest.raises(ValueError, match=r"study: no records.jsonl in it"):
        read(str(tmp_path / "study"))
    write(tmp_path / "study")
    with pytest.raises(ValueError, match=r"records.jsonl: no record in it"):
        read(str(tmp_path / "study"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mpicoll": "0.2.0"}, "line 5: mpicoll '0.2.0' there, '0.1.0' in line 1"),
        ({"mpi": "Other 2.0"}, "line 5: mpi 'Other 2.0' there, 'Some MPI 1.0' in line 1"),
        ({"scaling": "weak"}, "line 5: scaling 'weak' there, 'strong' in line 1"),
        ({"study": 2}, "line 5: study 2 there, expected 1"),
        ({"hosts": ["a", "c"]}, "line 5: hosts ['a', 'c'] there, ['a'] in line 1"),
        ({"dtype": "int8"}, "line 5: dtype 'int8' there, 'float64' in line 1"),
        ({"op": "MAX"}, "line 5: op 'MAX' there, 'SUM' in line 1"),
        ({"in_place": True}, "line 5: in_place True there, False in line 1"),
        ({"min_time_s": 1}, "line 5: min_time_s 1 there, 0.1 in line 1"),
    ],
)
def test_mixed_studies_are_refused(tmp_path, more, message):
    path = write(tmp_path / "study", *RECORDS, record(16, **more))
    with pytest.raises(ValueError, match="there") as caught:
        read(str(tmp_path / "study"))
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mpicoll": "0.2.0"}, "line 1: mpicoll '0.2.0' there, '0.1.0' here; use another folder"),
        ({"mpi": "MPICH 5"}, "line 1: mpi 'MPICH 5' there, 'Some MPI 1.0' here; use another folder"),
        ({"hosts": ["b"]}, "line 1: hosts ['b'] there, ['a'] here; use another folder"),
        ({"dtype": "int8"}, "line 1: dtype 'int8' there, 'float64' here; use another folder"),
        ({"min_time_s": 1}, "line 1: min_time_s 1 there, 0.1 here; use another folder"),
    ],
)
def test_other_settings_are_not_gone_on_with(tmp_path, more, message):
    path = write(tmp_path / "study", record(**more))
    before = path.read_text()
    with pytest.raises(ValueError, match="here") as caught:
        resume(str(tmp_path / "study"), KNOWN)
    assert str(caught.value) == f"{path}: {message}"
    assert path.read_text() == before


def test_collectives_share_a_folder_and_have_settings_of_their_own(tmp_path):
    barrier = record(0, collective="barrier", dtype=None, op=None, min_time_s=1)
    write(tmp_path / "study", *RECORDS, barrier)
    assert read(str(tmp_path / "study"))[-1] == barrier
    assert resume(str(tmp_path / "study"), KNOWN)[0] == [*RECORDS, barrier]


@pytest.mark.parametrize("line", ["nonsense", "7", "[]"])
def test_what_is_no_record_is_refused(tmp_path, line):
    path = write(tmp_path / "study", *RECORDS, tail=f"{line}\n")
    for look in (read, lambda folder: resume(folder, KNOWN)):
        with pytest.raises(ValueError, match="not a record") as caught:
            look(str(tmp_path / "study"))
        assert str(caught.value).startswith(f"{path}: line 5: ")


@pytest.mark.parametrize("name", ["median_us", "hosts", "scaling", "ranks"])
def test_a_record_without_a_field_is_refused(tmp_path, name):
    bad = record(16)
    del bad[name]
    path = write(tmp_path / "study", *RECORDS, bad)
    with pytest.raises(ValueError, match="is missing") as caught:
        read(str(tmp_path / "study"))
    assert str(caught.value) == f"{path}: line 5: {name} is missing"


def test_a_new_folder_is_made(tmp_path):
    assert resume(str(tmp_path / "a" / "study"), KNOWN) == ([], 0)
    assert (tmp_path / "a" / "study" / FILE).read_text() == ""


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        resume(str(tmp_path / "file" / "study"), KNOWN)


def test_sizes_are_of_the_whole_vector_or_of_a_rank():
    assert SETTINGS.vectors(3) == [8, 104]
    weak = Settings("allreduce", [3], [8, 100], None, np.dtype("float64"), "SUM", scaling="weak")
    assert weak.vectors(3) == [24, 304]
    blocks = Settings("allgather", [3], [8, 100], None, np.dtype("float64"), "")
    assert blocks.vectors(3) == [24, 120]
    assert Settings("barrier", [3], [8, 100], None, np.dtype("float64"), "").vectors(3) == [0]


def test_records_are_told_apart_by_their_keys():
    assert len(keys(RECORDS)) == len(RECORDS)
    assert ("allreduce", 3, 8, "native") in keys(RECORDS)


def test_the_ranks_and_algorithms_of_a_study():
    assert [default_ranks(n) for n in (2, 5, 8, 9, 16, 40)] == [
        [2],
        [2, 3, 4, 5],
        [2, 3, 4, 5, 6, 7, 8],
        [2, 3, 4, 5, 6, 7, 8, 9],
        [2, 3, 4, 5, 6, 7, 8, 16],
        [2, 3, 4, 5, 6, 7, 8, 16, 32, 40],
    ]
    assert parse_ranks("4,2") == [2, 4]
    assert parse_ranks("2:5") == [2, 3, 4, 5]
    one_node, apart = ((0, 1, 2),), ((0,), (1,), (2,))
    assert {"auto", "ring", "two_level"} <= set(sensible("allreduce", one_node))
    assert "two_level" not in sensible("allreduce", apart)
    assert "neighbour_exchange" not in sensible("allgather", one_node)  # for even numbers of ranks


STUDY = ["study", "allreduce", "--sizes", "8,64", "--algorithms", "ring", "--min-time", "0.01"]


def mpicoll(n, *arguments, **options):
    return launch.run(n, [sys.executable, "-m", "mpicoll", *arguments], timeout=120, **options)


def ours(done):
    return [line for line in done.stderr.splitlines() if line.startswith("mpicoll")]


def test_wrong_command_lines(tmp_path):
    folder = str(tmp_path / "study")
    for arguments, said in (
        (["--ranks", "3"], "mpicoll study: --ranks 3 given, expected 2 to 2, the ranks of the job"),
        (["--op", "BAND"], "mpicoll study: BAND is for integers, given float64"),
        (["-o", "/dev/null/study"], "mpicoll study: /dev/null/study: Not a directory"),
    ):
        done = mpicoll(2, *STUDY, "-o", folder, *arguments)
        assert done.returncode == 2, done.stderr
        assert ours(done) == [said]
    done = mpicoll(2, *STUDY, "-o", folder, env={"MPICOLL_TUNING": "/no/such/table.toml"})
    assert done.returncode == 2, done.stderr
    assert ours(done) == ["mpicoll study: MPICOLL_TUNING: /no/such/table.toml: No such file or directory"]
    assert not (tmp_path / "study").exists()


def test_a_study_that_is_killed_goes_on(tmp_path):
    """It is killed when it has written something; what is there then stays, and only the rest is measured."""
    path, arguments = tmp_path / "study" / FILE, [*STUDY, "-o", str(tmp_path / "study"), "--ranks", "2,3"]
    command = launch.command(3, [sys.executable, "-m", "mpicoll", *arguments, "--min-time", "0.2"])
    with subprocess.Popen(
        command, env=launch.environment(3), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        end = time.monotonic() + 100
        while not (path.exists() and path.stat().st_size) and job.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        job.send_signal(signal.SIGTERM)
    there = path.read_bytes()
    whole = there[: there.rfind(b"\n") + 1]
    assert whole
    path.write_bytes(there + b'{"collective": "allr')
    done = mpicoll(3, *arguments, "--min-time", "0.2")
    assert done.returncode == 0, done.stderr
    assert "was half written (" in done.stdout
    assert path.read_bytes().startswith(whole)
    records = read(str(tmp_path / "study"))
    assert len(keys(records)) == len(records)  # nothing twice
    assert keys(records) == {
        ("allreduce", p, size, name) for p in (2, 3) for size in (8, 64) for name in ("native", "ring")
    }
    assert {(each["ranks"], each["world"], each["nodes"]) for each in records} == {(2, 3, 1), (3, 3, 1)}
    assert all(each["p25_us"] <= each["median_us"] <= each["p75_us"] for each in records)
    before = path.read_bytes()
    done = mpicoll(3, *arguments, "--min-time", "0.2")
    assert "nothing to measure: all is there" in done.stdout
    assert path.read_bytes() == before
    done = mpicoll(3, *arguments)
    assert done.returncode == 2
    assert ours(done) == [
        f"mpicoll study: {path}: line 1: min_time_s 0.2 there, 0.01 here; use another folder"
    ]
