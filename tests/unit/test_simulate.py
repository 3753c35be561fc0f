"""The simulator, against formulas and against a walk that knows no contention."""

import math
from collections import defaultdict, deque
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpicoll.model.cost import cost
from mpicoll.model.network import DRAGONFLY, FAT_TREE, Fabric, Link, Machine
from mpicoll.model.program import program
from mpicoll.model.simulate import Disturbance, simulate
from mpicoll.schedule import Schedule, algorithms, combine, find, recv, reduce, scratch, send
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.schedule import bounds

ALPHA, BETA, GAMMA = 3e-6, 1e-9, 2.5e-10
LINK = Link(ALPHA, 1 / BETA)
FLAT = Machine.flat(LINK, 1 / GAMMA)
CALM = Disturbance()
LOGGP = Machine.flat(Link(ALPHA, 1 / BETA, overhead=1e-6, gap=5e-6), 1 / GAMMA)


def of(collective, name, size, nbytes, machine=FLAT, nodes=None, disturbance=CALM, **parameters):
    schedule = find(collective, name).schedule(size, nodes=nodes, **parameters)
    return simulate(schedule, nbytes, machine, nodes, disturbance)


def messages(*pairs, size, late=()):
    """Make a schedule of one step in which ranks send to others; those that are late receive in a second."""

    def steps(rank):
        yield tuple(send(target, 0) for source, target in pairs if source == rank)
        if rank in late:  # after a message that takes a while
            yield recv(late[rank], 0)
        yield tuple(recv(source, 0) for source, target in pairs if target == rank)

    return Schedule("bcast", "messages", size, 1, steps)


def scattered(size):
    """Give times so that nothing happens at once, for which any order is right."""
    return [1e-7 * (rank * 0.618034 % 1) for rank in range(size)]


def plainly(schedule, nbytes, link, combine, arrival):
    """Simulate a flat machine event by event, in plain Python.

    Returns when each rank is done, and whether messages came to a rank at the same time, so that either may
    be the first.
    """
    edges = bounds(nbytes * COLLECTIVES[schedule.collective].vectors(schedule.size), schedule.chunks)
    size, steps = schedule.size, [list(schedule.steps(rank)) for rank in range(schedule.size)]
    busy, unit, out, into = ([0.0] * size for _ in range(4))
    begun, done, open_, at = [0.0] * size, [0.0] * size, [0] * size, [-1] * size
    posted, there = defaultdict(deque), defaultdict(deque)  # source, target: receives, and arrivals
    came = defaultdict(list)
    events = [(arrival[rank], rank, "step", None) for rank in range(size)]
    heapify(events)

    def length(run):
        return sum(edges[slot % schedule.chunks + 1] - edges[slot % schedule.chunks] for slot in range(*run))

    def over(rank):
        open_[rank] -= 1
        if not open_[rank]:
            local = [m for m in steps[rank][at[rank]] if m.kind == "combine"]
            done[rank] += sum(length(run) for move in local for run in move.chunks) / combine
            heappush(events, (done[rank], rank, "step", None))

    def take(target, time, run, reduces):
        time = max(time, begun[target], busy[target] if link.overhead else 0) + link.overhead
        busy[target] = time if link.overhead else busy[target]
        if reduces:
            time = unit[target] = max(time, unit[target]) + length(run) / combine
        done[target] = max(done[target], time)
        over(target)

    while events:
        now, rank, what, message = heappop(events)
        if message:
            came[message[0], what].append((now, rank))
        if what == "arrives":
            target, run = message
            into[target] = max(into[target], now) + length(run) / link.bandwidth
            heappush(events, (into[target], rank, "is there", message))
            continue
        if what == "is there":
            target, run = message
            if posted[rank, target]:
                take(target, now, *posted[rank, target].popleft())
            else:
                there[rank, target].append(now)
            continue
        at[rank] += 1
        if at[rank] == len(steps[rank]):
            continue
        begun[rank] = done[rank] = now
        messages = [(m, run) for m in steps[rank][at[rank]] if m.source is None for run in m.chunks]
        messages = [(m, run) for m, run in messages if length(run) or not nbytes]
        open_[rank] = len(messages) + 1
        for move, run in [(m, run) for m, run in messages if m.kind == "send"]:
            busy[rank] = max(busy[rank], now) + link.overhead
            began = max(busy[rank], out[rank])
            out[rank] = began + max(length(run) / link.bandwidth, link.gap)
            done[rank] = max(done[rank], began + length(run) / link.bandwidth)
            heappush(events, (began + link.latency, rank, "arrives", (move.peer, run)))
            over(rank)
        for move, run in [(m, run) for m, run in messages if m.kind != "send"]:
            if there[move.peer, rank]:
                take(rank, there[move.peer, rank].popleft(), run, move.kind == "reduce")
            else:
                posted[move.peer, rank].append((run, move.kind == "reduce"))
        over(rank)
    tied = any(
        source != other and there == pytest.approx(time, rel=1e-12)
        for times in came.values()
        for (time, source), (there, other) in pairwise(sorted(times))
    )
    return done, tied


