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

Steps of the all-reduce for 4 ranks on 2 nodes, 0 and 1, 2 and 3 (what each rank sends; ``+>`` is combined
there, ``=>`` replaces)::

    step  rank 0    rank 1    rank 2    rank 3
    1     2-3 +> 1  0-1 +> 0  2-3 +> 3  0-1 +> 2
    2     0 +> 2    2 +> 3    1 +> 0    3 +> 1
    3     1 => 2    3 => 3    0 => 0    2 => 1
    4     0-1 => 1  2-3 => 0  0-1 => 3  2-3 => 2

Cost for n nodes of m ranks that all lead, ring: 2(n-1) alpha + 2(n-1)/n M/m beta + (n-1)/n M/m gamma
between nodes, and within a node at most 2 alpha + 3(m-1)/m M beta + (m-1)/m M gamma, with the alpha and
beta of shared memory; with L leaders that is 2 alpha + (2m + L - 3)/L M beta + (m-1)/L M gamma.

A reduction does the same towards the root, which leads its node, by default with a binomial tree between
nodes; at the end the root has part 0, and the other leaders of its node send it theirs. Steps for root 0::

    step  rank 0  rank 1  rank 2  rank 3
    1     1 +> 1  0 +> 0  1 +> 3  0 +> 2
    2                     0 +> 0  1 +> 1
    3             1 => 0

Cost of the same: at most ceil(log2 n) (alpha + M/m beta + M/m gamma) between nodes, and 2 alpha + 3(m-1)/m
M beta + (m-1)/m M gamma within a node; with L leaders that is (m + 2L - 3)/L M beta + (m-1)/L M gamma.

Limits: where nodes do not hold consecutive ranks, or with the ring, operands are not in rank order, so
the op must be commutative. The expression depends on the placement. An algorithm that uses scratch, such
as `bruck_gather`, needs ``leaders=1``. The all-gather, the barrier and the broadcast on two levels have one
leader a node, and a page of their own: `two_level_one_leader.py`.

Source: M. Bayatpour, S. Chakraborty, H. Subramoni, X. Lu and D. K. Panda, "Scalable reduction collectives
with data partitioning-based multi-leader design", SC 2017; for the root that leads its node T. Kielmann,
R. F. H. Hofman, H. E. Bal, A. Plaat and R. A. F. Bhoedjang, "MagPIe: MPI's collective communication
operations for clustered wide area systems", PPoPP 1999.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from ..schedule import algorithm, find, mapped
from ..schedule.registry import Nodes
from ..schedule.schedule import Schedule, Steps
from . import direct, star

Groups: TypeAlias = Sequence[Sequence[int]]  # the ranks of each node, its leaders first


def place(rank: int, nodes: Groups) -> tuple[int, Sequence[int], int]:
    """Give the number of a rank's node, the node, and the rank's place in it."""
    return next((number, node, node.index(rank)) for number, node in enumerate(nodes) if rank in node)


def led_by(root: int, nodes: Nodes) -> list[list[int]]:
    """Put the root first on its node."""
    return [sorted(node, key=lambda rank: rank != root) for node in nodes]


def plan(
    collective: str, nodes: Groups, leaders: int | None, inter: str, parameters: dict[str, Any]
) -> tuple[int, Schedule]:
    """Give the number of leaders a node, and the flat schedule that they run between nodes."""
    fewest = min(len(node) for node in nodes)
    if leaders is None:
        leaders = fewest
    if not 1 <= leaders <= fewest:
        raise ValueError(f"two_level: {leaders} leaders a node, expected 1 to {fewest}, the smallest node")
    flat = find(collective, inter).schedule(len(nodes), **parameters)
    if flat.vectors and leaders > 1:
        raise ValueError(f"two_level: {inter} uses scratch, so it needs 1 leader a node, given {leaders}")
    return leaders, flat


