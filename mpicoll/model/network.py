"""Machines as models see them: what messages take within a node and between nodes, and what they share."""

from collections.abc import Sequence
from dataclasses import dataclass

INF = float("inf")
FLAT, FAT_TREE, DRAGONFLY = "flat", "fat_tree", "dragonfly"


def _check_not_negative(of: object, unit: str, *names: str) -> None:
    for name in names:
        if not (value := getattr(of, name)) >= 0:
            raise ValueError(f"{name} {value} given, expected {f'0 {unit}'.strip()} or more")


def _check_positive(of: object, unit: str, *names: str) -> None:
    for name in names:
        if not (value := getattr(of, name)) > 0:
            raise ValueError(f"{name} {value} given, expected {f'more than 0 {unit}'.strip()}")


@dataclass(frozen=True)
class Link:
    """How messages get from one rank to another, in the terms of LogGP.

    With `overhead` and `gap` zero it is the alpha-beta model, in which alpha is `latency` and beta
    ``1 / bandwidth``.

    Attributes
    ----------
    latency : float
        s, from when the last byte has left to when it is there: L.
    bandwidth : float
        B/s in each direction, within a node of one rank, between nodes of one rail: 1/G.
    overhead : float
        s that a rank is busy with each message that it sends or receives: o.
    gap : float
        s from one message of a rank, or rail, to the next at least: g.
    eager : float
        Bytes up to which a message leaves though its receiver may not be ready. A longer one asks first:
        the request and the answer take a latency each, and the answer waits for the receiver.
    burst : float
        Bytes that pass faster after a rest, between nodes: what the token bucket of a network holds that is
        shaped, as clouds' are. It fills at `bandwidth`.
    peak : float
        B/s at which a burst passes.

    Notes
    -----
    Source: A. Alexandrov, M. F. Ionescu, K. E. Schauser and C. Scheiman, "LogGP: incorporating long messages
    into the LogP model", SPAA 1995.
    """

    latency: float
    bandwidth: float
    overhead: float = 0.0
    gap: float = 0.0
    eager: float = INF
    burst: float = 0.0
    peak: float = INF

    def __post_init__(self) -> None:
        _check_not_negative(self, "s", "latency", "overhead", "gap")
        _check_not_negative(self, "bytes", "eager", "burst")
        _check_positive(self, "B/s", "bandwidth", "peak")


@dataclass(frozen=True)
class Fabric:
    """How nodes are joined.

    Attributes
    ----------
    kind : str
        ``flat``: nothing is shared but the nodes' own rails. ``fat_tree``: the nodes of a group, on one leaf
        switch, share what goes up from it and what comes down. ``dragonfly``: there is a trunk from each
        group to each other one, for what goes between these two; there is no detour through a third.
    group : int
        Nodes of a group.
    oversubscription : float
        What the nodes of a group can send together over what can leave it.
    hop : float
        s that a message takes longer where it leaves its group.

    Notes
    -----
    Sources: C. E. Leiserson, "Fat-trees: universal networks for hardware-efficient supercomputing", IEEE
    Trans. Comput. C-34 (1985); J. Kim, W. J. Dally, S. Scott and D. Abts, "Technology-driven, highly-scalable
    dragonfly topology", ISCA 2008.
    """

    kind: str = FLAT
    group: int = 1
    oversubscription: float = 1.0
    hop: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in (FLAT, FAT_TREE, DRAGONFLY):
            raise ValueError(f"kind {self.kind!r} given, expected {FLAT}, {FAT_TREE} or {DRAGONFLY}")
        _check_positive(self, "nodes", "group")
        _check_positive(self, "", "oversubscription")
        _check_not_negative(self, "s", "hop")


@dataclass(frozen=True)
class Switches:
    """Switches that reduce what passes through them, as SHARP does: once up the tree, and once down.

    Attributes
    ----------
    latency : float
        s up and down again, for a vector without bytes.
    bandwidth : float
        B/s of a vector from each node.

    Notes
    -----
    Source: R. L. Graham et al., "Scalable hierarchical aggregation protocol (SHArP): a hardware architecture
    for efficient data reduction", COMHPC 2016.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        _check_not_negative(self, "s", "latency")
        _check_positive(self, "B/s", "bandwidth")


@dataclass(frozen=True)
class Machine:
    """Ranks on nodes.

    Attributes
    ----------
    near, far : Link
        Within a node, and between nodes.
    combine : float
        B/s of results at which a rank combines two operands: 1/gamma.
    per_node : int
        Ranks of a node, where nothing else says it.
    rails : int
        Of a node, each with the bandwidth of `far`; its ranks have them in turn, and share them.
    memory : float
        B/s of all messages within a node together.
    fabric : Fabric
        How nodes are joined.
    switches : Switches, optional
        Where switches reduce.
    name, source : str
        What it is, and where its figures are from.
    """

    near: Link
    far: Link
    combine: float = INF
    per_node: int = 1
    rails: int = 1
    memory: float = INF
    fabric: Fabric = Fabric()
    switches: Switches | None = None
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        _check_positive(self, "B/s", "combine", "memory")
        _check_positive(self, "", "per_node", "rails")

    @classmethod
    def flat(cls, link: Link, combine: float = INF) -> "Machine":
        """Give a machine on which all ranks are equally far from each other."""
        return cls(link, link, combine)

    def nodes(self, size: int) -> tuple[tuple[int, ...], ...]:
        """Give the ranks of each node where so many fill them one after the other."""
        m = self.per_node
        return tuple(tuple(range(first, min(first + m, size))) for first in range(0, size, m))


def node_of(nodes: Sequence[Sequence[int]] | None, size: int) -> list[int]:
    """Give the number of each rank's node; without nodes each rank has one of its own."""
    if nodes is None:
        return list(range(size))
    places = {rank: number for number, node in enumerate(nodes) for rank in node}
    return [places[rank] for rank in range(size)]
