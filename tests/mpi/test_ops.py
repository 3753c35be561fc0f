"""The user's operations in mpi4py's own collectives, and the average."""

import copy
import functools
import itertools
import math
import pickle

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from mpi4py import MPI
from mpi4py.util.dtlib import from_numpy_dtype

import mpicoll
from mpicoll.kernels import PAIRS
from mpicoll.ops import divide

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

MAP = np.dtype([("slope", "i8"), ("shift", "i4")])
WIDE = np.dtype([("slope", "i8"), ("shift", "i4")], align=True)
PAYLOAD = np.dtype([("value", "f4"), ("place", "f8", (2, 3)), ("inner", [("x", "i2")])])


def compose(a, b):
    return a.slope * b.slope, a.slope * b.shift + a.shift


def compose_in_numpy(a, b):
    return np.array((a["slope"] * b["slope"], a["slope"] * b["shift"] + a["shift"]), a.dtype)


def every(dtype):
    """Draw every rank's vector of five maps, the same on all ranks."""
    rng, maps = np.random.default_rng(1), np.empty((SIZE, 5), dtype)
    maps["slope"], maps["shift"] = rng.integers(-5, 6, maps.shape), rng.integers(0, 99, maps.shape)
    return maps


@pytest.fixture
def make():
    """Make operations that are freed in the end: there can be 32 at once."""
    made = []

    def one(*args, **kwargs):
        made.append(mpicoll.op(*args, **kwargs))
        return made[-1]

    yield one
    for each in made:
        each.free()


@pytest.fixture(params=[MAP, WIDE], ids=["packed", "aligned"])
def dtype(request):
    return request.param


@pytest.fixture
def datatype(dtype):
    committed = from_numpy_dtype(dtype).Commit()
    yield committed
    committed.Free()


@pytest.mark.parametrize(("function", "rank"), [(lambda a, b: a, 0), (lambda a, b: b, SIZE - 1)])
def test_native_collective_of_numbers_in_rank_order(make, function, rank):
    mine, out = np.arange(4.0) + 10 * RANK, np.empty(4)
    WORLD.Allreduce(mine, out, op=make(function))
    np.testing.assert_array_equal(out, np.arange(4) + 10 * rank)


def test_native_collective_of_a_structured_type(make, dtype, datatype):
    op = make(compose)
    op.kernel(dtype)
    vectors = every(dtype)
    out = np.empty(5, dtype)
    WORLD.Allreduce([vectors[RANK].copy(), datatype], [out, datatype], op=op)
    expected = [functools.reduce(compose_in_numpy, column) for column in vectors.T]
    np.testing.assert_array_equal(out, np.array(expected, dtype))


def test_native_scan_is_in_rank_order(make, dtype, datatype):
    op = make(compose)
    op.kernel(dtype)
    vectors = every(dtype)
    out = np.empty(5, dtype)
    WORLD.Scan([vectors[RANK].copy(), datatype], [out, datatype], op=op)
    prefix = [list(itertools.accumulate(column, compose_in_numpy))[RANK] for column in vectors.T]
    np.testing.assert_array_equal(out, np.array(prefix, dtype))


def test_operand_with_its_payload(make):
    op = make(lambda a, b: a if a.value >= b.value else b)
    op.kernel(PAYLOAD)
    datatype = from_numpy_dtype(PAYLOAD).Commit()
    mine, out = np.zeros(3, PAYLOAD), np.empty(3, PAYLOAD)
    mine["value"], mine["place"], mine["inner"]["x"] = (RANK, -RANK, 7), RANK, RANK
    WORLD.Allreduce([mine, datatype], [out, datatype], op=op)
    datatype.Free()
    assert out["value"].tolist() == [SIZE - 1, 0, 7]
    assert out["inner"]["x"].tolist() == [SIZE - 1, 0, 0], "of equal values that of the lowest rank"
    assert (out["place"] == out["inner"]["x"][:, None, None]).all()


@pytest.mark.parametrize("kind", ["i1", "u8", "f4", "f8", "c16"])
def test_reduce_local_keeps_the_operands_apart(make, kind):
    lower, higher = np.array([1, 2, 3], kind), np.array([4, 5, 6], kind)
    make(lambda a, b: a + a + b).Reduce_local(lower, higher)
    np.testing.assert_array_equal(lower, [1, 2, 3])
    np.testing.assert_array_equal(higher, [6, 9, 12])


