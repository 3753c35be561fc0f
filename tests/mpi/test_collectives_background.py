"""Nonblocking and persistent collectives: many at once, in company, and what ranks may do in between."""

import gc
import weakref

import numpy as np
import pytest
from collective_calls import METHODS, draw, run
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import mpicoll
from mpicoll.requests import Persistent

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
COMM = mpicoll.Communicator(WORLD)
OTHERS = [COMM, mpicoll.Communicator(WORLD.Dup()), mpicoll.Communicator(WORLD, engine="reference")]
TOTAL = SIZE * (SIZE - 1) // 2


def drawn(method, seed, count=17):
    return draw(
        method, RANK, SIZE, count=count, dtype=np.dtype("f8"), root=seed % SIZE, in_place=False, seed=seed
    )


def start(comm, call, method, **options):
    return getattr(comm, f"I{method.lower()}")(*call.arguments, **options)


@pytest.fixture
def fresh():
    """A communicator that had no collective yet."""
    comm = mpicoll.Communicator(WORLD.Dup())
    yield comm
    comm.Free()


@settings(max_examples=20)
@given(
    methods=st.lists(st.sampled_from(list(METHODS)), min_size=1, max_size=40),
    seed=st.integers(0, 2**32 - 1),
    many=st.booleans(),
)
def test_many_at_once_completed_in_any_order(methods, seed, many):
    """Ranks complete them in orders of their own, with a blocking one in between."""
    comms = OTHERS if many else [COMM]
    calls = [drawn(method, seed + i) for i, method in enumerate(methods)]
    requests = [
        start(comms[i % len(comms)], call, method)
        for i, (call, method) in enumerate(zip(calls, methods, strict=True))
    ]
    between = drawn("Allreduce", seed)
    run(comms[seed % len(comms)], "blocking", "Allreduce", between.arguments)
    between.check()
    for i in np.random.default_rng([seed, RANK]).permutation(len(requests)):
        requests[i].Wait()
        calls[i].check()


def test_communicators_in_different_orders_on_different_ranks():
    """What MPI allows for nonblocking ones: the order matters on each communicator alone."""
    order = np.random.default_rng(RANK).permutation(len(OTHERS))
    for round_ in range(20):
        calls = {comm: drawn("Iallreduce"[1:].capitalize(), 10 * round_ + comm) for comm in order}
        requests = {comm: start(OTHERS[comm], calls[comm], "Allreduce") for comm in order}
        for comm in order[::-1]:
            requests[comm].Wait()
            calls[comm].check()


def test_two_new_communicators_in_different_orders():
    """The first collectives of two communicators, one of them blocking."""
    first, second = (mpicoll.Communicator(WORLD.Dup()) for _ in range(2))
    one, other = drawn("Allreduce", 1), drawn("Allreduce", 2)
    if RANK % 2:
        run(second, "blocking", "Allreduce", other.arguments)
        request = start(first, one, "Allreduce")
    else:
        request = start(first, one, "Allreduce")
        run(second, "blocking", "Allreduce", other.arguments)
    request.Wait()
    one.check()
    other.check()
    first.Free()
    second.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("method", METHODS)
def test_the_first_collective_does_not_wait_for_a_late_rank(fresh, method):
    """Rank 1 comes to it only after what the others send when they have started it."""
    call, message = drawn(method, 3), np.zeros(1)
    if RANK == 1:
        for rank in range(SIZE):
            if rank != 1:
                WORLD.Recv(message, rank, tag=5)
        request = start(fresh, call, method)
    else:
        request = start(fresh, call, method)
        WORLD.Send(message, 1, tag=5)
    request.Wait()
    call.check()


@pytest.mark.mpi(min_size=2)
def test_the_first_collective_before_a_receive(fresh):
    call, message = drawn("Allreduce", 3), np.zeros(1)
    if RANK == 0:
        request = start(fresh, call, "Allreduce")
        fresh.Recv(message, 1)
    elif RANK == 1:
        fresh.Send(np.ones(1), 0)
        request = start(fresh, call, "Allreduce")
    else:
        request = start(fresh, call, "Allreduce")
    request.Wait()
    call.check()
    assert message == (RANK == 0)


def test_in_company_of_native_requests():
    for seed in range(20):
        calls = [drawn(method, seed) for method in METHODS]
        got = np.full(3, np.nan)
        native = [COMM.Irecv(got, LEFT, seed), COMM.Isend(np.full(3, float(RANK)), RIGHT, seed)]
        ours = [start(COMM, call, method) for call, method in zip(calls, METHODS, strict=True)]
        requests = [native[0], *ours, native[1]]
        if seed % 3 == 0:
            MPI.Request.Waitall(requests)
        elif seed % 3 == 1:
            while not MPI.Request.Testall(requests):
                pass
        else:
            for _ in requests:
                assert MPI.Request.Waitany(requests) != MPI.UNDEFINED
        assert all(request == MPI.REQUEST_NULL for request in requests)
        assert got.tolist() == [LEFT] * 3
        for call in calls:
            call.check()


