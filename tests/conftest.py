"""Options, and the choice between the two sides of the MPI tests.

Inside ``mpiexec``, with ``--with-mpi``, the tests in ``tests/mpi`` are ordinary tests of ranks that keep
step (``mpi_ranks.py``). Without it they become jobs under ``mpiexec`` (``mpi_jobs.py``). Those in
``tests/gpu`` are tests of ranks wherever ``mpiexec`` starts them.
"""

import importlib

from mpicoll import launch


def pytest_addoption(parser):
    group = parser.getgroup("mpi")
    group.addoption("--mpi-ranks", default="1,2,3,4,5", help="numbers of ranks for the MPI tests")
    group.addoption("--mpi-job-limit", type=float, default=900, help="seconds for one job under mpiexec")
    group.addoption("--mpi-test-limit", type=float, default=60, help="seconds for one test inside it")
    group.addoption("--mpi-record", help="folder for the ranks' records; the jobs set it")


def pytest_configure(config):
    config.addinivalue_line("markers", "limit(seconds): time limit of this MPI test")
    ranks = config.getoption("--with-mpi") or (
        launch.rank() is not None and config.getoption("markexpr") == "gpu"
    )
    side = importlib.import_module("mpi_ranks" if ranks else "mpi_jobs")
    config.pluginmanager.register(side.Plugin(config), "mpi_tests")
