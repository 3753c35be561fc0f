"""What all ranks agree on: whether the MPI library takes device memory. Trying is a stand-in."""

import pytest
from mpi4py import MPI

from mpicoll.device import aware
from mpicoll.device.aware import Awareness

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
YES = Awareness(True, False, "two ranks have exchanged device memory")


def test_this_library_is_asked():
    assert aware._library_says() in ("", "MPIX_Query_cuda_support", "MPIX_GPU_query_support")


def test_it_raises_what_rank_0_found(monkeypatch):
    monkeypatch.setenv(aware.VARIABLE, "x" if WORLD.rank == 0 else "1")
    with pytest.raises(ValueError, match="expected 0 or 1"):
        aware.agreed(WORLD)


def test_one_rank_tries_once(monkeypatch):
    times = []
    monkeypatch.delenv(aware.VARIABLE, raising=False)
    monkeypatch.setattr(aware, "_told", lambda: None)
    monkeypatch.setattr(aware, "_remembered", lambda circumstances: YES if times else None)
    monkeypatch.setattr(aware, "_circumstances", dict)
    monkeypatch.setattr(aware, "_tried", lambda: times.append(1) or YES)
    assert aware.agreed(WORLD) == YES == aware.agreed(WORLD)
    assert len(times) == (WORLD.rank == 0)
    assert aware.agreed(WORLD, fresh=True) == YES
    assert len(times) == 2 * (WORLD.rank == 0)
