"""Kernels of the user's own operations: a Python function of two elements, compiled for an element type.

The function sees copies of the elements, so that it may change them and vectors may lie anywhere in memory.
Nothing is kept on disk: a function may close over things that no cache can tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic, is_jitted
from numba.np.numpy_support import as_dtype

from . import Kernel
from .half import Conversion, conversions
from .loop import SIGNATURE

__all__ = ["Code", "Element", "Machine", "call", "compiled", "load", "prepared", "put", "store"]

_alive: list[Any] = []  # LLVM frees the code that nobody holds

_KINDS = "biufc"  # of numbers; none is turned into one that comes before it, but for integers
_NUMBERS = (types.Number, types.Boolean)
_PLAIN = (types.CharSeq, types.UnicodeCharSeq, types.NPDatetime, types.NPTimedelta)
_bytes, _int64 = ir.IntType(8).as_pointer(), ir.IntType(64)


def compiled(function: Callable, dtype: np.dtype, *, name: str, commutative: bool) -> Kernel:
    """Compile a function of two elements to a kernel.

    Parameters
    ----------
    function : callable
        A Python function, in which division by zero gives what it gives in NumPy, or one of Numba's ``njit``,
        which is taken as it is.
    dtype : numpy.dtype
        The element type, in native byte order. float16 and bfloat16 come to the function as float32, and its
        result is rounded to nearest, ties to even. A structured type comes as a record: ``a.field``.
    name : str
        Of the operation, for the kernel and for messages.
    commutative : bool
        Whether the operands may be swapped.

    Raises
    ------
    TypeError
        If Numba cannot compile the function for this type, or its result does not fit it.

    Notes
    -----
    For numbers the result is a number, cast as C does: integers wrap around, and a float may lose digits.
    What would lose more is refused: complex to real, floating point to integer, integer to bool.
    For a structured type it is a tuple, with a value for each field and a tuple for each nested type, or one
    of the two operands. Only the latter serves where a field is a sub-array.

    C callers cannot catch an exception, and a result without the element would be wrong: it ends the process
    with the traceback, as mpi4py does.
    """
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()

    def scalar(element: types.Type) -> Any:
        made: Any = function if is_jitted(function) else numba.njit(error_model="numpy")(function)
        made.compile((element, element))
        return made.overloads[element, element]

    code = prepared(scalar, dtype, name, Machine(triple, features, _die))
    callback: Any = numba.cfunc(SIGNATURE)(_loop(code))
    _alive.append(callback)
    return Kernel(name, code.element.dtype, callback.address, commutative)


class Machine(NamedTuple):
    """What code is made for.

    Attributes
    ----------
    triple, features : str
        The processor, as LLVM describes it.
    die : callable
        Emits what happens where there is no right result: ``die(context, builder, message, status=None)``.
    """

    triple: str
    features: str
    die: Callable


class Element(NamedTuple):
    """An element in memory and in a function.

    Attributes
    ----------
    dtype : numpy.dtype
        As it is in memory.
    type : numba.types.Type
        As functions see it: halves as float32, records by the address of a copy.
    halves : tuple of two functions, or None
        Of a half: how to widen it to float32, and to narrow that.
    """

    dtype: np.dtype
    type: types.Type
    halves: tuple[Conversion, Conversion] | None

    @classmethod
    def of(cls, dtype: np.dtype, type_: types.Type, machine: Machine) -> Element:
        """Give the element on a machine."""
        half = dtype.name in ("float16", "bfloat16")
        return cls(dtype, type_, conversions(dtype.name, machine.triple, machine.features) if half else None)


class _Store(NamedTuple):
    """A part of the function's result, and where it goes in the element."""

    path: tuple[int, ...]  # indices into nested tuples
    source: types.Type
    target: types.Type
    offset: int


