"""Inside ``mpiexec``: ranks that keep step.

A test that fails on one rank fails on all of them, and none waits for ever. At the end of each test, and
of each example that Hypothesis draws, the ranks agree on whether it passed. A rank that failed gives the
others, who may be stuck in a collective without it, a little time; then it ends the job. A rank that is
not done within the time limit prints where it is and ends the job, too.
"""

import array
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import pkgutil
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from pathlib import Path

import hypothesis
import pytest
from mpi4py import MPI

import mpicoll

GRACE = 2  # seconds that a rank that failed waits for the others

hypothesis.settings.register_profile(
    "mpi",
    # the same examples on all ranks, however long they take
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    # no shrinking: the ranks would keep step, but the time limit would end it before it is done
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    max_examples=50,
)


class Plugin:
    """This rank's hooks, and what it tells the other ranks and the outside."""

    def __init__(self, config):
        hypothesis.settings.load_profile("mpi")
        _import_all()
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank = self.comm.rank
        self.limit = config.getoption("--mpi-test-limit")
        self.test, self.record, self.stacks = "", None, sys.__stderr__
        if folder := config.getoption("--mpi-record"):
            self.record = Path(folder, f"{self.rank}.jsonl").open("a")
            self.stacks = Path(folder, f"{self.rank}.stack").open("a")
            # of its own, as pytest's is numbered and cleared, where ranks get into each other's way
            config.option.basetemp = Path(folder, f"{self.rank}.files")
        self.processes = self.comm.allgather((socket.gethostname(), os.getpid()))
        self.write(test="", pid=os.getpid())
        faulthandler.enable(file=self.stacks)
        faulthandler.register(signal.SIGUSR1, file=self.stacks)
        self.tell_of_exit()
        if self.rank > 0:  # pytest's reporter is made after this, and keeps the stdout that it finds
            sys.stdout = Path(os.devnull).open("w")

    def write(self, **entry):
        """Add a line to the record that the job outside reads."""
        if self.record:
            print(json.dumps(entry), file=self.record, flush=True)

    def tell(self, test, text):
        """Report a failure at once: there may be no later."""
        self.write(test=self.test, outcome="failed", text=text)
        print(f"\nrank {self.rank}: {test} failed\n{text}", file=sys.__stderr__, flush=True)

    def agree(self, failed, place):
        """Wait until all ranks have come to this place and return those that failed."""
        mine = array.array("q", [failed, zlib.crc32(place.encode())])
        all_ranks = array.array("q", mine.tolist() * self.comm.size)
        request = self.comm.Iallgather(mine, all_ranks)
        patience = time.monotonic() + GRACE
        while not request.Test():
            if failed and time.monotonic() > patience:
                self.abort()
            time.sleep(0.0001)
        if len(set(all_ranks[1::2])) > 1:
            self.tell(place, "the ranks are not in the same test or example")
            self.abort()
        return [rank for rank, it_failed in enumerate(all_ranks[::2]) if it_failed]

    def abort(self):
        """End the job, after the other ranks of this host have written where they are."""
        host = self.processes[self.rank][0]
        for rank, (where, pid) in enumerate(self.processes):
            if where == host and rank != self.rank:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        self.comm.Abort(1)

    def tell_of_exit(self):
        """Report a call of ``os._exit``: most launchers do not know which rank was the first to leave."""
        self.leave, process = os._exit, os.getpid()

        def told(status):
            if os.getpid() == process:
                self.tell(self.test, f"{''.join(traceback.format_stack(limit=3))}os._exit({status})")
            self.leave(status)

        os._exit = told

    def in_step(self, test):
        """Make an example that fails on one rank fail alike on all, as Hypothesis goes on from there."""

        @functools.wraps(test)
        def run(*args, **kwargs):
            __tracebackhide__ = True
            example = f"{test.__name__}({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"
            text = ""
            try:
                test(*args, **kwargs)
            except (hypothesis.errors.HypothesisException, pytest.skip.Exception):
                raise
            except (Exception, pytest.fail.Exception):
                text = f"{example}\n{traceback.format_exc()}"
                self.tell(example, text)
            if failed := self.agree(bool(text), example):
                self.elsewhere = not text
                raise AssertionError(text or failed_on(failed))  # one type, one line: one bug for Hypothesis

        run.in_step = True
        return run

    def pytest_collectreport(self, report):
        if report.failed:
            self.test = report.nodeid
            self.tell(report.nodeid, report.longreprtext)

    def pytest_itemcollected(self, item):
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle and not hasattr(handle.inner_test, "in_step"):
            handle.inner_test = self.in_step(handle.inner_test)

    def pytest_runtest_setup(self, item):
        for mark in item.iter_markers("mpi"):
            if unknown := set(mark.kwargs) - {"min_size"}:  # pytest-mpi would ignore them
                pytest.fail(f"mark mpi takes min_size, given {', '.join(unknown)}", pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.test, self.outcome, self.reason, self.elsewhere = item.nodeid, "passed", "", False
        self.write(test=item.nodeid, outcome="died")  # until it has ended
        mark = item.get_closest_marker("limit")
        limit = mark.args[0] if mark else self.limit
        faulthandler.dump_traceback_later(limit, file=self.stacks)
        end = threading.Timer(limit + 1, self.leave, [1])  # not before all ranks have written where they are
        end.daemon = True
        end.start()
        result = yield
        end.cancel()
        faulthandler.cancel_dump_traceback_later()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        report = yield
        if report.failed:
            self.outcome = "failed"
            if not self.elsewhere:
                self.tell(report.nodeid, report.longreprtext)
        if report.skipped:
            self.outcome = "skipped"
            self.reason = getattr(report, "wasxfail", "") or report.longrepr[2].removeprefix("Skipped: ")
        if call.when == "teardown":
            failed = self.agree(self.outcome == "failed", report.nodeid)
            if failed and self.outcome != "failed":
                self.outcome = report.outcome = "failed"
                report.longrepr = failed_on(failed)
            self.write(test=report.nodeid, outcome=self.outcome, reason=self.reason)
        return report


def failed_on(ranks):
    return f"failed on rank {', '.join(map(str, ranks))}"


def _import_all():
    """Import all of the package: Hypothesis draws constants of what is imported, and on all ranks alike."""
    for module in pkgutil.walk_packages(mpicoll.__path__, "mpicoll."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
