"""The simulator's compiled part: the queue of events, messages on their way, and what they pass through.

Times are in seconds. What is busy is known by the time at which it is free again.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from .program import COMBINE, LAST, RECV, REDUCE, SEND, Longs, Program

Reals = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

OVER, MORE, FULL, UNEQUAL = range(4)  # why `advance` came back
ASKED, SENT, THERE = 8, 9, 10  # kinds of entries: the receiver is known, and the message will leave, or has
UNKNOWN = -1.0  # when a message is there

# Places in `State.numbers`
EVENTS, UNUSED, ROOM, DONE, MESSAGES, BYTES, FAR = range(7)

# Nothing here makes or keeps an array. To count who uses each of them, as Numba does, would take nine tenths
# of the time.
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
compiled = numba.njit(**OPTIONS)


class World(NamedTuple):
    """A machine as the simulator sees it.

    Attributes
    ----------
    slots, last_slots : ndarray of int64
        The bytes before each slot; and where the block is the last one.
    last_strand : int
        Which has the last block.
    ahead : bool
        Whether a rank goes on before what it has sent has left.
    nodes : ndarray of int64
        Of each rank: its node's number.
    out, in_, memory : ndarray of int64
        What a rank's messages leave by and come in by, within its node and, in the second row, between nodes;
        and what all those within its node share.
    group, up, down : ndarray of int64
        Of each node, its group; of each group, or pair of groups, the trunk that leads out of it and the one
        that leads into the other; -1 where there is none.
    per_byte, least, slack : ndarray of float64
        Of all that messages pass through: s a byte, s a message at least, and s of bytes that pass at once
        after a rest.
    latency, overhead, eager, peak : ndarray of float64
        Within a node, and between nodes; the peak in s a byte.
    hop : float
        s more, where a message leaves its group.
    slowness : ndarray of float64
        Of each rank.
    combine : float
        s a byte.
    """

    slots: Longs
    last_slots: Longs
    last_strand: int
    ahead: bool
    nodes: Longs
    out: Longs
    in_: Longs
    memory: Longs
    group: Longs
    up: Longs
    down: Longs
    per_byte: Reals
    least: Reals
    slack: Reals
    latency: Reals
    overhead: Reals
    eager: Reals
    peak: Reals
    hop: float
    slowness: Reals
    combine: float


class State(NamedTuple):
    """Where the simulation is.

    Where blocks of the vector are under way at once, each rank has a strand for every one of them: the first
    strands of all ranks, then the second ones. They are ranks of their own, but share what messages pass.

    The queue of events is a heap. Sends and receives that wait for each other are in queues of their pair of
    ranks, which a hash table finds; a pair is in it only as long as something waits.
    """

    heap_time: Reals
    heap_what: Longs  # a rank that begins a step; from `size` on, an entry that goes on
    at: Longs  # of each rank: its next move
    blocks: Longs  # that the strand has yet to run, this one included
    open: Longs  # halves of messages that its step waits for
    receives: Longs  # messages that it receives in the step
    begun: Reals  # when the step began
    done: Reals  # when it is over, as far as is known
    left_all: Reals  # when all that it has sent has left, as far as is known
    local: Reals  # bytes to combine at its end
    busy: Reals  # the rank itself
    unit: Reals  # what combines
    free: Reals  # of all that messages pass through: when it is free
    used: Reals  # s that it was busy
    keys: Longs  # the hash table: 1 + source * size + target, 0 for none
    heads: Longs
    tails: Longs
    next: Longs  # of each entry: the one after it in its queue
    pair: Longs  # its key
    kind: Longs  # SEND, RECV or REDUCE in a queue, the others out of it
    nbytes: Longs
    reduces: Bools
    time: Reals  # when it was ready; of a message that has left: when it is there
    left: Reals  # of a message that has left: when its last byte had
    numbers: Longs
    log_ranks: Longs  # of each message: source, target, bytes
    log_times: Reals  # and when it left and was there


@compiled
def begin(arrival: Reals, state: State) -> None:
    """Let each rank begin its first step when it arrives."""
    for rank in range(len(arrival)):
        push(state, arrival[rank], rank)


@compiled
def advance(program: Program, world: World, state: State, events: int) -> int:
    """Let so many events happen, and tell why it was no more."""
    for _ in range(events):
        if state.numbers[EVENTS] == 0:
            return OVER
        now, what = state.heap_time[0], state.heap_what[0]
        if what < len(state.at):
            why = begin_step(program, world, state, what, now)
            if why != MORE:
                return why
        else:
            pop(state)
            go_on(len(state.at), world, state, what - len(state.at), now)
    return MORE


@compiled
def begin_step(program: Program, world: World, state: State, rank: int, now: float) -> int:
    """Let a rank's strand begin its next step, if there is one."""
    own = rank % program.size
    shift = rank - own
    first = state.at[rank]
    if first == (len(program.kind) if program.alike else program.begin[own + 1]):
        state.blocks[rank] -= 1
        begin = 0 if program.alike else program.begin[own]
        if state.blocks[rank] <= 0 or first == begin:
            pop(state)
            return MORE
        first = begin
    stop = first + 1
    while not program.kind[stop - 1] & LAST:
        stop += 1
    if state.numbers[ROOM] < stop - first:
        return FULL
    pop(state)
    state.at[rank] = stop
    state.begun[rank] = state.done[rank] = now
    state.local[rank] = 0.0
    state.open[rank] = 1  # this loop itself, until it is through
    state.receives[rank] = 0
    last_slot = world.slots[program.chunks]
    slots = world.slots
    if state.blocks[rank] == 1 and rank // program.size == world.last_strand:
        slots = world.last_slots
        last_slot = slots[program.chunks]
    for line in range(first, stop):
        kind = program.kind[line] & ~LAST
        state.receives[rank] += RECV <= kind <= REDUCE
    for sends in (True, False):  # what it sends leaves before it takes what comes
        for line in range(first, stop):
            kind = program.kind[line] & ~LAST
            if (kind == SEND) != sends:
                continue
            peer = shift + np.int64(program.peer[program.peer_at[line] + own if program.alike else line])
            slot = program.first[program.first_at[line] + own if program.alike else line]
            nbytes = slots[slot + program.length[line]] - slots[slot]
            if nbytes == 0 and last_slot > 0:
                continue
            if kind > REDUCE:
                state.local[rank] += nbytes if kind == COMBINE else 0
                continue
            state.open[rank] += 1
            if sends:
                equal = post_send(len(state.at), world, state, rank, peer, nbytes, now)
            else:
                equal = post_receive(len(state.at), world, state, peer, rank, nbytes, kind == REDUCE, now)
            if not equal:
                return UNEQUAL
    state.numbers[DONE] += stop - first
    over(world, state, rank)
    return MORE


