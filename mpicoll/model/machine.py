"""Machines as models see them."""

from collections.abc import Sequence
from dataclasses import dataclass


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
        B/s of one rank in each direction: 1/G.
    overhead : float
        s that a rank is busy with each message that it sends or receives: o.
    gap : float
        s from one message of a rank to the next at least: g.

    Notes
    -----
    Source: A. Alexandrov, M. F. Ionescu, K. E. Schauser and C. Scheiman, "LogGP: incorporating long messages
    into the LogP model", SPAA 1995.
    """

    latency: float
    bandwidth: float
    overhead: float = 0.0
    gap: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency", "overhead", "gap"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} {getattr(self, name)} given, expected 0 s or more")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth {self.bandwidth} given, expected more than 0 B/s")


@dataclass(frozen=True)
class Machine:
    """Ranks on nodes, each of which has its links to itself.

    Attributes
    ----------
    near, far : Link
        Within a node, and between nodes.
    combine : float
        B/s of results at which a rank combines two operands: 1/gamma.
    """

    near: Link
    far: Link
    combine: float = float("inf")

    def __post_init__(self) -> None:
        if not self.combine > 0:
            raise ValueError(f"combine {self.combine} given, expected more than 0 B/s")

    @classmethod
    def flat(cls, link: Link, combine: float = float("inf")) -> "Machine":
        """Give a machine on which all ranks are equally far from each other."""
        return cls(link, link, combine)


def node_of(nodes: Sequence[Sequence[int]] | None, size: int) -> list[int]:
    """Give the number of each rank's node; without nodes each rank has one of its own."""
    if nodes is None:
        return list(range(size))
    places = {rank: number for number, node in enumerate(nodes) for rank in node}
    return [places[rank] for rank in range(size)]
