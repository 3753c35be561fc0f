"""What is still under way for arrays when a collective begins.

Whoever computes an array may only have told the device to, in a stream of its own. A collective waits for
that before it reads the array, or writes to it. When it returns, or its request is complete, all of its own
work is done, so that every stream sees the result.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence

from . import arrays, driver, memory
from .arrays import Array
from .driver import DeviceError
from .memory import Streams


class Noted:
    """What was under way for arrays; :meth:`wait` for it once, or drop it."""

    def __init__(self, device: int, event: int) -> None:
        self._device, self._event = device, event
        self._drop = weakref.finalize(self, memory.give_back, device, "cuEventDestroy_v2", event)

    def wait(self) -> None:
        """Return when it is done."""
        try:
            with driver.current(self._device):
                driver.call("cuEventSynchronize", self._event)
        finally:
            self._drop()


def note(given: Sequence[Array]) -> Noted | None:
    """Note what is under way for arrays now; None if they have no elements.

    Raises
    ------
    DeviceError
        If a stream is not of the arrays' device.
    """
    here = _here(given)
    if here is None:
        return None
    stream = _stream(here)
    with driver.current(here), _of_device(here):
        for array in given:
            arrays.wait_for_producer(array.owner, array, stream)
        event = driver.get("cuEventCreate", driver.NO_TIMING)
        noted = Noted(here, event)
        driver.call("cuEventRecord", event, stream)
    return noted


def settle(given: Sequence[Array]) -> None:
    """Return when what is under way for arrays is done; raises as :func:`note`."""
    here = _here(given)
    if here is None:
        return
    with driver.current(here), _of_device(here):
        streams = {array.stream for array in given if array.stream is not None}
        for array in given:
            if array.stream is None:
                stream = _stream(here)
                arrays.wait_for_producer(array.owner, array, stream)
                streams.add(stream)
        for stream in streams:
            driver.call("cuStreamSynchronize", stream)


@contextlib.contextmanager
def _of_device(here: int) -> Iterator[None]:
    """Say what is expected of a stream that the driver refuses."""
    try:
        yield
    except DeviceError as error:
        raise DeviceError(f"an array's stream, expected one of device {here}: {error}") from error


def _here(given: Sequence[Array]) -> int | None:
    """Give the device that arrays are on; None if they have no elements."""
    return next((array.device for array in given if array.device is not None), None)


def _stream(device: int) -> int:
    return int(_streams(device).handles[0])


@functools.cache
def _streams(device: int) -> Streams:
    return Streams(device, 1)
