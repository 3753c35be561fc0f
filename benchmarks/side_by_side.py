"""Compare ``mpicoll.Communicator.Allreduce`` with the MPI library's own all-reduce.

Both are called from Python on the same buffers and interleaved in one run, for float64 sums of 8 B to
64 MiB::

    python benchmarks/side_by_side.py           # 2 ranks, the MPI library of this Python
    python benchmarks/side_by_side.py -n 4 --mpi .venv/mpich --mpi .venv/openmpi
    mpiexec -n 2 python benchmarks/side_by_side.py

It prints native's median time over ours for each size, and their geometric mean; and, at the smallest
size, the time of the reference engine over that of the compiled one. The exit status is 1 if a result
was wrong.
"""

import argparse
import sys
from pathlib import Path

from mpicoll import launch
from mpicoll.bench import words


def main() -> int:
    """Be one of the ranks, or start them in each environment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=2, help="ranks, where mpiexec does not say (default: 2)")
    parser.add_argument(
        "--mpi", action="append", metavar="PREFIX", help="Python environment; may be repeated"
    )
    parser.add_argument("--sizes", default="8:64Mi:x4", help="as for mpicoll bench (default: %(default)s)")
    parser.add_argument("--algorithms", default="auto", help="names with commas between (default: auto)")
    parser.add_argument("--min-time", type=float, default=0.5, help="seconds for each at each size")
    parser.add_argument("--json", metavar="FILE", help="add the records to a file")
    options = parser.parse_args()
    if launch.rank() is not None:
        return compare(options)
    status = 0
    for prefix in options.mpi or [sys.prefix]:
        # mpi4py's runner ends all ranks when one of them fails.
        program = [str(Path(prefix, "bin", "python")), "-m", "mpi4py", *sys.argv]
        job = launch.run(options.n, program, prefix=prefix, stdout=None, stderr=None)
        status = max(status, job.returncode)
    return status


def compare(options: argparse.Namespace) -> int:
    """Measure, on every rank; print, on rank 0."""
    import numpy as np  # noqa: PLC0415 - the process that starts the ranks must not start MPI
    from mpi4py import MPI  # noqa: PLC0415

    from mpicoll.bench import measure, provenance, records, run  # noqa: PLC0415

    world, dtype, names = MPI.COMM_WORLD, np.dtype("float64"), options.algorithms.split(",")
    width = max(8, *map(len, names)) + 2

    def show(what: str, *cells: str) -> None:
        if world.rank == 0:
            print(f"{what:>12}" + "".join(f"{cell:>{width}}" for cell in cells), flush=True)

    where = provenance.provenance(world)
    show(f"\n{where['mpi']}, ranks: {where['ranks']}, nodes: {where['nodes']}, cores: {where['cores']}")
    show("native/ours", *names)
    calls = run.competitors(world, names, "SUM")
    sizes = run.whole_elements(words.parse_sizes(options.sizes), dtype)
    found: list[records.Record] = []
    refused: dict[str, str] = {}
    for rows, refusals in run.benchmark(
        world, calls, sizes, dtype=dtype, op="SUM", where=where, min_time=options.min_time
    ):
        ratios = {row["algorithm"]: f"{row['ratio']:.2f}" for row in rows}
        show(words.format_size(rows[0]["size"]), *(ratios.get(name, "-") for name in names))
        found += rows
        refused |= {name: reason for name, _, reason in refusals}
    means = (records.mean_ratio(row for row in found if row["algorithm"] == name) for name in names)
    show("mean", *("-" if mean is None else f"{mean:.2f}" for mean in means))

    for reason in refused.values():
        show(f"# {reason}")

    engines = {
        engine: run.competitors(world, names[:1], "SUM", engine=engine)[names[0]]
        for engine in ("compiled", "reference")
    }
    timings, _ = measure.measure(
        world, engines, sizes[0] // dtype.itemsize, dtype, "SUM", min_time=options.min_time
    )
    compiled, reference = (1e6 * np.median(timings[engine].samples) for engine in engines)
    show(
        f"# {words.format_size(sizes[0])}, {names[0]}: reference engine {reference:.2f} us, "
        f"compiled engine {compiled:.2f} us, ratio {reference / compiled:.1f}"
    )
    if options.json and world.rank == 0:
        records.append(found, options.json)
    wrong = [row["wrong"] for row in found] + [timing.wrong for timing in timings.values()]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
