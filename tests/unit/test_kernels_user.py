"""Kernels of users' functions against the same functions in NumPy: values, placement, types, refusals."""

import functools
import signal
import subprocess
import sys
from typing import NamedTuple

import ml_dtypes
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.kernels.user import compiled

GUARD = 0x55
HALVES = {"float16": np.dtype("f2"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
NUMBERS = [np.dtype(c) for c in "bBhHiIlLfdFD"]


@functools.cache
def kernel(function, dtype):
    return compiled(function, np.dtype(dtype), name="test", commutative=False)


def vector(data, count, dtype, offset=0):
    """Return so many elements made of these bytes, over and over, that far from an aligned address."""
    memory = np.full(offset + count * dtype.itemsize + 16, GUARD, "u1")
    array = np.ndarray(count, dtype, memory, offset)
    memory[offset:-16] = np.resize(np.frombuffer(data, "u1"), array.nbytes)
    return array


placements = given(
    data=st.tuples(st.binary(min_size=1, max_size=200), st.binary(min_size=1, max_size=200)),
    count=st.sampled_from([0, 1, 2, 3, 7, 16, 33, 127]),
    offsets=st.tuples(*[st.integers(0, 15)] * 3),
    place=st.sampled_from(["left", "right", "apart"]),
)


def check(function, dtype, expected, data, count, offsets, place):
    """Run the kernel on these vectors, and compare with what is expected of their copies."""
    arrays = {
        "left": vector(data[0], count, dtype, offsets[0]),
        "right": vector(data[1], count, dtype, offsets[1]),
        "apart": vector(b"\xaa", count, dtype, offsets[2]),
    }
    left, right = (vector(each, count, dtype) for each in data)  # not copies: those leave out padding
    out = arrays[place]
    kernel(function, dtype)(out, arrays["left"], arrays["right"])
    with np.errstate(all="ignore"):
        assert_same(out, expected(left, right))
    assert (out.base[: -16 - out.nbytes] == GUARD).all(), "wrote before the vector"
    assert (out.base[-16:] == GUARD).all(), "wrote behind the vector"
    assert place == "left" or arrays["left"].tobytes() == left.tobytes()
    assert place == "right" or arrays["right"].tobytes() == right.tobytes()


def assert_same(result, reference):
    """Assert equal dtype and values; a NaN equals a NaN."""
    assert result.dtype == reference.dtype
    for field in result.dtype.names or ():
        assert_same(result[field], reference[field])
    if result.dtype.name == "bfloat16":  # whose NaN NumPy does not know
        result, reference = result.astype("f4"), reference.astype("f4")
    if not result.dtype.names:
        np.testing.assert_array_equal(result, reference)


def twice_plus(a, b):
    return a + a + b


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@placements
@settings(max_examples=25, deadline=None)
def test_numbers(dtype, data, count, offsets, place):
    check(twice_plus, dtype, lambda a, b: a + a + b, data, count, offsets, place)


def difference_of_squares(a, b):
    return a * a - b


@pytest.mark.parametrize("dtype", HALVES.values(), ids=str)
@placements
@settings(max_examples=25, deadline=None)
def test_halves_are_combined_in_float32(dtype, data, count, offsets, place):
    def expected(left, right):
        return (left.astype("f4") * left.astype("f4") - right.astype("f4")).astype(dtype)

    check(difference_of_squares, dtype, expected, data, count, offsets, place)


def either(a, b):
    return a ^ b


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=1))
@settings(max_examples=25, deadline=None)
def test_bool_takes_any_nonzero_byte_for_true(pairs):
    left, right = np.array(pairs, "u1").T.copy().view("?")
    out = np.empty_like(left)
    kernel(either, "?")(out, left, right)
    assert out.view("u1").tolist() == [int((a != 0) ^ (b != 0)) for a, b in pairs]


# Maps x -> slope*x + shift; the fields lie apart, in an order of their own, and packed or aligned.
MAPS = {
    "packed": np.dtype([("tag", "i1"), ("slope", "i8"), ("shift", "i8")]),
    "aligned": np.dtype([("tag", "i1"), ("slope", "i8"), ("shift", "i8")], align=True),
    "mixed": np.dtype([("tag", "i1"), ("slope", "i2"), ("shift", "u4")]),
    "shuffled": np.dtype(
        {
            "names": ["tag", "slope", "shift"],
            "formats": ["u2", "i4", "i4"],
            "offsets": [9, 4, 0],
            "itemsize": 13,
        }
    ),
}


