"""Tests of device memory on a real GPU, with the libraries that make arrays there.

They are run by ``-m gpu`` and not otherwise, as MPI starts in their process, in one or under ``mpiexec``::

    python -m pytest -m gpu tests/gpu
    mpiexec -n 4 python -m pytest -m gpu tests/gpu

Under ``mpiexec`` every rank runs the same tests, in step: see ``mpi_ranks.py``. Ranks may share a device.
Where a package or a route is missing, its tests are skipped with the reason.

With NVIDIA's compute-sanitizer (whose tools are memcheck, racecheck, initcheck and synccheck)::

    compute-sanitizer --target-processes all --tool memcheck --error-exitcode 9 \
        python -m pytest -m gpu tests/gpu --mpi-test-limit 600
    mpiexec -n 2 compute-sanitizer --target-processes all --error-exitcode 9 \
        python -m pytest -m gpu tests/gpu --mpi-test-limit 600 -k "not long"

``MPICOLL_TEST_STAND_IN=1`` lets ``cuda_stand_in.py`` take the place of the driver and of the libraries, to
test the tests themselves where there is no GPU.
"""

import os
import warnings

import pytest

STAND_IN = bool(os.environ.get("MPICOLL_TEST_STAND_IN"))


def trouble(config):
    """Say why the tests cannot run; "" if they can."""
    if config.getoption("markexpr") != "gpu":
        return "run by -m gpu alone, as MPI starts in their process"
    from mpicoll.device import driver  # noqa: PLC0415 - it starts MPI

    return "" if STAND_IN else driver.trouble()


def pytest_pycollect_makemodule(module_path, parent):
    if reason := trouble(parent.config):
        pytest.skip(reason)


def pytest_generate_tests(metafunc):
    if "library" in metafunc.fixturenames:
        from gpu import libraries  # noqa: PLC0415

        names = libraries.StandIn.names if STAND_IN else list(libraries.LIBRARIES)
        metafunc.parametrize("library", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def stand_in():
    """Give the stand-in for the driver where that is asked for, and else None."""
    if not STAND_IN:
        yield None
        return
    from cuda_stand_in import standing_in  # noqa: PLC0415

    os.environ.setdefault("MPICOLL_CUDA_AWARE", "1")
    with standing_in() as found:
        yield found


@pytest.fixture(scope="session")
def device(stand_in):
    """Give this rank's device."""
    from mpicoll.device.assigning import assign  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ranks share a device, which is wanted here
        return assign()


@pytest.fixture(scope="session")
def comm(device):
    """Give a communicator of all ranks."""
    from mpi4py import MPI  # noqa: PLC0415

    import mpicoll  # noqa: PLC0415

    found = mpicoll.Communicator(MPI.COMM_WORLD.Dup())
    yield found
    found.Free()


@pytest.fixture(scope="session")
def library(request, device, stand_in):
    """Give a library whose arrays are on this rank's device."""
    from gpu import libraries  # noqa: PLC0415

    if stand_in:
        return libraries.StandIn(stand_in, receives=request.param != "read-only")
    return libraries.load(request.param, device)
