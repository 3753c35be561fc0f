"""Operations beyond MPI's own: functions of the user's, and the average."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util.dtlib import to_numpy_dtype

from .kernels import Kernel

__all__ = ["AVG", "Average", "Op", "averages", "divide", "op"]

_tokens = itertools.count(1)


def op(function: Callable | None = None, *, commutative: bool = False) -> Any:
    """Make an operation of a function of two elements; also a decorator, with or without arguments.

    Parameters
    ----------
    function : callable
        Gives the result of two elements, the first from lower ranks. Numba compiles it; it may be an ``njit``
        function. It must be associative, up to rounding. An element of a structured dtype comes as a record,
        ``a.field``, and the result is a tuple with a value for each field, or one of the two operands.
    commutative : bool
        Whether the operands may be swapped, which allows more algorithms and faster ones. The default is no,
        as in mpi4py: it costs time where the function is commutative, the other would cost the right result
        where it is not. For one that is only nearly so, as by rounding, say yes if ranks may swap them.

    Returns
    -------
    Op

    Raises
    ------
    TypeError
        If it is not a function.
    RuntimeError
        If there are 32 already, which is as many as mpi4py can have at once; see ``Op.Free``.

    Examples
    --------
    >>> @mpicoll.op(commutative=True)
    ... def larger(a, b):
    ...     return a if a.value >= b.value else b
    """
    if function is None:
        return functools.partial(op, commutative=commutative)
    return Op(function, commutative=commutative)


class Op(MPI.Op):
    """An operation of the user's, for mpicoll's collectives and for mpi4py's. See :func:`op`.

    Attributes
    ----------
    function : callable
        As given.
    commutative : bool
        As given.
    token : int
        A number that no other operation of this process has or will have. MPI uses handles again.

    Notes
    -----
    Types and results are those of :func:`mpicoll.kernels.user.compiled`. An exception in the function ends
    the process, as an exception in one of mpi4py's operations does.

    The library's own collectives tell an operation an MPI datatype, which has no field names. So for a
    structured dtype call :meth:`kernel` before; there may be one for each layout. Called as a function, and
    by mpi4py's collectives of Python objects, an operation combines NumPy's arrays and scalars of one dtype
    element by element, and hands all else to the function.
    """

    function: Callable
    commutative: bool
    token: int

    def __new__(cls, function: Callable, *, commutative: bool = False) -> Op:  # noqa: D102
        if not callable(function) or isinstance(function, MPI.Op):
            raise TypeError(f"op: {function!r} given, expected a function of two elements")

        def combine(left: Any, right: Any, datatype: MPI.Datatype | None) -> Any:
            return self._combine(left, right, datatype)

        # the handle cannot wait for its first use: mpi4py's collectives read it from C
        self = super().__new__(cls, MPI.Op.Create(combine, bool(commutative)))
        return self

    def __init__(self, function: Callable, *, commutative: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.function, self.commutative, self.token = function, bool(commutative), next(_tokens)
        self._kernels: dict[np.dtype, Kernel] = {}

    def __repr__(self) -> str:
        return f"<mpicoll.Op {self.__name__}>"

    def kernel(self, dtype: Any) -> Kernel:
        """Compile the operation for an element type, or return what was compiled before.

        Parameters
        ----------
        dtype : numpy.dtype
            A type of numbers or a structured one, aligned or packed, in native byte order.

        Raises
        ------
        TypeError
            If Numba cannot compile the function for it, or the result does not fit it.
        ValueError
            If the operation was freed.
        """
        if not self:
            raise ValueError(f"{self!r} was freed")
        dtype = np.dtype(dtype)
        if dtype not in self._kernels:
            from .kernels.user import compiled  # noqa: PLC0415  (Numba takes half a second to import)

            self._kernels[dtype] = compiled(
                self.function, dtype, name=self.__name__, commutative=self.commutative
            )
        return self._kernels[dtype]

    def _combine(self, left: Any, right: Any, datatype: MPI.Datatype | None) -> Any:
        """Do what mpi4py asks for: ``right = left op right`` in memory, or return it for two objects."""
        if datatype is None:
            return self._objects(left, right)
        dtype = self._dtype(datatype)
        left, right = (np.ndarray(each.nbytes // dtype.itemsize, dtype, each) for each in (left, right))
        self.kernel(dtype)(right, left, right)
        return None

    def _objects(self, left: Any, right: Any) -> Any:
        numpys = isinstance(left, np.ndarray | np.generic) and isinstance(right, np.ndarray | np.generic)
        if not numpys or left.dtype != right.dtype:
            return self.function(left, right)
        left, right = (np.array(each, order="C") for each in np.broadcast_arrays(left, right))
        out = np.empty_like(left)
        self.kernel(out.dtype)(out, left, right)
        return out[()]  # of no dimension: a scalar

    def _dtype(self, datatype: MPI.Datatype) -> np.dtype:
        """Find out which dtype the elements of an MPI datatype have."""
        try:
            told = to_numpy_dtype(datatype).base
        except (KeyError, NotImplementedError, ValueError) as error:
            raise TypeError(f"{self!r}: NumPy has no equal of {_described(datatype)}") from error
        if told.names is None:  # numbers without holes: a datatype with holes would have fields, or no equal
            return told
        known = [dtype for dtype in self._kernels if _layout(dtype) == _layout(told)]
        if len(known) != 1:
            raise TypeError(
                f"{self!r}: {_described(datatype)} has no field names, and {len(known)} kernels of its layout"
                f" are known, expected one; call kernel(dtype) before"
            )
        return known[0]


def _described(datatype: MPI.Datatype) -> str:
    return datatype.Get_name() or f"a derived datatype of {datatype.Get_extent()[1]} bytes"


def _layout(dtype: np.dtype) -> tuple:
    """Describe a dtype but for the names of its fields."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return *shape, _layout(base)
    if dtype.fields is None:
        return (dtype.str,)
    fields = (dtype.fields[name] for name in dtype.names or ())
    return dtype.itemsize, *((offset, _layout(kind)) for kind, offset, *_ in fields)


