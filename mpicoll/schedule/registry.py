"""The registry of algorithms: what each is called, what it needs, what it costs.

The command line, the proof, the benchmark and the selection all read this one.
"""

import difflib
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
        The key. The name is the function's, unless given.
    function : callable
        The generator of one rank's steps.
    chunks : callable or int or None
        How many chunks: a number, or a function of the algorithm's own arguments without the
        rank and the root; None if the caller chooses (a pipelined algorithm).
    vectors : callable or int
        Scratch vectors per rank, likewise.
    commutative : bool
        Whether the op must be commutative.
    transit : bool
        Whether chunks pass through ranks that neither begin nor end with them, so that, where lengths
        are given by counts, every rank must know all of them.
    ranks : str
        Restriction on the number of ranks, a formula in `p` that must be true; "" for none.
    steps, sent : str
        Formulas for the number of steps on the critical path and for the most that a rank sends,
        in vectors. In `p` ranks, `S` chunks, the `root`, the algorithm's own parameters and, for two
        levels, `n` nodes, `m` ranks on the largest, `L` leaders a node, `inter_steps` and `inter_sent`.
        Checked by the proof. Where the formula gives an upper bound, it begins with ``<=``.
    time_formula : str
        Formula for the time on a machine on which all ranks are equally far from each other: in `alpha`, s
        of a message beside its bytes, `beta`, s to send a vector, `gamma`, s to combine two, and the names
        that `steps` knows. For two levels `near_alpha` and `near_beta` hold within a node, and
        ``inter_time(x)`` is the time between nodes for x vectors. A rank sends, receives and combines at the
        same time, each one message after the other, and what it sends is on its way at once. ``<=`` as
        above; "" if there is none.
    limit : int or None
        Largest vector in bytes that it may be used for, for algorithms whose memory grows with
        the number of ranks.
    source : str
        Where the method was published.
    variants : mapping of str to sequence
        The algorithm's own parameters, each with the values that the proof tries.
    """

    collective: str
    name: str
    function: Callable[..., Steps]
    chunks: Callable[..., int] | int | None
    vectors: Callable[..., int] | int
    commutative: bool
    transit: bool
    ranks: str
    steps: str
    sent: str
    time_formula: str
    limit: int | None
    source: str
    variants: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False)

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
        return "nodes" in _signature(self.function).parameters

    @property
    def rooted(self) -> bool:
        """Whether one rank is the root."""
        return "root" in _signature(self.function).parameters

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
            The ``root``, 0 unless given, and the algorithm's own, such as ``chunks`` of a pipelined one.

        Raises
        ------
        ValueError
            If the algorithm does not work for this size, placement or parameters.
        """
        arguments = self._arguments(size, nodes, parameters)
        chunks = arguments["chunks"] if self.chunks is None else _number(self.chunks, size, arguments)
        if chunks < 1:
            raise ValueError(f"{self.collective}: {self.name} needs at least 1 chunk, given {chunks}")
        function = self.function
        return Schedule(
            self.collective,
            self.name,
            size,
            chunks,
            lambda rank: function(rank, size, **arguments),
            _number(self.vectors, size, arguments),
            arguments.get("root", 0),
        )

    def cost(self, size: int, *, nodes: Nodes | None = None, **parameters: Any) -> tuple[Fraction, Fraction]:
        """Evaluate the registered formulas; the arguments are those of :meth:`schedule`.

        Returns
        -------
        steps : Fraction
            Steps on the critical path, or an upper bound.
        sent : Fraction
            The most that a rank sends, in vectors, or an upper bound.
        """
        values, between = self._values(size, nodes, parameters)
        if between:
            inter, count, own = between
            values["inter_steps"], values["inter_sent"] = inter.cost(count, **own)
        return evaluate(self.steps, **values), evaluate(self.sent, **values)

    def time(
        self,
        size: int,
        alpha: float,
        beta: float,
        gamma: float,
        *,
        near: tuple[float, float] | None = None,
        nodes: Nodes | None = None,
        **parameters: Any,
    ) -> float:
        """Evaluate the registered formula for the time.

        Parameters
        ----------
        size : int
            Number of ranks.
        alpha : float
            s that a message takes beside its bytes.
        beta, gamma : float
            s to send a vector, and to combine two.
        near : (float, float), optional
            `alpha` and `beta` within a node, for two-level algorithms; by default as between nodes.
        nodes, **parameters
            As for :meth:`schedule`.

        Returns
        -------
        float
            s until the last rank is done, or an upper bound.

        Raises
        ------
        ValueError
            If there is no formula, or a time is negative or not finite, or as for :meth:`schedule`.
        """
        if not self.time_formula:
            raise ValueError(f"{self.collective}: {self.name} is registered without a formula for its time")
        near_alpha, near_beta = near or (alpha, beta)
        times = {"alpha": alpha, "beta": beta, "gamma": gamma}
        times |= {"near_alpha": near_alpha, "near_beta": near_beta}
        for name, value in times.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{self.collective}: {name} {value} given, expected 0 s or more, and finite")
        values, between = self._values(size, nodes, parameters)
        if between:
            inter, count, own = between
            values["inter_time"] = lambda x: inter.time(count, alpha, x * beta, x * gamma, **own)
        return float(evaluate(self.time_formula, **values, **times))

    def best_chunks(self, size: int, ratio: float, **parameters: Any) -> int:
        """Give the number of chunks with which a pipelined algorithm takes least time.

        That is ``steps * (alpha + M/S * beta)``, where the steps are so many for each of the `S` chunks
        and so many beside.

        Parameters
        ----------
        size : int
            Number of ranks.
        ratio : float
            ``M * beta / alpha``: what the whole vector takes to send, in start-ups of a message.
        **parameters
            As for :meth:`schedule`, without ``chunks``.
        """

        def time(chunks: int) -> float:
            return float(self.cost(size, chunks=chunks, **parameters)[0]) * (1 + ratio / chunks)

        two, four = (self.cost(size, chunks=chunks, **parameters)[0] for chunks in (2, 4))
        each, beside = (four - two) / 2, 2 * two - four
        if each <= 0 or beside <= 0:
            return 1
        best = math.sqrt(beside / each * ratio)
        return min(max(1, math.floor(best)), max(1, math.ceil(best)), key=time)

    def _values(
        self, size: int, nodes: Nodes | None, parameters: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple["Algorithm", int, dict[str, Any]] | None]:
        """Give what formulas know, and for two levels what runs between the nodes, how many, and its own."""
        arguments = self._arguments(size, nodes, parameters)
        own = _signature(self.function).parameters
        known = {name: own[name].default for name in own} | arguments
        values: dict[str, Any] = {name: value for name, value in known.items() if isinstance(value, int)}
        values |= {"p": size, "S": known.get("chunks", 1)}
        if not self.two_level:
            return values, None
        lengths = [len(node) for node in known["nodes"]]
        values |= {"n": len(lengths), "m": max(lengths), "L": known.get("leaders", 1) or min(lengths)}
        rest = {name: value for name, value in parameters.items() if name not in own}
        if self.rooted:
            rest["root"] = next(n for n, node in enumerate(known["nodes"]) if known["root"] in node)
        return values, (find(self.collective, known["inter"]), len(lengths), rest)

    def _arguments(self, size: int, nodes: Nodes | None, parameters: dict[str, Any]) -> dict[str, Any]:
        """Give the function's keyword arguments, checked."""
        if size < 1 or not self.serves(size):
            raise ValueError(
                f"{self.collective}: {self.name} needs {self.ranks or 'p >= 1'}, given p = {size}"
            )
        if self.two_level:
            nodes = nodes if nodes is not None else (tuple(range(size)),)
            if sorted(rank for node in nodes for rank in node) != list(range(size)) or not all(nodes):
                raise ValueError(
                    f"{self.collective}: {self.name} needs nodes that hold each of {size} ranks once, "
                    f"given {nodes}"
                )
            parameters = parameters | {"nodes": nodes}
        if self.rooted and not 0 <= parameters.get("root", 0) < size:
            raise ValueError(f"{self.collective}: root {parameters['root']}, expected 0 to {size - 1}")
        own = _signature(self.function).parameters
        try:
            _signature(self.function).bind(0, size, **parameters)
        except TypeError as error:
            known = ", ".join(name for name in own if name not in ("rank", "size", "root", "nodes"))
            raise ValueError(
                f"{self.collective}: {self.name}: {error}; its parameters: {known or 'none'}"
            ) from None
        for name, value in parameters.items():
            default = own[name].default if name in own else ""
            number = name != "nodes" and not isinstance(default, str)
            if number and value is not default and not hasattr(value, "__index__"):
                raise ValueError(
                    f"{self.collective}: {self.name}: {name} {value!r} given, expected an integer"
                )
        return parameters


