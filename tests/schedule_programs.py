"""Programs of all ranks, run in one process by a tiny interpreter with an unkind network and weak memory.

Ranks run in random order. A send completes only when its receive is posted, and its memory must not change
until then; a receive's memory must not be touched until it is complete. Of a peer's region of shared memory a
rank sees what was there when the peer published the step that it awaited, and nothing that came later. What
a peer reads must have been written before it was published, and never again.
"""

import random
from collections import Counter

import numpy as np
from schedule_calls import ITEM

from mpicoll.engine import program as p
from mpicoll.engine.lowering import Limits, Regions, lower

LIMITS = [
    Limits(),
    Limits(segment=24, segments=3, message=1 << 30),
    Limits(segment=8, segments=99, message=16),
    Limits(segment=16, segments=2, whole=60),
]
SHARED = p.LINE, p.STAGE
BLOCKING = p.SEND, p.RECV, p.SENDRECV
GUARD = 64  # bytes between two regions


class Network:
    """Messages between simulated ranks, matched in order for each pair."""

    def __init__(self):
        self.sends, self.recvs = {}, {}
        self.events = 0

    def post(self, queue, other, key, message):
        self.events += 1
        if other.get(key):
            partner = other[key].pop(0)
            send, recv = (message, partner) if queue is self.sends else (partner, message)
            assert (send["memory"] == send["snapshot"]).all(), (
                "send buffer changed before the send was complete"
            )
            assert len(send["memory"]) == len(recv["memory"]), "message and receive differ in length"
            recv["memory"][:] = send["memory"]
            send["done"] = recv["done"] = True
        else:
            queue.setdefault(key, []).append(message)

    def send(self, source, target, memory):
        message = {"memory": memory, "snapshot": memory.copy(), "done": False}
        self.post(self.sends, self.recvs, (source, target), message)
        return message

    def recv(self, source, target, memory):
        memory[:] = 0xA5
        message = {"memory": memory, "done": False}
        self.post(self.recvs, self.sends, (source, target), message)
        return message


class Node:
    """The shared memory of a node.

    Every rank has a picture of it, of which only its own region is live; the rest is what it has seen of the
    others.
    """

    def __init__(self, regions, staged, network):
        self.numbers, self.stride, self.network = regions.numbers, regions.stride, network
        self.extent = {p.LINE: (p.PAYLOAD, p.PAYLOAD + p.PAYLOAD_BYTES), p.STAGE: (0, staged)}
        self.pictures = {
            rank: {base: np.full(len(self.numbers) * self.stride, 0xA5, np.uint8) for base in SHARED}
            for rank in self.numbers
        }
        self.published = {rank: [(0, {})] for rank in self.numbers}  # steps, and the region then
        self.seen = {rank: Counter() for rank in self.numbers}  # the step of each peer that was awaited
        # the last step that was published when a byte was written
        self.written = {rank: {base: np.zeros(self.stride, int) for base in SHARED} for rank in self.numbers}
        self.reads = []  # whose region, base, bytes, and the step that was awaited

    def region(self, rank):
        """Give the bytes that are a rank's."""
        start = self.numbers[rank] * self.stride
        return slice(start, start + self.stride)

    def locate(self, base, offset, nbytes):
        """Give the rank whose region it is, and the bytes of it."""
        number, begin = divmod(offset, self.stride)
        first, last = self.extent[base]
        assert first <= begin, "in front of the region"
        assert begin + nbytes <= last, "more is staged than reported"
        return list(self.numbers)[number], slice(begin, begin + nbytes)

    def read(self, rank, base, offset, nbytes):
        """Note that a rank reads."""
        peer, part = self.locate(base, offset, nbytes)
        if peer != rank:
            self.reads.append((peer, base, part, self.seen[rank][peer]))

    def write(self, rank, base, offset, nbytes):
        """Note that a rank writes."""
        owner, part = self.locate(base, offset, nbytes)
        assert owner == rank, "another rank's region written"
        self.written[rank][base][part] = self.published[rank][-1][0]

    def publish(self, rank, base, offset, step):
        """Let others see what a rank has staged."""
        assert (base, offset) == (p.LINE, self.numbers[rank] * self.stride), "not the own counter"
        assert step > self.published[rank][-1][0], "counters must grow"
        region = self.region(rank)
        self.published[rank].append((step, {b: self.pictures[rank][b][region].copy() for b in SHARED}))
        self.network.events += 1

    def awaited(self, rank, base, offset, step, number):
        """Whether a step is published; the rank then sees what was there at that time."""
        peer = list(self.numbers)[number]
        assert (base, offset) == (p.LINE, number * self.stride), "not the peer's counter"
        for published, then in self.published[peer]:
            if published >= step:
                for each in SHARED:
                    self.pictures[rank][each][self.region(peer)] = then[each]
                self.seen[rank][peer] = published
                return True
        return False

    def check(self):
        """Assert that what was read had been written when it was published, and has not changed since."""
        for peer, base, part, step in self.reads:
            assert (self.written[peer][base][part] < step).all(), "written after it was published"


