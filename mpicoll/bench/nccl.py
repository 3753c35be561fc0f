"""NVIDIA's NCCL as a competitor, through CuPy.

Its collectives only tell the device what to do, so a call waits for the stream: ours return when the result
is there, too.
"""

import importlib
from typing import Any

from mpi4py import MPI

from ..errors import DeviceError
from .device import Devices, refused
from .measure import Call
from .records import NCCL

_METHODS = {  # of CuPy's communicator
    "allgather": "allGather",
    "allreduce": "allReduce",
    "bcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reduceScatter",
}
_OPS = ("SUM", "PROD", "MIN", "MAX")


def competitor(world: MPI.Intracomm, devices: Devices, collective: str, op: str, root: int) -> Call:
    """Give NCCL's collective as what is measured takes it, or what says why it cannot be had; collective."""
    trouble = _trouble(devices, collective, op)
    if troubles := [text for text in world.allgather(trouble) if text]:
        return refused(troubles[0])
    cuda = _cupy()
    meeting = world.bcast(cuda.nccl.get_unique_id() if world.rank == 0 else None)
    try:
        with cuda.Device(devices.number):
            comm = cuda.nccl.NcclCommunicator(world.size, meeting, world.rank)
    except cuda.nccl.NcclError as error:
        trouble = f"{NCCL}: {error}"
    if troubles := [text for text in world.allgather(trouble) if text]:
        return refused(troubles[0])
    return _call(comm, devices.number, collective, op, root)


def _trouble(devices: Devices, collective: str, op: str) -> str:
    """Say why NCCL cannot be had; "" if it can."""
    ranks, different = len(devices.ids), len(set(devices.ids))
    if different < ranks:
        return f"{NCCL} needs a device for each rank, and {ranks} ranks share {different}"
    try:
        available = _cupy().nccl.available
    except ImportError as error:
        return f"{NCCL} is used through CuPy: {error}"
    if not available:
        return "CuPy does not find NCCL"
    if collective not in _METHODS:
        return f"{NCCL} has no {collective}"
    return f"{NCCL} has no {op}" if op and op not in _OPS else ""


def _cupy() -> Any:
    return importlib.import_module("cupy.cuda")  # optional, and takes a second


def _call(comm: Any, number: int, collective: str, op: str, root: int) -> Call:
    """Give a function of the buffers that mpi4py's method would take."""
    cuda = _cupy()
    with cuda.Device(number):
        stream = cuda.Stream(non_blocking=True)
    method = getattr(comm, _METHODS[collective])
    more = [getattr(cuda.nccl, f"NCCL_{op}")] if op else []
    more += [root] if collective in ("bcast", "reduce") else []

    def call(*buffers: Any) -> None:
        received = buffers[-1]
        sent = received if buffers[0] is MPI.IN_PLACE else buffers[0]
        source, count = _sent(comm, collective, sent, received)
        element = getattr(cuda.nccl, f"NCCL_{received.dtype.name.upper()}", None)
        if element is None:
            raise DeviceError(f"{NCCL} has no {received.dtype.name}")
        with cuda.Device(number):
            method(source, received.address, count, element, *more, stream.ptr)
            stream.synchronize()

    return call


def _sent(comm: Any, collective: str, sent: Any, received: Any) -> tuple[int, int]:
    """Give the address of what a rank sends, and the elements that NCCL counts, in a block if there are."""
    if collective == "reduce_scatter" and sent is received:
        raise DeviceError(f"{NCCL} leaves the result of a reduce_scatter in place elsewhere than MPI")
    if collective != "allgather":
        return sent.address, received.shape[0]
    count = received.shape[0] // comm.size()
    own = comm.rank_id() * count * received.dtype.itemsize if sent is received else 0
    return sent.address + own, count
