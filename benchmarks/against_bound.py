"""Compare all-reduces between hosts with what the links allow.

The bound is what the slowest link must carry, over the bandwidth that one message from host to host gets in
the same run. With one rank on each of p hosts a link carries 2(p-1)/p vectors each way; with several ranks on
each of n hosts 2(n-1)/n, as if each host were one rank::

    python benchmarks/emulated_cluster.py --hosts 4 --ranks-per-host 1 --rate 200mbit -- \
        python benchmarks/against_bound.py
    python benchmarks/emulated_cluster.py --hosts 2 --ranks-per-host 4 --rate 200mbit -- \
        python benchmarks/against_bound.py --algorithms auto,ring

The exit status is 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter

import numpy as np
from mpi4py import MPI

from mpicoll import topology
from mpicoll.bench import measure, run, words

DTYPE, OP = np.dtype("float64"), "SUM"
MESSAGE = 1 << 23  # bytes, long enough for what a start-up costs not to matter
MESSAGES = 3


def main() -> int:
    """Be one of the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="16Mi", help="as for mpicoll bench (default: %(default)s)")
    parser.add_argument("--algorithms", default="auto", help="names with commas between (default: auto)")
    parser.add_argument(
        "--min-time", type=float, default=2.0, help="seconds for each at each size (default: %(default)s)"
    )
    options = parser.parse_args()
    world, wrong = MPI.COMM_WORLD, 0
    nodes = topology.nodes(world)
    if len(nodes) < 2:
        show("against_bound: all ranks are on one host, expected several; see emulated_cluster.py")
        return 2
    bandwidth = between(world, nodes[0][0], nodes[-1][0])
    hosts = len(nodes)
    show(f"{world.size} ranks on {hosts} hosts, {bandwidth / 1e6:.1f} MB/s from host to host")
    show(f"{'':>12}{'algorithm':>24}{'time (s)':>12}{'native/it':>12}{'it/bound':>12}")
    calls = run.competitors(world, options.algorithms.split(","), OP)
    for nbytes in words.parse_sizes(options.sizes):
        timings, refusals = measure.measure(
            world, calls, nbytes // DTYPE.itemsize, DTYPE, OP, min_time=options.min_time
        )
        bound = 2 * (hosts - 1) / hosts * nbytes / bandwidth
        native = float(np.median(timings["native"].samples))
        for name, timing in timings.items():
            time = float(np.median(timing.samples))
            wrong += timing.wrong or 0
            size = words.format_size(nbytes)
            show(f"{size:>12}{name:>24}{time:>12.3f}{native / time:>12.2f}{time / bound:>12.2f}")
        for name, reason in refusals.items():
            show(f"# {name}: {reason}")
    return int(wrong > 0)


def between(world: MPI.Intracomm, one: int, other: int) -> float:
    """Measure the bandwidth of messages from one rank to another, in bytes a second."""
    message, times = np.zeros(MESSAGE, np.uint8), [np.inf]
    for _ in range(1 + MESSAGES):  # the first one connects
        world.Barrier()
        begin = perf_counter()
        if world.rank == one:
            world.Send(message, other)
            world.Recv(message[:1], other)
        elif world.rank == other:
            world.Recv(message, one)
            world.Send(message[:1], one)
        times.append(perf_counter() - begin)
    return MESSAGE / float(world.bcast(np.median(times[2:]), one))


def show(text: str) -> None:
    """Print on one rank."""
    if MPI.COMM_WORLD.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
