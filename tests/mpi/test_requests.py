"""Requests on real MPI: overlap, order, company of native requests, errors and what is let go of."""

import gc
import resource
import threading
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.progress import Queue
from mpicoll.requests import Persistent, Request

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD.Dup()
PRIVATE = MPI.COMM_WORLD.Dup()
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
MULTIPLE = MPI.Query_thread() == MPI.THREAD_MULTIPLE
THREADED = [pytest.param(True, marks=pytest.mark.skipif(not MULTIPLE, reason="MPI without threads")), False]


@pytest.fixture(params=THREADED, ids=lambda threaded: "threaded" if threaded else "unthreaded")
def queue(request):
    made = Queue(request.param)
    yield made
    made.close()


class Shift:
    """A collective: everybody gets the vector of the left neighbour."""

    def __init__(self, value=1.0, count=1):
        self.sent, self.got = np.full(count, float(RANK + value)), np.zeros(count)
        self.expected = LEFT + value

    def __call__(self):
        PRIVATE.Sendrecv(self.sent, RIGHT, recvbuf=self.got, source=LEFT)

    @property
    def right(self):
        return bool((self.got == self.expected).all())

    def start(self, queue):
        return Request.start(queue, self, (self.sent, self.got))


def nothing():
    pass


def fail():
    raise ValueError("failed")


def unsupported():
    raise MPI.Exception(MPI.ERR_OP)


def spin(done):
    """Test until it is true."""
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(1e-4)


def test_wait_gives_the_result(queue):
    for value in range(100):
        shift = Shift(value, 10 ** (value % 6))
        request = shift.start(queue)
        assert isinstance(request, MPI.Grequest)
        assert request.Wait() is True
        assert shift.right
        assert request == MPI.REQUEST_NULL
        assert request.Wait() is True  # a null request's
        assert request.Test() is True
        assert request.wait() is None
        assert request.test() == (True, None)


def test_the_status_is_empty(queue):
    status = MPI.Status()
    for complete in (MPI.Request.Wait, Request.Wait, Request.wait):
        status.Set_source(0)
        status.Set_tag(7)
        status.Set_elements(MPI.BYTE, 5)
        complete(Shift().start(queue), status)
        assert status.Get_elements(MPI.BYTE) == 0
        assert (status.Get_source(), status.Get_tag()) == (MPI.ANY_SOURCE, MPI.ANY_TAG)
        assert not status.Is_cancelled()


@pytest.mark.parametrize("name", ["Test", "test", "Get_status"])
def test_testing_completes(queue, name):
    shift = Shift(3)
    request = shift.start(queue)

    def test():
        answer = getattr(request, name)()
        return answer[0] if name == "test" else answer

    spin(test)
    assert shift.right
    assert (request != MPI.REQUEST_NULL) == (name == "Get_status")
    request.Wait()


@pytest.mark.skipif(not MULTIPLE, reason="MPI without threads")
def test_test_does_not_block():
    queue, gate = Queue(threaded=True), threading.Event()
    request = Request.start(queue, gate.wait, None)
    started = Persistent(queue, gate.wait, None, lambda: False)
    started.Start()
    for _ in range(100):
        assert request.Test() is False
        assert request.test() == (False, None)
        assert MPI.Request.Testall([request]) is False
        assert started.Test() is False
    gate.set()
    spin(request.Test)
    spin(started.Test)
    queue.close()


@pytest.mark.skipif(not MULTIPLE, reason="MPI without threads")
@pytest.mark.parametrize("work", ["NumPy", "Python"])
def test_it_goes_on_while_the_user_computes(work):
    queue, shift = Queue(threaded=True), Shift(count=100_000)
    vector = np.arange(1e6)
    request = shift.start(queue)
    end = time.monotonic() + 30
    while not shift.right:  # no call of MPI here
        assert time.monotonic() < end
        if work == "NumPy":
            np.sqrt(vector)
        else:
            sum(i for i in range(1000))
    request.Wait()
    queue.close()