class Code(NamedTuple):
    """What the code of an operation on two elements is made of."""

    name: str
    element: Element
    overload: Any  # the compiled function
    stores: list[_Store]
    die: Callable  # of the machine


def prepared(scalar: Callable[[types.Type], Any], dtype: np.dtype, name: str, machine: Machine) -> Code:
    """Compile a function for an element type, and see whether its result fits.

    Parameters
    ----------
    scalar : callable
        Compiles the function for two elements of a Numba type, and returns what Numba made of it.
    dtype, name
        As for :func:`compiled`.
    machine : Machine
        Where it will run.

    Raises
    ------
    TypeError
        As :func:`compiled`.
    """
    dtype = np.dtype(dtype)
    subject = f"{name} on {dtype}"
    try:
        element = Element.of(dtype, _element(dtype), machine)
        overload = scalar(element.type)
    except Exception as error:  # Numba reports in many ways, with classes of its own and others
        raise TypeError(f"{subject}: Numba cannot compile the function: {_reason(error)}") from error
    stores = list(_stores(overload.signature.return_type, element.type, dtype, subject))
    return Code(name, element, overload, stores, machine.die)


def _element(dtype: np.dtype) -> types.Type:
    element = types.float32 if dtype.name in ("float16", "bfloat16") else from_dtype(dtype)
    if isinstance(element, (*_NUMBERS, *_PLAIN, types.Record)):
        return element
    raise TypeError(f"it has no plain type for {dtype}")


def _reason(error: Exception) -> str:
    """Give Numba's reason in one line, without its stack of passes and candidates."""
    text = re.sub(r"^Failed in \w+ mode pipeline \(step: [^)]*\)\n", "", str(error))
    text = " ".join(re.split(r"\n *(?:There are|During:|File )", text)[0].split())
    return text if isinstance(error, numba.core.errors.NumbaError) else f"{type(error).__name__}: {text}"


def _stores(
    result: Any, target: Any, dtype: np.dtype, subject: str, path: tuple = (), offset: int = 0
) -> Iterator[_Store]:
    """Say how a result of this type fills an element, or raise a TypeError."""
    where = f"{subject}: the function returns {result}" + (f" at {list(path)}" if path else "")
    if not isinstance(target, types.Record):
        if not _fits(result, target):
            raise TypeError(f"{where}, expected what fits {dtype}; convert it where that is meant")
        yield _Store(path, result, target, offset)
    elif result == target and not path:
        yield _Store(path, result, target, offset)
    elif isinstance(result, types.BaseTuple) and len(result) == len(target.fields):
        parts: Any = result
        for index, (part, field) in enumerate(zip(parts.types, dtype.names or (), strict=True)):
            kind, begin = dtype.fields[field][:2]  # type: ignore[index]
            inner = (*path, index)
            yield from _stores(part, target.typeof(field), kind, subject, inner, offset + begin)
    else:
        operand = "" if path else " or one of the operands"
        raise TypeError(f"{where}, expected a tuple of {len(target.fields)} values{operand}")


def _fits(result: types.Type, target: types.Type) -> bool:
    if isinstance(result, _NUMBERS) and isinstance(target, _NUMBERS):
        given, wanted = (as_dtype(types.unliteral(each)).kind.replace("u", "i") for each in (result, target))
        return target != types.float16 and _KINDS.index(given) <= _KINDS.index(wanted)
    return result == target and isinstance(target, _PLAIN)


def _loop(code: Code) -> Callable:
    """Return the Python function to compile: the operation on n elements."""
    combine = _combine(code)

    def kernel(out, left, right, n):
        # An operand that is also the result goes under the same name, as for MPI's own operations: otherwise
        # LLVM's guard against overlap keeps the loop from SIMD.
        if out == left:
            combine(out, out, right, n)
        elif out == right:
            combine(out, left, out, n)
        else:
            combine(out, left, right, n)

    return kernel


