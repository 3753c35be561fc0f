"""Vectors whose reduction is known in advance.

Every rank's vector repeats a random period, so the expected result repeats too, and each rank computes
it by itself, without MPI, in little time at any number of ranks. The period is a prime: the chunks of a
vector do not repeat, so one that is delivered to another's place is found. What a rank finds after which
collective is in ``cases``.

The values are such that every order of combining gives the same result: for a sum integers, also in
floats, small enough for the sum of all ranks' to be exact; for a product of floats powers of two with a
sign. So a result is right or wrong, and there is no tolerance to choose.
"""

import functools
from typing import Any, TypeAlias

import numpy as np

from .words import OPS, kind

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

PERIOD = 65521


def find_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of that name; bfloat16 is ml_dtypes'.

    Raises
    ------
    ValueError
        If it is bfloat16 and ml_dtypes is not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise ValueError("bfloat16 needs ml_dtypes: pip install 'mpicoll[bfloat16]'") from None
    return np.dtype(ml_dtypes.bfloat16)


def period(rank: int, size: int, dtype: np.dtype[Any], op: str, seed: int = 0) -> Array:
    """Return the values that one rank's vector repeats, always the same for the same arguments.

    Without an op they are of the whole range of the type, or of its significand.
    """
    rng = np.random.default_rng((seed, rank))
    if kind(dtype.name) == "integers":
        if op == "SUM":  # no sum may overflow: some libraries saturate where others wrap around
            largest = max(np.iinfo(dtype).max // size, 1)
            return rng.integers(-largest if dtype.kind == "i" else 0, largest, PERIOD, dtype, endpoint=True)
        values = rng.integers(0, 256, (PERIOD, dtype.itemsize), np.uint8).view(dtype).ravel()
        if op == "PROD":
            return values | 1  # many even factors would give zero
        if op.startswith("L"):
            values[rng.random(PERIOD) < 0.5] = 0  # what logical ops are about is rare in random integers
        return values
    bits, exponent = _precision(dtype)
    if op == "PROD":
        largest = exponent // (size + 1)
        sign = rng.choice([1, -1, 1j, -1j] if kind(dtype.name) == "complex numbers" else [1, -1], PERIOD)
        return (sign * 2.0 ** rng.integers(-largest, largest + 1, PERIOD)).astype(dtype)
    # The partial sums of a sum must fit in the significand too. (With more ranks than that has values, which
    # only the shortest formats have to fear, random signs keep them there.)
    largest = max(2**bits // size, 1) if op == "SUM" else 2**bits
    parts = rng.integers(-largest, largest + 1, (2, PERIOD)).astype(np.float64)
    return (parts[0] + 1j * parts[1] if kind(dtype.name) == "complex numbers" else parts[0]).astype(dtype)


def _precision(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the bits of the significand, and the exponent that magnitudes may reach up and down."""
    if dtype.name == "bfloat16":
        return 8, 126
    information = np.finfo(dtype)
    return int(information.nmant) + 1, -int(information.minexp)


@functools.lru_cache(maxsize=1)
def reduced_period(
    size: int, dtype: np.dtype[Any], op: str, seed: int = 0, *, ranks: int | None = None
) -> Array:
    """Return the period of the reduction over all ranks, or the first so many, in rank order."""
    combine = getattr(np, OPS[op][0])
    result = period(0, size, dtype, op, seed)
    with np.errstate(over="ignore"):  # integers wrap around
        for rank in range(1, size if ranks is None else ranks):
            result = combine(result, period(rank, size, dtype, op, seed)).astype(dtype)
    # One rank alone keeps its values even where the op would give 0 or 1.
    return result


def poison(array: Array) -> None:
    """Fill with what a result hardly is: NaN in every floating-point format, some bits in integers."""
    array.view(np.uint8).fill(_poison(array.dtype))


def count_wrong(array: Array, expected: Array) -> int:
    """Return how many elements differ; a NaN differs from everything."""
    return int(np.count_nonzero(array != expected))


def count_touched(array: Array) -> int:
    """Return how many elements are not poisoned any more."""
    touched = array.view(np.uint8).reshape(-1, array.itemsize) != _poison(array.dtype)
    return int(np.count_nonzero(touched.any(axis=1)))


def _poison(dtype: np.dtype[Any]) -> int:
    return 0xA5 if kind(dtype.name) == "integers" else 0xFF
