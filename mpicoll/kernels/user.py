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
from numba.extending import intrinsic, is_jitted
from numba.np.numpy_support import as_dtype

from . import Kernel
from .half import conversions
from .loop import SIGNATURE

__all__ = ["compiled"]

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
    dtype = np.dtype(dtype)
    subject = f"{name} on {dtype}"
    try:
        element = _element(dtype)
        scalar: Any = function if is_jitted(function) else numba.njit(error_model="numpy")(function)
        scalar.compile((element, element))
        overload = scalar.overloads[element, element]
    except Exception as error:  # Numba reports in many ways, with classes of its own and others
        raise TypeError(f"{subject}: Numba cannot compile the function: {_reason(error)}") from error
    stores = list(_stores(overload.signature.return_type, element, dtype, subject))
    callback: Any = numba.cfunc(SIGNATURE)(_loop(_Code(name, dtype, element, overload, stores)))
    _alive.append(callback)
    return Kernel(name, dtype, callback.address, commutative)


class _Store(NamedTuple):
    """A part of the function's result, and where it goes in the element."""

    path: tuple[int, ...]  # indices into nested tuples
    source: types.Type
    target: types.Type
    offset: int


class _Code(NamedTuple):
    """What the loop is made of."""

    name: str
    dtype: np.dtype
    element: types.Type  # as the function sees it
    overload: Any  # the compiled function
    stores: list[_Store]


def _is_half(dtype: np.dtype) -> bool:
    return dtype.name in ("float16", "bfloat16")


def _element(dtype: np.dtype) -> types.Type:
    element = types.float32 if _is_half(dtype) else from_dtype(dtype)
    if isinstance(element, (*_NUMBERS, *_PLAIN, types.Record)):
        return element
    raise TypeError(f"it has no plain type for {dtype}")


def _reason(error: Exception) -> str:
    """Give Numba's reason in one line, without its stack of passes and candidates."""
    text = str(error).removeprefix("Failed in nopython mode pipeline (step: nopython frontend)\n")
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


def _loop(code: _Code) -> Callable:
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


def _combine(code: _Code) -> Any:
    def generate(context, builder, signature, args):
        context.add_linking_libs([code.overload.library])
        result, *operands = (builder.inttoptr(address, _bytes) for address in args[:3])
        with cgutils.for_range(builder, args[3]) as loop:
            begin = builder.mul(loop.index, _int64(code.dtype.itemsize))
            a, b = (_load(context, builder, code, builder.gep(each, [begin])) for each in operands)
            status, value = context.call_internal_no_propagate(
                builder, code.overload.fndesc, code.overload.signature, (a, b)
            )
            with cgutils.if_unlikely(builder, status.is_error):
                _die(context, builder, f"exception in the operation {code.name}", status)
            _store(context, builder, code, builder.gep(result, [begin]), value, (a, b))
        return context.get_dummy_value()

    def combine(typingctx, out, left, right, n):
        return types.void(out, left, right, n), generate

    return intrinsic(combine)


# MPI promises no alignment: align=1 wherever a vector's memory is touched.


def _load(context, builder, code: _Code, place):
    """Load an element; a record into a copy on the stack."""
    if _is_half(code.dtype):
        widen, _ = _conversions(context, code)
        return widen(builder, builder.load(builder.bitcast(place, ir.IntType(16).as_pointer()), align=1))
    if isinstance(code.element, types.Record):
        copy = cgutils.alloca_once(builder, context.get_data_type(code.element))
        copy.align = 16
        _copy(builder, copy, place, code)
        return copy
    place = _pointer(context, builder, code.element, place)
    return context.unpack_value(builder, code.element, place, align=1)


def _store(context, builder, code: _Code, place, value, operands):
    """Store a result, which may be one of the operands or a tuple."""
    if code.overload.signature.return_type == code.element and isinstance(code.element, types.Record):
        strange = builder.and_(*(builder.icmp_unsigned("!=", value, each) for each in operands))
        with cgutils.if_unlikely(builder, strange):  # its memory need not outlive the function
            _die(context, builder, f"the operation {code.name} returned a record that is neither operand")
        _copy(builder, place, value, code)
        return
    for path, source, target, offset in code.stores:
        part = builder.extract_value(value, path) if path else value
        part = context.cast(builder, part, source, target)
        at = builder.gep(place, [_int64(offset)])
        if _is_half(code.dtype):
            _, narrow = _conversions(context, code)
            at = builder.bitcast(at, ir.IntType(16).as_pointer())
            builder.store(narrow(builder, part), at, align=1)
        else:
            context.pack_value(builder, target, part, _pointer(context, builder, target, at), align=1)


def _pointer(context, builder, type_, place):
    return builder.bitcast(place, context.get_data_type(type_).as_pointer())


def _copy(builder, target, source, code: _Code):
    cgutils.raw_memcpy(builder, target, source, _int64(code.dtype.itemsize), 1)


def _conversions(context, code: _Code):
    triple, _, features = context.codegen().magic_tuple()
    return conversions(code.dtype.name, triple, features)


def _die(context, builder, message: str, status=None):
    """End the process with a message, and the exception if there is one."""
    api = context.get_python_api(builder)
    api.gil_ensure()
    if status is not None:
        context.call_conv.raise_error(builder, api, status)
    api.fatal_error(message)