@compiled
def post_send(
    size: int, world: World, state: State, source: int, target: int, nbytes: int, now: float
) -> bool:
    """Send a message as soon as it can leave; tell whether the receiver expects as many bytes, if it does."""
    far = int(world.nodes[source] != world.nodes[target])
    ready = max(now, state.busy[source]) + world.overhead[far] * world.slowness[source]
    state.busy[source] = ready
    key = 1 + source * size + target
    place = find(state.keys, key)
    met = state.keys[place] != 0 and state.kind[state.heads[place]] != SEND
    reduces = False
    if met:
        other = take(state, place)
        reduces, posted = state.kind[other] == REDUCE, state.time[other]
        equal = state.nbytes[other] == nbytes
        release(state, other)
        if not equal:
            return False
    if nbytes > world.eager[far]:
        if met:
            begin = max(ready + world.latency[far], posted) + world.latency[far]
            push(state, begin, size + new_entry(state, key, ASKED, nbytes, reduces, 0.0))
        else:
            append(state, place, key, new_entry(state, key, SEND, nbytes, False, ready))
        return True
    began, left = leave(world, state, world.out[far, source], far, nbytes, ready)
    sent(world, state, source, left)
    state.open[source] -= 1  # never the last: the loop over the step's moves is open
    there = UNKNOWN
    if began == now:  # otherwise others may leave for the target before
        there = arrive(world, state, source, target, far, nbytes, began, left)
        if met:
            take_in(size, world, state, key, nbytes, reduces, there, now)
            return True
    entry = new_entry(state, key, SENT if met else SEND, nbytes, reduces, there)
    if not met:
        append(state, place, key, entry)
    if there == UNKNOWN:
        state.left[entry] = left
        push(state, began, size + entry)
    return True


@compiled
def post_receive(
    size: int, world: World, state: State, source: int, target: int, nbytes: int, reduces: bool, now: float
) -> bool:
    """Take a message that was sent, or wait for it; tell whether it has as many bytes."""
    key = 1 + source * size + target
    place = find(state.keys, key)
    if state.keys[place] == 0 or state.kind[state.heads[place]] != SEND:
        append(state, place, key, new_entry(state, key, REDUCE if reduces else RECV, nbytes, reduces, now))
        return True
    entry = take(state, place)
    if state.nbytes[entry] != nbytes:
        return False
    far = int(world.nodes[source] != world.nodes[target])
    state.reduces[entry] = reduces
    if nbytes > world.eager[far]:
        state.kind[entry] = ASKED
        push(state, max(state.time[entry] + world.latency[far], now) + world.latency[far], size + entry)
    elif state.time[entry] == UNKNOWN:
        state.kind[entry] = SENT
    else:
        there = state.time[entry]
        release(state, entry)
        take_in(size, world, state, key, nbytes, reduces, there, now)
    return True


