"""Outside ``mpiexec``: each test in ``tests/mpi`` becomes one item for each number of ranks.

The items of one number of ranks share a job, as starting Python on every rank takes longer than most
tests do: the first item that needs a result starts a job for all that have none yet. Where a job dies,
the test that it was in fails, and the next item starts another job for the rest.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpicoll import launch

TESTS = Path(__file__).with_name("mpi")
SILENT = "did not end"


class Plugin:
    """The hooks of the process that starts the jobs."""

    def __init__(self, config):
        File.numbers = [int(n) for n in config.getoption("--mpi-ranks").split(",")]
        self.jobs = []

    def pytest_pycollect_makemodule(self, module_path, parent):
        return File.from_parent(parent, path=module_path) if TESTS in module_path.parents else None

    def pytest_collection_finish(self, session):
        mpi = sys.modules.get("mpi4py.MPI")
        alone = session.config.getoption("markexpr") == "gpu"
        if (
            mpi is not None and mpi.Is_initialized() and not alone
        ):  # jobs would take themselves for parts of it
            raise pytest.UsageError("a test that is not in tests/mpi has started MPI where it was imported")
        items = [item for item in session.items if isinstance(item, Item)]
        for item in items:
            item.sharing = [other for other in items if other.ranks == item.ranks]
            item.jobs = self.jobs
            item.own_markers.clear()  # pytest-mpi's skip, which is for tests that run here

    def pytest_terminal_summary(self, terminalreporter):
        if self.jobs:
            terminalreporter.ensure_newline()
            terminalreporter.section("tests inside mpiexec")
        for ranks in sorted({job.ranks for job in self.jobs}):
            jobs = [job for job in self.jobs if job.ranks == ranks]
            counts = sum((job.counts() for job in jobs), Counter())
            told = ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped"))
            seconds = sum(job.seconds for job in jobs)
            terminalreporter.write_line(f"{ranks} ranks: {told}; {len(jobs)} jobs, {seconds:.1f} s")


class File(pytest.File):
    """A file of MPI tests, which is read but not imported: that is for the ranks to do."""

    def collect(self):
        for node in ast.parse(self.path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if is_test(node.name):
                    for ranks in self.numbers:
                        yield Item.from_parent(
                            self, name=f"{node.name}[{ranks}-ranks]", node=node, ranks=ranks
                        )
            else:
                names = (getattr(part, "name", getattr(part, "id", None)) for part in ast.walk(node))
                if hidden := [name for name in names if name and is_test(name)]:
                    raise self.CollectError(f"{self.nodeid}: {hidden[0]} is no function or class of the file")


def is_test(name):
    return name.startswith(("test", "Test"))


class Item(pytest.Item):
    """A test function or class on some number of ranks."""

    def __init__(self, node, ranks, **kwargs):
        super().__init__(**kwargs)
        self.test, self.line, self.ranks = f"{self.parent.nodeid}::{node.name}", node.lineno - 1, ranks
        self.result = None  # once known: outcome, text

    def runtest(self):
        while self.result is None:  # each job has one for at least one item
            self.run_job([item for item in self.sharing if item.result is None])
        outcome, text = self.result
        if outcome == "skipped":
            pytest.skip(text)
        if outcome == "failed":
            raise JobError(text)

    def run_job(self, items):
        """Run a job and get results for the items that it came to."""
        job = run(self.config, self.ranks, [item.test for item in items])
        self.jobs.append(job)
        for item in items:
            item.result = job.result(item.test)
        results = [item.result for item in items if item.result]
        if not results:  # none would come of another try
            for item in items:
                item.result = "failed", f"The job ended before its first test.\n{job.end()}"
        elif job.code != 0 and all(outcome != "failed" for outcome, _ in results):
            self.result = "failed", f"The job ended badly after its last test.\n{job.end()}"

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value) if excinfo.errisinstance(JobError) else super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, self.line, self.name


class JobError(Exception):
    """A test failed inside a job; the text is all there is to say."""


@dataclass
class Job:
    """What is left of a job."""

    ranks: int
    code: int | None  # None if it was out of time
    seconds: float
    output: str
    tests: dict[str, list[dict]]  # of each test inside, per rank: outcome, reason, text
    processes: list[int]  # per rank
    stacks: list[str]  # per rank: where it was when it was asked

    def outcome(self, test):
        """Return the worst of the ranks' outcomes of a test inside."""
        outcomes = {record.get("outcome", "died") for record in self.tests[test]}
        return next(o for o in ("died", "failed", "passed", "skipped") if o in outcomes)

    def counts(self):
        """Count the tests inside by outcome."""
        return Counter(self.outcome(test).replace("died", "failed") for test in self.tests)

    def result(self, test):
        """Return outcome and text of a test function or class; None if the job did not come to it."""
        file = test.partition("::")[0]
        inside = [t for t in self.tests if t == file or re.match(rf"{re.escape(test)}(\[|::|$)", t)]
        if bad := [t for t in inside if self.outcome(t) in ("died", "failed")]:
            return "failed", "\n\n".join(self.failure(t) for t in bad)
        if not inside:
            died = self.code != 0 or "died" in map(self.outcome, self.tests)
            return None if died else ("failed", f"There is no such test inside.\n{self.end()}")
        if all(self.outcome(t) == "skipped" for t in inside):
            return "skipped", "; ".join(
                sorted({record["reason"] for t in inside for record in self.tests[t]})
            )
        return "passed", ""

    def failure(self, test):
        """Tell what each rank has left of a test inside that failed."""
        headline, told = defaultdict(list), []
        for rank, record in enumerate(self.tests[test]):
            if text := record.get("text"):
                headline[error(text)].append(rank)
                told.append(f"---- rank {rank} failed:\n{text}")
            elif record.get("outcome", "died") == "died":
                stack = self.stacks[rank]
                why = re.search(r"Timeout|Fatal Python error.*", stack)
                headline[why[0] if why else SILENT].append(rank)
                told.append(f"---- rank {rank}, process {self.processes[rank]}, did not end\n{stack}")
        if headline.keys() == {SILENT}:
            told.append(self.end())
        headline[SILENT] = headline.pop(SILENT, [])  # last, as it says the least
        heads = [f"rank {', '.join(map(str, ranks))}: {what}" for what, ranks in headline.items() if ranks]
        return "\n".join(["; ".join(heads), f"{test} on {self.ranks} ranks", *told])

    def end(self):
        """Tell how the job ended."""
        end = "Out of time" if self.code is None else f"Exit code {self.code}"
        tail = "\n".join(self.output.splitlines()[-30:])
        return f"{end} after {self.seconds:.1f} s. Last lines of the job:\n{tail}"