@pytest.mark.parametrize("machine", [FLAT, LOGGP], ids=["alpha-beta", "LogGP"])
@pytest.mark.parametrize("algorithm", algorithms(), ids=lambda a: f"{a.collective}-{a.name}")
def test_all_algorithms_event_by_event(algorithm, machine):
    for size in (1, 2, 3, 4, 6, 8, 9, 16):
        if not algorithm.serves(size):
            continue
        nodes = tuple((rank,) for rank in range(size))
        parameters = {"chunks": 3} if algorithm.pipelined else {}
        schedule = algorithm.schedule(size, nodes=nodes, **parameters)
        nbytes = 240 * schedule.chunks
        walked, arrival = cost(schedule, nbytes, machine), scattered(size)
        found = simulate(schedule, nbytes, machine, disturbance=Disturbance(arrival))
        assert (found.messages, found.nbytes) == (walked.messages, walked.total)
        done, tied = plainly(schedule, nbytes, machine.near, machine.combine, arrival)
        assert found.done.tolist() == pytest.approx(done, rel=0.02 if tied else 1e-9)


@pytest.mark.parametrize("machine", [FLAT, LOGGP], ids=["alpha-beta", "LogGP"])
@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("allreduce", "ring"),
        ("allreduce", "recursive_doubling"),
        ("allreduce", "recursive_halving_doubling"),
        ("allgather", "bruck"),
        ("barrier", "dissemination"),
        ("bcast", "binomial"),
        ("bcast", "chain"),
        ("alltoall", "pairwise"),
    ],
)
def test_without_contention_it_takes_what_a_walk_takes(collective, name, machine):
    for size in (2, 4, 8, 16):
        algorithm = find(collective, name)
        schedule = algorithm.schedule(size, **({"chunks": 3} if algorithm.pipelined else {}))
        nbytes = 240 * schedule.chunks
        found, walked = simulate(schedule, nbytes, machine), cost(schedule, nbytes, machine)
        assert found.seconds == pytest.approx(walked.seconds, rel=1e-9)


@st.composite
def rounds(draw):
    """Draw rounds in each of which some ranks send to others."""
    size = draw(st.integers(2, 7))
    ranks = st.integers(0, size - 1)
    pairs = st.tuples(ranks, ranks).filter(lambda pair: pair[0] != pair[1])
    return size, draw(st.lists(st.lists(pairs, min_size=1, max_size=8), min_size=1, max_size=6))


