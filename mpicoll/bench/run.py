"""A benchmark: competitors measured beside one another, size by size."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import Communicator
from .measure import Call, measure
from .records import NATIVE, Record, record
from .words import parse_algorithm

Refusal = tuple[str, int, str]  # algorithm, size in bytes, reason


def competitors(world: MPI.Intracomm, algorithms: Sequence[str], op: str, **options: Any) -> dict[str, Call]:
    """Return what a user calls: the native all-reduce through mpi4py, and ours through a Communicator.

    Parameters
    ----------
    world : MPI.Intracomm
        A plain communicator of mpi4py.
    algorithms : sequence of str
        Names, with parameters if need be, as :func:`~mpicoll.bench.words.parse_algorithm` reads them.
    op : str
        The op's name in MPI.
    **options
        For :class:`~mpicoll.Communicator`.
    """
    ours = Communicator(world, **options)
    calls: dict[str, Call] = {NATIVE: partial(world.Allreduce, op=getattr(MPI, op))}
    for label in algorithms:
        name, parameters = parse_algorithm(label)
        options = {"op": getattr(MPI, op), "algorithm": name, **parameters}
        calls[label] = partial(ours.Allreduce, **options)
        calls[label].prepare = partial(ours.Allreduce_init, **options)  # type: ignore[attr-defined]
    return calls


def whole_elements(sizes: Sequence[int], dtype: np.dtype[Any]) -> list[int]:
    """Round sizes in bytes down to whole elements, at least one; each comes once."""
    return list(dict.fromkeys(max(1, size // dtype.itemsize) * dtype.itemsize for size in sizes))


def benchmark(
    world: MPI.Intracomm,
    calls: dict[str, Call],
    sizes: Sequence[int],
    *,
    dtype: np.dtype[Any],
    op: str,
    where: Record,
    in_place: bool = False,
    check: bool = True,
    min_time: float = 0.1,
    tick: Callable[[float], None] | None = None,
) -> Iterator[tuple[list[Record], list[Refusal]]]:
    """Measure all calls at each size; collective.

    Parameters
    ----------
    world, calls, dtype, op, in_place, check, min_time
        As for :func:`~mpicoll.bench.measure.measure`. The native collective is among the calls.
    sizes : sequence of int
        Bytes, whole elements.
    where : dict
        What :func:`~mpicoll.bench.provenance.provenance` says, for the records.
    tick : callable, optional
        Is told how many sizes are done, as a real number.

    Yields
    ------
    records : list of dict
        One for each call that served.
    refusals : list of (str, int, str)
        Algorithm, size in bytes and reason for each that did not.
    """
    settings = {"dtype": dtype.name, "op": op, "in_place": in_place, "min_time_s": min_time}
    for index, nbytes in enumerate(sizes):
        count = nbytes // dtype.itemsize
        timings, refusals = measure(
            world,
            calls,
            count,
            dtype,
            op,
            in_place=in_place,
            check=check,
            min_time=min_time,
            tick=_after(index, tick),
        )
        native = float(np.median(timings[NATIVE].samples)) if NATIVE in timings else None
        records = []
        for label, timing in timings.items():
            own = {"parameters": parse_algorithm(label)[1], "count": count}
            records.append(record("allreduce", label, nbytes, timing, native, **own, **settings, **where))
        yield records, [(label, nbytes, reason) for label, reason in refusals.items()]


def _after(index: int, tick: Callable[[float], None] | None) -> Callable[[float], None] | None:
    return None if tick is None else lambda part: tick(index + part)