def run(config, ranks, tests):
    """Run some tests on some ranks under mpiexec, within the time limit."""
    with tempfile.TemporaryDirectory() as name, Path(name, "output").open("w+") as output:
        options = ["--with-mpi", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--color=no"]
        options += [f"--mpi-record={name}", f"--mpi-test-limit={config.getoption('--mpi-test-limit')}"]
        start = time.monotonic()
        try:
            code = launch.run(
                ranks,
                [sys.executable, "-m", "pytest", *options, *tests],
                timeout=config.getoption("--mpi-job-limit"),
                cwd=config.rootpath,
                stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - start
        output.seek(0)
        return Job(ranks, code, seconds, output.read(), *read(Path(name), ranks))


def read(folder, ranks):
    """Read what the ranks have written down: their records of each test, their processes, their stacks."""
    records = defaultdict(lambda: [{} for _ in range(ranks)])
    stacks = []
    for rank in range(ranks):
        record, stack = folder / f"{rank}.jsonl", folder / f"{rank}.stack"
        for line in record.read_text().splitlines() if record.exists() else ():
            entry = json.loads(line)
            records[entry.pop("test")][rank].update(entry)
        stacks.append(innermost(stack.read_text()) if stack.exists() else "")
    processes = [record.get("pid") for record in records.pop("", [{}] * ranks)]
    return dict(records), processes, stacks


def innermost(stack):
    """Leave out what is not of the test: frames of its runners, waiting threads, addresses of threads."""
    runners = (
        r'  File "(.*/(_pytest|pluggy|pytest|hypothesis)/|.*/(mpi_ranks|threading).py|<frozen runpy>).*\n'
    )
    return re.sub(rf"(?m)^({runners}|(Thread|Current thread) 0x.*\n|\n)", "", stack)


def error(text):
    """Find the line of a failure that says what went wrong."""
    lines = [line.removeprefix("E ").strip() for line in text.splitlines()]
    errors = [
        line for line in lines if re.match(r"assert |[\w.]*(Error|Exception|Failed)\b(?!: Traceback)", line)
    ]
    return (errors or lines[-1:])[0]
