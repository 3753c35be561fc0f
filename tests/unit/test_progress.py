"""Progress without MPI: order, threads, errors, interrupts and what is let go of."""

import dis
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from mpicoll.progress import Queue

THREADED = pytest.mark.parametrize("threaded", [True, False])
LONG = 30  # seconds that nothing here takes


def until(condition):
    """Wait for what another thread does."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def nothing():
    pass


@pytest.fixture
def queue():
    made = Queue(threaded=True)
    yield made
    made.close()


class Gate:
    """A job that waits until it is let through."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self):
        self.entered.set()
        assert self.open.wait(LONG)


def fail():
    raise ValueError("failed")


@THREADED
def test_jobs_run_once_in_the_order_of_their_starts(threaded):
    queue, ran = Queue(threaded), []
    jobs = [queue.submit(lambda i=i: ran.append(i), lambda job, i=i: ran.append(-i)) for i in range(1, 2001)]
    queue.finish(jobs[999])
    assert all(job.done for job in jobs[:1000])
    queue.finish()
    assert ran == [sign * i for i in range(1, 2001) for sign in (1, -1)]
    queue.close()


def test_without_a_thread_jobs_run_in_finish_and_no_further_than_asked():
    queue, ran = Queue(threaded=False), []
    jobs = [queue.submit(lambda i=i: ran.append((i, threading.get_ident()))) for i in range(3)]
    time.sleep(0.01)
    assert ran == []
    queue.finish(jobs[1])
    assert [i for i, _ in ran] == [0, 1]
    assert not jobs[2].done
    queue.finish()
    assert {who for _, who in ran} == {threading.get_ident()}


def test_the_thread_runs_what_nobody_waits_for(queue):
    who = []
    job = queue.submit(lambda: who.append(threading.current_thread()))
    until(lambda: job.done)
    assert who[0].daemon
    assert who[0].name == "mpicoll"
    assert who[0] is not threading.current_thread()


def test_a_job_done_is_not_kept_back_by_a_later_one(queue):
    """Or ranks that wait for each other in between would wait for ever."""
    first, second = Gate(), Gate()
    one, two = queue.submit(first), queue.submit(second)
    assert first.entered.wait(LONG)
    threading.Timer(0.05, first.open.set).start()
    queue.finish(one)  # sleeps, since the thread is at it
    assert one.done
    assert second.entered.wait(LONG)
    assert not two.done
    queue.finish(one)  # does not sleep
    second.open.set()
    queue.finish(two)


def test_the_thread_goes_on_behind_a_user_who_took_over(queue):
    gate = Gate()
    blocked = queue.submit(gate)  # the thread is at this, or a user
    assert gate.entered.wait(LONG)
    later = []
    one = queue.submit(lambda: later.append(1))
    two = queue.submit(lambda: later.append(2))
    gate.open.set()
    queue.finish(one)
    until(lambda: two.done)
    assert blocked.done
    assert later == [1, 2]


@THREADED
def test_many_threads_wait_and_one_job_runs_at_a_time(threaded):
    queue, inside, most, done = Queue(threaded), [], [], []

    def run():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.0001)
        inside.pop()

    def user():
        for _ in range(100):
            job = queue.submit(run)
            queue.finish(job)
            assert job.done
        done.append(1)

    users = [threading.Thread(target=user, daemon=True) for _ in range(5)]
    for each in users:
        each.start()
    for each in users:
        each.join(LONG)
    assert len(done) == 5
    assert (len(most), max(most)) == (500, 1)
    queue.close()


@THREADED
def test_an_error_stays_in_its_job(threaded):
    queue, ended = Queue(threaded), []
    bad = queue.submit(fail, ended.append)
    stop = queue.submit(lambda: sys.exit(3)) if threaded else None
    if stop:
        until(lambda: stop.done)  # in the thread, whose end it must not be
    good = queue.submit(nothing, fail_with_job)
    last = queue.submit(nothing)
    queue.finish()
    assert ended == [bad]
    assert isinstance(bad.error, ValueError)
    assert isinstance(good.error, KeyError)  # what is called after it may fail, too
    assert last.error is None
    assert last.done
    assert bad.take_error() is not None
    assert bad.take_error() is None
    queue.close()


def fail_with_job(job):
    raise KeyError(job)


@THREADED
def test_what_is_called_after_a_job_may_submit(threaded):
    queue, jobs = Queue(threaded), []

    def again(job):
        assert not job.done
        if len(jobs) < 10:
            jobs.append(queue.submit(nothing, again))

    queue.submit(nothing, again)
    until(lambda: queue.finish() or queue.idle)
    assert len(jobs) == 10
    assert all(job.done and job.error is None for job in jobs)
    queue.close()


@THREADED
def test_a_job_that_waits_for_itself_or_a_later_one_is_told(threaded):
    queue = Queue(threaded)
    job = queue.submit(queue.finish)
    queue.finish()
    assert "wait for itself" in str(job.error)
    queue.close()


@THREADED
def test_changes_are_told_before_a_job_runs_and_before_it_is_done(threaded):
    told = []
    queue = Queue(threaded, told.append)
    assert queue.idle
    seen = []
    for _ in range(300):
        job = queue.submit(lambda: seen.append((told[-1], queue.idle)))
        queue.submit(nothing)
        queue.finish(job)
        queue.finish()
        assert told[-1] is True
        assert queue.idle
    assert set(seen) == {(False, False)}
    assert told == [False, True] * 300
    queue.close()