@given(rounds(), st.sampled_from([FLAT, LOGGP]), st.integers(0, 5000))
@settings(deadline=None)
def test_any_messages_event_by_event(drawn, machine, nbytes):
    size, found = drawn

    def steps(rank):
        for pairs in found:
            yield (
                *(send(target, 0) for source, target in pairs if source == rank),
                *(reduce(source, 0) for source, target in pairs if target == rank),
            )

    schedule = Schedule("allreduce", "drawn", size, 1, steps)
    arrival = scattered(size)
    done, tied = plainly(schedule, nbytes, machine.near, machine.combine, arrival)
    assume(not tied)
    found = simulate(schedule, nbytes, machine, disturbance=Disturbance(arrival))
    assert found.done.tolist() == pytest.approx(done)


@pytest.mark.parametrize("size", [2, 5, 64])
def test_ring(size):
    found = of("allreduce", "ring", size, 5040 * size)
    time = 2 * (size - 1) * (ALPHA + 5040 * BETA) + (size - 1) * 5040 * GAMMA
    assert found.seconds == pytest.approx(time)
    assert found.messages == 2 * (size - 1) * size
    assert found.busiest == pytest.approx(2 * (size - 1) * 5040 * BETA / time)


def test_halving_and_doubling_of_many_ranks():
    size, nbytes = 1024, 1 << 20
    found = of("allreduce", "recursive_halving_doubling", size, nbytes)
    share = nbytes * (size - 1) / size
    assert found.seconds == pytest.approx(2 * 10 * ALPHA + share * (2 * BETA + GAMMA))