def chunks(
    size: int, *, collective: str, nodes: Nodes, leaders: int | None = None, inter: str, **parameters: Any
) -> int:
    """Cut the vector for the leaders, and each part for the flat algorithm."""
    leaders, flat = plan(collective, nodes, leaders, inter, parameters)
    return leaders * flat.chunks


def vectors(
    size: int, *, collective: str, nodes: Nodes, leaders: int | None = None, inter: str, **parameters: Any
) -> int:
    """Give the scratch that the flat algorithm uses."""
    return plan(collective, nodes, leaders, inter, parameters)[1].vectors


def parts(leaders: int, flat: Schedule) -> list[range]:
    """Give the chunks of each leader's part."""
    return [range(i * flat.chunks, (i + 1) * flat.chunks) for i in range(leaders)]


def inward(rank: int, nodes: Groups, leaders: int, flat: Schedule) -> Steps:
    """Combine part i at the i-th leader of each node, and then between nodes."""
    number, node, local = place(rank, nodes)
    each = parts(leaders, flat)
    yield from mapped(direct.to_owners(local, len(node), leaders), ranks=node, chunks=each)
    if local < leaders:
        group = [node[local] for node in nodes]
        # with one leader the part is the vector, and the flat schedule may use scratch
        yield from mapped(flat.generate(number), ranks=group, chunks=None if leaders == 1 else each[local])


@algorithm(
    "allreduce",
    chunks=partial(chunks, collective="allreduce", inter="ring"),
    vectors=partial(vectors, collective="allreduce", inter="ring"),
    commutative=True,
    steps="<=(L > 1) + ceil(m/L) - 1 + inter_steps + (m > 1)",
    sent="<=(L + m - 2 + inter_sent)/L",
    time="<=2*(m > 1)*near_alpha + ((2*m + L - 3)*near_beta + (m-1)*gamma)/L + inter_time(1/L)",
    source="Bayatpour et al. 2017",
    variants={"leaders": (None, 1), "inter": ("ring", "recursive_doubling")},
)
def two_level(
    rank: int, size: int, nodes: Nodes, leaders: int | None = None, inter: str = "ring", **parameters: Any
) -> Steps:
    """Leaders of each node combine its vectors, all-reduce between nodes, and spread the result."""
    leaders, flat = plan("allreduce", nodes, leaders, inter, parameters)
    yield from inward(rank, nodes, leaders, flat)
    _, node, local = place(rank, nodes)
    outward = direct.from_owners(local, len(node), leaders)
    yield from mapped(outward, ranks=node, chunks=parts(leaders, flat))


@algorithm(
    "reduce",
    name="two_level",
    chunks=partial(chunks, collective="reduce", inter="binomial"),
    vectors=partial(vectors, collective="reduce", inter="binomial"),
    commutative=True,
    steps="<=2*(L > 1) + ceil(m/L) - 1 + inter_steps",
    sent="<=max((m > 1), (L > 1) + inter_sent/L)",
    time="<=((m > 1) + (L > 1))*near_alpha + ((m + 2*L - 3)*near_beta + (m-1)*gamma)/L + inter_time(1/L)",
    source="Kielmann et al. 1999",
    variants={"leaders": (None, 1), "inter": ("binomial", "halving_gather")},
)
def reduction(
    rank: int,
    size: int,
    nodes: Nodes,
    root: int = 0,
    leaders: int | None = None,
    inter: str = "binomial",
    **parameters: Any,
) -> Steps:
    """Leaders of each node combine its vectors, reduce to the root's node, and there send to the root."""
    groups = led_by(root, nodes)
    home, at_home, _ = place(root, groups)
    leaders, flat = plan("reduce", groups, leaders, inter, parameters | {"root": home})
    yield from inward(rank, groups, leaders, flat)
    if rank in at_home[:leaders]:
        to_root = star.gather(at_home.index(rank), leaders)
        yield from mapped(to_root, ranks=at_home, chunks=parts(leaders, flat))
