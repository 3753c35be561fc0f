"""The simulator: every rank and every message of a schedule, on a machine whose links are shared.

It is a simulation of discrete events. An event is a rank that begins a step; the earliest comes first. The
rank's messages leave one after the other, and their bytes flow on at once through all that is on their way:
so a message takes as long as the slowest of that, and longer where others were there before it.

Sources: A. Alexandrov et al. (LogGP), see :class:`~mpicoll.model.network.Link`; simulations of collectives
message by message: T. Hoefler, T. Schneider and A. Lumsdaine, "LogGOPSim", HPDC 2010.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schedule import Schedule
from . import events
from .events import Reals
from .network import DRAGONFLY, FAT_TREE, INF, Machine, node_of
from .program import Longs, Program, program

STRANDS = 2  # blocks under way at once
SLICE = 1 << 20  # events between two ticks


@dataclass(frozen=True)
class Disturbance:
    """What is not as it should be.

    Attributes
    ----------
    arrival : sequence of float
        s at which each rank begins; all at once unless given.
    slow_ranks : mapping of int to float
        Ranks that take so many times as long for what they do themselves: overheads and combining.
    slow_nodes : mapping of int to float
        Nodes whose links to other nodes have so many times less bandwidth.
    """

    arrival: Sequence[float] = ()
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    slow_nodes: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """What happened when: one entry a message, in the order in which they were given on their way.

    Attributes
    ----------
    source, target : ndarray of int64
        Ranks.
    nbytes : ndarray of int64
    began, arrived : ndarray of float64
        s, when the first byte left and when the last was there.
    """

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    began: Reals
    arrived: Reals


@dataclass(frozen=True)
class Simulated:
    """What a simulation found.

    Attributes
    ----------
    seconds : float
        From when the last rank began to when the last one was done.
    done : ndarray of float64
        s, of each rank.
    messages, nbytes : int
        Of all ranks.
    far : int
        Bytes between nodes.
    busiest : float
        The share of the time that what is busiest was busy.
    timeline : Timeline or None
        Where it was asked for.
    """

    seconds: float
    done: Reals
    messages: int
    nbytes: int
    far: int
    busiest: float
    timeline: Timeline | None = None


def simulate(
    schedule: Schedule | Program,
    nbytes: int,
    machine: Machine,
    nodes: Sequence[Sequence[int]] | None = None,
    disturbance: Disturbance = Disturbance(),
    timeline: bool = False,
    tick: Callable[[float], None] | None = None,
    blocks: int = 1,
    ahead: bool = False,
) -> Simulated:
    """Run a schedule on a machine.

    Parameters
    ----------
    schedule : Schedule or Program
        What :func:`~mpicoll.model.program.program` made of a schedule may serve for many sizes.
    nbytes : int
        Of a rank's vector. Where it has bytes, chunks that have none are not sent; where it has none, as in a
        barrier, all messages are.
    machine : Machine
    nodes : sequence of sequence of int, optional
        The ranks of each node; by default they are filled one after the other.
    disturbance : Disturbance, optional
    timeline : bool, optional
        Whether to note each message.
    tick : callable, optional
        Is told which fraction of the moves is done.
    blocks : int, optional
        Into how many the vector is cut; two of them are under way at once, and each runs through the whole
        schedule, as the engine has it for long vectors between nodes.
    ahead : bool, optional
        Whether a rank goes on with its next step before what it has sent has left, as the engine does. Unless
        it does, a step is over when all its moves are.

    Raises
    ------
    ValueError
        If `nbytes` is negative, the disturbance names ranks or nodes that are not there, or the schedule
        deadlocks.
    MemoryError
        If there are too many moves to write them out.
    """
    if nbytes < 0:
        raise ValueError(f"{nbytes} bytes given, expected 0 or more")
    if not 1 <= blocks <= max(nbytes, 1):
        raise ValueError(f"{blocks} blocks of {nbytes} bytes given, expected 1 to {max(nbytes, 1)}")
    moves = schedule if isinstance(schedule, Program) else program(schedule)
    places = node_of(machine.nodes(moves.size) if nodes is None else nodes, moves.size)
    arrival = _arrival(disturbance, moves.size)
    world = _world(moves, nbytes, machine, np.array(places, np.int64), disturbance, blocks, ahead)
    state = _state(moves, world, arrival, timeline, blocks)
    while (why := events.advance(moves, world, state, SLICE)) != events.OVER:
        if why == events.FULL:
            state = _grown(state)
        elif why == events.UNEQUAL:
            raise ValueError("the two sides of a message differ in length")
        elif tick is not None:
            tick(state.numbers[events.DONE] / max(moves.moves * blocks, 1))
    if state.open.any():
        stuck = int(np.argmax(state.open > 0)) % moves.size
        raise ValueError(f"the schedule deadlocks: rank {stuck}, for one, waits for ever")
    return _result(moves.size, state, arrival)


def _arrival(disturbance: Disturbance, size: int) -> Reals:
    given = disturbance.arrival
    if len(given) not in (0, size) or not all(0 <= time < INF for time in given):
        raise ValueError(
            f"arrival {list(given)[:8]} given, expected a time of 0 s or more for each of {size} ranks"
        )
    return np.array(given if len(given) else np.zeros(size), np.float64)


def _factors(what: str, factors: Mapping[int, float], count: int) -> Reals:
    found = np.ones(count)
    for number, factor in factors.items():
        if not 0 <= number < count or not 0 < factor < INF:
            raise ValueError(
                f"{what} {number} {factor} times as slow given, expected {what} 0 to {count - 1} and more "
                "than 0 times"
            )
        found[number] = factor
    return found


def _world(
    moves: Program,
    nbytes: int,
    machine: Machine,
    places: Longs,
    disturbance: Disturbance,
    blocks: int,
    ahead: bool,
) -> events.World:
    """Number all that messages pass through."""
    near, far, fabric = machine.near, machine.far, machine.fabric
    size, nodes, rails = moves.size, int(places.max()) + 1, machine.rails
    per_byte: list[Reals] = []
    least: list[Reals] = []
    slack: list[Reals] = []

    def more(bandwidth: npt.ArrayLike, gap: float = 0.0, burst: float = 0.0) -> Longs:
        """Add some that take so many B/s each, and give their numbers."""
        bandwidth = np.atleast_1d(np.asarray(bandwidth, np.float64))
        first = sum(map(len, per_byte))
        per_byte.append(1 / bandwidth)
        least.append(np.full(len(bandwidth), gap))
        slack.append(burst / bandwidth)
        return np.arange(first, first + len(bandwidth))

    place_on_node = _places_on_nodes(places)
    slow_nodes = _factors("node", disturbance.slow_nodes, nodes)
    rail = places * rails + place_on_node % rails
    of_rails = np.repeat(far.bandwidth / slow_nodes, rails)
    out = np.array([more(np.full(size, near.bandwidth), near.gap), more(of_rails, far.gap, far.burst)[rail]])
    come = np.array([more(np.full(size, near.bandwidth)), more(of_rails, 0.0, far.burst)[rail]])
    memory = more(np.full(nodes, machine.memory))[places] if machine.memory < INF else np.full(size, -1)
    group = np.arange(nodes) // fabric.group
    groups = int(group.max()) + 1
    up, down = np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)
    leaving = fabric.group * rails * far.bandwidth / fabric.oversubscription
    if fabric.kind == FAT_TREE and groups > 1:
        up = np.repeat(more(np.full(groups, leaving))[:, None], groups, axis=1)
        down = np.repeat(more(np.full(groups, leaving))[None, :], groups, axis=0)
    elif fabric.kind == DRAGONFLY and groups > 1:
        up = more(np.full(groups**2, leaving / (groups - 1))).reshape(groups, groups)
        down = np.full((groups, groups), -1)
    block = -(-nbytes // blocks)
    strands = min(blocks, STRANDS)
    return events.World(
        moves.slots(block),
        moves.slots(nbytes - block * (blocks - 1)),
        (blocks - 1) % strands,
        ahead,
        np.tile(places, strands),
        np.tile(out, strands),
        np.tile(come, strands),
        np.tile(memory, strands),
        group,
        up,
        down,
        np.concatenate(per_byte),
        np.concatenate(least),
        np.concatenate(slack),
        np.array([near.latency, far.latency], np.float64),
        np.array([near.overhead, far.overhead], np.float64),
        np.array([near.eager, far.eager], np.float64),
        np.array([1 / near.peak, 1 / far.peak], np.float64),
        float(fabric.hop),
        np.tile(_factors("rank", disturbance.slow_ranks, size), strands),
        1 / machine.combine,
    )


def _places_on_nodes(places: Longs) -> Longs:
    """Count the ranks of its node that come before each."""
    found, seen = np.zeros(len(places), np.int64), dict[int, int]()
    for rank, node in enumerate(places.tolist()):
        found[rank] = seen[node] = seen.get(node, -1) + 1
    return found


def _state(moves: Program, world: events.World, arrival: Reals, timeline: bool, blocks: int) -> events.State:
    strands = min(blocks, STRANDS)
    size, passed = moves.size * strands, len(world.per_byte)
    arrival = np.tile(arrival, strands)
    turns = [blocks // strands + (strand < blocks % strands) for strand in range(strands)]
    sends = int(np.count_nonzero(moves.kind & ~np.uint8(events.LAST) == events.SEND))
    logged = sends * blocks * (moves.size if moves.alike else 1) if timeline else 0
    room = 1 << 10
    state = events.State(
        *(_zeros(size + room), _whole(size + room)),  # the heap
        _whole(size) if moves.alike else np.tile(moves.begin[:-1], strands),
        np.repeat(np.array(turns), moves.size),
        *(_whole(size), _whole(size)),
        *(_zeros(size), arrival.copy(), arrival.copy(), _zeros(size), _zeros(size), _zeros(size)),
        *(-world.slack, _zeros(passed)),
        *(_whole(2 * room), _whole(2 * room), _whole(2 * room)),  # the hash table
        np.append(np.arange(1, room), -1),
        *(_whole(room), _whole(room), _whole(room)),
        np.zeros(room, np.bool_),
        *(_zeros(room), _zeros(room)),
        _whole(7),
        np.zeros((logged, 3), np.int64),
        np.zeros((logged, 2), np.float64),
    )
    state.numbers[events.ROOM] = room
    events.begin(arrival, state)
    return state


def _zeros(count: int) -> Reals:
    return np.zeros(count, np.float64)


def _whole(count: int) -> Longs:
    return np.zeros(count, np.int64)


def _grown(old: events.State) -> events.State:
    """Give room for twice as many entries."""
    room = len(old.next)
    more: dict[str, Any] = {
        name: np.append(getattr(old, name), np.zeros(room, getattr(old, name).dtype))
        for name in ("heap_time", "heap_what", "next", "pair", "kind", "nbytes", "reduces", "time", "left")
    }
    more["next"][room:] = np.append(np.arange(room + 1, 2 * room), old.numbers[events.UNUSED])
    tables: dict[str, Any] = {name: np.zeros(4 * room, np.int64) for name in ("keys", "heads", "tails")}
    new = old._replace(**more, **tables)
    new.numbers[events.UNUSED] = room
    new.numbers[events.ROOM] += room
    events.rehash(old, new)
    return new


def _result(size: int, state: events.State, arrival: Reals) -> Simulated:
    numbers, log = state.numbers, None
    if len(state.log_times):
        noted = slice(int(numbers[events.MESSAGES]))
        source, target, nbytes_of_each = state.log_ranks[noted].T
        log = Timeline(source % size, target % size, nbytes_of_each, *state.log_times[noted].T)
    done = np.maximum(state.done, state.left_all).reshape(-1, size).max(axis=0)
    end = float(done.max())
    seconds = end - float(arrival.max())
    busiest = float(state.used.max() / end) if end else 0.0
    messages, nbytes, far = (int(numbers[n]) for n in (events.MESSAGES, events.BYTES, events.FAR))
    return Simulated(seconds, done, messages, nbytes, far, busiest, log)