@pytest.mark.parametrize(("rails", "times"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_ranks_of_a_node_share_its_rails(rails, times):
    machine = Machine(LINK, LINK, per_node=4, rails=rails)
    found = simulate(messages(*((rank, rank + 4) for rank in range(4)), size=8), 1000, machine)
    assert found.seconds == pytest.approx(ALPHA + times * 1000 * BETA)
    assert found.far == found.nbytes == 4000


def test_messages_within_a_node_do_not_take_its_rails_but_share_its_memory():
    pairs = [(rank, rank ^ 1) for rank in range(8)]
    machine = Machine(LINK, Link(1.0, 1.0), per_node=8)
    found = simulate(messages(*pairs, size=8), 1000, machine)
    assert (found.seconds, found.far) == (pytest.approx(ALPHA + 1000 * BETA), 0)
    machine = Machine(LINK, Link(1.0, 1.0), per_node=8, memory=2 / BETA)
    assert simulate(messages(*pairs, size=8), 1000, machine).seconds == pytest.approx(ALPHA + 4000 * BETA)


@pytest.mark.parametrize(
    ("fabric", "times"),
    [
        (Fabric(), 1),
        (Fabric(FAT_TREE, group=4), 1),
        (Fabric(FAT_TREE, group=4, oversubscription=2), 2),
        (Fabric(FAT_TREE, group=8, oversubscription=2), 1),  # none leaves its group
        (Fabric(DRAGONFLY, group=4), 1),  # one trunk of all the bandwidth
        (Fabric(DRAGONFLY, group=4, oversubscription=4), 4),
    ],
)
def test_nodes_of_a_group_share_what_leaves_it(fabric, times):
    machine = Machine(LINK, LINK, fabric=fabric)
    found = simulate(messages(*((rank, rank + 4) for rank in range(4)), size=8), 4000, machine)
    assert found.seconds == pytest.approx(ALPHA + times * 4000 * BETA)


def test_a_dragonflys_trunks_are_thin_between_many_groups():
    """All of one group send to one other: to the group's bandwidth, one trunk of three comes."""
    machine = Machine(LINK, LINK, fabric=Fabric(DRAGONFLY, group=3, hop=1e-6))
    found = simulate(messages(*((rank, rank + 3) for rank in range(3)), size=12), 4000, machine)
    assert found.seconds == pytest.approx(ALPHA + 1e-6 + 3 * 4000 * BETA)


def test_what_many_send_to_one_comes_one_after_the_other():
    found = simulate(messages(*((rank, 0) for rank in range(1, 9)), size=9), 1000, FLAT)
    assert found.seconds == pytest.approx(ALPHA + 8 * 1000 * BETA)


def test_what_waits_longest_goes_first():
    """Rank 0's second message leaves late, so that of rank 2 is at rank 1 before it."""
    schedule = messages((0, 3), (0, 1), (2, 1), size=4)
    found = simulate(schedule, 1000, FLAT, timeline=True)
    assert found.seconds == pytest.approx(ALPHA + 2000 * BETA)
    order = np.argsort(found.timeline.arrived[found.timeline.target == 1])
    assert found.timeline.source[found.timeline.target == 1][order].tolist() == [2, 0]


@pytest.mark.parametrize(("nbytes", "asks"), [(1000, False), (1001, True)])
def test_long_messages_ask_first(nbytes, asks):
    machine = Machine.flat(Link(ALPHA, 1 / BETA, eager=1000))
    found = simulate(messages((0, 1), size=2), nbytes, machine)
    assert found.seconds == pytest.approx((3 if asks else 1) * ALPHA + nbytes * BETA)
    # a receiver that is late holds the message up, and its sender
    late = Disturbance(arrival=(0.0, 1e-3))
    found = simulate(messages((0, 1), size=2), nbytes, machine, disturbance=late)
    if asks:
        assert found.done.tolist() == pytest.approx(
            [1e-3 + ALPHA + nbytes * BETA, 1e-3 + 2 * ALPHA + nbytes * BETA]
        )
    else:
        assert found.done.tolist() == pytest.approx([nbytes * BETA, 1e-3])


@pytest.mark.parametrize(
    ("nbytes", "times"),
    [
        ([4000], [0.4]),  # all of it in the burst, at the peak
        ([10_000], [1.0]),
        ([30_000], [20.0]),
        ([10_000, 10_000], [1.0, 10.0]),  # the second finds the bucket empty
    ],
)
def test_after_a_rest_a_burst_passes(nbytes, times):
    """Times in units of the 1,000 bytes at the bandwidth."""
    unit = 1000 * BETA
    machine = Machine.flat(Link(ALPHA, 1 / BETA, burst=10_000, peak=10 / BETA))

    def steps(rank):
        for _ in nbytes:
            yield send(1, 0) if rank == 0 else recv(0, 0)

    schedule = Schedule("bcast", "bursts", 2, 1, steps)
    found = simulate(schedule, nbytes[0], machine, timeline=True)
    assert (found.timeline.arrived - ALPHA).tolist() == pytest.approx(np.array(times) * unit)


def test_the_bucket_fills_while_nothing_passes():
    """A message goes to and fro, and each time finds in the bucket what the way back let in."""
    burst, nbytes = 10_000, 10_000
    machine = Machine.flat(Link(4000 * BETA, 1 / BETA, burst=burst))

    def steps(rank):
        for turn in range(4):
            yield send(1 - rank, 0) if turn % 2 == rank else recv(1 - rank, 0)

    found = simulate(Schedule("bcast", "to and fro", 2, 1, steps), nbytes, machine)
    # the first bucket gets 8,000 bytes before its next turn, and lacks 2,000; so the second is full by then
    assert found.seconds == pytest.approx((4 * 4000 + 2000) * BETA)


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "binary_tree", "direct"])
def test_a_late_rank(name):
    parameters = {"chunks": 4} if name == "binary_tree" else {}
    plain = of("allreduce", name, 8, 8000, **parameters)
    arrival = [0.0] * 8
    arrival[3] = 1.0
    found = of("allreduce", name, 8, 8000, disturbance=Disturbance(arrival), **parameters)
    assert 0 < found.seconds <= plain.seconds * (1 + 1e-9)  # the others are ahead
    assert found.done.min() >= 1.0 or name == "binary_tree"