def compose(a, b):
    return b.tag, a.slope * b.slope, a.slope * b.shift + a.shift


def composed(left, right):
    out = np.zeros_like(left)
    out["tag"], out["slope"] = right["tag"], left["slope"] * right["slope"]
    # cast as C does: mixed fields are wider in between
    out["shift"] = (left["slope"].astype("i8") * right["shift"] + left["shift"]).astype(left["shift"].dtype)
    return out


@pytest.mark.parametrize("layout", MAPS)
@placements
@settings(max_examples=25, deadline=None)
def test_structured(layout, data, count, offsets, place):
    check(compose, MAPS[layout], composed, data, count, offsets, place)


PAYLOAD = np.dtype(
    [("value", "i4"), ("place", "f4", (3,)), ("name", "S5"), ("inner", [("x", "i2"), ("y", "i8")])]
)


def larger(a, b):
    return a if a.value >= b.value else b


def larger_of(left, right):
    return np.where(left["value"] >= right["value"], left, right)


@pytest.mark.parametrize("dtype", [PAYLOAD, np.dtype(PAYLOAD.descr, align=True)], ids=["packed", "aligned"])
@placements
@settings(max_examples=25, deadline=None)
def test_operand_with_its_payload(dtype, data, count, offsets, place):
    check(larger, dtype, larger_of, data, count, offsets, place)


NESTED = np.dtype([("k", "i1"), ("inner", [("x", "f8"), ("deep", [("y", "i2")])]), ("t", "m8[s]")])


class Result(NamedTuple):
    k: int
    inner: tuple
    t: int


def swap(a, b):
    return Result(b.k, (b.inner.x, (a.inner.deep.y,)), a.t + b.t)


def swapped(left, right):
    out = left.copy()
    out["k"], out["inner"]["x"], out["t"] = right["k"], right["inner"]["x"], left["t"] + right["t"]
    return out


@placements
@settings(max_examples=25, deadline=None)
def test_nested(data, count, offsets, place):
    check(swap, NESTED, swapped, data, count, offsets, place)


def change_and_return(a, b):
    b.value = a.value
    a.value = 7
    return b


def changed(left, right):
    out = right.copy()
    out["value"] = left["value"]
    return out


@placements
@settings(max_examples=25, deadline=None)
def test_function_may_change_its_arguments(data, count, offsets, place):
    check(change_and_return, PAYLOAD, changed, data, count, offsets, place)


def test_closures_are_kept_apart():
    def weighted(weight):
        return lambda a, b: weight * a + b

    left, right = np.arange(5.0), np.ones(5)
    for weight in (2.0, 3.0):
        out = np.empty(5)
        kernel(weighted(weight), "f8")(out, left, right)
        np.testing.assert_array_equal(out, weight * left + right)


def test_closure_over_a_compiled_function_and_an_array():
    table = np.array([0, 10, 20])

    @numba.njit
    def look_up(i):
        return table[i]

    out = np.array([0, 1, 2])
    kernel(lambda a, b: look_up(a) + b, "i8")(out, out, np.array([1, 2, 3]))
    np.testing.assert_array_equal(out, [1, 12, 23])


def test_njit_function_is_taken_as_it_is():
    plain = kernel(lambda a, b: (a + b) - a, "f8")
    fast = kernel(numba.njit(fastmath=True)(lambda a, b: (a + b) - a), "f8")
    left, right, out = np.full(3, 1e300), np.ones(3), np.empty(3)
    plain(out, left, right)
    np.testing.assert_array_equal(out, 0)
    fast(out, left, right)
    np.testing.assert_array_equal(out, 1)


def test_division_by_zero_is_numpys():
    out = np.array([1.0, 0.0, -1.0])
    kernel(lambda a, b: a / b, "f8")(out, out, np.zeros(3))
    np.testing.assert_array_equal(out, [np.inf, np.nan, -np.inf])


