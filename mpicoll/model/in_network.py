r"""All-reduce by switches that reduce what passes through them, as SHARP does: a model without a schedule.

::

      switches            combine what comes up, and send the result down
                  / | \
      nodes      A  B  C    1. in each node, rank i combines part i of all its ranks' vectors
                            2. each rank sends its part up once, and gets the result down once
                            3. in each node, each rank sends its part to all

With m ranks on a node, parts of s = M/m bytes, and a = max(s/B, g, 2 o, M/W), the three take::

      1.   L + 2 o + max(s/B, M/W) + (m-2) max(a, s/C) + s/C
      2.   L' + 2 o' + max(M/B', ceil(m/r) s/R)
      3.   L + 2 o + max(s/B, M/W) + (m-2) a

Here L, o, g and B are the latency, overhead, gap and bandwidth within a node, W the bandwidth of its memory,
C the rate of combining, o' the overhead between nodes, R the bandwidth of each of r rails, L' and B' those of
the switches. Parts longer than `eager` take 2 L more in 1 and in 3. What goes up and what comes down pass at
the same time, so in 2 the vector counts once. How many nodes there are does not matter, nor how they are
joined, since no switch sends on more than one vector. With one rank a node there is only 2, on one node it is
left out.

Limits: a stage begins when the one before is over on all ranks, as no vector is cut into blocks whose stages
overlap. Ranks wait for the last to arrive, and for the slowest.

Source: R. L. Graham et al., "Scalable hierarchical aggregation and reduction protocol (SHARP)
streaming-aggregation hardware design and evaluation", ISC 2020.
"""

import math

import numpy as np

from .network import Machine
from .simulate import Disturbance, Simulated

CALM = Disturbance()


def in_network(size: int, nbytes: int, machine: Machine, disturbance: Disturbance = CALM) -> Simulated:
    """Tell what an all-reduce by the switches takes.

    Parameters
    ----------
    size : int
        Number of ranks, which fill the nodes one after the other.
    nbytes : int
        Of the vector.
    machine : Machine
        One with switches that reduce.
    disturbance : Disturbance, optional

    Raises
    ------
    ValueError
        If the machine's switches do not reduce.
    """
    if machine.switches is None:
        raise ValueError(
            f"in_network needs a machine with [switches]; those of {machine.name!r} do not reduce"
        )
    m, nodes = min(machine.per_node, size), len(machine.nodes(size))
    part = -(-nbytes // m)
    slowness = max(disturbance.slow_ranks.values(), default=1.0)
    rail = machine.far.bandwidth / max(disturbance.slow_nodes.values(), default=1.0)
    busy = math.ceil(m / machine.rails) * part / rail if nodes > 1 else 0.0
    over = 2 * machine.far.overhead * slowness + max(nbytes / machine.switches.bandwidth, busy)
    seconds = _within(m, nbytes, machine, slowness, part * slowness / machine.combine)
    seconds += machine.switches.latency + over if nodes > 1 else 0.0
    seconds += _within(m, nbytes, machine, slowness)
    far = 2 * nodes * nbytes if nodes > 1 else 0
    messages = 2 * size * (m - 1) + (2 * size if nodes > 1 else 0)
    exchanged = 2 * (m - 1) * max(part / machine.near.bandwidth, nbytes / machine.memory)
    busiest = max(busy, exchanged) / seconds if seconds else 0.0
    done = np.full(size, max(disturbance.arrival, default=0.0) + seconds)
    total = far + 2 * size * (m - 1) * part
    return Simulated(seconds, done, messages, total, far, busiest)


def _within(m: int, nbytes: int, machine: Machine, slowness: float, combine: float = 0.0) -> float:
    """Give the time in which each of a node's ranks sends a part to each other one."""
    near, part = machine.near, -(-nbytes // m)
    if m == 1:
        return 0.0
    asked = 2 * near.latency if part > near.eager else 0.0
    overhead = 2 * near.overhead * slowness
    first = max(part / near.bandwidth, nbytes / machine.memory)
    each = max(first, near.gap, overhead, combine)
    return asked + near.latency + overhead + first + (m - 2) * each + combine
