"""What compiled code needs beyond Numba's Python: memory by address, and calls by address.

Addresses and handles are run-time integers, so Numba can cache the compiled code on disk and one
cached binary serves every MPI implementation. (A ctypes function object inside a compiled function
would forbid caching.)
"""

from typing import Any

import numba.extending
from llvmlite import ir
from numba import types

intrinsic: Any = numba.extending.intrinsic

_WORD = ir.IntType(64)
_INT = ir.IntType(32)
_POINTER = ir.IntType(8).as_pointer()


@intrinsic
def load(typingctx, address, index):
    """The int64 at ``address + 8 * index``."""

    def codegen(context, builder, signature, arguments):
        base = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(builder.gep(base, [arguments[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_int(typingctx, address):
    """The C int at `address`."""

    def codegen(context, builder, signature, arguments):
        value = builder.load(builder.inttoptr(arguments[0], _INT.as_pointer()))
        return builder.sext(value, _WORD)

    return types.int64(types.int64), codegen


@intrinsic
def copy_bytes(typingctx, out, source, nbytes):
    """Copy memory; the two may overlap."""

    def codegen(context, builder, signature, arguments):
        memmove = builder.module.declare_intrinsic("llvm.memmove", [_POINTER, _POINTER, _WORD])
        out, source = (builder.inttoptr(a, _POINTER) for a in arguments[:2])
        builder.call(memmove, [out, source, arguments[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _caller(result: ir.Type, numba_result: types.Type, arity: int) -> Any:
    """An intrinsic that calls the C function at an address with `arity` 64-bit integers.

    The callee may declare an argument as a C int: it then reads the low half (see
    :mod:`mpicoll.transports.libmpi`).
    """

    def codegen(context, builder, signature, arguments):
        function = ir.FunctionType(result, [_WORD] * arity).as_pointer()
        value = builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value() if numba_result == types.void else value

    signature = numba_result(*[types.int64] * (arity + 1))
    parameters = ", ".join(f"a{i}" for i in range(arity + 1))
    scope: dict[str, Any] = {"signature": signature, "codegen": codegen}
    exec(f"def call(typingctx, {parameters}): return signature, codegen", scope)
    return intrinsic(scope["call"])


call_kernel = _caller(ir.VoidType(), types.void, 4)
call_wait = _caller(_INT, types.int32, 2)
call_send = _caller(_INT, types.int32, 6)  # MPI_Send
call_recv = _caller(_INT, types.int32, 7)  # MPI_Recv, MPI_Isend, MPI_Irecv
call_sendrecv = _caller(_INT, types.int32, 12)
