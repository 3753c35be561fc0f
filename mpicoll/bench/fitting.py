"""A machine from measurements: which messages are measured, and what is made of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from .. import topology
from ..model.fit import Fitted, fit, interval
from ..model.network import INF, Machine
from ..schedule.registry import Nodes
from . import point_to_point
from .point_to_point import FAR, NEAR, REST, Samples

Tick: TypeAlias = Callable[[str, float], None]

SIZES = [
    *(8, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 96 << 10, 128 << 10, 192 << 10),
    *(256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20),
]
LONGEST = 0.25  # s that a message of the largest size may take
LONG = 1 << 20  # bytes of the messages by which it is seen what is shared


@dataclass(frozen=True)
class Findings:
    """What was measured, and the machine that it makes; on rank 0.

    Attributes
    ----------
    machine : Machine
        Where one of the links was not there to be measured, it has the other one's figures.
    links : dict of str to Fitted
        ``near``, ``far``, or both: those that were measured.
    samples : dict of str to Samples
        Likewise.
    combine : tuple of float
        B/s: the median, and its 95 % interval of confidence.
    """

    machine: Machine
    links: dict[str, Fitted]
    samples: dict[str, Samples]
    combine: tuple[float, float, float]

    def record(self) -> dict[str, Any]:
        """Give what was measured, for the section ``[fit]`` of a machine file."""
        found: dict[str, Any] = {"combine_interval": list(self.combine[1:])}
        for level, link in self.links.items():
            samples = self.samples[level]
            found[level] = {
                "pairs": samples.pairs,
                "samples": min(map(len, samples.seconds.values())),
                "bytes": list(samples.seconds),
                "seconds": [float(np.median(times)) for times in samples.seconds.values()],
                "worst_deviation": link.worst,
                **{f"{name}_interval": list(ends) for name, ends in link.intervals.items()},
            }
        found["not_measured"] = [level for level in (NEAR, FAR) if level not in self.links]
        return found


def measure(world: MPI.Intracomm, min_time: float, tick: Tick | None = None) -> Findings | None:
    """Measure what messages take, within nodes and between them, and how fast ranks combine; collective.

    Parameters
    ----------
    world : MPI.Intracomm
        Two ranks or more.
    min_time : float
        s for each size.
    tick : callable, optional
        Is told what is measured, and which fraction of it is done.

    Returns
    -------
    Findings or None
        The latter on all ranks but the first.
    """
    nodes = topology.nodes(world)
    samples: dict[str, Samples] = {}
    for level in (NEAR, FAR):
        if point_to_point.partners(nodes, level):
            samples[level] = _level(world, nodes, level, min_time, tick)
    rates = point_to_point.combining(world, min_time)
    rails = _rails(world, nodes) if FAR in samples else 1
    memory = _memory(world, nodes) if NEAR in samples else INF
    if world.rank:
        return None
    links = {level: fit(found.seconds) for level, found in samples.items()}
    near, far = (links.get(level) or next(iter(links.values())) for level in (NEAR, FAR))
    combine = interval(rates)
    machine = Machine(
        # the bucket is the network's
        replace(near.link, burst=0.0, peak=INF),
        far.link,
        combine[0],
        per_node=max(map(len, nodes)),
        rails=rails,
        memory=memory,
    )
    return Findings(machine, links, samples, combine)


def _level(world: MPI.Intracomm, nodes: Nodes, level: str, min_time: float, tick: Tick | None) -> Samples:
    """Measure all sizes that one message takes not too long for, one pair of two nodes or all of a node."""
    partner = point_to_point.partners(nodes, level, None if level == NEAR else 1)
    bandwidth = point_to_point.rough_bandwidth(world, partner)
    sizes = [nbytes for nbytes in SIZES if nbytes <= LONG or nbytes / bandwidth <= LONGEST]
    return point_to_point.messages(
        world,
        partner,
        sizes,
        rest=REST[level],
        min_time=min_time,
        tick=None if tick is None else lambda part: tick(level, part),
    )


def _rails(world: MPI.Intracomm, nodes: Nodes) -> int:
    """Give how many ranks of a node can send as fast as one."""
    most = min(map(len, nodes))
    if most == 1:
        return 1
    one, several = (
        1 / point_to_point.rough_bandwidth(world, point_to_point.partners(nodes, FAR, count), LONG)
        for count in (1, most)
    )
    return max(1, min(most, round(most * one / several)))


def _memory(world: MPI.Intracomm, nodes: Nodes) -> float:
    """Give the B/s of all pairs of a node together, where that is less than so many times one pair's."""
    pairs = max(len(node) // 2 for node in nodes)
    if pairs == 1:
        return INF
    one, several = (
        point_to_point.rough_bandwidth(world, point_to_point.partners(nodes, NEAR, count), LONG)
        for count in (2, None)
    )
    return pairs * several if several < 0.8 * one else INF
