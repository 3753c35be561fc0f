"""One leader a node: it alone talks to other nodes, and all of its node to it.

::

      node A   0 -> 1, 2         The leader is a node's first rank, or the root.
               |
      node B   3 -> 4, 5         Each link between nodes carries what there is to tell once, and only
               |                 the leaders wait for it.
      node C   6 -> 7

The algorithm between the leaders may be any flat one. Steps of the broadcast for 4 ranks on 2 nodes, 0 and
1, 2 and 3, and root 0 (what each rank sends; ``+>`` is combined there, ``=>`` replaces), with a binomial
tree between nodes::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 => 2
    2     0 => 1          0 => 3

of the all-gather, with a ring between nodes, around which a node's chunks go together, and a binomial
tree within each node at the end::

    step  rank 0    rank 1  rank 2    rank 3
    1               1 => 0            3 => 2
    2     0-1 => 2          2-3 => 0
    3     0-3 => 1          0-3 => 3

of the barrier, with dissemination between nodes::

    step  rank 0  rank 1  rank 2  rank 3
    1             0 +> 0          0 +> 2
    2     0 +> 2          0 +> 0
    3     0 => 1          0 => 3

Cost for n nodes of m ranks, between nodes: of the broadcast ceil(log2 n) (alpha + M beta), of the all-gather
(n-1) alpha + (n-1)/n M beta, of the barrier ceil(log2 n) alpha. Within a node, with the alpha and beta of
shared memory, to the leader: alpha + (m-1)/p M beta in the all-gather, alpha in the barrier; from it:
alpha + (m-1) M beta, or alpha + M beta where all read at once what it has, and in the all-gather
ceil(log2 m) (alpha + M beta). So much at most, and where nodes are unlike, m is the largest one's.

Limits: the leaders do all the work, and a node waits until its leader has everything. An algorithm that uses
scratch or cuts a rank's chunk cannot gather between nodes. In an all-gather a rank gets its own chunk back,
and where a node does not hold consecutive ranks, its chunks are not neighbours in memory. The all-reduce and
the reduction on two levels have several leaders a node, and a page of their own: `two_level.py`.

Source: N. T. Karonis, B. R. de Supinski, I. Foster, W. Gropp, E. Lusk and J. Bresnahan, "Exploiting hierarchy
in parallel computer networks to optimize collective operation performance", IPDPS 2000; for the all-gather
and the barrier T. Kielmann, R. F. H. Hofman, H. E. Bal, A. Plaat and R. A. F. Bhoedjang, "MagPIe: MPI's
collective communication operations for clustered wide area systems", PPoPP 1999.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..schedule import algorithm, find, mapped
from ..schedule.registry import Nodes
from ..schedule.schedule import Steps
from . import binomial, direct, star
from .two_level import led_by, place


def chunks(size: int, *, collective: str, nodes: Nodes, inter: str, **parameters: Any) -> int:
    """Cut the vector for the flat algorithm."""
    return find(collective, inter).schedule(len(nodes), **parameters).chunks


def vectors(size: int, *, collective: str, nodes: Nodes, inter: str, **parameters: Any) -> int:
    """Give the scratch that the flat algorithm uses."""
    return find(collective, inter).schedule(len(nodes), **parameters).vectors


def outward(local: int, node: Sequence[int], chunks: int) -> Steps:
    """Send all chunks from the leader to its node."""
    yield from mapped(direct.from_owners(local, len(node), 1), ranks=node, chunks=[range(chunks)])


@algorithm(
    "bcast",
    name="two_level",
    chunks=partial(chunks, collective="bcast", inter="binomial"),
    vectors=partial(vectors, collective="bcast", inter="binomial"),
    steps="<=inter_steps + (m > 1)",
    sent="<=inter_sent + m - 1",
    time="<=inter_time(1) + (m > 1)*near_alpha + (m-1)*near_beta",
    source="Karonis et al. 2000",
    variants={"inter": ("binomial",)},
)
def bcast(
    rank: int, size: int, nodes: Nodes, root: int = 0, inter: str = "binomial", **parameters: Any
) -> Steps:
    """The root sends to a leader of each node, and each leader to its node."""
    groups = led_by(root, nodes)
    home, _, _ = place(root, groups)
    number, node, local = place(rank, groups)
    flat = find("bcast", inter).schedule(len(nodes), root=home, **parameters)
    if local == 0:
        yield from mapped(flat.generate(number), ranks=[node[0] for node in groups])
    yield from outward(local, node, flat.chunks)


def chunks_of_ranks(size: int, *, nodes: Nodes, inter: str = "ring", **parameters: Any) -> int:
    """Cut the vector into the ranks' chunks, if the flat algorithm leaves them whole and in place."""
    flat = find("allgather", inter).schedule(len(nodes), **parameters)
    if flat.chunks != len(nodes) or flat.vectors:
        raise ValueError(f"two_level: {inter} uses scratch or cuts a rank's chunk, expected neither")
    return size


@algorithm(
    "allgather",
    name="two_level",
    chunks=chunks_of_ranks,
    steps="<=(m > 1) + inter_steps + ceil(log(m, 2))",
    sent="<=n*m*inter_sent/p + ceil(log(m, 2))",
    time=(
        "<=(m > 1)*near_alpha + (m-1)/p*near_beta + inter_time(n*m/p)"
        " + ceil(log(m, 2))*(near_alpha + near_beta)"
    ),
    source="Kielmann et al. 1999",
    variants={"inter": ("ring", "bruck")},
)
def allgather(rank: int, size: int, nodes: Nodes, inter: str = "ring", **parameters: Any) -> Steps:
    """A leader gathers its node's chunks, the leaders all-gather, and each sends everything to its node."""
    number, node, local = place(rank, nodes)
    flat = find("allgather", inter).schedule(len(nodes), **parameters)
    yield from mapped(star.gather(local, len(node)), ranks=node, chunks=node)
    if local == 0:
        blocks: list[Any] = list(nodes)  # a node's chunks are those of its ranks
        yield from mapped(flat.generate(number), ranks=[node[0] for node in nodes], chunks=blocks)
    # by a tree: its ranks send the vector to one at a time, which they must put together from its blocks
    yield from mapped(binomial.bcast(local, len(node)), ranks=node, chunks=[range(size)])


@algorithm(
    "barrier",
    name="two_level",
    chunks=partial(chunks, collective="barrier", inter="dissemination"),
    vectors=partial(vectors, collective="barrier", inter="dissemination"),
    steps="<=m - 1 + inter_steps + (m > 1)",
    sent="<=inter_sent + m - 1",
    time="<=2*(m > 1)*near_alpha + (m-1)*(2*near_beta + gamma) + inter_time(1)",
    source="Kielmann et al. 1999",
    variants={"inter": ("dissemination",)},
)
def barrier(rank: int, size: int, nodes: Nodes, inter: str = "dissemination", **parameters: Any) -> Steps:
    """All tell their node's leader, the leaders tell each other, and each leader tells its node."""
    number, node, local = place(rank, nodes)
    flat = find("barrier", inter).schedule(len(nodes), **parameters)
    yield from mapped(direct.to_owners(local, len(node), 1), ranks=node, chunks=[range(flat.chunks)])
    if local == 0:
        yield from mapped(flat.generate(number), ranks=[node[0] for node in nodes])
    yield from outward(local, node, flat.chunks)