def test_collectives_keep_the_order_of_their_starts(queue):
    """Each tells its number to the neighbour: the messages would not match otherwise."""
    shifts = [Shift(value) for value in range(3000)]
    requests = [shift.start(queue) for shift in shifts]
    for i in (5, 2999, 0) if RANK else (2999, 0, 5):  # ranks may wait in different orders
        requests[i].Wait()
    assert all(shift.right for shift in shifts)
    MPI.Request.Waitall(requests)
    assert all(request == MPI.REQUEST_NULL for request in requests)


@pytest.mark.parametrize(
    "completion", ["Waitall", "waitall", "Waitany", "Waitsome", "Testall", "Testsome", "Testany"]
)
def test_they_mix_with_native_requests(queue, completion):
    got = np.zeros(4)
    shifts = [Shift(value) for value in range(3)]
    requests = [
        shifts[0].start(queue),
        WORLD.Irecv(got, LEFT),
        shifts[1].start(queue),
        WORLD.Isend(np.full(4, RANK + 0.5), RIGHT),
        shifts[2].start(queue),
    ]
    complete = getattr(MPI.Request, completion)
    end = time.monotonic() + 30
    while any(request != MPI.REQUEST_NULL for request in requests):
        assert time.monotonic() < end
        complete(requests)
    assert (got == LEFT + 0.5).all()
    queue.finish()
    assert all(shift.right for shift in shifts)


def test_a_list_may_give_statuses(queue):
    statuses = [MPI.Status(), MPI.Status()]
    got = np.zeros(4)
    requests = [Shift().start(queue), WORLD.Irecv(got, LEFT)]
    WORLD.Send(np.ones(4), RIGHT) if SIZE > 1 else WORLD.Isend(np.ones(4), RIGHT).Free()
    MPI.Request.Waitall(requests, statuses)
    assert statuses[0].Get_count(MPI.DOUBLE) == 0
    assert statuses[1].Get_count(MPI.DOUBLE) == 4


@pytest.mark.parametrize(("action", "kind"), [(fail, ValueError), (unsupported, MPI.Exception)])
@pytest.mark.parametrize("name", ["Wait", "wait", "Test", "test"])
def test_an_error_is_raised_once_and_as_it_is(queue, action, kind, name, capfd):
    request = Request.start(queue, action, None)
    other = Shift().start(queue)
    with pytest.raises(kind) as raised:
        spin(lambda: getattr(request, name)() not in (False, (False, None)))
    if kind is MPI.Exception:
        assert raised.value.Get_error_class() == MPI.ERR_OP
    assert request == MPI.REQUEST_NULL
    assert request.Wait() is True
    assert other.Wait() is True
    assert capfd.readouterr().err == ""


def test_an_error_reaches_those_who_know_only_the_handle(queue, capfd):
    for action, code in ((fail, MPI.ERR_OTHER), (unsupported, MPI.ERR_OP)):
        request = Request.start(queue, action, None)
        with pytest.raises(MPI.Exception) as raised:
            MPI.Request.Wait(request)
        assert raised.value.Get_error_class() == code
        shift = Shift()
        requests = [Request.start(queue, action, None), shift.start(queue)]
        with pytest.raises(MPI.Exception):
            MPI.Request.Waitall(requests)
        queue.finish()
        assert shift.right
        for each in (request, *requests):
            assert each.Wait() is True
    assert "ValueError: failed" in capfd.readouterr().err


def test_collectives_cannot_be_cancelled(queue):
    shift = Shift()
    request = shift.start(queue)
    for cancel in (request.Cancel, request.cancel):
        with pytest.raises(MPI.Exception, match="Cancel: a collective's request given") as raised:
            cancel()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    request.Wait()
    assert shift.right


@pytest.mark.parametrize("how", ["Free", "drop"])
def test_it_completes_and_keeps_the_buffers_when_the_request_is_gone(queue, how):
    shift = Shift()
    gone = weakref.ref(buffers := np.ones(3))
    request = Request.start(queue, shift, buffers)
    del buffers
    if how == "Free":
        request.Free()
        assert request == MPI.REQUEST_NULL
        assert request.Wait() is True
    request = None
    gc.collect()
    if not queue.threaded:
        assert gone() is not None
    queue.finish()
    assert shift.right
    spin(lambda: gone() is None)


