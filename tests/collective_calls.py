"""Calls of every collective, drawn alike on all ranks, with what NumPy says that this rank must receive."""

from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate

import numpy as np
from mpi4py import MPI

METHODS = {  # the collective whose schedules serve each
    "Barrier": "barrier",
    "Bcast": "bcast",
    "Gather": "gather",
    "Gatherv": "gather",
    "Scatter": "scatter",
    "Scatterv": "scatter",
    "Allgather": "allgather",
    "Allgatherv": "allgather",
    "Alltoall": "alltoall",
    "Alltoallv": "alltoall",
    "Reduce": "reduce",
    "Allreduce": "allreduce",
    "Reduce_scatter_block": "reduce_scatter",
    "Reduce_scatter": "reduce_scatter",
    "Scan": "scan",
    "Exscan": "exscan",
}
ROOTED = [method for method in METHODS if METHODS[method] in ("bcast", "gather", "scatter", "reduce")]
REDUCING = [method for method in METHODS if METHODS[method].startswith(("allr", "red", "scan", "exscan"))]
UNEQUAL = ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv", "Reduce_scatter"]
FORMS = ["blocking", "nonblocking", "persistent"]
OPS = {MPI.SUM.handle: np.add, MPI.MAX.handle: np.maximum, MPI.MIN.handle: np.minimum}


@dataclass
class Call:
    """One rank's arguments, the memory it receives into, and what must be there in the end."""

    arguments: tuple = ()
    received: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    wanted: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    sent: tuple = ()

    def __post_init__(self):
        self.before = self.received.copy()
        self.kept = [array.copy() for array in self.sent]

    def reset(self):
        """Make the memory what it was before."""
        self.received[...] = self.before

    def check(self):
        """Assert that all is there, that nothing else was written, and nothing where data came from."""
        np.testing.assert_array_equal(self.received.view(np.uint8), self.wanted.view(np.uint8))
        for array, kept in zip(self.sent, self.kept, strict=True):
            np.testing.assert_array_equal(array.view(np.uint8), kept.view(np.uint8))


class Elsewhere:
    """A call with its arrays elsewhere: ``put(array)`` takes one there, ``get(there, array)`` reads it."""

    def __init__(self, call, put, get):
        self.call, self._put, self._get, self._there = call, put, get, {}
        self.arguments = tuple(self._moved(argument) for argument in call.arguments)

    def _moved(self, thing):
        if isinstance(thing, list) and any(isinstance(item, np.ndarray) for item in thing):
            return [self._moved(item) for item in thing]
        if not isinstance(thing, np.ndarray):
            return thing
        if id(thing) not in self._there:
            self._there[id(thing)] = self._put(thing)
        return self._there[id(thing)]

    def check(self):
        """Read what is there, and check it."""
        for array in (self.call.received, *self.call.sent):
            if id(array) in self._there:
                self._get(self._there[id(array)], array)
        self.call.check()


def run(comm, form, method, arguments, **options):
    """Call a collective in one of its forms, and complete it."""
    if form == "blocking":
        getattr(comm, method)(*arguments, **options)
    elif form == "nonblocking":
        getattr(comm, f"I{method.lower()}")(*arguments, **options).Wait()
    else:
        request = getattr(comm, f"{method}_init")(*arguments, **options)
        request.Start()
        request.Wait()
        request.Free()


def values(rng, dtype, count):
    """Draw elements whose sums are exact in any order."""
    dtype = np.dtype(dtype)
    if dtype.kind in "fc" or dtype.name == "bfloat16":
        return rng.integers(-8, 9, count).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def poison(dtype, count):
    """Give memory that nobody has written to."""
    return np.full(count * np.dtype(dtype).itemsize, 0xA5, np.uint8).view(dtype)


def combined(vectors, op=MPI.SUM):
    """Combine vectors in the order of the ranks."""
    function = OPS[op.handle]
    return reduce(lambda left, right: function(left, right).astype(left.dtype), vectors)


def draw(method, rank, size, *, count, dtype, seed, root=0, in_place=False, op=MPI.SUM):
    """Draw a call: the same seed on all ranks gives the parts of one collective.

    `count` elements are in a block, or in the vector where there are no blocks; where blocks may be unequal,
    it is the most that one has.
    """
    rng = np.random.default_rng(seed)
    if method == "Barrier":
        return Call()
    if method == "Bcast":
        vector = values(rng, dtype, count)
        buffer = vector.copy() if rank == root else poison(dtype, count)
        return Call((buffer, root), buffer, vector)
    if method in REDUCING:
        return _reducing(method, rank, size, count, dtype, rng, root, in_place, op)
    unequal = method in UNEQUAL
    if METHODS[method] == "alltoall":
        return _alltoall(rank, size, count, dtype, rng, unequal, in_place)
    counts = _counts(rng, size, count, unequal)
    places = _places(rng, counts, unequal)
    blocks = [values(rng, dtype, length) for length in counts]
    whole = _whole(dtype, counts, places, blocks)
    match METHODS[method]:
        case "allgather":
            return _gathered(rank, whole, counts, places, blocks, unequal, in_place)
        case "gather" if rank == root:
            return _gathered(rank, whole, counts, places, blocks, unequal, in_place, root)
        case "gather":
            return Call((blocks[rank], None, root), sent=(blocks[rank],))
        case "scatter":
            spec = _spec(whole, counts, places, unequal) if rank == root else None
            sent = (whole,) if rank == root else ()
            if in_place:
                return Call((spec, MPI.IN_PLACE, root), sent=sent)
            received = poison(dtype, counts[rank])
            return Call((spec, received, root), received, blocks[rank], sent)
    raise AssertionError(method)