class Memory:
    """What a rank's operands name."""

    def __init__(self, rank, bases, node):
        self.rank, self.bases, self.node = rank, bases, node
        self.receiving = []

    def at(self, row, column, nbytes):
        """Give the memory at an address."""
        base, offset = row[column], row[column + 1]
        view = self.bases[base][offset : offset + nbytes]
        assert len(view) == nbytes, "outside of the buffer"
        for message in self.receiving:
            assert message["done"] or not np.shares_memory(message["memory"], view), "touched while receiving"
        return view

    def read(self, row, column, nbytes):
        """Give memory to read."""
        if row[column] in SHARED:
            self.node.read(self.rank, row[column], row[column + 1], nbytes)
        return self.at(row, column, nbytes)

    def write(self, row, column, nbytes):
        """Give memory to write."""
        if row[column] in SHARED:
            self.node.write(self.rank, row[column], row[column + 1], nbytes)
        return self.at(row, column, nbytes)

    def receive(self, network, row, column, nbytes, source):
        """Post a receive."""
        message = network.recv(source, self.rank, self.write(row, column, nbytes))
        message["arrived"] = lambda: self.write(row, column, nbytes)
        self.receiving.append(message)
        return message


def run_rank(rank, program, bases, op, network, node=None):
    """Run one rank's program; a generator that yields whenever it must wait."""
    requests, memory = {}, Memory(rank, bases, node)

    def wait(message):
        while not message["done"]:
            yield
        if "arrived" in message:
            message["arrived"]()
        else:
            assert (message["memory"] == message["snapshot"]).all(), (
                "send buffer changed before it was waited for"
            )

    for row in program.rows.tolist():
        code = row[0]
        if code in (p.IRECV, p.RECV):
            message = memory.receive(network, row, 1, row[3], row[4])
        elif code in (p.ISEND, p.SEND):
            message = network.send(rank, row[4], memory.read(row, 1, row[3]))
        if code in (p.IRECV, p.ISEND):
            assert row[5] not in requests, "request overwritten"
            requests[row[5]] = message
        elif code in (p.RECV, p.SEND):
            yield from wait(message)
        elif code == p.WAIT:
            yield from wait(requests.pop(row[1]))
        elif code == p.SENDRECV:
            out = network.send(rank, row[4], memory.read(row, 1, row[3]))
            into = memory.receive(network, row, 5, row[7], row[8])
            yield from wait(out)
            yield from wait(into)
        elif code in (p.COMBINE, p.COMBINE_STREAM):
            assert code == p.COMBINE or row[8] == ITEM.itemsize
            nbytes = row[7] * ITEM.itemsize
            result = op(*(memory.read(row, column, nbytes).view(ITEM) for column in (3, 5)))
            memory.write(row, 1, nbytes)[:] = result.view(np.uint8)
        elif code in (p.COPY, p.STREAM):
            out, source = memory.write(row, 1, row[5]), memory.read(row, 3, row[5])
            assert code == p.COPY or not np.shares_memory(out, source), "streamed onto itself"
            out[:] = source
        elif code == p.PUBLISH:
            node.publish(rank, *row[1:4])
        elif code == p.AWAIT:
            while not node.awaited(rank, *row[1:5]):
                yield
        else:
            raise AssertionError(f"instruction {code}")
    assert not requests, "requests left"


def run_all(programs, calls, op, seed=0, nodes=(), stride=0):
    """Run the programs of all ranks, in random order, and compare what they receive.

    Parameters
    ----------
    programs : list of Program
    calls : list of Call
    nodes : sequence of tuple of int, optional
        The ranks of each node that share memory.
    stride : int
        Bytes of a region.
    """
    order, network, ranks, homes = random.Random(seed), Network(), [], {}
    for members in nodes:
        regions = Regions({rank: number for number, rank in enumerate(members)}, stride)
        node = Node(regions, programs[members[0]].staged, network)
        homes |= dict.fromkeys(members, node)
    for rank, (program, call) in enumerate(zip(programs, calls, strict=True)):
        bases = {
            p.SENDBUF: call.sendbuf.copy().view(np.uint8),
            p.RECVBUF: call.recvbuf.view(np.uint8),
            p.SCRATCH: np.full(program.scratch, 0xA5, np.uint8),
        }
        bases[p.SENDBUF].flags.writeable = False
        if rank in homes:
            bases |= homes[rank].pictures[rank]
        ranks.append(run_rank(rank, program, bases, op, network, homes.get(rank)))
    while ranks:
        order.shuffle(ranks)
        events = network.events
        finished = [rank for rank in ranks if next(rank, "finished") == "finished"]
        assert finished or network.events > events, "deadlock"
        ranks = [rank for rank in ranks if rank not in finished]
    for node in homes.values():
        node.check()
    for rank, call in enumerate(calls):
        result = call.recvbuf[: len(call.wanted)]
        np.testing.assert_array_equal(result, call.wanted, err_msg=f"rank {rank}")


def lower_shared(schedule, calls, nodes, limits=LIMITS[0], stream=False):
    """Lower a schedule for ranks that share memory on their nodes; give the programs and the stride.

    No program of these blocks in MPI, and the ranks of a node say alike how much they stage.
    """

    def programs(stride):
        for rank, call in enumerate(calls):
            node = next(node for node in nodes if rank in node)
            regions = Regions({member: number for number, member in enumerate(node)}, stride, stream)
            yield lower(schedule, call.shape._replace(near=frozenset(node)), limits, regions)

    staged = max(program.staged for program in programs(1 << 40))
    stride = -(-max(staged, p.LINE_BYTES) // GUARD) * GUARD + GUARD
    lowered = list(programs(stride))
    for node in nodes:
        assert len({lowered[rank].staged for rank in node}) == 1, "the ranks do not agree on what is staged"
    for program in lowered:
        assert not np.isin(program.rows[:, 0], BLOCKING).any(), "a program over shared memory blocks"
    return lowered, stride