def _combine(code: Code) -> Any:
    def generate(context, builder, signature, args):
        context.add_linking_libs([code.overload.library])
        result, *operands = (builder.inttoptr(address, _bytes) for address in args[:3])
        with cgutils.for_range(builder, args[3]) as loop:
            begin = builder.mul(loop.index, _int64(code.element.dtype.itemsize))
            a, b = (load(context, builder, code.element, builder.gep(each, [begin])) for each in operands)
            value = call(context, builder, code, (a, b))
            store(context, builder, code, builder.gep(result, [begin]), value, (a, b))
        return context.get_dummy_value()

    def combine(typingctx, out, left, right, n):
        return types.void(out, left, right, n), generate

    return intrinsic(combine)


# MPI promises no alignment: align=1 wherever a vector's memory is touched, unless the caller knows better.


def load(context, builder, element: Element, place, align: int = 1):
    """Load an element; a record into a copy on the stack."""
    if element.halves:
        widen, _ = element.halves
        return widen(builder, builder.load(_cast(builder, place, ir.IntType(16)), align=align))
    if isinstance(element.type, types.Record):
        copy = cgutils.alloca_once(builder, context.get_data_type(element.type))
        copy.align = 16
        _copy(builder, copy, place, element, align)
        return copy
    place = _cast(builder, place, context.get_data_type(element.type))
    return context.unpack_value(builder, element.type, place, align=align)


def call(context, builder, code: Code, operands):
    """Call the function on two elements; what it returns may be one of them or a tuple."""
    overload = code.overload
    status, value = context.call_internal_no_propagate(builder, overload.fndesc, overload.signature, operands)
    with cgutils.if_unlikely(builder, status.is_error):
        code.die(context, builder, f"exception in the operation {code.name}", status)
    return value


def store(context, builder, code: Code, place, value, operands):
    """Store what the function returned for these operands."""
    element = code.element
    if code.overload.signature.return_type == element.type and isinstance(element.type, types.Record):
        strange = builder.and_(*(builder.icmp_unsigned("!=", value, each) for each in operands))
        with cgutils.if_unlikely(builder, strange):  # its memory need not outlive the function
            code.die(context, builder, f"the operation {code.name} returned a record that is neither operand")
        put(context, builder, element, place, value)
        return
    for path, source, target, offset in code.stores:
        part = builder.extract_value(value, path) if path else value
        part = context.cast(builder, part, source, target)
        part_of = element._replace(type=target)  # a half has no parts
        put(context, builder, part_of, builder.gep(place, [_int64(offset)]), part)


def put(context, builder, element: Element, place, value, align: int = 1):
    """Store an element."""
    if element.halves:
        _, narrow = element.halves
        builder.store(narrow(builder, value), _cast(builder, place, ir.IntType(16)), align=align)
    elif isinstance(element.type, types.Record):
        _copy(builder, place, value, element, align)
    else:
        place = _cast(builder, place, context.get_data_type(element.type))
        context.pack_value(builder, element.type, value, place, align=align)


def _cast(builder, place, type_):
    return builder.bitcast(place, type_.as_pointer(place.type.addrspace))


def _copy(builder, target, source, element: Element, align: int):
    if align == 1:
        cgutils.raw_memcpy(builder, target, source, _int64(element.dtype.itemsize), 1)
        return
    word = ir.IntType(8 * align)  # raw_memcpy does not tell LLVM the alignment
    target, source = _cast(builder, target, word), _cast(builder, source, word)
    with cgutils.for_range(builder, _int64(element.dtype.itemsize // align)) as loop:
        each = builder.load(builder.gep(source, [loop.index]), align=align)
        builder.store(each, builder.gep(target, [loop.index]), align=align)


def _die(context, builder, message: str, status=None):
    """End the process with a message, and the exception if there is one."""
    api = context.get_python_api(builder)
    api.gil_ensure()
    if status is not None:
        context.call_conv.raise_error(builder, api, status)
    api.fatal_error(message)
