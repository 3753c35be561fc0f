import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "emulated_cluster.py"
MARK = "EMULATED_CLUSTER_TEST"  # an environment variable that every process of a job inherits
NBYTES, RATE = 2 << 20, 25e6  # of a message, and of a link per second: 200mbit

# Hosts, nodes, times and what leaves the host, from 2 hosts with 2 ranks each.
NODES = f"""
import json, socket, time
import numpy as np
from mpi4py import MPI

world, message = MPI.COMM_WORLD, np.zeros({NBYTES}, "b")
node = world.Split_type(MPI.COMM_TYPE_SHARED)

def sent():
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        return int(file.read())

def measure(receiver):
    world.Barrier()
    start, before = time.perf_counter(), sent()
    if world.rank == 0:
        world.Send(message, receiver)
        world.Recv(message[:1], receiver)
    elif world.rank == receiver:
        world.Recv(message, 0)
        world.Send(message[:1], 0)
    return time.perf_counter() - start, sent() - before

name = socket.gethostname()
ranks = world.gather((name, socket.gethostbyname(name), node.size, node.rank))
across, within = [measure(2) for _ in range(3)], [measure(1) for _ in range(3)]
if world.rank == 0:
    print(json.dumps([ranks, across, within]))
"""

# One to all and all to one, from 3 hosts.
FAN = f"""
import json, time
import numpy as np
from mpi4py import MPI

world, message = MPI.COMM_WORLD, np.zeros((3, {NBYTES}), "b")

def measure(outwards):
    world.Barrier()
    start = time.perf_counter()
    world.Barrier()  # nobody sends before rank 0 has looked at the clock
    if (world.rank == 0) == outwards:
        peers = [1, 2] if outwards else [0]
        MPI.Request.Waitall([world.Isend(message[peer], peer) for peer in peers])
    else:
        peers = [0] if outwards else [1, 2]
        MPI.Request.Waitall([world.Irecv(message[peer], peer) for peer in peers])
    world.Barrier()
    return time.perf_counter() - start

times = [measure(True), measure(False)]
if world.rank == 0:
    print(json.dumps(times))
"""