def test_kernel_describes_itself():
    made = compiled(twice_plus, np.dtype("f8"), name="twice", commutative=True)
    assert (made.op, made.dtype, made.commutative) == ("twice", np.dtype("f8"), True)
    with pytest.raises(ValueError, match="twice: left has 3 items, expected 2"):
        made(np.zeros(2), np.zeros(3), np.zeros(2))


POINT = np.dtype([("x", "f8"), ("n", "i4")])
VECTOR = np.dtype([("x", "f8"), ("v", "f8", (3,))])


@pytest.mark.parametrize(
    ("function", "dtype", "reason"),
    [
        (lambda a, b: a + "x", "f8", r"No implementation of function .*add\(float64, Literal\[str\]\(x\)\)"),
        (lambda a, b: a.x, "f8", "Unknown attribute 'x' of type float64"),
        (lambda a, b: (a.z, a.n), POINT, "KeyError: 'z'"),
        (lambda a, b: missing(a), "f8", "NameError: name 'missing' is not defined"),  # noqa: F821
        (lambda a: a, "f8", "takes 1 arguments"),
        (max, "f8", "not a function"),
        (numba.njit("i4(i4, i4)")(lambda a, b: a), "f8", "compilation disabled"),
        (twice_plus, "O", "no plain type for object"),
        (twice_plus, ">f8", ">f8"),
        (twice_plus, np.longdouble, "float128"),
        (twice_plus, ("f8", (3,)), "no plain type for"),
        (lambda a, b: (a.h,), [("h", "f2")], "float16"),
        (lambda a, b: (1.0,), [("h", "f2")], "float16"),
        (lambda a, b: a / b, "i4", "returns float64, expected what fits int32"),
        (lambda a, b: a + 1j, "f8", "returns complex128, expected what fits float64"),
        (lambda a, b: a + b, "?", "returns int64, expected what fits bool"),
        (lambda a, b: None, "f8", "returns none, expected what fits float64"),
        (lambda a, b: a if a > b else None, "f8", r"returns OptionalType\(float64\)"),
        (lambda a, b: (a, b), "f8", r"returns UniTuple\(float64 x 2\)"),
        (lambda a, b: a.x, POINT, "returns float64, expected a tuple of 2 values or one of the operands"),
        (lambda a, b: (a.x,), POINT, "expected a tuple of 2 values or one of the operands"),
        (lambda a, b: (a.x, a.x), POINT, r"returns float64 at \[1\], expected what fits int32"),
        (lambda a, b: (a.x, a.v), VECTOR, r"returns nestedarray\(float64, \(3,\)\) at \[1\]"),
        (lambda a, b: (a.x, 1), VECTOR, r"returns .* at \[1\], expected what fits \('<f8', \(3,\)\)"),
        (lambda a, b: (1, 2, 3), NESTED, r"at \[1\], expected a tuple of 2 values$"),
    ],
)
def test_refusals(function, dtype, reason):
    with pytest.raises(TypeError, match=reason) as caught:
        compiled(function, np.dtype(dtype), name="odd", commutative=False)
    assert str(caught.value).startswith(f"odd on {np.dtype(dtype)}: ")
    assert "\n" not in str(caught.value)


FATAL = """
import faulthandler, resource
import numpy as np
from mpicoll.kernels.user import compiled

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
POINT = np.dtype([("x", "f8")])

def positive(a, b):
    if b < 0:
        raise ValueError("below zero")
    return a

def foreign(a, b):
    return np.zeros(1, POINT)[0]

function, dtype = {case}
vector = np.array({values}, dtype)
compiled(function, vector.dtype, name="deadly", commutative=False)(vector, vector, vector)
print("survived")
"""


@pytest.mark.parametrize(
    ("case", "fatal", "harmless", "words"),
    [
        (
            "positive, 'f8'",
            [1, 2, -1],
            [1, 2],
            ["exception in the operation deadly", "ValueError: below zero"],
        ),
        ("foreign, POINT", [(1,)], [], ["the operation deadly returned a record that is neither operand"]),
    ],
)
def test_what_has_no_right_result_ends_the_process(case, fatal, harmless, words):
    def run(values):
        script = FATAL.format(case=case, values=values)
        return subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )

    assert run(harmless).stdout == "survived\n"
    ended = run(fatal)
    assert (ended.returncode, ended.stdout) == (-signal.SIGABRT, "")
    for word in words:
        assert word in ended.stderr
