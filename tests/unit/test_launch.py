import os
import subprocess
import sys
import time

import pytest

from mpicoll import launch

RANK_VARIABLES = (*launch._RANK_VARIABLES, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", launch.LAUNCHED)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for variable in RANK_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def fake(tmp_path):
    """Make an environment whose mpiexec says what it is told to say."""

    def make(version):
        launcher = tmp_path / "bin" / "mpiexec"
        launcher.parent.mkdir(exist_ok=True)
        launcher.write_text(f"#!/bin/sh\necho '{version}'\n")
        launcher.chmod(0o755)
        return tmp_path

    launch._is_open_mpi.cache_clear()
    yield make
    launch._is_open_mpi.cache_clear()


def test_the_mpiexec_of_an_environment_comes_before_path(fake, monkeypatch):
    prefix = fake("HYDRA build details:")
    assert launch.mpiexec(prefix) == str(prefix / "bin" / "mpiexec")
    monkeypatch.setenv("PATH", str(prefix / "bin"))
    assert launch.mpiexec("/no/such/environment") == str(prefix / "bin" / "mpiexec")


def test_no_mpiexec(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no mpiexec in .*/bin nor on PATH"):
        launch.mpiexec(tmp_path)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("mpiexec (Open MPI) 5.0.11", ["--oversubscribe"]),
        ("mpiexec (OpenRTE) 4.1.6", ["--oversubscribe"]),
        ("HYDRA build details:", []),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1", []),
    ],
)
def test_command(fake, version, options):
    prefix = fake(version)
    expected = [str(prefix / "bin" / "mpiexec"), *options, "-n", "3", "program", "-x"]
    assert launch.command(3, ["program", "-x"], prefix) == expected


def test_environment_adds_and_overrides_nothing(monkeypatch):
    monkeypatch.setenv("OMPI_MCA_osc", "rdma")
    monkeypatch.setenv("SOME_VARIABLE", "some value")
    found = launch.environment()
    assert found["OMPI_MCA_osc"] == "rdma"
    assert found["SOME_VARIABLE"] == "some value"
    assert "OMPI_MCA_osc" in os.environ
    monkeypatch.delenv("OMPI_MCA_osc")
    assert launch.environment()["OMPI_MCA_osc"] == "^ucx"
    assert "OMPI_MCA_osc" not in os.environ


def test_ranks_yield_only_where_there_are_more_of_them_than_cores(monkeypatch):
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
    monkeypatch.setattr(launch, "cores", lambda: {0, 5})
    assert "OMPI_MCA_mpi_yield_when_idle" not in launch.environment(2)
    assert launch.environment(3)["OMPI_MCA_mpi_yield_when_idle"] == "1"


@pytest.mark.parametrize("user", [0, 1000])
def test_only_root_says_that_it_means_it(monkeypatch, user):
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT", raising=False)
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in launch.environment()) == (user == 0)
    assert ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in launch.environment()) == (user == 0)


def test_no_launcher_no_rank(monkeypatch):
    assert launch.rank() is None
    # a batch script, or a shell in an allocation
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert launch.rank() is None
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launch.rank() is None


@pytest.mark.parametrize("variable", launch._RANK_VARIABLES)
def test_rank(monkeypatch, variable):
    monkeypatch.setenv(variable, "7")
    assert launch.rank() == 7


def test_rank_in_a_step_of_slurm(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert launch.rank() == 3


def test_run_gives_status_and_output():
    # in one piece, so that the ranks' words do not mix
    program = "import sys; from mpicoll import launch; sys.stdout.write(f'rank{launch.rank()}\\n')"
    done = launch.run(2, [sys.executable, "-c", program], timeout=60)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == ["rank0", "rank1"]
    assert launch.run(1, [sys.executable, "-c", "raise SystemExit(3)"], timeout=60).returncode == 3


def test_run_adds_variables():
    done = launch.run(
        1,
        [sys.executable, "-c", "import os; print(os.environ['GREETING'])"],
        env={"GREETING": "hello"},
        timeout=60,
    )
    assert done.stdout.split() == ["hello"]


def test_run_ends_all_ranks_in_time(tmp_path):
    program = f"import os, time; open('{tmp_path}/' + str(os.getpid()), 'w'); time.sleep(100)"
    with pytest.raises(subprocess.TimeoutExpired):
        launch.run(2, [sys.executable, "-c", program], timeout=3)
    ranks = [int(name) for name in os.listdir(tmp_path)]
    assert len(ranks) == 2
    deadline = time.monotonic() + 10
    while any(map(_lives, ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_lives, ranks))


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_become_tells_about_the_terminal(monkeypatch):
    started = []
    monkeypatch.setattr(os, "execvpe", lambda file, argv, env: started.append((file, argv, env)))
    monkeypatch.setattr(launch, "command", lambda n, argv: ["mpiexec", str(n), *argv])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    launch.become(4, ["program"])
    file, argv, env = started[0]
    assert (file, argv) == ("mpiexec", ["mpiexec", "4", "program"])
    assert env[launch.LAUNCHED] == "stderr"
    assert int(env["COLUMNS"]) > 0


def test_terminals_behind_a_launcher(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert launch.is_terminal("stdout")
    monkeypatch.setenv("PMIX_RANK", "0")
    assert not launch.is_terminal("stdout")
    monkeypatch.setenv(launch.LAUNCHED, "stdout")
    assert launch.is_terminal("stdout")
    assert not launch.is_terminal("stderr")


def test_launch_imports_no_mpi():
    program = (
        "import sys, mpicoll.launch; raise SystemExit('mpi4py' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
