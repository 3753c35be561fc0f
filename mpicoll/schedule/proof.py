"""The proof: a schedule run symbolically, for all ranks at once.

The value of a chunk is an expression, an ordered tree of contributions, so that what is proved is not
only *that* each contribution is in the result, but once, in which order, and in the same way on every
rank. Equal expressions are stored once and compared by their number.

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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from .collectives import COLLECTIVES, Place
from .moves import Move, slots
from .registry import Algorithm, Nodes, algorithms
from .schedule import Schedule, Step
from .walk import Event, Finished, Message, Posted, ProofError, name_chunks, walk

__all__ = ["Proof", "ProofError", "Verdict", "check", "depends_on_placement", "placements", "prove", "verify"]


@dataclass(frozen=True)
class Proof:
    """What is true of a schedule.

    Attributes
    ----------
    rank_order : bool
        Every result's operands are in rank order: safe for an op that does not commute.
    uniform : bool
        All chunks are computed by the same expression: the result of an element depends neither on
        its position nor on the length of the vector.
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
        How rank 0 computes its first defined chunk, for example ``((0+1)+(2+3))``.
    expressions : frozenset of str
        How all chunks are computed, operands sorted: equal for two schedules whose results are
        bitwise the same wherever the elements are.
    """

    rank_order: bool
    uniform: bool
    rounds: int
    steps: int
    sent_max: Fraction
    sent_total: Fraction
    reductions_max: Fraction
    vectors: int
    expression: str
    expressions: frozenset[str]


class Expressions:
    """Ordered trees of contributions, each stored once and named by its number.

    Attributes
    ----------
    contributions : list of int
        The set of contributions of each expression, as bits.
    unordered : list of int
        For each expression the one with the operands of every operation sorted by their lowest
        contribution; equal for two expressions that a commutative op evaluates to the same bits.
    span : list of tuple of int or None
        First and last contribution, where they follow each other from left to right without a gap.
    """

    def __init__(self) -> None:
        self.contributions: list[int] = []
        self.unordered: list[int] = []
        self.span: list[tuple[int, int] | None] = []
        self._operands: list[tuple[int, int] | None] = []
        self._numbers: dict[int | tuple[int, int], int] = {}

    def leaf(self, contribution: int) -> int:
        """Give the expression that is one contribution."""
        if contribution not in self._numbers:
            self._numbers[contribution] = self._append(None, 1 << contribution, (contribution, contribution))
        return self._numbers[contribution]

    def combine(self, left: int, right: int) -> int | None:
        """Give the expression ``left + right``, or None if a contribution is in both."""
        number = self._numbers.get((left, right))
        if number is not None:
            return number
        if self.contributions[left] & self.contributions[right]:
            return None
        a, b = self.span[left], self.span[right]
        span = (a[0], b[1]) if a and b and a[1] + 1 == b[0] else None
        number = self._append((left, right), self.contributions[left] | self.contributions[right], span)
        self._numbers[left, right] = number
        first, second = sorted((self.unordered[left], self.unordered[right]), key=self._first)
        if (first, second) != (left, right):
            twin = self.combine(first, second)
            assert twin is not None  # its contributions are the same, and they were disjoint
            self.unordered[number] = twin
        return number

    def text(self, expression: int) -> str:
        """Write an expression out, such as ``((0+1)+2)``."""
        parts: list[str] = []
        todo: list[int | str] = [expression]
        while todo:
            item = todo.pop()
            operands = None if isinstance(item, str) else self._operands[item]
            if isinstance(item, str):
                parts.append(item)
            elif operands:
                todo += [")", operands[1], "+", operands[0], "("]
            else:
                parts.append(str(self.contributions[item].bit_length() - 1))
        return "".join(parts)

    def _first(self, expression: int) -> int:
        """Give the lowest contribution, as a bit: it tells two operands apart in every schedule."""
        return self.contributions[expression] & -self.contributions[expression]

    def _append(self, operands: tuple[int, int] | None, contributions: int, span: Any) -> int:
        self._operands.append(operands)
        self.contributions.append(contributions)
        self.span.append(span)
        self.unordered.append(len(self.unordered))
        return len(self.unordered) - 1


Values = list[list[int | None]]  # per rank and slot the number of an expression; None: nothing yet


def initial_values(schedule: Schedule, expressions: Expressions) -> Values:
    """Give what all ranks hold before the first step."""
    before = COLLECTIVES[schedule.collective].before
    values: Values = []
    for rank in range(schedule.size):
        places = (Place(rank, chunk, schedule.size, schedule.chunks) for chunk in range(schedule.chunks))
        numbers = [before(place) for place in places]
        values.append([None if number is None else expressions.leaf(number) for number in numbers])
        values[rank] += [None] * (schedule.chunks * schedule.vectors)
    return values


def execute(schedule: Schedule, expressions: Expressions, values: Values) -> Iterator[Event]:
    """Walk through a schedule and keep `values` up to date with every event.

    Raises
    ------
    ProofError
        As :func:`~mpicoll.schedule.walk.walk`, and if a contribution is combined twice or a slot is
        read that holds nothing.
    """
    mail: dict[tuple[int, int], deque[list[int | None]]] = {}
    for event in walk(schedule):
        if isinstance(event, Posted):
            for move in event.moves:
                if move.kind == "send":
                    box = mail.setdefault((event.rank, move.peer), deque())
                    box.extend(values[event.rank][start:stop] for start, stop in move.chunks)
        elif isinstance(event, Finished):
            # local moves come after the messages, wherever they are written
            for move in sorted(event.moves, key=lambda move: move.source is not None):
                if move.kind != "send":
                    _take_effect(schedule, expressions, event, move, mine=values[event.rank], mail=mail)
        yield event


def _take_effect(
    schedule: Schedule,
    expressions: Expressions,
    event: Finished,
    move: Move,
    *,
    mine: list[int | None],
    mail: dict[tuple[int, int], deque[list[int | None]]],
) -> None:
    """Apply one receive or local move to the rank's own values."""
    rank = event.rank
    if move.source is None:
        box = mail[move.peer, rank]
        incoming = [value for _ in move.chunks for value in box.popleft()]
    else:
        incoming = [mine[slot] for slot in slots(move.source)]
        _check_local(schedule, event, move)
    incoming_first = move.kind == "reduce" and move.peer < rank
    for slot, value in zip(slots(move.chunks), incoming, strict=True):
        own = mine[slot]
        if value is None or (own is None and move.kind in {"reduce", "combine"}):
            raise ProofError(f"{_where(schedule, event, move, slot)} reads a value that nobody has written")
        if own is None or move.kind in {"recv", "copy"}:
            mine[slot] = value
            continue
        left, right = (value, own) if incoming_first else (own, value)
        mine[slot] = expressions.combine(left, right)
        if mine[slot] is None:
            raise ProofError(
                f"{_where(schedule, event, move, slot)} counts a contribution twice: "
                f"{expressions.text(left)} with {expressions.text(right)}"
            )


