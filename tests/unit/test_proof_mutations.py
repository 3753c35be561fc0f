"""A schedule that is changed in one place is refused, unless it still does the same.

Whether it does is not for the proof to say: a second interpreter runs the changed schedule with real
values (``schedule_interpreter.py``).
"""

from dataclasses import replace

import numpy as np
import pytest
from collective_results import compared
from collective_results import given as given_values
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schedule_interpreter import StuckError, run

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.schedule import algorithms
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.moves import Scratch, resolve, slots
from mpicoll.schedule.proof import ProofError, placements, prove
from mpicoll.schedule.schedule import moves_of

REPEATING = {"scatter_ring", "scatter_doubling"}  # what a rank has of the scatter is gathered once more
OTHER_KIND = {"recv": "reduce", "reduce": "recv", "copy": "combine", "combine": "copy"}


def written(schedule):
    """Give the steps of all ranks as the algorithm wrote them."""
    return [[moves_of(step) for step in schedule.generate(rank)] for rank in range(schedule.size)]


def changed(schedule, *changes):
    """Put other moves in the place of one: each change is (rank, step, move, new moves)."""
    steps = written(schedule)
    for rank, number, place, moves in changes:
        step = steps[rank][number]
        steps[rank][number] = step[:place] + moves + step[place + 1 :]
    return replace(schedule, generate=lambda rank: steps[rank])


def shifted(spec):
    """Name the next chunks instead."""
    if isinstance(spec, Scratch):
        return Scratch(shifted(spec.slots))
    if isinstance(spec, range):
        return range(spec.start + 1, spec.stop + 1)
    return spec + 1 if isinstance(spec, int) else [shifted(part) for part in spec]


def places(schedule):
    """Give (rank, step, place, move) of every move that names something."""
    for rank, steps in enumerate(written(schedule)):
        for number, step in enumerate(steps):
            for place, move in enumerate(step):
                if resolve(move.chunks, schedule.chunks, schedule.vectors):
                    yield rank, number, place, move


def same(schedule, one, other):
    """Whether two specs name the same chunks."""
    one, other = (set(slots(resolve(spec, schedule.chunks, schedule.vectors))) for spec in (one, other))
    return one == other


def mutants_of_a_move(schedule):
    """Give every way to change one move, by name."""
    for rank, number, place, move in places(schedule):
        at = rank, number, place
        other = move._replace(chunks=shifted(move.chunks))
        yield "drop", move, changed(schedule, (*at, ()))
        yield "double", move, changed(schedule, (*at, (move, move)))
        if not same(schedule, other.chunks, move.chunks):
            yield "chunk", move, changed(schedule, (*at, (other,)))
        if move.kind in OTHER_KIND:
            yield "kind", move, changed(schedule, (*at, (move._replace(kind=OTHER_KIND[move.kind]),)))
        for step in (1, -1):
            peer = (move.peer + step) % schedule.size
            if move.source is None and peer not in {rank, move.peer}:
                yield "peer", move, changed(schedule, (*at, (move._replace(peer=peer),)))


def mutants_of_a_message(schedule):
    """Give every way to change both sides of one message alike: nothing is left that would not fit."""
    sides = {}
    for rank, number, place, move in places(schedule):
        if move.source is None:
            pair = (rank, move.peer) if move.kind == "send" else (move.peer, rank)
            sides.setdefault((pair, move.kind == "send"), []).append((rank, number, place, move))
    for (pair, sending), sends in sides.items():
        if not sending:
            continue
        for sent, received in zip(sends, sides[pair, False], strict=True):
            both = (sent, received)
            yield "drop both", received[3], changed(schedule, *((*at, ()) for *at, _ in both))
            yield "double both", received[3], changed(schedule, *((*at, (m, m)) for *at, m in both))
            if not same(schedule, shifted(sent[3].chunks), sent[3].chunks):
                moved = ((*at, (m._replace(chunks=shifted(m.chunks)),)) for *at, m in both)
                yield "chunk of both", received[3], changed(schedule, *moved)


def mutants_of_the_order(schedule):
    """Give every exchange of two steps of a rank that follow each other."""
    for rank, steps in enumerate(written(schedule)):
        for number in range(len(steps) - 1):
            if steps[number] and steps[number + 1]:
                swapped = written(schedule)
                swapped[rank][number : number + 2] = steps[number + 1], steps[number]
                mutant = replace(schedule, generate=lambda rank, swapped=swapped: swapped[rank])
                yield "swap", (steps[number], steps[number + 1]), mutant


