"""A second, tiny interpreter of schedules, with real values: what the proof is compared with.

It knows nothing of the package's own way through a schedule. Ranks meet: a message passes only between
two ranks' current steps, so every send is synchronous.
"""

from mpicoll.schedule.moves import slots


class StuckError(Exception):
    """No rank can go on, or two sides of a message do not fit."""


def messages(step, kinds):
    """One entry for each run: (move, peer, slots)."""
    return [
        [move, move.peer, list(range(*run))] for move in step if move.kind in kinds for run in move.chunks
    ]


def run(schedule, inputs, op):
    """Run a schedule; ``inputs[rank][chunk]`` are any values that `op` combines two of.

    Returns every rank's slots, None where nothing was written.
    """
    size = schedule.size
    steps = [list(schedule.steps(rank)) for rank in range(size)]
    values = [list(inputs[rank]) + [None] * schedule.chunks * schedule.vectors for rank in range(size)]
    at = [-1] * size
    sends, receives, inbox = [[] for _ in range(size)], [[] for _ in range(size)], [[] for _ in range(size)]

    def enter(rank):
        at[rank] += 1
        if at[rank] < len(steps[rank]):
            step = steps[rank][at[rank]]
            sends[rank] = [[*m, [values[rank][slot] for slot in m[2]]] for m in messages(step, {"send"})]
            receives[rank] = messages(step, {"recv", "reduce"})
            inbox[rank] = []

    def leave(rank):
        order = [id(move) for move in steps[rank][at[rank]]]
        for move, mine, payload in sorted(inbox[rank], key=lambda entry: order.index(id(entry[0]))):
            for slot, value in zip(mine, payload, strict=True):
                put(rank, move, slot, value)
        for move in steps[rank][at[rank]]:
            if move.source is not None:
                payload = [values[rank][slot] for slot in slots(move.source)]
                for slot, value in zip(slots(move.chunks), payload, strict=True):
                    put(rank, move, slot, value)
        enter(rank)

    def put(rank, move, slot, value):
        own = values[rank][slot]
        if value is None or (own is None and move.kind in {"reduce", "combine"}):
            raise StuckError("read of nothing")
        if move.kind in {"recv", "copy"}:
            values[rank][slot] = value
        elif move.kind == "reduce" and move.peer < rank:
            values[rank][slot] = op(value, own)
        else:
            values[rank][slot] = op(own, value)

    for rank in range(size):
        enter(rank)
    while any(at[rank] < len(steps[rank]) for rank in range(size)):
        moved = False
        for source in range(size):
            for send in list(sends[source]):
                target = send[1]
                first = next(s for s in sends[source] if s[1] == target)
                there = next((r for r in receives[target] if r[1] == source), None)
                if send is not first or there is None:
                    continue
                if [s % schedule.chunks for s in send[2]] != [s % schedule.chunks for s in there[2]]:
                    raise StuckError("two sides differ")
                inbox[target].append((there[0], there[2], send[3]))
                sends[source].remove(send)
                receives[target].remove(there)
                moved = True
        for rank in range(size):
            while at[rank] < len(steps[rank]) and not sends[rank] and not receives[rank]:
                leave(rank)
                moved = True
        if not moved:
            raise StuckError("no rank can go on")
    return values
