# ruff: noqa: N802 - unittest's names
"""mpi4py's own tests, run twice: natively, and as they are through ``python -m mpicoll run``.

The tests come from the source distribution of the installed mpi4py. On each number of ranks no test may fail
or be skipped only through mpicoll, and nearly all collectives on plain buffers must run our schedules, but
for those that the table of algorithms leaves to the library as that is faster::

    python tests/mpi4py_suite.py --ranks 3
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from importlib.metadata import version
from pathlib import Path

from mpicoll import launch

MODULES = "test_cco", "test_comm", "test_request", "test_op", "test_msgspec", "test_threads"
SHARE = 0.9  # of the calls on plain buffers, that must run our schedules
INSIDE = "--inside"  # what a rank is started with
OUTCOMES = "not run", "died", "failed", "skipped", "passed"  # the worst first; a test has its worst rank's


@dataclasses.dataclass
class Job:
    """What is left of one run of the tests."""

    outcomes: dict[str, str]  # of each test
    seconds: float
    problem: str = ""  # how the job ended, if not well
    calls: int = 0  # on plain buffers, of all ranks, without those that are left to the library
    ours: int = 0  # those that ran our schedules

    def count(self, *outcomes):
        """Count the tests with one of these outcomes."""
        return sum(outcome in outcomes for outcome in self.outcomes.values())

    def counts(self):
        """Tell how many passed, failed, and were skipped."""
        counts = self.count("passed"), self.count("not run", "died", "failed"), self.count("skipped")
        return "{:>6} {:>6} {:>7}".format(*counts)

    def share(self):
        """Return which part of the calls ran our schedules; 0 where there was none."""
        return self.ours / self.calls if self.calls else 0.0


def main():
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="1,2,3,4,5", help="numbers of ranks (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one job (default: %(default)s)")
    parser.add_argument(
        "--cache", type=Path, default=Path(sys.prefix, "mpi4py-tests"), help="folder for mpi4py's source"
    )
    parser.add_argument("--native-cache", action="store_true", help="keep native results there, and use them")
    options = parser.parse_args()
    tests = fetch(options.cache)
    columns = "passed failed skipped"
    print(f"{'':5}  {'native':21}  {'through mpicoll':21}  {'calls that ran our schedules':>28}")
    print(f"{'ranks':5}  {columns}  {columns}", flush=True)
    good = [compare(tests, int(ranks), options) for ranks in options.ranks.split(",")]
    return 0 if all(good) else 1


def fetch(cache):
    """Return the folder of the installed mpi4py's tests, from PyPI unless it is in the cache."""
    name = f"mpi4py-{version('mpi4py')}"
    if not (cache / name).exists():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        source = ["--no-deps", "--no-binary", "mpi4py", name.replace("-", "==")]
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            subprocess.run([*pip, *source, "--dest", folder], check=True)
            with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as archive:
                archive.extractall(folder, filter="data")
            Path(folder, name).rename(cache / name)  # whole, or not at all
    return cache / name / "test"


def compare(tests, ranks, options):
    """Run the tests both ways, print the line and what is wrong; return whether all is well."""
    native = (cached if options.native_cache else run)(tests, ranks, options)
    ours = run(tests, ranks, options, through=True)
    share = f"{ours.ours} of {ours.calls} {100 * ours.share():6.1f} %"
    print(f"{ranks:5}  {native.counts()}  {ours.counts()}  {share:>28}")
    for name, job in (("native", native), ("through mpicoll", ours)):
        print(f"       {name}: {job.seconds:.1f} s{job.problem and '; ' + job.problem}")
    for test, outcome in sorted(native.outcomes.items()):
        if OUTCOMES.index(outcome) < OUTCOMES.index("skipped"):
            print(f"       natively {outcome}: {test}")
    worse = [test for test in sorted({*native.outcomes, *ours.outcomes}) if is_worse(test, ours, native)]
    ran = [test for test in worse if test in ours.outcomes]
    for test in ran:
        print(f"       only through mpicoll {ours.outcomes[test]}: {test}")
    if len(ran) < len(worse):
        print(f"       only through mpicoll not run: {len(worse) - len(ran)} tests")
    if ours.share() < SHARE:
        print(f"       expected at least {100 * SHARE:.0f} % of the calls to run our schedules")
    sys.stdout.flush()
    broken = bool(ours.problem and not native.problem)
    return bool(ours.outcomes) and not worse and not broken and ours.share() >= SHARE


