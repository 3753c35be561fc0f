"""The proof: a schedule run symbolically, for all ranks at once.

What :func:`prove` states of a schedule that it accepts:

1. every rank ends with what the collective promises, each contribution exactly once;
2. ranks that must end with the same value compute the same expression, up to the order of the two
   operands of an operation, which IEEE arithmetic does not notice: the same bits on all of them;
3. whether operands stay in rank order, and whether all chunks are computed alike;
4. it ends even if every send is synchronous, and every send meets its receive, in order;
5. what it costs.

:func:`check` compares this with what is registered, and :func:`verify` does so for every algorithm.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from typing import Any

from .collectives import COLLECTIVES
from .registry import Algorithm, Nodes, algorithms
from .schedule import Schedule, Step
from .symbolic import Expressions, Values, execute, initial_values, numbers
from .walk import Finished, Message, ProofError

__all__ = [
    "Proof",
    "ProofError",
    "Verdict",
    "check",
    "depends_on_placement",
    "placements",
    "prove",
    "roots",
    "verify",
]


@dataclass(frozen=True)
class Proof:
    """What is true of a schedule.

    Attributes
    ----------
    rank_order : bool
        Every result's operands are in rank order: safe for an op that does not commute.
    uniform : bool
        The same results are computed by the same expression in all chunks: that of an element depends
        neither on its position nor on the length of the vector.
    transit : bool
        Some chunks pass through ranks that neither begin nor end with them. Where lengths are given by
        counts, such a rank does not know theirs.
    rounds : int
        Messages on the critical path, each taking one unit of time.
    steps : int
        Steps of the rank that has most, empty ones not counted.
    sent_max, sent_total : Fraction
        What a rank sends at most, and what all send together, in vectors.
    reductions_max : Fraction
        What a rank combines at most, in vectors.
    vectors : int
        Scratch vectors that are used.
    expression : str
        How the first rank with a result computes its first chunk, for example ``((0+1)+(2+3))``;
        "" if there are no results.
    expressions : frozenset of str
        How all chunks are computed, operands sorted: equal for two schedules whose results are
        bitwise the same wherever the elements are.
    """

    rank_order: bool
    uniform: bool
    transit: bool
    rounds: int
    steps: int
    sent_max: Fraction
    sent_total: Fraction
    reductions_max: Fraction
    vectors: int
    expression: str
    expressions: frozenset[str]


def prove(schedule: Schedule) -> Proof:
    """Run a schedule symbolically.

    Returns
    -------
    Proof
        What is true of it.

    Raises
    ------
    ProofError
        If it does not do what the collective promises, with the rank, step, chunk and peers where
        it goes wrong.
    """
    collective = COLLECTIVES[schedule.collective]
    expressions = Expressions(collective.idempotent)
    values = initial_values(schedule, expressions)
    sent, combined, steps = ([0] * schedule.size for _ in range(3))
    rounds = highest = 0
    for event in execute(schedule, expressions, values):
        if isinstance(event, Message):
            rounds = max(rounds, event.round)
            sent[event.source] += event.sent[1] - event.sent[0]
        elif isinstance(event, Finished):
            steps[event.rank] += any(move.chunks for move in event.moves)
            combined[event.rank] += _combined(event.moves)
            named = (runs for move in event.moves for runs in (move.chunks, move.source or ()))
            highest = max([highest, *(stop for runs in named for _, stop in runs)])
    results, transit = _results(schedule, expressions, values)
    by_chunk = {expressions.unordered[value] for value in results}
    length = schedule.chunks // collective.vectors(schedule.size)  # of a vector, in chunks
    return Proof(
        rank_order=all(expressions.span[value] is not None for value in results),
        uniform=len(by_chunk) == len({expressions.contributions[value] for value in results}),
        transit=transit,
        rounds=rounds,
        steps=max(steps),
        sent_max=Fraction(max(sent), length),
        sent_total=Fraction(sum(sent), length),
        reductions_max=Fraction(max(combined), length),
        vectors=max(0, -(-highest // schedule.chunks) - 1),
        expression=expressions.text(results[0]) if results else "",
        expressions=frozenset(expressions.text(value) for value in by_chunk),
    )


def _combined(moves: Step) -> int:
    """How many chunks the step combines."""
    reducing = (move.chunks for move in moves if move.kind in ("reduce", "combine"))
    return sum(stop - start for runs in reducing for start, stop in runs)


def _results(schedule: Schedule, expressions: Expressions, values: Values) -> tuple[list[int], bool]:
    """Check what all ranks end with; give it, and whether a rank holds what it neither had nor needs."""
    collective = COLLECTIVES[schedule.collective]
    results: list[int] = []
    transit = False
    agreed: dict[tuple[int, int], tuple[int, int]] = {}  # (chunk, contributions): rank and expression
    for place in chain.from_iterable(map(schedule.places, range(schedule.size))):
        rank, chunk = place.rank, place.chunk
        due = collective.after(place)
        if due is None:
            there = any(value is not None for value in values[rank][chunk :: schedule.chunks])
            transit |= there and collective.before(place) is None
            continue
        value = values[rank][chunk]
        held = 0 if value is None else expressions.contributions[value]
        if value is None or held != due:
            raise ProofError(
                f"{schedule.name}: rank {rank} ends with contributions {_bits(held) or 'none'} in chunk "
                f"{chunk}; missing {_bits(due & ~held) or 'none'}, in excess {_bits(held & ~due) or 'none'}"
            )
        other, expression = agreed.setdefault((chunk, due), (rank, value))
        if expressions.unordered[value] != expressions.unordered[expression]:
            raise ProofError(
                f"{schedule.name}: rank {rank} ends with chunk {chunk} computed as "
                f"{expressions.text(value)}, rank {other} as {expressions.text(expression)}"
            )
        results.append(value)
    return results, transit


def _bits(contributions: int) -> str:
    """Name a set of contributions."""
    return ", ".join(map(str, numbers(contributions)))


def check(algorithm: Algorithm, size: int, *, nodes: Nodes | None = None, **parameters: Any) -> Proof:
    """Prove an algorithm at one size and compare what it found with what is registered.

    Parameters
    ----------
    algorithm : Algorithm
        The algorithm.
    size, nodes, **parameters
        As for :meth:`~mpicoll.schedule.registry.Algorithm.schedule`.

    Raises
    ------
    ProofError
        If the schedule is wrong, or not as registered.
    """
    schedule = algorithm.schedule(size, nodes=nodes, **parameters)
    proof = prove(schedule)
    steps, sent = algorithm.cost(size, nodes=nodes, **parameters)
    for what, formula, expected, found in (
        ("steps", algorithm.steps, steps, proof.rounds),
        ("sent", algorithm.sent, sent, proof.sent_max),
    ):
        if found > expected or (found != expected and not formula.startswith("<=")):
            raise ProofError(f"{algorithm.name}: {what} registered as {formula} = {expected}, found {found}")
    if not algorithm.commutative and not proof.rank_order:
        raise ProofError(
            f"{algorithm.name}: registered for ops that do not commute, but computes {proof.expression}"
        )
    if proof.transit and not algorithm.transit:
        raise ProofError(f"{algorithm.name}: chunks pass through ranks that neither begin nor end with them")
    if proof.vectors != schedule.vectors:
        raise ProofError(
            f"{algorithm.name}: {schedule.vectors} scratch vectors registered, {proof.vectors} used"
        )
    return proof


def depends_on_placement(algorithm: Algorithm, size: int, **parameters: Any) -> bool:
    """Whether the way ranks are placed on nodes changes the expression, and so the last bits."""
    if not algorithm.two_level:
        return False
    found = {check(algorithm, size, nodes=n, **parameters).expressions for n in placements(size).values()}
    return len(found) > 1


@dataclass(frozen=True)
class Verdict:
    """What :func:`verify` found for one algorithm at one size.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm.
    size : int
        Number of ranks.
    parameters : dict
        Its own parameters, ``root`` and ``nodes``.
    placement : str
        What `nodes` is, in words; "" for a flat algorithm.
    ok : bool
        Whether all is proved.
    message : str
        What is wrong; "" if nothing.
    proof : Proof or None
        None if it is wrong.
    """

    algorithm: Algorithm
    size: int
    parameters: dict[str, Any]
    placement: str
    ok: bool
    message: str
    proof: Proof | None


def verify(
    sizes: Iterable[int], collective: str | None = None, names: Sequence[str] | None = None
) -> Iterator[Verdict]:
    """Check the registered algorithms at every size, with their variants, roots and many placements.

    Parameters
    ----------
    sizes : iterable of int
        Numbers of ranks; those that an algorithm does not serve are left out for it.
    collective, names : optional
        Which algorithms; all by default.

    Yields
    ------
    Verdict
        One for each combination, and one more for an algorithm that is registered as commutative
        although its operands were in rank order throughout.
    """
    sizes = list(sizes)
    for algorithm in algorithms(collective):
        if names is not None and algorithm.name not in names:
            continue
        disordered = False
        for size in filter(algorithm.serves, sizes):
            for parameters, placement in _variants(algorithm, size):
                verdict = _verdict(algorithm, size, parameters, placement)
                disordered |= verdict.proof is None or not verdict.proof.rank_order
                yield verdict
        if algorithm.commutative and not disordered and max(sizes, default=0) > 2:
            message = "registered as commutative, but its operands were in rank order throughout"
            yield Verdict(algorithm, max(sizes), {}, "", False, message, None)


def _variants(algorithm: Algorithm, size: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Give the parameters to try, with the placement in words."""
    where = placements(size) if algorithm.two_level else {"": None}
    variants = dict(algorithm.variants) | ({"root": roots(size)} if algorithm.rooted else {})
    for values in product(*variants.values()):
        own = dict(zip(variants, values, strict=True))
        for placement, nodes in where.items():
            yield own if nodes is None else own | {"nodes": nodes}, placement


