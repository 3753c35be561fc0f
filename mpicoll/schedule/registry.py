"""The registry of algorithms: what each is called, what it needs, what it costs.

The command line, the proof, the benchmark and the selection all read this one.
"""

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from .schedule import Schedule, Steps

Nodes: TypeAlias = tuple[tuple[int, ...], ...]  # the ranks of each node, every rank once

_REGISTRY: dict[tuple[str, str], "Algorithm"] = {}


@dataclass(frozen=True)
class Algorithm:
    """A registered algorithm; made by the :func:`algorithm` decorator.

    Attributes
    ----------
    collective, name : str
        The key. The name is the function's.
    function : callable
        The generator of one rank's steps.
    chunks : callable or int or None
        How many chunks: a number, or a function of the algorithm's own arguments without the
        rank; None if the caller chooses (a pipelined algorithm).
    vectors : callable or int
        Scratch vectors per rank, likewise.
    commutative : bool
        Whether the op must be commutative.
    ranks : str
        Restriction on the number of ranks, a formula in `p` that must be true; "" for none.
    steps, sent : str
        Formulas for the number of steps on the critical path and the largest number of bytes that
        a rank sends, in units of the vector; in `p` ranks, `S` chunks, and `n` nodes. Checked by
        the proof. Where the formula gives an upper bound, it begins with ``<=``.
    limit : int or None
        Largest vector in bytes that it may be used for, for algorithms whose memory grows with
        the number of ranks.
    source : str
        Where the method was published.
    """

    collective: str
    name: str
    function: Callable[..., Steps]
    chunks: Callable[..., int] | int | None
    vectors: Callable[..., int] | int
    commutative: bool
    ranks: str
    steps: str
    sent: str
    limit: int | None
    source: str

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def pipelined(self) -> bool:
        """Whether the caller chooses the number of chunks."""
        return self.chunks is None

    @property
    def two_level(self) -> bool:
        """Whether it needs to know which ranks share a node."""
        return "nodes" in inspect.signature(self.function).parameters

    def serves(self, size: int) -> bool:
        """Whether it works for this number of ranks."""
        return not self.ranks or bool(evaluate(self.ranks, p=size))

    def schedule(self, size: int, *, nodes: Nodes | None = None, **parameters: Any) -> Schedule:
        """Bind the algorithm to a number of ranks.

        Parameters
        ----------
        size : int
            Number of ranks.
        nodes : tuple of tuple of int, optional
            The ranks of each node; needed by two-level algorithms, ignored by the others.
        **parameters
            The algorithm's own, such as ``chunks`` of a pipelined one.

        Raises
        ------
        ValueError
            If the algorithm does not work for this size.
        """
        if not self.serves(size):
            raise ValueError(f"{self.collective}: {self.name} needs {self.ranks}, given p = {size}")
        if self.two_level:
            parameters["nodes"] = nodes if nodes is not None else (tuple(range(size)),)
        function, arguments = self.function, parameters
        return Schedule(
            self.collective,
            self.name,
            size,
            parameters["chunks"] if self.chunks is None else _number(self.chunks, size, arguments),
            lambda rank: function(rank, size, **arguments),
            _number(self.vectors, size, arguments),
        )


def algorithm(
    collective: str,
    *,
    chunks: Callable[..., int] | int | None = None,
    vectors: Callable[..., int] | int = 0,
    commutative: bool = False,
    ranks: str = "",
    steps: str,
    sent: str,
    limit: int | None = None,
    source: str,
) -> Callable[[Callable[..., Steps]], Callable[..., Steps]]:
    """Register a generator of steps as an algorithm. See :class:`Algorithm` for the arguments."""

    def register(function: Callable[..., Steps]) -> Callable[..., Steps]:
        name = function.__name__
        _REGISTRY[collective, name] = Algorithm(
            collective, name, function, chunks, vectors, commutative, ranks, steps, sent, limit, source
        )
        return function

    return register


def algorithms(collective: str | None = None) -> list[Algorithm]:
    """All registered algorithms, or those of one collective, in order of registration."""
    return [a for a in _REGISTRY.values() if collective in (None, a.collective)]


def find(collective: str, name: str) -> Algorithm:
    """Look an algorithm up.

    Raises
    ------
    ValueError
        If there is none of that name; the message gives the nearest ones.
    """
    if (collective, name) in _REGISTRY:
        return _REGISTRY[collective, name]
    known = [a.name for a in algorithms(collective)]
    near = difflib.get_close_matches(name, known, n=3) or known
    raise ValueError(f"{collective}: unknown algorithm {name!r}, did you mean {', '.join(near)}?")


def evaluate(formula: str, **values: int) -> Any:
    """Evaluate a registered formula exactly.

    Formulas are source text of this package and its extensions, never input.

    Examples
    --------
    >>> evaluate("2*(p-1)/p", p=4)
    Fraction(3, 2)
    """
    names: dict[str, Any] = {name: Fraction(value) for name, value in values.items()}
    names |= {"log2": math.log2, "ceil": math.ceil, "floor": math.floor, "max": max, "min": min}
    return eval(formula, {"__builtins__": {}}, names)


def _number(value: Callable[..., int] | int, size: int, arguments: dict[str, Any]) -> int:
    return value(size, **arguments) if callable(value) else value
