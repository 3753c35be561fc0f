"""float16 and bfloat16 to float32 and back, as LLVM code without branches, so that it vectorises.

Widening is exact, narrowing rounds to nearest, ties to even, and a NaN stays a NaN. For float16 the processor
does it where it can: x86 with F16C (since 2012), 64-bit ARM, and GPUs of NVIDIA's. Elsewhere, and for
bfloat16, it is integer arithmetic; for float16 that costs several times as much. The integer forms go back to
F. Giesen, "Half to float done quic" and "Float->half variants".

Each function takes an IR builder and a value: a half is an i16, its wide form a float.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

_u16, _u32, _f32 = ir.IntType(16), ir.IntType(32), ir.FloatType()

Conversion = Callable[[ir.IRBuilder, ir.Value], ir.Value]


def conversions(name: str, triple: str, features: str) -> tuple[Conversion, Conversion]:
    """Return (widen, narrow) for float16 or bfloat16 on the processor that LLVM describes so."""
    if name == "bfloat16":
        return _widen_bfloat16, _narrow_bfloat16
    if "+f16c" in features or triple.startswith(("aarch64", "arm64", "nvptx")):
        return _widen_native, _narrow_native
    return _widen_float16, _narrow_float16


def _widen_native(builder, half):
    return builder.fpext(builder.bitcast(half, ir.HalfType()), _f32)


def _narrow_native(builder, wide):
    return builder.bitcast(builder.fptrunc(wide, ir.HalfType()), _u16)


def _widen_bfloat16(builder, half):
    return _float(builder, builder.shl(builder.zext(half, _u32), _u32(16)))


def _narrow_bfloat16(builder, wide):
    bits = _bits(builder, wide)
    quiet = builder.or_(builder.lshr(bits, _u32(16)), _u32(0x40))
    return builder.trunc(_if_nan(builder, wide, quiet, _rounded(builder, bits, 16)), _u16)


def _widen_float16(builder, half):
    bits = builder.zext(half, _u32)
    sign = builder.shl(builder.and_(bits, _u32(0x8000)), _u32(16))
    # exponent and significand at their places in a float32 whose exponent is 112 too small
    low = builder.shl(builder.and_(bits, _u32(0x7FFF)), _u32(13))
    normal = builder.add(low, _u32(112 << 23))
    subnormal = builder.fsub(_float(builder, builder.or_(low, _u32(113 << 23))), _f32(2.0**-14))
    infinite = builder.or_(low, _u32(255 << 23))
    wide = builder.select(builder.icmp_unsigned("<", low, _u32(1 << 23)), _bits(builder, subnormal), normal)
    wide = builder.select(builder.icmp_unsigned(">=", low, _u32(31 << 23)), infinite, wide)
    return _float(builder, builder.or_(wide, sign))


def _narrow_float16(builder, wide):
    bits = _bits(builder, wide)
    size = builder.and_(bits, _u32(0x7FFFFFFF))
    normal = builder.sub(_rounded(builder, size, 13), _u32(112 << 10))
    # adding 0.5 shifts a subnormal half to the low end of the significand, and rounds it
    shifted = _bits(builder, builder.fadd(_float(builder, size), _f32(0.5)))
    subnormal = builder.sub(shifted, _bits(builder, _f32(0.5)))
    half = builder.select(builder.icmp_unsigned("<", size, _u32(113 << 23)), subnormal, normal)
    half = builder.select(builder.icmp_unsigned("<", half, _u32(0x7C00)), half, _u32(0x7C00))
    half = _if_nan(builder, wide, _u32(0x7E00), half)
    sign = builder.and_(builder.lshr(bits, _u32(16)), _u32(0x8000))
    return builder.trunc(builder.or_(half, sign), _u16)


def _rounded(builder, bits, drop):
    # just below half a unit, plus one where the last bit kept is odd: ties go to even
    odd = builder.and_(builder.lshr(bits, _u32(drop)), _u32(1))
    return builder.lshr(builder.add(builder.add(bits, _u32((1 << drop - 1) - 1)), odd), _u32(drop))


def _if_nan(builder, wide, yes, no):
    return builder.select(builder.fcmp_unordered("uno", wide, wide), yes, no)


def _bits(builder, wide):
    return builder.bitcast(wide, _u32)


def _float(builder, bits):
    return builder.bitcast(bits, _f32)