def algorithm(
    collective: str,
    *,
    name: str | None = None,
    chunks: Callable[..., int] | int | None = None,
    vectors: Callable[..., int] | int = 0,
    commutative: bool = False,
    transit: bool = False,
    ranks: str = "",
    steps: str,
    sent: str,
    time: str = "",
    limit: int | None = None,
    source: str,
    variants: Mapping[str, Sequence[Any]] | None = None,
) -> Callable[[Callable[..., Steps]], Callable[..., Steps]]:
    """Register a generator of steps as an algorithm.

    See :class:`Algorithm` for the arguments; `time` is its `time_formula`.
    """

    def register(function: Callable[..., Steps]) -> Callable[..., Steps]:
        key = collective, name or function.__name__
        if key in _REGISTRY and _REGISTRY[key].function.__module__ != function.__module__:
            other = _REGISTRY[key].function.__module__
            raise ValueError(f"{collective}: an algorithm {key[1]} is registered already, by {other}")
        _REGISTRY[key] = Algorithm(
            *key,
            function,
            chunks,
            vectors,
            commutative,
            transit,
            ranks,
            steps,
            sent,
            time,
            limit,
            source,
            variants or {},
        )
        return function

    return register


def algorithms(collective: str | None = None) -> list[Algorithm]:
    """All registered algorithms, one collective after the other, or those of one of them."""
    found = [a for a in _registered().values() if collective in (None, a.collective)]
    return sorted(found, key=lambda a: a.collective)


