"""How far simulated times are from measured ones, on emulated clusters.

As root, in a Python environment with MPICH and the extra ``study``::

    python benchmarks/model_accuracy.py
    python benchmarks/model_accuracy.py --clusters 4x1@200mbit --sizes 64Ki:1Mi:x4 --json accuracy.jsonl

On each cluster, ``mpicoll fit`` measures messages; then collectives are measured, and simulated on the
machine that was fitted. Before each sample the ranks rest, so that the links let the same burst pass each
time. The table has the median of the measured times beside the simulated one. The exit status is 1 if fewer
than 90 % are within 15 % of each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpicoll.bench import words
from mpicoll.model import files
from mpicoll.model.program import program
from mpicoll.model.simulate import simulate
from mpicoll.schedule import find

CLUSTERS = "4x1@200mbit,8x1@200mbit,4x1@50mbit,8x1@50mbit,4x2@200mbit,4x2@50mbit"
FLAT = [
    ("allreduce", "ring"),
    ("allreduce", "recursive_halving_doubling"),
    ("allreduce", "recursive_doubling"),
    ("allreduce", "binary_tree"),
    ("allgather", "bruck"),
]
TWO_LEVEL = [("allreduce", "two_level"), ("allreduce", "two_level:inter=recursive_halving_doubling")]
REST = 0.03  # s, in which a bucket of 64 KiB fills at 50 Mbit/s nearly three times
WITHIN, SHARE = 0.15, 0.9


class Cluster(NamedTuple):
    """What is emulated: hosts, ranks on each, and the rate of their links."""

    hosts: int
    per_host: int
    rate: str

    @classmethod
    def parse(cls, text: str) -> Cluster:
        """Read such as 4x1@200mbit."""
        try:
            ranks, rate = text.split("@")
            hosts, per_host = map(int, ranks.split("x"))
        except ValueError:
            raise SystemExit(f"{text!r} given, expected a cluster such as 4x1@200mbit") from None
        return cls(hosts, per_host, rate)

    def __str__(self) -> str:
        return f"{self.hosts}x{self.per_host}@{self.rate}"


def main() -> int:
    """Measure and simulate on each cluster, or be one of the ranks that are measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clusters", default=CLUSTERS, help="hosts x ranks on each @ rate (%(default)s)")
    parser.add_argument("--sizes", default="64Ki:16Mi:x4", help="as for mpicoll bench (%(default)s)")
    parser.add_argument(
        "--samples", type=int, default=7, help="of each, 3 where they take long (%(default)s)"
    )
    parser.add_argument("--json", type=Path, help="a file for one record a row")
    parser.add_argument("--be-a-rank", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_a_rank:
        return measure(options.be_a_rank, words.parse_sizes(options.sizes), options.samples)
    rows = [row for text in options.clusters.split(",") for row in compare(Cluster.parse(text), options)]
    good = sum(abs(row["deviation"]) <= WITHIN for row in rows)
    print(f"\n{good} of {len(rows)} ({100 * good / len(rows):.0f} %) are within {100 * WITHIN:.0f} %")
    return int(good < SHARE * len(rows))


def compare(cluster: Cluster, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Fit, measure and simulate one cluster."""
    import emulated_cluster  # noqa: PLC0415 - beside this file; the ranks need it not

    with (
        tempfile.TemporaryDirectory() as folder,
        emulated_cluster.cluster(cluster.hosts, cluster.rate) as hosts,
    ):
        machine_file, measured_file = Path(folder, "machine.toml"), Path(folder, "measured.json")
        python = [sys.executable, "-m", "mpicoll", "fit", "-o", str(machine_file)]
        job = hosts.run(python, cluster.per_host, timeout=300)
        print(f"\n{cluster}\n{job.stdout}", end="")
        if job.returncode:
            raise SystemExit(job.stderr)
        own = [sys.executable, __file__, "--be-a-rank", str(measured_file)]
        own += ["--sizes", options.sizes, "--samples", str(options.samples)]
        job = hosts.run(own, cluster.per_host, timeout=3600)
        if job.returncode:
            raise SystemExit(job.stderr)
        machine = files.read(machine_file)
        rows = json.loads(measured_file.read_text())
    print(f"{'collective':12}{'algorithm':44}{'p':>3}{'size':>10}{'measured':>12}{'simulated':>12}{'off':>8}")
    for row in rows:
        name, parameters = words.parse_algorithm(row["algorithm"])
        algorithm = find(row["collective"], name)
        if algorithm.pipelined:
            parameters["chunks"] = row["chunks"]
        nodes = tuple(map(tuple, row["placement"]))
        schedule = algorithm.schedule(row["ranks"], nodes=nodes, **parameters)
        row["simulated_us"] = 1e6 * run(schedule, row, machine, nodes)
        row["deviation"] = row["simulated_us"] / row["median_us"] - 1
        row["cluster"] = str(cluster)
        print(
            f"{row['collective']:12}{row['algorithm']:44}{row['ranks']:3}"
            f"{words.format_size(row['size']):>10}{row['median_us'] / 1e3:9.2f} ms"
            f"{row['simulated_us'] / 1e3:9.2f} ms{100 * row['deviation']:+7.1f}%"
        )
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    sys.stdout.flush()
    return rows


def run(schedule: Any, row: dict[str, Any], machine: Any, nodes: Any) -> float:
    """Simulate as the engine runs it: in so many blocks, and going on before what is sent has left."""
    return simulate(program(schedule), row["size"], machine, nodes, blocks=row["blocks"], ahead=True).seconds


def measure(file: str, sizes: list[int], samples: int) -> int:
    """Be a rank: measure all cases, interleaved at each size, and write the medians."""
    from mpi4py import MPI  # noqa: PLC0415 - the main program is no rank

    from mpicoll import Communicator, topology  # noqa: PLC0415
    from mpicoll.bench.point_to_point import wait_awake  # noqa: PLC0415

    world, rows = MPI.COMM_WORLD, []
    placement = topology.nodes(world)
    several = max(map(len, placement)) > 1
    cases = TWO_LEVEL if several else FLAT
    parts = [world.size] if several else [world.size, *([5] if world.size > 5 else [3])]
    for ranks in parts:
        inside = world.rank < ranks
        part = world.Split(0 if inside else MPI.UNDEFINED, world.rank)
        comm = Communicator(part) if inside else None
        for nbytes in sizes:
            times: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
            calls = {case: call(comm, *case, nbytes) for case in cases} if comm else {}
            longest = 0.0
            for number in range(samples + 1):  # the first compiles and connects
                if number > 3 and longest > 1:
                    break
                order = np.random.default_rng(number).permutation(len(cases))
                for case in (cases[index] for index in order):
                    world.Barrier()
                    # the hosts are one machine, with one clock: so all begin at the same time
                    begin = world.bcast(time.perf_counter() + REST)
                    wait_awake(begin - time.perf_counter())
                    if comm:
                        calls[case]()
                    seconds = world.allreduce(time.perf_counter() - begin if comm else 0.0, op=MPI.MAX)
                    longest = max(longest, seconds)
                    times[case].append(seconds)
            rows += [
                {
                    "collective": collective,
                    "algorithm": algorithm,
                    "ranks": ranks,
                    "size": nbytes,
                    "samples": len(found) - 1,
                    "median_us": 1e6 * float(np.median(found[1:])),
                    **(how(comm, algorithm) if comm else {}),
                    "placement": [[r for r in node if r < ranks] for node in placement if node[0] < ranks],
                }
                for (collective, algorithm), found in times.items()
            ]
        if comm:
            comm.Free()
    if world.rank == 0:
        Path(file).write_text(json.dumps(rows))
    return 0


def how(comm: Any, label: str) -> dict[str, int]:
    """Tell into how many blocks the engine cuts the latest vector of an algorithm, and these into chunks."""
    name = words.parse_algorithm(label)[0]
    plan = [plan for plan in comm._context.plans.values() if plan.schedule.name == name][-1]
    return {"blocks": plan.execute.blocks, "chunks": plan.schedule.chunks}


def call(comm: Any, collective: str, label: str, nbytes: int) -> Any:
    """Give a function that runs a collective, of vectors of so many bytes."""
    algorithm, parameters = words.parse_algorithm(label)
    count = nbytes // 8 // (comm.size if collective == "allgather" else 1)
    given = np.ones(max(count, 1))
    if collective == "allgather":
        taken = np.empty(len(given) * comm.size)
        return lambda: comm.Allgather(given, taken, algorithm=algorithm, **parameters)
    taken = np.empty_like(given)
    return lambda: comm.Allreduce(given, taken, algorithm=algorithm, **parameters)


if __name__ == "__main__":
    sys.exit(main())
