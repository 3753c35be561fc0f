"""How a GPU kernel reaches memory and does arithmetic: all of it that is not Python.

The loops of `cuda_loop` handle *packets*: tuples of elements that lie side by side, 16 bytes of them or a
single one. They read, combine and write packets by the functions of `Means`. Here these are intrinsics, which
emit LLVM code; for Numba's simulator `cuda_simulated` has Python functions in their place.

The intrinsics are tied to no target: a test compiles them for the CPU, to see their very code give results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import loop, user
from .table import DTYPES, OPS, PAIRS
from .user import Element, Machine

__all__ = [
    "GPU", "PACKET", "Means", "Way", "element_of", "emitted", "lanes_of", "mpi_operation", "user_operation",
]  # fmt: skip

PACKET = 16  # bytes, as many as a thread can load at once

_GLOBAL = 1  # the address space of memory that all threads see
_int32, _int64 = ir.IntType(32), ir.IntType(64)

#: Emits the code that combines two elements: (context, builder, a, b).
Operation = Callable[[Any, ir.IRBuilder, Any, Any], Any]


class Way(NamedTuple):
    """Reading and writing a packet of one size at addresses of one alignment.

    Attributes
    ----------
    load : callable
        ``load(address, index)`` gives the packet that begins at element `index`, counted from an address.
    store : callable
        ``store(address, index, packet)`` writes one.
    """

    load: Callable
    store: Callable


class Means(NamedTuple):
    """What the loops are made of.

    Attributes
    ----------
    size, alignment : int
        Bytes of an element, and of what its address is a multiple in an array.
    lanes : int
        Elements of the packets of 16 bytes; 1 where elements go one by one.
    packets, elements, bytes : Way
        Packets of so many lanes at multiples of 16, single elements at multiples of `alignment`, and single
        elements anywhere.
    combine : callable
        Gives the packet of the results of two packets.
    divide : callable
        Gives the quotients of a packet and an int64.
    commutes : bool
        Whether the operands may be swapped without any change of bits.
    inline : callable
        Decorates a function that the loops call.
    """

    size: int
    alignment: int
    lanes: int
    packets: Way
    elements: Way
    bytes: Way
    combine: Callable
    divide: Callable
    commutes: bool
    inline: Callable


def _trap(context, builder, message: str, status=None):
    """Emit what ends a GPU's kernel, and with it the use of the CUDA context; there is nobody to tell why."""
    function = ir.FunctionType(ir.VoidType(), ())
    builder.call(builder.module.declare_intrinsic("llvm.trap", (), function), ())


#: What kernels are compiled for; which GPU it is matters only later.
GPU = Machine("nvptx64-nvidia-cuda", "", _trap)


def lanes_of(dtype: np.dtype) -> int:
    """Give the number of elements of a long packet: numbers fill 16 bytes, all else goes one by one."""
    number = dtype.kind in "biufc" or dtype.name == "bfloat16"
    return PACKET // dtype.itemsize if number else 1


def element_of(name: str, machine: Machine) -> Element:
    """Give the element type `name` of `table.DTYPES` as the functions of `table.OPS` see it."""
    return Element.of(PAIRS.get(name) or np.dtype(name), loop.value_type(name), machine)


def mpi_operation(op: str, name: str, element: Element) -> Operation:
    """Give what combines two elements by one of MPI's operations."""

    def combine(context, builder, a, b):
        signature = element.type(element.type, element.type)
        result = context.compile_internal(builder, OPS[op][DTYPES[name]], signature, (a, b))
        return _rounded(builder, element, result)

    return combine


def user_operation(code: user.Code) -> Operation:
    """Give what combines two elements by a function of the user's."""
    element = code.element

    def combine(context, builder, a, b):
        context.add_linking_libs([code.overload.library])
        result = user.call(context, builder, code, (a, b))
        place = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(8), element.dtype.itemsize))
        place.align = PACKET
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        user.store(context, builder, code, place, result, (a, b))
        return user.load(context, builder, element, place)

    return combine


def _rounded(builder, element: Element, value):
    """Round a half's float32 to what memory can hold."""
    if not element.halves:
        return value
    widen, narrow = element.halves
    return widen(builder, narrow(builder, value))


def emitted(
    element: Element,
    operation: Operation | None = None,
    *,
    commutes: bool = False,
    intrinsic: Callable,
    inline: Callable,
) -> Means:
    """Give intrinsics.

    Parameters
    ----------
    element : Element
        In memory, and as `operation` takes it.
    operation : callable, optional
        Emits the code that combines two elements.
    commutes : bool
        Whether it commutes, bit for bit.
    intrinsic : callable
        ``numba.cuda.extending.intrinsic``, or ``numba.extending.intrinsic`` for a CPU.
    inline : callable
        Decorates functions that are compiled as a part of those that call them.
    """
    dtype = element.dtype
    lanes = lanes_of(dtype)
    singles, several = types.UniTuple(element.type, 1), types.UniTuple(element.type, lanes)
    elements = _elements(element, singles, dtype.alignment, intrinsic)
    return Means(
        dtype.itemsize,
        dtype.alignment,
        lanes,
        elements if lanes == 1 and dtype.kind != "c" else _packets(element, several, intrinsic),
        elements,
        _elements(element, singles, 1, intrinsic),
        intrinsic(_lane_by_lane(operation)),
        intrinsic(_division(element)),
        commutes,
        inline,
    )