def test_reduce_local_of_contiguous_and_pair_types(make):
    add = make(lambda a, b: a + b)
    threes = MPI.DOUBLE.Create_contiguous(3).Commit()
    left, right = np.arange(6.0), np.ones(6)
    add.Reduce_local([left, 2, threes], [right, 2, threes])
    threes.Free()
    np.testing.assert_array_equal(right, np.arange(6) + 1)
    first = make(lambda a, b: (a.value + b.value, a.index))
    first.kernel(PAIRS["DOUBLE_INT"])
    left, right = np.array([(1.5, 2)], PAIRS["DOUBLE_INT"]), np.array([(2, 3)], PAIRS["DOUBLE_INT"])
    first.Reduce_local([left, MPI.DOUBLE_INT], [right, MPI.DOUBLE_INT])
    assert right.tolist() == [(3.5, 2)]


def renamed(dtype):
    """Exchange the names of the two fields, not their places."""
    other = np.dtype(MAP.descr, align=dtype.isalignedstruct)
    other.names = ("shift", "slope")
    return other


def test_which_dtype_a_datatype_means(make, dtype, datatype):
    op = make(compose)
    with pytest.raises(TypeError, match=r"0 kernels of its layout are known, expected one; call kernel"):
        op._dtype(datatype)
    op.kernel(np.dtype(MAP.descr, align=not dtype.isalignedstruct))  # another layout
    op.kernel(dtype)
    assert op._dtype(datatype) is dtype
    op.kernel(renamed(dtype))
    with pytest.raises(TypeError, match="2 kernels of its layout are known"):
        op._dtype(datatype)
    holes = MPI.INT.Create_resized(0, 12)
    vector = MPI.INT.Create_vector(2, 1, 2)
    for unknown in (holes, vector):
        with pytest.raises(TypeError, match=r"<mpicoll.Op compose>: "):
            op._dtype(unknown)
        unknown.Free()


