"""What a schedule costs, by walking through it: every rank, every message."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ..schedule import Schedule
from ..schedule.collectives import COLLECTIVES
from ..schedule.moves import Run, slots
from ..schedule.schedule import Step, bounds
from ..schedule.walk import Finished, Message, Posted, walk
from .network import Link, Machine, node_of


class Cost(NamedTuple):
    """What a collective costs.

    Attributes
    ----------
    seconds : float
        Until the last rank is done: the length of the critical path.
    rounds : int
        Messages on the longest chain of messages.
    messages : int
        Of all ranks.
    sent, received, combined : int
        Bytes, of the rank that has most of each.
    total : int
        Bytes sent by all ranks.
    far : int
        Those of them that go between nodes.
    """

    seconds: float
    rounds: int
    messages: int
    sent: int
    received: int
    combined: int
    total: int
    far: int


def cost(
    schedule: Schedule, nbytes: int, machine: Machine, nodes: Sequence[Sequence[int]] | None = None
) -> Cost:
    """Walk through a schedule on a machine.

    A rank's messages leave one after the other, and arrive so; sending, receiving and combining go on at the
    same time. A message leaves when the step that sends it begins, whether or not the receiver is there yet.
    Of several messages that could leave or arrive at one time, the order is that of the walk.

    Parameters
    ----------
    schedule : Schedule
    nbytes : int
        Of a rank's vector; chunks differ by one byte at most.
    machine : Machine
    nodes : sequence of sequence of int, optional
        The ranks of each node; by default each rank has one of its own.

    Raises
    ------
    ValueError
        If `nbytes` is negative, or the schedule deadlocks.
    """
    if nbytes < 0:
        raise ValueError(f"{nbytes} bytes given, expected 0 or more")
    clock = _Clock(schedule, nbytes, machine, node_of(nodes, schedule.size))
    for event in walk(schedule):
        if isinstance(event, Message):
            clock.message(event)
        elif isinstance(event, Posted):
            clock.post(event)
        else:
            clock.finish(event)
    return clock.cost()


class _Port:
    """When something that can do one thing at a time is busy, as far as is known."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def take(self, earliest: float, seconds: float) -> float:
        """Be busy for a time that begins no earlier than that, as soon as may be; give its end."""
        begin, rounding = earliest, seconds * 1e-9  # what only touches does not overlap
        at = bisect_right(self._ends, begin + rounding)  # the first that is not over by then
        while at < len(self._ends) and self._begins[at] < begin + seconds - rounding:
            begin, at = max(begin, self._ends[at]), at + 1
        self._begins.insert(at, begin)
        self._ends.insert(at, begin + seconds)
        return begin + seconds


class _Clock:
    """When each rank, and each of its links, is free again."""

    def __init__(self, schedule: Schedule, nbytes: int, machine: Machine, places: list[int]) -> None:
        vectors = COLLECTIVES[schedule.collective].vectors(schedule.size)
        edges = bounds(nbytes * vectors, schedule.chunks)
        self._lengths = [stop - start for start, stop in pairwise(edges)]
        self._machine, self._places = machine, places
        size = schedule.size
        self._now, self._done = [0.0] * size, [0.0] * size  # when the step began, and when it will be over
        self._out, self._in = [0.0] * size, [_Port() for _ in range(size)]  # when the links are free
        self._busy, self._unit = [0.0] * size, [0.0] * size  # and the rank itself, and what combines
        self._sent, self._received, self._combined = [0] * size, [0] * size, [0] * size
        self._left: dict[tuple[int, int], deque[float]] = {}  # source, target: when what is on its way left
        self._rounds = self._messages = self._far = 0

    def post(self, event: Posted) -> None:
        """A rank begins a step: what it sends leaves, before it takes what comes."""
        rank = event.rank
        self._now[rank] = self._done[rank]
        for move in event.moves:
            if move.kind == "send":
                link = self._link(rank, move.peer)
                for run in move.chunks:
                    self._busy[rank] = max(self._now[rank], self._busy[rank]) + link.overhead
                    begin = max(self._busy[rank], self._out[rank])
                    left = begin + self._bytes(run) / link.bandwidth
                    self._out[rank] = max(left, begin + link.gap)
                    self._done[rank] = max(self._done[rank], left)
                    self._left.setdefault((rank, move.peer), deque()).append(begin)

    def message(self, event: Message) -> None:
        """A message goes all the way."""
        source, target = event.source, event.target
        nbytes = self._bytes(event.sent)
        link = self._link(source, target)
        begin = self._left[source, target].popleft()
        there = self._in[target].take(begin + link.latency, nbytes / link.bandwidth)
        taken = max(there, self._now[target], self._busy[target]) + link.overhead
        if link.overhead:
            self._busy[target] = taken
        if event.combined:
            taken = max(taken, self._unit[target]) + nbytes / self._machine.combine
            self._unit[target] = taken
            self._combined[target] += nbytes
        self._done[target] = max(self._done[target], taken)
        self._sent[source] += nbytes
        self._received[target] += nbytes
        self._rounds, self._messages = max(self._rounds, event.round), self._messages + 1
        self._far += nbytes if self._is_far(source, target) else 0

    def finish(self, event: Finished) -> None:
        """A rank's messages of a step are through; it does the step's local moves."""
        local = self._local(event.moves)
        self._combined[event.rank] += local
        self._done[event.rank] += local / self._machine.combine

    def cost(self) -> Cost:
        """Add up."""
        return Cost(
            max(self._done),
            self._rounds,
            self._messages,
            max(self._sent),
            max(self._received),
            max(self._combined),
            sum(self._sent),
            self._far,
        )

    def _link(self, source: int, target: int) -> Link:
        return self._machine.far if self._is_far(source, target) else self._machine.near

    def _is_far(self, source: int, target: int) -> bool:
        return self._places[source] != self._places[target]

    def _bytes(self, run: Run) -> int:
        return sum(self._lengths[slot % len(self._lengths)] for slot in range(*run))

    def _local(self, step: Step) -> int:
        """Give the bytes that are combined without a message."""
        return sum(
            self._lengths[slot % len(self._lengths)]
            for move in step
            if move.kind == "combine"
            for slot in slots(move.chunks)
        )
