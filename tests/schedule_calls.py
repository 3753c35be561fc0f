"""Every rank's part of a collective on random data, for programs that run in one process.

The data are maps that are composed or added: exact, and composing them does not commute.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from mpicoll.engine.layout import Shape
from mpicoll.schedule.collectives import COLLECTIVES

ITEM = np.dtype([("a", np.uint32), ("b", np.uint32)])  # the map x -> a x + b modulo 2**32
NOTHING = np.empty(0, ITEM)


def compose(left, right):
    """First left, then right: associative, exact, and not commutative."""
    out = np.empty_like(left)
    out["a"] = left["a"] * right["a"]
    out["b"] = left["b"] * right["a"] + right["b"]
    return out


def add(left, right):
    out = np.empty_like(left)
    out["a"], out["b"] = left["a"] + right["a"], left["b"] + right["b"]
    return out


class Call(NamedTuple):
    """What a rank passes, and what must be in its receive buffer at the end, as far as that is defined."""

    shape: Shape
    sendbuf: np.ndarray
    recvbuf: np.ndarray
    wanted: np.ndarray


def shape(schedule, rank, counts, in_place=False, **displaced):
    near = frozenset(range(schedule.size))
    own = (rank, schedule.size, schedule.root, schedule.chunks)
    return Shape(*own, tuple(counts), ITEM.itemsize, in_place, near, **displaced)


def calls_of(schedule, counts, op, in_place, displaced, alone, rng):
    """Give every rank's part of a collective on random data.

    Parameters
    ----------
    counts : list of int, or of lists of int
        Length of the vector or of each block; in an all-to-all of each block that each rank sends.
    displaced : bool
        Whether the blocks are in any order, with gaps, or where they are only sent anywhere.
    alone : bool
        Whether the ranks of a gather or scatter, but the root, know no block but their own.
    """
    if schedule.collective == "alltoall":
        return calls_of_alltoall(schedule, counts, displaced, rng)
    if schedule.collective in ("allgather", "gather"):
        return calls_of_gather(schedule, counts, in_place, displaced, alone, rng)
    if schedule.collective == "scatter":
        return calls_of_scatter(schedule, counts, in_place, displaced, alone, rng)
    data = [drawn(sum(counts), rng) for _ in range(schedule.size)]
    return [call_of_vector(schedule, rank, counts, data, op, in_place) for rank in range(schedule.size)]


def call_of_vector(schedule, rank, counts, data, op, in_place):
    collective, at_root = schedule.collective, rank == schedule.root
    mine, total = data[rank], reduce(op, data)
    start = mine.copy() if in_place else poison(len(mine))
    if collective == "bcast":
        start = data[rank].copy() if at_root else poison(len(mine))
        start.flags.writeable = not at_root
        return Call(shape(schedule, rank, counts), NOTHING, start, data[schedule.root])
    if collective == "reduce" and not at_root:
        return Call(shape(schedule, rank, counts), mine, NOTHING, NOTHING)
    if collective == "scan":
        total = reduce(op, data[: rank + 1])
    elif collective == "exscan":
        total = reduce(op, data[:rank]) if rank else start.copy()
    elif collective == "reduce_scatter":
        edges = np.cumsum([0, *counts])
        total = total[edges[rank] : edges[rank + 1]]
        start = start if in_place else poison(len(total))
    elif collective == "barrier":  # whose op does not mind to combine twice, as ours does
        total = NOTHING
    return Call(shape(schedule, rank, counts, in_place), NOTHING if in_place else mine, start, total)


def calls_of_gather(schedule, counts, in_place, displaced, alone, rng):
    blocks = [drawn(count, rng) for count in counts]
    for rank, mine in enumerate(blocks):
        if schedule.collective == "gather" and rank != schedule.root:
            yield Call(shape(schedule, rank, known(counts, rank, alone)), mine, NOTHING, NOTHING)
            continue
        places = apart(counts, rng) if displaced else following(counts)
        wanted = poison(extent(places, counts))
        start = wanted.copy()
        for block, place in zip(blocks, places, strict=True):
            wanted[place : place + len(block)] = block
        if in_place:
            start[places[rank] : places[rank] + len(mine)] = mine
        own = shape(schedule, rank, counts, in_place, displacements=places if displaced else None)
        yield Call(own, NOTHING if in_place else mine, start, wanted)


def calls_of_scatter(schedule, counts, in_place, displaced, alone, rng):
    places = anywhere(counts, rng) if displaced else following(counts)
    memory = drawn(extent(places, counts), rng)
    for rank, (place, count) in enumerate(zip(places, counts, strict=True)):
        block = memory[place : place + count]
        if rank != schedule.root:
            own = shape(schedule, rank, known(counts, rank, alone))
            yield Call(own, NOTHING, poison(count), block)
            continue
        own = shape(schedule, rank, counts, in_place, displacements=places if displaced else None)
        yield Call(own, memory, *((NOTHING, NOTHING) if in_place else (poison(count), block)))


def calls_of_alltoall(schedule, counts, displaced, rng):
    incoming = [list(column) for column in zip(*counts, strict=True)]
    alike = counts == incoming
    out = [anywhere(row, rng) if displaced else following(row) for row in counts]
    memory = [drawn(extent(*sent), rng) for sent in zip(out, counts, strict=True)]
    for rank, lengths in enumerate(incoming):
        places = apart(lengths, rng) if displaced else following(lengths)
        wanted = poison(extent(places, lengths))
        for source, (place, count) in enumerate(zip(places, lengths, strict=True)):
            begin = out[source][rank]
            wanted[place : place + count] = memory[source][begin : begin + count]
        own = shape(
            schedule,
            rank,
            counts[rank],
            displacements=out[rank] if displaced else None,
            incoming=None if alike else tuple(lengths),
            incoming_displacements=places if displaced else None,
        )
        yield Call(own, memory[rank], poison(len(wanted)), wanted)


def known(counts, rank, alone):
    return [count * (r == rank or not alone) for r, count in enumerate(counts)]


def following(counts):
    return tuple(np.cumsum([0, *counts])[:-1].tolist())


def apart(counts, rng):
    """Place blocks in any order, with gaps."""
    order = rng.permutation(len(counts))
    gaps = rng.choice([0, 0, 1, 3], len(counts))
    places = np.empty(len(counts), int)
    places[order] = np.cumsum(gaps) + following(np.array(counts)[order])
    return tuple(places.tolist())


def anywhere(counts, rng):
    """Place blocks so that they may overlap."""
    return tuple(rng.integers(0, sum(counts) + 2, len(counts)).tolist())


def extent(places, counts):
    """Give the length of memory that holds all blocks, and a gap at its end."""
    return max(place + count for place, count in zip(places, counts, strict=True)) + 2


def poison(count):
    return np.full(count * ITEM.itemsize, 0xA5, np.uint8).view(ITEM)


def drawn(count, rng):
    return rng.integers(0, 2**32, (count, 2), dtype=np.uint32).view(ITEM).reshape(count)


def parameters_of(algorithm, size, draw):
    parameters = {}
    if algorithm.collective in ("bcast", "reduce", "gather", "scatter"):
        parameters["root"] = draw(st.integers(0, size - 1), label="root")
    if "radix" in algorithm.variants:
        parameters["radix"] = draw(st.sampled_from(algorithm.variants["radix"]), label="radix")
    if algorithm.pipelined:
        parameters["chunks"] = draw(st.sampled_from([1, 2, 3, 8]), label="chunks")
    if algorithm.two_level:
        where = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size), label="nodes")
        nodes = [tuple(r for r in range(size) if where[r] == node) for node in range(4)]
        parameters["nodes"] = tuple(node for node in nodes if node)
    return parameters


def counts_of(algorithm, size, draw):
    """Draw the length of the vector, of each block, or of each that each rank sends."""
    if algorithm.collective == "alltoall":
        if algorithm.transit or draw(st.booleans(), label="uniform"):
            return [[draw(st.sampled_from([0, 1, 5]), label="count")] * size] * size
        blocks = st.lists(st.sampled_from([0, 1, 2, 7, 40]), min_size=size, max_size=size)
        rows = [draw(blocks, label=f"counts of rank {rank}") for rank in range(size)]
        if draw(st.booleans(), label="symmetric"):
            return [[rows[min(s, d)][max(s, d)] for d in range(size)] for s in range(size)]
        return rows
    if COLLECTIVES[algorithm.collective].blocks(size) == size and size > 1:
        return draw(st.lists(st.sampled_from([0, 1, 2, 7, 40]), min_size=size, max_size=size), label="counts")
    return [draw(st.sampled_from([0, 1, size - 1, size, size + 1, 40, 97]), label="count")]
