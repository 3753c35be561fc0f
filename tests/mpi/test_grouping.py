"""Small collectives fused in a group, and what would serve a call, in words."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@pytest.fixture
def comm():
    made = mpicoll.Communicator(WORLD.Dup())
    yield made
    made.Free()


def vectors(number, dtype="f8"):
    """The vectors of all ranks for a call: shape (ranks, length), lengths 0 to 6."""
    rng = np.random.default_rng(number)
    return rng.integers(-9, 9, (SIZE, number % 7)).astype(dtype)


def calls_that_send(monkeypatch):
    """Count what goes on to the communicator's own methods."""
    counts = dict.fromkeys(("Allreduce", "Reduce", "Bcast"), 0)
    for name in counts:
        original = getattr(mpicoll.Communicator, name)

        def counted(self, *arguments, _name=name, _original=original, **parameters):
            counts[_name] += 1
            return _original(self, *arguments, **parameters)

        monkeypatch.setattr(mpicoll.Communicator, name, counted)
    return counts


def test_group_is_still_the_group_of_ranks(comm):
    group = comm.group
    assert isinstance(group, MPI.Group)
    assert type(group) == MPI.Group  # noqa: E721 - as programs compare
    assert group.Get_size() == SIZE
    group.Free()


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "i8"])
@pytest.mark.parametrize("op", [MPI.SUM, MPI.MAX], ids=["SUM", "MAX"])
@pytest.mark.parametrize("times", [1, 2], ids=["first", "again"])
def test_all_reduces_are_one(comm, monkeypatch, dtype, op, times):
    for _ in range(times):
        recv = [np.full(number % 7, 99, dtype) for number in range(30)]
        recv[5][:] = vectors(5, dtype)[RANK]
        with monkeypatch.context() as patch:
            counts = calls_that_send(patch)
            with comm.group():
                for number, out in enumerate(recv):
                    comm.Allreduce(MPI.IN_PLACE if number == 5 else vectors(number, dtype)[RANK], out, op=op)
                assert all((out == 99).all() for number, out in enumerate(recv) if number != 5)
            assert counts == {"Allreduce": 1, "Reduce": 0, "Bcast": 0}
        combine = np.add if op == MPI.SUM else np.maximum
        for number, out in enumerate(recv):
            assert out.tolist() == combine.reduce(vectors(number, dtype)).tolist()


def test_kinds_are_fused_apart(comm, monkeypatch):
    root = SIZE - 1
    counts = calls_that_send(monkeypatch)
    sums, roots, copies, averages, large = [], [], [], [], np.full(5000, RANK + 1.0)
    with comm.group():
        for number in range(4, 8):
            mine = vectors(number)[RANK]
            sums.append(np.empty_like(mine))
            roots.append(np.full_like(mine, 99))
            averages.append(np.empty_like(mine))
            copies.append(mine.copy())
            comm.Allreduce(mine, [sums[-1], MPI.DOUBLE])  # as a spec, which goes the long way
            comm.Reduce(mine, roots[-1], root=root)
            comm.Bcast(copies[-1], root=root)
            comm.Allreduce(mine, averages[-1], op=mpicoll.AVG)
        comm.Allreduce(MPI.IN_PLACE, large)
    assert counts == {"Allreduce": 3, "Reduce": 1, "Bcast": 1}
    for number, total, at_root, copy, average in zip(range(4, 8), sums, roots, copies, averages, strict=True):
        expected = vectors(number).sum(0)
        assert total.tolist() == expected.tolist()
        assert at_root.tolist() == (expected.tolist() if root == RANK else [99] * len(expected))
        assert copy.tolist() == vectors(number)[root].tolist()
        np.testing.assert_allclose(average, expected / SIZE)
    assert (large == SIZE * (SIZE + 1) / 2).all()


def test_ranks_may_describe_their_vectors_differently(comm):
    recv = [np.empty(number % 7) for number in range(20)]
    with comm.group():
        for number, out in enumerate(recv):
            comm.Allreduce(vectors(number)[RANK], out if RANK % 2 else [out, MPI.DOUBLE])
    for number, out in enumerate(recv):
        assert out.tolist() == vectors(number).sum(0).tolist()


def test_broadcasts_with_holes(comm):
    datatype = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    memory = np.full(5, RANK + 1.0)
    plain = np.full(2, RANK + 1.0)
    with comm.group():
        comm.Bcast([memory, 1, datatype])
        comm.Bcast(plain)
    assert memory.tolist() == [1, RANK + 1, 1, RANK + 1, 1]
    assert plain.tolist() == [1, 1]
    datatype.Free()