class Average:
    """The class of `AVG`. It is not an MPI.Op: no collective of the library's own may take it for one."""

    _instance: Average | None = None

    def __new__(cls) -> Average:  # noqa: D102
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "mpicoll.AVG"

    def __reduce__(self) -> str:
        return "AVG"


#: The sum of all ranks' elements divided by the number of ranks.
AVG = Average()


def averages(dtype: Any) -> bool:
    """Whether `AVG` is defined for a type: for integers, floating point and complex numbers, not for bool."""
    dtype = np.dtype(dtype)
    return dtype.isnative and (dtype.kind in "iufc" or dtype.name == "bfloat16")


def divide(array: np.ndarray, size: int) -> None:
    """Divide a sum by the number of ranks, in place.

    Parameters
    ----------
    array : numpy.ndarray
        Of any shape and layout. Integers are divided exactly and truncated toward zero, as C and NCCL do; the
        sum has wrapped around before where it left the type's range. float16 and bfloat16 are divided in
        float32 and rounded to nearest, ties to even.
    size : int
        The number of ranks, at least 1.

    Raises
    ------
    TypeError
        If the type is not one that :func:`averages`.
    ValueError
        If `size` is below 1.
    """
    if not averages(array.dtype):
        raise TypeError(f"AVG is not defined for {array.dtype}")
    if size < 1:
        raise ValueError(f"AVG: {size} ranks given, expected 1 or more")
    if array.dtype.kind in "iu":
        _truncate(array, size)
    elif array.dtype.kind == "c":  # not by a complex number: infinity times its zero is NaN
        divide(array.real, size)
        divide(array.imag, size)
    elif array.dtype.itemsize == 2:
        array[...] = np.divide(array, size, dtype=np.float32)
    else:
        np.divide(array, size, out=array)


def _truncate(array: np.ndarray, size: int) -> None:
    # fmod is C's remainder; what is left without it divides exactly, whatever way // rounds
    fits = size <= np.iinfo(array.dtype).max
    divisor = array.dtype.type(size) if fits else np.int64(size)
    np.subtract(array, np.fmod(array, divisor), out=array, casting="unsafe")
    np.floor_divide(array, divisor, out=array, casting="unsafe")
