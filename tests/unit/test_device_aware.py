"""Whether the MPI library takes device memory: libraries, launchers and the driver are stand-ins."""

import ctypes
import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import mpi4py
import pytest

mpi4py.rc.initialize = False  # what is looked at here needs no MPI that runs
from mpicoll import launch  # noqa: E402
from mpicoll.device import aware, driver, probe  # noqa: E402
from mpicoll.device.aware import Awareness  # noqa: E402

FAILED = "two ranks could not exchange device memory: "
RIGHT = probe.Outcome(True, "")
YES = Awareness(True, False, "two ranks have exchanged device memory")


def stand_in(devices=1, version=12080):
    def write(word, value):
        ctypes.cast(word, ctypes.POINTER(ctypes.c_uint32))[0] = value
        return 0

    driver.stand_in(
        {
            "cuDeviceGetCount": lambda word: write(word, devices),
            "cuDriverGetVersion": lambda word: write(word, version),
        }
    )


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Let there be a GPU, a silent library, and a cache of our own, which is given."""
    for name in [name for name in os.environ if aware._OF_THE_JOB.match(name)]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(aware.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(aware, "_library_says", lambda: "")
    aware._found.clear()
    stand_in()
    yield tmp_path / "cache" / "mpicoll"
    driver.stand_in(None)


@pytest.fixture
def tried(monkeypatch):
    """Let the probe come out as told, and count how often it runs."""

    def come_out(outcome=RIGHT):
        times = []
        monkeypatch.setattr(aware, "_probe", lambda: times.append(1) or outcome)
        return times

    return come_out


# What settles it without a try


@pytest.mark.parametrize(
    ("value", "says", "expected"),
    [
        ("0", "MPIX_Query_cuda_support", (False, False)),
        ("1", "", (True, False)),
        ("1", "MPIX_Query_cuda_support", (True, True)),
    ],
)
def test_environment(value, says, expected, monkeypatch, tried):
    times = tried()
    stand_in(devices=0)
    monkeypatch.setattr(aware, "_library_says", lambda: says)
    monkeypatch.setenv(aware.VARIABLE, value)
    assert aware.awareness() == aware.known() == Awareness(*expected, f"MPICOLL_CUDA_AWARE={value}")
    assert times == []


@pytest.mark.parametrize("value", ["", "yes", "2", " 1"])
def test_environment_that_says_nothing(value, monkeypatch):
    monkeypatch.setenv(aware.VARIABLE, value)
    for ask in (aware.awareness, aware.known):
        with pytest.raises(ValueError, match=f"MPICOLL_CUDA_AWARE: '{value}' given, expected 0 or 1"):
            ask()


def test_no_driver(monkeypatch, tried):
    times = tried()
    driver.stand_in(None)
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    answer = aware.awareness()
    assert answer[:2] == (False, False)
    assert answer.reason.startswith("no CUDA driver")
    assert times == []


def test_no_device(tried):
    times = tried()
    stand_in(devices=0)
    assert aware.awareness(fresh=True) == Awareness(False, False, "the CUDA driver sees no device")
    assert times == []


def test_the_librarys_yes_is_the_last_word(monkeypatch, tried):
    times = tried()
    monkeypatch.setattr(aware, "_library_says", lambda: "MPIX_Query_cuda_support")
    expected = Awareness(True, True, "MPIX_Query_cuda_support of the MPI library says so")
    assert aware.awareness(fresh=True) == expected
    assert times == []


def gpu_query(answer, code=0):
    def query(kind, where):
        assert kind == 0
        where._obj.value = answer
        return code

    return query


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ({}, ""),
        ({"MPIX_Query_cuda_support": lambda: 0}, ""),
        ({"MPIX_Query_cuda_support": lambda: 1}, "MPIX_Query_cuda_support"),
        ({"MPIX_GPU_query_support": gpu_query(1)}, "MPIX_GPU_query_support"),
        ({"MPIX_GPU_query_support": gpu_query(0)}, ""),
        ({"MPIX_GPU_query_support": gpu_query(1, code=1)}, ""),
        (
            {"MPIX_Query_cuda_support": lambda: 0, "MPIX_GPU_query_support": gpu_query(1)},
            "MPIX_GPU_query_support",
        ),
    ],
)
def test_what_libraries_say(functions, expected, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(ctypes, "CDLL", lambda file: types.SimpleNamespace(**functions))
    monkeypatch.setattr(aware.MPI, "Is_initialized", lambda: True)
    assert aware._library_says() == expected


# What a try says, and what is remembered of it


def test_a_try_is_remembered(tried, folder):
    times = tried()
    assert aware.known() is None
    assert aware.awareness() == YES
    assert aware.awareness() == YES == aware.known()
    aware._found.clear()  # as a new process
    assert aware.awareness() == YES == aware.known()
    assert len(times) == 1
    assert [file.suffix for file in folder.iterdir()] == [".json"]


def test_a_fresh_try_replaces_what_is_remembered(tried):
    tried(probe.Outcome(True, "Segmentation fault"))
    no = Awareness(False, False, FAILED + "Segmentation fault")
    assert aware.awareness() == no
    times = tried()
    assert aware.awareness() == no
    assert times == []
    assert aware.awareness(fresh=True) == YES == aware.known()
    aware._found.clear()
    assert aware.known() == YES


def test_what_could_not_be_tried_is_not_remembered(tried):
    times = tried(probe.Outcome(False, "no mpiexec"))
    no = Awareness(False, False, "that could not be tried: no mpiexec")
    assert aware.awareness() == no == aware.known()
    aware._found.clear()
    assert aware.known() is None
    assert aware.awareness() == no
    assert len(times) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv("UCX_TLS", "tcp"),
        lambda patch: patch.setenv("OMPI_MCA_pml", "ucx"),
        lambda patch: patch.setenv("MPIR_CVAR_CH4_NETMOD", "ucx"),
        lambda patch: patch.setenv("I_MPI_OFFLOAD", "1"),
        lambda patch: patch.setenv("LD_LIBRARY_PATH", "/somewhere/else"),
        lambda patch: stand_in(version=13000),
        lambda patch: patch.setattr(aware, "_library_path", lambda: __file__),
        lambda patch: patch.setattr(aware.MPI, "Get_library_version", lambda: "another"),
    ],
    ids=["ucx", "open mpi", "mpich", "intel mpi", "path", "driver", "library", "version"],
)
def test_other_circumstances_are_another_question(change, monkeypatch, tried):
    tried()
    assert aware.awareness() == YES
    change(monkeypatch)
    assert aware.known() is None


def test_a_library_that_was_built_anew_is_another_question(monkeypatch, tried, tmp_path):
    library, another = tmp_path / "libmpi.so", tmp_path / "libmpi.so.40"
    for file in (library, another):
        file.write_text("old")
        os.utime(file, (2, 2))
    monkeypatch.setattr(aware, "_library_path", lambda: str(library))
    tried()
    assert aware.awareness() == YES == aware.known()
    with monkeypatch.context() as patch:
        patch.setattr(aware, "_library_path", lambda: str(another))
        assert aware.known() is None
    os.utime(library, (1, 1))
    assert aware.known() is None
    assert aware.awareness() == YES == aware.known()
    library.write_text("longer")
    os.utime(library, (1, 1))
    assert aware.known() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("PMI_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "9"), ("OMPI_MCA_num_procs", "9"), ("HOME2", "x")],
)
def test_the_same_circumstances_in_another_job(name, value, monkeypatch, tried):
    tried()
    assert aware.awareness() == YES
    monkeypatch.setenv(name, value)
    assert aware.known() == YES


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        {"messages": True, "reason": "r"},
        {"circumstances": {}, "messages": True, "reason": "r"},
        {"circumstances": ..., "messages": "yes", "reason": "r"},
        {"circumstances": ..., "messages": True, "reason": None},
    ],
)
def test_a_file_that_is_not_ours(content, tried, folder):
    tried()
    aware.awareness()
    (file,) = folder.iterdir()
    if isinstance(content, dict):
        if content.get("circumstances") is ...:
            content = content | {"circumstances": json.loads(file.read_text())["circumstances"]}
        content = json.dumps(content).encode()
    file.write_bytes(content)
    aware._found.clear()
    assert aware.known() is None
    assert aware.awareness() == YES
    aware._found.clear()
    assert aware.known() == YES


def test_no_place_to_remember(monkeypatch, tried, tmp_path):
    times = tried()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert aware.awareness() == YES == aware.awareness()
    assert len(times) == 1
    aware._found.clear()
    assert aware.awareness() == YES
    assert len(times) == 2


def test_no_home(monkeypatch, tried):
    def home():
        raise RuntimeError("Could not determine home directory.")

    tried()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(aware.Path, "home", home)
    assert aware.awareness() == YES
    aware._found.clear()
    assert aware.known() is None


def test_the_library_is_the_one_that_mpi4py_is_bound_to():
    path = aware._library_path()
    mapped = Path("/proc/self/maps").read_text().splitlines()
    assert path in {os.path.realpath(line.split()[-1]) for line in mapped if "/" in line}
    assert path != aware.MPI.__file__


# The process that tries


@pytest.fixture
def python(monkeypatch, tmp_path):
    """Let a shell script be the Python that the probe runs in."""

    def make(script):
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))

    return make


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("""echo noise; echo '[true, ""]'""", RIGHT),
        ("""echo '[true, "Segmentation fault"]'""", (True, "Segmentation fault")),
        ("echo garbage; echo trouble >&2; exit 3", (False, "trouble")),
        ("echo 5", (False, "exit status 0")),
        ("echo '[]'", (False, "exit status 0")),
        ("exit 3", (False, "exit status 3")),
        ("kill -11 $$", (False, "exit status -11")),
    ],
)
def test_what_the_probe_prints(script, expected, python):
    python(script)
    assert aware._probe() == expected


def test_a_probe_that_does_not_end(python, monkeypatch):
    monkeypatch.setattr(probe, "LIMIT", 0.2)
    python("exec sleep 100")
    assert aware._probe() == (True, "no end within 0.4 s")


def test_no_mpiexec(python, monkeypatch, tmp_path):
    def mpiexec():
        raise FileNotFoundError("launch: no mpiexec")

    python(f"touch {tmp_path}/ran")
    monkeypatch.setattr(launch, "mpiexec", mpiexec)
    assert aware._probe() == (False, "launch: no mpiexec")
    assert not (tmp_path / "ran").exists()


OF_A_JOB = (
    "PMI_RANK PMIX_RANK PRTE_LAUNCHED OMPI_COMM_WORLD_RANK OMPI_MCA_ess_base_vpid OMPI_MCA_num_procs"
    " PALS_RANKID HYDI_CONTROL_FD HYDRA_BSTRAP_NODE_ID I_MPI_HYDRA_UUID MPI_LOCALRANKID SLURM_PROCID"
    " SLURM_JOB_ID PBS_NODEFILE"
)
OF_THE_USER = (
    "PATH UCX_TLS OMPI_MCA_pml OMPI_MCA_osc OMPI_ALLOW_RUN_AS_ROOT MPIR_CVAR_CH4_NETMOD I_MPI_FABRICS"
    " CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH PMIX"
)


def test_the_probe_does_not_know_of_this_job(python, monkeypatch, tmp_path):
    for name in f"{OF_A_JOB} {OF_THE_USER}".split():
        monkeypatch.setenv(name, os.environ.get(name, "7"))
    python(f"""env > {tmp_path}/env; echo '[true, ""]'""")
    assert aware._probe() == RIGHT
    passed = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert passed & set(OF_A_JOB.split()) == set()
    assert passed >= set(OF_THE_USER.split())


# What it makes of its two ranks


def ended(code=0, output="", errors=""):
    def run(n, program, timeout):
        assert (n, timeout) == (2, probe.LIMIT)
        return subprocess.CompletedProcess(program, code, output, errors)

    return run


BOTH_BEGUN = f"{probe.BEGUN}\n" * 2


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (ended(0, BOTH_BEGUN + f"{probe.RIGHT}\n" * 2), RIGHT),
        (ended(0, BOTH_BEGUN + f"{probe.RIGHT}\n"), (True, "mpiexec ended with 0")),
        (ended(1, BOTH_BEGUN + f"{probe.RIGHT}\n" * 2), (True, "mpiexec ended with 1")),
        (ended(0, BOTH_BEGUN), (True, "mpiexec ended with 0")),
        (ended(0), (False, "mpiexec ended with 0")),
        (ended(5, "", "a\nno such host\n"), (False, "no such host")),
        (
            ended(139, BOTH_BEGUN, "Fatal Python error: Segmentation fault\n\nnoise"),
            (True, "Segmentation fault"),
        ),
        (ended(9, BOTH_BEGUN + "EXIT STRING: Killed (signal 9)"), (True, "signal 9")),
        (ended(1, BOTH_BEGUN, f"[1] {probe.WRONG}wrong bytes\nMPI_Abort called"), (True, "wrong bytes")),
    ],
)
def test_outcomes(run, expected, monkeypatch):
    monkeypatch.setattr(launch, "run", run)
    assert probe.start(["program"]) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (subprocess.TimeoutExpired("mpiexec", 60), (True, "no end within 60 s")),
        (FileNotFoundError("no mpiexec"), (False, "mpiexec cannot be started: no mpiexec")),
    ],
)
def test_ranks_that_do_not_end_or_begin(error, expected, monkeypatch):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(launch, "run", run)
    assert probe.start(["program"]) == expected


# Two ranks whose devices' memory is the host's: the exchange itself.
RANK = """
    import ctypes
    from mpicoll import launch
    from mpicoll.device import driver, probe

    memory, copies = {}, []

    def write(word, value):
        ctypes.cast(word, ctypes.POINTER(ctypes.c_uint64))[0] = value
        return 0

    def allocate(word, nbytes):
        block = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(block) if MODE != "crash" else 4096 * (len(memory) + 1)
        memory[address] = block
        return write(word, address)

    def place(address):
        return ctypes.addressof(memory[address]) if address in memory else address

    def copy(target, source, nbytes, stream):
        ctypes.memmove(place(target), place(source), nbytes)
        copies.append(nbytes)
        if MODE == "wrong" and len(copies) % 3 == 0 and nbytes == probe.SIZES[-1]:
            ctypes.c_char.from_address(target + nbytes // 2).value = b"!"
        return 0

    driver.stand_in({
        "cuDeviceGetCount": lambda word: write(word, 1),
        "cuDeviceGet": lambda word, device: write(word, device),
        "cuDevicePrimaryCtxRetain": lambda word, device: write(word, 1),
        "cuCtxGetCurrent": lambda word: write(word, 0),
        "cuCtxPushCurrent_v2": lambda context: 0,
        "cuCtxPopCurrent_v2": lambda word: 0,
        "cuMemAlloc_v2": allocate,
        "cuMemFree_v2": lambda address: 0,
        "cuMemcpyAsync": copy,
        "cuStreamSynchronize": lambda stream: int(MODE == "raise" or MODE == f"raise on {launch.rank()}"),
        "cuGetErrorName": lambda code, word: 1,
        "cuGetErrorString": lambda code, word: 1,
    })
    probe.be_rank()
"""


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("right", ""),
        ("wrong", f"{probe.SIZES[-1]} bytes arrived with other contents than were sent"),
        ("raise", "cuStreamSynchronize: 1: 1"),
        ("raise on 1", "cuStreamSynchronize: 1: 1"),
        ("crash", "Segmentation fault"),
    ],
)
def test_two_ranks(mode, expected, monkeypatch):
    monkeypatch.setattr(probe, "LIMIT", 30)
    program = f"MODE = {mode!r}\n{textwrap.dedent(RANK)}"
    assert probe.start([sys.executable, "-c", program]) == (True, expected)


def test_two_ranks_without_a_driver():
    """The probe as it is started: where there is no GPU, it never begins."""
    if not driver._standing_in:
        pytest.fail("the fixture is to stand in")
    driver.stand_in(None)
    if not driver.trouble():
        pytest.skip("there is a GPU")
    tried, trouble = aware._probe()
    assert not tried
    assert trouble.startswith("no CUDA driver")
