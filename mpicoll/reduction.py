"""What a reduction computes: an op on elements of a type."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from . import kernels
from .buffers import Buffer
from .engine import reference
from .errors import UndefinedOp
from .kernels.table import name_of
from .ops import AVG, Op

OPS = {getattr(MPI, name).handle: name for name in kernels.OPS}  # MPI.Op objects are not hashable


@dataclass(slots=True)
class Reduction:
    """An op on elements of a type.

    Attributes
    ----------
    collective : str
        For messages.
    dtype, datatype, itemsize
        As of :class:`~mpicoll.buffers.Buffer`.
    op : MPI.Op
        One of MPI's, one that mpi4py made of the user's function, or :class:`~mpicoll.ops.Op`.
    average : bool
        Whether the sum is divided by the number of ranks at the end.
    """

    collective: str
    dtype: np.dtype | None
    datatype: MPI.Datatype | None
    itemsize: int
    op: MPI.Op
    average: bool = False

    @classmethod
    def of(cls, collective: str, buffer: Buffer, op: Any) -> "Reduction":
        """Take the type from a buffer.

        Raises
        ------
        TypeError
            If `op` is not an op.
        UndefinedOp
            If MPI does not define it for the type.
        """
        average = op is AVG
        if average:
            op = MPI.SUM
            if buffer.dtype is None or not kernels.supported("SUM", buffer.dtype):
                raise UndefinedOp(f"{collective}: AVG is not defined for {buffer.kind}")
        if not isinstance(op, MPI.Op):
            raise TypeError(f"{collective}: op {op!r} given, expected an MPI.Op")
        made = cls(collective, buffer.dtype, buffer.datatype, buffer.itemsize, op, average)
        made.check_defined()
        return made

    @property
    def key(self) -> tuple | None:
        """For a table of plans; None where an op may be freed and another get its handle."""
        if isinstance(self.op, Op):
            return (self.dtype, self.op.token)
        return (self.dtype, self.op.handle, self.average) if self.op.is_predefined and self.dtype else None

    @property
    def commutative(self) -> bool:
        """Whether the operands may be swapped."""
        return bool(self.op.Is_commutative())

    @property
    def kernel(self) -> kernels.Kernel | None:
        """The kernel that serves it, if there is one."""
        if self.dtype is None:
            return None
        if isinstance(self.op, Op):
            return self.op.kernel(self.dtype)
        name = OPS.get(self.op.handle)
        return kernels.kernel(name, self.dtype) if name and kernels.supported(name, self.dtype) else None

    @property
    def compiled(self) -> bool:
        """Whether there is a kernel; nothing is compiled to find out, but for the user's own ops."""
        if isinstance(self.op, Op):
            return self.kernel is not None
        name = OPS.get(self.op.handle)
        return name is not None and self.dtype is not None and kernels.supported(name, self.dtype)

    @property
    def op_name(self) -> str:
        """The op's name in MPI, or what it is."""
        return OPS.get(self.op.handle) or ("an op of MPI" if self.op.is_predefined else "the user's op")

    def check_defined(self) -> None:
        """Raise :class:`UndefinedOp` where MPI does not define the op for the type."""
        if self.op == MPI.OP_NULL:
            raise UndefinedOp(f"{self.collective}: MPI.OP_NULL given, expected an op")
        name = OPS.get(self.op.handle)
        if name and self.dtype is not None and name_of(self.dtype) and not self.compiled:
            raise UndefinedOp(f"{self.collective}: {name} is not defined for {self.dtype}")

    def combine(self) -> reference.Combine:
        """Give what the reference engine combines with.

        Raises
        ------
        TypeError, MPI.Exception
            If MPI has no type for the elements, or cannot apply the op to it.
        """
        if self.compiled and self.kernel is not None:
            return reference.by_kernel(self.kernel)
        datatype = self.datatype or self._datatype()
        combine = reference.by_mpi(self.op, datatype, self.itemsize)
        if self.op.is_predefined:  # find out now whether MPI can
            combine(np.zeros(self.itemsize, np.uint8), np.zeros(self.itemsize, np.uint8))
        return combine

    def _datatype(self) -> MPI.Datatype:
        """Give MPI's equal of the NumPy type; only numbers have one."""
        dtype = np.dtype(self.dtype)
        try:
            datatype = MPI.Datatype.fromcode(dtype.char) if dtype.kind in "biufc" else MPI.DATATYPE_NULL
        except (KeyError, ValueError):
            datatype = MPI.DATATYPE_NULL
        if datatype == MPI.DATATYPE_NULL or datatype.Get_size() != dtype.itemsize:
            raise TypeError(f"{self.collective}: MPI has no type for {dtype}")
        return datatype
