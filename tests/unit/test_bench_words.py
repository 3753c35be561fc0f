from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.bench.words import check_op, format_size, parse_algorithm, parse_size, parse_sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("0", 0), ("4Ki", 4096), ("64Mi", 2**26), ("2Gi", 2**31), ("4KiB", 4096), (" 16 ", 16)],
)
def test_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "4k", "4K", "-1", "1.5Ki", "Ki", "8 8", "٣"])
def test_no_size(text):
    with pytest.raises(ValueError, match="is not a size, expected one such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", [8]),
        ("8,8,4", [8, 4]),
        ("8:64Mi:x4", [8 * 4**i for i in range(12)] + [2**26]),
        ("8:2Ki:x16", [8, 128, 2048]),
        ("0:20:+8", [0, 8, 16, 20]),
        ("1:4", [1, 2, 3, 4]),
        ("4Ki:16Ki:+4Ki", [4096, 8192, 12288, 16384]),
        ("5:5:x2", [5]),
        ("8:32:x4,3,1:2", [8, 32, 3, 1, 2]),
    ],
)
def test_sizes(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8:4", "is empty"),
        ("0:8:x2", "does not get any further"),
        ("1:8:x1", "does not get any further"),
        ("1:8:+0", "does not get any further"),
        ("8:64Mi", "more than 10000 sizes"),
        ("1:2:3", "is not a range"),
        ("1:2:x2:x2", "is not a range"),
        ("8,", "is not a size"),
        (":", "is not a size"),
    ],
)
def test_no_sizes(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_sizes(text)
    assert "\n" not in str(caught.value)


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_a_list_keeps_its_order_and_loses_duplicates(sizes):
    assert parse_sizes(",".join(map(str, sizes))) == list(dict.fromkeys(sizes))


@given(st.integers(1, 10**6), st.integers(0, 10**12), st.integers(2, 100))
def test_a_multiplying_range_has_both_ends_and_even_steps(first, more, factor):
    last = first + more
    sizes = parse_sizes(f"{first}:{last}:x{factor}")
    assert sizes[0] == first
    assert sizes[-1] == last
    assert all(b == a * factor for a, b in pairwise(sizes[:-1]))
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 1 or last <= sizes[-2] * factor


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 50))
def test_an_adding_range_is_pythons_range_and_the_end(first, more, by):
    last = first + more
    assert parse_sizes(f"{first}:{last}:+{by}") == [*range(first, last, by), last]


@given(st.text(alphabet="0123456789KMiBx+:, ", max_size=12))
def test_whatever_is_written_is_read_or_refused(text):
    try:
        sizes = parse_sizes(text)
    except ValueError:
        return
    assert sizes
    assert all(size >= 0 for size in sizes)


def test_algorithm_with_parameters():
    assert parse_algorithm("ring") == ("ring", {})
    assert parse_algorithm(" two_level:inter=ring:leaders=2") == (
        "two_level",
        {"inter": "ring", "leaders": 2},
    )
    assert parse_algorithm("chain:chunks=4Ki") == ("chain", {"chunks": 4096})


@pytest.mark.parametrize("text", ["a:b", "a:b=", "a:=3", "a:b=-1", "a:b=1x"])
def test_parameters_that_are_none(text):
    with pytest.raises(ValueError, match="expected one such as"):
        parse_algorithm(text)


def test_ops_are_for_kinds_of_dtype():
    check_op("BAND", "uint8")
    check_op("PROD", "complex64")
    check_op("MAX", "bfloat16")
    for op, dtype in (("BAND", "float64"), ("MIN", "complex64"), ("LAND", "bfloat16")):
        with pytest.raises(ValueError, match=f"{op} is for integers.*, given {dtype}"):
            check_op(op, dtype)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(8, "8 B"), (1023, "1023 B"), (4096, "4 KiB"), (2**26, "64 MiB"), (1.5 * 2**30, "1.5 GiB")],
)
def test_format_size(nbytes, text):
    assert format_size(nbytes) == text