@compiled
def go_on(size: int, world: World, state: State, entry: int, now: float) -> None:
    """Let a message leave whose receiver has answered, or one that has left come to its target."""
    pair, nbytes = state.pair[entry] - 1, state.nbytes[entry]
    source, target = pair // size, pair % size
    far = int(world.nodes[source] != world.nodes[target])
    if state.kind[entry] == ASKED:
        began, left = leave(world, state, world.out[far, source], far, nbytes, now)
        sent(world, state, source, left)
        state.kind[entry], state.left[entry] = SENT, left
        over(world, state, source)
        if began > now:
            push(state, began, size + entry)
            return
    if state.kind[entry] == THERE:
        release(state, entry)
        receive(world, state, target, far, nbytes, now, state.reduces[entry])
        over(world, state, target)
        return
    there = arrive(world, state, source, target, far, nbytes, now, state.left[entry])
    if state.kind[entry] == SENT:
        release(state, entry)
        take_in(size, world, state, state.pair[entry], nbytes, state.reduces[entry], there, now)
    else:
        state.time[entry] = there


@compiled
def leave(world: World, state: State, what: int, far: int, nbytes: int, ready: float) -> tuple[float, float]:
    """Let a message out, after those before it; give when its first byte leaves and its last one does."""
    free = max(state.free[what], ready - world.slack[what])
    seconds = nbytes * world.per_byte[what]
    state.free[what] = free + max(seconds, world.least[what])
    state.used[what] += seconds
    begin = max(ready, free)
    return begin, max(begin + nbytes * world.peak[far], free + seconds)


@compiled
def sent(world: World, state: State, source: int, left: float) -> None:
    """Note when a message has left, which a rank's step waits for unless it runs ahead."""
    if not world.ahead:
        state.done[source] = max(state.done[source], left)
    state.left_all[source] = max(state.left_all[source], left)


@compiled
def pass_through(world: World, state: State, what: int, nbytes: int, head: float, tail: float) -> float:
    """Let a message through, whose first and last byte would come at these times; give when the last does.

    Its bytes take turns with those of others, as far as they come no faster than they can go.
    """
    seconds = nbytes * world.per_byte[what]
    state.free[what] = max(state.free[what], head - world.slack[what]) + seconds
    state.used[what] += seconds
    return max(tail, state.free[what])


@compiled
def arrive(
    world: World, state: State, source: int, target: int, far: int, nbytes: int, began: float, left: float
) -> float:
    """Let a message that is leaving go all the way; tell when it is there."""
    tail, latency = left, world.latency[far]
    if not far:
        if world.memory[source] >= 0:
            tail = pass_through(world, state, world.memory[source], nbytes, began, tail)
    elif len(world.up):
        here, there = world.group[world.nodes[source]], world.group[world.nodes[target]]
        if here != there:
            latency += world.hop
            tail = pass_through(world, state, world.up[here, there], nbytes, began, tail)
            if world.down[here, there] >= 0:
                tail = pass_through(world, state, world.down[here, there], nbytes, began, tail)
    tail = pass_through(world, state, world.in_[far, target], nbytes, began + latency, tail + latency)
    numbers = state.numbers
    if len(state.log_times):
        state.log_ranks[numbers[MESSAGES]] = (source, target, nbytes)
        state.log_times[numbers[MESSAGES]] = (began, tail)
    numbers[MESSAGES] += 1
    numbers[BYTES] += nbytes
    numbers[FAR] += nbytes * far
    return tail


@compiled
def take_in(
    size: int, world: World, state: State, pair: int, nbytes: int, reduces: bool, there: float, now: float
) -> None:
    """Let a rank receive a message when it is there, or at once, if nothing else can come in between."""
    source, target = (pair - 1) // size, (pair - 1) % size
    if there > now and state.receives[target] > 1:
        push(state, there, size + new_entry(state, pair, THERE, nbytes, reduces, there))
    else:
        far = int(world.nodes[source] != world.nodes[target])
        receive(world, state, target, far, nbytes, there, reduces)
        over(world, state, target)