def test_buffers_live_as_long_as_they_are_needed():
    out = np.full(100_000, np.nan)
    requests, gone = [], []
    for _ in range(5):
        memory = np.full(100_000, 1.0 * RANK)
        gone.append(weakref.ref(memory))
        requests.append(COMM.Iallreduce(memory, out))
        del memory
    gc.collect()
    np.full(500_000, np.nan)  # would take the place of what was let go of
    MPI.Request.Waitall(requests)
    assert (out == TOTAL).all()
    COMM.Barrier()  # so that the background is done with the last
    del requests
    gc.collect()
    assert [each() for each in gone] == [None] * 5


def test_dropped_requests_complete():
    out = np.full(1000, np.nan)
    COMM.Iallreduce(np.full(1000, 1.0 * RANK), out)
    COMM.Barrier()
    assert (out == TOTAL).all()


def test_blocking_ones_come_after_what_was_started():
    """Also by the fast path, taken before and after."""
    x, y = np.full(3, 1.0 * RANK), np.empty(3)
    for _ in range(3):
        COMM.Allreduce(x, y)
        late = np.zeros(1)
        request = COMM.Iallreduce(y, late_sum := np.empty(3))
        COMM.Allreduce(x, y)
        COMM.Bcast(late, 0)
        request.Wait()
        assert (y == TOTAL).all()
        assert (late_sum == SIZE * TOTAL).all()


def test_each_result_is_there_when_its_own_request_is_complete():
    for i in range(200):
        x, y = np.full(2, float(i + RANK)), np.full(2, np.nan)
        COMM.Iscan(x, y).Wait()
        assert (y == (RANK + 1) * i + RANK * (RANK + 1) / 2).all()


def test_many_persistent_at_once_again_and_again():
    calls = [drawn(method, 7) for method in METHODS for _ in range(3)]
    names = [method for method in METHODS for _ in range(3)]
    requests = [
        getattr(COMM, f"{method}_init")(*call.arguments) for call, method in zip(calls, names, strict=True)
    ]
    for round_ in range(4):
        for call in calls:
            call.reset()
        Persistent.Startall(requests)
        between = drawn("Allgather", round_)
        run(COMM, "blocking", "Allgather", between.arguments)
        between.check()
        for i in np.random.default_rng([round_, RANK]).permutation(len(requests)):
            requests[i].Wait()
            calls[i].check()
    for request in requests:
        request.Free()
    for request in requests:
        with pytest.raises((RuntimeError, MPI.Exception)):
            request.Start()


def test_persistent_sees_what_is_in_its_buffers_when_started():
    x, y = np.empty(4), np.empty(4)
    request = COMM.Allreduce_init(x, y)
    for value in range(5):
        x[:] = value
        y[:] = np.nan
        request.Start()
        request.Wait()
        assert (y == value * SIZE).all()
    request.Free()


def test_persistent_freed_while_active():
    x, y = np.ones(4), np.full(4, np.nan)
    request = COMM.Allreduce_init(x, y)
    request.Start()
    request.Free()
    COMM.Barrier()
    assert (y == SIZE).all()


def test_a_communicator_freed_with_collectives_in_flight():
    comm = mpicoll.Communicator(WORLD.Dup())
    calls = [drawn(method, 9) for method in METHODS]
    requests = [start(comm, call, method) for call, method in zip(calls, METHODS, strict=True)]
    comm.Free()
    MPI.Request.Waitall(requests)
    for call in calls:
        call.check()


def test_ranks_may_start_persistent_collectives_in_any_order():
    ones, tens = np.ones(3), np.full(3, 10.0)
    sums = np.zeros((2, 3))
    pair = [COMM.Allreduce_init(ones, sums[0]), COMM.Allreduce_init(tens, sums[1])]
    for _ in range(3):
        sums[:] = 0
        for request in pair[:: 1 if RANK % 2 else -1]:
            request.Start()
        if RANK % 2:
            COMM.Barrier()
        for request in pair:
            request.Wait()
        if not RANK % 2:
            COMM.Barrier()
        assert sums.tolist() == [[SIZE] * 3, [10.0 * SIZE] * 3]
    for request in pair:
        request.Free()


def test_a_persistent_collective_and_blocking_ones_in_any_order(fresh):
    result, other = np.zeros(3), np.zeros(3)
    request = fresh.Allreduce_init(np.ones(3), result)
    if RANK % 2:
        fresh.Allreduce(np.full(3, 10.0), other)
    request.Start()
    if not RANK % 2:
        fresh.Allreduce(np.full(3, 10.0), other)
    request.Wait()
    assert result.tolist() == [SIZE] * 3
    assert other.tolist() == [10.0 * SIZE] * 3


def test_persistent_takes_a_status_and_has_lower_case_methods():
    request = COMM.Barrier_init()
    request.Start()
    assert request.Wait(MPI.Status()) is True
    request.Start()
    while not request.Test(MPI.Status()):
        pass
    assert request.test() == (True, None)
    assert request.wait() is None
    request.Free()


@pytest.mark.mpi(min_size=2)
def test_the_first_nonblocking_collective_of_an_idup_does_not_wait(fresh):
    made, request = fresh.Idup()
    request.Wait()
    total, word = np.zeros(1), np.zeros(1)
    if RANK == 0:  # the others start only when they have heard of it
        started = made.Iallreduce(np.ones(1), total)
        for rank in range(1, SIZE):
            made.Send(np.ones(1), rank)
    else:
        made.Recv(word, 0)
        started = made.Iallreduce(np.ones(1), total)
    started.Wait()
    assert total[0] == SIZE
    made.Free()