def is_worse(test, ours, native):
    """Whether a test fails or is skipped only through mpicoll."""
    ours = OUTCOMES.index(ours.outcomes.get(test, "not run"))
    native = OUTCOMES.index(native.outcomes.get(test, "passed"))  # as far as anybody knows
    return ours < native


def cached(tests, ranks, options):
    """Run the tests natively, unless an earlier run with this MPI library has left its results."""
    library = subprocess.check_output([sys.executable, "-m", "mpi4py", "--mpi-lib-version"], text=True)
    key = re.sub(r"\W+", "-", library.splitlines()[0])[:24]
    file = options.cache / f"{tests.parent.name}-{key}-{ranks}-ranks.json"
    if not file.exists():
        file.write_text(json.dumps(dataclasses.asdict(run(tests, ranks, options))))
    return Job(**json.loads(file.read_text()))


def run(tests, ranks, options, through=False):
    """Run the tests on some ranks, natively or through mpicoll."""
    logs = options.cache / "logs" / f"{ranks}-{'mpicoll' if through else 'native'}"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    report = logs / "report.json"
    how = ["mpicoll", "run", "--report", "--report-file", str(report)] if through else ["mpi4py"]
    argv = [sys.executable, "-m", *how, __file__, INSIDE, str(logs), str(tests)]
    start, problem = time.monotonic(), ""
    try:
        job = launch.run(ranks, argv, timeout=options.limit)
    except subprocess.TimeoutExpired:
        problem = "out of time"
    else:
        (logs / "launcher").write_text(job.stdout + job.stderr)
        if job.returncode != 0:
            problem = f"exit status {job.returncode}"
    made = json.loads(report.read_text() or "{}") if report.exists() else {}
    return Job(
        outcomes=read(logs, ranks),
        seconds=time.monotonic() - start,
        problem=problem and f"{problem}, see {logs}",
        calls=made.get("calls", 0) - left_to_the_library(made),
        ours=made.get("ours", 0),
    )


def left_to_the_library(made):
    """Count the calls that are native because the table of algorithms says that this is faster."""
    reasons = [each for method in made.get("methods", {}).values() for each in method["reasons"].items()]
    return sum(count for reason, count in reasons if reason.startswith("built-in table"))


def read(logs, ranks):
    """Return the outcome of each test from what the ranks have written down."""
    found = []
    for rank in range(ranks):
        file = logs / f"{rank}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found.append({})
        for test, outcome in map(json.loads, lines):
            found[-1][test] = outcome
    return {
        test: min((outcomes.get(test, "not run") for outcomes in found), key=OUTCOMES.index)
        for test in dict.fromkeys(test for outcomes in found for test in outcomes)
    }


class Result(unittest.TextTestResult):
    """Writes down what becomes of each test, for :func:`read`, as it happens."""

    record = None  # this rank's file
    outcome = None  # of the test that runs

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"
        self.write(test, "died")  # until it has ended

    def stopTest(self, test):
        super().stopTest(test)
        self.write(test, self.outcome)
        self.outcome = None

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "failed")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def note(self, test, outcome):
        if self.outcome is None:  # of a whole class, none of whose tests runs
            self.write(test, outcome)
        else:
            self.outcome = min(self.outcome, outcome, key=OUTCOMES.index)

    def write(self, test, outcome):
        print(json.dumps([test.id(), outcome]), file=self.record, flush=True)


def inside(logs, tests):
    """Run the tests on this rank; failures do not make the job fail, as the record has them."""
    rank = launch.rank() or 0
    log = Path(logs, f"{rank}.log").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGTERM, file=log, chain=True)  # where it is, when it is out of time
    Result.record = Path(logs, f"{rank}.jsonl").open("w")
    runner = unittest.TextTestRunner(log, verbosity=2, resultclass=Result)
    sys.path.insert(0, tests)
    sys.argv = ["main.py", "-v", "--no-numba", *(word for module in MODULES for word in ("-i", module))]
    with contextlib.suppress(SystemExit):
        importlib.import_module("main").main(module=None, testRunner=runner)


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        inside(*sys.argv[2:])
    else:
        sys.exit(main())
