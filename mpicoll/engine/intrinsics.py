"""What compiled code needs beyond Numba's Python: memory by address, and calls by address.

Addresses and handles are run-time integers, so Numba can cache the compiled code on disk and one
cached binary serves every MPI implementation. (A ctypes function object inside a compiled function
would forbid caching.)
"""

import platform
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types
from numba.core import cgutils

intrinsic: Any = numba.extending.intrinsic

_WORD = ir.IntType(64)
_INT = ir.IntType(32)
_POINTER = ir.IntType(8).as_pointer()
LINE = 64  # bytes in a cache line
_LINE = ir.VectorType(_WORD, LINE // 8)
_RELAX = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.isb", [ir.Constant(_INT, 15)])}


@intrinsic
def load(typingctx, address, index):
    """The int64 at ``address + 8 * index``."""

    def codegen(context, builder, signature, arguments):
        base = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(builder.gep(base, [arguments[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def store(typingctx, address, index, value):
    """Write the int64 at ``address + 8 * index``."""

    def codegen(context, builder, signature, arguments):
        base = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store(arguments[2], builder.gep(base, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """The int64 at `address`, which another process may write: with it comes all that was written before.

    Acquire and release are what LLVM makes of them for the processor: nothing on x86-64, whose loads and
    stores keep their order anyway, but on Arm and POWER the instructions that keep later reads of a peer's
    stage from being done before the read of its counter, and its earlier writes from being seen after it.
    They keep the compiler from moving them, too.
    """

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Write the int64 at `address` for other processes to see, after all that was written before."""

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def relax(typingctx):
    """Tell the processor that this is a loop that waits."""

    def codegen(context, builder, signature, arguments):
        if platform.machine() in _RELAX:
            name, given = _RELAX[platform.machine()]
            function = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(cgutils.get_or_insert_function(builder.module, function, name), given)
        return context.get_dummy_value()

    return types.void(), codegen


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


@intrinsic
def stream_lines(typingctx, out, source, nbytes):
    """Copy whole lines to aligned memory past the caches, which the result would only push others out of.

    The stores are seen in no particular order until :func:`fence`.
    """

    def codegen(context, builder, signature, arguments):
        out, source = (builder.inttoptr(a, _LINE.as_pointer()) for a in arguments[:2])
        hint = builder.module.add_metadata([ir.Constant(_INT, 1)])
        lines = builder.udiv(arguments[2], ir.Constant(_WORD, LINE))
        with cgutils.for_range(builder, lines) as loop:
            line = builder.load(builder.gep(source, [loop.index]), align=1)
            builder.store(line, builder.gep(out, [loop.index]), align=LINE).set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def fence(typingctx):
    """Let everything that was streamed be seen before what is written from here on."""

    def codegen(context, builder, signature, arguments):
        if platform.machine() == "x86_64":  # where LLVM makes nothing of a release fence
            function = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.x86.sse.sfence"), [])
        else:
            builder.fence("release")
        return context.get_dummy_value()

    return types.void(), codegen


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
call_plain = _caller(_INT, types.int32, 0)  # sched_yield
call_wait = _caller(_INT, types.int32, 2)  # MPI_Wait, nanosleep
call_test = _caller(_INT, types.int32, 3)  # MPI_Test, poll
call_probe = _caller(_INT, types.int32, 5)  # MPI_Iprobe
call_send = _caller(_INT, types.int32, 6)  # MPI_Send
call_recv = _caller(_INT, types.int32, 7)  # MPI_Recv, MPI_Isend, MPI_Irecv
call_sendrecv = _caller(_INT, types.int32, 12)
call_query = _caller(_INT, types.int32, 1)  # cuStreamQuery
call_copy = _caller(_INT, types.int32, 4)  # cuMemcpyAsync
call_launch = _caller(_INT, types.int32, 11)  # cuLaunchKernel
