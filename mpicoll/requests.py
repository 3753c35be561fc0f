"""Requests: what nonblocking and persistent collectives return.

Under ``MPI.THREAD_MULTIPLE``, which mpi4py asks for by default, a collective goes on in the background
from its start, like the MPI library's own. Where the library gives less, it runs inside what completes it:
the Wait or Test of its request, or of a later one of the communicator, or the communicator's next collective.

The background gets the interpreter lock when the user's thread lets go of it, as NumPy and mpi4py do, and
from pure Python after ``sys.getswitchinterval()``, 5 ms.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from mpi4py import MPI

from .errors import FreedCommunicator, NotCancellable
from .progress import Job, Queue


class Request(MPI.Grequest):
    """A nonblocking collective: a request of MPI's, for all that mpi4py does with requests.

    That is Wait and Test, and ``MPI.Request.Waitall``, Waitany, Testsome and so on, for lists that hold other
    requests, too. Wait sleeps, or does the collective's work, where those of MPI.Request spin.

    Notes
    -----
    A collective that failed raises its exception in :meth:`Wait` or :meth:`Test`, once. ``Waitall`` and its
    kin raise an MPI.Exception instead, of its error class or MPI.ERR_IN_STATUS, and mpi4py writes the
    traceback to stderr.

    Without ``MPI.THREAD_MULTIPLE`` MPI takes the request for complete from the start, and runs the collective
    when it asks for its status. So ``Waitall`` completes the native requests of its list first: where one of
    those cannot complete before the collective, call Wait of the collective's request first.

    Free lets go of the request; the collective still completes, and its buffers live until then.
    """

    _collective: "_Collective | None" = None

    @classmethod
    def start(cls, queue: Queue, run: Callable[[], None], buffers: Any, urgent: bool = True) -> "Request":
        """Start a collective.

        Parameters
        ----------
        queue : Queue
            The communicator's.
        run : callable
            The work.
        buffers : Any
            Kept until it is done.
        urgent : bool
            As for :meth:`~mpicoll.progress.Queue.submit`.

        Raises
        ------
        RuntimeError
            If the queue was closed.
        """
        collective = _Collective(queue)
        collective.start(run, buffers, urgent)
        request = cls(collective.request)  # the same handle, in an object that the user waits with
        request._collective = collective
        return request

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:  # noqa: N802
        """Return when the collective is complete; at once if it was waited for.

        Raises
        ------
        Exception
            What the collective raised.
        """
        if not self or self._collective is None:
            return super().Wait(status)
        self._collective.finish()
        error = self._collective.job.take_error()
        super().Wait(status)
        _raise(error)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        """Say whether the collective is complete.

        It does not block, but without ``MPI.THREAD_MULTIPLE`` it completes the collective, which waits for
        the other ranks.

        Raises
        ------
        Exception
            What the collective raised.
        """
        if not self or self._collective is None:
            return super().Test(status)
        if self._collective.queue.threaded and not self._collective.job.done:
            self._collective.queue.hurry()
            return False
        return self.Wait(status)

    def wait(self, status: MPI.Status | None = None) -> None:
        """Do what :meth:`Wait` does; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Do what :meth:`Test` does; there is no object to return."""
        return self.Test(status), None

    def Cancel(self) -> None:  # noqa: N802
        """Refuse, as the MPI standard does for collectives.

        Raises
        ------
        MPI.Exception
            Always, of class ``MPI.ERR_REQUEST``.
        """
        raise NotCancellable("Cancel: a collective's request given, expected one that MPI can cancel")

    cancel = Cancel


class _Collective:
    """One that was started: its job, and the request that MPI knows it by.

    MPI calls :meth:`query` when it finds the request complete and wants its status. With threads that is
    after the job; without, the request is complete from the start, and the job runs in there. None of
    the MPI libraries tried holds a lock meanwhile.
    """

    job: Job

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.request = MPI.Grequest.Start(self.query)
        self._incomplete: MPI.Grequest | None = self.request

    def start(self, run: Callable[[], None], buffers: Any, urgent: bool) -> None:
        """Submit the job, which keeps the buffers."""
        try:
            self.job = self.queue.submit(run, partial(self._ended, buffers), urgent)
        except BaseException:
            self._complete()
            self.request.Free()
            raise
        if not self.queue.threaded:
            self._complete()

    def finish(self) -> None:
        """Return when the job is done."""
        self.queue.finish(self.job)

    def query(self, status: MPI.Status) -> None:
        """Pass an error on to MPI, by raising it; mpi4py has filled in the status."""
        if not self.queue.threaded:
            self.finish()
        error = self.job.error
        if error is not None:
            code = error.Get_error_code() if isinstance(error, MPI.Exception) else MPI.ERR_OTHER
            raise MPI.Exception(code) from error

    def _ended(self, buffers: Any, job: Job) -> None:
        self._complete()

    def _complete(self) -> None:
        """Tell MPI, once: no interrupt comes between these assignments and the call."""
        request, self._incomplete = self._incomplete, None
        if request is not None:
            request.Complete()


class Persistent:
    """A collective to start and wait for as often as you like.

    It is no request of MPI's, and ``MPI.Request.Waitall`` refuses it: use :meth:`Waitall`, or Wait of each.

    Parameters
    ----------
    queue : Queue
        The communicator's.
    run : callable
        The work.
    buffers : Any
        Kept until it is freed and done.
    closed : callable
        Tells whether the communicator was freed.
    urgent : bool
        As for :meth:`~mpicoll.progress.Queue.submit`.
    begin : callable
        Called where it is started.
    """

    def __init__(
        self,
        queue: Queue,
        run: Callable[[], None],
        buffers: Any,
        closed: Callable[[], bool],
        urgent: bool = True,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        self._queue, self._closed, self._urgent = queue, closed, urgent
        self._work: tuple[Callable[[], None], Callable[[], None], Any] | None = begin, run, buffers
        self._job: Job | None = None

    def Start(self) -> None:  # noqa: N802
        """Start the collective.

        Raises
        ------
        RuntimeError
            If it was started and not waited for, or freed.
        MPI.Exception
            If the communicator was freed.
        """
        if self._closed():
            raise FreedCommunicator("Start: the communicator was freed")
        if self._work is None:
            raise RuntimeError("Start: the request was freed")
        if self._job is not None:
            raise RuntimeError("Start: the request is active, expected one that was waited for")
        self._work[0]()
        self._job = self._queue.submit(
            self._run, urgent=self._urgent
        )  # which keeps this object, and so the buffers

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:  # noqa: N802
        """Return when the collective is complete; at once if it was not started.

        The status of a collective says nothing, and `status` is left as it is.

        Raises
        ------
        Exception
            What the collective raised. It can be started again.
        """
        if self._job is not None:
            self._queue.finish(self._job)
            job, self._job = self._job, None
            _raise(job.take_error())
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        """Say whether the collective is complete; it is if it was not started.

        It does not block, but without ``MPI.THREAD_MULTIPLE`` it completes the collective, which waits for
        the other ranks.

        Raises
        ------
        Exception
            What the collective raised. It can be started again.
        """
        if self._job is not None and self._queue.threaded and not self._job.done:
            self._queue.hurry()
            return False
        return self.Wait()

    def wait(self, status: MPI.Status | None = None) -> None:
        """Do what :meth:`Wait` does; there is no object to return."""
        self.Wait()

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Do what :meth:`Test` does; there is no object to return."""
        return self.Test(), None

    def Free(self) -> None:  # noqa: N802
        """Complete the collective if it was started, and let go of the buffers.

        Raises
        ------
        Exception
            What the collective raised.
        """
        try:
            self.Wait()
        finally:
            if self._job is None:  # else an interrupt ended the wait
                self._work = None

    @staticmethod
    def Startall(requests: "Sequence[Startable]") -> None:  # noqa: N802
        """Start all of some persistent requests, mpi4py's among them."""
        for request in requests:
            request.Start()

    @staticmethod
    def Waitall(requests: "Sequence[Startable]") -> Literal[True]:  # noqa: N802
        """Wait for all of some persistent requests, mpi4py's among them.

        Raises
        ------
        Exception
            What the first that failed raised, when all are complete.
        """
        first: Exception | None = None
        for request in requests:
            try:
                request.Wait()
            except Exception as error:
                first = first or error
        _raise(first)
        return True

    def _run(self) -> None:
        if self._work is not None:
            self._work[1]()


class Startable(Protocol):
    """A persistent request, ours or mpi4py's."""

    def Start(self) -> None: ...  # noqa: D102, N802

    def Wait(self) -> Any: ...  # noqa: D102, N802


def _raise(error: BaseException | None) -> None:
    if error is not None:
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame
