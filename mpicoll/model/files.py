"""Machine files: a machine's figures as TOML, in units without prefixes (s, B/s, bytes).

``[rank]`` says what a rank does by itself, ``[node]`` how its ranks are joined, ``[network]`` how nodes are,
and ``[switches]``, which most machines lack, what switches reduce. A section ``[fit]`` is for those who
measured, and is not read. The files in ``machines`` beside this one are presets.
"""

import dataclasses
import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .network import INF, Fabric, Link, Machine, Switches

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
T = TypeVar("T")


class Field(NamedTuple):
    """A figure of a machine file: its unit, what it says, and whether it must be there."""

    unit: str
    says: str
    needed: bool = False


_LINK = {
    "latency": Field("s", "from when the last byte has left to when it is there", needed=True),
    "bandwidth": Field("B/s", "each way", needed=True),
    "overhead": Field("s", "a rank is busy with each message"),
    "gap": Field("s", "from one message to the next at least"),
    "eager": Field("bytes", "up to which a message does not wait for its receiver"),
    "burst": Field("bytes", "that pass faster after a rest"),
    "peak": Field("B/s", "of these"),
}
SECTIONS = {
    "rank": {"combine": Field("B/s", "of results, combining two operands", needed=True)},
    "node": {
        "ranks": Field("", "of a node"),
        "rails": Field("", "of a node, each with the network's bandwidth"),
        **_LINK,
        "memory": Field("B/s", "of all messages within a node together"),
    },
    "network": {
        "kind": Field("", "flat, fat_tree or dragonfly"),
        "group": Field("", "nodes that share what leaves them"),
        "oversubscription": Field("", "what they can send over what can leave them"),
        "hop": Field("s", "more for a message that leaves its group"),
        **_LINK,
    },
    "switches": {
        "latency": Field("s", "up and down again", needed=True),
        "bandwidth": Field("B/s", "of a vector from each node", needed=True),
    },
}
OPTIONAL, UNREAD = ("switches",), ("fit",)
FOLDER = Path(__file__).with_name("machines")
TEXTS = ("name", "source")
WORDS, WHOLE = ("kind",), ("ranks", "rails", "group")
ENDLESS = ("combine", "bandwidth", "memory", "eager", "peak")  # what may be inf
MOST = sys.float_info.max

Places: TypeAlias = dict[str, tuple[str, str]]  # of attributes: section and key


def _places(kind: Any, section: str) -> Places:
    return {field.name: (section, field.name) for field in dataclasses.fields(kind)}


_PARTS: dict[str, tuple[type, Places]] = {
    "near": (Link, _places(Link, "node")),
    "far": (Link, _places(Link, "network")),
    "fabric": (Fabric, _places(Fabric, "network")),
    "switches": (Switches, _places(Switches, "switches")),
}
_OWN: Places = {  # of the machine itself
    "combine": ("rank", "combine"),
    "per_node": ("node", "ranks"),
    "rails": ("node", "rails"),
    "memory": ("node", "memory"),
}


