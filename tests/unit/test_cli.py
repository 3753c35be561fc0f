import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mpicoll import __version__, launch
from mpicoll.cli import program
from mpicoll.schedule import algorithms, proof
from mpicoll.schedule.collectives import COLLECTIVES


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(launch, "rank", lambda: None)
    monkeypatch.delenv(launch.LAUNCHED, raising=False)


@pytest.fixture
def run():
    def run(*arguments):
        return CliRunner().invoke(program, arguments, prog_name="mpicoll")

    return run


def refused(result, *parts):
    """Check for exit status 2 and one line."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["bench", "--help"], ["draw", "-h"]])
def test_help(run, arguments):
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: mpicoll")


def test_help_names_every_algorithm(run):
    text = "".join(run("bench", "--help").stdout.split())
    for collective in COLLECTIVES:
        assert f"{collective}:{','.join(algorithm.name for algorithm in algorithms(collective))}" in text


def test_version(run):
    assert run("--version").stdout == f"mpicoll {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    ["--help", "bench --help", "list", "draw ring", "verify --ranks 2", "bench allreduce --sizes x"],
)
def test_nothing_needs_mpi_before_it_must(arguments):
    """Nor NumPy, which takes longest to start."""
    check = (
        "import sys\nfrom mpicoll.cli import main\n"
        "try: main()\n"
        "finally: print(*{'mpi4py', 'numpy', 'numba', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, *arguments.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == ""


def test_python_m_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "mpicoll", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"mpicoll {__version__}\n"


def test_wrong_command_lines(run):
    refused(run("nonsense"), "mpicoll: No such command 'nonsense'")
    refused(run("bench"), "mpicoll bench: Missing argument")
    refused(run("bench", "gossip"), "mpicoll bench:", "'gossip' is not one of", "'allreduce'")
    refused(run("bench", "allreduce", "--bogus"), "mpicoll bench: No such option '--bogus'")
    refused(run("bench", "allreduce", "--sizes", "8:4"), "'8:4' is empty")
    refused(run("bench", "allreduce", "--sizes", "lots"), "'lots' is not a size")
    refused(run("bench", "allreduce", "--algorithms", "rinq"), "unknown algorithm 'rinq'", "ring")
    refused(run("bench", "allreduce", "--algorithms", "ring:chunks"), "'chunks' is not a parameter of ring")
    refused(run("bench", "allreduce", "--dtype", "float8"), "'float8'")
    refused(run("bench", "allreduce", "--op", "BAND"), "BAND is for integers, given float64")
    refused(run("bench", "bcast", "--algorithms", "ring"), "bcast: unknown algorithm 'ring'")
    refused(run("bench", "bcast", "--op", "SUM"), "bcast has no --op")
    refused(run("bench", "bcast", "--in-place"), "bcast has no --in-place")
    refused(run("bench", "scan", "--root", "0"), "scan has no --root")
    refused(run("bench", "barrier", "--sizes", "8"), "barrier has no --sizes")
    refused(run("bench", "barrier", "--plot", "b.svg"), "barrier has no --plot")
    refused(run("bench", "allreduce", "--min-time", "0"), "--min-time")
    refused(run("bench", "allreduce", "-n", "0"), "-n")
    refused(run("verify", "--ranks", "0:3"), "0 ranks given")
    refused(run("verify", "--algorithms", "rong"), "'rong' is not one of")
    refused(run("verify", "--json", "/no/such/folder/x"), "/no/such/folder/x")
    refused(run("draw", "rinq"), "unknown algorithm 'rinq'")
    refused(run("draw", "ring:turns=2"), "turns")
    refused(run("draw", "ring", "-o", "/no/such/folder/x.svg"), "/no/such/folder/x.svg")
    refused(run("list", "rinq"), "'rinq' is neither a collective nor one of")


def test_n_is_for_where_nothing_launched_us(run, monkeypatch):
    monkeypatch.setattr(launch, "rank", lambda: 0)
    refused(run("bench", "allreduce", "-n", "2"), "-n cannot be given under mpiexec")


def test_n_starts_mpiexec(run, monkeypatch):
    started = []

    def become(*arguments):
        started.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(launch, "become", become)
    monkeypatch.setattr(sys, "argv", ["mpicoll", "bench", "allreduce", "-n", "3", "--sizes", "8"])
    assert run(*sys.argv[1:]).exit_code == 0
    assert started == [(3, [sys.executable, "-m", "mpicoll", *sys.argv[1:]])]


def test_no_mpiexec_is_one_line(run, monkeypatch, tmp_path):
    def become(*_):
        launch.mpiexec(tmp_path)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "become", become)
    result = run("bench", "allreduce", "-n", "3")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "no mpiexec in" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["list"], ["verify", "--ranks", "2"], ["bogus"]]
)
def test_other_ranks_say_nothing(run, monkeypatch, arguments):
    monkeypatch.setattr(launch, "rank", lambda: 1)
    result = run(*arguments)
    assert result.output == ""
    assert result.exit_code == 0


def test_other_ranks_write_nothing(run, monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "rank", lambda: 1)
    assert run("draw", "ring", "-o", str(tmp_path / "ring.svg")).exit_code == 0
    assert not (tmp_path / "ring.svg").exists()


def test_list(run):
    assert [line for line in run("list").stdout.splitlines() if not line.startswith(" ")] == sorted(
        COLLECTIVES
    )
    for algorithm in algorithms():
        lines = run("list", algorithm.collective).stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if line.split()[:1] == [algorithm.name])
        assert ("op that commutes" in lines[at]) == algorithm.commutative
        assert lines[at + 1].strip() == algorithm.summary
        assert lines[at + 2].strip() == f"steps {algorithm.steps}; a rank sends {algorithm.sent}"
    assert run("list", "allreduce").stdout.splitlines()[0] == "allreduce"


def test_list_shows_the_page_of_an_algorithm(run):
    text = run("list", "bidirectional_ring").stdout
    assert text.startswith("Ring: every rank talks to its two neighbours only")
    assert "Source:" in text


def test_verify(run, tmp_path):
    path = tmp_path / "proofs.jsonl"
    result = run(
        *("verify", "--ranks", "1:4,7", "--collective", "allreduce"),
        *("--algorithms", "ring,recursive_doubling", "--json", str(path)),
    )
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[-1] for line in lines] == ["result", "proved", "proved", "wrong"]
    assert {line[0] for line in lines[1:3]} == {"ring", "recursive_doubling"}
    assert all(line[2:6] == ["1", "to", "7", "5"] for line in lines[1:3])
    assert lines[-1] == ["10", "cases,", "0", "wrong"]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(record["ranks"] for record in records if record["algorithm"] == "ring") == [1, 2, 3, 4, 7]
    assert all(record["ok"] for record in records)
    four = next(record for record in records if record["algorithm"] == "ring" and record["ranks"] == 4)
    assert (four["rounds"], four["sent_max"]) == (6, 1.5)


def test_verify_fails_for_a_wrong_algorithm(run, monkeypatch, tmp_path):
    ring = next(algorithm for algorithm in algorithms("allreduce") if algorithm.name == "ring")
    check = proof.check

    def broken(algorithm, size, **parameters):
        if algorithm is ring and size == 3:
            raise proof.ProofError("ring: rank 0 waits for ever")
        return check(algorithm, size, **parameters)

    monkeypatch.setattr(proof, "check", broken)
    result = run("verify", "--ranks", "2:4", "--algorithms", "ring")
    assert result.exit_code == 1
    assert "1 wrong" in result.stdout
    assert "ring: rank 0 waits for ever (p = 3)" in result.stdout


def test_draw(run, tmp_path):
    path = tmp_path / "ring.svg"
    assert run("draw", "ring", "-n", "3", "-o", str(path)).exit_code == 0
    assert path.read_text().startswith("<svg")
    assert run("draw", "ring", "-n", "3").stdout == path.read_text()
    assert run("draw", "ring", "-n", "5").stdout != path.read_text()


def test_draw_parameters_and_nodes(run):
    pictures = [
        run("draw", *arguments.split()).stdout
        for arguments in (
            "binary_tree -n 7",
            "binary_tree:chunks=3 -n 7",
            "two_level -n 6",
            "two_level -n 6 --per-node 3",
            "two_level:inter=recursive_doubling -n 6 --per-node 2",
        )
    ]
    assert len(set(pictures)) == len(pictures)
    assert all(picture.startswith("<svg") for picture in pictures)


def test_algorithms_option():
    from mpicoll.cli.bench import parse_algorithms  # noqa: PLC0415

    for collective in COLLECTIVES:
        names = [algorithm.name for algorithm in algorithms(collective)]
        assert parse_algorithms(collective, "all") == names
        assert parse_algorithms(collective, "native") == []
        last = f"{names[-1]}:chunks=2"
        assert parse_algorithms(collective, f"auto,{last},auto,native") == ["auto", last]
        assert parse_algorithms(collective, f"{names[-1]},all")[0] == names[-1]
        assert sorted(parse_algorithms(collective, f"{names[-1]},all")) == sorted(names)


def test_without_a_command_it_shows_the_help(run):
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--help").stdout


def test_proving_nothing_is_an_error(run):
    result = run("verify", "--ranks", "3", "--collective", "allreduce", "--algorithms", "pairwise")
    refused(result, "allreduce has no algorithm pairwise")


def test_a_picture_is_kept_when_a_new_one_cannot_be_drawn(run, tmp_path):
    path = tmp_path / "ring.svg"
    path.write_text("before")
    refused(run("draw", "ring:turns=2", "-o", str(path)), "turns")
    assert path.read_text() == "before"
