"""Exceptions: those of MPI's classes have a message of ours in front."""

from typing import ClassVar

from mpi4py import MPI

from .device.driver import DeviceError

__all__ = [
    "DeviceError",
    "Explained",
    "FreedCommunicator",
    "InvalidRoot",
    "NotCancellable",
    "UndefinedOp",
]


class Explained(MPI.Exception):
    """What the MPI library raises too, with our message."""

    error_class: ClassVar[int] = MPI.ERR_OTHER

    def __new__(cls, message: str) -> "Explained":  # noqa: D102
        return super().__new__(cls, cls.error_class)

    def __init__(self, message: str) -> None:
        super().__init__(self.error_class)
        self._message = message

    def __str__(self) -> str:
        return f"{self._message}: {super().__str__()}"


class UndefinedOp(Explained):
    """MPI does not define the operation for the type of the elements."""

    error_class = MPI.ERR_OP


class InvalidRoot(Explained):
    """The root is no rank of the communicator."""

    error_class = MPI.ERR_ROOT


class FreedCommunicator(Explained):
    """The communicator was freed, or is MPI.COMM_NULL."""

    error_class = MPI.ERR_COMM


class NotCancellable(Explained):
    """The request is a collective's."""

    error_class = MPI.ERR_REQUEST
