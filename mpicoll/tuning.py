"""Tables of what was measured to be best, which ``mpicoll tune`` writes and ``MPICOLL_TUNING`` names."""

import importlib
import itertools
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from .schedule import find
from .schedule.collectives import COLLECTIVES
from .selection import ANY, MESSAGE, NATIVE, SHARED, Asked, Row


class Tuned(NamedTuple):
    """What was measured to be best for vectors of some lengths, on just so many ranks and nodes."""

    collective: str
    ranks: int
    nodes: int
    least: int  # bytes, and most: both are among the lengths
    most: int
    algorithm: str
    transport: str = SHARED
    parameters: tuple[tuple[str, Any], ...] = ()

    def fits(self, what: Asked) -> bool:
        """Whether the row is for such a call, and its algorithm can serve it."""
        same = (self.collective, self.ranks, self.nodes) == (what.collective, what.size, what.nodes)
        if not same or what.nbytes is None or not self.least <= what.nbytes <= self.most:
            return False
        return Row(ANY, ANY, self.algorithm).fits(what)

    def check(self) -> None:
        """Raise ValueError if there is no such algorithm, or it cannot serve so many ranks or bytes."""
        parameters = dict(self.parameters)
        if self.algorithm == NATIVE:
            if parameters:
                raise ValueError(f"{', '.join(parameters)} given, native takes no parameters")
            return
        names = [self.algorithm, *([parameters["inter"]] if "inter" in parameters else [])]
        algorithms = [find(self.collective, name) for name in names]
        for each in algorithms:
            if each.limit is not None and self.most > each.limit:
                raise ValueError(f"{each.name} takes at most {each.limit} bytes, given {self.most}")
            if each.pipelined:
                parameters.setdefault("chunks", 1)
        cuts = [self.ranks * node // self.nodes for node in range(self.nodes + 1)]
        nodes = tuple(tuple(range(*cut)) for cut in itertools.pairwise(cuts))
        algorithms[0].schedule(self.ranks, nodes=nodes, **parameters)

    def __str__(self) -> str:
        nodes = f"{self.nodes} node{'s'[: self.nodes > 1]}"
        return f"vectors of {self.least:,} to {self.most:,} bytes on {self.ranks} ranks, {nodes}"


class Tuning(NamedTuple):
    """A table that was measured: the first row that fits a call serves it."""

    file: str
    rows: tuple[Tuned, ...] = ()


FORMAT = 1  # of the file
ABOUT = "measured"  # the part of it that says what ran where


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _range(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(_whole(end, 0) for end in value)
    return pair and value[0] <= value[1]


def _parameters(value: Any) -> bool:
    return isinstance(value, dict) and all(type(each) in (int, str) for each in value.values())


# The fields of a row: which values are right, in words and as a test.
FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "ranks": ("an integer from 1 on", lambda value: _whole(value, 1)),
    "nodes": ("an integer from 1 on", lambda value: _whole(value, 1)),
    "bytes": ("[least, most], integers from 0 on, the least first", _range),
    "algorithm": ("a name", lambda value: isinstance(value, str)),
    "transport": (f"{MESSAGE} or {SHARED}", lambda value: value in (MESSAGE, SHARED)),
    "parameters": ("a table of integers and names", _parameters),
}
OPTIONAL = ("transport", "parameters")


def read(file: str) -> str:
    """Read the text of a tuned table; raises ValueError, with the file, if that cannot be."""
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not a text file") from None


def parse(text: str, file: str) -> Tuning:
    """Read a table that ``mpicoll tune`` has written.

    Parameters
    ----------
    text : str
        TOML. ``format`` is 1; each other key but ``measured`` is a collective, with rows of :data:`FIELDS`.
    file : str
        Its name, for messages and reasons.

    Raises
    ------
    ValueError
        If something is wrong, in one line with the file, the line and the field.
    """
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        number = re.match(r"line (\d+)", place)
        line = number[1] if number else len(text.splitlines())  # at the end of the document
        raise ValueError(f"{file}: line {line}: {what}") from None
    if content.pop("format", None) != FORMAT:
        raise ValueError(f"{file}: line {_line(text, '', field='format')}: format: expected {FORMAT}")
    content.pop(ABOUT, None)
    rows = []
    for collective, given in content.items():
        at = f"{file}: line {_line(text, collective, field=collective)}: {collective}"
        if collective not in COLLECTIVES:
            raise ValueError(f"{at}: unknown, expected {', '.join(COLLECTIVES)}")
        if not isinstance(given, list) or not all(isinstance(fields, dict) for fields in given):
            raise ValueError(f"{at}: {given!r} given, expected rows, each below [[{collective}]]")
        rows += [_row(text, file, collective, number, fields) for number, fields in enumerate(given)]
    return Tuning(file, tuple(rows))


def _row(text: str, file: str, collective: str, number: int, fields: dict[str, Any]) -> Tuned:
    """Read one row of a tuned table."""

    def refuse(field: str, problem: object) -> NoReturn:
        raise ValueError(
            f"{file}: line {_line(text, collective, number, field)}: {collective}.{field} {problem}"
        )

    for name in fields:
        if name not in FIELDS:
            refuse(name, f"unknown, expected {', '.join(FIELDS)}")
    for name, (expected, is_right) in FIELDS.items():
        if name in fields and not is_right(fields[name]):
            refuse(name, f"{fields[name]!r} given, expected {expected}")
        if name not in fields and name not in OPTIONAL:
            refuse(name, f"missing, expected {expected}")
    if fields["nodes"] > fields["ranks"]:
        refuse("nodes", f"{fields['nodes']} given, expected at most {fields['ranks']}, the ranks")
    least, most = fields["bytes"]
    row = Tuned(
        collective,
        fields["ranks"],
        fields["nodes"],
        least,
        most,
        fields["algorithm"],
        fields.get("transport", SHARED),
        tuple(sorted(fields.get("parameters", {}).items())),
    )
    try:
        row.check()
    except ValueError as error:
        refuse("algorithm", f"{row.algorithm!r}: {error}")
    return row


def _line(text: str, collective: str, number: int = 0, field: str = "") -> int:
    """Find the line of a field in the row of that number; of the row where the field is not in it."""
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if line.lstrip().startswith("[")]
    own = re.compile(rf'\s*\[{{1,2}}\s*"?{re.escape(collective)}"?\s*\]')
    rows = [at for at in heads if own.match(lines[at])]
    begin = rows[number] if number < len(rows) else 0
    end = next((at for at in heads if at > begin), len(lines))
    key = re.compile(rf'\s*"?{re.escape(field)}"?\s*=')
    return next((at for at in range(begin, end) if key.match(lines[at])), begin) + 1