def _gathered(rank, whole, counts, places, blocks, unequal, in_place, *root):
    """Where blocks of all ranks arrive."""
    received = poison(whole.dtype, len(whole))
    send = blocks[rank].copy()
    if in_place:
        received[places[rank] : places[rank] + counts[rank]] = send
    spec = _spec(received, counts, places, unequal)
    arguments = (MPI.IN_PLACE if in_place else send, spec, *root)
    return Call(arguments, received, whole, () if in_place else (send,))


def _alltoall(rank, size, count, dtype, rng, unequal, in_place):
    counts = [_counts(rng, size, count, unequal) for _ in range(size)]
    if not unequal:
        counts = [[count] * size] * size
    if in_place:  # what is sent to a rank is as long as what comes from it
        counts = [[counts[min(s, d)][max(s, d)] for d in range(size)] for s in range(size)]
    blocks = [[values(rng, dtype, length) for length in row] for row in counts]
    incoming = [row[rank] for row in counts]
    from_places, to_places = (_places(rng, each, unequal) for each in (counts[rank], incoming))
    wanted = _whole(dtype, incoming, to_places, [row[rank] for row in blocks])
    if in_place:
        received = _whole(dtype, incoming, to_places, blocks[rank])
        return Call((MPI.IN_PLACE, _spec(received, incoming, to_places, unequal)), received, wanted)
    received, send = poison(dtype, len(wanted)), _whole(dtype, counts[rank], from_places, blocks[rank])
    specs = _spec(send, counts[rank], from_places, unequal), _spec(received, incoming, to_places, unequal)
    return Call(specs, received, wanted, (send,))


def _reducing(method, rank, size, count, dtype, rng, root, in_place, op):
    counts = [count]
    if METHODS[method] == "reduce_scatter":
        counts = _counts(rng, size, count, method in UNEQUAL)
    vectors = [values(rng, dtype, sum(counts)) for _ in range(size)]
    mine, received = vectors[rank].copy(), poison(dtype, sum(counts))
    if in_place:
        received[:] = mine
    wanted = received.copy()
    more = (op,)
    match METHODS[method]:
        case "allreduce":
            wanted = combined(vectors, op)
        case "scan":
            wanted = combined(vectors[: rank + 1], op)
        case "exscan" if rank > 0:
            wanted = combined(vectors[:rank], op)
        case "reduce":
            more = (op, root)
            if rank != root:
                return Call((mine, None, op, root), sent=(mine,))
            wanted = combined(vectors, op)
        case "reduce_scatter":
            begin = sum(counts[:rank])
            block = combined(vectors, op)[begin : begin + counts[rank]]
            more = (counts, op) if method in UNEQUAL else (op,)
            if in_place:  # what follows the block is anything
                return _Beginning((MPI.IN_PLACE, received, *more), received, block)
            received, wanted = poison(dtype, counts[rank]), block
    arguments = (MPI.IN_PLACE if in_place else mine, received, *more)
    return Call(arguments, received, wanted, () if in_place else (mine,))


class _Beginning(Call):
    """A call of which only the beginning of the memory is defined."""

    def check(self):
        np.testing.assert_array_equal(self.received[: len(self.wanted)], self.wanted)


def _counts(rng, size, count, unequal):
    """Draw the lengths of blocks."""
    if not unequal:
        return [count] * size
    return [int(length) for length in rng.choice([0, count, rng.integers(0, count + 1)], size)]


def _places(rng, counts, unequal):
    """Place blocks one after the other; unequal ones half of the time in any order with gaps."""
    spread = unequal and bool(rng.integers(0, 2))
    order, gaps = rng.permutation(len(counts)), rng.integers(0, 3, len(counts))
    if not spread:
        return list(accumulate(counts, initial=0))[:-1]
    places, end = [0] * len(counts), 0
    for block in order:
        places[block] = end + int(gaps[block])
        end = places[block] + counts[block]
    return places


def _whole(dtype, counts, places, blocks):
    """Put blocks to their places."""
    whole = poison(dtype, max(place + count for place, count in zip(places, counts, strict=True)))
    for place, count, block in zip(places, counts, blocks, strict=True):
        whole[place : place + count] = block
    return whole


def _spec(array, counts, places, unequal):
    """Give the message spec of all blocks."""
    if not unequal:
        return array
    following = places == list(accumulate(counts, initial=0))[:-1]
    return [array, counts] if following else [array, (counts, places)]
