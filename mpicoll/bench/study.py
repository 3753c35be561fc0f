"""A scaling study: a collective measured on the first 2, 3, 4, ... ranks of a job, into a folder.

The folder holds ``records.jsonl``, one record a line for each sample set (see :mod:`mpicoll.bench.records`),
with more fields:

=============  ===================================================================================
``study``      1, the format
``scaling``    ``"strong"``: sizes are of the whole vector; ``"weak"``: a rank has so many bytes of
               it, so the whole vector is as many times longer as there are ranks
``ranks``      that took part; the job had ``world``
=============  ===================================================================================

What is there with the same settings is not measured again, so a study that was ended goes on where it was.
Records of one collective, number of ranks and size were interleaved in one run; those that a later run adds
there were interleaved with the native collective.

Only :func:`study` and :func:`part` need MPI.
"""

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..schedule import algorithms
from ..schedule.registry import Nodes
from ..selection import AUTO
from .forms import FORMS
from .records import NATIVE, Record, append
from .words import parse_algorithm

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

FORMAT = 1
FILE = "records.jsonl"
STRONG, WEAK = "strong", "weak"

WHOLE = ("study", "mpicoll", "mpi", "scaling")  # fields that are the same in all of a study
ALIKE = ("dtype", "op", "root", "in_place", "min_time_s")  # and in those of one collective
FIGURES = ("collective", "algorithm", "size", "ranks", "nodes", "median_us", "p25_us", "p75_us")

Key: TypeAlias = tuple[str, int, int, str]  # collective, ranks, size in bytes, algorithm
Known: TypeAlias = dict[tuple[Any, ...], tuple[Any, str]]  # a field and what it is the same for: value, where
Refusal: TypeAlias = tuple[str, int, str]  # algorithm, size in bytes, reason