def test_a_closed_queue_starts_nothing():
    queue = Queue(MULTIPLE)
    queue.close()
    with pytest.raises(RuntimeError, match="closed"):
        Request.start(queue, nothing, None)


def memory():
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.mpi
@pytest.mark.limit(240)
def test_nothing_leaks(queue):
    def completions():
        Request.start(queue, nothing, None).Wait()
        request = Request.start(queue, nothing, None)
        while not request.Test():
            queue.finish()
        request = Request.start(queue, nothing, None)
        queue.finish()
        request.Free()
        MPI.Request.Waitall([Request.start(queue, nothing, None)]) if not queue.threaded else None

    for _ in range(3000):
        completions()
    before = memory()
    for _ in range(10_000):
        completions()
    assert memory() - before < 1024  # KiB: 30 B a request


@pytest.fixture
def persistent(queue):
    shift = Shift()
    return shift, Persistent(queue, shift, (shift.sent, shift.got), lambda: False)


def test_persistent_runs_again_and_again(persistent):
    shift, request = persistent
    assert request.Wait() is True  # not started
    assert request.Test() is True
    for value in range(100):
        shift.sent[:] = RANK + value
        shift.expected = LEFT + value
        request.Start()
        with pytest.raises(RuntimeError, match="active"):
            request.Start()
        if value % 2:
            request.Wait()
        else:
            spin(request.Test)
        assert shift.right
    request.Start()
    request.Free()
    for _ in range(2):
        request.Free()
        assert request.Wait() is True
        with pytest.raises(RuntimeError, match="freed"):
            request.Start()


def test_persistent_refuses_a_freed_communicator(queue):
    closed = False
    request = Persistent(queue, nothing, None, lambda: closed)
    request.Start()
    closed = True
    request.Wait()
    with pytest.raises(MPI.Exception) as raised:
        request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_COMM


def test_persistent_can_start_again_after_an_error(queue):
    fails = [True, False, True, False]
    request = Persistent(queue, lambda: fail() if fails.pop() else None, None, lambda: False)
    for complete in (request.Wait, lambda: spin(request.Test)):
        request.Start()
        complete()
        request.Start()
        with pytest.raises(ValueError, match="failed"):
            complete()


def test_persistent_keeps_and_lets_go_of_buffers(queue):
    gone = weakref.ref(buffers := np.ones(3))
    request = Persistent(queue, shift := Shift(), buffers, lambda: False)
    del buffers
    request.Start()
    del request
    gc.collect()
    if not queue.threaded:
        assert gone() is not None
    queue.finish()
    assert shift.right
    spin(lambda: gone() is None)
    gone = weakref.ref(buffers := np.ones(3))
    request = Persistent(queue, nothing, buffers, lambda: False)
    del buffers
    request.Start()
    request.Free()
    spin(lambda: gone() is None)


def test_many_persistent_at_once(queue):
    shifts = [Shift(value) for value in range(5)]
    got = np.zeros(1)
    ours = [Persistent(queue, shift, None, lambda: False) for shift in shifts]
    native = [WORLD.Recv_init(got, LEFT), WORLD.Send_init(np.full(1, RANK + 0.5), RIGHT)]
    requests = [*ours, *native]
    for _ in range(3):
        Persistent.Startall(requests)
        assert Persistent.Waitall(requests) is True
        assert all(shift.right for shift in shifts)
        assert got == LEFT + 0.5
    with pytest.raises(TypeError):
        MPI.Request.Waitall(ours)
    bad = Persistent(queue, fail, None, lambda: False)
    for shift in shifts:
        shift.got[:] = -1
    Persistent.Startall([bad, *ours])
    with pytest.raises(ValueError, match="failed"):
        Persistent.Waitall([bad, *ours])
    assert all(shift.right for shift in shifts)
    for request in requests:
        request.Free()
