import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.bench import data
from mpicoll.bench.words import DTYPES, OPS, kind

CASES = [(dtype, op) for dtype in DTYPES for op in OPS if kind(dtype) in OPS[op][1]]


@pytest.mark.parametrize(("name", "op"), CASES)
@pytest.mark.parametrize("size", [1, 5])
def test_the_result_is_the_same_in_every_order(name, op, size):
    dtype = data.find_dtype(name)
    combine = getattr(np, OPS[op][0])
    vectors = [data.period(rank, size, dtype, op)[:2000] for rank in range(size)]
    expected = data.reduced_period(size, dtype, op)[:2000]
    assert expected.dtype == dtype
    for order in itertools.islice(itertools.permutations(range(size)), 0, None, 13):
        result = vectors[order[0]]
        with np.errstate(over="ignore"):
            for rank in order[1:]:
                result = combine(result, vectors[rank]).astype(dtype)
        assert data.count_wrong(result, expected) == 0
    with np.errstate(over="ignore"):  # and as a tree
        while len(vectors) > 1:
            left, right, *rest = vectors
            vectors = [*rest, combine(left, right).astype(dtype)]
    assert data.count_wrong(vectors[0], expected) == 0


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "uint8", "int64", "uint64"])
@pytest.mark.parametrize("size", [2, 7, 64])
def test_sums_agree_with_exact_arithmetic(name, size):
    dtype = np.dtype(name)
    total = sum(data.period(rank, size, dtype, "SUM")[:500].astype(object) for rank in range(size))
    assert total.tolist() == data.reduced_period(size, dtype, "SUM")[:500].tolist()


def test_products_of_integers_wrap_around():
    total = math.prod(
        data.period(rank, 4, np.dtype("int16"), "PROD")[:500].astype(object) for rank in range(4)
    )
    wrapped = [(value + 2**15) % 2**16 - 2**15 for value in total]
    assert wrapped == data.reduced_period(4, np.dtype("int16"), "PROD")[:500].tolist()
    assert wrapped != total.tolist()


@pytest.mark.parametrize(("name", "op"), CASES)
def test_a_missing_or_doubled_vector_shows(name, op):
    dtype = data.find_dtype(name)
    combine = getattr(np, OPS[op][0])
    expected = data.reduced_period(3, dtype, op)
    first, second, third = (data.period(rank, 3, dtype, op) for rank in range(3))
    with np.errstate(over="ignore"):
        missing = combine(first, second).astype(dtype)
        doubled = combine(combine(missing, third), third).astype(dtype)
    assert data.count_wrong(missing, expected) > len(expected) // 100
    if op in ("SUM", "PROD", "LXOR", "BXOR"):
        assert data.count_wrong(doubled, expected) > len(expected) // 100


@given(st.integers(1, 16), st.integers(20, 27))
def test_chunks_at_the_wrong_place_show(size, bits):
    """The chunks of vectors of 1 Mi to 128 Mi elements begin at different places of the period."""
    starts = {chunk * 2**bits // size % data.PERIOD for chunk in range(size)}
    assert len(starts) == size


@pytest.mark.parametrize("name", DTYPES)
def test_poison_is_wrong_nearly_everywhere(name):
    dtype = data.find_dtype(name)
    array = data.reduced_period(4, dtype, "SUM").copy()
    data.poison(array)
    assert data.count_wrong(array, data.reduced_period(4, dtype, "SUM")) > 0.98 * array.size


def test_ranks_differ_and_runs_do_not():
    one, again, other = (data.period(rank, 4, np.dtype("float64"), "SUM") for rank in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, data.period(1, 4, np.dtype("float64"), "SUM", seed=1))


def test_the_reduction_over_the_first_ranks():
    dtype = np.dtype("int32")
    total = data.period(0, 5, dtype, "SUM") + data.period(1, 5, dtype, "SUM")
    assert np.array_equal(data.reduced_period(5, dtype, "SUM", ranks=2), total)
    assert np.array_equal(data.reduced_period(5, dtype, "LAND", ranks=1), data.period(0, 5, dtype, "LAND"))


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_not_poisoned_any_more_shows(name):
    array = np.empty(9, data.find_dtype(name))
    data.poison(array)
    assert data.count_touched(array) == 0
    array.view(np.uint8)[-1] ^= 1
    array[3] = 1
    assert data.count_touched(array) == 2


@pytest.mark.parametrize("name", DTYPES)
def test_without_an_op_ranks_differ_in_nearly_every_element(name):
    one, other = (data.period(rank, 100, data.find_dtype(name), "") for rank in range(2))
    assert data.count_wrong(one, other) > 0.99 * data.PERIOD
