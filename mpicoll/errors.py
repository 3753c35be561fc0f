"""Exceptions with an MPI error class and a message of ours in front."""

from mpi4py import MPI


class UndefinedOp(MPI.Exception):
    """MPI does not define the operation for the type of the elements.

    What the MPI library raises too: its error class is ``MPI.ERR_OP``.
    """

    def __new__(cls, message: str) -> "UndefinedOp":  # noqa: D102
        return super().__new__(cls, MPI.ERR_OP)

    def __init__(self, message: str) -> None:
        super().__init__(MPI.ERR_OP)
        self._message = message

    def __str__(self) -> str:
        return f"{self._message}: {super().__str__()}"
