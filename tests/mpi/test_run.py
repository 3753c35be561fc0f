"""What ``mpicoll run`` does on each rank: the predefined communicators, and the statistics of all ranks."""

import copy
import copyreg
import pickle

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import Communicator, statistics
from mpicoll.cli.run import _replace

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def _replaced(monkeypatch):
    for name in ("COMM_WORLD", "COMM_SELF"):
        monkeypatch.setattr(MPI, name, getattr(MPI, name))
    for kind in (Communicator, MPI.Intracomm):
        monkeypatch.setitem(copyreg.dispatch_table, kind, None)  # to be taken out again
    _replace(MPI)


@pytest.mark.usefixtures("_replaced")
@pytest.mark.parametrize("name", ["COMM_WORLD", "COMM_SELF"])
class TestPredefined:
    def test_is_ours(self, name):
        comm = getattr(MPI, name)
        assert type(comm) is Communicator
        assert comm.size == (WORLD.size if name == "COMM_WORLD" else 1)
        result = np.empty(3)
        comm.Allreduce(np.full(3, 2.0), result)
        assert (result == 2.0 * comm.size).all()

    def test_pickles_by_name(self, name):
        comm = getattr(MPI, name)
        for protocol in PROTOCOLS:
            assert pickle.loads(pickle.dumps(comm, protocol)) is comm
        assert copy.copy(comm) is comm
        assert copy.deepcopy([comm])[0] is comm

    def test_other_objects_of_it_pickle(self, name):
        comm = getattr(MPI, name)
        for other in (MPI.Intracomm(comm), Communicator(comm)):
            for protocol in PROTOCOLS:
                same = pickle.loads(pickle.dumps(other, protocol))
                assert type(same) is type(other)
                assert same == comm
                assert same is not comm

    def test_what_has_no_name_does_not_pickle(self, name):
        comm = getattr(MPI, name).Dup()
        with pytest.raises(ValueError, match="cannot serialize"):
            pickle.dumps(comm)
        comm.Free()


def test_statistics_of_all_ranks():
    recorded = statistics.Statistics()
    for _ in range(WORLD.rank + 1):
        recorded.record("Allreduce", "ring", 8, 0.5)
    found = recorded.gathered(WORLD)
    if WORLD.rank > 0:
        assert found is None
        return
    calls = WORLD.size * (WORLD.size + 1) // 2
    assert (found["ranks"], found["calls"], found["ours"]) == (WORLD.size, calls, calls)
    assert found["methods"]["Allreduce"]["bytes"] == 8 * calls
    assert found["methods"]["Allreduce"]["seconds"] == 0.5 * WORLD.size
