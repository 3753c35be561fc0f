"""Collectives without schedules: the MPI library's own, which must not get memory that it cannot read."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from ..buffers import on_device
from ..device import aware
from ..errors import DeviceError

ALLTOALLW = "Alltoallw", "Ialltoallw", "Alltoallw_init"
NEIGHBOURHOODS = tuple(
    form.format(kind)
    for kind in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
    for form in ("Neighbor_{}", "Ineighbor_{}", "Neighbor_{}_init")
)

Kind = TypeVar("Kind", bound=type)


def unscheduled(owner: type, *names: str) -> Callable[[Kind], Kind]:
    """Let methods that a class has of mpi4py's class `owner` look at what they are given first."""

    def decorate(kind: Kind) -> Kind:
        for name in names:
            if hasattr(owner, name):  # the persistent ones are of MPI 4
                setattr(kind, name, _looking(getattr(owner, name), name))
        return kind

    return decorate


def _looking(native: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(native)
    def method(self: MPI.Comm, *arguments: Any, **named: Any) -> Any:
        if any(on_device(spec) for spec in (*arguments, *named.values())):
            known = aware.known()
            if known is None or not known.collectives:
                reason = "" if known is None else f": {known.reason}"
                raise DeviceError(
                    f"{name}: device memory given, but there is no schedule for it, and MPI's collectives "
                    f"are not known to take that{reason}"
                )
        return native(self, *arguments, **named)

    return method