def test_a_named_algorithm_goes_by_itself(comm, monkeypatch):
    counts = calls_that_send(monkeypatch)
    recv = [np.empty(2) for _ in range(3)]
    with comm.group():
        for out, options in zip(recv, ({}, {"algorithm": "ring"}, {}), strict=True):
            comm.Allreduce(np.ones(2), out, **options)
    assert counts["Allreduce"] == 2
    assert all((out == SIZE).all() for out in recv)


def test_an_exception_sends_nothing_and_the_communicator_goes_on(comm):
    recv = np.full(2, 99.0)
    with pytest.raises(KeyError, match="mine"), comm.group():  # noqa: PT012
        comm.Allreduce(np.ones(2), recv)
        raise KeyError("mine")
    assert recv.tolist() == [99, 99]
    comm.Allreduce(np.ones(2), recv)
    assert recv.tolist() == [SIZE, SIZE]


def test_what_is_wrong_is_raised_at_the_end_before_anything_is_sent(comm):
    recv = np.full(2, 99.0)
    if RANK == 0:
        with pytest.raises(ValueError, match="recvbuf has 2 items, expected 3"), comm.group():  # noqa: PT012
            comm.Allreduce(np.ones(2), recv)
            comm.Allreduce(np.ones(3), recv)
        assert recv.tolist() == [99, 99]
    comm.Allreduce(np.ones(2), recv)
    assert recv.tolist() == [SIZE, SIZE]


def test_a_placement_that_does_not_suit_is_found_before_anything_is_sent(comm):
    recv = np.full(2, 99.0)
    with pytest.raises(ValueError, match="leaders"), comm.group():  # noqa: PT012
        comm.Allreduce(np.ones(2), recv)
        comm.Allreduce(np.ones(2), np.empty(2), algorithm="two_level", leaders=99)
    assert recv.tolist() == [99, 99]


def test_explain_is_not_for_freed_communicators_or_negative_lengths(comm):
    with pytest.raises(ValueError, match="nbytes -8 given"):
        comm.explain("allreduce", -8)
    freed = comm.Dup()
    freed.Free()
    with pytest.raises(MPI.Exception, match="was freed"):
        freed.explain("allreduce", 8)


def test_a_group_inside_a_group_is_refused(comm):
    with pytest.raises(RuntimeError, match="inside a group"), comm.group(), comm.group():
        pass
    recv = np.empty(1)
    comm.Allreduce(np.ones(1), recv)
    assert recv[0] == SIZE


def test_a_group_used_again_has_forgotten_its_calls(comm):
    group, first, second = comm.group(), np.ones(2), np.ones(2)
    with group:
        comm.Allreduce(MPI.IN_PLACE, first)
    with group:
        comm.Allreduce(MPI.IN_PLACE, second)
    assert first.tolist() == second.tolist() == [SIZE, SIZE]


def test_an_empty_group(comm):
    with comm.group():
        pass


def test_explain(comm):
    text = comm.explain("allreduce", nbytes=1 << 20)
    choice = comm.choice("allreduce", 1 << 20)
    assert f"allreduce of 1048576 bytes, {SIZE} rank" in text
    assert f"{choice.algorithm}:" in text
    assert f"why: {choice.reason}" in text
    assert "cost: " in text
    assert "chain (chunks=8)" in comm.explain("bcast", 1 << 20, algorithm="chain", chunks=8)


def test_explain_says_what_becomes_of_holes(comm):
    datatype = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    assert "packed before and unpacked after" in comm.explain("bcast", 2400, datatype=datatype)
    text = comm.explain("allreduce", 2400, datatype=datatype)
    assert "native" in text
    assert "a datatype with holes" in text
    datatype.Free()


@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        ({"collective": "alreduce"}, ValueError, "unknown collective 'alreduce'"),
        ({"collective": "bcast", "algorithm": "rign"}, ValueError, "unknown algorithm 'rign'"),
        ({"collective": "allreduce", "op": MPI.BAND}, MPI.Exception, "BAND is not defined for float64"),
    ],
    ids=["collective", "algorithm", "op"],
)
def test_explain_refuses_what_a_call_would(comm, question, error, message):
    with pytest.raises(error, match=message):
        comm.explain(nbytes=8, **question)