def _verdict(algorithm: Algorithm, size: int, parameters: dict[str, Any], placement: str) -> Verdict:
    try:
        proof = check(algorithm, size, **parameters)
    except ValueError as error:  # a ProofError, or what the algorithm raised itself
        return Verdict(algorithm, size, parameters, placement, False, str(error), None)
    return Verdict(algorithm, size, parameters, placement, True, "", proof)


def roots(size: int) -> list[int]:
    """Give the roots to try: all of a few ranks, and of many the first two, one inside and the last."""
    return list(range(size)) if size <= 8 else [0, 1, size // 2, size - 1]


def placements(size: int, seed: int = 0) -> dict[str, Nodes]:
    """Ways to place ranks on nodes, for people's eyes and for the proof to try.

    Returns
    -------
    dict of str to tuple of tuple of int
        What it is, and the ranks of each node. Each placement is there once.
    """
    draw = random.Random(seed * 1009 + size)
    ranks = list(range(size))
    found: dict[str, Nodes] = {
        "one node": (tuple(ranks),),
        "one rank a node": tuple((rank,) for rank in ranks),
    }
    for length in (2, 3, 8):
        blocks = range(0, size, length)
        even = "" if size % length == 0 else ", the last one smaller"
        found[f"{length} ranks a node{even}"] = tuple(
            tuple(ranks[first : first + length]) for first in blocks
        )
        found[f"round-robin over {len(blocks)} nodes"] = tuple(
            tuple(ranks[first :: len(blocks)]) for first in range(len(blocks))
        )
    for name, order in (("uneven blocks", ranks), ("random", draw.sample(ranks, size))):
        cuts = sorted(draw.sample(range(1, size), draw.randrange(size)))
        found[name] = tuple(
            tuple(sorted(order[start:stop])) for start, stop in zip([0, *cuts], [*cuts, size], strict=True)
        )
    names = {nodes: name for name, nodes in reversed(found.items())}  # of equal ones the first name
    return {name: nodes for name, nodes in found.items() if names[nodes] == name}
