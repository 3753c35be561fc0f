"""One rank's part of a collective, and what all of them check."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpi4py import MPI

from ..buffers import Buffer
from ..device.arrays import Array
from ..device.producers import Noted
from ..errors import InvalidRoot
from ..reduction import Reduction


class Where(NamedTuple):
    """The calling rank and the number of ranks."""

    rank: int
    size: int


@dataclass(slots=True)
class Call:
    """One rank's part of a collective.

    Attributes
    ----------
    collective : str
        Which schedules serve it.
    counts, displacements, incoming, incoming_displacements, itemsize, root, in_place
        As of :class:`~mpicoll.engine.layout.Shape`.
    sendbuf, recvbuf : int
        Addresses.
    nbytes : int or None
        Of the whole vector, where every rank knows it.
    counted : bool
        Whether the blocks may be unequal.
    reduction : Reduction or None
    before, after : tuple of callable
        What to do around the collective.
    owners : tuple
        Keep the memory alive.
    native : tuple
        The arguments for the native collective.
    unsuited : str
        Why our schedules do not serve it; "" where they do.
    holes : bool
        Whether it is to reduce elements with holes between their data.
    devices : tuple of Array
        The arrays, where they are in the memory of a GPU.
    received : int
        Elements that this rank receives, of a reduction.
    ours : bool
        Whether only our schedules may serve it, however it is asked for.
    produced : Noted or None
        What was under way for the arrays when the collective was started, of
        :func:`mpicoll.device.producers.note`; None where that is to be seen when it runs.
    """

    collective: str
    counts: tuple[int, ...] = ()
    itemsize: int = 1
    root: int = 0
    in_place: bool = False
    displacements: tuple[int, ...] | None = None
    incoming: tuple[int, ...] | None = None
    incoming_displacements: tuple[int, ...] | None = None
    sendbuf: int = 0
    recvbuf: int = 0
    nbytes: int | None = 0
    counted: bool = False
    reduction: Reduction | None = None
    before: tuple[Callable[[], None], ...] = ()
    after: tuple[Callable[[], None], ...] = ()
    owners: tuple = ()
    native: tuple = ()
    unsuited: str = ""
    holes: bool = False
    devices: tuple[Array, ...] = ()
    received: int = 0
    ours: bool = False
    produced: Noted | None = None

    @property
    def own_bytes(self) -> int:
        """Bytes of the vector, as far as this rank knows it."""
        return sum(self.counts) * self.itemsize if self.nbytes is None else self.nbytes

    @property
    def key(self) -> tuple | None:
        """What a plan depends on; None for one that is not worth keeping."""
        what = () if self.reduction is None else self.reduction.key
        if what is None:
            return None
        return (
            self.collective,
            self.counts,
            self.itemsize,
            self.root,
            self.in_place,
            self.displacements,
            self.incoming,
            self.incoming_displacements,
            what,
            self.device if self.devices else "host",
        )

    @property
    def device(self) -> int | None:
        """The number of the device that the memory is on; None for host memory."""
        return next((array.device for array in self.devices if array.device is not None), None)


def on_devices(collective: str, **buffers: Buffer | None) -> tuple[Array, ...]:
    """Give the arrays of buffers that are all on one device; none where they are in host memory.

    Raises
    ------
    TypeError
        If some are on a device and some in host memory.
    ValueError
        If they are on different devices.
    """
    given = {name: buffer for name, buffer in buffers.items() if buffer is not None}
    found = {name: buffer.device for name, buffer in given.items() if buffer.device is not None}
    if not found:
        return ()
    for name in given:
        if name not in found:
            raise TypeError(
                f"{collective}: {name} is in host memory and {next(iter(found))} on a device, "
                "expected both in one place"
            )
    numbers = {name: array.device for name, array in found.items() if array.device is not None}
    if len(set(numbers.values())) > 1:
        where = " and ".join(f"{name} on device {number}" for name, number in numbers.items())
        raise ValueError(f"{collective}: {where}, expected one device")
    return tuple(found.values())


def says_in_place(spec: Any) -> bool:
    """Whether a buffer is left out because its data is in the other one."""
    return spec is None or spec is MPI.IN_PLACE


def checked_root(collective: str, root: Any, where: Where) -> int:
    """Give the root as an int; raise TypeError if it is no integer, InvalidRoot if it is no rank."""
    if not hasattr(root, "__index__"):
        raise TypeError(f"{collective}: root {root!r} given, expected a rank")
    if not 0 <= (root := root.__index__()) < where.size:
        raise InvalidRoot(f"{collective}: root {root} given, expected 0 to {where.size - 1}")
    return root


def check_writable(buffer: Buffer, name: str) -> None:
    """Raise ValueError for read-only memory."""
    if buffer.readonly:
        raise ValueError(f"{name} is read-only")


def check_equal(collective: str, name: str, given: int, other: str, expected: int) -> None:
    """Raise ValueError where two arguments do not say the same."""
    if given != expected:
        raise ValueError(f"{collective}: {name} says {given} and {other} {expected}, expected the same")
