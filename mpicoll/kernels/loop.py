"""The one loop: combine two vectors element by element, for any operation on any element type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

from .half import conversions
from .table import DTYPES, OPS, PAIRS

#: Addresses of the result and the two operands, number of elements.
SIGNATURE = "void(int64, int64, int64, int64)"


def source(op: str, name: str) -> Callable:
    """Return the Python function to compile for an operation on the element type `name` of `table.DTYPES`.

    It closes over two strings only: Numba takes them as compile-time constants, and a compiled kernel is
    found again on disk by them.
    """

    def kernel(out, left, right, n):
        # LLVM guards its SIMD loop by a test that the arrays do not overlap, which an operand that is also
        # the result would fail. So such an operand is passed under the same name as the result.
        if out == left:
            combine(op, name, out, out, right, n)
        elif out == right:
            combine(op, name, out, left, out, n)
        else:
            combine(op, name, out, left, right, n)

    return kernel


def _combine(typingctx, op, name, out, left, right, n):
    """Emit the loop ``out[i] = left[i] op right[i]``, i from 0 to n - 1."""
    op_, name_ = op.literal_value, name.literal_value

    def generate(context, builder, signature, args):
        value = value_type(name_)
        memory, widen, narrow = _stored(name_, context)
        result, *operands = (builder.inttoptr(address, memory.as_pointer()) for address in args[2:5])
        with cgutils.for_range(builder, args[5]) as loop:
            # MPI promises no alignment, and SIMD asks for none: align=1
            loaded = [builder.load(builder.gep(each, [loop.index]), align=1) for each in operands]
            a, b = (widen(builder, each) for each in loaded)
            c = context.compile_internal(builder, OPS[op_][DTYPES[name_]], value(value, value), (a, b))
            builder.store(narrow(builder, c), builder.gep(result, [loop.index]), align=1)
        return context.get_dummy_value()

    return types.void(op, name, out, left, right, n), generate


combine: Any = intrinsic(prefer_literal=True)(_combine)


def value_type(name: str) -> types.Type:
    """Return the Numba type of one element, as the scalar functions see it."""
    if name in ("float16", "bfloat16"):
        return types.float32
    if name == "bool":  # any nonzero byte is true
        return types.uint8
    if name in PAIRS:
        return types.Tuple([from_dtype(PAIRS[name][field]) for field in ("value", "index")])
    return from_dtype(np.dtype(name))


def _stored(name: str, context) -> tuple:
    """Return the LLVM type of one element in memory, and what to do after loading and before storing it."""
    if name in ("float16", "bfloat16"):
        triple, _, features = context.codegen().magic_tuple()
        return ir.IntType(16), *conversions(name, triple, features)
    # LLVM lays out a struct as C does
    return context.get_value_type(value_type(name)), _as_it_is, _as_it_is


def _as_it_is(builder, value):
    return value
