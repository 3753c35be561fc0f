"""Measure how fast schedules are simulated, and in how much memory, against goals.

Each case runs in a process of its own, on a machine with overheads, after what is compiled has been::

    python benchmarks/simulator_speed.py

The goals are 15 s for 4,096 ranks of a ring, 30 s for 65,536 ranks of halving-doubling, both with the time to
write the schedule out, and 8 GiB for each. The exit status is 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from mpicoll.bench.words import parse_algorithm
from mpicoll.model.network import Link, Machine
from mpicoll.model.program import program
from mpicoll.model.simulate import simulate
from mpicoll.schedule import find

NEAR, FAR = Link(3e-7, 1e10, overhead=1e-7), Link(1e-6, 2.5e10, overhead=2e-7)
NBYTES = 1 << 26
PER_NODE = 8  # ranks on a node, for two levels
MEMORY = 8.0  # GiB
# Algorithm, ranks, seconds it may take.
CASES = (
    ("ring", 1024, None),
    ("ring", 4096, 15.0),
    ("two_level:inter=recursive_halving_doubling", 16384, None),
    ("recursive_halving_doubling", 65536, 30.0),
)


def main() -> int:
    """Run all cases, or be one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", nargs=2, metavar=("NAME", "RANKS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, size = options.case
        print(json.dumps(measured(name, int(size))))
        return 0
    print(
        f"{'algorithm':46}{'ranks':>6}{'messages':>10}{'write out':>11}{'simulate':>10}{'CPU':>8}{'goal':>6}"
        f"{'a message':>11}{'memory':>9}{'goal':>6}\n"
        f"{'':62}{'(s)':>11}{'(s)':>10}{'(s)':>8}{'(s)':>6}{'(ns)':>11}{'(GiB)':>9}{'(GiB)':>6}"
    )
    missed = 0
    for name, size, goal in CASES:
        command = [sys.executable, __file__, "--case", name, str(size)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        total = found["written"] + found["simulated"]
        wrong = (goal is not None and total > goal) or found["memory"] > MEMORY
        missed += wrong
        print(
            f"{name:46}{size:6}{found['messages']:10}{found['written']:11.2f}{found['simulated']:10.2f}"
            f"{found['cpu']:8.2f}{'-' if goal is None else format(goal, 'g'):>6}"
            f"{found['simulated'] / found['messages'] * 1e9:11.0f}{found['memory']:9.2f}{MEMORY:6g}"
            f"{'  missed' if wrong else ''}",
            flush=True,
        )
    return int(missed > 0)


def measured(label: str, size: int) -> dict[str, Any]:
    """Write a schedule out and simulate it."""
    name, parameters = parse_algorithm(label)
    machine = Machine(NEAR, FAR, 5e9, PER_NODE if name == "two_level" else 1)
    nodes = machine.nodes(size)
    simulate(find("allreduce", "ring").schedule(4), NBYTES, machine)  # compiles, or loads what was
    simulate(find("allreduce", "binary_tree").schedule(7, chunks=2), NBYTES, machine)
    begin, cpu = time.perf_counter(), time.process_time()
    moves = program(find("allreduce", name).schedule(size, nodes=nodes, **parameters))
    written = time.perf_counter()
    found = simulate(moves, NBYTES, machine, nodes)
    end = time.perf_counter()
    return {
        "messages": found.messages,
        "written": written - begin,
        "simulated": end - written,
        "cpu": time.process_time() - cpu,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # from KiB
    }


if __name__ == "__main__":
    sys.exit(main())
