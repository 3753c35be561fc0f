"""Random collectives on several communicators, all results checked: as many as you have time for.

mpiexec -n 4 python tests/mpi/stress.py --count 10000 --seed 1

Every rank draws the same numbers and makes of them what its communicator allows, so a seed gives the same
calls again. Nonblocking ones stay under way while others are called. Exits with status 1 on a wrong result.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.schedule import algorithms, find

sys.path.insert(0, str(Path(__file__).parents[1]))
from collective_calls import FORMS, METHODS, REDUCING, ROOTED, UNEQUAL, Call, draw, run

WORLD = MPI.COMM_WORLD
LONGEST = 20  # the logarithm of the longest vector in bytes
UNDER_WAY = 6  # nonblocking ones at most
TYPES = ["u1", "i8", "f4", "c16"]
SUMMED = ["i4", "u8", "f4", "f8", "c8"]
UNKNOWN = ["Gatherv", "Scatterv", "Alltoallv"]  # where not every rank knows the lengths of all blocks
FIELDS = ["comm", "method", "algorithm", "transport", "form", "length", "dtype", "root", "in_place", "wait"]


class Place(NamedTuple):
    """A communicator of the rank's, and whether ranks of it share memory."""

    name: str
    comm: mpicoll.Communicator
    shares: bool


class Pending(NamedTuple):
    """A nonblocking collective under way, and what it was."""

    request: MPI.Request
    call: Call
    what: str


def places() -> list[Place]:
    """Make the communicators: all ranks, two placements on emulated nodes, halves, and a duplicate."""
    size = WORLD.size
    robin = tuple(tuple(range(first, size, 2)) for first in range(min(2, size)))
    uneven = tuple(node for node in (tuple(range(1)), tuple(range(1, size))) if node)
    world = mpicoll.Communicator(WORLD)
    half = mpicoll.Communicator(WORLD.Split(WORLD.rank % 2, WORLD.rank))
    return [
        Place("world", world, size > 1),
        Place("two nodes", mpicoll.Communicator(WORLD, nodes=robin), size > 2),
        Place("one rank apart", mpicoll.Communicator(WORLD, nodes=uneven), size > 2),
        Place("half", half, half.size > 1),
        Place("duplicate", world.Dup(), size > 1),
    ]


def pick(choices: Any, drawn: float) -> Any:
    """Give the choice that a number from 0 to 1 stands for."""
    return choices[int(drawn * len(choices))]


def drawn_call(place: Place, seed: int, drawn: dict[str, float]) -> tuple[str, str, Call, dict[str, Any]]:
    """Give a form, a method, the rank's part of the call, and the options of it."""
    comm = place.comm
    form, method = pick(FORMS, drawn["form"]), pick(list(METHODS), drawn["method"])
    suited = [
        algorithm.name
        for algorithm in algorithms(METHODS[method])
        if algorithm.serves(comm.size) and not (algorithm.transit and method in UNEQUAL)
    ]
    # what Exscan receives on rank 0 is left to the MPI library
    others = ["auto", "auto"] if method == "Exscan" else ["auto", "auto", "native"]
    name = pick([*others, *suited], drawn["algorithm"])
    options = {"algorithm": name}
    if name in suited:
        can_share = place.shares and method not in UNKNOWN and form != "persistent"
        transports = ["auto", "message", *["shared", "shared"] * can_share]
        options["transport"] = pick(transports, drawn["transport"])
    dtype = np.dtype(pick(SUMMED if method in REDUCING else TYPES, drawn["dtype"]))
    nbytes = 2 ** (LONGEST * drawn["length"] ** 2)
    if name in suited and (limit := find(METHODS[method], name).limit):
        nbytes = min(nbytes, limit / 2)
    blocks = 1 if METHODS[method] in ("bcast", "reduce", "allreduce", "scan", "exscan") else comm.size
    root = pick(range(comm.size), drawn["root"])
    # Open MPI's own Ialltoallv in place is wrong now and then, from a plain communicator, too
    in_place = drawn["in_place"] < 0.3 and name != "native" and (method not in ROOTED or root == comm.rank)
    count = max(1, int(nbytes / dtype.itemsize / blocks))
    call = draw(
        method, comm.rank, comm.size, count=count, dtype=dtype, seed=seed, root=root, in_place=in_place
    )
    return form, method, call, options


def finish(pending: Pending) -> None:
    """Complete a nonblocking collective."""
    pending.request.Wait()
    check(pending.call, pending.what)


def check(call: Call, what: str) -> None:
    """End the job where a result is wrong."""
    try:
        call.check()
    except AssertionError as error:
        print(f"stress: rank {WORLD.rank}: {what}: {error}", file=sys.stderr, flush=True)
        WORLD.Abort(1)


def collectives(count: int, seed: int) -> Iterator[str]:
    """Call them; yield the form and the transport of each."""
    where, rng = places(), np.random.default_rng(seed)
    under_way: list[Pending] = []
    for number in range(count):
        drawn = dict(zip(FIELDS, rng.random(len(FIELDS)), strict=True))
        place = pick(where, drawn["comm"])
        form, method, call, options = drawn_call(place, seed + number, drawn)
        what = f"number {number}, {form} {method} on {place.name}, {options}"
        if form == "nonblocking":
            request = getattr(place.comm, f"I{method.lower()}")(*call.arguments, **options)
            under_way.append(Pending(request, call, what))
        else:
            run(place.comm, form, method, call.arguments, **options)
            check(call, what)
        while len(under_way) > drawn["wait"] * UNDER_WAY:
            finish(under_way.pop(int(drawn["wait"] * len(under_way))))
        yield f"{form} {options.get('transport', options['algorithm'])}"
    for pending in under_way:
        finish(pending)


@click.command()
@click.option("--count", default=10_000, show_default=True, help="How many collectives.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
def main(count: int, seed: int) -> None:
    """Call random collectives, check all results, and say what was done."""
    begin, kinds = time.monotonic(), Counter(collectives(count, seed))
    seconds = time.monotonic() - begin
    if WORLD.rank == 0:
        parts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        print(f"stress: {count} collectives on {WORLD.size} ranks, seed {seed}, {seconds:.1f} s: {parts}")


if __name__ == "__main__":
    main()