def _where(schedule: Schedule, event: Finished, move: Move, slot: int) -> str:
    """Name the rank, step, move, chunk and peer for an error."""
    chunk = name_chunks((slot, slot + 1), schedule.chunks)
    peer = f" from rank {move.peer}" if move.source is None else ""
    return f"{schedule.name}: rank {event.rank} in step {event.step}: {move.kind} of chunk {chunk}{peer}"


def _check_local(schedule: Schedule, event: Finished, move: Move) -> None:
    """Both sides of a local move must name the same chunks."""
    to, of = ([slot % schedule.chunks for slot in slots(runs)] for runs in (move.chunks, move.source or ()))
    if to != of:
        raise ProofError(
            f"{schedule.name}: rank {event.rank} in step {event.step}: {move.kind} of chunks {of} to {to}"
        )


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
    expressions = Expressions()
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
    results = _results(schedule, expressions, values)
    by_chunk = {expressions.unordered[value] for _, value in results}
    return Proof(
        rank_order=all(expressions.span[value] is not None for _, value in results),
        uniform=len(by_chunk) == 1,
        rounds=rounds,
        steps=max(steps),
        sent_max=Fraction(max(sent), schedule.chunks),
        sent_total=Fraction(sum(sent), schedule.chunks),
        reductions_max=Fraction(max(combined), schedule.chunks),
        vectors=max(0, -(-highest // schedule.chunks) - 1),
        expression=expressions.text(results[0][1]),
        expressions=frozenset(expressions.text(value) for value in by_chunk),
    )


def _combined(moves: Step) -> int:
    """How many chunks the step combines."""
    reducing = (move.chunks for move in moves if move.kind in ("reduce", "combine"))
    return sum(stop - start for runs in reducing for start, stop in runs)


def _results(schedule: Schedule, expressions: Expressions, values: Values) -> list[tuple[Place, int]]:
    """Check what all ranks end with, and give it."""
    after = COLLECTIVES[schedule.collective].after
    results: list[tuple[Place, int]] = []
    agreed: dict[tuple[int, int], tuple[int, int]] = {}  # (chunk, contributions): rank and expression
    for rank, chunk in product(range(schedule.size), range(schedule.chunks)):
        place = Place(rank, chunk, schedule.size, schedule.chunks)
        due = after(place)
        if due is None:
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
        results.append((place, value))
    return results


def _bits(contributions: int) -> str:
    """Name a set of contributions."""
    return ", ".join(str(n) for n in range(contributions.bit_length()) if contributions >> n & 1)


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
        Its own parameters, and ``nodes``.
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
    """Check the registered algorithms at every size, with all their variants and many placements.

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
    for values in product(*algorithm.variants.values()):
        own = dict(zip(algorithm.variants, values, strict=True))
        for placement, nodes in where.items():
            yield own if nodes is None else own | {"nodes": nodes}, placement


def _verdict(algorithm: Algorithm, size: int, parameters: dict[str, Any], placement: str) -> Verdict:
    try:
        proof = check(algorithm, size, **parameters)
    except ValueError as error:  # a ProofError, or what the algorithm raised itself
        return Verdict(algorithm, size, parameters, placement, False, str(error), None)
    return Verdict(algorithm, size, parameters, placement, True, "", proof)


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