def test_a_slow_rank_and_a_slow_node():
    plain = of("allreduce", "ring", 8, 80_000, LOGGP)
    slow = of("allreduce", "ring", 8, 80_000, LOGGP, disturbance=Disturbance(slow_ranks={2: 10.0}))
    assert slow.seconds > plain.seconds + 10e-6
    found = of("allreduce", "ring", 8, 80_000, disturbance=Disturbance(slow_nodes={2: 4.0}))
    # all chunks pass through its links, one after the other
    assert found.seconds == pytest.approx(14 * (ALPHA + 40_000 * BETA), rel=0.2)


@pytest.mark.parametrize(
    ("disturbance", "message"),
    [
        (Disturbance(arrival=(0.0,)), r"arrival \[0.0\] given, expected a time of 0 s or more for each of 4"),
        (Disturbance(arrival=(0.0, 0.0, -1.0, 0.0)), "arrival"),
        (Disturbance(arrival=(0.0, 0.0, math.nan, 0.0)), "arrival"),
        (Disturbance(slow_ranks={4: 2.0}), r"rank 4 2.0 times as slow given, expected rank 0 to 3"),
        (Disturbance(slow_nodes={0: 0.0}), r"node 0 0.0 times as slow given"),
    ],
)
def test_disturbances_that_cannot_be(disturbance, message):
    with pytest.raises(ValueError, match=message):
        of("allreduce", "ring", 4, 8, disturbance=disturbance)


def test_a_deadlock_is_told():
    schedule = Schedule("bcast", "stuck", 2, 1, lambda rank: [recv(1 - rank, 0), send(1 - rank, 0)])
    with pytest.raises(ValueError, match=r"deadlocks: rank 0"):
        simulate(schedule, 8, FLAT)


@pytest.mark.parametrize("first", [0, 1])
def test_sides_of_a_message_that_differ_are_told(first):
    def steps(rank):
        yield send(1, range(2)) if rank == 0 else recv(0, 0)

    schedule = Schedule("bcast", "unequal", 2, 2, steps)
    late = Disturbance(arrival=(0.0, 1.0) if first else (1.0, 0.0))
    with pytest.raises(ValueError, match="differ in length"):
        simulate(schedule, 8, FLAT, disturbance=late)


def test_chunks_without_bytes_are_not_sent_but_a_barrier_is():
    assert of("allreduce", "ring", 8, 3).messages == 3 * 14
    assert of("barrier", "dissemination", 8, 0).messages == 3 * 8
    with pytest.raises(ValueError, match="-1 bytes given"):
        of("allreduce", "ring", 8, -1)


def test_timeline():
    schedule = find("allreduce", "direct").schedule(9)
    found = simulate(schedule, 9000, FLAT, timeline=True)
    log = found.timeline
    assert len(log.source) == found.messages == 2 * 72
    assert log.nbytes.sum() == found.nbytes
    assert (log.arrived - log.began >= ALPHA + 1000 * BETA - 1e-12).all()
    assert log.arrived.max() <= found.seconds
    for rank in range(9):  # its link carries one at a time
        began = np.sort(log.began[log.source == rank])
        assert (np.diff(began) >= 1000 * BETA - 1e-12).all()
    assert simulate(schedule, 9000, FLAT).timeline is None


def test_more_messages_wait_than_there_is_room_for_at_first():
    """All ranks but one send to that one, which is late."""
    size = 3000
    schedule = messages(*((rank, 0) for rank in range(1, size)), size=size)
    found = simulate(schedule, 100, FLAT, disturbance=Disturbance([1.0] + [0.0] * (size - 1)))
    assert found.messages == size - 1
    assert found.done.max() == 1.0


def test_progress_is_told():
    told = []
    written = program(find("allreduce", "ring").schedule(800))
    simulate(written, 8000, FLAT, tick=told.append)
    assert told
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] <= 1