def _elements(element: Element, packet: types.UniTuple, align: int, intrinsic: Callable) -> Way:
    """Give the way of single elements."""
    record = isinstance(element.type, types.Record)
    space = 0 if record else _GLOBAL  # a record is copied by its bytes, from and to the stack

    def place(builder, address, index):
        begin = builder.add(address, builder.mul(index, _int64(element.dtype.itemsize)))
        return builder.inttoptr(begin, ir.IntType(8).as_pointer(space))

    def emit_load(context, builder, signature, args):
        value = user.load(context, builder, element, place(builder, *args), align)
        return context.make_tuple(builder, packet, [value])

    def emit_store(context, builder, signature, args):
        *where, values = args
        user.put(context, builder, element, place(builder, *where), builder.extract_value(values, 0), align)
        return context.get_dummy_value()

    return _way(emit_load, emit_store, packet, intrinsic)


def _packets(element: Element, packet: types.UniTuple, intrinsic: Callable) -> Way:
    """Give the way of packets of 16 bytes, of numbers only.

    Memory has two words of 64 bits or four of 32, and a word has one *part* or several: halves of complex
    numbers, or numbers. Without words LLVM would load a vector of bytes, which is four loads of four bytes.
    """
    parts = 2 if element.dtype.kind == "c" else 1
    bits = element.dtype.itemsize // parts * 8
    word = ir.IntType(max(bits, 32))
    words = ir.VectorType(word, PACKET * 8 // word.width)
    per_word = word.width // bits

    def place(builder, address, index):
        begin = builder.add(address, builder.mul(index, _int64(element.dtype.itemsize)))
        return builder.inttoptr(begin, words.as_pointer(_GLOBAL))

    def part(context):
        if element.halves:
            return ir.IntType(16)
        number: Any = element.type
        return context.get_data_type(number.underlying_float if parts == 2 else number)

    def emit_load(context, builder, signature, args):
        loaded = builder.load(place(builder, *args), align=PACKET)
        inside = ir.VectorType(part(context), per_word)
        flat = []
        for i in range(words.count):
            vector = builder.bitcast(builder.extract_element(loaded, _int32(i)), inside)
            flat += [builder.extract_element(vector, _int32(j)) for j in range(per_word)]
        values = [_value(context, builder, element, flat[i : i + parts]) for i in range(0, len(flat), parts)]
        return context.make_tuple(builder, packet, values)

    def emit_store(context, builder, signature, args):
        *where, packed = args
        values = cgutils.unpack_tuple(builder, packed)
        flat = [part for value in values for part in _parts(context, builder, element, value)]
        filled = [
            builder.bitcast(_vector(builder, flat[i : i + per_word]), word)
            for i in range(0, len(flat), per_word)
        ]
        builder.store(_vector(builder, filled), place(builder, *where), align=PACKET)
        return context.get_dummy_value()

    return _way(emit_load, emit_store, packet, intrinsic)


def _vector(builder, values: list):
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, _int32(i))
    return vector


def _value(context, builder, element: Element, parts: list):
    """Make an element of what is in memory: one number, or two for a complex one."""
    if element.halves:
        widen, _ = element.halves
        return widen(builder, parts[0])
    if len(parts) == 1:
        return context.data_model_manager[element.type].from_data(builder, parts[0])
    value = context.make_complex(builder, element.type)
    value.real, value.imag = parts
    return value._getvalue()


def _parts(context, builder, element: Element, value) -> list:
    """Give what of an element goes to memory."""
    if element.halves:
        _, narrow = element.halves
        return [narrow(builder, value)]
    if isinstance(element.type, types.Complex):
        return [builder.extract_value(value, i) for i in range(2)]
    return [context.data_model_manager[element.type].as_data(builder, value)]


def _way(emit_load: Callable, emit_store: Callable, packet: types.UniTuple, intrinsic: Callable) -> Way:
    def load(typingctx, address, index):
        return packet(types.int64, types.int64), emit_load

    def store(typingctx, address, index, value):
        return types.void(types.int64, types.int64, packet), emit_store

    return Way(intrinsic(load), intrinsic(store))


def _lane_by_lane(operation: Any) -> Callable:
    def emit(context, builder, signature, args):
        lanes = [
            operation(context, builder, *(builder.extract_value(each, i) for each in args))
            for i in range(len(signature.return_type))
        ]
        return context.make_tuple(builder, signature.return_type, lanes)

    def combine(typingctx, a, b):
        return a(a, a), emit

    return combine


def _division(element: Element) -> Callable:
    """Say what `ops.divide` does to an element: integers are truncated, complex numbers divided by parts."""
    whole = isinstance(element.type, types.Integer)

    def quotient(context, builder, number: types.Type, value, divisor):
        wide = types.uint64 if number in types.unsigned_domain else types.int64
        if not whole:
            divisor = context.cast(builder, divisor, types.int64, number)
            return builder.fdiv(value, divisor)
        divide = builder.udiv if wide == types.uint64 else builder.sdiv
        result = divide(context.cast(builder, value, number, wide), divisor)
        return context.cast(builder, result, wide, number)

    def lane(context, builder, value, divisor):
        if isinstance(element.type, types.Complex):
            parts = [
                quotient(context, builder, element.type.underlying_float, part, divisor)
                for part in _parts(context, builder, element, value)
            ]
            return _value(context, builder, element, parts)
        return quotient(context, builder, element.type, value, divisor)

    def emit(context, builder, signature, args):
        packet, divisor = args
        lanes = [
            lane(context, builder, builder.extract_value(packet, i), divisor)
            for i in range(len(signature.return_type))
        ]
        return context.make_tuple(builder, signature.return_type, lanes)

    def divide(typingctx, packet, divisor):
        return packet(packet, types.int64), emit

    return divide