@dataclass(frozen=True)
class Settings:
    """What a study measures.

    Attributes
    ----------
    collective : str
    ranks : sequence of int
        Numbers of ranks, one after the other.
    sizes : sequence of int
        Bytes of the whole vector, or of what a rank has of it where the scaling is weak.
    algorithms : sequence of str or None
        Beside native; None for all that make sense on so many ranks.
    dtype : dtype
    op : str
        Empty where the collective takes none.
    in_place : bool
    min_time : float
        Seconds for each algorithm at each size.
    scaling : {"strong", "weak"}
    """

    collective: str
    ranks: Sequence[int]
    sizes: Sequence[int]
    algorithms: Sequence[str] | None
    dtype: "np.dtype[Any]"
    op: str
    in_place: bool = False
    min_time: float = 0.1
    scaling: str = STRONG

    def vectors(self, ranks: int) -> list[int]:
        """Give the bytes of the whole vectors on so many ranks; 0 where there are none."""
        form = FORMS[self.collective]
        if not form.vector:
            return [0]
        wanted = [size * ranks if self.scaling == WEAK else size for size in self.sizes]
        unit = form.blocks(ranks) * self.dtype.itemsize
        return list(dict.fromkeys(max(1, -(-size // unit)) * unit for size in wanted))

    def known(self, mpicoll: str, mpi: str, hosts: Sequence[str]) -> Known:
        """Give what records must have to go on with; `hosts` are those of each rank in turn."""
        form = FORMS[self.collective]
        whole = dict(zip(WHOLE, (FORMAT, mpicoll, mpi, self.scaling), strict=True))
        alike = {
            "dtype": self.dtype.name if form.vector else None,
            "op": self.op or None,
            "root": 0 if form.rooted else None,
            "in_place": self.in_place,
            "min_time_s": self.min_time,
        }
        known: Known = {(name,): (value, "here") for name, value in whole.items()}
        known |= {(name, self.collective): (value, "here") for name, value in alike.items()}
        of_ranks = {p: sorted(set(hosts[:p])) for p in range(1, len(hosts) + 1)}
        return known | {("hosts", p): (value, "here") for p, value in of_ranks.items()}


def default_ranks(world: int) -> list[int]:
    """Give the numbers of ranks of a study: all from 2 to 8, then powers of two, and the whole job.

    Examples
    --------
    >>> default_ranks(40)
    [2, 3, 4, 5, 6, 7, 8, 16, 32, 40]
    """
    powers = [2**k for k in range(4, world.bit_length()) if 2**k < world]
    return sorted({*range(2, min(world, 8) + 1), *powers, world})


def sensible(collective: str, nodes: Nodes) -> list[str]:
    """Name what to measure beside native: what a call gets that asks for none, and the algorithms.

    Those for two levels only where some ranks share a node.
    """
    flat = max(map(len, nodes)) == 1
    size = sum(map(len, nodes))
    found = [each for each in algorithms(collective) if each.serves(size) and not (each.two_level and flat)]
    return [AUTO, *(each.name for each in found)]


# -- the folder --------------------------------------------------------------------------------


def read(folder: str) -> list[Record]:
    """Read a study.

    A last line that is not whole, of a study that is going on or was ended, is left out.

    Raises
    ------
    ValueError
        If there is no such folder, nothing in it, something else, or records of different versions, MPI
        libraries, hosts or settings: in one line, with the file, the line and the field.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"{folder}: no such folder")
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        raise ValueError(f"{folder}: no {FILE} in it, expected a folder that mpicoll study has written")
    found = _read(path)[0]
    if not found:
        raise ValueError(f"{path}: no record in it")
    check(found, path, {})
    return found


def resume(folder: str, known: Known) -> tuple[list[Record], int]:
    """Make the folder ready to go on, which is new or holds records with these settings.

    A last line that is not whole is removed from the file.

    Returns
    -------
    records : list of dict
        That are there.
    dropped : int
        Bytes of the last line, 0 where it was whole.

    Raises
    ------
    ValueError
        As :func:`read`, and if a record differs from what runs here.
    OSError
        If the folder cannot be made, or the file cannot be written.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, FILE)
    with open(path, "ab"):  # that it can be written
        pass
    found, whole = _read(path)
    check(found, path, known, "; use another folder")
    dropped = os.path.getsize(path) - whole
    if dropped:
        os.truncate(path, whole)
    return found, dropped


def check(records: Iterable[Record], path: str, known: Known, advice: str = "") -> None:
    """Raise ValueError where a record lacks a field, or differs from those before or from what is known."""
    known = dict(known)
    for number, record in enumerate(records, 1):
        at = f"{path}: line {number}"
        if record.get("study") != FORMAT:
            raise ValueError(f"{at}: study {record.get('study')!r} there, expected {FORMAT}")
        for name in (*WHOLE, *ALIKE, *FIGURES, "hosts"):
            if name not in record:
                raise ValueError(f"{at}: {name} is missing")
        keys = [(name,) for name in WHOLE] + [(name, record["collective"]) for name in ALIKE]
        for key in (*keys, ("hosts", record["ranks"])):
            value = record[key[0]]
            other, where = known.setdefault(key, (value, f"in line {number}"))
            if value != other:
                raise ValueError(f"{at}: {key[0]} {value!r} there, {other!r} {where}{advice}")


def keys(records: Iterable[Record]) -> set[Key]:
    """Say what was measured."""
    return {(each["collective"], each["ranks"], each["size"], each["algorithm"]) for each in records}


def _read(path: str) -> tuple[list[Record], int]:
    """Read all whole lines; give the records, and the bytes that those lines have."""
    with open(path, "rb") as file:
        content = file.read()
    whole = content.rfind(b"\n") + 1
    found = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{path}: line {number}: not a record, expected one of mpicoll study")
        found.append(record)
    return found, whole


# -- the measuring -----------------------------------------------------------------------------


@contextmanager
def part(world: "MPI.Intracomm", ranks: int) -> Iterator["MPI.Intracomm | None"]:
    """Give the first ranks a communicator; the others get None, and wait without using a core. Collective.

    What is raised on a rank inside must end the job: the others wait for it.
    """
    from mpi4py import MPI  # noqa: PLC0415 - readers of studies need none

    comm: Any = world.Split(0 if world.rank < ranks else MPI.UNDEFINED, world.rank)
    yield None if comm == MPI.COMM_NULL else comm
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.02)
    if comm != MPI.COMM_NULL:
        comm.Free()


def study(
    world: "MPI.Intracomm", settings: Settings, folder: str, done: Collection[Key]
) -> Iterator[tuple[int, int, list[Record], list[Refusal]]]:
    """Measure what is not done, and write it; collective.

    Parameters
    ----------
    world : MPI.Intracomm
        A plain communicator of mpi4py.
    settings : Settings
    folder : str
        That :func:`resume` has made ready, on rank 0.
    done : collection of Key
        What is there, the same on all ranks.

    Yields
    ------
    ranks, size : int
        What was measured, on the ranks that took part; rank 0 is one of them always.
    records : list of dict
        That were written, none if all was there.
    refusals : list of (str, int, str)
        Algorithm, size in bytes and reason for each that does not serve.

    Raises
    ------
    OSError
        If the file cannot be written, on all ranks.
    """
    path, trouble = os.path.join(folder, FILE), None
    for ranks in settings.ranks:
        with part(world, ranks) as comm:
            if comm is not None:
                for size, records, refusals in _sizes(comm, settings, world.size, done):
                    trouble = comm.bcast(_append(records, path) if comm.rank == 0 else None)
                    if trouble:
                        break
                    yield ranks, size, records, refusals
        trouble = world.bcast(trouble)
        if trouble:
            raise trouble


def _append(records: list[Record], path: str) -> OSError | None:
    try:
        append(records, path)
    except OSError as error:
        return error
    return None


def _sizes(
    comm: "MPI.Intracomm", settings: Settings, world: int, done: Collection[Key]
) -> Iterator[tuple[int, list[Record], list[Refusal]]]:
    """Measure on the ranks of a communicator, size by size."""
    from .. import Communicator, topology  # noqa: PLC0415 - readers of studies need no MPI
    from .provenance import provenance  # noqa: PLC0415
    from .run import benchmark, competitors  # noqa: PLC0415

    collective, op = settings.collective, settings.op
    wanted = settings.algorithms
    labels = sensible(collective, topology.nodes(comm)) if wanted is None else list(wanted)
    where = {**provenance(comm), "study": FORMAT, "scaling": settings.scaling, "world": world}
    ours = Communicator(comm)
    calls = competitors(comm, labels, op, collective=collective)
    for size in settings.vectors(comm.size):
        refused = {label: _refusal(ours, label, settings, size) for label in labels}
        asked = [NATIVE, *(label for label in labels if not refused[label])]
        missing = [label for label in asked if (collective, comm.size, size, label) not in done]
        records: list[Record] = []
        refusals = [(label, size, reason) for label, reason in refused.items() if reason]
        if missing:
            # what ratios are to is measured beside them, and written once
            beside = {label: calls[label] for label in dict.fromkeys((NATIVE, *missing))}
            for rows, more in benchmark(
                comm,
                beside,
                [size],
                dtype=settings.dtype,
                op=op,
                where=where,
                collective=collective,
                in_place=settings.in_place,
                min_time=settings.min_time,
            ):
                records += [row for row in rows if row["algorithm"] in missing]
                refusals += more
        yield size, records, refusals


def _refusal(ours: Any, label: str, settings: Settings, size: int) -> str:
    """Say why an algorithm does not serve vectors of a size; nothing is sent."""
    from mpi4py import MPI  # noqa: PLC0415

    name, parameters = parse_algorithm(label)
    question = {"op": getattr(MPI, settings.op)} if settings.op else {}
    try:
        ours.choice(
            settings.collective, size, datatype=settings.dtype, algorithm=name, **question, **parameters
        )
    except (ValueError, TypeError, MPI.Exception) as error:
        return str(error)
    return ""