def test_nodes_are_filled_one_after_the_other_unless_given():
    machine = Machine(LINK, Link(1.0, 1e9), per_node=2)
    pairs = messages((0, 1), size=4)
    assert simulate(pairs, 8, machine).seconds < 1
    assert simulate(pairs, 8, machine, [[0, 2], [1, 3]]).seconds > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Link(-1.0, 1.0), "latency -1.0 given, expected 0 s or more"),
        (lambda: Link(0.0, 0.0), "bandwidth 0.0 given, expected more than 0 B/s"),
        (lambda: Link(0.0, math.nan), "bandwidth nan given"),
        (lambda: Link(0.0, 1.0, eager=-1), "eager -1 given, expected 0 bytes or more"),
        (lambda: Fabric("torus"), "kind 'torus' given, expected flat, fat_tree or dragonfly"),
        (lambda: Fabric(oversubscription=0), "oversubscription 0 given"),
        (lambda: Machine(LINK, LINK, per_node=0), "per_node 0 given, expected more than 0"),
    ],
)
def test_machines_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_blocks_overlap():
    """Blocks of a chain follow each other along it, as chunks do."""
    chain = find("bcast", "chain").schedule(5, chunks=1)
    chunked = find("bcast", "chain").schedule(5, chunks=2)
    whole = simulate(chain, 8000, FLAT)
    cut = simulate(chain, 8000, FLAT, blocks=2)
    assert cut.seconds == pytest.approx(4 * ALPHA + (5 - 2 + 2) * 4000 * BETA)
    assert cut.seconds == pytest.approx(simulate(chunked, 8000, FLAT).seconds)
    assert cut.seconds < whole.seconds
    assert (cut.nbytes, cut.messages) == (whole.nbytes, 2 * whole.messages)


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["ring", "recursive_halving_doubling", "recursive_doubling"])
def test_blocks_have_all_bytes(name, blocks):
    schedule = find("allreduce", name).schedule(8)
    found = simulate(schedule, 8191, FLAT, blocks=blocks, timeline=True)
    assert found.nbytes == simulate(schedule, 8191, FLAT).nbytes == found.timeline.nbytes.sum()
    assert set(found.timeline.source) == set(found.timeline.target) == set(range(8))
    if name == "ring":  # its links are never idle for long, whatever the blocks
        assert found.seconds >= simulate(schedule, 8191, Machine.flat(Link(0.0, 1 / BETA))).seconds


def test_no_more_than_two_blocks_are_under_way():
    """With a latency that is long, it is what counts: each pair of blocks waits for the one before it."""

    def steps(rank):
        yield send(1, 0) if rank == 0 else recv(0, 0)
        yield recv(1, 0) if rank == 0 else send(0, 0)

    schedule = Schedule("bcast", "to and fro", 2, 1, steps)
    machine = Machine.flat(Link(1.0, 1e12))
    for blocks, times in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3)):
        found = simulate(schedule, 1000, machine, blocks=blocks)
        assert found.seconds == pytest.approx(2 * times, rel=1e-6)


@pytest.mark.parametrize(("nbytes", "blocks"), [(8, 0), (8, 9), (0, 2)])
def test_blocks_that_cannot_be(nbytes, blocks):
    with pytest.raises(ValueError, match=f"{blocks} blocks of {nbytes} bytes given"):
        simulate(find("allreduce", "ring").schedule(2), nbytes, FLAT, blocks=blocks)


@pytest.mark.parametrize(("ahead", "times"), [(False, 2), (True, 1)])
def test_a_rank_that_runs_ahead_does_not_wait_for_what_it_sent(ahead, times):
    """It combines while its message leaves, and is done when both are."""

    def steps(rank):
        yield send(1, 0) if rank == 0 else recv(0, 0)
        if rank == 0:
            yield combine(0, scratch(0))

    schedule = Schedule("bcast", "busy", 2, 1, steps, vectors=1)
    machine = Machine.flat(Link(0.0, 1 / BETA), 1 / BETA)
    found = simulate(schedule, 8000, machine, ahead=ahead)
    assert found.done.tolist() == pytest.approx([times * 8000 * BETA, 8000 * BETA])