def presets() -> list[str]:
    """Name the machines that are here."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def read(name: str | PathLike[str]) -> Machine:
    """Read a machine.

    Parameters
    ----------
    name : str or path
        A file, or one of :func:`presets`, which come first: a file of such a name is ``./name``.

    Raises
    ------
    ValueError
        If there is no such file, or something in it is wrong: one line with file, line and field.
    """
    name = fspath(name)
    if name in presets():
        return _File(name, (FOLDER / f"{name}.toml").read_text(encoding="utf-8")).machine()
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{name}: no such file, nor one of the presets {', '.join(presets())}") from None
    except (OSError, ValueError) as error:  # the latter of a name with a null in it
        raise ValueError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return _File(name, data.decode()).machine()
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise ValueError(f"{name}: line {line}: not UTF-8, expected text") from None


def write(machine: Machine, path: str | PathLike[str], more: Mapping[str, Any] | None = None) -> None:
    """Write a machine, with units as comments.

    Parameters
    ----------
    machine : Machine
    path : str or path
    more : mapping, optional
        Sections that come last, such as ``{"fit": {...}}``. What is None is left out, as TOML has no word
        for it.

    Raises
    ------
    OSError
        If the file cannot be written.
    ValueError
        If tomlkit is not installed.
    """
    try:
        import tomlkit  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise ValueError(
            'tomlkit, which writes machine files, is missing: pip install "mpicoll[study]"'
        ) from None
    document, figures = tomlkit.document(), _figures(machine)
    for key in TEXTS:
        text = getattr(machine, key)
        document.add(
            key, tomlkit.string(text, multiline="\n" in text and text.replace("\n", "").isprintable())
        )
    for section, fields in SECTIONS.items():
        if section in figures:
            table = tomlkit.table()
            for key in filter(figures[section].__contains__, fields):
                table.add(key, tomlkit.value(_written(figures[section][key])))
                table[key].comment(" ".join(filter(None, fields[key][:2])))
            document.add(section, table)
    for section, content in (more or {}).items():
        document.add(section, tomlkit.item(_without_none(content)))
    Path(path).write_text(tomlkit.dumps(document), encoding="utf-8")


class _File:
    """The text of a machine file, and what it says."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.lines = max(len(text.splitlines()), 1)
        try:
            self.tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message, _, place = str(error).rpartition(" (at ")
            line = re.match(r"line (\d+)", place)
            number = int(line[1]) if line else self.lines
            raise ValueError(f"{name}: line {number}: {' '.join(message.split())}") from None

    def machine(self) -> Machine:
        """Check everything, and make the machine of it."""
        for key, value in self.tables.items():
            if key in SECTIONS and not isinstance(value, dict):
                raise self.error("", key, f"{value!r} given, expected a section [{key}]")
            if key in TEXTS and not isinstance(value, str):
                raise self.error("", key, f"{value!r} given, expected text in quotes")
            if key not in (*SECTIONS, *TEXTS, *UNREAD):
                known = SECTIONS if isinstance(value, dict) else TEXTS
                raise self.error("", key, f"is unknown, {_expected(key, known)}")
        for section in SECTIONS:
            if section in self.tables:
                self.check(section)
            elif section not in OPTIONAL:
                raise self.error(section, "", "is missing")
        parts: dict[str, Any] = {
            name: self.make(kind, places)
            for name, (kind, places) in _PARTS.items()
            if name not in OPTIONAL or name in self.tables
        }
        texts = {"name": Path(self.name).stem}
        texts |= {key: self.tables[key] for key in TEXTS if key in self.tables}
        return self.make(Machine, _OWN, **parts, **texts)

    def check(self, section: str) -> None:
        """Check that a section has what it must, nothing else, and of the right types."""
        figures, known = self.tables[section], SECTIONS[section]
        for key, value in figures.items():
            if key not in known:
                raise self.error(section, key, f"is unknown, {_expected(key, known)}")
            if (expected := _unlike(key, value)) is not None:
                unit = f", in {known[key].unit}" if known[key].unit else ""
                raise self.error(section, key, f"{value!r} given, expected {expected}{unit}")
        for key, field in known.items():
            if field.needed and key not in figures:
                raise self.error(section, key, "is missing")

    def make(self, kind: type[T], places: Places, **more: Any) -> T:
        """Make something of the figures at some places; what it does not like is an error of the file."""
        given = {
            name: self.tables[section][key]
            for name, (section, key) in places.items()
            if key in self.tables[section]
        }
        try:
            return kind(**given, **more)
        except ValueError as error:  # which begins with the attribute
            name, expected = str(error).split()[0], str(error).partition(" given, ")[2]
            raise self.error(*places[name], f"{given[name]!r} given, {expected}") from None

    def error(self, section: str, key: str, problem: str) -> ValueError:
        """Say where something is wrong."""
        field = ".".join(filter(None, (section, key))) if key else f"section [{section}]"
        return ValueError(f"{self.name}: line {self.line(section, key)}: {field} {problem}")

    def line(self, section: str, key: str) -> int:
        """Find the line that sets a key, or on which its section begins, or the last one."""
        wanted, here, begin = ".".join(filter(None, (section, key))), "", 0
        for number, line in enumerate(_without_long_texts(self.text).splitlines(), start=1):
            if header := re.match(r"\s*\[+([^\[\]#]+)\]", line):
                here = full = _plain(header[1])
            elif name := re.match(r"""([\w.\-"'\s]+?)=""", line):
                full = ".".join(filter(None, (here, _plain(name[1]))))
            else:
                continue
            if full == wanted:
                return number
            if full == section and not begin:
                begin = number
        return begin or self.lines


def _without_long_texts(text: str) -> str:
    """Leave out what is in three quotes, but for its line ends."""
    quoted = r'"""(?s:.*?)"""|\'\'\'(?s:.*?)\'\'\''
    return re.sub(quoted, lambda match: "\n" * match[0].count("\n"), text)


def _plain(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)


def _unlike(key: str, value: Any) -> str | None:
    """Say what a figure should be, if it is of another type, or has no end where it must."""
    if key in WORDS:
        return None if isinstance(value, str) else "a word in quotes"
    if key in WHOLE:
        return None if type(value) is int and abs(value) < 2**31 else "a whole number"
    endless = key in ENDLESS and value == INF
    return None if type(value) in (int, float) and (value <= MOST or endless) else "a number"


def _expected(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"


def _figures(machine: Machine) -> dict[str, dict[str, Any]]:
    """Give the figures of each section, without those that are as they would be anyway."""
    found: dict[str, dict[str, Any]] = {}
    parts = [(getattr(machine, name), places) for name, (_, places) in _PARTS.items()]
    for part, places in [(machine, _OWN), *parts]:
        usual = {field.name: field.default for field in dataclasses.fields(part)} if part else {}
        for name, (section, key) in places.items() if part else ():
            value = getattr(part, name)
            if SECTIONS[section][key].needed or key in ("ranks", "kind") or value != usual[name]:
                found.setdefault(section, {})[key] = value
    return found


def _without_none(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _without_none(value) for key, value in content.items() if value is not None}
    return content


def _written(value: Any) -> str:
    """Write a figure as TOML: 1.25e9 and not 1250000000.0."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int) or value in (0, INF) or 1e-3 <= value < 1e6:
        return repr(value)
    return f"{Decimal(repr(value)).normalize():e}".replace("e+", "e")
