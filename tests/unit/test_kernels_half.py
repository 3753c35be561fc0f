"""The portable conversions of float16, which a processor with its own does not run otherwise."""

import ctypes

import numba
import numpy as np
import pytest

from mpicoll.kernels import half, loop


def test_choice():
    native = half.conversions("float16", "x86_64-unknown-linux-gnu", "+avx2,+f16c")
    assert native == half.conversions("float16", "aarch64-unknown-linux-gnu", "")
    assert native != half.conversions("float16", "x86_64-unknown-linux-gnu", "+avx2,-f16c")
    assert native != half.conversions("float16", "powerpc64le-unknown-linux-gnu", "+altivec")


@pytest.mark.parametrize(("op", "ufunc"), [("SUM", np.add), ("PROD", np.multiply)])
def test_portable_float16(op, ufunc, monkeypatch):
    monkeypatch.setattr(loop, "conversions", lambda name, *_: half.conversions(name, "", ""))
    callback = numba.cfunc(loop.SIGNATURE)(loop.source(op, "float16"))
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(callback.address)
    every = np.arange(1 << 16, dtype="u2").view("f2")
    out = np.empty_like(every)
    for other in (
        every,
        every[::-1].copy(),
        np.roll(every, 12345),
        np.full_like(every, 1),
        np.zeros_like(every),
    ):
        run(out.ctypes.data, every.ctypes.data, other.ctypes.data, every.size)
        with np.errstate(all="ignore"):
            reference = ufunc(every.astype("f4"), other.astype("f4")).astype("f2")
        nan = np.isnan(reference)
        np.testing.assert_array_equal(np.isnan(out), nan)
        np.testing.assert_array_equal(out.view("u2")[~nan], reference.view("u2")[~nan])