def test_python_objects_and_scalars(make):
    op = make(compose)
    a, b = np.array([(2, 3), (4, 5)], MAP)
    assert op(a, b).tolist() == (8, 13)
    assert op(np.array([a, b]), np.array([b, b])).tolist() == [(8, 13), (16, 25)]
    join = make(lambda a, b: a + b)
    assert join("left", "right") == "leftright"
    assert WORLD.allreduce([RANK], op=join) == list(range(SIZE))
    total = WORLD.allreduce(np.array([[RANK, 1]]), op=join)
    np.testing.assert_array_equal(total, [[SIZE * (SIZE - 1) // 2, SIZE]])


def test_decorator_forms():
    @mpicoll.op
    def plain(a, b):
        """Give the first."""
        return a

    @mpicoll.op(commutative=True)
    def swaps(a, b):
        return a + b

    jitted = mpicoll.op(numba.njit(lambda a, b: a + b), commutative=True)
    assert [each.Is_commutative() for each in (plain, swaps, jitted)] == [False, True, True]
    assert [each.commutative for each in (plain, swaps, jitted)] == [False, True, True]
    assert isinstance(plain, mpicoll.Op)
    assert isinstance(plain, MPI.Op)
    assert (repr(plain), plain.__doc__) == ("<mpicoll.Op plain>", "Give the first.")
    out = np.ones(2)
    jitted.Reduce_local(out, out.copy())
    kernel = jitted.kernel("f8")
    kernel(out, out, out)
    assert out.tolist() == [2, 2]
    assert kernel is jitted.kernel(np.dtype("d"))
    assert (kernel.commutative, swaps.kernel("f8").op) == (True, "swaps")
    for each in (plain, swaps, jitted):
        each.Free()


@pytest.mark.parametrize("thing", [3, "SUM", MPI.SUM])
def test_what_is_no_function(thing):
    with pytest.raises(TypeError, match="expected a function of two elements"):
        mpicoll.op(thing)


def test_function_that_cannot_be_compiled(make):
    op = make(compose)
    with pytest.raises(TypeError, match=r"compose on float64: .*Unknown attribute 'slope'"):
        op.kernel("f8")


def test_tokens_are_never_used_again():
    tokens, handles = set(), set()
    for _ in range(50):  # more than there can be at once
        op = mpicoll.op(compose)
        tokens.add(op.token)
        handles.add(op.handle)
        op.Free()
    assert len(tokens) == 50
    assert len(handles) < 50


def test_freed_operation():
    op = mpicoll.op(lambda a, b: a + b)
    op.kernel("f8")
    op.Free()
    with pytest.raises(ValueError, match=r"<mpicoll.Op <lambda>> was freed"):
        op.kernel("f8")
    with pytest.raises(ValueError, match="cannot call"):
        op(1, 2)
    with pytest.raises(MPI.Exception):
        op.Reduce_local(np.ones(1), np.ones(1))


def test_average_is_one_object_and_no_mpi_op():
    assert repr(mpicoll.AVG) == "mpicoll.AVG"
    assert type(mpicoll.AVG)() is mpicoll.AVG
    assert copy.deepcopy(mpicoll.AVG) is mpicoll.AVG
    assert pickle.loads(pickle.dumps(mpicoll.AVG)) is mpicoll.AVG
    assert not isinstance(mpicoll.AVG, MPI.Op)
    with pytest.raises(TypeError):
        WORLD.Allreduce(np.ones(1), np.ones(1), op=mpicoll.AVG)


SIZES = st.sampled_from([1, 2, 3, 7, 100, 127, 128, 129, 255, 256, 40000, 2**31 - 1])


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@given(data=st.data(), size=SIZES)
@settings(max_examples=20, deadline=None)
def test_integers_are_truncated(kind, data, size):
    info = np.iinfo(kind)
    ends = st.sampled_from([info.min, info.min + 1, info.max, info.max - 1])
    values = data.draw(st.lists(st.integers(info.min, info.max) | ends, max_size=20))
    array = np.array(values, kind)
    divide(array, size)
    assert array.tolist() == [abs(each) // size * (1 if each > 0 else -1) for each in values]


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "g"])
@given(data=st.data(), size=SIZES)
@settings(max_examples=20, deadline=None)
def test_floats_are_divided(kind, data, size):
    array = data.draw(npst.arrays(kind if kind != "g" else "f8", st.integers(0, 9))).astype(kind)
    wide = np.float32 if kind == "f2" else array.dtype.type
    with np.errstate(all="ignore"):
        expected = (array.astype(wide) / wide(size)).astype(kind)
        divide(array, size)
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [3, 257, 2049, 70000])  # most are none of these types' numbers
def test_halves_are_divided_in_float32(name, size):
    half = np.dtype(name if name == "float16" else pytest.importorskip("ml_dtypes").bfloat16)
    finite = np.arange(0x7C00, dtype="u2").view(half)
    expected = (finite.astype("f4") / np.float32(size)).astype(half)
    divide(finite, size)
    np.testing.assert_array_equal(finite.view("u2"), expected.view("u2"))


def test_complex_parts_are_divided_apart():
    for kind in ("c8", "c16", "G"):
        array = np.array([complex(3, 6), complex(math.inf, 1), complex(0, -math.inf)], kind)
        divide(array, 4)
        assert array.real.tolist() == [0.75, math.inf, 0]
        assert array.imag.tolist() == [1.5, 0.25, -math.inf]


def test_any_layout_is_divided_in_place():
    for kind in ("i4", "f2", "f8", "c8"):
        memory = np.full((4, 6), 8, kind)
        divide(memory[::2, 1::2].T, 4)
        assert (memory[::2, 1::2] == 2).all()
        assert memory.sum() == 18 * 8 + 6 * 2
        single = np.array(8, kind)
        divide(single, 4)
        assert single == 2


def test_average_has_no_other_types():
    for kind in ("?", "O", "M8[s]", "m8[s]", "S2", MAP, ">f8"):
        with pytest.raises(TypeError, match="AVG is not defined for"):
            divide(np.zeros(1, kind), 2)
    with pytest.raises(ValueError, match="0 ranks given"):
        divide(np.ones(1), 0)
