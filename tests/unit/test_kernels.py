"""Every kernel against NumPy: values, placement, alignment, and the same answer in each lane."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll import kernels
from mpicoll.kernels import DTYPES, OPS, PAIRS, Kernel, kernel, supported

pytest.importorskip("ml_dtypes")  # makes np.dtype("bfloat16") work

DTYPE = {name: PAIRS.get(name) or np.dtype(name) for name in DTYPES}
DEFINED = [(op, name) for name, dtype in DTYPE.items() for op in OPS if supported(op, dtype)]
UFUNCS = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "LAND": np.logical_and,
    "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}  # fmt: skip

GUARD = 0x55


@np.errstate(all="ignore")
def expected(op, left, right):
    dtype = left.dtype
    if dtype.names:
        return np.array([better(op, *pair) for pair in zip(left, right, strict=True)], dtype)
    if dtype.name in ("float16", "bfloat16"):
        return expected(op, left.astype("f4"), right.astype("f4")).astype(dtype)
    if dtype.kind == "c" and op == "PROD":  # numpy.multiply may fuse multiply and add
        real = left.real * right.real - left.imag * right.imag
        result = np.empty_like(left)
        result.real, result.imag = real, left.real * right.imag + left.imag * right.real
        return result
    result = UFUNCS[op](left, right).astype(dtype)
    if dtype.kind == "f" and op in ("MIN", "MAX"):  # NumPy leaves the sign of zero open
        zeros, negative = (left == 0) & (right == 0), (np.signbit(left), np.signbit(right))
        negative = np.logical_or(*negative) if op == "MIN" else np.logical_and(*negative)
        result[zeros] = np.where(negative, -0.0, 0.0)[zeros]
    return result


def better(op, left, right):
    """Return the pair that numpy.argmin or argmax would find first, were they listed by index."""
    first, second = (left, right) if left["index"] <= right["index"] else (right, left)
    find = np.argmin if op == "MINLOC" else np.argmax
    return (first, second)[find([first["value"], second["value"]])]


def assert_same(result, reference):
    """Assert that all bits are the same, but for what a NaN carries."""
    if result.dtype.names:
        for field in result.dtype.names:
            assert_same(result[field], reference[field])
    elif result.dtype.kind == "c":
        assert_same(result.real, reference.real)
        assert_same(result.imag, reference.imag)
    else:
        nan = np.isnan(result)
        np.testing.assert_array_equal(nan, np.isnan(reference))
        bits = f"u{result.dtype.itemsize}"
        np.testing.assert_array_equal(result[~nan].copy().view(bits), reference[~nan].copy().view(bits))


def vector(data, count, dtype, offset=0):
    """Return so many elements made of these bytes, over and over, that far from an aligned address."""
    memory = np.full(offset + count * dtype.itemsize + 16, GUARD, "u1")
    array = np.ndarray(count, dtype, memory, offset)
    source = np.frombuffer(data, "u1") & (1 if dtype.kind == "b" else 255)
    memory[offset:-16] = np.resize(source, array.nbytes)
    return array


@pytest.mark.parametrize(("op", "name"), DEFINED)
@given(
    data=st.tuples(st.binary(min_size=1, max_size=200), st.binary(min_size=1, max_size=200)),
    count=st.sampled_from([0, 1, 2, 3, 5, 8, 13, 31, 64, 127, 500]) | st.integers(0, 100),
    offsets=st.tuples(*[st.integers(0, 15)] * 3),
    place=st.sampled_from(["left", "right", "apart"]),
)
@settings(max_examples=15, deadline=None)
def test_as_numpy(op, name, data, count, offsets, place):
    dtype = DTYPE[name]
    arrays = {
        "left": vector(data[0], count, dtype, offsets[0]),
        "right": vector(data[1], count, dtype, offsets[1]),
    }
    left, right = (vector(each, count, dtype) for each in data)  # not copies: those leave out padding
    arrays["apart"] = vector(b"\xaa", count, dtype, offsets[2])
    out = arrays[place]
    kernel(op, dtype)(out, arrays["left"], arrays["right"])
    assert_same(out, expected(op, left, right))
    assert (out.base[: -16 - out.nbytes] == GUARD).all(), "wrote before the vector"
    assert (out.base[-16:] == GUARD).all(), "wrote behind the vector"
    assert place == "left" or arrays["left"].tobytes() == left.tobytes()
    assert place == "right" or arrays["right"].tobytes() == right.tobytes()


@pytest.mark.parametrize("name", [name for name, kind in DTYPES.items() if kind == "floating"])
@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
def test_special_values_in_every_lane(op, name):
    dtype = DTYPE[name]
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3.0e-8, -3.0e-8, 6.0e4], dtype)
    left, right = np.repeat(special, len(special)), np.tile(special, len(special))
    for start in range(len(left)):  # each pair of values comes to each place
        a, b = np.roll(left, start), np.roll(right, start)
        for out in (np.empty_like(a), a):
            reference = expected(op, a, b)
            kernel(op, dtype)(out, a, b)
            assert_same(out, reference)


@pytest.mark.parametrize(("op", "name"), [pair for pair in DEFINED if DTYPES[pair[1]] != "pair"])
def test_operands_may_be_swapped(op, name):
    dtype = DTYPE[name]
    bytes_ = np.random.default_rng(1).bytes(2 * 1000 * dtype.itemsize)
    left, right = vector(bytes_[::2], 1000, dtype), vector(bytes_[1::2], 1000, dtype)
    one, other = np.empty_like(left), np.empty_like(left)
    kernel(op, dtype)(one, left, right)
    kernel(op, dtype)(other, right, left)
    assert kernel(op, dtype).commutative
    assert_same(one, other)


@pytest.mark.parametrize("op", ["SUM", "PROD", "MIN", "MAX"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half(op, name):
    every = np.arange(1 << 16, dtype="u2").view(DTYPE[name])
    out = np.empty_like(every)
    for other in (
        every,
        every[::-1].copy(),
        np.roll(every, 12345),
        np.full_like(every, 1),
        np.zeros_like(every),
    ):
        kernel(op, every.dtype)(out, every, other)
        assert_same(out, expected(op, every, other))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("op", ["MINLOC", "MAXLOC"])
def test_location_of_equal_values(op, name):
    values = [0, -0.0, 1, np.nan] if DTYPE[name]["value"].kind == "f" else [0, -1, 1]
    items = np.array([(value, index) for value in values for index in (7, 3, 0, -2)], DTYPE[name])
    left, right = np.repeat(items, len(items)), np.tile(items, len(items))
    out = np.empty_like(left)
    kernel(op, DTYPE[name])(out, left, right)
    assert_same(out, expected(op, left, right))


def test_logical_reads_any_nonzero_as_true():
    left, right = np.array([0, 2, 4, 255], "u1"), np.array([1, 1, 3, 0], "u1")
    for dtype in ("u1", "bool"):
        out = np.empty(4, dtype)
        kernel("LAND", dtype)(out, left.view(dtype), right.view(dtype))
        assert out.view("u1").tolist() == [0, 1, 1, 0]


def test_long_vector():
    left, right = np.random.default_rng(2).random((2, 3_000_001))
    reference = left + right
    kernel("SUM", left.dtype)(left, left, right)
    np.testing.assert_array_equal(left, reference)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("BAND", "f8"), ("LAND", "f4"), ("LXOR", "c8"), ("MIN", "c16"), ("SUM", "?"), ("MAX", "?"),
        ("BOR", "?"),
        ("SUM", PAIRS["FLOAT_INT"]), ("MINLOC", "f8"), ("MAXLOC", "c8"), ("REPLACE", "f8"), ("SUM", ">f8"),
        ("SUM", "M8[s]"), ("SUM", "U4"), ("SUM", "O"), ("MINLOC", [("value", "f8"), ("index", "i4")]),
        ("SUM", np.longdouble), ("BXOR", DTYPE["bfloat16"]),
    ],
)  # fmt: skip
def test_undefined_pairs_raise_and_compile_nothing(op, dtype, monkeypatch):
    monkeypatch.setattr(kernels, "_address", None)
    dtype = np.dtype(dtype)
    assert not supported(op, dtype)
    with pytest.raises(TypeError, match=f"no kernel for {op} on "):
        kernel(op, dtype)


def test_pairs_are_known_by_layout():
    assert supported("MINLOC", np.dtype([("speed", "f4"), ("rank", "i4")]))
    assert not supported("MINLOC", np.dtype([("rank", "i4"), ("speed", "f4")]))


def test_same_kernel_has_one_address():
    assert kernel("SUM", "f8") == kernel("SUM", np.dtype("d"))
    assert kernel("SUM", "f8").address != kernel("SUM", "f4").address


def test_call_checks_arrays():
    add = kernel("SUM", "f8")
    assert isinstance(add, Kernel)
    eight, nine = np.zeros(8), np.zeros(9)
    fixed = np.zeros(8)
    fixed.flags.writeable = False
    for arrays, error, message in [
        ((eight, eight, eight.astype("f4")), TypeError, "right has dtype float32, expected float64"),
        ((eight, nine, eight), ValueError, "left has 9 items, expected 8"),
        ((eight, eight, np.zeros(16)[::2]), ValueError, "right is not C-contiguous"),
        ((nine[1:], nine[:-1], eight), ValueError, "left and out overlap"),
        ((fixed, eight, eight), ValueError, "out is read-only"),
    ]:
        with pytest.raises(error, match=f"SUM: {message}"):
            add(*arrays)