def load():
    """Import the program, which is not in a package."""
    spec = importlib.util.spec_from_file_location("emulated_cluster", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


emulated_cluster = load()


def obstacle():
    """Say why a cluster cannot be made here, if so."""
    try:
        emulated_cluster.check_requirements()
        emulated_cluster.find_launcher(sys.prefix)
    except (emulated_cluster.UnavailableError, FileNotFoundError) as error:
        return str(error)
    return ""


needs_a_cluster = pytest.mark.skipif(bool(obstacle()), reason=obstacle())


@pytest.fixture(autouse=True)
def _signals():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def traces(monkeypatch):
    """Give a function that tells what a job of this test has left behind."""
    mark = f"{MARK}={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))
    before = machine()

    def left():
        return processes(mark), [thing for thing, was in zip(machine(), before, strict=True) if thing - was]

    return left


def processes(mark):
    """Find the processes that began with this in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ended = "\nState:\tZ" in (path / "status").read_text()
            if mark.encode() in (path / "environ").read_bytes() and not ended:
                found.append((path / "cmdline").read_text())
        except (OSError, UnicodeDecodeError):  # it has ended meanwhile
            continue
    return found


def machine():
    """Tell what the machine itself has: namespaces with names, links and mounts."""
    namespaces, links = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in (["ip", "netns", "list"], ["ip", "-o", "link"])
    )
    names = {line.split(":")[1] for line in links.splitlines()}
    mounts = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    return set(namespaces.splitlines()), names, mounts


def command(*options):
    """Give the command that runs the program."""
    return [sys.executable, str(PROGRAM), "--hosts", "2", "--timeout", "60", *options]


def run(*options):
    """Run the program, and return its exit status and what it printed."""
    return subprocess.run(command(*options), capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.parametrize(
    ("rate", "bits"),
    [
        ("200mbit", 200_000_000),
        ("1Mbit", 1_000_000),
        ("1.5gbit", 1_500_000_000),
        ("25mbps", 200_000_000),
        ("2mibit", 2 << 20),
        ("1000000bit", 1_000_000),
        ("100gbit", 10**11),
    ],
)
def test_rates(rate, bits):
    assert emulated_cluster.parse_rate(rate) == bits


@pytest.mark.parametrize(
    "rate",
    ["", "fast", "200", "-200mbit", "200mbit; true", "1e9bit", "2ibit", "9" * 400 + "bit", "\u0663mbit"],
)
def test_what_is_no_rate(rate):
    with pytest.raises(ValueError, match=r"rate '.*' given, expected one as 200mbit"):
        emulated_cluster.parse_rate(rate)


@pytest.mark.parametrize("rate", ["999kbit", "0mbit", "101gbit"])
def test_rates_out_of_range(rate):
    with pytest.raises(ValueError, match=r"rate '.*' given, expected 1mbit to 100gbit"):
        emulated_cluster.parse_rate(rate)


@pytest.mark.parametrize(("bits", "nbytes"), [(10**6, 65536), (2 * 10**8, 100_000), (10**9, 500_000)])
def test_burst(bits, nbytes):
    assert emulated_cluster.burst(bits) == nbytes


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--hosts", "0"], "0 hosts given, expected 1 to 64"),
        (["--hosts", "65"], "65 hosts given, expected 1 to 64"),
        (["--ranks-per-host", "0"], "0 ranks per host given, expected 1 to 64"),
        (["--hosts", "1", "--ranks-per-host", "65"], "65 ranks per host given, expected 1 to 64"),
        (["--hosts", "64", "--ranks-per-host", "5"], "320 ranks given, expected at most 256"),
        (["--rate", "slow"], "rate 'slow' given, expected one as 200mbit or 25mbps"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(options, line, monkeypatch, capsys):
    monkeypatch.delattr(emulated_cluster, "build")
    assert emulated_cluster.main([*options, "--", "true"]) == 2
    assert capsys.readouterr() == ("", f"emulated_cluster: {line}\n")


def test_no_command(capsys):
    with pytest.raises(SystemExit) as end:
        emulated_cluster.main(["--hosts", "2"])
    assert end.value.code == 2
    assert "required: COMMAND" in capsys.readouterr().err


def test_only_root(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert emulated_cluster.main(["--", "true"]) == 2
    assert capsys.readouterr() == ("", "emulated_cluster: needs root, to make network namespaces\n")


def test_programs_that_are_missing(monkeypatch, capsys, tmp_path):
    for name in ("unshare", "nsenter", "mount"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert emulated_cluster.main(["--", "true"]) == 2
    line = "emulated_cluster: needs iproute2 and util-linux, not on PATH: ip, tc\n"
    assert capsys.readouterr() == ("", line)


def test_a_launcher_that_has_its_own_ways_only(tmp_path):
    launcher = tmp_path / "bin" / "mpiexec"
    launcher.parent.mkdir()
    launcher.write_text("#!/bin/sh\necho '--launch-agent'\n")
    launcher.chmod(0o755)
    with pytest.raises(emulated_cluster.UnavailableError, match=r"needs an mpiexec with -launcher-exec"):
        emulated_cluster.find_launcher(tmp_path)


@needs_a_cluster
@pytest.mark.parametrize(("program", "asked"), [("tc", "qdisc add dev eth0 root tbf"), ("unshare", "")])
def test_what_the_kernel_refuses(program, asked, tmp_path, monkeypatch, traces):
    refusal = tmp_path / program
    refusal.write_text("#!/bin/sh\necho 'no such thing' >&2\nexit 2\n")
    refusal.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = run("--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("emulated_cluster: refused: ")
    assert asked in line
    assert line.endswith("no such thing")
    assert traces() == ([], [])


@needs_a_cluster
def test_hosts_nodes_and_links(traces):
    done = run("--ranks-per-host", "2", "--rate", "200mbit", "--", "python", "-m", "mpi4py", "-c", NODES)
    assert done.returncode == 0, done.stderr
    ranks, across, within = json.loads(done.stdout)
    assert ranks == [[f"host{host}", f"10.77.0.{host}", 2, rank] for host in (1, 2) for rank in (0, 1)]
    # what is in the bucket at first may pass at once, at either end of the link
    shortest = (NBYTES - 2 * emulated_cluster.burst(200 * 10**6)) / RATE
    assert all(seconds >= shortest and nbytes >= NBYTES for seconds, nbytes in across)
    assert all(nbytes < NBYTES / 100 for _, nbytes in within)  # these are not for the link to limit
    assert traces() == ([], [])


@needs_a_cluster
def test_both_directions_are_limited():
    with emulated_cluster.cluster(3, "200mbit") as hosts:
        done = hosts.run(["python", "-m", "mpi4py", "-c", FAN], timeout=60)
    assert done.returncode == 0, done.stderr
    shortest = 2 * (NBYTES - emulated_cluster.burst(200 * 10**6)) / RATE
    one_to_all, all_to_one = json.loads(done.stdout)
    assert one_to_all >= shortest
    assert all_to_one >= shortest


@needs_a_cluster
def test_a_command_that_fails(traces):
    orphan = "subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    program = f"import subprocess; {orphan}; raise SystemExit(3)"
    assert run("--hosts", "1", "--", "python", "-c", program).returncode == 3
    assert traces() == ([], [])
    done = run("--", "no-such-program")
    assert (done.returncode, done.stderr) == (2, "emulated_cluster: no program 'no-such-program' on PATH\n")
    assert traces() == ([], [])


@needs_a_cluster
def test_where_a_command_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UCX_TLS", "all")
    Path("environment").symlink_to(sys.prefix)
    program = "echo $(pwd) $(command -v python) $UCX_TLS"
    done = run("--mpi", "environment", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{tmp_path} {tmp_path}/environment/bin/python tcp,self"] * 2


@needs_a_cluster
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signals_leave_nothing_behind(number, status, traces):
    job = command("--", "sh", "-c", "trap '' INT TERM; echo up; sleep 100")
    with subprocess.Popen(job, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        assert len(traces()[0]) > 2
        assert traces()[1] == []
        process.send_signal(number)
        assert process.wait(timeout=30) == status
    if number == signal.SIGKILL:  # then the kernel does it after the process has ended
        deadline = time.monotonic() + 30
        while traces()[0] and time.monotonic() < deadline:
            time.sleep(0.05)
    assert traces() == ([], [])
    assert run("--", "true").returncode == 0
    assert traces() == ([], [])


@needs_a_cluster
def test_out_of_time(traces):
    done = run("--timeout", "0.5", "--", "sleep", "100")
    assert (done.returncode, done.stderr) == (124, "emulated_cluster: out of time after 0.5 s\n")
    assert traces() == ([], [])


@needs_a_cluster
def test_jobs_one_after_the_other(traces):
    with emulated_cluster.cluster(2, "1gbit") as hosts:
        for _ in range(2):
            done = hosts.run(["sh", "-c", "echo $A"], 2, env={"A": "b"}, timeout=60)
            assert (done.returncode, done.stdout) == (0, "b\n" * 4)
        with pytest.raises(ValueError, match="130 ranks per host given"):
            hosts.run(["true"], 130)
        with pytest.raises(subprocess.TimeoutExpired):
            hosts.run(["sleep", "100"], timeout=0.5)
        assert traces() == ([], [])
        with pytest.raises(ValueError, match="the cluster has ended"):
            hosts.run(["true"])


@needs_a_cluster
def test_the_most_hosts(traces):
    done = run("--hosts", "64", "--", "sh", "-c", "cat /proc/sys/kernel/hostname")
    assert sorted(done.stdout.split()) == sorted(f"host{number}" for number in range(1, 65))
    assert traces() == ([], [])
