"""Symbolic execution: what every chunk of every rank is, after every event.

The value of a chunk is an expression, an ordered tree of contributions, so that what is known is not
only *that* each contribution is in it, but once, in which order, and combined with what. Equal
expressions are stored once and compared by their number.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from .collectives import COLLECTIVES
from .moves import Move, slots
from .schedule import Schedule
from .walk import Event, Finished, Posted, ProofError, name_chunks, walk


def numbers(contributions: int) -> Iterator[int]:
    """Give the numbers of a set of contributions."""
    return (number for number in range(contributions.bit_length()) if contributions >> number & 1)


class Expressions:
    """Ordered trees of contributions, each stored once and named by its number.

    Parameters
    ----------
    idempotent : bool
        Whether a contribution may be combined twice. What remains of a tree then is its set.

    Attributes
    ----------
    contributions : list of int
        The set of contributions of each expression, as bits.
    unordered : list of int
        For each expression the one with the operands of every operation sorted by their lowest
        contribution; equal for two expressions that a commutative op evaluates to the same bits.
    span : list of tuple of int or None
        First and last contribution, where all ascend from left to right.
    """

    def __init__(self, idempotent: bool = False) -> None:
        self.idempotent = idempotent
        self.contributions: list[int] = []
        self.unordered: list[int] = []
        self.span: list[tuple[int, int] | None] = []
        self._operands: list[tuple[int, int] | None] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._sets: dict[int, int] = {}

    def leaf(self, contribution: int) -> int:
        """Give the expression that is one contribution."""
        return self._set(1 << contribution)

    def combine(self, left: int, right: int) -> int | None:
        """Give the expression ``left + right``, or None if a contribution is in both."""
        number = self._numbers.get((left, right))
        if number is not None:
            return number
        if self.idempotent:
            return self._set(self.contributions[left] | self.contributions[right])
        if self.contributions[left] & self.contributions[right]:
            return None
        a, b = self.span[left], self.span[right]
        span = (a[0], b[1]) if a and b and a[1] < b[0] else None
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
                parts.append("|".join(map(str, numbers(self.contributions[item]))))
        return "".join(parts)

    def _set(self, contributions: int) -> int:
        """Give the expression of one contribution, or of several that came together in any way."""
        if contributions not in self._sets:
            span = (contributions & -contributions).bit_length() - 1, contributions.bit_length() - 1
            self._sets[contributions] = self._append(None, contributions, span)
        return self._sets[contributions]

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
    collective = COLLECTIVES[schedule.collective]
    blocks = collective.blocks(schedule.size)
    if schedule.chunks % blocks:
        raise ProofError(f"{schedule.name}: {schedule.chunks} chunks, expected a multiple of {blocks}")
    values: Values = []
    for rank in range(schedule.size):
        held = map(collective.before, schedule.places(rank))
        values.append([None if number is None else expressions.leaf(number) for number in held])
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