def is_right(schedule):
    """Whether the results are right, with the same bits everywhere, says the second interpreter."""
    random = np.random.default_rng(1)
    data = random.uniform(1, 2, (schedule.size, schedule.chunks, 24))
    op = np.maximum if schedule.collective == "barrier" else np.add
    try:
        values = run(schedule, given_values(schedule, data), op)
    except StuckError:
        return False
    bits = {}
    return all(
        value is not None
        and np.allclose(value, due, rtol=1e-12)
        and bits.setdefault((chunk, due.tobytes()), value.tobytes()) == value.tobytes()
        for _, chunk, value, due in compared(schedule, values, data, op)
    )


def proof_or_none(schedule):
    try:
        return prove(schedule)
    except ProofError:
        return None


def changes_nothing(name, move):
    """Whether the mutation leaves every value as it is, by the meaning of the move alone.

    What is copied or received twice is there as if once.
    """
    return (name == "double" and move.kind == "copy") or (name == "double both" and move.kind == "recv")


def judge(schedule, name, what, mutant):
    """Compare the proof's judgement of a mutant with what must be."""
    proof, right = proof_or_none(mutant), is_right(mutant)
    assert (proof is not None) == right, f"{name} {what}: proof {proof}, but right is {right}"
    if proof is None or schedule.collective == "barrier":  # which can do without some of its messages
        return
    if name == "swap":  # two steps may change places only if nothing passes the same way between two ranks
        before, after = ({(move.peer, move.kind == "send") for move in step} for step in what)
        assert not before & after
    elif name == "drop":  # a copy of what is there already
        assert (what.kind, proof.expressions) == ("copy", prove(schedule).expressions)
    elif not changes_nothing(name, what):  # so is this
        assert (what.kind, schedule.name in REPEATING) == ("recv", True)
    elif name == "double both":
        assert proof.sent_total > prove(schedule).sent_total


def small_schedules(found):
    few = found.collective == "alltoall" or not found.serves(5)
    for size in filter(found.serves, (2, 3, 4) if few else (2, 3, 5)):
        for nodes in list(placements(size).values()) if found.two_level else [None]:
            parameters = {name: values[-1] for name, values in found.variants.items()}
            if "chunks" in parameters:
                parameters["chunks"] = 3
            if found.rooted:
                parameters["root"] = size // 2
            yield found.schedule(size, nodes=nodes, **parameters)


@pytest.mark.parametrize("found", algorithms(), ids=lambda found: f"{found.collective}-{found.name}")
def test_every_mutant_of_small_schedules(found):
    for schedule in small_schedules(found):
        for kind in (mutants_of_a_move, mutants_of_a_message, mutants_of_the_order):
            for name, what, mutant in kind(schedule):
                judge(schedule, name, what, mutant)


@st.composite
def drawn_mutants(draw):
    collective = draw(st.sampled_from(list(COLLECTIVES)))
    size = draw(st.integers(4, 12))
    found = draw(st.sampled_from([found for found in algorithms(collective) if found.serves(size)]))
    parameters = {name: draw(st.sampled_from(values)) for name, values in found.variants.items()}
    if found.rooted:
        parameters["root"] = draw(st.integers(0, size - 1))
    nodes = draw(st.sampled_from(list(placements(size).values())))
    schedule = found.schedule(size, nodes=nodes, **parameters)
    kind = draw(st.sampled_from([mutants_of_a_move, mutants_of_a_message, mutants_of_the_order]))
    skipped = draw(st.integers(0, 400))
    mutants = [mutant for mutant, _ in zip(kind(schedule), range(skipped + 1), strict=False)]
    assume(mutants)
    return schedule, *mutants[-1]


@given(drawn_mutants())
@settings(deadline=None)
def test_drawn_mutants(drawn):
    judge(*drawn)


def test_swapped_reduces_lose_rank_order():
    (star,) = (found for found in algorithms("allreduce") if found.name == "star")
    proofs = [proof_or_none(m) for *_, m in mutants_of_the_order(star.schedule(4))]
    accepted = [proof for proof in proofs if proof]
    assert len(accepted) == 2
    assert not any(proof.rank_order for proof in accepted)