@THREADED
def test_nothing_is_kept_of_a_job_that_is_done(threaded):
    queue = Queue(threaded)
    gc.disable()  # references alone must do
    try:
        for action in (nothing, fail):
            buffer = Gate()
            gone = weakref.ref(buffer)
            job = queue.submit(lambda kept=buffer, run=action: run(), lambda job, kept=buffer: None)
            del buffer
            queue.finish(job)
            error = job.take_error()
            assert (error is None) == (action is nothing)
            del error
            until(lambda gone=gone: gone() is None)
    finally:
        gc.enable()
    queue.close()


def threads():
    return [each for each in threading.enumerate() if each.name == "mpicoll"]


def test_closing_finishes_and_ends_the_thread():
    gc.collect()
    until(lambda: threads() == [])  # those of other tests
    queue, ran = Queue(threaded=True), []
    assert threads() == []  # before there is a job
    for i in range(100):
        queue.submit(lambda i=i: ran.append(i))
    assert len(threads()) == 1
    queue.close()
    assert len(ran) == 100
    until(lambda: threads() == [])
    queue.close()
    with pytest.raises(RuntimeError, match="closed"):
        queue.submit(nothing)


def test_a_job_may_close_the_queue():
    queue = Queue(threaded=True)
    gate = Gate()
    queue.submit(gate)
    closing = queue.submit(queue.close)
    last = queue.submit(nothing)
    gate.open.set()
    until(lambda: last.done)
    assert closing.error is None
    until(lambda: threads() == [])


def test_a_queue_that_is_dropped_runs_what_was_started_and_ends_its_thread():
    for _ in range(20):
        queue, ran = Queue(threaded=True), []
        gate = Gate()
        queue.submit(gate)
        for i in range(10):
            queue.submit(lambda i=i, ran=ran: ran.append(i))
        gone = weakref.ref(queue)
        del queue
        gc.collect()
        gate.open.set()
        until(lambda ran=ran: len(ran) == 10)
        until(lambda gone=gone: gone() is None)
    until(lambda: threads() == [])


@THREADED
def test_an_interrupt_ends_the_job_that_the_user_is_at(threaded):
    queue = Queue(threaded)
    here = threading.get_ident()
    ended = []

    def interrupted():
        if threading.get_ident() == here:
            signal.raise_signal(signal.SIGINT)
            time.sleep(LONG)

    for _ in range(1000):  # until the thread is not the faster one
        job = queue.submit(interrupted, ended.append)
        try:
            queue.finish(job)
        except KeyboardInterrupt:
            break
    else:
        pytest.fail("not interrupted")
    assert job.done
    assert ended[-1] is job
    assert isinstance(job.error, KeyboardInterrupt)
    after = queue.submit(nothing)
    queue.finish(after)
    assert after.error is None
    assert queue.idle
    queue.close()


def test_an_interrupt_ends_only_the_sleep_of_a_user_who_waits(queue):
    gate = Gate()
    job = queue.submit(gate)
    assert gate.entered.wait(LONG)
    interrupt = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        queue.finish(job)
    assert not job.done
    gate.open.set()
    queue.finish(job)
    assert job.error is None


class Interrupt:
    """Raises KeyboardInterrupt at the nth place where Python looks for signals: at calls, and after them."""

    def __init__(self, n):
        self.left, self.before = n, {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if not code.co_filename.endswith("progress.py") or code.co_name == "__del__":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        name = dis.opname[code.co_code[frame.f_lasti]]
        before, self.before[frame] = self.before.get(frame, ""), name
        if event == "call" or (event == "opcode" and before.startswith("CALL")):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@THREADED
def test_no_interrupt_at_any_place_leaves_a_queue_that_hangs(threaded):
    places = 0
    for place in range(1, 100):
        queue, ran, ended = Queue(threaded), [], []
        jobs = [queue.submit(lambda i=i, ran=ran: ran.append(i), ended.append) for i in range(2)]
        sys.settrace(Interrupt(place))
        try:
            queue.finish(jobs[1])
        except KeyboardInterrupt:
            places += 1
        finally:
            sys.settrace(None)
        jobs.append(queue.submit(nothing, ended.append))
        user = threading.Thread(target=queue.finish, daemon=True)
        user.start()
        user.join(LONG)
        assert [job.done for job in jobs] == [True] * 3, place
        assert set(ended) == set(jobs), place
        assert all(i in ran or jobs[i].error for i in range(2)), place
        assert queue.idle
        queue.close()
    assert threaded or places > 20


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("queue.submit(lambda: (time.sleep(0.1), print('done')))", "done"),
        ("queue = Queue(False); queue.submit(lambda: print('done'))", "done"),
        ("queue.submit(lambda: None); queue.finish()", ""),
        ("queue.submit(lambda: None); atexit.register(queue.close)", ""),
    ],
)
def test_a_program_ends_when_what_was_started_is_done(program, printed):
    start = "import atexit, time; from mpicoll.progress import Queue; queue = Queue(True); "
    ended = subprocess.run(
        [sys.executable, "-c", start + program], timeout=LONG, capture_output=True, text=True, check=True
    )
    assert (ended.stdout.strip(), ended.stderr) == (printed, "")
