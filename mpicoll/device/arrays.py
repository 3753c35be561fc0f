"""From arrays on a GPU to addresses, counts and types.

CuPy and Numba show their arrays by ``__cuda_array_interface__``, JAX and PyTorch by that and by DLPack. Where
both are there, the first costs less to read; DLPack knows bfloat16, and lets our stream wait for theirs.
"""

import os
import sys
from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from .. import dlpack
from . import driver
from .driver import DeviceError

LEGACY_STREAM = 1  # CU_STREAM_LEGACY: the default stream, as both protocols number it, too


class Array(NamedTuple):
    """Contiguous memory of an array on a GPU.

    Attributes
    ----------
    address : int
        Of the first element; 0 where there is none.
    nbytes, itemsize : int
    dtype : numpy.dtype
    shape : tuple of int
    readonly : bool
    device : int or None
        The driver's number of the device; None for an array without elements that does not say.
    stream : int or None
        Handle of the stream that the array's owner works on, where it says so.
    owner : Any
        Keeps the memory alive.
    """

    address: int
    nbytes: int
    itemsize: int
    dtype: np.dtype
    shape: tuple[int, ...]
    readonly: bool
    device: int | None
    stream: int | None
    owner: Any


class _Layout(NamedTuple):
    """What both protocols say; strides in bytes, None where rows follow each other."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype
    readonly: bool
    stream: int | None = None


def is_device(thing: Any) -> bool:
    """Whether an object says that it is an array on an NVIDIA GPU; makes no CUDA context."""
    if isinstance(thing, np.ndarray):
        return False
    # First, as PyTorch's tensors all have the other protocol's attribute, and raise more than AttributeError.
    if (device := dlpack.device_of(thing)) is not None:
        return device[0] in (dlpack.CUDA, dlpack.CUDA_MANAGED)
    try:
        return hasattr(thing, "__cuda_array_interface__")
    except Exception:  # it is on a GPU, but cannot be read: `view` says why
        return True


def view(thing: Any, name: str) -> Array | np.ndarray:
    """Read an array on a GPU, or one that says so and is the host's, as MPI would take it.

    Parameters
    ----------
    thing : array
        With ``__cuda_array_interface__`` or DLPack, C- or F-contiguous.
    name : str
        What the messages of exceptions call it, e.g. ``"allreduce: sendbuf"``.

    Raises
    ------
    TypeError
        If it cannot be read, or its elements are not plain data.
    ValueError
        If it is not contiguous, not aligned, not of native byte order, or to be conjugated or negated yet.
    DeviceError
        If its memory is neither CUDA's nor the host's.
    """
    for lazy in ("is_conj", "is_neg"):  # PyTorch's, whose memory holds something else than they show
        if getattr(thing, lazy, bool)():
            raise ValueError(f"{name}: {lazy}() of the tensor is true, expected resolved values")
    layout = _layout(thing, name)
    _check(layout, name)
    nbytes = prod(layout.shape) * layout.dtype.itemsize
    try:
        device = driver.device_of(layout.address) if nbytes else _told_device(thing)
    except DeviceError:
        if _is_readable(layout.address, nbytes):
            return np.asarray(_Hosts(thing, layout))
        raise
    if not nbytes and not driver.starts():
        return np.empty(layout.shape, layout.dtype)
    return Array(
        layout.address if nbytes else 0,
        nbytes,
        layout.dtype.itemsize,
        layout.dtype,
        layout.shape,
        layout.readonly or _is_jax(thing),
        device,
        layout.stream,
        thing,
    )


def wait_for_producer(thing: Any, array: Array, stream: int) -> None:
    """Let a stream of ours wait until the work is done that makes an array's values; the host goes on.

    Parameters
    ----------
    thing : array
        As given to :func:`view`, and in the same thread: libraries have a current stream in each.
    array : Array
        What :func:`view` gave.
    stream : int
        Handle of our stream.

    Raises
    ------
    DeviceError
        If the driver refuses.
    """
    if array.device is None or not array.nbytes:
        return
    # Libraries have a current stream for each device, take that of the current one, and PyTorch exports no
    # other device's tensors.
    with driver.current(array.device):
        # Asked again, as a persistent request may start where another stream is current than at its making.
        producer = _stream(_interface(thing)[0])
        if producer is not None:
            _wait_for_stream(producer, stream)
        elif hasattr(thing, "__dlpack__"):
            # By the protocol the producer makes the consumer's stream wait for its own before it gives a
            # capsule, and that is all that is wanted here: the capsule frees itself.
            _without_gradient(thing).__dlpack__(stream=stream)
        else:
            # Numba's arrays of the default stream, and what knows version 2 only, name no stream, and expect
            # that ours waits for the default one by itself. Streams that do not block need to be told.
            _wait_for_stream(LEGACY_STREAM, stream)


def _wait_for_stream(producer: int, stream: int) -> None:
    if producer == stream:
        return
    event = driver.get("cuEventCreate", driver.NO_TIMING)
    try:
        driver.call("cuEventRecord", event, producer)
        driver.call("cuStreamWaitEvent", stream, event, 0)
    finally:
        driver.call("cuEventDestroy_v2", event)  # once it has happened, if it is yet to


def _without_gradient(thing: Any) -> Any:
    """Give a tensor that PyTorch exports: none with a gradient to lose, which does not matter to a wait."""
    return thing.detach() if getattr(thing, "requires_grad", False) else thing


def _interface(thing: Any) -> tuple[Any, str]:
    """Give ``__cuda_array_interface__``, or None and the reason."""
    try:
        return thing.__cuda_array_interface__, ""
    except Exception as error:  # PyTorch raises RuntimeError, AttributeError, TypeError and KeyError
        return None, str(error)


def _stream(interface: Any) -> int | None:
    stream = interface.get("stream") if isinstance(interface, dict) else None
    # The protocol rules out 0, as it could mean None or the default stream; either way we wait for that one.
    return index(stream) if stream else None


def _layout(thing: Any, name: str) -> _Layout:
    """Read whichever protocol can be."""
    interface, reason = _interface(thing)
    if interface is not None:
        try:
            layout = _from_interface(interface)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            interface, reason = None, f"__cuda_array_interface__: {error!r}"
    if interface is None:
        return _from_dlpack(thing, name, reason)
    if interface.get("mask") is not None:
        raise TypeError(f"{name}: masked array given, expected plain data")
    if layout.dtype.kind == "V" and layout.dtype.names is None and hasattr(thing, "__dlpack__"):
        return layout._replace(dtype=_from_dlpack(thing, name, reason).dtype)  # bfloat16, which NumPy has not
    return layout


def _from_interface(interface: dict[str, Any]) -> _Layout:
    address, readonly = interface["data"]
    shape, strides = tuple(map(index, interface["shape"])), interface.get("strides")
    if strides is not None:
        strides = tuple(map(index, strides))
        if len(strides) != len(shape):
            raise ValueError(f"strides {strides} for shape {shape}")
    typestr, fields = interface["typestr"], interface.get("descr")
    structured = (
        typestr[1:2] == "V" and fields and fields[0][0]
    )  # else one field without name: `typestr` again
    dtype = np.dtype(fields if structured else typestr)
    return _Layout(index(address or 0), shape, strides, dtype, bool(readonly), _stream(interface))


def _from_dlpack(thing: Any, name: str, reason: str) -> _Layout:
    """Read a DLPack object; `reason` is why the other protocol could not be."""
    device = dlpack.device_of(thing)
    if device is None or device[0] not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        raise TypeError(
            f"{name}: {type(thing).__name__} given, expected an array on a GPU{reason and f' ({reason})'}"
        )
    # The default stream may wait for it, in passing: some would synchronise the host for None, and JAX takes
    # -1, which means no synchronisation, for the address of a stream.
    options = {"stream": LEGACY_STREAM, "max_version": (1, 0)}
    with driver.current(device[1]):  # PyTorch exports no other device's tensors
        try:
            try:
                capsule = thing.__dlpack__(**options)
            except TypeError:  # older than DLPack 1.0
                del options["max_version"]
                capsule = thing.__dlpack__(**options)
        except Exception as error:
            why = "; ".join(filter(None, (reason, str(error))))
            raise TypeError(f"{name}: {type(thing).__name__} cannot be read: {why}") from error
        tensor = dlpack.describe(capsule, name)
    return _Layout(tensor.address, tensor.shape, tensor.strides, tensor.dtype, tensor.readonly)


def _check(layout: _Layout, name: str) -> None:
    """Raise where the memory is not what the engines can work on."""
    shape, dtype = layout.shape, layout.dtype
    if dtype.hasobject:
        raise TypeError(f"{name}: dtype object given, expected plain data")
    if not dtype.isnative:
        raise ValueError(f"{name}: dtype {dtype.str} given, expected native byte order")
    if layout.strides is not None and not (
        _contiguous(shape, layout.strides, dtype.itemsize)
        or _contiguous(shape[::-1], layout.strides[::-1], dtype.itemsize)
    ):
        raise ValueError(f"{name} is not contiguous: strides {layout.strides} for shape {shape}")
    if layout.address % dtype.alignment and prod(shape):
        raise ValueError(
            f"{name} is at address {layout.address:#x}, expected a multiple of {dtype.alignment} for {dtype}"
        )


def _contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether rows follow each other; as in NumPy, the stride of a single row does not matter."""
    if 0 in shape:
        return True
    expected = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _is_readable(address: int, nbytes: int) -> bool:
    """Whether the host can read both ends of some memory; it is not touched, so that nothing can crash."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return all(len(os.pread(memory.fileno(), 1, at)) == 1 for at in (address, address + nbytes - 1))
    except OSError:
        return False


class _Hosts:
    """What NumPy reads as an array of the host; keeps the memory alive."""

    def __init__(self, thing: Any, layout: _Layout) -> None:
        self.thing = thing
        self.__array_interface__ = {
            "version": 3,
            "data": (layout.address, layout.readonly),
            "shape": layout.shape,
            "strides": layout.strides,
            "typestr": layout.dtype.str,
            "descr": layout.dtype.descr,
        }


def _told_device(thing: Any) -> int | None:
    """Give the device that an array without elements, and so without an address, says it is on."""
    device = dlpack.device_of(thing)
    return device[1] if device is not None and device[0] in (dlpack.CUDA, dlpack.CUDA_MANAGED) else None


def _is_jax(thing: Any) -> bool:
    """Whether it is one of JAX's arrays: they never change, but its DLPack capsules cannot say so."""
    return isinstance(thing, getattr(sys.modules.get("jax"), "Array", ()))
