"""Two levels: within each node, then between nodes, then within each node again.

::

      node A   0  1  2  3        1. in each node, leader i combines part i of all its ranks' vectors
               |  |
      node B   4  5  6           2. the i-th leaders of all nodes all-reduce part i among themselves
               |  |
      node C   7  8              3. in each node, leader i sends part i to all

With more than one leader a node, all of them drive the network at once, each with a part of the vector.
The number of leaders is that of the smallest node's ranks, unless given; the placement may be any.
The algorithm between the nodes may be any flat one, here the ring.

Steps for 4 ranks on 2 nodes, 0 and 1, 2 and 3 (what each rank sends; ``+>`` is combined there, ``=>``
replaces)::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 1  0-1 +> 0  2-3 +> 3  0-1 +> 2
    2     0 +> 2    2 +> 3    1 +> 0    3 +> 1
    3     1 => 2    3 => 3    0 => 0    2 => 1
    4     0-1 => 1  2-3 => 0  0-1 => 3  2-3 => 2

Cost for n nodes of m ranks that all lead, ring: 2(n-1) alpha + 2(n-1)/n M/m beta + (n-1)/n M/m gamma between
nodes, and within a node that of `direct`: 2 alpha + 2(m-1)/m M beta + (m-1)/m M gamma, with the alpha and
beta of shared memory.

Limits: where nodes do not hold consecutive ranks, or with the ring, operands are not in rank order, so
the op must be commutative. The expression depends on the placement. An algorithm that uses scratch, such
as `bruck_gather`, needs ``leaders=1``.

Source: M. Bayatpour, S. Chakraborty, H. Subramoni, X. Lu and D. K. Panda, "Scalable reduction collectives
with data partitioning-based multi-leader design", SC 2017.
"""

from typing import Any

from ..schedule import algorithm, find, mapped
from ..schedule.registry import Nodes
from ..schedule.schedule import Schedule, Steps
from . import direct


def plan(nodes: Nodes, leaders: int | None, inter: str, parameters: dict[str, Any]) -> tuple[int, Schedule]:
    """Give the number of leaders a node, and the flat schedule that they run between nodes."""
    fewest = min(len(node) for node in nodes)
    if leaders is None:
        leaders = fewest
    if not 1 <= leaders <= fewest:
        raise ValueError(f"two_level: {leaders} leaders a node, expected 1 to {fewest}, the smallest node")
    flat = find("allreduce", inter).schedule(len(nodes), **parameters)
    if flat.vectors and leaders > 1:
        raise ValueError(f"two_level: {inter} uses scratch, so it needs 1 leader a node, given {leaders}")
    return leaders, flat


def chunks(
    size: int, nodes: Nodes, leaders: int | None = None, inter: str = "ring", **parameters: Any
) -> int:
    """Cut the vector for the leaders, and each part for the flat algorithm."""
    leaders, flat = plan(nodes, leaders, inter, parameters)
    return leaders * flat.chunks


def vectors(
    size: int, nodes: Nodes, leaders: int | None = None, inter: str = "ring", **parameters: Any
) -> int:
    """Give the scratch that the flat algorithm uses."""
    return plan(nodes, leaders, inter, parameters)[1].vectors


@algorithm(
    "allreduce",
    chunks=chunks,
    vectors=vectors,
    commutative=True,
    steps="<=(L > 1) + ceil(m/L) - 1 + inter_steps + (m > 1)",
    sent="<=(L + m - 2 + inter_sent)/L",
    source="Bayatpour et al. 2017",
    variants={"leaders": (None, 1), "inter": ("ring", "recursive_doubling")},
)
def two_level(
    rank: int, size: int, nodes: Nodes, leaders: int | None = None, inter: str = "ring", **parameters: Any
) -> Steps:
    """Leaders of each node combine its vectors, all-reduce between nodes, and spread the result."""
    leaders, flat = plan(nodes, leaders, inter, parameters)
    parts = [range(i * flat.chunks, (i + 1) * flat.chunks) for i in range(leaders)]
    number, node = next((number, node) for number, node in enumerate(nodes) if rank in node)
    local = node.index(rank)
    yield from mapped(direct.to_owners(local, len(node), leaders), ranks=node, chunks=parts)
    if local < leaders:
        group = [node[local] for node in nodes]
        # with one leader the part is the vector, and the flat schedule may use scratch
        yield from mapped(flat.generate(number), ranks=group, chunks=None if leaders == 1 else parts[local])
    yield from mapped(direct.from_owners(local, len(node), leaders), ranks=node, chunks=parts)