@compiled
def receive(
    world: World, state: State, target: int, far: int, nbytes: int, there: float, reduces: bool
) -> None:
    """Let a rank take a message that is there, and combine it where it is to be combined."""
    there = max(there, state.begun[target])
    overhead = world.overhead[far] * world.slowness[target]
    if overhead > 0:
        there = max(there, state.busy[target]) + overhead
        state.busy[target] = there
    if reduces:
        there = max(there, state.unit[target]) + nbytes * world.combine * world.slowness[target]
        state.unit[target] = there
    state.done[target] = max(state.done[target], there)


@compiled
def over(world: World, state: State, rank: int) -> None:
    """Something that a rank's step waited for is over; after the last the rank combines what it has."""
    state.open[rank] -= 1
    if state.open[rank] == 0:
        state.done[rank] += state.local[rank] * world.combine * world.slowness[rank]
        push(state, state.done[rank], rank)


# The heap: the earliest event is first, and of those at one time that of the lowest number.


@compiled
def push(state: State, time: float, what: int) -> None:
    """Put an event in its place."""
    times, whats = state.heap_time, state.heap_what
    at = state.numbers[EVENTS]
    state.numbers[EVENTS] += 1
    while at > 0:
        above = (at - 1) >> 1
        if times[above] < time or (times[above] == time and whats[above] < what):
            break
        times[at], whats[at] = times[above], whats[above]
        at = above
    times[at], whats[at] = time, what


@compiled
def pop(state: State) -> None:
    """Take the first event out."""
    times, whats = state.heap_time, state.heap_what
    state.numbers[EVENTS] -= 1
    length = state.numbers[EVENTS]
    time, what = times[length], whats[length]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= length:
            break
        right = below + 1
        if right < length and (
            times[right] < times[below] or (times[right] == times[below] and whats[right] < whats[below])
        ):
            below = right
        if time < times[below] or (time == times[below] and what < whats[below]):
            break
        times[at], whats[at] = times[below], whats[below]
        at = below
    times[at], whats[at] = time, what


# The hash table, with linear probing: after a key, no place is free before where it would be looked for.


@compiled
def home(key: int, places: int) -> int:
    """Give the place where a key is looked for first, of a power of two."""
    return (np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & np.uint64(places - 1)


@compiled
def find(keys: Longs, key: int) -> int:
    """Give the place of a key, or the one for it."""
    place = np.int64(home(key, len(keys)))
    while keys[place] not in (0, key):
        place = (place + 1) & (len(keys) - 1)
    return place


@compiled
def new_entry(state: State, pair: int, kind: int, nbytes: int, reduces: bool, time: float) -> int:
    """Keep a send or a receive that waits, or a message that is on its way."""
    new = state.numbers[UNUSED]
    state.numbers[UNUSED] = state.next[new]
    state.numbers[ROOM] -= 1
    state.next[new] = -1
    state.pair[new], state.kind[new], state.nbytes[new] = pair, kind, nbytes
    state.reduces[new], state.time[new] = reduces, time
    return new


@compiled
def release(state: State, entry: int) -> None:
    """Forget an entry, which is in no queue."""
    state.next[entry] = state.numbers[UNUSED]
    state.numbers[UNUSED] = entry
    state.numbers[ROOM] += 1


@compiled
def append(state: State, place: int, key: int, entry: int) -> None:
    """Put an entry at the end of its pair's queue."""
    if state.keys[place] == 0:
        state.keys[place] = key
        state.heads[place] = entry
    else:
        state.next[state.tails[place]] = entry
    state.tails[place] = entry


@compiled
def take(state: State, place: int) -> int:
    """Take the first one out of a queue."""
    first = state.heads[place]
    state.heads[place] = state.next[first]
    if state.heads[place] < 0:
        remove(state, place)
    return first


@compiled
def remove(state: State, place: int) -> None:
    """Free a place, and move keys up that would no longer be found."""
    last = len(state.keys) - 1
    after = place
    while True:
        after = (after + 1) & last
        key = state.keys[after]
        if key == 0:
            break
        way = (after - np.int64(home(key, last + 1))) & last
        if way >= (after - place) & last:
            state.keys[place], state.heads[place] = key, state.heads[after]
            state.tails[place] = state.tails[after]
            place = after
    state.keys[place] = 0


@compiled
def rehash(old: State, new: State) -> None:
    """Fill a larger hash table."""
    for place in range(len(old.keys)):
        if old.keys[place]:
            at = find(new.keys, old.keys[place])
            new.keys[at], new.heads[at], new.tails[at] = old.keys[place], old.heads[place], old.tails[place]
