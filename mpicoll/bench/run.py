"""A benchmark: competitors measured beside one another, size by size."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import Communicator
from ..selection import AUTO
from . import nccl
from .device import Devices, refused
from .forms import FORMS
from .measure import Call, measure
from .records import NATIVE, NCCL, Record, record
from .words import parse_algorithm

Refusal = tuple[str, int, str]  # algorithm, size in bytes, reason


def competitors(
    world: MPI.Intracomm,
    algorithms: Sequence[str],
    op: str = "",
    *,
    collective: str = "allreduce",
    root: int = 0,
    devices: Devices | None = None,
    **options: Any,
) -> dict[str, Call]:
    """Return what a user calls: the native collective through mpi4py, and ours through a Communicator.

    Collective. What cannot be had on devices is among them, and says why when it is called.

    Parameters
    ----------
    world : MPI.Intracomm
        A plain communicator of mpi4py.
    algorithms : sequence of str
        Names, with parameters if need be, as :func:`~mpicoll.bench.words.parse_algorithm` reads them.
    op : str
        The op's name in MPI, where the collective takes one.
    collective : str
        One of :data:`~mpicoll.bench.forms.FORMS`.
    root : int
        The root, where the collective takes one.
    devices : Devices, optional
        Where the buffers are, if not on the host; the name ``nccl`` stands for NCCL's collective then.
    **options
        For :class:`~mpicoll.Communicator`.
    """
    ours, form = Communicator(world, **options), FORMS[collective]
    fixed: dict[str, Any] = {"op": getattr(MPI, op)} if form.combines else {}
    fixed |= {"root": root} if form.rooted else {}
    calls: dict[str, Call] = {NATIVE: partial(getattr(world, form.method), **fixed)}
    if devices is not None and not devices.awareness.collectives:
        calls[NATIVE] = refused(
            f"MPI's collectives are not known to take device memory: {devices.awareness.reason}"
        )
    for label in algorithms:
        if devices is not None and label == NCCL:
            calls[label] = nccl.competitor(world, devices, collective, op, root)
            continue
        name, parameters = parse_algorithm(label)
        chosen = {**fixed, **({} if name == AUTO else {"algorithm": name}), **parameters}
        calls[label] = partial(getattr(ours, form.method), **chosen)
        calls[label].prepare = partial(getattr(ours, f"{form.method}_init"), **chosen)  # type: ignore[attr-defined]
    return calls


def whole_elements(sizes: Sequence[int], dtype: np.dtype[Any], blocks: int = 1) -> list[int]:
    """Round sizes in bytes up to whole elements, at least one, in each of so many blocks; each comes once."""
    unit = blocks * dtype.itemsize
    return list(dict.fromkeys(max(1, -(-size // unit)) * unit for size in sizes))


def vector_sizes(sizes: Sequence[int], collective: str, dtype: np.dtype[Any], ranks: int) -> list[int]:
    """Return the sizes in bytes that are measured for those wanted; 0 where there is no vector."""
    form = FORMS[collective]
    return whole_elements(sizes, dtype, form.blocks(ranks)) if form.vector else [0]


def benchmark(
    world: MPI.Intracomm,
    calls: dict[str, Call],
    sizes: Sequence[int],
    *,
    dtype: np.dtype[Any],
    op: str,
    where: Record,
    collective: str = "allreduce",
    root: int = 0,
    in_place: bool = False,
    check: bool = True,
    min_time: float = 0.1,
    tick: Callable[[float], None] | None = None,
    devices: Devices | None = None,
) -> Iterator[tuple[list[Record], list[Refusal]]]:
    """Measure all calls at each size; collective.

    Parameters
    ----------
    world, calls, dtype, op, collective, root, in_place, check, min_time
        As for :func:`~mpicoll.bench.measure.measure`. The baseline of ratios is among the calls.
    sizes : sequence of int
        Bytes of the vector, as :func:`vector_sizes` gives them.
    where : dict
        What :func:`~mpicoll.bench.provenance.provenance` says, for the records.
    tick : callable, optional
        Is told how many sizes are done, as a real number.
    devices : Devices, optional
        Where the buffers are, if not on the host.

    Yields
    ------
    records : list of dict
        One for each call that served.
    refusals : list of (str, int, str)
        Algorithm, size in bytes and reason for each that did not.
    """
    form, baseline = FORMS[collective], NATIVE if devices is None else devices.baseline
    settings = {
        "dtype": dtype.name if form.vector else None,
        "op": op or None,
        "root": root if form.rooted else None,
        "in_place": in_place,
        "min_time_s": min_time,
        "baseline": baseline,
    }
    for index, nbytes in enumerate(sizes):
        count = nbytes // dtype.itemsize
        timings, refusals = measure(
            world,
            calls,
            count,
            dtype,
            op,
            collective=collective,
            root=root,
            in_place=in_place,
            check=check,
            min_time=min_time,
            tick=_after(index, tick),
            memory=None if devices is None else devices.buffers,
        )
        base = float(np.median(timings[baseline].samples)) if baseline in timings else None
        records = []
        for label, timing in timings.items():
            own = {"parameters": parse_algorithm(label)[1], "count": count}
            records.append(record(collective, label, nbytes, timing, base, **own, **settings, **where))
        yield records, [(label, nbytes, reason) for label, reason in refusals.items()]


def _after(index: int, tick: Callable[[float], None] | None) -> Callable[[float], None] | None:
    return None if tick is None else lambda part: tick(index + part)