def find(collective: str, name: str) -> Algorithm:
    """Look an algorithm up.

    Raises
    ------
    ValueError
        If there is none of that name; the message gives the nearest ones.
    """
    if (collective, name) in _registered():
        return _REGISTRY[collective, name]
    known = [a.name for a in algorithms(collective)]
    if not known:
        collectives = dict.fromkeys(a.collective for a in algorithms())
        raise ValueError(f"unknown collective {collective!r}, expected one of {', '.join(collectives)}")
    near = difflib.get_close_matches(name, known, n=3) or known
    raise ValueError(f"{collective}: unknown algorithm {name!r}, did you mean {', '.join(near)}?")


def _registered() -> dict[tuple[str, str], Algorithm]:
    importlib.import_module("mpicoll.algorithms")  # its files register themselves
    return _REGISTRY


def evaluate(formula: str, **values: float | Fraction | Callable[[Any], float]) -> Any:
    """Evaluate a registered formula exactly; a leading ``<=`` is skipped.

    Formulas are source text of this package and its extensions, never input. ``log(x, base)`` is
    rounded to nine places, so that ``ceil`` and ``floor`` of it are right for exact powers.

    Examples
    --------
    >>> evaluate("2*(p-1)/p", p=4)
    Fraction(3, 2)
    >>> evaluate("<=2*ceil(log(p, radix))", p=125, radix=5)
    6
    """
    names: dict[str, Any] = {
        name: value if callable(value) else Fraction(value) for name, value in values.items()
    }
    names |= {"log": _log, "ceil": math.ceil, "floor": math.floor, "max": max, "min": min}
    return eval(formula.removeprefix("<="), {"__builtins__": {}}, names)


_signature = functools.cache(inspect.signature)


def _log(x: Fraction, base: Fraction | int) -> float:
    return round(math.log(x) / math.log(base), 9)


def _number(value: Callable[..., int] | int, size: int, arguments: dict[str, Any]) -> int:
    if not callable(value):
        return value
    return value(size, **{name: argument for name, argument in arguments.items() if name != "root"})
