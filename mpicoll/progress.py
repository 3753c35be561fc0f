"""Progress: collectives that were started, run one after the other, in the background where that can be."""

import atexit
import queue as queues
import threading
import weakref
from collections import deque
from collections.abc import Callable

VAIN = 5  # calls in vain, after which the thread is not called for jobs that are not urgent
LOOKS = 250  # looks in vain, after which it is called again
PATIENCE = 0.02  # s between looks


class Job:
    """A collective that was started.

    Attributes
    ----------
    done : bool
        Whether it ran, well or not. Nothing is kept of what it ran then.
    error : BaseException or None
        What it raised.
    """

    __slots__ = ("done", "ended", "error", "run")

    def __init__(self, run: Callable[[], None], ended: "Callable[[Job], None] | None") -> None:
        self.done = False
        self.error: BaseException | None = None
        self.run: Callable[[], None] | None = run
        self.ended = ended

    def fail(self, error: BaseException) -> None:
        """Keep an error, the first."""
        self.error = self.error or error

    def take_error(self) -> BaseException | None:
        """Give the error, and forget it: it is raised once."""
        error, self.error = self.error, None
        return error


class Queue:
    """Collectives of one communicator that were started: they run one after the other, in that order.

    Whoever has the turn runs the job at the head: the background thread, or a thread of the user that waits
    and finds nobody at it, which saves a switch of threads. All others sleep meanwhile.

    Parameters
    ----------
    threaded : bool
        Run jobs in a background thread, which starts with the first of them; otherwise they run in
        :meth:`finish`.
    changed : callable
        ``changed(idle)`` is called when the queue stops or starts being idle, before a job can run and
        after the last one did. It is called under the queue's lock, so it must be short, raise nothing
        and wait for nothing.

    Attributes
    ----------
    threaded : bool
    idle : bool
        Whether nothing waits or runs.

    Notes
    -----
    A queue that is dropped runs what was started and ends its thread; where there is no thread, what was
    started is dropped with it. At the end of the program what was started is finished, since other ranks
    wait for their part of it.

    An interrupt (KeyboardInterrupt) that comes while a thread of the user runs a job ends that job: it is
    done, with the interrupt as its error, and :meth:`finish` raises it. One that comes while it sleeps
    only ends the sleep.
    """

    def __init__(self, threaded: bool, changed: Callable[[bool], None] = lambda idle: None) -> None:
        self.threaded = threaded
        self.idle = True
        self._changed = changed
        self._lock = threading.RLock()  # held for moments; a finalizer may come in between, thus reentrant
        self._jobs: deque[Job] = deque()  # the one that runs stays at the head until it is done
        self._last: Job | None = None
        self._runner: int | None = None  # the thread whose turn it is
        self._sleepers: list[tuple[Job, threading.Lock]] = []  # and the jobs that they wait for
        self._closed = False
        self._thread: threading.Thread | None = None
        # calls for the thread hold the queue itself, so that it lives as long as jobs wait; None ends it
        self._calls: queues.SimpleQueue[Queue | None] = queues.SimpleQueue()
        self._called = False
        self._vain = 0  # calls that found nothing to do, one after the other
        _QUEUES.add(self)

    def submit(
        self, run: Callable[[], None], done: Callable[[Job], None] | None = None, urgent: bool = True
    ) -> Job:
        """Put a job at the end of the queue.

        Parameters
        ----------
        run : callable
            The work. Others get on only while it lets go of the interpreter lock.
        done : callable, optional
            Called after `run`, in the thread that ran it; it may submit, and must not wait. Called once,
            but again where an interrupt comes out of it.
        urgent : bool
            Whether the background thread is to begin at once. Otherwise it may take up to `PATIENCE`, where
            those who started jobs have lately waited for them before it could begin.

        Raises
        ------
        RuntimeError
            If the queue was closed, or the thread cannot be started.
        """
        job = Job(run, done)
        with self._lock:
            if self._closed:
                raise RuntimeError("submit: the queue was closed")
            if self.threaded and self._thread is None:
                thread = threading.Thread(target=_work, args=(self._calls, weakref.ref(self)), daemon=True)
                thread.name = "mpicoll"
                thread.start()
                self._thread = thread
            if self.idle:
                self._changed(False)
                self.idle = False
            self._jobs.append(job)
            self._last = job
            if urgent or not self._patient:
                self._call()
        return job

    def hurry(self) -> None:
        """Let the background thread begin at once with what waits."""
        with self._lock:
            self._call()

    def finish(self, job: Job | None = None) -> None:
        """Return when a job, or everything submitted so far, is done.

        The errors of jobs are not raised; they are in :attr:`Job.error`.

        Raises
        ------
        RuntimeError
            If it is called by a job of the queue, which would wait for itself.
        """
        job = job or self._last
        if job is None or job.done:
            return
        if self._runner == threading.get_ident():
            raise RuntimeError("finish: called by a job of the queue, which would wait for itself")
        try:
            while not job.done:
                ran = self._run_next()
                if ran is None:
                    self._sleep(job)
                elif ran.error is not None and not isinstance(ran.error, Exception):
                    raise ran.error
        finally:
            if self._jobs:
                with self._lock:
                    self._call()

    def close(self) -> None:
        """Finish what was submitted, and end the thread; nothing can be submitted any more.

        Called by a job of the queue, it returns at once, and the thread ends after the last job.
        """
        self._closed = True
        if self._runner == threading.get_ident():
            return
        self.finish()
        self._calls.put(None)

    def __del__(self) -> None:
        self._calls.put(None)  # may come at any moment: a SimpleQueue is made for that

    def _call(self) -> None:
        """Call the thread to jobs that nobody is at."""
        if self.threaded and self._jobs and self._runner is None and not self._called:
            self._called = True
            self._calls.put(self)

    @property
    def _patient(self) -> bool:
        """Whether it is not worth while to call the thread, which then looks for itself now and then."""
        return self._vain >= VAIN

    def answer(self) -> float | None:
        """Run what waits, for the thread; give the time after which it is to look again without a call."""
        with self._lock:
            self._called = False
        ran = False
        while self._run_next() is not None:
            ran = True
        with self._lock:
            self._vain = 0 if ran or self._vain == VAIN + LOOKS else self._vain + 1
            self._call()  # for what came in between
            return PATIENCE if self._patient else None

    def _run_next(self) -> Job | None:
        """Run the job at the head, and give it; None if there is none, or somebody is at it."""
        job, me = None, threading.get_ident()
        try:
            with self._lock:
                if self._runner is None and self._jobs:
                    self._runner, job = me, self._jobs[0]
            if job is not None and job.run is not None:
                job.run()
        except BaseException as error:
            if job is None:
                raise
            job.fail(error)
        finally:
            if job is not None:
                try:
                    self._end(job)
                except BaseException:  # an interrupt, which may come at any call
                    self._end(job)
                    raise
        return job

    def _end(self, job: Job) -> None:
        """Tell that a job is done and give the turn back; called again where an interrupt cut it short."""
        job.run = None  # and with it the buffers
        try:
            if job.ended is not None:
                job.ended(job)
        except Exception as error:
            job.fail(error)
        job.ended = None
        with self._lock:
            if self._jobs and self._jobs[0] is job:
                del self._jobs[0]
                self._runner = None
            if not self._jobs and not self.idle:
                self._changed(True)
                self.idle = True
                if self._closed:
                    self._calls.put(None)
            job.done = True
            self._wake()

    def _wake(self) -> None:
        """Wake those whose job is done, and where no thread takes the next turn, all others to take it."""
        for sleeper in list(self._sleepers):
            job, wake = sleeper
            if job.done or not self.threaded:
                self._sleepers.remove(sleeper)
                wake.release()

    def _sleep(self, job: Job) -> None:
        """Sleep until a job is done, or there may be a turn to take."""
        wake = threading.Lock()
        wake.acquire()
        with self._lock:
            if job.done or self._runner is None:
                return
            self._sleepers.append((job, wake))
        wake.acquire()


def _work(calls: "queues.SimpleQueue[Queue | None]", whose: "weakref.ref[Queue]") -> None:
    """Answer a queue's calls, as its thread; hold on to the queue only meanwhile.

    Where users wait right after they start, they run the jobs themselves. A thread that is called each time
    then only waits for the interpreter lock, and as long as a thread waits for it, letting go of it
    costs everybody 20 us. So after some calls in vain it is not called any more, and looks for itself.
    """
    patience: float | None = None
    while True:
        try:
            queue = calls.get(timeout=patience)
        except queues.Empty:
            queue = whose()
        if queue is None:
            return
        patience = queue.answer()
        del queue


_QUEUES: "weakref.WeakSet[Queue]" = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    for queue in list(_QUEUES):
        queue.finish()
